"""Bounds against brute force on small random machines: all cuts, all partitions, and max-flow against all
cuts.
"""

import dataclasses
import itertools
import random
from fractions import Fraction

import numpy as np
import pytest
from packing_cases import partitions
from quick import examples, in_turn

from antiphon.core.bounds import Cut, Partition, bandwidth, bound, recheck
from antiphon.core.bounds.counting import partition_of
from antiphon.core.bounds.cuts import tightest_cut
from antiphon.core.bounds.network import network_of
from antiphon.core.bounds.partition import weakest_partition
from antiphon.core.bounds.recheck import proved_time
from antiphon.core.collective import Collective
from antiphon.core.topology import LinkType, SharedLimit, Topology, build

KINDS = ("broadcast", "reduce", "gather", "scatter", "allgather", "reducescatter")


def machine(rng: random.Random, ranks: int, switches: int = 0, top: int = 10**6, balanced: bool = False) -> Topology:
    """A random strongly connected machine: a cycle through all nodes, and links on top; parallel ones too."""
    nodes = list(range(ranks + switches))
    rng.shuffle(nodes)
    count = rng.randint(0, 2 * len(nodes))
    pairs = list(zip(nodes, nodes[1:] + nodes[:1], strict=True))
    pairs += [tuple(rng.sample(nodes, 2)) for _ in range(count)]  # type: ignore[misc]
    high = rng.choice([1, 3, top])
    links = [(a, b, LinkType("link", Fraction(rng.randint(1, high)))) for a, b in pairs]
    if balanced:  # a cycle through any nodes balances all of them
        loops = [rng.sample(nodes, rng.randint(2, len(nodes))) for _ in range(count + 1)]
        links = []
        for loop in [nodes, *loops]:
            kind = LinkType("link", Fraction(rng.randint(1, high)))
            links += [(a, b, kind) for a, b in zip(loop, loop[1:] + loop[:1], strict=True)]
    return build("random", ranks, links, switches=switches)


def collective(rng: random.Random, kind: str, ranks: int) -> Collective:
    """Of any group, with any roots (one for gather and scatter) and uneven weights, some of them 0."""
    members = sorted(rng.sample(range(ranks), rng.randint(2, ranks)))
    roots: tuple[int, ...] = ()
    if kind in ("broadcast", "reduce"):
        roots = tuple(rng.sample(members, rng.randint(1, len(members))))
    if kind in ("gather", "scatter"):
        roots = (rng.choice(members),)
    plain = Collective(kind, ranks, tuple(members), roots)
    weights = [rng.choice([0, 1, 1, rng.randint(1, 10**6)]) for _ in range(plain.blocks)]
    uneven = rng.random() < 0.7 and any(weights)
    return Collective(kind, ranks, tuple(members), roots, np.array(weights)) if uneven else plain


def crossing(c: Collective, inside: frozenset[int]) -> int:
    """The weight that must leave a set of nodes, kind by kind."""
    assert c.weights is not None
    w = c.weights.tolist()
    held = [m in inside for m in c.members]
    if c.kind == "broadcast":
        return sum(x for r, x in zip(c.roots, w, strict=True) if r in inside) if not all(held) else 0
    if c.kind == "reduce":
        return sum(x for r, x in zip(c.roots, w, strict=True) if r not in inside) if any(held) else 0
    if c.kind == "allgather":
        return sum(x for h, x in zip(held, w, strict=True) if h) if not all(held) else 0
    if c.kind == "reducescatter":
        return sum(x for h, x in zip(held, w, strict=True) if not h) if any(held) else 0
    if c.kind == "gather":
        return 0 if c.roots[0] in inside else sum(x for h, x in zip(held, w, strict=True) if h)
    if c.kind == "scatter":
        return sum(x for h, x in zip(held, w, strict=True) if not h) if c.roots[0] in inside else 0
    assert c.kind == "allreduce"
    return w[0] if any(held) and not all(held) else 0


def subsets(nodes: int) -> list[frozenset[int]]:
    return [frozenset(i for i in range(nodes) if mask >> i & 1) for mask in range(1, 2**nodes - 1)]


