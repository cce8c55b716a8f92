"""The planner `sharp`: switches combine data on the way through the fabric and multicast the sum (InfiniBand SHARP).

Input: an allreduce, reduce or broadcast on a machine whose switches reduce, multicast and forward what they combined.
Output: one schedule of one step. Graham et al. 2016, "Scalable Hierarchical Aggregation Protocol": switches reduce what
comes from below and send it up; the top switch multicasts the result, which no rank has touched. An allreduce is one
joint (operation of the switches) of all ranks: every link carries nbytes once each way, half of a ring's traffic, at
the latency of going through the tree once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from antiphon.core.request import Request
from antiphon.core.schedule import REDUCE, Schedule, cut
from antiphon.planners.inswitch.nvls import ends_of, plan_shares, trees_for
from antiphon.planners.inswitch.schedule_builder import ScheduleBuilder
from antiphon.planners.inswitch.tree import usable_trees
from antiphon.planners.shared.rows import refuse_too_many_transfers


def sharp(request: Request) -> Iterator[Schedule]:
    """Yield one schedule of one step: P (P - 1) transfers for allreduce, P - 1 per root for reduce and broadcast."""
    topology, collective = request.topology, request.collective
    is_allreduce = collective.kind == "allreduce"
    trees, joints_at_once = usable_trees(topology, trees_for("sharp", topology, collective, through=is_allreduce))
    members = len(collective.members)
    ends = members if is_allreduce else len(ends_of(collective))
    refuse_too_many_transfers("sharp", request, len(trees) * ends * members)
    if not is_allreduce:
        schedule = plan_shares(collective, trees, joints_at_once, pieces=1)
    else:
        src, dst = (column.ravel() for column in np.meshgrid(np.arange(members), np.arange(members), indexing="ij"))
        src, dst = src[src != dst], dst[src != dst]
        builder, zeros = ScheduleBuilder(), np.zeros(len(src), np.int64)
        for number, tree in enumerate(trees):  # chunk `number` on this tree, all rows in step 0 and one joint
            builder.add_rows(tree, zeros, zeros + number, src, dst, REDUCE, zeros)
        schedule = builder.to_schedule(collective, cut(collective, len(trees)))
    yield replace(schedule, provenance={"planner": "sharp", "options": {}})
