"""Planner gentree: the published choices, plans for any tree, and the parts it is made of."""

import math
import random
from typing import Any

import numpy as np
import pytest
from entries import colocated_ps, genmodel, gentree
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples, in_turn

from antiphon.core.collective import Collective
from antiphon.core.loads import timeline
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.topology import LinkType, Topology, build
from antiphon.core.verify import verify
from antiphon.cost import Incast, Profile, as_profile
from antiphon.cost.genmodel import forms as genmodel_forms
from antiphon.errors import Unsupported
from antiphon.planners.switchtrees.assign import Owned, deal_blocks
from antiphon.planners.switchtrees.cost import PartCost
from antiphon.planners.switchtrees.graph import read_tree
from antiphon.planners.switchtrees.tree import candidate_roots, root_tree
from antiphon.planners.switchtrees.types import fans_of
from antiphon.topologies import topology

HOW = ("auto", "never", "always")
KINDS = ("reducescatter", "allgather", "allreduce")
FLOAT = 4
SIZES = [int(FLOAT * floats) for floats in (1e7, 3.2e7, 1e8)]
TABLE5 = "genmodel-table5"

# Table 6, but for ACPS; the switch as our topologies name it
PUBLISHED = {
    ("ss24", "root"): ("CPS", "8x3", "8x3"),
    ("ss32", "root"): ("8x4", "8x4", "8x4"),
    ("sym384", "sw0"): ("CPS", "8x3", "8x3"),
    ("sym384", "root"): ("CPS", "8x2", "8x2"),
    ("sym512", "sw0"): ("CPS", "8x4", "8x4"),
    ("sym512", "root"): ("CPS", "8x2", "8x2"),
    ("asy384", "sw0"): ("CPS", "8x4", "8x4"),
    ("asy384", "sw8"): ("CPS", "8x2", "8x2"),
    ("cdc384", "dc0/sw0"): ("CPS", "8x4", "8x4"),
    ("cdc384", "dc0/root"): ("CPS", "CPS", "CPS"),
    ("cdc384", "dc1/sw0"): ("CPS", "8x2", "8x2"),
    ("cdc384", "dc1/root"): ("CPS", "CPS", "CPS"),
}
# what we choose instead (docs/planners/switches.md#gentree says why): network, switch, number of the size
OTHERWISE = {
    ("sym384", "root", 1): "CPS",
    ("sym512", "sw0", 0): "8x4",
    ("asy384", "sw0", 0): "8x4",
    ("cdc384", "dc0/sw0", 0): "8x4",
}


def planned(
    spec: str | Topology,
    kind: str = "allreduce",
    members: tuple[int, ...] = (),
    nbytes: int | None = None,
    **options: Any,
) -> Schedule:
    here = topology(spec) if isinstance(spec, str) else spec
    return next(gentree(Request(here, Collective(kind, here.ranks, members), nbytes), **options))


def words(schedule: Schedule) -> dict[str, str]:
    return dict(schedule.provenance["found"]["plan"])


def seconds(schedule: Schedule) -> float:
    return float(schedule.provenance["found"]["seconds"])


# ---- what is published ----


@pytest.mark.parametrize("network", in_turn(sorted({network for network, _ in PUBLISHED})))
def test_table_6(network: str) -> None:
    for number, nbytes in enumerate(SIZES):
        told = words(planned(network, nbytes=nbytes, profile=TABLE5))
        for (where, switch), plans in PUBLISHED.items():
            if where == network:
                expected = OTHERWISE.get((network, switch, number), plans[number])
                assert told[switch] == expected, (network, switch, nbytes)
        if network in ("asy384", "cdc384"):
            top = "root" if network == "asy384" else "dc0/root-dc1/root"
            assert told[top].startswith("ACPS")


@pytest.mark.slow
def test_data_rearrangement_helps_across_data_centres() -> None:
    """Half of the blocks are owned on each side of the narrow link, instead of a third and two thirds."""
    here = topology("cdc384")
    for nbytes in SIZES:
        with_it, without = (
            planned(here, nbytes=nbytes, profile=TABLE5, rearrange=how) for how in ("auto", "never")
        )  # fmt: skip
        assert seconds(with_it) < seconds(without)
        price = [genmodel(one, here, profile=TABLE5)(nbytes).seconds for one in (with_it, without)]
        assert price[0] < price[1]
    narrow = [link for link in range(here.links) if here.types[int(here.link_type[link])].kind == "wan"]
    assert _crossing(with_it, narrow) == [384, 384]
    assert sorted(_crossing(without, narrow)) == [384, 384]
    assert _busiest(with_it, narrow) * 4 == _busiest(without, narrow) * 3


