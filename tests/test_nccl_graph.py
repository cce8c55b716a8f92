"""Rings and chains of a plan as a graph file of NCCL: read back as NCCL reads it, against the plan's own rows."""

from collections import Counter
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import antiphon
from antiphon.cli import run
from antiphon.core.collective import KINDS
from antiphon.core.example import of_rows
from antiphon.core.plan import Entry, Plan
from antiphon.errors import AntiphonError, Invalid, Unsupported
from antiphon.formats.stock.circles import find_orders
from antiphon.select import plan as planned

RINGS = ("ring", "multi-ring")

RING, TREE = ("0", "4"), ("1", "3")  # id and pattern of NCCL's graphs


def text_of(plan: Any, **options: Any) -> str:
    return antiphon.export(plan, "nccl-graph", options=options)["nccl-graph.xml"].decode()


def graphs(text: str) -> dict[tuple[str, str], tuple[dict[str, str], list[tuple[int, ...]]]]:
    """By id and pattern the attributes and the channels, as NCCL reads the file: dev is hexadecimal."""
    root = ElementTree.fromstring(text)
    assert (root.tag, root.attrib) == ("graphs", {"version": "1"})
    found = {}
    for graph in root:
        channels = [tuple(int(gpu.attrib["dev"], 16) for gpu in channel) for channel in graph]
        assert [[int(gpu.attrib["rank"]) for gpu in channel] for channel in graph] == [list(one) for one in channels]
        assert int(graph.attrib["nchannels"]) == len(channels)
        assert graph.attrib["typeintra"] in ("NVL", "PIX", "PXB", "PHB", "SYS")
        for key in ("speedintra", "speedinter", "latencyinter"):
            assert float(graph.attrib[key]) >= 0
        found[graph.attrib["id"], graph.attrib["pattern"]] = dict(graph.attrib), channels
    return found


@pytest.mark.parametrize("kind", ["allreduce", "allgather", "reducescatter", "broadcast", "reduce"])
def test_the_rings_of_a_dgx1v(kind: str) -> None:
    machine = antiphon.topology("dgx1v")
    made = antiphon.plan(kind, machine, planner="multi-ring")
    found = graphs(text_of(made))
    assert list(found) == [RING]
    about, channels = found[RING]
    assert about["typeintra"] == "NVL"
    assert all(sorted(one) == list(range(8)) for one in channels)
    # every hop is a link of the machine, and no link carries more channels than its bandwidth in unit links
    links = Counter()
    for i in range(machine.links):
        src, dst = int(machine.link_src[i]), int(machine.link_dst[i])
        links[src, dst] += int(machine.bandwidth(i) / machine.unit)
    hops = Counter((a, b) for one in channels for a, b in pairwise([*one, one[0]]))
    assert all(links[hop] >= count for hop, count in hops.items())
    assert len(channels) == 6
    assert Fraction(about["speedintra"]) == machine.unit / 10**9
    assert about["samechannels"] == "0"


def chain(ranks: int = 4, twist: bool = False) -> Plan:
    """An allreduce along a line: combined towards rank 0, and back; `twist`: back by another way."""
    there = [(i, 0, ranks - 1 - i, ranks - 2 - i, 1) for i in range(ranks - 1)]
    order = list(range(ranks)) if not twist else [0, *reversed(range(1, ranks))]
    back = [(ranks + i, 0, a, b, 0) for i, (a, b) in enumerate(pairwise(order))]
    return Plan.of(antiphon.topology(f"full:ranks={ranks}"), of_rows("allreduce", ranks, [*there, *back]))


def test_a_chain_is_a_tree() -> None:
    found = graphs(text_of(chain()))
    assert list(found) == [TREE]
    assert found[TREE][1] == [(0, 1, 2, 3)]  # the root first
    twisted = graphs(text_of(chain(4, twist=True)))  # 3 2 1 0, then 0 3 2 1: a ring all the same
    assert list(twisted) == [RING]
    assert twisted[RING][1] == [(0, 3, 2, 1)]


def test_back_by_a_way_of_its_own() -> None:
    """All ranks in one order, and then in another: neither a ring nor a chain."""
    there = [(i, 0, 3 - i, 2 - i, 1) for i in range(3)]
    back = [(3 + i, 0, a, b, 0) for i, (a, b) in enumerate(pairwise([0, 2, 1, 3]))]
    with pytest.raises(Unsupported, match="chunk 0 goes along no ring and no chain"):
        text_of(Plan.of(antiphon.topology("full:ranks=4"), of_rows("allreduce", 4, [*there, *back])))


