"""The classic planners: right on any number of ranks, with the steps and bytes that textbooks give them."""

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise as adjacent
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples, in_turn, some
from small_plans import PORT, full, only, run_local, schedules, star

from antiphon.core.collective import ROOTED, Collective
from antiphon.core.loads import pipelined_steps
from antiphon.core.routes import switch_path
from antiphon.core.schedule import Schedule
from antiphon.core.topology import LinkType, SharedLimit, Topology, both_ways, build
from antiphon.core.verify import verify
from antiphon.errors import Invalid, Unsupported
from antiphon.planners.rings.cycles import widest_cycle
from antiphon.planners.rings.edge_disjoint import capacities, pack_cycles
from antiphon.planners.rings.factors import joined_factors
from antiphon.planners.rings.most_rings import most_rings
from antiphon.planners.shared.groups import list_factorizations
from antiphon.planners.shared.routing import find_paths
from antiphon.registry import table
from antiphon.topologies import topology

CLASSIC = (
    "ring", "multi-ring", "hierarchical-ring", "binomial-tree", "double-binary-tree", "recursive-doubling",
    "halving-doubling", "bruck", "pairwise", "direct", "parameter-server", "colocated-ps", "hierarchical-ps",
)  # fmt: skip
CLAIMED = [(name, kind) for name in CLASSIC for kind in table("planner")[name].can.collectives]
OF_A_RADIX = [
    (name, kind) for name in ("kring", "recmult", "permrecmult") for kind in table("planner")[name].can.collectives
]


@given(data=st.data(), ranks=st.integers(2, 9), pick=st.sampled_from([*CLAIMED, *OF_A_RADIX]))
@settings(max_examples=examples(72))
def test_groups_roots_and_uneven_blocks(data: st.DataObject, ranks: int, pick: tuple[str, str]) -> None:
    name, kind = pick
    machine = data.draw(st.sampled_from([star, full]))(ranks)
    members = data.draw(st.permutations(range(ranks)).map(lambda p: tuple(sorted(p[: max(2, len(p) - 2)]))))
    roots = tuple(data.draw(st.lists(st.sampled_from(members), min_size=1, max_size=2, unique=True)))
    roots = roots if kind in ROOTED else ()
    blocks = Collective(kind, ranks, members, roots).blocks
    weights = np.array(data.draw(st.lists(st.integers(0, 3), min_size=blocks, max_size=blocks)))
    weights[data.draw(st.integers(0, blocks - 1))] = 1
    wanted = Collective(kind, ranks, members, roots, weights)
    for options in data.draw(st.sampled_from(table("planner")[name].can.sweep)), {}:
        for schedule in schedules(name, machine, wanted, **options):
            assert schedule.collective == wanted
            verify(schedule, machine).or_raise()
            assert set(schedule.src.tolist()) | set(schedule.dst.tolist()) <= set(members)
            assert run_local(schedule, 4 * 120, repeat=1)[0]["correct"]


def sent(schedule: Schedule) -> list[Fraction]:
    """What every rank sends, in parts of nbytes."""
    weights, scale = schedule.chunks.weights(schedule.collective)
    total = np.zeros(schedule.collective.ranks, np.int64)
    np.add.at(total, schedule.src, weights[schedule.chunk])
    return [Fraction(int(t), scale) for t in total]


def log(P: int) -> int:
    return (P - 1).bit_length()


def core(P: int) -> tuple[int, int]:
    """(log2 of the greatest power of two in P, 2 if that leaves ranks to fold else 0)."""
    k = P.bit_length() - 1
    return k, 0 if P.bit_count() == 1 else 2


def part(P: int) -> Fraction:
    return Fraction(P - 1, P)


def rhd(P: int) -> Fraction:
    k, fold = core(P)
    return 2 * part(1 << k) + (1 if fold else 0)


