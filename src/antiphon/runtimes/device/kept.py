"""Choices of `shares` from one process to the next: what was timed once for a plan and a size is not timed again.

A file for each question in $ANTIPHON_CACHE/device, else in antiphon/device of $XDG_CACHE_HOME or ~/.cache;
ANTIPHON_CACHE=off keeps none. It is believed if it and its folder belong to this user or root and nobody else may write
there, if it answers the very question, and if what it names is among what would be timed now. Files come whole, so that
several processes may write at once: the last one's stays.
"""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from antiphon.core.cache import cache_folder
from antiphon.core.files import is_ours, one_line
from antiphon.core.jsontext import decode
from antiphon.errors import AntiphonError, Invalid, quote
from antiphon.lower.device.table import Table
from antiphon.runtimes.device.shares import Choice, chosen, frontier
from antiphon.runtimes.serve.files import keep

FORMAT = 1
MOST_FILES = 4096
MOST_BYTES = 2**16  # of one
_NAME = re.compile(r"[0-9a-f]{64}")
_SHORT = 12  # characters of a name that people are shown
_TOLD = 8  # names in a complaint


Whole = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
Band = Annotated[int, msgspec.Meta(ge=0, le=63)]


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a choice depends on. `device`: all devices of a group, in words; `build`: the kernel as it was compiled;
    `plan`: its tables; `tried`: the ways of TABLES and WAYS that there are; `alike`: in memory that switches know."""

    machine: str
    device: str
    build: str
    plan: str
    tried: str
    band: Band
    dtype: str
    op: str
    in_place: bool
    alike: bool
    ranks: Whole
    blocks: Whole
    threads: Whole

    @property
    def name(self) -> str:
        return hashlib.sha256(msgspec.json.encode((FORMAT, self))).hexdigest()


class _Way(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    way: str
    lanes: Whole
    rounds: Whole
    tables: str
    seconds: float


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`about`: the collective and its planner, for people. `frontier`: see `shares`."""

    format: int
    about: str
    question: Question
    frontier: list[_Way]


@dataclass(frozen=True)
class Taken:
    """What is taken, of what no other beats with as few blocks; `source`: in words, where it is from."""

    best: Choice
    frontier: list[tuple[Choice, float]]
    source: str


def here() -> str:
    """The machine, as far as a choice depends on it beyond its devices."""
    return socket.gethostname()


def band_of(nbytes: int) -> int:
    """Sizes of one band are at most twice each other.

    >>> [band_of(size) for size in (0, 1, 2, 3, 4, 5, 2**20, 2**20 + 1)]
    [0, 0, 1, 2, 2, 3, 20, 21]
    """
    return (nbytes - 1).bit_length() if nbytes > 1 else 0


def plan_of(tables: Mapping[str, Sequence[Table]]) -> str:
    """What tells these tables of all ranks from others."""
    text = hashlib.sha256()
    for name, some in sorted(tables.items()):
        text.update(f"{name} {len(some)}".encode())
        for one in some:
            text.update(one.words.astype("<i8").tobytes())
    return text.hexdigest()


def tried_of(some: Collection[Choice]) -> str:
    return hashlib.sha256(repr(sorted(some)).encode()).hexdigest()


def read(asked: Question, known: Collection[Choice]) -> tuple[Taken | None, str]:
    """What is kept, and what is wrong with it; neither where nothing is. `known`: what would be timed."""
    path = _path(asked.name)
    if path is None or (not path.is_symlink() and not path.exists()):
        return None, ""
    try:
        found = _read(path)
        line = [(Choice(one.way, one.lanes, one.rounds, one.tables), one.seconds) for one in found.frontier]
        if any(one not in known for one, _ in line):
            raise Invalid("it names a way that is not tried here")
        return Taken(chosen(line), line, f"kept in {path}"), ""
    except (OSError, AntiphonError) as error:
        return None, one_line(f"{path} is not used: {error}")


