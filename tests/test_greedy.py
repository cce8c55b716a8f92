"""Planner `greedy`: right on machines of any kind, in few steps, near the bound."""

import random
import sys

import numpy as np
import pytest
from entries import alpha_beta, greedy
from generate import able
from generate import collective as random_collective
from generate import topology as random_machine
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples, in_turn

from antiphon.core.bounds import bound
from antiphon.core.collective import KINDS, Collective, custom_relation
from antiphon.core.loads import throughput, timeline
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.topology import LinkType, SharedLimit, Topology, both_ways, build
from antiphon.core.verify import verify
from antiphon.errors import Infeasible, Invalid, Unsupported
from antiphon.planners.greedy.bits import add_chunks, draw_chunks
from antiphon.planners.greedy.hops import hops_of
from antiphon.planners.greedy.search import GreedySearch
from antiphon.planners.greedy.tasks import task_of
from antiphon.topologies import topology

WIRE = LinkType("wire", "1GB/s", 1e-6)
SLOW = LinkType("slow", "250MB/s", 1e-6)
GB = 10**9


def planned(machine: Topology, wanted: Collective, nbytes: int | None = GB, **options: float) -> Schedule:
    seed, effort = int(options.pop("seed", 0)), options.pop("effort", None)
    (made,) = greedy(Request(machine, wanted, nbytes=nbytes, seed=seed, effort=effort), **options)  # type: ignore[arg-type]
    verify(made, machine).or_raise()
    return made


def over(made: Schedule, machine: Topology, nbytes: int = GB) -> float:
    """Time over what the bound allows."""
    most = bound(machine, made.collective)
    return alpha_beta(made, machine)(nbytes).seconds / float(most.seconds(nbytes))


@pytest.mark.parametrize(
    ("spec", "kind", "most"),
    in_turn([
        ("mesh:dims=6x6", "allgather", 1.05), ("torus:dims=3x3x3", "reducescatter", 1.05),
        ("cluster:box=dgx-a100,boxes=4", "allgather", 1.06),
        *(
            pytest.param(spec, kind, most, marks=pytest.mark.slow)
            for spec, kind, most in [
                ("dgx1v", "allreduce", 1.08), ("star:ranks=16", "allgather", 1.03),
                ("mesh:dims=32x32", "allgather", 1.02), ("torus:dims=10x10x10", "allgather", 1.02),
                ("torus:dims=8x8x8", "allgather", 1.02), ("cluster:box=dgx-a100,boxes=128", "allgather", 1.05),
                ("cluster:box=dgx-a100,boxes=128", "allreduce", 1.05), ("torus:dims=16x16x16", "allgather", 1.02),
            ]
        ),
    ], 3),
)  # fmt: skip
def test_near_the_bound(spec: str, kind: str, most: float) -> None:
    machine = topology(spec)
    effort = 0.2 if machine.ranks < 64 else 1.0
    assert over(planned(machine, Collective(kind, machine.ranks), effort=effort), machine) <= most


