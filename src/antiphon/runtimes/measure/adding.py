"""Adding many vectors into one, as GenModel counts it: each is read from memory once, the sum is written once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[Any]
BLOCK = 2**16  # bytes: the part of the sum that is worked on stays in the core's own cache


def add_all(vectors: Sequence[Vector], out: Vector) -> None:
    """out = the sum of two vectors or more, block by block: x vectors take x + 1 accesses of memory per element.

    Adding whole vectors one after the other would take 3 (x - 1): the sum would go to memory and back every time.
    `out` may be the first of the vectors. Linear; the interpreter's lock is free meanwhile.
    """
    step = max(BLOCK // out.itemsize, 1)
    first, second, *rest = vectors
    for low in range(0, len(out), step):
        high = low + step
        part = out[low:high]
        np.add(first[low:high], second[low:high], out=part)
        for vector in rest:
            np.add(part, vector[low:high], out=part)