def _crossing(schedule: Schedule, links: list[int]) -> list[int]:
    """How many chunks cross each of these links."""
    return [int(np.isin(schedule.route, _through(schedule, link)).sum()) for link in links]


def _through(schedule: Schedule, link: int) -> list[int]:
    owner = np.repeat(np.arange(len(schedule.routes)), np.diff(schedule.routes.ptr))
    return np.unique(owner[schedule.routes.links == link]).tolist()


def _busiest(schedule: Schedule, links: list[int]) -> int:
    """Chunks over the busiest of these links in each step, added up."""
    per_step = [
        np.bincount(schedule.step[np.isin(schedule.route, _through(schedule, link))], minlength=schedule.steps)
        for link in links
    ]
    return int(np.max(per_step, axis=0).sum())


# ---- any tree ----


@st.composite
def trees(draw: st.DrawFn, most: int = 64) -> Topology:
    """Switches up to depth 4, with servers at any level, also beside switches; every direction of a link its own."""
    chance = random.Random(draw(st.integers(0, 10**9)))
    ranks = draw(st.integers(2, most))
    parents, depth = [-1], [1]
    for _ in range(draw(st.integers(0, 9))):
        above = chance.randrange(len(parents))
        if depth[above] < 4:
            parents.append(above)
            depth.append(depth[above] + 1)
    home = [chance.randrange(len(parents)) for _ in range(ranks)]
    if len(set(home)) == 1 and len(parents) > 1 and chance.random() < 0.8:
        home = [i % len(parents) for i in range(ranks)]
    links = []

    def joined(a: int, b: int, wide: int) -> None:
        kind = f"kind{chance.randrange(3)}"
        for one, other in ((a, b), (b, a)):
            speed = chance.choice((1, 2, 5, 10)) * wide * 10**8
            links.append((one, other, LinkType(kind, speed, chance.choice((0, 1e-6, 5e-5)))))

    for rank, switch in enumerate(home):
        joined(rank, ranks + switch, 1)
    for switch, above in enumerate(parents[1:], 1):
        joined(ranks + switch, ranks + above, chance.choice((1, 4, 20)))
    return build(f"random:{ranks}", ranks, links, switches=len(parents))


@st.composite
def profiles(draw: st.DrawFn) -> Profile | None:
    if draw(st.booleans()):
        return None
    few = st.sampled_from((0.0, 1e-11, 1e-9))
    incast = {f"kind{i}": Incast(draw(few), draw(st.integers(0, 12))) for i in range(3)}
    return Profile(incast=incast, gamma=draw(few), delta=draw(few))


def usable(profile: Profile | None, here: Topology) -> Profile | None:
    """A profile must not speak only of kinds that are not there."""
    kinds = {t.kind for t in here.types}
    return None if profile is None or not kinds & set(profile.incast) else profile


@settings(max_examples=examples(60), deadline=None)
@given(trees(), profiles(), st.sampled_from(KINDS), st.sampled_from((1, 10**5, 10**9)), st.sampled_from(HOW))
def test_every_tree_has_a_verified_plan(
    here: Topology, profile: Profile | None, kind: str, nbytes: int, rearrange: str
) -> None:
    schedule = planned(here, kind, nbytes=nbytes, profile=usable(profile, here), rearrange=rearrange)
    report = verify(schedule, here)
    assert report.ok, report.fault
    assert schedule.transfers == here.ranks * (here.ranks - 1) * (2 if kind == "allreduce" else 1)


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(trees(), profiles(), st.sampled_from((1, 10**4, 10**6, 10**9)))
def test_never_slower_than_colocated_ps(here: Topology, profile: Profile | None, nbytes: int) -> None:
    known = usable(profile, here)
    given_profile = as_profile(known)
    graph = read_tree(here, range(here.ranks))
    tree = root_tree(graph, next(iter(candidate_roots(graph, here))), given_profile.on(here), given_profile)
    flat = PartCost(tree, given_profile, nbytes, "allreduce").price_flat(0)
    assert seconds(planned(here, nbytes=nbytes, profile=known)) <= flat * (1 + 1e-9)
    # and that estimate of co-located PS is what GenModel says of it
    made = next(colocated_ps(Request(here, Collective("allreduce", here.ranks))))
    assert genmodel(made, here, profile=known)(nbytes).seconds == pytest.approx(flat, rel=1e-9)


@pytest.mark.parametrize(
    ("spec", "nbytes", "close"),
    in_turn(
        [("ss24", SIZES[1], 1e-9), ("sym384", SIZES[1], 1e-9), ("asy384", SIZES[2], 0.01), ("cdc384", SIZES[2], 0.01)],
        2,
    ),
)
def test_the_estimate_is_what_genmodel_says(spec: str, nbytes: int, close: float) -> None:
    here = topology(spec)
    schedule = planned(here, nbytes=nbytes, profile=TABLE5)
    assert genmodel(schedule, here, profile=TABLE5)(nbytes).seconds == pytest.approx(seconds(schedule), rel=close)


