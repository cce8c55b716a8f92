"""Check whether other programs' runtimes will run the files that are exported for them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from antiphon.api import _inputs
from antiphon.api._checked import public, size, text, whole_number, yes_or_no

if TYPE_CHECKING:
    from antiphon.api._kinds import PlanLike, Row, Size


@public
def check(
    plan: PlanLike,
    runtime: str,
    nbytes: Size,
    *,
    dtype: str = "float32",
    op: str = "sum",
    processes: int | None = None,
    root: int | None = None,
    in_place: bool | None = None,
    collective: str = "",
) -> list[Row]:
    """Check whether a GPU runtime will run a plan for a call.

    Parameters
    ----------
    plan
        A plan or its file, which is exported to the runtime's files first; or such a file itself.
    runtime
        msccl, rccl-6 or mscclpp-0.9.
    nbytes
        Size of the call, such as "64MiB": the largest buffer of a rank.
    dtype
        Data type of the call.
    op
        Operator of the call.
    processes
        Processes of the communicator. Default: those of the plan.
    root
        Root of the call, if it has one.
    in_place
        Whether the call is in place. Default: both are checked.
    collective
        Of several plans, the one for this collective.

    Returns
    -------
    list of dict
        A row per file: `file`, `runs` (whether it does), `other_size` (whether it is for other sizes), and `findings`,
        each with its `outcome` (refused, ignored, hangs, wrong, note), `why`, and `instead`, a remedy.

    Raises
    ------
    Invalid
        The file cannot be read, or the runtime is not known.

    Examples
    --------
    >>> from antiphon.api.plans import plan
    >>> rows = check(plan("allreduce", "full:ranks=4", planner="ring"), "msccl", "1MiB")
    >>> rows[0]["runs"]
    True
    """
    from antiphon.core.datatypes import combine_of, data_type
    from antiphon.core.files import name_of, read_bytes, reading
    from antiphon.errors import NotFound, Unsupported, unknown
    from antiphon.formats import refuse_chooser
    from antiphon.formats.checked import check_file, check_plan, format_options
    from antiphon.formats.foreign import reader_of
    from antiphon.formats.lint.form import ApplicationCall, Finding
    from antiphon.formats.lint.table import RUNTIMES
    from antiphon.select.runners_up import emit_with_runners_up

    library = text(runtime, "runtime").partition("-")[0].lower()
    if runtime not in RUNTIMES:
        # such as NCCL, which chooses among its own algorithms and runs no files of others
        refuse_chooser(library)
        raise unknown("runtime", runtime, RUNTIMES)
    # 0: the ranks of the plan; 2^20: no job has more
    count = 0 if processes is None else whole_number(0, 2**20)(processes, "processes")
    root = None if root is None else whole_number(0, 2**20)(root, "root")
    in_place = None if in_place is None else yes_or_no(in_place, "in_place")
    element = data_type(dtype)
    combine_of(op)  # raises Invalid for an unknown one
    rules = RUNTIMES[runtime]
    call = ApplicationCall(
        size(nbytes, "nbytes"), element.itemsize, dtype=element.name, op=op, ranks=count, in_place=in_place, root=root
    )
    if _inputs.is_path(plan):
        name = name_of(_inputs.path(plan, "plan"))
        with reading(name):
            data = read_bytes(name)
            if reader_of(data) is not None:
                return [check_file(data, os.path.basename(name), rules, call)]
    verified = _inputs.verified_plan(plan, collective, use="checked")
    rows = check_plan(verified, rules, call)
    if not any(row["file"] and row["runs"] and not row["other_size"] for row in rows):
        with suppress(Unsupported, NotFound):  # as `export` does, take runners-up
            plans = {verified.collective.kind: verified}
            _, plans, notes = emit_with_runners_up(plans, rules.format, options=format_options(rules))
            rows = check_plan(plans[verified.collective.kind], rules, call)
            rows[0]["findings"] += [Finding("note", note).as_json() for note in notes]  # there is at least one row
    return rows


def run_reasons(rows: Sequence[Row]) -> list[Row]:
    """Return the reasons why a runtime runs a plan or not, from rows of `check`.

    Parameters
    ----------
    rows
        The result of `check`.

    Returns
    -------
    list of dict
        {what, why, instead, file} for the files of `files_shown`.
    """
    return [
        {"what": finding["outcome"], "why": finding["why"], "instead": finding["instead"], "file": row["file"]}
        for row in files_shown(rows)
        for finding in row["findings"]
    ]


def files_shown(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of files that serve the call; if none does, those for its size, and if none is for it, all."""
    return [row for row in rows if row["runs"]] or [row for row in rows if not row["other_size"]] or list(rows)
