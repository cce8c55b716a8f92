"""What `antiphon reproduce` makes of figures that were measured on hardware: each row says what it rests on."""

import pytest
from reproduced import by_name

from antiphon.reproduce import reproduce
from antiphon.reproduce.blink_allocations import unique_allocations
from antiphon.reproduce.gentree_figures import price_plans
from antiphon.reproduce.rows import is_near
from antiphon.topologies import topology


def test_figure_9_parts_time_into_calculation_and_communication() -> None:
    found = by_name(reproduce("genmodel-figure9"))
    less = found.pop("100 Gbit/s, CPS calculates less than ring by")
    assert all(row["ok"] for row in found.values())
    assert less["ok"] is None
    assert less["ours"]["part of memory access alone"] == pytest.approx(0.61, abs=0.01)
    slow, fast = (price_plans(12, "genmodel", beta)["Ring"] for beta in ("3.2e-9", "3.2e-10"))
    assert slow["beta"] == pytest.approx(10 * fast["beta"])
    assert slow["gamma"] + slow["delta"] == pytest.approx(fast["gamma"] + fast["delta"])


@pytest.mark.slow
def test_blink_over_nccl_says_what_is_calibrated() -> None:
    found = by_name(reproduce("blink-figures15-18"))
    assert {row["ok"] for row in found.values()} == {None}
    assert "calibrated by v100" in found["dgx1v broadcast over NCCL"]["note"]
    assert "not calibrated" in found["dgx1p broadcast over NCCL"]["note"]
    assert found["dgx1v allreduce over NCCL"]["ours"]["max"] == pytest.approx(6.4)
    # half of a step, of which trees leave 1/6.4
    assert found["dgx1v, a training step, most"]["engine"] == "cuts, packing of rings"  # no step is replayed
    assert found["dgx1v, a training step, most"]["ours"]["saved"] == pytest.approx(0.5 * (1 - 1 / 6.4), abs=1e-3)
    # 24/7 of 6 links, both ways of making it
    assert found["dgx1v, an allreduce over a broadcast on 8 GPUs"]["ours"] == {"blink": 0.571, "nccl": 0.571}
    assert len(unique_allocations(topology("dgx1v"))) == 46


def test_a_dgx2_gains_most_where_calls_are_small() -> None:
    found = by_name(reproduce("blink-figures19-21"))
    assert found["dgx2, most for smaller sizes"]["ok"]
    for name in ("dgx2, latency over NCCL", "dgx2, throughput over NCCL"):
        assert found[name]["ok"] is None
        assert found[name]["ours"]["speedup"] > 1
        assert "calibrated by v100" in found[name]["note"]
    one, *_, last = (float(line.split()[-1]) for line in found["dgx2, latency over NCCL"]["proof"])
    assert one > last > 0.99  # bytes alone are moved as fast by both


@pytest.mark.slow
def test_sccl_over_nccl_on_a_dgx1() -> None:
    """By the lowerings of the paper, against NCCL by Simple: what its text says of Figures 4 and 5 holds."""
    found = by_name(reproduce("sccl-figures4-6"))
    for name in ("DGX-1 allgather, large sizes", "DGX-1 allreduce, large sizes", "DGX-1 allreduce, middle sizes",
                 "DGX-1 allgather (6, 7, 7), copies over kernels, 1 GB", "Z52 allgather, the faster one",
                 "DGX-1 allgather (6, 7, 7), copies slower for small sizes"):  # fmt: skip
        assert found[name]["ok"], name
    assert found["DGX-1 allgather, small sizes"]["ours"]["speedup"] > 2.2
    lines = {name: row["ours"] for name, row in found.items() if "Figure 4" in row["note"]}
    assert len(lines) == 8
    for point in ("(1, 2, 2)", "(2, 2, 3)", "(6, 3, 7)", "(6, 7, 7)"):  # copies: slower at first, faster at last
        steps, copies = (lines[f"DGX-1 allgather {point}, {lowering}"] for lowering in ("steps", "copies"))
        assert steps["speedup_1KB"] > copies["speedup_1KB"], point
        assert steps["speedup_1GB"] < copies["speedup_1GB"], point
    assert all(row["deviation"] for row in found.values() if row["ok"] is not True)


@pytest.mark.slow
def test_parameters_gain_on_every_number_of_nodes() -> None:
    found = by_name(reproduce("piccl-figures5-6"))
    failed = [name for name, row in found.items() if not row["ok"]]
    assert failed == ["allgather on 16 nodes, the fastest family"]


def test_what_is_near() -> None:
    assert is_near(1.039, 1.0)
    assert not is_near(1.05, 1.0)