# ---- data rearrangement ----


@pytest.mark.parametrize("kind", KINDS)
def test_only_those_on_whom_results_were_gathered_send_across(kind: str) -> None:
    here = topology("tree:fanouts=2x8,bandwidth=1GB/s,uplink=2GB/s")
    schedule = planned(here, kind, nbytes=10**9, rearrange="always")
    assert verify(schedule, here).ok
    told = words(schedule)["root"]
    some = int(told.split(" of 8")[0].rpartition(" ")[2])
    assert some in (2, 4)
    across = (schedule.src < 8) != (schedule.dst < 8)
    assert len(set(schedule.src[across].tolist())) == len(set(schedule.dst[across].tolist())) == 2 * some
    # within the switches, gather, across; and give back, where everyone must end with its own block
    assert schedule.steps == {"allreduce": 6}.get(kind, 4)


def test_gathering_pays_where_many_owners_would_send_to_few() -> None:
    """64 servers and 4: in the allgather, 16 owners would spread to each of the 4 at once."""
    slow, fast = LinkType("wan", 2 * 10**9, 1e-6), LinkType("port", 10**10, 1e-6)
    links = [(rank, 69 if rank < 64 else 70, fast) for rank in range(68)] + [(68, 69, slow), (68, 70, slow)]
    here = build("lopsided", 68, [*links, *((b, a, kind) for a, b, kind in links)], switches=3)
    profile = Profile(incast={"wan": Incast(1e-9, 4), "port": Incast(1e-9, 4)})
    made = [planned(here, nbytes=10**9, profile=profile, rearrange=how) for how in ("auto", "never")]
    assert words(made[0])["switch0"] == "ACPS among 16 of 64, 4 of 4"
    assert verify(made[0], here).ok
    price = [genmodel(one, here, profile=profile)(10**9).seconds for one in made]
    assert price[0] < price[1] / 2


# ---- fat trees, boxes ----


@pytest.mark.parametrize(
    "spec",
    [
        "cluster:box=full:ranks=4,boxes=8,fabric=leaf-spine,spines=4",
        "cluster:box=star:ranks=4,boxes=8,fabric=fat-tree,spines=2",
        "cluster:box=dgx-a100,boxes=4,fabric=leaf-spine,spines=2",
    ],
)
def test_parallel_switches_are_one_and_share_the_traffic(spec: str) -> None:
    here = topology(spec)
    schedule = planned(here, nbytes=10**9)
    assert verify(schedule, here).ok
    assert any(".." in name for name in words(schedule))  # spine0..spine3
    top = [n for n in range(here.ranks, here.nodes) if here.places[n].startswith(("spine", "core"))]
    carried = timeline(schedule, here)
    assert carried.total > 0
    used = np.bincount(here.link_src[schedule.routes.links[_hops(schedule)]], minlength=here.nodes)[top]
    assert used.min() == used.max() > 0


def _hops(schedule: Schedule) -> np.ndarray:
    """The links of all rows, as places in the table of routes."""
    table = schedule.routes
    assert schedule.route is not None
    taken = schedule.route[schedule.route >= 0]
    return np.concatenate([np.arange(table.ptr[r], table.ptr[r + 1]) for r in taken.tolist()])


def test_the_bandwidth_of_parallel_switches_adds_up() -> None:
    """However many spines share it: the tree and the plan are the same."""
    seen = []
    for spines in (1, 4):
        here = topology(f"cluster:box=dgx-a100,boxes=4,fabric=leaf-spine,spines={spines}")
        graph = read_tree(here, range(here.ranks))
        tree = root_tree(graph, next(iter(candidate_roots(graph, here))), here, Profile())
        seen.append((tree.up.beta.round(20).tolist(), tree.parent.tolist()))
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("torus:dims=4x4", "rank 0, rank 1, rank 2, rank 3"),
        ("torus:dims=4x4,routers=true", "switch x0/y0/router"),
        ("dragonfly:groups=5,routers=2,hosts=2", "switch group0/router0"),
        ("dgx1v", "a cycle leads through rank 0, rank 1"),
        ("line:ranks=5", "ranks do not forward"),
        ("cluster:box=dgx1v,boxes=2", "are in one box, but not linked"),
    ],
)
def test_what_is_no_tree_is_refused_with_a_cycle_and_advice(spec: str, named: str) -> None:
    with pytest.raises(Unsupported, match="gentree") as refusal:
        planned(spec)
    assert named in str(refusal.value)
    assert "trees" in str(refusal.value).rpartition(";")[2]


