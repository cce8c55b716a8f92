"""Random small machines whose switches multicast and reduce, and schedules on them whose rows are bound.

Everything follows from a `random.Random`. Values are right by construction; whether the machine's switches can do what
the joints ask is drawn (mostly they can), so that about half of all cases are legal.
"""

import itertools
import random
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import strategies as st

from antiphon.core.collective import Collective
from antiphon.core.routes import Routes
from antiphon.core.schedule import COPY, REDUCE, Schedule, cut
from antiphon.core.topology import Ability, LinkType, SharedLimit, Topology, build

FAST, SLOW = LinkType("nvlink", Fraction(7), 1e-6), LinkType("ib", Fraction(3, 2), 2e-6)
KINDS = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")


def ability(rng: random.Random, able: float = 0.85) -> Ability:
    multicast, reduce = rng.random() < able, rng.random() < able
    if not (multicast or reduce):
        return Ability()
    return Ability(
        multicast, reduce, through=rng.random() < able, own=rng.random() < 0.4,
        at_once=rng.choice([0, 0, 0, 1, 2, 3]),
        operators=rng.choice([(), (), ("sum",), ("max", "min"), ("sum", "max of int8")]),
        types=rng.choice([(), (), ("float32",)]),
    )  # fmt: skip


def machine(rng: random.Random, most_ranks: int = 6) -> Topology:
    """Switches in a random tree, at times with one link more or parallel ones; every rank at one of them or two."""
    ranks, switches = rng.randint(2, most_ranks), rng.randint(1, 4)
    able = rng.choice([1.0, 1.0, 0.85, 0.6])
    pairs = [(ranks + i, ranks + rng.randrange(i)) for i in range(1, switches)]
    if switches > 2 and rng.random() < 0.3:
        pairs.append(tuple(rng.sample(range(ranks, ranks + switches), 2)))  # type: ignore[arg-type]
    for rank in range(ranks):
        for at in rng.sample(range(switches), min(switches, rng.choice([1, 1, 1, 2]))):
            pairs.append((rank, ranks + at))
    links = []
    for a, b in pairs:
        kind = rng.choice([FAST, FAST, SLOW])
        for _ in range(rng.choice([1, 1, 1, 1, 2])):
            links += [(a, b, kind), (b, a, kind)]
        if rng.random() < 0.05:
            links.append((a, b, kind))
    if rng.random() < 0.15:  # one way only
        links.pop(rng.randrange(len(links)))
    limits = [SharedLimit("bus", (0, len(links) - 1), Fraction(5))] if rng.random() < 0.2 else []
    abilities = [ability(rng, able) for _ in range(switches)]
    return build("random", ranks, links, switches=switches, limits=limits, abilities=abilities)


class _Rows:
    """Rows as they come, with paths through one random tree of the machine for each joint."""

    def __init__(self, rng: random.Random, topology: Topology) -> None:
        self.rng, self.topology = rng, topology
        self.columns: dict[str, list[int]] = {
            key: [] for key in ("step", "chunk", "src", "dst", "op", "route", "joint")
        }
        self.paths: list[tuple[int, ...]] = []
        self.joints = 0
        self.pairs: dict[tuple[int, int], list[int]] = {}
        for link, pair in enumerate(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True)):
            self.pairs.setdefault(pair, []).append(link)

    def tree(self) -> tuple[dict[int, int], dict[tuple[int, int], int]] | None:
        """The switch before each, from a random one on; and one link for each pair of nodes."""
        topology, rng = self.topology, self.rng
        link = {pair: rng.choice(some) for pair, some in self.pairs.items()}
        root = rng.randrange(topology.ranks, topology.nodes)
        up, todo = {root: root}, [root]
        while todo:
            at = todo.pop(rng.randrange(len(todo)))
            for a, b in link:
                if a == at and b >= topology.ranks and b not in up and (b, a) in link:
                    up[b] = at
                    todo.append(b)
        return (up, link) if len(up) == topology.switches else None

    def way(self, up: dict[int, int], a: int, b: int) -> list[int]:
        """From switch to switch in the tree."""
        line = [a]
        while up[line[-1]] != line[-1]:
            line.append(up[line[-1]])
        other = [b]
        while other[-1] not in line:
            other.append(up[other[-1]])
        return line[: line.index(other[-1])] + other[::-1]

    def add(self, step: int, chunk: int, sources: list[int], targets: list[int], op: int) -> bool:
        """A row from every source to every target; mostly as one joint. False where the machine has no way."""
        found, rng = self.tree(), self.rng
        if found is None:
            return False
        up, link = found
        leave = {s: [b for a, b in link if a == s] for s in sources}
        reach = {d: [a for a, b in link if b == d] for d in targets}
        if not all([*leave.values(), *reach.values()]):
            return False
        first = {s: rng.choice(some) for s, some in leave.items()}
        last = {d: rng.choice(some) for d, some in reach.items()}
        bound, astray = rng.random() < 0.9, rng.random() < 0.07
        for s in sources:
            for d in targets:
                if s == d:
                    continue
                if astray:  # every row a way of its own
                    up, link = self.tree() or found
                    first[s], last[d] = rng.choice(leave[s]), rng.choice(reach[d])
                nodes = [s, *self.way(up, first[s], last[d]), d]
                self.paths.append(tuple(link[pair] for pair in itertools.pairwise(nodes)))
                row = (step, chunk, s, d, op, len(self.paths) - 1, self.joints if bound else -1)
                for column, value in zip(self.columns.values(), row, strict=True):
                    column.append(value)
        self.joints += 1
        return True


