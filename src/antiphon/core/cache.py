"""The cache folder: results of long searches and compiled code, for later processes of the same user."""

from __future__ import annotations

import hashlib
import os
from importlib import metadata
from pathlib import Path

from antiphon import __version__

OFF = "off"  # value of ANTIPHON_CACHE that turns the cache off
SOLVERS = ("igraph", "python-sat", "scipy")  # libraries whose releases may choose among equal solutions differently


def cache_folder(name: str, always: bool = False) -> Path | None:
    """Return $ANTIPHON_CACHE/name, else antiphon/name in $XDG_CACHE_HOME or ~/.cache.

    None if there is no home, or if ANTIPHON_CACHE is "off". `always`: ignore "off", for files that must be stored
    somewhere (compiled code).
    """
    configured, xdg_folder = os.environ.get("ANTIPHON_CACHE", ""), os.environ.get("XDG_CACHE_HOME", "")
    if configured and not (configured == OFF and always):
        return None if configured == OFF else Path(os.path.abspath(configured)) / name
    if os.path.isabs(xdg_folder):  # the XDG specification says that relative paths are to be ignored
        return Path(xdg_folder) / "antiphon" / name
    try:
        return Path.home() / ".cache" / "antiphon" / name
    except RuntimeError:
        return None


def versions_of(*folders: Path) -> tuple[str, ...]:
    """Return what results computed by these folders depend on: our version, their source text, and SOLVERS' versions.

    The source text stands for unreleased changes, which the version does not show.
    """
    text = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            text.update(path.read_bytes())
    versions = [__version__, text.hexdigest()]
    for library in SOLVERS:
        try:
            versions.append(metadata.version(library))
        except metadata.PackageNotFoundError:
            versions.append("")
    return tuple(versions)
