"""Schedules of the GenTree paper's algorithms (`gentree` explains their names): planned, verified, timed by a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from antiphon.core.collective import Collective
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.topology import LinkType, Topology, both_ways, build
from antiphon.core.verify import verify
from antiphon.cost import Profile, as_profile, prepare
from antiphon.planners.classic.halving_doubling import halving_doubling
from antiphon.planners.classic.hierarchical import hierarchical_ps
from antiphon.planners.classic.parameter_server import colocated_ps
from antiphon.planners.rings.ring import ring
from antiphon.planners.switchtrees.gentree import gentree
from antiphon.reproduce.gentree_tables import FLOAT
from antiphon.reproduce.rows import Times

Planner = Callable[..., Iterator[Schedule]]
TABLE5 = "genmodel-table5"
# A server in Table 5: seconds per step, seconds per float, and seconds per float of a link of 10 Gbit/s.
ALPHA, BETA, BETA_10G = 6.58e-3, "6.4e-9", "3.2e-9"


def verified_plan(planner: Planner, machine: Topology, nbytes: int | None = None, **options: Any) -> Schedule:
    """Return a verified allreduce by a planner. `nbytes`: plan for this size; None: for any. `options`: its own."""
    schedule = next(iter(planner(Request(machine, Collective("allreduce", machine.ranks), nbytes), **options)))
    verify(schedule, machine).or_raise()
    return schedule


def plan(name: str, machine: Topology) -> Schedule:
    """Return a plan by its name in the paper.

    "Ring" (in one direction), "RHD" (recursive halving and doubling: the farthest partner gets the largest message),
    "CPS" (co-located parameter server), or HCPS (a hierarchy of them) by its fan-ins, such as "6x2".
    """
    if name == "Ring":
        return verified_plan(ring, machine, directions=1)
    if name == "RHD":
        return verified_plan(halving_doubling, machine, large="far")
    if name == "CPS":
        return verified_plan(colocated_ps, machine)
    return verified_plan(hierarchical_ps, machine, fanins=name)


def gentree_plan(machine: Topology, floats: int, profile: Profile | str | None = TABLE5, **options: Any) -> Schedule:
    """Return GenTree's verified plan for `floats` floats."""
    return verified_plan(gentree, machine, nbytes=FLOAT * floats, profile=profile, **options)


def plan_types(schedule: Schedule) -> dict[str, str]:
    """Return GenTree's plan type at each switch, without explanations."""
    return {switch: kind.split()[0].rstrip(",") for switch, kind in schedule.provenance["found"]["plan"].items()}


def predict_times(
    schedule: Schedule | Mapping[str, Schedule], machine: Topology, sizes: Mapping[str, int], model: str,
    profile: Profile | str | None = TABLE5,
) -> Times:  # fmt: skip
    """Return the predicted seconds for each size (in floats), by one schedule or by one for each size.

    `profile`: one, or the name of a shipped one; None: nominal figures count.
    """
    if isinstance(schedule, Schedule):
        predict = prepare(model, schedule, machine, profile=profile)
        predictions = {size: predict(FLOAT * floats) for size, floats in sizes.items()}
    else:
        predictions = {
            size: prepare(model, schedule[size], machine, profile=profile)(FLOAT * floats)
            for size, floats in sizes.items()
        }
    return {size: prediction.seconds for size, prediction in predictions.items()}


def one_switch(servers: int, beta: str = BETA_10G) -> Topology:
    """Return servers on one switch. `beta`: seconds per float. The two links of a step take 1 alpha together."""
    link = LinkType("ethernet", FLOAT / Fraction(beta), ALPHA / 2)
    links = both_ways([(server, servers) for server in range(servers)], link)
    return build(f"{servers} servers on a switch", servers, links, switches=1)


def testbed() -> Profile:
    """Return Table 5's parameters, except that a step takes one alpha (set by `one_switch`), as the plans that the
    paper chose on its testbed suggest."""
    table5 = as_profile(TABLE5)
    # alpha={}: the latencies of the machine's links count
    return replace(table5, name="table 5, 1 alpha per step", alpha={}, incast={"ethernet": table5.incast["ethernet"]})
