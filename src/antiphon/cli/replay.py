"""The command `replay`: estimate what a recorded job gains from our plans, and which collectives to tune."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphon.api.replaying import policies, replay
from antiphon.cli.arguments import (
    ModelName,
    Only,
    PlannerNames,
    ProfileFile,
    RecordedLibrary,
    RecordedOn,
    machine_or_none,
)
from antiphon.cli.output import dash, emit, working
from antiphon.errors import Invalid
from antiphon.show.columns import paragraph, table
from antiphon.units import format_seconds, format_size

MAX_ROWS = 12  # collectives in the table


def replay_command(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE...",
            help="traces of PyTorch's profiler, Chakra or NCCL's profilers, or their folder; with --policy: calls.csv",
        ),
    ],
    topo: RecordedOn = "",
    only: Only = "",
    table: Annotated[
        Path | None, typer.Option("--table", metavar="FILE", help="table of plans (default: plan now)")
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(
            "--measured", metavar="FILE", help="measured times of our plans: from bench --json, or nccl-tests"
        ),
    ] = None,
    model: ModelName = "",
    profile: ProfileFile = None,
    planner: PlannerNames = None,
    library: RecordedLibrary = "",
    cores: Annotated[
        int, typer.Option("--cores", metavar="N", min=0, help="cores that the ranks share (0: they do not)")
    ] = 0,
    policy: Annotated[
        list[str] | None, typer.Option("--policy", metavar="NAME", help="compare policies: fixed, trial, bandit, prior")
    ] = None,
) -> None:
    """Estimate what a recorded job gains from a table of plans, and which collectives are worth tuning."""
    if policy:
        if len(files) > 1:
            raise Invalid("--policy reads one file of recorded calls")
        unused = {
            "--topology": topo, "--only": only, "--table": table, "--measured": measured, "--model": model,
            "--profile": profile, "--planner": planner, "--library": library, "--cores": cores,
        }  # fmt: skip
        if named := [option for option, value in unused.items() if value]:
            raise Invalid(f"--policy: the file of calls has all candidates' times; leave {', '.join(named)} out")
        with working("replaying"):
            compared = policies(files[0], [name for text in policy for name in text.split(",")])
        emit(compared, policies_text(compared))
        return
    with working("replaying"):
        result = replay(
            list(files), machine_or_none(topo, only), table=table, measured=measured, model=model, profile=profile,
            planners=planner or (), library=library, cores=cores or None,
        )  # fmt: skip
    emit(result, replay_text(result))


# ---- text ----


def replay_text(result: Mapping[str, Any]) -> str:
    """Return the time of a step as recorded and with our plans, its collectives, DDP's buckets, and notes."""
    return "\n".join(
        [
            *_step_lines(result),
            "",
            *_collective_lines(result["calls"]),
            *_worth_lines(result),
            *_together_lines(result),
            *_bucket_lines(result),
            *_note_lines(result),
        ]
    )


def policies_text(result: Mapping[str, Any]) -> str:
    """Return a table of policies per collective and size."""
    head = ["collective", "nbytes", "policy", "takes", "regret", "than best", "switches", "last candidate"]
    cells = [
        [
            row["collective"], format_size(row["nbytes"]), entry["policy"], format_seconds(entry["seconds"]),
            f"{entry['regret']:+.1%}", f"{entry['against_best']:+.1%}", str(entry["switches"]), entry["last"],
        ]
        for row in result["rows"]
        for entry in row["policies"]
    ]  # fmt: skip
    lines = table(head, cells)
    lines += paragraph(f"regret: against the best candidate of each {result['stretch']} calls, in hindsight")
    for row in result["rows"]:
        best = f"{row['best']} ({format_seconds(row['best_seconds'])} for {row['calls']} calls)"
        lines += paragraph(
            f"than best: than {best}, the best for all of {row['collective']} {format_size(row['nbytes'])}"
        )
    return "\n".join(lines)


