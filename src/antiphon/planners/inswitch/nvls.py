"""Reduce every rank's share in the switch on its way to that rank, and multicast it from there (NVIDIA's NVLS).

With multimem instructions a GPU reads the sum of all ranks' values through the switch, and writes one value to all. On
P ranks at one switch each rank therefore sends nbytes up and receives nbytes, and 1/P of nbytes more where a rank's own
data cross the switch, too: (P+1)/P per link instead of the 2(P-1)/P of a ring. Several switches that are joined to a
tree do the same; several equivalent trees share the data.

Where a switch serves only r joints at once, the shares take turns (`schedule_turns`), or plain transfers use the links
that joints leave idle (beside.py).

Example: P = 8: 9/8 of nbytes per link, a ring needs 14/8.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import Longs
from antiphon.core.request import Request
from antiphon.core.schedule import COPY, REDUCE, Schedule, cut
from antiphon.core.topology import Topology
from antiphon.errors import Unsupported
from antiphon.options import Option
from antiphon.planners.inswitch.beside import mixture_rows, plan_mixture
from antiphon.planners.inswitch.sheet import Sheet
from antiphon.planners.inswitch.tree import SwitchTree, switch_trees, usable_trees
from antiphon.planners.shared.rows import refuse_more_than_fits

DEPTHS = (1, 2, 8, 16, 32, 64, 128, 512)
LAPS = (1, 8, 32)  # of the ring, beside the joints
MOST_ROWS, MOST_ROWS_AGAIN = 2**21, 2**17  # unless asked for: of a mixture, and of one in more pieces
REDUCES, SPREADS = ("allreduce", "reducescatter", "reduce"), ("allreduce", "allgather", "broadcast")


PiecesOrSeveral = Annotated[int | None, Option("pipelining depth (default: several where that pays)", minimum=1)]
Beside = Annotated[
    bool | None, Option("plain transfers use what joints leave idle, where switches serve few at once (default: both)")
]


def nvls(request: Request, *, pieces: PiecesOrSeveral = None, beside: Beside = None) -> Iterator[Schedule]:
    """Yield one schedule of 2 P (P-1) transfers in one or two steps (reduce and broadcast: P-1 per root).

    Allreduce without `pieces`: several numbers of pieces. Where switches serve few joints at once, the shares take
    turns; with `beside` plain transfers use what the joints leave idle (default: both variants).
    """
    topology, collective = request.topology, request.collective
    trees, room = usable_trees(topology, trees_for("nvls", topology, collective))
    if beside is not False:
        yield from _yield_mixtures(topology, collective, (trees, room), pieces, required=beside is True)
    if beside:
        return
    # An upper limit: one half (reduction or multicast) per tree; doubled below.
    transfers = len(collective.members) * len(ends_of(collective)) * len(trees)
    refuse_more_than_fits("nvls", topology, collective, 2 * transfers)
    for depth in piece_counts(pieces, collective.kind == "allreduce" and room != 1):
        schedule = plan_shares(collective, trees, room, depth)
        yield replace(schedule, provenance={"planner": "nvls", "options": {"pieces": depth}})


def _yield_mixtures(
    topology: Topology, collective: Collective, among: tuple[list[SwitchTree], int], pieces: int | None, required: bool
) -> Iterator[Schedule]:
    """Yield allreduces with plain transfers beside the joints, where the joints leave links idle."""
    trees, room = among
    count = len(collective.members)
    # Fewer than 2 joints at once cannot pair a reduction with a multicast; 2 P leave nothing idle.
    eligible = collective.kind == "allreduce" and count > 2 and 2 <= room < 2 * count
    if not (
        eligible
        and any(topology.ability(node).own for tree in trees for node in tree.branching_switches(topology).tolist())
    ):
        if required:
            raise Unsupported(
                f"planner nvls: there is nothing to put beside the joints of this {collective.kind} on "
                f"{topology.name}: that pays for allreduce where what a rank has itself crosses the switch (own) and "
                f"it serves from 2 to {2 * count - 1} joints at once (at_once); leave option beside out"
            )
        return
    for laps in LAPS if pieces is None else piece_counts(pieces, True):
        rows = len(trees) * mixture_rows(count, room // 2, laps)
        if not required and rows > (MOST_ROWS if laps == 1 else MOST_ROWS_AGAIN):
            return
        refuse_more_than_fits("nvls", topology, collective, rows)
        schedule = plan_mixture(collective, trees, room, laps)
        yield replace(schedule, provenance={"planner": "nvls", "options": {"pieces": laps, "beside": True}})


def piece_counts(pieces: int | None, pipelined: bool) -> tuple[int, ...]:
    """Return the numbers of pieces to try: the user's, or several where that pays."""
    if pieces is None:
        return DEPTHS if pipelined else (1,)
    return (pieces if pipelined else 1,)


