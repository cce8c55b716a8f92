"""Where what was found out once is kept, for the next process of the same user."""

from __future__ import annotations

import os
from pathlib import Path

OFF = "off"  # of ANTIPHON_CACHE


def cache_folder(name: str, always: bool = False) -> Path | None:
    """$ANTIPHON_CACHE/name, else antiphon/name of $XDG_CACHE_HOME or ~/.cache. None where there is no home, and for
    ANTIPHON_CACHE=off; `always`: of what must lie somewhere that is no answer."""
    own, xdg_folder = os.environ.get("ANTIPHON_CACHE", ""), os.environ.get("XDG_CACHE_HOME", "")
    if own and not (own == OFF and always):
        return None if own == OFF else Path(os.path.abspath(own)) / name
    if os.path.isabs(xdg_folder):  # else it is to be ignored, says the specification
        return Path(xdg_folder) / "antiphon" / name
    try:
        return Path.home() / ".cache" / "antiphon" / name
    except RuntimeError:
        return None
