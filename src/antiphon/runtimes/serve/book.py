"""The book: a table of plans compiled for running, as programs and pages that map calls to programs.

A *program* is a schedule compiled to operations per rank. A *page* says: calls of this collective among these ranks, of
this root, from this size to that, are served by program number 3. All processes of a job need the same book, as their
choices must agree. So it is one string of bytes that one process reads and broadcasts. docs/program.md has its layout.

    plans --make_book--> Book --encode_book--> bytes --decode_book--> Book        (`read_table`: a file to a Book)

Nobody runs a program unproven: `make_book` proves each program that it compiles, and `proven_book` those of a book
from elsewhere, unless this user has had the same bytes proven before (see "marks" at the end).
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

import antiphon.core
from antiphon.core.cache import cache_folder
from antiphon.core.choose import SizeChooser
from antiphon.core.collective import KINDS, Collective
from antiphon.core.columns import Longs
from antiphon.core.files import is_ours, name_of, read_bytes, reading, within
from antiphon.core.plan import LIBRARY, Entry, Plan
from antiphon.core.program import Program, decode, encode, prove
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology, hosts
from antiphon.core.transform import split_groups
from antiphon.core.verify import verify
from antiphon.errors import Invalid, Unsupported
from antiphon.lower.lowering import both
from antiphon.select.renumber_plans import label_machine


@dataclass(frozen=True)
class Page:
    """The program for calls of this kind among these ranks with start <= nbytes < stop."""

    kind: str  # "allreduce", ..., or "alltoallv": calls of an alltoall with uneven blocks
    members: tuple[int, ...]  # ascending: process i of the group is the i-th
    root: int  # a rank of the machine, -1 for none
    start: int  # bytes
    stop: int | None  # bytes; None: no end
    planner: str  # with its options, for reports
    program: int  # number of the program in the book; -1: none, as the library serves these calls
    measured: bool = False  # whether `seconds` was measured, not predicted
    seconds: float | None = None  # of a call, if known
    ordered: bool = False  # whether values are combined in the same order at all sizes
    key: int = 0  # of what jobs learn of its program; isomorphic machines have the same. 0: its checksum is the key


@dataclass(frozen=True)
class Book:
    """Pages and encoded programs for one machine. `hosts`: the host number of each rank, () for a single host.
    `omissions`: why plans or schedules have no page."""

    machine: str
    ranks: int
    hosts: tuple[int, ...]
    pages: tuple[Page, ...]
    programs: tuple[bytes, ...]
    omissions: tuple[str, ...] = field(default=(), compare=False)
    dead: str = ""  # the failure that the plans are for; "": the machine is intact

    @cached_property
    def chooser(self) -> SizeChooser[Page]:
        """The chooser of the page of a call; calls carry their members."""
        pages: SizeChooser[Page] = SizeChooser()
        for page in self.pages:
            pages.add(page, page.start, page.stop, page.kind, page.root, page.members)
        return pages


__all__ = [
    "MAGIC", "VERSION", "Book", "Page", "decode_book", "encode_book", "make_book", "proven_book", "read_books",
    "read_table",
]  # fmt: skip

MAGIC, VERSION = b"ANTIBOOK", 1
MAX_ROOTED_RANKS = 32  # up to which a plan for one root is relabelled for all symmetric roots
# nodes of a machine whose symmetries are computed: n nodes can have n generators, each with n images
MAX_NODES = 8 * MAX_ROOTED_RANKS
UNEVEN = "alltoallv"  # the kind of pages whose programs serve uneven alltoalls
# the numbers of kinds in a book, which the engine knows, too (native/book.c)
_ORDER = ("broadcast", "reduce", "scatter", "gather", "allgather", "reducescatter", "allreduce", "alltoall", UNEVEN)
assert sorted(_ORDER) == sorted([*KINDS, UNEVEN])
# MAGIC, VERSION, checksum; bytes of the head, and of the book; ranks, then the numbers of pages, programs, members and
# hosts, and the bytes of the machine's name, of all labels, and of `dead`
HEADER = struct.Struct("<8sIIQQ8I")
# kind, root; first member and number of members; start, stop; program, flags; offset and bytes of label; seconds, key
PAGE_ENTRY = struct.Struct("<IiIIQQiIIIdQ")
_MEMBER_COUNT, _LABEL_BYTES = 3, 9  # its columns
PROGRAM_ENTRY = struct.Struct("<QQII")  # offset, bytes, checksum, 0
_CHECKED_FROM = 16  # the byte behind the checksum in a header
_NO_END = 2**64 - 1  # `stop` of a page without end: the greatest number of 64 bits


def make_book(plans: Iterable[Plan], every_root: bool = True) -> Book:
    """Return the book of plans for one machine.

    A plan for several groups at the same time becomes a plan for each group, tuned for all of them at work together.
    A plan of an alltoall for some counts serves alltoalls of any counts (UNEVEN): its transfers move fixed shares of
    the blocks, so its program is that of even blocks, which the engine runs with the counts of a call.

    With `every_root` a plan with a root also serves the roots that a symmetry of the machine maps it to, on up to 32
    ranks. `omissions` gives the reason for each omitted: collectives that no call of a process group expresses (uneven
    counts, several roots, custom relations), schedules that need ranks outside the group, and programs that are too
    large for an engine or a proof. Every program is proven to be the collective that it is listed under. Lowering and
    proof take some microseconds per transfer and root.
    """
    all_plans = list(plans)
    if not all_plans:
        raise Invalid("there are no plans to compile; pass at least one, such as those of antiphon.tune")
    machine = all_plans[0].topology
    if any(plan.topology != machine for plan in all_plans[1:]):
        raise Invalid("the plans are for different machines; a book is for one")
    pages: list[Page] = []
    programs: dict[bytes, int] = {}
    omitted: list[str] = []
    for plan in itertools.chain.from_iterable(map(_plans_by_group, all_plans)):
        reason = _unfit_reason(plan)
        if reason:
            omitted.append(f"{plan.collective.kind}: {reason}")
            continue
        machine_key = label_machine(machine, plan.collective).key if machine.nodes <= MAX_NODES else ""
        for entry in plan.entries:
            for schedule in _for_every_root(entry, machine, every_root):
                number = -1
                if entry.served_by != LIBRARY:  # a range of the library has no program
                    try:
                        with within(f"the program for {plan.collective.kind} ({page_label(entry)})"):
                            number = _program_number(_with_even_blocks(schedule), programs)
                    except Unsupported as error:
                        omitted.append(str(error))
                        continue
                key = _learned_key(machine_key, entry) if machine_key and number >= 0 else 0
                pages.append(_make_page(schedule.collective, entry, number, key))
    return Book(
        machine.name, machine.ranks, hosts(machine), tuple(pages), tuple(programs), tuple(dict.fromkeys(omitted))
    )


def _plans_by_group(plan: Plan) -> list[Plan]:
    """Return the plan itself; if it is for several groups at the same time, a plan for each, at the sizes of that
    group's own buffer.
    """
    collective, entries = plan.collective, plan.entries
    if not collective.groups:
        return [plan]
    # `nbytes` of a joint plan is the size of the largest group. (Reversed: of equal groups the first counts.)
    size_of = dict(zip(reversed(collective.groups), reversed(collective.group_sizes), strict=True))
    largest = max(size_of.values())
    by_group: dict[Collective, list[Entry]] = {}
    for entry in entries:
        for schedule in split_groups(entry.schedule):
            group = schedule.collective
            # sizes of this group's buffer, rounded up, which may leave a short range empty
            start, stop = (None if e is None else -(-e * size_of[group] // largest) for e in (entry.start, entry.stop))
            if stop is None or stop > (start or 0):
                by_group.setdefault(group, []).append(Entry(start or 0, stop, schedule, entry.claims))
    return [Plan(plan.topology, group, tuple(rows)) for group, rows in by_group.items()]


def _is_uneven(collective: Collective) -> bool:
    return bool(np.any(collective.weights != 1))


def _with_even_blocks(schedule: Schedule) -> Schedule:
    """Return the transfers of a schedule, each with its share of blocks of equal weight."""
    if not _is_uneven(schedule.collective):
        return schedule
    # without weights all blocks have weight 1
    return replace(schedule, collective=replace(schedule.collective, weights=np.zeros(0, np.int64)))


def _program_number(schedule: Schedule, programs: dict[bytes, int]) -> int:
    """Return the number of the schedule's program, after proving it if it is new. Unsupported if it is too large."""
    data = encode(both(schedule))  # the programs out of place and, if there is one, in place
    if data not in programs:
        prove(*decode(data))
        programs[data] = len(programs)
    return programs[data]