def trees_for(planner: str, topology: Topology, collective: Collective, through: bool = False) -> list[SwitchTree]:
    """Return the trees of switches with all abilities that the collective needs, or raise Unsupported."""
    abilities = {"reduce": collective.kind in REDUCES, "multicast": collective.kind in SPREADS, "through": through}
    trees = switch_trees(topology, np.array(collective.members), **abilities)
    if not trees:
        verbs = " and ".join(name for name in ("reduce", "multicast") if abilities[name])
        extra = ", and send on what they combined (through)" if through else ""
        raise Unsupported(
            f"planner {planner}: the ranks that take part are not all joined by switches of {topology.name} that "
            f"{verbs}{extra}; use nvls-tree where those of each box can, or a planner without them, such as ring or "
            "trees"
        )
    return trees


def ends_of(collective: Collective) -> Longs:
    """Return the positions among the members at which shares end or begin, one each."""
    members = np.array(collective.members)
    return np.searchsorted(members, collective.roots) if collective.roots else np.arange(len(members))


def plan_shares(collective: Collective, trees: list[SwitchTree], room: int, pieces: int) -> Schedule:
    """Plan every rank's share as a reduction, a multicast, or both; a fraction of it on every tree."""
    ends, sheet = ends_of(collective), Sheet()
    begin, multicast_at = schedule_turns(len(ends), room, pieces, allreduce=collective.kind == "allreduce")
    for number, tree in enumerate(trees):
        # Each share has P - 1 rows: all ranks but its end, which `other` skips.
        which = np.repeat(np.arange(len(ends)), len(tree.node) - 1)
        end = ends[which]
        other = np.tile(np.arange(len(tree.node) - 1), len(ends))
        other += other >= end
        chunk = number * len(ends) + which
        if collective.kind in REDUCES:
            sheet.add_rows(tree, begin[which], chunk, other, end, REDUCE, which)
        if collective.kind in SPREADS:
            sheet.add_rows(tree, multicast_at[which], chunk, end, other, COPY, which)
    shares = len(trees) * len(ends) // collective.blocks
    return replace(sheet.to_schedule(collective, cut(collective, shares)), pieces=pieces)


def schedule_turns(count: int, room: int, pieces: int, allreduce: bool) -> tuple[Longs, Longs]:
    """Return when each share is reduced, and when multicast, with at most `room` joints at once.

    With r reductions and m multicasts side by side the ranks that they end and begin at carry 1/r and 1/m more than
    the others: least where both are half of what there is room for.
    """
    # Rounds of `room` shares (0: unlimited); an allreduce multicasts a share one step after its reduction.
    if not allreduce or not room or (pieces == 1 and room >= count):
        begin = np.arange(count) // (room or count) * pieces
        return begin, begin + allreduce
    # Half of the room for reductions, half for multicasts; with room for one joint the two alternate.
    each, stride = (room // 2, pieces) if room > 1 else (1, 2)
    begin = np.arange(count) // min(each, count) * stride
    return begin, begin + 1
