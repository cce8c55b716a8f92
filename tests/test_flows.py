"""The flow-level simulator: by hand, against a plain simulation in fractions, and against the other models."""

import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from flows_plain import Plain
from generate import Case, cases
from hypothesis import given, settings
from quick import examples

from antiphon.core.bounds.memory import work_of
from antiphon.core.collective import Collective
from antiphon.core.loads import loads
from antiphon.core.schedule import REDUCE, Schedule, cut
from antiphon.core.topology import LinkType, SharedLimit, Topology, both_ways, build
from antiphon.core.transform import expand, pipeline
from antiphon.cost import Incast, Profile, prepare, simulate
from antiphon.cost.flows.flows import Flows, flows
from antiphon.select import plan
from antiphon.topologies import topology

UNIT = LinkType("nvlink", Fraction(1), 0.0)  # a byte per second
WIDE = LinkType("nvlink", Fraction(100), 0.0)
TABLE5 = "genmodel-table5"
TERMS = ("alpha", "beta", "epsilon", "gamma", "delta")


def sends(machine: Topology, rows: list[tuple[int, ...]], chunks: int = 1, op: int = 0, **more: Any) -> Schedule:
    """Rows (step, chunk, src, dst); a model does not ask whether they are right. All chunks are equal."""
    step, chunk, src, dst = np.array(rows, np.int32).T
    made = Collective("allreduce" if op else "broadcast", machine.ranks)
    return Schedule(made, cut(made, chunks), step, chunk, src, dst, np.full(len(rows), op, np.uint8), **more)


def ready(machine: Topology, rows: list[tuple[int, ...]], chunks: int = 1, profile: Any = None, **more: Any) -> Flows:
    made = flows(sends(machine, rows, chunks, **more), machine, profile=profile)
    assert isinstance(made, Flows)
    return made


def ends(machine: Topology, rows: list[tuple[int, ...]], chunks: int, nbytes: int, **more: Any) -> list[float]:
    """When each message, in the order of (step, src, dst), has been sent."""
    made = ready(machine, rows, chunks, **more)
    sent = made.tables.messages
    return list(made.run(nbytes).sent[np.lexsort((sent.dst, sent.src, sent.step))])


def star(*into: LinkType, out: LinkType = WIDE) -> Topology:
    """Ranks around a switch: the link of each to it, and back."""
    ranks, links = len(into), []
    for rank, kind in enumerate(into):
        links += [(rank, ranks, kind), (ranks, rank, out)]
    return build("star", ranks, links, switches=1)


