"""Boxes that are read, and put on networks that are read, are the catalogue's up to their numbers."""

import warnings
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import probe_cases
import pytest
from probe_text import fabric, limits_of, links_of, nvlink_status, topo

from antiphon.core.collective import Collective
from antiphon.core.reshape import keep, relabel
from antiphon.core.serialize import save_topology
from antiphon.core.symmetry import canonical
from antiphon.core.topology import NetworkCard, Topology
from antiphon.cost import usual_model
from antiphon.errors import Invalid, UnlikelyInput, Unsupported
from antiphon.formats.probe.joining import join_box_and_fabric, join_by_own_cards, read_machine
from antiphon.formats.probe.probed import Probed
from antiphon.formats.probe.table import read
from antiphon.topologies import topology


def found(tmp_path: Path, text: str, name: str = "told.txt", **options: object) -> Probed:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read([str(path)], options=options)


def alike(a: Topology, b: Topology) -> bool:
    return canonical(a)[1] == canonical(b)[1]


def _p100(a: str, b: str) -> bool:
    """Each quad complete, and i joined with i + 4."""
    one, other = int(a[3:]), int(b[3:])
    return one // 4 == other // 4 or abs(one - other) == 4


BOXES = {
    "dgx1v": probe_cases.DGX1V,
    "dgx1v by NCCL": probe_cases.text_of("nccl-xml", "DGX-1V"),
    "dgx1v with its names": probe_cases.DGX1V + nvlink_status([("Tesla V100-SXM2-16GB", ["25.781"] * 6)] * 8),
    "dgx-a100": probe_cases.DGX_A100,
    "hgx-h100": probe_cases.HGX_H100,
    "mi300x": probe_cases.HIVE,
    "dgx1p": topo(8, lambda a, b: "NV1" if _p100(a, b) else "SYS", numa=[0] * 4 + [1] * 4),
    "mi250:gcds=8": probe_cases.text_of("rocm-smi", "MI250X, weights alone"),
    "dgx2": probe_cases.text_of("nvidia-smi", "DGX-2"),
}


@pytest.mark.parametrize("name", BOXES)
def test_a_box_is_the_catalogues(name: str, tmp_path: Path) -> None:
    machine = found(tmp_path, BOXES[name]).machine
    assert alike(machine, topology(name.split(" ", maxsplit=1)[0]))
    assert machine.unit == topology(name.split(" ", maxsplit=1)[0]).unit


def test_other_boxes_are_not_the_catalogues(tmp_path: Path) -> None:
    """One link less, and it is another machine."""
    text = probe_cases.DGX1V.replace("NV2", "NV1", 2)
    assert not alike(found(tmp_path, text).machine, topology("dgx1v"))
    assert not alike(found(tmp_path, probe_cases.DGX_A100).machine, topology("hgx-h100"))


CARDS = {"dgx1v": (4, "4xEDR"), "dgx-a100": (8, "4xHDR"), "hgx-h100": (8, "4xNDR"), "mi300x": (8, "4xNDR")}


def network(name: str, hosts: int, rails: bool) -> str:
    """Hosts with the cards of such a box, on one switch; or each card on a switch of its own, these on a spine."""
    cards, speed = CARDS[name]
    label = {"dgx-a100": [0, 1, 2, 3, 6, 7, 8, 9]}.get(name, range(8))  # as the box calls its cards
    prefix = "NIC" if name in ("dgx-a100", "hgx-h100") else "mlx5_"
    if not rails:
        cables = [
            f"sw {8 * h + c} - node{h:02d}/{prefix}{label[c]} 1 {speed}" for h in range(hosts) for c in range(cards)
        ]
        return fabric({"sw": "switch"}, cables)
    cables = [f"r{c} {h} - node{h:02d}/{prefix}{label[c]} 1 {speed}" for h in range(hosts) for c in range(cards)]
    cables += [f"r{c} {20 + h} - spine {8 * c + h} {speed}" for c in range(cards) for h in range(hosts)]
    return fabric({**{f"r{c}": f"rail{c}" for c in range(cards)}, "spine": "spine"}, cables)


@pytest.mark.parametrize("rails", [False, True])
@pytest.mark.parametrize("name", CARDS)
def test_boxes_on_a_network_are_the_catalogues_cluster(name: str, rails: bool, tmp_path: Path) -> None:
    box, fabric_ = found(tmp_path, BOXES[name]), found(tmp_path, network(name, 3, rails), "net.txt")
    assert fabric_.machine.ranks == 3
    both = join_box_and_fabric(box, fabric_)
    spec = f"cluster:box={name},boxes=3,fabric={'rail' if rails else 'switch'}"
    assert alike(both.machine, topology(spec))
    assert both.names[:2] == ("node00/GPU 0", "node00/GPU 1")
    assert both.machine.places[box.machine.ranks].startswith("host1/gpu0")


def _leaves(machine: Topology) -> dict[int, str]:
    """The switch that each GPU of the first host sends to."""
    links = zip(machine.link_src.tolist(), machine.link_dst.tolist(), strict=True)
    return {a: machine.places[b] for a, b in links if a < 8 and b >= machine.ranks}


