"""The waits of messages as sets of messages, the form that files of other programs can express.

`waits.py` expresses dependencies as conditions: a condition holds once certain messages are done (or have left) and the
condition before it holds. Files of other programs have no conditions; they list for each message the messages that it
waits for. This file turns each condition into a set of items "message m is done" or "message m has left". Conditions
form chains: no two have the same condition before them. Along a chain sets would grow ever longer. So a set reaches
back only to a condition with a message that itself waited for all earlier conditions: these are then implied.

Sets are slices of one array, because the sets along a chain overlap. Example: conditions c1 = {m0}, c2 = {m1} after c1,
and m1 does not wait for c1: c2's set is {m0, m1}; items = [m0, m1], c1 = items[0:1], c2 = items[0:2].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import (
    Ints,
    Longs,
    as_int32,
    concat_ranges,
    distinct,
    distinct_pairs,
    number_rows,
    order_of,
    pack_columns,
    pointers,
)
from antiphon.core.messages.waits import Waits


@dataclass(frozen=True, eq=False)
class Sets:
    """Waits of messages for sets of items. No two sets are equal, though an item may occur twice in a set."""

    items: Longs  # 2 m: message m must be done; 2 m + 1: it must have left its sender
    low: Longs  # set s is items[low[s]:high[s]]
    high: Longs
    message: Ints  # message[i] waits for set[i]: every pair once, by message, then set
    set: Ints

    @property
    def pairs(self) -> int:
        """The number of (message, awaited message) pairs that the sets stand for, repeated ones included."""
        return int((self.high - self.low)[self.set].sum())

    def listed(self, waits: NDArray[np.intp] | slice = slice(None)) -> tuple[Longs, Longs]:
        """Return the pairs (message, item) of these rows of `message` and `set`, each once, sorted. O(n log n).

        Message 4 waits for set 0 (messages 0 and 1 done), message 5 for set 1 (1 done, 2 has left):

        >>> example = Sets(np.array([0, 2, 5]), np.array([0, 1]), np.array([2, 3]), np.array([4, 5]), np.array([0, 1]))
        >>> example.listed()
        (array([4, 4, 5, 5]), array([0, 2, 2, 5]))
        """
        message, chosen = self.message[waits], self.set[waits]
        set_sizes = (self.high - self.low)[chosen]
        return distinct_pairs(
            np.repeat(message.astype(np.int64), set_sizes), self.items[concat_ranges(self.low[chosen], set_sizes)]
        )

    def members(self, chosen: Longs) -> tuple[Longs, Longs]:
        """Return the pairs (set, item) of these sets, each once, sorted."""
        set_sizes = (self.high - self.low)[chosen]
        return distinct_pairs(np.repeat(chosen, set_sizes), self.items[concat_ranges(self.low[chosen], set_sizes)])


def sets(waits: Waits) -> Sets:
    """Return the waits as sets. O(n log n).

    The set of a condition has its own items and those of the conditions before it, back to a condition for which a
    message of the set already waited.

    Both copies of `core.example.star` wait for both reductions: one set, of the items 2 * 0 and 2 * 1.

    >>> from antiphon.core.example import star
    >>> from antiphon.core.messages import messages, waits
    >>> star_sets = sets(waits(messages(star()), "rounds"))  # a message waits for its source's earlier steps
    >>> [star_sets.items[a:b].tolist() for a, b in zip(star_sets.low, star_sets.high)]
    [[0, 2]]
    >>> star_sets.message.tolist(), star_sets.set.tolist()
    ([2, 3], [0, 0])
    """
    count = len(waits)
    message, condition = waits.pairs("need")  # the waits: this message needs this condition
    # Stage 1: all pairs (awaited message, target: the condition that waits for it), with the item that each adds to the
    # condition's set.
    (arriving, arrived_target), (leaving, left_target) = waits.pairs("done"), waits.pairs("left")
    awaited, target = np.concatenate([arriving, leaving]), np.concatenate([arrived_target, left_target])
    item = np.concatenate([2 * arriving, 2 * leaving + 1])
    before = waits.before.astype(np.int64)
    # Stage 2: drop predecessors that are implied. If an awaited message itself needs the condition before, then
    # that condition already held when the message started, so a new set can begin here.
    need = distinct(message * np.int64(max(count, 1)) + condition)
    pair = awaited * max(count, 1) + before[target]  # (awaited message, condition before); -1 is masked below
    # Membership test of `pair` in the sorted `need`.
    index = np.minimum(np.searchsorted(need, pair), max(len(need) - 1, 0))
    is_implied = (need[index] == pair) & (before[target] >= 0) if len(need) else np.zeros(len(target), np.bool_)
    begins_set = before < 0
    begins_set[target[is_implied]] = True
    position, order = _chain_conditions(before)  # in this order a set is a run of conditions, hence a slice of items
    # Stage 3: items in the order of the chains; a set is the slice from where its chain begins to its own end.
    item_order = order_of(position[target], bound=max(count, 1))
    items = item[item_order]
    pointer = pointers(position[target][item_order], count)
    # base: for each condition in chain order, the position of the latest condition at or before it that begins a set.
    base = np.maximum.accumulate(np.where(begins_set[order], np.arange(count), 0)) if count else position
    low, high = pointer[base][position], pointer[1:][position]
    # A wait for an empty set is none.
    nonempty = np.flatnonzero((high > low)[condition])
    return _merge_equal(items, low, high, message[nonempty], condition[nonempty])


def _chain_conditions(before: Longs) -> tuple[Longs, Longs]:
    """Sort conditions so that each directly follows the one before it: return the position of each, and the order.

    O(n log n). Condition 0 is before 3, 3 before 1; 2 stands alone:

    >>> _chain_conditions(np.array([-1, 3, -1, 0]))
    (array([0, 2, 3, 1]), array([0, 3, 1, 2]))
    """
    count = len(before)
    # Pointer jumping: after round k, `ancestor` is 2^k conditions back, so O(log length) rounds suffice.
    root, depth, ancestor = np.arange(count), (before >= 0).astype(np.int64), before.copy()
    root = np.where(before >= 0, before, root)
    while bool((has_predecessor := ancestor >= 0).any()):
        nearer = ancestor[has_predecessor]
        depth[has_predecessor] += depth[nearer]
        root[has_predecessor] = root[nearer]
        ancestor[has_predecessor] = ancestor[nearer]
    order = order_of(*pack_columns((root, count), (depth, int(depth.max(initial=0)) + 1)))
    position = np.empty(count, np.int64)
    position[order] = np.arange(count)
    return position, order


def _merge_equal(items: Longs, low: Longs, high: Longs, message: Longs, condition: Longs) -> Sets:
    """Merge conditions with the same items, and list every (message, set) pair once.

    Sets of items are compared by sums of two random 64-bit numbers per item: O(items), and certain for all practical
    purposes.

    Conditions 0 and 2 have the same items:

    >>> items, low, high = np.array([6, 8, 6, 8]), np.array([0, 1, 2]), np.array([2, 2, 4])
    >>> merged = _merge_equal(items, low, high, np.array([5, 6, 7]), np.array([0, 2, 1]))
    >>> merged.message.tolist(), merged.set.tolist(), merged.low.tolist(), merged.high.tolist()
    ([5, 6, 7], [0, 0, 1], [0, 1], [2, 2])
    """
    # Only sets that some message waits for are compared.
    used_conditions = distinct(condition)
    position = np.searchsorted(used_conditions, condition)
    low, high = low[used_conditions], high[used_conditions]
    if not len(used_conditions):
        empty = np.zeros(0, np.int32)
        return Sets(items, low, high, empty, empty)
    generator = np.random.default_rng(20240229)  # any seed: the same in every run
    item_bound = int(items.max(initial=0)) + 1
    set_sums: list[NDArray[np.uint64]] = []
    for _ in range(2):
        # Prefix sums of random values: equal multisets give equal differences, different ones collide
        # with a probability of about 2^-64 per round.
        value: NDArray[np.uint64] = generator.integers(0, 2**64, item_bound, np.uint64)
        total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(value[items], dtype=np.uint64)])  # modulo 2^64
        set_sums.append(total[high] - total[low])
    group = number_rows(*set_sums)
    # The first set of each group of equal ones stands for the group.
    representative = np.full(int(group.max()) + 1, len(used_conditions), np.int64)
    np.minimum.at(representative, group, np.arange(len(used_conditions)))
    pair = distinct(message * np.int64(len(representative)) + group[position])
    return Sets(
        items,
        low=low[representative],
        high=high[representative],
        message=as_int32(pair // len(representative)),
        set=as_int32(pair % len(representative)),
    )
