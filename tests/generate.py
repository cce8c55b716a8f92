"""Random machines, collectives and valid schedules: the basis of all property tests.

Everything follows from a `random.Random`; the same seed gives the same things. `case(seed)` makes all three;
`cases()` and `topologies()` are hypothesis strategies around a seed.
"""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from generate_schedule import schedule
from hypothesis import strategies as st

from antiphon.core.collective import KINDS, ROOTED, Collective, custom_relation
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Ability, Link, LinkType, SharedLimit, Topology, both_ways, build

__all__ = ["KINDS_AND_CUSTOM", "Case", "able", "case", "cases", "collective", "schedule", "topologies", "topology"]

KINDS_AND_CUSTOM = (*KINDS, "custom")
LINK_KINDS = ("nvlink", "pcie", "ib", "ethernet", "xgmi")


@dataclass(frozen=True)
class Case:
    """A machine, a collective on it and a valid schedule, all from one seed."""

    seed: int
    topology: Topology
    collective: Collective
    schedule: Schedule


def case(seed: int, kind: str | None = None, most_ranks: int = 8) -> Case:
    """All three from one seed; `kind` fixes the collective's kind."""
    rng = random.Random(seed)
    machine = topology(rng, rng.randint(2, most_ranks))
    what = collective(rng, machine.ranks, kind)
    return Case(seed, machine, what, schedule(rng, what, machine))


def cases(kind: str | None = None, most_ranks: int = 8) -> st.SearchStrategy[Case]:
    return st.integers(0, 2**32 - 1).map(lambda seed: case(seed, kind, most_ranks))


def topologies(most_ranks: int = 8) -> st.SearchStrategy[Topology]:
    def make(seed: int) -> Topology:
        rng = random.Random(seed)
        return topology(rng, rng.randint(2, most_ranks))

    return st.integers(0, 2**32 - 1).map(make)


# ---- machines ----


def bandwidth(rng: random.Random) -> Fraction:
    """Round, odd and very odd numbers."""
    return rng.choice(
        [
            Fraction(rng.randint(1, 4)),
            Fraction(rng.randint(1, 50)) * 10**9,
            Fraction(rng.randint(1, 99), rng.randint(1, 99)),
            Fraction(rng.randint(1, 10**6), 7),
        ]
    )


def link_type(rng: random.Random) -> LinkType:
    return LinkType(rng.choice(LINK_KINDS), bandwidth(rng), rng.choice([0.0, 1e-6, 2.5e-6]))


def topology(rng: random.Random, ranks: int | None = None) -> Topology:
    """A machine on which every rank can reach every other: full, star, ring, or grown at random."""
    ranks = ranks or rng.randint(2, 8)
    palette = [link_type(rng) for _ in range(rng.randint(1, 4))]
    shape = rng.choice(["full", "star", "ring", "grown", "grown", "grown"])
    switches, links = 0, list[Link]()
    if shape == "full":
        links = [(a, b, rng.choice(palette)) for a in range(ranks) for b in range(ranks) if a != b]
    elif shape == "star":
        switches = 1
        links = [link for r in range(ranks) for link in both_ways([(r, ranks)], rng.choice(palette))]
    elif shape == "ring":
        ways = 1 if rng.random() < 0.4 else 2
        links = [(r, (r + 1) % ranks, rng.choice(palette)) for r in range(ranks)]
        links += [(b, a, kind) for a, b, kind in links] if ways == 2 else []
    else:
        switches = rng.choice([0, 0, 1, 1, 2, 3])
        links = list(_grown(rng, ranks, switches, palette))
    for _ in range(rng.choice([0, 0, 1, 2, 3])):  # parallel links, often of another kind
        a, b, _ = rng.choice(links)
        links.append((a, b, rng.choice([*palette, link_type(rng)])))
    rng.shuffle(links)
    limits = [
        SharedLimit(f"limit{i}", tuple(rng.sample(range(len(links)), rng.randint(1, len(links)))), bandwidth(rng))
        for i in range(rng.choice([0, 0, 1, 2, 3]))
    ]
    return build(f"random-{shape}", ranks, links, switches=switches, limits=limits)


