"""The closed forms of LogGP against message by message, and against the paper where it is right."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples

from antiphon.cost import Level
from antiphon.cost.loggp.forms import Figures, kring, message, recmult
from antiphon.errors import Invalid, Unsupported

OUTER = Figures(2.2e-5, 4.2e-6, 4.4e-6, 1.3e-5, 4e-11, 2e-12)
INNER = Figures(1.47e-5, 4.0e-6, 4.1e-6, 1.2e-5, 1.22e-11, 2e-12)
KRING = [(16, 4), (64, 4), (64, 8), (12, 3), (64, 64), (9, 3), (8, 2), (6, 1)]
Turn = Callable[[int], tuple[list[int], Figures, float, float]]  # of a rank: partners, figures, bytes, combining


def by_message(p: int, turns: list[Turn], gap: bool) -> float:
    """Every message of every round; a rank goes on when all of its round have come and are combined.

    A port per partner: its next first byte leaves g after its last one. Nothing of the closed forms is in here.
    """
    ready = [0.0] * p
    free: dict[tuple[int, int], float] = {}
    for turn in turns:
        come = [0.0] * p
        for rank in range(p):
            partners, f, nbytes, _ = turn(rank)
            for port, other in enumerate(partners):
                first = ready[rank] + f.o_s
                if gap and (rank, port) in free:
                    first = max(first, free[rank, port] + f.g)
                last = first + (nbytes - 1) * f.G
                free[rank, port] = last
                come[other] = max(come[other], last + f.L + f.o_r)
        ready = [come[rank] + turn(rank)[3] for rank in range(p)]
    return max(ready)


def kring_turns(p: int, k: int, m: float, inter: Figures, intra: Figures, combine: bool) -> list[Turn]:
    """The allgather's rounds; combining ones are those backwards, and go first."""

    def outer(work: float) -> Turn:
        return lambda rank: ([(rank + k) % p], inter, m, work)

    def inner(work: float) -> Turn:
        return lambda rank: ([rank // k * k + (rank + 1) % k], intra, m, work)

    between, inside = p // k - 1, p // k * (k - 1)
    spread = [outer(0.0)] * between + [inner(0.0)] * inside
    first = [inner(m * intra.gamma)] * inside + [outer(m * inter.gamma)] * between
    return first + spread if combine else spread


def recmult_turns(radices: list[int], m: float, f: Figures, combine: bool) -> list[Turn]:
    turns: list[Turn] = []
    below = 1
    for radix in radices:

        def turn(rank: int, radix: int = radix, below: int = below) -> tuple[list[int], Figures, float, float]:
            digit = rank // below % radix
            partners = [rank + ((digit + i) % radix - digit) * below for i in range(1, radix)]
            nbytes = m if combine else m * below
            return partners, f, nbytes, (radix - 1) * m * f.gamma if combine else 0.0

        turns.append(turn)
        below *= radix
    return turns


@pytest.mark.parametrize(("p", "k"), KRING)
@pytest.mark.parametrize("collective", ["allgather", "allreduce"])
def test_kring_is_what_its_messages_take(p: int, k: int, collective: str) -> None:
    turns = kring_turns(p, k, 4096.0, OUTER, INNER, collective == "allreduce")
    told = kring(p, k, 4096.0, OUTER, INNER, collective=collective)
    assert told == pytest.approx(by_message(p, turns, gap=True), rel=1e-12)


FIGURE = st.floats(1e-7, 1e-4)
FIGURES = st.builds(Figures, FIGURE, FIGURE, FIGURE, FIGURE, st.floats(1e-12, 1e-8), st.floats(0, 1e-10))


@settings(max_examples=examples(60), deadline=None)
@given(FIGURES, st.sampled_from([[2], [3, 2], [2, 5], [4, 2, 3], [2, 2, 2]]), st.integers(1, 10**6), st.booleans())
def test_mixed_radices_with_and_without_the_gap(f: Figures, radices: list[int], m: int, gap: bool) -> None:
    told = recmult(math.prod(radices), radices, m, f, gap=gap)
    assert told == pytest.approx(by_message(math.prod(radices), recmult_turns(radices, m, f, False), gap), rel=1e-9)
    assert told >= recmult(math.prod(radices), radices, m, f, gap=False)
    reduced = recmult(math.prod(radices), radices, m, f, collective="allreduce", gap=False)
    turns = recmult_turns(radices, m, f, True)
    assert reduced == pytest.approx(by_message(math.prod(radices), turns, gap=False), rel=1e-9)


@settings(max_examples=examples(60), deadline=None)
@given(FIGURES, FIGURES, st.sampled_from(KRING[:-1]), st.integers(1, 10**6), st.booleans())
def test_kring_of_any_figures_without_the_gap(
    outer: Figures, inner: Figures, pk: tuple[int, int], m: int, combine: bool
) -> None:
    collective = "allreduce" if combine else "allgather"
    turns = kring_turns(*pk, m, outer, inner, combine)
    assert kring(*pk, m, outer, inner, collective=collective, gap=False) == pytest.approx(
        by_message(pk[0], turns, gap=False), rel=1e-9
    )
    if not combine:  # one gap for both levels: then the switch of phases is as in the formula
        same = Figures(inner.L, inner.o_s, inner.o_r, inner.g, inner.G)
        turns = kring_turns(*pk, m, same, same, False)
        assert kring(*pk, m, same, same) == pytest.approx(by_message(pk[0], turns, gap=True), rel=1e-9)


def test_rounds_within_groups_take_place_while_those_between_do() -> None:
    p, k, m = 64, 4, 2.0**20
    t_outer = OUTER.o_s + (m - 1) * OUTER.G + OUTER.L + OUTER.o_r
    t_inner = INNER.o_s + (m - 1) * INNER.G + INNER.L + INNER.o_r
    told = kring(p, k, m, OUTER, INNER, overlap=True)
    assert told == pytest.approx(15 * max(t_outer, 3 * t_inner) + 3 * t_inner, rel=1e-12)
    assert told < kring(p, k, m, OUTER, INNER)
    both = kring(p, k, m, OUTER, INNER, collective="allreduce", overlap=True)
    assert both < kring(p, k, m, OUTER, INNER, collective="allreduce")
    assert kring(8, 1, m, OUTER, INNER, overlap=True) == kring(8, 1, m, OUTER, INNER)


def test_figures_of_a_level_are_those_of_each_size() -> None:
    level = Level("host", (1, 4096), L=(1e-6, 5e-6), o_s=1e-6, o_r=1e-6, g=2e-6, G=1e-10)
    assert message(level, 4096) == pytest.approx(7e-6 + 4095e-10)
    told = recmult(4, 2, 2048, level)
    half = 1e-6 + 4e-6 * 2047 / 4095
    assert told == pytest.approx(half + 2e-6 + 2047e-10 + 7e-6 + 4095e-10)
    per_round = recmult(4, [2, 2], 100.0, [INNER, OUTER])
    assert per_round == pytest.approx(message(INNER, 100.0) + message(OUTER, 200.0))
    assert kring(1, 1, 5.0, OUTER, INNER) == recmult(1, 2, 5.0, INNER) == 0


@pytest.mark.parametrize(
    ("wrong", "kind", "complaint"),
    [
        (lambda: kring(16, 3, 1.0, OUTER, INNER), Unsupported, "divisors of 16"),
        (lambda: kring(0, 1, 1.0, OUTER, INNER), Invalid, "p: expected"),
        (lambda: kring(4, 2, 0.0, OUTER, INNER), Invalid, "m: expected"),
        (lambda: kring(4, 2, 1.0, OUTER, INNER, collective="reduce"), Invalid, "unknown collective"),
        (lambda: kring(4, 2, 1.0, OUTER, {}), Invalid, "Figures or Level"),
        (lambda: recmult(12, 2, 1.0, INNER), Unsupported, "powers of 2"),
        (lambda: recmult(12, [2, 5], 1.0, INNER), Invalid, "whose product is 12"),
        (lambda: recmult(12, 1, 1.0, INNER), Invalid, "from 2 on"),
        (lambda: recmult(4, 2, 1.0, [INNER]), Invalid, "1 for 2 rounds"),
        (lambda: Figures(1e-6, -1e-6, 0, 0, 0), Invalid, "o_s: expected"),
    ],
)
def test_what_has_no_closed_form_is_refused(wrong: Callable[[], Any], kind: type[Exception], complaint: str) -> None:
    with pytest.raises(kind, match=complaint):
        wrong()
