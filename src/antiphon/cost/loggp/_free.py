"""Where nothing takes turns one pass over the messages in order of steps is enough. Compiled."""

from __future__ import annotations

import numpy as np

from antiphon.core.columns import Ints
from antiphon.cost.loggp.compiled import compiled
from antiphon.cost.loggp.messages import Cost


@compiled
def simulate_free(klass: Ints, cost: Cost, needs: Ints, gives: Ints, before: Ints) -> tuple[float, int]:
    """Seconds until all is done, and the message done last; messages by step.

    Every message waits for one condition and gives to two, as in rounds (`antiphon.core.messages`). O(messages). Sums
    are in the order of events, so that they are the same to the last bit.
    """
    latency, send, receive, _, flight, _, work = cost
    held = np.zeros(len(before))
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