# planner, options, collective -> (steps, most bytes that one rank sends over nbytes) on P ranks
TEXTBOOK: dict[tuple[str, str, str], tuple[Callable[[int], int], Callable[[int], Fraction | int]]] = {
    ("ring", "directions=1", "allgather"): (lambda P: P - 1, part),
    ("ring", "directions=1", "reducescatter"): (lambda P: P - 1, part),
    ("ring", "directions=1", "allreduce"): (lambda P: 2 * (P - 1), lambda P: 2 * part(P)),
    ("ring", "directions=1 pieces=1", "broadcast"): (lambda P: P - 1, lambda P: 1),
    ("ring", "directions=1 pieces=1", "reduce"): (lambda P: P - 1, lambda P: 1),
    ("ring", "directions=1", "scatter"): (lambda P: P - 1, part),
    ("ring", "directions=1", "gather"): (lambda P: P - 1, part),
    ("ring", "directions=1", "alltoall"): (lambda P: P - 1, lambda P: Fraction(P - 1, 2)),
    ("binomial-tree", "", "broadcast"): (log, log),
    ("binomial-tree", "", "reduce"): (log, lambda P: 1),
    ("binomial-tree", "", "scatter"): (log, part),
    ("binomial-tree", "pieces=5", "broadcast"): (lambda P: log(P) + 4, log),
    ("binomial-tree", "", "allreduce"): (lambda P: 2 * log(P), log),
    ("binomial-tree", "", "allgather"): (lambda P: 2 * log(P), log),
    ("double-binary-tree", "pieces=1", "broadcast"): (log, lambda P: 1),
    ("double-binary-tree", "pieces=1", "reduce"): (log, lambda P: 1),
    ("double-binary-tree", "pieces=9", "broadcast"): (lambda P: log(P) + 8, lambda P: 1),
    ("double-binary-tree", "pieces=9", "allreduce"): (
        lambda P: 2 * log(P) + 8,
        lambda P: min(Fraction(P, 2), 2),
    ),
    ("recursive-doubling", "", "allreduce"): (
        lambda P: sum(core(P)),
        lambda P: core(P)[0] + core(P)[1] // 2,
    ),
    ("halving-doubling", "", "allreduce"): (lambda P: 2 * log(P), rhd),
    ("halving-doubling", "large=far", "allreduce"): (lambda P: 2 * log(P), rhd),
    ("bruck", "", "allgather"): (log, part),
    ("bruck", "", "reducescatter"): (log, part),
    ("bruck", "", "allreduce"): (lambda P: 2 * log(P), lambda P: 2 * part(P)),
    ("bruck", "", "alltoall"): (log, lambda P: Fraction(sum(d.bit_count() for d in range(P)), P)),
    ("pairwise", "", "allgather"): (lambda P: P - 1, part),
    ("pairwise", "", "reducescatter"): (lambda P: P - 1, part),
    ("pairwise", "", "alltoall"): (lambda P: P - 1, part),
    ("pairwise", "", "allreduce"): (lambda P: 2 * (P - 1), lambda P: 2 * part(P)),
    ("direct", "", "broadcast"): (lambda P: 1, lambda P: P - 1),
    ("direct", "", "reduce"): (lambda P: 1, lambda P: 1),
    ("direct", "", "scatter"): (lambda P: 1, part),
    ("direct", "", "gather"): (lambda P: 1, lambda P: Fraction(1, P)),
    ("direct", "", "allgather"): (lambda P: 1, part),
    ("direct", "", "reducescatter"): (lambda P: 1, part),
    ("direct", "", "alltoall"): (lambda P: 1, part),
    ("direct", "", "allreduce"): (lambda P: 1, lambda P: P - 1),
    ("parameter-server", "", "allreduce"): (lambda P: 2, lambda P: P - 1),
    ("parameter-server", "pieces=7", "allreduce"): (lambda P: 8, lambda P: P - 1),
    ("parameter-server", "", "allgather"): (lambda P: 2, lambda P: P - 1),
    ("parameter-server", "", "reducescatter"): (lambda P: 2, lambda P: 1),
    ("colocated-ps", "", "allreduce"): (lambda P: 2, lambda P: 2 * part(P)),
    ("colocated-ps", "", "broadcast"): (lambda P: 2, lambda P: 2 * part(P)),
    ("colocated-ps", "", "reduce"): (lambda P: 2, lambda P: 1),
}


@pytest.mark.parametrize("row", [*TEXTBOOK], ids="-".join)
def test_textbook_steps_and_bytes(row: tuple[str, str, str]) -> None:
    name, told, kind = row
    options = {k: int(v) if v.isdigit() else v for k, v in (o.split("=") for o in told.split())}
    steps, most = TEXTBOOK[row]
    for P in some([16, *range(2, 16), 17, 23, 31, 32, 33]):
        schedule = only(name, star(P), kind, **options)
        assert pipelined_steps(schedule) == steps(P), P
        assert max(sent(schedule)) == most(P), P


