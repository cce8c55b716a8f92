"""Which parts, which pace, which seed: tried one after the other, as long as the effort lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import Floats, Longs, pointers, ranges
from antiphon.core.schedule import Chunks
from antiphon.core.stairs import added
from antiphon.core.topology import Topology
from antiphon.errors import Unsupported
from antiphon.planners.greedy.hops import Hops, hops_of
from antiphon.planners.greedy.islands import Level, levels_of
from antiphon.planners.greedy.moves import Moving
from antiphon.planners.greedy.spread import PASSES, Pace, Run, Spreading, Task, work_of
from antiphon.planners.greedy.tasks import chunks_of, task_of
from antiphon.planners.shared.reach import suggest_planners

EFFORT = 1_500_000  # units of work (see Run) in a unit of effort
MOST_ROWS = 2**24
FEW = 2**21  # rows beyond which parts are not made smaller still
MOST_WORK = 50_000_000  # of one run, in units of work
SHARE = 0.05  # of what can enter a rank: kinds of hops below it do not say how long a slot is
SMALLEST = 64  # bytes of a part
BETTER = 0.995
PACED, SEEDED = 0.5, 0.1  # of the latency: what another pace, and another seed, may save
PACES = (0.0, 0.06, 0.12, 0.25)
RESTARTS = 8
RISE = 0.2  # a mesh fills from its corners inwards: farther each step


@dataclass(frozen=True, eq=False)
class Made:
    """A run, and what it is of."""

    chunks: Chunks
    run: Run
    parts: int
    pace: float
    seed: int
    latency: float  # seconds, of all steps
    load: float  # the part of nbytes over bytes per second that the fullest links take, of all steps
    least: float  # what that is at least

    def seconds(self, nbytes: int) -> float:
        return self.latency + self.load * nbytes

    def may_gain(self, nbytes: int, latency: float) -> bool:
        """Whether a run of the least load, which saves this part of the latency, is worth it."""
        saved = self.latency * latency + (self.load - self.least) * nbytes
        return saved > (1 - BETTER) * self.seconds(nbytes)


class Search:
    """All runs for one collective on one machine."""

    def __init__(self, topology: Topology, collective: Collective, seed: int, effort: float | None) -> None:
        self.topology, self.collective, self.seed = topology, collective, seed
        self.hops = hops_of(topology)
        self.levels = levels_of(self.hops, topology.ranks)
        self.left = EFFORT * (effort or 1.0)
        self.tasks: dict[int, tuple[Chunks, Task]] = {}
        self.known: dict[tuple[int, float, int], Made] = {}
        alpha = np.array([kind.latency for kind in topology.types])[topology.link_type]
        ptr = self.hops.routes.ptr
        sums = np.append(0.0, np.cumsum(alpha[self.hops.routes.links]))
        self.latency: Floats = sums[ptr[1:]] - sums[ptr[:-1]]
        self.loaded = _loaded(topology, self.hops)

    def task(self, parts: int) -> tuple[Chunks, Task]:
        if parts not in self.tasks:
            chunks = chunks_of(self.collective, parts)
            self.tasks[parts] = chunks, task_of(self.topology, self.collective, self.hops, chunks)
        return self.tasks[parts]

    def made(self, parts: int, pace: float, again: int = 0) -> Made:
        """One run; counted."""
        key = parts, pace, again
        if key not in self.known:
            chunks, task = self.task(parts)
            seed = self.seed + 1000 * again
            lacking = task.want & ~task.have
            need = [level.slots(lacking, self.hops.capacity) for level in self.levels]
            slot = _slot(self.hops, self.levels, need)
            how = Pace(RISE if pace else 0.0, pace, pace)
            if task.ways is not None:
                run = Moving(self.hops, task.ways, slot, seed).run(how)
            else:
                self._check(task, slot)
                run = Spreading(self.hops, task, self.levels, slot, seed).run(how)
            self.left -= run.work
            latency, load = self._priced(chunks, run)
            self.known[key] = Made(chunks, run, parts, pace, seed, latency, load, self._least(chunks, task))
        return self.known[key]

    def _check(self, task: Task, slot: float) -> None:
        """Unsupported where a run would take too long: one part at a time, every batch."""
        slots = max(
            (level.slots(task.want & ~task.have, self.hops.capacity / slot) for level in self.levels), default=0.0
        )
        words = task.have.shape[1]
        work = sum(work_of(len(batch.hop), words) for batches in self.hops.batches for batch in batches[:PASSES])
        if slots * work > MOST_WORK:
            raise Unsupported(
                f"planner greedy: {self.collective.kind} on {self.topology.ranks} ranks in {task.chunks} chunks "
                "takes too long; "
                + suggest_planners(
                    self.topology, self.collective, "flows", "relay", "ring", "compose", other="fewer parts"
                )
            )

    def _priced(self, chunks: Chunks, run: Run) -> tuple[float, float]:
        """Steps as barriers, as model alpha-beta has them."""
        steps, hops = int(run.step.max(initial=-1)) + 1, len(self.hops)
        weights, scale = chunks.weights(self.collective)
        pair, load = added(run.step * hops + run.hop, weights[run.chunk], steps * hops)
        step, hop = np.divmod(pair, max(hops, 1))
        late = np.zeros(steps)
        np.maximum.at(late, step, self.latency[hop])
        ptr, loaded = self.loaded
        load_counts = ptr[hop + 1] - ptr[hop]
        step, load, link = (
            np.repeat(step, load_counts),
            np.repeat(load, load_counts),
            loaded[ranges(ptr[hop], load_counts)],
        )
        resources = len(self.hops.capacity)
        total = np.bincount(step * resources + link, load.astype(np.float64), minlength=steps * resources)
        full = (total.reshape(steps, resources) / (self.hops.capacity * float(self.topology.resources.scale))).max(
            axis=1, initial=0.0
        )
        return float(late.sum()), float(full.sum()) / scale

    def _least(self, chunks: Chunks, task: Task) -> float:
        """The load at least: of what some rank of an island wants and none has, all comes in."""
        foreign = [level.gathered(task.want) & ~level.gathered(task.have) for level in self.levels]
        counts = [np.bitwise_count(sets).sum(axis=1) for sets in foreign]
        times = [level.time(count, self.hops.capacity) for level, count in zip(self.levels, counts, strict=True)]
        weights, scale = chunks.weights(self.collective)
        lightest = float(min(weights.tolist(), default=0)) / scale
        return max(times, default=0.0) * lightest / float(self.topology.resources.scale)

    def rows(self, parts: int) -> int:
        """About how many chunks must be brought."""
        relation = self.collective.relation
        return len(relation.post_block) * parts

    def best(self, nbytes: int, parts: int | None, pace: float | None) -> Made:
        """The fastest for the size of those that are tried: more parts as long as that helps, then other paces."""

        first = 0.12 if pace is None else pace
        fastest = self.made(parts or self.begin(nbytes), first)
        more_parts_list = [fastest.parts * 2**at for at in range(1, 20)] if parts is None else []
        fastest = self._faster(nbytes, fastest, ((more_parts, first) for more_parts in more_parts_list), 0.0)
        if pace is None:
            at = PACES.index(first)
            for other_paces in (PACES[:at][::-1], PACES[at + 1 :]):
                fastest = self._faster(nbytes, fastest, ((fastest.parts, other) for other in other_paces), PACED)
        fit = [run for run in self.known.values() if self._fits(run.parts, nbytes)]
        fastest = min([fastest, *fit], key=lambda run: run.seconds(nbytes))
        return self._again(fastest, lambda run: run.seconds(nbytes), nbytes)

    def fewest(self, parts: int, pace: float) -> Made:
        """Of several seeds the one of the least latency, then of the least load."""
        return self._again(self.made(parts, pace), lambda run: (run.latency, run.load))

    def _again(self, best: Made, cost: Callable[[Made], Any], nbytes: int | None = None) -> Made:
        """Other seeds, while they may be worth it and the effort lasts."""
        for again in range(1, RESTARTS):
            if self.left < best.run.work or (nbytes is not None and not best.may_gain(nbytes, SEEDED)):
                break
            best = min(best, self.made(best.parts, best.pace, again), key=cost)
        return best

    def _faster(self, nbytes: int, fastest: Made, tries: Iterable[tuple[int, float]], latency: float) -> Made:
        """One after the other, as long as that is faster and the effort lasts, and as it may be worth it if they save
        this part of the latency."""
        for parts, pace in tries:
            work = fastest.run.work * parts // fastest.parts
            if self.rows(parts) > FEW or work > self.left or not self._fits(parts, nbytes):
                break
            if not fastest.may_gain(nbytes, latency):
                break
            tried = self.made(parts, pace)
            if tried.seconds(nbytes) > BETTER * fastest.seconds(nbytes):
                break
            fastest = tried
        return fastest

    def begin(self, nbytes: int) -> int:
        """Parts to begin with: so that all links of a rank have something to do."""
        parts = 1
        while self.collective.blocks * parts < 4 * self.topology.ranks and self.rows(2 * parts) <= FEW // 4:
            parts *= 2
        while parts > 1 and not self._fits(parts, nbytes):
            parts //= 2
        return parts

    def _fits(self, parts: int, nbytes: int) -> bool:
        top = int(self.collective.weights.max(initial=1))
        return nbytes * top >= SMALLEST * parts * self.collective.buffer_weight


def _loaded(topology: Topology, hops: Hops) -> tuple[Longs, Longs]:
    """The links that a hop crosses, and their shared limits, once for each link: those of hop i from ptr[i] on."""
    resources, link = topology.resources, hops.routes.links.astype(np.int64)
    owner = np.repeat(np.arange(len(hops)), np.diff(hops.routes.ptr))
    limits_per_link = resources.limit_ptr[link + 1] - resources.limit_ptr[link]
    shared = resources.limit_of[ranges(resources.limit_ptr[link], limits_per_link)].astype(np.int64)
    owner, resource = np.concatenate([owner, np.repeat(owner, limits_per_link)]), np.concatenate([link, shared])
    order = np.argsort(owner, kind="stable")
    return pointers(owner[order], len(hops)), resource[order]


def _slot(hops: Hops, levels: tuple[Level, ...], need: list[float]) -> float:
    """The capacity that brings one chunk in a slot: of the narrowest hops that matter where it takes longest. `need`:
    how long it takes, of every level."""
    longest = max(need, default=0.0)
    if not longest:
        return 1.0
    at = max(number for number, time in enumerate(need) if time == longest)
    wide_kinds = [number for number in range(at, len(levels)) if _opened(hops, levels[at], number) >= SHARE]
    return float(min(hops.width[number] for number in [at, *wide_kinds]))


def _opened(hops: Hops, level: Level, kind: int) -> float:
    """The part of what enters the islands that comes over hops of this kind."""
    cross = level.label[hops.src] != level.label[hops.dst]
    last = hops.routes.links[hops.routes.ptr[1:] - 1].astype(np.int64)
    of_kind = hops.capacity[np.unique(last[cross & (hops.kind == kind)])].sum()
    every = hops.capacity[np.unique(last[cross])].sum()
    return float(of_kind / every) if every else 0.0
