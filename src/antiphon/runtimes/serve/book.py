"""A book: what a table of tuned plans becomes when it is to run. Programs, and pages that say when to take which.

All processes of a job need one and the same book, as their choices must agree; so it is one piece of bytes that one of
them reads and hands to the others. docs/program.md has its layout.
"""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from antiphon.core.collective import KINDS, Collective
from antiphon.core.columns import Longs
from antiphon.core.files import name_of, read_bytes, reading, within
from antiphon.core.plan import LIBRARY, Entry, Plan
from antiphon.core.program import decode, encode, prove
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology, hosts
from antiphon.core.verify import verify
from antiphon.errors import Invalid, Unsupported
from antiphon.lower.lowering import both
from antiphon.runtimes.serve.pages import Book, Page
from antiphon.runtimes.serve.proven import refuse_unmarked

__all__ = [
    "MAGIC",
    "VERSION",
    "Book",
    "Page",
    "decode_book",
    "encode_book",
    "make_book",
    "proven_book",
    "read_table",
]

MAGIC, VERSION = b"ANTIBOOK", 1
MOST_ROOTS = 32  # ranks up to which a plan for one root is turned into plans for all that are alike
MOST_NODES = 8 * MOST_ROOTS  # of a machine whose symmetries are looked for: as many generators, each as long
_ORDER = ("broadcast", "reduce", "scatter", "gather", "allgather", "reducescatter", "allreduce", "alltoall")
assert sorted(_ORDER) == sorted(KINDS)
_HEADER = struct.Struct("<8sIIQQ8I")
_PAGE = struct.Struct("<IiIIQQiIIIdQ")
_PROGRAM = struct.Struct("<QQII")
_NO_END = 2**64 - 1


def make_book(plans: Iterable[Plan], every_root: bool = True) -> Book:
    """The book of plans for one machine.

    A plan with a root also serves, with `every_root`, all roots that a symmetry of the machine takes it to, on up to 32
    ranks. Left out, with the reason in `left`: what no call of a process group can mean (uneven counts, several roots,
    custom relations), schedules in which ranks outside of the group must help, and what is too large for an engine or
    for a proof. Every program is proven to be the collective that it is listed under. Lowering and the proof cost some
    microseconds per transfer and root.
    """
    given = list(plans)
    if not given:
        raise Invalid("there are no plans to make a book of")
    machine = given[0].topology
    if any(plan.topology != machine for plan in given[1:]):
        raise Invalid("the plans are for different machines; a book is for one")
    pages: list[Page] = []
    programs: dict[bytes, int] = {}
    left: list[str] = []
    for plan in given:
        why = _unfit(plan)
        if why:
            left.append(f"{plan.collective.kind}: {why}")
            continue
        for entry in plan.entries:
            for schedule in _rooted(entry, machine, every_root):
                number = -1
                if entry.served_by != LIBRARY:  # what only a model of NCCL says is for MPI and gloo to be tried
                    try:
                        with within(f"the program for {plan.collective.kind} ({_label(entry)})"):
                            number = _numbered(schedule, programs)
                    except Unsupported as error:
                        left.append(str(error))
                        continue
                pages.append(_page(schedule.collective, entry, number))
    return Book(machine.name, machine.ranks, hosts(machine), tuple(pages), tuple(programs), tuple(dict.fromkeys(left)))


def _numbered(schedule: Schedule, programs: dict[bytes, int]) -> int:
    """The number of its program, which is proven if it is new. Unsupported where that takes too much."""
    data = encode(both(schedule))
    if data not in programs:
        prove(*decode(data))
        programs[data] = len(programs)
    return programs[data]


def _unfit(plan: Plan) -> str:
    collective = plan.collective
    if collective.kind not in _ORDER or len(collective.roots) > 1:
        return "no call of a process group means it"
    if np.any(collective.weights != 1):
        return "its counts are uneven"
    for entry in plan.entries:
        used = np.union1d(entry.schedule.src, entry.schedule.dst)
        outside = np.setdiff1d(used, collective.members)
        if len(outside):
            return f"rank {int(outside[0])}, which is not in the group, would have to help"
    return ""


