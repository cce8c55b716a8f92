"""First stage of the compilation to thread blocks: operations of a program chunk by chunk, with the versions that they
read and write. Also the data types of all stages.

A program has sends, receives, folds (copy or reduce inside a rank) and joins (only waits). All buffers of a rank are
one row of **cells**, one per chunk: input, output, scratch, with an unused cell between them, so that no stretch of
cells crosses from one buffer into the next. What an operation writes into a cell is a **version**; versions of all
ranks are numbered, those of an operation one after the other. `read_values` returns the operations with the versions
that they read, so that later stages know who reads what.

Types of later stages: a `Block` is a thread block with its `Step`s; a step moves a `Segment` of a message or does a
`Piece` of a fold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

from antiphon.core.program import FOLD, JOIN, RECEIVE, SEND, Bound, Program
from antiphon.core.program.kinds import SCRATCH

RECEIVES = ("r", "rcs", "rrc", "rrs", "rrcs")
SENDS = ("s", "rcs", "rrs", "rrcs")


@dataclass(eq=False, slots=True)
class Block:
    """A thread block: one rank to send to and one to receive from (-1: none), on one channel."""

    rank: int
    channel: int
    send: int
    recv: int
    steps: list[Step] = field(default_factory=list)
    done_before: dict[Block, int] = field(
        default_factory=dict
    )  # of other blocks, up to which step they are surely done
    load: int = 0  # steps that it has in the file, or that are reserved for it
    sent: int = -1  # its last step that sends


@dataclass(eq=False, slots=True)
class Step:
    """A step of a block. `src` and `dst` are cells, -1 if it has none; `place`: its number in the block."""

    verb: str
    src: int
    dst: int
    count: int
    block: Block
    place: int = -1
    waits: list[Step] = field(default_factory=list)
    done_before: dict[Block, int] = field(default_factory=dict)


def dissolve_blocks(blocks: list[list[Block]]) -> None:
    """Break the reference cycles between blocks and steps, so that they are freed without the garbage collector."""
    for rank_blocks in blocks:
        for block in rank_blocks:
            for step in block.steps:
                step.waits, step.done_before = [], {}
            block.steps, block.done_before = [], {}


Span = tuple[int, int]  # first cell, and the number of cells


@dataclass(eq=False, slots=True)
class Operation:
    """A send, receive, fold or join of the program.

    `spans`: the stretches of cells of a message, in order; of a fold those of the result and the operands, all of one
    length. `versions`: what it reads, one per cell: a send in order, a fold operand by operand. `first`: the first
    version that it writes. `segments`: of a send and its receive. `runs`: the stretches of a received message that are
    folded on arrival; `pieces`: the parts of a fold that this does. `done`: the steps that it ends with, at most one of
    each block. `behind`: by block, steps that later writers to its place must wait for because it did not (place.py).
    (There are millions of operations: empty lists are not created.)
    """

    kind: int
    rank: int
    when: int
    peer: int
    channel: int
    spans: list[Span]
    waits: list[Operation]
    length: int  # of what it writes or sends
    versions: Sequence[int] = ()
    first: int = -1
    segments: Sequence[Segment] = ()
    runs: Sequence[Run] = ()
    pieces: Sequence[Piece] = ()
    done: Sequence[Step] = ()
    behind: dict[Block, Step] | None = None


@dataclass(eq=False, slots=True)
class Run:
    """A stretch of a received message that is an operand of a fold, and the cell where it lies if not folded on
    arrival.
    """

    offset: int
    count: int
    fold: Operation
    receive: Operation
    cell: int


@dataclass(eq=False, slots=True)
class Piece:
    """A stretch of a fold that is done as messages arrive, one after the other.

    `memory`: first cells of the operands that are stored; the result's own first if it is one of them.
    """

    fold: Operation
    offset: int
    count: int
    cell: int
    memory: list[int]
    chain: list[Segment]


@dataclass(eq=False, slots=True)
class Segment:
    """Part of a message that one step moves. `src`, `dst`: cells at sender and receiver; `step`: which receives it."""

    send: Operation
    receive: Operation
    offset: int
    count: int
    src: int
    dst: int
    piece: Piece | None = None
    parent: Segment | None = None
    child: Segment | None = None
    passing: bool = False  # what it makes is read by its child alone
    lane: int = 0
    step: Step | None = None


# ---- operations and versions ----


SEVERAL = Operation(JOIN, -1, -1, -1, -1, [], [], 0)


@dataclass(eq=False)
class Values:
    """All operations by rank, in order, and the writer and the reader of every version.

    Reader: None if there is none; SEVERAL if there are several reads, or if the version is a result.
    """

    ranks: list[list[Operation]]
    messages: list[tuple[Operation, Operation]]  # sends with their receives, as `Program.pairs`; none without data
    writer: list[Operation]
    reader: list[Operation | None]
    scratch: list[int]  # per rank: its first cell of scratch

    def every(self) -> Iterator[Operation]:
        return chain.from_iterable(self.ranks)

    def only(self, first: int, count: int, reader: Operation) -> bool:
        """Return whether `reader` is the only reader of these versions."""
        return self.reader[first : first + count] == [reader] * count


def read_values(program: Program, bound: Bound, split_blocks: bool) -> Values:
    """Return the operations of all ranks with the versions that they read. Linear in cells moved. `split_blocks`: no
    stretch of a user's buffer crosses the end of a block of the collective."""
    result = Values([], [], [], [], [])
    by_row: list[Operation] = []  # of a row that is cut, the last of its operations
    for rank in range(program.ranks):
        size = [int(each) for each in bound.sizes[rank]]
        base = first_cells_of(size)
        result.scratch.append(base[SCRATCH])
        edges = _Edges(bound.unit if split_blocks else 0, base[SCRATCH], base[1])
        operations = _rank_operations(program, bound, rank, base, edges, by_row)
        result.ranks.append(_assign_versions(result, operations, base[SCRATCH] + size[SCRATCH], edges))
    pairs = zip(*(rows.tolist() for rows in program.pairs), strict=True)  # messages are never cut
    result.messages += [(by_row[send], by_row[receive]) for send, receive in pairs if by_row[send].kind == SEND]
    return result


