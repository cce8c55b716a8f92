"""List what flows must carry: for each sender how much goes to whom, or for each receiver how much comes from whom.

Input: a collective that only moves data (scatter, gather, alltoall). Output of `demands_of`: a `RootDemand` per sender
or per receiver, whichever are fewer; and symmetries of the machine, so that only one rank per orbit needs a demand.

Example: a scatter from 0 to 1, 2, 3 is one demand: root 0 sends weight 1 each to 1, 2 and 3. A gather is one demand of
the receiver. An alltoall on a ring of 4 has four roots, but by rotations only root 0 is listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from antiphon.core.bounds.needs import Needs, needs_of
from antiphon.core.collective import Collective
from antiphon.core.topology import Topology
from antiphon.errors import Unsupported
from antiphon.planners.shared.orbits import Symmetries, free_group
from antiphon.planners.shared.reach import suggest_planners

MAX_BLOCKS = 2**22  # of the collective: as many as an alltoall among 2048 ranks has


@dataclass(frozen=True)
class RootDemand:
    """The data that one rank, the root, sends or receives."""

    root: int
    out: bool  # the root sends
    # The other side, as pairs (set of ranks, weight between them and the root). A set is one receiver, or all ranks
    # that hold the same data, any one of which sends them.
    ends: tuple[tuple[tuple[int, ...], int], ...]


@dataclass(frozen=True, eq=False)
class Demands:
    """The demands of one root per orbit, and the symmetries (identity first) that take them to those of all other
    roots.

    `blocks`: by (sender or holders, receiver), the blocks between them, those of weight 0 included.
    """

    demands: tuple[RootDemand, ...]
    group: Symmetries
    blocks: dict[tuple[tuple[int, ...], int], list[int]] = field(default_factory=dict)


def demands_of(topology: Topology, collective: Collective, seed: int = 0) -> Demands:
    """Return the demands of a collective; raises Unsupported if it combines or copies data or has too many blocks."""
    if collective.blocks > MAX_BLOCKS:
        raise Unsupported(
            f"planner flows: {collective.kind} among {len(collective.members)} ranks has {collective.blocks} blocks; "
            f"it takes up to {MAX_BLOCKS}; {suggest_planners(topology, collective, 'direct', 'pairwise')}"
        )
    needs = needs_of(collective)
    if needs.joined or collective.combining or len(np.unique(needs.block)) < len(needs):
        raise Unsupported(
            f"planner flows: {collective.kind} combines data or spreads them to several ranks, and flows only move "
            "them; use planner trees or relay"
        )
    # blocks and weight of each pair of (holders, receiver); a row of `needs` is a block, its holders (as an index into
    # `sets`), and a rank that wants it
    blocks: dict[tuple[tuple[int, ...], int], list[int]] = {}
    amount: dict[tuple[tuple[int, ...], int], int] = {}
    for block, holders, dst in zip(needs.block.tolist(), needs.holders.tolist(), needs.dst.tolist(), strict=True):
        pair = needs.sets[holders], dst
        blocks.setdefault(pair, []).append(block)
        amount[pair] = amount.get(pair, 0) + int(needs.weights[block])
    roots = {holders[0] for holders, _ in amount}
    # group by senders if each block has one holder and there are at most as many senders as receivers
    out = all(len(holders) == 1 for holders, _ in amount) and len(roots) <= len({dst for _, dst in amount})
    ends_of_root: dict[int, list[tuple[tuple[int, ...], int]]] = {}  # root -> `RootDemand.ends`
    for (holders, dst), weight in sorted(amount.items()):
        root, end = (holders[0], (dst,)) if out else (dst, holders)
        ends_of_root.setdefault(root, []).append((end, weight))
    group = _find_group(topology, collective, needs, seed)
    representatives = {int(group[:, root].min()) for root in ends_of_root}  # the least root of every orbit
    demands = tuple(RootDemand(root, out, tuple(ends_of_root[root])) for root in sorted(representatives))
    return Demands(demands, group, blocks)


def _find_group(topology: Topology, collective: Collective, needs: Needs, seed: int) -> Symmetries:
    """Return symmetries that preserve the demands.

    They are searched for only for an alltoall of equal blocks; otherwise the identity is the only one.
    """
    members: Sequence[int] = collective.members
    weights = needs.weights[needs.block]
    is_uniform = len(needs) == len(members) * (len(members) - 1) and bool(np.all(weights == weights[:1]))
    if collective.kind == "alltoall" and is_uniform and len(members) > 2:
        return free_group(topology, dict.fromkeys(members, 1), members, seed)
    return np.arange(topology.nodes + topology.links + len(topology.limits), dtype=np.int64)[None]
