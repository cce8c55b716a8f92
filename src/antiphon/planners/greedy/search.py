"""Which parts, which pace, which seed: tried one after the other, as long as the effort lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import Floats, Longs, ranges
from antiphon.core.schedule import Chunks
from antiphon.core.topology import Topology
from antiphon.errors import Unsupported
from antiphon.planners.greedy.hops import Hops, hops_of
from antiphon.planners.greedy.islands import Level, levels_of
from antiphon.planners.greedy.moves import Moving
from antiphon.planners.greedy.spread import BATCH, PASSES, WORDS, Pace, Run, Spreading, Task
from antiphon.planners.greedy.tasks import chunks_of, task_of

EFFORT = 2_000_000  # units of work (see Run) in a unit of effort
MOST_ROWS = 2**24
FEW = 2**21  # rows beyond which parts are not made smaller still
MOST_WORK = 50_000_000  # of one run, in units of work
SHARE = 0.05  # of what can enter a rank: kinds of hops below it do not say how long a slot is
SMALLEST = 64  # bytes of a part
BETTER = 0.995
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

    def seconds(self, nbytes: int) -> float:
        return self.latency + self.load * nbytes


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
            slot = _slot(self.hops, self.levels, task)
            how = Pace(RISE if pace else 0.0, pace, pace)
            if task.ways is not None:
                run = Moving(self.hops, task.ways, slot, seed).run(how)
            else:
                self._check(task, slot)
                run = Spreading(self.hops, task, self.levels, slot, seed).run(how)
            self.left -= run.work
            latency, load = self._priced(chunks, run)
            self.known[key] = Made(chunks, run, parts, pace, seed, latency, load)
        return self.known[key]

    def _check(self, task: Task, slot: float) -> None:
        """Unsupported where a run would take too long: one part at a time, every batch."""
        slots = max(
            (level.slots(task.want & ~task.have, self.hops.capacity / slot) for level in self.levels), default=0.0
        )
        words = task.have.shape[1]
        work = sum(
            BATCH + len(batch.hop) * words // WORDS for batches in self.hops.batches for batch in batches[:PASSES]
        )
        if slots * work > MOST_WORK:
            raise Unsupported(
                f"planner greedy: {self.collective.kind} on {self.topology.ranks} ranks in {task.chunks} chunks "
                "takes too long; use fewer parts, or planner flows or relay"
            )

    def _priced(self, chunks: Chunks, run: Run) -> tuple[float, float]:
        """Steps as barriers, as model alpha-beta has them."""
        hops, topology = self.hops, self.topology
        steps = int(run.step.max(initial=-1)) + 1
        late = np.zeros(steps)
        np.maximum.at(late, run.step, self.latency[run.hop])
        weights, scale = chunks.weights(self.collective)
        many = np.diff(hops.routes.ptr)[run.hop]
        link = hops.routes.links[ranges(hops.routes.ptr[run.hop], many)].astype(np.int64)
        row: Longs = np.repeat(np.arange(len(run.hop)), many)
        resources = topology.resources
        if len(resources.limit_of):
            more = resources.limit_ptr[link + 1] - resources.limit_ptr[link]
            shared = resources.limit_of[ranges(resources.limit_ptr[link], more)].astype(np.int64)
            link, row = np.concatenate([link, shared]), np.concatenate([row, np.repeat(row, more)])
        things = len(resources.klass)
        key = run.step[row] * things + link
        load = np.bincount(key, weights[run.chunk[row]].astype(np.float64), minlength=steps * things)
        full = (load.reshape(steps, things) / (hops.capacity * float(resources.scale))).max(axis=1, initial=0.0)
        return float(late.sum()), float(full.sum()) / scale

    def rows(self, parts: int) -> int:
        """About how many chunks must be brought."""
        relation = self.collective.relation
        return len(relation.post_block) * parts

    def best(self, nbytes: int, parts: int | None, pace: float | None) -> Made:
        """The fastest for the size of those that are tried: more parts as long as that helps, then other paces."""

        first = 0.12 if pace is None else pace
        found = self.made(parts or self.begin(nbytes), first)
        more = [found.parts * 2**at for at in range(1, 20)] if parts is None else []
        found = self._faster(nbytes, found, ((more_parts, first) for more_parts in more))
        if pace is None:
            at = PACES.index(first)
            for way in (PACES[:at][::-1], PACES[at + 1 :]):
                found = self._faster(nbytes, found, ((found.parts, other) for other in way))
        return self._again(found, lambda made: made.seconds(nbytes))

    def fewest(self, parts: int, pace: float) -> Made:
        """Of several seeds the one of the least latency, then of the least load."""
        return self._again(self.made(parts, pace), lambda made: (made.latency, made.load))

    def _again(self, found: Made, cost: Callable[[Made], Any]) -> Made:
        """Other seeds, while the effort lasts."""
        for again in range(1, RESTARTS):
            if self.left < found.run.work:
                break
            found = min(found, self.made(found.parts, found.pace, again), key=cost)
        return found

    def _faster(self, nbytes: int, found: Made, tries: Iterable[tuple[int, float]]) -> Made:
        """One after the other, as long as that is faster and the effort lasts."""
        for parts, pace in tries:
            work = found.run.work * parts // found.parts
            if self.rows(parts) > FEW or work > self.left or not self._fits(parts, nbytes):
                break
            tried = self.made(parts, pace)
            if tried.seconds(nbytes) > BETTER * found.seconds(nbytes):
                break
            found = tried
        return found

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


def _slot(hops: Hops, levels: tuple[Level, ...], task: Task) -> float:
    """The capacity that brings one chunk in a slot: of the narrowest hops that matter where it takes longest."""
    lacking = task.want & ~task.have
    need = [level.slots(lacking, hops.capacity) for level in levels]
    longest = max(need, default=0.0)
    if not longest:
        return 1.0
    at = max(number for number, time in enumerate(need) if time == longest)
    few = [number for number in range(at, len(levels)) if _opened(hops, levels[at], number) >= SHARE]
    return float(min(hops.width[number] for number in [at, *few]))


def _opened(hops: Hops, level: Level, kind: int) -> float:
    """The part of what enters the islands that comes over hops of this kind."""
    cross = level.label[hops.src] != level.label[hops.dst]
    last = hops.routes.links[hops.routes.ptr[1:] - 1].astype(np.int64)
    mine = hops.capacity[np.unique(last[cross & (hops.kind == kind)])].sum()
    every = hops.capacity[np.unique(last[cross])].sum()
    return float(mine / every) if every else 0.0
