"""The planner `flows`: data that are only moved, along the paths of an optimal flow (docs/planners/flows.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from antiphon.core.bounds import bound
from antiphon.core.loads import throughput
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.planners.flows.descent import descended
from antiphon.planners.flows.lay import lay
from antiphon.planners.flows.paths import paths_of, shares_of
from antiphon.planners.flows.program import Flow, FlowProgram
from antiphon.planners.flows.wants import wants_of
from antiphon.planners.shared.pipelining import Asked, Ready, staged

MOST_VARIABLES = 100_000  # of a linear program that is tried at all


def flows(request: Request, *, pieces: int | None = None, steps: int | None = None) -> Iterator[Schedule]:
    """Yields the paths of the flow with the fewest hops of those that are fastest: in equal `pieces`, or begun unevenly
    in so many `steps`. Where neither is given the best for `nbytes`, or several if that is not given.
    """
    topology, collective = request.topology, request.collective
    wants = wants_of(topology, collective, request.seed)
    most = bound(topology, collective)
    program = FlowProgram(topology, wants)
    time = most.inverse * collective.input_weight / topology.unit * topology.resources.scale
    flow = _flow(program, float(time), bool(most.tight))
    paths = paths_of(program, flow)
    shares = shares_of(program, paths, flow.time)
    made = lay(topology, collective, paths, shares, wants.group, wants.blocks)
    rate = throughput(made, topology)
    told: dict[str, Any] = {
        "rate": None if rate is None else str(rate / topology.unit),
        "optimal": rate == most.bytes_per_second,
        "paths": int((shares.parts > 0).sum()) * len(wants.group),
        "deepest": made.steps,
        "denominator": made.chunks.denominator,
        "loss": 0.0 if rate is None else _loss(rate, most.bytes_per_second),
    }
    asked = Asked("flows", pieces, steps, request.sizes, request.profile)
    for one in staged(Ready([made], topology), asked):
        made_by = {"planner": "flows", "options": one.options, "seed": request.seed}
        yield replace(one.schedule, provenance={**made_by, "found": told, "bound": most.stated()})


def _flow(program: FlowProgram, time: float, tight: bool) -> Flow:
    """The shortest of the fastest flows; fast ones where the linear program is too large, or is not solved."""
    if not program.wants:
        return Flow(np.zeros((0, program.links)), 0.0)
    if program.size > MOST_VARIABLES:
        return descended(program)
    found = program.shortest(time) if tight else None
    if found is None:
        least = program.least()
        found = None if least is None else program.shortest(least.time) or least
    return found or descended(program)


def _loss(rate: Fraction, most: Fraction | None) -> float:
    return 0.0 if most is None else float(1 - rate / most)
