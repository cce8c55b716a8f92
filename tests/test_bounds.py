"""Bounds: known machines, latency, what a witness says, and that a witness which was tampered with is
refused.
"""

import dataclasses
import json
import random
from fractions import Fraction
from typing import Any

import pytest
from quick import ordinary

import antiphon
from antiphon.core.bounds import Bound, Cut, Distance, Family, LpDual, Partition, bandwidth, bound, recheck
from antiphon.core.bounds.network import network_of
from antiphon.core.bounds.partition import weakest_partition
from antiphon.core.bounds.recheck import proved_time
from antiphon.core.collective import Collective, custom_relation
from antiphon.core.topology import LinkType, SharedLimit, Topology, both_ways, build
from antiphon.errors import Infeasible, Invalid

GB = 10**9
# NVLinks between pairs of GPUs of a DGX-1 with P100s and of one with V100s.
DGX1P = ["01111000", "10110100", "11010010", "11100001", "10000111", "01001011", "00101101", "00011110"]
DGX1V = ["01122000", "10210200", "12020010", "21200001", "20000112", "02001021", "00101202", "00012120"]


def dgx1(rows: list[str], gpus: str = "01234567", speed: int = 25 * GB) -> Topology:
    kind = LinkType("nvlink", Fraction(speed))
    kept = [int(g) for g in gpus]
    links = [(i, j, kind) for i, a in enumerate(kept) for j, b in enumerate(kept) for _ in range(int(rows[a][b]))]
    return build("dgx1", len(kept), links)


def ring(ranks: int) -> Topology:
    return build("ring", ranks, both_ways([(i, (i + 1) % ranks) for i in range(ranks)], LinkType("link", Fraction(GB))))


