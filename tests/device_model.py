"""Tables of small programs as what tests/device/model.cc reads, and what becomes of them when something is left out.

It reads the numbers of a table as docs/device.md has them, by itself.
"""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from antiphon.core.collective import Collective
from antiphon.lower.device.table import Table
from antiphon.runtimes.measure.random_data import RandomData

SIGNAL, WAIT, PUT, FOLD, SYNC, SWITCH, SPREAD, DIVIDE = range(8)
INPUT, OUTPUT, SCRATCH, PACKETS = range(4)
CALLS, ROUND_BITS, CALL_BITS = 2**36, 16, 28
_SLOT = 1000  # more than there are packets in any
_GATE, _SIGNAL, _WAIT, _SYNC, _DATA, _END, _START, _FINISH = range(8)

Cell = tuple[int, int, int]  # rank, buffer, element
Cells = tuple[Cell, ...]


class Argument(NamedTuple):
    rank: int
    region: int
    whole: int
    part: int
    number: int


class Step(NamedTuple):
    kind: int
    arguments: tuple[Argument, ...]
    more: int = 0
    ordered: bool = True  # a signal releases, a wait acquires


@dataclass(frozen=True)
class Read:
    """A table, taken apart."""

    rank: int
    denominator: int
    parts: tuple[int, ...]
    classes: tuple[tuple[int, int], ...]
    regions: tuple[tuple[int, ...], ...]
    streams: tuple[tuple[Step, ...], ...]
    sliced: bool
    receives_all: bool = False  # at its end all have heard from all, by packets
    packets: bool = False

    def cut(self, unit: int, whole: int, part: int) -> int:
        return unit * whole + unit * self.parts[part] // self.denominator

    def element(self, unit: int, a: Argument) -> int:
        """Where in its buffer a place begins."""
        buffer, whole, part, *before = self.regions[a.region]
        if buffer == PACKETS:
            return _SLOT * before[-1]
        at = self.cut(unit, a.whole, a.part)
        if buffer == SCRATCH:
            strides = (unit * w - -unit * p // self.denominator for w, p in self.classes)
            at += sum(n * stride for n, stride in zip(before, strides, strict=True)) - self.cut(unit, whole, part)
        return at

    def atoms(self, unit: int, a: Argument) -> list[int]:
        """How long those of a place are."""
        ends = [self.cut(unit, *divmod(a.whole * len(self.parts) + a.part + k, len(self.parts)))
                for k in range(a.number + 1)]  # fmt: skip
        return [high - low for low, high in pairwise(ends)]

    def places(self, unit: int, some: Sequence[Argument], slice_: int, slices: int) -> list[Cells]:
        """The elements of each, as many as the first has, those of a slice of each atom."""
        wanted, at = list[int](), 0
        for length in self.atoms(unit, some[0]):
            low, high = (length * k // slices for k in (slice_, slice_ + 1))
            wanted += range(at + low, at + high)
            at += length
        return [tuple((a.rank, self.regions[a.region][0], self.element(unit, a) + k) for k in wanted) for a in some]


def take_apart(table: Table) -> Read:
    words = [int(one) for one in table.words]
    rank, denominator = words[3], words[5]
    parts, classes, regions, blocks, steps, arguments = words[8:14]
    at = 17

    def rows(count: int, width: int) -> list[tuple[int, ...]]:
        nonlocal at
        found = [tuple(words[at + width * k : at + width * (k + 1)]) for k in range(count)]
        at += width * count
        return found

    cuts = tuple(one for (one,) in rows(parts, 1))
    kinds = [(one[0], one[1]) for one in rows(classes, 2)]
    rows(classes, 1)
    places, streams, some = rows(regions, 3 + classes), rows(blocks, 2), rows(steps, 4)
    every = [Argument(*one) for one in rows(arguments, 5)]
    assert at == len(words)
    made = [Step(kind, tuple(every[first : first + count]), more) for kind, first, count, more in some]
    return Read(
        rank, denominator, cuts, tuple(kinds), tuple(places),
        tuple(tuple(made[first : first + count]) for first, count in streams), table.sliced, bool(words[16]),
        table.packets,
    )  # fmt: skip


@dataclass(frozen=True)
class Call:
    """What all ranks do in one call."""

    tables: tuple[Read, ...]
    collective: Collective
    unit: int
    in_place: bool = False
    lanes: int = 1
    rounds: int = 1


@dataclass
class Case:
    """Calls one after another on the same buffers. `races`: the first access that no order protects is a fault; else
    only what comes of it. `epochs`: signals have the number of the call in them. `signed`: they are compared as the
    kernel does. `first`: the number of the first call; `numbers`: those of all, where they do not follow each other.
    `by_peer`: the same thread tells a peer each time. Of packets, `flags`: they are looked at. `halves`: of boxes take
    turns. `opening`: who must have begun is waited for. `most`: states until it is given up."""

    calls: list[Call]
    races: bool = True
    epochs: bool = True
    signed: bool = True
    first: int = 1
    numbers: list[int] | None = None
    by_peer: bool = True
    flags: bool = True
    halves: bool = True
    opening: bool = True
    most: int = 3_000_000
    _cells: dict[Cell, int] = field(default_factory=dict)
    _slots: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def judged(self) -> str:
        """The verdict of the model: "right N", or what is wrong."""
        done = subprocess.run([model()], input=self.text(), capture_output=True, text=True, check=False)
        assert done.returncode in (0, 1), done.stderr
        return done.stdout

    def text(self) -> str:
        ranks, hosts, data = self.calls[0].collective.ranks, [], []
        for call, one in enumerate(self.calls):
            data += self._data(call, one)
        blocks = [self._block(rank, number) for rank in range(ranks) for number in range(self._blocks(rank))]
        for rank in range(ranks):
            actions = list[list[int]]()
            mine = [number for cell, number in self._cells.items() if cell[0] == rank and cell[1] < PACKETS]
            for call, one in enumerate(self.calls):
                outputs = [number for cell, number in self._cells.items() if cell[:2] == (rank, OUTPUT)]
                actions.append([_START, 0, 0, 1, 0, call, 0, 1, len(mine), *mine, 0])
                actions.append([_FINISH, 0, 0, 1, 0, call, 0, 0, 1, len(outputs), *outputs])
                assert one.collective.ranks == ranks
            hosts.append([rank, 1, len(actions), *(word for action in actions for word in action)])
        first = ((self._number(0) - 1) % CALLS) << CALL_BITS if self.epochs else 0
        head = [
            ranks,
            len(self._cells),
            len(self.calls),
            len(self._slots),
            int(self.races),
            int(self.signed),
            self.most,
        ]
        packets = [number for cell, number in self._cells.items() if cell[1] >= PACKETS]
        lines = [
            head,
            [_word(first)] * len(self._slots),
            [len(packets), *packets],
            *data,
            [len(hosts) + len(blocks)],
            *hosts,
            *blocks,
        ]
        return "\n".join(" ".join(map(str, line)) for line in lines) + "\n"

    def _number(self, call: int) -> int:
        return (self.numbers[call] if self.numbers else self.first + call) % CALLS

    def _blocks(self, rank: int) -> int:
        return max(len(call.tables[rank].streams) * call.lanes for call in self.calls)

    def _cell(self, cell: Cell) -> int:
        return self._cells.setdefault(cell, len(self._cells))

    def _data(self, call: int, one: Call) -> list[list[int]]:
        """By rank what is given, the rest of its memory being other for each call, and what is wanted."""
        made = RandomData(one.collective, one.unit, np.dtype(np.uint64), "sum", one.in_place, call + 1)
        found = []
        for rank in range(one.collective.ranks):
            data = made.rank(rank)
            for buffer, size in zip((INPUT, OUTPUT), data.sizes, strict=True):
                if not (one.in_place and buffer == INPUT):
                    for at in range(size):
                        self._cell((rank, buffer, at))
            held = np.random.default_rng([call, rank]).integers(2**63, size=data.sizes[0]).astype(np.uint64)
            data.fill(held)
            side = OUTPUT if one.in_place else INPUT
            given = [
                word for at, value in enumerate(held) for word in (self._cell((rank, side, at)), _word(int(value)))
            ]
            wanted = list[int]()
            for places in _promised(made, rank):
                wanted += [self._cell((rank, OUTPUT, places[0])), _word(places[1])]
            found += [[len(given) // 2, *given], [len(wanted) // 2, *wanted]]
        return found

    def _slot(self, rank: int, block: int, sender: int) -> int:
        return self._slots.setdefault((rank, block, sender), len(self._slots))

    def _block(self, rank: int, block: int) -> list[int]:
        actions = list[list[int]]()
        for call, one in enumerate(self.calls):
            table = one.tables[rank]
            stream, lane = divmod(block, one.lanes)
            if stream >= len(table.streams):
                continue
            actions.append([_GATE, 0, 0, 1, 0, call, 0])
            number = self._number(call) if self.epochs else 0
            for round_ in range(one.rounds):
                base, slice_ = (number << CALL_BITS) + (round_ << ROUND_BITS), round_ * one.lanes + lane
                for at, step in enumerate(table.streams[stream]):
                    if table.packets and step.kind in (WAIT, SYNC) and step.more and (round_ or not self._opens(call)):
                        continue
                    actions += self._step(one, rank, block, step, base, (call, at), (slice_, one.lanes * one.rounds))
                actions.append([_SYNC, 0, 0, 1, 0, call, len(table.streams[stream])])
            actions.append([_END, 0, 0, 1, 0, call, len(table.streams[stream])])
        return [rank, 0, len(actions), *(word for action in actions for word in action)]

    def _opens(self, call: int) -> bool:
        """Whether it is not known that all have begun the call before."""
        known = (
            call > 0
            and self._number(call - 1) == self._number(call) - 1
            and self.calls[call - 1].tables[0].receives_all
        )
        return self.opening and not known

    def _step(
        self, one: Call, rank: int, block: int, step: Step, base: int, at: tuple[int, int], share: tuple[int, int]
    ) -> list[list[int]]:
        if step.kind == SYNC:
            return [[_SYNC, 0, 0, 1, 0, *at]]
        if step.kind in (SIGNAL, WAIT):
            found = []
            for number, a in enumerate(step.arguments):
                ends = (a.rank, block, rank) if step.kind == SIGNAL else (rank, block, a.rank)
                kind = _SIGNAL if step.kind == SIGNAL else _WAIT
                thread = a.rank if self.by_peer else number
                found.append([kind, self._slot(*ends), _word(base + a.number), int(step.ordered), thread, *at])
            return found
        table, some = one.tables[rank], step.arguments
        if step.kind == PUT:
            pairs = [(some[k + 1 : k + 2], some[k : k + 1]) for k in range(0, len(some), 2)]
        elif step.kind == DIVIDE:
            pairs = [(some, some)]
        else:
            pairs = [(some[: step.more], some[step.more :])]
        made = []
        for results, operands in pairs:
            # the first tells how much: of a put that is what it reads
            order = (*operands, *results) if step.kind == PUT else (*results, *operands)
            places = table.places(one.unit, order, *share)
            sides = (places[len(operands) :], places[: len(operands)])
            if step.kind != PUT:
                sides = (places[: len(results)], places[len(results) :])
            if table.packets and step.kind != DIVIDE:  # each by itself
                made += [
                    self._data_step([[(c[k],) for c in side] for side in sides], at) for k in range(len(places[0]))
                ]
            elif places[0]:
                made.append(self._data_step(sides, at))
        return made

    def _data_step(self, sides: Sequence[Sequence[Cells]], at: tuple[int, int]) -> list[int]:
        number = self._number(at[0])
        flag = number % 2**32 or 2**31
        words = [_DATA, 0, flag if self.epochs else 1, int(self.flags), 0, *at]
        for side in sides:
            words.append(len(side))
            for cells in side:
                words += [len(cells), *(self._cell(self._in_half(cell, number)) for cell in cells)]
        return words

    def _in_half(self, cell: Cell, number: int) -> Cell:
        rank, buffer, at = cell
        return (rank, buffer + (number % 2 if self.halves else 0), at) if buffer == PACKETS else cell


def _word(value: int) -> int:
    """As a signed number of 64 bits."""
    return (value + 2**63) % 2**64 - 2**63


def _promised(made: RandomData, rank: int) -> list[tuple[int, int]]:
    """Elements of the output, and what must stand there."""
    data = made.rank(rank)
    where = np.arange(data.sizes[1])
    found = list[tuple[int, int]]()
    for key, places in data.outputs(where):
        value = made.expected_of(key)[0]
        found += [(int(at), int(one)) for at, one in zip(places, value, strict=True)]
    return found


@cache
def model() -> Path:
    """The model, compiled."""
    import atexit
    import shutil
    import tempfile

    where = tempfile.mkdtemp(prefix="device-model-")
    atexit.register(shutil.rmtree, where, ignore_errors=True)
    path = Path(where) / "model"
    source = Path(__file__).with_name("device") / "model.cc"
    subprocess.run(["c++", "-std=c++17", "-O2", str(source), "-o", str(path)], check=True)
    return path


def pairs(call: Call) -> list[tuple[int, int, int, int]]:
    """Every signal: stream, from, to, number."""
    return [
        (stream, table.rank, a.rank, a.number)
        for table in call.tables
        for stream, steps in enumerate(table.streams)
        for step in steps
        if step.kind == SIGNAL
        for a in step.arguments
    ]


def without(call: Call, signal: tuple[int, int, int, int]) -> Call:
    """Nobody tells this, and nobody waits for it; those behind it are numbered anew."""
    stream, source, target, number = signal

    def changed(table: Read) -> Read:
        kind, peer = (SIGNAL, target) if table.rank == source else (WAIT, source)
        if table.rank not in (source, target):
            return table
        steps = []
        for step in table.streams[stream]:
            if step.kind == kind:
                kept = [
                    a._replace(number=a.number - (a.rank == peer and a.number > number))
                    for a in step.arguments
                    if (a.rank, a.number) != (peer, number)
                ]
                steps.append(step._replace(arguments=tuple(kept)))
            else:
                steps.append(step)
        streams = (*table.streams[:stream], tuple(steps), *table.streams[stream + 1 :])
        return replace(table, streams=streams)

    return replace(call, tables=tuple(map(changed, call.tables)))


def changed_step(call: Call, rank: int, stream: int, at: int, **changes: Any) -> Call:
    """One step with other fields; with kind=None it is left out."""
    table = call.tables[rank]
    steps = list(table.streams[stream])
    if "kind" in changes:
        del steps[at]
    else:
        steps[at] = steps[at]._replace(**changes)
    streams = (*table.streams[:stream], tuple(steps), *table.streams[stream + 1 :])
    tables = list(call.tables)
    tables[rank] = replace(table, streams=streams)
    return replace(call, tables=tuple(tables))


def steps_of(call: Call, kind: int) -> list[tuple[int, int, int]]:
    """Where steps of a kind are: rank, stream, position."""
    return [
        (table.rank, stream, at)
        for table in call.tables
        for stream, steps in enumerate(table.streams)
        for at, step in enumerate(steps)
        if step.kind == kind
    ]
