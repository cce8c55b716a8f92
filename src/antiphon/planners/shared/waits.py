"""When every hop of a plan is made: each in a time of its own, so that links are full while others wait for far data.

Given is a plan whose chunks go through it once. Its data flow: of every class of hops so much is through at the end of
each step, no more than of what it waits for a step before; what comes first goes first. How much is the answer of a
linear program, which asks for the least time of N steps, each as long as its fullest link or shared limit. Chunks are
then cut where some hop pauses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Floats, Longs
from antiphon.core.schedule import MAX_DENOMINATOR, Schedule
from antiphon.core.topology import Topology
from antiphon.planners.shared.alike import Alike, alike, chains, tied
from antiphon.planners.shared.parts import LEVELS, LOSS, joined, still

Parts = NDArray[np.int64]
LABELS = 4  # ways to see a plan as classes of hops
MOST_COMPARED = 2**31  # loads compared to find out which kinds of resources others outdo: some CPU seconds
NEAR = 1e-6  # of a part: what is so near to a half is one, whichever way the solver's last digits fall
SAME = 1e-9  # of a load, by which one may be above another and yet be no more


@dataclass(frozen=True, eq=False)
class Hops:
    """Classes of hops. `of`: of every row its class. By class `owner`, a label of its chunks, and `late`, the latency
    of its ways; `first`, `then`, `lag`: which must wait for which; `load[class, kind]`: seconds per byte of nbytes that
    all of it puts on each kind of resources; `depth`, `height`: how many steps go before, and behind."""

    of: Longs
    owner: Longs
    late: Floats
    first: Longs
    then: Longs
    lag: Longs
    load: Floats
    depth: Longs
    height: Longs

    def __len__(self) -> int:
        return len(self.owner)

    @property
    def steps(self) -> int:
        """The fewest in which all is done."""
        return int((self.depth + self.height).max(initial=-1)) + 1


@dataclass(frozen=True, eq=False)
class Flow:
    """`parts[class, step]`: of every hop so many of `whole` parts are through at the end of each step; seconds per byte
    of nbytes, and of latency."""

    hops: Hops
    parts: Parts
    whole: int
    time: float
    latency: float


class Waits:
    """A plan seen as classes of hops."""

    def __init__(self, plan: Schedule, topology: Topology) -> None:
        self.plan, self.topology = replace(plan, pieces=1), topology
        self._labelled: dict[int, tuple[Longs, Longs]] = {}
        self._made: dict[int, Hops | None] = {}
        self._flows: dict[tuple[Hops, int], Flow | None] = {}

    @cached_property
    def known(self) -> Alike:
        return alike(self.plan, self.topology)

    def levels(self, most: int) -> Iterator[Hops]:
        """Classes of hops, up to so many; the finer the slower: hops that are alike; then those together that wait
        alike, of chunks that are alike, of blocks, of all. Each is made when it is asked for."""
        for level in range(LABELS):
            of, owner = self._labels(level)
            if int(of.max(initial=-1)) < most:
                if level not in self._made:
                    self._made[level] = self._hops(of, owner)
                hops = self._made[level]
                if hops is not None:
                    yield hops

    def _labels(self, level: int) -> tuple[Longs, Longs]:
        """Of every row its class, and the label of its chunk."""
        if level not in self._labelled:
            known, chunk = self.known, self.plan.chunk
            if level < 2:
                owner = known.chunk[chunk]
            elif level == 2:
                owner = known.block[self.plan.chunks.block[chunk]]
            else:
                owner = np.zeros(len(chunk), np.int64)
            self._labelled[level] = known.hop if level == 0 else tied(known, owner), owner
        return self._labelled[level]

    def _hops(self, of: Longs, owner: Longs) -> Hops | None:
        """None where there are too many kinds of resources."""
        known, count = self.known, int(of.max(initial=-1)) + 1
        load = self._loads(of, count)
        if load is None:
            return None
        one = np.zeros(count, np.int64)
        one[of] = np.arange(len(of))
        waits = known.before
        first, then, lag = np.unique(np.stack([of[waits.first], of[waits.then], waits.lag]), axis=1)
        depth, height = chains(first, then, lag, count), chains(then, first, lag, count)
        return Hops(of, owner[one], known.late[one], first, then, lag, load, depth, height)

    def _loads(self, of: Longs, count: int) -> Floats | None:
        """By class and kind of resources: of every class of resources one, less those that another outdoes. None where
        it would take long to find these."""
        known, resources = self.known, self.topology.resources
        capacity = np.array([float(c * resources.scale) for c in resources.capacity])[resources.klass]
        row, on = known.crossed
        some = np.unique(known.resource, return_index=True)[1]
        some = some[np.isin(some, on)]  # what nothing crosses has a class, too
        if len(some) ** 2 * count > MOST_COMPARED:
            return None
        place = np.full(len(capacity), -1)
        place[some] = np.arange(len(some))
        seen = place[on] >= 0
        row, at = row[seen], place[on[seen]]
        load = np.bincount(at * count + of[row], weights=known.weight[row], minlength=len(some) * count)
        load = load.reshape(len(some), count) / capacity[some][:, None]
        order = np.argsort(-load.sum(axis=1), kind="stable")
        load = load[order[load[order].any(axis=1)]]
        kept = np.empty_like(load)
        many = 0
        for one in load:
            if not (kept[:many] >= one * (1 - SAME)).all(axis=1).any():
                kept[many] = one
                many += 1
        return np.ascontiguousarray(kept[:many].T)

    def rows(self, flow: Flow) -> int:
        """How many transfers that will be."""
        many = np.bincount(flow.hops.of, minlength=len(flow.hops))
        return sum(int(many[mine].sum()) * (len(_cuts(flow.parts[mine])) - 1) for mine in _by_owner(flow.hops))

    def flow(self, hops: Hops, steps: int) -> Flow | None:
        """The best for so many steps; None where they are too few, where nothing weighs anything, where the program was
        not solved, or where even the coarsest parts of the chunks would have no denominator. Kept: it serves all
        sizes."""
        if (hops, steps) not in self._flows:
            self._flows[hops, steps] = self._flow(hops, steps)
        return self._flows[hops, steps]

    def _flow(self, hops: Hops, steps: int) -> Flow | None:
        if not hops.load.size or steps < hops.steps:
            return None
        exact = _solved(hops, steps)
        if exact is None:
            return None
        goal, made = _time(hops, exact), None
        for whole in LEVELS:
            if self.plan.chunks.denominator * whole >= MAX_DENOMINATOR:
                break
            parts = _rounded(hops, exact, whole)
            made = Flow(hops, parts, whole, _time(hops, parts / whole), _latency(hops, parts))
            if made.time <= goal * (1 + LOSS):
                break
        return made

    def schedule(self, flow: Flow) -> Schedule:
        """Every chunk cut where some hop of its class pauses, and every hop made when it is due."""
        plan, hops = self.plan, flow.hops
        table, rows = [still([plan], flow.whole, plan.chunks.denominator)], []
        count = len(table[0][0])
        for mine in _by_owner(hops):
            place = np.full(len(hops), -1, np.int64)
            place[mine] = np.arange(len(mine))
            some = np.flatnonzero(place[hops.of] >= 0)
            chunks, number = np.unique(plan.chunk[some], return_inverse=True)
            for low, high in pairwise(_cuts(flow.parts[mine])):
                due = (flow.parts[mine] < high).sum(axis=1)
                table.append((plan.chunks.block[chunks], plan.chunks.share[chunks] * (high - low)))
                rows.append((0, some, due[place[hops.of[some]]], number + count))
                count += len(chunks)
        return joined([plan], table, rows, plan.chunks.denominator * flow.whole, np.ones(count, np.int64))


def _by_owner(hops: Hops) -> Iterator[Longs]:
    """Classes of hops whose chunks are cut alike."""
    for owner in np.unique(hops.owner).tolist():
        yield np.flatnonzero(hops.owner == owner)


def _cuts(parts: Parts) -> list[int]:
    """Where some of these hops pauses, from nothing to all."""
    found: list[int] = np.union1d([0], parts).tolist()
    return found


def _solved(hops: Hops, steps: int) -> Floats | None:
    """Of every class of hops what is through at the end of every step. Variables: these, and how long steps take."""
    import scipy.sparse as sp
    from scipy.optimize import linprog

    places, kinds = len(hops) * steps, hops.load.shape[1]
    through, clock = np.arange(places).reshape(len(hops), steps), np.arange(places, places + steps)
    low, high = np.zeros(places + steps), np.full(places + steps, np.inf)
    every = np.arange(steps)
    high[:places] = np.where(every < hops.depth[:, None], 0.0, 1.0).ravel()
    low[:places] = np.where(every >= steps - 1 - hops.height[:, None], 1.0, 0.0).ravel()
    rows = _Rows()
    rows.add((through[:, :-1].ravel(), 1.0), (through[:, 1:].ravel(), -1.0))
    for lag in (0, 1):
        then, first = through[hops.then[hops.lag == lag]], through[hops.first[hops.lag == lag]]
        rows.add((then[:, lag:].ravel(), 1.0), (first[:, : steps - lag].ravel(), -1.0))
    for kind in range(kinds):
        mine = np.flatnonzero(hops.load[:, kind])
        load = hops.load[mine, kind][:, None] / hops.load.max()
        rows.sums(through[mine], np.broadcast_to(load, (len(mine), steps)), clock)
    cost = np.zeros(places + steps)
    cost[clock] = 1
    found = linprog(
        cost, A_ub=rows.matrix(sp, len(cost)), b_ub=np.zeros(rows.count), bounds=np.stack([low, high], axis=1),
        method="highs-ipm",
    )  # fmt: skip
    return np.asarray(found.x[:places].reshape(len(hops), steps)) if found.status == 0 else None


class _Rows:
    """Rows of a linear program, as they come."""

    def __init__(self) -> None:
        self.count = 0
        self.entries: list[tuple[Longs, Longs, Floats]] = []

    def add(self, *terms: tuple[Longs, float]) -> None:
        """As many rows as each term has columns."""
        many = len(terms[0][0])
        for columns, value in terms:
            self.entries.append((self.count + np.arange(many), columns, np.full(many, value)))
        self.count += many

    def sums(self, through: Longs, load: Floats, clock: Longs) -> None:
        """A row for each step: what goes through in it takes no longer than it lasts."""
        here = np.broadcast_to(self.count + np.arange(len(clock)), through.shape)
        self.entries += [
            (here.ravel(), through.ravel(), load.ravel()),
            (here[:, 1:].ravel(), through[:, :-1].ravel(), -load[:, 1:].ravel()),
            (self.count + np.arange(len(clock)), clock, np.full(len(clock), -1.0)),
        ]
        self.count += len(clock)

    def matrix(self, sp: Any, columns: int) -> Any:
        row, column, value = (np.concatenate(some) for some in zip(*self.entries, strict=True))
        return sp.csr_array((value, (row, column)), shape=(self.count, columns))


def _rounded(hops: Hops, exact: Floats, whole: int) -> Parts:
    """In whole parts; halves go down, whatever the last digits. Rounding keeps what is no more than another so; what
    the solver lacks is made good: who is waited for has sent as much."""
    parts = np.clip(np.floor(exact * whole + (0.5 - NEAR)), 0, whole).astype(np.int64)
    parts[:, -1] = whole
    parts = np.maximum.accumulate(parts, axis=1)
    steps = parts.shape[1]
    while True:
        before = parts.copy()
        for lag in (0, 1):
            mine = hops.lag == lag
            need = np.zeros_like(parts)
            np.maximum.at(need, hops.first[mine], parts[hops.then[mine]])
            parts[:, : steps - lag] = np.maximum(parts[:, : steps - lag], need[:, lag:])
        if (parts == before).all():
            return parts


def _time(hops: Hops, through: Floats) -> float:
    """Seconds per byte of nbytes: how long all steps take together."""
    moved = np.diff(through, axis=1, prepend=0.0)
    return float(np.einsum("hk,hs->ks", hops.load, moved).max(axis=0).sum())  # no BLAS: its sums vary by machine


def _latency(hops: Hops, parts: Parts) -> float:
    moving = np.diff(parts, axis=1, prepend=0) > 0
    return float(np.where(moving, hops.late[:, None], 0.0).max(axis=0).sum())
