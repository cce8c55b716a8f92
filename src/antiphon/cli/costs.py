"""The command `predict`: the time of a plan, its terms and its bottleneck, without running it.

`simulate` is the former name of `predict --trace`, which follows every message of one size. With --library the command
prints which algorithm NCCL or RCCL would choose at each size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphon.api.costs import predict, predict_library, simulate
from antiphon.cli import arguments as arg
from antiphon.cli.output import check_outputs, emit, working
from antiphon.cli.run_text import trace_text
from antiphon.cost.basis import CALIBRATED
from antiphon.cost.nccl.calls import CALL_TERMS
from antiphon.errors import Invalid, quote
from antiphon.show.columns import dropped_text, fitted_rows, paragraph, time_column
from antiphon.show.words import by_planner, ratio
from antiphon.topologies import topology
from antiphon.units import format_seconds, format_size, parse_size, parse_sizes, plural, size_family

SimulationModel = Annotated[
    str,
    typer.Option(
        "--model", metavar="NAME", show_default=False,
        help="what predicts: see antiphon list models (default: critical-path; on known GPUs as part of model calls)",
    ),
]  # fmt: skip
NEEDS_SIZES = "--nbytes is missing: give a size or a range, such as --nbytes 64MiB or --nbytes 1KB:1GB"
PUBLISHED = f"{CALIBRATED} published times on"  # replaces CALIBRATED, behind which a basis names the hardware
MAX_LISTED = 12  # hops of the critical path, or sizes
SPEEDS = ("algbw GB/s", "busbw GB/s")  # as nccl-tests defines them


def _size_family(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the units in which to write the sizes of all rows: KB, MB, ... or KiB, MiB, ..."""
    return size_family(row["nbytes"] for row in rows)


