"""A plan made ready for a size: in equal pieces, or begun unevenly in so many steps, whichever is faster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.cost.barriers.alpha_beta import alpha_beta
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.planners.shared.pieces import piped
from antiphon.planners.shared.uneven import Sizes, Uneven

STEPS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64)
SPREAD = (0, 1, 2, 4, 8, 16, 32)  # beyond the fewest steps: what is tried where no size is given
MOST_ROWS = 2**19  # transfers of a schedule that begins unevenly
WORTH = 1.005  # uneven parts are many chunks: they must be this much faster
PATIENCE = 3  # numbers of steps tried beyond the best


@dataclass(frozen=True)
class Asked:
    """What is known and wanted: options `pieces` and `steps`, the size, and what was measured of the machine."""

    planner: str
    pieces: int | None = None
    steps: int | None = None
    nbytes: int | None = None
    profile: Any = None


def staged(
    plans: Sequence[Schedule], topology: Topology, asked: Asked, labels: Sequence[Sequence[int] | None] | None = None
) -> Iterator[tuple[Schedule, dict[str, int]]]:
    """Schedules with the options that give them: of the first plan in equal pieces, of all plans unevenly."""
    if asked.pieces is not None and asked.steps is not None:
        raise Invalid(f"planner {asked.planner}: give pieces (equal ones) or steps (uneven parts), not both")
    if asked.steps is not None:
        yield _in_steps(plans, topology, asked, labels)
        return
    even = [
        (made, {"pieces": int(made.pieces)})
        for made in piped(plans[0], topology, asked.pieces, asked.nbytes, asked.profile)
    ]
    if asked.pieces is not None or max(plan.steps for plan in plans) < 2:
        yield from even
        return
    uneven = Uneven(plans, topology, labels)
    if asked.nbytes is None:
        yield from even
        for more in SPREAD:
            steps = uneven.least_steps + more
            sizes = _sizes(uneven, steps)
            if sizes is not None:
                yield uneven.schedule(sizes), {"steps": steps}
        return
    found = [*even, *_fastest(uneven, topology, asked.nbytes, asked.profile)]
    nbytes, priced = asked.nbytes, [alpha_beta(one, topology, profile=asked.profile) for one, _ in found]
    seconds = [price(nbytes).seconds * (1 if n == 0 else WORTH) for n, price in enumerate(priced)]
    yield found[seconds.index(min(seconds))]


def _in_steps(
    plans: Sequence[Schedule], topology: Topology, asked: Asked, labels: Sequence[Sequence[int] | None] | None
) -> tuple[Schedule, dict[str, int]]:
    steps = asked.steps
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= 1024:
        raise Invalid(f"option steps: expected a whole number from 1 to 1024, got {quote(steps)}")
    uneven = Uneven(plans, topology, labels)
    if not uneven.classes:
        return plans[0], {"steps": steps}
    if steps < uneven.least_steps:
        raise Unsupported(f"planner {asked.planner}: takes {uneven.least_steps} steps or more; give as many")
    sizes = _sizes(uneven, steps)
    if sizes is None:
        raise Unsupported(f"planner {asked.planner}: too large for uneven parts in {steps} steps; use pieces instead")
    return uneven.schedule(sizes), {"steps": steps}


def _sizes(uneven: Uneven, steps: int) -> Sizes | None:
    """None where it takes more steps, or would be too large."""
    if sum(plan.transfers for plan in uneven.plans) > MOST_ROWS:
        return None
    sizes = uneven.sizes(steps)
    return sizes if sizes is not None and uneven.rows(sizes) <= MOST_ROWS else None


def _fastest(
    uneven: Uneven, topology: Topology, nbytes: int, profile: Any
) -> Iterator[tuple[Schedule, dict[str, int]]]:
    """The number of steps for the size: time falls, then grows with their latency."""
    alpha = max(
        alpha_beta(replace(plan, pieces=1), topology, profile=profile)(0).seconds / max(plan.steps, 1)
        for plan in uneven.plans
    )
    best: tuple[float, int, Sizes] | None = None
    worse = 0
    for steps in STEPS:
        sizes = _sizes(uneven, steps) if steps >= uneven.least_steps else None
        if sizes is None:
            continue
        seconds = sizes.time * nbytes + alpha * steps
        if best is None or seconds < best[0]:
            best, worse = (seconds, steps, sizes), 0
        else:
            worse += 1
            if worse == PATIENCE:
                break
    if best is not None:
        yield uneven.schedule(best[2]), {"steps": best[1]}
