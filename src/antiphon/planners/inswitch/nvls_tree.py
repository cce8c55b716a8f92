"""The planner `nvls-tree`: an allreduce over several boxes, with switches that reduce inside or between them.

Input: an allreduce on several boxes. Output: schedules in three levels: (1) within each box a reducescatter by `nvls`
(or a ring, where that is faster or the switch cannot reduce); (2) for each i an allreduce among the i-th ranks of all
boxes (a lane), by `sharp`, a double binary tree or a ring, of two boxes also by direct exchange, one step less; (3)
within each box an allgather like (1). NVLS within and trees between is what NCCL calls NVLSTree.

On B boxes of m ranks with a network card each, every card carries 1/m of nbytes with SHARP, or 2 (B - 1) / B times that
with rings.

Example: 2 boxes of 8 GPUs: each GPU ends the reducescatter with 1/8 of the box's sum, exchanges it with its peer in the
other box, and the allgather spreads it.

Boxes of unequal sizes have as many lanes as the least common multiple of the sizes, so that every rank of a box is in
equally many. With 7 and 8 ranks, lane i of 56 joins rank i // 8 of the one and rank i // 7 of the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Annotated

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import Longs
from antiphon.core.joints import joints_of
from antiphon.core.loads import throughput
from antiphon.core.request import Request
from antiphon.core.routes import resolve
from antiphon.core.schedule import Schedule, cut
from antiphon.core.topology import Topology
from antiphon.core.transform import split
from antiphon.errors import Unsupported
from antiphon.options import Option
from antiphon.planners.classic.direct import direct
from antiphon.planners.classic.double_binary_tree import double_binary_tree
from antiphon.planners.inswitch.nvls import PiecesOrSeveral, nvls, piece_counts
from antiphon.planners.inswitch.schedule_builder import ScheduleBuilder
from antiphon.planners.inswitch.sharp import sharp
from antiphon.planners.rings.ring import ring
from antiphon.planners.shared.groups import ranks_by_host
from antiphon.planners.shared.pipelining import PipelineOptions, PipelinePlans, stage_plans
from antiphon.planners.shared.rows import UnevenSteps

MAX_LANES = 4096  # each is a schedule of its own
Planner = Callable[[Request], Iterator[Schedule]]
# planners within boxes and between them, by the names of the options' values
WITHIN: Mapping[str, Planner] = {"nvls": partial(nvls, pieces=1), "ring": partial(ring, directions=1, pieces=1)}
BETWEEN: Mapping[str, Planner] = {
    "sharp": sharp,
    "direct": direct,
    "tree": partial(double_binary_tree, pieces=1),
    "ring": partial(ring, directions=1, pieces=1),
}


Within = Annotated[str | None, Option("planner within boxes (default: the faster)", choices=tuple(WITHIN))]
Between = Annotated[
    str | None, Option("how boxes exchange (default: every kind that may be best)", choices=tuple(BETWEEN))
]


def nvls_tree(
    request: Request, *, within: Within = None, between: Between = None, pieces: PiecesOrSeveral = None,
    steps: UnevenSteps = None,
) -> Iterator[Schedule]:  # fmt: skip
    """Yield schedules for every planner between boxes that the machine allows: one per number of pieces, and one in
    uneven slices per message size. `steps`: the number of steps of the pipeline in uneven slices; default: the best for
    each size.
    """
    # sizes for which uneven slices are chosen; None among those of the request stands for any size
    sizes = tuple(size for size in request.sizes if size is not None)
    topology, collective = request.topology, request.collective
    boxes = _list_boxes(topology, collective)
    lane_ranks = _list_lanes(boxes)
    inner_name, reducescatters, allgathers = _plan_inner(request, boxes, within)
    refused: list[str] = []
    is_feasible = False
    names = [name for name in BETWEEN if name != "direct" or len(boxes) == 2]
    for name in names if between is None else (between,):
        try:
            # in boxes of unequal sizes several lanes may have the same ranks
            schedule_of_lane = {
                lane: _plan_group(request, BETWEEN[name], "allreduce", lane) for lane in dict.fromkeys(lane_ranks)
            }
        except Unsupported as error:
            if between is not None:
                raise
            refused.append(str(error))
            continue
        lanes = [schedule_of_lane[lane] for lane in lane_ranks]
        # without any joint (reduction or multicast by a switch) other planners make the same plan
        if all(joints_of(group_schedule) is None for group_schedule in (*reducescatters, *lanes)):
            continue
        is_feasible = True
        # a box's switch that serves few joints at once cannot work on several pieces at the same time
        is_limited = any(_joints_at_once(topology, group_schedule) for group_schedule in (*reducescatters, *allgathers))
        for depth in piece_counts(pieces, pipelined=not is_limited) if steps is None else ():
            schedule = _stack_levels(topology, collective, (reducescatters, lanes, allgathers), depth)
            options = {"within": inner_name, "between": name, "pieces": depth}
            yield replace(schedule, provenance={"planner": "nvls-tree", "options": options})
        # slices of unequal sizes fill the levels faster
        if not is_limited and pieces is None and (sizes or steps is not None):
            unpipelined = PipelinePlans(
                [_stack_levels(topology, collective, (reducescatters, lanes, allgathers), pieces=1)], topology
            )
            for staged in stage_plans(
                unpipelined,
                PipelineOptions("nvls-tree", pieces=None, steps=steps, sizes=sizes or (None,), profile=request.profile),
            ):
                options = {"within": inner_name, "between": name, **staged.options}
                yield replace(staged.schedule, provenance={"planner": "nvls-tree", "options": options})
    if not is_feasible:
        raise Unsupported(
            f"planner nvls-tree: switches of {topology.name} multicast and reduce neither within boxes nor "
            "between them; use hierarchical-ring or trees" + "".join(f" ({why})" for why in refused[:1])
        )


def _list_boxes(topology: Topology, collective: Collective) -> list[list[int]]:
    """Return the members by box; raises Unsupported unless there are several boxes of two ranks or more."""
    boxes = ranks_by_host(topology, collective.members)
    sizes = sorted({len(box) for box in boxes})
    if len(boxes) < 2 or sizes[0] < 2 or math.lcm(*sizes) > MAX_LANES:
        have = f"{len(boxes)}, of {', '.join(map(str, sizes))} ranks"
        raise Unsupported(
            "planner nvls-tree: needs two boxes or more, of two ranks or more, whose sizes have a common multiple of "
            f"{MAX_LANES} or less; boxes by the places of {topology.name}: {have}; use nvls or sharp for one level, "
            "else trees, relay or hierarchical-ring"
        )
    return [sorted(box) for box in boxes]


def _list_lanes(boxes: list[list[int]]) -> list[tuple[int, ...]]:
    """Return the ranks of every lane: one of each box, those of a box in equally many lanes, in order."""
    count = math.lcm(*map(len, boxes))
    return [tuple(box[lane * len(box) // count] for box in boxes) for lane in range(count)]


def _plan_group(request: Request, planner: Planner, kind: str, members: Sequence[int]) -> Schedule:
    """Return a planner's first schedule of a collective among some ranks."""
    group = Collective(kind, request.topology.ranks, tuple(members))
    try:
        return next(planner(replace(request, collective=group)))
    except Unsupported as error:
        why = str(error).partition(";")[0]
        raise Unsupported(f"planner nvls-tree: {kind} of {len(group.members)}: {why}; use trees or relay") from None


