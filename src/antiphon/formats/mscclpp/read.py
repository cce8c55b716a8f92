"""An execution plan, read: what its head says, and what all its thread blocks do, for `lower.machine.judge`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass

from antiphon.core.collective import Collective
from antiphon.core.files import name_of, read_bytes, reading
from antiphon.errors import Invalid, Unsupported
from antiphon.formats.mscclpp.lanes import Lanes, Machine, Spot
from antiphon.formats.mscclpp.limits import SCRATCH
from antiphon.formats.mscclpp.operations import Reader, Window
from antiphon.formats.mscclpp.shape import File, Gpu, Inner, Operation, parsed
from antiphon.formats.mscclpp.wiring import MOST_WIDTH, Names, Wiring, collective_of, grain_of
from antiphon.lower.machine.code import Code, Instruction
from antiphon.lower.uncollected import uncollected

MOST_BYTES = 2**30
FEW_OPERATIONS = 2**17


@dataclass(frozen=True, eq=False)
class ExecutionPlan:
    """`smallest`, `largest`: for which sizes in bytes, as the loader measures them; these are multiples of `alignment`
    and of the chunks. `code`: what it does; `antiphon.lower.machine.judge` says whether that is right."""

    name: str
    protocol: str
    smallest: int
    largest: int
    alignment: int
    code: Code


def read_plan(path: str | os.PathLike[str], *, collective: Collective | None = None, root: int = 0) -> ExecutionPlan:
    """`collective`: what the plan is for, where its file does not say or says it otherwise; `root`: of a broadcast and
    the like. Every fault is one line that says where. Linear; memory is a few times the file."""
    with reading(name_of(path)):
        return plan_of(read_bytes(path, MOST_BYTES), collective=collective, root=root)


@uncollected()
def plan_of(data: bytes, *, collective: Collective | None = None, root: int = 0) -> ExecutionPlan:
    """The same of the text itself."""
    file = parsed(data)
    wanted = collective_of(file, collective, root, len(data))
    width, scratch = _widths(file)
    _refuse_long(file, width, len(data))
    wiring = Wiring(file, wanted, width, scratch, len(data))
    machine = Machine()
    for rank, gpu in enumerate(file.gpus):
        _Rank(wiring, machine, rank, gpu).read()
    machine.settle()
    wiring.refuse_mixed_scratch()
    code = Code(
        wanted, file.inplace, grain_of(file, wanted) * width, wiring.places, machine.blocks, [], 0, wiring.start, True,
        1, wiring.named, machine.inorder, machine.held,
    )  # fmt: skip
    return ExecutionPlan(
        file.name, file.protocol, file.min_message_size, file.max_message_size, file.buffer_alignment, code
    )


# ---- how fine ----


def _operations(file: File) -> Iterator[tuple[int, int, Operation]]:
    for gpu in file.gpus:
        for block in gpu.threadblocks:
            for one in block.ops:
                yield gpu.id, block.id, one


def _widths(file: File) -> tuple[int, int]:
    """Cells of a chunk, and of a chunk of scratch: so many that groups of blocks have whole parts; or that a pipeline
    goes round its scratch, and two units more."""
    parts, units = 1, set[int]()
    for rank, block, one in _operations(file):
        if one.name == "pipeline":
            where = f"rank {rank}, block {block} (pipeline)"
            if one.iter_context is None or one.ops is None:
                raise Invalid(f"{where}: lacks iter_context or ops")
            units.add(one.iter_context.unit_size)
            if any(inner.tbg_info is not None for inner in one.ops):
                raise Unsupported(f"{where}: a group's part of a pipeline ends before the pipeline does")
        for inner in (one, *(one.ops or ())):
            if inner.tbg_info is not None:
                size = _size(inner)
                parts = math.lcm(parts, inner.tbg_info.tbg_size // math.gcd(inner.tbg_info.tbg_size, size or 1))
                if parts > MOST_WIDTH:
                    raise Unsupported(f"groups of blocks cut chunks into more than {MOST_WIDTH} parts")
    if not units:
        return parts, parts
    if len(units) > 1 or parts > 1:
        raise Unsupported("pipelines of several units, or beside groups of blocks, are not known here")
    unit, room = units.pop(), {gpu.scratch_chunks for gpu in file.gpus}
    if not unit or unit % file.buffer_alignment:
        raise Invalid(f"iter_context: a unit of {unit} bytes is no multiple of the alignment")
    if not file.reuse_resources or room == {0}:
        return 3, 3
    chunk = -(-SCRATCH // (2 if file.use_double_scratch_buffer else 1) // max(room))
    if len(room) > 1 or chunk % unit:
        raise Unsupported(f"scratch in chunks of {chunk} bytes, which units of {unit} bytes do not fill")
    if chunk // unit + 2 > MOST_WIDTH:
        raise Unsupported(f"pipelines of more than {MOST_WIDTH} units; this has {chunk // unit}")
    return chunk // unit + 2, chunk // unit


def _size(one: Inner) -> int:
    places = one.src_buff or one.dst_buff or []
    return places[0].size if places else 0


def _refuse_long(file: File, width: int, nbytes: int) -> None:
    """Pipelines are written out: a short text must not become much more."""
    total = sum(
        len(one.ops or ()) * width * (one.iter_context.num_chunks if one.iter_context else 0)
        for _, _, one in _operations(file)
    )
    if total > max(FEW_OPERATIONS, nbytes // 8):
        raise Unsupported(f"its pipelines do {total} operations when written out, too many for {nbytes} bytes of text")


# ---- a rank ----


class _Rank:
    """The thread blocks of one GPU."""

    def __init__(self, wiring: Wiring, machine: Machine, rank: int, gpu: Gpu) -> None:
        self.wiring, self.machine, self.rank, self.gpu = wiring, machine, rank, gpu
        self.ports: dict[int, int] = {}
        self.arrived: dict[int, dict[int, list[tuple[Spot, str, int]]]] = {}  # by barrier and block
        self.leaving: dict[int, dict[int, list[Spot]]] = {}

    def read(self) -> None:
        for number, block in enumerate(self.gpu.threadblocks):
            lanes = Lanes(self.machine, self.rank, f"block {number}")
            names = Names(self.wiring, self.rank, number, block)
            reader = Reader(self.wiring, self.machine, names, self.ports)
            for at, one in enumerate(block.ops):
                where = f"rank {self.rank}, block {number}, step {at} ({one.name[:24]})"
                if one.name == "pipeline":
                    self._pipeline(where, at, one, lanes, reader, number)
                else:
                    self._one(where, at, one, lanes, reader, number, Window())
            lanes.close()
        self._meet()

    def _one(self, where: str, at: int, one: Inner, lanes: Lanes, reader: Reader, number: int, window: Window) -> None:
        if one.name == "nop":
            lanes.sync(at, "nop")
        elif one.name == "barrier":
            self._barrier(where, at, one, lanes, number)
        else:
            for item in reader.items(where, at, one, window):
                lanes.add(item)

    def _pipeline(self, where: str, at: int, one: Operation, lanes: Lanes, reader: Reader, number: int) -> None:
        assert one.iter_context is not None
        chunks, units = one.iter_context.num_chunks, self.wiring.width
        for inner in one.ops or ():
            places = [*(inner.src_buff or ()), *(inner.dst_buff or ())]
            if any(place.size < chunks for place in places):
                raise Invalid(f"{where}: goes over {chunks} chunks, and its {inner.name[:24]} has fewer")
            if inner.name == "pipeline":
                raise Invalid(f"{where}: has a pipeline within")
        for turn in range(chunks * units):
            for inner in one.ops or ():
                self._one(where, at, inner, lanes, reader, number, Window(turn, 1))

    def _barrier(self, where: str, at: int, one: Inner, lanes: Lanes, number: int) -> None:
        if one.barrier_id is None or one.num_threadblocks is None:
            raise Invalid(f"{where}: lacks barrier_id or num_threadblocks")
        lanes.sync(at, "barrier", always=True)
        if one.num_threadblocks == 1:
            return
        spot = self.machine.last(lanes.main)[0]
        self.machine.add(lanes.main, Instruction(at, "barrier"))
        there = self.arrived.setdefault(one.barrier_id, {}).setdefault(number, [])
        there.append((spot, where, one.num_threadblocks))
        self.leaving.setdefault(one.barrier_id, {}).setdefault(number, []).append((spot[0], spot[1] + 1))

    def _meet(self) -> None:
        """The k-th time at a barrier all blocks that use it wait for each other."""
        for barrier, blocks in self.arrived.items():
            often = max(len(times) for times in blocks.values())
            for times in blocks.values():
                where = times[0][1]
                odd = next((row for row in times if row[2] != len(blocks)), None)
                if odd is not None:
                    raise Invalid(
                        f"{odd[1]}: barrier {barrier} is for {odd[2]} blocks here, and {len(blocks)} use it; it never "
                        "opens, or too early"
                    )
                if len(times) != often:
                    raise Invalid(f"{where}: comes to barrier {barrier} {len(times)} times, others {often} times")
            for turn in range(often):
                for block, spots in self.leaving[barrier].items():
                    others = tuple(times[turn][0] for other, times in blocks.items() if other != block)
                    self.machine.wait_more(spots[turn], others)
