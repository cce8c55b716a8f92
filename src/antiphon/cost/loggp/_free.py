"""Where nothing takes turns one pass over the messages in order of steps is enough. Compiled."""

from __future__ import annotations

from antiphon.core.columns import Floats, Ints
from antiphon.cost.loggp.compiled import compiled
from antiphon.cost.loggp.state import Cost


@compiled
def simulate_free(
    klass: Ints, cost: Cost, needs: Ints, gives: Ints, before: Ints, held: Floats
) -> tuple[float, int]:  # fmt: skip
    """Seconds until all is done, and the message done last; messages by step.

    Every message waits for one condition and gives to two, as in rounds (`antiphon.core.messages`). O(messages). Sums
    are in the order of events, so that they are the same to the last bit.

    `klass`: m -> its class; `needs`: m -> the condition that it waits for, -1: none; gives[2 * m : 2 * m + 2]: those
    that it gives to; `before`: c -> the condition before it, -1: none. What a message needs is of earlier steps, so
    what is held (c -> the latest moment that was given to it; zeros at first, made outside as NumPy asks for large
    pages and Numba does not) is final by then.

    The rounds of `core.example.star`, with o_s = o_r = 1 s, L = 2 s, G (b - 1) = 3 s, and 1 s to combine: messages 0
    and 1 are done at 8, and those that wait for the round of rank 0 7 s later:

    >>> import numpy as np
    >>> gives, before = np.array([2, 0, 1, 0, 3, 4, 3, 5], np.int32), np.array([-1, -1, -1, 0, 1, 2], np.int32)
    >>> cost = Cost(*np.array([[2, 2], [1, 1], [1, 1], [1, 1], [3, 3], [4, 4], [1, 0]], np.float64))
    >>> klass, needs = np.array([0, 0, 1, 1], np.int32), np.array([-1, -1, 0, 0], np.int32)
    >>> print(*simulate_free(klass, cost, needs, gives, before, np.zeros(6)))
    15.0 2
    """
    latency, send, receive, _, flight, _, work = cost
    last, last_message = 0.0, -1
    for m in range(len(klass)):
        need, k = needs[m], klass[m]
        ready = held[need] if need >= 0 else 0.0
        done = ready + send[k] + latency[k] + flight[k] + receive[k] + work[k]
        if done > last:
            last, last_message = done, m
        for i in range(2 * m, 2 * m + 2):
            c = gives[i]
            earlier = before[c]
            then = max(done, held[earlier]) if earlier >= 0 else done
            held[c] = max(held[c], then)
    return last, last_message
