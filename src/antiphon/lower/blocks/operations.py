"""First stage of the compilation to thread blocks: operations of a program chunk by chunk, with the versions that they
read and write. Also the data types of all stages.

A program has sends, receives, folds (copy or reduce inside a rank) and joins (only waits). All buffers of a rank are
one row of **cells**, one per chunk: input, output, scratch, with an unused cell between them, so that no stretch of
cells crosses from one buffer into the next. The value that an operation writes into a cell is a **version**. Versions
of all ranks are numbered, those of an operation one after the other; -1 stands for a user's input. `read_values`
returns the operations with the versions that they read, so that later stages know which operation reads which value.

Types of later stages: a `Block` is a thread block with its steps (instructions, MSCCL's word). A `BlockStep` moves a
`Segment` of a message, or does part of a fold.

Example: rank 0 receives two chunks (versions 0 and 1), folds the first with its input into version 2, and sends
versions 2 and 1. Version 0 has one reader, the fold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

from antiphon.core.program import FOLD, JOIN, RECEIVE, SEND, BufferLayout, Program
from antiphon.core.program.kinds import OUTPUT, SCRATCH

RECEIVES = ("r", "rcs", "rrc", "rrs", "rrcs")
SENDS = ("s", "rcs", "rrs", "rrcs")


@dataclass(eq=False, slots=True)
class Block:
    """A thread block."""

    rank: int
    channel: int  # one of the parallel connections between two ranks
    send: int  # the rank that it sends to; -1: none
    recv: int  # the rank that it receives from; -1: none
    steps: list[BlockStep] = field(default_factory=list)
    # Of other blocks, the index of the last step that is surely done before this block's next step.
    done_before: dict[Block, int] = field(default_factory=dict)
    load: int = 0  # steps that it has in MSCCL's file, or that are reserved for it
    last_send: int = -1  # the index of its last step that sends


@dataclass(eq=False, slots=True)
class BlockStep:
    """A step (instruction) of a thread block."""

    verb: str  # as in MSCCL: r receive, s send, cpy copy, re reduce, rcs receive and copy and send, ...
    src: int  # first cell that it reads; -1: none
    dst: int  # first cell that it writes; -1: none
    count: int  # chunks
    block: Block
    index: int = -1  # in the block
    waits: list[BlockStep] = field(default_factory=list)
    done_before: dict[Block, int] = field(default_factory=dict)  # `done_before` of its block when it was appended


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
    """A send, receive, fold or join of the program. (There are millions of operations: empty lists are not created.)"""

    kind: int  # SEND, RECEIVE, FOLD or JOIN
    rank: int
    when: int  # the program's logical time, which orders operations of all ranks (core/program/kinds.py)
    peer: int  # the other rank of a message; unused in folds and joins
    channel: int
    spans: list[Span]  # the cells of a message, in order; of a fold the result, then the operands, all of one length
    waits: list[Operation]  # that must be done before it
    length: int  # cells that it writes or sends
    versions: Sequence[int] = ()  # the versions that it reads, one per cell: a send in order, a fold operand by operand
    first: int = -1  # the first version that it writes, which the others follow; -1: it writes none
    segments: Sequence[Segment] = ()  # of a message; its send and its receive share them
    direct_operands: Sequence[DirectOperand] = ()  # of a receive: the parts of its message that are folded on arrival
    fold_stretches: Sequence[FoldStretch] = ()  # of a fold: the stretches that are folded on arrival
    done: Sequence[BlockStep] = ()  # the steps that it ends with, at most one of each block
    # By block, the last step that reads cells of messages that are folded into this operation on arrival. The operation
    # does not wait for it, but the next writer of these cells does (place.py).
    behind: dict[Block, BlockStep] | None = None


@dataclass(eq=False, slots=True)
class DirectOperand:
    """Part of a received message that is one operand of a fold."""

    offset: int  # in the message
    count: int  # cells
    fold: Operation
    receive: Operation
    cell: int  # where it lies if it is not folded on arrival


@dataclass(eq=False, slots=True)
class FoldStretch:
    """A stretch of a fold that is done as messages arrive, one message after the other."""

    fold: Operation
    offset: int  # in the fold
    count: int  # cells
    cell: int  # the first cell of the result
    stored_operands: list[int]  # first cells of the operands that do not arrive; the result's cell first if it is one
    chain: list[Segment]  # the segments that bring the other operands, in the order of arrival


@dataclass(eq=False, slots=True)
class Segment:
    """Part of a message that one step sends and one step receives."""

    send: Operation
    receive: Operation
    offset: int  # in the message
    count: int  # cells
    src: int  # first cell at the sender
    dst: int  # first cell at the receiver
    fold_stretch: FoldStretch | None = None  # into which it is folded on arrival
    parent: Segment | None = None  # the segment that brought exactly the same data to the sender
    child: Segment | None = None  # the segment that forwards its data; the inverse of `parent`
    only_forwarded: bool = False  # the data of its parent are read by this segment alone, so they need not be stored
    track: int = 0  # forwarding chains of equal number are put on the same channels (segments.py)
    step: BlockStep | None = None  # the step that receives it


# ---- operations and versions ----


# Stands in `ProgramValues.reader` for more than one reader.
SEVERAL_READERS = Operation(JOIN, rank=-1, when=-1, peer=-1, channel=-1, spans=[], waits=[], length=0)


@dataclass(eq=False)
class ProgramValues:
    """All operations by rank, in order, and the writer and the reader of every version."""

    ranks: list[list[Operation]]
    messages: list[tuple[Operation, Operation]]  # sends with their receives, except messages without data
    writer: list[Operation]  # per version
    reader: list[Operation | None]  # per version; SEVERAL_READERS also if it remains in a user's buffer
    scratch: list[int]  # per rank: its first cell of scratch

    def operations(self) -> Iterator[Operation]:
        """Iterate over the operations of all ranks."""
        return chain.from_iterable(self.ranks)

    def is_only_reader(self, first: int, count: int, reader: Operation) -> bool:
        """Return whether `reader` alone reads the `count` versions from `first` on."""
        return self.reader[first : first + count] == [reader] * count


def read_values(program: Program, layout: BufferLayout, split_blocks: bool) -> ProgramValues:
    """Return the operations of all ranks with the versions that they read. Linear in cells moved.

    `layout`: addresses in chunks. `split_blocks`: no stretch of a user's buffer crosses the end of a block of the
    collective.
    """
    result = ProgramValues(ranks=[], messages=[], writer=[], reader=[], scratch=[])
    by_row: list[Operation] = []  # per row of the program its operation; the last one if the row is cut
    for rank in range(program.ranks):
        size = [int(slot_size) for slot_size in layout.sizes[rank]]
        base = first_cells_of(size)
        result.scratch.append(base[SCRATCH])
        edges = _Edges(grain=layout.unit if split_blocks else 0, scratch=base[SCRATCH], output=base[OUTPUT])
        # Appends to `by_row`; `_assign_versions` appends to `result`.
        operations = _rank_operations(program, layout, rank, base, edges, by_row)
        result.ranks.append(_assign_versions(result, operations, base[SCRATCH] + size[SCRATCH], edges))
    pairs = zip(*(rows.tolist() for rows in program.pairs), strict=True)  # messages are never cut
    # Without data a send has become a join.
    result.messages += [(by_row[send], by_row[receive]) for send, receive in pairs if by_row[send].kind == SEND]
    return result


def first_cells_of(sizes: list[int]) -> list[int]:
    """Return the first cell of input, output and scratch of these sizes; an unused cell lies between them."""
    input_size, output_size, _ = sizes
    return [0, input_size + 1, input_size + 1 + output_size + 1]


# ---- operations ----


def _rank_operations(
    program: Program, layout: BufferLayout, rank: int, base: list[int], edges: _Edges, by_row: list[Operation]
) -> list[Operation]:  # fmt: skip
    """Return the operations of a rank, in order; append one to `by_row` for each row of the program.

    `base`: the first cell of each buffer. A row is cut into several operations only where `edges` cuts a fold.
    """
    low, high = int(program.op_ptr[rank]), int(program.op_ptr[rank + 1])
    part_ptr = program.part_ptr[low : high + 1].tolist()
    begin, end = part_ptr[0], part_ptr[-1]
    buffer = layout.buffer[begin:end].tolist()
    columns = zip(buffer, layout.begin[begin:end].tolist(), layout.length[begin:end].tolist(), strict=True)
    spans = [(base[kind] + first, count) for kind, first, count in columns]
    # Waits name rows of the program; `awaited` counts them from the first row of this rank.
    wait_ptr = program.wait_ptr[low : high + 1].tolist()
    awaited = (program.wait[wait_ptr[0] : wait_ptr[-1]] - low).tolist()
    kinds, whens = program.kind[low:high].tolist(), program.when[low:high].tolist()
    peers, channels = program.peer[low:high].tolist(), program.channel[low:high].tolist()
    operations: list[Operation] = []
    by_number: list[list[Operation]] = []  # per row of this rank its operations; unused if nothing is cut
    for number, row_kind in enumerate(kinds):
        row_stretches = spans[part_ptr[number] - begin : part_ptr[number + 1] - begin]
        awaited_rows = awaited[wait_ptr[number] - wait_ptr[0] : wait_ptr[number + 1] - wait_ptr[0]]
        if not edges.grain:  # no borders of blocks to respect: a row is one operation
            waits = [operations[row] for row in awaited_rows]
            if row_kind == FOLD or len(row_stretches) == 1:  # the usual case: nothing to merge, either
                (_, length), *_ = row_stretches
                kind, row_spans = (row_kind, row_stretches) if length else (JOIN, [])
                operations.append(
                    Operation(kind, rank, whens[number], peers[number], channels[number], row_spans, waits, length)
                )
                by_row.append(operations[-1])
                continue
        else:
            waits = [operation for row in awaited_rows for operation in by_number[row]]
        if row_kind == FOLD:
            stretches = [fold_spans for fold_spans in edges.cut_fold(row_stretches) if _first_length(fold_spans)]
        else:
            message_spans = edges.merge_message(row_stretches)
            stretches = [message_spans] if message_spans else []
        kind = row_kind if stretches else JOIN  # an operation that moves nothing only waits
        stretches = stretches or [[]]
        for stretch in stretches:
            # of a fold the length of its result, which all its operands have, too
            length = _first_length(stretch) if kind == FOLD else sum(count for _, count in stretch)
            operations.append(
                Operation(kind, rank, whens[number], peers[number], channels[number], stretch, waits, length)
            )
        by_number.append(operations[-len(stretches) :])
        by_row.append(operations[-1])
    return operations


def _first_length(spans: Sequence[Span]) -> int:
    """Return the number of cells of the first span: of a fold, that of all."""
    _, count = spans[0]
    return count


@dataclass(frozen=True)
class _Edges:
    """The borders of the collective's blocks in users' buffers, where stretches of cells are cut."""

    grain: int  # cells per weight 1 of a block, so blocks begin at multiples of it; 0: nothing is cut
    scratch: int  # the first cell of scratch
    output: int  # the first cell of the output

    def is_border(self, cell: int) -> bool:
        """Return whether a block may begin at this cell."""
        if not self.grain or cell >= self.scratch:
            return False
        return (cell - (self.output if cell >= self.output else 0)) % self.grain == 0

    def _cuts_within(self, span: Span) -> Iterator[int]:
        """Yield the offsets of all borders within a stretch."""
        cell, count = span
        if self.grain and cell < self.scratch:
            start = cell - (self.output if cell >= self.output else 0)
            yield from range(self.grain - start % self.grain, count, self.grain)

    def merge_message(self, spans: list[Span]) -> list[Span]:
        """Merge the stretches of a message that are contiguous, but not across borders."""
        if len(spans) == 1 and not self.grain:
            return spans if _first_length(spans) else []
        joined: list[Span] = []
        for span in spans:
            offset = 0
            first_cell, length = span
            for cut in (*self._cuts_within(span), length):
                cell, count = first_cell + offset, cut - offset
                offset = cut
                last_cell, last_count = joined[-1] if joined else (0, -1)  # -1: nothing to continue
                if last_cell + last_count == cell and not self.is_border(cell):
                    joined[-1] = last_cell, last_count + count
                elif count:
                    joined.append((cell, count))
        return joined

    def cut_fold(self, spans: list[Span]) -> Iterable[list[Span]]:
        """Cut a fold at every border within one of its stretches."""
        if not self.grain:
            yield spans
            return
        cuts = sorted({cut for span in spans for cut in self._cuts_within(span)} | {0, _first_length(spans)})
        for low, high in pairwise(cuts):
            yield [(cell + low, high - low) for cell, _ in spans]


# ---- versions ----


def _assign_versions(values: ProgramValues, operations: list[Operation], cells: int, edges: _Edges) -> list[Operation]:
    """Assign versions to reads and writes of one rank, and return its operations. `cells`: of all its buffers.

    A fold that continues the fold before it, with operands that the same operations wrote, is merged with it. Example:
    one receive wrote cells 0 and 1, another one cells 5 and 6. The folds of cells (0, 5) and (1, 6), with results side
    by side, become one of two chunks.
    """
    writer, reader = values.writer, values.reader
    version_in = [-1] * cells  # per cell the version in it
    remaining: list[Operation] = []
    merged_into: dict[Operation, Operation] = {}
    sources: list[list[int]] = []  # the versions that the last of `remaining` reads, by operand
    for operation in operations:
        if merged_into:
            operation.waits = list(dict.fromkeys(merged_into.get(other, other) for other in operation.waits))
        spans = operation.spans if operation.kind == SEND else operation.spans[1:] if operation.kind == FOLD else []
        # Reads see the versions before this operation writes.
        reads = [version_in[cell : cell + count] for cell, count in spans]
        last = remaining[-1] if remaining else None
        continues = operation.kind == FOLD and last is not None and _continues_fold(last, operation, edges)
        # Merge with the fold before (`owner`): the runtime then needs one step instead of two.
        if last is not None and continues and _same_writers(writer, sources, reads):
            last.length += operation.length
            last.spans = [(cell, last.length) for cell, _ in last.spans]
            last.waits = list(dict.fromkeys([*last.waits, *operation.waits]))
            sources = [before + after for before, after in zip(sources, reads, strict=True)]
            last.versions = [version for versions in sources for version in versions]
            merged_into[operation], owner = last, last
        else:
            remaining.append(operation)
            sources, owner = reads, operation
            operation.versions = (
                reads[0] if len(reads) == 1 else [version for versions in reads for version in versions]
            )
        for versions in reads:
            for version in versions:
                if version >= 0:
                    reader[version] = owner if reader[version] is None else SEVERAL_READERS
        if operation.kind in (RECEIVE, FOLD):
            version = len(writer)
            if owner is operation:
                operation.first = version
            for cell, count in operation.spans if operation.kind == RECEIVE else operation.spans[:1]:
                version_in[cell : cell + count] = range(version, version + count)
                version += count
            if operation.length == 1:
                writer.append(owner)
                reader.append(None)
            else:
                writer.extend([owner] * operation.length)
                reader.extend([None] * operation.length)
    # The final content of users' buffers, the cells before scratch, is read by the user.
    first_scratch_cell = values.scratch[-1]  # of this rank, the last one so far
    for version in version_in[:first_scratch_cell]:
        if version >= 0:
            reader[version] = SEVERAL_READERS
    return remaining


def _continues_fold(last: Operation, operation: Operation, edges: _Edges) -> bool:
    """Return whether a fold begins where the fold before it ends, in all its stretches."""
    if last.kind != FOLD or last.when != operation.when or len(last.spans) != len(operation.spans):
        return False
    pairs = zip(last.spans, operation.spans, strict=True)
    return all(cell + count == begin and not edges.is_border(begin) for (cell, count), (begin, _) in pairs)


def _same_writers(writer: list[Operation], before: list[list[int]], after: list[list[int]]) -> bool:
    """Return whether, for each operand, one operation wrote the last version of `before` and the first of `after`."""
    for versions_before, versions_after in zip(before, after, strict=True):
        last, first = versions_before[-1], versions_after[0]
        if (last < 0) != (first < 0) or (last >= 0 and writer[last] is not writer[first]):  # -1: the user wrote it
            return False
    return True
