"""Plans for large calls whose ranks write only into each other's scratch, so that users' buffers may move freely.

The executor connects ranks anew for every pair of allocations, unless a plan says `reuse_resources`. Then the only
memory of other ranks that it may access is 64 MiB of scratch, which all such plans share. Here all received data goes
to scratch, from where it is copied or added. Ports (to ranks of other hosts) read scratch only, so what they send is
copied to scratch first.

Larger messages pass through scratch in units, in turns of a loop (`pipeline`). Where k thread blocks share an
operation, every chunk is cut into k chunks, one for each block. (MSCCL++'s own field for that, `tbg_info`, by which
blocks share a chunk, does not work: the loop would count its turns by whole chunks, and run beyond the block's share.)

    turn 0   signal that the slot is free, wait for such a signal, put unit 0, signal, wait, add unit 0 from the slot
    turn 1   the same with unit 1, in the same slot, and so on

A turn does what a call does, in streams that share no data, and is safe for the same reasons: no rank writes into a
slot before its owner has begun the turn, and a sync ends each turn.

Slots lie in the second half of scratch: in the first, plans of the packet protocol would take their data for packets.

    | packets            | slot 0 | slot 1 | ... | unused      |
    0                    32 MiB                         64 MiB

At most a quarter of scratch is in use, so that units, and with them the smallest messages, are small. The executor
places slot i at i times the smaller of unit and chunk, so chunks must have at least a unit; smaller messages need other
plans. In a loop the kernel reads only the first operand of a sum from such scratch, so several received operands are
added one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from antiphon.core.program import BufferLayout, Program
from antiphon.core.program.kinds import SCRATCH
from antiphon.errors import Unsupported
from antiphon.formats.mscclpp.blocks import BACK_END, MORE_STREAMS, MOST_GROUPED, NOP, Ends, Far, gpu_of, name_buffers
from antiphon.formats.mscclpp.gpu import GpuText
from antiphon.formats.mscclpp.groups import cut_steps, find_chunks_per_step
from antiphon.formats.mscclpp.shape import MOST_BLOCKS
from antiphon.formats.mscclpp.shape import SCRATCH as SHARED_SCRATCH
from antiphon.lower.onesided.form import FOLD, PUT, SYNC, Place, StreamMove, StreamStep
from antiphon.lower.onesided.steps import OneSided
from antiphon.lower.without_gc import without_gc

# limits of a unit: the bytes of a chunk that a thread block handles in a turn
MOST_UNIT = 2**20
LEAST_UNIT = 2**12
SPARE = 4  # at most 1 / SPARE of scratch is in use: smaller units, so that smaller calls can be served


@dataclass(frozen=True)
class Staged:
    """The thread blocks of all ranks (`gpus`), their addresses (`layout`), and the bytes of a unit.

    Calls must be large enough that each chunk has at least `unit` bytes.
    """

    layout: BufferLayout
    gpus: list[GpuText]
    unit: int


@without_gc()
def stage(program: Program, layout: BufferLayout, blocks: int, far: Far, alignment: int) -> Staged:
    """Return the plan of a program whose ranks receive in scratch alone (`lower(staged=True)`).

    `blocks`: thread blocks per rank to aim at. `alignment`: bytes that units are multiples of.
    """
    ends = [Ends(rank, far, name_buffers(program)) for rank in range(program.ranks)]
    one_sided, reason = OneSided(program, layout), ""
    # fewer streams need fewer resources, but have more steps per block; if those are too many, try more streams
    for max_streams in sorted({blocks, max(blocks, MORE_STREAMS), MOST_BLOCKS}):
        # 1. The steps of all ranks: sums one by one, copies for ports; all steps of a stream on as many chunks
        # (`chunks_per_step`), so that one loop runs them.
        _, steps_of, _ = one_sided.split_streams(max_streams)  # steps_of(rank): by stream its steps
        sizes = layout.sizes.copy()  # [rank, buffer]: chunks
        streams_by_rank = []
        for rank_ends in ends:
            copies = _Copies(rank_ends, int(sizes[rank_ends.rank, SCRATCH]))
            streams_by_rank.append([list(copies.stage_puts(_split_folds(steps))) for steps in steps_of(rank_ends.rank)])
            sizes[rank_ends.rank, SCRATCH] = copies.end
        chunks_per_step = [
            find_chunks_per_step(rank_streams[stream] for rank_streams in streams_by_rank)
            for stream in range(len(streams_by_rank[0]))
        ]
        streams_by_rank = [
            [cut_steps(steps, chunks) for steps, chunks in zip(rank_streams, chunks_per_step, strict=True)]
            for rank_streams in streams_by_rank
        ]
        # 2. Cut chunks, so that each stream has several blocks (the plan then has at most MOST_GROUPED operations); cut
        # scratch into slots, of one unit each.
        operations = sum(len(steps) for rank_streams in streams_by_rank for steps in rank_streams)
        busy_streams = max(sum(map(bool, rank_streams)) for rank_streams in streams_by_rank)
        splits = max(1, min(blocks // max(busy_streams, 1), MOST_GROUPED // max(operations, 1)))
        # the next power of two, so that slots divide scratch evenly
        slots = 2 ** (SPARE * splits * int(sizes[:, SCRATCH].max()) - 1).bit_length()
        slots = max(slots, SHARED_SCRATCH // MOST_UNIT)
        # rounded up; still the slots in use fit: they begin in the middle, and are at most 1 / SPARE of all
        unit = -(-SHARED_SCRATCH // slots // alignment) * alignment
        if unit < LEAST_UNIT:
            raise Unsupported(f"{BACK_END}: {slots // SPARE} slots of scratch are too many to stage data through")
        try:
            gpus = [
                _loop(rank_ends, rank_streams, chunks_per_step, splits, begin=slots // 2, unit=unit)
                for rank_ends, rank_streams in zip(ends, streams_by_rank, strict=True)
            ]
        except Unsupported as error:
            reason = str(error)
            continue
        sizes *= splits  # in the smaller chunks
        sizes[:, SCRATCH] = slots
        # the layout's unit: elements in a block of weight 1
        return Staged(replace(layout, unit=layout.unit * splits, sizes=sizes), gpus, unit)
    raise Unsupported(f"{BACK_END}: cannot stage data through scratch: {reason}")


def _is_scratch(place: Place) -> bool:
    buffer, _ = place
    return buffer == SCRATCH


def _split_folds(steps: list[StreamStep]) -> Iterator[StreamStep]:
    """Yield the same steps, divided: each sum has at most one operand in scratch, the first, and results are put by
    a separate step."""
    for step in steps:
        staged = [place for place in step.operands if _is_scratch(place)]
        if step.kind != FOLD or (len(step.operands) == 1 and not step.moves):
            yield step
            continue
        if len(staged) > 1 and _is_scratch(step.into):
            raise Unsupported(f"{BACK_END}: cannot stage data through scratch: sums of received data stay there, too")
        operands = [place for place in step.operands if not _is_scratch(place)]
        yield step._replace(operands=(*staged[:1], *operands), moves=())
        for place in staged[1:]:
            yield StreamStep(SYNC)
            yield step._replace(operands=(place, step.into), moves=())
        if step.moves:
            yield StreamStep(SYNC)
            yield StreamStep(PUT, moves=step.moves)


class _Copies:
    """Make a rank copy what it sends to other hosts to scratch, from chunk `end` on."""

    def __init__(self, ends: Ends, end: int) -> None:
        self.ends, self.end = ends, end

    def stage_puts(self, steps: Iterator[StreamStep]) -> Iterator[StreamStep]:
        """Yield the same steps; what ports send is copied to scratch first."""
        for step in steps:
            moves = step.moves if step.kind == PUT else ()
            far = [move for move in moves if self.ends.far(self.ends.rank, move.peer) and not _is_scratch(move.source)]
            copied: dict[tuple[Place, int], Place] = {}
            for source, size in dict.fromkeys((move.source, move.size) for move in far):
                copied[source, size] = place = (SCRATCH, self.end)
                self.end += size
                # no sync after it: `gpu_of` defers puts by ports to their signal, and a turn has a sync before that
                yield StreamStep(FOLD, into=place, operands=(source,), size=size)
            staged = [m._replace(source=copied[m.source, m.size]) if m in far else m for m in moves]
            yield step._replace(moves=tuple(staged)) if far else step


def _loop(
    ends: Ends, streams: list[list[StreamStep]], chunks_per_step: list[int], splits: int, begin: int, unit: int
) -> GpuText:
    """Return the blocks of a rank: `splits` for each stream, each a loop over its chunks.

    `begin`: the first slot. `chunks_per_step`: by stream. Each stream must fit into one block, as a loop cannot go on
    in another block.
    """
    shifted = [
        [_take_part(step, chunks, splits, split, begin) for step in steps]
        for steps, chunks in zip(streams, chunks_per_step, strict=True)
        for split in range(splits)
    ]
    gpu = gpu_of(ends, shifted)
    if len(gpu.blocks) > MOST_BLOCKS or gpu.chaining.semaphores or gpu.chaining.barriers:
        raise Unsupported(f"rank {ends.rank} has too many steps for one thread block each; take a planner with fewer")
    chunks_of = [chunks for steps, chunks in zip(streams, chunks_per_step, strict=True) if steps for _ in range(splits)]
    for block, chunks in zip(gpu.blocks, chunks_of, strict=True):
        # NOP is a sync of the block's threads: it ends each turn
        inner = block.operations if block.operations[-1] == NOP else [*block.operations, NOP]
        context = f'{{"unit_size":{unit},"num_chunks":{chunks}}}'
        block.operations = [f'{{"name":"pipeline","iter_context":{context},"ops":[{",".join(inner)}]}}']
    return gpu


def _take_part(step: StreamStep, chunks: int, splits: int, split: int, begin: int) -> StreamStep:
    """Return a step on `chunks` chunks as a step on split number `split` of them, of `splits`."""

    def shift(place: Place) -> Place:
        # The data of a step are `chunks` chunks, now cut into chunks * splits: the k-th `chunks` of these for split k.
        buffer, first = place
        return buffer, first * splits + split * chunks + (begin if buffer == SCRATCH else 0)

    moves = tuple(StreamMove(move.peer, shift(move.source), shift(move.target), move.size) for move in step.moves)
    return step._replace(moves=moves, into=shift(step.into), operands=tuple(map(shift, step.operands)))
