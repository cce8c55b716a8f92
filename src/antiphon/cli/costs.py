"""antiphon models, predict, simulate: what a plan takes, and why, without running it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphon.cli._arguments import Json
from antiphon.cli._output import emit, working
from antiphon.core.files import write_bytes
from antiphon.core.plan import Plan
from antiphon.registry import table
from antiphon.show.text import table as columns
from antiphon.units import format_seconds, format_size

PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="a plan as `antiphon plan -o` writes it")]
ProfileFile = Annotated[
    Path | None, typer.Option("--profile", help="latencies and bandwidths as measured (a JSON file)")
]
SHOWN_HOPS = 12


def _load(path: Path) -> Plan:
    from antiphon.core.serialize import load_plan

    return load_plan(path)


def _models(json: Json = False) -> None:
    """The cost models, and what each can price."""
    entries = sorted(table("model").items())
    rows = [[name, str(e.can["collectives"]), str(e.can["topologies"]), e.about] for name, e in entries]
    found = [{"name": name, "about": e.about, "trace": False, **e.can} for name, e in entries]
    emit(found, "\n".join(columns(["model", "collectives", "topologies", ""], rows)), json)


def rows_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Predictions, one line each, and below them what they rest on where that must be said."""
    terms = list(dict.fromkeys(term for row in rows for term, seconds in row["terms"].items() if seconds))
    listed = [
        [
            format_size(row["nbytes"]), format_seconds(row["seconds"]), f"{row['algbw'] / 1e9:.3f}",
            f"{row['busbw'] / 1e9:.3f}", *(format_seconds(row["terms"].get(term, 0.0)) for term in terms),
            row["bottleneck"],
        ]
        for row in rows
    ]  # fmt: skip
    head = ["nbytes", "time", "algbw GB/s", "busbw GB/s", *terms, "held up by"]
    notes = [f"  note: {note}" for note in dict.fromkeys(row["note"] for row in rows) if note]
    return "\n".join([*columns(head, listed), *notes])


def path_text(row: Mapping[str, Any]) -> str:
    """The first hops of the critical path."""
    hops = [f"{src} to {dst} (step {step})" for step, src, dst in row["critical_path"][:SHOWN_HOPS]]
    left = row["critical_path_length"] - len(hops)
    return "  critical path: " + (", ".join(hops) or "nothing moves") + (f", and {left} more" if left > 0 else "")


def _predict(
    file: PlanFile,
    nbytes: Annotated[str, typer.Option("--nbytes", help="a size, or a range: 1KB:1GB doubles, 1KB:1GB:10 takes tens")],
    model: Annotated[str, typer.Option("--model", help="see antiphon models")] = "alpha-beta",
    profile: ProfileFile = None,
    json: Json = False,
) -> None:
    """What a plan takes at each size, which terms that is the sum of, and what holds it up."""
    from antiphon.cost import predict, sizes

    wanted = sizes(nbytes)
    loaded = _load(file)
    with working(f"predicting {len(wanted)} sizes by {model}"):
        rows = predict(loaded, wanted, model=model, profile=profile)
    emit({"rows": rows}, rows_text(rows), json)


def _simulate(
    file: PlanFile,
    nbytes: Annotated[str, typer.Option("--nbytes", help="the size, e.g. 64MiB")],
    model: Annotated[str, typer.Option("--model", help="see antiphon models")] = "critical-path",
    profile: ProfileFile = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="write when every message is under way (Chrome trace, JSON)")
    ] = None,
    json: Json = False,
) -> None:
    """Follow every message of one size, and name the path that the last one to land waited for."""
    from antiphon.cost import simulate
    from antiphon.units import parse_size

    size = parse_size(nbytes, "--nbytes")
    loaded = _load(file)
    with working(f"simulating by {model}"):
        row, events = simulate(loaded, size, model=model, profile=profile, trace=trace is not None)
    where = ""
    if trace is not None and events is not None:
        write_bytes(trace, events)
        where = f"\n  trace written to {trace}: open it in chrome://tracing or ui.perfetto.dev"
    emit({"rows": [row]}, rows_text([row]) + "\n" + path_text(row) + where, json)


def register(app: typer.Typer) -> None:
    app.command("models", epilog="Example: antiphon models")(_models)
    app.command("predict", epilog="Example: antiphon predict plan.json --nbytes 1KB:1GB")(_predict)
    app.command("simulate", epilog="Example: antiphon simulate plan.json --nbytes 64MiB --trace trace.json")(_simulate)
