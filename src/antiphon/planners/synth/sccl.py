"""SCCL: synthesize Pareto-optimal k-synchronous algorithms, with proofs (Cai et al., PPoPP 2021).

A k-synchronous algorithm divides each rank's data into C chunks and works in S steps. Step s lasts r_s rounds; in one
round every link carries as many chunks as its bandwidth allows. With R = r_1 + ... + r_S it costs

    S * alpha + (R / C) * bytes * beta        and R <= S + k bounds how uneven the steps may be.

Fewer steps are better for small messages, a smaller R/C for large ones, so the answer is a Pareto frontier of points
(C, S, R), not one schedule. This planner yields that frontier, fewest steps first. Each point carries a certificate:
a lower bound on R/C for its S (a dual of a linear program), and refutations of the better candidates.

Example: allgather on the DGX-1. S = 2 is the diameter; its best point is C = 2, R = 3 (R/C = 3/2). S = 3 reaches
C = 6, R = 7, and 7/6 is the bandwidth bound, so the frontier ends there. NCCL's ring also has R/C = 7/6, in 7 steps.

`work.find_schedules` goes along the frontier, one number of steps after another; `one_point.one_point` decides a single
(C, S, R). The paper's section numbers are quoted where the code follows it; docs/planners/sccl.md lists the
differences.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

from antiphon.core.bounds import bound
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.errors import Infeasible, Invalid, NotFound, TimedOut
from antiphon.isolate import cpu_clock
from antiphon.options import Option
from antiphon.planners.synth.cache import cache_for_option
from antiphon.planners.synth.effort_budget import UNIT, EffortBudget
from antiphon.planners.synth.frontier import Limits
from antiphon.planners.synth.one_point import one_point
from antiphon.planners.synth.problem import Problem
from antiphon.planners.synth.work import find_schedules

GIB = 2**30
USUAL_EFFORT = 60.0  # units, each about a CPU second; a limit is needed, as some frontiers are infinite


Chunks = Annotated[int | None, Option("C: only the point of chunks, steps and rounds, given together", minimum=1)]
Steps = Annotated[int | None, Option("S of that point; alone: the maximum number of steps", minimum=1)]
Rounds = Annotated[int | None, Option("R of that point", minimum=1)]
ExtraRounds = Annotated[int | None, Option("only R <= S + k (default: any)", minimum=0)]
Memory = Annotated[float | None, Option("maximum memory of a solver", unit="GiB", minimum=0)]
Workers = Annotated[int | None, Option("candidates decided in parallel (default: processors, up to 4)", minimum=1)]
Cache = Annotated[bool | str, Option("whether answers are read from and written to disk")]


def sccl(
    request: Request,
    *,
    chunks: Chunks = None,
    steps: Steps = None,
    rounds: Rounds = None,
    k: ExtraRounds = None,
    memory: Memory = None,
    workers: Workers = None,
    cache: Cache = True,
) -> Iterator[Schedule]:
    """Yield the frontier, fewest steps first; with `chunks`, `steps` and `rounds` only that point.

    For a single point, or if no point has so few steps: Infeasible with the lower bound that it violates, or NotFound
    with what was searched if that decided nothing.

    `workers` and `cache` do not change the result. Every schedule carries the certificate of its optimality. If the
    request's effort (default 60) runs out before all candidates were tried, EffortSpent, a kind of TimedOut, is raised
    after the points found so far; if the CPU budget runs out, TimedOut itself.
    """
    topology, collective = request.topology, request.collective
    effort = USUAL_EFFORT if request.effort is None else request.effort
    budget = EffortBudget(int(effort * UNIT), math.inf if request.budget is None else cpu_clock() + request.budget)
    memory_bytes = None if memory is None else int(memory * GIB)
    problem = Problem(topology, collective, request.seed, budget, memory_bytes, request.tell, cache_for_option(cache))
    options = {"chunks": chunks, "steps": steps, "rounds": rounds, "k": k}
    provenance = {
        "planner": "sccl",
        "options": {key: v for key, v in options.items() if v is not None},
        "seed": request.seed,
    }
    provenance |= {} if request.effort is None else {"effort": effort}
    # a single point was requested
    if chunks is not None or rounds is not None:
        if chunks is None or steps is None or rounds is None:
            raise Invalid("planner sccl: give chunks, steps and rounds together, or steps alone (the most steps)")
        schedule = one_point(problem, chunks, steps, rounds)
        yield replace(schedule, provenance={**provenance, **schedule.provenance})
        return
    # the whole frontier; remember whether the budget ended before its first point, which is an error
    any_point = False
    try:
        for schedule in find_schedules(problem, Limits(k=k, steps=steps, memory=memory_bytes, workers=workers)):
            any_point = True
            yield replace(schedule, provenance={**provenance, **schedule.provenance})
    except TimedOut as error:
        if any_point:
            raise type(error)(f"{error}; points not found yet may be better") from None
        raise type(error)(
            f"planner sccl found nothing for {collective.kind} on {topology.name}: {error}, or "
            "plan for a smaller machine"
        ) from None
    if not any_point:
        raise _no_point(request, steps, k)


def _no_point(request: Request, steps: int | None, k: int | None) -> Infeasible | NotFound:
    """Return the error of a complete search without any point within its limits, None if there are none."""
    name = f"{request.collective.kind} on {request.topology.name}"
    bounds = bound(request.topology, request.collective)
    if steps is not None and steps < bounds.latency_steps and bounds.latency_witness is not None:
        description = bounds.latency_witness.describe(request.topology)  # "distance: rank 0 is 3 steps from ..."
        _, _, why = description.partition(": ")
        return Infeasible(f"no algorithm for {name} has S = {steps} or less: {why}")
    conditions = [f"at most {steps} steps"] if steps is not None else []
    conditions += [f"R <= S + {k}"] if k is not None else []
    limited = f" with {' and '.join(conditions)}" if conditions else ""
    return NotFound(f"planner sccl found no algorithm for {name}{limited}")