def rows_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return predictions as a title and a table; below it the planners if there are several, the meanings of terms, the
    bottlenecks, the models with what calibrates them, and notes.
    """
    terms = list(dict.fromkeys(term for row in rows for term, seconds in row["terms"].items() if seconds))
    family = _size_family(rows)
    unit, time_text = time_column(seconds for row in rows for seconds in (row["seconds"], *row["terms"].values()))
    has_gaps = any(row.get("gap") for row in rows)
    head = ["nbytes", f"time {unit}", *["gap"] * has_gaps, *SPEEDS, *(f"{term} {unit}" for term in terms)]
    cells = [
        [
            format_size(row["nbytes"], family), time_text(row["seconds"]), *[ratio(row.get("gap"))] * has_gaps,
            *_speed_cells(row),
            *(time_text(row["terms"].get(term, 0.0)) for term in terms),
        ]
        for row in rows
    ]  # fmt: skip
    # on a narrow terminal, the terms with the smallest shares of the time are dropped first
    largest_share = {term: max(row["terms"].get(term, 0.0) / (row["seconds"] or 1.0) for row in rows) for term in terms}
    drop_order = [f"{term} {unit}" for term in sorted(terms, key=largest_share.__getitem__)]
    # of `loggp`, "messages" are all messages
    explained = CALL_TERMS if rows[0]["model"].partition(":")[0] != "loggp" else {}
    meanings = {"gap": "time / lower bound by the same model"} if has_gaps else {}
    meanings |= {f"{term} {unit}": explained[term] for term in terms if term in explained}
    planners = list(dict.fromkeys(row.get("planner", "") for row in rows))
    lines = [*_title_lines(rows, planners), *_fitted_table(head, cells, drop_order, meanings)]
    lines += _lines_by_sizes(rows, "planner", lambda row: row["planner"]) if len(planners) > 1 else []
    lines += _lines_by_sizes(rows, "bottleneck", lambda row: row["bottleneck"])
    lines += _lines_by_sizes(
        rows, "model", lambda row: f"{row['model']}, {row['rests_on'].replace(CALIBRATED, PUBLISHED, 1)}"
    )
    return "\n".join([*lines, *_lines_by_sizes(rows, "note", _note_text)])


def _note_text(row: Mapping[str, Any]) -> str:
    """Return the note of a prediction without the remarks that its line "model" has, too."""
    return "; ".join(remark for remark in row["note"].split("; ") if remark not in row["rests_on"].split("; "))


def _title_lines(rows: Sequence[Mapping[str, Any]], planners: Sequence[str]) -> list[str]:
    """Return collective, machine, planner and the times at the first and the last size, if the rows name them."""
    if "collective" not in rows[0]:
        return []
    family = _size_family(rows)
    times = [f"{format_seconds(row['seconds'])} at {format_size(row['nbytes'], family)}" for row in rows]
    title = f"{rows[0]['collective']} on {rows[0]['topology']}"
    title += by_planner(planners[0]) if len(planners) == 1 and planners[0] else ""
    return paragraph(f"{title}: {' to '.join(dict.fromkeys([times[0], times[-1]]))}", first="")


def _speed_cells(row: Mapping[str, Any]) -> list[str]:
    """Return the cells of the columns SPEEDS."""
    return [f"{row['algbw'] / 1e9:.3f}", f"{row['busbw'] / 1e9:.3f}"]


def _fitted_table(
    head: Sequence[str], cells: Sequence[Sequence[str]], drop_order: Sequence[str], meanings: Mapping[str, str]
) -> list[str]:
    """Return the table, the meanings of columns, and the names of those that do not fit the terminal.

    These are dropped in `drop_order`.
    """
    lines, dropped = fitted_rows(head, cells, drop_order)
    notes = [f"{name}: {meaning}" for name, meaning in meanings.items() if name not in dropped]
    notes += [dropped_text(head, cells, dropped)] if dropped else []
    return [*(line for row in lines for line in row), *paragraph("; ".join(notes))]


def path_text(row: Mapping[str, Any]) -> str:
    """Return the first hops of the critical path as text."""
    hops = [f"{src} to {dst} (step {step})" for step, src, dst in row["critical_path"][:MAX_LISTED]]
    hidden = row["critical_path_length"] - len(hops)
    path = (", ".join(hops) or "nothing moves") + (f", and {hidden} more" if hidden > 0 else "")
    return "\n".join(paragraph(f"critical path: {path}", rest="    "))


def library_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the choices of a library as a table; below it, for each run of sizes, the reason and the bound of the
    choice and what calibrates its figures, and the multiprocessors that it occupies. `rows`: of `predict_library`."""
    family = _size_family(rows)
    alternative_seconds = [seconds for _, seconds in map(_next_best, rows)]
    unit, time_text = time_column([*(row["seconds"] for row in rows), *alternative_seconds])
    head = ["nbytes", f"time {unit}", "error", *SPEEDS, "choice", "mostly", "alternative", f"its {unit}"]
    cells = []
    for row in rows:
        choice, (alternative, seconds) = f"{row['algorithm']} {row['protocol']}", _next_best(row)
        error = "?" if row["error"] is None else f"{row['error']:.0%}"
        figures = [format_size(row["nbytes"], family), time_text(row["seconds"]), error, *_speed_cells(row)]
        cells.append([*figures, choice, row["mostly"].removeprefix("its "), alternative, time_text(seconds)])
    meanings = {
        "error": "median deviation from measured times on machines that the model was not fitted to (?: none)",
        "mostly": "largest term of that time (hops: latency; wire, cards: bandwidth; ramp: slower first bytes)",
        "alternative": "fastest other choice, and its time",
    }
    lines = _fitted_table(head, cells, [f"its {unit}", "alternative", "mostly", SPEEDS[0]], meanings)
    lines += _lines_by_sizes(rows, "error above the model's aim", lambda row: row["error_above_aim"] or "")
    lines += _lines_by_sizes(rows, "chosen by", lambda row: row["chosen_by"])
    lines += _lines_by_sizes(rows, "limited by", lambda row: row["limited_by"] or "")
    lines += _lines_by_sizes(rows, "figures", lambda row: row["calibrated"])
    return "\n".join([*lines, *_multiprocessor_lines(rows)])


def _next_best(row: Mapping[str, Any]) -> tuple[str, float | None]:
    """Return the fastest choice with another algorithm, else with another protocol, and its time."""
    seconds = row["others"]  # by choice, the fastest first
    name = next((name for name in seconds if name.split()[0] != row["algorithm"]), next(iter(seconds), None))
    return ("-", None) if name is None else (name, seconds[name])


def _lines_by_sizes(
    rows: Sequence[Mapping[str, Any]], title: str, text_of: Callable[[Mapping[str, Any]], str]
) -> list[str]:  # fmt: skip
    """Return a text about rows, once for each run of sizes with the same text; nothing if it is empty."""
    family = _size_family(rows)
    runs = [(text, list(run)) for text, run in groupby(rows, text_of)]
    lines = []
    for text, run in runs:
        ends = dict.fromkeys(format_size(row["nbytes"], family) for row in (run[0], run[-1]))
        sizes = f", {' to '.join(ends)}" if len(runs) > 1 else ""
        lines += paragraph(f"{title}{sizes}: {text}", rest="    ") if text else []
    return lines


