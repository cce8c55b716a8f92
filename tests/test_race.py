"""Races: who is let go, who is a tie, and when it ends."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples

from antiphon.runtimes.measure.race import ERROR_PROBABILITY, MARGIN, MAX_ROUNDS, TIE_RATIO, Race, compare, interval


def run(true: list[float], noise: float, rounds: int, seed: int, common: float = 0.0) -> Race:
    """Contestants that take so long, each time off by chance; `common`: what slows a whole round."""
    random, race = np.random.default_rng(seed), Race(len(true), rounds)
    for _ in range(race.max_rounds):
        slow = 1 + common * random.random()
        race.add([slow * true[n] * (1 + noise * random.exponential()) for n in race.going])
        if race.decide():
            break
    return race


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.floats(1.0, 3.0), min_size=2, max_size=6), st.integers(3, 20), st.integers(0, 99))
def test_the_best_wins_or_ties(true: list[float], rounds: int, seed: int) -> None:
    race = run(true, 0.02, rounds, seed, common=5.0)
    standings = race.standings()
    winner = min(range(len(true)), key=lambda n: standings[n].ratio)
    assert true[winner] <= 1.05 * min(true)  # though rounds differ by a factor of 6
    best = int(np.argmin(true))
    assert standings[best].tied or true[winner] <= 1.02 * min(true)  # of equal ones any may win by the noise
    for n, one in enumerate(standings):
        assert one.low <= one.ratio <= one.high
        assert one.tied == (n in race.going)  # who is out was surely slower than one that was the best then
    assert rounds <= len(race.times) <= MAX_ROUNDS * rounds


def test_who_is_slower_leaves_early_and_who_is_alike_does_not_go_on_for_ever() -> None:
    race = run([1.0, 2.0, 3.0], 0.1, 20, 1)
    assert race.going == [0]
    ran = np.count_nonzero(~np.isnan(np.array(race.times)), axis=0).tolist()
    assert ran[0] == 20
    assert max(ran[1:]) < 15
    exact = run([1.0, 1.0 + 0.5 * (TIE_RATIO - 1)], 0.0, 20, 1)
    assert len(exact.times) == 20
    assert [one.tied for one in exact.standings()] == [True, True]
    near = run([1.0, 1.0], 1.0, 10, 1)
    assert len(near.times) == MAX_ROUNDS * 10
    assert near.going == [0, 1]


def test_a_race_goes_on_until_the_library_is_surely_faster_or_slower() -> None:
    for ours, noise, decided in ((0.5, 0.1, True), (2.0, 0.1, True), (MARGIN, 0.5, False)):
        random, race = np.random.default_rng(2), Race(1, 10)
        for _ in range(race.max_rounds):
            race.add([ours * (1 + noise * random.random())], 1 + noise * random.random())
            if race.decide():
                break
        assert (len(race.times) == 10) == decided
        low, middle, high = compare(np.array(race.times)[:, 0], np.array(race.theirs))
        assert low <= middle <= high
    assert compare(np.array([1.0, 2.0]), np.array([2.0, 4.0])) == (pytest.approx(1e-6), 0.5, pytest.approx(1e6))


def test_an_outlier_decides_nothing() -> None:
    race = Race(2, 8)
    for turn in range(8):
        race.add([1.0 if turn else 100.0, 1.5])
        race.decide()
    assert min(range(2), key=lambda n: race.standings()[n].ratio) == 0


def test_intervals_miss_as_rarely_as_they_say() -> None:
    random = np.random.default_rng(7)
    missed = 0
    for _ in range(2000):
        low, _, high = interval(random.exponential(size=25) - np.log(2))  # its median is 0
        missed += not low <= 0 <= high
    assert missed <= 2000 * ERROR_PROBABILITY * 2
    assert interval([1.0, 2.0, 3.0]) == (-np.inf, 2.0, np.inf)  # nothing is certain of three
