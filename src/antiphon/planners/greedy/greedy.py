"""The planner `greedy`: in every step every link brings something that is missing (docs/planners/index.md#greedy)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from antiphon.core.bounds import bound
from antiphon.core.collective import COMBINING, Collective
from antiphon.core.columns import Longs, narrow
from antiphon.core.loads import throughput
from antiphon.core.request import Request
from antiphon.core.reshape import reverse
from antiphon.core.routes import NO_ROUTES
from antiphon.core.schedule import COPY, Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import compose, dual, invert
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.planners.greedy.hops import Hops
from antiphon.planners.greedy.search import MOST_ROWS, PACES, Made, Search
from antiphon.planners.greedy.spread import Run, Task
from antiphon.planners.shared.reach import suggest_planners

MOST_BOUND = 256  # ranks up to which the bound is told, too


def greedy(request: Request, *, parts: int | None = None, pace: float | None = None) -> Iterator[Schedule]:
    """Yields the fastest of some runs for `nbytes`; where none is given, one for every pace.

    `parts`: into how many every (heaviest) block is cut. `pace`: how steps grow and shrink again, as a share of the
    time that is over and of the time that is left (0: one part at a time on the narrowest links that matter).
    """
    topology, collective = request.topology, request.collective
    if parts is not None and (isinstance(parts, bool) or not isinstance(parts, int) or parts < 1):
        raise Invalid(f"option parts: expected a whole number of 1 or more, got {quote(parts)}")
    if pace is not None and (isinstance(pace, bool) or not isinstance(pace, int | float) or not 0 <= pace <= 1):
        raise Invalid(f"option pace: expected a share from 0 to 1, got {quote(pace)}")
    if collective.kind == "allreduce":
        halves = [Collective(kind, collective.ranks, collective.members) for kind in ("reducescatter", "allgather")]
        first, second = (list(_planned(replace(request, collective=half), parts, pace)) for half in halves)
        planned = [(compose(a, b), [*of, *other]) for (a, of), (b, other) in zip(first, second, strict=False)]
    else:
        planned = list(_planned(request, parts, pace))
    limits = bound(topology, collective).without_help if topology.ranks <= MOST_BOUND else None
    for schedule, runs in planned:
        rate = throughput(schedule, topology)
        findings: dict[str, Any] = {
            "rate": None if rate is None else str(rate / topology.unit),
            "parts": [run.parts for run in runs],
            "paces": [run.pace for run in runs],
        }
        options = {"parts": runs[0].parts, "pace": runs[0].pace}
        stated = {} if limits is None else {"bound": limits.stated()}
        made_by = {"planner": "greedy", "options": options, "seed": request.seed, "found": findings, **stated}
        yield replace(schedule, provenance=made_by)


def _planned(request: Request, parts: int | None, pace: float | None) -> Iterator[tuple[Schedule, list[Made]]]:
    topology, collective = request.topology, request.collective
    if collective.kind not in COMBINING:
        yield from _spread(topology, collective, request, parts, pace)
        return
    turned = dual(collective)[0]
    for schedule, runs in _spread(reverse(topology), turned, request, parts, pace):
        yield replace(invert(schedule), collective=collective), runs


def _spread(
    topology: Topology, collective: Collective, request: Request, parts: int | None, pace: float | None
) -> Iterator[tuple[Schedule, list[Made]]]:
    search = Search(topology, collective, request.seed, request.effort)
    if search.rows(parts or 1) > MOST_ROWS:
        raise Unsupported(
            f"planner greedy: {collective.kind} on {topology.ranks} ranks asks for more than {MOST_ROWS} transfers; "
            + suggest_planners(topology, collective, "ring", "direct", "relay", "compose")
        )
    for run in _runs(search, request, parts, pace):
        yield _laid(collective, search.hops, search.task(run.parts)[1], run), [run]


def _runs(search: Search, request: Request, parts: int | None, pace: float | None) -> list[Made]:
    runs: list[Made] = []
    for nbytes in request.sizes:
        if nbytes is not None:
            runs.append(search.best(nbytes, parts, pace))
            continue
        if parts is not None and pace is not None:
            runs.append(search.fewest(parts, pace))
            continue
        paces = PACES if pace is None else (pace,)
        try:
            runs += [search.made(parts or search.begin(2**30), each) for each in paces]
        except Unsupported:  # in more parts than the size asks for it may take too long
            if not runs:
                raise
    return runs


def _laid(collective: Collective, hops: Hops, task: Task, result: Made) -> Schedule:
    run = result.run if task.allowed is None or task.ways is not None else _needed(result.run, hops, task)
    direct = bool((np.diff(hops.routes.ptr) == 1).all()) and _single(hops)
    hop = narrow(run.hop)
    return Schedule(
        collective, result.chunks, narrow(run.step), narrow(run.chunk), narrow(hops.src[hop]), narrow(hops.dst[hop]),
        np.full(len(hop), COPY, np.uint8),
        route=None if direct else hop, routes=NO_ROUTES if direct else hops.routes,
    )  # fmt: skip


def _single(hops: Hops) -> bool:
    """Whether no two hops join the same ranks."""
    pair = np.stack([hops.src, hops.dst], axis=1)
    return len(np.unique(pair, axis=0)) == len(pair)


def _needed(run: Run, hops: Hops, task: Task) -> Run:
    """Without what is brought to ranks that neither want it nor pass it on."""
    lacking = task.want & ~task.have
    needed = np.zeros((task.ranks, task.chunks), np.bool_)
    columns = np.arange(task.chunks)
    needed[:] = (lacking[:, columns >> 6] >> (columns & 63).astype(np.uint64)) & np.uint64(1) != 0
    used = np.zeros(len(run.step), np.bool_)
    order = np.argsort(run.step, kind="stable")
    ends = np.flatnonzero(np.diff(run.step[order])) + 1
    for rows in np.split(order, ends)[::-1]:
        good = rows[needed[hops.dst[run.hop[rows]], run.chunk[rows]]]
        used[good] = True
        needed[hops.src[run.hop[good]], run.chunk[good]] = True
    at: Longs = np.flatnonzero(used)
    return Run(run.step[at], run.hop[at], run.chunk[at], run.stuck)