def boxes(count: int, size: int, limit: int | None = None) -> Topology:
    """Boxes of GPUs on a switch each, all GPUs on a fabric too; `limit` bounds what leaves a box."""
    ranks = count * size
    links = both_ways([(g, ranks + g // size) for g in range(ranks)], LinkType("nvlink", Fraction(300 * GB)))
    first = len(links)
    links += both_ways([(g, ranks + count) for g in range(ranks)], LinkType("ib", Fraction(25 * GB)))
    limits = []
    for box in range(count if limit else 0):
        links_out = [first + 2 * g for g in range(box * size, (box + 1) * size)]
        limits.append(SharedLimit(f"nic of box {box}", tuple(links_out), Fraction(limit or 0)))
    return build("boxes", ranks, links, switches=count + 1, limits=limits)


def hub(back: bool = False) -> Topology:
    """One unit into a switch, three leaves: what no cut sees, for a switch does not copy."""
    kind = LinkType("link", Fraction(1))
    pairs = [(0, 4), *((4, leaf) for leaf in (1, 2, 3)), *((leaf, 0) for leaf in (1, 2, 3))]
    return build("hub", 4, [(b, a, kind) if back else (a, b, kind) for a, b in pairs], switches=1)


@pytest.mark.parametrize(
    ("kind", "v", "p"),
    [
        ("broadcast", "1/6", "1/4"), ("reduce", "1/6", "1/4"),
        ("allgather", "7/6", "7/4"), ("reducescatter", "7/48", "7/32"),
        ("gather", "7/6", "7/4"), ("scatter", "7/48", "7/32"),
        ("alltoall", "1/3", "1/2"), ("allreduce", "7/24", "7/16"),
    ],
)  # fmt: skip
def test_dgx1(kind: str, v: str, p: str) -> None:
    for rows, speed, inverse in ((DGX1V, 25 * GB, v), (DGX1P, 20 * GB, p)):
        found = bound(dgx1(rows, speed=speed), Collective(kind, 8))
        assert found.inverse == Fraction(inverse)
        assert found.latency_steps == 2
        assert found.tight
        c = Collective(kind, 8)
        assert found.bytes_per_second == speed / Fraction(inverse) * c.buffer_weight / c.input_weight
        assert found.seconds(GB) == GB / found.bytes_per_second


def test_the_collective_must_be_of_the_whole_machine() -> None:
    with pytest.raises(Invalid, match="is for 3 ranks"):
        bound(ring(4), Collective("allgather", 3))


@pytest.mark.slow
def test_beyond_256_ranks_partitions_by_place_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """What boxes and single ranks show is as weak as the weakest; where it is not, that is searched for."""
    machine = antiphon.topology("cluster:box=dgx-a100,boxes=33")
    searched = weakest_partition(network_of(machine), range(machine.ranks))[1] * machine.resources.scale
    found = bound(machine, Collective("allreduce", machine.ranks))
    assert found.tight
    assert found.bytes_per_second == searched / 2 == Fraction(33 * 200 * GB, 2 * 32)
    recheck(machine, Collective("allreduce", machine.ranks), found)
    tried: list[object] = []
    monkeypatch.setattr(bandwidth, "place_partitions", lambda topology: [[[r] for r in range(topology.ranks)]])

    def weakest(*given: Any) -> Any:
        tried.append(given)
        return weakest_partition(*given)

    monkeypatch.setattr(bandwidth, "weakest_partition", weakest)
    assert bound(machine, Collective("allreduce", machine.ranks)).bytes_per_second == found.bytes_per_second
    assert tried


@pytest.mark.slow
def test_where_links_show_that_no_partition_is_weaker_none_is_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four GPUs on one card, four on two: under limits the places and the limits show the weakest."""
    searched = {spec: bound(machine := antiphon.topology(spec), Collective("allreduce", machine.ranks))
                for spec in ("delta:nodes=8", "polaris:nodes=8")}  # fmt: skip
    monkeypatch.setattr(bandwidth, "_RANKS_BY_PLACE", 8)
    monkeypatch.setattr(bandwidth, "MOST_VARIABLES", 0)
    monkeypatch.setattr(bandwidth, "weakest_partition", None)
    for spec, expected in searched.items():
        machine = antiphon.topology(spec)
        assert bound(machine, Collective("allreduce", machine.ranks)).inverse == expected.inverse


def told(pre: list[tuple[int, int, int]], post: list[tuple[int, int, tuple[int, ...] | None]]) -> Collective:
    return Collective("custom", 3, custom=custom_relation(pre, post, 3))


def fan() -> Topology:
    """The way from 0 to 2 is wide, the others are narrow."""
    return build(
        "fan", 3, [(a, b, LinkType(f"by {c}", Fraction(c))) for a, b, c in ((0, 2, 100), (1, 2, 1), (0, 1, 1))]
    )


def seconds(topology: Topology, collective: Collective) -> Fraction:
    """The least time for one byte per unit of weight."""
    return bound(topology, collective).seconds(collective.buffer_weight)


def test_what_nobody_holds_in_a_usable_form_is_infeasible() -> None:
    for wanted in ((0,), (1,)):
        with pytest.raises(Infeasible, match=f"rank 2 .* of block 0: .*contribution {wanted[0]} has it joined"):
            bound(fan(), told([(0, 0, 0), (0, 0, 1)], [(0, 2, wanted)]))
    with pytest.raises(Infeasible, match=r"rank 0 .* of block 0"):  # exactly once, and it begins twice
        bound(fan(), told([(0, 0, 0), (0, 0, 0)], [(0, 0, None)]))


def test_recheck_agrees_on_joined_values() -> None:
    """The search's cuts and duals are rechecked by another definition; a claim with rank 0 as holder is not."""
    rng = random.Random("joined")
    machine = build("all", 3, [(a, b, LinkType("link", Fraction(1))) for a in range(3) for b in range(3) if a != b])
    kinds, infeasible = set(), 0
    for _ in range(50 if ordinary else 150):
        pre = [(b, r, i) for b in range(2) for r in range(3) for i in range(2) if rng.random() < 0.5]
        known = [sorted({i for b, _, i in pre if b == block}) for block in range(2)]
        post = [
            (b, r, tuple(rng.sample(known[b], rng.randint(1, len(known[b])))))
            for b in range(2)
            for r in range(3)
            if known[b] and rng.random() < 0.6
        ]
        try:
            found = bound(machine, told(pre, post))
        except Infeasible:
            infeasible += 1
            continue
        kinds.add(found.witness.kind if found.witness is not None else "none")
    assert kinds == {"cut", "lp_dual", "none"}
    assert 0 < infeasible < 100
    mixed = told([(0, 0, 0), (0, 0, 1), (0, 1, 0)], [(0, 2, (0,))])
    good = bound(fan(), mixed)
    assert good.latency_witness is not None
    proof = dataclasses.replace(good.latency_witness, holders=(0, 1), distances=(0, 0, 1))
    with pytest.raises(Invalid, match="needs nothing"):
        recheck(fan(), mixed, dataclasses.replace(good, latency_witness=proof))
    with pytest.raises(Invalid, match="another weight"):
        recheck(fan(), mixed, dataclasses.replace(good, witness=Cut((0, 1), Fraction(101), 0, ())))


def shown() -> list[tuple[Topology, Collective, Bound]]:
    kind = LinkType("link", Fraction(1))
    odd = [(0, 1, kind), (1, 2, kind), (2, 3, kind), (3, 4, kind), (4, 0, kind), (0, 2, kind), (3, 1, kind)]
    cases = [
        (dgx1(DGX1V), Collective("allgather", 8)),
        (boxes(2, 4, 50 * GB), Collective("allgather", 8)),
        (dgx1(DGX1V), Collective("allreduce", 8)),
        (hub(), Collective("broadcast", 4)),
        (build("odd", 5, odd), Collective("alltoall", 5)),
    ]
    return [(t, c, bound(t, c)) for t, c in cases]


def test_examples_show_every_kind_of_witness() -> None:
    assert {type(found.witness) for _, _, found in shown()} == {Cut, Partition, LpDual}
    for topology, collective, found in shown():
        recheck(topology, collective, found)
        lines = found.describe(topology, collective)
        assert len(lines) == 2
        assert all("\n" not in line for line in lines)
        told = json.loads(json.dumps(found.as_json()))
        assert Fraction(told["bandwidth"]["inverse"]) == found.inverse
        assert told["bandwidth"]["witness"]["kind"] in ("cut", "partition", "lp_dual")


def tampered(found: Bound) -> list[Bound]:
    """Ways to make a bound say more than is so, or rest on what is not there."""
    out = [dataclasses.replace(found, inverse=found.inverse * 2), dataclasses.replace(found, witness=None)]
    out.append(dataclasses.replace(found, latency_steps=found.latency_steps + 1))
    assert found.bytes_per_second is not None
    out.append(dataclasses.replace(found, bytes_per_second=found.bytes_per_second / 2))
    far = found.latency_witness
    assert far is not None
    wrong = [
        dataclasses.replace(far, steps=far.steps + 1),
        dataclasses.replace(far, distances=tuple(2 * d for d in far.distances), steps=2 * far.steps),
        dataclasses.replace(far, path=(far.path[0], *far.path)),
        dataclasses.replace(far, path=far.path[:-1]),
        dataclasses.replace(far, holders=(far.rank,)),
        dataclasses.replace(far, distances=far.distances[:-1]),
        dataclasses.replace(far, steps=far.steps + 2, path=(*far.path[:2], *far.path)),
        dataclasses.replace(far, path=(*far.path[:2], *far.path)),
        dataclasses.replace(far, path=far.path[::-1]),
        dataclasses.replace(far, path=(far.path[0], *[far.rank] * far.steps)),
    ]
    return out + [dataclasses.replace(found, latency_witness=w, latency_steps=w.steps) for w in wrong]


def twisted(witness: object) -> list[Cut | Partition | LpDual]:
    if isinstance(witness, Cut):
        return [
            dataclasses.replace(witness, weight=witness.weight + 1),
            dataclasses.replace(witness, capacity=witness.capacity / 2),
            dataclasses.replace(witness, side=witness.side[:-1]),
            dataclasses.replace(witness, side=(*witness.side, 99)),
            dataclasses.replace(witness, limits=(99,)),
        ]
    if isinstance(witness, Partition):
        merged = (witness.parts[0] + witness.parts[1], *witness.parts[2:])
        return [
            dataclasses.replace(witness, parts=merged),
            dataclasses.replace(witness, parts=witness.parts[1:]),
            dataclasses.replace(witness, parts=(*witness.parts, witness.parts[0])),
            dataclasses.replace(witness, parts=(*witness.parts, ())),
            dataclasses.replace(witness, capacity=witness.capacity / 2),
            dataclasses.replace(witness, weight=witness.weight * 2),
            dataclasses.replace(witness, direction="sideways"),
        ]
    assert isinstance(witness, LpDual)
    first = witness.families[0]
    found: list[Cut | Partition | LpDual] = [
        dataclasses.replace(witness, prices=witness.prices[1:]),
        dataclasses.replace(witness, prices=tuple((r, -p) for r, p in witness.prices)),
        dataclasses.replace(witness, families=(*witness.families, first)),
        dataclasses.replace(witness, families=witness.families[1:]),
        dataclasses.replace(witness, potentials=((0, 1),)),
    ]
    if first.lengths:
        more = dataclasses.replace(first, lengths=tuple((k, 2 * v) for k, v in first.lengths))
        found.append(dataclasses.replace(witness, families=(more, *witness.families[1:])))
    return found


def test_tampered_witnesses_are_refused() -> None:
    for topology, collective, found in shown():
        for wrong in tampered(found):
            with pytest.raises(Invalid):
                recheck(topology, collective, wrong)
        for witness in twisted(found.witness):
            with pytest.raises(Invalid):
                recheck(topology, collective, dataclasses.replace(found, witness=witness))


def test_faults_of_a_witness_are_named() -> None:
    """Each check on its own: what it lets through would prove more than is so."""
    topology, collective, found = shown()[2]
    whole = found.witness
    assert isinstance(whole, Partition)
    alone = Collective("allreduce", 8, (0, 1))
    for witness, of, fault in [
        (dataclasses.replace(whole, parts=whole.parts[1:]), collective, "every rank exactly once"),
        (whole, alone, "a part has no member"),
        (dataclasses.replace(whole, weight=2), collective, "another weight"),
        (dataclasses.replace(whole, capacity=whole.capacity - 1), collective, "another capacity"),
        (dataclasses.replace(whole, direction="sideways"), collective, "neither out nor in"),
        (whole, Collective("allgather", 8), "bounds allreduce only"),
    ]:
        with pytest.raises(Invalid, match=fault):
            proved_time(topology, of, witness)
    topology, collective, found = shown()[3]
    dual = found.witness
    assert isinstance(dual, LpDual)
    for changes, fault in [
        ({"potentials": ((0, 1),)}, "only switches have potentials"),
        ({"potentials": ((4, 99),)}, "a link costs less than nothing"),
        ({"prices": ((0, -1),)}, "a price is negative"),
        ({"prices": (), "potentials": (), "families": ()}, "all its prices are 0"),
        ({"families": dual.families * 2}, "pay more for a link than it costs"),
        ({"families": (Family("of", (1,)),)}, "no family of kind"),
        ({"families": (Family("to", (1, 2)),)}, "wrong number of ranks"),
        ({"families": (Family("to", (1,), ((0, -1),)),)}, "a length is out of range"),
    ]:
        with pytest.raises(Invalid, match=fault):
            proved_time(topology, collective, dataclasses.replace(dual, **changes))


def test_searches_without_a_program_see_narrow_links_and_lopsided_switches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bandwidth, "MOST_VARIABLES", 0)
    fast, slow = LinkType("fast", Fraction(4)), LinkType("slow", Fraction(1))
    links = [(0, 1, fast), (1, 2, fast), (2, 0, fast), (0, 2, fast)]
    narrow = build("narrow", 3, links, limits=[SharedLimit("two", (0, 3), Fraction(2))], unit=1)
    assert bound(narrow, Collective("broadcast", 3)).inverse == Fraction(1, 2)
    assert bound(ring(5), Collective("alltoall", 5)).tight  # by what goes evenly along shortest ways
    for up, down in ((fast, slow), (slow, fast)):
        hub = [(r, 4, up) for r in range(4)] + [(4, r, down) for r in range(4)]
        found = bound(build("hub", 4, hub, switches=1), Collective("allreduce", 4))
        assert found.inverse == Fraction(6, 4)
        assert isinstance(found.witness, Partition)


def test_latency_witness_of_long_ways() -> None:
    found = bound(ring(300), Collective("allreduce", 300))
    assert found.latency_steps == 150
    assert isinstance(found.latency_witness, Distance)
    assert len(found.latency_witness.path) == 151


@pytest.mark.slow
def test_where_no_program_is_solved_the_middle_cut_is_named() -> None:
    """9 x 15 ranks: the 9 links across the middle carry 63 * 72 blocks, of 135 that each rank has."""
    machine, wanted = antiphon.topology("mesh:dims=9x15"), Collective("alltoall", 135)
    found = bound(machine, wanted)
    assert found.tight is None
    assert isinstance(found.witness, Cut)
    assert len(found.witness.side) in (63, 72)
    assert found.inverse == Fraction(63 * 72, 9 * 135)
