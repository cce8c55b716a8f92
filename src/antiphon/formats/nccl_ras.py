"""Dumps of NCCL's RAS (`ncclras`): which communicators a running job has, where their ranks are, and how many
collectives each rank has called. Sizes and times of collectives it does not tell.

As JSON (`ncclras -f json`, NCCL 2.28.7 and later) with all counts; as text (2.24 and later) with counts only where
ranks differ. docs.nvidia.com/deeplearning/nccl/user-guide: RAS.
"""

from __future__ import annotations

import re
from calendar import timegm
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from time import strptime

import msgspec

from antiphon.core.jsontext import decode
from antiphon.cost.replay.counted import OK, Communicator, Count, Dump
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.formats.nccl_profile import KINDS

MOST_RANKS, MOST_COMMUNICATORS, MOST_SEATS, MOST_COUNT = 2**22, 2**16, 2**20, 2**63
MOST_NAME, MOST_LINE = 256, 2**12
HEAD = 2**12  # bytes within which a dump says what it is
_ASKED = "take one by ncclras -f json"
_READY, _GOING_ON = 0, 7  # ncclSuccess, ncclInProgress
_Gpu = tuple[str, int]  # a host, and which of its GPUs by NVML
_KINDS = {name.casefold(): kind for name, kind in KINDS.items()}


# ---- JSON ----


class _Status(msgspec.Struct):
    init_state: int = _READY
    async_error: int = _READY
    finalize_called: bool = False
    destroy_flag: bool = False
    abort_flag: bool = False


class _Missing(msgspec.Struct):
    rank: int
    host: str = ""
    nvml_dev: int = -1


class _Seat(_Missing):
    status: _Status = msgspec.field(default_factory=_Status)
    collective_counts: dict[str, int] = {}


class _Communicator(msgspec.Struct):
    hash: str
    size: int
    secondary_hash: str = ""
    ranks: list[_Seat] = []
    missing_ranks: list[_Missing] = []


class _File(msgspec.Struct):
    communicators: list[_Communicator]
    timestamp: str = ""


def is_ras(data: bytes) -> bool:
    """Whether it is a dump, of either form."""
    return b'"communicators_count"' in data[:HEAD] or _TITLE.search(data[: 2**18]) is not None


def dump(data: bytes) -> Dump:
    """What one dump tells. Invalid or Unsupported where it cannot be one. O(ranks of all communicators)."""
    if b'"communicators_count"' not in data[:HEAD]:
        return _of_text(data.decode("utf-8", "replace"))
    file = decode(data[max(data.find(b"{"), 0) :], _File)  # lines of the protocol may stand before it
    if len(file.communicators) > MOST_COMMUNICATORS:
        raise Unsupported(f"has {len(file.communicators)} communicators; at most {MOST_COMMUNICATORS} are read")
    seats = sum(len(one.ranks) + len(one.missing_ranks) for one in file.communicators)
    if seats > MOST_SEATS:
        raise Unsupported(f"has {seats} ranks of communicators; at most {MOST_SEATS} are read")
    whole = _whole(file.communicators)
    numbers = _numbers(file.communicators, whole)
    left: dict[str, None] = {}
    found = [_communicator(one, one is whole, numbers, left) for one in file.communicators]
    if len({one.name for one in found}) < len(found):
        raise Invalid("a communicator is there twice")
    return Dump(found, True, _seconds(file.timestamp), file.timestamp[:MOST_NAME], tuple(left))


def _gpu(seat: _Missing) -> _Gpu | None:
    """Where a rank is; None: not told. RAS writes `unknown` for a process that it has lost."""
    return (seat.host, seat.nvml_dev) if seat.host not in ("", "unknown") and seat.nvml_dev >= 0 else None


def _gpus(one: _Communicator) -> list[_Gpu | None]:
    return [_gpu(seat) for seat in (*one.ranks, *one.missing_ranks)]


