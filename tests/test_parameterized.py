"""k-ring, recursive multiplying and its permuted form: right for any ranks and any k, with the paper's rounds."""

import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from entries import loggp
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples, in_turn
from small_plans import PORT, only, run_local, star

from antiphon.core.collective import Collective
from antiphon.core.loads import pipelined_steps
from antiphon.core.schedule import Local, Schedule
from antiphon.core.topology import Topology, both_ways, build
from antiphon.core.verify import verify
from antiphon.errors import Invalid, Unsupported
from antiphon.planners.radix.mixed import core_of, factors_up_to
from antiphon.planners.radix.permrecmult import layout
from antiphon.registry import table

NAMES = ("kring", "recmult", "permrecmult")
# what else than k there is to verify, by collective
WAYS: dict[tuple[str, str], list[dict[str, Any]]] = {
    ("kring", "allgather"): [{}, {"overlap": True}],
    ("kring", "allreduce"): [{}],
    ("recmult", "allgather"): [{}, {"fold": True}],
    ("recmult", "allreduce"): [{}, {"large": True}],
    ("permrecmult", "allgather"): [{}, {"by": "exchange"}, {"by": "exchange-minimal"}, {"by": "separate"}],
    ("permrecmult", "allreduce"): [{}, {"large": True}],
    ("permrecmult", "reducescatter"): [{}, {"by": "exchange-minimal"}],
}
PLANNED = [(name, kind) for name in NAMES for kind in table("planner")[name].can.collectives]
SOME = [(P, k) for P in range(2, 7) for k in range(2, P + 1)]
SOME += [(P, 2 + (7 * P * P + 3 * P) % (P - 1)) for P in range(7, 40, 6)] + [(64, 9), (61, 5)]


def right(name: str, kind: str, ranks: int, k: int, moved: bool) -> None:
    for options in WAYS.get((name, kind), [{}]):
        schedule = only(name, star(ranks), kind, k=k, **options)
        assert verify(schedule, star(ranks)).ok, (ranks, k, options, verify(schedule, star(ranks)).fault)
        assert not moved or run_local(schedule, 8 * (ranks + 3), repeat=1)[0]["correct"], (ranks, k, options)


@pytest.mark.parametrize(("name", "kind"), in_turn(PLANNED, 12))
def test_right_for_ranks_and_k(name: str, kind: str) -> None:
    for number, (ranks, k) in enumerate(SOME):
        right(name, kind, ranks, k, moved=number % 6 == 0)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", range(2, 65))
