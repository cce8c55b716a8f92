"""antiphon topology probe and join, as people call them."""

import json
from pathlib import Path

import probe_cases
import pytest
from probe_text import fabric, nvlink_status, topo

from antiphon.cli import run
from antiphon.core.symmetry import canonical
from antiphon.topologies import topology


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in (
        "CUDA_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "SLURM_JOB_NODELIST",
        "SLURM_NODELIST",
    ):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], line: str, code: int = 0) -> str:
    assert run(line.split()) == code, capsys.readouterr()
    told = capsys.readouterr()
    return " ".join((told.err if code else told.out).split())


def alike(path: str, spec: str) -> bool:
    return canonical(topology(path))[1] == canonical(topology(spec))[1]


def test_a_file_is_shown_and_written(capsys: pytest.CaptureFixture[str]) -> None:
    Path("topo.txt").write_text(probe_cases.DGX1V)
    text = said(capsys, "topology probe topo.txt -o box.json")
    assert "8 x V100: 8 ranks, 32 directed links" in text
    assert "note: one NVLink is assumed to carry 25 GB/s each way" in text
    assert "card: mlx5_0 (speed unknown): serves host0/gpu0, host0/gpu1" in text
    assert "written: box.json" in text
    assert alike("./box.json", "dgx1v")
    told = json.loads(said(capsys, "topology probe topo.txt --from nvidia-smi --json"))
    assert (told["ranks"], told["switches"], told["links"], told["names"][3]) == (8, 0, 32, "GPU 3")
    assert told["cards"][1] == {"name": "mlx5_1", "bandwidth": None, "serves": [2, 3]}
    assert told["written"] == []


def test_several_files_of_one_tool(capsys: pytest.CaptureFixture[str]) -> None:
    Path("topo.txt").write_text(probe_cases.HGX_H100)
    Path("nvlink.txt").write_text(nvlink_status([("NVIDIA H100 80GB HBM3", ["26.562"] * 18)] * 8))
    assert "assumed to carry" not in said(capsys, "topology probe topo.txt nvlink.txt -o box.json")
    assert alike("./box.json", "hgx-h100")
    Path("one.xml").write_text(probe_cases.text_of("hwloc", "two packages"))
    assert "hwloc reads one file, got 2" in said(capsys, "topology probe one.xml one.xml", 2)


def test_options_of_readers(capsys: pytest.CaptureFixture[str]) -> None:
    Path("topo.txt").write_text(topo(2, lambda a, b: "NV4"))
    assert "nvlink 56.25 GB/s" in said(capsys, "topology probe topo.txt --option nvlink=14.0625GB/s")
    assert "pcie 63.02 GB/s" in said(capsys, "topology probe topo.txt --option pcie=true --option pcie_gen=5")
    assert "unknown option of reader nvidia-smi 'pci'; did you mean" in said(
        capsys, "topology probe topo.txt --option pci=1", 2
    )
    assert "pcie_gen=9: expected a generation of PCIe" in said(capsys, "topology probe topo.txt --option pcie_gen=9", 2)
    assert "nvlink: '25' has no unit" in said(capsys, "topology probe topo.txt --option nvlink=25", 2)
    assert "is for a file; name one" in said(capsys, "topology probe --option nic=1GB/s", 2)
    for where in ("topo.txt", "--from nvidia-smi"):
        assert "sysfs=: is for looking at this machine" in said(capsys, f"topology probe {where} --option sysfs=/x", 2)


def test_a_part_of_what_a_file_tells(capsys: pytest.CaptureFixture[str]) -> None:
    Path("topo.txt").write_text(probe_cases.DGX1V)
    assert "4 ranks, 12 directed links" in said(capsys, "topology probe topo.txt --only 0-3")
    Path("topology.conf").write_text(
        "SwitchName=s0 Nodes=n[1-4]\nSwitchName=s1 Nodes=n[5-8]\nSwitchName=t Switches=s[0-1]\n"
    )
    text = said(capsys, "topology probe topology.conf --only n[2,5-6] -o net.json")
    assert "3 ranks, 3 switches" in text
    assert "only n[2,5-6]" in text
    assert topology("./net.json").places[:3] == ("n2", "n5", "n6")
    assert "--only: 'n9' does not exist (available: n1, n2" in said(capsys, "topology probe topology.conf --only n9", 2)


def test_this_machine(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    text = said(capsys, "topology probe")
    assert "this machine:" in text
    assert "note:" in text
    assert "asks nvidia-smi, which is not on PATH" in said(capsys, "topology probe --from nvidia-smi", 2)
    assert "--from piccl-xml reads a file; name it" in said(capsys, "topology probe --from piccl-xml", 2)


def test_join(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    Path("box.xml").write_text(probe_cases.text_of("nccl-xml", "DGX-1V"))
    cables = [f"sw {4 * h + c} - n{h}/mlx5_{c} 1 4xEDR" for h in range(4) for c in range(4)]
    Path("net.txt").write_text(fabric({"sw": "switch"}, cables))
    text = said(capsys, "topology join box.xml net.txt -o four.json --name mine")
    assert "mine: 32 ranks, 1 switch" in text
    assert "host0 is n0, host3 is n3" in text
    assert alike("./four.json", "cluster:box=dgx1v,boxes=4")
    said(capsys, "topology join box.xml net.txt:only=n1,n3 -o two.json")
    assert alike("./two.json", "cluster:box=dgx1v,boxes=2")
    assert run(["topology", "join", "box.xml", "net.txt", "--only", "n1,n3"]) == 0
    assert "is now `FABRIC:only=HOSTS`" in capsys.readouterr().err
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[0,2-3]")
    assert "only the hosts of this job: n[0,2-3]" in said(capsys, "topology join dgx1v net.txt -o three.json")
    assert alike("./three.json", "cluster:box=dgx1v,boxes=3")
    assert "four.json: is a machine of Antiphon already" in said(capsys, "topology probe four.json", 2)
    Path("nothing.txt").write_text("hello\n")
    assert "nothing.txt: unrecognised file; pass --from " in said(capsys, "topology join dgx1v nothing.txt", 2)


def test_boxes_are_joined_by_their_own_cards(capsys: pytest.CaptureFixture[str]) -> None:
    Path("box.xml").write_text(probe_cases.text_of("nccl-xml", "HGX H100"))
    said(capsys, "topology join box.xml rails:boxes=2 -o two.json")
    assert alike("./two.json", "cluster:box=hgx-h100,boxes=2,fabric=rail")
    assert run(["topology", "join", "box.xml", "star:ranks=2"]) == 0
    assert "antiphon: warning: star:ranks=2: its cables carry 25 GB/s per host" in capsys.readouterr().err
    for wrong, message in [
        ("", "Missing argument 'FABRIC'"),
        ("switch:boxes=2:only=0", "only=: names hosts of a network"),
        ("net.txt:only=", "net.txt:only=: names no hosts"),
        ("net.txt:only=n1 --only n2", "--only: leave it out beside"),
        ("switch:boxes=1", "boxes=1: expected"),
        ("switch:boxes=2,nic=400", "nic: '400' has no unit"),
        ("rails:nic=400Gbit/s", "fabric rails needs boxes"),
        ("rails:boxes=2,planes=2", "planes"),
    ]:
        assert message in said(capsys, f"topology join box.xml {wrong}", 2)


def test_figures_are_piccls_alone(capsys: pytest.CaptureFixture[str]) -> None:
    Path("topo.txt").write_text(probe_cases.DGX1V)
    assert "--profile: only PICCL's files have figures" in said(capsys, "topology probe topo.txt --profile p.json", 2)
    assert not Path("p.json").exists()
