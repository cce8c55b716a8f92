"""The planner `nvls`: switches reduce every rank's share on its way to that rank, and multicast it from there.

Input: an allreduce, or one half of it (reduce, reducescatter; broadcast, allgather), on a machine whose switches reduce
and multicast, as NVIDIA's NVLink switches do (NVLS). Output: schedules of joints, which are single reductions or
multicasts by a switch.

With NVIDIA's multimem instructions a GPU reads the sum of all ranks' values through the switch, and writes one value to
all. So each rank owns 1/P of the data: it reads the sum of its share and writes it back to all. On P ranks at one
switch each rank sends nbytes and receives nbytes in total, and 1/P of nbytes more if a rank's own data cross the
switch, too. That is (P + 1) / P of nbytes per link; a ring needs 2 (P - 1) / P. Several switches that form a tree do
the same; several equivalent trees share the data (tree.py).

If a switch serves only r joints at once, the shares take turns (`schedule_turns`), or plain transfers use the links
that joints leave idle (ring_mixture.py).

Example: P = 8: 9/8 of nbytes per link, where a ring needs 14/8.
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
from antiphon.planners.inswitch.ring_mixture import mixture_rows, plan_mixture
from antiphon.planners.inswitch.schedule_builder import ScheduleBuilder
from antiphon.planners.inswitch.tree import SwitchTree, switch_trees, usable_trees
from antiphon.planners.shared.rows import refuse_too_many_transfers

PIECE_COUNTS = (1, 2, 8, 16, 32, 64, 128, 512)  # numbers of pieces by default
LAPS = (1, 8, 32)  # default numbers of chunks per rank on the ring that works beside the joints
MAX_DEFAULT_ROWS = 2**21  # rows of a mixture by default, with the first of LAPS
MAX_FURTHER_ROWS = 2**17  # the same with the others
REDUCES = ("allreduce", "reducescatter", "reduce")  # collectives that reduce
SPREADS = ("allreduce", "allgather", "broadcast")  # collectives that multicast


PiecesOrSeveral = Annotated[int | None, Option("pipelining depth (default: several where that pays)", minimum=1)]
Beside = Annotated[
    bool | None, Option("plain transfers use what joints leave idle, where switches serve few at once (default: both)")
]


def nvls(request: Request, *, pieces: PiecesOrSeveral = None, beside: Beside = None) -> Iterator[Schedule]:
    """Yield schedules of 2 P (P - 1) transfers in one or two steps (reduce and broadcast: P - 1 per root).

    `pieces`: slices of an allreduce; None yields several numbers. `beside`: if switches serve few joints at once, use
    the idle links for plain transfers; None yields both variants.
    """
    topology, collective = request.topology, request.collective
    trees, joints_at_once = usable_trees(topology, trees_for("nvls", topology, collective))
    if beside is not False:
        yield from _yield_mixtures(request, trees, joints_at_once, pieces, required=beside is True)
    if beside:
        return
    # per tree, the transfers of all reductions; an allreduce has as many of multicasts
    transfers = len(collective.members) * len(ends_of(collective)) * len(trees)
    refuse_too_many_transfers("nvls", request, 2 * transfers)
    # pieces pay where reductions and multicasts overlap: in an allreduce, unless they take turns at a single joint
    for piece_count in piece_counts(pieces, collective.kind == "allreduce" and joints_at_once != 1):
        schedule = plan_shares(collective, trees, joints_at_once, piece_count)
        yield replace(schedule, provenance={"planner": "nvls", "options": {"pieces": piece_count}})


def _yield_mixtures(
    request: Request, trees: list[SwitchTree], joints_at_once: int, pieces: int | None, required: bool
) -> Iterator[Schedule]:
    """Yield allreduces with plain transfers beside the joints, if joints leave links idle; else, if `required`, raise.

    `joints_at_once`: the joints that each tree serves at once; 0: any number.
    """
    topology, collective = request.topology, request.collective
    count = len(collective.members)
    # with fewer than 2 joints at once no reduction runs beside a multicast; 2 P joints leave no link idle; a mixture
    # also assumes that a rank's own data cross the switch (ability `own`)
    eligible = collective.kind == "allreduce" and count > 2 and 2 <= joints_at_once < 2 * count
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
    # with more chunks on the ring, the idle links are filled more evenly
    for laps in LAPS if pieces is None else piece_counts(pieces, pipelined=True):
        rows = len(trees) * mixture_rows(count, joints_at_once // 2, laps)
        if not required and rows > (MAX_DEFAULT_ROWS if laps == 1 else MAX_FURTHER_ROWS):
            return
        refuse_too_many_transfers("nvls", request, rows)
        schedule = plan_mixture(collective, trees, joints_at_once, laps)
        yield replace(schedule, provenance={"planner": "nvls", "options": {"pieces": laps, "beside": True}})


def piece_counts(pieces: int | None, pipelined: bool) -> tuple[int, ...]:
    """Return the numbers of pieces to plan for: the user's, or several; 1 if the plan is not `pipelined`."""
    if pieces is None:
        return PIECE_COUNTS if pipelined else (1,)
    return (pieces if pipelined else 1,)


