"""Traces put side by side, and read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from antiphon.api._checked import path as path_of
from antiphon.api._checked import public
from antiphon.errors import Invalid, quote, unknown

if TYPE_CHECKING:
    from antiphon.api._kinds import Path, Row


@overload
def trace(what: Literal["merge"], files: Sequence[Path], output: Path) -> list[Row]: ...


@overload
def trace(what: Literal["read"], files: Path | Sequence[Path]) -> dict[str, Any]: ...


@public
def trace(what: str, files: Any, output: Any = None) -> Any:
    """Traces side by side, and traces of others read.

    `what`: "merge" puts traces in Chrome's format into one file, each from its own beginning on, such as a measured run
    (`run(..., trace=)`) and the same simulated (`simulate(..., trace=)`): a row for each, of file, title, events and
    start_us. "read" tells what Chakra execution traces hold: `plan`, where `export` of a plan wrote them (None: others
    did; whether it is right is for `verify` to say), and `collectives`, a row for each call of one: rank, node, name,
    collective, nbytes, group, members, root, start_us, duration_us.
    `files`: to merge, the traces, ours or those of others (PyTorch's profiler writes such), plain or compressed; to
    read, NAME.RANK.et of some ranks, or their folder.
    `output`: of a merge the file for all of them.
    """
    if what == "merge":
        return _merged(_several(files), path_of(output, "output"))
    if what != "read":
        raise unknown("trace", what, ("merge", "read"))
    if output is not None:
        raise Invalid("output: what is read is told; save writes a plan")
    return _read(_several([files] if isinstance(files, str | os.PathLike) else files))


def _merged(files: list[str], output: str) -> list[Row]:
    from antiphon.core.files import write_bytes
    from antiphon.formats.chrome import merge

    whole, rows = merge(files)
    write_bytes(output, whole)
    return rows


def _read(files: list[str]) -> dict[str, Any]:
    from antiphon.formats.chakra.read import collectives_of, is_ours, plan_of, read_traces

    heard = read_traces(files)
    return {"plan": plan_of(heard) if is_ours(heard) else None, "collectives": collectives_of(heard)}


def _several(files: Any) -> list[str]:
    if not isinstance(files, Sequence) or isinstance(files, str | bytes):
        raise Invalid(f"files: expected several, got {quote(files)}")
    return [path_of(one, "files") for one in files]
