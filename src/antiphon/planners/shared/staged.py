"""A plan made ready for a size: in equal pieces, begun unevenly, or with every hop in its own time: what is fastest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from operator import itemgetter
from typing import Any

from antiphon.core.loads import pipelined_steps, throughput
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.cost.barriers.alpha_beta import alpha_beta
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.planners.shared.pieces import piped
from antiphon.planners.shared.uneven import MOST_ROWS, Sizes, Uneven, longest
from antiphon.planners.shared.waits import Flow, Hops, Waits

STEPS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 56, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512)
SPREAD = (0, 1, 2, 3, 5, 8, 16, 32, 48, 64, 96, 128)  # beyond the fewest steps: tried where no size is given
USUAL = 2**20  # the size for which steps are made quiet, where none is given
WORTH, MORE = 1.005, 1.001  # uneven parts are many chunks: they must be this much faster; and hops that wait than they
LESS = 5  # uneven parts take fewer steps than equal pieces, but no less than this part of them
QUIET, MOST_QUIET = ((0, 0), (1, 1), (1, 0), (0, 1)), 12
PATIENCE = 2  # numbers of steps tried beyond the best
FEW = 24  # steps up to which all numbers are tried in turn; of more those alone that time as it falls makes the best
GAIN = 5e-4  # of the time: what another number of steps must be likely to save
LATE, SMALL = 1.005, 2.0  # times what the rate alone takes: from where on, and until where, hops in own time are tried
MOST_PLACES = 7000  # classes of hops times steps of such a program: four CPU seconds
MOST_WAITING = 300_000  # transfers where hops wait
DEEP = 5  # times the fewest steps: for so many or more classes are chosen; the search begins with half as many


@dataclass(frozen=True)
class Asked:
    """What is known and wanted: options `pieces`, `steps` and `waits` (None: if that is faster), the sizes, and what
    was measured of the machine."""

    planner: str
    pieces: int | None = None
    steps: int | None = None
    sizes: tuple[int | None, ...] = (None,)
    profile: Any = None
    waits: bool | None = False

    def __post_init__(self) -> None:
        if self.pieces is not None and self.steps is not None:
            raise Invalid(f"planner {self.planner}: give pieces (equal ones) or steps (uneven parts), not both")
        if self.waits and self.steps is None:
            raise Invalid(f"planner {self.planner}: waits is for a given number of steps; give steps, too")


@dataclass(frozen=True, eq=False)
class Staged:
    """A schedule, the options that give it, and, of one in equal pieces, the number of the plan that it is."""

    schedule: Schedule
    options: dict[str, int]
    plan: int = 0


@dataclass(frozen=True, eq=False)
class Ready:
    """Plans to make ready for sizes; what one size needed is kept for the others. `kinds`: what begins unevenly instead
    of the plans, each as a whole: plans of their own, of which the others may be made, the first `least` of them or
    none."""

    plans: Sequence[Schedule]
    topology: Topology
    kinds: Sequence[Schedule] = ()
    least: int = 1

    @cached_property
    def uneven(self) -> Uneven:
        return Uneven(self.kinds or self.plans, self.topology, whole=bool(self.kinds), least=self.least)

    @cached_property
    def waits(self) -> Waits | None:
        """None where there are several plans."""
        return None if self.kinds or len(self.plans) > 1 else Waits(self.plans[0], self.topology)


def staged(ready: Ready, asked: Asked) -> Iterator[Staged]:
    """Schedules with the options that give them: every plan in equal pieces (where `pieces` is given: the first), and
    all together unevenly."""
    for nbytes in asked.sizes if asked.pieces is None else asked.sizes[:1]:
        yield from _for(nbytes, ready, asked)


def _for(nbytes: int | None, some: Ready, asked: Asked) -> Iterator[Staged]:
    plans, topology = some.plans, some.topology
    if asked.steps is not None:
        moving = some.uneven.classes
        yield Staged(_in_steps(some, asked, nbytes) if moving else plans[0], _options(asked.steps, bool(asked.waits)))
        return
    even = [
        Staged(made, {"pieces": int(made.pieces)}, number)
        for number, plan in enumerate(plans if asked.pieces is None else plans[:1])
        for made in piped(plan, topology, _pieces(asked, number, nbytes), [nbytes], asked.profile)
    ]
    if asked.pieces is not None or max(plan.steps for plan in plans) < 2:
        yield from even
    elif nbytes is None:
        yield from even
        yield from _several(some.uneven)
    else:
        yield _faster(even, some, asked, nbytes)


def _options(steps: int, waits: bool) -> dict[str, int]:
    return {"steps": steps, "waits": True} if waits else {"steps": steps}


def _pieces(asked: Asked, number: int, nbytes: int | None) -> int | None:
    """Where no size is given, of all plans but the first the one in one piece: the shallow are for small messages."""
    return 1 if number and nbytes is None else asked.pieces


def _several(uneven: Uneven) -> Iterator[Staged]:
    for more in SPREAD:
        steps = uneven.least_steps + more
        made = _best(uneven, steps, USUAL)
        if made is not None:
            yield Staged(uneven.schedule(made[1]), {"steps": steps})


def _faster(even: Sequence[Staged], some: Ready, asked: Asked, nbytes: int) -> Staged:
    """Of a plan alone that is as fast as any parts of it could be none are tried."""
    topology = some.topology

    def seconds(one: Staged) -> float:
        return alpha_beta(one.schedule, topology, profile=asked.profile)(nbytes).seconds

    best = min(even, key=seconds)
    if (
        some.waits is not None
        and asked.profile is None
        and seconds(best) <= WORTH * _floor(some.plans[0], topology, nbytes)
    ):
        return best
    rate = throughput(some.plans[0], topology)
    full = float(nbytes / rate) if rate else 0.0
    timed, sure = None, False
    if some.waits is not None and asked.waits is None and LATE * full < seconds(best) < SMALL * full:
        timed, sure = waiting(some.waits, nbytes, full)
    begun = None
    if not sure:
        around = pipelined_steps(best.schedule)
        least = max(around // LESS, some.uneven.least_steps)
        begun = _fastest(some.uneven, nbytes, [steps for steps in STEPS if least <= steps <= around], full)
        if begun is not None and seconds(begun) * WORTH < seconds(best):
            best = begun
    if timed is not None and seconds(timed) * (MORE if best is begun else WORTH) < seconds(best):
        best = timed
    return best


def _floor(plan: Schedule, topology: Topology, nbytes: int) -> float:
    """Parts of the plan load what it loads, and its longest chunk takes as many steps, whenever it begins."""
    rate = throughput(plan, topology)
    quickest = min((kind.latency for kind in topology.types), default=0.0)
    return longest(plan) * quickest + (float(nbytes / rate) if rate else 0.0)


def _in_steps(some: Ready, asked: Asked, nbytes: int | None) -> Schedule:
    steps = asked.steps
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= 1024:
        raise Invalid(f"option steps: expected a whole number from 1 to 1024, got {quote(steps)}")
    if steps < some.uneven.least_steps:
        raise Unsupported(f"planner {asked.planner}: takes {some.uneven.least_steps} steps or more; give as many")
    if asked.waits:
        return _in_time(some.waits, steps, asked)
    made = _best(some.uneven, steps, USUAL if nbytes is None else nbytes)
    if made is None:
        raise Unsupported(f"planner {asked.planner}: too large for uneven parts in {steps} steps; use pieces instead")
    return some.uneven.schedule(made[1])


def _in_time(waits: Waits | None, steps: int, asked: Asked) -> Schedule:
    if waits is None or waits.plan.joint is not None:
        raise Unsupported(f"planner {asked.planner}: hops of such a plan have no time of their own; leave waits out")
    if waits.plan.transfers > MOST_WAITING:
        raise Unsupported(
            f"planner {asked.planner}: {waits.plan.transfers} transfers; up to {MOST_WAITING} may wait; leave waits out"
        )
    some = list(_small(waits, steps))
    flow = _flow(waits, steps)
    if flow is not None:
        return waits.schedule(flow)
    least = min((hops.steps for hops in some), default=0)
    if steps < least:
        raise Unsupported(f"planner {asked.planner}: hops that wait take {least} steps or more; give as many")
    why = "too large for" if all(waits.flow(hops, steps) is not None for hops in some) else "no solution was found for"
    raise Unsupported(f"planner {asked.planner}: {why} hops that wait in {steps} steps; leave waits out")


def _small(waits: Waits, steps: int) -> Iterator[Hops]:
    """The classes of hops that are a program small enough, the finest first. For few steps no finer ones are taken than
    the search for the best number takes: so the steps alone tell which."""
    yield from waits.levels(MOST_PLACES // max(steps, DEEP * waits.plan.steps))


def _flow(waits: Waits, steps: int) -> Flow | None:
    """Of the first of these classes that do not cut chunks into too many; None where it takes more steps, or would be
    too large."""
    if waits.plan.transfers > MOST_WAITING or waits.plan.joint is not None:
        return None
    for hops in _small(waits, steps):
        flow = waits.flow(hops, steps)
        if flow is not None and waits.rows(flow) <= MOST_WAITING:
            return flow
    return None


def waiting(waits: Waits, nbytes: int, full: float) -> tuple[Staged | None, bool]:
    """The best number of steps for the size, from few on, until more of them could not gain what they cost. And whether
    it lies between numbers that were tried: then chunks that begin unevenly need not be, as hops in times of their own
    can do what these do. `full`: what links take that are never idle."""
    best: tuple[float, int, Flow] | None = None
    first, between = 0, False
    for steps, more in pairwise(STEPS):
        if 2 * steps < DEEP * waits.plan.steps:
            continue
        flow = _flow(waits, steps)
        if flow is None:
            break
        taken, first = flow.time * nbytes + flow.latency, first or steps
        if best is not None and taken >= best[0]:
            between = best[1] > first
            break
        best = (taken, steps, flow)
        if flow.time * nbytes - full < flow.latency * (more - steps) / steps:
            between = steps > first
            break
    return (None, False) if best is None else (Staged(waits.schedule(best[2]), _options(best[1], True)), between)


def _sizes(uneven: Uneven, steps: int, quiet: tuple[int, int] = (0, 0)) -> Sizes | None:
    """None where it takes more steps, or would be too large."""
    if sum(plan.transfers for plan in uneven.plans) > MOST_ROWS:
        return None
    sizes = uneven.sizes(steps, quiet)
    return sizes if sizes is not None and uneven.rows(sizes) <= MOST_ROWS else None


def _fastest(uneven: Uneven, nbytes: int, some: Sequence[int], full: float) -> Staged | None:
    """The best of these numbers of steps for the size: time falls, then grows with their latency. `full`: what links
    take that are never idle."""
    known: dict[int, tuple[float, Sizes]] = {}
    worse, left = 0, list(some)
    few = bool(some) and some[-1] <= FEW
    while left:
        steps = left[0] if few else _likely(known, left, nbytes, full)
        if steps is None:
            break
        left.remove(steps)
        made = _best(uneven, steps, nbytes)
        if made is None:
            continue
        worse = 0 if all(made[0] < time for time, _ in known.values()) else worse + 1
        known[steps] = made
        if few and worse == PATIENCE:
            break
    best = min(known, key=lambda steps: known[steps][0], default=None)
    return None if best is None else Staged(uneven.schedule(known[best][1]), {"steps": best})


def _likely(known: Mapping[int, tuple[float, Sizes]], left: Sequence[int], nbytes: int, full: float) -> int | None:
    """Of the numbers of steps left that which is likely the best, or is next to the best known; None where none could
    be better. The time without latency falls as 1 / steps does, towards `full`, as the two nearest numbers show, and
    latency grows as steps do."""
    if not known:
        return left[len(left) // 2]

    def seconds(steps: int) -> float:
        near = sorted(known, key=lambda one: (abs(math.log(one / steps)), one))[:2]
        moving = [known[one][1].time * nbytes for one in near]
        late = known[near[0]][1].latency * steps / near[0]
        slope = (moving[0] - (full if len(near) < 2 else moving[1])) / (1 / near[0] - (1 / near[1] if near[1:] else 0))
        return late + max(moving[0] + slope * (1 / steps - 1 / near[0]), full)

    at = min(known, key=lambda steps: known[steps][0])
    enough, sizes = (1 - GAIN) * known[at][0], known[at][1]
    steps = min(left, key=seconds)
    if seconds(steps) < enough:
        return steps
    for one in (max((n for n in left if n < at), default=at), min((n for n in left if n > at), default=at)):
        between = any(min(one, at) < n < max(one, at) for n in known)
        least = sizes.time * nbytes if one < at else full
        if one != at and not between and least + sizes.latency * one / at < enough:
            return one
    return None


def _best(uneven: Uneven, steps: int, nbytes: int) -> tuple[float, Sizes] | None:
    """Where steps are few it may be worth while to have none of slow ways at the beginning and at the end."""
    tried = [_sizes(uneven, steps, quiet) for quiet in (QUIET if steps <= MOST_QUIET else QUIET[:1])]
    found = [(sizes.time * nbytes + sizes.latency, sizes) for sizes in tried if sizes is not None]
    return min(found, key=itemgetter(0), default=None)
