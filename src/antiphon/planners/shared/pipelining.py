"""Choose how to pipeline a schedule for a message size: equal pieces, uneven parts, or start times per hop.

Input: one or several unpipelined schedules of a collective (here called plans), the options of the planner, and message
sizes. Output (`stage_plans`): the schedule that model alpha-beta predicts to be fastest at each size.

A plan of S steps in n equal pieces (slices) takes S + n - 1 steps, each 1/n as long plus the latency of a step:

    time(n) = (S + n - 1) * (latency + bytes / (n * rate))

With few pieces links are idle while the pipeline fills and drains; with many, latency is paid often. `pipe_schedule`
finds the best n (the time has one minimum, so a golden-section search suffices). Two refinements use the idle ends:

    uneven parts   (uneven.py)      several plans, or chunks of one, start in any step with any amount of data
    hop timing     (hop_timing.py)  every hop gets its own start times (option `waits`)

`stage_plans` tries all three. Both refinements multiply the number of chunks, so they must be faster by a margin
(`min_gain_uneven`, `min_gain_timed` of `PIPELINING`), and are skipped if equal pieces are near a lower bound.

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
from antiphon.planners.shared.hop_timing import HopClasses, HopProgress, HopTimer
from antiphon.planners.shared.uneven import MOST_ROWS, StartSizes, UnevenStarts, longest_chunk

# numbers of steps that uneven parts and hop timing are tried with
STEPS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 56, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512)
EXTRA_STEPS = (0, 1, 2, 3, 5, 8, 16, 32, 48, 64, 96, 128)  # without a size: steps beyond the fewest, one schedule each
# A quiet step uses only paths of the least latency. Numbers of quiet (first, last) steps that are tried:
QUIET = ((0, 0), (1, 1), (1, 0), (0, 1))
PIECE_NUMBERS = (1, 4, 16, 64, 256, 1024)  # without a size: numbers of pieces, one schedule each


@dataclass(frozen=True)
class PipeliningLimits:
    """Thresholds of the choice between equal pieces, uneven parts and hop timing."""

    usual_bytes: int = 2**20  # the message size for which steps are chosen without a size
    small_bytes: int = 2**16  # likewise, where fewer steps over slow paths are faster for small messages
    min_gain_uneven: float = 1.005  # uneven parts must be this much faster than equal pieces: they multiply the chunks
    min_gain_timed: float = 1.001  # hop timing must be this much faster than uneven parts
    max_fewer_steps: int = 5  # uneven parts are tried from 1 / 5 of the steps of the best equal pieces on
    max_quiet_steps: int = 12  # with at most this many steps, quiet steps (QUIET) are tried
    patience: int = 2  # the search ends after this many numbers of steps in turn that are no better
    few_steps: int = 24  # up to this many, all numbers of STEPS are tried; above, those that `_next_steps` suggests
    min_gain_steps: float = 5e-4  # fraction of the time that another number of steps must be likely to save
    # hop timing is tried if the time of equal pieces, as a multiple of the time at full rate, lies between these
    timed_from: float = 1.005
    timed_to: float = 2.0  # above, latency dominates
    max_unknowns: int = 7000  # classes of hops times steps in the linear program of hop timing: four CPU seconds
    max_timed_rows: int = 300_000  # transfers of a schedule with hop timing
    # the classes of hop timing must fit a linear program of this many times the plan's steps; the search for the best
    # number of steps begins at half of that
    class_steps: int = 5
    max_pieces: int = 2**20  # pieces of a message
    min_bytes: int = 64  # bytes of a piece
    grid: int = 4  # pieces grow by this factor until the time grows, too; the best lies within two such factors


PIPELINING = PipeliningLimits()
GOLDEN = 0.618  # of a range, where a golden-section search divides it


@dataclass(frozen=True)
class PipelineOptions:
    """Options `pieces`, `steps` and `waits` (hop timing) of a planner, the message sizes, and the machine's profile.

    None leaves a choice to the search for the fastest schedule; a size of None is any size.
    """

    planner: str  # its name, for errors
    pieces: int | None = None
    steps: int | None = None
    sizes: tuple[int | None, ...] = (None,)
    profile: Any = None
    waits: bool | None = False

    def __post_init__(self) -> None:
        """Raise Invalid for options that exclude each other."""
        if self.pieces is not None and self.steps is not None:
            raise Invalid(f"planner {self.planner}: give pieces (equal ones) or steps (uneven parts), not both")
        if self.waits and self.steps is None:
            raise Invalid(f"planner {self.planner}: waits is for a given number of steps; give steps, too")


@dataclass(frozen=True, eq=False)
class PipelinedSchedule:
    """A schedule, the options that produce it, and the number of its plan (used for equal pieces only)."""

    schedule: Schedule
    options: dict[str, int]
    plan: int = 0


@dataclass(frozen=True, eq=False)
class PipelinePlans:
    """Plans to pipeline for several sizes; intermediate results are cached.

    `mix`: schedules to mix in uneven parts instead of the plans; all chunks of each start together. If not all fit the
    linear program, the last are left out, but at least `min_mixed` stay.
    """

    plans: Sequence[Schedule]
    topology: Topology
    mix: Sequence[Schedule] = ()
    min_mixed: int = 1

    @cached_property
    def uneven(self) -> UnevenStarts:
        """The plans (or `mix`) prepared for uneven parts."""
        return UnevenStarts(self.mix or self.plans, self.topology, together=bool(self.mix), min_plans=self.min_mixed)

    @cached_property
    def timer(self) -> HopTimer | None:
        """The plan prepared for hop timing; None with several plans."""
        return None if self.mix or len(self.plans) > 1 else HopTimer(self.plans[0], self.topology)


def stage_plans(prepared: PipelinePlans, options: PipelineOptions) -> Iterator[PipelinedSchedule]:
    """Yield pipelined schedules for all sizes: as the options say, else the fastest; several for a size of None.

    Option `pieces` gives one schedule, the same for all sizes.
    """
    for nbytes in options.sizes if options.pieces is None else options.sizes[:1]:
        yield from _stage_size(nbytes, prepared, options)


def _stage_size(nbytes: int | None, prepared: PipelinePlans, options: PipelineOptions) -> Iterator[PipelinedSchedule]:
    """Yield pipelined schedules for one size. Option `pieces` applies to the first plan, `steps` to all together."""
    plans, topology = prepared.plans, prepared.topology
    # option `steps`: uneven parts of all plans, or hop timing
    if options.steps is not None:
        moves_data = bool(prepared.uneven.classes)
        yield PipelinedSchedule(
            _in_steps(prepared, options, nbytes) if moves_data else plans[0],
            _step_options(options.steps, bool(options.waits)),
        )
        return
    # otherwise every plan in equal pieces first
    equal_variants = [
        PipelinedSchedule(piece_schedule, {"pieces": int(piece_schedule.pieces)}, number)
        for number, plan in enumerate(plans if options.pieces is None else plans[:1])
        # without a size only the first plan, the deepest, gets the option `pieces`
        for piece_schedule in pipe_schedule(
            plan, topology, 1 if number and nbytes is None else options.pieces, [nbytes], options.profile
        )
    ]
    if options.pieces is not None or max(plan.steps for plan in plans) < 2:
        yield from equal_variants
    elif nbytes is None:
        yield from equal_variants
        yield from _step_variants(prepared.uneven)
    else:
        yield _fastest_variant(equal_variants, prepared, options, nbytes)


def _step_options(steps: int, waits: bool) -> dict[str, int]:
    """Return the options of a schedule with this number of steps."""
    return {"steps": steps, "waits": True} if waits else {"steps": steps}


def _step_variants(uneven: UnevenStarts) -> Iterator[PipelinedSchedule]:
    """Yield schedules in uneven parts with several numbers of steps, for an unknown size."""
    for extra_steps in EXTRA_STEPS:
        steps = uneven.least_steps + extra_steps
        best = [_best_sizes(uneven, steps, nbytes) for nbytes in (PIPELINING.usual_bytes, PIPELINING.small_bytes)]
        for sizes in dict.fromkeys(starts for _, starts in filter(None, best)):
            yield PipelinedSchedule(uneven.to_schedule(sizes), {"steps": steps})


def _fastest_variant(
    equal_variants: Sequence[PipelinedSchedule], prepared: PipelinePlans, options: PipelineOptions, nbytes: int
) -> PipelinedSchedule:
    """Return the fastest of equal pieces, uneven parts and hop timing; the latter two only where they may be faster."""
    plan, topology = prepared.plans[0], prepared.topology

    def seconds(candidate: PipelinedSchedule) -> float:
        """Return the predicted time of a candidate."""
        return alpha_beta(candidate.schedule, topology, profile=options.profile)(nbytes).seconds

    best = min(equal_variants, key=seconds)
    rate, quickest = throughput(plan, topology), min((kind.latency for kind in topology.types), default=0.0)
    full_rate_time = float(nbytes / rate) if rate else 0.0

    def floor(steps: int) -> float:
        """Return a lower bound on the time in this many steps; by the machine's own figures, not by a profile's."""
        return full_rate_time + steps * quickest

    # near the lower bound nothing can be gained
    if (
        prepared.timer is not None
        and options.profile is None
        and seconds(best) <= PIPELINING.min_gain_uneven * floor(longest_chunk(plan))
    ):
        return best
    # hop timing gains nothing near the full rate, nor where latency dominates
    timed_plan, is_interior = None, False
    if (
        prepared.timer is not None
        and options.waits is None
        and PIPELINING.timed_from * full_rate_time < seconds(best) < PIPELINING.timed_to * full_rate_time
    ):
        timed_plan, is_interior = best_hop_timing(prepared.timer, nbytes, full_rate_time)
    uneven_plan = None
    if not is_interior:
        # uneven parts waste less at the ends, so they need fewer steps than the best number of equal pieces
        equal_steps = pipelined_steps(best.schedule)
        min_steps = max(equal_steps // PIPELINING.max_fewer_steps, prepared.uneven.least_steps)
        step_numbers = [steps for steps in STEPS if min_steps <= steps <= equal_steps]
        if timed_plan is not None and options.profile is None:
            # leave out what cannot beat hop timing; from long lists, all or nothing: their search interpolates
            target = PIPELINING.min_gain_timed * seconds(timed_plan)
            useful = [steps for steps in step_numbers if floor(steps) < target]
            if not useful or step_numbers[-1] <= PIPELINING.few_steps:
                step_numbers = useful
        uneven_plan = _fastest_uneven(prepared.uneven, nbytes, step_numbers, full_rate_time)
        if uneven_plan is not None and seconds(uneven_plan) * PIPELINING.min_gain_uneven < seconds(best):
            best = uneven_plan
    if timed_plan is not None and seconds(timed_plan) * (
        PIPELINING.min_gain_timed if best is uneven_plan else PIPELINING.min_gain_uneven
    ) < seconds(best):
        best = timed_plan
    return best


def _in_steps(prepared: PipelinePlans, options: PipelineOptions, nbytes: int | None) -> Schedule:
    """Return the schedule for the requested number of steps (option `steps`); raises Unsupported if there is none."""
    steps = options.steps
    assert steps is not None
    if steps < prepared.uneven.least_steps:
        raise Unsupported(f"planner {options.planner}: takes {prepared.uneven.least_steps} steps or more; give as many")
    if options.waits:
        return _in_time(prepared.timer, steps, options)
    best = _best_sizes(prepared.uneven, steps, PIPELINING.usual_bytes if nbytes is None else nbytes)
    if best is None:
        raise Unsupported(f"planner {options.planner}: too large for uneven parts in {steps} steps; use pieces instead")
    _, sizes = best
    return prepared.uneven.to_schedule(sizes)


def _in_time(timer: HopTimer | None, steps: int, options: PipelineOptions) -> Schedule:
    """Return the schedule with hop timing (options `steps` and `waits`); raises Unsupported if there is none."""
    if timer is None or timer.plan.joint is not None:
        raise Unsupported(f"planner {options.planner}: hops of such a plan have no time of their own; leave waits out")
    if timer.plan.transfers > PIPELINING.max_timed_rows:
        raise Unsupported(
            f"planner {options.planner}: {timer.plan.transfers} transfers; up to {PIPELINING.max_timed_rows} may wait; "
            "leave waits out"
        )
    class_levels = list(_class_levels(timer, steps))
    progress = _hop_progress(timer, steps)
    if progress is not None:
        return timer.to_schedule(progress)
    min_steps = min((hops.steps for hops in class_levels), default=0)
    if steps < min_steps:
        raise Unsupported(f"planner {options.planner}: hops that wait take {min_steps} steps or more; give as many")
    why = (
        "too large for"
        if all(timer.progress_for(hops, steps) is not None for hops in class_levels)
        else "no solution was found for"
    )
    raise Unsupported(f"planner {options.planner}: {why} hops that wait in {steps} steps; leave waits out")


def _class_levels(timer: HopTimer, steps: int) -> Iterator[HopClasses]:
    """Yield the classes of hops whose linear program is small enough, the finest first.

    For few steps they are no finer than those that the search for the best number of steps uses: so the result depends
    on the number of steps alone.
    """
    yield from timer.class_levels(PIPELINING.max_unknowns // max(steps, PIPELINING.class_steps * timer.plan.steps))


def _hop_progress(timer: HopTimer, steps: int) -> HopProgress | None:
    """Return the timing of the finest classes of hops that does not cut chunks into too many; None if there is none."""
    if timer.plan.transfers > PIPELINING.max_timed_rows or timer.plan.joint is not None:
        return None
    for hops in _class_levels(timer, steps):
        progress = timer.progress_for(hops, steps)
        if progress is not None and timer.count_rows(progress) <= PIPELINING.max_timed_rows:
            return progress
    return None


def best_hop_timing(timer: HopTimer, nbytes: int, full_rate_time: float) -> tuple[PipelinedSchedule | None, bool]:
    """Return the schedule with hop timing in the best number of steps, tried upwards until more cannot be faster.

    Also return whether that number is neither the first nor the last tried: then uneven parts need not be tried, as
    they are a special case of hop timing. `full_rate_time`: seconds if links were never idle.
    """
    best_seconds, best_steps = math.inf, 0
    best_progress: HopProgress | None = None
    first, is_interior = 0, False
    for steps, next_steps in pairwise(STEPS):
        if steps < PIPELINING.class_steps * timer.plan.steps / 2:
            continue
        progress = _hop_progress(timer, steps)
        if progress is None:
            break
        predicted, first = progress.time * nbytes + progress.latency, first or steps
        # more steps became slower: the best is behind us, and inside the range if it was not the first number tried
        if predicted >= best_seconds:
            is_interior = best_steps > first
            break
        best_seconds, best_steps, best_progress = predicted, steps, progress
        # more steps can save at most the time beyond that at full rate, but add latency in proportion to their number
        if progress.time * nbytes - full_rate_time < progress.latency * (next_steps - steps) / steps:
            is_interior = steps > first
            break
    if best_progress is None:
        return None, False
    return PipelinedSchedule(timer.to_schedule(best_progress), _step_options(best_steps, waits=True)), is_interior


def _sizes_for(uneven: UnevenStarts, steps: int, quiet: tuple[int, int] = (0, 0)) -> StartSizes | None:
    """Return how much starts in each of `steps` steps; None if impossible, or with too many transfers."""
    if sum(plan.transfers for plan in uneven.plans) > MOST_ROWS:
        return None
    sizes = uneven.sizes_for(steps, quiet)
    return sizes if sizes is not None and uneven.count_rows(sizes) <= MOST_ROWS else None


def _fastest_uneven(
    uneven: UnevenStarts, nbytes: int, step_numbers: Sequence[int], full_rate_time: float
) -> PipelinedSchedule | None:
    """Return the schedule in uneven parts in the best of these numbers of steps; None if none is possible.

    With more steps the time falls, then grows with their latency. `full_rate_time`: seconds if links were never idle.
    """
    results: dict[int, tuple[float, StartSizes]] = {}  # number of steps -> seconds, starts
    no_gains, untried = 0, list(step_numbers)
    few_steps = bool(step_numbers) and step_numbers[-1] <= PIPELINING.few_steps
    while untried:
        steps = untried[0] if few_steps else _next_steps(results, untried, nbytes, full_rate_time)
        if steps is None:
            break
        untried.remove(steps)
        result = _best_sizes(uneven, steps, nbytes)
        if result is None:
            continue
        seconds, sizes = result
        no_gains = 0 if all(seconds < other for other, _ in results.values()) else no_gains + 1
        results[steps] = seconds, sizes
        if few_steps and no_gains == PIPELINING.patience:
            break
    best = min(results, key=lambda steps: results[steps][0], default=None)
    return None if best is None else PipelinedSchedule(uneven.to_schedule(results[best][1]), {"steps": best})


def _next_steps(
    results: Mapping[int, tuple[float, StartSizes]], untried: Sequence[int], nbytes: int, full_rate_time: float
) -> int | None:
    """Return the most promising untried number of steps, or a neighbour of the best; None if none can be better.

    Model: the time on links falls with 1 / steps towards `full_rate_time`, fitted to the two nearest numbers tried;
    latency grows in proportion to steps.
    """
    if not results:
        return untried[len(untried) // 2]

    def seconds(steps: int) -> float:
        """Return the time that the model predicts for an untried number of steps."""
        nearest = sorted(results, key=lambda tried: (abs(math.log(tried / steps)), tried))[:2]
        wire_times = [results[tried][1].time * nbytes for tried in nearest]
        latency_seconds = results[nearest[0]][1].latency * steps / nearest[0]
        # a line in 1 / steps through the two nearest numbers tried; with a single one, through (0, `full_rate_time`)
        slope = (wire_times[0] - (full_rate_time if len(nearest) < 2 else wire_times[1])) / (
            1 / nearest[0] - (1 / nearest[1] if nearest[1:] else 0)
        )
        return latency_seconds + max(wire_times[0] + slope * (1 / steps - 1 / nearest[0]), full_rate_time)

    best_steps = min(results, key=lambda steps: results[steps][0])
    # the model may be wrong near the best: try its neighbours if they could be better at all
    best_seconds, sizes = results[best_steps]
    target = (1 - PIPELINING.min_gain_steps) * best_seconds
    steps = min(untried, key=seconds)
    if seconds(steps) < target:
        return steps
    below, above = (n for n in untried if n < best_steps), (n for n in untried if n > best_steps)
    for steps in (max(below, default=best_steps), min(above, default=best_steps)):
        is_tried_between = any(min(steps, best_steps) < n < max(steps, best_steps) for n in results)
        # the least time on links: with fewer steps no less than now, with more it may fall to that at the full rate
        floor = sizes.time * nbytes if steps < best_steps else full_rate_time
        if steps != best_steps and not is_tried_between and floor + sizes.latency * steps / best_steps < target:
            return steps
    return None


def _best_sizes(uneven: UnevenStarts, steps: int, nbytes: int) -> tuple[float, StartSizes] | None:
    """Return the fastest starts in this number of steps, with their time; None if there are none.

    If the steps are few, quiet first and last steps are tried, too (QUIET).
    """
    starts = [
        _sizes_for(uneven, steps, quiet) for quiet in (QUIET if steps <= PIPELINING.max_quiet_steps else QUIET[:1])
    ]
    results = [(sizes.time * nbytes + sizes.latency, sizes) for sizes in starts if sizes is not None]
    return min(results, key=itemgetter(0), default=None)


def pipe_schedule(
    schedule: Schedule, topology: Topology, pieces: int | None, sizes: Sequence[int | None], profile: Any
) -> Iterator[Schedule]:
    """Yield the schedule in `pieces` slices; None: in the best number for every size, several without a size."""
    if pieces is not None:
        if isinstance(pieces, bool) or not isinstance(pieces, int) or pieces < 1:
            raise Invalid(f"option pieces: expected a whole number of 1 or more, got {quote(pieces)}")
        yield replace(schedule, pieces=pieces)
        return
    choices = PIECE_NUMBERS if schedule.steps > 1 else (1,)
    piece_numbers: dict[int, None] = {}  # an ordered set
    for nbytes in sizes:
        piece_numbers |= dict.fromkeys(
            choices if nbytes is None else [best_pieces(schedule, topology, nbytes, profile)]
        )
    yield from (replace(schedule, pieces=number) for number in piece_numbers)


def best_pieces(schedule: Schedule, topology: Topology, nbytes: int, profile: Any = None) -> int:
    """Return the number of pieces with which model alpha-beta is fastest, to within a few thousandths of the time."""

    def seconds(pieces: int) -> float:
        """Return the predicted time in this number of pieces."""
        return alpha_beta(replace(schedule, pieces=pieces), topology, profile=profile)(nbytes).seconds

    return find_least(seconds, max_pieces_for(schedule, nbytes))


def max_pieces_for(schedule: Schedule, nbytes: int) -> int:
    """Return the number of pieces with which those of the smallest chunk have PIPELINING.min_bytes; 1 for one step."""
    if schedule.steps < 2:
        return 1
    weights, total_weight = schedule.chunks.weights(schedule.collective)
    smallest = min((weight for weight in weights.tolist() if weight), default=1)
    return max(1, min(PIPELINING.max_pieces, nbytes * smallest // (total_weight * PIPELINING.min_bytes)))


def find_least(seconds: Callable[[int], float], top: int) -> int:
    """Return the number from 1 to `top` with the least `seconds(number)`, to within some thousandths of it.

    The time has one minimum: latency grows with pieces, and the wait for the first piece falls. Some 20 are tried.
    """
    seconds = cache(seconds)
    low = at = 1
    # bracket the minimum by factors of PIPELINING.grid, then narrow it
    while at < top and seconds(min(at * PIPELINING.grid, top)) <= seconds(at):
        low, at = at, min(at * PIPELINING.grid, top)
    high = min(at * PIPELINING.grid, top)
    # golden section on a logarithmic scale, until 2 % remain: near the minimum that changes the time by less
    while high - low > 3 and high > 1.02 * low:
        span = math.log(high / low)
        lower = min(max(round(low * math.exp((1 - GOLDEN) * span)), low + 1), high - 2)
        upper = min(max(round(low * math.exp(GOLDEN * span)), lower + 1), high - 1)
        low, high = (low, upper) if seconds(lower) <= seconds(upper) else (lower, high)
    tried = range(low, high + 1) if high - low <= 3 else (low, (low + high) // 2, high)
    return min(tried, key=lambda number: (seconds(number), number))