def _page(collective: Collective, entry: Entry, number: int) -> Page:
    claims, root = entry.claims, collective.roots[0] if collective.roots else -1
    told = claims.get("seconds")
    seconds = float(told) if isinstance(told, int | float) else None
    measured = "reference_seconds" in claims or (number < 0 and claims.get("measured") is not False)
    members, label = tuple(collective.members), _label(entry)
    ordered = "order" in claims
    return Page(collective.kind, members, root, entry.start, entry.stop, label, number, measured, seconds, ordered)


def _label(entry: Entry) -> str:
    planner, options = entry.claims.get("planner", "plan"), entry.claims.get("options")
    told = [f"{key}={value}" for key, value in options.items()] if isinstance(options, dict) else []
    return " ".join([str(planner), *told])


def _rooted(entry: Entry, machine: Topology, every_root: bool) -> Iterator[Schedule]:
    """The schedule, and the same for every other root that is like its own."""
    from antiphon.core.symmetry import link_map
    from antiphon.core.transform import relabel

    schedule = entry.schedule
    yield schedule
    large = machine.ranks > MOST_ROOTS or machine.nodes > MOST_NODES
    if not schedule.collective.roots or not every_root or large:
        return
    for names in _alike(machine, schedule.collective):
        yield relabel(schedule, names[: machine.ranks], link_map(machine, names))


def _alike(machine: Topology, collective: Collective) -> Iterator[Longs]:
    """For each other root in the orbit of this one, a symmetry that takes this one there and the group to itself."""
    from antiphon.core.symmetry import automorphisms

    group = set(collective.members)
    colour = [int(node in group) for node in range(machine.nodes)]
    generators = [np.asarray(g, np.int64) for g in automorphisms(machine, colour)]
    first = collective.roots[0]
    found = {first: np.arange(machine.nodes, dtype=np.int64)}
    todo = [first]
    while todo:
        here = todo.pop()
        for generator in generators:
            to = int(generator[here])
            if to not in found:
                found[to] = generator[found[here]]
                todo.append(to)
    for root in sorted(found):
        if root != first:
            yield found[root]


def read_table(path: str | os.PathLike[str]) -> Book:
    """The book of a table, a plan or an encoded book. Every schedule of a table is verified, every program of a book
    proven, if this user has not had it proven before: Invalid if one is wrong."""
    from antiphon.select import load_plans

    with reading(name_of(path)):
        data = read_bytes(path)
        if data.startswith(MAGIC):
            return proven_book(data)
    plans = load_plans(path)
    for plan in plans.values():
        for entry in plan.entries:
            fault = verify(entry.schedule, plan.topology).fault
            if fault is not None:
                raise Invalid(f"{name_of(path)}: the schedule for {plan.collective.kind} is wrong: {fault.message}")
    return make_book(plans.values())


def proven_book(data: bytes) -> Book:
    """A book from bytes of others: Invalid where a program is not the collective that it is listed under."""
    book = decode_book(data)
    refuse_unmarked(book, data)
    return book


# ---- bytes ----


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def encode_book(book: Book) -> bytes:
    """The bytes of a book. Linear."""
    members: list[int] = []
    labels, rows = b"", []
    for page in book.pages:
        label, flags = page.planner.encode(), page.measured | page.ordered << 1
        rows.append(
            _PAGE.pack(
                _ORDER.index(page.kind), page.root, len(members), len(page.members), page.start,
                _NO_END if page.stop is None else page.stop, page.program, flags, len(labels), len(label),
                float("nan") if page.seconds is None else page.seconds, 0,
            )
        )  # fmt: skip
        members += page.members
        labels += label
    name = book.machine.encode()
    tables = [
        name, np.asarray(book.hosts, "<i4").tobytes(), np.asarray(members, "<i4").tobytes(), labels, b"".join(rows),
    ]  # fmt: skip
    body = b"".join(map(_padded, tables))
    head = _HEADER.size + len(body) + _PROGRAM.size * len(book.programs)
    at, entries, padded = head, [], [_padded(one) for one in book.programs]
    for one, whole in zip(book.programs, padded, strict=True):
        entries.append(_PROGRAM.pack(at, len(one), zlib.crc32(one), 0))
        at += len(whole)
    numbers = (book.ranks, len(rows), len(book.programs), len(members), len(book.hosts), len(name), len(labels), 0)
    rest = _HEADER.pack(MAGIC, VERSION, 0, head, at, *numbers)[16:] + body + b"".join(entries)
    return MAGIC + struct.pack("<II", VERSION, zlib.crc32(rest)) + rest + b"".join(padded)


