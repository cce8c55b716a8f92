"""The planners `trees` and `blink`: what their schedules are, at what rate, and what proves it."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from entries import alpha_beta, blink, trees
from hypothesis import given, settings
from hypothesis import strategies as st
from packing_cases import OPTIMA, allocations
from quick import crossed, examples, in_turn, ordinary, some
from small_plans import wanted

import antiphon
from antiphon.core.bounds import bound
from antiphon.core.collective import Collective
from antiphon.core.loads import throughput
from antiphon.core.plan import Entry, Plan
from antiphon.core.request import Request
from antiphon.core.reshape import degrade, keep
from antiphon.core.schedule import Schedule
from antiphon.core.topology import LinkType, SharedLimit, Topology, both_ways, build
from antiphon.core.verify import verify
from antiphon.errors import Infeasible, Invalid, Unsupported
from antiphon.planners.shared.pipelining import best_pieces
from antiphon.planners.trees.blink_packing import split_by_rate
from antiphon.select import prove
from antiphon.select.limits import least_times

GB = 10**9
KINDS = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")


def made(
    planner: Any, topology: Topology, collective: Collective, nbytes: int | None = None, **options: Any
) -> Schedule:
    """The one schedule for these options, verified."""
    (schedule,) = planner(Request(topology, collective, nbytes), **{"pieces": 1, **options})
    assert not verify(schedule, topology).fault
    return schedule


def told(schedule: Schedule) -> dict[str, Any]:
    return dict(schedule.provenance["found"])


def allocation(name: str, gpus: tuple[int, ...]) -> Topology:
    return keep(antiphon.topology(name), gpus).topology


def machine(spec: str) -> Topology:
    name, _, only = spec.partition(" only ")
    return allocation(name, tuple(map(int, only.split(",")))) if only else antiphon.topology(name)


def at_no_latency(topology: Topology) -> Topology:
    return replace(topology, types=tuple(replace(kind, latency=0.0) for kind in topology.types))


def every_allocation() -> list[tuple[str, tuple[int, ...]]]:
    return [(name, gpus) for name in ("dgx1v", "dgx1p") for gpus in allocations(name)]


@pytest.mark.slow
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", in_turn(["broadcast", "allreduce"], 2))
def test_every_allocation_of_dgx1(kind: str, every: int) -> None:
    """At the greatest rate, which a cut or partition proves; 1 GB takes size / rate at no latency, to 1 %."""
    for number, (name, gpus) in enumerate(every_allocation()[::every]):
        topology = allocation(name, gpus)
        collective = wanted(kind, len(gpus))
        schedule = made(trees, topology, collective)
        rate = bound(topology, collective).bytes_per_second
        assert throughput(schedule, topology) == rate, (name, gpus)
        assert told(schedule)["optimal"], (name, gpus)
        if number % 4:
            continue
        ideal = at_no_latency(topology)
        piped = replace(schedule, pieces=best_pieces(schedule, ideal, GB))
        assert rate is not None
        assert alpha_beta(piped, ideal)(GB).seconds <= 1.01 * GB / rate, (name, gpus)


def test_rates_that_are_known() -> None:
    for name, gpus, fan_out, tau in some(OPTIMA):
        members = tuple(map(int, gpus))
        topology = allocation(name, members)
        assert told(made(trees, topology, wanted("broadcast", len(gpus))))["rate"] == str(fan_out)
        assert told(made(trees, topology, wanted("allreduce", len(gpus))))["rate"] == tau


def test_eight_gpus_of_dgx1v() -> None:
    topology = antiphon.topology("dgx1v")
    found = told(made(trees, topology, wanted("broadcast", 8)))
    assert (found["rate"], found["trees"], found["few"]) == ("6", 4, "4 trees, the fewest: proved")
    found = told(made(trees, topology, wanted("allreduce", 8)))
    assert (found["rate"], found["trees"], found["few"]) == ("24/7", 6, "6 trees, the fewest: proved")
    found = told(made(trees, topology, wanted("allreduce", 8), loss=0.05))
    assert Fraction(found["rate"]) >= Fraction(95, 100) * Fraction(24, 7)
    assert found["few"] == "5 trees, the fewest: proved"


@pytest.mark.parametrize(("spec", "steps"), in_turn([("line:ranks=4", 3), ("line:ranks=5", 4), ("ring:ranks=8", 7)]))
def test_two_sums_are_exchanged_over_the_middle_link(spec: str, steps: int) -> None:
    """With an odd number of links on its longest path, a tree takes one step fewer; on a ring no schedule is faster."""
    topology = machine(spec)
    schedule = made(trees, topology, wanted("allreduce", topology.ranks))
    assert schedule.steps == steps
    limit = bound(topology, schedule.collective)
    least = least_times(schedule.collective, topology, limit, [2**20], "alpha-beta")[2**20]
    if spec.startswith("ring"):
        assert alpha_beta(schedule, topology)(2**20).seconds == pytest.approx(least)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "kind", "most"),
    [
        ("z52-pcie", "allreduce", 1.005),
        ("mi250", "allgather", 1.03),
        ("mi250", "reducescatter", 1.03),
        ("mi250", "allreduce", 1.03),
        ("trn2", "allreduce", 1.02),
    ],
)
def test_uneven_parts_and_halves_lose_little_to_latency(spec: str, kind: str, most: float) -> None:
    """A gigabyte; with the options that the plan tells it comes out the same."""
    topology = antiphon.topology(spec)
    schedule = made(trees, topology, wanted(kind, topology.ranks), nbytes=GB, pieces=None)
    least = float(bound(topology, schedule.collective).seconds(GB))
    assert alpha_beta(schedule, topology)(GB).seconds <= most * least
    assert prove(as_plan(topology, schedule), topology).fault is None
    options = schedule.provenance["options"]
    again = made(trees, topology, schedule.collective, nbytes=GB, **{"pieces": None, **options})
    assert alpha_beta(again, topology)(GB).seconds == alpha_beta(schedule, topology)(GB).seconds


@pytest.mark.slow
def test_halves_one_after_the_other() -> None:
    """As fast in ever finer pieces as both at once; of any size and none, and of an allreduce alone."""
    topology = antiphon.topology("dgx1v")
    for nbytes in (None, 10**6):
        found = list(trees(Request(topology, wanted("allreduce", 8), nbytes), halves=True, steps=6))
        assert len(found) == 1
        assert not verify(found[0], topology).fault
        assert found[0].steps == 12
        assert found[0].provenance["options"] == {"steps": 6, "halves": True}
    with pytest.raises(Unsupported, match="has no halves"):
        made(trees, topology, wanted("allgather", 8), halves=True)
    with pytest.raises(Invalid, match="option halves"):
        made(trees, topology, wanted("allreduce", 8), halves="both")


def test_uneven_and_empty_blocks() -> None:
    topology = antiphon.topology("dgx1v")
    collective = Collective("allgather", 8, weights=(1, 0, 3, 4, 5, 6, 7, 8))
    assert told(made(trees, topology, collective))["optimal"]


def test_an_empty_block_that_cannot_arrive_is_an_error() -> None:
    links = [(0, 1, LinkType("link", Fraction(1))), (0, 2, LinkType("link", Fraction(1)))]
    machine = build("fork", 3, links)
    for kind, roots in (("broadcast", (0, 1)), ("broadcast", (0, 2))):
        with pytest.raises((Infeasible, Invalid), match=f"rank {roots[1]}"):
            next(trees(Request(machine, Collective(kind, 3, (), roots, (1, 0))), pieces=1))


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "best"), [("cluster:box=dgx-a100,boxes=5", True), ("mesh:dims=6x6", False)])
def test_parts_of_the_links_by_cuts_are_called_the_best_where_they_meet_the_bound(spec: str, best: bool) -> None:
    """Trees in and out that share links otherwise may be faster, but are too many to tell."""
    machine = degrade(antiphon.topology(spec), links=[3], slower=2)
    found = told(made(trees, machine, wanted("allreduce", machine.ranks)))
    assert "parts of the links by cuts" in found["how"]
    assert (found["optimal"], found["best_of_its_kind"]) == (best, best)


@pytest.mark.slow
def test_several_roots() -> None:
    topology = antiphon.topology("torus:dims=3x3")
    assert told(made(trees, topology, Collective("broadcast", 9, roots=(0, 4, 5))))["optimal"]


# ---- what proves it ----


def as_plan(topology: Topology, schedule: Schedule) -> Plan:
    return Plan(topology, schedule.collective, (Entry(0, None, schedule, {}),))


@pytest.mark.parametrize(("kind", "spec"), crossed(KINDS, ["dgx1v", "pcie8", "mesh:dims=2x3"]))
def test_the_plan_carries_the_proof(spec: str, kind: str) -> None:
    topology = antiphon.topology(spec)
    schedule = made(trees, topology, wanted(kind, topology.ranks))
    found = prove(as_plan(topology, schedule), topology)
    assert found.fault is None
    assert any("which the trees attain" in line for line in found.proved)


@pytest.mark.parametrize(
    "forge",
    [
        lambda told: told["bound"]["witness"].update(side=[0, 1]),
        lambda told: told["bound"]["witness"].update(capacity="1"),
        lambda told: told["bound"]["witness"].update(kind="word of honour"),
        lambda told: told["found"].update(rate="7"),
        lambda told: told["bound"]["witness"].pop("weight"),
    ],
)
def test_a_forged_proof_is_found_out(forge: Any) -> None:
    topology = antiphon.topology("dgx1v")
    schedule = made(trees, topology, wanted("broadcast", 8))
    provenance = {
        **schedule.provenance,
        "bound": {**schedule.provenance["bound"], "witness": dict(schedule.provenance["bound"]["witness"])},
        "found": told(schedule),
    }
    forge(provenance)
    fault = prove(as_plan(topology, replace(schedule, provenance=provenance)), topology).fault
    assert fault is not None
    assert fault.kind == "proof"


def test_a_slower_packing_may_not_be_called_optimal() -> None:
    topology = antiphon.topology("dgx1v")
    schedule = made(trees, topology, wanted("allreduce", 8), loss=0.05)
    assert not told(schedule)["optimal"]
    provenance = {**schedule.provenance, "found": {**told(schedule), "optimal": True}}
    fault = prove(as_plan(topology, replace(schedule, provenance=provenance)), topology).fault
    assert fault is not None
    assert "optimal" in fault.message


@pytest.mark.parametrize("spec", in_turn(["dgx1p only 0,1,2,3,4", "torus:dims=3x3", "star:ranks=5"], 3))
def test_pieces_are_the_best_by_the_model(spec: str) -> None:
    """No other number of them is faster by more than a hundredth."""
    topology = machine(spec)
    for nbytes in (10**4, 10**7, 10**9):
        schedule = made(trees, topology, wanted("allreduce", topology.ranks), pieces=None, nbytes=nbytes)
        mine = alpha_beta(schedule, topology)(nbytes).seconds
        for pieces in (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987, 1597):
            assert mine <= 1.01 * alpha_beta(replace(schedule, pieces=pieces), topology)(nbytes).seconds, pieces


# ---- Blink ----


def test_blink_is_within_its_threshold() -> None:
    """Of the optimum, 5 % unless told otherwise, on every allocation; with as few trees as published on all GPUs."""
    for name, gpus in every_allocation()[:: 36 if ordinary else 12]:
        topology = allocation(name, gpus)
        for kind in ("broadcast", "allreduce"):
            collective = wanted(kind, len(gpus))
            rate, best = throughput(made(blink, topology, collective), topology), bound(topology, collective)
            assert rate is not None
            assert best.bytes_per_second is not None
            assert Fraction(95, 100) <= rate / best.bytes_per_second <= 1
    assert told(made(blink, antiphon.topology("dgx1v"), wanted("broadcast", 8)))["trees"] == 6


def test_one_hop_trees_on_a_switch() -> None:
    """As many as GPUs, two steps, at the bound."""
    topology = antiphon.topology("dgx2")
    schedule = made(blink, topology, wanted("allreduce", 16))
    assert (told(schedule)["trees"], schedule.steps, told(schedule)["optimal"]) == (16, 2, True)


@pytest.mark.parametrize(
    ("spec", "gpus"),
    [
        ("cluster:box=dgx1v,boxes=2", (0, 1, 2, 11, 12, 13, 14, 15)),  # 3 and 5 GPUs
        ("cluster:box=dgx1v,boxes=3", (0, 8, 9, 10, 16, 17, 18, 19)),  # one of them alone
        ("cluster:box=dgx-a100,boxes=2", (0, 1, 2, 8, 9)),
    ],
)
def test_three_phases_over_unequal_servers(spec: str, gpus: tuple[int, ...]) -> None:
    topology = keep(antiphon.topology(spec), gpus).topology
    schedule = made(blink, topology, wanted("allreduce", len(gpus)))
    assert told(schedule)["how"].startswith("three phases")
    assert Fraction(told(schedule)["rate"]) > 0


@pytest.mark.slow
def test_cards_are_loaded_evenly() -> None:
    """Four cards, each shared by two GPUs: all at their limit, which is the bound."""
    topology = antiphon.topology("cluster:box=dgx1v,boxes=2")
    assert told(made(blink, topology, wanted("allreduce", 16)))["optimal"]


@pytest.mark.slow
def test_hybrid_uses_both_kinds_of_links() -> None:
    topology = antiphon.topology("dgx1v:pcie=true")
    for kind in ("broadcast", "reduce"):
        collective = wanted(kind, 8)
        alone, both = (made(blink, topology, collective, hybrid=hybrid) for hybrid in (False, True))
        slow, fast = (Fraction(told(schedule)["rate"]) for schedule in (alone, both))
        assert fast > slow
    kinds = {topology.types[i].kind for i in np.unique(topology.link_type[used_links(both)])}
    assert kinds == {"nvlink", "pcie", "socket"}
    small = made(blink, topology, wanted("broadcast", 8), hybrid=True, t_dpa=0.001, nbytes=10**6)
    large = made(blink, topology, wanted("broadcast", 8), hybrid=True, t_dpa=0.001, nbytes=10**9)
    share = [float(carried(schedule, topology, "pcie")) for schedule in (small, large)]
    assert share[0] == 0 < share[1]


@pytest.mark.parametrize("direct", ["1GB/s", "4GB/s"])
def test_a_hybrid_of_switches_and_direct_links_divides_by_bytes_per_second(direct: str) -> None:
    """Both sets finish together, whichever is faster: the rate of the hybrid is the sum of their rates."""
    ring = [(rank, (rank + 1) % 4) for rank in range(4)]
    star = [(rank, 4) for rank in range(4)]
    through_switch, between = LinkType("switched", "3GB/s"), LinkType("direct", direct)
    both, *single = (
        build("two kinds", 4, both_ways(star, through_switch) + both_ways(ring, between), switches=1),
        build("switch", 4, both_ways(star, through_switch), switches=1),
        build("ring", 4, both_ways(ring, between)),
    )
    rates = [throughput(made(blink, machine, wanted("allreduce", 4)), machine) for machine in single]
    assert throughput(made(blink, both, wanted("allreduce", 4), hybrid=True), both) == sum(r for r in rates if r)


def used_links(schedule: Schedule) -> list[int]:
    assert schedule.route is not None
    table = schedule.routes
    return sorted({int(link) for route in set(schedule.route.tolist()) for link in table[route]})


def carried(schedule: Schedule, topology: Topology, kind: str) -> Fraction:
    """The share of the data whose chunks ever travel over links of a kind."""
    chunks = set()
    assert schedule.route is not None
    for row, route in enumerate(schedule.route.tolist()):
        if any(topology.types[topology.link_type[link]].kind == kind for link in schedule.routes[route]):
            chunks.add(int(schedule.chunk[row]))
    return sum((schedule.chunks.part(chunk) for chunk in chunks), Fraction(0))


@given(st.integers(1, 10**9), st.integers(1, 100), st.integers(1, 100), st.integers(0, 10**4))
def test_the_split_is_the_best(total: int, fast: int, slow: int, waiting: int) -> None:
    """Equation 8, clamped: no other split is through sooner."""

    def through(share: Fraction) -> Fraction:
        return max((total - share) / fast, share / slow + waiting if share else Fraction(0))

    best = split_by_rate(Fraction(total), Fraction(fast), Fraction(slow), Fraction(waiting))
    assert 0 <= best <= total
    others = [Fraction(total * i, 64) for i in range(65)]
    assert through(best) <= min(map(through, others))


# ---- refusals ----


def test_the_cut_off_are_named() -> None:
    apart = build("apart", 4, both_ways([(0, 1), (2, 3)], LinkType("link", 1)))
    one_way = build("one way", 3, [(0, 1, LinkType("link", 1)), (1, 2, LinkType("link", 1))])
    for planner in (trees, blink):
        with pytest.raises(Invalid, match="rank 2 cannot be reached from rank 0"):
            next(planner(Request(apart, wanted("broadcast", 4))))
        with pytest.raises(Invalid, match="rank 0 cannot be reached from rank 1"):
            next(planner(Request(one_way, wanted("allgather", 3))))
        assert told(made(planner, one_way, wanted("broadcast", 3)))["rate"] == "1"


@pytest.mark.parametrize(
    ("planner", "options"),
    [
        (trees, {"loss": 1}), (trees, {"loss": "some"}), (trees, {"loss": -0.1}), (trees, {"pieces": 0}),
        (blink, {"epsilon": 0}), (blink, {"epsilon": "1e-9"}), (blink, {"hybrid": "perhaps"}),
        (blink, {"threshold": 2}), (blink, {"pieces": "many"}), (blink, {"t_dpa": -1}),
    ],
)  # fmt: skip
def test_wrong_options(planner: Any, options: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match=f"option {next(iter(options))}: expected"):
        next(planner(Request(antiphon.topology("ring:ranks=4"), wanted("broadcast", 4)), **options))


@pytest.mark.slow
def test_options_as_a_command_line_gives_them() -> None:
    topology, collective = antiphon.topology("dgx1v:pcie=true"), wanted("broadcast", 8)
    off = made(blink, topology, collective, hybrid="false", epsilon="0.1", threshold="0.02", t_dpa="0")
    assert off.provenance["options"]["epsilon"] == 0.1
    assert told(off)["rate"] == "6"
    assert Fraction(told(made(blink, topology, collective, hybrid="true"))["rate"]) > 6


def test_a_hybrid_needs_two_kinds() -> None:
    with pytest.raises(Unsupported, match="second kind of links"):
        next(blink(Request(antiphon.topology("dgx1v"), wanted("broadcast", 8)), hybrid=True))


# ---- any machine ----

PAIRS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(1, 9)), min_size=6, max_size=14)


@settings(max_examples=examples(25))
@given(PAIRS, st.booleans(), st.sampled_from(KINDS), st.integers(0, 3))
def test_random_machines(links: list[tuple[int, int, int]], limited: bool, kind: str, root: int) -> None:
    """Four ranks and a switch, links of any widths one way or both: right, and never beyond the bound."""
    rows = [(a, b, LinkType("link", Fraction(w))) for a, b, w in links if a != b]
    rows += [(i, (i + 1) % 4, LinkType("link", Fraction(1))) for i in range(4)]
    limits = [SharedLimit("shared", (0, len(rows) - 1), Fraction(1, 2))] if limited else []
    topology = build("random", 4, rows, switches=1, limits=limits, unit=1)
    collective = wanted(kind, 4, root)
    best = bound(topology, collective).bytes_per_second
    for planner in (trees, blink):
        rate = throughput(made(planner, topology, collective), topology)
        assert rate is not None
        assert best is not None
        assert 0 < rate <= best


def test_what_is_too_large_is_refused_before_anything_is_computed() -> None:
    machine = antiphon.topology("ring:ranks=2049")
    for kind in ("allgather", "broadcast"):
        with pytest.raises(Unsupported, match="2049 ranks; it takes up to 2048"):
            next(trees(Request(machine, wanted(kind, 2049))))


@pytest.mark.slow
def test_beyond_512_roots_symmetries_are_needed() -> None:
    with pytest.raises(Unsupported, match=r"takes 3\d\d to each other: too many"):
        next(trees(Request(antiphon.topology("line:ranks=600"), wanted("allgather", 600))))
    machine = antiphon.topology("torus:dims=8x8x10")
    made = next(trees(Request(machine, wanted("allgather", 640)), pieces=1))
    assert not verify(made, machine).fault
    rate, most = throughput(made, machine), bound(machine, made.collective).bytes_per_second
    assert rate
    assert most
    assert float(rate / most) > 0.995


@pytest.mark.slow
def test_a_broadcast_to_a_thousand_ranks_at_the_optimum() -> None:
    machine = antiphon.topology("cluster:box=dgx-a100,boxes=128")
    made = next(trees(Request(machine, wanted("broadcast", 1024)), pieces=1))
    assert not verify(made, machine).fault
    assert throughput(made, machine) == bound(machine, made.collective).bytes_per_second
