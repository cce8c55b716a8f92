"""NCCL's topology XML: what is written is read back as the same machine, and has the form that NCCL reads."""

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from xml.etree import ElementTree

import probe_cases
import pytest

import antiphon
from antiphon.api.machines import degrade
from antiphon.cli import run
from antiphon.core.symmetry import canonical
from antiphon.core.topology import NetworkCard, Topology
from antiphon.errors import AntiphonError
from antiphon.formats.probe.joining import cards_with_speeds, read_machine
from antiphon.formats.probe.nccl_write import nccl_xml
from antiphon.formats.probe.probed import Probed
from antiphon.formats.probe.table import read

# As NCCL 2.30 reads it: elements, what may stand in each, and attributes that it needs or knows (src/graph/xml.cc,
# topo.cc). `rank` and `host_hash` are of a job, so no file for others has them.
INSIDE = {
    "": {"system"}, "system": {"cpu"}, "cpu": {"pci", "nic"}, "pci": {"pci", "gpu", "nic"}, "gpu": {"nvlink", "xgmi"},
    "nic": {"net"}, "nvlink": set(), "xgmi": set(), "net": set(),
}  # fmt: skip
NEEDED = {
    "system": {"version"}, "cpu": {"numaid", "arch"}, "pci": {"busid", "class", "link_speed", "link_width"},
    "gpu": {"dev", "gdr"}, "nvlink": {"target", "count", "tclass"}, "xgmi": {"target", "count", "tclass"},
    "nic": set(), "net": {"name", "dev", "speed", "port", "gdr"},
}  # fmt: skip
KNOWN = {"cpu": {"vendor", "familyid", "modelid", "affinity"}, "gpu": {"sm", "gcn"}}
SPEEDS = {"2.5 GT/s PCIe", "5.0 GT/s PCIe", "8.0 GT/s PCIe", "16.0 GT/s PCIe", "32.0 GT/s PCIe", "64.0 GT/s PCIe"}


def check_form(text: str) -> ElementTree.Element:
    """The document, if NCCL's reader would take it."""
    root = ElementTree.fromstring(text)
    busids: dict[str, str] = {}

    def walk(element: ElementTree.Element, inside: str) -> None:
        name, values = element.tag, element.attrib
        assert name in INSIDE[inside]
        assert NEEDED[name] <= values.keys() <= NEEDED[name] | KNOWN.get(name, set())
        assert all(value and len(value) < 255 for value in values.values())
        if name == "pci":
            assert values["busid"] not in busids
            busids[values["busid"]] = values["class"]
            assert values["link_speed"] in SPEEDS
            assert int(values["link_width"]) in (1, 2, 4, 8, 16)
            kinds = {child.tag for child in element}
            assert kinds <= {"pci"} if values["class"] == "0x060400" else len(element) == 1
        if name == "cpu" and values.get("vendor") == "GenuineIntel":
            assert {"familyid", "modelid"} <= values.keys()
        for child in element:
            walk(child, name)

    walk(root, "")
    assert sum(1 for _ in root.iter()) <= 256
    for link in [*root.iter("nvlink"), *root.iter("xgmi")]:
        assert busids.get(link.attrib["target"], "0x068000") == link.attrib["tclass"]
    assert sorted(int(gpu.attrib["dev"]) for gpu in root.iter("gpu")) == list(range(len([*root.iter("gpu")])))
    return root


def read_back(tmp_path: Path, text: str, pcie: bool) -> Topology:
    path = tmp_path / "topo.xml"
    path.write_text(text, encoding="utf-8")
    return read([str(path)], options={"pcie": True} if pcie else {}).machine


def gpu_links(machine: Topology) -> dict[tuple[int, int], Fraction]:
    ends = zip(machine.link_src.tolist(), machine.link_dst.tolist(), strict=True)
    return {(a, b): machine.bandwidth(i) for i, (a, b) in enumerate(ends) if max(a, b) < machine.ranks}


BOXES = (
    "dgx1p", "dgx1v", "dgx1v_sccl", "dgx1v:pcie=true", "dgx2", "dgx-a100", "hgx-h100", "hgx-h200", "hgx-b200", "mi250",
    "mi250:gcds=8", "mi300x", "mi350x", "pcie8", "pcie8:gen=5",
)  # fmt: skip


@pytest.mark.parametrize("name", BOXES)
def test_a_box_comes_back(name: str, tmp_path: Path) -> None:
    """The same machine, GPU by GPU, with the network cards that such a box is sold with."""
    box = read_machine(name)
    text = nccl_xml(box)["topo.xml"]
    root = check_form(text)
    machine = read_back(tmp_path, text, "pcie=true" in name)
    assert canonical(machine)[1] == canonical(box.machine)[1]
    assert gpu_links(machine) == gpu_links(box.machine)
    sold, _ = cards_with_speeds(box, None)
    assert sum(card.bandwidth or 0 for card in machine.cards) == sum(card.bandwidth or 0 for card in sold)
    if "pcie" not in name:
        assert [card.nodes for card in machine.cards] == [card.nodes for card in sold]
    amd = name.startswith("mi")
    assert root.attrib["version"] == ("2" if amd else "1")
    assert {link.tag for link in root.iter() if "link" in link.tag or link.tag == "xgmi"} <= {
        "xgmi" if amd else "nvlink"
    }


