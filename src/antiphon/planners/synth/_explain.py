"""Explain in one sentence why no algorithm with these figures exists, for people who design machines.

The proof is about distances, or about prices on links (a dual of the linear program, linear.py): chunks must cross the
priced links more often than these have room for.
"""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

from antiphon.core.ksync.instance import Instance
from antiphon.planners.synth.linear import Proved
from antiphon.planners.synth.search import Impossible

_SHOWN = 6  # links named per step


def explain_impossible(instance: Instance, parts: int, steps: int, rounds: int, why: Impossible) -> str:
    """Return one sentence that names what is impossible and the bound that forbids it.

    `why.how` is the kind of proof: "distance"; "rounds" (one dual); "splits" (every distribution of the rounds over the
    steps is forbidden by some dual); otherwise resolution. `worth` of a dual is its value, with the bound that follows.
    """
    weight = instance.input_weight
    name = f"{instance.collective.kind} on {instance.topology.name}"
    request = f"no algorithm with C = {parts * weight}, S = {steps}, R = {rounds} exists for {name}"
    if why.how == "distance":
        return f"no algorithm with S = {steps} exists for {name}: {_describe_distance(instance)}"
    if why.how == "rounds":
        if rounds < steps:
            return f"{request}: each of its {steps} steps takes a round or more, so R is at least {steps}"
        lowest_ratio = why.duals[0].worth.rounds_per_part / weight
        return (
            f"no algorithm with S = {steps} and R/C below {lowest_ratio} exists for {name} (asked: "
            f"{Fraction(rounds, parts * weight)}): {_describe_prices(instance, why.duals[0])}"
        )
    if why.how == "splits":
        return (
            f"{request}: for each way of dealing {rounds} rounds out to {steps} steps some links have too little room "
            f"({len(why.duals)} sets of prices prove it); with one of them: {_describe_prices(instance, why.duals[0])}"
        )
    return f"{request}: a proof by resolution, checked step by step, goes through all possibilities"


def _describe_distance(instance: Instance) -> str:
    """Name a rank that is as many steps from the nearest holder of its data as the collective needs."""
    for kind in instance.kinds:
        far = instance.from_holders(kind)
        for dest in kind.dests:
            if int(far[dest]) == instance.least_steps:
                holders = ", ".join(map(str, kind.holders))
                return f"rank {dest} is {instance.least_steps} steps away from rank {holders}, which has what it needs"
    return "something is farther away than that"


def _describe_prices(instance: Instance, proved: Proved) -> str:
    """Describe how often chunks must cross the priced links, and how much these carry in a round."""
    topology = instance.topology
    by_step: dict[int, list[str]] = defaultdict(list)  # names of the priced links and limits
    for resource, step, price in proved.dual.prices.tolist():
        if resource < len(instance.bonds):
            ends = (int(instance.tail[resource]), int(instance.head[resource]))
            resource_name = ">".join(topology.node_name(node).removeprefix("rank ") for node in ends)
        else:
            resource_name = f"limit {topology.limits[resource - len(instance.bonds)].name}"
        by_step[step].append(resource_name if price == 1 else f"{resource_name} x{price}")
    clauses = []
    for step, names in sorted(by_step.items()):
        rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        clauses.append(f"in step {step + 1} the links {', '.join(names[:_SHOWN])}{rest}")
    return (
        f"counting what passes {'; '.join(clauses)}: the chunks of one part must pass {proved.worth.value} times, "
        f"and a round has room for {max(proved.worth.round_price)}"
    )
