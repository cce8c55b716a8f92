"""Results on stdout, progress on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from antiphon.core.files import write_bytes
from antiphon.errors import AntiphonError
from antiphon.show.png import png_of


class StoppedEarly(AntiphonError):
    """Ctrl-C came, but what was found until then is told."""

    exit_code = 130


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


def write_pictures(draw: Callable[[], str], svg: Path | None, png: Path | None) -> list[str]:
    """Draw once, write what was asked for, and say so."""
    if svg is None and png is None:
        return []
    picture = draw()
    pixels = png_of(picture) if png is not None else b""
    said = []
    for path, content in ((svg, picture.encode()), (png, pixels)):
        if path is not None:
            write_bytes(path, content)
            said.append(f"  written: {path}")
    return said