def _multiprocessor_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Format the number of occupied multiprocessors, and the times of copy engines, which occupy no multiprocessor."""
    counts = {f"{row['sms']} of {row['sms_of']} by {row['algorithm']}": None for row in rows if row["sms"] is not None}
    lines = []
    if counts:
        lines += paragraph(
            f"SMs of each GPU that a call occupies at most (a small call fewer): {', '.join(counts)}", rest="    "
        )
    with_copy_engines = [row for row in rows if row["without_sms"] is not None]
    if with_copy_engines:
        family = _size_family(rows)
        times = ", ".join(
            f"{format_size(row['nbytes'], family)} {format_seconds(row['without_sms'])}"
            for row in with_copy_engines[-MAX_LISTED:]  # of many sizes the last
        )
        method = "by copy engines, which take no SM (NCCL_CTA_POLICY_ZERO, registered buffers; not calibrated)"
        lines += paragraph(f"{method}: {times}", rest="    ")
    return lines


def predict_command(
    context: typer.Context,
    file: arg.PlanFile,
    machine_or_plans: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPO | PLAN...]",
            help="with --library COLL TOPO: the machine; with --together: the other plans",
            show_default=False,
        ),
    ] = None,
    *,
    together: Annotated[
        bool, typer.Option("--together", help="the plans run at the same time, each on --nbytes of data")
    ] = False,
    nbytes: Annotated[
        str,
        typer.Option(
            "--nbytes", metavar="SIZE", help="one size, or a range: 1KB:1GB doubles, 1KB:1GB:10 multiplies by ten"
        ),
    ] = "",
    model: arg.ModelName = "",
    profile: arg.ProfileFile = None,
    collective: arg.WhichPlan = "",
    topo: arg.OnMachine = "",
    only: arg.Only = "",
    library: arg.Library = "",
    trace: arg.Trace = None,
) -> None:
    """Predict the time of a plan at each size, its terms and its bottleneck.

    With --trace every message of one size is followed (by the model `critical-path`; on known GPUs as part of `calls`),
    and the chain of messages that delayed the last one is printed. A schedule of the PICCL simulator (.xml) with its
    --topology states its own sizes and is followed by the model `loggp`.

    With --together the plans run at the same time and share the links, as plans for several process groups do.

    With --library and --nbytes, COLL TOPO in place of a plan: what that library would choose at each size, its time,
    SMs and why.
    """
    if together:
        _refuse_options("--together", {
            "--library": bool(library), "--topology": bool(topo), "--only": bool(only),
            "--collective": bool(collective), "--trace": trace is not None,
        })  # fmt: skip
        _predict_together([file, *(machine_or_plans or ())], nbytes, model, profile)
        return
    machine_of_library = " ".join(machine_or_plans or ())
    arg.check_order(context, machine_of_library)
    plan_file, collective = arg.split_plan(file, collective)
    if library:  # then `file` is COLL
        _predict_library(library, file, machine_of_library, nbytes, only, {
            "--model": bool(model), "--profile": profile is not None, "--collective": bool(collective),
            "--topology": bool(topo), "--trace": trace is not None,
        })  # fmt: skip
        return
    if machine_of_library:
        raise Invalid(
            f"{quote(machine_of_library)}: a plan names its machine; COLL TOPO needs --library nccl (or rccl)"
        )
    if trace is not None or (topo and _is_piccl_schedule(plan_file)):
        _, kept_ranks = arg.split_machine(topo)
        if only or kept_ranks:
            raise Invalid("TOPO:only=: cannot be combined with --trace or a schedule of PICCL; leave it out")
        _simulate(
            plan_file, nbytes, model=model, profile=profile, collective=collective, trace=trace, topo=topo
        )  # fmt: skip
        return
    if not nbytes:
        raise Invalid(NEEDS_SIZES)
    sizes, machine = parse_sizes(nbytes, "--nbytes"), arg.machine_or_none(topo, only)
    with working(f"predicting {plural(len(sizes), 'size')}"):
        rows = predict(plan_file, sizes, model=model, profile=profile, collective=collective, topology=machine)
    emit({"rows": rows}, rows_text(rows))


def _predict_together(files: list[str], nbytes: str, model: str, profile: Path | None) -> None:
    """Print the time of several plans that run at the same time."""
    if not nbytes:
        raise Invalid(NEEDS_SIZES)
    plans = [arg.load_plan(file) for file in files]
    with working(f"predicting {len(plans)} plans together"):
        rows = predict(plans, parse_sizes(nbytes, "--nbytes"), model=model, profile=profile)
    emit({"rows": rows}, rows_text(rows))


def _refuse_options(option: str, used: Mapping[str, bool]) -> None:
    """Refuse the options that are used although `option` does not read them; nothing is silently ignored."""
    for name, is_used in used.items():
        if is_used:
            raise Invalid(f"{name}: cannot be combined with {option}; leave it out")


def _predict_library(
    library: str, kind: str, topo: str, nbytes: str, only: str, plan_options: Mapping[str, bool]
) -> None:  # fmt: skip
    """Print the choices of a library; refuse options that are for plans."""
    _refuse_options("--library, which has figures of its own", plan_options)
    if not topo:
        raise Invalid(f"--library {library}: name collective and machine, such as: allreduce hgx-h100 --library nccl")
    if not nbytes:
        raise Invalid(NEEDS_SIZES)
    sizes = parse_sizes(nbytes, "--nbytes")
    target, machine = arg.request(kind, topo, root=None, only=only, ranks="")
    rows = predict_library(target, machine, sizes, library=library)
    emit({"rows": rows}, library_text(rows))


def simulate_command(
    file: arg.PlanFile,
    nbytes: Annotated[str, typer.Option("--nbytes", metavar="SIZE", help="the size, e.g. 64MiB")] = "",
    model: SimulationModel = "",
    profile: arg.ProfileFile = None,
    collective: arg.WhichPlan = "",
    trace: arg.Trace = None,
    topo: Annotated[
        str, typer.Option("--topology", metavar="TOPO", help="the machine of a file that names none; PICCL's XML, too")
    ] = "",
) -> None:
    """Follow every message of one size, and print the chain of messages that delayed the last one.

    A schedule of the PICCL simulator (.xml) states its own sizes; its machine is --topology, its model loggp.
    """
    plan_file, collective = arg.split_plan(file, collective)
    _simulate(plan_file, nbytes, model=model, profile=profile, collective=collective, trace=trace, topo=topo)


def _simulate(
    file: Path, nbytes: str, *, model: str, profile: Path | None, collective: str, trace: Path | None, topo: str,
) -> None:  # fmt: skip
    """Simulate every message of a plan, or of a PICCL schedule, and print the row and the critical path."""
    check_outputs({"--trace": trace})
    if topo and _is_piccl_schedule(file):
        _simulate_piccl(file, topo, nbytes, model, profile, trace)
        return
    if not nbytes:
        raise Invalid("--nbytes: give the size, such as 64MiB (only a schedule XML with --topology needs none)")
    size = parse_size(nbytes, "--nbytes")
    with working("simulating"):
        (row,) = simulate(
            file, size, model=model, profile=profile, trace=trace, collective=collective, topology=topo or None
        )
    emit({"rows": [row]}, rows_text([row]) + "\n" + path_text(row) + trace_text(trace))


def _is_piccl_schedule(file: Path) -> bool:
    """Return whether the file is a schedule of the PICCL simulator: XML that is not MSCCL's."""
    from antiphon.formats.foreign import is_gpu_program_file

    return file.name.endswith((".xml", ".xml.gz")) and not (file.is_file() and is_gpu_program_file(file))