def able(machine: Topology, seed: int) -> Topology:
    """The same, but that each switch may copy what it gets to several, reduce it, both, or neither."""
    rng = random.Random(f"able {seed}")
    abilities = tuple(Ability(multicast=rng.random() < 0.6, reduce=rng.random() < 0.4) for _ in range(machine.switches))
    return replace(machine, abilities=abilities)


def _grown(rng: random.Random, ranks: int, switches: int, palette: list[LinkType]) -> Iterator[Link]:
    """A random tree of switches with ranks hung on it or on each other, and some one-way links more."""
    order = list(range(ranks, ranks + switches)) + rng.sample(range(ranks), ranks)
    for at in range(1, len(order)):
        yield from both_ways([(order[rng.randrange(at)], order[at])], rng.choice(palette))
    for _ in range(rng.randint(0, ranks)):
        a, b = rng.sample(order, 2)
        yield a, b, rng.choice(palette)


# ---- collectives ----


def collective(rng: random.Random, ranks: int, kind: str | None = None) -> Collective:
    """Any kind, on all ranks or some, with several roots at times and uneven weights at times."""
    kind = kind or rng.choice(KINDS_AND_CUSTOM)
    if kind == "custom":
        return _weighted(rng, _custom(rng, ranks))
    members = range(ranks) if rng.random() < 0.6 else rng.sample(range(ranks), rng.randint(2, ranks))
    roots = tuple(rng.sample(list(members), rng.choice([1, 1, rng.randint(1, len(members))])))
    return _weighted(rng, Collective(kind, ranks, tuple(members), roots if kind in ROOTED else ()))


def _weighted(rng: random.Random, plain: Collective) -> Collective:
    if rng.random() < 0.5:
        return plain
    top = rng.choice([1, 3, 1000])
    weights = np.array([rng.randint(0, top) for _ in range(plain.blocks)], np.int64)
    return Collective(plain.kind, plain.ranks, plain.members, plain.roots, weights, plain.custom)


def _custom(rng: random.Random, ranks: int) -> Collective:
    pre: list[tuple[int, int, int]] = []
    post: list[tuple[int, int, tuple[int, ...] | None]] = []
    scan = rng.random() < 0.3
    for block in range(rng.choice([1, 1, 2, 3])):
        if scan:
            own = [(block, rank, rank) for rank in range(ranks)]
            pre += own
            inclusive = rng.random() < 0.6
            post += [(block, r, tuple(range(r + inclusive))) for r in range(ranks) if r + inclusive > 0]
        else:
            _relation(rng, ranks, block, pre, post)
    return Collective("custom", ranks, custom=custom_relation(pre, post, ranks))


def _relation(
    rng: random.Random,
    ranks: int,
    block: int,
    pre: list[tuple[int, int, int]],
    post: list[tuple[int, int, tuple[int, ...] | None]],
) -> None:
    """Cells that begin with one contribution or several, some twice, some replicas; wants that can be met.

    The first cells share out the ids, so that "every id once" can be met; wants are sums of what cells hold.
    """
    ids = rng.sample(range(rng.choice([6, 50, 2**31 - 1])), rng.randint(1, 5))
    places = rng.sample(range(ranks), ranks)
    held: dict[int, list[int]] = {}
    parts = rng.randint(1, min(len(ids), ranks))
    for at, name in enumerate(ids):
        held.setdefault(places[at % parts], []).append(name)
    for rank in places[parts:]:
        luck = rng.random()
        if luck < 0.25:
            held[rank] = list(rng.choice(list(held.values())))  # a replica
        elif luck < 0.45:
            held[rank] = [rng.choice(ids) for _ in range(rng.randint(1, 3))]
    pre += [(block, rank, name) for rank, names in held.items() for name in names]
    for rank in rng.sample(range(ranks), rng.randint(1, ranks)):
        if rng.random() < 0.5:
            post.append((block, rank, None))
        else:
            chosen = Counter(rng.choice(list(held)) for _ in range(rng.choice([1, 1, 2, 3])))
            want = [name for r, times in chosen.items() for name in held[r] * min(times, rng.choice([1, 2]))]
            post.append((block, rank, tuple(want)))
