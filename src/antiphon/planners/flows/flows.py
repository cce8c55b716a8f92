"""The planner `flows`: move data along the paths of an optimal flow (docs/planners/index.md#flows).

Input: a scatter, gather or alltoall. Output: schedules that send each block along one or several paths, pipelined for
each message size, with the lower bound. These collectives neither copy nor combine data, so with fine slices they are
multicommodity flows: the least time is the optimum of a linear program over the loads of links, and no cleverer
schedule exists (core.bounds). Stages:

    1. `demands_of`       list how much each sender sends to whom (or each receiver receives from whom)
    2. `_find_flow`       find the flow with the fewest hops among the fastest (linear_program.py; descent.py if the
                          program is too large)
    3. `paths_of`         decompose the flow into paths
    4. `shares_of`        round the paths' shares of their blocks to a small common denominator
    5. `schedule_paths`   make a schedule: a chunk per path, a transfer per hop
    6. `stage_plans`      pipeline the schedule (shared/pipelining.py)

Example: alltoall on a ring of 4 with links both ways. Blocks for neighbours go directly. Of a block for the
opposite rank, half goes each way. So a link carries 1 + 2 * 1/2 = 2 blocks, which is the bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from antiphon.core.bounds import bound
from antiphon.core.loads import throughput
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.planners.flows.demands import demands_of
from antiphon.planners.flows.descent import descend
from antiphon.planners.flows.linear_program import Flow, FlowProblem
from antiphon.planners.flows.path_schedule import schedule_paths
from antiphon.planners.flows.paths import paths_of, shares_of
from antiphon.planners.shared.pipelining import PipelineOptions, PipelinePlans, stage_plans
from antiphon.planners.shared.rows import PiecesOrBest, UnevenSteps

MAX_VARIABLES = 100_000  # of a linear program


def flows(request: Request, *, pieces: PiecesOrBest = None, steps: UnevenSteps = None) -> Iterator[Schedule]:
    """Yield schedules along the paths of the flow with the fewest hops among the fastest.

    `pieces`: number of equal slices. `steps`: number of steps for uneven parts. With neither, yield the fastest for
    each size; without a size, several.
    """
    topology, collective = request.topology, request.collective
    # stages 1 to 5: one unpipelined schedule for all sizes
    demands = demands_of(topology, collective, request.seed)
    rate_bound = bound(topology, collective)
    problem = FlowProblem(topology, demands)
    # the bound in the unit of `Flow.time`: weight of blocks over capacity
    time = rate_bound.inverse * collective.input_weight / topology.unit * topology.resources.scale
    flow = _find_flow(problem, float(time), bool(rate_bound.tight))
    paths = paths_of(problem, flow)
    shares = shares_of(problem, paths, flow.time)
    schedule = schedule_paths(topology, collective, paths, shares, demands.group, demands.blocks)
    rate, limit = throughput(schedule, topology), rate_bound.bytes_per_second
    report: dict[str, Any] = {
        "rate": None if rate is None else str(rate / topology.unit),
        "optimal": rate == limit,
        "paths": int((shares.counts > 0).sum()) * len(demands.group),
        "deepest": schedule.steps,  # hops of the longest path
        "denominator": schedule.chunks.denominator,
        "loss": 0.0 if rate is None or limit is None else float(1 - rate / limit),  # of the rate, by rounded shares
    }
    stage_request = PipelineOptions("flows", pieces, steps, request.sizes, request.profile)
    for staged_plan in stage_plans(PipelinePlans([schedule], topology), stage_request):
        made_by = {"planner": "flows", "options": staged_plan.options, "seed": request.seed}
        yield replace(staged_plan.schedule, provenance={**made_by, "found": report, "bound": rate_bound.plan_json()})


def _find_flow(problem: FlowProblem, time: float, tight: bool) -> Flow:
    """Return the flow with the fewest hops among the fastest, or an approximation if the problem is too large or fails.

    `time`: a lower bound on `Flow.time`. `tight`: whether some flow is known to attain it.
    """
    if not problem.demands:
        return Flow(np.zeros((0, problem.links)), time=0.0)
    if problem.size > MAX_VARIABLES:
        return descend(problem)
    flow = problem.solve_shortest(time) if tight else None
    if flow is None:
        fastest = problem.solve_fastest()
        flow = None if fastest is None else problem.solve_shortest(fastest.time) or fastest
    return flow or descend(problem)
