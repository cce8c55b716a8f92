"""Which messages must wait for which others, compactly: as conditions that several messages share, not as pairs.

A message contributes to a condition when it is done (received and combined) or already when it has left its sender. A
condition holds once all its messages have contributed and the condition before it holds; a message may start when all
conditions that it needs hold. `waits` builds them for simulation and execution, by one of three rules (`order`):

    rounds    a rank's messages of one step wait for everything that it sent or received in earlier steps
    data      a message waits for the data that it reads, and for readers of the data that it overwrites
    streams   both rules, with separate rounds for each level of the machine (within hosts, between hosts, ...), as if a
              rank had one GPU stream per level

A *round* in this file is all messages that one rank sends or receives in one step (not SCCL's unit of time). A *cell*
is a rank's copy of a chunk; a *version* is its value between two writes.

Example: rank 0 receives messages 0 and 1 in step 0 and sends 2 and 3 in step 1. The condition "round 0 of rank 0" has
the contributors 0 and 1, and messages 2 and 3 need it: 4 numbers instead of 4 pairs. With 1024 ranks that all send to
all twice, there would be 2 * 10^9 pairs; conditions take some four million numbers. See docs/program.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from antiphon.core.columns import Ints, Longs, as_int32, distinct, order_of, pointers, run_starts, unique_inverse
from antiphon.core.dependencies import Versions, versions
from antiphon.core.messages.table import Messages
from antiphon.errors import Invalid, quote

ORDERS = ("rounds", "streams", "data")
RECEIVED, LEFT = "received", "left"
NONE = np.empty(0, np.int32)  # an empty column: the shorthands of `Waits`


@dataclass(frozen=True, eq=False)
class Waits:
    """Happens-before constraints between messages, as shared conditions.

    Column x of message m is x[x_ptr[m]:x_ptr[m + 1]]. Shorthands for regular cases: an empty `done_ptr` means two
    conditions per message, an empty `need_ptr` one condition per message (-1: none), an empty `left_ptr` no conditions.
    """

    done_ptr: Ints
    done: Ints  # the conditions to which message m contributes when it is done (received and combined)
    left_ptr: Ints
    left: Ints  # the conditions to which message m contributes when its last byte has left the sender
    need_ptr: Ints
    need: Ints  # the conditions that must hold before message m may start
    before: Ints  # per condition the condition that must hold before it can hold, or -1

    def __len__(self) -> int:
        """The number of conditions."""
        return len(self.before)

    def pairs(self, event: str) -> tuple[Longs, Longs]:
        """Return pairs (message, condition), by message: contributions when "done" or "left", or "need". O(pairs).

        Two messages contribute to conditions 0 and 1, 2 and 3; the first needs none, the second condition 1:

        >>> example = Waits(NONE, np.array([0, 1, 2, 3]), NONE, NONE, NONE, np.array([-1, 1]), np.full(4, -1))
        >>> example.pairs("done"), example.pairs("need")
        ((array([0, 0, 1, 1]), array([0, 1, 2, 3])), (array([1]), array([1])))
        """
        condition, pointer = getattr(self, event), getattr(self, f"{event}_ptr")
        if len(pointer):
            message = np.repeat(np.arange(len(pointer) - 1), np.diff(pointer))
        else:
            message = np.arange(len(condition)) // (2 if event == "done" else 1)
        is_condition = condition >= 0
        return message[is_condition], condition[is_condition].astype(np.int64)


def waits(messages: Messages, order: str, sent: str = RECEIVED, level: Ints | None = None) -> Waits:
    """Return the waits of messages without pieces, by one of these rules:

    - "rounds": for all messages that their source sent or received in earlier steps. A sent message counts when it is
      "received", as with calls that block until then; with `sent` "left" as soon as its last byte has left.
    - "data": for the versions that they read (`core.dependencies`). A version of a cell is available when its writers
      are done, the version before it is available, and the messages that read the version before it have left.
    - "streams": by both rules, with separate rounds for each level. `level`: per message its level, -1 within a rank.

    O(n log n) in rows.

    By data, the conditions are the versions. The messages of `core.example.star` are 0: 2 to 0, 1: 1 to 0, 2: 0 to 1,
    3: 0 to 2. The sum at rank 0 (condition 1) is available when 0 and 1 are done; 2 and 3 need it. The final value of
    rank 1 (3) is available when 2 is done, and 1 has left, which reads the old value.

    >>> from antiphon.core.example import star
    >>> from antiphon.core.messages.table import messages
    >>> by_data = waits(messages(star()), "data")
    >>> [list(zip(*(c.tolist() for c in by_data.pairs(what)))) for what in ("done", "left", "need")]
    [[(0, 1), (1, 1), (2, 3), (3, 5)], [(0, 5), (1, 3)], [(2, 1), (3, 1)]]
    >>> by_data.before.tolist()
    [-1, -1, -1, -1, -1, -1]
    """
    if order not in ORDERS:
        raise Invalid(f"order: expected one of {', '.join(ORDERS)}, got {quote(order)}")
    if sent not in (RECEIVED, LEFT):
        raise Invalid(f"sent: expected {RECEIVED} or {LEFT}, got {quote(sent)}")
    if order == "rounds":
        return _wait_for_rounds(messages, messages.src, messages.dst, messages.ranks, sent)
    data_waits = _wait_for_versions(messages)
    if order == "data":
        return data_waits
    if level is None:
        raise Invalid("order streams: is by level; models that know levels offer it")
    # A rank on each level is a rank of its own for rounds: key = rank * width + level + 1 (level -1: within a rank).
    width = int(level.max(initial=0)) + 2
    src, dst = (end * np.int64(width) + level + 1 for end in (messages.src, messages.dst))
    return _join_waits(data_waits, _wait_for_rounds(messages, src, dst, messages.ranks * width, sent), len(messages))


def _wait_for_rounds(messages: Messages, src: Ints | Longs, dst: Ints | Longs, keys: int, sent: str) -> Waits:
    """Build one condition per round: all messages that one key sends or receives in one step.

    A key is a rank, or a rank on one level: `src` and `dst` are the keys of the ends of every message, all below
    `keys`. Messages wait for the previous round of their source and contribute to the rounds of both ends. One sort.

    The rounds of `core.example.star` are of ranks 0, 1, 2 in step 0, then in step 1:

    >>> from antiphon.core.example import star
    >>> from antiphon.core.messages.table import messages
    >>> rounds = waits(messages(star()), "rounds")
    >>> [list(zip(*(c.tolist() for c in rounds.pairs(what)))) for what in ("done", "need")]
    [[(0, 2), (0, 0), (1, 1), (1, 0), (2, 3), (2, 4), (3, 3), (3, 5)], [(2, 0), (3, 0)]]
    >>> rounds.before.tolist()
    [-1, -1, -1, 0, 1, 2]
    """
    # The round of either end of each message: (index of the step) * keys + key; rounds without messages are dropped.
    count = len(messages)
    step_index = np.cumsum(run_starts(messages.step)) - 1  # messages come by step
    bound = max((int(step_index[-1]) + 1) * keys, 1) if count else 1
    rounds, position = unique_inverse(
        np.stack([step_index * keys + end for end in (src, dst)], axis=1).ravel(), bound=bound
    )
    ends = as_int32(position.reshape(count, 2))  # per message the rounds of its source and of its receiver
    # The round before of the same key: a stable sort by key keeps the steps in order.
    key = rounds % keys
    order = order_of(key, bound=keys)
    before = np.full(len(rounds), -1, np.int32)
    has_previous = ~run_starts(key[order])
    before[order[has_previous]] = order[np.flatnonzero(has_previous) - 1]
    # A message needs the round of its source before its own; it contributes to the rounds of both ends.
    need = before[ends[:, 0]]
    if sent == LEFT:
        own_ptr = np.arange(count + 1, dtype=np.int32)
        of_source, of_receiver = (np.ascontiguousarray(ends[:, side]) for side in (0, 1))
        return Waits(
            done_ptr=own_ptr, done=of_receiver, left_ptr=own_ptr, left=of_source, need_ptr=NONE, need=need,
            before=before,
        )  # fmt: skip
    return Waits(done_ptr=NONE, done=ends.ravel(), left_ptr=NONE, left=NONE, need_ptr=NONE, need=need, before=before)


def _wait_for_versions(messages: Messages) -> Waits:
    """Build one condition per version of a cell, which holds after that of the version before. O(n log n).

    The writers of the version contribute when they are done. The readers of the version before contribute when they
    have left, as the old value may then be overwritten. Initial versions need no wait.

    In `core.example.star` message 0 reads version 4 and message 1 reads version 2, so they contribute to conditions 5
    and 3 when they have left. Messages 2 and 3 need the sum, version 1:

    >>> from antiphon.core.example import star
    >>> from antiphon.core.messages.table import messages
    >>> data = _wait_for_versions(messages(star()))
    >>> data.pairs("left"), data.pairs("need")
    ((array([0, 1]), array([5, 3])), (array([2, 3]), array([1, 1])))
    """
    table, rows = versions(messages.schedule), messages.of_row.astype(np.int64)  # `rows`: per row its message
    # Condition numbers are version numbers, so reading version v needs condition v.
    reads_written = ~table.initial[table.read]
    reads_final = table.final[table.read]
    done_ptr, done = _conditions_by_message(rows, table.write, len(messages), len(table))
    # The next version of the same cell is read + 1; nothing overwrites a final version.
    overwriting = table.read[~reads_final] + 1
    left_ptr, left_conditions = _conditions_by_message(rows[~reads_final], overwriting, len(messages), len(table))
    need_ptr, need = _conditions_by_message(rows[reads_written], table.read[reads_written], len(messages), len(table))
    return Waits(
        done_ptr=done_ptr,
        done=done,
        left_ptr=left_ptr if len(left_conditions) else NONE,  # the shorthand for no conditions
        left=left_conditions,
        need_ptr=need_ptr,
        need=need,
        before=_previous_versions(table),
    )


def _previous_versions(table: Versions) -> Ints:
    """Return per version the previous one of its cell, or -1 if there is none or it is the initial one. O(versions).

    >>> step = np.array([-1, 0, 4, -1, 2], np.int32)  # of cell 0, then of cell 1
    >>> _previous_versions(Versions(None, None, np.array([0, 0, 0, 1, 1]), step, 1, 1))
    array([-1, -1,  1, -1, -1], dtype=int32)
    """
    previous = np.arange(-1, len(table) - 1, dtype=np.int32)
    previous[table.initial] = -1
    # The first written version needs no wait for the initial one.
    previous[1:][table.initial[:-1]] = -1
    return previous


def _conditions_by_message(message: Longs, condition: Ints, messages: int, conditions: int) -> tuple[Ints, Ints]:
    """Return the distinct pairs as the conditions of every message (CSR). One sort.

    >>> _conditions_by_message(np.array([1, 0, 1, 1]), np.array([5, 2, 0, 5]), 3, 6)
    (array([0, 1, 3, 3], dtype=int32), array([2, 0, 5], dtype=int32))
    """
    condition_bound = max(conditions, 1)
    pairs = distinct(message * condition_bound + condition)
    return as_int32(pointers(pairs // condition_bound, messages)), as_int32(pairs % condition_bound)


def _join_waits(first: Waits, second: Waits, messages: int) -> Waits:
    """Return the conditions of both, those of the second numbered after those of the first. O(n log n)."""
    columns: dict[str, Ints] = {}
    for event in ("done", "left", "need"):
        (first_message, first_condition), (second_message, second_condition) = first.pairs(event), second.pairs(event)
        ptr, conditions = _conditions_by_message(
            np.concatenate([first_message, second_message]),
            as_int32(np.concatenate([first_condition, second_condition + len(first)])),
            messages,
            len(first) + len(second),
        )
        columns[f"{event}_ptr"], columns[event] = (
            (ptr, conditions) if event != "left" or len(conditions) else (NONE, NONE)
        )
    second_before = np.where(second.before >= 0, second.before + np.int32(len(first)), np.int32(-1))
    return Waits(before=np.concatenate([first.before, second_before]), **columns)
