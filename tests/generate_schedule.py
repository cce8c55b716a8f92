"""Random valid schedules of any collective on any machine, by construction.

Chunks are planned one by one, each in its own way: a tree that gathers partial sums and one that spreads the
result, a ring of exchanges in one step, recursive doubling, everybody to everybody. Before that, at times, a
phase of arbitrary legal transfers (double counts and overwritten values included), with the inputs kept aside
in another slot; after it, redundant and dead transfers. All goes over random hops, relays included.
"""

import math
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from oracle import Row, Ways, relation_of, run

from antiphon.core.collective import Collective
from antiphon.core.routes import Routes
from antiphon.core.schedule import COPY, REDUCE, Chunks, Schedule
from antiphon.core.topology import Topology

Cell = tuple[int, int]  # (rank, slot)


def schedule(rng: random.Random, collective: Collective, topology: Topology) -> Schedule:
    """A legal schedule whose outcome is right."""
    chunks = _chunks(rng, collective)
    empty = Schedule(collective, chunks, *(np.zeros(0, np.int32) for _ in range(5)))
    have, need = relation_of(empty)
    ways = Ways(topology)
    near = {a: [b for b in range(topology.ranks) if b != a and ways.simple(a, b)] for a in range(topology.ranks)}
    rows: list[Row] = []
    for chunk, block in enumerate(chunks.block.tolist()):
        held: dict[int, Counter[int]] = defaultdict(Counter)
        for rank, name in have.get(block, []):
            held[rank][name] += 1
        goals = {rank: Counter(want) for rank, want in need.get(block, [])}
        rows += _Plan(rng, chunk, near, dict(held), goals).rows()
    rows, table = _routed(rng, rows, ways)
    rows = _spread(rng, rows)
    rng.shuffle(rows)
    columns = [np.array(c, np.int32) for c in zip(*rows, strict=True)] or [np.zeros(0, np.int32)] * 8
    step, chunk_, src, src_slot, dst, dst_slot, op, route = columns
    return Schedule(
        collective, chunks, step, chunk_, src, dst, op.astype(np.uint8),
        route, src_slot, dst_slot, table, _pieces(rng, len(chunks)),
    )  # fmt: skip


def _chunks(rng: random.Random, collective: Collective) -> Chunks:
    """Every block cut into one to three parts of unequal shares, numbered in any order."""
    cuts, whole = [], 1
    most = 3 if collective.blocks < 10 else rng.choice([1, 1, 2])
    uniform = rng.random() < 0.3
    for _ in range(collective.blocks):
        sizes = [1 if uniform else rng.randint(1, 7) for _ in range(rng.randint(1, most))]
        cuts.append(sizes)
        whole = math.lcm(whole, sum(sizes))
    listed = []
    for block, sizes in enumerate(cuts):
        at = 0
        for size in sizes:
            share = size * whole // sum(sizes)
            listed.append((block, at, share))
            at += share
    rng.shuffle(listed)
    block_, offset, share_ = (np.array(c, np.int64) for c in zip(*listed, strict=True))
    return Chunks(block_.astype(np.int32), offset, share_, whole)


def _pieces(rng: random.Random, chunks: int) -> Any:
    luck = rng.random()
    if luck < 0.5:
        return 1
    return rng.randint(2, 5) if luck < 0.7 else np.array([rng.randint(1, 6) for _ in range(chunks)], np.int64)


def _routed(rng: random.Random, rows: list[Row], ways: Ways) -> tuple[list[Row], Routes]:
    """Give each row some path between its ranks; none where none is needed, sometimes."""
    table: dict[tuple[int, ...], int] = {}
    lazy = rng.choice([0.0, 0.5, 1.0])
    out = []
    for row in rows:
        route = -1
        if row.src != row.dst and (ways.implied(row.src, row.dst) is None or rng.random() >= lazy):
            route = table.setdefault(rng.choice(ways.simple(row.src, row.dst)), len(table))
        out.append(row._replace(route=route))
    return out, Routes.of(list(table))


def _spread(rng: random.Random, rows: list[Row]) -> list[Row]:
    """Chunks begin at different steps, and time may have gaps, small or huge."""
    late = defaultdict[int, int](lambda: rng.choice([0, 0, 1, 2, 5]))
    gaps = rng.choice([0, 0, 0, 1, 3, 10**6])
    moved = [row._replace(step=row.step + late[row.chunk]) for row in rows]
    new, at = dict[int, int](), 0
    for step in sorted({row.step for row in moved}):
        at += rng.randint(0, gaps)
        new[step] = at
        at += 1
    return [row._replace(step=new[row.step]) for row in moved]


