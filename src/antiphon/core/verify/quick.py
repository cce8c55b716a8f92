"""A fast sufficient test that a schedule of copies is correct, in array operations without a loop over steps.

If every cell (a rank's copy of a chunk) is written at most once, its content is fixed from then on, so it suffices to
compare times: every row reads its cell later than the cell was written, and every wanted cell is written.
"""

from __future__ import annotations

import numpy as np

from antiphon.core.verify.layout import ChunkRows

NEVER = np.iinfo(np.int32).max  # arrival time of data that do not arrive


def is_surely_right(batch: ChunkRows) -> bool:
    """Return True only if arrival times alone prove the batch legal and complete; False: look closer.

    Requires that there are only copies, that every chunk has one contribution (checked by the caller), and that no
    cell is written twice or over its initial value. Then a value, once there, is the right one and stays. Linear.
    """
    if bool(batch.reduces.any()):
        return False
    arrival = np.full(batch.cells, NEVER, np.int32)
    arrival[batch.dst] = batch.step
    written = int(np.count_nonzero(arrival != NEVER))
    if written != len(batch.dst) or bool((arrival[batch.pre] != NEVER).any()):
        return False
    arrival[batch.pre] = -1
    return bool((arrival[batch.src] < batch.step).all()) and bool((arrival[batch.post] != NEVER).all())
