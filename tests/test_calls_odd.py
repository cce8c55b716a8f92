"""Prices on machines that are not all alike: nodes that differ, networks cut in two, switches of no host."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from quick import in_turn

import antiphon
from antiphon.core.reshape import degrade, keep
from antiphon.core.topology import LinkType, Topology, build
from antiphon.cost import usual_model
from antiphon.cost.nccl.library import library_here
from antiphon.cost.replay.job import ProcessGroup
from antiphon.errors import Unsupported
from antiphon.select.parse_request import collective
from antiphon.select.prices import ByLibrary
from antiphon.topologies import topology

UNEVEN = keep(topology("cluster:box=hgx-h100,boxes=2"), range(12)).topology  # 8 ranks and 4


@pytest.mark.parametrize(
    ("ranks", "same", "said"),
    in_turn(
        [
            ([0, 1, 2, 3], ("hgx-h100", [0, 1, 2, 3]), "calibrated by h100"),
            ([0, 1, 8, 9], ("cluster:box=hgx-h100,boxes=2", [0, 1, 8, 9]), "calibrated by h100, ib"),
            ([0, 8], ("cluster:box=hgx-h100,boxes=2", [0, 8]), "calibrated by h100, ib"),
        ],
        2,
    ),
)
def test_a_group_takes_the_same_whatever_the_other_nodes_have(
    ranks: list[int], same: tuple[str, list[int]], said: str
) -> None:
    ring = antiphon.plan("allreduce", UNEVEN, planner="ring", ranks=ranks)
    (row,) = antiphon.predict(ring, "1MB")
    (alike,) = antiphon.predict(antiphon.plan("allreduce", same[0], planner="ring", ranks=same[1]), "1MB")
    assert (row["model"], row["rests_on"]) == ("calls", said)
    assert row["seconds"] == pytest.approx(alike["seconds"], rel=1e-12)
    assert antiphon.traces.simulate(ring, "1MB")[0]["model"].startswith("calls")
    found = antiphon.tune(
        "allreduce", UNEVEN, nbytes="1MB", ranks=ranks, planners="ring", search=antiphon.Search(workers="none")
    )
    assert (found.model, found.ranges[0].speedup) == ("calls", pytest.approx(1, abs=0.1 if ranks[-1] < 8 else 0.7))


def test_all_ranks_of_nodes_that_differ_are_priced_plainly() -> None:
    (row,) = antiphon.predict(antiphon.plan("allreduce", UNEVEN, planner="ring"), "1MB")
    assert (row["model"], row["rests_on"]) == ("alpha-beta", "not calibrated")


def test_links_that_only_the_rest_of_the_machine_has_are_named() -> None:
    """Rank 2 is of a node of its own, on links of which nothing is known; the group sends by way of it."""
    near, far = LinkType("nvlink", 450 * 10**9, 1e-6), LinkType("ethernet", 10**9, 1e-5)
    links = [(a, b, near) for a, b in ((0, 3), (3, 0), (1, 3), (3, 1))]
    links += [(a, b, far) for a, b in ((0, 2), (2, 0), (1, 2), (2, 1))]
    places = ["host0/gpu0", "host0/gpu1", "host1/gpu0", "host0/switch"]
    machine = build("hgx-h100", 3, links, switches=1, places=places)
    plan = antiphon.plan("broadcast", machine, planner="ring", ranks=[0, 1])
    (row,) = antiphon.predict(plan, "1MB", model="calls")
    assert row["rests_on"].startswith("calibrated by h100")
    assert "links of kind" not in row["rests_on"]
    entry = plan.entries[0]
    shape = entry.schedule.columns()
    assert len(shape["src"])
    by_host = replace(
        entry.schedule, step=np.array([0, 1]), chunk=np.zeros(2, np.int64), src=np.array([0, 2]), dst=np.array([2, 1]),
        op=np.zeros(2, np.int64), route=np.full(2, -1), pieces=1,
    )  # fmt: skip
    other = replace(plan, entries=(replace(entry, schedule=by_host),))
    assert "links of kind ethernet not calibrated" in antiphon.predict(other, "1MB", model="calls")[0]["rests_on"]


# ---- what is cut in two ----


def _cut() -> Topology:
    whole = topology("cluster:box=hgx-h100,boxes=8,fabric=leaf-spine")
    trunk = next(i for i, kind in enumerate(whole.types) if kind.kind == "trunk")
    leaf = int(whole.link_src[np.flatnonzero(whole.link_type == trunk)[0]])
    ends = (whole.link_src == leaf) | (whole.link_dst == leaf)
    return degrade(whole, links=np.flatnonzero((whole.link_type == trunk) & ends).tolist(), remove=True)


def test_a_network_cut_in_two_is_refused() -> None:
    machine = _cut()
    with pytest.raises(Unsupported, match=r"no link leads out of \S*host\S* and \d nodes with it"):
        antiphon.predict("allreduce", "1MB", topology=machine, library="nccl")
    assert usual_model(machine, wanted=[collective("allreduce", machine)]) == "alpha-beta"
    price = ByLibrary(machine)
    every, near = ProcessGroup("0", machine.ranks, tuple(range(machine.ranks))), ProcessGroup("1", 16, tuple(range(16)))
    assert price.price("allreduce", 10**6, 0, every) is None
    assert price.price("allreduce", 10**6, 0, near) is not None  # on one leaf


def test_one_way_out_is_not_enough() -> None:
    two = topology("cluster:box=hgx-h100,boxes=2")
    kind = next(i for i, one in enumerate(two.types) if one.kind == "ib")
    into = np.flatnonzero((two.link_type == kind) & (two.link_src >= two.ranks) & (two.link_dst < 8)).tolist()
    assert into
    machine = degrade(two, links=into, remove=True)
    with pytest.raises(Unsupported, match="no link leads out of"):
        library_here(machine)


# ---- a switch that is below no host ----


def _box(switch: str) -> Topology:
    """Eight GPUs, whose places tell their host, on one switch."""
    kind = LinkType("nvlink", 450 * 10**9, 1e-6)
    links = [(a, b, kind) for rank in range(8) for a, b in ((rank, 8), (8, rank))]
    return build("hgx-h100", 8, links, switches=1, places=[*(f"host0/gpu{i}" for i in range(8)), switch])


def test_the_switch_of_a_single_host_is_within_it_wherever_its_place_is() -> None:
    rows = []
    for switch in ("nvswitch", "host0/nvswitch"):
        machine = _box(switch)
        (row,) = antiphon.predict(antiphon.plan("allreduce", machine, planner="ring"), "1GB")
        rows.append(
            (row["seconds"], row["rests_on"], antiphon.predict("allreduce", "1GB", topology=machine, library="nccl"))
        )
    assert rows[0] == rows[1]
    assert rows[0][0] > 1.2 * 2 * 7 / 8 * 1e9 / 450e9  # not all of the wire


def test_what_has_no_link_within_its_node_is_refused_before_anything_is_planned() -> None:
    """Two hosts of two GPUs, which meet in the network alone: model, library and the usual model say the same."""
    kind = LinkType("ib", 50 * 10**9, 1e-6)
    links = [(a, b, kind) for rank in range(4) for a, b in ((rank, 4), (4, rank))]
    places = [*(f"host{rank // 2}/gpu{rank}" for rank in range(4)), "leaf"]
    machine = build("cluster:box=hgx-h100,boxes=2", 4, links, switches=1, places=places)
    with pytest.raises(Unsupported, match="no link to others of its node"):
        library_here(machine, gpu="h100")
    plan = antiphon.plan("allreduce", machine, planner="ring")
    with pytest.raises(Unsupported, match="no link to others of its node"):
        antiphon.predict(plan, "1MB", model="calls:gpu=h100")
    assert antiphon.predict(plan, "1MB")[0]["model"] == "alpha-beta"
    found = antiphon.tune("allreduce", machine, nbytes="1KB", planners="ring", search=antiphon.Search(workers="none"))
    assert found.model == "alpha-beta"
