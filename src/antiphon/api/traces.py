"""Merge and read traces of runs and predictions."""

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
    """Content of Chakra execution traces.

    Attributes
    ----------
    plan
        The plan, if `export` wrote the traces (not verified), else None.
    collectives
        A row per call of a collective: rank, node (its number in the rank's trace), name, collective, nbytes, group,
        members, root, start_us, duration_us.
    """

    plan: Plan | None
    collectives: tuple[Row, ...]

    def __repr__(self) -> str:  # noqa: D105
        ranks = len({row["rank"] for row in self.collectives})
        return f"Recording({len(self.collectives)} calls of collectives at {ranks} ranks, plan={self.plan!r})"

    def _repr_html_(self) -> str:
        from antiphon.show.notebook import recording_html

        return recording_html(self.plan, self.collectives)


@public
def merge(files: Sequence[Path], output: Path) -> list[Row]:
    """Merge traces in Chrome's format into one file, each starting at time 0.

    Parameters
    ----------
    files
        The traces, written by `run` or `predict` with `trace` or by others (PyTorch's profiler, for example), plain or
        compressed.
    output
        The merged file.

    Returns
    -------
    list of dict
        A row per trace: file, title, events and start_us (its first time, which becomes 0 in the merged file).

    Raises
    ------
    Invalid
        A file is not a trace in Chrome's format.

    Examples
    --------
    >>> import tempfile
    >>> from antiphon.api.costs import predict
    >>> from antiphon.api.plans import plan
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("ring", "trees"):
    ...         _ = predict(plan("allreduce", "ring:ranks=4", planner=name), "1MB", trace=f"{folder}/{name}.json")
    ...     rows = merge([f"{folder}/ring.json", f"{folder}/trees.json"], f"{folder}/both.json")
    >>> len(rows)
    2
    """
    from antiphon.core.files import write_bytes
    from antiphon.formats.chrome import merge_traces

    content, rows = merge_traces(_check_files(files))
    write_bytes(path_of(output, "output"), content)
    return rows


@public
def read(files: Path | Sequence[Path]) -> Recording:
    """Read Chakra execution traces.

    Parameters
    ----------
    files
        NAME.RANK.et of some ranks, or their folder.

    Returns
    -------
    Recording
        The plan that the traces were exported from, if any, and the collectives.

    Raises
    ------
    Invalid
        A file is damaged; the message names the byte or node.

    Examples
    --------
    >>> import tempfile
    >>> from antiphon.api.files import export
    >>> from antiphon.api.plans import plan
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = export(plan("allreduce", "ring:ranks=4"), "chakra", folder, nbytes="1MB")
    ...     kind = read(folder).plan.collective.kind
    >>> kind
    'allreduce'
    """
    from antiphon.formats.chakra.read import collectives_of, has_plan, plan_of, read_traces

    traces = read_traces(_check_files([files] if isinstance(files, str | os.PathLike) else files))
    return Recording(plan_of(traces) if has_plan(traces) else None, tuple(collectives_of(traces)))


def _check_files(files: Any) -> list[str]:
    """Return the names of several files."""
    if not isinstance(files, Sequence) or isinstance(files, str | bytes):
        raise Invalid(f"files: expected several, got {quote(files)}")
    return [path_of(file, "files") for file in files]
