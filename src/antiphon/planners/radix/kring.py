"""k-ring: rings among groups of k ranks, then rings within the groups.

As in section III.A of the paper on parameterized collectives (docs/planners/radix.md).

A plain ring of P ranks takes P - 1 rounds, and if it spans hosts, each round waits for the slow link between hosts.
With groups of k ranks:

    P/k - 1 rounds between groups: k rings in parallel ("lanes"), rank i of each group in ring i
    P - P/k rounds within groups: each group passes the blocks it received around its own ring

That is P - 1 rounds, as before, but only P/k - 1 of them use the slow links. By default a group is a host; groups may
differ in size (lanes.py).

Example: P = 4, groups {0, 1} and {2, 3}. Round 1: 0 <-> 2 and 1 <-> 3 exchange blocks. Then within groups: 0 and 1
exchange their own blocks, then those of 2 and 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from antiphon.core.collective import Collective
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.errors import Invalid
from antiphon.options import Option
from antiphon.planners.radix.lanes import (
    Sizes,
    format_sizes,
    groups_by_place,
    lane_chains,
    lane_rounds,
    parse_sizes,
    seats_by_place,
)
from antiphon.planners.radix.mixed import resolve_k
from antiphon.planners.shared.rows import (
    ChainPieces,
    Order,
    Seats,
    finish_schedule,
    parse_order,
    per_root,
    plan_backwards,
    plan_in_halves,
    refuse_too_many_transfers,
)

CHAIN_PIECES = 32  # default number of slices of a broadcast or reduce


GroupSize = Annotated[int | None, Option("ranks of a group; the last may have fewer (default: see groups)", minimum=1)]
GroupSizes = Annotated[Sizes | None, Option("sizes of the groups, such as 4+4+2 (default: hosts)")]
Overlap = Annotated[
    bool, Option("rounds within groups share steps with rounds between them (T_AG,overlap of the paper)")
]


def kring(
    request: Request,
    *,
    k: GroupSize = None,
    groups: GroupSizes = None,
    overlap: Overlap = False,
    order: Order = None,
    pieces: ChainPieces = None,
) -> Iterator[Schedule]:
    """Yield one schedule: O(P^2) transfers, broadcast and reduce O(P). Groups are runs of ranks in `order`."""
    topology, collective = request.topology, request.collective
    ranks, is_chain = len(collective.members), collective.kind in ("broadcast", "reduce")
    rows = len(collective.roots) * ranks if is_chain else ranks * ranks * (2 if collective.kind == "allreduce" else 1)
    refuse_too_many_transfers("kring", request, rows)
    seating, sizes = _choose_groups(topology, collective, k, groups, order)
    # only chains are pipelined by default: in the other collectives rounds already keep links busy
    piece_count = pieces if pieces is not None else CHAIN_PIECES if is_chain else 1
    schedule = _plan_collective(collective, seating, sizes, overlap)
    # a plan names every order that was asked for, or that is not the members' own, even one chosen by places
    is_member_order = seating == list(collective.members)
    options = {
        "k": None if k is None else min(k, ranks), "groups": format_sizes(sizes) if k is None else None,
        "overlap": overlap or None, "order": None if order is None and is_member_order else ",".join(map(str, seating)),
        "pieces": piece_count,
    }  # fmt: skip
    yield finish_schedule(schedule, request, "kring", options, piece_count, {"groups": format_sizes(sizes)})


def _choose_groups(
    topology: Topology, collective: Collective, k: int | None, groups: Sizes | None, order: Order
) -> tuple[list[int], list[int]]:
    """Return the ranks in an order in which each group is a run, and the sizes of the groups."""
    if k is None and groups is None:
        return groups_by_place(topology, collective, order)
    if k is not None and groups is not None:
        raise Invalid("options k and groups: give one of them, k for groups of one size or groups for any")
    seating = parse_order(order, collective) if order is not None else seats_by_place(topology, collective)
    if groups is not None:
        return seating, parse_sizes(groups, len(seating))
    # All groups have k ranks, the last one the remainder.
    group_size = resolve_k(k, len(seating))
    full_groups, remainder = divmod(len(seating), group_size)
    return seating, [group_size] * full_groups + [remainder] * (remainder > 0)


def _plan_collective(collective: Collective, seating: list[int], sizes: list[int], overlap: bool) -> Schedule:
    """Return the schedule. `seating`: ranks in order, in which groups of these sizes are consecutive."""
    kind = collective.kind
    if kind == "allgather":
        return lane_rounds(collective, Seats.in_order(collective, seating), sizes, overlap)
    if kind == "broadcast":
        return per_root(collective, lambda single: lane_chains(single, Seats.in_order(single, seating), sizes))
    if kind in ("reducescatter", "reduce"):
        return plan_backwards(collective, lambda dual: _plan_collective(dual, seating, sizes, overlap))
    # Allreduce: reducescatter, then allgather on the same groups.
    return plan_in_halves(collective, lambda half: _plan_collective(half, seating, sizes, overlap))
