"""The quick yes for copies: every cell is written once, after which it is read. No loop over steps."""

from __future__ import annotations

import numpy as np

from antiphon.core.verify.layout import ChunkRows

NEVER = np.iinfo(np.int32).max


def surely_right(batch: ChunkRows) -> bool:
    """Return True only if arrival times alone prove the batch legal and complete; False: look closer.

    Requires that there are only copies, that every chunk has one contribution (checked by the caller), and that no
    cell is written twice or over its initial value. Then a value, once there, is the right one and stays. Linear.
    """
    if bool(batch.reduces.any()):
        return False
    arrival = np.full(batch.cells, NEVER, np.int32)
    arrival[batch.dst] = batch.time
    written = int(np.count_nonzero(arrival != NEVER))
    if written != len(batch.dst) or bool((arrival[batch.pre] != NEVER).any()):
        return False
    arrival[batch.pre] = -1
    return bool((arrival[batch.src] < batch.time).all()) and bool((arrival[batch.post] != NEVER).all())