def test_cards_are_those_of_their_names(tmp_path: Path) -> None:
    """The fabric has the first card and the third on one leaf, the others on another."""
    leaf = {0: "a", 1: "b", 2: "a", 3: "b"}
    cables = [f"{leaf[c]} {4 * h + c} - n{h}/mlx5_{c} 1 4xEDR" for h in range(2) for c in range(4)]
    net = found(tmp_path, fabric({"a": "leafA", "b": "leafB"}, cables), "net.txt")
    on = _leaves(join_box_and_fabric(found(tmp_path, BOXES["dgx1v by NCCL"], "box.xml"), net).machine)
    first, second = on[0], on[2]
    assert first != second
    assert on == {0: first, 1: first, 2: second, 3: second, 4: first, 5: first, 6: second, 7: second}
    swapped = BOXES["dgx1v by NCCL"].replace("mlx5_0", "mlx5_x").replace("mlx5_1", "mlx5_0").replace("mlx5_x", "mlx5_1")
    assert swapped != BOXES["dgx1v by NCCL"]
    # GPUs 0 and 1 have mlx5_1 next to them
    on = _leaves(join_box_and_fabric(found(tmp_path, swapped, "box.xml"), net).machine)
    assert on == {0: second, 1: second, 2: first, 3: first, 4: first, 5: first, 6: second, 7: second}


def test_cards_on_switches_of_pcie(tmp_path: Path) -> None:
    text = probe_cases.text_of("nvidia-smi", "eight GPUs on four switches")
    box = found(tmp_path, text)
    cables = [f"sw {4 * h + c} - n{h}/c{c} 1 4xEDR" for h in range(2) for c in range(4)]
    box = Probed(replace(box.machine, cards=()), names=box.names)  # without its one card: four are on the switches
    both = join_box_and_fabric(box, found(tmp_path, fabric({"sw": "switch"}, cables), "net.txt"))
    assert alike(both.machine, topology("cluster:box=pcie8,boxes=2"))


def test_a_network_of_slurm_takes_the_cards_of_the_box(tmp_path: Path) -> None:
    """Slurm tells no speeds: the box's cards do, and switches have upwards what they have below."""
    tree = "SwitchName=l0 Nodes=n[0-1]\nSwitchName=l1 Nodes=n[2-3]\nSwitchName=s Switches=l[0-1]\n"
    box = found(tmp_path, probe_cases.text_of("nccl-xml", "DGX-1V"), "box.xml")
    both = join_box_and_fabric(box, found(tmp_path, tree, "topology.conf")).machine
    assert alike(both, topology("cluster:box=dgx1v,boxes=4,fabric=leaf-spine,boxes_per_leaf=2"))
    assert len(both.limits) == 4 * 4 * 2
    alone = join_box_and_fabric(read_machine("mi300x"), found(tmp_path, tree, "topology.conf", nic="400Gbit/s")).machine
    assert limits_of(alone)["host0/nic0 out"] == (50.0, 8)  # one card per host, as the file of Slurm has it


def test_a_network_of_the_catalogue(tmp_path: Path) -> None:
    both = join_box_and_fabric(
        found(tmp_path, BOXES["dgx-a100"]), read_machine("star:ranks=2,bandwidth=25GB/s")
    ).machine
    assert both.ranks == 16
    assert links_of(both)[0, 18, "link", 25.0] == 1
    assert limits_of(both)["host0/nic0 in"] == (25.0, 8)
    with pytest.raises(Unsupported, match="joined without a switch"):
        join_box_and_fabric(read_machine("dgx1v"), read_machine("ring:ranks=4"))


def test_what_cannot_be_joined_is_told(tmp_path: Path) -> None:
    net = found(
        tmp_path, fabric({"sw": "switch"}, [f"sw {i} - n{i // 3}/c{i % 3} 1 4xHDR" for i in range(6)]), "net.txt"
    )
    with pytest.raises(Invalid, match="3 cables of a host cannot be shared evenly by the 8 places of dgx1v"):
        join_box_and_fabric(read_machine("dgx1v"), net)
    with pytest.raises(Invalid, match="name the box first"):
        join_box_and_fabric(net, net)


H100_XML = probe_cases.text_of("nccl-xml", "HGX H100")
LISTED = {
    "dgx1v": probe_cases.text_of("nccl-xml", "DGX-1V"),
    "dgx-a100": probe_cases.text_of("nccl-xml", "DGX A100"),
    "hgx-h100": H100_XML,
}


@pytest.mark.parametrize("rail", [False, True])
@pytest.mark.parametrize("name", LISTED)
def test_boxes_on_their_own_cards_are_the_catalogues_cluster(name: str, rail: bool, tmp_path: Path) -> None:
    """By the cards that the box's file lists, and with the same figures of GPUs and network."""
    both = join_by_own_cards(found(tmp_path, LISTED[name]), 3, rail=rail).machine
    spec = topology(f"cluster:box={name},boxes=3,fabric={'rail' if rail else 'switch'}")
    assert alike(both, spec)
    assert both.unit == spec.unit
    wanted = (Collective("allreduce", both.ranks),)
    assert usual_model(both, wanted=wanted) == usual_model(spec, wanted=wanted) == "calls"