def _simulate_piccl(file: Path, topo: str, nbytes: str, model: str, profile: Path | None, trace: Path | None) -> None:
    """Simulate a PICCL schedule, which states the bytes of every message, on its own machine."""
    from antiphon.cost import as_profile, model_of
    from antiphon.cost.basis import profile_basis
    from antiphon.cost.loggp.loggp import simulate_graph
    from antiphon.formats.piccl.readers import read_schedule, read_topology

    options: dict[str, Any] = {}
    name = "loggp"
    if model:
        name = model.partition(":")[0]
        _, options = model_of(model)
    if name != "loggp":
        raise Invalid(f"--model {name}: a schedule XML is simulated by loggp, such as loggp:fidelity=packet")
    if nbytes or trace is not None:
        raise Invalid("a schedule XML with --topology has its own sizes and no trace; leave out --nbytes and --trace")
    schedule = read_schedule(file)
    if topo.endswith(".xml"):
        # the profile needs device_radix (messages that a rank sends at once), which PICCL's file does not have
        machine, own_figures = read_topology(topo, options.get("device_radix"))
    else:
        machine, own_figures = topology(topo), None
    figures = profile if profile is not None else own_figures
    if figures is None:
        raise Invalid("--profile: give one, as this topology is not an XML file with figures of its own")
    with working(f"simulating {len(schedule.graph)} messages"):
        predict_time = simulate_graph(schedule.graph, machine, profile=figures, **options)
        prediction = predict_time(1)  # the messages of the graph have sizes in bytes, so the factor is 1
    # Speeds are not computed for these schedules: 0.
    row = {
        "nbytes": schedule.nbytes, "seconds": prediction.seconds, "algbw": 0.0, "busbw": 0.0,
        "terms": dict(prediction.terms), "bottleneck": prediction.bottleneck, "note": prediction.note,
        "model": model or name, "rests_on": profile_basis(as_profile(figures)),
    }  # fmt: skip
    path = [list(hop) for hop in prediction.critical_path]
    row |= {"critical_path": path, "critical_path_length": len(path)}
    emit({"rows": [row]}, rows_text([row]) + "\n" + path_text(row))
