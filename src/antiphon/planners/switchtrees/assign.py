"""Which server holds which block: Algorithm 1 from the root downwards, so that no block is left unassigned.

The paper assigns from the leaves upwards, and its greedy leaves blocks unassigned where subtrees differ (most random
trees). Downwards it cannot fail: the owners below a switch are fixed; each child keeps the blocks that its own servers
own and assigns the others so that each server below it has floor or ceil of blocks / servers. That is possible: if n of
N servers own b blocks each and the child has fewer than N servers, each may hold at least b.

Example: 4 blocks, owners 0..3, a child with servers 0 and 1: it keeps blocks 0 and 1, and gives server 0 block 2 and
server 1 block 3, partial results that go on to their owners later.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from antiphon.core.columns import Floats, Longs, starts


@dataclass(frozen=True, eq=False)
class Owned:
    """Blocks by owner: the child of a switch that it is in, and its relative place in this child, from 0 to 1.

    A server with several blocks is a stretch.
    """

    child: Longs
    at: Floats

    @staticmethod
    def by_child(owner: Longs, low: Longs) -> Owned:
        """Locate the owners. `low`: the first server of each child, and the end of the last. O(blocks log blocks).

        >>> owned = Owned.by_child(np.array([0, 3, 1, 3]), np.array([0, 2, 4]))  # two children of two servers each
        >>> owned.child.tolist(), owned.at.tolist()
        ([0, 1, 0, 1], [0.25, 0.625, 0.75, 0.875])
        """
        child = np.searchsorted(low, owner, side="right") - 1
        order = np.argsort(owner, kind="stable")
        flags = starts(owner[order])
        first = np.maximum.accumulate(np.where(flags, np.arange(len(owner)), 0))
        group = np.cumsum(flags) - 1
        owned_count = np.bincount(group)[group]
        at = np.empty(len(owner))
        at[order] = (np.arange(len(owner)) - first + 0.5) / owned_count
        at += owner - low[child]
        return Owned(child, at / np.diff(low)[child])


def deal_blocks(owner: Longs, owned: Owned, low: int, high: int) -> Longs:
    """Return which of the servers low .. high-1 holds each block, everyone floor or ceil of blocks / servers.

    The owner itself where it is one of them; else the server at the owner's relative place in its own child, as far as
    all get equally many. O(blocks log blocks).
    """
    count, blocks = high - low, len(owner)
    if count == 1:
        return np.full(blocks, low, np.int64)
    holder = owner.copy()
    owned_here = (owner >= low) & (owner < high)
    load = np.bincount(owner[owned_here] - low, minlength=count)
    owned_elsewhere = np.flatnonzero(~owned_here)
    want = np.minimum((owned.at[owned_elsewhere] * count).astype(np.int64), count - 1)
    room = _remaining_room(load, np.bincount(want, minlength=count), blocks)
    order = np.lexsort((owned.child[owned_elsewhere], owned.at[owned_elsewhere]))
    owned_elsewhere, want = owned_elsewhere[order], want[order]
    flags = starts(want)
    rank = np.arange(len(want)) - np.maximum.accumulate(np.where(flags, np.arange(len(want)), 0))
    fits = rank < room[want]
    holder[owned_elsewhere[fits]] = want[fits] + low
    unused_room = room - np.bincount(want[fits], minlength=count)
    holder[owned_elsewhere[~fits]] = np.repeat(np.arange(low, high), unused_room)
    return holder


def _remaining_room(load: Longs, requests: Longs, blocks: int) -> Longs:
    """Return the number of further blocks that each server takes.

    Some end with one more than others: those that own more already, then those with most requests.
    """
    quota, remainder = divmod(blocks, len(load))
    room = quota - load
    forced = room < 0
    eager = np.argsort(np.where(forced, len(load) + requests.sum(), room - requests), kind="stable")
    room[forced] = 0
    spare = max(remainder - int(forced.sum()), 0)
    room[eager[:spare]] += 1
    return room


def gather_holders(holder: Longs, low: int, high: int, group_count: int) -> Longs:
    """Return who of `group_count` servers, evenly among low .. high-1, takes over what each held (data
    rearrangement, 4.2).
    """
    return representatives(high - low, group_count)[holder - low] + low


def representatives(count: int, group_count: int) -> Longs:
    """Return for each server the first of its group, for `group_count` groups of neighbours."""
    group = np.arange(count) * group_count // count
    first = np.flatnonzero(starts(group))
    return first[group]
