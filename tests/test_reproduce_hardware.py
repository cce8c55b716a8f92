"""What `antiphon reproduce` makes of figures that were measured on hardware: each row says what it rests on."""

import pytest
from reproduced import by_name

from antiphon.reproduce import reproduce
from antiphon.reproduce.gentree_figures import price_plans
from antiphon.reproduce.rows import is_near


def test_figure_9_parts_time_into_calculation_and_communication() -> None:
    found = by_name(reproduce("genmodel-figure9"))
    less = found.pop("100 Gbit/s, CPS calculates less than ring by")
    assert all(row["ok"] for row in found.values())
    assert less["ok"] is None
    assert less["ours"]["part of memory access alone"] == pytest.approx(0.61, abs=0.01)
    slow, fast = (price_plans(12, "genmodel", beta)["Ring"] for beta in ("3.2e-9", "3.2e-10"))
    assert slow["beta"] == pytest.approx(10 * fast["beta"])
    assert slow["gamma"] + slow["delta"] == pytest.approx(fast["gamma"] + fast["delta"])


def test_a_dgx2_gains_most_where_calls_are_small() -> None:
    found = by_name(reproduce("blink-figures19-21"))
    assert found["dgx2, most for smaller sizes"]["ok"]
    for name in ("dgx2, latency over NCCL", "dgx2, throughput over NCCL"):
        assert found[name]["ok"] is None
        assert found[name]["ours"]["speedup"] > 1
        assert "calibrated by v100" in found[name]["note"]
    one, *_, last = (float(line.split()[-1]) for line in found["dgx2, latency over NCCL"]["proof"])
    assert one > last > 0.99  # bytes alone are moved as fast by both


def test_what_is_near() -> None:
    assert is_near(1.039, 1.0)
    assert not is_near(1.05, 1.0)
