"""Making very many objects that all stay, without the collector of cycles looking at all of them again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """No collection within, if there were any: it takes half of the time else. What is freed by counting still is.

    At the end new objects are moved to the oldest generation: else the next collection would traverse all of them.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            if not gc.get_freeze_count():  # or somebody has frozen something, which shall stay so
                gc.freeze()
                gc.unfreeze()
            gc.enable()
