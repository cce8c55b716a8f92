"""Watch the calls of a running job."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from antiphon.api import _inputs
from antiphon.api._checked import path as path_of
from antiphon.api._checked import public
from antiphon.errors import AntiphonError, Invalid

if TYPE_CHECKING:
    from antiphon.api._kinds import Path

_MAX_NAME = 63  # characters of a schedule in the file (native/watch.c)


@public
def watch(folder: Path) -> dict[str, Any]:
    """Read the calls of a running job so far, of all processes of this host.

    Parameters
    ----------
    folder
        The value of ANTIPHON_WATCH of the job.

    Returns
    -------
    dict
        The keys that docs/mpi.md lists.

    Raises
    ------
    Invalid
        There is no such folder, or several jobs write there.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:  # in which no job has written yet
    ...     watch(folder)["processes"]
    0
    """
    from antiphon.runtimes.engine.watched import read_watched, summarize_calls

    processes = read_watched(path_of(folder, "folder"))
    ranks = sorted(process.rank for process in processes if process.rank >= 0)  # -1: the process does not know its rank
    # Groups of equal ranks look alike in the files, so calls of two jobs would count as those of one.
    if len(set(ranks)) < len(ranks):
        raise Invalid(f"{os.fspath(folder)}: several jobs write there; start each with a folder of its own")
    rows = summarize_calls(processes, time.perf_counter())  # CLOCK_MONOTONIC, whose times the files hold
    table = next((process.table for process in processes), "")
    for row in rows:
        row["predicted"] = _predict_call(table, row["collective"], row["ranks"], row["schedule"], row["nbytes"])
    missed = sum(process.missed for process in processes)  # calls for which a file had no row
    return {"processes": len(processes), "ranks": ranks, "table": table, "missed": missed, "rows": rows}


@lru_cache(1024)
def _predict_call(table: str, kind: str, ranks: int, schedule: str, nbytes: int) -> float | None:
    """Return the predicted seconds of a call; None if no plan of the table has its schedule (a library's call)."""
    from antiphon.core.plan import Entry, Plan
    from antiphon.cost import predict
    from antiphon.runtimes.serve.book import page_label

    with suppress(AntiphonError):  # what the files hold need not be plans
        # `table` is ANTIPHON_TABLE of the job: files, separated by colons, which may have changed or gone meanwhile
        plans = [_inputs.plans(name).get(kind) for name in filter(os.path.isfile, table.split(":"))]
        for plan in filter(None, plans):
            # a call without data has no prediction, and a plan for another number of ranks served none of these calls
            for entry in plan.entries if nbytes and len(plan.collective.members) == ranks else ():
                if page_label(entry)[:_MAX_NAME] == schedule:
                    alone = Plan(
                        plan.topology,
                        plan.collective,
                        (Entry(start=0, stop=None, schedule=entry.schedule, claims=entry.claims),),
                    )
                    (row,) = predict(alone, nbytes)
                    return float(row["seconds"])
    return None