@dataclass
class _Plan:
    """The plan of one chunk. `base[r]`: the slot in which rank r's contribution lies untouched."""

    rng: random.Random
    chunk: int
    near: dict[int, list[int]]
    held: dict[int, Counter[int]]
    goals: dict[int, Counter[int]]
    out: list[Row] = field(default_factory=list)
    now: int = 0  # every transfer so far is in a step before this

    def add(self, step: int, src: Cell, dst: Cell, op: int) -> None:
        self.out.append(Row(step, self.chunk, *src, *dst, op, -1))

    def state(self) -> dict[Cell, int]:
        """What all cells hold after the transfers so far, as exact numbers."""
        ids = sorted({name for names in self.held.values() for name in names})
        value = {name: 2 ** (40 * (k + 1)) for k, name in enumerate(ids)}
        start = {(r, 0): sum(value[i] * n for i, n in names.items()) for r, names in self.held.items()}
        return run(start, self.out)

    def rows(self) -> list[Row]:
        rng, base, work = self.rng, 0, 0
        groups, noisy = self._groups(), rng.random() < 0.2
        if self.held and (noisy or len(groups) > 1):  # the results of some must not destroy the inputs of others
            base, work, self.now = 3, 4, 1
            for rank in self.held:
                self.add(0, (rank, 0), (rank, base), COPY)
            if noisy:
                self._noise(rng.randint(1, 4))
        saved = self.now
        for recipe, targets in groups:
            self.now = saved if rng.random() < 0.5 else self.now  # side by side, or one after the other
            self._serve(recipe, targets, base, work)
            work += 1
        self.now = max((row.step + 1 for row in self.out), default=0)
        if rng.random() < 0.3:
            self._extras(rng.randint(1, 3))
        return self.out

    # ---- what comes before and after ----

    def _noise(self, steps: int) -> None:
        """Any legal transfers among slots 0 and 1: their outcome is overwritten later where it matters."""
        for _ in range(steps):
            full = [cell for cell in self.state() if cell[1] < 2]
            taken: dict[Cell, int] = {}
            for _ in range(self.rng.randint(1, 5)):
                src = self.rng.choice(full)
                dst = (self.rng.choice([src[0], *self.near[src[0]]]), self.rng.choice([0, 0, 1]))
                op = self.rng.choice([COPY, REDUCE])
                if dst != src and (dst not in taken or taken[dst] == op == REDUCE):
                    taken[dst] = op
                    self.add(self.now, src, dst, op)
            self.now += 1

    def _extras(self, steps: int) -> None:
        """Redundant copies of what is there already, and dead transfers into cells that nobody asks for."""
        for _ in range(steps):
            state = self.state()
            src = self.rng.choice(list(state))
            dst = (self.rng.choice([src[0], *self.near[src[0]]]), self.rng.choice([0, 0, 2]))
            wanted = dst[1] == 0 and dst[0] in self.goals
            if dst != src and (not wanted or state.get(dst) == state[src]):
                self.add(self.now, src, dst, COPY if wanted else self.rng.choice([COPY, REDUCE]))
            self.now += 1

    # ---- what to do ----

    def _groups(self) -> list[tuple[list[int], list[int]]]:
        """Goals together with the ranks whose contributions sum to them: (recipe, targets), in random order."""
        found: dict[tuple[int, ...], list[int]] = defaultdict(list)
        known: dict[tuple[tuple[int, int], ...], tuple[int, ...]] = {}
        for rank, want in self.goals.items():
            key = tuple(sorted(want.items()))
            if key not in known or self.rng.random() < 0.1:
                recipe = self._recipe(want, self.rng.sample(list(self.held), len(self.held)))
                assert recipe is not None
                known[key] = tuple(recipe)
            found[known[key]].append(rank)
        listed = [(list(recipe), targets) for recipe, targets in found.items()]
        self.rng.shuffle(listed)
        return listed

    def _recipe(self, want: Counter[int], ranks: list[int]) -> list[int] | None:
        """Ranks (one may come several times) whose contributions are together exactly what is wanted."""
        if not want:
            return []
        for at, rank in enumerate(ranks):
            if self.held[rank] <= want:
                rest = self._recipe(want - self.held[rank], ranks[at:])
                if rest is not None:
                    return [rank, *rest]
        return None

    def _serve(self, recipe: list[int], targets: list[int], base: int, work: int) -> None:
        """Bring the sum of the recipe to the targets, working in slot `work` (0 = in place, nothing to spare)."""
        once = len(set(recipe)) == len(recipe)
        if work == 0 and once and sorted(recipe) == sorted(targets) and self._together(recipe):
            return
        ready = self.now
        if work != base:
            for rank in dict.fromkeys(recipe):
                self.add(self.now, (rank, base), (rank, work), COPY)
                for extra in range(1, recipe.count(rank)):  # the same contribution once more
                    self.add(self.now + extra, (rank, base), (rank, work), REDUCE)
            ready += max(recipe.count(rank) for rank in recipe)
        elif not once:  # in place, a cell cannot be added to itself: by way of another slot
            for rank in dict.fromkeys(recipe):
                if recipe.count(rank) > 1:
                    self.add(self.now, (rank, 0), (rank, 1), COPY)
                    for extra in range(1, recipe.count(rank)):
                        self.add(self.now + extra, (rank, 1), (rank, 0), REDUCE)
            ready += max(recipe.count(rank) for rank in recipe)
        sources = sorted(set(recipe))
        collector = self.rng.choice([*targets, *targets, *sources, self.rng.choice(list(self.near))])
        if len(sources) == 1 and self.rng.random() < 0.8:
            collector = sources[0]
        done = self._gather(sources, collector, work, ready)
        self._scatter(collector, targets, work, done)

    def _together(self, ranks: list[int]) -> bool:
        """Symmetric ways for an allreduce among ranks that are all near each other."""
        if len(ranks) < 2 or any(b not in self.near[a] for a in ranks for b in ranks if a != b):
            return False
        way = self.rng.choice(["doubling", "direct", "trees", "trees"])
        ranks = self.rng.sample(ranks, len(ranks))
        if way == "direct":  # everybody adds to everybody in one step
            for a in ranks:
                for b in ranks:
                    if a != b:
                        self.add(self.now, (a, 0), (b, 0), REDUCE)
        elif way == "doubling":
            power = 2 ** (len(ranks).bit_length() - 1)
            core, rest = ranks[:power], ranks[power:]
            step = self.now
            for a, b in zip(rest, core, strict=False):
                self.add(step, (a, 0), (b, 0), REDUCE)
            for bit in range(power.bit_length() - 1):
                step += 1
                for i, a in enumerate(core):
                    self.add(step, (a, 0), (core[i ^ (1 << bit)], 0), REDUCE)
            for a, b in zip(rest, core, strict=False):
                self.add(step + 1, (b, 0), (a, 0), COPY)
        return way != "trees"

    def _tree(self, root: int, needed: set[int], inward: bool) -> dict[int, int]:
        """Parents in a random tree of hops that spans what is needed, with now and then a useless branch."""
        parent, frontier = {root: root}, [root]
        lean = self.rng.choice([0.0, 0.5, 1.0])  # towards chains
        while not needed <= parent.keys():
            node = frontier[-1] if self.rng.random() < lean else self.rng.choice(frontier)
            fresh = [
                n for n in self.near if n not in parent and (node in self.near[n] if inward else n in self.near[node])
            ]
            if not fresh:
                frontier.remove(node)
                continue
            new = self.rng.choice(fresh)
            parent[new] = node
            frontier.append(new)
        useful = {root}
        for node in needed:
            while node not in useful:
                useful.add(node)
                node = parent[node]  # noqa: PLW2901
        if not inward and self.rng.random() < 0.2:
            return parent
        return {node: parent[node] for node in parent if node in useful}

    def _gather(self, sources: list[int], root: int, work: int, ready: int) -> int:
        """Sum the sources' cells into the root's by a tree of partial sums; when the root's is complete."""
        parent = self._tree(root, set(sources), inward=True)
        children: dict[int, list[int]] = defaultdict(list)
        for node, up in parent.items():
            if node != up:
                children[up].append(node)

        def complete(node: int) -> int:
            sends = [(complete(child) + self.rng.choice([0, 0, 0, 1]), child) for child in children[node]]
            full = node in sources
            stale = not full and work == 0  # what a relay holds already must go
            if stale and node in self.held:
                at, child = min(sends)
                self.add(at, (child, work), (node, work), COPY)
                sends = [(max(t, at + 1), c) for t, c in sends if c != child]
                last = at
            else:
                last = ready - 1
                if len(sends) == 1 and not full and self.rng.random() < 0.5:
                    at, child = sends.pop()
                    self.add(at, (child, work), (node, work), COPY)
                    last = at
            for at, child in sends:
                self.add(at, (child, work), (node, work), REDUCE)
                last = max(last, at)
            return max(ready, last + 1)

        return complete(root)

    def _scatter(self, root: int, targets: list[int], work: int, ready: int) -> None:
        """Copy the root's cell to all targets' slot 0 by a tree of copies."""
        parent = self._tree(root, set(targets), inward=False)
        where: dict[int, tuple[Cell, int]] = {root: ((root, work), ready)}
        if root in targets and work:
            self.add(ready, (root, work), (root, 0), COPY)
        last = ready
        for node, up in parent.items():  # parents come before their children
            if node == up:
                continue
            cell, at = where[up]
            step = at + self.rng.choice([0, 0, 0, 1])
            mine = (node, 0 if node in targets else work)
            self.add(step, cell, mine, COPY)
            where[node] = (mine, step + 1)
            last = max(last, step + 1)
        self.now = max(self.now, last)