def _whole(ones: Sequence[_Communicator]) -> _Communicator | None:
    """The communicator that has the GPUs of all others: its ranks are those of the job. Of GPUs that are not told, as
    many may be in another one as in it, where that has others, too."""
    if not ones:
        return None
    widest = max(ones, key=lambda one: one.size)
    gpus = _gpus(widest)
    has, untold = set(gpus) - {None}, gpus.count(None)
    for one in ones:
        others = _gpus(one)
        known = set(others) - {None}
        if one is not widest and (not known or not known <= has or others.count(None) > untold):
            return None
    return widest


def _numbers(ones: Sequence[_Communicator], whole: _Communicator | None) -> dict[_Gpu, int]:
    """Of every GPU its rank in the job: as the communicator of the whole job says, else in the order of hosts and of
    GPUs in them. Empty where that cannot be known: several ranks on a GPU, or ranks somewhere else and not told where.

        {a:0 b:0} {a:1 b:1}               ->  a:0 0, a:1 1, b:0 2, b:1 3
    """
    if whole is not None:
        seats = [(_gpu(seat), seat.rank) for seat in (*whole.ranks, *whole.missing_ranks)]
        found = {gpu: rank for gpu, rank in seats if gpu is not None}
        return found if len(found) == sum(gpu is not None for gpu, _ in seats) else {}
    every: set[_Gpu] = set()
    for one in ones:
        gpus = [gpu for gpu in _gpus(one) if gpu is not None]
        if len(set(gpus)) < one.size:
            return {}
        every.update(gpus)
    order = {host: number for number, host in enumerate(sorted({host for host, _ in every}, key=_by_number))}
    return {gpu: number for number, gpu in enumerate(sorted(every, key=lambda gpu: (order[gpu[0]], gpu[1])))}


def _by_number(host: str) -> list[tuple[int, str]]:
    """Host 2 before host 10."""
    return [(len(part) if at % 2 else 0, part) for at, part in enumerate(re.split(r"([0-9]+)", host))]


def _communicator(one: _Communicator, whole: bool, numbers: Mapping[_Gpu, int], left: dict[str, None]) -> Communicator:
    name = f"{one.hash} {one.secondary_hash}".strip()
    if not one.hash or len(name) > MOST_NAME:
        raise Invalid("a communicator without a hash, or with a long one")
    told, missing = [seat.rank for seat in one.ranks], [seat.rank for seat in one.missing_ranks]
    if not 0 < one.size <= MOST_RANKS or len(set(told + missing)) < len(told) + len(missing):
        raise Invalid(f"communicator {quote(name)}: {one.size} ranks, or one of them twice")
    if any(not 0 <= rank < one.size for rank in told + missing):
        raise Invalid(f"communicator {quote(name)}: a rank that is not one of its {one.size}")
    on: dict[str, int] = {}
    for seat in one.ranks:
        on[seat.host] = on.get(seat.host, 0) + 1
    seats = sorted(one.ranks, key=lambda seat: seat.rank)
    return Communicator(
        name,
        one.size,
        len(on),
        (min(on.values(), default=0), max(on.values(), default=0)),
        status=_status(one.ranks),
        errors=_errors(one),
        members=tuple(range(one.size)) if whole and len(told + missing) == one.size else _members(one, numbers),
        missing=tuple(sorted(missing)),
        counts=_counts(name, seats, left),
    )


def _members(one: _Communicator, numbers: Mapping[_Gpu, int]) -> tuple[int, ...]:
    """In the order of its ranks; () where one of them is not known."""
    places = {seat.rank: _gpu(seat) for seat in (*one.ranks, *one.missing_ranks)}
    found = [numbers.get(gpu, -1) for _, gpu in sorted(places.items()) if gpu is not None]
    return tuple(found) if len(set(found)) == one.size and min(found) >= 0 else ()