@pytest.mark.parametrize("P", in_turn([2, 7, 12, 24, 32], 3))
def test_hierarchical_servers_take_two_steps_a_level(P: int) -> None:
    plans = list(schedules("hierarchical-ps", star(P), Collective("allreduce", P)))
    for schedule, fans in zip(plans, list_factorizations(P), strict=True):
        assert schedule.provenance["options"]["fanins"] == "x".join(map(str, fans))
        assert pipelined_steps(schedule) == 2 * len(fans)
        assert set(sent(schedule)) == {2 * part(P)}
        group = np.arange(P) // fans[0]
        weights, scale = schedule.chunks.weights(schedule.collective)
        near = group[schedule.src] == group[schedule.dst]
        assert Fraction(int(weights[schedule.chunk[near]].sum()), scale) == 2 * P * part(fans[0])


@pytest.mark.parametrize(("fans", "P"), [([2], 2), ([4, 2], 8), ([3, 5], 15), ([2, 3, 4], 24)])
def test_hierarchical_rings(fans: list[int], P: int) -> None:
    told = "x".join(map(str, fans))
    hops = sum(f - 1 for f in fans)
    for directions in (1, 2):
        schedule = only("hierarchical-ring", star(P), "allreduce", fanins=told, directions=directions)
        assert pipelined_steps(schedule) == 2 * hops
        assert set(sent(schedule)) == {2 * part(P)}
        chain = only("hierarchical-ring", star(P), "broadcast", fanins=told, directions=directions, pieces=10)
        assert pipelined_steps(chain) == hops + 9


@pytest.mark.parametrize("ranks", [2, 8, 11, 16])
@pytest.mark.parametrize("large", ["near", "far"])
def test_messages_of_halving_doubling_are_runs_of_memory(large: str, ranks: int) -> None:
    order = [0, *range(ranks - 1, 0, -1)]
    schedule = only("halving-doubling", star(ranks), "allreduce", large=large, order=order)
    messages: dict[tuple[int, int], list[int]] = {}
    for step, src, chunk in zip(schedule.step.tolist(), schedule.src.tolist(), schedule.chunk.tolist(), strict=True):
        messages.setdefault((step, src), []).append(chunk)
    assert all(max(chunks) - min(chunks) == len(chunks) - 1 for chunks in messages.values())


# --- rings ----------------------------------------------------------------------------------------------------------


def hops(ring: str) -> list[tuple[int, int]]:
    cycle = [int(rank) for rank in ring.split(",")]
    return list(adjacent([*cycle, cycle[0]]))


def is_packing(cycles: list[list[int]], capacity: dict[tuple[int, int], int], members: tuple[int, ...]) -> bool:
    used: dict[tuple[int, int], int] = {}
    for cycle in cycles:
        if sorted(cycle) != sorted(members):
            return False
        for pair in adjacent([*cycle, cycle[0]]):
            used[pair] = used.get(pair, 0) + 1
    return all(count <= capacity.get(pair, 0) for pair, count in used.items())


@pytest.mark.slow
def test_complete_networks_hold_as_many_rings_as_is_known() -> None:
    """P - 1 directed rings for all P but 4 and 6, where it is P - 2 (Tillson 1980)."""
    for P in (*range(3, 21), 28, 33, 46, 62, 64):
        capacity, members = capacities(full(P), tuple(range(P))), tuple(range(P))
        found = most_rings(capacity, members)
        assert is_packing(found.cycles, capacity, members)
        assert len(found.cycles) == (P - 2 if P in (4, 6) else P - 1), P
        assert found.proved