def _gather(rows: _Rows, rng: random.Random, chunk: int, holders: list[int], goal: int, step: int) -> int | None:
    """Partial sums meet until `goal` holds all; the step after. None where there is no way."""
    left = list(holders)
    while left != [goal]:
        some = [r for r in left if r != goal]
        target = goal if rng.random() < 0.7 else rng.choice(left)
        sources = [r for r in rng.sample(some, rng.randint(1, len(some))) if r != target]
        if not sources:
            continue
        if not rows.add(step, chunk, sources, [target], REDUCE):
            return None
        left = [r for r in left if r not in sources]
        step += 1
    return step


def _spread(rows: _Rows, rng: random.Random, chunk: int, source: int, goals: list[int], step: int) -> int | None:
    """Copies until all of `goals` have it."""
    have, left = [source], [r for r in goals if r != source]
    while left:
        targets = rng.sample(left, rng.randint(1, len(left)) if rng.random() < 0.5 else len(left))
        if not rows.add(step, chunk, [rng.choice(have)], targets, COPY):
            return None
        have += targets
        left = [r for r in left if r not in targets]
        step += 1
    return step


def _all(rows: _Rows, rng: random.Random, chunk: int, ranks: list[int]) -> int | None:
    """Everybody's sum for everybody: some give to others first, those exchange by one joint, and spread it."""
    few = rng.sample(ranks, rng.randint(1, len(ranks))) if rng.random() < 0.4 else list(ranks)
    step = 0
    for rank in [r for r in ranks if r not in few]:
        if not rows.add(step, chunk, [rank], [few[0]], REDUCE):
            return None
        step += 1
    if len(few) > 1 and not rows.add(step, chunk, few, few, REDUCE):
        return None
    return _spread(rows, rng, chunk, few[0], [few[0], *(r for r in ranks if r not in few)], step + 1)


@dataclass(frozen=True)
class Bound:
    topology: Topology
    schedule: Schedule


def joined_case(seed: int | random.Random) -> Bound | None:
    """A machine and a schedule whose outcome is right; None where the machine has no way that is needed."""
    rng = seed if isinstance(seed, random.Random) else random.Random(seed)
    topology = machine(rng)
    ranks = list(range(topology.ranks))
    kind = rng.choice(KINDS)
    rooted = kind in ("broadcast", "reduce")
    collective = Collective(kind, topology.ranks, (), (rng.choice(ranks),) if rooted else ())
    chunks = cut(collective, rng.choice([1, 1, 2]))
    rows = _Rows(rng, topology)
    for chunk, block in enumerate(chunks.block.tolist()):
        root = collective.roots[0] if rooted else block
        done: int | None
        if kind in ("broadcast", "allgather"):
            done = _spread(rows, rng, chunk, root, ranks, rng.randint(0, 1))
        elif kind in ("reduce", "reducescatter"):
            done = _gather(rows, rng, chunk, ranks, root, rng.randint(0, 1))
        elif rng.random() < 0.6:
            done = _all(rows, rng, chunk, ranks)
        else:
            root = rng.choice(ranks)
            done = _gather(rows, rng, chunk, ranks, root, 0)
            done = None if done is None else _spread(rows, rng, chunk, root, ranks, done)
        if done is None:
            return None
    pieces: int | np.ndarray = rng.choice([1, 1, 2])
    if rng.random() < 0.2:
        pieces = np.array([rng.randint(1, 3) for _ in range(len(chunks))])
    columns: dict[str, Any] = {key: np.array(values, np.int64) for key, values in rows.columns.items()}
    return Bound(topology, Schedule(collective, chunks, **columns, routes=Routes.of(rows.paths), pieces=pieces))


def joined_cases() -> st.SearchStrategy[Bound]:
    """Those that the machine has ways for."""
    made = st.integers(0, 2**32 - 1).map(joined_case)
    return made.filter(lambda one: one is not None)  # type: ignore[return-value]