def lot(*middle: LinkType) -> Topology:
    """A parking lot: a row of switches, joined by these links; ranks 2i and 2i + 1 at switch i."""
    switches = len(middle) + 1
    links = [link for r in range(2 * switches) for link in both_ways([(r, 2 * switches + r // 2)], WIDE)]
    links += [(2 * switches + i, 2 * switches + i + 1, kind) for i, kind in enumerate(middle)]
    return build("lot", 2 * switches, links, switches=switches)


# ---- by hand: who gets what ----


THREE = LinkType("nvlink", Fraction(3), 0.0)
STAIRS = lot(*(LinkType("nvlink", Fraction(b), 0.0) for b in (1, 2, 6)))
BY_HAND = {
    "two on one link": (star(*[UNIT] * 3), [(0, 0, 0, 1), (0, 0, 0, 2)], 1, 10, [20, 20]),
    # 10 and 20 bytes: half each until 20 s, then the second at full speed
    "the longer is alone at the end": (
        star(*[UNIT] * 3), [(0, 0, 0, 1), (0, 0, 0, 2), (0, 1, 0, 2)], 2, 20, [20, 30],
    ),
    # 10, 20 and 30 bytes: thirds until 30 s, halves until 50 s
    "three sizes": (star(*[UNIT] * 4), [(0, c, 0, dst) for dst in (1, 2, 3) for c in range(dst)], 3, 30, [30, 50, 60]),
    # one flow over both links, one over each: all get half
    "parking lot": (lot(UNIT, UNIT), [(0, 0, 0, 4), (0, 0, 1, 2), (0, 0, 3, 5)], 1, 10, [20, 20, 20]),
    # the flow that is held back on the first link leaves 5/2 of the second to the other
    "a wider link": (lot(UNIT, THREE), [(0, 0, 0, 4), (0, 0, 1, 2), (0, 0, 3, 5)], 1, 10, [20, 20, 4]),
    # the long flow is twice as large: alone from 20 s on, at full speed
    "what the others leave": (
        lot(UNIT, UNIT), [(0, 0, 0, 4), (0, 1, 0, 4), (0, 0, 1, 2), (0, 0, 3, 5)], 2, 20, [30, 20, 20],
    ),
    # links of 1, 2 and 6, each shared with the one before: rates 1/2, 1/2; then 3/2; then 9/2
    "bottlenecks in a row": (STAIRS, [(0, 0, 0, 2), (0, 0, 1, 4), (0, 0, 2, 6), (0, 0, 4, 7)], 1, 9, [18, 18, 6, 2]),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_who_gets_what(name: str) -> None:
    machine, rows, chunks, nbytes, seconds = BY_HAND[name]
    assert ends(machine, rows, chunks, nbytes) == pytest.approx(seconds, rel=1e-12)


def test_pieces_of_two_messages_that_meet_in_a_step_are_two_messages() -> None:
    """Rank 0 sends chunk 0 to 1 in step 0 and chunk 1 in step 1, both in two pieces of 10 bytes, and 1 hands them on.

    In step 1 leave the second piece of one and the first of the other. Were they one message of 20 bytes, 1 would have
    nothing to send until 30 s."""
    rows = [(0, 0, 0, 1), (1, 1, 0, 1), (1, 0, 1, 2), (2, 1, 1, 2)]
    fine = prepare("flows", pipeline(sends(star(UNIT, UNIT, UNIT), rows, 2), 2), star(UNIT, UNIT, UNIT))
    moments = fine.run(40)  # type: ignore[attr-defined]
    assert sorted(moments.sent.tolist()) == [10, 20, 20, 30, 30, 40, 40, 50]
    found = fine.tables.messages  # type: ignore[attr-defined]
    assert found.step.tolist() == [0, 1, 1, 1, 2, 2, 2, 3]


def test_a_shared_limit() -> None:
    """Three links of 1 under a limit of 1, and a flow outside of it."""
    links = [(0, 1, UNIT), (0, 2, UNIT), (0, 3, UNIT), (1, 2, UNIT)]
    machine = build("nic", 4, links, limits=[SharedLimit("nic", (0, 1, 2), Fraction(1))])
    rows = [(0, 0, 0, 1), (0, 0, 0, 2), (0, 0, 0, 3), (0, 1, 1, 2)]
    assert ends(machine, rows, 2, 20) == pytest.approx([30, 30, 30, 10], rel=1e-12)
    one = ready(machine, rows, 2)(20)
    assert one.bottleneck == "limit nic"
    assert one.seconds == pytest.approx(30)


def test_a_limit_that_is_crossed_twice() -> None:
    machine = build("bus", 3, [(0, 3, UNIT), (3, 1, UNIT), (3, 2, UNIT)], switches=1,
                    limits=[SharedLimit("bus", (0, 1), Fraction(1))])  # fmt: skip
    assert ends(machine, [(0, 0, 0, 1)], 1, 10) == [20]  # each byte loads the limit twice
    assert ends(machine, [(0, 0, 0, 2)], 1, 10) == [10]
    assert ends(machine, [(0, 0, 0, 1), (0, 0, 0, 2)], 1, 10) == [30, 30]


def test_latency_is_over_before_bytes_move() -> None:
    """Latencies 1 and 3 to one link: the first has it alone for 2 s, then they share."""
    near, far = LinkType("a", Fraction(100), 1.0), LinkType("a", Fraction(100), 3.0)
    machine = build("fork", 3, [(0, 3, UNIT), (3, 1, near), (3, 2, far)], switches=1)
    assert ends(machine, [(0, 0, 0, 1), (0, 0, 0, 2)], 1, 10) == [19, 21]
    found = ready(machine, [(0, 0, 0, 1), (0, 0, 0, 2)])(10)
    assert found.seconds == 21
    assert found.terms["alpha"] == 3
    assert found.terms["beta"] == 18


def test_latency_alone() -> None:
    kind = LinkType("nvlink", Fraction(1), 2.0)
    machine = build("line", 4, both_ways([(0, 1), (1, 2), (2, 3)], kind))
    rows = [(0, 0, 0, 1), (1, 0, 1, 2), (2, 0, 2, 3)]
    found = ready(machine, rows)(0)
    assert found.seconds == 6
    assert found.terms == {**dict.fromkeys(TERMS, 0.0), "alpha": 6.0}
    assert list(found.critical_path) == rows_of(rows)
    assert found.bottleneck == "latency of 3 messages, up to 2 s each"
    assert ready(machine, rows)(5).seconds == 21


def rows_of(rows: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    return [(step, src, dst) for step, _, src, dst in rows]


# ---- incast ----

CROWD = Profile(incast={"nvlink": Incast(1.0, 1)})


def test_incast() -> None:
    """Three senders where one is free: 1 / (1 + 2) bytes per second for all of them."""
    machine = star(*[WIDE] * 4, out=UNIT)
    rows = [(0, 0, src, 0) for src in (1, 2, 3)]
    assert ends(machine, rows, 1, 9, profile=CROWD) == pytest.approx([81] * 3, rel=1e-12)
    found = ready(machine, rows, profile=CROWD)(9)
    assert found.terms["beta"] == pytest.approx(27)
    assert found.terms["epsilon"] == pytest.approx(54)
    assert found.bottleneck == "link 1 (switch switch0 to rank 0, nvlink): incast"
    assert ends(machine, rows, 1, 9) == pytest.approx([27] * 3)


def test_incast_ends_with_its_senders() -> None:
    """9 and 18 bytes: a quarter each until 36 s, then one sender is left, and none is too many."""
    machine = star(*[WIDE] * 3, out=UNIT)
    rows = [(0, 0, 1, 0), (0, 0, 2, 0), (0, 1, 2, 0)]
    assert ends(machine, rows, 2, 18, profile=CROWD) == [36, 45]
    assert ready(machine, rows, 2, profile=CROWD)(18).terms["epsilon"] == pytest.approx(18)


def test_a_sender_that_crosses_a_limit_twice_is_one() -> None:
    """One flow at a time, 10 bytes, over a limit that every byte crosses twice; two ranks send to rank 0 in all."""
    links = [link for r in range(3) for link in both_ways([(r, 3)], UNIT)]
    machine = build("bus", 3, links, switches=1, limits=[SharedLimit("bus", tuple(range(6)), Fraction(1))])
    rows = [(0, 0, 1, 0), (1, 0, 0, 2), (2, 0, 2, 0)]
    assert ready(machine, rows, profile=CROWD)(10).seconds == pytest.approx(60)


# ---- what waits for what ----


def test_a_later_step_shares_a_link_with_an_earlier_one() -> None:
    """Rank 1 begins to pass on chunk 0 while rank 2 still sends over the same link; stepwise 10 + 30 s."""
    machine = build("join", 4, [(0, 4, UNIT), (1, 4, UNIT), (4, 3, UNIT), (4, 1, UNIT), (2, 4, UNIT)], switches=1)
    rows = [(0, 0, 0, 1), (0, 1, 2, 3), (0, 2, 2, 3), (1, 0, 1, 3)]
    # 2->3: 10 bytes alone until 10 s, then half the link until its 20 are through, at 30; 1->3 likewise
    assert ends(machine, rows, 3, 30) == [10, 30, 30]
    assert prepare("alpha-beta", sends(machine, rows, 3), machine)(30).seconds == 20 + 10


def test_a_connection_keeps_its_order() -> None:
    """Two steps from 0 to 1: one after the other, their latencies at once; so pieces pass through a chain."""
    kind = LinkType("nvlink", Fraction(1), 2.0)
    machine = build("line", 3, [(0, 1, kind), (1, 2, kind)])
    assert ends(machine, [(0, 0, 0, 1), (1, 1, 0, 1)], 2, 20) == [12, 22]
    chain = sends(machine, [(0, 0, 0, 1), (1, 0, 1, 2)], 1, pieces=5)
    assert flows(chain, machine)(20).seconds == pytest.approx(2 + 20 + 2 + 4)


# ---- combining ----


def test_what_meets_in_a_cell_is_combined_at_once() -> None:
    """Three arrive at rank 0, which has one of its own: 3 additions and 5 accesses per byte."""
    machine = star(*[WIDE] * 4)
    price = Profile(gamma=1 / 2, delta=1 / 8)
    found = ready(machine, [(0, 0, src, 0) for src in (1, 2, 3)], op=REDUCE, profile=price)(100)
    assert dict(found.terms) == pytest.approx({"alpha": 0, "beta": 3, "epsilon": 0, "gamma": 150, "delta": 62.5})
    assert found.bottleneck == "rank 0: combining what arrives"
    apart = ready(machine, [(s, 0, s + 1, 0) for s in range(3)], op=REDUCE, profile=price)(100)
    assert apart.terms["gamma"] == pytest.approx(150)
    assert apart.terms["delta"] == pytest.approx(3 * 3 * 12.5)


def test_a_rank_does_one_thing_after_the_other() -> None:
    """Chunk 0 arrives at 1 s, chunk 1 at 2 s; each takes 7 s to add."""
    machine = build("two", 3, [(1, 0, LinkType("a", Fraction(10), 0.0)), (2, 0, LinkType("a", Fraction(5), 0.0))])
    found = ready(machine, [(0, 0, 1, 0), (0, 1, 2, 0)], 2, op=REDUCE, profile=Profile(gamma=0.7))(20)
    assert found.seconds == pytest.approx(1 + 7 + 7)
    assert dict(found.terms) == pytest.approx({"alpha": 0, "beta": 1, "epsilon": 0, "gamma": 14, "delta": 0})


def test_copies_cost_no_work() -> None:
    machine = star(*[WIDE] * 3)
    price = Profile(gamma=0.5, delta=0.5)
    assert ready(machine, [(0, 0, 0, 1), (0, 0, 0, 2)], profile=price)(100).seconds == 2
    inside = sends(machine, [(0, 0, 0, 0)], dst_slot=np.array([1]))
    assert flows(inside, machine)(100).seconds == 0
    assert flows(inside, machine, profile=price)(100).seconds == 100  # read and written


@given(cases())
def test_all_that_is_combined_is_priced(random: Case) -> None:
    """As many additions and accesses as the schedule has, rank by rank."""
    whole = expand(random.schedule)
    tables = flows(whole, random.topology, profile=Profile(gamma=1.0, delta=1.0)).tables  # type: ignore[attr-defined]
    want = work_of(whole)
    for column, exact in (("adding", want.additions), ("access", want.accesses)):
        given_ = np.zeros(len(tables.versions)) if tables.work is None else getattr(tables.work, column)
        found = np.bincount(tables.rank, weights=given_, minlength=random.topology.ranks)
        assert found == pytest.approx([float(x) for x in exact], abs=1e-12)


# ---- against a plain simulation ----


CROWDED = Profile(incast={kind: Incast(1e-10, 1) for kind in ("nvlink", "ib", "pcie", "ethernet", "xgmi")})


@settings(max_examples=examples(50))
@given(cases(most_ranks=5))
def test_a_plain_simulation_says_the_same(random: Case) -> None:
    if expand(random.schedule).transfers > 40:
        return
    kinds = {kind.kind for kind in random.topology.types}
    wide = random.seed % 2 == 0  # as on a machine of many links, where rates are looked at only near a change
    crowded = Profile(incast={kind: seen for kind, seen in CROWDED.incast.items() if kind in kinds})
    for profile, nbytes in ((Profile(), 1000), (crowded, 0), (crowded, 10**9)):
        want = float(Plain(random.schedule, random.topology, nbytes, profile).seconds())
        with pytest.MonkeyPatch.context() as patch:
            if wide:
                patch.setattr("antiphon.cost.flows.rates.MAX_DENSE_RESOURCES", 0)
                patch.setattr("antiphon.cost.flows.rates.MIN_SEARCHED_FLOWS", 0)
            found = prepare("flows", random.schedule, random.topology, profile=profile)(nbytes)
        assert found.seconds == pytest.approx(want, rel=1e-9, abs=1e-15)


# ---- laws ----


@settings(max_examples=examples(30))
@given(cases())
def test_laws(random: Case) -> None:
    """Terms sum to the time; every byte crosses its links, none faster than they are; order of rows says nothing."""
    schedule, machine = random.schedule, random.topology
    ready = flows(schedule, machine)
    assert isinstance(ready, Flows)
    other = prepare("flows", schedule.take(np.random.default_rng(random.seed).permutation(schedule.transfers)), machine)
    entries = loads(schedule, machine)
    whole = np.zeros(machine.links + len(machine.limits))
    np.add.at(whole, entries.resource, entries.load.astype(float) * entries.window / entries.scale)
    for nbytes in (0, 10**8):
        found = ready(nbytes)
        assert found.seconds == pytest.approx(sum(found.terms.values()), rel=1e-9)
        assert found.seconds == pytest.approx(ready.run(nbytes).last, rel=1e-9)
        assert other(nbytes).seconds == pytest.approx(found.seconds, rel=1e-9)
        busy = ready.utilisation(nbytes)
        finest = found.seconds * 1e-11 * max(map(float, (kind.bandwidth for kind in machine.types)), default=0.0)
        assert busy.bytes() == pytest.approx(whole * nbytes, rel=1e-9, abs=finest)
        assert busy.share.max(initial=0.0) <= 1 + 1e-9
        assert np.all(busy.end > busy.begin)
        same = busy.resource[1:] == busy.resource[:-1]
        assert np.all(busy.begin[1:][same] >= busy.end[:-1][same])


# ---- against the models of barriers ----

PLANS: list[tuple[str, str, dict[str, Any]]] = [
    ("ss24", "ring", {"directions": 1}), ("ss24", "colocated-ps", {}), ("ss24", "hierarchical-ps", {"fanins": "8x3"}),
    ("ss24", "hierarchical-ring", {"fanins": "6x4"}), ("ss32", "halving-doubling", {}), ("ss32", "ring", {}),
    ("tree:fanouts=4x6", "hierarchical-ps", {"fanins": "6x4"}),
]  # fmt: skip


@pytest.mark.parametrize(("machine", "planner", "options"), PLANS)
@pytest.mark.parametrize("nbytes", [4 * 10**5, 4 * 10**8])
def test_genmodel_says_the_same_where_contention_is_trivial(
    machine: str, planner: str, options: dict[str, Any], nbytes: int
) -> None:
    """Within 1 %, and term by term."""
    here = topology(machine)
    made = plan("allreduce", here, planner=planner, options=options).entries[0].schedule
    profile = TABLE5 if machine.startswith("ss") else Profile(gamma=1e-10, delta=5e-11)
    by_steps, simulated = (prepare(model, made, here, profile=profile)(nbytes) for model in ("genmodel", "flows"))
    assert simulated.seconds == pytest.approx(by_steps.seconds, rel=0.01)
    for term in TERMS:
        assert simulated.terms[term] == pytest.approx(by_steps.terms[term], rel=0.01, abs=1e-3 * by_steps.seconds)


def test_genmodel_says_the_same_of_servers_on_a_tree() -> None:
    """Incast at the servers' links and at the trunks."""
    here = topology("sym384")
    made = plan("allreduce", here, planner="hierarchical-ps", options={"fanins": "24x16"}).entries[0].schedule
    by_steps, simulated = (prepare(model, made, here, profile=TABLE5)(4 * 10**8) for model in ("genmodel", "flows"))
    assert dict(simulated.terms) == pytest.approx(dict(by_steps.terms), rel=0.01)


@pytest.mark.parametrize("machine", ["ring:ranks=7,latency=3us", "dgx1v", "full:ranks=5"])
def test_alpha_beta_says_the_same_where_nothing_is_shared(machine: str) -> None:
    for kind in ("allgather", "allreduce"):
        made = plan(kind, topology(machine), planner="ring").entries[0].schedule
        ready, plain = (prepare(model, made, topology(machine)) for model in ("flows", "alpha-beta"))
        for nbytes in (0, 10**6, 10**9):
            assert ready(nbytes).seconds == pytest.approx(plain(nbytes).seconds, rel=1e-9)


# ---- pieces, traces, errors ----


def test_too_many_pieces_are_simulated_with_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = build("line", 3, [(0, 1, UNIT), (1, 2, UNIT)])
    chain = sends(machine, [(0, 0, 0, 1), (1, 0, 1, 2)], pieces=16)
    assert flows(chain, machine)(160).seconds == pytest.approx(170)
    monkeypatch.setattr("antiphon.cost.pieces.MAX_EXPANDED_ROWS", 16)
    fewer = flows(chain, machine)(160)
    assert fewer.seconds == pytest.approx(180)
    assert "8 pieces" in fewer.note
    assert flows(pipeline(chain, 10**6), machine)(160).seconds == pytest.approx(180)


def test_a_trace_and_utilisation() -> None:
    made = plan("allreduce", topology("ss24"), planner="hierarchical-ps", options={"fanins": "8x3"})
    row, trace = simulate(made, "4MB", model="flows", profile=TABLE5, trace=True)
    assert trace is not None
    assert row["critical_path_length"] == 4
    events = json.loads(trace)["traceEvents"]
    landed = [e["ts"] + e["dur"] for e in events if e.get("cat") == "receive"]
    assert max(landed) <= row["seconds"] * 1e6 + 1e-3
    ready = flows(made.entries[0].schedule, made.topology, profile=TABLE5)
    assert isinstance(ready, Flows)
    busy = ready.utilisation(4 * 10**6)
    assert len(busy) == 4 * made.topology.links  # once in each of four steps
    assert busy.share == pytest.approx(1.0)
    assert busy.mean().max() == pytest.approx(2 * 23 / 24 * 4e6 / float(made.topology.unit) / busy.end.max())
    assert busy.name(0).startswith("link 0 (rank 0")
