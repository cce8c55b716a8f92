"""Keep few of an allreduce's many trees, chosen so that links stay equally loaded.

Plans for large machines send every rank's block along trees of its own: 6,144 trees of 512 ranks on an 8x8x8 torus. To
reattach branches and balance loads one tree at a time then takes minutes. An allreduce has no block per rank: any of
its trees can carry any data. So some of them can carry all of it, each a larger chunk.

Example: of trees that take links (0, 1), (1, 2), (2, 3) and (3, 0), two remain: (0, 1) and (2, 3).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from antiphon.core.columns import Longs, as_int32
from antiphon.core.routes import resolve
from antiphon.core.schedule import Chunks, Schedule
from antiphon.core.topology import Topology


def thin_trees(schedule: Schedule, topology: Topology, max_hops: int) -> Schedule:
    """Return the schedule with so few of its chunks that these have at most `max_hops` hops per direction.

    Those kept are equally large; of each size of the old chunks, as many are kept as these carry of the data. Schedules
    of other collectives, or with few large chunks beside small ones, are returned as they are.
    O(chunks kept * chunks * links per tree).
    """
    chunks, count = schedule.chunks, max(1, max_hops // schedule.collective.ranks)
    size_class, to_keep = _count_by_size(chunks.share, count)
    is_thinnable = schedule.collective.kind == "allreduce" and int(to_keep.sum()) == count
    if len(chunks) <= count or not is_thinnable or schedule.slots > 1 or not isinstance(schedule.pieces, int):
        return schedule
    resolved = resolve(topology, schedule.src, schedule.dst, schedule.route, schedule.routes)
    lengths = np.diff(resolved.table.ptr)[resolved.route]
    routes = resolved.table.take(resolved.route.astype(np.int64))
    crossings = np.zeros((topology.links, len(chunks)), np.int32)  # how often the trees of a chunk cross a link
    np.add.at(crossings, (routes.links, np.repeat(schedule.chunk, lengths)), 1)
    # Each chunk in turn adds least to the sum over links of (load / bandwidth)^2, in integers: sums of floats differ
    # between machines.
    bandwidths = [kind.bandwidth for kind in topology.types]
    # 16: the squares of relative bandwidths in units of 1/256
    weight = np.array([round((16 * max(bandwidths) / x) ** 2) for x in bandwidths], np.int64)[topology.link_type]
    cost = np.zeros(len(chunks), np.int64)  # by chunk, what it adds besides a constant
    selected = np.zeros(len(chunks), bool)
    for _ in range(count):
        chunk = int(np.argmin(np.where(selected | (to_keep[size_class] == 0), np.iinfo(np.int64).max, cost)))
        selected[chunk] = True
        to_keep[size_class[chunk]] -= 1
        links = np.flatnonzero(crossings[:, chunk])
        cost += np.einsum("i,ij->j", weight[links] * crossings[links, chunk], crossings[links])
    rows = selected[schedule.chunk]
    number = np.cumsum(selected) - 1
    new_chunks = Chunks(as_int32(np.zeros(count)), np.arange(count), np.ones(count, np.int64), count)
    return schedule.take(np.flatnonzero(rows), chunks=new_chunks, chunk=as_int32(number[schedule.chunk[rows]]))


def _count_by_size(share: Longs, count: int) -> tuple[Longs, Longs]:
    """Return the class of every chunk, by size, and the number of each class to keep: `count` in all, by their data.

    Fewer if a class has too few chunks for its data, as those kept are equally large.

    >>> _count_by_size(np.array([6, 6, 6, 2, 1, 1]), 3)
    (array([2, 2, 2, 1, 0, 0]), array([0, 0, 3]))
    """
    sizes, size_class, chunks = np.unique(share, return_inverse=True, return_counts=True)
    data = [int(size) * int(number) for size, number in zip(sizes, chunks, strict=True)]
    exact = [Fraction(count * amount, sum(data)) for amount in data]
    whole_parts = np.array([int(number) for number in exact])
    # the largest remainders get what is left; more than there are of a class is not possible
    order = sorted(range(len(exact)), key=lambda i: (int(whole_parts[i]) - exact[i], i))
    whole_parts[order[: count - int(whole_parts.sum())]] += 1
    return size_class, np.minimum(whole_parts, chunks)