def _unfit_reason(plan: Plan) -> str:
    """Return why no call of a process group can be served by a plan, or ""."""
    collective = plan.collective
    if collective.kind not in _ORDER or len(collective.roots) > 1:
        return "no call of a process group means it"
    if _is_uneven(collective) and collective.kind != "alltoall":
        return "its counts are uneven"
    for entry in plan.entries:
        used_ranks = np.union1d(entry.schedule.src, entry.schedule.dst)
        outside = np.setdiff1d(used_ranks, collective.members)
        if len(outside):
            advice = "; plan with option links=alone" if entry.claims.get("planner") == "groups" else ""
            return f"rank {int(outside[0])}, which is not in the group, would have to help{advice}"
        if _is_uneven(collective) and verify(_with_even_blocks(entry.schedule), plan.topology).fault is not None:
            return "its counts are zero between two ranks, which then have no route; antiphon tune --counts makes one"
    return ""


def _learned_key(machine_key: str, entry: Entry) -> int:
    """Return the key of a plan in files of what jobs learned (engine/learned.py): 32 bits, not 0.

    It is a hash of the machine's canonical form, and of what no renumbering changes: collective, planner with options,
    and the numbers of chunks of each block and of transfers in each step. So a job on GPUs 2,3,6,7 of a DGX-1 begins
    with what one on 0,1,4,5 has learned.
    """
    schedule = entry.schedule
    chunk_counts, transfer_counts = (np.bincount(column).tolist() for column in (schedule.chunks.block, schedule.step))
    text = repr((machine_key, schedule.collective.kind, page_label(entry), sorted(chunk_counts), transfer_counts))
    return zlib.crc32(text.encode()) or 1


