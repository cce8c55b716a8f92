"""An allreduce from an allgather: every rank's whole input goes everywhere and is added where it arrives.

It takes as many steps as an allgather of such inputs: half of those of a reducescatter followed by an allgather. In
return it moves more data.

Example: three ranks on a line, 0 - 1 - 2. Rank 1 receives the inputs of 0 and 2; it adds them to its own, and keeps
each in a slot of its own as well, from where it forwards it to the other end.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import as_int32
from antiphon.core.schedule import COPY, REDUCE, Schedule, cut


def add_on_arrival(allgather: Schedule, collective: Collective) -> Schedule:
    """Return an allreduce made of an allgather among the same members, with equally many chunks in every block.

    O(n) for n transfers. Data that a rank must forward are kept in a slot of their own and added from there one step
    later.
    """
    slot_of = {rank: i + 1 for i, rank in enumerate(collective.members)}
    blocks = len(collective.members)
    rows: list[tuple[int, ...]] = []  # step, chunk, src, dst, op, route, src_slot, dst_slot, joint
    last_send: dict[tuple[int, int], int] = defaultdict(lambda: -1)  # (chunk, rank) -> last step in which it sends that
    transfers = allgather.transfers
    routes = allgather.route.tolist() if allgather.route is not None else [-1] * transfers
    joints = allgather.joint.tolist() if allgather.joint is not None else [-1] * transfers
    columns = (allgather.step, allgather.chunk, allgather.src, allgather.dst)
    sends = list(zip(*(column.tolist() for column in columns), routes, joints, strict=True))
    for step, chunk, src, *_ in sends:
        last_send[chunk, src] = max(last_send[chunk, src], step)
    # All receivers of a joint must do the same: if one keeps the data in a slot, all do.
    forwarded_joints = {joint for step, chunk, _, dst, _, joint in sends if last_send[chunk, dst] > step} - {-1}
    for step, chunk, src, dst, route, joint in sends:
        # As `schedule.cut` numbers chunks. The allreduce has a single block, so its chunks are the parts.
        part_number, block = divmod(chunk, blocks)
        owner = collective.members[block]
        slot = slot_of[owner]
        # Slot 0 accumulates the result: only in step 0 does it still hold the rank's own input alone.
        source = slot if src != owner or step > 0 else 0
        if last_send[chunk, dst] > step or joint in forwarded_joints:
            rows.append((step, part_number, src, dst, COPY, route, source, slot, joint))
            rows.append((step + 1, part_number, dst, dst, REDUCE, -1, slot, 0, -1))
        else:
            rows.append((step, part_number, src, dst, REDUCE, route, source, 0, joint))
    # A rank that sends its own input after step 0 needs a copy of it, as slot 0 may hold more by then.
    for (chunk, rank), last_step in sorted(last_send.items()):
        part_number, block = divmod(chunk, blocks)
        if collective.members[block] == rank and last_step > 0:
            rows.append((0, part_number, rank, rank, COPY, -1, 0, slot_of[rank], -1))
    table = np.array(sorted(rows), np.int64).reshape(-1, 9).T
    step_of, chunk_of, src_of, dst_of, op, route_of, src_slot, dst_slot, joint_of = map(as_int32, table)
    return Schedule(
        collective, cut(collective, len(allgather.chunks) // blocks), step_of, chunk_of, src_of, dst_of,
        op.astype(np.uint8), route=route_of, src_slot=src_slot, dst_slot=dst_slot, routes=allgather.routes,
        joint=joint_of if allgather.joint is not None else None,
    )  # fmt: skip