def trees_for(planner: str, topology: Topology, collective: Collective, through: bool = False) -> list[SwitchTree]:
    """Return the trees of switches with all abilities that the collective needs, or raise Unsupported.

    `through`: whether some switch must send on what it combined without a rank in between.
    """
    abilities = {"reduce": collective.kind in REDUCES, "multicast": collective.kind in SPREADS, "through": through}
    trees = switch_trees(topology, np.array(collective.members), **abilities)
    if not trees:
        verbs = " and ".join(name for name in ("reduce", "multicast") if abilities[name])
        extra = ", and forward what they reduced (through)" if through else ""
        raise Unsupported(
            f"planner {planner}: the members are not all joined by switches of {topology.name} that "
            f"{verbs}{extra}; use nvls-tree where those of each box can, or a planner without them, such as ring or "
            "trees"
        )
    return trees


def ends_of(collective: Collective) -> Longs:
    """Return the ranks where shares are reduced to or multicast from, as positions among the members: roots, or all."""
    members = np.array(collective.members)
    return np.searchsorted(members, collective.roots) if collective.roots else np.arange(len(members))


def plan_shares(collective: Collective, trees: list[SwitchTree], joints_at_once: int, pieces: int) -> Schedule:
    """Return the schedule in which every rank's share is one reduction, one multicast, or both; the trees share it."""
    ends, builder = ends_of(collective), ScheduleBuilder()
    reduce_step, multicast_step = schedule_turns(
        len(ends), joints_at_once, pieces, allreduce=collective.kind == "allreduce"
    )
    for number, tree in enumerate(trees):
        # Each share has P - 1 rows: all ranks but its end, which `peer` skips.
        share_of_row = np.repeat(np.arange(len(ends)), len(tree.node) - 1)
        end = ends[share_of_row]
        peer = np.tile(np.arange(len(tree.node) - 1), len(ends))
        peer += peer >= end
        chunk = number * len(ends) + share_of_row
        if collective.kind in REDUCES:
            builder.add_rows(
                tree, reduce_step[share_of_row], chunk, src=peer, dst=end, op=REDUCE, joint=share_of_row
            )  # fmt: skip
        if collective.kind in SPREADS:
            builder.add_rows(
                tree, multicast_step[share_of_row], chunk, src=end, dst=peer, op=COPY, joint=share_of_row
            )  # fmt: skip
    shares = len(trees) * len(ends) // collective.blocks  # chunks of a block
    return replace(builder.to_schedule(collective, cut(collective, shares)), pieces=pieces)


def schedule_turns(count: int, joints_at_once: int, pieces: int, allreduce: bool) -> tuple[Longs, Longs]:
    """Return the steps in which each of `count` shares is reduced, and multicast, with limited joints at once.

    An allreduce multicasts a share one step after its reduction. With r reductions and m multicasts at the same time,
    the ranks where they end and begin carry 1/r and 1/m more than the others; that is least if half of the
    joints reduce and half multicast.
    """
    # Rounds of as many shares as there are joints at once (0: unlimited). Each takes a step per piece.
    if not allreduce or not joints_at_once or (pieces == 1 and joints_at_once >= count):
        reduce_step = np.arange(count) // (joints_at_once or count) * pieces
        return reduce_step, reduce_step + int(allreduce)
    # Half of the joints reduce, half multicast. With only one joint the two alternate, so a round takes 2 steps.
    shares_at_once, stride = (joints_at_once // 2, pieces) if joints_at_once > 1 else (1, 2)
    reduce_step = np.arange(count) // min(shares_at_once, count) * stride
    return reduce_step, reduce_step + 1
