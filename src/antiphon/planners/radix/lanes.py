"""The rounds of k-ring for groups of any sizes: lanes through the groups, and which rank represents a lane in each.

Called by kring.py: `parse_sizes` and `groups_by_place` give the groups, `lane_rounds` the allgather and `lane_chains`
the broadcast; other collectives are made of these. In k-ring, blocks travel from group to group along parallel rings,
the lanes, and then around within each group. Lane j is represented in a group of s ranks by its member j mod s, and the
block of member i belongs to lane i. If all groups have the same size every member is one lane; in a smaller group a
member serves several lanes. A seat is a position in the order of ranks, in which groups are consecutive.

Example: groups of 3 and 2. Lanes 0, 1, 2 go through members 0, 1, 2 of the first and members 0, 1, 0 of the second.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from itertools import groupby

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import Ints, Longs, as_int32, concat_ranges
from antiphon.core.schedule import COPY, Schedule, cut
from antiphon.core.topology import Topology
from antiphon.errors import Invalid, quote
from antiphon.planners.shared.groups import groups_at, groups_from_places, ranks_by_host
from antiphon.planners.shared.rows import Order, Seats, parse_order, rows_to_schedule

Sizes = str | int | Sequence[int]


def parse_sizes(groups: Sizes, ranks: int) -> list[int]:
    """Parse the option `groups`: "4+4+2" or "2*4+2" or a list, the sizes of groups of consecutive seats."""
    words = str(groups).split("+") if isinstance(groups, str | int) else list(groups)
    sizes: list[int] = []
    for word in words:
        match = re.fullmatch(r"(?:(\d{1,9})\*)?(\d{1,9})", str(word).strip())
        if match is None or not 1 <= int(match[2]) <= ranks or not 1 <= int(match[1] or 1) <= ranks:
            raise Invalid(f"option groups: expected sizes of 1 to {ranks} such as 4+4+2 or 2*4+2, got {quote(groups)}")
        sizes += [int(match[2])] * int(match[1] or 1)
    if sum(sizes) != ranks:
        raise Invalid(f"option groups: the groups of {quote(groups)} have {sum(sizes)} ranks together, not {ranks}")
    return sizes


def format_sizes(sizes: Iterable[int]) -> str:
    """Format sizes as the option takes them."""
    runs = [(size, len(list(equal_sizes))) for size, equal_sizes in groupby(sizes)]
    return "+".join(f"{times}*{size}" if times > 1 else str(size) for size, times in runs)


def groups_by_place(topology: Topology, collective: Collective, order: Order) -> tuple[list[int], list[int]]:
    """Return the ranks ordered by hosts (or in the requested order), and the sizes of the groups: the ranks per host.

    Within a single host the places inside it give the groups. If places give one group, or groups of single ranks, all
    groups have the size `divisor_near_root` of P.

    >>> from antiphon.core.topology import build
    >>> hosts = build("hosts", 5, [], places=["a/gpu0", "b/gpu0", "a/gpu1", "b/gpu1", "b/gpu2"])
    >>> groups_by_place(hosts, Collective("allgather", 5), None)
    ([0, 2, 1, 3, 4], [2, 3])
    """
    seating = parse_order(order, collective) if order is not None else seats_by_place(topology, collective)
    groups = ranks_by_host(topology, seating)
    depth, deepest = 1, max(topology.places[rank].count("/") for rank in seating)
    while len(groups) == 1 and depth <= deepest:
        groups, depth = groups_at(topology, seating, depth), depth + 1
    if not 1 < len(groups) < len(seating):
        k = divisor_near_root(len(seating))
        return seating, [k] * (len(seating) // k)
    number = {rank: i for i, group in enumerate(groups) for rank in group}
    # in a requested order, ranks of a host that are not neighbours are in several groups
    return seating, [len(list(run)) for _, run in groupby(seating, key=number.__getitem__)]


def seats_by_place(topology: Topology, collective: Collective) -> list[int]:
    """Return the members in an order in which neighbours by place are adjacent."""
    _, seating = groups_from_places(topology, collective.members)
    return seating


def divisor_near_root(ranks: int) -> int:
    """Return the least divisor that is not below the square root: a prime returns itself."""
    divisors = [d for d in range(1, math.isqrt(ranks) + 1) if ranks % d == 0]
    return ranks // divisors[-1]


def lane_rounds(collective: Collective, seats: Seats, sizes: Sequence[int], overlap: bool) -> Schedule:
    """Plan an allgather: rings between groups, then rings within them; P(P-1) rows, a block each.

    Within a group, the blocks of one group after the other go around: its own blocks first, then in order of arrival.
    A round here is a set of transfers in one step. With `overlap`, a round between groups shares its step with the
    first round within groups of the blocks that arrived before.

    Groups of two ranks and one: blocks 0 and 1 go to rank 2, block 2 to rank 0. Then ranks 0 and 1 exchange their
    blocks. Then block 2 goes on to rank 1.

    >>> collective = Collective("allgather", 3)
    >>> rounds = lane_rounds(collective, Seats.in_order(collective), [2, 1], False)
    >>> list(zip(*(c.tolist() for c in (rounds.step, rounds.chunk, rounds.src, rounds.dst))))
    [(0, 0, 0, 2), (0, 1, 1, 2), (0, 2, 2, 0), (1, 0, 0, 1), (1, 1, 1, 0), (2, 2, 0, 1)]
    """
    size, start = np.array(sizes), np.cumsum([0, *sizes[:-1]])
    groups, ranks = len(size), len(seats)
    owner = np.repeat(np.arange(groups), size)  # by seat: its group
    lane = concat_ranges(np.zeros(groups, np.int64), size)  # by seat: its number in the group, the lane of its block
    block, rank = as_int32(seats.member), seats.rank
    rows = ranks * (ranks - 1)
    step, chunk, src, dst = (np.empty(rows, np.int32) for _ in range(4))
    inner_rounds = int(size.max()) - 1  # rounds within a group
    round_steps = max(inner_rounds, 1) if overlap else 1  # steps from one round between groups to the next
    # rounds between groups: a block stays in its lane and moves on by one group per round. Arrays are (round, block)
    hop = np.arange(groups - 1)[:, None]
    sender, receiver = (start[g] + lane % size[g] for g in ((owner + hop) % groups, (owner + hop + 1) % groups))
    low = hop.size * ranks  # rows written so far
    for column, values in ((step, hop * round_steps), (chunk, block), (src, rank[sender]), (dst, rank[receiver])):
        column[:low].reshape(-1, ranks)[...] = values
    # (group, block): the step in which the block begins to go around in the group, where blocks come in the order of
    # the distance of their owner's group
    begin = (0 if overlap else groups - 1) + inner_rounds * ((np.arange(groups)[:, None] - owner) % groups)
    # rounds within each group: blocks of a lane start at the lane's representative
    for group in range(groups):
        first, length = int(start[group]), int(size[group])
        round_number = np.arange(length - 1)[:, None]
        high = low + round_number.size * ranks
        ring: Ints = rank[first : first + length]
        for column, values in (
            (step, begin[group] + round_number), (chunk, block), (src, ring[(lane + round_number) % length]),
            (dst, ring[(lane + round_number + 1) % length]),
        ):  # fmt: skip
            column[low:high].reshape(-1, ranks)[...] = values
        low = high
    return Schedule(collective, cut(collective, parts=1), step, chunk, src, dst, np.full(rows, COPY, np.uint8))


def lane_chains(collective: Collective, seats: Seats, sizes: Sequence[int]) -> Schedule:
    """Plan a broadcast from one root: a chain over the groups along the root's lane, then one within each group. O(P).

    >>> collective = Collective("broadcast", 4, roots=(1,))
    >>> chains = lane_chains(collective, Seats.in_order(collective), [2, 2])
    >>> list(zip(*(c.tolist() for c in (chains.step, chains.src, chains.dst))))
    [(0, 1, 3), (1, 1, 0), (1, 3, 2)]
    """
    size, start = np.array(sizes), np.cumsum([0, *sizes[:-1]])
    groups = len(size)
    root = int(np.flatnonzero(seats.rank == collective.roots[0])[0])
    root_group = int(np.searchsorted(start, root, side="right")) - 1
    group_order = (root_group + np.arange(groups)) % groups
    # in the order of groups: the number in its group of the rank that represents the lane, and its seat
    member = (root - start[root_group]) % size[group_order]
    leader = start[group_order] + member
    columns: list[tuple[Longs, Longs, Longs]] = [(np.arange(groups - 1), leader[:-1], leader[1:])]
    for position, group in enumerate(group_order.tolist()):
        hop = np.arange(int(size[group]) - 1)
        # the last leader sends to no further group, so its own group continues in the next step
        begin = min(position + 1, groups - 1)
        chain = start[group] + (member[position] + np.arange(int(size[group]))) % size[group]
        columns.append((begin + hop, chain[:-1], chain[1:]))
    step, src, dst = (np.concatenate(column) for column in zip(*columns, strict=True))
    return rows_to_schedule(collective, seats, step, np.zeros_like(step), src, dst)
