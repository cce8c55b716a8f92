"""Bounds with the help of switches that multicast and reduce, against all trees of small machines."""

import random
from collections import Counter
from fractions import Fraction

import pytest
from quick import examples
from trees_plain import best_time

import antiphon
from antiphon.core.bounds import Bound, bound, recheck
from antiphon.core.collective import Collective
from antiphon.core.topology import Ability, LinkType, Topology, build

KINDS = (*["allreduce"] * 6, "allgather", "reducescatter", "broadcast", "reduce")


def ability(rng: random.Random) -> Ability:
    multicast, reduce = rng.choice([*[(True, True)] * 8, (True, False), (False, True)])
    return Ability(multicast, reduce, through=rng.random() < 0.3, own=rng.random() < 0.5)


def machine(rng: random.Random, ranks: int, switches: int) -> Topology:
    """Every rank on some switch, the switches joined, perhaps links between ranks; alike both ways or not."""
    high = rng.choice([1, 1, 3, 6])
    alike = rng.random() < 0.6
    pairs = [(rank, ranks + rng.randrange(switches)) for rank in range(ranks)]
    pairs += [(ranks + s, ranks + s + 1) for s in range(switches - 1)]
    if rng.random() < 0.3:
        a, b = rng.sample(range(ranks), 2)
        pairs.append((a, b))
    if switches > 1 and rng.random() < 0.3:
        pairs.append((0, ranks + rng.randrange(switches)))
    links = []
    for a, b in dict.fromkeys(pairs):
        there = rng.randint(1, high)
        back = there if alike else rng.randint(1, high)
        links += [(a, b, LinkType("x", Fraction(there))), (b, a, LinkType("x", Fraction(back)))]
    abilities = [ability(rng) if rng.random() < 0.9 else Ability() for _ in range(switches)]
    return build("small", ranks, links, switches=switches, abilities=abilities)


def case(seed: int) -> tuple[Topology, Collective]:
    rng = random.Random(seed)
    ranks, switches = rng.choice([(2, 1), (3, 1), (4, 1), (4, 1), (3, 2), (4, 2)])
    kind = rng.choice(KINDS)
    members = tuple(sorted(rng.sample(range(ranks), rng.randint(2, ranks)))) if rng.random() < 0.2 else ()
    return machine(rng, ranks, switches), Collective(kind, ranks, members)


def time_of(found: Bound, wanted: Collective) -> Fraction:
    assert found.bytes_per_second is not None
    return wanted.buffer_weight / found.bytes_per_second


def judge(seeds: range) -> Counter[str]:
    """Every bound is at most what the best mixture of trees takes, and just that where it says so."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        topology, wanted = case(seed)
        found = bound(topology, wanted)
        recheck(topology, wanted, found)
        best, proved = best_time(topology, wanted), time_of(found, wanted)
        assert proved <= best, (seed, proved, best)
        assert found.tight is not True or proved == best, (seed, proved, best, found.note)
        assert proved <= time_of(found.without_help, wanted)
        seen["equal" if proved == best else "loose"] += 1
        seen["tight"] += found.tight is True
        seen["helped"] += found.unaided is not None
        seen["faster"] += found.bytes_per_second != found.without_switches
    return seen


def boxes(seed: int) -> tuple[Topology, Collective]:
    """Two boxes of two ranks, each on its switch, all four on one between."""
    rng = random.Random(seed)
    inner, outer = (LinkType("x", Fraction(rng.choice([1, 2, 3, 4, 6]))) for _ in range(2))
    pairs = [(rank, 4 + rank // 2, inner) for rank in range(4)] + [(rank, 6, outer) for rank in range(4)]
    links = [link for a, b, kind in pairs for link in ((a, b, kind), (b, a, kind))]
    hub = Ability(True, True, through=rng.random() < 0.8, own=rng.random() < 0.2)
    abilities = [ability(rng), ability(rng), hub]
    return build("boxes", 4, links, switches=3, abilities=abilities), Collective("allreduce", 4)


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 14), marks=pytest.mark.slow)])
def test_clusters_of_boxes_meet_it_where_they_say_so(seeds: range) -> None:
    for seed in seeds:
        topology, wanted = boxes(seed)
        found = bound(topology, wanted)
        best, proved = best_time(topology, wanted), time_of(found, wanted)
        assert proved <= best
        assert found.tight is not True or proved == best


@pytest.mark.parametrize(
    "spec",
    ["cluster:box=hgx-h100,boxes=16,sharp=true", "cluster:box=hgx-h100,boxes=4,fabric=rail,sharp=true",
     "cluster:box=hgx-b200,boxes=3,sharp=true"],
)  # fmt: skip
def test_an_allreduce_among_boxes_is_as_fast_as_their_cards(spec: str) -> None:
    machine = antiphon.topology(spec)
    found = bound(machine, Collective("allreduce", machine.ranks))
    assert (found.bytes_per_second, found.tight) == (8 * 50 * 10**9, True)
    assert found.note.startswith("attained where the switches of boxes combine")
    assert found.without_switches is not None
    assert found.without_switches < 8 * 50 * 10**9


@pytest.mark.slow
def test_no_bound_is_beaten_by_trees() -> None:
    count = examples(300)
    seen = judge(range(count))
    assert seen["helped"] > count // 2
    assert seen["faster"] >= count // 12
    assert seen["equal"] > 2 * count // 3
