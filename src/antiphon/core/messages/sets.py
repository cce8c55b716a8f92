"""The waits of messages as sets of messages, the form that files of other programs can express."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Ints, Longs, distinct, narrow, numbered, order_of, packed, pointers, ranges
from antiphon.core.messages.waits import Waits


@dataclass(frozen=True, eq=False)
class Sets:
    """Message `message[i]` waits for set `set[i]` (every pair once, by message, then set).

    Set s is items[low[s]:high[s]], and no two are the same, though an item may stand in one twice. An item is 2 m where
    message m must be done, 2 m + 1 where it is enough that it has left.
    """

    items: Longs
    low: Longs
    high: Longs
    message: Ints
    set: Ints

    @property
    def pairs(self) -> int:
        """The number of pairs of messages that they stand for, repeated ones included."""
        return int((self.high - self.low)[self.set].sum())

    def listed(self, pick: NDArray[np.intp] | slice = slice(None)) -> tuple[Longs, Longs]:
        """The pairs (message, item) of these waits, each once, in order. O(n log n) in pairs.

        Message 4 waits for set 0 (messages 0 and 1 done), message 5 for set 1 (1 done, 2 has left):

        >>> known = Sets(np.array([0, 2, 5]), np.array([0, 1]), np.array([2, 3]), np.array([4, 5]), np.array([0, 1]))
        >>> known.listed()
        (array([4, 4, 5, 5]), array([0, 2, 2, 5]))
        """
        message, chosen = self.message[pick], self.set[pick]
        set_sizes = (self.high - self.low)[chosen]
        return _distinct_pairs(
            np.repeat(message.astype(np.int64), set_sizes), self.items[ranges(self.low[chosen], set_sizes)]
        )

    def members(self, chosen: Longs) -> tuple[Longs, Longs]:
        """The pairs (set, item) of these sets, each once, in order."""
        set_sizes = (self.high - self.low)[chosen]
        return _distinct_pairs(np.repeat(chosen, set_sizes), self.items[ranges(self.low[chosen], set_sizes)])


def _distinct_pairs(owner: Longs, item: Longs) -> tuple[Longs, Longs]:
    item_bound = int(item.max(initial=0)) + 1
    pair = distinct(owner * item_bound + item)
    return pair // item_bound, pair % item_bound


def sets(waits: Waits) -> Sets:
    """Every condition with those before it, back to one that need not be said: of whose messages one waited for the
    condition before. O(n log n).

    Both copies of `core.example.star` wait for both reductions: one set, of the items 2 * 0 and 2 * 1.

    >>> from antiphon.core.example import star
    >>> from antiphon.core.messages import messages, waits
    >>> known = sets(waits(messages(star()), "rounds"))
    >>> [known.items[a:b].tolist() for a, b in zip(known.low, known.high)]
    [[0, 2]]
    >>> known.message.tolist(), known.set.tolist()
    ([2, 3], [0, 0])
    """
    count = len(waits)
    # Stage 1: all contributions as (message, condition), with the item that each adds to its set.
    message, condition = waits.pairs("need")
    giving = [waits.pairs(event) for event in ("done", "left")]
    giver, target = (np.concatenate(columns) for columns in zip(*giving, strict=True))  # message, condition
    item = np.concatenate([2 * giving[0][0], 2 * giving[1][0] + 1])
    before = waits.before.astype(np.int64)
    # Stage 2: drop predecessors that are implied. If a contributor itself needs the condition before, then that
    # condition already held when the contributor started: the set can begin anew here.
    need = distinct(message * np.int64(max(count, 1)) + condition)
    pair = giver * max(count, 1) + before[target]  # it would have waited for the condition before
    # Membership test of `pair` in the sorted `need`.
    at = np.minimum(np.searchsorted(need, pair), max(len(need) - 1, 0))
    implied = (need[at] == pair) & (before[target] >= 0) if len(need) else np.zeros(len(target), np.bool_)
    begins = before < 0
    begins[target[implied]] = True
    place, order = _chain_conditions(before)  # a set is a run of conditions in this order, so a run of items
    # Stage 3: items in the order of the chains; a set is the slice from where its chain begins to its own end.
    by_place = order_of(place[target], max(count, 1))
    items = item[by_place]
    pointer = pointers(place[target][by_place], count)
    # base: for each condition in chain order, the place of the latest condition at or before it that begins a set.
    base = np.maximum.accumulate(np.where(begins[order], np.arange(count), 0)) if count else place
    low, high = pointer[base][place], pointer[1:][place]
    # Waits for an empty set are no waits.
    real = np.flatnonzero((high > low)[condition])
    return _merge_equal(items, low, high, message[real], condition[real])


def _chain_conditions(before: Longs) -> tuple[Longs, Longs]:
    """Conditions in an order in which each comes right after the one before it: the place of each, and the order.
    O(n log n).

    Before 3 comes 0, before 1 comes 3; 2 stands alone:

    >>> _chain_conditions(np.array([-1, 3, -1, 0]))
    (array([0, 2, 3, 1]), array([0, 3, 1, 2]))
    """
    count = len(before)
    # Pointer jumping: after round k, `further` points 2^k conditions back, so O(log length) rounds suffice.
    root, depth, further = np.arange(count), (before >= 0).astype(np.int64), before.copy()
    root = np.where(before >= 0, before, root)
    while bool((has_predecessor := further >= 0).any()):  # twice as far each time
        back = further[has_predecessor]
        depth[has_predecessor] += depth[back]
        root[has_predecessor] = root[back]
        further[has_predecessor] = further[back]
    order = order_of(*packed((root, count), (depth, int(depth.max(initial=0)) + 1)))
    place = np.empty(count, np.int64)
    place[order] = np.arange(count)
    return place, order


def _merge_equal(items: Longs, low: Longs, high: Longs, message: Longs, condition: Longs) -> Sets:
    """Conditions of the same items become one, and every pair stands once.

    Sets of items are compared by sums of two random numbers of 64 bits for each: O(items), and for all practical
    purposes certain.

    Conditions 0 and 2 are of the same items:

    >>> items, low, high = np.array([6, 8, 6, 8]), np.array([0, 1, 2]), np.array([2, 2, 4])
    >>> merged = _merge_equal(items, low, high, np.array([5, 6, 7]), np.array([0, 2, 1]))
    >>> merged.message.tolist(), merged.set.tolist(), merged.low.tolist(), merged.high.tolist()
    ([5, 6, 7], [0, 0, 1], [0, 1], [2, 2])
    """
    # Only sets that some message waits for are compared.
    used = distinct(condition)
    place = np.searchsorted(used, condition)
    low, high = low[used], high[used]
    if not len(used):
        none = np.zeros(0, np.int32)
        return Sets(items, low, high, none, none)
    draw = np.random.default_rng(20240229)
    item_bound = int(items.max(initial=0)) + 1
    marks: list[NDArray[np.uint64]] = []
    for _ in range(2):
        # Prefix sums of random values: equal multisets give equal differences, different ones collide
        # with a probability of about 2^-64 per round.
        value: NDArray[np.uint64] = draw.integers(0, 2**64, item_bound, np.uint64)
        total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(value[items], dtype=np.uint64)])  # modulo 2^64
        marks.append(total[high] - total[low])
    group = numbered(*marks)
    # The first set of each group of equal ones stands for the group.
    representative = np.full(int(group.max()) + 1, len(used), np.int64)
    np.minimum.at(representative, group, np.arange(len(used)))
    pair = distinct(message * np.int64(len(representative)) + group[place])
    return Sets(
        items,
        low[representative],
        high[representative],
        narrow(pair // len(representative)),
        narrow(pair % len(representative)),
    )