def test_cards_whose_speed_or_number_no_file_lists(tmp_path: Path) -> None:
    """A matrix lists cards without speeds, a file may list none: they are those that such a box is sold with."""
    matrix = found(tmp_path, BOXES["hgx-h100"])
    both = join_by_own_cards(matrix, 2)
    assert alike(both.machine, topology("cluster:box=hgx-h100,boxes=2"))
    assert any("network cards carry 50 GB/s as of hgx-h100" in note for note in both.notes)
    assert alike(
        join_by_own_cards(matrix, 2, nic="200Gbit/s").machine, topology("cluster:box=hgx-h100,boxes=2,nic=25GB/s")
    )
    save_topology(tmp_path / "box.json", replace(matrix.machine, cards=()))
    kept = join_by_own_cards(read_machine(str(tmp_path / "box.json")), 2)
    assert alike(kept.machine, topology("cluster:box=hgx-h100,boxes=2"))
    assert any("8 network cards of 50 GB/s as of hgx-h100 are assumed" in note for note in kept.notes)
    catalogue = join_by_own_cards(read_machine("hgx-h100"), 2)
    assert alike(catalogue.machine, topology("cluster:box=hgx-h100,boxes=2"))
    assert catalogue.notes == ()


@pytest.mark.parametrize("name", LISTED)
def test_a_saved_box_keeps_its_cards(name: str, tmp_path: Path) -> None:
    """join and cluster take them from the file; an allocation keeps those of its GPUs."""
    box, path = found(tmp_path, LISTED[name]), tmp_path / "box.json"
    save_topology(path, box.machine)
    saved = read_machine(str(path))
    assert saved.machine == box.machine
    catalogue = topology(f"cluster:box={name},boxes=2,fabric=rail")
    assert alike(join_by_own_cards(saved, 2, rail=True).machine, catalogue)
    assert alike(topology(f"cluster:box={path},boxes=2,fabric=rail"), catalogue)
    slow = topology(f"cluster:box={path},boxes=2,nic=10GB/s")
    assert alike(slow, topology(f"cluster:box={name},boxes=2,nic=10GB/s"))
    kept = keep(box.machine, [2, 3]).topology
    assert [card.nodes for card in kept.cards] == ([(0, 1)] if name == "dgx1v" else [(0,), (1,)])
    turned = relabel(kept, [1, 0, *range(2, kept.nodes)])
    assert {node for card in turned.cards for node in card.nodes} == {0, 1}


SPEED = Fraction(10**9)


@pytest.mark.parametrize(
    ("cards", "error", "line"),
    [
        ([NetworkCard("a", None, (0, 1)), NetworkCard("b", None, (2, 3))], Invalid, "have no speed; .* nic=400Gbit/s"),
        ([NetworkCard("a", None, (0, 1)), NetworkCard("b", SPEED, (2, 3))], Invalid, "differ in speed"),
        ([NetworkCard("a", SPEED, (0, 1, 2)), NetworkCard("b", SPEED, (3,))], Unsupported, "topology join FILE"),
        ([NetworkCard("a", SPEED, (0, 2)), NetworkCard("b", SPEED, (1, 3))], Unsupported, "topology join FILE"),
        ([NetworkCard("a", SPEED, (0,)), NetworkCard("b", SPEED, (0, 1))], Unsupported, "topology join FILE"),
    ],
)
def test_cards_that_a_cluster_cannot_use(
    cards: list[NetworkCard], error: type[Exception], line: str, tmp_path: Path
) -> None:
    save_topology(tmp_path / "box.json", replace(topology("full:ranks=4"), cards=tuple(cards)))
    with pytest.raises(error, match=line):
        topology(f"cluster:box={tmp_path / 'box.json'},boxes=2")


def test_a_fabric_that_is_thinner_than_the_cards_is_reported(tmp_path: Path) -> None:
    box = found(tmp_path, H100_XML)
    with pytest.warns(
        UnlikelyInput, match=r"25 GB/s per host, but the 8 network cards .* carry 400 GB/s.*switch:boxes=2"
    ):
        join_box_and_fabric(box, read_machine("star:ranks=2"))
    with pytest.warns(UnlikelyInput, match=r"the 8 network cards of hgx-h100 carry 400 GB/s"):
        join_box_and_fabric(read_machine("hgx-h100"), read_machine("star:ranks=2"))  # as it is sold
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnlikelyInput)
        join_box_and_fabric(box, read_machine("star:ranks=2,bandwidth=400GB/s"))
        join_box_and_fabric(read_machine("full:ranks=4"), read_machine("star:ranks=2"))  # nobody knows its cards


def test_a_file_is_a_box_of_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_topology("box.json", found(tmp_path, BOXES["hgx-h100"]).machine)
    both = topology("cluster:box=./box.json,boxes=2,nic=400Gbit/s")
    assert both.name == "2 x 8 x H100 on switch"
    assert alike(both, topology("cluster:box=hgx-h100,boxes=2"))
    assert usual_model(both, wanted=(Collective("allreduce", 16),)) == "calls"
