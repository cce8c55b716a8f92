"""The quick yes for copies: every cell is written once, after which it is read. No loop over steps."""

from __future__ import annotations

import numpy as np

from antiphon.core.verify.layout import ChunkRows

NEVER = np.iinfo(np.int32).max


def surely_right(block: ChunkRows) -> bool:
    """Return True only if arrival times alone prove the block legal and complete; False: look closer.

    Requires that there are only copies, that every chunk has one contribution (checked by the caller), and that no
    cell is written twice or over its initial value. Then a value, once there, is the right one and stays. Linear.
    """
    if bool(block.reduces.any()):
        return False
    arrival = np.full(block.cells, NEVER, np.int32)
    arrival[block.dst] = block.time
    written = int(np.count_nonzero(arrival != NEVER))
    if written != len(block.dst) or bool((arrival[block.pre] != NEVER).any()):
        return False
    arrival[block.pre] = -1
    return bool((arrival[block.src] < block.time).all()) and bool((arrival[block.post] != NEVER).all())