def _make_page(collective: Collective, entry: Entry, number: int, key: int) -> Page:
    """Return the page of a range of a plan, served by program `number`."""
    claims, root = entry.claims, collective.roots[0] if collective.roots else -1
    claim = claims.get("seconds")
    seconds = float(claim) if isinstance(claim, int | float) else None
    # `tune --on` claims the library's time where it measured; a range of the library is one that was measured, unless
    # it says that it was not
    measured = "reference_seconds" in claims or (number < 0 and claims.get("measured") is not False)
    members, label = tuple(collective.members), page_label(entry)
    ordered = "order" in claims
    kind = UNEVEN if _is_uneven(collective) else collective.kind  # only an alltoall may be uneven (_unfit_reason)
    return Page(
        kind, members, root, entry.start, entry.stop, planner=label, program=number, measured=measured, seconds=seconds,
        ordered=ordered, key=key,
    )  # fmt: skip


def page_label(entry: Entry) -> str:
    """Return the planner of an entry with its options, such as "ring rings=2"."""
    planner, options = entry.claims.get("planner", "plan"), entry.claims.get("options")
    words = [f"{key}={value}" for key, value in options.items()] if isinstance(options, dict) else []
    return " ".join([str(planner), *words])


def _for_every_root(entry: Entry, machine: Topology, every_root: bool) -> Iterator[Schedule]:
    """Yield the schedule, and its images for the roots that a symmetry maps its own root to."""
    from antiphon.core.symmetry import link_map
    from antiphon.core.transform import relabel

    schedule = entry.schedule
    yield schedule
    large = machine.ranks > MAX_ROOTED_RANKS or machine.nodes > MAX_NODES
    if not schedule.collective.roots or not every_root or large:
        return
    for images in _root_symmetries(machine, schedule.collective):
        yield relabel(schedule, images[: machine.ranks], link_map(machine, images))


