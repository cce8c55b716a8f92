"""The lower bound by size against schedules: none is faster, and on simple machines some are exactly as fast."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
import quick
from quick import in_turn, some

from antiphon.core.bounds import bound
from antiphon.core.bounds.by_size import SizeBound, bound_by_size, find_evidence, least_message_latency
from antiphon.core.bounds.latency_seconds import Quickest, find_slowest_need
from antiphon.core.bounds.needs import needs_of
from antiphon.core.bounds.steps import Chain, Exchange, Fan, OneStep, StepCut, StepCuts, proved_times
from antiphon.core.collective import Collective, custom_relation
from antiphon.core.reshape import contract, only
from antiphon.core.schedule import REDUCE, Schedule, cut
from antiphon.core.topology import Ability, LinkType, Topology, both_ways, build, hosts
from antiphon.core.verify import verify
from antiphon.cost import prepare
from antiphon.cost.bound_evaluator import BoundEvaluator
from antiphon.cost.model_bound import BOUNDS, model_bound
from antiphon.errors import AntiphonError, Invalid
from antiphon.select import plan, tune
from antiphon.topologies import topology

SIZES = (1, 1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 23, 1 << 26, 1 << 30)
ROUNDING = 1 - 1e-9
KINDS = ("broadcast", "reduce", "scatter", "gather", "allgather", "reducescatter", "allreduce", "alltoall")


def alpha_beta_bound(machine: Topology, kind: str):  # type: ignore[no-untyped-def]
    target = Collective(kind, machine.ranks)
    least = model_bound("alpha-beta", {}, BoundEvaluator(machine, target, bound(machine, target)))
    assert least is not None
    return least


def random_machine(rng: random.Random, ranks: int) -> Topology:
    """A strongly connected machine of ranks whose links differ in bandwidth and latency."""
    kinds = [
        LinkType(f"k{i}", Fraction(10**9 * rng.choice((1, 1, 2, 3))), rng.choice((1e-6, 1e-6, 2e-6, 5e-6)))
        for i in range(3)
    ]
    order = rng.sample(range(ranks), ranks)
    pairs = set(zip(order, order[1:] + order[:1], strict=True))
    pairs |= {pair for pair in itertools.permutations(range(ranks), 2) if rng.random() < 0.4}
    return build("random", ranks, [(a, b, rng.choice(kinds)) for a, b in sorted(pairs)])


def fastest_spread(machine: Topology, kind: str, pieces: int, nbytes: int) -> float:
    """The least alpha-beta time of all schedules of a broadcast or allgather in equal pieces, by exhaustive search.

    A state is what every rank has. In a step of wire time t a link carries any pieces that its tail has, as many as
    fit; what each rank gains does not depend on the others.
    """
    ranks = machine.ranks
    blocks = 1 if kind == "broadcast" else ranks
    size = nbytes / blocks / pieces
    every = frozenset(range(blocks * pieces))
    start = tuple(
        every if kind == "broadcast" and rank == 0 else
        frozenset(range(rank * pieces, (rank + 1) * pieces)) if kind == "allgather" else frozenset()
        for rank in range(ranks)
    )  # fmt: skip
    links = list(zip(machine.link_src.tolist(), machine.link_dst.tolist(), range(machine.links), strict=True))
    widths = {float(machine.bandwidth(link)) for _, _, link in links}
    late = {float(kind.latency) for kind in machine.types}
    wire_times = sorted({count * size / width for count in range(1, len(every) + 1) for width in widths})
    best, queue = {start: 0.0}, [(0.0, 0, start)]
    number = itertools.count(1)
    while queue:
        seconds, _, state = heapq.heappop(queue)
        if seconds > best[state]:
            continue
        if all(held == every for held in state):
            return seconds
        for wire, alpha in itertools.product(wire_times, late):
            gains = []
            for rank in range(ranks):
                options: set[frozenset[int]] = {frozenset()}
                for src, dst, link in links:
                    if dst != rank or machine.types[int(machine.link_type[link])].latency > alpha:
                        continue
                    fits = int(wire * float(machine.bandwidth(link)) / size + 1e-9)
                    useful = state[src] - state[rank]
                    carried = [
                        frozenset(chosen) for chosen in itertools.combinations(sorted(useful), min(fits, len(useful)))
                    ]
                    options = {gain | more for gain in options for more in carried}
                largest = max(map(len, options))
                gains.append([state[rank] | gain for gain in options if len(gain) == largest or len(options) < 8])
            for after in itertools.product(*gains):
                total = seconds + alpha + wire
                if total < best.get(after, float("inf")):
                    best[after] = total
                    heapq.heappush(queue, (total, next(number), after))
    raise AssertionError("not connected")


@pytest.mark.parametrize("seed", in_turn(range(36), 18))
@pytest.mark.parametrize("kind", ["broadcast", "allgather"])
def test_no_schedule_in_pieces_is_faster_by_exhaustive_search(kind: str, seed: int) -> None:
    rng = random.Random(seed)
    machine = random_machine(rng, 3 if kind == "allgather" else rng.choice((3, 4)))
    least = alpha_beta_bound(machine, kind)
    for pieces in (1, 2) if kind == "broadcast" else (1,):
        for nbytes in (1 << 10, 1 << 14, 1 << 22):
            fastest = fastest_spread(machine, kind, pieces, nbytes)
            assert least(nbytes) <= fastest / ROUNDING, (pieces, nbytes)


def connected_machines(ranks: int) -> Iterator[Topology]:
    """Every strongly connected machine of equal links, once per choice of a root, which is rank 0."""
    kind, known = LinkType("link", Fraction(10**9), 1e-6), set()
    pairs = list(itertools.permutations(range(ranks), 2))
    for mask in range(1 << len(pairs)):
        links = [pair for i, pair in enumerate(pairs) if mask >> i & 1]
        reach = np.eye(ranks, dtype=np.int64)
        for a, b in links:
            reach[a, b] = 1
        if not np.linalg.matrix_power(reach, ranks).all():
            continue
        orders = [(0, *rest) for rest in itertools.permutations(range(1, ranks))]
        key = min(tuple(sorted((order[a], order[b]) for a, b in links)) for order in orders)
        if key not in known:
            known.add(key)
            yield build("connected", ranks, [(a, b, kind) for a, b in key])


@pytest.mark.slow
@pytest.mark.parametrize("part", range(40))
def test_no_schedule_is_faster_on_any_machine_of_up_to_four_ranks(part: int) -> None:
    """Broadcasts in up to 3 pieces, allgathers in as many as exhaustive search can do."""
    machines = [machine for ranks in (2, 3, 4) for machine in connected_machines(ranks)]
    for machine in machines[part::40]:
        for kind, most in (("broadcast", 3), ("allgather", 5 - machine.ranks)):
            least = alpha_beta_bound(machine, kind)
            for pieces, nbytes in itertools.product(range(1, most + 1), (1 << 10, 1 << 14, 1 << 22)):
                fastest = fastest_spread(machine, kind, pieces, nbytes)
                assert least(nbytes) <= fastest / ROUNDING, (kind, pieces, nbytes)


MACHINES = (
    "tree:fanouts=2x(2+1)", "hgx-h100", "ring:ranks=5", "star:ranks=5", "dgx1v", "hypercube:ranks=8", "line:ranks=4",
    "full:ranks=4", "mesh:dims=2x3", "cluster:box=pcie8,boxes=2", "z52", "dgx-a100",
)  # fmt: skip
QUICK = (
    "direct", "ring", "multi-ring", "binomial-tree", "double-binary-tree", "halving-doubling", "recursive-doubling",
    "pairwise", "bruck", "kring", "recmult", "nvls", "colocated-ps", "flows",
)  # fmt: skip


@pytest.mark.parametrize(("spec", "kind"), in_turn(itertools.product(reversed(MACHINES), KINDS), 100))
def test_no_plan_is_predicted_faster_by_any_model_that_has_a_bound(spec: str, kind: str) -> None:
    machine = topology(spec)
    target = Collective(kind, machine.ranks)
    proofs = BoundEvaluator(machine, target, bound(machine, target))
    bounds = {model: least for model in BOUNDS if (least := model_bound(model, {}, proofs)) is not None}
    assert {"alpha-beta", "critical-path"} <= bounds.keys()
    for planner in QUICK[:: 2 if quick.ordinary else 1]:
        try:
            schedule = plan(kind, machine, planner=planner, budget=2).entries[0].schedule
        except AntiphonError:
            continue
        for model, least in bounds.items():
            try:
                predict = prepare(model, schedule, machine)
            except AntiphonError:
                continue
            for nbytes in SIZES:
                seconds = predict(nbytes).seconds
                assert least(nbytes) <= seconds / ROUNDING, (planner, model, nbytes, seconds)


@pytest.mark.parametrize("seed", in_turn(range(60), 60))
def test_no_plan_is_faster_on_random_machines(seed: int) -> None:
    rng = random.Random(seed)
    machine = random_machine(rng, rng.randint(2, 4 if quick.ordinary else 8))
    for kind in KINDS[:: 2 if quick.ordinary else 1]:
        least = alpha_beta_bound(machine, kind)
        for planner in some(("flows", "direct", "greedy", "trees")):
            try:
                schedules = [entry.schedule for entry in plan(kind, machine, planner=planner, effort=0.2).entries]
            except AntiphonError:
                continue
            for schedule in schedules:
                predict = prepare("alpha-beta", schedule, machine)
                for nbytes in SIZES:
                    assert least(nbytes) <= predict(nbytes).seconds / ROUNDING, (kind, planner, nbytes)


EXACT = [
    pytest.param("star:ranks=4", "broadcast", ("direct", "colocated-ps", "shallow"), marks=pytest.mark.slow),
    ("star:ranks=8", "allgather", ("recmult",)),
    ("star:ranks=8", "allreduce", ("direct", "colocated-ps")),
    ("full:ranks=4", "broadcast", ("direct", "colocated-ps", "shallow")),
    ("full:ranks=6", "allgather", ("recmult",)),
    ("full:ranks=6", "allreduce", ("direct", "colocated-ps")),
    ("ring:ranks=6", "allgather", ("trees",)),
    ("hypercube:ranks=8", "allgather", ("compose",)),
    ("tree:fanouts=3x(4+2+0)", "allgather", ("recmult",)),
]


@pytest.mark.parametrize(("spec", "kind", "planners"), in_turn(EXACT, 6))
def test_simple_machines_attain_it_at_ten_sizes(spec: str, kind: str, planners: tuple[str, ...]) -> None:
    sizes = [1 << k for k in range(10, 30, 2)]
    tuned = tune(kind, spec, nbytes=sizes, planners=planners, workers="none", nccl=False, effort=1.0)
    for size in sizes:
        fastest = min(row.seconds[size] for row in tuned.candidates if size in row.seconds)
        assert fastest <= tuned.limits[kind].times[size] * 1.003, size


def test_the_line_of_the_docstring_takes_three_halves_in_three_steps() -> None:
    wire = LinkType("wire", Fraction(1), 0.0)
    machine = build("line", 3, [(0, 1, wire), (1, 2, wire)])
    needs = needs_of(Collective("broadcast", 3))
    cuts = tuple(StepCut((0, step, 4), ((), (), ()), 1) for step in (1, 2, 3))
    assert proved_times(machine, needs, StepCuts(3, cuts), False).base_time == Fraction(3, 2)
    chain = proved_times(machine, needs, Chain((0, 1, 2), 0, ((), ()), ((),)), False)
    assert chain.per_weight(np.array([2.0, 3.0, 4.0])).tolist() == [2.0, 1.5, 4 / 3]


def test_evidence_that_does_not_hold_is_refused() -> None:
    machine = topology("hgx-h100")
    needs = needs_of(Collective("broadcast", 8))
    with pytest.raises(Invalid, match="several ranks at once"):
        proved_times(machine, needs, Fan(0, (1, 2), False), True)
    with pytest.raises(Invalid, match="need each other"):
        proved_times(machine, needs, Exchange((0, 1, 2)), True)
    with pytest.raises(Invalid, match="negative"):
        proved_times(machine, needs, StepCuts(1, (StepCut((0,) * 7 + (2,), ((),), -1),)), False)
    line = topology("line:ranks=3")
    skips = Chain((0, 1, 3), 0, ((), (), ()), ((), ()))
    proved = proved_times(line, needs_of(Collective("broadcast", 3)), skips, False)
    assert proved.base_time > 0  # rank 2 is put too far: cuts 1 and 2 are the same links, and no step passes both


def test_in_one_step_every_copy_crosses_by_itself() -> None:
    star = topology("star:ranks=4")
    needs = needs_of(Collective("broadcast", 4))
    proved = proved_times(star, needs, OneStep((0,), (1, 2, 3), ()), False)
    rate = 3 / float(star.bandwidth(0))
    assert proved.per_weight(np.array([1.0, 2.0])).tolist() == pytest.approx([rate, 0.0])
    with pytest.raises(Invalid, match="several ranks at once"):
        proved_times(star, needs, OneStep((0,), (1, 2, 3), ()), True)
    with pytest.raises(Invalid, match="both sides"):
        proved_times(star, needs, OneStep((0, 1), (1, 2), ()), False)


def test_both_views_hold_together_for_every_number_of_steps() -> None:
    """Of N steps M pass between hosts; against two loops over all N and M."""
    rng, most = random.Random(7), 20
    for _ in range(20):
        alpha, host_alpha = sorted((rng.uniform(0.5, 1), rng.uniform(0.5, 3)))
        views = [np.maximum(1.0, rng.uniform(1, 9) / np.arange(1, most + 1)) for _ in range(2)]
        excess = tuple(sorted((rng.uniform(0, 4) for _ in range(3)), reverse=True))
        sizes = SizeBound(1.0, 1.0, ((alpha, views[0]), (host_alpha, views[1])), excess)
        for nbytes in (0, 1, 3):
            times = []
            for n, m in itertools.combinations_with_replacement(range(most, 0, -1), 2):
                latency = max(1.0, excess[min(n, 3) - 1] + n * alpha, m * host_alpha + (n - m) * alpha)
                times.append(latency + max(views[0][n - 1], views[1][m - 1]) * nbytes)
            assert sizes.seconds(nbytes) == pytest.approx(min(times))


def test_the_holder_that_a_latency_is_counted_from_is_the_nearest() -> None:
    slow, fast = LinkType("slow", Fraction(10**9), 1e-5), LinkType("fast", Fraction(10**9), 1e-6)
    machine = build("line", 4, [(0, 1, slow), (1, 2, fast), (2, 3, fast)])
    copies = custom_relation([(0, 0, 0), (0, 1, 0)], [(0, 3, None)], 4)
    needs = needs_of(Collective("custom", 4, custom=copies))
    path = bound(machine, Collective("custom", 4, custom=copies)).latency_witness
    assert find_slowest_need(machine, needs, path) == Quickest(2e-6, 1, 3)


def test_quick_links_in_several_steps_are_as_good_as_a_slow_one() -> None:
    """Two steps of 1 us each take the time of the direct link, whose narrow wire the bound must not prescribe."""
    narrow, wide = LinkType("narrow", Fraction(10**7), 2e-6), LinkType("wide", Fraction(10**9), 1e-6)
    machine = build("detour", 3, [(0, 2, narrow), (0, 1, wide), (1, 2, wide), (2, 0, wide)])
    least = alpha_beta_bound(machine, "broadcast")
    assert 3.9e-6 < least(1000) <= 4e-6
    assert 2.01e-6 < least(10) <= 2.02e-6


def test_steps_over_slow_links_count_with_the_steps_that_bandwidth_needs() -> None:
    """Rank 3 waits 5 us for the slow link. The broadcast in many steps pays 1 us for each further one."""
    slow, quick = LinkType("slow", Fraction(10**9), 5e-6), LinkType("quick", Fraction(10**9), 1e-6)
    machine = build("line", 4, both_ways([(0, 1), (1, 2)], quick) + both_ways([(2, 3)], slow))
    target = Collective("broadcast", 4)
    quickest = find_slowest_need(machine, needs_of(target), bound(machine, target).latency_witness)
    proved = bound_by_size(machine, target, quickest, 0.0, find_evidence(machine, target))
    assert proved.excess_latencies == pytest.approx((np.inf, np.inf, 4e-6, 4e-6))


def test_what_stays_within_a_host_is_no_capacity_between_hosts() -> None:
    machine = topology("cluster:box=hgx-h100,boxes=4")
    contracted = contract(machine, np.array(hosts(machine)))
    leaving = contracted.link_src == 0
    assert sum(contracted.bandwidth(link) for link in np.flatnonzero(leaving).tolist()) == 400 * 10**9


@pytest.mark.slow
def test_evidence_for_other_hosts_is_refused() -> None:
    machine, other = (topology(f"cluster:box=full:ranks=2,boxes={boxes}") for boxes in (2, 3))
    evidence = find_evidence(machine, Collective("broadcast", machine.ranks))
    with pytest.raises(Invalid, match="hosts"):
        bound_by_size(other, Collective("broadcast", other.ranks), None, 0.0, evidence)


def test_idle_ranks_of_an_allocation_are_no_obstacle() -> None:
    machine = only(topology("mi300x"), range(5))
    target = Collective("allreduce", machine.ranks, tuple(range(5)))
    lower_bound = model_bound("calls", {}, BoundEvaluator(machine, target, bound(machine, target)))
    assert lower_bound is not None
    assert lower_bound(1 << 20) > 0


def test_messages_between_hosts_are_slower_than_within() -> None:
    machine = topology("cluster:box=hgx-h100,boxes=2")
    fast, slow = sorted(kind.latency for kind in machine.types)
    assert least_message_latency(machine) == pytest.approx(2 * fast)
    assert least_message_latency(contract(machine, np.array(hosts(machine)))) >= 2 * slow


@pytest.mark.parametrize("seed", range(20))
def test_the_least_latency_is_that_of_the_quickest_route(seed: int) -> None:
    rng = random.Random(seed)
    ranks, switches = rng.randint(2, 4), rng.randint(0, 4)
    kinds = [LinkType(f"k{i}", Fraction(1), rng.randint(0, 20)) for i in range(4)]
    pairs = [rng.sample(range(ranks + switches), 2) for _ in range(rng.randint(1, 14))]
    links = [(a, b, rng.choice(kinds)) for a, b in pairs]

    def routes(begin: int, at: int, seen: frozenset[int], seconds: float):  # type: ignore[no-untyped-def]
        for a, b, kind in links:
            if a == at and b < ranks and b != begin:
                yield seconds + kind.latency
            elif a == at and b >= ranks and b not in seen:
                yield from routes(begin, b, seen | {b}, seconds + kind.latency)

    quickest = min((s for rank in range(ranks) for s in routes(rank, rank, frozenset(), 0.0)), default=0.0)
    assert least_message_latency(build("random", ranks, links, switches=switches)) == quickest


def test_a_joint_may_pass_through_a_hub_that_neither_reduces_nor_multicasts_there() -> None:
    """One switch reduces, the next is a hub with one link in and one out, the last multicasts: one step is enough."""
    ranks, wire = 4, LinkType("wire", Fraction(10**9), 1e-6)
    links = [link for rank in range(ranks) for link in ((rank, ranks, wire), (ranks + 2, rank, wire))]
    links += [(ranks, ranks + 1, wire), (ranks + 1, ranks + 2, wire)]
    abilities = [Ability(reduce=True), Ability(reduce=True, through=True), Ability(multicast=True)]
    machine = build("hub", ranks, links, switches=3, abilities=abilities)
    target = Collective("allreduce", ranks)
    src, dst = np.array(list(itertools.permutations(range(ranks), 2))).T
    zero = np.zeros_like(src)
    schedule = Schedule(target, cut(target, 1), zero, zero, src, dst, zero + REDUCE, joint=zero)
    assert verify(schedule, machine).fault is None
    least, predict = alpha_beta_bound(machine, "allreduce"), prepare("alpha-beta", schedule, machine)
    assert all(least(nbytes) <= predict(nbytes).seconds / ROUNDING for nbytes in SIZES)


def test_nothing_takes_at_least_the_latency() -> None:
    with np.errstate(all="raise"):
        assert alpha_beta_bound(topology("line:ranks=4"), "broadcast")(0) == pytest.approx(3e-6)


def test_long_chains_are_found_without_trying_all_runs() -> None:
    machine = topology("line:ranks=100")
    target = Collective("broadcast", 100)
    evidence = find_evidence(machine, target)
    assert {len(chain.switches) for chain in evidence.views[0].evidence if isinstance(chain, Chain)} == {99}
    per_byte = bound_by_size(machine, target, None, 0.0, evidence).views[0][1]
    assert per_byte[197] == pytest.approx(198 / 100 / float(machine.types[0].bandwidth))


GROUPS = ((0, 1, 2, 3, 4, 5, 6, 7), (0, 1, 2, 3), (0, 8), (0, 1, 8, 9))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "members", "model"),
    itertools.product(("broadcast", "allreduce", "allgather", "alltoall"), GROUPS, ("alpha-beta", "calls")),
)
def test_no_plan_of_a_group_is_predicted_faster(kind: str, members: tuple[int, ...], model: str) -> None:
    machine = topology("cluster:box=hgx-h100,boxes=2")
    target = Collective(kind, machine.ranks, members)
    lower_bound = model_bound(model, {}, BoundEvaluator(machine, target, bound(machine, target)))
    assert lower_bound is not None
    for planner in ("relay", "ring", "direct", "nvls", "trees", "recursive-doubling"):
        try:
            schedule = plan(target, machine, planner=planner, budget=2).entries[0].schedule
        except AntiphonError:
            continue
        predict = prepare(model, schedule, machine)
        for nbytes in SIZES:
            assert lower_bound(nbytes) <= predict(nbytes).seconds / ROUNDING, (planner, nbytes)