def out_of(t: Topology, inside: frozenset[int]) -> Fraction:
    ends = zip(t.link_src.tolist(), t.link_dst.tolist(), range(t.links), strict=True)
    return sum((t.bandwidth(k) for a, b, k in ends if a in inside and b not in inside), Fraction(0))


def tightest(t: Topology, c: Collective) -> Fraction:
    """Weight over capacity, the greatest over all cuts."""
    best = Fraction(0)
    for inside in subsets(t.nodes):
        weight = crossing(c, inside)
        if weight:
            best = max(best, weight / out_of(t, inside))
    return best


def time_of(t: Topology, c: Collective, inverse: Fraction) -> Fraction:
    return inverse * c.input_weight / t.unit


@pytest.mark.parametrize("kind", in_turn(KINDS, 2))
def test_cut_bounds_equal_all_cuts(kind: str) -> None:
    rng = random.Random(f"cuts {kind}")
    seen = 0
    for _ in range(examples(60)):
        t = machine(rng, rng.randint(2, 5), rng.choice([0, 0, 1]), balanced=rng.random() < 0.4)
        c = collective(rng, kind, t.ranks)
        single = kind in ("gather", "scatter")
        if not single and not network_of(t).balanced:
            t = machine(rng, t.ranks + 1)
            c = collective(rng, kind, t.ranks)
        found = bound(t, c)
        assert time_of(t, c, found.inverse) == tightest(t, c), (t, c)
        recheck(t, c, found)
        seen += isinstance(found.witness, Cut)
        assert found.tight or (len(c.members) < t.ranks and not single)
    assert seen > examples(60) * 2 // 3


def test_cut_search_equals_all_cuts_with_unbalanced_switches() -> None:
    rng = random.Random("search")
    for _ in range(examples(250)):
        t = machine(rng, rng.randint(2, 4), rng.randint(1, 2))
        c = collective(rng, "allgather", t.ranks)
        assert c.weights is not None
        supply: dict[tuple[int, ...], int] = {(m,): int(w) for m, w in zip(c.members, c.weights, strict=True)}
        side, rate = tightest_cut(network_of(t), supply, c.members)
        scale = t.resources.scale
        assert 1 / (rate * scale) == tightest(t, c)
        inside = frozenset(np.flatnonzero(side).tolist())
        assert crossing(c, inside) / out_of(t, inside) == tightest(t, c)


def test_cut_search_sees_replicas() -> None:
    """Weight counts as inside a cut only where all its holders are."""
    rng = random.Random("replicas")
    for _ in range(examples(150)):
        t = machine(rng, rng.randint(3, 5))
        sink = rng.randrange(t.ranks)
        others = [r for r in range(t.ranks) if r != sink]
        choice = [rng.sample(others, 1), *(rng.sample(range(t.ranks), rng.randint(1, 3)) for _ in range(3))]
        supply = {tuple(sorted(holders)): rng.randint(1, 1000) for holders in choice}
        _, rate = tightest_cut(network_of(t), supply, [sink])
        best = Fraction(0)
        for inside in subsets(t.nodes):
            weight = sum(w for holders, w in supply.items() if set(holders) <= inside)
            if sink not in inside and weight:
                best = max(best, weight / out_of(t, inside))
        assert 1 / (rate * t.resources.scale) == best


def test_huge_capacities_are_exact() -> None:
    """Far above 2^53, where doubles would round."""
    rng = random.Random("huge")
    for _ in range(40):
        t = machine(rng, rng.randint(2, 4), top=10**17)
        c = collective(rng, rng.choice(KINDS), t.ranks)
        found = bound(t, c)
        assert time_of(t, c, found.inverse) == tightest(t, c)


def weakest(t: Topology, members: tuple[int, ...], back: bool) -> Fraction:
    """Least (sum of capacity out of, or into, the parts) / (parts - 1), over all partitions and places of
    switches.
    """
    switches = range(t.ranks, t.nodes)
    everything = frozenset(range(t.nodes))
    cheapest: dict[frozenset[int], Fraction] = {}
    for size in range(1, t.ranks):
        for part in itertools.combinations(range(t.ranks), size):
            sides = [
                frozenset(part) | set(extra)
                for n in range(t.switches + 1)
                for extra in itertools.combinations(switches, n)
            ]
            cheapest[frozenset(part)] = min(out_of(t, everything - s if back else s) for s in sides)
    best: Fraction | None = None
    for parts in partitions(range(t.ranks)):
        if len(parts) > 1 and all(set(part) & set(members) for part in parts):
            value = sum(cheapest[frozenset(part)] for part in parts) / Fraction(len(parts) - 1)
            best = value if best is None or value < best else best
    assert best is not None
    return best


