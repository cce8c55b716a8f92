"""The planner for machines on which nothing regular fits: any connected machine, any collective."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core.bounds import bound
from antiphon.core.collective import KINDS, Collective
from antiphon.core.loads import pipelined_steps, timeline
from antiphon.core.reshape import only
from antiphon.core.topology import LinkType, Topology, build
from antiphon.core.verify import verify
from antiphon.errors import AntiphonError, Invalid, Unsupported
from antiphon.planners.relay import relay
from antiphon.run.local import run_local
from antiphon.topologies import topology

FAST, SLOW = LinkType("fast", Fraction(2 * 10**9), 1e-6), LinkType("slow", Fraction(10**9), 2e-6)


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    """A strongly connected tangle of ranks and switches: a cycle through all nodes, one-way, and more links."""
    ranks, switches = draw(st.integers(2, 6)), draw(st.integers(0, 2))
    nodes = draw(st.permutations(range(ranks + switches)))
    links = [(a, b, FAST) for a, b in zip(nodes, [*nodes[1:], nodes[0]], strict=True)]
    node = st.integers(0, ranks + switches - 1)
    more = draw(st.lists(st.tuples(node, node, st.sampled_from([FAST, SLOW])), max_size=10))
    return build("tangle", ranks, links + [m for m in more if m[0] != m[1]], switches=switches)


@given(machine=machines(), kind=st.sampled_from(KINDS), data=st.data())
@settings(max_examples=120)
def test_every_collective_on_every_connected_machine(machine: Topology, kind: str, data: st.DataObject) -> None:
    members = data.draw(st.sets(st.integers(0, machine.ranks - 1), min_size=2))
    wanted = Collective(kind, machine.ranks, tuple(members))
    choices: list[dict[str, Any]] = [{}, {"pieces": 3}, {"by": "tree"}]
    options = data.draw(st.sampled_from(choices))
    (schedule,) = relay(machine, wanted, **options)
    verify(schedule, machine).or_raise()
    least = bound(machine, wanted)
    if kind != "allreduce" and "pieces" not in options:
        assert pipelined_steps(schedule) == least.latency_steps
    assert timeline(schedule, machine).total * (least.bytes_per_second or 0) >= 1
    assert run_local(schedule, 4 * 60, repeat=1)[0]["correct"]


def test_uneven_blocks_several_roots_and_what_cannot_be() -> None:
    machine = topology("ring:ranks=4")
    for wanted in (
        Collective("allgather", 4, weights=np.array([3, 0, 1, 2])),
        Collective("gather", 4, roots=(1, 3), weights=np.arange(8)),
        Collective("reduce", 4, roots=(0, 2)),
        Collective("alltoall", 4, (0, 2, 3), weights=np.arange(9)),
    ):
        (schedule,) = relay(machine, wanted)
        verify(schedule, machine).or_raise()
    with pytest.raises(Invalid, match="blocks or tree"):
        list(relay(machine, Collective("allreduce", 4), by="magic"))
    apart = only(topology("dgx1v"), [1, 4, 6])
    with pytest.raises(Unsupported, match="no links lead from rank"):
        list(relay(apart, Collective("broadcast", 8, (1, 4, 6))))
    with pytest.raises(AntiphonError):
        list(relay(apart, Collective("allreduce", 8, (1, 4, 6)), by="tree"))


def test_trees_are_spread_over_equal_links() -> None:
    machine = topology("full:ranks=5")
    (schedule,) = relay(machine, Collective("alltoall", 5))
    assert timeline(schedule, machine).total == Fraction(1, 5) / machine.unit  # optimal: one block on every link