@pytest.mark.parametrize(
    "name", ["DGX-1V", "DGX A100", "HGX H100", "MI300X", "MI250X", "eight on PCIe switches below one socket"]
)
def test_a_file_comes_back(name: str, tmp_path: Path) -> None:
    """A dump of NCCL: links, PCIe and cards."""
    (tmp_path / "dump.xml").write_text(probe_cases.text_of("nccl-xml", name), encoding="utf-8")
    box = read([str(tmp_path / "dump.xml")], options={"pcie": True})
    text = nccl_xml(box)["topo.xml"]
    check_form(text)
    machine = read_back(tmp_path, text, True)
    assert canonical(machine)[1] == canonical(box.machine)[1]
    assert [(c.name, c.bandwidth) for c in machine.cards] == [(c.name, c.bandwidth) for c in box.machine.cards]


SPEED = Fraction(25 * 10**9)
FULL = antiphon.topology("dgx-a100")
ODD = replace(FULL, cards=(NetworkCard('a"<&', SPEED, (0, 1)), NetworkCard("b", SPEED, (2,))))


def test_names_that_xml_would_escape(tmp_path: Path) -> None:
    text = nccl_xml(Probed(ODD))["topo.xml"]
    check_form(text)
    assert 'name="a___"' in text
    cards = read_back(tmp_path, text, False).cards
    assert [card.nodes for card in cards] == [(0, 1), (2,)]


HUB = NetworkCard("hub", SPEED, (8,))  # by the NVSwitch


@pytest.mark.parametrize("cards", [(HUB,), (HUB, NetworkCard("a", SPEED, (0, 8))), (NetworkCard("a", SPEED, (5, 0)),)])
@pytest.mark.parametrize("name", ["hgx-h100", "dgx1v:pcie=true"])
def test_cards_at_odd_places(name: str, cards: tuple[NetworkCard, ...]) -> None:
    machine = replace(antiphon.topology(name), cards=cards)
    root = check_form(nccl_xml(Probed(machine))["topo.xml"])
    assert {net.attrib["name"] for net in root.iter("net")} == {card.name for card in cards}
    assert len([*root.iter("gpu")]) == machine.ranks


def test_pcie_links_of_one_way() -> None:
    box = antiphon.topology("pcie8")
    ways = box.link_src < box.link_dst
    machine = replace(
        box, link_src=box.link_src[ways], link_dst=box.link_dst[ways], link_type=box.link_type[ways], limits=()
    )
    assert len([*check_form(nccl_xml(Probed(machine))["topo.xml"]).iter("gpu")]) == 8


@pytest.mark.parametrize(
    ("machine", "options", "line"),
    [
        ("cluster:box=dgx1v,boxes=2", {}, "has several hosts; .* name the box alone"),
        ("ring:ranks=4", {}, "has links of kind link; NCCL's file has NVLink, xGMI and PCIe"),
        ("gaudi3", {}, "has links of kind"),
        ("z52", {}, "joins GPUs 1 and 2 by PCIe without a switch"),
        ("gb200-nvl72", {}, "needs 507 XML elements; NCCL reads at most 256"),
        ("full:ranks=129", {}, "has 129 GPUs; NCCL reads at most 256"),
        ("dgx1v slow", {}, "from GPU 0 to rank 3, 10 GB/s, is no whole number of links of 25 GB/s"),
        ("pcie8 slow", {}, "a PCIe link of 10 GB/s has no whole number of lanes"),
        ("mi300x", {"nics": ","}, "nics: .* is no PCIe address"),
        ("mi300x", {"gpus": "0000:10:00.0"}, "gpus: expected 8 PCIe addresses, got 1"),
        ("mi300x", {"gpus": ",".join(["0000:10:00.0"] * 8)}, "gpus, nics: '0000:10:00.0' stands twice"),
        ("mi300x", {"nics": "eth0"}, "nics: 'eth0' is no PCIe address; expected such as 0000:1b:00.0"),
        ("mi300x", {"cpu": "z80"}, "cpu='z80': expected intel, amd, arm"),
        ("mi300x", {"gdr": "maybe"}, "gdr"),
        ("mi300x", {"nic": "fast"}, "nic"),
    ],
)
def test_what_cannot_be_written(machine: str, options: dict[str, str], line: str) -> None:
    box = read_machine(machine.partition(" ")[0])
    if machine.endswith("slow"):
        pair = "0-3" if machine.startswith("dgx1v") else "0-8"
        box = replace(box, machine=degrade(box.machine, slow=f"{pair}=10GB/s"))
    with pytest.raises(AntiphonError, match=line) as caught:
        nccl_xml(box, **options)
    assert "\n" not in str(caught.value)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("topology export hgx-h100 -o topo.xml".split()) == 0  # noqa: SIM905
    text = capsys.readouterr().out
    assert text.startswith("written: topo.xml (")
    assert "note: PCIe addresses are made up" in text
    assert run("topology export topo.xml -o again.xml --to nccl-xml:gdr=no --json".split()) == 0  # noqa: SIM905
    told = json.loads(capsys.readouterr().out)
    assert told["written"] == ["again.xml"]
    assert run("topology export hgx-h100:only=0-3 -o four.xml".split()) == 0  # noqa: SIM905
    assert Path("four.xml").read_text(encoding="utf-8").count("<gpu") == 4
    check_form(Path("again.xml").read_text(encoding="utf-8"))
    for line, said in (
        ("topology export hgx-h100 -o t.xml --to xml", "nccl-xml"),
        ("topology export hgx-h100 -o t.xml --to nccl-xml:color=red", "color"),
        ("export hgx-h100 --to nccl-topo -o out", "antiphon topology export BOX -o topo.xml"),
    ):
        assert run(line.split()) == 2
        assert said in capsys.readouterr().err
    assert not Path("t.xml").exists()
