"""Assign blocks to servers: which server below a switch's child collects the child's partial sum of each block.

Input of `deal_blocks`: the owner of every block (the server that ends with its sum), and one child of a switch, a run
of servers. Output: for every block the server of this child that holds the child's partial sum when the switch
combines its children. An owner in the child holds its own blocks; the other blocks are dealt out so that each server
has floor or ceil of blocks / servers. `gather_holders` moves the blocks of a child to fewer of its servers.

The GenTree paper (Algorithm 1) assigns from the leaves up, and its greedy method leaves blocks unassigned if subtrees
differ, as in most random trees. From the root down assignment cannot fail: each of N servers owns b blocks, and a child
of fewer than N servers lets each hold at least b, so that every owner can keep its own.

Example: 4 blocks, owners 0..3, a child with servers 0 and 1. They hold blocks 0 and 1, which they own; server 0 also
holds block 2 and server 1 block 3, partial sums that go on to their owners later.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from antiphon.core.columns import Floats, Longs, index_in_run, run_starts


@dataclass(frozen=True, eq=False)
class Owned:
    """Where blocks are owned: `child`, the child of a switch that the owner is in; `at`, its position there, 0 to 1.

    The blocks of a server that owns several have positions side by side.
    """

    child: Longs
    at: Floats

    @staticmethod
    def by_child(owner: Longs, low: Longs) -> Owned:
        """Return where the owners are. `low`: the first server of each child, and the end of the last.

        >>> owned = Owned.by_child(np.array([0, 3, 1, 3]), np.array([0, 2, 4]))  # two children of two servers each
        >>> owned.child.tolist(), owned.at.tolist()
        ([0, 1, 0, 1], [0.25, 0.625, 0.75, 0.875])
        """
        child = np.searchsorted(low, owner, side="right") - 1
        order = np.argsort(owner, kind="stable")
        group = np.cumsum(run_starts(owner[order])) - 1
        owned_count = np.bincount(group)[group]
        at = np.empty(len(owner))
        at[order] = (index_in_run(group) + 0.5) / owned_count  # the middles of equal stretches of a unit
        at += owner - low[child]
        return Owned(child, at / np.diff(low)[child])


def deal_blocks(owner: Longs, owned: Owned, low: int, high: int) -> Longs:
    """Return which of the servers low .. high-1 holds each block, each server floor or ceil of blocks / servers.

    An owner holds its own blocks: no server of the child may own more than ceil(blocks / servers). Others go to the
    server at the owner's position in its own child, so that neighbours exchange data, as far as equal numbers allow.
    O(blocks log blocks).
    """
    count, blocks = high - low, len(owner)
    if count == 1:
        return np.full(blocks, low, np.int64)
    holder = owner.copy()
    owned_here = (owner >= low) & (owner < high)
    load = np.bincount(owner[owned_here] - low, minlength=count)
    owned_elsewhere = np.flatnonzero(~owned_here)
    # every server gets the first of the blocks meant for it, as many as it has room for; the other blocks fill the rest
    target = np.minimum((owned.at[owned_elsewhere] * count).astype(np.int64), count - 1)
    room = _remaining_room(load, np.bincount(target, minlength=count), blocks)
    order = np.lexsort((owned.child[owned_elsewhere], owned.at[owned_elsewhere]))
    owned_elsewhere, target = owned_elsewhere[order], target[order]
    fits = index_in_run(target) < room[target]
    holder[owned_elsewhere[fits]] = target[fits] + low
    # all servers together have room for exactly the blocks owned elsewhere
    unused_room = room - np.bincount(target[fits], minlength=count)
    holder[owned_elsewhere[~fits]] = np.repeat(np.arange(low, high), unused_room)
    return holder


def _remaining_room(load: Longs, requests: Longs, blocks: int) -> Longs:
    """Return the number of further blocks that each server takes. `load`: owned ones; `requests`: ones meant for it.

    If `blocks` is no multiple of the servers, some end with one more: those that own more already, then those whose
    requests exceed their room by most.
    """
    quota, remainder = divmod(blocks, len(load))
    room = quota - load
    is_over_quota = room < 0  # these own the quota and one more already, so they come last in `by_need`:
    # their key exceeds any room, as all rooms together are at most the requests plus one per server
    by_need = np.argsort(np.where(is_over_quota, len(load) + requests.sum(), room - requests), kind="stable")
    room[is_over_quota] = 0
    spare = max(remainder - int(is_over_quota.sum()), 0)
    room[by_need[:spare]] += 1
    return room


def gather_holders(holder: Longs, low: int, high: int, group_count: int) -> Longs:
    """Return the holders after gathering on `group_count` servers, evenly spread over low .. high-1 (section 4.2)."""
    return representatives(high - low, group_count)[holder - low] + low


def representatives(count: int, group_count: int) -> Longs:
    """Return for each of `count` servers the first server of its group, for `group_count` groups of neighbours."""
    group = np.arange(count) * group_count // count
    first = np.flatnonzero(run_starts(group))
    return first[group]
