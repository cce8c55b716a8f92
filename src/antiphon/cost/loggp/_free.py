"""Without contention nothing takes turns: one pass over the messages in order of steps. Compiled."""

from __future__ import annotations

import numpy as np

from antiphon.core.columns import Floats, Ints
from antiphon.cost.loggp.compiled import compiled


@compiled
def simulate_free(klass: Ints, whole: Floats, needs: Ints, gives: Ints, before: Ints) -> tuple[float, int]:
    """Seconds until all is done, and the message done last; messages by step, `whole`: of a message, by class.

    Every message waits for one condition and gives to two (see `_loggp_order.rounds`). O(messages).
    """
    held = np.zeros(len(before))
    last, last_message = 0.0, -1
    for m in range(len(klass)):
        need = needs[m]
        done = whole[klass[m]]
        if need >= 0:
            done += held[need]
        if done > last:
            last, last_message = done, m
        for i in range(2 * m, 2 * m + 2):
            c = gives[i]
            earlier = before[c]
            then = max(done, held[earlier]) if earlier >= 0 else done
            held[c] = max(held[c], then)
    return last, last_message