def decode_book(data: bytes) -> Book:
    """A book from its bytes; Invalid where anything in it is damaged or impossible. Its programs are believed, as
    whoever hands them out has proven them; `proven_book` is for what comes from elsewhere."""
    if len(data) < _HEADER.size or not data.startswith(MAGIC):
        raise Invalid("this is no book of Antiphon")
    _, version, check, head, size, *numbers = _HEADER.unpack_from(data)
    ranks, pages, programs, total, hosts, name_bytes, label_bytes, _ = numbers
    if version != VERSION:
        raise Invalid(f"version {version} of books is not known here; version {VERSION} is")
    if size != len(data) or not _HEADER.size <= head <= size or zlib.crc32(data[16:head]) != check:
        raise Invalid("the book is cut off or damaged; make it anew from its table")
    at = _HEADER.size
    parts = []
    for length in (name_bytes, 4 * hosts, 4 * total, label_bytes, _PAGE.size * pages, _PROGRAM.size * programs):
        parts.append(data[at : at + length])
        at += length + -length % 8
    if at != head or hosts not in (0, ranks):
        raise Invalid("the book is damaged: its tables do not fill its head; make it anew from its table")
    members = np.frombuffer(parts[2], "<i4").tolist()
    bodies: list[bytes] = []
    free = head
    for row in _PROGRAM.iter_unpack(parts[5]):
        bodies.append(_body(data, free, row))
        free = row[0] + row[1]
    shared = [sum(row[at] for row in _PAGE.iter_unpack(parts[4])) for at in (3, 9)]
    if shared[0] > total or shared[1] > label_bytes:
        raise Invalid("the book is damaged: pages share members or labels; make it anew from its table")
    try:
        found = [_row(row, members, parts[3], ranks, programs) for row in _PAGE.iter_unpack(parts[4])]
        name = parts[0].decode()
    except (IndexError, ValueError):
        raise Invalid("the book is damaged: a page is impossible; make it anew from its table") from None
    return Book(name, ranks, tuple(np.frombuffer(parts[1], "<i4").tolist()), tuple(found), tuple(bodies))


def _body(data: bytes, free: int, row: tuple[int, ...]) -> bytes:
    """A program, which stands behind the one before it: so all together are no more than the book."""
    at, size, check, _ = row
    body = data[at : at + size]
    if at < free or at % 8 or len(body) != size or zlib.crc32(body) != check:
        raise Invalid("the book is cut off or damaged; make it anew from its table")
    return body


def _row(row: tuple[Any, ...], members: list[int], labels: bytes, ranks: int, programs: int) -> Page:
    kind, root, first, count, start, stop, program, flags, label, label_bytes, seconds, _ = row
    group = members[first : first + count]
    text = labels[label : label + label_bytes]
    if len(group) != count or len(text) != label_bytes or not -1 <= program < programs or not -1 <= root < ranks:
        raise ValueError
    if any(not 0 <= one < ranks for one in group):
        raise ValueError
    end = None if stop == _NO_END else stop
    told = None if math.isnan(seconds) else seconds
    measured, ordered = bool(flags & 1), bool(flags & 2)
    return Page(_ORDER[kind], tuple(group), root, start, end, text.decode(), program, measured, told, ordered)