def first_cells_of(sizes: list[int]) -> list[int]:
    """Return the first cell of input, output and scratch of these sizes."""
    return [0, sizes[0] + 1, sizes[0] + sizes[1] + 2]


# ---- operations ----


def _rank_operations(
    program: Program, bound: Bound, rank: int, base: list[int], edge: _Edges, by_row: list[Operation]
) -> list[Operation]:  # fmt: skip
    """Return the operations of a rank, in order; append one to `by_row` for each row of the program."""
    low, high = int(program.op_ptr[rank]), int(program.op_ptr[rank + 1])
    part_ptr = program.part_ptr[low : high + 1].tolist()
    begin, end = part_ptr[0], part_ptr[-1]
    buffer = bound.buffer[begin:end].tolist()
    columns = zip(buffer, bound.begin[begin:end].tolist(), bound.length[begin:end].tolist(), strict=True)
    spans = [(base[kind] + first, count) for kind, first, count in columns]
    wait_ptr = program.wait_ptr[low : high + 1].tolist()
    wait = (program.wait[wait_ptr[0] : wait_ptr[-1]] - low).tolist()
    kinds, whens = program.kind[low:high].tolist(), program.when[low:high].tolist()
    peers, channels = program.peer[low:high].tolist(), program.channel[low:high].tolist()
    operations: list[Operation] = []
    by_number: list[list[Operation]] = []
    # Fast path: no block borders to respect, and a fold or a message of one stretch.
    for number, row_kind in enumerate(kinds):
        row_stretches = spans[part_ptr[number] - begin : part_ptr[number + 1] - begin]
        awaited = wait[wait_ptr[number] - wait_ptr[0] : wait_ptr[number + 1] - wait_ptr[0]]
        if not edge.grain:  # nothing is cut
            after = [operations[w] for w in awaited]
            if row_kind == FOLD or len(row_stretches) == 1:  # nor joined, as nearly everywhere
                length = row_stretches[0][1]
                kind, row_spans = (row_kind, row_stretches) if length else (JOIN, [])
                operations.append(
                    Operation(kind, rank, whens[number], peers[number], channels[number], row_spans, after, length)
                )
                by_row.append(operations[-1])
                continue
        else:
            after = [operation for w in awaited for operation in by_number[w]]
        if row_kind == FOLD:
            stretches = [folded for folded in edge.fold(row_stretches) if folded[0][1]]
        else:
            joined = edge.message(row_stretches)
            stretches = [joined] if joined else []
        kind = row_kind if stretches else JOIN  # what moves nothing only waits
        stretches = stretches or [[]]
        for stretch in stretches:
            length = stretch[0][1] if kind == FOLD or len(stretch) == 1 else sum(count for _, count in stretch)
            operations.append(
                Operation(kind, rank, whens[number], peers[number], channels[number], stretch, after, length)
            )
        by_number.append(operations[-len(stretches) :])
        by_row.append(operations[-1])
    return operations


