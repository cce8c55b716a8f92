"""Keep few of an allreduce's many trees, chosen so that links stay equally loaded.

Plans for large machines send every rank's block along trees of its own: 6,144 trees of 512 ranks on an 8x8x8 torus. To
reattach branches and balance loads one tree at a time then takes minutes. An allreduce has no block per rank: any of
its trees can carry any data. So some of them can carry all of it, each a larger chunk.

Example: of trees that take links (0, 1), (1, 2), (2, 3) and (3, 0), two remain: (0, 1) and (2, 3).
"""

from __future__ import annotations

import numpy as np

from antiphon.core.columns import as_int32
from antiphon.core.routes import resolve
from antiphon.core.schedule import Chunks, Schedule
from antiphon.core.topology import Topology


def thin_trees(schedule: Schedule, topology: Topology, max_hops: int) -> Schedule:
    """Return the schedule with so few of its chunks that these have at most `max_hops` hops per direction.

    Schedules of other collectives than allreduce, and of chunks of unequal sizes, are returned as they are.
    O(chunks kept * chunks * links per tree).
    """
    chunks, count = schedule.chunks, max(1, max_hops // schedule.collective.ranks)
    is_even = schedule.collective.kind == "allreduce" and len(np.unique(chunks.share)) == 1
    if len(chunks) <= count or not is_even or schedule.slots > 1 or not isinstance(schedule.pieces, int):
        return schedule
    resolved = resolve(topology, schedule.src, schedule.dst, schedule.route, schedule.routes)
    lengths = np.diff(resolved.table.ptr)[resolved.route]
    routes = resolved.table.take(resolved.route.astype(np.int64))
    crossings = np.zeros((topology.links, len(chunks)), np.int32)  # how often the trees of a chunk cross a link
    np.add.at(crossings, (routes.links, np.repeat(schedule.chunk, lengths)), 1)
    # Each chunk in turn adds least to the sum over links of (load / bandwidth)^2, in integers: sums of floats differ
    # between machines.
    bandwidths = [kind.bandwidth for kind in topology.types]
    weight = np.array([round((16 * max(bandwidths) / x) ** 2) for x in bandwidths], np.int64)[topology.link_type]
    cost = np.zeros(len(chunks), np.int64)  # by chunk, what it adds besides a constant
    selected = np.zeros(len(chunks), bool)
    for _ in range(count):
        chunk = int(np.argmin(np.where(selected, np.iinfo(np.int64).max, cost)))
        selected[chunk] = True
        links = np.flatnonzero(crossings[:, chunk])
        cost += np.einsum("i,ij->j", weight[links] * crossings[links, chunk], crossings[links])
    rows = selected[schedule.chunk]
    number = np.cumsum(selected) - 1
    new_chunks = Chunks(as_int32(np.zeros(count)), np.arange(count), np.ones(count, np.int64), count)
    return schedule.take(np.flatnonzero(rows), chunks=new_chunks, chunk=as_int32(number[schedule.chunk[rows]]))