def test_partition_bounds_equal_all_partitions() -> None:
    rng = random.Random("partitions")
    many = 0
    for _ in range(examples(1000)):
        t = machine(rng, rng.randint(2, 5), rng.choice([0, 0, 0, 1, 2]))
        whole = rng.random() < 0.6
        members = tuple(sorted(rng.sample(range(t.ranks), t.ranks if whole else rng.randint(2, t.ranks))))
        c = Collective("allreduce", t.ranks, members)
        back = rng.random() < 0.5
        network = network_of(t)
        parts, ratio = weakest_partition(network.reversed if back else network, members)
        best = weakest(t, members, back)
        assert ratio * t.resources.scale == best
        witness = partition_of(t, c, parts, "in" if back else "out")
        if not back:
            assert proved_time(t, c, witness) == 2 / best
        many += len(parts) > 2
    assert many > examples(100)


def test_a_switch_in_many_parts_counts_exactly() -> None:
    # each link out of the switch leaves 47 parts: in units of the measured bandwidths the sum exceeds int64
    ranks = 48
    kinds = [LinkType(name, Fraction(rate)) for name, rate in (("a", 24873461234.1237), ("b", 24873461231.3457))]
    links = [(a, b, kinds[r % 2]) for r in range(ranks) for a, b in ((r, ranks), (ranks, r))]
    t = build("star", ranks, links, switches=1)
    witness = partition_of(t, Collective("allreduce", ranks), [[r, ranks] for r in range(ranks)], "out")
    assert witness.capacity == (ranks - 1) * sum(kinds[r % 2].bandwidth for r in range(ranks))


def test_allreduce_is_the_best_cut_or_partition() -> None:
    rng = random.Random("allreduce")
    kinds = set()
    for _ in range(examples(90)):
        t = machine(rng, rng.randint(2, 5), rng.choice([0, 0, 1]), balanced=rng.random() < 0.5)
        if not network_of(t).balanced:
            t = machine(rng, t.ranks)
        c = collective(rng, "allreduce", t.ranks)
        assert c.weights is not None
        found = bound(t, c)
        best = min(weakest(t, c.members, back) for back in (False, True))
        expected = max(tightest(t, c), 2 * int(c.weights[0]) / best)
        assert time_of(t, c, found.inverse) == expected
        kinds.add(type(found.witness))
    assert kinds == {Cut, Partition}


@pytest.mark.slow
def test_searches_without_a_linear_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left where the program would be too large: cuts with links as narrow as their limits, partitions."""
    monkeypatch.setattr(bandwidth, "MOST_VARIABLES", 0)
    rng = random.Random("no program")
    for _ in range(examples(60)):
        t = machine(rng, rng.randint(2, 4), rng.choice([0, 1, 2]))
        limits = [SharedLimit(f"limit{k}", (k,), Fraction(rng.randint(1, 10**6))) for k in range(t.links)]
        limited = dataclasses.replace(t, limits=tuple(limits))
        ends = zip(t.link_src.tolist(), t.link_dst.tolist(), limits, strict=True)
        links = [(a, b, LinkType("link", min(t.bandwidth(k), limit.bandwidth))) for k, (a, b, limit) in enumerate(ends)]
        narrow = build("narrow", t.ranks, links, switches=t.switches)
        c = Collective("allgather", t.ranks)
        assert bound(limited, c).bytes_per_second == bound(narrow, c).bytes_per_second
        assert time_of(narrow, c, bound(narrow, c).inverse) == tightest(narrow, c)
        c = Collective("allreduce", t.ranks)
        best = min(weakest(t, c.members, back) for back in (False, True))
        assert time_of(t, c, bound(t, c).inverse) == max(tightest(t, c), 2 / best)
