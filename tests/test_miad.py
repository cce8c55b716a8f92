"""The chunk size controller on made-up machines, with and without noise."""

import math
import random
import statistics

import pytest
from quick import in_turn

from antiphon.cost.miad import Miad
from antiphon.errors import Invalid


def throughput(size: int, total: float, depth: int, overhead: float) -> float:
    """A pipeline: pieces through `depth` hops, each piece with an overhead."""
    pieces = max(1, math.ceil(total / size))
    return total / ((pieces + depth - 1) * (overhead + min(size, total) / 25e9))


def settle(total: float, depth: int, overhead: float, noise: float, seed: int) -> tuple[float, int]:
    """How near to the best throughput the controller ends, and after how many runs."""
    best = max(throughput(int(2 ** (i / 8)), total, depth, overhead) for i in range(8 * 14, 8 * 30))
    draw = random.Random(seed)
    control = Miad(smallest=1 << 16, largest=1 << 28)
    runs = 0
    while not control.settled and runs < 1000:
        speed = throughput(control.next(), total, depth, overhead) * math.exp(draw.gauss(0, noise))
        control.measured(seconds=total / speed)
        runs += 1
    return throughput(control.next(), total, depth, overhead) / best, runs


CURVES = [(total, depth, over) for total in (8e6, 64e6, 1e9) for depth in (2, 7) for over in (5e-6, 2e-5, 1e-4)]


@pytest.mark.parametrize(("total", "depth", "overhead"), in_turn(CURVES, 3))
def test_near_the_best(total: float, depth: int, overhead: float) -> None:
    near, runs = settle(total, depth, overhead, 0.0, 0)
    assert near > 0.95
    assert runs <= 150
    for noise, median, worst in ((0.05, 0.95, 0.88), (0.1, 0.93, 0.8)):
        found = [settle(total, depth, overhead, noise, seed)[0] for seed in range(25)]
        assert statistics.median(found) > median
        assert min(found) > worst


def sizes(control: Miad, curve: dict[int, float] | None = None, peak: int = 0) -> list[int]:
    """The sizes it tries, on a curve with one peak."""
    tried = []
    while not control.settled:
        size = control.next()
        tried.append(size)
        speed = (curve or {}).get(size, 1 / (1 + abs(math.log2(size / peak))) if peak else 1.0)
        control.measured(seconds=1 / speed)
    return tried


def test_rises_to_the_largest_and_no_further() -> None:
    control = Miad(smallest=1000, largest=5000, repeats=1)
    tried = sizes(control, curve={size: float(size) for size in range(6000)})
    assert max(tried) == control.next() == 5000


def test_stays_with_the_smallest_where_larger_is_slower() -> None:
    control = Miad(smallest=4096, repeats=1)
    sizes(control, curve={4096 << i: 0.5**i for i in range(20)})
    assert control.next() == 4096
    control.measured(seconds=1e9)
    assert control.next() == 4096


def test_flat_curves_end() -> None:
    control = Miad(smallest=4096, largest=1 << 30, repeats=2)
    assert len(sizes(control)) < 60


@pytest.mark.parametrize(
    "options",
    [{"smallest": 0}, {"smallest": 8, "largest": 4}, {"factor": 1.0}, {"repeats": 0}, {"tolerance": 1.0}],
)
def test_wrong_options(options: dict[str, float]) -> None:
    with pytest.raises(Invalid):
        Miad(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan])
def test_wrong_measurements(seconds: float) -> None:
    with pytest.raises(Invalid):
        Miad().measured(seconds=seconds)
