"""Small random instances of SCCL's problem, and a search through all algorithms for the tiniest of them.

Everything follows from the seed. The search knows links, switches and limits as the topology has them: it shares
neither arcs nor bonds nor distances with what it judges.
"""

import itertools
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np

from antiphon.core.collective import ROOTED, Collective, custom_relation
from antiphon.core.ksync.instance import Instance, instance_of
from antiphon.core.topology import Link, LinkType, SharedLimit, Topology, both_ways, build
from antiphon.errors import Invalid

KINDS = ("broadcast", "scatter", "gather", "allgather", "alltoall", "custom")
UNITS = (Fraction(1), Fraction(1), Fraction(1), Fraction(2), Fraction(3), Fraction(3, 2), Fraction(4, 3))
LIMITS = (Fraction(1), Fraction(1), Fraction(2), Fraction(3, 2), Fraction(5, 2), Fraction(2, 3))
MOST_CHUNKS = 14


def case(seed: int, most_ranks: int = 6, most_chunks: int = MOST_CHUNKS) -> Instance:
    """An instance from a seed; kinds of collectives come in turn."""
    rng = random.Random(seed)
    while True:
        machine = topology(rng, rng.randint(2, most_ranks))
        what = collective(rng, machine.ranks, KINDS[seed % len(KINDS)])
        try:
            instance_of(machine, replace(what, weights=np.ones(what.blocks, np.int64)))
        except Invalid:  # some rank is out of reach
            continue
        found = instance_of(machine, what)
        if found.kinds and sum(kind.weight for kind in found.kinds) <= most_chunks:
            return found


def _kind(speed: Fraction) -> LinkType:
    return LinkType("link", speed * 10**9)


def topology(rng: random.Random, ranks: int) -> Topology:
    """Regular or grown at random, at times with switches, with parallel links, shared limits, another unit."""
    shape = rng.choice(["regular", "circle", "tree", "few", "switched"])
    palette = [_kind(rng.choice(UNITS)) for _ in range(rng.choice([1, 1, 2, 3]))]
    switches = 0
    order = rng.sample(range(ranks), ranks)
    links: list[Link] = []
    if shape == "regular":
        steps = rng.sample(range(1, ranks), rng.randint(1, ranks - 1))
        links = [(a, (a + s) % ranks, palette[0]) for s in steps for a in range(ranks)]
    elif shape == "circle":
        links = [(a, b, rng.choice(palette)) for a, b in zip(order, order[1:] + order[:1], strict=True)]
    elif shape == "tree":
        for at in range(1, ranks):
            links += both_ways([(order[rng.randrange(at)], order[at])], rng.choice(palette))
    elif shape == "switched":
        switches = rng.choice([1, 1, 2])
        links = list(_switched(rng, ranks, switches, palette))
    if shape != "regular" or rng.random() < 0.2:
        for _ in range(rng.randint(0, ranks) if shape != "few" else 2 * ranks):
            a, b = rng.sample(range(ranks), 2)
            links.append((a, b, rng.choice(palette)))
    limits = []
    for number in range(rng.choice([0, 0, 0, 1, 2])):
        rank = rng.randrange(ranks)
        leaving = [i for i, link in enumerate(links) if link[0] == rank]
        those = leaving if leaving and rng.random() < 0.6 else rng.sample(range(len(links)), rng.randint(1, len(links)))
        limits.append(SharedLimit(f"limit{number}", tuple(those), rng.choice(LIMITS) * 10**9))
    unit = rng.choice([0, 0, Fraction(10**9), Fraction(10**9, 2)])
    return build(f"random-{shape}", ranks, links, switches=switches, limits=limits, unit=unit)


def _switched(rng: random.Random, ranks: int, switches: int, palette: list[LinkType]) -> Iterator[Link]:
    for rank in range(ranks):
        if switches == 1 or rng.random() < 0.8:
            yield from both_ways([(rank, ranks + rng.randrange(switches))], rng.choice(palette))
        else:
            yield rank, ranks, rng.choice(palette)
            yield ranks + 1, rank, rng.choice(palette)
    if switches == 2:
        yield from both_ways([(ranks, ranks + 1)], rng.choice(palette))


def collective(rng: random.Random, ranks: int, kind: str) -> Collective:
    """All ranks or some, one root or several, and uneven weights at times (0 among them)."""
    if kind == "custom":
        plain = _custom(rng, ranks)
    else:
        members = range(ranks) if rng.random() < 0.6 else rng.sample(range(ranks), rng.randint(2, ranks))
        roots = tuple(rng.sample(list(members), rng.choice([1, 1, 1, rng.randint(1, len(members))])))
        plain = Collective(kind, ranks, tuple(members), roots if kind in ROOTED else ())
    if rng.random() < 0.6:
        return plain
    weights = np.array([rng.choice([0, 1, 1, 2]) for _ in range(plain.blocks)], np.int64)
    return Collective(plain.kind, ranks, plain.members, plain.roots, weights, plain.custom)


