"""Results on stdout, progress on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def emit(value: Any, text: str, as_json: bool) -> None:
    """The result, for a script or for a person."""
    print(json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False) if as_json else text)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Say on a terminal's stderr what is being done, while it is."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield
