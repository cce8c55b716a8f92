"""Why there is no such algorithm, in words: for people who design machines."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

from antiphon.core.ksync.instance import Instance
from antiphon.planners.synth.linear import Proved
from antiphon.planners.synth.search import Impossible

_SHOWN = 6


def explain(instance: Instance, parts: int, steps: int, rounds: int, why: Impossible) -> str:
    """One sentence: what is impossible, and the bound that forbids it."""
    weight = instance.input_weight
    name = f"{instance.collective.kind} on {instance.topology.name}"
    asked = f"no algorithm with C = {parts * weight}, S = {steps}, R = {rounds} exists for {name}"
    if why.how == "distance":
        return f"no algorithm with S = {steps} exists for {name}: {_distance(instance)}"
    if why.how == "rounds":
        if rounds < steps:
            return f"{asked}: each of its {steps} steps takes a round or more, so R is at least {steps}"
        least = why.duals[0].worth.rounds_per_part / weight
        return (
            f"no algorithm with S = {steps} and R/C below {least} exists for {name} (asked: "
            f"{Fraction(rounds, parts * weight)}): {_prices(instance, why.duals[0])}"
        )
    if why.how == "splits":
        return (
            f"{asked}: for each way of dealing {rounds} rounds out to {steps} steps some links have too little room "
            f"({len(why.duals)} sets of prices prove it); with one of them: {_prices(instance, why.duals[0])}"
        )
    return f"{asked}: a proof by resolution, checked step by step, goes through all possibilities"


def _distance(instance: Instance) -> str:
    for kind in instance.kinds:
        far = instance.from_holders(kind)
        for dest in kind.dests:
            if int(far[dest]) == instance.least_steps:
                holders = ", ".join(map(str, kind.holders))
                return f"rank {dest} is {instance.least_steps} steps away from rank {holders}, which has what it needs"
    return "something is farther away than that"


def _prices(instance: Instance, proved: Proved) -> str:
    """What the chunks of one part need of the priced links, and what these carry in a round."""
    topology = instance.topology
    by_step: dict[int, list[str]] = defaultdict(list)
    for resource, step, price in proved.dual.prices.tolist():
        if resource < len(instance.bonds):
            ends = (int(instance.tail[resource]), int(instance.head[resource]))
            what = ">".join(topology.node_name(node).removeprefix("rank ") for node in ends)
        else:
            what = f"limit {topology.limits[resource - len(instance.bonds)].name}"
        by_step[step].append(what if price == 1 else f"{what} x{price}")
    told = []
    for step, names in sorted(by_step.items()):
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        told.append(f"in step {step + 1} the links {', '.join(names[:_SHOWN])}{more}")
    return (
        f"counting what passes {'; '.join(told)}: the chunks of one part must pass {proved.worth.value} times, "
        f"and a round has room for {max(proved.worth.budget)}"
    )