def _custom(rng: random.Random, ranks: int) -> Collective:
    """Blocks with one holder or several, wanted by one rank or several, holders among them at times."""
    pre, post = [], []
    for block in range(rng.randint(1, 4)):
        pre += [(block, rank, 0) for rank in rng.sample(range(ranks), rng.randint(1, max(1, ranks // 2)))]
        most = 1 if rng.random() < 0.4 else ranks
        post += [(block, rank, None) for rank in rng.sample(range(ranks), rng.randint(1, most))]
    return Collective("custom", ranks, custom=custom_relation(pre, post, ranks))


# ---- all algorithms ----

State = tuple[tuple[int, frozenset[int]], ...]  # per chunk its block and who has it, in order


def least_by_search(topology: Topology, collective: Collective, parts: int, steps: int, most: int) -> int | None:
    """The fewest rounds, up to `most`, of any algorithm of so many parts and steps, by going through all of them."""
    relation = collective.relation
    want = defaultdict(set)
    hold = defaultdict(set)
    for block, rank in zip(relation.post_block.tolist(), relation.post_rank.tolist(), strict=True):
        want[block].add(rank)
    for block, rank in zip(relation.pre_block.tolist(), relation.pre_rank.tolist(), strict=True):
        hold[block].add(rank)
    blocks = [b for b, weight in enumerate(collective.weights.tolist()) for _ in range(weight * parts)]
    ways = ways_through_switches(topology)
    spent: dict[State, int] = {tuple((b, frozenset(hold[b])) for b in blocks): 0}
    for step in range(steps):
        after: dict[State, int] = {}
        for state, before in spent.items():
            room = most - before - (steps - step - 1)
            for following, cost in _following(topology, ways, state, room).items():
                if after.get(following, most + 1) > before + cost:
                    after[following] = before + cost
        spent = after
    return min((c for state, c in spent.items() if all(want[b] <= has for b, has in state)), default=None)


def work(instance: Instance) -> int:
    """About how many ways of going on the search has in one step."""
    ways = ways_through_switches(instance.topology)
    found = 1
    for kind in instance.kinds:
        lacking = [rank for rank in range(instance.ranks) if rank not in kind.holders]
        each = math.prod(1 + sum(len(ways.get((a, rank), ())) for a in range(instance.ranks)) for rank in lacking)
        found *= each**kind.weight
    return found


def ways_through_switches(topology: Topology) -> dict[tuple[int, int], list[tuple[int, ...]]]:
    """All simple paths of links from rank to rank through switches."""
    found: dict[tuple[int, int], list[tuple[int, ...]]] = defaultdict(list)

    def walk(start: int, node: int, path: tuple[int, ...], seen: frozenset[int]) -> None:
        for link in np.flatnonzero(topology.link_src == node).tolist():
            to = int(topology.link_dst[link])
            if to in seen:
                continue
            if to < topology.ranks:
                found[start, to].append((*path, link))
            else:
                walk(start, to, (*path, link), seen | {to})

    for rank in range(topology.ranks):
        walk(rank, rank, (), frozenset([rank]))
    return found


def _following(
    topology: Topology, ways: dict[tuple[int, int], list[tuple[int, ...]]], state: State, room: int
) -> dict[State, int]:
    """What can come of a state in one step of at most `room` rounds, and how many rounds that takes at the least."""
    if room < 1:
        return {}
    limits_of: dict[int, list[int]] = defaultdict(list)
    for number, limit in enumerate(topology.limits):
        for link in limit.links:
            limits_of[link].append(number)
    capacity: dict[tuple[str, int], Fraction] = {
        ("link", i): topology.bandwidth(i) / topology.unit for i in range(topology.links)
    }
    capacity |= {("limit", i): limit.bandwidth / topology.unit for i, limit in enumerate(topology.limits)}
    partial: dict[tuple[State, frozenset[tuple[tuple[str, int], int]]], None] = {((), frozenset()): None}
    for block, has in state:
        extended: dict[tuple[State, frozenset[tuple[tuple[str, int], int]]], None] = {}
        lacking = [r for r in range(topology.ranks) if r not in has]
        options = [[(), *(way for a in sorted(has) for way in ways.get((a, r), ()))] for r in lacking]
        for chosen in itertools.product(*options):
            used = Counter[tuple[str, int]]()
            for link in itertools.chain(*chosen):
                used.update([("link", link), *(("limit", x) for x in limits_of[link])])
            got = has | {r for r, way in zip(lacking, chosen, strict=True) if way}
            for done, load in partial:
                total = Counter(dict(load)) + used
                if all(count <= capacity[q] * room for q, count in total.items()):
                    extended[(*done, (block, got)), frozenset(total.items())] = None
        partial = extended
    found: dict[State, int] = {}
    for done, load in partial:
        name = tuple(sorted(done, key=lambda pair: (pair[0], sorted(pair[1]))))
        need = max((math.ceil(count / capacity[q]) for q, count in load), default=0)
        found[name] = min(found.get(name, room), max(1, need))
    return found
