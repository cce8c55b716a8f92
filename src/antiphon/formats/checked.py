"""Check whether a GPU runtime (such as rccl-6) will run a plan, or an exported file, for a call.

`antiphon lint` calls this. A file is first interpreted, to see whether it does what it says; then the rules of the
runtime (folder lint) decide whether it would be accepted. Result: per file its name, whether it runs, and findings.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from antiphon.core.plan import Plan
from antiphon.errors import Invalid, NotFound, Unsupported
from antiphon.formats.foreign import check_correct, reader_of
from antiphon.formats.foreign_program import Wrong
from antiphon.formats.lint.form import (
    WILL_NOT,
    ApplicationCall,
    Finding,
    Head,
    RuntimeRules,
    not_served,
    place_name,
)
from antiphon.registry import find

# {"file": "allreduce-0.xml", "runs": False, "other_size": False,
#  "findings": [{"outcome": "hangs", "why": ..., "instead": ...}]}
# `other_size`: whether the file is for other sizes than that of the call
Row = dict[str, Any]


def check_plan(plan: Plan, runtime: RuntimeRules, call: ApplicationCall) -> list[Row]:
    """Return a row of `check_file` per file that the plan is exported to, or one row without a file if it cannot be."""
    # The registry calls the writers of formats backends. With `can.tables` one takes a dict {collective: plan}.
    writer = find("backend", runtime.format)
    try:
        files = writer.load()({plan.collective.kind: plan} if writer.can.tables else plan, **format_options(runtime))
    except Unsupported as error:
        return [
            _result_row(name="", findings=[Finding("refused", str(error), "choose another planner, or fewer chunks")])
        ]
    except NotFound as error:  # all sizes are left to NCCL or RCCL, which is as fast
        return [_result_row(name="", findings=[Finding("refused", str(error), "leave it to the library")])]
    # a script beside the plans (register.py) registers them, and is none itself
    plan_files = {name: contents for name, contents in files.items() if not name.endswith(".py")}
    checked = [
        _check_file(contents if isinstance(contents, bytes) else b"".join(contents), name, runtime, call)
        for name, contents in plan_files.items()
    ]
    for in_place in (True, False) if call.in_place is None else (call.in_place,):
        serving = [row for row, head in checked if head is not None and head.serves(in_place) and not row["other_size"]]
        if serving:  # the note of other files that these calls lack a file would be wrong
            note = not_served(in_place).as_json()
            for row, _ in checked:
                row["findings"] = [finding for finding in row["findings"] if finding != note]
        running = [row for row in serving if row["runs"]]
        if len(running) > 1:
            names = ", ".join(row["file"] for row in running)
            why = f"{names} serve calls {place_name(in_place)}, and the runtime takes the first that it meets"
            running[0]["findings"].append(Finding("note", why).as_json())
    return [row for row, _ in checked]


def format_options(runtime: RuntimeRules) -> dict[str, Any]:
    """Return the options with which plans are exported to the runtime's format."""
    return {key: runtime.options[key] for key in find("backend", runtime.format).options if key in runtime.options}


def check_file(data: bytes, name: str, runtime: RuntimeRules, call: ApplicationCall) -> Row:
    """Return what the runtime does with a file for a call: file, runs, other_size, findings."""
    row, _ = _check_file(data, name, runtime, call)
    return row


def _check_file(data: bytes, name: str, runtime: RuntimeRules, call: ApplicationCall) -> tuple[Row, Head | None]:
    """Return the row of `check_file`, and the header of the file; None if the file does not do what it says."""
    reader = reader_of(data)
    if reader is None:
        raise Invalid(f"{name}: is no file that a runtime of GPUs reads; give a plan, MSCCL's XML or a plan of MSCCL++")
    try:
        written = reader(data, name)
        check_correct(written)
    except Wrong as error:
        # "left": a message that nobody receives, or a semaphore that the next call finds changed.
        outcome = "hangs" if error.kind in ("hang", "left") else "wrong"
        fault = Finding(outcome, str(error), "fix the file, or export it again from a plan")
        return _result_row(name, [fault]), None
    ranks = call.ranks or written.head.ranks  # 0: as many as the file is for
    call = replace(call, ranks=ranks)
    other_size = not written.head.serves_size(runtime.size_of(written.head, call))
    return _result_row(name, runtime.check(written.head, call), other_size), written.head


def _result_row(name: str, findings: list[Finding], other_size: bool = False) -> Row:
    runs = not any(finding.outcome in WILL_NOT for finding in findings)
    return {
        "file": name, "runs": runs, "other_size": other_size, "findings": [finding.as_json() for finding in findings]
    }  # fmt: skip
