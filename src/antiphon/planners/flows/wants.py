"""What flows must carry: per source, or per destination, the amounts and the other ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from antiphon.core.bounds.needs import Needs, needs_of
from antiphon.core.collective import Collective
from antiphon.core.topology import Topology
from antiphon.errors import Unsupported
from antiphon.planners.shared.orbits import Table, free_group
from antiphon.planners.shared.reach import suggest_planners

MOST_BLOCKS = 2**22  # an alltoall among 2048 ranks


@dataclass(frozen=True)
class Want:
    """Everything that one rank sends (`out`) or receives.

    An end is a set of alternative ranks at the other side (one receiver, or every holder of a replica), with the
    weight that it receives or gives.
    """

    root: int
    out: bool
    ends: tuple[tuple[tuple[int, ...], int], ...]


@dataclass(frozen=True, eq=False)
class Wants:
    """The wants of one rank per orbit, and the symmetries (identity first) that map them to those of all others.

    `blocks`: per (sender or holders, receiver) its blocks, of any weight.
    """

    wants: tuple[Want, ...]
    group: Table
    blocks: dict[tuple[tuple[int, ...], int], list[int]] = field(default_factory=dict)


def wants_of(topology: Topology, collective: Collective, seed: int = 0) -> Wants:
    """List wants by senders or by receivers, whichever are fewer. Unsupported where data must be combined or copied, or
    there are too many blocks."""
    if collective.blocks > MOST_BLOCKS:
        raise Unsupported(
            f"planner flows: {collective.kind} among {len(collective.members)} ranks has {collective.blocks} blocks; "
            f"it takes up to {MOST_BLOCKS}; {suggest_planners(topology, collective, 'direct', 'pairwise')}"
        )
    needs = needs_of(collective)
    if needs.joined or collective.combining or len(np.unique(needs.block)) < len(needs):
        raise Unsupported(
            f"planner flows: {collective.kind} combines data or spreads them to several ranks, and flows only move "
            "them; use planner trees or relay"
        )
    blocks: dict[tuple[tuple[int, ...], int], list[int]] = {}
    amount: dict[tuple[tuple[int, ...], int], int] = {}
    for block, holders, dst in zip(needs.block.tolist(), needs.holders.tolist(), needs.dst.tolist(), strict=True):
        pair = needs.sets[holders], dst
        blocks.setdefault(pair, []).append(block)
        amount[pair] = amount.get(pair, 0) + int(needs.weights[block])
    roots = {holders[0] for holders, _ in amount}
    # group by senders if each block has one holder and there are at most as many senders as receivers
    out = all(len(holders) == 1 for holders, _ in amount) and len(roots) <= len({dst for _, dst in amount})
    gathered: dict[int, list[tuple[tuple[int, ...], int]]] = {}
    for (holders, dst), weight in sorted(amount.items()):
        root, end = (holders[0], (dst,)) if out else (dst, holders)
        gathered.setdefault(root, []).append((end, weight))
    group = _find_group(topology, collective, needs, seed)
    firsts = {int(group[:, root].min()) for root in gathered}
    wants = tuple(Want(root, out, tuple(gathered[root])) for root in sorted(firsts))
    return Wants(wants, group, blocks)


def _find_group(topology: Topology, collective: Collective, needs: Needs, seed: int) -> Table:
    """Return symmetries that preserve the wants: for an alltoall of equal blocks, all; else only the identity."""
    members: Sequence[int] = collective.members
    weights = needs.weights[needs.block]
    alike = len(needs) == len(members) * (len(members) - 1) and bool(np.all(weights == weights[:1]))
    if collective.kind == "alltoall" and alike and len(members) > 2:
        return free_group(topology, dict.fromkeys(members, 1), members, seed)
    return np.arange(topology.nodes + topology.links + len(topology.limits), dtype=np.int64)[None]
