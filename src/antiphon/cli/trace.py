"""The commands `trace merge` (traces side by side in one file) and `trace read` (Chakra traces of other programs)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from antiphon.api.plans import verify
from antiphon.api.traces import merge, read
from antiphon.cli import arguments as arg
from antiphon.cli.output import emit, sort_outputs, working, written_lines
from antiphon.cli.run_text import trace_text
from antiphon.core.plan import Plan
from antiphon.core.serialize import save_plan
from antiphon.errors import Infeasible, Invalid
from antiphon.show.columns import table
from antiphon.units import format_size, plural

MAX_ROWS = 40  # of a table on the terminal, about one screen; --json has all


def merge_command(
    files: Annotated[
        list[Path], typer.Argument(metavar="TRACE...", help="traces written by `run` or `predict --trace`")
    ],
    output: Annotated[list[Path], arg.output_option("trace merge")],
) -> None:
    """Merge traces into one file, side by side, each starting at 0.

    What is alike in two of them, such as the ranks of a run and of its simulation, stands one below the other. Traces
    of other programs in Chrome's format may be among them.
    """
    out, *surplus = sort_outputs("trace merge", output)["trace"]  # at least one, as -o is required
    if surplus:
        raise Invalid(f"-o {surplus[0]}: the traces are merged into one file; leave it out")
    with working("merging"):
        rows = merge(files, out)
    lines = table(["trace", "events", "title"], [[row["file"], str(row["events"]), row["title"]] for row in rows])
    emit({"traces": rows}, "\n".join(lines) + trace_text(out))


def read_command(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="files NAME.RANK.et, or their folder")],
    output: Annotated[list[Path] | None, arg.output_option("trace read")] = None,
) -> None:
    """Read Chakra execution traces: those that `export --to chakra` wrote as their plan, which is proven again; all
    others as the collectives that each rank calls."""
    out = sort_outputs("trace read", output)["plan"]
    with working("reading"):
        recording = read(files)
        plan = recording.plan
        fault = None if plan is None else verify(plan).fault
    if fault is not None:
        raise Infeasible(f"the plan that these traces hold is wrong: {fault.message}")
    if out and plan is None:
        raise Invalid("-o: these traces hold no plan of Antiphon; leave -o out")
    if plan is not None:
        for path in out:
            save_plan(path, plan)
    rows = list(recording.collectives)
    lines = _collectives_text(rows) if plan is None else [_plan_text(plan)]
    target = None if plan is None else {"collective": plan.collective.kind, "topology": plan.topology.name}
    emit({"plan": target, "collectives": rows}, "\n".join([*lines, *written_lines(*out)]))


def _plan_text(plan: Plan) -> str:
    """Return one line about the plan that traces hold."""
    (entry,) = plan.entries  # traces hold one schedule
    schedule = entry.schedule
    return (
        f"right: {plan.collective.title} on {plan.topology.name}: {plural(schedule.transfers, 'transfer')} in "
        f"{plural(schedule.steps, 'step')}, all pieces written out"
    )


def _collectives_text(rows: list[dict[str, Any]]) -> list[str]:
    """Return a table of the collectives that each rank calls. `node`: the call's number in the trace of its rank."""
    if not rows:
        return ["no collectives"]
    head = ["rank", "node", "collective", "nbytes", "group", "members"]
    cells = [
        [str(row["rank"]), str(row["node"]), row["collective"], format_size(row["nbytes"]), row["group"] or "-",
         ",".join(map(str, row["members"])) if row["members"] else "-"]
        for row in rows[:MAX_ROWS]
    ]  # fmt: skip
    hidden = len(rows) - MAX_ROWS
    return [*table(head, cells), *([f"  and {hidden} more (--json shows all)"] if hidden > 0 else [])]