@pytest.mark.parametrize(
    ("spec", "count"),
    in_turn([("dgx1p", 4), ("dgx1v", 6), ("ring:ranks=5", 2), ("torus:dims=4x4", 4), ("hypercube:ranks=8", 2),
     ("hypercube:ranks=32", 5), ("torus:dims=2x3x4", 5), ("mi250", 6), ("mi250:gcds=8", 4), ("torus:dims=2x4", 2),
     ("line:ranks=4", 0), ("mesh:dims=3x4", 2), ("mesh:dims=3x3", 0), ("mi300x", 7), ("torus:dims=6x6", 4),
     ("torus:dims=16x9", 4), ("torus:dims=4x5x6", 6), ("hypercube:ranks=64", 6), ("mesh:dims=12x12", 2),
     ("mesh:dims=11x13", 0)], 2),
)  # fmt: skip
def test_rings_that_machines_hold(spec: str, count: int) -> None:
    machine = topology(spec)
    members = tuple(range(machine.ranks))
    found = most_rings(capacities(machine, members), members)
    assert is_packing(found.cycles, capacities(machine, members), members)
    assert len(found.cycles) == found.at_most == count


@pytest.mark.parametrize("spec", ["mesh:dims=16x16", "torus:dims=8x8x4", "hypercube:ranks=256"])
def test_large_grids_have_a_ring(spec: str) -> None:
    machine = topology(spec)
    cycle, _ = widest_cycle(machine, tuple(range(machine.ranks)))
    assert is_packing([cycle], capacities(machine, tuple(range(machine.ranks))), tuple(range(machine.ranks)))
    assert widest_cycle(topology("mesh:dims=9x11"), tuple(range(99))) == ([], True)


@given(data=st.data(), size=st.integers(3, 7), count=st.integers(1, 2))
def test_factors_that_are_joined_are_rings(data: st.DataObject, size: int, count: int) -> None:
    every = [(a, b) for a in range(size) for b in range(a + 1, size)]
    edges = sorted(data.draw(st.sets(st.sampled_from(every), min_size=size)))
    cycles = joined_factors(edges, size, count)
    capacity = {pair: 1 for a, b in edges for pair in ((a, b), (b, a))}
    assert is_packing([*cycles, *(cycle[::-1] for cycle in cycles)], capacity, tuple(range(size)))
    assert len(cycles) <= count


def most_by_force(capacity: dict[tuple[int, int], int], members: tuple[int, ...]) -> int:
    every = [(members[0], *rest) for rest in permutations(members[1:])]
    every = [c for c in every if is_packing([list(c)], capacity, members)]

    def most(left: dict[tuple[int, int], int], start: int) -> int:
        best = 0
        for i in range(start, len(every)):
            pairs = list(adjacent([*every[i], every[i][0]]))
            if all(left[pair] for pair in pairs):
                fewer = {**left, **{pair: left[pair] - 1 for pair in pairs}}
                best = max(best, 1 + most(fewer, i))
        return best

    return most(capacity, 0)


@given(data=st.data(), size=st.integers(3, 5), alike=st.booleans())
@settings(max_examples=examples(80))
def test_as_many_rings_as_there_are(data: st.DataObject, size: int, alike: bool) -> None:
    members = tuple(range(size))
    capacity: dict[tuple[int, int], int] = {}
    for a, b in product(members, members):
        if a < b if alike else a != b:
            units = data.draw(st.integers(0, 2), label=f"units {a},{b}")
            if units:
                capacity[a, b] = units
                if alike:
                    capacity[b, a] = units
    most = most_by_force(capacity, members)
    for cycles, proved in (
        ((p := pack_cycles(capacity, members)).cycles, p.optimal),
        ((m := most_rings(capacity, members)).cycles, m.proved),
    ):
        assert is_packing(cycles, capacity, members)
        assert proved
        assert len(cycles) == most


# --- routes ---------------------------------------------------------------------------------------------------------


@st.composite
def tangles(draw: st.DrawFn) -> Topology:
    ranks, switches = draw(st.integers(2, 5)), draw(st.integers(0, 4))
    node = st.integers(0, ranks + switches - 1)
    slow = LinkType("slow", Fraction(10**8))
    links = draw(st.lists(st.tuples(node, node, st.sampled_from([PORT, slow])), max_size=24))
    return build("tangle", ranks, [link for link in links if link[0] != link[1]], switches=switches)


