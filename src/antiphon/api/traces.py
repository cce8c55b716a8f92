"""Traces of runs and predictions: put side by side, and read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from antiphon.api._checked import path as path_of
from antiphon.api._checked import public
from antiphon.errors import Invalid, quote

if TYPE_CHECKING:
    from antiphon.api._kinds import Path, Row
    from antiphon.core.plan import Plan


@dataclass(frozen=True)
class Recording:
    """What Chakra execution traces hold.

    `plan`: where `export` of a plan wrote them (None: others did; whether it is right is for `verify` to say).
    `collectives`: a row for each call of one: rank, node, name, collective, nbytes, group, members, root, start_us,
    duration_us.
    """

    plan: Plan | None
    collectives: tuple[Row, ...]


@public
def merge(files: Sequence[Path], output: Path) -> list[Row]:
    """Put traces in Chrome's format into one file, each from its own beginning on: a row for each, of file, title,
    events and start_us.

    `files`: the traces, ours (`run` or `predict` with `trace`) or those of others (PyTorch's profiler writes such),
    plain or compressed.
    `output`: the file for all of them.
    """
    from antiphon.core.files import write_bytes
    from antiphon.formats.chrome import merge_traces as merged

    content, rows = merged(_several(files))
    write_bytes(path_of(output, "output"), content)
    return rows


@public
def read(files: Path | Sequence[Path]) -> Recording:
    """Read Chakra execution traces.

    `files`: NAME.RANK.et of some ranks, or their folder.
    """
    from antiphon.formats.chakra.read import collectives_of, is_ours, plan_of, read_traces

    traces = read_traces(_several([files] if isinstance(files, str | os.PathLike) else files))
    return Recording(plan_of(traces) if is_ours(traces) else None, tuple(collectives_of(traces)))


def _several(files: Any) -> list[str]:
    if not isinstance(files, Sequence) or isinstance(files, str | bytes):
        raise Invalid(f"files: expected several, got {quote(files)}")
    return [path_of(file, "files") for file in files]
