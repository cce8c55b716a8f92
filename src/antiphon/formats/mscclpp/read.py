"""Read an execution plan of MSCCL++: its header, and the operations of its thread blocks as code for the checker.

The checker is lower.machine.judge. `read_plan` is for users; formats/foreign.py calls `read`. Each thread block becomes
blocks of the abstract machine, by operations.py (what an operation reads and writes) and machine_blocks.py (what is
ordered). Pipelines are written out, turn by turn; barriers become waits between blocks.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass

from antiphon.core.collective import Collective
from antiphon.core.files import name_of, read_bytes, reading
from antiphon.core.interpret.buffers import sides
from antiphon.errors import Invalid, Unsupported
from antiphon.formats.foreign_program import ForeignProgram, Wrong
from antiphon.formats.lint.form import Head
from antiphon.formats.mscclpp.machine_blocks import BlockBuilder, Machine, Spot
from antiphon.formats.mscclpp.operations import WHOLE, OperationReader, Window
from antiphon.formats.mscclpp.shape import SCRATCH, File, Gpu, Inner, Operation, parsed
from antiphon.formats.mscclpp.wiring import MOST_WIDTH, Names, Wiring, collective_of, grain_of
from antiphon.lower.machine.code import Code, Instruction
from antiphon.lower.without_gc import without_gc

MOST_BYTES = 2**30  # of a file
FEW_OPERATIONS = 2**17  # operations that pipelines may always become when written out
BYTES_PER_OPERATION = 8  # of the file, for each operation beyond these


@dataclass(frozen=True, eq=False)
class ExecutionPlan:
    """A plan that was read. `code`: its operations, which `antiphon.lower.machine.judge` verifies.

    It serves multiples of `alignment` and of its chunks, from `smallest` to `largest` bytes as the loader counts them.
    """

    name: str
    protocol: str
    smallest: int
    largest: int
    alignment: int
    code: Code


def read_plan(path: str | os.PathLike[str], *, collective: Collective | None = None, root: int = 0) -> ExecutionPlan:
    """Read a plan; an error names the place of the fault. Linear time; memory is a few times the file.

    `collective`: what the plan is for, if the file does not say it or says it wrongly. `root`: of a broadcast and the
    like.
    """
    with reading(name_of(path)):
        return plan_of(read_bytes(path, MOST_BYTES), collective=collective, root=root)


@without_gc()
def plan_of(data: bytes, *, collective: Collective | None = None, root: int = 0) -> ExecutionPlan:
    """Read a plan, as `read_plan`, from the bytes of its file."""
    file = parsed(data)
    plan_collective = collective_of(file, collective, root, len(data))
    width, scratch_width = _find_widths(file)
    _refuse_long(file, width, len(data))
    wiring = Wiring(file, plan_collective, width, scratch_width, len(data))
    machine = Machine()
    for rank, gpu in enumerate(file.gpus):
        _Rank(wiring, machine, rank, gpu).read()
    machine.resolve_packets()
    wiring.refuse_mixed_scratch()
    code = Code(
        plan_collective, file.inplace, grain_of(file, plan_collective) * width, wiring.places, machine.blocks,
        start=wiring.start, independent_ranks=True, semaphore_names=wiring.named, inorder=machine.inorder,
        delays=machine.delays,
    )  # fmt: skip
    return ExecutionPlan(
        file.name, file.protocol, file.min_message_size, file.max_message_size, file.buffer_alignment, code
    )


# ---- cells per chunk ----


def _list_operations(file: File) -> Iterator[tuple[int, int, Operation]]:
    """Yield (rank, block, operation) of all operations, without those within pipelines."""
    for gpu in file.gpus:
        for block in gpu.threadblocks:
            for operation in block.ops:
                yield gpu.id, block.id, operation


def _find_widths(file: File) -> tuple[int, int]:
    """Return the number of cells of a chunk, and of a chunk of scratch.

    A cell is the smallest interval that is checked. If groups of thread blocks share chunks, each share is whole cells.
    With a pipeline, a cell is what one of its turns handles (`unit_size` bytes). If scratch is reused, a chunk has two
    cells more than fit into its scratch, so that the turns wrap around in it.
    """
    chunk_parts, units = 1, set[int]()
    for rank, block, operation in _list_operations(file):
        if operation.name == "pipeline":
            where = f"rank {rank}, block {block} (pipeline)"
            if operation.iter_context is None or operation.ops is None:
                raise Invalid(f"{where}: lacks iter_context or ops")
            units.add(operation.iter_context.unit_size)
            if any(inner.tbg_info is not None for inner in operation.ops):
                raise Unsupported(f"{where}: a group's part of a pipeline ends before the pipeline does")
        for inner in (operation, *(operation.ops or ())):
            if inner.tbg_info is not None:
                size = _operation_size(inner)
                # each of the `tbg_size` shares of `size` chunks is whole cells
                chunk_parts = math.lcm(
                    chunk_parts, inner.tbg_info.tbg_size // math.gcd(inner.tbg_info.tbg_size, size or 1)
                )
                if chunk_parts > MOST_WIDTH:
                    raise Unsupported(f"groups of blocks cut chunks into more than {MOST_WIDTH} parts")
    if not units:
        return chunk_parts, chunk_parts
    if len(units) > 1 or chunk_parts > 1:
        raise Unsupported("pipelines of several units, or beside groups of blocks, are not known here")
    unit, scratch_chunks = units.pop(), {gpu.scratch_chunks for gpu in file.gpus}
    if not unit or unit % file.buffer_alignment:
        raise Invalid(f"iter_context: a unit of {unit} bytes is no multiple of the alignment")
    if not file.reuse_resources or scratch_chunks == {0}:
        return 3, 3  # no turn reuses cells of another, so three turns (first, inner, last) stand for any number
    # bytes of scratch for each chunk
    chunk = -(-SCRATCH // (2 if file.use_double_scratch_buffer else 1) // max(scratch_chunks))
    chunk = -(-chunk // file.buffer_alignment) * file.buffer_alignment
    if len(scratch_chunks) > 1 or chunk % unit:
        raise Unsupported(f"scratch in chunks of {chunk} bytes, which units of {unit} bytes do not fill")
    period = chunk // unit  # turns after which cells of scratch are used again; two more turns stand for any number
    if period + 2 > MOST_WIDTH:
        raise Unsupported(f"pipelines of more than {MOST_WIDTH} units; this has {period}")
    return period + 2, period


def _operation_size(operation: Inner) -> int:
    places = operation.src_buff or operation.dst_buff or []
    return places[0].size if places else 0


def _refuse_long(file: File, width: int, nbytes: int) -> None:
    """Refuse pipelines that would become far more operations than the file has: all their turns are written out."""
    total = sum(
        len(operation.ops or ()) * width * (operation.iter_context.num_chunks if operation.iter_context else 0)
        for _, _, operation in _list_operations(file)
    )
    if total > max(FEW_OPERATIONS, nbytes // BYTES_PER_OPERATION):
        raise Unsupported(f"its pipelines do {total} operations when written out, too many for {nbytes} bytes of text")


# ---- a rank ----


@dataclass(slots=True)
class _Visit:
    """A visit of a block of the abstract machine to a barrier for `size` blocks.

    `arrival`, `departure`: indices of its instructions there; None if the block has done nothing before, or does
    nothing after.
    """

    where: str
    size: int
    block: int
    arrival: int | None
    departure: int | None


class _Rank:
    """Reads the thread blocks of one GPU into the machine."""

    def __init__(self, wiring: Wiring, machine: Machine, rank: int, gpu: Gpu) -> None:
        self.wiring, self.machine, self.rank, self.gpu = wiring, machine, rank, gpu
        self.ports: dict[int, int] = {}  # port channel -> the block of `machine` for its proxy; filled by readers
        self.barriers: dict[int, dict[int, list[_Visit]]] = {}  # by barrier and block

    def read(self) -> None:
        for number, block in enumerate(self.gpu.threadblocks):
            builder = BlockBuilder(self.machine, self.rank, f"block {number}")
            names = Names(self.wiring, self.rank, number, block)
            reader = OperationReader(self.wiring, self.machine, names, self.ports)
            for step, operation in enumerate(block.ops):
                if operation.name == "pipeline":
                    self._read_pipeline(step, operation, builder, reader)
                else:
                    self._read_operation(step, operation, builder, reader, WHOLE)
            builder.close()
        self._join_barriers()

    def _read_operation(
        self,
        step: int,
        operation: Inner,
        builder: BlockBuilder,
        reader: OperationReader,
        window: Window,
        within: str = "",
    ) -> None:
        """Read one operation. `window`, `within`: as for `OperationReader.items`."""
        if operation.name == "nop":
            builder.sync(step, "nop")
        elif operation.name == "barrier":
            self._read_barrier(step, operation, builder, reader, within)
        else:
            for item in reader.items(step, operation, window, within):
                if item is None:
                    builder.sync(step, operation.name)
                else:
                    builder.open.append(item)

    def _read_pipeline(self, step: int, operation: Operation, builder: BlockBuilder, reader: OperationReader) -> None:
        """Write out a pipeline: in each turn all of its operations, on one cell; `width` turns for every chunk."""
        assert operation.iter_context is not None
        chunks = operation.iter_context.num_chunks
        where = f"{reader.names.where}, step {step} ({operation.name})"
        for inner in operation.ops or ():
            places = [*(inner.src_buff or ()), *(inner.dst_buff or ())]
            if any(place.size != chunks for place in places):  # more would spill over in the last, shorter unit
                raise Invalid(f"{where}: goes over {chunks} chunks, and its {inner.name[:24]} has others")
            if inner.name == "pipeline":
                raise Invalid(f"{where}: has a pipeline within")
        for turn in range(chunks * self.wiring.width):
            for inner in operation.ops or ():
                self._read_operation(step, inner, builder, reader, Window(turn, cells=1), operation.name)

    def _read_barrier(
        self, step: int, operation: Inner, builder: BlockBuilder, reader: OperationReader, within: str
    ) -> None:
        """Add a visit to a barrier: an arrival, if the block has done something before, and a departure.

        `_join_barriers` makes departures wait for the arrivals of the other blocks.
        """
        where, number = f"{reader.names.where}, step {step} ({within or operation.name})", reader.names.number
        if operation.barrier_id is None or operation.num_threadblocks is None:
            raise Invalid(f"{where}: lacks barrier_id or num_threadblocks")
        if operation.num_threadblocks == 1:
            builder.sync(step, "barrier")
            return
        builder.close()
        visits = self.barriers.setdefault(operation.barrier_id, {}).setdefault(number, [])
        instructions = self.machine.blocks[builder.main].instructions
        if visits and visits[-1].departure == 0 and len(instructions) == 1 and not builder.unsynced:
            instructions.pop()  # it has done nothing since it came there first, nor before
            visits[-1].departure = None
        has_arrival = bool(instructions or builder.unsynced)
        if has_arrival:
            builder.sync(step, "barrier", always=True)
        instructions.append(Instruction(step, "barrier"))
        last = len(instructions) - 1
        visits.append(_Visit(where, operation.num_threadblocks, builder.main, last - 1 if has_arrival else None, last))

    def _join_barriers(self) -> None:
        """Make all blocks that use a barrier wait for each other, the k-th visit of each for the k-th of all others."""
        for barrier, blocks in self.barriers.items():
            visit_count = max(map(len, blocks.values()))
            for visits in blocks.values():
                misfit = next((visit for visit in visits if visit.size != len(blocks)), None)
                if misfit is not None:
                    raise Invalid(
                        f"{misfit.where}: barrier {barrier} is for {misfit.size} blocks here, and {len(blocks)} use "
                        "it; it never opens, or too early"
                    )
                if len(visits) != visit_count:
                    raise Invalid(
                        f"{visits[0].where}: comes to barrier {barrier} {len(visits)} times, others {visit_count} times"
                    )
            for visits in blocks.values():
                self._drop_idle(visits)
            self._open_barrier(list(zip(*blocks.values(), strict=True)))

    def _drop_idle(self, visits: list[_Visit]) -> None:
        """Drop arrivals and departures at the end of a block with no work after them."""
        instructions = self.machine.blocks[visits[0].block].instructions
        # each visit with the one before it (the first has none), the last visit first
        for previous, visit in zip([None, *visits][-2::-1], visits[::-1], strict=True):
            if visit.departure is None or visit.departure != len(instructions) - 1 or visit.arrival is None:
                return
            if (visit.block, visit.departure) in self.machine.fences:
                return  # work of separate threads follows it, in blocks of their own
            instructions.pop()
            visit.departure = None
            if (
                previous is None
                or previous.departure is None
                or previous.departure != visit.arrival - 1
                or instructions[-1].wait
            ):
                return  # it has done something since: by itself, or in blocks that it waits for
            instructions.pop()
            visit.arrival = None

    def _open_barrier(self, turns: list[tuple[_Visit, ...]]) -> None:
        """Make departures wait for all arrivals, and for those of the turn before that no present arrival implies."""
        awaited: tuple[Spot, ...] = ()
        previous: tuple[_Visit, ...] = ()
        for visits in turns:
            arrivals = tuple((visit.block, visit.arrival) for visit in visits if visit.arrival is not None)
            # a block that departed at the turn before and arrives now implies that turn's arrivals
            is_ordered = any(
                a.departure is not None and b.arrival is not None for a, b in zip(previous, visits, strict=False)
            )
            awaited = arrivals if is_ordered else (*arrivals, *awaited)
            departures = [(visit.block, visit.departure) for visit in visits if visit.departure is not None]
            for spot in departures:  # the first departure waits for the arrivals, all others for the first departure
                self.machine.add_waits(spot, awaited if spot is departures[0] else (departures[0],))
            previous = visits


# ---- for checks of files that others wrote ----


FORMAT = "mscclpp-json"


def read(data: bytes, name: str) -> ForeignProgram:
    """Read a plan for checks; raise `Wrong` for one that is well formed but cannot run, and so has no code."""
    file = parsed(data)
    try:
        plan = plan_of(data)
    except Invalid as error:
        raise Wrong("form", str(error)) from None
    collective = plan.code.collective
    largest = max(int(side.size.max(initial=0)) for side in sides(collective))
    head = Head(
        FORMAT, plan.name or name, collective.kind, collective.ranks, in_place=file.inplace,
        out_of_place=not file.inplace, min_bytes=plan.smallest, max_bytes=plan.largest,
        chunks=grain_of(file, collective) * largest, channels=0, protocol=plan.protocol,
        verbs=frozenset(
            inner.name for _, _, operation in _list_operations(file) for inner in (operation, *(operation.ops or ()))
        ),
        root=collective.roots[0] if collective.roots else None, extra={"alignment": plan.alignment},
    )  # fmt: skip
    return ForeignProgram(head, {"in place" if file.inplace else "out of place": plan.code})