def _root_symmetries(machine: Topology, collective: Collective) -> Iterator[Longs]:
    """Yield, for each other root in the orbit of this one, a symmetry that maps this root to it, and keeps the group.

    A symmetry is the array of the images of all nodes.
    """
    from antiphon.core.symmetry import automorphisms

    group = set(collective.members)
    colour = [int(node in group) for node in range(machine.nodes)]  # only nodes of one colour may be exchanged
    generators = [np.asarray(g, np.int64) for g in automorphisms(machine, colour)]
    first = collective.roots[0]
    # search the orbit: apply every generator of the symmetries to every root reached so far
    symmetries = {first: np.arange(machine.nodes, dtype=np.int64)}  # by the image of the root
    frontier = [first]
    while frontier:
        image = frontier.pop()
        for generator in generators:
            next_image = int(generator[image])
            if next_image not in symmetries:
                symmetries[next_image] = generator[symmetries[image]]
                frontier.append(next_image)
    for root in sorted(symmetries):
        if root != first:
            yield symmetries[root]


def read_books(path: str | os.PathLike[str]) -> list[Book]:
    """Return the books of a table: for the intact machine, then for each of the failures that it has plans for."""
    from antiphon.select.plan_files import list_failures

    book = read_table(path, dead=())
    names = [name for names in list_failures(path) for name in names]
    return [book, *(replace(read_table(path, dead=(name,)), dead=name) for name in names)]


def read_table(path: str | os.PathLike[str], dead: Sequence[str] | None = None) -> Book:
    """Return the book of a table, a plan or an encoded book.

    `dead`: what has failed, of a table that has plans for that; by default as $ANTIPHON_DEAD says. Verifies every
    schedule of a table, and proves every program of a book unless this user has had it proven before: Invalid if one is
    wrong."""
    from antiphon.select import load_plans

    with reading(name_of(path)):
        data = read_bytes(path)
        if data.startswith(MAGIC):
            return proven_book(data)
    plans = load_plans(path, dead=dead)
    for plan in plans.values():
        for entry in plan.entries:
            fault = verify(entry.schedule, plan.topology).fault
            if fault is not None:
                raise Invalid(f"{name_of(path)}: the schedule for {plan.collective.kind} is wrong: {fault.message}")
    return make_book(plans.values())


def proven_book(data: bytes) -> Book:
    """Decode a book from elsewhere: Invalid if a program is not the collective that it is listed under."""
    book = decode_book(data)
    refuse_unmarked(book, data)
    return book


# ---- bytes ----


