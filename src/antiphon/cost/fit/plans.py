"""The cost of named plans as factors of GenModel's parameters: Table 2 of the GenModel paper, derived from the steps.

Here a plan is an algorithm with a name (NAMES, as in the paper), not a file. It is a list of steps; in each the busiest
rank receives `part` of nbytes from `senders` ranks at once and then combines `fanin` values of each byte (0: none). The
closed forms of `cost.genmodel.forms` give the same in seconds, and tests compare the two; here the result is the factor
of each parameter, as a fit needs it. Only w_t stays open: the number of senders beyond which incast (epsilon) slows a
receiver.

Example: "ring" on 4 ranks, allreduce: 6 steps of 1/4 from one sender: alpha 6, beta 1.5 per byte, gamma 0.75, delta
2.25.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from antiphon.errors import Invalid, Unsupported, quote, unknown

ALLREDUCE = "allreduce"
COLLECTIVES = (ALLREDUCE, "reducescatter", "allgather")
# Plans of GenModel's paper, as in the column `plan` of a file of measurements (read.py)
NAMES = {
    "cps": "co-located parameter servers",
    "ring": "a ring in one direction",
    "rhd": "recursive halving and doubling",
    "reduce-broadcast": "one server collects, combines and sends",
    "incast": "everyone sends to everyone, nobody combines; nbytes is what each receives (equation 6)",
}
LEVELS = "6x2"  # hierarchical co-located parameter servers, by their fan-ins


@dataclass(frozen=True)
class NamedAlgorithm:
    """An algorithm by its name: a key of NAMES, or fan-ins such as 6x2 (hierarchical parameter servers)."""

    name: str
    collective: str = ALLREDUCE


class EqualSteps(NamedTuple):
    """Equal steps, as the busiest rank sees them."""

    times: int  # number of these steps
    part: float  # of nbytes, that the rank receives (in the second step of reduce-broadcast: sends) in total
    senders: int  # ranks that send to it at once
    fanin: int  # values that it combines of each byte, its own included; 0: none


class ParameterFactors(NamedTuple):
    """What each parameter is multiplied with: alpha by `alpha`, beta by `beta` times nbytes, and so on."""

    alpha: float
    beta: float
    gamma: float
    delta: float
    receptions: tuple[tuple[int, float], ...]  # per kind of step: senders, and share of nbytes; for epsilon

    def epsilon(self, w_t: int) -> float:
        """Return the factor of epsilon (incast) times nbytes, where each sender beyond `w_t` slows a receiver."""
        return math.fsum(share * max(senders - w_t, 0) for senders, share in self.receptions)


def plan_of(name: str, ranks: int, collective: str = ALLREDUCE) -> NamedAlgorithm:
    """Return a plan by its name in a file of measurements; raise Invalid or Unsupported if `ranks` ranks have none."""
    plan = NamedAlgorithm(name.lower(), collective.lower())
    if plan.collective not in COLLECTIVES:
        raise unknown("collective", collective, COLLECTIVES)
    derive_factors(plan, ranks)
    return plan


@cache
def derive_factors(plan: NamedAlgorithm, ranks: int) -> ParameterFactors:
    """Return the factors of a plan. O(steps), that is O(log ranks)."""
    steps = _plan_steps(plan, ranks)
    combined = [step for step in steps if step.fanin]
    # To combine f values, f - 1 of which arrive, takes f - 1 additions (gamma), and f reads and a write (delta).
    return ParameterFactors(
        alpha=math.fsum(step.times for step in steps),
        beta=math.fsum(step.times * step.part for step in steps),
        gamma=math.fsum(step.times * step.part for step in combined),
        delta=math.fsum(step.times * step.part * (step.fanin + 1) / (step.fanin - 1) for step in combined),
        receptions=tuple((step.senders, step.times * step.part) for step in steps),
    )


def _plan_steps(plan: NamedAlgorithm, n: int) -> list[EqualSteps]:
    """Return the steps of a plan on n ranks; an allreduce is its reducing steps, then the same without combining."""
    if plan.name == "incast":
        if plan.collective != ALLREDUCE:
            raise Invalid("plan incast: is no collective; leave the column collective empty")
        return [EqualSteps(times=1, part=1.0, senders=n - 1, fanin=0)]
    if plan.name == "reduce-broadcast":
        if plan.collective != ALLREDUCE:
            raise Unsupported(f"plan reduce-broadcast: is an allreduce, not a {plan.collective}; use cps")
        return [
            EqualSteps(times=1, part=n - 1.0, senders=n - 1, fanin=n),
            EqualSteps(times=1, part=n - 1.0, senders=1, fanin=0),
        ]
    reduction = _reducing_steps(plan, n)
    gathering = [step._replace(fanin=0) for step in reduction]
    return {"reducescatter": reduction, "allgather": gathering, ALLREDUCE: reduction + gathering}[plan.collective]


def _reducing_steps(plan: NamedAlgorithm, n: int) -> list[EqualSteps]:
    """Return the steps of the reducescatter; those of the allgather are the same without combining."""
    if plan.name == "ring":
        return [EqualSteps(n - 1, 1 / n, senders=1, fanin=2)]
    if plan.name == "rhd":
        return _halving_steps(plan, n)
    fanins = (n,) if plan.name == "cps" else _parse_fanins(plan.name, n)
    steps, size = [], 1.0
    for f in fanins:
        size /= f
        steps.append(EqualSteps(times=1, part=(f - 1) * size, senders=f - 1, fanin=f))
    return steps


def _halving_steps(plan: NamedAlgorithm, n: int) -> list[EqualSteps]:
    """Return the steps of recursive halving; ranks beyond the greatest power of two first send to a neighbour."""
    levels = n.bit_length() - 1
    steps = [EqualSteps(times=1, part=2.0**-k, senders=1, fanin=2) for k in range(1, levels + 1)]
    if n == 1 << levels:
        return steps
    if plan.collective != ALLREDUCE:
        raise Unsupported(f"plan rhd: no {plan.collective} on {n} ranks, which is no power of two; use ring")
    return [EqualSteps(times=1, part=1.0, senders=1, fanin=2), *steps]


def _parse_fanins(name: str, n: int) -> tuple[int, ...]:
    """Return the fan-ins in a name such as 6x2; their product must be n."""
    if not re.fullmatch(r"[0-9]{1,6}(x[0-9]{1,6})+", name):
        raise unknown("plan", name, [*NAMES, LEVELS])
    fanins = tuple(map(int, name.split("x")))
    if min(fanins) < 2 or math.prod(fanins) != n:
        raise Invalid(f"plan {quote(name)}: is for {math.prod(fanins)} ranks with fan-ins from 2 on, not for {n}")
    return fanins