def test_right_for_every_k(ranks: int) -> None:
    for k, (name, kind) in product(range(2, ranks + 1), PLANNED):
        right(name, kind, ranks, k, moved=k in (3, ranks // 2))


# --- the paper's rounds ---------------------------------------------------------------------------------------------


def messages(schedule: Schedule) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The distinct (step, src, dst), and how many rows each has."""
    ends = np.stack([schedule.step, schedule.src, schedule.dst])
    found: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] = np.unique(ends, axis=1, return_counts=True)
    return found


def test_kring_of_figure_2() -> None:
    """Nine devices, k = 3: what rank 4 receives, round by round."""
    schedule = only("kring", star(9), "allgather", k=3)
    mine = schedule.dst == 4
    order = np.argsort(schedule.step[mine])
    got = list(zip(schedule.src[mine][order].tolist(), schedule.chunk[mine][order].tolist(), strict=True))
    # along the lane from group 0, which passes on group 2's; then its own group's, then group 0's, then group 2's
    assert got == [(1, 1), (1, 7), (3, 3), (3, 5), (3, 0), (3, 2), (3, 6), (3, 8)]


@pytest.mark.parametrize(("P", "k"), [(9, 3), (16, 4), (12, 3), (12, 12), (8, 2), (6, 1)])
def test_kring_overlapped(P: int, k: int) -> None:
    schedule = only("kring", star(P), "allgather", k=k, overlap=True)
    assert schedule.steps == (P // k * (k - 1) if k > 1 else P - 1)
    step, src, dst = messages(schedule)[0]
    between = src // k != dst // k
    assert set(step[between].tolist()) == {t * max(k - 1, 1) for t in range(P // k - 1)}
    assert np.bincount(step[~between] * P + src[~between]).max(initial=0) <= 1


def test_kring_broadcasts_along_leaders_first() -> None:
    wanted = Collective("broadcast", 11, roots=(5,))
    schedule = only("kring", star(11), wanted, groups="4+4+3", pieces=1)
    assert schedule.steps == 3 + 4 - 2  # n groups of at most s: n + s - 2
    between = schedule.step < 2
    leaders = [(5, 9), (9, 1)]
    assert set(leaders) <= set(zip(schedule.src[between].tolist(), schedule.dst[between].tolist(), strict=True))
    assert pipelined_steps(only("kring", star(11), wanted, groups="4+4+3")) == 5 + 31
    assert only("kring", star(11), Collective("reduce", 11), k=4, pieces=1).steps == 5


@pytest.mark.parametrize("kind", ["allgather", "allreduce"])
def test_recursive_multiplying_by_two_is_recursive_doubling(kind: str) -> None:
    for P in range(2, 20):
        ours = only("recmult", star(P), kind, k=2, fold=True)
        assert ours.same_as(only("recursive-doubling", star(P), kind))


@given(number=st.integers(2, 200), most=st.integers(2, 20))
def test_as_few_and_as_even_factors_as_there_can_be(number: int, most: int) -> None:
    def ways(rest: int, least: int = 2) -> list[tuple[int, ...]]:
        found = [(d, *more) for d in range(least, most + 1) if rest % d == 0 for more in ways(rest // d, d)]
        return found if rest > 1 else [()]

    best = min(ways(number), key=lambda factors: (len(factors), factors[::-1]), default=None)
    assert factors_up_to(number, most) == best


@given(ranks=st.integers(1, 60), data=st.data())
def test_those_who_fold_hang_on_neighbours_evenly(ranks: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, ranks))
    core = core_of(ranks, size)
    assert sorted([*core.seat.tolist(), *core.extra.tolist()]) == list(range(ranks))
    assert core.count.max() - core.count.min() <= 1
    assert np.all((core.partner > core.extra) & (core.partner - core.extra < core.count.max()))


# --- what is a run of memory ----------------------------------------------------------------------------------------

FOLDING = [(9, 3), (16, 4), (27, 3), (12, 4), (8, 2), (30, 6), (11, 3), (14, 4), (7, 7)]


def parcels(schedule: Schedule) -> Iterator[tuple[int, int, int, np.ndarray[Any, Any]]]:
    """Every message as step, src, dst, its blocks; in the order of steps."""
    order = np.lexsort((schedule.chunk, schedule.dst, schedule.src, schedule.step))
    ends = np.stack([schedule.step, schedule.src, schedule.dst])[:, order]
    cuts = np.flatnonzero(np.any(ends[:, 1:] != ends[:, :-1], axis=0)) + 1
    for rows in np.split(order, cuts):
        yield int(schedule.step[rows[0]]), int(schedule.src[rows[0]]), int(schedule.dst[rows[0]]), schedule.chunk[rows]


def is_run(at: np.ndarray[Any, Any]) -> bool:
    return bool(np.array_equal(at, np.arange(at[0], at[0] + len(at))))


@pytest.mark.parametrize(("P", "k"), FOLDING)
def test_buffers_filled_in_the_order_of_arrival(P: int, k: int) -> None:
    """Every message is copied as one run of memory; what is filled is no more than the buffer; all ends in order."""
    schedule = only("permrecmult", star(P), "allgather", k=k)
    told = schedule.provenance["layout"]
    assert told["rule"] == "arrival"
    where = [np.argsort(layout(told["radices"], rank, P)) for rank in range(P)]
    buffers = np.full((P, P), -1)
    buffers[:, 0] = np.arange(P)
    filled, early, step = np.ones(P, int), buffers.copy(), 0
    for when, src, dst, blocks in parcels(schedule):
        if when > step:
            early, step = buffers.copy(), when
        source, goal = np.sort(where[src][blocks]), np.sort(where[dst][blocks])
        unfolding = math.prod(told["radices"]) < P and when == schedule.steps - 1
        assert is_run(source) or unfolding  # who is told in the end by another gets all but its own block
        assert is_run(goal)
        buffers[dst, goal] = early[src, source]
        filled[dst] += len(blocks)
    assert np.all(filled == P)
    for rank in range(P):
        assert np.array_equal(buffers[rank], layout(told["radices"], rank, P))
        buffers[rank][:] = buffers[rank][where[rank]]
        assert np.array_equal(buffers[rank], np.arange(P))


def test_the_layout_of_figure_3() -> None:
    assert layout([3, 3], 0).tolist() == [0, 3, 6, 1, 4, 7, 2, 5, 8]
    assert layout([3, 3], 4).tolist() == [4, 7, 1, 5, 8, 2, 3, 6, 0]
    assert layout([2], 0, 3).tolist() == [0, 1, 2]  # hands in to rank 1, and is told 1 and 2
    assert layout([2], 2, 3).tolist() == [2, 1, 0]
    for rank, ranks in ((9, 9), (-1, 9), (0, 8)):
        with pytest.raises(Invalid, match="does not exist"):
            layout([3, 3], rank, ranks)


@pytest.mark.parametrize("weights", [[1] * 9, [2, 0, 1, 1, 3, 1, 0, 2, 1]])
def test_what_the_permutation_moves_is_priced(weights: list[int]) -> None:
    wanted = Collective("allgather", 9, weights=np.array(weights))
    for order in (None, [3, 1, 4, 0, 5, 2, 8, 6, 7]):
        schedule = only("permrecmult", star(9), wanted, k=3, order=order)
        most, seats = 0, order or list(range(9))
        for seat in range(9):
            arrived = [seats[other] for other in layout([3, 3], seat)]
            begins = [sum(weights[b] for b in arrived[:i]) for i in range(9)]
            most = max(most, sum(weights[b] for b, at in zip(arrived, begins, strict=True) if at != sum(weights[:b])))
        assert schedule.local == (Local("permute", Fraction(most, sum(weights))),)
    done = loggp(schedule, star(9), local="on")
    assert done(10**9).terms["local"] == pytest.approx(most / sum(weights) * 1e9 / 100e9)
    assert only("permrecmult", star(9), "reducescatter", k=3).local == (Local("permute", Fraction(1)),)
    for options in ({"by": "exchange"}, {"by": "exchange-minimal"}, {"by": "separate"}):
        assert only("permrecmult", star(9), wanted, k=3, **options).local == ()
    for large in (False, True):
        assert only("permrecmult", star(9), "allreduce", k=3, large=large).local == ()


@pytest.mark.parametrize(("P", "k"), FOLDING)
def test_the_alternatives_of_figure_7(P: int, k: int) -> None:
    plain = only("permrecmult", star(P), "allgather", k=k)
    exchanged, minimal, apart = (
        only("permrecmult", star(P), "allgather", k=k, by=by) for by in ("exchange", "exchange-minimal", "separate")
    )
    least = P * (P - 1)
    assert plain.transfers == minimal.transfers == apart.transfers == least
    back = int(np.count_nonzero(exchanged.chunk == exchanged.dst))
    assert exchanged.transfers == least + back
    assert back > 0 or k == P  # everyone's block begins elsewhere and comes back
    for _, _, _, blocks in parcels(exchanged):
        assert is_run(blocks)
    for _, _, dst, blocks in parcels(minimal):
        assert is_run(blocks) or is_run(np.sort([*blocks, dst]))  # but for a hole: the receiver's own
    for _, _, _, blocks in parcels(apart):
        assert is_run(blocks)
    if plain.steps > 1:
        assert apart.steps > plain.steps


@pytest.mark.parametrize(("P", "k"), [(9, 3), (16, 4), (27, 3), (12, 4), (30, 6), (14, 4)])
@pytest.mark.parametrize("name", ["recmult", "permrecmult"])
def test_large_allreduces_send_runs_of_the_vector(name: str, P: int, k: int) -> None:
    for order in (None, [*range(1, P, 2), *range(0, P, 2)]):
        schedule = only(name, star(P), "allreduce", k=k, large=True, order=order)
        for _, _, _, parts in parcels(schedule):
            assert is_run(np.sort(schedule.chunks.offset[parts]) // schedule.chunks.share[0])


# --- groups ---------------------------------------------------------------------------------------------------------


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5).filter(lambda s: sum(s) > 1), overlap=st.booleans())
@settings(max_examples=examples(40))
def test_groups_of_any_sizes(sizes: list[int], overlap: bool) -> None:
    P, longest = sum(sizes), max(sizes)
    schedule = only("kring", star(P), "allgather", groups="+".join(map(str, sizes)), overlap=overlap)
    assert verify(schedule, star(P)).ok
    assert schedule.transfers == P * (P - 1)
    if longest == 1 or not overlap:
        assert schedule.steps == len(sizes) - 1 + len(sizes) * (longest - 1)
    else:
        assert schedule.steps == len(sizes) * (longest - 1)


# --- options, refusals, pages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("kring", {"k": 0}, "option k: .* 1 or more"), ("kring", {"k": 2.5}, "option k"),
        ("kring", {"k": True}, "1 or more"),
        ("kring", {"k": 2, "groups": "3+3"}, "give one"), ("kring", {"groups": "3+4"}, "7 ranks together, not 6"),
        ("kring", {"groups": "a+b"}, "expected sizes"), ("kring", {"groups": "2.5+3.5"}, "expected sizes"),
        ("kring", {"groups": [2.5, 3.5]}, "expected sizes"), ("kring", {"groups": "6+0"}, "expected sizes"),
        ("kring", {"groups": ""}, "expected sizes"), ("kring", {"groups": []}, "0 ranks together"),
        ("kring", {"overlap": "half"}, "true or false"), ("kring", {"pieces": 0}, "pieces"),
        ("kring", {"order": "0,1"}, "exactly once"), ("recmult", {"k": 1}, "option k: .* 2 or more"),
        ("recmult", {"k": 0}, "option k"), ("recmult", {"radices": "4x4"}, "is 16, but only 6 ranks"),
        ("recmult", {"radices": "2x1"}, "2 or more"), ("recmult", {"radices": "axb"}, "expected numbers"),
        ("recmult", {"radices": ""}, "expected numbers"), ("recmult", {"radices": []}, "2 or more"),
        ("recmult", {"k": 2, "radices": "2x3"}, "give one"), ("recmult", {"fold": "maybe"}, "true or false"),
        ("recmult", {"large": "near"}, "true or false"), ("permrecmult", {"by": "exchang"}, "did you mean 'exchange'"),
        ("permrecmult", {"by": "separate"}, "needs no permutation"), ("permrecmult", {"k": -3}, "option k"),
    ],
)  # fmt: skip
def test_options_are_checked(name: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        only(name, star(6), "allreduce", **options)


def test_the_redundant_exchange_does_not_run_backwards() -> None:
    with pytest.raises(Invalid, match="use exchange-minimal"):
        only("permrecmult", star(6), "reducescatter", by="exchange")


@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_is_refused_by_name(name: str) -> None:
    line = build("line", 7, both_ways([(i, i + 1) for i in range(6)], PORT))
    many = Topology("many", 20_000, 1, *(np.zeros(0, np.int32),) * 3, ())
    for kind in ("allgather", "reducescatter", "allreduce"):
        with pytest.raises(Unsupported, match=f"planner {name}: .*no link or path.*use planner"):
            only(name, line, kind)
    for kind in ("allgather", "reducescatter"):
        with pytest.raises(
            Unsupported, match=r"needs about .* transfers; at most \d+; use (planner .*, or )?fewer ranks"
        ):
            only(name, many, Collective(kind, 20_000))


@pytest.mark.parametrize("name", ["kring", "permrecmult"])
def test_an_order_that_was_asked_for_is_in_the_plan(name: str) -> None:
    """The members' own order, too: where places say otherwise, it is not the default."""
    links = [(a, b, PORT) for a in range(4) for b in range(4) if a != b]
    machine = build("crossed", 4, links, places=[f"host{rank % 2}/{rank}" for rank in range(4)])
    wanted = Collective("allgather", 4)
    by_places = only(name, machine, wanted, k=2)
    as_asked = only(name, machine, wanted, k=2, order=range(4))
    assert by_places.provenance["options"]["order"] == "0,2,1,3"
    assert as_asked.provenance["options"]["order"] == "0,1,2,3"
    again = only(name, machine, wanted, **as_asked.provenance["options"])
    assert (again.src.tolist(), again.dst.tolist()) == (as_asked.src.tolist(), as_asked.dst.tolist())