def test_into_a_box_everything_comes_once() -> None:
    """Two pairs of ranks, joined by links a quarter as wide: what crosses is all that must."""
    links = [*both_ways([(0, 1), (2, 3)], WIRE), *both_ways([(0, 2), (1, 3)], SLOW)]
    machine = build("pairs", 4, links)
    made = planned(machine, Collective("allgather", 4), parts=4, pace=0)
    crossing = (made.src // 2) != (made.dst // 2)
    assert int(crossing.sum()) == 2 * 2 * 4
    assert throughput(made, machine) == bound(machine, made.collective).bytes_per_second


def test_steps_are_fewer_where_they_may_be_longer() -> None:
    machine = topology("mesh:dims=6x6")
    wanted = Collective("allgather", 36)
    short, long = (planned(machine, wanted, parts=4, pace=pace, effort=0.01) for pace in (0, 0.2))
    assert long.steps < 0.6 * short.steps
    assert timeline(long, machine).total <= 1.1 * timeline(short, machine).total


@pytest.mark.parametrize("spec", in_turn(["cluster:box=dgx-a100,boxes=3", "pcie8", "mesh:dims=6x6"], 2))
def test_hops_with_room_for_many_bring_nothing_twice(spec: str) -> None:
    """Links of their own, islands, shared limits; most steps are long enough to take several chunks at once."""
    machine = topology(spec)
    made = planned(machine, Collective("allgather", machine.ranks), parts=16, pace=0.5, effort=1e-6)
    assert made.transfers == len(made.chunks) * (machine.ranks - 1)


@pytest.mark.slow
def test_what_cannot_be_faster_is_not_tried() -> None:
    """At 1 GB nothing but latency is left to save; at 1 MB other paces save it."""
    machine = topology("mesh:dims=6x6")
    tried = []
    for nbytes in (GB, 10**6):
        search = GreedySearch(machine, Collective("allgather", 36), 0, 0.1)
        found = search.find_fastest(nbytes, None, None)
        assert found.seconds(nbytes) == min(made.seconds(nbytes) for made in search.cached_runs.values())
        assert all(0 < made.least_load <= made.load * (1 + 1e-9) for made in search.cached_runs.values())
        tried.append(len(search.cached_runs))
    assert tried[0] == 1 < tried[1]


def test_a_seed_has_one_answer_and_effort_is_counted() -> None:
    machine = topology("dgx1v")
    wanted = Collective("allgather", 8)
    first, again, other = (planned(machine, wanted, parts=4, seed=seed, effort=0.01) for seed in (1, 1, 2))
    assert first.same_as(again)
    assert not first.same_as(other)
    runs = []
    for effort in (1e-6, 0.1):
        search = GreedySearch(machine, wanted, 0, effort)
        search.find_fastest(GB, None, None)
        runs.append(len(search.cached_runs))
    assert runs[0] == 1 < runs[1]


@pytest.mark.slow
def test_without_a_size_what_is_asked_for_is_tried_with_several_seeds() -> None:
    """Single runs take up to 8 steps, where the bound is 6."""
    machine = topology("mesh:dims=3x4")
    wanted = Collective("allgather", machine.ranks)
    assert planned(machine, wanted, None, parts=1, pace=0).steps == 6
    assert max(planned(machine, wanted, None, parts=1, pace=0, seed=seed).steps for seed in range(4)) <= 7
    assert max(planned(machine, wanted, None, parts=1, pace=0, seed=seed, effort=1e-6).steps for seed in range(20)) > 6


def test_beyond_256_ranks_behind_switches_some_hops_are_enough() -> None:
    machine = topology("cluster:box=dgx-a100,boxes=40")
    hops = hops_of(machine)
    assert len(hops) < 64 * machine.ranks
    for batches in hops.batches:
        for batch in batches:
            assert len(set(batch.src.tolist())) == len(set(batch.dst.tolist())) == len(batch.hop)


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_random_machines(seed: int) -> None:
    """Switches, some of which copy, shared limits, one-way and parallel links, groups with relays, uneven weights."""
    rng = random.Random(seed)
    machine = able(random_machine(rng, rng.randint(2, 8)), seed)
    wanted = random_collective(rng, machine.ranks, rng.choice([*KINDS, "custom"]))
    options = rng.choice([{}, {"parts": rng.randint(1, 5)}, {"pace": rng.choice([0, 0.1, 1])}])
    nbytes = rng.choice([None, 1, 1000, GB])
    try:
        found = list(greedy(Request(machine, wanted, nbytes=nbytes, effort=0.02), **options))
    except Infeasible:
        return
    except Unsupported:
        assert wanted.kind == "custom"
        return
    for made in found:
        verify(made, machine).or_raise()
        most = bound(machine, wanted).without_help
        if nbytes and most.bytes_per_second:
            assert timeline(made, machine).total >= 1 / most.bytes_per_second


@pytest.mark.parametrize("chunks", [1, 63, 64, 65, 1000, 4097, 300_000])
def test_chunks_are_drawn_from_their_sets_and_every_one_can_be(chunks: int) -> None:
    rng = np.random.default_rng(chunks)
    held = [set(rng.choice(chunks, min(chunks, many), replace=False).tolist()) for many in (0, 1, 2, 5)]
    sets = np.zeros((len(held), -(-chunks // 64)), np.uint64)
    for row, some in enumerate(held):
        add_chunks(sets, np.full(len(some), row), np.array(sorted(some), np.int64))
    drawn = np.concatenate([draw_chunks(sets, rng, 2) for _ in range(500)])
    assert [set(column) for column in drawn.T.tolist()] == [some or {-1} for some in held]


def test_what_cannot_be() -> None:
    one_way = build("one way", 2, [(0, 1, WIRE)])
    with pytest.raises(Infeasible, match="no links lead from rank 1 to rank 0"):
        list(greedy(Request(one_way, Collective("allgather", 2))))
    with pytest.raises(Infeasible):
        list(greedy(Request(one_way, Collective("allreduce", 2))))
    sums = Collective("custom", 2, custom=custom_relation([(0, 0, 0), (0, 1, 1)], [(0, 1, None)], 2))
    with pytest.raises(Unsupported, match="relay"):
        list(greedy(Request(one_way, sums)))
    for wrong in ({"parts": 0}, {"pace": -1}, {"parts": True}, {"pace": 2}):
        with pytest.raises(Invalid):
            list(greedy(Request(one_way, Collective("broadcast", 2)), **wrong))


def test_fewer_parts_are_named_where_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[task_of.__module__], "MOST_BITS", 60)
    machine = topology("full:ranks=4")
    planned(machine, Collective("allgather", 4), parts=1)
    with pytest.raises(Unsupported, match=r"16 chunks on 4 .*; use planner compose, direct or relay, or fewer parts"):
        planned(machine, Collective("allgather", 4), None, parts=4, pace=0)
    with pytest.raises(
        Unsupported, match="16 chunks on 4 ranks are too many; use planner compose, flows, direct or relay"
    ):
        planned(machine, Collective("alltoall", 4), parts=1)


@pytest.mark.parametrize("kind", ["allgather", "broadcast"])
def test_relays_get_what_they_pass_on_and_nothing_else(kind: str) -> None:
    """Four of sixteen ranks, no two of them neighbours."""
    machine, members = topology("torus:dims=4x4"), (0, 5, 10, 15)
    roots = (0,) if kind == "broadcast" else ()
    made = planned(machine, Collective(kind, 16, members, roots), None, parts=4, pace=0, effort=1e-6)
    relayed = ~np.isin(made.dst, members)
    got = {*zip(made.dst[relayed].tolist(), made.chunk[relayed].tolist(), strict=True)}
    assert got
    assert got <= {*zip(made.src.tolist(), made.chunk.tolist(), strict=True)}


def test_links_that_share_a_limit_take_turns() -> None:
    """A star whose centre can send no more than one of its links."""
    links = both_ways([(0, rank) for rank in range(1, 5)], WIRE)
    limit = SharedLimit("egress", (0, 2, 4, 6), WIRE.bandwidth)
    machine = build("narrow", 5, links, limits=[limit])
    made = planned(machine, Collective("scatter", 5), parts=1, pace=0)
    assert made.steps == 4
