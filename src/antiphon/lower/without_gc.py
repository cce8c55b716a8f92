"""Create very many objects without the garbage collector traversing all of them again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_gc() -> Iterator[None]:
    """Disable the collection of cycles in the block, which would take half of the time. Reference counting goes on.

    At the end new objects are moved to the oldest generation; otherwise the next collection would traverse all of them.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            if not gc.get_freeze_count():  # otherwise unfreeze would release what other code has frozen
                gc.freeze()
                gc.unfreeze()
            gc.enable()
