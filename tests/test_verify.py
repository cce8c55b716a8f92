"""The verifier in known cases: what is right is accepted, and every kind of fault is told in the user's terms."""

import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import _meaning as meaning
import numpy as np
import pytest
from _damage import damage
from generate import Case, cases
from hypothesis import given
from hypothesis import strategies as st
from quick import in_turn
from small_plans import full, of_rows, star

from antiphon.core.collective import Collective, custom_relation
from antiphon.core.loads import claims
from antiphon.core.routes import Routes
from antiphon.core.schedule import COPY, REDUCE, Chunks, Schedule
from antiphon.core.topology import LinkType, Topology, build
from antiphon.core.verify import Fault, layout, sets, verify
from antiphon.errors import Invalid

UNIT = LinkType("nvlink", Fraction(1))


def fault_of(schedule: Schedule, topology: Topology, **claimed: Any) -> Fault:
    found = verify(schedule, topology, claimed or None).fault
    assert found is not None
    return found


# ---- classic schedules, spelled out here ----


def ring(kind: str, P: int) -> Schedule:
    rows: list[tuple[int, ...]] = []
    if kind in ("reducescatter", "allreduce"):  # the owner of chunk c comes last
        rows += [(s, c, (c + 1 + s) % P, (c + 2 + s) % P, REDUCE) for s in range(P - 1) for c in range(P)]
    if kind in ("allgather", "allreduce"):
        first = P - 1 if kind == "allreduce" else 0
        rows += [(first + s, c, (c + s) % P, (c + s + 1) % P, COPY) for s in range(P - 1) for c in range(P)]
    return of_rows(Collective(kind, P), rows, chunks=P if kind == "allreduce" else 1)


def doubling(P: int) -> Schedule:
    rows = [(s, 0, r, r ^ (1 << s), REDUCE) for s in range(P.bit_length() - 1) for r in range(P)]
    return of_rows(Collective("allreduce", P), rows)


def direct(P: int) -> Schedule:
    return of_rows(Collective("allreduce", P), [(0, 0, a, b, REDUCE) for a in range(P) for b in range(P) if a != b])


CLASSIC: dict[str, Callable[[], Schedule]] = {
    "ring allgather": lambda: ring("allgather", 7),
    "ring reducescatter": lambda: ring("reducescatter", 7),
    "ring allreduce": lambda: ring("allreduce", 7),
    "doubling": lambda: doubling(8),
    "doubling beyond one word": lambda: doubling(128),
    "direct": lambda: direct(7),
    "direct beyond one word": lambda: direct(70),
}


@pytest.mark.parametrize("name", CLASSIC)
def test_classic_schedules_are_right(name: str) -> None:
    schedule = CLASSIC[name]()
    assert verify(schedule, full(schedule.collective.ranks)).ok
    assert verify(schedule, star(schedule.collective.ranks)).ok


