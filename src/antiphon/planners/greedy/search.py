"""Search the parameters of planner `greedy`: simulate several runs as long as the effort lasts, and keep the fastest.

    parts   chunks per block: more pipeline better (lower load), but need more steps (higher latency)
    pace    longer steps save latency in the middle of the run, when all ranks have much to forward
    seed    runs with different random choices differ in speed

For a size the search is a hill climb: double the parts while that helps, then try neighbouring paces, then other seeds,
each only if it may still gain (`may_gain`). A run is priced by the model alpha-beta with a barrier after each step: a
step takes the largest latency of its hops plus the load of its fullest link. Effort is counted, not timed.

Example: 1 MB. 4 parts take 90 us, 8 parts 70 us, 16 parts 75 us: keep 8. Pace 0.06 takes 68 us, pace 0 more: keep 0.06.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import Floats, Longs, concat_ranges, pointers
from antiphon.core.schedule import Chunks
from antiphon.core.stairs import add_equal_keys
from antiphon.core.topology import Topology
from antiphon.errors import Unsupported
from antiphon.planners.greedy.hops import Hops, hops_of
from antiphon.planners.greedy.islands import IslandLevel, levels_of
from antiphon.planners.greedy.moves import Moving
from antiphon.planners.greedy.spread import VISITS, Pace, SimulatedTransfers, Spreading, SpreadTask, work_of
from antiphon.planners.greedy.tasks import chunks_of, task_of
from antiphon.planners.shared.reach import suggest_planners

# The length of a step as a fraction of the time elapsed and, near the end, of the time remaining (spread.Pace); 0: all
# steps last one slot.
PACES = (0.0, 0.06, 0.12, 0.25)
FIRST_PACE = 0.12  # the first to try


@dataclass(frozen=True)
class GreedyLimits:
    """Thresholds of the search among greedy runs."""

    effort: int = 1_500_000  # units of work (`spread.work_of`, about a microsecond each) in a unit of effort
    max_rows: int = 2**24  # transfers of a schedule
    few_rows: int = 2**21  # with more transfers than this, parts are not made smaller
    max_work: int = 50_000_000  # units of work of one run
    # kinds of hops with less than this fraction of the capacity into an island (a set of ranks that wide hops join) do
    # not determine the length of a slot, the unit of simulated time
    min_share: float = 0.05
    min_bytes: int = 64  # bytes of a part
    max_ratio: float = 0.995  # another run replaces the best if its time is at most this fraction
    # fractions of a run's latency that another pace, or another seed, may save
    pace_saving: float = 0.5
    seed_saving: float = 0.1
    restarts: int = 8  # runs with other seeds
    # step n lasts at most 1 + rise * n slots (`spread.Pace`): in a mesh more ranks have data to forward in each step
    rise: float = 0.2


GREEDY = GreedyLimits()


@dataclass(frozen=True, eq=False)
class PricedRun:
    """A run of the simulation with its parameters and its cost: `latency` + `load` * nbytes seconds."""

    chunks: Chunks
    run: SimulatedTransfers
    part_count: int
    pace: float
    seed: int
    latency: float  # seconds, of all steps
    load: float  # seconds per byte of nbytes on the fullest links, summed over steps
    least_load: float  # lower bound of `load`

    def seconds(self, nbytes: int) -> float:
        return self.latency + self.load * nbytes

    def may_gain(self, nbytes: int, latency_fraction: float) -> bool:
        """Return whether saving the fraction `latency_fraction` of the latency, and all load above the minimum, is a
        clear gain.
        """
        saved = self.latency * latency_fraction + (self.load - self.least_load) * nbytes
        return saved > (1 - GREEDY.max_ratio) * self.seconds(nbytes)


class GreedySearch:
    """All runs for one collective on one machine."""

    def __init__(self, topology: Topology, collective: Collective, seed: int, effort: float | None) -> None:
        self.topology, self.collective, self.seed = topology, collective, seed
        self.hops = hops_of(topology)
        self.levels = levels_of(self.hops, topology.ranks)
        self.remaining_effort = GREEDY.effort * (effort or 1.0)
        self.tasks: dict[int, tuple[Chunks, SpreadTask]] = {}  # by number of parts
        self.cached_runs: dict[tuple[int, float, int], PricedRun] = {}  # by parts, pace, restart
        link_latency = np.array([kind.latency for kind in topology.types])[topology.link_type]
        ptr = self.hops.routes.ptr
        sums = np.append(0.0, np.cumsum(link_latency[self.hops.routes.links]))
        self.latency: Floats = sums[ptr[1:]] - sums[ptr[:-1]]  # per hop, seconds
        self.hop_resources = _resources_of_hops(topology, self.hops)

    def task_for(self, part_count: int) -> tuple[Chunks, SpreadTask]:
        """Return chunks and simulation task for this number of parts, computed once."""
        if part_count not in self.tasks:
            chunks = chunks_of(self.collective, part_count)
            self.tasks[part_count] = chunks, task_of(self.topology, self.collective, self.hops, chunks)
        return self.tasks[part_count]

    def run_once(self, part_count: int, pace: float, restart: int = 0) -> PricedRun:
        """Return the run with these parameters, cached. Its work is subtracted from the effort.

        `restart`: 0 for the user's seed, 1, 2, ... for further ones.
        """
        key = part_count, pace, restart
        if key not in self.cached_runs:
            chunks, task = self.task_for(part_count)
            seed = self.seed + 1000 * restart  # unlike the seeds that users are likely to try in turn
            lacking = task.want & ~task.have
            # by level, in units in which the capacity of a link is its rate: they are only compared with each other
            least_slots = [level.least_time_for_sets(lacking, self.hops.capacity) for level in self.levels]
            slot = _slot_capacity(self.hops, self.levels, least_slots)
            limits = Pace(rise=GREEDY.rise if pace else 0.0, first=pace, last=pace)
            if task.routes is not None:
                run = Moving(self.hops, task.routes, slot, seed).run(limits)
            else:
                self._check_effort(task, slot)
                run = Spreading(self.hops, task, self.levels, slot, seed).run(limits)
            self.remaining_effort -= run.work
            latency, load = self._price_run(chunks, run)
            self.cached_runs[key] = PricedRun(
                chunks, run, part_count, pace, seed, latency, load, self._least_load(chunks, task)
            )
        return self.cached_runs[key]

    def _check_effort(self, task: SpreadTask, slot: float) -> None:
        """Raise Unsupported if a run would take too long, estimated as one chunk per hop at a time."""
        slots = max(
            (level.least_time_for_sets(task.want & ~task.have, self.hops.capacity / slot) for level in self.levels),
            default=0.0,
        )
        words = task.have.shape[1]
        # a slot visits at most VISITS batches of a kind
        work = sum(work_of(len(batch.hop), words) for batches in self.hops.batches for batch in batches[:VISITS])
        if slots * work > GREEDY.max_work:
            raise Unsupported(
                f"planner greedy: {self.collective.kind} on {self.topology.ranks} ranks in {task.chunks} chunks "
                "takes too long; "
                + suggest_planners(
                    self.topology, self.collective, "flows", "relay", "ring", "compose", other="fewer parts"
                )
            )

    def _price_run(self, chunks: Chunks, run: SimulatedTransfers) -> tuple[float, float]:
        """Return latency and load of a run, with steps as barriers as in model alpha-beta."""
        steps, hops = int(run.step.max(initial=-1)) + 1, len(self.hops)
        weights, scale = chunks.weights(self.collective)  # chunk i has weights[i] / scale of nbytes
        # what each hop carries in each step, then what that puts on links and limits
        pair, load = add_equal_keys(run.step * hops + run.hop, weights[run.chunk], steps * hops)
        step, hop = np.divmod(pair, max(hops, 1))
        step_latency = np.zeros(steps)
        np.maximum.at(step_latency, step, self.latency[hop])
        ptr, resources_of_hops = self.hop_resources
        load_counts = ptr[hop + 1] - ptr[hop]
        step, load, link = (
            np.repeat(step, load_counts),
            np.repeat(load, load_counts),
            resources_of_hops[concat_ranges(ptr[hop], load_counts)],
        )
        resources = len(self.hops.capacity)
        # `capacity` of hops counts in units of `resources.scale` bytes per second
        total = np.bincount(step * resources + link, load.astype(np.float64), minlength=steps * resources)
        # by step the load of the fullest link
        step_load = (total.reshape(steps, resources) / (self.hops.capacity * float(self.topology.resources.scale))).max(
            axis=1, initial=0.0
        )
        return float(step_latency.sum()), float(step_load.sum()) / scale

    def _least_load(self, chunks: Chunks, task: SpreadTask) -> float:
        """Return a lower bound on the load: all chunks that an island needs and lacks must enter it."""
        # islands of each kind must bring in what they need and lack, over the links into them
        missing_sets = [level.island_sets(task.want) & ~level.island_sets(task.have) for level in self.levels]
        counts = [np.bitwise_count(sets).sum(axis=1) for sets in missing_sets]
        times = [level.least_time(count, self.hops.capacity) for level, count in zip(self.levels, counts, strict=True)]
        weights, scale = chunks.weights(self.collective)
        # chunks may differ in weight: count each as the lightest, for a valid bound
        lightest = float(min(weights.tolist(), default=0)) / scale
        return max(times, default=0.0) * lightest / float(self.topology.resources.scale)

    def count_rows(self, part_count: int) -> int:
        """Estimate the number of transfers: the chunks that the ranks want, counted per rank."""
        relation = self.collective.relation
        return len(relation.post_block) * part_count

    def find_fastest(self, nbytes: int, part_count: int | None, pace: float | None) -> PricedRun:
        """Return the fastest run for the size: more parts as long as that helps, then other paces, then other seeds.

        `part_count`, `pace`: the values that the user fixed; None: search them.
        """
        first_pace = FIRST_PACE if pace is None else pace
        fastest = self.run_once(part_count or self.first_part_count(nbytes), first_pace)
        # hill climbing, one parameter after the other: numbers of parts, then paces on both sides of the first, then
        # seeds
        doublings = range(1, 20) if part_count is None else ()  # `_climb` ends long before the last
        part_counts = [fastest.part_count * 2**number for number in doublings]
        fastest = self._climb(nbytes, fastest, ((count, first_pace) for count in part_counts), latency_fraction=0.0)
        if pace is None:
            first_index = PACES.index(first_pace)
            for other_paces in (PACES[:first_index][::-1], PACES[first_index + 1 :]):
                fastest = self._climb(
                    nbytes, fastest, ((fastest.part_count, other) for other in other_paces), GREEDY.pace_saving
                )
        candidates = [run for run in self.cached_runs.values() if self._parts_large_enough(run.part_count, nbytes)]
        fastest = min([fastest, *candidates], key=lambda run: run.seconds(nbytes))
        return self._try_seeds(fastest, lambda run: run.seconds(nbytes), nbytes)

    def find_shortest(self, part_count: int, pace: float) -> PricedRun:
        """Return, of several seeds, the run of least latency, then of least load."""
        return self._try_seeds(self.run_once(part_count, pace), lambda run: (run.latency, run.load))

    def _try_seeds(self, best: PricedRun, cost: Callable[[PricedRun], Any], nbytes: int | None = None) -> PricedRun:
        """Return the best of this run and those with other seeds, tried while they may gain and the effort lasts.

        `nbytes`: the size for which they may gain; None: try all seeds.
        """
        for restart in range(1, GREEDY.restarts):
            if self.remaining_effort < best.run.work or (
                nbytes is not None and not best.may_gain(nbytes, GREEDY.seed_saving)
            ):
                break
            best = min(best, self.run_once(best.part_count, best.pace, restart), key=cost)
        return best

    def _climb(
        self, nbytes: int, fastest: PricedRun, tries: Iterable[tuple[int, float]], latency_fraction: float
    ) -> PricedRun:
        """Try parameters in order while each is faster and the effort lasts; return the fastest run.

        `latency_fraction`: the fraction of the latency that a try may save.
        """
        for part_count, pace in tries:
            work = fastest.run.work * part_count // fastest.part_count
            if (
                self.count_rows(part_count) > GREEDY.few_rows
                or work > self.remaining_effort
                or not self._parts_large_enough(part_count, nbytes)
            ):
                break
            if not fastest.may_gain(nbytes, latency_fraction):
                break
            candidate = self.run_once(part_count, pace)
            if candidate.seconds(nbytes) > GREEDY.max_ratio * fastest.seconds(nbytes):
                break
            fastest = candidate
        return fastest

    def first_part_count(self, nbytes: int) -> int:
        """Return the first number of parts to try: enough that all links of a rank have something to do (four parts per
        rank), but so few that two doublings later there are still few rows."""
        part_count = 1
        while (
            self.collective.blocks * part_count < 4 * self.topology.ranks
            and self.count_rows(2 * part_count) <= GREEDY.few_rows // 4
        ):
            part_count *= 2
        while part_count > 1 and not self._parts_large_enough(part_count, nbytes):
            part_count //= 2
        return part_count

    def _parts_large_enough(self, part_count: int, nbytes: int) -> bool:
        """Return whether the parts of the heaviest block have GREEDY.min_bytes or more."""
        max_weight = int(self.collective.weights.max(initial=1))
        return nbytes * max_weight >= GREEDY.min_bytes * part_count * self.collective.buffer_weight


def _resources_of_hops(topology: Topology, hops: Hops) -> tuple[Longs, Longs]:
    """Return the links that each hop crosses and their shared limits (once per link), as (ptr, resources).

    Those of hop i are resources[ptr[i] : ptr[i + 1]].
    """
    index, resource = topology.resources.with_limits(hops.routes.links.astype(np.int64))
    owner = np.repeat(np.arange(len(hops)), np.diff(hops.routes.ptr))[index]
    order = np.argsort(owner, kind="stable")
    return pointers(owner[order], len(hops)), resource[order]


def _slot_capacity(hops: Hops, levels: tuple[IslandLevel, ...], least_slots: list[float]) -> float:
    """Return the capacity of a link that carries one chunk per slot, the unit of time of a simulation.

    It is that of the narrowest hops that matter at the bottleneck: the level with the largest of `least_slots`.
    """
    longest = max(least_slots, default=0.0)
    if not longest:
        return 1.0
    bottleneck = max(number for number, time in enumerate(least_slots) if time == longest)
    wide_kinds = [
        kind
        for kind in range(bottleneck, len(levels))
        if _entry_fraction(hops, levels[bottleneck], kind) >= GREEDY.min_share
    ]
    return float(min(hops.width[kind] for kind in [bottleneck, *wide_kinds]))


def _entry_fraction(hops: Hops, level: IslandLevel, kind: int) -> float:
    """Return which fraction of the capacity into islands belongs to hops of this kind."""
    cross = level.label[hops.src] != level.label[hops.dst]
    last = hops.routes.links[hops.routes.ptr[1:] - 1].astype(np.int64)
    of_kind = hops.capacity[np.unique(last[cross & (hops.kind == kind)])].sum()
    total = hops.capacity[np.unique(last[cross])].sum()
    return float(of_kind / total) if total else 0.0
