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


def test_a_sender_that_crosses_a_limit_twice_is_one() -> None:
    """One flow at a time, 10 bytes, over a limit that every byte crosses twice; two ranks send to rank 0 in all."""
    links = [link for r in range(3) for link in both_ways([(r, 3)], UNIT)]
    machine = build("bus", 3, links, switches=1, limits=[SharedLimit("bus", tuple(range(6)), Fraction(1))])
    rows = [(0, 0, 1, 0), (1, 0, 0, 2), (2, 0, 2, 0)]
    assert ready(machine, rows, profile=CROWD)(10).seconds == pytest.approx(60)


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
