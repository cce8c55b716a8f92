"""`antiphon topology degrade` and `antiphon.machines.degrade`: machines with failures."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon.cli import run
from antiphon.core.reshape import degrade, keep
from antiphon.core.topology import Topology
from antiphon.cost import usual_model
from antiphon.errors import Invalid, UnlikelyInput
from antiphon.topologies import topology


def pairs_of(machine: Topology) -> set[tuple[int, int]]:
    return {*zip(machine.link_src.tolist(), machine.link_dst.tolist(), strict=True)}


def speed(machine: Topology, a: int, b: int) -> Fraction:
    ends = zip(machine.link_src.tolist(), machine.link_dst.tolist(), strict=True)
    return sum((machine.bandwidth(link) for link, pair in enumerate(ends) if pair == (a, b)), Fraction(0))


def test_links_are_dropped_and_slowed_both_ways() -> None:
    whole = topology("dgx1v")
    broken = antiphon.machines.degrade("dgx1v", drop_links="0-3,1-2", slow={"0-4": 0.5, "1-5": "10GB/s"})
    assert pairs_of(whole) - pairs_of(broken) == {(0, 3), (3, 0), (1, 2), (2, 1)}
    assert speed(broken, 0, 4) == speed(broken, 4, 0) == 25 * 10**9
    assert speed(broken, 5, 1) == 10 * 10**9
    assert speed(broken, 2, 3) == speed(whole, 2, 3)
    assert broken.name == "dgx1v degraded"
    assert broken.unit == whole.unit
    assert antiphon.machines.degrade(whole, drop_links=["0-3"]) == degrade(whole, pairs=[(0, 3)], remove=True)


def test_it_is_priced_by_the_figures_of_its_gpus() -> None:
    broken = antiphon.machines.degrade("hgx-h100", slow="3-nvswitch=0.5")
    assert usual_model(broken, wanted=(antiphon.collective("allreduce", broken),)) == "calls"


def test_nodes_are_named_as_show_prints_them() -> None:
    machine = topology("cluster:box=hgx-h100,boxes=2,fabric=rail")
    by_number = antiphon.machines.degrade(machine, drop_links="0-18")
    assert machine.places[18] == "rail0"
    for name in ("0-rail0", "host0/gpu0-rail0", "rail0-0"):
        assert antiphon.machines.degrade(machine, drop_links=name) == by_number
    with pytest.raises(Invalid, match=r"nvswitch could be host0/nvswitch, host1/nvswitch; name the whole place"):
        antiphon.machines.degrade(machine, drop_links="0-nvswitch")


def test_ranks_are_dropped_and_the_others_renumbered() -> None:
    machine = antiphon.machines.degrade("dgx1v", drop_ranks=[0, 5])
    assert machine == keep(topology("dgx1v"), [1, 2, 3, 4, 6, 7]).topology
    both = antiphon.machines.degrade("dgx1v", drop_ranks=[7], drop_links="0-3")
    assert (both.ranks, both.name) == (7, "dgx1v degraded only 0,1,2,3,4,5,6")


def test_a_fraction_of_the_links_is_the_same_everywhere_and_grows() -> None:
    whole = topology("torus:dims=8x8")
    some, more = (antiphon.machines.degrade(whole, fraction=f, seed=1) for f in (0.02, 0.1))
    assert (whole.links - some.links, whole.links - more.links) == (6, 26)  # of 128 links both ways: 3, and 13
    gone = pairs_of(whole) - pairs_of(some)
    assert gone == {(8, 16), (16, 8), (22, 23), (23, 22), (52, 53), (53, 52)}
    assert gone < pairs_of(whole) - pairs_of(more)
    assert (
        antiphon.machines.degrade(whole, fraction=0.02, seed=1)
        == some
        != antiphon.machines.degrade(whole, fraction=0.02, seed=2)
    )


def test_parts_without_a_link_between_them_are_reported() -> None:
    with pytest.warns(UnlikelyInput, match=r"line:ranks=4 degraded: rank 2 \(and 1 more\) is no longer reached from"):
        antiphon.machines.degrade("line:ranks=4", drop_links="1-2")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "says nothing to degrade"),
        ({"drop_links": "0"}, "expected two nodes, such as 0-1"),
        ({"drop_links": "0-nvswich"}, "unknown node of dgx1v 'nvswich'"),
        ({"drop_links": "0-9"}, "unknown node of dgx1v '9'"),
        ({"drop_links": "0-7"}, "no link joins rank 0 and rank 7 of dgx1v"),
        ({"drop_links": 3}, 'expected links such as "0-1,2-3"'),
        ({"slow": "0-1"}, "slow: expected 0-1=0.5"),
        ({"slow": "0-1=2"}, "expected the remaining bandwidth, such as 0.5 or 10GB/s"),
        ({"slow": {"0-1": "fast"}}, "cannot read 'fast'"),
        ({"drop_ranks": [8]}, "rank 8 is out of range; dgx1v has ranks 0 to 7"),
        ({"drop_ranks": list(range(8))}, "names every rank"),
        ({"fraction": 2}, "expected a number between 0 and 1, such as 0.02"),
    ],
)  # fmt: skip
def test_what_cannot_be_degraded_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        antiphon.machines.degrade("dgx1v", **options)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    line = "topology degrade dgx1v --drop-links 0-3 --slow 1-2=0.5 --drop-ranks 7 -o out.json"
    assert run(line.split()) == 0
    assert "written: out.json" in capsys.readouterr().out
    expected = antiphon.machines.degrade("dgx1v", drop_links="0-3", slow={"1-2": 0.5}, drop_ranks=[7])
    assert topology("./out.json") == expected
    assert run(["topology", "degrade", "dgx1v", "--fraction", "0.1", "--seed", "3", "-o", "out.json"]) == 0
    assert topology("./out.json") == antiphon.machines.degrade("dgx1v", fraction="0.1", seed=3)
    assert run(["topology", "degrade", "dgx1v"]) == 2
    assert "says nothing to degrade" in capsys.readouterr().err