@dataclass(frozen=True)
class _Edges:
    """The borders of the collective's blocks in users' buffers, where stretches are cut; grain 0: nowhere."""

    grain: int
    scratch: int
    output: int

    def at(self, cell: int) -> bool:
        """Return whether a block may begin at this cell."""
        if not self.grain or cell >= self.scratch:
            return False
        return (cell - (self.output if cell >= self.output else 0)) % self.grain == 0

    def _cuts_within(self, span: Span) -> Iterator[int]:
        cell, count = span
        if self.grain and cell < self.scratch:
            start = cell - (self.output if cell >= self.output else 0)
            yield from range(self.grain - start % self.grain, count, self.grain)

    def message(self, spans: list[Span]) -> list[Span]:
        """Merge stretches that are contiguous."""
        if len(spans) == 1 and not self.grain:
            return spans if spans[0][1] else []
        joined: list[Span] = []
        for span in spans:
            at = 0
            for cut in (*self._cuts_within(span), span[1]):
                cell, count = span[0] + at, cut - at
                at = cut
                if joined and joined[-1][0] + joined[-1][1] == cell and not self.at(cell):
                    joined[-1] = joined[-1][0], joined[-1][1] + count
                elif count:
                    joined.append((cell, count))
        return joined

    def fold(self, spans: list[Span]) -> Iterable[list[Span]]:
        """Cut a fold at every border within one of its stretches."""
        if not self.grain:
            yield spans
            return
        cuts = sorted({cut for span in spans for cut in self._cuts_within(span)} | {0, spans[0][1]})
        for low, high in pairwise(cuts):
            yield [(cell + low, high - low) for cell, _ in spans]


# ---- versions ----


def _assign_versions(values: Values, operations: list[Operation], cells: int, edge: _Edges) -> list[Operation]:
    """Assign versions to reads and writes of one rank, and return its operations. A fold that continues the one before
    it, of operands that the same operations wrote, is joined with that."""
    writer, reader = values.writer, values.reader
    holds = [-1] * cells
    remaining: list[Operation] = []
    instead: dict[Operation, Operation] = {}
    sources: list[list[int]] = []  # of the last operation kept, by operand
    for operation in operations:
        if instead:
            operation.waits = list(dict.fromkeys(instead.get(other, other) for other in operation.waits))
        spans = operation.spans if operation.kind == SEND else operation.spans[1:] if operation.kind == FOLD else []
        # `holds` maps every cell to the version in it; reads resolve to versions before this operation writes.
        reads = [holds[cell : cell + count] for cell, count in spans]
        last = remaining[-1] if remaining else None
        continues = operation.kind == FOLD and last is not None and _continues_fold(last, operation, edge)
        # Merge with the fold before: the runtime then needs one step instead of two.
        if last is not None and continues and _same_writers(writer, sources, reads):
            last.length += operation.length
            last.spans = [(cell, last.length) for cell, _ in last.spans]
            last.waits = list(dict.fromkeys([*last.waits, *operation.waits]))
            sources = [before + after for before, after in zip(sources, reads, strict=True)]
            last.versions = [version for versions in sources for version in versions]
            instead[operation], into = last, last
        else:
            remaining.append(operation)
            sources, into = reads, operation
            operation.versions = (
                reads[0] if len(reads) == 1 else [version for versions in reads for version in versions]
            )
        for versions in reads:
            for version in versions:
                if version >= 0:
                    reader[version] = into if reader[version] is None else SEVERAL
        if operation.kind in (RECEIVE, FOLD):
            at = len(writer)
            if into is operation:
                operation.first = at
            for cell, count in operation.spans if operation.kind == RECEIVE else operation.spans[:1]:
                holds[cell : cell + count] = range(at, at + count)
                at += count
            if operation.length == 1:
                writer.append(into)
                reader.append(None)
            else:
                writer.extend([into] * operation.length)
                reader.extend([None] * operation.length)
    # What lies in the users' buffers at the end is read by the user.
    for version in holds[: values.scratch[-1]]:
        if version >= 0:
            reader[version] = SEVERAL
    return remaining


def _continues_fold(last: Operation, operation: Operation, edge: _Edges) -> bool:
    """Return whether a fold begins where the one before it ends, in all its stretches."""
    if last.kind != FOLD or last.when != operation.when or len(last.spans) != len(operation.spans):
        return False
    pairs = zip(last.spans, operation.spans, strict=True)
    return all(cell + count == other and not edge.at(other) for (cell, count), (other, _) in pairs)


def _same_writers(writer: list[Operation], before: list[list[int]], after: list[list[int]]) -> bool:
    """Return whether each operand of both folds was written by the same operation."""
    for earlier, later in zip(before, after, strict=True):
        a, b = earlier[-1], later[0]
        if (a < 0) != (b < 0) or (a >= 0 and writer[a] is not writer[b]):
            return False
    return True