@given(machine=tangles(), turn=st.integers(0, 2))
def test_routes_are_shortest_and_pass_through_switches_only(machine: Topology, turn: int) -> None:
    pairs = [(a, b) for a in range(machine.ranks) for b in range(machine.ranks) if a != b]
    src, dst = (np.array(column, np.int32) for column in zip(*pairs, strict=True))
    found = find_paths(machine, src, dst, turn)
    for i, (a, b) in enumerate(pairs):
        path = switch_path(machine, a, b)
        if path is None:
            assert i in found.unreachable
            continue
        ours = found.table[i]
        assert len(ours) == len(path)
        nodes = [int(machine.link_src[ours[0]]), *(int(machine.link_dst[link]) for link in ours)]
        assert (nodes[0], nodes[-1]) == (a, b)
        assert all(node >= machine.ranks for node in nodes[1:-1])
        assert all(machine.link_src[y] == machine.link_dst[x] for x, y in adjacent(ours))
        if len(ours) == 1:
            links = np.flatnonzero((machine.link_src == a) & (machine.link_dst == b))
            assert machine.bandwidth(ours[0]) == max(machine.bandwidth(link) for link in links)
            assert found.only_link[i] == (len(links) == 1)


def leaves_and_spines() -> Topology:
    """Four leaves of four ranks, four spines."""
    links = both_ways([(rank, 16 + rank // 4) for rank in range(16)], PORT)
    links += both_ways([(16 + leaf, 20 + spine) for leaf in range(4) for spine in range(4)], PORT)
    return build("leaf-spine", 16, links, switches=8)


def test_routes_spread_over_the_spines() -> None:
    machine = leaves_and_spines()
    for shift in range(4, 13):  # leaf to leaf, everyone at once: a fat tree without oversubscription carries it
        src = np.arange(16, dtype=np.int32)
        found = find_paths(machine, src, (src + np.int32(shift)) % np.int32(16))
        assert np.bincount(found.table.links).max() == 1


# --- refusals and provenance ----------------------------------------------------------------------------------------


WIDE = ("allgather", "reducescatter", "allreduce")  # where rows are at least the square of ranks


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pair
        for pair in CLAIMED
        if pair[1] in WIDE
        and (pair[1] != "allreduce" or pair[0] not in ("binomial-tree", "double-binary-tree", "recursive-doubling"))
        and pair != ("parameter-server", "allreduce")
    ],
)
def test_what_would_be_too_large_is_refused_before_it_is_built(name: str, kind: str) -> None:
    machine = Topology("many", 20_000, 1, *(np.zeros(0, np.int32),) * 3, ())
    with pytest.raises(Unsupported, match=r"needs about .* transfers; at most \d+; use (planner .*, or )?fewer ranks"):
        list(schedules(name, machine, Collective(kind, 20_000)))


@pytest.mark.parametrize("name", ["ring", "multi-ring"])
def test_alltoall_is_not_relayed_around_large_rings(name: str) -> None:
    with pytest.raises(Unsupported, match="use planner pairwise, direct, flows or relay, or fewer ranks"):
        list(schedules(name, topology("star:ranks=600"), Collective("alltoall", 600)))


def test_options_are_checked() -> None:
    for name, options, says in [
        ("ring", {"directions": 3}, "known: 1, 2"), ("hierarchical-ring", {"directions": 0}, "known: 1, 2"),
        ("ring", {"order": "0,1,x"}, "expected ranks"), ("bruck", {"order": "0,1,2"}, "exactly once"),
        ("halving-doubling", {"large": "both"}, "far, near"), ("parameter-server", {"server": 9}, "not take part"),
        ("hierarchical-ps", {"fanins": "4x3"}, "must be 6"), ("hierarchical-ps", {"fanins": "6x1"}, "must be 6"),
        ("hierarchical-ps", {"fanins": "axb"}, "expected numbers"), ("binomial-tree", {"pieces": 0}, "pieces"),
    ]:  # fmt: skip
        with pytest.raises(Invalid, match=says):
            list(schedules(name, star(6), Collective("allreduce", 6), **options))


def test_shared_limits_count_when_rings_are_chosen() -> None:
    """Four direct rings exist, but a limit lets two ranks send only as much as one link carries."""
    machine = full(5)
    limits = [SharedLimit("bus", tuple(np.flatnonzero(machine.link_src < 2).tolist()), machine.unit)]
    tight = Topology("tight", 5, 0, machine.link_src, machine.link_dst, machine.link_type, machine.types, tuple(limits))
    assert only("multi-ring", machine, "allgather").provenance["options"]["rings"] == 4
    schedule = only("multi-ring", tight, "allgather")
    assert schedule.provenance["options"]["rings"] == 1
    verify(schedule, tight).or_raise()
