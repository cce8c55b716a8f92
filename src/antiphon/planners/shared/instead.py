"""What to use where a planner refuses: of others those that the table says can do it."""

from __future__ import annotations

from antiphon.core.collective import Collective
from antiphon.core.topology import Topology
from antiphon.planners.shared.reach import Reach
from antiphon.registry import Entry, find


def instead(topology: Topology, collective: Collective, *names: str, other: str = "fewer ranks") -> str:
    """Of these planners those whose entries have the collective, among so many ranks, on such a machine; then `other`.

    On 4096 ranks of a torus no alltoall is planned; the ring goes round whatever all ranks want:

    >>> from antiphon.topologies import topology
    >>> torus = topology("torus:dims=64x64")
    >>> instead(torus, Collective("alltoall", 4096), "relay", "direct", "flows")
    'use fewer ranks'
    >>> instead(torus, Collective("allgather", 4096), "relay", "direct", "ring")
    'use planner ring, or fewer ranks'
    """
    able = [name for name in names if _takes(find("planner", name), topology, collective)]
    if not able:
        return f"use {other}"
    first = f"{', '.join(able[:-1])} or " if able[1:] else ""
    return f"use planner {first}{able[-1]}, or {other}"


def _takes(entry: Entry, topology: Topology, collective: Collective) -> bool:
    can = entry.can
    if collective.kind not in can["collectives"]:
        return False
    if len(collective.members) > can.get("most", {}).get(collective.kind, topology.ranks):
        return False
    return not can.get("joined") or _joined(topology, collective)


def _joined(topology: Topology, collective: Collective) -> bool:
    """Whether links or switches lead from the first that takes part to all others."""
    first, *others = collective.members
    return Reach(topology).neighbours(first).keys() >= set(others)
