"""Pipeline a plan for a message size: equal pieces, uneven parts, or a start time for every hop.

A plan of S steps in n equal pieces takes S + n - 1 steps, each 1/n as long plus the latency of a step:

    time(n) = (S + n - 1) * (latency + bytes / (n * rate))

Few pieces leave links idle while the pipeline fills and drains, many pay latency. `pipe_schedule` finds the best n (the
time has one minimum, so a golden-section search suffices). Two refinements avoid the idle ends:

    uneven parts   (uneven.py)      several plans, or chunks of one, start in any step with any amount of data
    hop timing     (hop_timing.py)  every hop gets its own start times

`stage_plans` tries all three and yields the fastest. Both refinements multiply the number of chunks, so they must be
faster by a margin (`min_gain_uneven`, `min_gain_timed` of `PIPELINING`), and are skipped where equal pieces are at a
lower bound.

Example: a chain of 3 hops with 1 us per step, 1 MB at 1 GB/s. One piece: 3 * 1001 us. 45 pieces: 47 * (1 + 22.2) =
1091 us, near the 1000 us that the link needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from operator import itemgetter
from typing import Any

from antiphon.core.loads import pipelined_steps, throughput
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.cost.barriers.alpha_beta import alpha_beta
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.planners.shared.hop_timing import Flow, Hops, Waits
from antiphon.planners.shared.uneven import MOST_ROWS, Sizes, Uneven, longest_chunk

STEPS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 56, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512)
EXTRA_STEPS = (0, 1, 2, 3, 5, 8, 16, 32, 48, 64, 96, 128)  # beyond the fewest: tried where no size is given
QUIET = ((0, 0), (1, 1), (1, 0), (0, 1))  # quiet steps (first, last) that are tried,
RANGE = (1, 4, 16, 64, 256, 1024)  # numbers of pieces where no size is given


@dataclass(frozen=True)
class PipeliningLimits:
    """Thresholds of the choice between equal pieces, uneven parts and hop timing."""

    usual_bytes: int = 2**20  # the message size for which steps are chosen without a size
    min_gain_uneven: float = (
        1.005  # uneven parts multiply the chunks, so they must be this much faster than equal pieces
    )
    min_gain_timed: float = 1.001  # and hop timing than uneven parts
    max_fewer_steps: int = (
        5  # uneven parts need fewer steps than equal pieces, but at least this fraction (1 / 5) of them
    )
    max_quiet_steps: int = 12  # with at most this many steps, quiet steps (QUIET) are tried
    patience: int = 2  # numbers of steps tried beyond the best
    few_steps: int = 24  # up to this many, all numbers are tried; above, only those that the trend of the time suggests
    min_gain_steps: float = 5e-4  # fraction of the time that another number of steps must be likely to save
    timed_from: float = 1.005  # hop timing is tried from this multiple of the time at the full rate
    timed_to: float = 2.0  # up to this one
    max_places: int = 7000  # classes of hops times steps of the program of hop timing: four CPU seconds
    max_timed_rows: int = 300_000  # transfers with hop timing
    deep: int = 5  # classes are chosen for this many times the fewest steps; the search begins with half of that
    max_pieces: int = 2**20  # pieces of a message
    min_bytes: int = 64  # bytes of a piece
    grid: int = 4  # pieces grow by this factor until the time grows, too; the best lies within two such factors


PIPELINING = PipeliningLimits()


@dataclass(frozen=True)
class Asked:
    """Options `pieces`, `steps` and `waits` (None: if that is faster), the message sizes, and the machine's measured
    profile.
    """

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
    """A schedule, its options, and, in equal pieces, the number of its plan."""

    schedule: Schedule
    options: dict[str, int]
    plan: int = 0


@dataclass(frozen=True, eq=False)
class Ready:
    """Plans to pipeline for several sizes; intermediate results are cached.

    `kinds`: schedules that start unevenly instead of the plans, each as a whole; the first `min_kinds` of them are used
    together or not at all.
    """

    plans: Sequence[Schedule]
    topology: Topology
    kinds: Sequence[Schedule] = ()
    min_kinds: int = 1

    @cached_property
    def uneven(self) -> Uneven:
        return Uneven(self.kinds or self.plans, self.topology, together=bool(self.kinds), min_plans=self.min_kinds)

    @cached_property
    def waits(self) -> Waits | None:
        """Hop timing of the plan; None with several plans."""
        return None if self.kinds or len(self.plans) > 1 else Waits(self.plans[0], self.topology)


def stage_plans(ready: Ready, options: Asked) -> Iterator[Staged]:
    """Yield schedules with their options: every plan in equal pieces (with `pieces`: the first), and all together
    unevenly.
    """
    for nbytes in options.sizes if options.pieces is None else options.sizes[:1]:
        yield from _stage_size(nbytes, ready, options)


def _stage_size(nbytes: int | None, ready: Ready, options: Asked) -> Iterator[Staged]:
    plans, topology = ready.plans, ready.topology
    if options.steps is not None:
        moving = ready.uneven.classes
        yield Staged(
            _in_steps(ready, options, nbytes) if moving else plans[0], _step_options(options.steps, bool(options.waits))
        )
        return
    equal = [
        Staged(piece_schedule, {"pieces": int(piece_schedule.pieces)}, number)
        for number, plan in enumerate(plans if options.pieces is None else plans[:1])
        for piece_schedule in pipe_schedule(
            plan, topology, _piece_option(options, number, nbytes), [nbytes], options.profile
        )
    ]
    if options.pieces is not None or max(plan.steps for plan in plans) < 2:
        yield from equal
    elif nbytes is None:
        yield from equal
        yield from _step_variants(ready.uneven)
    else:
        yield _fastest_variant(equal, ready, options, nbytes)


def _step_options(steps: int, waits: bool) -> dict[str, int]:
    return {"steps": steps, "waits": True} if waits else {"steps": steps}


def _piece_option(options: Asked, number: int, nbytes: int | None) -> int | None:
    """Return the option; without a size, all plans but the first stay in one piece: the shallow ones serve small
    messages.
    """
    return 1 if number and nbytes is None else options.pieces


def _step_variants(uneven: Uneven) -> Iterator[Staged]:
    for extra_steps in EXTRA_STEPS:
        steps = uneven.least_steps + extra_steps
        best = _best_sizes(uneven, steps, PIPELINING.usual_bytes)
        if best is not None:
            yield Staged(uneven.to_schedule(best[1]), {"steps": steps})


def _fastest_variant(equal: Sequence[Staged], ready: Ready, options: Asked, nbytes: int) -> Staged:
    """Return the fastest of equal pieces, uneven parts and hop timing.

    If equal pieces reach the lower bound, the others are not tried.
    """
    topology = ready.topology

    def seconds(candidate: Staged) -> float:
        return alpha_beta(candidate.schedule, topology, profile=options.profile)(nbytes).seconds

    best = min(equal, key=seconds)
    if (
        ready.waits is not None
        and options.profile is None
        and seconds(best) <= PIPELINING.min_gain_uneven * _time_floor(ready.plans[0], topology, nbytes)
    ):
        return best
    # hop timing only pays between near-optimal and latency-dominated times
    rate = throughput(ready.plans[0], topology)
    full = float(nbytes / rate) if rate else 0.0
    timed, sure = None, False
    if (
        ready.waits is not None
        and options.waits is None
        and PIPELINING.timed_from * full < seconds(best) < PIPELINING.timed_to * full
    ):
        timed, sure = best_hop_timing(ready.waits, nbytes, full)
    uneven_plan = None
    if not sure:
        # uneven parts waste less at the ends, so they need fewer steps than the best number of equal pieces
        equal_steps = pipelined_steps(best.schedule)
        min_steps = max(equal_steps // PIPELINING.max_fewer_steps, ready.uneven.least_steps)
        uneven_plan = _fastest_uneven(
            ready.uneven, nbytes, [steps for steps in STEPS if min_steps <= steps <= equal_steps], full
        )
        if uneven_plan is not None and seconds(uneven_plan) * PIPELINING.min_gain_uneven < seconds(best):
            best = uneven_plan
    if timed is not None and seconds(timed) * (
        PIPELINING.min_gain_timed if best is uneven_plan else PIPELINING.min_gain_uneven
    ) < seconds(best):
        best = timed
    return best


def _time_floor(plan: Schedule, topology: Topology, nbytes: int) -> float:
    """Return a lower bound on the time of uneven parts of the plan: its load, and the latency of its longest chunk."""
    rate = throughput(plan, topology)
    quickest = min((kind.latency for kind in topology.types), default=0.0)
    return longest_chunk(plan) * quickest + (float(nbytes / rate) if rate else 0.0)


def _in_steps(ready: Ready, options: Asked, nbytes: int | None) -> Schedule:
    """Return the schedule for the requested number of steps; raises Unsupported if there is none."""
    steps = options.steps
    assert steps is not None
    if steps < ready.uneven.least_steps:
        raise Unsupported(f"planner {options.planner}: takes {ready.uneven.least_steps} steps or more; give as many")
    if options.waits:
        return _in_time(ready.waits, steps, options)
    best = _best_sizes(ready.uneven, steps, PIPELINING.usual_bytes if nbytes is None else nbytes)
    if best is None:
        raise Unsupported(f"planner {options.planner}: too large for uneven parts in {steps} steps; use pieces instead")
    return ready.uneven.to_schedule(best[1])


def _in_time(waits: Waits | None, steps: int, options: Asked) -> Schedule:
    if waits is None or waits.plan.joint is not None:
        raise Unsupported(f"planner {options.planner}: hops of such a plan have no time of their own; leave waits out")
    if waits.plan.transfers > PIPELINING.max_timed_rows:
        raise Unsupported(
            f"planner {options.planner}: {waits.plan.transfers} transfers; up to {PIPELINING.max_timed_rows} may wait; "
            "leave waits out"
        )
    class_levels = list(_class_levels(waits, steps))
    flow = _hop_flow(waits, steps)
    if flow is not None:
        return waits.to_schedule(flow)
    min_steps = min((hops.steps for hops in class_levels), default=0)
    if steps < min_steps:
        raise Unsupported(f"planner {options.planner}: hops that wait take {min_steps} steps or more; give as many")
    why = (
        "too large for"
        if all(waits.flow_for(hops, steps) is not None for hops in class_levels)
        else "no solution was found for"
    )
    raise Unsupported(f"planner {options.planner}: {why} hops that wait in {steps} steps; leave waits out")


def _class_levels(waits: Waits, steps: int) -> Iterator[Hops]:
    """Yield the classes of hops whose program is small enough, the finest first.

    For few steps, no finer ones than the search for the best number of steps uses, so the steps alone determine the
    classes.
    """
    yield from waits.class_levels(PIPELINING.max_places // max(steps, PIPELINING.deep * waits.plan.steps))


def _hop_flow(waits: Waits, steps: int) -> Flow | None:
    """Return the flow of the finest classes that do not cut chunks into too many; None where none fits."""
    if waits.plan.transfers > PIPELINING.max_timed_rows or waits.plan.joint is not None:
        return None
    for hops in _class_levels(waits, steps):
        flow = waits.flow_for(hops, steps)
        if flow is not None and waits.count_rows(flow) <= PIPELINING.max_timed_rows:
            return flow
    return None


def best_hop_timing(waits: Waits, nbytes: int, full: float) -> tuple[Staged | None, bool]:
    """Return the best number of steps for the size, from few on until more cannot gain what they cost.

    Also return whether the best lies between numbers tried: then uneven parts need not be tried, as hop timing covers
    them. `full`: seconds if links were never idle.
    """
    best: tuple[float, int, Flow] | None = None
    first, between = 0, False
    for steps, next_steps in pairwise(STEPS):
        if 2 * steps < PIPELINING.deep * waits.plan.steps:
            continue
        flow = _hop_flow(waits, steps)
        if flow is None:
            break
        predicted, first = flow.time * nbytes + flow.latency, first or steps
        # more steps became slower: the best is behind us, and inside the range if it was not the first number tried
        if best is not None and predicted >= best[0]:
            between = best[1] > first
            break
        best = (predicted, steps, flow)
        # more steps can save at most what exceeds the full rate, but cost latency in proportion
        if flow.time * nbytes - full < flow.latency * (next_steps - steps) / steps:
            between = steps > first
            break
    return (
        (None, False) if best is None else (Staged(waits.to_schedule(best[2]), _step_options(best[1], True)), between)
    )


def _sizes_for(uneven: Uneven, steps: int, quiet: tuple[int, int] = (0, 0)) -> Sizes | None:
    """Return the sizes for `steps` steps; None where it takes more steps, or would be too large."""
    if sum(plan.transfers for plan in uneven.plans) > MOST_ROWS:
        return None
    sizes = uneven.sizes_for(steps, quiet)
    return sizes if sizes is not None and uneven.count_rows(sizes) <= MOST_ROWS else None


def _fastest_uneven(uneven: Uneven, nbytes: int, step_numbers: Sequence[int], full: float) -> Staged | None:
    """Return the best of these numbers of steps for the size: the time falls with steps, then grows with their latency.

    `full`: seconds if links were never idle.
    """
    results: dict[int, tuple[float, Sizes]] = {}
    worse, untried = 0, list(step_numbers)
    few_steps = bool(step_numbers) and step_numbers[-1] <= PIPELINING.few_steps
    while untried:
        steps = untried[0] if few_steps else _next_steps(results, untried, nbytes, full)
        if steps is None:
            break
        untried.remove(steps)
        result = _best_sizes(uneven, steps, nbytes)
        if result is None:
            continue
        worse = 0 if all(result[0] < time for time, _ in results.values()) else worse + 1
        results[steps] = result
        if few_steps and worse == PIPELINING.patience:
            break
    best = min(results, key=lambda steps: results[steps][0], default=None)
    return None if best is None else Staged(uneven.to_schedule(results[best][1]), {"steps": best})


def _next_steps(
    results: Mapping[int, tuple[float, Sizes]], untried: Sequence[int], nbytes: int, full: float
) -> int | None:
    """Return the most promising untried number of steps, or a neighbour of the best; None where none can be better.

    Model: the time without latency falls as 1 / steps towards `full` (fitted to the two nearest numbers); latency grows
    in proportion to steps.
    """
    if not results:
        return untried[len(untried) // 2]

    def seconds(steps: int) -> float:
        near = sorted(results, key=lambda tried: (abs(math.log(tried / steps)), tried))[:2]
        moving = [results[tried][1].time * nbytes for tried in near]
        late = results[near[0]][1].latency * steps / near[0]
        # through the two nearest tried numbers; with one alone, through it and the limit `full` at infinitely many
        # steps
        slope = (moving[0] - (full if len(near) < 2 else moving[1])) / (1 / near[0] - (1 / near[1] if near[1:] else 0))
        return late + max(moving[0] + slope * (1 / steps - 1 / near[0]), full)

    at = min(results, key=lambda steps: results[steps][0])
    # the model may be wrong near the best: try its neighbours if they could be better at all
    enough, sizes = (1 - PIPELINING.min_gain_steps) * results[at][0], results[at][1]
    steps = min(untried, key=seconds)
    if seconds(steps) < enough:
        return steps
    for tried in (max((n for n in untried if n < at), default=at), min((n for n in untried if n > at), default=at)):
        between = any(min(tried, at) < n < max(tried, at) for n in results)
        floor = sizes.time * nbytes if tried < at else full
        if tried != at and not between and floor + sizes.latency * tried / at < enough:
            return tried
    return None


def _best_sizes(uneven: Uneven, steps: int, nbytes: int) -> tuple[float, Sizes] | None:
    """Return the fastest sizes. With few steps it may pay to use no slow paths at the start and at the end."""
    sizes_found = [
        _sizes_for(uneven, steps, quiet) for quiet in (QUIET if steps <= PIPELINING.max_quiet_steps else QUIET[:1])
    ]
    results = [(sizes.time * nbytes + sizes.latency, sizes) for sizes in sizes_found if sizes is not None]
    return min(results, key=itemgetter(0), default=None)


def check_number(option: str, number: object, minimum: int) -> None:
    """Check an option that is a number, if set."""
    if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < minimum):
        raise Invalid(f"option {option}: expected a whole number of {minimum} or more, got {quote(number)}")


def pipe_schedule(
    schedule: Schedule, topology: Topology, pieces: int | None, sizes: Sequence[int | None], profile: Any
) -> Iterator[Schedule]:
    """Yield the schedule in `pieces`; without them, in the best number for every size, or in several numbers without
    a size.
    """
    check_number("pieces", pieces, 1)
    if pieces is not None:
        yield replace(schedule, pieces=pieces)
        return
    usual = RANGE if schedule.steps > 1 else (1,)
    piece_numbers: dict[int, None] = {}
    for nbytes in sizes:
        piece_numbers |= dict.fromkeys(usual if nbytes is None else [best_pieces(schedule, topology, nbytes, profile)])
    yield from (replace(schedule, pieces=number) for number in piece_numbers)


def best_pieces(schedule: Schedule, topology: Topology, nbytes: int, profile: Any = None) -> int:
    """Return the number of pieces with which model alpha-beta is fastest, to within a few thousandths of the time."""

    def seconds(pieces: int) -> float:
        return alpha_beta(replace(schedule, pieces=pieces), topology, profile=profile)(nbytes).seconds

    return least_of(seconds, most_pieces(schedule, nbytes))


def most_pieces(schedule: Schedule, nbytes: int) -> int:
    """Return the number of pieces that leaves PIPELINING.min_bytes of the smallest chunk; 1 for a single step."""
    if schedule.steps < 2:
        return 1
    weights, total_weight = schedule.chunks.weights(schedule.collective)
    smallest = min((weight for weight in weights.tolist() if weight), default=1)
    return max(1, min(PIPELINING.max_pieces, nbytes * smallest // (total_weight * PIPELINING.min_bytes)))


def least_of(seconds: Callable[[int], float], top: int) -> int:
    """Return the number from 1 to `top` that takes least, to within some thousandths of the time.

    The time has one minimum: latency grows with pieces, and the wait for the first piece falls. Some 20 are evaluated.
    """
    seconds = cache(seconds)
    low = at = 1
    # bracket the minimum by factors of PIPELINING.grid, then narrow it
    while at < top and seconds(min(at * PIPELINING.grid, top)) <= seconds(at):
        low, at = at, min(at * PIPELINING.grid, top)
    high = min(at * PIPELINING.grid, top)
    while high - low > 3 and high > 1.02 * low:  # golden section on a logarithmic scale
        span = math.log(high / low)
        lower = min(max(round(low * math.exp(0.382 * span)), low + 1), high - 2)
        upper = min(max(round(low * math.exp(0.618 * span)), lower + 1), high - 1)
        low, high = (low, upper) if seconds(lower) <= seconds(upper) else (lower, high)
    tried = range(low, high + 1) if high - low <= 3 else (low, (low + high) // 2, high)
    return min(tried, key=lambda number: (seconds(number), number))