def _status(seats: Sequence[_Seat]) -> str:
    if any(seat.status.abort_flag for seat in seats):
        return "ABORT"
    if any(seat.status.finalize_called or seat.status.destroy_flag for seat in seats):
        return "FINALIZE"
    return "INIT" if any(seat.status.init_state == _GOING_ON for seat in seats) else "RUNNING"


def _errors(one: _Communicator) -> str:
    failed = any(
        state not in (_READY, _GOING_ON)
        for seat in one.ranks
        for state in (seat.status.init_state, seat.status.async_error)
    )
    differ = len({tuple(sorted(seat.collective_counts.items())) for seat in one.ranks}) > 1
    told = [
        name
        for name, so in (
            ("INCOMPLETE", len(one.ranks) < one.size),
            ("ERROR", failed),
            ("MISMATCH", differ),
        )
        if so
    ]
    return ",".join(told) or OK


def _counts(name: str, seats: Sequence[_Seat], left: dict[str, None]) -> dict[str, Count]:
    by_kind: dict[str, list[tuple[int, int]]] = {}
    for seat in seats:
        for key, count in seat.collective_counts.items():
            if not 0 <= count < MOST_COUNT:
                raise Invalid(f"communicator {quote(name)}: rank {seat.rank} tells {count} of {quote(key)}")
            kind = _KINDS.get(key.casefold())
            if kind is not None:
                by_kind.setdefault(kind, []).append((seat.rank, count))
            elif count:
                left[key[:MOST_NAME]] = None
    found = {}
    for kind, told in by_kind.items():
        most = max(count for _, count in told)
        if most:
            behind = tuple(rank for rank, count in told if count < most)
            found[kind] = Count(most, min(count for _, count in told), behind)
    return found


def _seconds(when: str) -> float | None:
    try:
        return float(timegm(strptime(when[:MOST_NAME], "%Y-%m-%d %H:%M:%S")))
    except ValueError:
        return None


# ---- text ----

_TITLE = re.compile(rb"^[ ]{0,8}Group +Comms +Nodes +Ranks", re.MULTILINE)
_ROW = re.compile(
    r" *([0-9]{1,9}) +([0-9]{1,9}) +([0-9]{1,9}) +([0-9]{1,9})(?:-([0-9]{1,9}))? +([0-9]{1,9}) +([0-9]{1,9}) +"
    r"([A-Z]{1,16}) +([A-Z,]{1,40}) *"
)
_ABOUT = re.compile(r"#([0-9]{1,9})-([0-9]{1,9}) \(([0-9a-fx]{1,40})[^)]{0,64}\) ([A-Z,]{1,40})")
_DIFFERENT = re.compile(r" *Communicator ranks have different (\w{1,32}) operation counts *")
_REACHED = re.compile(
    r" *(?:([0-9]{1,9}) ranks have|Rank ([0-9]{1,9}) has) (?:launched up to operation ([0-9]{1,19})|not launched any "
    r"operations).{0,512}"
)
_MISSING = re.compile(r" *The (?:missing ranks?|unknown ranks): ([0-9]{1,9}(?:,[0-9]{1,9}){0,255}) *")
_NO_DATA = re.compile(r" *Missing communicator data from [0-9]{1,9} ranks? *")
_RANK = re.compile(r" *Rank ([0-9]{1,9}) -- .{0,512}")