def _pad_to_8(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def encode_book(book: Book) -> bytes:
    """Return the bytes of a book: header, machine, hosts, members, labels, pages, list of programs, programs."""
    members: list[int] = []
    labels, rows = b"", []
    for page in book.pages:
        label, flags = page.planner.encode(), page.measured | page.ordered << 1
        rows.append(
            PAGE_ENTRY.pack(
                _ORDER.index(page.kind), page.root, len(members), len(page.members), page.start,
                _NO_END if page.stop is None else page.stop, page.program, flags, len(labels), len(label),
                float("nan") if page.seconds is None else page.seconds, page.key,
            )
        )  # fmt: skip
        members += page.members
        labels += label
    name, dead = book.machine.encode(), book.dead.encode()
    tables = [
        name, np.asarray(book.hosts, "<i4").tobytes(), np.asarray(members, "<i4").tobytes(), labels, b"".join(rows),
    ]  # fmt: skip
    body = b"".join(map(_pad_to_8, tables))
    last = _pad_to_8(dead)
    # bytes before the first program
    head = HEADER.size + len(body) + PROGRAM_ENTRY.size * len(book.programs) + len(last)
    offset, entries, padded = head, [], [_pad_to_8(program) for program in book.programs]
    for program, padded_program in zip(book.programs, padded, strict=True):
        entries.append(PROGRAM_ENTRY.pack(offset, len(program), zlib.crc32(program), 0))
        offset += len(padded_program)
    counted = (rows, book.programs, members, book.hosts, name, labels, dead)  # in the order of HEADER
    # the checksum covers the head behind itself and all tables; each program has its own
    checked_part = (
        HEADER.pack(MAGIC, VERSION, 0, head, offset, book.ranks, *map(len, counted))[_CHECKED_FROM:]
        + body
        + b"".join(entries)
        + last
    )
    return MAGIC + struct.pack("<II", VERSION, zlib.crc32(checked_part)) + checked_part + b"".join(padded)


def decode_book(data: bytes) -> Book:
    """Decode a book; Invalid if anything in it is damaged or impossible.

    Its programs are trusted: the process that sent them has proven them. Use `proven_book` for other sources."""
    if len(data) < HEADER.size or not data.startswith(MAGIC):
        raise Invalid("not a compiled table of Antiphon: its first bytes are others; compile the table again")
    _, version, expected_checksum, head, size, *numbers = HEADER.unpack_from(data)
    ranks, page_count, program_count, member_count, host_count, name_bytes, label_bytes, dead_bytes = numbers
    if version != VERSION:
        raise Invalid(f"version {version} of books is not known here; version {VERSION} is")
    # check sizes and checksum before anything is interpreted
    if (
        size != len(data)
        or not HEADER.size <= head <= size
        or zlib.crc32(data[_CHECKED_FROM:head]) != expected_checksum
    ):
        raise Invalid("the book is cut off or damaged; make it anew from its table")
    at = HEADER.size
    tables = []
    for length in (
        name_bytes, 4 * host_count, 4 * member_count, label_bytes, PAGE_ENTRY.size * page_count,
        PROGRAM_ENTRY.size * program_count, dead_bytes,
    ):  # fmt: skip
        tables.append(data[at : at + length])
        at += length + -length % 8  # each is padded to a multiple of 8 bytes
    if at != head or host_count not in (0, ranks):
        raise Invalid("the book is damaged: its tables do not fill its head; make it anew from its table")
    name_text, hosts_table, members_table, labels, page_table, program_table, dead_text = tables
    members = np.frombuffer(members_table, "<i4").tolist()
    bodies: list[bytes] = []
    # programs are in order and do not overlap, so a small file cannot claim many large programs
    previous_end = head
    for row in PROGRAM_ENTRY.iter_unpack(program_table):
        bodies.append(_decode_program(data, previous_end, row))
        at, program_bytes, _, _ = row
        previous_end = at + program_bytes
    used_members, used_labels = (
        sum(row[column] for row in PAGE_ENTRY.iter_unpack(page_table)) for column in (_MEMBER_COUNT, _LABEL_BYTES)
    )
    if used_members > member_count or used_labels > label_bytes:
        raise Invalid("the book is damaged: pages share members or labels; make it anew from its table")
    try:
        decoded = [
            _decode_page(row, members, labels, ranks, program_count) for row in PAGE_ENTRY.iter_unpack(page_table)
        ]
        name, dead = name_text.decode(), dead_text.decode()
    except (IndexError, ValueError):
        raise Invalid("the book is damaged: a page is impossible; make it anew from its table") from None
    hosts_of = tuple(np.frombuffer(hosts_table, "<i4").tolist())
    return Book(name, ranks, hosts_of, tuple(decoded), tuple(bodies), dead=dead)


def _decode_program(data: bytes, previous_end: int, row: tuple[int, ...]) -> bytes:
    """Return the bytes of a program. It must begin after the one before it, so that all fit into the book."""
    at, size, expected_checksum, _ = row
    body = data[at : at + size]
    if at < previous_end or at % 8 or len(body) != size or zlib.crc32(body) != expected_checksum:
        raise Invalid("the book is cut off or damaged; make it anew from its table")
    return body


def _decode_page(row: tuple[Any, ...], members: list[int], labels: bytes, ranks: int, programs: int) -> Page:
    """Return a page from its row, with its slice of all members and of all labels. ValueError if it is impossible."""
    kind, root, first, count, start, stop, program, flags, label, label_bytes, seconds, key = row
    group = members[first : first + count]
    text = labels[label : label + label_bytes]
    if len(group) != count or len(text) != label_bytes or not -1 <= program < programs or not -1 <= root < ranks:
        raise ValueError
    if any(not 0 <= member < ranks for member in group):
        raise ValueError
    end = None if stop == _NO_END else stop
    known_seconds = None if math.isnan(seconds) else seconds
    measured, ordered = bool(flags & 1), bool(flags & 2)
    return Page(
        _ORDER[kind], tuple(group), root, start, end, planner=text.decode(), program=program, measured=measured,
        seconds=known_seconds, ordered=ordered, key=key % 2**32,
    )  # fmt: skip


# ---- proving programs, and marks of proven books ----
#
# A mark is an empty file of this user whose name is the SHA-256 of the book and of the source code that proves it.
# Marks lie in $ANTIPHON_CACHE/proven, else in antiphon/proven of $XDG_CACHE_HOME or ~/.cache; ANTIPHON_CACHE=off keeps
# none. A mark inside of a book could be forged, and one that others may write is not trusted.

MAX_MARKS = 4096  # files; beyond, the older half is deleted


def refuse_wrong(book: Book) -> None:
    """Prove each program once. Invalid, naming the page, if it is not the collective that a page lists it for."""
    listed: dict[int, list[Page]] = {}
    for page in book.pages:
        if page.program >= 0:
            listed.setdefault(page.program, []).append(page)
    for number, pages in listed.items():
        with within(f"the program for {pages[0].kind} ({pages[0].planner})"):
            programs = decode(book.programs[number])
            # a program may serve several pages; prove it once, compare it with each
            for page in pages:
                _refuse_misfit(book, page, programs)
            prove(*programs)


def _refuse_misfit(book: Book, page: Page, programs: Sequence[Program]) -> None:
    """Raise Invalid if the collective of a program is not that of the page that lists it."""
    collective = programs[0].collective
    roots = (page.root,) if page.root >= 0 else ()
    program_facts = collective.kind, collective.ranks, collective.members, collective.roots
    kind = "alltoall" if page.kind == UNEVEN else page.kind
    if program_facts != (kind, book.ranks, page.members, roots) or np.any(collective.weights != 1):
        raise Invalid(
            f"it is {collective.kind} among other ranks, with another root or with uneven blocks than its page says"
            if collective.kind == kind
            else f"it is {collective.kind}, which is not what its page says"
        )


def refuse_unmarked(book: Book, data: bytes) -> None:
    """Call `refuse_wrong` unless a mark of this user says that these bytes were proven."""
    folder = cache_folder("proven")
    mark = folder / hashlib.sha256(proof_digest() + data).hexdigest() if folder else None
    if mark and is_ours(mark.parent, folder=True) and is_ours(mark):
        return
    refuse_wrong(book)
    if mark:
        with contextlib.suppress(OSError):
            _write_mark(mark)


def _write_mark(mark: Path) -> None:
    """Create a mark; of too many, delete the older half."""
    mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_ours(mark.parent, folder=True):
        return
    os.close(os.open(mark, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
    marks = list(mark.parent.iterdir())
    if len(marks) > MAX_MARKS:
        for old in sorted(marks, key=lambda file: file.stat().st_mtime)[: len(marks) // 2]:
            old.unlink(missing_ok=True)


@cache
def proof_digest() -> bytes:
    """Return a digest of the code that proves programs: marks of other versions of it are not trusted."""
    core = Path(str(antiphon.core.__file__)).parent
    programs = sorted((core / "program").glob("*.py"))
    texts = [Path(__file__), core / "collective.py", core / "interpret" / "buffers.py", *programs]
    return hashlib.sha256(b"\0".join(text.read_bytes() for text in texts)).digest()