def _step_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the time of a step as recorded and with our plans, and the time of its communication.

    Communication is hidden while computation runs at the same time, else exposed. The key `off` is the error of the
    replay relative to the recorded time.
    """
    step, times = result["step"], result["communication"]
    ranks = len(result["ranks"])
    lines = paragraph(
        f"a step takes {format_seconds(step['recorded'])} (median of {result['steps']}, {ranks} "
        f"rank{'s' * (ranks > 1)}); replayed as it was {format_seconds(step['replayed'])} ({step['off']:+.1%})",
        first="",
    )  # fmt: skip
    lines += paragraph(
        f"with ours {format_seconds(step['ours'])}: {step['speedup']:.2f} times as fast ({step['rests_on']}); "
        f"without any communication {format_seconds(step['without_communication'])}", first=""
    )  # fmt: skip
    lines += paragraph(
        f"computation {format_seconds(result['computation'])}; communication {format_seconds(times['seconds'])}, of "
        f"which exposed {format_seconds(times['exposed'])}, hidden {format_seconds(times['hidden'])}; exposed with "
        f"ours {format_seconds(times['ours_exposed'])}", first=""
    )  # fmt: skip
    return lines


def _collective_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table of the collectives, the longest in total first."""
    head = ["collective", "nbytes", "ranks", "a step", "takes", "exposed", "ours", "library", "gain", "ours is"]
    cells = [
        [
            row["collective"], format_size(row["nbytes"]), str(row["ranks"]), f"{row['per_step']:.4g}",
            format_seconds(row["seconds"]), format_seconds(row["exposed"]), dash(row["ours"]), dash(row["library"]),
            dash(row["gain"], _signed_seconds), row["rests_on"] or "-",
        ]
        for row in rows[:MAX_ROWS]
    ]  # fmt: skip
    unlisted = len(rows) - MAX_ROWS
    lines = [*table(head, cells), *([f"  and {unlisted} more (--json shows all)"] if unlisted > 0 else [])]
    lines += paragraph("takes, ours, library: per call, as recorded, by our plan, by the library's model")
    lines += paragraph("exposed, gain: per step, summed over its calls")
    for source in dict.fromkeys(row["by"] for row in rows if row["by"]):
        lines += paragraph(f"ours: {source}", first="  ", rest="    ")
    for source in dict.fromkeys(row["library_by"] for row in rows if row["library_by"]):
        lines += paragraph(f"library: {source}", first="  ", rest="    ")
    return lines


def _signed_seconds(seconds: float) -> str:
    return f"{'-' if seconds < 0 else ''}{format_seconds(abs(seconds))}"


def _worth_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the collective whose tuning would shorten a step most."""
    collective = result["worth_tuning"]
    if collective is None:
        return paragraph("worth tuning: none; ours would not make a step shorter by any of them", first="")
    call = f"{collective['collective']} of {format_size(collective['nbytes'])}"
    return paragraph(
        f"worth tuning first: {call}, {format_seconds(collective['gain'])} of a step ({collective['rests_on']})",
        first="",
    )


def _together_lines(result: Mapping[str, Any]) -> list[str]:
    """Return, for collectives that groups run at the same time, the times of separate plans and of one joint plan."""
    lines = []
    for row in result["together"]:
        counts = Counter((call["collective"], call["nbytes"]) for call in row["calls"])
        names = " + ".join(f"{count} x {kind} of {format_size(nbytes)}" for (kind, nbytes), count in counts.items())
        lines += paragraph(
            f"at the same time, {row['per_step']:.4g} times a step: {names}; plans apart take "
            f"{format_seconds(row['apart'])}, a joint plan {format_seconds(row['joint'])}", first="", rest="  "
        )  # fmt: skip
    return lines


def _bucket_lines(result: Mapping[str, Any]) -> list[str]:
    """Return a table of step times by the size of DDP's buckets (gradients that are reduced together)."""
    buckets = result["buckets"]
    if buckets is None:
        return []
    marks = (("best", " (best)"), ("recorded", " (as recorded)"))  # keys of `buckets` that hold a size, and their text
    rows = [
        [
            format_size(row["nbytes"]) + "".join(mark for key, mark in marks if row["nbytes"] == buckets[key]),
            str(row["buckets"]), format_seconds(row["seconds"]),
        ]
        for row in buckets["rows"]
    ]  # fmt: skip
    title = f"the last step by ours ({result['step']['rests_on']}), with DDP's buckets of"
    return ["", title, *table(["at least", "buckets", "step"], rows)]


def _note_lines(result: Mapping[str, Any]) -> list[str]:
    return [line for note in result["notes"] for line in paragraph(f"note: {note}", first="", rest="  ")]
