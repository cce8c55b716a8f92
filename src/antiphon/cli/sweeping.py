"""The commands `sweep`, which compares many machines, and `store`, which lists, fetches and deletes stored plans.

`tune --store` is here, too (`tune_with_store`).
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphon.api import sweeping
from antiphon.api.files import save
from antiphon.cli import arguments as arg
from antiphon.cli.output import StoppedEarly, emit, sort_outputs, write_pictures, written_lines
from antiphon.cli.progress import show_progress
from antiphon.cli.tuning_text import tuning_text
from antiphon.errors import Infeasible, NotFound, list_first
from antiphon.select.store import Answer, Store, Stored
from antiphon.show.columns import fitted_rows, paragraph, wrap_table
from antiphon.show.machines import conclusions, machine_table, short_names
from antiphon.sweeps.results import SweepResult, check_table_format
from antiphon.units import format_size, parse_size, plural

StoreOption = Annotated[
    str,
    typer.Option(
        "--store", metavar="PLACE", help="folder or URL where plans are kept (default: your cache folder; tune: none)"
    ),
]
Older = Annotated[float | None, typer.Option("--older-than", metavar="DAYS", min=0, help="delete what is older")]
MaxBytes = Annotated[str, typer.Option("--max-bytes", metavar="SIZE", help="delete the oldest beyond this size")]
MAX_SHOWN = 20  # machines in the table on the terminal


def sweep_command(
    file: Annotated[str, typer.Argument(metavar="FILE", help="TOML: collectives, nbytes, machines, prices")],
    engine: arg.Engine = "processes",
    store: StoreOption = "",
    output: Annotated[list[Path] | None, arg.output_option("sweep")] = None,
) -> None:  # fmt: skip
    """Compare many machines: which fabric is the best for these collectives, and for the money?

    FILE has collectives, nbytes and [[machines]] with a topology each, whose `vary` makes every combination of options.
    It may also have planners, model, profile, effort, budget and seed, as for tune (an example: docs/have/fabric.md).
    [[prices]] are lists by rank, switch, links and GB/s of each kind; a machine's own `price` replaces the sum. What
    the store holds is not planned again, so a sweep that was interrupted goes on. The picture shows time against price.
    """
    files = sort_outputs("sweep", output)
    for path in files["rows"]:
        check_table_format(path)
    with show_progress(unit="cells") as progress:
        result = sweeping.run(file, store=store or None, engine=engine, progress=progress)
    for path in files["rows"]:
        result.save(path)
    written = written_lines(*files["rows"])
    if files["picture"]:
        from antiphon.show.pictures.pareto import pareto_svg

        written += write_pictures(lambda: pareto_svg(result), files["picture"])
    emit(result.as_json(), "\n".join([*_sweep_lines(result), *written]))
    if not result.complete:
        raise StoppedEarly("interrupted; the same command goes on where it was")
    if all(machine.relative_time is None for machine in result.machines()):
        raise Infeasible("no machine has a plan for every collective; the reasons are listed above")


def _sweep_lines(result: SweepResult) -> list[str]:
    """Return the conclusion, the table of machines and the reasons of those that were refused."""
    machines = result.machines()
    planned = [m for m in machines if m.relative_time is not None]  # None: some collective has no plan on it
    low, high = format_size(result.request.sizes[0]), format_size(result.request.sizes[-1])
    # a cell of a sweep: one machine and one collective
    collectives = list(dict.fromkeys(cell.collective for cell in result.request.cells))
    _prefix, short = short_names(machines)
    lines = [line for i, text in enumerate(conclusions(result)) for line in paragraph(text, first="  " if i else "")]
    sizes = low if low == high else f"{low} to {high}"
    planned_text = f"; {result.planned} of {plural(len(result.answers), 'cell')} planned now"
    lines += paragraph(f"{', '.join(collectives)}, {sizes}: times the fastest machine's, geometric mean{planned_text}")
    if planned:
        head, rows = machine_table(result, MAX_SHOWN)
        fitted, _ = fitted_rows(head, rows, least_useful=("ranks", "worst gap"))
        lines += ["", *(line for row in fitted for line in row)]
        lines += [f"  ... {len(planned) - MAX_SHOWN} more; -o writes all"] if len(planned) > MAX_SHOWN else []
    if len({m.ranks for m in planned}) > 1:
        lines += ["", *paragraph("the machines have different numbers of ranks: a larger one does more in that time")]
    if result.stopped:
        stopped_text = f"in {plural(result.stopped, 'cell')} the budget stopped a planner: name a larger `budget`"
        lines += ["", *paragraph(f"{stopped_text}; the next run plans these again")]
    names: dict[str, list[str]] = {}  # of the machines without figures, by reason: an interrupted sweep may have many
    for m in machines:
        if m.refused:
            names.setdefault(m.refused, []).append(short[m.machine])
    for reason, same in names.items():
        count = f"{len(same)} machines, " * (len(same) > 1)
        lines += paragraph(f"no figures for {count}{list_first(same, limit=3)}: {reason}")
    return lines


def tune_with_store(
    coll: str, topo: str, out: Sequence[Path], *, store: str, group: list[int] | None, only: str,
    options: dict[str, Any],
) -> None:  # fmt: skip
    """Print the plan of the store, or tune and store it.

    `group`: the members; None: all ranks of the machine. `options`: further arguments of `api.sweeping.tune`.
    """
    machine, members = arg.machine_and_group(topo, only, group)
    with show_progress() as progress:
        answer = sweeping.tune(coll, machine, store=store, ranks=members, progress=progress, **options)
    for path in out:
        save(answer.plan, path)
    emit(_answer_json(answer), "\n".join([_answer_text(answer), *written_lines(*out)]))
    if not answer.complete:
        raise StoppedEarly("interrupted; nothing is stored")


def _answer_json(answer: Answer) -> dict[str, Any]:
    """Return what --json prints for a plan of a store."""
    rows = [
        {
            "nbytes": row.nbytes, "planner": row.planner, "seconds": row.seconds, "gap": row.gap,
            "library_seconds": row.library_seconds,
        }
        for row in answer.rows
    ]  # fmt: skip
    plan = answer.plan
    return {
        "topology": plan.topology.name, "collective": plan.collective.kind, "model": answer.model,
        "stored": answer.stored, "verdict": answer.tuning.verdicts, "rows": rows,
        "ranges": [r.as_json() for r in answer.tuning.ranges],
    }  # fmt: skip


def _answer_text(answer: Answer) -> str:
    """Return what `tune` prints without a store; only the last note says where the plan comes from."""
    origin = "from the store, verified again on this machine" if answer.stored else "made now"
    if answer.stopped:
        origin += f" and not stored, as the budget stopped {plural(answer.stopped, 'planner')}"
    return tuning_text(answer.tuning, origin=origin)


def list_stored_command(store: StoreOption = "") -> None:
    """List the plans in a store, the oldest first."""
    plan_store = _existing_store(store)
    entries = list(plan_store.entries())
    total = format_size(sum(entry.nbytes for entry in entries))
    lines = [f"{plan_store.location}: {plural(len(entries), 'plan')}, {total}", *_stored_table(entries)]
    emit([_stored_json(entry) for entry in entries], "\n".join(lines))


def _existing_store(place: str) -> Store:
    """Return the store at a place; NotFound if there is none. The default one begins empty."""
    plan_store = sweeping.as_store(place or None)
    if place and not plan_store.exists():
        raise NotFound(f"store {place}: there is no such folder; `antiphon tune COLL TOPO --store {place}` makes it")
    return plan_store


def get_command(
    coll: arg.Coll, topo: arg.Topo, nbytes: Annotated[
        str, typer.Option("--nbytes", metavar="SIZES", help="sizes that were planned (default 1KB:1GB)")
    ] = "",
    model: arg.ModelName = "", planner: arg.PlannerNames = None, only: arg.Only = "", store: StoreOption = "",
    output: Annotated[list[Path] | None, arg.output_option("store get")] = None,
) -> None:  # fmt: skip
    """Get a plan from a store without planning; exit code 1 if it is not there."""
    out = sort_outputs("store get", output)["plan"]
    name, root, group = arg.split_collective(coll, root=None, ranks="")
    machine, members = arg.machine_and_group(topo, only, group)
    answer = sweeping.get(
        name, machine, store=store or None, nbytes=nbytes or None, model=model or None, planners=planner or (),
        root=root, ranks=members,
    )  # fmt: skip
    if answer is None:
        location = sweeping.as_store(store or None).location
        flags = {"--nbytes": nbytes, "--model": model, "--only": only}
        words = [word for flag, value in flags.items() if value for word in (flag, value)]
        words += [word for planner_name in planner or () for word in ("--planner", planner_name)]
        command = shlex.join(["antiphon", "tune", coll, topo, *words, "--store", str(location)])
        raise NotFound(f"{location} has no such plan; `{command}` makes it")
    for path in out:
        save(answer.plan, path)
    emit(_answer_json(answer), "\n".join([_answer_text(answer), *written_lines(*out)]))


def collect_command(max_bytes: MaxBytes = "", older: Older = None, store: StoreOption = "") -> None:
    """Delete damaged entries, old ones, and the oldest beyond a size."""
    plan_store = _existing_store(store)
    limit = parse_size(max_bytes, "--max-bytes") if max_bytes else 0  # 0: no limit
    age = None if older is None else older * 24 * 3600  # seconds
    deleted = plan_store.collect(limit, age)
    lines = [f"{plural(len(deleted), 'plan')} deleted from {plan_store.location}", *_stored_table(deleted)]
    emit([_stored_json(entry) for entry in deleted], "\n".join(lines))


def _stored_table(entries: list[Stored]) -> list[str]:
    """Return a table of entries; damaged ones with their fault."""
    if not entries:
        return []
    head = ["address", "written (UTC)", "size", "collective", "sizes", "machine"]
    rows = []
    for entry in entries:
        written = datetime.fromtimestamp(entry.seconds, UTC).strftime("%Y-%m-%d %H:%M")
        sizes = ":".join(dict.fromkeys(map(format_size, entry.sizes)))
        last = f"damaged: {entry.damaged}" if entry.damaged else entry.machine
        rows.append([entry.address[:12], written, format_size(entry.nbytes), entry.collective or "-", sizes, last])
    return ["", *wrap_table(head, rows)]


def _stored_json(entry: Stored) -> dict[str, Any]:
    return {
        "address": entry.address, "nbytes": entry.nbytes, "written": entry.seconds, "machine": entry.machine,
        "collective": entry.collective, "sizes": list(entry.sizes), "damaged": entry.damaged or None,
    }  # fmt: skip
