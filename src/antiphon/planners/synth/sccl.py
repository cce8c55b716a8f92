"""SCCL: synthesis of Pareto-optimal k-synchronous algorithms, with proofs (docs/planners/sccl.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.errors import Invalid, TimedOut
from antiphon.isolate import cpu_clock
from antiphon.planners.synth.cache import asked_for
from antiphon.planners.synth.frontier import Limits
from antiphon.planners.synth.one_point import one_point
from antiphon.planners.synth.purse import UNIT, Purse
from antiphon.planners.synth.work import Problem, points

GIB = 2**30
USUAL_EFFORT = 60.0  # some frontiers have no end


def sccl(
    request: Request,
    *,
    chunks: int | None = None,
    steps: int | None = None,
    rounds: int | None = None,
    k: int | None = None,
    memory: float | None = None,
    workers: int | None = None,
    cache: bool | str = True,
) -> Iterator[Schedule]:
    """Yields the frontier, fewest steps first; with `chunks`, `steps` and `rounds` just that point, or Infeasible with
    what forbids it in any form, or NotFound with what was searched.

    `steps` alone: the most steps. `k`: only R <= S + k (left out: any). `memory`: GiB that a solver may take.
    `workers`: how many candidates are decided side by side (left out: as many as processors, up to 4). `cache`: whether
    answers of earlier runs may serve, and this one's be kept (cache.py). The result does not depend on these two.
    Every schedule carries the certificate of its optimality. What was found with the request's effort (purse.py; 60 if
    none is given) is followed by EffortSpent where more was to be tried; by TimedOut where the budget ended it.
    """
    topology, collective = request.topology, request.collective
    effort = USUAL_EFFORT if request.effort is None else request.effort
    purse = Purse(int(effort * UNIT), math.inf if request.budget is None else cpu_clock() + request.budget)
    memory_bytes = None if memory is None else int(memory * GIB)
    work = Problem(topology, collective, request.seed, purse, memory_bytes, request.tell, asked_for(cache))
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise Invalid(f"option workers: expected a whole number of 1 or more, got {workers!r}")
    options = {"chunks": chunks, "steps": steps, "rounds": rounds, "k": k}
    provenance = {
        "planner": "sccl",
        "options": {key: v for key, v in options.items() if v is not None},
        "seed": request.seed,
    }
    provenance |= {} if request.effort is None else {"effort": effort}
    if chunks is not None or rounds is not None:
        if chunks is None or steps is None or rounds is None:
            raise Invalid("planner sccl: give chunks, steps and rounds together, or steps alone (the most steps)")
        schedule = one_point(work, chunks, steps, rounds)
        yield replace(schedule, provenance={**provenance, **schedule.provenance})
        return
    any_point = False
    try:
        for schedule in points(work, Limits(k=k, steps=steps, memory=memory_bytes, workers=workers)):
            any_point = True
            yield replace(schedule, provenance={**provenance, **schedule.provenance})
    except TimedOut as error:
        if any_point:
            raise type(error)(f"{error}; what was not found yet may be better") from None
        raise type(error)(
            f"planner sccl found nothing for {collective.kind} on {topology.name}: {error}, or a smaller machine"
        ) from None