@pytest.mark.parametrize(
    ("kind", "spec", "planner"),
    [
        ("allreduce", "full:ranks=8", "halving-doubling"), ("allreduce", "full:ranks=8", "recursive-doubling"),
        ("allreduce", "full:ranks=8", "binomial-tree"), ("allreduce", "full:ranks=8", "double-binary-tree"),
        ("allreduce", "dgx1v", "trees"), ("allgather", "full:ranks=8", "direct"),
        ("alltoall", "full:ranks=4", "pairwise"),
        ("broadcast", "full:ranks=8", "binomial-tree"), ("gather", "full:ranks=4", "direct"),
        ("allreduce", "hgx-h100", "nvls"),
    ],
)  # fmt: skip
def test_what_is_no_ring_and_no_chain_is_refused_by_name(kind: str, spec: str, planner: str) -> None:
    made = antiphon.plan(kind, antiphon.topology(spec), planner=planner)
    with pytest.raises(Unsupported, match=rf"nccl-graph: {kind} by {planner} from 0 bytes on: .*; NCCL takes rings"):
        text_of(made)
    with pytest.raises(Unsupported, match="goes along rings or chains"):
        text_of(made, partial=True)


def test_partly() -> None:
    machine = antiphon.topology("full:ranks=8")
    tree = planned("allreduce", machine, planner="binomial-tree").entries[0]
    ring = planned("allreduce", machine, planner="ring").entries[0]
    both = Plan(
        machine, ring.schedule.collective, (Entry(0, 9, tree.schedule, tree.claims), Entry(9, None, ring.schedule))
    )
    with pytest.raises(Unsupported, match="allreduce by binomial-tree from 0 bytes on"):
        text_of(both)
    assert text_of(both, partial="yes") == text_of(Plan.of(machine, ring.schedule))


def test_one_set_of_rings_for_all() -> None:
    machine = antiphon.topology("full:ranks=4")
    one, two = (planned("allgather", machine, planner="ring", options={"directions": n}).entries[0] for n in (1, 2))
    with pytest.raises(Unsupported, match="has other rings than allgather by ring from 0 bytes on; NCCL has one set"):
        text_of(
            Plan(
                machine, one.schedule.collective, (Entry(0, 9, one.schedule, one.claims), Entry(9, None, two.schedule))
            )
        )
    tables = {kind: planned(kind, machine, planner="ring") for kind in ("allgather", "allreduce", "reducescatter")}
    assert graphs(text_of(tables)).keys() == {RING}


def test_hosts_members_and_channels() -> None:
    several = planned("allgather", antiphon.topology("cluster:box=dgx1v,boxes=2"), planner="ring")
    with pytest.raises(Unsupported, match="2 hosts; a graph file says the orders within one"):
        text_of(several)
    part = planned("allreduce", antiphon.topology("full:ranks=4"), planner="ring", ranks=[0, 1, 2])
    with pytest.raises(Unsupported, match="3 of 4 ranks"):
        text_of(part)
    six = planned("allreduce", antiphon.topology("dgx1v"), planner="multi-ring")
    with pytest.raises(Unsupported, match=r"36 channels, and there are\s+32"):
        text_of(six, copies=6)
    for options, says in (({"copies": 0}, "copies"), ({"copies": 33}, "copies"), ({"link": "NVLINK"}, "link"),
                          ({"partial": "maybe"}, "partial")):  # fmt: skip
        with pytest.raises(Invalid, match=says):
            text_of(six, **options)


def forms(schedule: Any) -> set[str]:
    """What it goes along; nothing where that is refused."""
    try:
        return {one.form for one in find_orders(schedule)}
    except Unsupported:
        return set()


@pytest.mark.slow
def test_orders_of_ring_planners_and_of_no_other() -> None:
    machine, seen = antiphon.topology("full:ranks=6"), set()
    for kind in KINDS:
        for row in antiphon.available.planners():
            name, moves = row["name"], kind in ("alltoall", "gather", "scatter")
            known = moves or name in (*RINGS, "direct", "bruck", "binomial-tree", "recursive-doubling")
            if not known or kind not in row["collectives"] or name in ("sccl", "nvls", "sharp", "nvls-tree"):
                continue
            try:
                schedule = planned(kind, machine, planner=name).entries[0].schedule
            except AntiphonError:
                continue
            if name in RINGS:
                assert forms(schedule) == (set() if moves else {"ring"}), (kind, name)
                seen.add(kind)
            else:
                assert not forms(schedule), (kind, name)
    assert seen == set(KINDS)


def test_what_is_written_is_read_as_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the reader of graphs that NCCL dumped: the links of the rings, each as wide as the channels on it."""
    monkeypatch.chdir(tmp_path)
    antiphon.export(antiphon.plan("allreduce", "dgx1v", planner="multi-ring"), "nccl-graph", tmp_path)
    assert run("topology probe nccl-graph.xml --from nccl-xml -o machine.json".split()) == 0  # noqa: SIM905
    machine, whole = antiphon.load("machine.json", antiphon.Topology), antiphon.topology("dgx1v")

    def wide(one: antiphon.Topology) -> Counter[tuple[int, int]]:
        found: Counter[tuple[int, int]] = Counter()
        for link in range(one.links):
            found[int(one.link_src[link]), int(one.link_dst[link])] += int(one.bandwidth(link))
        return found

    theirs = wide(whole)
    assert machine.ranks == 8
    assert all(width <= theirs[pair] for pair, width in wide(machine).items())
    assert sum(wide(machine).values()) == 6 * 8 * 25 * 10**9
