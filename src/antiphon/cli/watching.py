"""The command `watch`: the calls of a running job, in the terminal or as text for Prometheus.

`calls` is what `api.watching.watch` returns: a row per process group, collective, size class and schedule.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphon.api.watching import watch
from antiphon.cli.output import JsonOutput, dash, emit
from antiphon.show.columns import paragraph, table
from antiphon.units import format_size, plural, ranks_text

REFRESH_SECONDS = 1.0  # of the view in a terminal
MAX_ROWS = 20  # kinds of calls in the table
WatchFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="what ANTIPHON_WATCH is for the job")]
Prometheus = Annotated[bool, typer.Option("--prometheus", help="print metrics in the text format of Prometheus")]


def watch_command(folder: WatchFolder, prometheus: Prometheus = False) -> None:
    """Show the calls of a running job: schedules, times beside predictions, and waits for the slowest process.

    A terminal shows them until the job ends; otherwise they are printed once.
    """
    calls = watch(folder)
    if prometheus or JsonOutput.requested or not sys.stdout.isatty():
        emit(calls, metrics_text(calls) if prometheus else calls_text(calls))
        return
    from rich.live import Live
    from rich.text import Text

    with Live(Text(calls_text(calls)), auto_refresh=False) as live:
        while calls["processes"]:  # when there is none any more, the last view stays
            live.update(Text(calls_text(calls)), refresh=True)
            time.sleep(REFRESH_SECONDS)
            calls = watch(folder)


def calls_text(calls: Mapping[str, Any]) -> str:
    """Return a table of the calls that take most of the time."""
    if not calls["processes"]:
        return "no process that writes there is running"
    ranks = f" (ranks {ranks_text(calls['ranks'])})" if calls["ranks"] else ""
    title = (
        f"{plural(calls['processes'], 'process')}{ranks}, {plural(sum(row['calls'] for row in calls['rows']), 'call')}"
    )
    head = ["collective", "ranks", "nbytes", "schedule", "calls", "of time", "takes", "predicted", "wait", "last rank"]
    cells = []
    for row in calls["rows"][:MAX_ROWS]:
        names = [row["collective"], str(row["ranks"]), format_size(row["nbytes"]), row["schedule"], str(row["calls"])]
        times = [f"{row['share']:.1%}", *(dash(row[key]) for key in ("seconds", "predicted", "wait"))]
        cells.append([*names, *times, "-" if row["last"] is None else f"{row['last']} ({row['last_share']:.0%})"])
    legend = "takes: from the last beginning to the end (median); wait: until then (mean); last rank: most often"
    missed = [f"  {plural(calls['missed'], 'call')} of further kinds not shown"] if calls["missed"] else []
    return "\n".join([title, *table(head, cells), *missed, *paragraph(legend)])


_METRICS = {  # key of a row, or of a process in it: name, type and help
    "calls": ("calls_total", "counter", "Calls of a process."),
    "seconds": ("call_seconds_total", "counter", "Seconds that a process has spent in calls."),
    "wait": ("wait_seconds", "gauge", "Mean wait of a process for the last one to begin, latest calls."),
    "takes": ("call_seconds", "gauge", "Seconds from the last beginning to the end, median of the latest calls."),
    "predicted": ("predicted_seconds", "gauge", "Predicted seconds of a call."),
}


def metrics_text(calls: Mapping[str, Any]) -> str:
    """Return the text format of Prometheus, version 0.0.4."""
    # key of a row -> label; least: the smallest size of the row's size class
    label_of_key = {key: key for key in ("collective", "group", "ranks", "schedule")} | {"least": "least_bytes"}
    lines = []
    for key, (metric, kind, text) in _METRICS.items():
        lines += [f"# HELP antiphon_{metric} {text}", f"# TYPE antiphon_{metric} {kind}"]
        for row in calls["rows"]:
            # these two are of all processes together, the other metrics of each
            group_values = {"takes": row["seconds"], "predicted": row["predicted"]}
            for values in [group_values] if key in group_values else row["processes"]:
                labels = {
                    label: str(row[k]).replace("\\", r"\\").replace('"', r"\"") for k, label in label_of_key.items()
                }
                labels |= {"rank": values["rank"]} if "rank" in values else {}
                if values[key] is not None:
                    joined = ",".join(f'{name}="{value}"' for name, value in labels.items())
                    lines.append(f"antiphon_{metric}{{{joined}}} {values[key]:.15g}")
    return "\n".join(lines)
