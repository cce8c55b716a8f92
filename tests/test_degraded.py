"""`antiphon topology degrade` and `antiphon.machines.degrade`: machines with failures."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from commands import answer

import antiphon
from antiphon.core.reshape import only
from antiphon.core.topology import NetworkCard, Topology
from antiphon.cost import usual_model
from antiphon.errors import Invalid, UnlikelyInput
from antiphon.topologies import topology


def pairs_of(machine: Topology) -> set[tuple[int, int]]:
    return {*zip(machine.link_src.tolist(), machine.link_dst.tolist(), strict=True)}


def speed(machine: Topology, a: int, b: int) -> Fraction:
    ends = zip(machine.link_src.tolist(), machine.link_dst.tolist(), strict=True)
    return sum((machine.bandwidth(link) for link, pair in enumerate(ends) if pair == (a, b)), Fraction(0))


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


def test_dropped_ranks_lose_their_links_and_the_others_keep_their_numbers() -> None:
    machine = antiphon.machines.degrade("dgx1v", drop_ranks=[0, 5])
    assert replace(machine, name="") == replace(only(topology("dgx1v"), [1, 2, 3, 4, 6, 7]), name="")
    with pytest.warns(UnlikelyInput, match="dgx1v degraded: ranks without links are left out: 0,5"):
        assert antiphon.plan("allreduce", machine).collective.members == (1, 2, 3, 4, 6, 7)
    with pytest.raises(Invalid, match="root 5: has no links"):
        antiphon.collective("broadcast", machine, root=5)


@pytest.mark.parametrize(
    ("machine", "options", "ends", "bandwidth"),
    [
        ("dgx1v", {"drop_links": "0-3:1"}, (0, 3), 25),  # one of two NVLinks
        ("dgx1v", {"drop_links": "0-3:2"}, (3, 0), 0),
        ("dgx1v", {"drop_links": "0-3:nvlink"}, (0, 3), 0),
        ("dgx1v", {"slow": "3=0.5"}, (3, 0), 25),  # a rank: all of its links
        ("dgx-a100", {"drop_links": "2-nvswitch:6"}, (8, 2), 150),
        ("cluster:box=dgx1v,boxes=2", {"drop_nics": "host0/nic1"}, (3, 16), 0),  # ranks 2 and 3 share it
        ("cluster:box=dgx1v,boxes=2", {"slow": "host0/nic1=5GB/s"}, (3, 16), 5),
        ("cluster:box=dgx-a100,boxes=2", {"drop_nics": "host1/gpu2"}, (10, 18), 0),  # its own card
        ("cluster:box=dgx-a100,boxes=2", {"drop_nics": "10"}, (18, 10), 0),
        ("ring:ranks=4", {"fraction": 0.99, "remaining": 0.5}, (1, 2), 12.5),
        ("ring:ranks=4", {"fraction": 0.1, "of": "ranks", "remaining": "1GB/s", "seed": 1}, None, 2),
    ],
)  # fmt: skip
def test_items_that_fail(machine: str, options: dict[str, Any], ends: tuple[int, int] | None, bandwidth: float) -> None:
    broken = antiphon.machines.degrade(machine, **options)
    if ends is not None:
        assert speed(broken, *ends) == Fraction(bandwidth) * 10**9
    else:  # the two links in and the two out of one rank
        assert sum(broken.bandwidth(link) == 10**9 for link in range(broken.links)) == 2 * bandwidth


def test_a_slow_card_slows_its_limits_and_a_dropped_one_takes_them_along() -> None:
    slow = antiphon.machines.degrade("cluster:box=dgx1v,boxes=2", slow="host0/nic1=5GB/s")
    assert {x.name: float(x.bandwidth) for x in slow.limits if x.bandwidth < 12 * 10**9} == {
        "host0/nic1 out": 5e9, "host0/nic1 in": 5e9,
    }  # fmt: skip
    gone = antiphon.machines.degrade("cluster:box=dgx1v,boxes=2", fraction=0.01, of="nics")
    assert (len(slow.limits), len(gone.limits), slow.links - gone.links) == (16, 14, 4)


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


def test_names_to_drop_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """As in ANTIPHON_DEAD, a name shows its kind; --drop may be repeated."""
    machine = "cluster:box=dgx1v,boxes=2"
    each = answer(capsys, "topology", "degrade", machine, "--drop", "0-3,host0/nic1,5", "--drop", "8-9,6")
    listed = {"links": "0-3,8-9", "nics": "host0/nic1", "ranks": "5,6"}
    drops = [word for kind, items in listed.items() for word in ("--drop", f"{kind}={items}")]
    assert each == answer(capsys, "topology", "degrade", machine, *drops)


def test_parts_without_a_link_between_them_are_reported() -> None:
    with pytest.warns(UnlikelyInput, match=r"line:ranks=5 degraded: .* 2 parts .*: 0-2; 3-4; .*:ranks=0-2$"):
        antiphon.machines.degrade("line:ranks=5", drop_links="2-3")
    with pytest.warns(UnlikelyInput, match="falls apart"):
        broken = antiphon.machines.degrade("line:ranks=6", drop_links="2-3", drop_ranks=[5])
    for group, message in (([0, 1, 2, 3, 4], r"from rank 3 \(nor can ranks 1, 2\)"), ([0, 3], "from rank 3:")):
        with pytest.raises(Invalid, match=f"rank 0 cannot be reached {message}"):  # of the others, members alone
            antiphon.bound(antiphon.collective("allreduce", broken, ranks=group), broken)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "nothing to degrade"),
        ({"drop_links": "0"}, "expected two nodes, such as 0-1"),
        ({"drop_links": "0-nvswich"}, "unknown node of dgx1v 'nvswich'"),
        ({"drop_links": "0-9"}, "unknown node of dgx1v '9'"),
        ({"drop_links": "0-7"}, "no link joins rank 0 and rank 7 of dgx1v"),
        ({"drop_links": 3}, 'expected links such as "0-1,2-3"'),
        ({"slow": "0-1"}, "slow: expected 0-1=0.5"),
        ({"slow": "0-1=2"}, "expected the remaining bandwidth, such as 0.5 or 10GB/s"),
        ({"slow": {"0-1": "fast"}}, "cannot read 'fast'"),
        ({"drop_ranks": [8]}, "rank 8 is out of range; dgx1v has ranks 0 to 7"),
        ({"drop_ranks": list(range(8))}, "no two ranks remain connected"),
        ({"drop_links": "0-3:0"}, "expected a number of wires from 1"),
        ({"drop_links": "0-3:pcie"}, "unknown node of dgx1v"),
        ({"drop_nics": "0"}, "dgx1v has no network cards"),
        ({"slow": "0-3:1=0.5"}, "names wires, which are up or down"),
        ({"slow": "0-3=60GB/s"}, "is at most as fast as '60GB/s' already"),
        ({"of": "disks", "fraction": 0.1}, "unknown items to choose a fraction of 'disks'"),
        ({"of": "nics", "fraction": 0.1}, "the machine has none of these items"),
        ({"drop_links": "0-3", "remaining": 0.5}, "describe a fraction"),
        ({"fraction": 2}, "expected a number between 0 and 1, such as 0.02"),
    ],
)  # fmt: skip
def test_what_cannot_be_degraded_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        antiphon.machines.degrade("dgx1v", **options)


def test_a_card_of_unknown_speed_can_only_be_dropped() -> None:
    box = replace(topology("dgx1v"), cards=(NetworkCard("mlx5_0", None, (0,)),))
    with pytest.raises(Invalid, match="mlx5_0: the bandwidth of this card is not known; it can only be dropped"):
        antiphon.machines.degrade(box, slow="mlx5_0=0.5")
    assert antiphon.machines.degrade(box, drop_nics="mlx5_0").cards == ()
