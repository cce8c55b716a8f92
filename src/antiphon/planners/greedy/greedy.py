"""The planner `greedy`: in every step every link brings data that are missing (docs/planners/index.md#greedy).

A heuristic for large irregular machines, where linear programs and exact searches are too slow: simulate how chunks
spread. Blocks are cut into chunks; in each step every link takes one chunk (or several) that its source has and its
destination lacks, preferring chunks that few ranks have ("rarest first", as in BitTorrent). A step ends when links are
full; data that arrived in it may be forwarded in the next. Random choices make it unlikely that neighbours bring the
same chunk.

    spread.py   collectives that copy (broadcast, allgather): any rank that has a chunk may forward it
    moves.py    each chunk has one source and one destination (scatter, alltoall): fixed routes, farthest first
    search.py   several runs as long as the effort lasts, with different numbers of chunks per block (parts), lengths of
                steps (pace) and random seeds; the fastest is used

A collective that reduces is planned as its dual (allgather for reducescatter) on the reversed machine, and that plan is
run backwards; allreduce is a reducescatter and an allgather.

Example: broadcast of 3 chunks from rank 0 along 0 - 1 - 2: step 1 brings chunk a to 1; step 2 brings b to 1 and a to 2;
step 3 brings c to 1 and b to 2; step 4 brings c to 2: a pipeline, found without planning it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

import numpy as np

from antiphon.core.bounds import bound
from antiphon.core.collective import COMBINING, Collective
from antiphon.core.columns import WORD_BITS, Longs, as_int32
from antiphon.core.loads import throughput
from antiphon.core.request import Request
from antiphon.core.reshape import reverse
from antiphon.core.routes import NO_ROUTES
from antiphon.core.schedule import COPY, Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import compose, dual, invert
from antiphon.errors import Unsupported
from antiphon.options import Option
from antiphon.planners.greedy.hops import Hops
from antiphon.planners.greedy.search import GREEDY, PACES, GreedySearch, PricedRun
from antiphon.planners.greedy.spread import SimulatedTransfers, SpreadTask
from antiphon.planners.shared.reach import suggest_planners

MAX_RANKS_WITH_BOUND = 256  # on more ranks no lower bound is computed and stated in the plan


# Heaviest: lighter blocks have half as many chunks, a quarter, ... (`tasks.chunks_of`).
Parts = Annotated[int | None, Option("chunks of every (heaviest) block (default: by size)", minimum=1)]
# What grows and shrinks is the length of a step (`spread.Pace`); several: all of `search.PACES` are tried.
Pace = Annotated[
    float | None,
    Option(
        "how steps grow and shrink again, as a share of the time so far and of the time remaining; 0: one chunk at a "
        "time on the narrowest links that matter (default: several)",
        minimum=0, maximum=1,
    ),
]  # fmt: skip


def greedy(request: Request, *, parts: Parts = None, pace: Pace = None) -> Iterator[Schedule]:
    """Yield the fastest of several runs for `nbytes`; without a size, yield a run for every pace."""
    topology, collective = request.topology, request.collective
    if collective.kind == "allreduce":
        halves = [Collective(kind, collective.ranks, collective.members) for kind in ("reducescatter", "allgather")]
        first, second = (list(_plan_collective(replace(request, collective=half), parts, pace)) for half in halves)
        # one pair per size or pace; a half may have run fewer paces than the other
        planned = [
            (compose(reducescatter, allgather), [*first_runs, *second_runs])
            for (reducescatter, first_runs), (allgather, second_runs) in zip(first, second, strict=False)
        ]
    else:
        planned = list(_plan_collective(request, parts, pace))
    # greedy uses no switches that multicast or reduce (`without_help`)
    lower_bound = bound(topology, collective).without_help if topology.ranks <= MAX_RANKS_WITH_BOUND else None
    for schedule, runs in planned:
        rate = throughput(schedule, topology)
        findings: dict[str, Any] = {
            "rate": None if rate is None else str(rate / topology.unit),
            "parts": [run.part_count for run in runs],
            "paces": [run.pace for run in runs],
        }
        # where the halves of an allreduce differ, an option is left out: only a search for each half finds both
        chosen: dict[str, set[Any]] = {"parts": {run.part_count for run in runs}, "pace": {run.pace for run in runs}}
        options = {name: values.pop() for name, values in chosen.items() if len(values) == 1}
        stated_bound = {} if lower_bound is None else {"bound": lower_bound.plan_json()}
        made_by = {"planner": "greedy", "options": options, "seed": request.seed, "found": findings, **stated_bound}
        yield replace(schedule, provenance=made_by)


def _plan_collective(
    request: Request, part_count: int | None, pace: float | None
) -> Iterator[tuple[Schedule, list[PricedRun]]]:
    """Plan a collective; one that reduces is planned as its dual on the reversed machine, run backwards."""
    topology, collective = request.topology, request.collective
    if collective.kind not in COMBINING:
        yield from _plan_spreading(topology, collective, request, part_count, pace)
        return
    dual_collective = dual(collective).collective
    for schedule, runs in _plan_spreading(reverse(topology), dual_collective, request, part_count, pace):
        yield replace(invert(schedule), collective=collective), runs


def _plan_spreading(
    topology: Topology, collective: Collective, request: Request, part_count: int | None, pace: float | None
) -> Iterator[tuple[Schedule, list[PricedRun]]]:
    """Plan a collective that only copies: simulate it, and yield the schedule of each run with the run."""
    search = GreedySearch(topology, collective, request.seed, request.effort)
    if search.count_rows(part_count or 1) > GREEDY.max_rows:
        raise Unsupported(
            f"planner greedy: {collective.kind} on {topology.ranks} ranks needs over {GREEDY.max_rows} transfers; "
            + suggest_planners(topology, collective, "ring", "direct", "relay", "compose")
        )
    for run in _choose_runs(search, request, part_count, pace):
        _, task = search.task_for(run.part_count)
        yield _run_to_schedule(collective, search.hops, task, run), [run]


def _choose_runs(search: GreedySearch, request: Request, part_count: int | None, pace: float | None) -> list[PricedRun]:
    """Return the run to use for each requested size; for no size (None), one run per pace."""
    runs: list[PricedRun] = []
    for nbytes in request.sizes:
        if nbytes is not None:
            runs.append(search.find_fastest(nbytes, part_count, pace))
            continue
        if part_count is not None and pace is not None:
            runs.append(search.find_shortest(part_count, pace))
            continue
        paces = PACES if pace is None else (pace,)
        try:
            # without a size, plan for 1 GiB; its many parts may take too long
            runs += [search.run_once(part_count or search.first_part_count(2**30), run_pace) for run_pace in paces]
        except Unsupported:
            if not runs:
                raise
    return runs


def _run_to_schedule(collective: Collective, hops: Hops, task: SpreadTask, result: PricedRun) -> Schedule:
    """Return the schedule of a run; hops become routes where ends do not determine them."""
    # Only a restricted simulation without fixed routes gives chunks to ranks that may turn out not to need them.
    run = result.run if task.allowed is None or task.routes is not None else _drop_useless_rows(result.run, hops, task)
    is_direct = bool((np.diff(hops.routes.ptr) == 1).all()) and _are_pairs_distinct(hops)
    hop = as_int32(run.hop)
    return Schedule(
        collective, result.chunks,
        as_int32(run.step), as_int32(run.chunk), as_int32(hops.src[hop]), as_int32(hops.dst[hop]),
        np.full(len(hop), COPY, np.uint8),
        route=None if is_direct else hop, routes=NO_ROUTES if is_direct else hops.routes,
    )  # fmt: skip


def _are_pairs_distinct(hops: Hops) -> bool:
    """Return whether no two hops join the same ranks."""
    pair = np.stack([hops.src, hops.dst], axis=1)
    return len(np.unique(pair, axis=0)) == len(pair)


def _drop_useless_rows(run: SimulatedTransfers, hops: Hops, task: SpreadTask) -> SimulatedTransfers:
    """Remove transfers to ranks that neither need the chunk nor forward it."""
    lacking = task.want & ~task.have
    needed = np.zeros((task.ranks, task.chunks), np.bool_)
    # `lacking` has a bit per chunk: unpack it to ranks x chunks
    word, bit = np.divmod(np.arange(task.chunks), WORD_BITS)
    needed[:] = (lacking[:, word] >> bit.astype(np.uint64)) & np.uint64(1) != 0
    is_used = np.zeros(len(run.step), np.bool_)
    order = np.argsort(run.step, kind="stable")
    ends = np.flatnonzero(np.diff(run.step[order])) + 1
    # backwards in time: a row is needed if its destination needs the chunk, and then so does its source
    for rows in np.split(order, ends)[::-1]:
        needed_rows = rows[needed[hops.dst[run.hop[rows]], run.chunk[rows]]]
        is_used[needed_rows] = True
        needed[hops.src[run.hop[needed_rows]], run.chunk[needed_rows]] = True
    used_rows: Longs = np.flatnonzero(is_used)
    return SimulatedTransfers(run.step[used_rows], run.hop[used_rows], run.chunk[used_rows], run.stuck)