def _read(path: Path) -> _File:
    """Invalid where it is not to be believed, or no such file."""
    if not is_ours(path.parent, folder=True) or not is_ours(path):
        raise Invalid("others may write there")
    if path.stat().st_size > MOST_BYTES:
        raise Invalid("it is too large")
    found = decode(path.read_bytes(), _File)
    seconds = [one.seconds for one in found.frontier]
    if found.format != FORMAT or found.question.name != path.stem:
        raise Invalid("it is of another version, or of another name")
    if not seconds or seconds != sorted(seconds, reverse=True) or not 0 <= seconds[-1] <= seconds[0] < float("inf"):
        raise Invalid("it has no times that fall from way to way")
    return found


def put(asked: Question, about: str, measured: Sequence[tuple[Choice, float]], wrong: str = "") -> Taken:
    """The choice of what was timed, kept where that can be. `wrong`: with what was kept before."""
    line = frontier(measured)
    told = f"timed ({wrong})" if wrong else "timed"
    path = _path(asked.name)
    if path is None:
        return Taken(chosen(line), line, f"{told}, kept nowhere")
    ways = [_Way(*one, seconds) for one, seconds in line]
    data = msgspec.json.encode(_File(FORMAT, one_line(about, 200), asked, ways))
    try:
        keep(data, path, MOST_FILES)
        if not is_ours(path):
            raise Invalid("others may write there")
    except (OSError, Invalid) as error:
        return Taken(chosen(line), line, one_line(f"{told}, not kept in {path}: {error}"))
    return Taken(chosen(line), line, f"{told}, kept in {path}")


def listed() -> list[dict[str, object]]:
    """All that is kept, a row for each file; `wrong`: why it would not be used."""
    rows = list[dict[str, object]]()
    for path in _files():
        row: dict[str, object] = {"name": path.stem[:_SHORT], "file": str(path)}
        try:
            found = _read(path)
        except (OSError, AntiphonError) as error:
            rows.append({**row, "wrong": one_line(str(error))})
            continue
        asked = found.question
        best = chosen([(Choice(one.way, one.lanes, one.rounds, one.tables), one.seconds) for one in found.frontier])
        size = {"over": 2**asked.band // 2 if asked.band else -1, "to": 2**asked.band}
        about = {"about": one_line(found.about), "device": one_line(asked.device), "machine": one_line(asked.machine)}
        call = {"dtype": asked.dtype, "op": asked.op, "in_place": asked.in_place}
        rows.append({**row, **about, "ranks": asked.ranks, **size, **call, "choice": best._asdict(), "wrong": ""})
    return sorted(rows, key=lambda row: (str(row.get("about")), str(row["name"])))


def forget(names: Collection[str]) -> list[str]:
    """Removes those whose names begin so ("all": all of them): their files. Invalid, and nothing is removed, where a
    name is of none, or of several."""
    files = _files()
    chosen = {path: None for name in names for path in _named(name, files)}
    for path in chosen:
        path.unlink(missing_ok=True)
    return [str(path) for path in chosen]


def _named(name: str, files: Sequence[Path]) -> Sequence[Path]:
    if name == "all":
        return files
    found = [path for path in files if name and path.stem.startswith(name)]
    if not found:
        raise Invalid(f"{quote(name)}: no choice of this name is kept; `antiphon choices` lists them")
    if len(found) > 1:
        fit = ", ".join(path.stem[: max(_SHORT, len(name) + 1)] for path in found[:_TOLD])
        more = f" and {len(found) - _TOLD} others" if len(found) > _TOLD else ""
        raise Invalid(f"{quote(name)}: {len(found)} choices have names that begin so: {fit}{more}; say more of one")
    return found


def _files() -> list[Path]:
    folder = cache_folder("device")
    if folder is None or not folder.is_dir():
        return []
    return sorted(path for path in folder.glob("*.json") if _NAME.fullmatch(path.stem))


def _path(name: str) -> Path | None:
    folder = cache_folder("device")
    return None if folder is None else folder / f"{name}.json"