@pytest.mark.parametrize("state", in_turn([1, 10_000], 2))
def test_counts_in_several_spans(state: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Multisets of 200 contributions, in slices of the ids: replicas, wants and the telling of a fault."""
    P = 200
    ids = tuple(i for r in range(P) for i in (r, r))
    relation = custom_relation([(0, r, r) for r in range(P)], [(0, 0, ids), (0, 1, None)], P)
    collective = Collective("custom", P, custom=relation)
    rows: list[tuple[int, ...]] = [(0, 0, r, 0, REDUCE) for r in range(1, P)]
    rows += [(1, 0, 0, 1, COPY, 0, 0), (1, 0, 0, 0, COPY, 0, 1), (2, 0, 0, 0, REDUCE, 1, 0)]
    good = of_rows(collective, rows)
    monkeypatch.setattr(sets, "MAX_STATE_BYTES", state)
    assert verify(good, full(P)).ok
    fault = fault_of(of_rows(collective, [*rows, (3, 0, 150, 0, REDUCE)]), full(P))
    assert (fault.kind, fault.chunk, fault.dst) == ("post", 0, 0)
    assert "150 more often" in fault.message
    fault = fault_of(of_rows(collective, rows[:149] + rows[150:]), full(P))
    assert "without the contribution of rank 150" in fault.message


# ---- what is legal though odd ----


@pytest.mark.parametrize("doublings", [62, 63, 64, 65, 130])
def test_counters_never_wrap(doublings: int) -> None:
    """2^64 times the same contribution is not nothing."""
    rows: list[tuple[int, ...]] = [(0, 0, 0, 0, COPY, 0, 1)]
    for k in range(doublings):
        rows += [(2 * k + 1, 0, 0, 0, REDUCE, 1, 0), (2 * k + 2, 0, 0, 0, COPY, 0, 1)]
    rows += [(2 * doublings + 1, 0, 0, 1, REDUCE), (2 * doublings + 2, 0, 1, 0, COPY)]
    schedule = of_rows(Collective("allreduce", 2), rows)
    assert fault_of(schedule, full(2)).kind == "post"
    twice = custom_relation([(0, 0, 0), (0, 1, 1)], [(0, 1, (0, 0, 1))], 2)
    fault = fault_of(replace(schedule, collective=Collective("custom", 2, custom=twice)), full(2))
    assert "rank 1 ends with the contribution of rank 0 more often" in fault.message


# ---- every kind of fault ----


PAIR = Collective("allreduce", 3)
GOOD: list[tuple[int, ...]] = [(0, 0, 0, 1, REDUCE), (1, 0, 1, 2, REDUCE), (2, 0, 2, 0, COPY), (2, 0, 2, 1, COPY)]
ILLEGAL: dict[str, tuple[list[tuple[int, ...]], tuple[Any, ...]]] = {
    "empty": ([*GOOD, (3, 0, 1, 0, COPY, 7, 0)], (3, 0, 1, 0)),
    "race of copies": ([*GOOD, (2, 0, 1, 0, COPY)], (2, 0, None, 0)),
    "race of copy and reduce": ([*GOOD, (2, 0, 1, 0, REDUCE)], (2, 0, None, 0)),
    "race of equals": ([*GOOD, GOOD[-1]], (2, 0, 2, 1)),
    "self": ([*GOOD, (1, 0, 2, 2, COPY)], (1, 0, 2, 2)),
    "self in a slot": ([(0, 0, 1, 1, COPY, 0, 3), *GOOD, (4, 0, 1, 1, REDUCE, 3, 3)], (4, 0, 1, 1)),
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_illegal_transfers_are_named(name: str) -> None:
    rows, (step, chunk, src, dst) = ILLEGAL[name]
    fault = fault_of(of_rows(PAIR, rows), full(3))
    assert fault.kind == name.split(maxsplit=1)[0]
    assert (fault.step, fault.chunk, fault.dst) == (step, chunk, dst)
    assert src in (None, fault.src)
    assert fault.message.startswith(f"step {step}, chunk {chunk}: the ")
    assert "\n" not in fault.message


def test_missing_data_is_told() -> None:
    fault = fault_of(of_rows(Collective("allgather", 3), [(0, 2, 2, 0, COPY)]), full(3))
    assert (fault.kind, fault.chunk, fault.dst) == ("post", 0, 1)
    assert fault.message == "chunk 0: rank 1 ends without the data of rank 0"
    assert set(fault.as_dict()) == {"kind", "step", "chunk", "src", "dst", "message"}
    with pytest.raises(Invalid, match="rank 1 ends without"):
        verify(of_rows(Collective("allgather", 3), []), full(3)).or_raise()


def bridged() -> Topology:
    """Ranks 0, 1, 2; two parallel links 0-1; switch 3 between all; 1-2 directly."""
    slow = LinkType("pcie", Fraction(1, 2))
    links = [(0, 1, UNIT), (0, 1, slow), (0, 3, UNIT), (3, 2, UNIT), (1, 2, UNIT), (2, 3, UNIT), (3, 1, UNIT)]
    return build("bridged", 3, links, switches=1)


ROUTES: dict[
    str, tuple[list[tuple[int, int, int]], list[list[int]], str | None]
] = {  # rows of a broadcast from rank 0: (src, dst, route), and what is wrong
    "parallel links": ([(0, 1, -1), (1, 2, -1)], [], "ambiguous: parallel links 0 (nvlink), 1 (pcie)"),
    "parallel links, one named": ([(0, 1, 0), (1, 2, -1)], [[1]], None),
    "through a switch": ([(0, 2, -1), (2, 1, -1)], [], None),
    "through a switch, named": ([(0, 2, 0), (2, 1, 1)], [[2, 3], [5, 6]], None),
    "through a rank": ([(0, 2, 0), (2, 1, -1)], [[0, 4]], "passes through rank 1"),
    "no way": ([(0, 2, -1), (2, 1, -1), (1, 0, -1)], [], "no link or path"),
    "broken": ([(0, 2, 0), (2, 1, -1)], [[2, 5]], "is broken"),
    "to the wrong place": ([(0, 2, 0), (2, 1, -1)], [[0]], "leads from node 0 to 1, not from 0 to 2"),
    "no such link": ([(0, 1, 0), (1, 2, -1)], [[7]], "does not have"),
    "no such route": ([(0, 1, 3), (1, 2, -1)], [[1]], "names route 3, but there are only 1"),
    "empty route": ([(0, 1, 0), (1, 2, -1)], [[]], "has no links"),
    "within a rank": ([(0, 1, 0), (1, 2, -1), (2, 2, 0)], [[1]], "inside one rank"),
    "a loop": ([(0, 2, 0), (2, 1, -1)], [[2, 3, 5, 3]], "twice|passes through"),
    "an unused bad route": ([(0, 1, 0), (1, 2, -1)], [[1], [99]], None),
}


@pytest.mark.parametrize("name", ROUTES)
def test_routes(name: str) -> None:
    ends, table, why = ROUTES[name]
    rows = [(step, 0, src, dst, COPY) + ((0, 1) if src == dst else ()) for step, (src, dst, _) in enumerate(ends)]
    schedule = of_rows(
        Collective("broadcast", 3), rows, route=np.array([route for *_, route in ends]), routes=Routes.of(table)
    )
    report = verify(schedule, bridged())
    assert (meaning.Judge(bridged()).judge(schedule) is None) == (why is None)
    if why is None:
        assert report.ok, report
    else:
        assert report.fault is not None
        assert report.fault.kind == "route"
        assert any(part in report.fault.message for part in why.split("|")), report.fault.message


SHARES = {
    "gap": ([0, 0], [0, 3], [2, 1], 4, "do not tile it"),
    "overlap": ([0, 0], [0, 1], [2, 3], 4, "do not tile it"),
    "too short": ([0, 0], [0, 1], [1, 2], 4, "do not tile it"),
    "outside": ([0, 0], [0, 1], [1, 4], 4, "does not lie inside"),
    "negative": ([0, 0], [-1, 1], [2, 3], 4, "does not lie inside"),
    "nothing": ([0, 0], [0, 0], [0, 4], 4, "does not lie inside"),
    "far outside": ([0, 0], [2**62, 0], [2**62, 4], 4, "does not lie inside"),
}


@pytest.mark.parametrize("name", SHARES)
def test_shares(name: str) -> None:
    block, offset, share, whole, why = SHARES[name]
    chunks = Chunks(np.array(block), np.array(offset), np.array(share), whole)
    schedule = replace(of_rows(Collective("broadcast", 2), [(0, 0, 0, 1, 0), (0, 1, 0, 1, 0)], 2), chunks=chunks)
    assert meaning.tiling(schedule)
    fault = fault_of(schedule, full(2))
    assert fault.kind == "share"
    assert why in fault.message


def test_a_block_without_chunks() -> None:
    chunks = Chunks(np.array([0, 2]), np.array([0, 0]), np.array([1, 1]), 1)
    schedule = replace(of_rows(Collective("allgather", 3), []), chunks=chunks)
    fault = fault_of(schedule, full(3))
    assert (fault.kind, fault.message) == ("share", "block 1 has no chunk")


def test_another_topology() -> None:
    fault = fault_of(ring("allgather", 4), full(5))
    assert fault.kind == "topology"
    assert "4 ranks" in fault.message
    assert "'full' has 5" in fault.message


def test_claims_are_recomputed() -> None:
    schedule, machine = ring("allreduce", 4), full(4)
    truth = dict(claims(schedule, machine))
    assert truth == {"chunks": 4, "steps": 6, "rounds": 6, "transfers": 24}
    assert verify(schedule, machine, truth).ok
    assert verify(schedule, machine, {**truth, "planner": "of no concern"}).ok
    for key, value in truth.items():
        fault = fault_of(schedule, machine, **{key: value - 1})
        assert fault.kind == "claim"
        assert f"claims {key} = {value - 1}, but it is {value}" in fault.message


# ---- properties ----


@given(cases(), st.integers(0, 2**32))
def test_the_order_of_rows_means_nothing(random_case: Case, seed: int) -> None:
    rng = random.Random(seed)
    broken, _ = damage(rng, random_case.schedule, random_case.topology)
    order = rng.sample(range(broken.transfers), broken.transfers)
    here, there = (verify(s, random_case.topology).fault for s in (broken, broken.take(order)))
    if here is None or there is None:
        assert here is there
    else:
        assert (here.step, here.chunk, here.step is None and here.dst) == (
            there.step, there.chunk, there.step is None and there.dst,
        )  # fmt: skip


@given(cases(most_ranks=6), st.integers(0, 2**32), st.sampled_from([(4, 4, 2**24), (50, 9, 64), (2**22, 2**22, 1)]))
def test_how_the_work_is_cut_means_nothing(random_case: Case, seed: int, limits: tuple[int, int, int]) -> None:
    broken, _ = damage(random.Random(seed), random_case.schedule, random_case.topology)
    whole = verify(broken, random_case.topology).fault
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "MAX_CELLS", limits[0])
        patch.setattr(layout, "MAX_ROWS", limits[1])
        patch.setattr(sets, "MAX_STATE_BYTES", limits[2])
        pieces = verify(broken, random_case.topology).fault
    if whole is None or pieces is None:
        assert whole is pieces
    else:
        assert whole.step == pieces.step
        assert whole.kind == pieces.kind or whole.step is not None
        assert whole.chunk == pieces.chunk or whole.kind == "post"
