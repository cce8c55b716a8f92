"""Forests against brute force: the cut bound is met exactly, every tree spans, nothing is overloaded."""

import itertools
import random
from fractions import Fraction
from functools import partial

import pytest
from packing_cases import check_trees
from quick import examples

from antiphon.core.topology import LinkType, SharedLimit, Topology, build
from antiphon.errors import Invalid
from antiphon.planners.shared.tree_schedules import SpanningTree
from antiphon.planners.trees import forest, splitting
from antiphon.planners.trees.forest import pack_forests


def machine(ranks: int, switches: int, arcs: dict[tuple[int, int], int], name: str = "random") -> Topology:
    links = [(a, b, LinkType("link", Fraction(c))) for (a, b), c in sorted(arcs.items()) if c]
    return build(name, ranks, links, switches=switches)


def random_machine(rng: random.Random, ranks: int, switches: int, top: int) -> Topology:
    """Strongly connected; switches balanced, as every arc at them belongs to a walk that comes back."""
    arcs: dict[tuple[int, int], int] = {}

    def more(tail: int, head: int, capacity: int) -> None:
        arcs[tail, head] = arcs.get((tail, head), 0) + capacity

    nodes = list(range(ranks + switches))
    rng.shuffle(nodes)
    for _ in range(rng.randint(1, 3)):  # through all nodes: this alone makes it connected
        width = rng.randint(1, top)
        for at, node in enumerate(nodes):
            more(nodes[at - 1], node, width)
        rng.shuffle(nodes)
    for _ in range(switches * 3):
        walk = rng.sample(nodes, rng.randint(2, len(nodes)))
        width = rng.randint(1, top)
        for at, node in enumerate(walk):
            more(walk[at - 1], node, width)
    for a, b in itertools.permutations(range(ranks), 2):
        if rng.random() < 0.3:
            more(a, b, rng.randint(1, top))
    return machine(ranks, switches, arcs)


def brute_rate(topology: Topology, demand: dict[int, int], sinks: list[int]) -> Fraction:
    """The least capacity out of a set over what it holds, over all sets that leave a sink out."""
    ends = list(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))
    widths = [topology.bandwidth(link) for link in range(topology.links)]
    best = None
    for mask in range(1, 2**topology.nodes - 1):
        held = sum(weight for root, weight in demand.items() if mask >> root & 1)
        if not held or all(mask >> sink & 1 for sink in sinks):
            continue
        out = sum(w for (a, b), w in zip(ends, widths, strict=True) if mask >> a & 1 and not mask >> b & 1)
        best = Fraction(out, held) if best is None else min(best, Fraction(out, held))
    assert best is not None
    return best


def check(
    topology: Topology, demand: dict[int, int], sinks: list[int], rate: Fraction, trees: list[SpanningTree]
) -> None:
    for root, weight in demand.items():
        assert sum((tree.rate for tree in trees if tree.root == root), Fraction(0)) == weight * rate
    check_trees(trees, topology, sinks)


def random_demand(rng: random.Random, ranks: int) -> dict[int, int]:
    kind = rng.randrange(4)
    if kind == 0:
        return {rng.randrange(ranks): 1}
    if kind == 1:
        return dict.fromkeys(range(ranks), 1)
    return {root: rng.randint(1, 5) for root in rng.sample(range(ranks), rng.randint(1, ranks))}


def packs(seed: int, largest: int, top: int, tries: int = 3) -> None:
    rng = random.Random(seed)
    ranks = rng.randint(2, largest)
    topology = random_machine(rng, ranks, rng.randint(0, largest - 2), rng.choice((1, 4, top)))
    demand = random_demand(rng, ranks)
    sinks = list(range(ranks))
    found = pack_forests(topology, demand, sinks, tries=tries)
    assert found is not None
    assert found[0] == brute_rate(topology, demand, sinks)
    check(topology, demand, sinks, *found)


@pytest.mark.parametrize("seed", range(examples(120)))
def test_random_machines(seed: int) -> None:
    packs(seed, 5, 10**6)


@pytest.mark.parametrize("seed", range(60))
def test_some_ranks_take_no_part(seed: int) -> None:
    """They are left out, or get everything and pass it on; where neither does, there is no answer, not a wrong one."""
    rng = random.Random(seed)
    ranks = rng.randint(3, 6)
    topology = random_machine(rng, ranks, rng.randint(0, 3), rng.choice((1, 4, 10**6)))
    sinks = sorted(rng.sample(range(ranks), rng.randint(2, ranks - 1)))
    demand = {root: rng.randint(1, 3) for root in rng.sample(sinks, rng.randint(1, len(sinks)))}
    found = pack_forests(topology, demand, sinks, tries=1)
    if found is not None:
        assert found[0] == brute_rate(topology, demand, sinks)
        check(topology, demand, sinks, *found)
        ends = {rank for tree in found[1] for rank, _ in tree.hops}
        ends -= {hop.parent for tree in found[1] for _, hop in tree.hops}
        assert ends <= set(sinks)  # no relay is fed for nothing
    elif topology.switches == 0:  # it was tried in vain, at the lower rate that these two ways have
        everyone = brute_rate(topology, demand, list(range(ranks)))
        assert everyone < brute_rate(topology, demand, sinks)


@pytest.mark.parametrize("seed", range(examples(60)))
def test_exact_splitting(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a guess, every switch is split off the exact way."""
    monkeypatch.setattr(forest, "without_switches", partial(splitting.without_switches, guess=False))
    packs(seed, 6, 10**6, tries=0)


def test_same_input_same_output() -> None:
    topology = random_machine(random.Random(5), 6, 3, 1000)
    shuffled = dict.fromkeys((3, 1, 0, 5, 2, 4), 1)
    assert pack_forests(topology, shuffled, (5, 0, 1, 2, 3, 4)) == pack_forests(
        topology, dict(sorted(shuffled.items())), range(6)
    )


def test_what_does_not_fit() -> None:
    chain = machine(3, 0, {(0, 1): 1, (1, 0): 1, (1, 2): 1}, "chain")
    with pytest.raises(Invalid, match="from rank 2 to rank 0, 1;"):
        pack_forests(chain, dict.fromkeys(range(3), 1), range(3))
    assert pack_forests(chain, {0: 1}, range(3)) is not None
    with pytest.raises(Invalid, match="rank 1 alone"):
        pack_forests(chain, {1: 1}, [1])
    with pytest.raises(Invalid, match="ranks 0 to 2"):
        pack_forests(chain, {3: 1}, range(3))
    with pytest.raises(Invalid, match="greater than 0"):
        pack_forests(chain, {0: 0}, range(3))
    with pytest.raises(Invalid, match="from rank 0 to rank 1, 2;"):
        pack_forests(machine(3, 0, {(1, 2): 1, (2, 1): 1, (1, 0): 1}), {0: 1}, range(3))
    uneven = machine(3, 1, {(0, 3): 1, (3, 1): 1, (3, 2): 1, (1, 0): 1, (2, 0): 1})
    assert pack_forests(uneven, {0: 1}, range(3)) is None


def test_limits_elsewhere_are_not() -> None:
    """Where a limit's links have no common end, there is no answer from here."""
    link = LinkType("link", Fraction(2))
    ends = [(0, 1), (1, 2), (2, 0)]
    topology = build("bus", 3, [(*pair, link) for pair in ends], limits=[SharedLimit("bus", (0, 1), Fraction(3))])
    assert pack_forests(topology, {0: 1}, range(3)) is None