def _plan_inner(
    request: Request, boxes: list[list[int]], within: str | None
) -> tuple[str, list[Schedule], list[Schedule]]:
    """Return the name of the planner within boxes, its reducescatters (a schedule per box), and its allgathers."""
    name = within or _choose_inner(request, boxes[0])
    reducescatters, allgathers = (
        [_plan_group(request, WITHIN[name], kind, box) for box in boxes] for kind in ("reducescatter", "allgather")
    )
    return name, reducescatters, allgathers


def _choose_inner(request: Request, box: list[int]) -> str:
    """Return the name of the planner with the fastest allreduce of large data within a box."""
    rates: dict[str, Fraction] = {}
    for name, planner in WITHIN.items():
        with suppress(Unsupported):
            rates[name] = throughput(_plan_group(request, planner, "allreduce", box), request.topology) or Fraction(0)
    return max(rates, key=lambda name: rates[name], default="ring")


def _stack_levels(
    topology: Topology, collective: Collective, levels: tuple[list[Schedule], ...], pieces: int
) -> Schedule:  # fmt: skip
    """Return the schedule of all three levels, one after the other, in `pieces` slices.

    Lanes that together exceed the joints of a switch take turns. Chunk k of the data of lane i is chunk i * cuts + k.
    A block of a box has the data of as many lanes as a rank of the box is in.
    """
    # cut the chunks of all levels to one common size; chunks_of_blocks: by level and schedule, chunks of a block
    cuts = math.lcm(*(_chunks_per_block(schedule) for level in levels for schedule in level))
    _, lanes_level, _ = levels
    lane_count = len(lanes_level)
    chunks_of_blocks = [
        [cuts if level is lanes_level else cuts * lane_count // schedule.collective.blocks for schedule in level]
        for level in levels
    ]
    scatter_chunks, _, gather_chunks = chunks_of_blocks
    reducescatters, lanes, allgathers = (
        [
            split(schedule, chunks // _chunks_per_block(schedule))
            for schedule, chunks in zip(level, chunks_of, strict=True)
        ]
        for level, chunks_of in zip(levels, chunks_of_blocks, strict=True)
    )
    scatter_steps, lane_steps = (max(schedule.steps for schedule in level) for level in (reducescatters, lanes))
    # Lanes that a switch can serve together run at the same time; the others wait for their turn.
    joints_at_once = min((count for lane in lanes if (count := _joints_at_once(topology, lane))), default=0)
    lanes_at_once = (
        max(joints_at_once // max(_joints_per_step(lane) for lane in lanes), 1) if joints_at_once else len(lanes)
    )
    # by chunk, the steps that its lane waits: a lane in slices keeps the switch busy for lane_steps + pieces - 1 steps
    delay = np.repeat(np.arange(len(lanes)) // lanes_at_once * (lane_steps + pieces - 1), cuts)
    builder = ScheduleBuilder()
    for schedule, chunks in zip(reducescatters, scatter_chunks, strict=True):
        builder.add_schedule(schedule, _chunk_numbers(schedule, chunks), np.zeros(len(schedule.chunks), np.int64))
    for number, lane in enumerate(lanes):
        chunk = _chunk_numbers(lane, cuts) + number * cuts
        builder.add_schedule(lane, chunk, scatter_steps + delay[chunk])
    for schedule, chunks in zip(allgathers, gather_chunks, strict=True):
        chunk = _chunk_numbers(schedule, chunks)
        builder.add_schedule(schedule, chunk, scatter_steps + lane_steps + delay[chunk])
    return replace(builder.to_schedule(collective, cut(collective, lane_count * cuts)), pieces=pieces)


def _chunks_per_block(schedule: Schedule) -> int:
    """Return the number of equal chunks of every block; raises Unsupported if chunks are unequal."""
    chunks = schedule.chunks
    if not chunks.uniform or chunks.denominator % int(chunks.share[0]):
        raise Unsupported("planner nvls-tree: the ways within boxes or among them cut parts unevenly; choose others")
    return chunks.denominator // int(chunks.share[0])


def _chunk_numbers(schedule: Schedule, cuts: int) -> Longs:
    """Return, by chunk, its number if every block has `cuts` equal chunks."""
    chunks = schedule.chunks
    numbers: Longs = chunks.block.astype(np.int64) * cuts + chunks.offset * cuts // chunks.denominator
    return numbers


def _joints_at_once(topology: Topology, schedule: Schedule) -> int:
    """Return the fewest joints that a switch on the routes of joints serves at once; 0 if none states a limit."""
    joints = joints_of(schedule)
    if joints is None:
        return 0
    resolved = resolve(topology, schedule.src, schedule.dst, schedule.route, schedule.routes)
    used_routes = np.unique(resolved.route[joints.row])
    links = np.concatenate(
        [resolved.table.links[resolved.table.ptr[i] : resolved.table.ptr[i + 1]] for i in used_routes.tolist()]
    )
    stated = (topology.ability(node).at_once for node in np.unique(topology.link_dst[links]).tolist())
    return min((count for count in stated if count), default=0)


def _joints_per_step(schedule: Schedule) -> int:
    """Return the most joints of a step."""
    joints = joints_of(schedule)
    return 1 if joints is None else int(np.bincount(schedule.step[joints.first]).max())
