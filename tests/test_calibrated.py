"""What a figure says that it rests on: whose GPUs and network these are, and what of their figures nobody measured."""

from csv import DictReader
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from published import FIT, published, relay_tables

import antiphon
from antiphon.cli import run
from antiphon.core.reshape import degrade, join, keep, only
from antiphon.core.topology import LinkType, Topology, both_ways, build
from antiphon.cost.nccl.calls import shipped_calls
from antiphon.cost.nccl.choice import Costs
from antiphon.cost.nccl.gpus import box_of
from antiphon.cost.nccl.library import library_here
from antiphon.errors import Unsupported
from antiphon.select import tune
from antiphon.topologies import topology

H100 = topology("hgx-h100")
NVLINK, IB = LinkType("nvlink", 450 * 10**9, 1e-6), LinkType("ib", 50 * 10**9, 1e-6)


def told(machine: Topology, **more: str) -> str:
    """What is said of its figures; empty where none are known."""
    try:
        return library_here(machine, **more).costs.brief()
    except Unsupported:
        return ""


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        (H100, "calibrated by h100"),
        (topology("hgx-h100:sharp=false"), "calibrated by h100"),
        (topology("cluster:box=hgx-h100:sharp=false,boxes=4,fabric=rail"), "calibrated by h100, ib"),
        (topology("cluster:box=hgx-h200,boxes=2"), "calibrated by h100, ib; GPUs of hgx-h200 taken for h100"),
        (topology("dgx2"), "calibrated by v100; GPUs of dgx2 taken for v100"),
        (topology("hgx-b200"), "b200 not calibrated"),
        (degrade(topology("dgx1v"), pairs=[(0, 1)], slower=2), "calibrated by v100"),
        (topology("ec2:instance=p5,instances=2"), "calibrated by h100, efa-32"),
        (keep(H100, [2, 5]).topology, "calibrated by h100"),
        (only(H100, [2, 5]), ""),  # the others have no links
        (degrade(H100, pairs=[(0, 8)], slower=2), "calibrated by h100"),
        (topology("dgx1v:pcie=true"), ""),  # no table has its PCIe
        (keep(topology("dgx1v"), [0, 1, 2, 3], name="dgx1v").topology, "calibrated by v100"),
        (keep(topology("dgx1v"), [0, 5], name="dgx1v").topology, "calibrated by v100"),  # without a link: PCIe
        (keep(topology("dgx1v"), [0, 1, 5], name="dgx1v").topology, "calibrated by v100"),  # a line: PCIe
        (degrade(topology("dgx1v"), pairs=[(0, 3)], remove=True), "calibrated by v100"),  # by the rings left
        (topology("delta:nodes=4"), ""),  # nothing is known of its network
        (topology("ec2:instance=p5en,instances=2"), ""),
        (replace(H100, name="hgx-h100 as I would have it"), ""),
        (replace(H100, name="my hgx-h100"), ""),
        (replace(H100, name="ring:of=hgx-h100"), ""),
        (replace(topology("ring:ranks=4"), name="p5"), ""),
        (replace(topology("ring:ranks=4"), name="delta"), ""),
        (replace(topology("star:ranks=8"), name="hgx-h100"), ""),
        (replace(topology("cluster:box=dgx-a100,boxes=2"), name="cluster:box=hgx-h100,boxes=2"), ""),
    ],
    ids=lambda value: value.name if isinstance(value, Topology) else None,
)
def test_a_name_alone_makes_no_gpu(machine: Topology, said: str) -> None:
    assert told(machine) == said


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("8 x NVIDIA H100 80GB HBM3", "h100"), ("8 x NVIDIA H200", "h100"), ("8 x NVIDIA H100 PCIe", ""),
        ("8 x NVIDIA GH200 480GB", ""), ("8 x NVIDIA H20", ""), ("8 x NVIDIA B200", ""), ("8 x H100, nearly", ""),
    ],
)  # fmt: skip
def test_a_machine_that_was_probed_says_that_its_gpus_are_taken_for_others(name: str, gpu: str) -> None:
    said = told(replace(H100, name=name))
    assert said == (f"calibrated by {gpu}; GPUs taken for {gpu} by their name, {name[4:]}" if gpu else "")


@pytest.mark.parametrize(
    ("box", "model"),
    [("mi300x", "AMD Instinct MI325X"), ("mi350x", "AMD Instinct MI355X OAM"), ("mi350x", "MI350X")],
)
def test_amds_later_gpus_have_the_figures_of_their_generation(box: str, model: str) -> None:
    said = told(replace(topology(box), name=f"8 x {model}"))
    assert said == f"calibrated by {box}; GPUs taken for {box} by their name, {model}"
    other = "mi350x" if box == "mi300x" else "mi300x"
    assert not told(replace(topology(other), name=f"8 x {model}"))  # its links are of other speed


def test_links_of_a_probed_machine_may_be_slower_where_its_name_says_so() -> None:
    slow = degrade(H100, pairs=[(0, 8)], slower=2)
    name = "8 x NVIDIA H100 80GB HBM3"
    assert told(replace(slow, name=f"{name} degraded"))
    assert not told(replace(slow, name=name))


def test_files_of_calls_name_the_boxes_that_their_tables_are_of() -> None:
    for name, calls in shipped_calls().items():
        tables = [t for t in (*published(), *relay_tables()) if t.part == FIT and t.gpu == name]
        assert calls.measured == sorted({box_of(table.topology) for table in tables})


