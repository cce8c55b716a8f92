"""An execution plan, read: its head, and what all its thread blocks do, for `lower.machine.judge`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass

from antiphon.core.collective import Collective
from antiphon.core.files import name_of, read_bytes, reading
from antiphon.core.interpret.buffers import sides
from antiphon.errors import Invalid, Unsupported
from antiphon.formats.lint.form import Head
from antiphon.formats.mscclpp.lanes import Lanes, Machine, Spot
from antiphon.formats.mscclpp.operations import WHOLE, Reader, Window
from antiphon.formats.mscclpp.shape import SCRATCH, File, Gpu, Inner, Operation, parsed
from antiphon.formats.mscclpp.wiring import MOST_WIDTH, Names, Wiring, collective_of, grain_of
from antiphon.formats.written import Written, Wrong
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


@dataclass(slots=True)
class _Visit:
    """Of a block of the machine to a barrier for so many: the instruction with which it comes there, and that with
    which it leaves. None where it has done nothing before, or does nothing more."""

    where: str
    size: int
    block: int
    came: int | None
    left: int | None


class _Rank:
    """The thread blocks of one GPU."""

    def __init__(self, wiring: Wiring, machine: Machine, rank: int, gpu: Gpu) -> None:
        self.wiring, self.machine, self.rank, self.gpu = wiring, machine, rank, gpu
        self.ports: dict[int, int] = {}
        self.barriers: dict[int, dict[int, list[_Visit]]] = {}  # by barrier and block

    def read(self) -> None:
        for number, block in enumerate(self.gpu.threadblocks):
            lanes = Lanes(self.machine, self.rank, f"block {number}")
            names = Names(self.wiring, self.rank, number, block)
            reader = Reader(self.wiring, self.machine, names, self.ports)
            for at, one in enumerate(block.ops):
                if one.name == "pipeline":
                    self._pipeline(at, one, lanes, reader)
                else:
                    self._one(at, one, lanes, reader, WHOLE)
            lanes.close()
        self._meet()

    def _one(self, at: int, one: Inner, lanes: Lanes, reader: Reader, window: Window, within: str = "") -> None:
        if one.name == "nop":
            lanes.sync(at, "nop")
        elif one.name == "barrier":
            self._barrier(at, one, lanes, reader, within)
        else:
            lanes.open += reader.items(at, one, window, within)

    def _pipeline(self, at: int, one: Operation, lanes: Lanes, reader: Reader) -> None:
        assert one.iter_context is not None
        chunks, units = one.iter_context.num_chunks, self.wiring.width
        where = f"{reader.names.where}, step {at} ({one.name})"
        for inner in one.ops or ():
            places = [*(inner.src_buff or ()), *(inner.dst_buff or ())]
            if any(place.size < chunks for place in places):
                raise Invalid(f"{where}: goes over {chunks} chunks, and its {inner.name[:24]} has fewer")
            if inner.name == "pipeline":
                raise Invalid(f"{where}: has a pipeline within")
        for turn in range(chunks * units):
            for inner in one.ops or ():
                self._one(at, inner, lanes, reader, Window(turn, 1), one.name)

    def _barrier(self, at: int, one: Inner, lanes: Lanes, reader: Reader, within: str) -> None:
        where, number = f"{reader.names.where}, step {at} ({within or one.name})", reader.names.number
        if one.barrier_id is None or one.num_threadblocks is None:
            raise Invalid(f"{where}: lacks barrier_id or num_threadblocks")
        if one.num_threadblocks == 1:
            lanes.sync(at, "barrier")
            return
        lanes.close()
        visits = self.barriers.setdefault(one.barrier_id, {}).setdefault(number, [])
        made = self.machine.blocks[lanes.main].instructions
        if visits and visits[-1].left == 0 and len(made) == 1 and not lanes.loose:
            made.pop()  # it has done nothing since it came there first, nor before
            visits[-1].left = None
        came = bool(made or lanes.loose)
        if came:
            lanes.sync(at, "barrier", always=True)
        made.append(Instruction(at, "barrier"))
        last = len(made) - 1
        visits.append(_Visit(where, one.num_threadblocks, lanes.main, last - 1 if came else None, last))

    def _meet(self) -> None:
        """The k-th time at a barrier all blocks that use it wait for each other."""
        for barrier, blocks in self.barriers.items():
            often = max(map(len, blocks.values()))
            for visits in blocks.values():
                odd = next((one for one in visits if one.size != len(blocks)), None)
                if odd is not None:
                    raise Invalid(
                        f"{odd.where}: barrier {barrier} is for {odd.size} blocks here, and {len(blocks)} use it; it "
                        "never opens, or too early"
                    )
                if len(visits) != often:
                    raise Invalid(
                        f"{visits[0].where}: comes to barrier {barrier} {len(visits)} times, others {often} times"
                    )
            for visits in blocks.values():
                self._end(visits)
            self._open(list(zip(*blocks.values(), strict=True)))

    def _end(self, visits: list[_Visit]) -> None:
        """Who does nothing more leaves no barrier, and comes to none again."""
        made = self.machine.blocks[visits[0].block].instructions
        for before, one in zip([None, *visits][-2::-1], visits[::-1], strict=True):
            if one.left is None or one.left != len(made) - 1 or one.came is None:
                return
            made.pop()
            one.left = None
            if before is None or before.left is None or before.left != one.came - 1 or made[-1].wait:
                return  # it has done something since: by itself, or in lanes that it waits for
            made.pop()
            one.came = None

    def _open(self, turns: list[tuple[_Visit, ...]]) -> None:
        """Who leaves waits for all that came; and for those of the turn before, where nobody has waited for them and
        come now."""
        awaited: tuple[Spot, ...] = ()
        before: tuple[_Visit, ...] = ()
        for visits in turns:
            come = tuple((one.block, one.came) for one in visits if one.came is not None)
            known = any(a.left is not None and b.came is not None for a, b in zip(before, visits, strict=False))
            awaited = come if known else (*come, *awaited)
            leave = [(one.block, one.left) for one in visits if one.left is not None]
            for spot in leave:  # the first waits for them, all others for the first
                self.machine.wait_more(spot, awaited if spot is leave[0] else (leave[0],))
            before = visits


# ---- for checks of files that others wrote ----


FORMAT = "mscclpp-json"


def read(data: bytes, name: str) -> Written:
    """Wrong where it is a plan in form, and asks for what cannot be: then there is no code to judge."""
    file = parsed(data)
    try:
        told = plan_of(data)
    except Invalid as error:
        raise Wrong("form", str(error)) from None
    collective = told.code.collective
    largest = max(int(side.size.max(initial=0)) for side in sides(collective))
    head = Head(
        FORMAT, told.name or name, collective.kind, collective.ranks, file.inplace, not file.inplace, told.smallest,
        told.largest, told.code.grain * largest, 0, told.protocol,
        frozenset(one.name for gpu in file.gpus for block in gpu.threadblocks for one in block.ops),
        collective.roots[0] if collective.roots else None, (), {"alignment": told.alignment},
    )  # fmt: skip
    return Written(head, {"in place" if file.inplace else "out of place": told.code})