def test_switches_are_one_only_if_all_below_are_linked_with_all_of_them() -> None:
    """A leaf that misses one of two spines: what the others share is not there for it."""
    kind = LinkType("port", 10**9)
    links = [(rank, 6 + rank // 2, kind) for rank in range(6)]
    links += [(leaf, spine, kind) for leaf in (6, 7, 8) for spine in (9, 10) if (leaf, spine) != (8, 10)]
    here = build("torn", 6, [*links, *((b, a, kind) for a, b, kind in links)], switches=5)
    with pytest.raises(Unsupported, match="a cycle leads through switch switch0, switch switch3, switch switch1"):
        planned(here)


# ---- the parts ----


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 60), st.integers(0, 10**6))
@settings(max_examples=examples(150), deadline=None)
def test_no_block_is_left_over(children: list[int], more: int, seed: int) -> None:
    """Whatever blocks are owned by whom: in each child everyone holds floor or ceil, and keeps what it owns."""
    low = np.cumsum([0, *children])
    servers, chance = sum(children), np.random.default_rng(seed)
    blocks = servers + more
    load = np.full(servers, blocks // servers)
    load[chance.permutation(servers)[: blocks % servers]] += 1
    owner = chance.permutation(np.repeat(np.arange(servers), load))
    owned = Owned.by_child(owner, low)
    for first, last in zip(low[:-1].tolist(), low[1:].tolist(), strict=True):
        holder = deal_blocks(owner, owned, first, last)
        many = np.bincount(holder - first, minlength=last - first)
        assert len(many) == last - first
        assert blocks // (last - first) <= many.min() <= many.max() <= -(-blocks // (last - first))
        mine = (owner >= first) & (owner < last)
        assert np.array_equal(holder[mine], owner[mine])


def _crowds(here: Topology) -> Profile:
    """So much incast that nobody plans past the switches."""
    return Profile(incast={t.kind: Incast(1e-7, 1) for t in here.types})


def test_children_of_equal_size_hold_the_same_blocks_at_the_same_places() -> None:
    """So that each server meets one server of each other child: the fewest senders to one receiver."""
    here = topology("tree:fanouts=4x6")
    schedule = planned(here, "reducescatter", nbytes=10**9, profile=_crowds(here), rearrange="never")
    across = schedule.src // 6 != schedule.dst // 6
    assert np.array_equal(schedule.src[across] % 6, schedule.dst[across] % 6)


@pytest.mark.parametrize("count", [8, 12, 24, 30])
@pytest.mark.parametrize("nbytes", [10**4, 10**7, 10**9])
def test_the_best_of_all_factorisations_is_found(count: int, nbytes: int) -> None:
    here = topology(f"star:ranks={count},latency=20us")
    profile = Profile(incast={here.types[0].kind: Incast(3e-11, 4)}, gamma=1e-10, delta=4e-11)
    graph = read_tree(here, range(count))
    tree = root_tree(graph, next(iter(candidate_roots(graph, here))), here, profile)
    cost = PartCost(tree, profile, nbytes, "allreduce")
    tier = next(t for t in cost.list_tiers(0) if t.epsilon)
    every = list(_factorisations(count))
    assert len(every) == {8: 4, 12: 8, 24: 20, 30: 13}[count]
    prices: dict[tuple[object, ...], float] = {
        fans: genmodel_forms.hcps(fans, nbytes, tier, cost.server).total for fans in every
    }
    prices[("ring",)] = genmodel_forms.ring(count, nbytes, tier, cost.server).total
    kind, price, _ = cost.best_type(0, count, 1)
    assert price == pytest.approx(min(prices.values()))
    assert kind == "ring" or math.prod(fans_of(kind, count)) == count


def _factorisations(number: int) -> list[tuple[int, ...]]:
    if number == 1:
        return [()]
    return [(f, *rest) for f in range(2, number + 1) if number % f == 0 for rest in _factorisations(number // f)]


@pytest.mark.parametrize(
    ("kind", "count", "profile", "latency", "nbytes"),
    [
        ("ring", 7, Profile(incast={"link": Incast(1e-7, 1)}), "1ns", 10**9),
        ("RHD", 8, Profile(incast={"link": Incast(1e-7, 1)}), "1ns", 10**9),
        ("RHD", 61, Profile(incast={"link": Incast(1e-8, 9)}), "20ms", 10**9),
    ],
)
def test_ring_and_halving_where_they_are_fastest(
    kind: str, count: int, profile: Profile, latency: str, nbytes: int
) -> None:
    here = topology(f"star:ranks={count},latency={latency}")
    schedule = planned(here, nbytes=nbytes, profile=profile)
    assert words(schedule) == {"switch0": kind}
    assert verify(schedule, here).ok