class _Text:
    """What the lines have told until here. `groups`: the rows of the table; `single`: communicators that more is told
    of; `reached`: of one kind (None: of none that has a name here), how far ranks have come, and those of them that are
    named; `missing`: whether the ranks named next are those that told nothing; `left`: kinds that have no price."""

    def __init__(self) -> None:
        self.groups: dict[int, Communicator] = {}
        self.single: dict[tuple[int, int], Communicator] = {}
        self.about: tuple[int, int] | None = None
        self.kind: str | None = None
        self.missing = False
        self.lacking: dict[tuple[int, int], set[int]] = {}
        self.left: dict[str, None] = {}
        self.reached: list[tuple[int, tuple[int, ...]]] = []

    def hear(self, line: str) -> None:
        if row := _ROW.fullmatch(line):
            self.groups[int(row[1])] = _group(row)
        elif found := _ABOUT.fullmatch(line.strip()):
            self.note()
            self.about = (int(found[1]), int(found[2]))
            self._meet(found[3])
        elif found := _DIFFERENT.fullmatch(line):
            self.note()
            self._count_of(found[1])
        elif found := _REACHED.fullmatch(line):
            self.reached.append((int(found[3] or 0), (int(found[2]),) if found[2] else ()))
        elif _NO_DATA.fullmatch(line):
            self.missing = True
        elif found := _MISSING.fullmatch(line):
            self._lack(map(int, found[1].split(",")))
        elif (found := _RANK.fullmatch(line)) and self.missing:
            self._lack([int(found[1])])
        elif found and self.reached:
            count, ranks = self.reached[-1]
            self.reached[-1] = (count, (*ranks, int(found[1])))

    def note(self) -> None:
        """What was told of one kind is complete."""
        if self.about is not None and self.reached and self.kind is not None:
            one = self.single[self.about]
            most = max(count for count, _ in self.reached)
            behind = tuple(sorted(rank for count, ranks in self.reached if count < most for rank in ranks))
            count = Count(most, min(count for count, _ in self.reached), behind)
            self.single[self.about] = replace(one, counts={**one.counts, self.kind: count})
        self.kind, self.reached, self.missing = None, [], False

    def _count_of(self, name: str) -> None:
        """NCCL 2.24 and 2.25 say `collective` for all kinds together."""
        self.kind = "" if name.casefold() == "collective" else _KINDS.get(name.casefold())
        if self.kind is None:
            self.left[name] = None

    def _lack(self, ranks: Iterable[int]) -> None:
        """Ranks that told nothing of the communicator that is spoken of."""
        if self.about is not None:
            one = self.single[self.about]
            for rank in ranks:
                if rank >= one.size:
                    raise Invalid(f"communicator {quote(one.name)}: rank {rank} is not one of its {one.size}")
                self.lacking.setdefault(self.about, set()).add(rank)

    def _meet(self, name: str) -> None:
        group, number = self.about or (0, 0)
        row = self.groups.get(group)
        if row is None or number >= row.alike:
            raise Invalid(f"tells of communicator #{group}-{number}, and its table has none")
        if len(self.single) >= MOST_COMMUNICATORS:
            raise Unsupported(f"tells of more than {MOST_COMMUNICATORS} communicators")
        self.single.setdefault((group, number), replace(row, name=name, alike=1))

    def all(self) -> list[Communicator]:
        """Groups without those that are told by themselves, then these."""
        apart = Counter(group for group, _ in self.single)
        rest = [replace(row, alike=row.alike - apart[number]) for number, row in self.groups.items()]
        single = [replace(one, missing=tuple(sorted(self.lacking.get(at, ())))) for at, one in self.single.items()]
        return [*(row for row in rest if row.alike), *single]


def _of_text(text: str) -> Dump:
    heard = _Text()
    for line in text.splitlines():
        if len(line) <= MOST_LINE:
            heard.hear(line)
    heard.note()
    if len(heard.groups) > MOST_COMMUNICATORS:
        raise Unsupported(f"has {len(heard.groups)} groups of communicators; at most {MOST_COMMUNICATORS} are read")
    if not heard.groups:
        raise Invalid(f"has no row of communicators; {_ASKED}")
    return Dump(heard.all(), complete=False, left_out=tuple(heard.left))


def _group(row: re.Match[str]) -> Communicator:
    number, alike, nodes, fewest, most, size = (int(row[n] or row[4]) for n in range(1, 7))
    if not 0 < size <= MOST_RANKS or not 0 < alike <= MOST_COUNT:
        raise Invalid(f"group {number}: {alike} communicators of {size} ranks")
    return Communicator(f"#{number}", size, nodes, (fewest, most), alike, row[8], row[9])