def test_ranks_that_no_link_leads_to_are_not_reached_at_once() -> None:
    for kind in ("allreduce", "alltoall"):
        with pytest.raises(Unsupported, match="no link to others of its node"):
            antiphon.predict(kind, 0, topology=only(H100, [0, 1]), library="nccl")
    found = tune("allreduce", only(H100, [0, 1]), nbytes="1KB", ranks=[0, 1], workers="none", planners="ring", model="")
    assert (found.model, found.ranges[0].rests_on) == ("calls", "calibrated by h100")
    assert found.ranges[0].speedup == pytest.approx(1, abs=0.02)


def test_what_is_asked_for_is_said() -> None:
    ring = topology("ring:ranks=4")
    assert told(ring, gpu="v100") == "calibrated by v100; GPUs taken for v100 as asked"
    assert told(H100, gpu="h100") == "calibrated by h100"
    two = topology("cluster:box=hgx-h100,boxes=2")
    assert told(two, network="ib") == told(two) == "calibrated by h100, ib"
    assert told(two, network="tcpxo") == "calibrated by h100, tcpxo; network taken for tcpxo as asked"
    (row,) = antiphon.predict("allreduce", 1024, topology=ring, library="nccl:gpu=v100")
    assert "GPUs taken for v100 as asked" in row["calibrated"]
    (row,) = antiphon.predict("allreduce", 1024, topology="full:ranks=8", library="msccl:gpu=a100")
    assert row["calibrated"] == "MSCCL's allpairs ll calibrated by a100-ndv4-msccl; GPUs taken for a100 as asked"


def _two_boxes(*kinds: LinkType) -> Topology:
    """Two boxes of H100, on a switch for each kind of link."""
    switches = [f"switch{number}" for number in range(len(kinds))]
    cables = [((box, 0), name, kind) for box in (0, 1) for name, kind in zip(switches, kinds, strict=True)]
    name = "cluster:box=hgx-h100,boxes=2"
    return join([H100, H100], name=name, names=["host0", "host1"], switches=switches, cables=cables)


def test_figures_of_one_kind_of_links_do_not_speak_for_others() -> None:
    assert told(_two_boxes(IB)) == "calibrated by h100, ib"
    assert told(_two_boxes(IB, LinkType("ethernet", 10**9, 1e-5))) == ""


def test_links_that_are_near_and_far_are_not_priced_as_both() -> None:
    pairs = both_ways([(0, 1), (2, 3), (1, 2), (3, 0)], LinkType("link", 10**9, 1e-6))
    machine = build("two", 4, pairs, places=[f"host{rank // 2}/gpu{rank}" for rank in range(4)])
    plan = antiphon.plan("allreduce", machine, planner="ring")
    with pytest.raises(Unsupported, match="kind link are within nodes and between them"):
        antiphon.predict(plan, "1KB", model="calls:gpu=h100,network=ib")


@pytest.mark.parametrize(
    ("gpu", "network", "terms", "said"),
    [
        ("a100", "ib", {"fan": 1e-6}, False),  # MSCCL's table tells it
        ("a100", "ib", {"messages": 1e-6}, True),
        ("h100", "ib", {"fan": 1e-6}, True),
        ("b200", None, {"fan": 1e-6}, True),  # all of its figures are assumed
        ("h100", "ib", {"fan": 0.0, "messages": 0.0}, False),
    ],
)
def test_each_file_says_whether_several_messages_at_once_were_measured(
    gpu: str, network: str | None, terms: dict[str, float], said: bool
) -> None:
    known = shipped_calls()
    costs = Costs(known[gpu], known[network] if network else None)
    assert bool(costs.simultaneity_remark(terms)) == said


def test_one_process_rests_on_what_its_launches_take() -> None:
    one: dict[str, Any] = {}
    for machine in ("dgx1v", "dgx-a100"):  # V100's are measured
        (one[machine],) = antiphon.predict("allreduce", 1024, topology=machine, library="nccl:processes=one")
    assert "launches of one process not calibrated" in one["dgx-a100"]["calibrated"]
    assert "not calibrated" not in one["dgx1v"]["calibrated"]


@pytest.mark.slow
def test_a_line_rests_on_our_figures_and_on_nccls() -> None:
    """What either rests on is in the line, once."""
    machine = "ec2:instance=p5,instances=2"
    found = tune("broadcast", machine, nbytes="1GB", model="calls", workers="none", planners="binomial-tree")
    (row,) = found.as_json()["ranges"]
    assert row["speedup"] is not None
    assert "broadcast by the figures of allreduce" in row["rests_on"]
    assert row["rests_on"].count("of efa-32 not calibrated") == 1
    candidate = next(c for c in found.as_json()["candidates"] if c["planner"] == "binomial-tree")
    assert candidate["rests_on"].startswith("calibrated by h100")


@pytest.mark.slow
def test_a_reduction_in_the_network_was_measured_by_nobody() -> None:
    plan = antiphon.plan("allreduce", "cluster:box=hgx-h100,boxes=2,sharp=true", planner="sharp")
    (row,) = antiphon.predict(plan, "64MB")
    assert row["rests_on"].endswith("collnet not calibrated")
    near = antiphon.plan("allreduce", "cluster:box=hgx-h100,boxes=2", planner="nvls-tree")
    assert "collnet" not in antiphon.predict(near, "64MB")[0]["rests_on"]


def test_measured_beside_predicted_says_what_the_prediction_rests_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Above a table all that its lines rest on, in a file each line by itself."""
    line = "bench allreduce hgx-h100 --planner direct --on local -b 1KB -e 64KB -f 64 -n 1 -w 0"
    assert run([*line.split(), "-o", str(tmp_path / "rows.csv")]) == 0
    with (tmp_path / "rows.csv").open() as file:
        told = list(dict.fromkeys(row["predicted_by"] for row in DictReader(file)))
    assert told == ["calls; calibrated by h100; several messages at once not calibrated"]
    assert f"# model: {told[0]}\n" in capsys.readouterr().out
