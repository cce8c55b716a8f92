"""Measure plans as nccl-tests does, beside the library's own collectives, and check every result (docs/bench.md).

`bench` takes plans, a file, or a collective with a machine, for which it plans first. `measure_plans` expands plans,
sizes, types and operators to lines; each line becomes a case out of place and, on request, one in place (`case.Case`).
The runtime runs all cases in one launch and returns a row for each. The plan's facts and the time that a model predicts
are added to it. `measure_depth` finds the number of pieces at which a schedule is fastest, by trying it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from antiphon.core.collective import KINDS, ROOTED
from antiphon.core.datatypes import OPERATORS, combine_of, data_type
from antiphon.core.files import write_bytes
from antiphon.core.plan import Entry, Plan
from antiphon.core.topology import Topology
from antiphon.core.transform import pipeline
from antiphon.cost import Prediction, Predictor, prepare
from antiphon.cost.basis import basis_of, usual_model
from antiphon.cost.miad import Miad
from antiphon.cost.profile import Profile
from antiphon.errors import AntiphonError, Infeasible, Invalid, NotFound, Unsupported, quote
from antiphon.registry import find
from antiphon.runtimes.engine.launch import is_launched
from antiphon.runtimes.measure.case import Case, How, Row, Runnable, inner_of
from antiphon.runtimes.measure.recorder import measured_trace
from antiphon.runtimes.measure.rows import (
    cuts_of,
    deciding_process,
    has_in_place,
    load_runtime,
    row_of,
    run_schedule,
    unit_for_size,
)
from antiphon.runtimes.measure.tables import has_formula, no_formula
from antiphon.select import check, collective, is_file, load_plans, plan, tune
from antiphon.select.parse_request import machine_of
from antiphon.units import Sizes, parse_sizes


@dataclass(frozen=True, eq=False)
class _Line:
    """A plan at one size, type and operator, to be measured out of place, then in place."""

    plan: Plan
    entry: Entry
    unit: int  # elements of a block of weight 1
    nbytes: int
    dtype: str
    op: str
    pieces: int | None = None  # the number that measured best; None: not searched


def run_plan(  # noqa: PLR0913
    plan: Plan,
    nbytes: Sizes,
    dtype: str = "float32",
    op: str = "sum",
    seed: int = 0,
    repeat: int = 3,
    in_place: bool = False,
    *,
    on: str = "local",
    how: How | None = None,
    trace: str | os.PathLike[str] | None = None,
) -> list[Row] | None:
    """Run the schedule of a plan for each size on random data, check every element, and return a row for each size.

    Of processes that a launcher started, only the first has rows (docs/bench.md). `trace`: a file for the trace of the
    run of median time (docs/export.md); for one size only.
    """
    options, rows, sizes = _check_options(on, how or How()), list[Row](), parse_sizes(nbytes)
    if trace is not None and len(sizes) > 1:
        raise Invalid(f"trace: shows one run, and there are {len(sizes)} sizes; give one")
    if trace is not None and not find("runtime", on).can.trace:
        raise Unsupported(f"--on {on}: its runs cannot be traced")
    for size in sizes:
        entry = plan.at(size)
        runnable = Runnable(entry.schedule, plan.topology)
        size_rows = run_schedule(
            on, runnable, size, dtype, op, seed, repeat, in_place, how=options, trace=trace is not None
        )
        rows += [{**_plan_facts(plan, entry), **row} for row in size_rows or ()]
    if trace is not None and rows:
        _write_trace(trace, plan, on, rows[0])
    return rows or None


def _write_trace(path: str | os.PathLike[str], plan: Plan, on: str, row: Row) -> None:
    """Take the records of a run out of its row, and write them as a trace."""
    title = f"{plan.collective.kind} on {plan.topology.name}, measured on {on}"
    facts = {"nbytes": row["nbytes"], "runs": row["runs"], "seconds": row["seconds"]}
    write_bytes(path, measured_trace(row.pop("traced"), title, facts))


def measure_plans(  # noqa: PLR0913
    plans: Plan | Sequence[Plan],
    nbytes: Sizes = "1KB:16MB:4",
    *,
    on: str = "mpi",
    dtype: str | Sequence[str] = "float32",
    op: str | Sequence[str] = "sum",
    iterations: int = 20,
    warmup: int = 5,
    model: str = "",
    profile: Profile | None = None,
    miad: bool = False,
    seed: int = 0,
    in_place: bool = True,
    progress: Callable[[Row], None] | None = None,
    stopped: Callable[[], bool] = lambda: False,
    **how: Any,
) -> list[Row]:
    """Measure plans at each size, type and operator; a plan with ranges has a schedule for each size.

    Returns a row out of place and, with `in_place`, one in place where supported; docs/bench.md defines the keys.
    `how`: options of the runtime (`How`). `model`, `profile`: of the predicted times; default: the usual model of the
    machine, nominal. `progress` gets every row at once. `miad`: tune the number of pieces by the measured throughput.
    `stopped`: called now and then; if True, the remaining cases are skipped. Of processes that a launcher started, only
    the one that decides may call it (`deciding_process`).
    """
    options = _check_options(on, How(**how))
    for setting, value, minimum in (("iterations", iterations, 1), ("warmup", warmup, 0), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise Invalid(f"{setting}: expected a whole number from {minimum}, got {value!r}")
    lines = list(
        _expand_lines([plans] if isinstance(plans, Plan) else plans, nbytes, _type_names(dtype), _operator_names(op))
    )
    if not lines:
        raise Invalid("there is nothing to measure: no plan, or no size")
    case_maker = _CaseMaker(on, options, Case(seed=seed, repeat=iterations, warmup=warmup))
    if miad:
        lines = [case_maker.with_best_depth(line) for line in lines]
    predicted, rows = _Predictions(model, profile, on), list[Row]()
    # Out of place first, then in place where requested and supported.
    cases = [
        (line, case_maker.case(line, place)) for line in lines for place in case_maker.places(line)[: 1 + in_place]
    ]

    def on_row(number: int, row: Row) -> None:
        line, case = cases[number]
        rows.append(
            _complete_row(line, row_of(case, line.plan.collective, row, on), predicted(line), predicted.describe(line))
        )
        if progress is not None:
            progress(rows[-1])

    load_runtime(on).run(case_maker.programs, [case for _, case in cases], options, on_row, stopped)
    return rows


class _CaseMaker:
    """Turns lines into cases; each schedule is lowered once. `template`: a case with the fields that all share."""

    def __init__(self, on: str, how: How, template: Case) -> None:
        self.on, self.how, self.template = on, how, template
        self.programs: list[Runnable] = []
        self.numbers: dict[int, int] = {}

    def _program_number(self, line: _Line) -> int:
        """Return the number of the line's schedule among `programs`, added if it is new."""
        schedule = line.entry.schedule
        if id(schedule) not in self.numbers:
            self.numbers[id(schedule)] = len(self.programs)
            self.programs.append(Runnable(schedule, line.plan.topology))
        return self.numbers[id(schedule)]

    def places(self, line: _Line) -> list[bool]:
        """Return the values of `in_place` to measure: False, then True if supported."""
        program = self.programs[self._program_number(line)]
        supported = has_in_place(self.on, line.plan.collective.kind) and program.in_place
        return [False, True] if supported else [False]

    def case(self, line: _Line, in_place: bool = False) -> Case:
        number = self._program_number(line)
        return replace(
            self.template, program=number, ranks=self.programs[number].ranks, unit=line.unit, nbytes=line.nbytes,
            dtype=line.dtype, op=line.op, in_place=in_place, inner=inner_of(line.nbytes),
        )  # fmt: skip

    def with_best_depth(self, line: _Line) -> _Line:
        """Return the line with the number of pieces that measured best."""
        case = self.case(line)
        best = measure_depth(self.on, self.programs[case.program], case, self.how)
        entry = replace(line.entry, schedule=pipeline(line.entry.schedule, best))
        return replace(line, entry=entry, pieces=best)


def bench(
    source: str | Plan | Sequence[Plan],
    topology: Topology | str | None = None,
    nbytes: Sizes = "1KB:16MB:4",
    *,
    planner: str = "",
    options: Mapping[str, Any] | None = None,
    root: int | None = None,
    ranks: Sequence[int] | None = None,
    **how: Any,
) -> list[Row] | None:
    """Measure plans (`bench_plans`), or those that `plans_of` returns: by default plans tuned for these sizes.

    `how`: further arguments of `measure_plans`. Under mpiexec or srun only process 0 has rows, the others None.
    """
    if not isinstance(source, str):
        return bench_plans(source, nbytes, **how)
    with deciding_process(*_runtime_options(how), before=lambda: check_names(source, topology, planner)) as deciding:
        if not deciding:
            return None
        span = parse_sizes(nbytes)
        plans = plans_of(
            source, topology, nbytes=f"{min(span)}B:{max(span)}B", planner=planner, options=options, root=root,
            ranks=ranks, **{key: how[key] for key in ("model", "profile") if key in how},
        )  # fmt: skip
        return measure_plans(plans, nbytes, **how)


def bench_plans(plans: Plan | Sequence[Plan], nbytes: Sizes = "1KB:16MB:4", **how: Any) -> list[Row] | None:
    """Call `measure_plans`, whose arguments `how` are, in all processes: under mpiexec or srun only process 0 has rows,
    the others None."""
    with deciding_process(*_runtime_options(how)) as deciding:
        return measure_plans(plans, nbytes, **how) if deciding else None


def decides(on: str, before: Callable[[], object] = lambda: None, **how: Any) -> AbstractContextManager[bool]:
    """Return `deciding_process` for a runtime with these options (`How`). `before`: called before anything starts."""
    return deciding_process(*_runtime_options({"on": on, **how}), before=before)


def _runtime_options(options: Mapping[str, Any]) -> tuple[str, How]:
    """Return the runtime and its options among the options of a measurement."""
    on = options.get("on", "mpi")
    return on, _check_options(
        on, How(**{field.name: options[field.name] for field in fields(How) if field.name in options})
    )


def _check_options(on: str, options: How) -> How:
    """Return the options, if the runtime supports all of them."""
    options.refuse_unless(on, find("runtime", on).can.options)
    return options


def plans_of(
    source: str,
    topology: Topology | str | None = None,
    *,
    nbytes: str = "1KB:16MB",
    planner: str = "",
    options: Mapping[str, Any] | None = None,
    root: int | None = None,
    ranks: Sequence[int] | None = None,
    model: str = "",
    profile: Profile | None = None,
) -> list[Plan]:
    """Return the plans to measure: those in a file, verified; or, with a machine, plans of a collective (or "all").

    With a machine, a planner makes them, or tuning by the model for these sizes. A file of plans names its machine:
    another `topology` is an error."""
    if topology is not None and (file_plans := _plans_in(source)):
        _check_machine(source, file_plans, machine_of(topology))
        topology = None
    check_names(source, topology, planner)
    if topology is None:
        if root is not None or planner or options:
            raise Invalid(f"{source}: a plan says itself by which planner and for which root; leave those out")
        plans = list(load_plans(source).values())
        for plan_of_file in plans:
            # without its claims: a plan that states wrong figures can still run
            fault = check(plan_of_file, plan_of_file.topology, claims=False)
            if fault is not None:
                raise Infeasible(
                    f"{source}: the plan for {plan_of_file.collective.kind} is wrong and is not run: {fault.message}"
                )
        return plans
    machine = machine_of(topology)
    if planner:
        kinds = KINDS if source == "all" else (source,)
        # of "all", only rooted collectives take the root; for a single one without a root it is an error of `plan`
        roots = {kind: root if source != "all" or kind in ROOTED else None for kind in kinds}
        return [plan(kind, machine, planner=planner, root=roots[kind], options=options, ranks=ranks) for kind in kinds]
    if options:
        raise Invalid("options are for a planner; name it, too")
    workers = "none" if is_launched() else None  # an MPI process should not start others of its kind
    tuning = tune(
        source,
        machine,
        nbytes=nbytes,
        root=root,
        ranks=ranks,
        model=model,
        profile=profile,
        nccl=False,  # no comparison with NCCL's predicted times
        workers=workers,
    )
    if not tuning.plans:
        raise NotFound(f"no planner could plan {source} on {machine.name}")
    return list(tuning.plans.values())


def check_names(source: str, topology: Topology | str | None, planner: str = "") -> None:
    """Check quickly that the file, collective, machine and planner exist."""
    if topology is None and not is_file(source) and not Path(source).exists():
        # genmodel and loggp are commands and no collectives; as a source they end here
        raise Invalid(
            f"{quote(source)}: no such file of a plan or a table; a collective needs its machine, too, as in "
            "bench allreduce full:ranks=4 (genmodel and loggp measure what fit reads)"
        )
    if planner:
        find("planner", planner)
    if topology is not None:
        machine = machine_of(topology)
        if source != "all" and not is_file(source):
            collective(source, machine)


def _plans_in(source: str) -> Mapping[str, Plan]:
    """Return the plans in a file; none if it is no file of plans, as a collective may be a file, too."""
    try:
        return load_plans(source) if is_file(source) else {}
    except AntiphonError:
        return {}


def _check_machine(source: str, plans: Mapping[str, Plan], machine: Topology) -> None:
    """Raise Invalid if a file's plans are for another machine."""
    # all plans of a file are for one machine, which loading checks
    kind, plan_machine = next((kind, plan_of_file.topology) for kind, plan_of_file in plans.items())
    if plan_machine != machine:
        name = "all" if len(plans) > 1 else kind
        raise Invalid(
            f"{source}: is for {plan_machine.name} ({plan_machine.ranks} ranks) and not for {machine.name} "
            f"({machine.ranks} ranks); leave {machine.name} out to measure what the file holds, or bench {name} "
            f"{machine.name}"
        )


def _type_names(requested: str | Sequence[str]) -> list[str]:
    names = [data_type(name).name for name in ([requested] if isinstance(requested, str) else requested)]
    if "object" in names:
        raise Invalid("data type: object has no size in bytes; choose a type of NCCL, like float32")
    return list(dict.fromkeys(names))


def _operator_names(requested: str | Sequence[str]) -> list[str]:
    names = list(OPERATORS) if requested == "all" else [requested] if isinstance(requested, str) else list(requested)
    for name in names:
        combine_of(name)
    return list(dict.fromkeys(names))


def _expand_lines(plans: Iterable[Plan], nbytes: Sizes, dtypes: Sequence[str], ops: Sequence[str]) -> Iterator[_Line]:
    """Yield a line per plan, type, operator (only if the collective combines) and size."""
    for source_plan in plans:
        collective = source_plan.collective
        for dtype in dtypes:
            for op in ops if collective.combining else ops[:1]:
                unit_bytes, previous = collective.buffer_weight * data_type(dtype).itemsize, -1
                for size in parse_sizes(nbytes):
                    unit = unit_for_size(size, unit_bytes)
                    if unit != previous:  # neighbouring sizes that are the same, rounded, are measured once
                        exact = unit * unit_bytes
                        yield _Line(source_plan, source_plan.at(exact), unit, exact, dtype, op)
                    previous = unit


class _Predictions:
    """Predictions of a model for lines, with messages cut as by the runtime; prepared once per schedule."""

    def __init__(self, model: str, profile: Profile | None, on: str) -> None:
        self.model, self.profile, self.cuts = model, profile, cuts_of(on)
        # by id of the schedule, which is kept with it, so that no other schedule gets its id
        self.predictors: dict[int, tuple[Any, Predictor]] = {}

    def __call__(self, line: _Line) -> float:
        """Return the predicted seconds of a line."""
        return float(self._predict_line(line).seconds)

    def _predict_line(self, line: _Line) -> Prediction:
        schedule = line.entry.schedule
        if id(schedule) not in self.predictors:
            predictor = prepare(
                self._model_of(line), schedule, line.plan.topology, profile=self.profile, cuts=self.cuts
            )
            self.predictors[id(schedule)] = schedule, predictor
        return self.predictors[id(schedule)][1](line.nbytes)

    def describe(self, line: _Line) -> str:
        """Return the model and the basis of its figures."""
        model = self._model_of(line)
        return f"{model}; {basis_of(self._predict_line(line), self.profile)}"

    def _model_of(self, line: _Line) -> str:
        return self.model or usual_model(line.plan.topology, self.profile, wanted=(line.plan.collective,))


def _complete_row(line: _Line, row: Row, predicted: float, predicted_by: str) -> Row:
    """Return the row with the facts of its line, and the prediction unless the runtime (a lab) has made one."""
    if "predicted_seconds" not in row:
        ratio = row["seconds"] / predicted if predicted else None
        row = {**row, "predicted_seconds": predicted, "over_predicted": ratio, "predicted_by": predicted_by}
    return {**_line_facts(line), **row}


def _line_facts(line: _Line) -> Row:
    """Return the facts of a line that its plan states."""
    facts = _plan_facts(line.plan, line.entry)
    if line.entry.claims.get("served_by"):
        facts["served_by"] = line.entry.claims["served_by"]
    if line.pieces is not None:
        facts["pieces"] = line.pieces
    return facts


def _plan_facts(plan: Plan, entry: Entry) -> Row:
    """Return which plan a row is of, and who made the schedule of this entry."""
    collective, provenance = plan.collective, entry.schedule.provenance
    return {
        "collective": collective.kind, "planner": entry.claims.get("planner", provenance.get("planner")),
        "options": _plain_options(provenance.get("options")),
        "topology": plan.topology.name, "ranks": len(collective.members),
        "root": collective.roots[0] if len(collective.roots) == 1 else None,
    }  # fmt: skip


def refuse_unfittable(
    plans: Sequence[Plan], nbytes: Sizes, dtype: Sequence[str], op: Sequence[str], *, lowering: str, miad: bool,
    path: str | os.PathLike[str],
) -> None:  # fmt: skip
    """Raise Invalid if measurements of these plans would have no row that `tables.write_fit` can write to `path`.

    The rows of a lowering always have what `fit lowering` reads.
    """
    if lowering:
        return
    rows: list[Row] = [
        {
            **_line_facts(line), "nbytes": line.nbytes, "dtype": line.dtype,
            "op": line.op if line.plan.collective.combining else None,
        }
        for line in _expand_lines(plans, nbytes, _type_names(dtype), _operator_names(op))
    ]  # fmt: skip
    if miad or not any(map(has_formula, rows)):  # numbers of pieces that are searched have no formula
        raise no_formula(path)


def _plain_options(options: Any) -> dict[str, Any]:
    """Return the options of a planner that JSON can state."""
    items = options.items() if isinstance(options, Mapping) else ()
    return {key: value for key, value in items if isinstance(value, bool | int | float | str)}


# ---- the number of pieces ----

MIN_PIECE = 2**14  # bytes of the buffer; smaller pieces only add latency
MAX_PIECES = 64  # in which the buffer is sent at most
MAX_TRIES = 16  # each is a launch of its own


def measure_depth(on: str, runnable: Runnable, case: Case, how: How) -> int:
    """Return the fastest number of pieces among those that the controller of piece sizes (`cost.miad`) tries.

    The controller requests piece sizes and gets the time of each, the median of the iterations, until it settles. Each
    number of pieces is measured once, in a launch of its own; at most `MAX_TRIES` are.
    """
    min_piece = max(MIN_PIECE, case.nbytes // MAX_PIECES)
    if case.nbytes <= min_piece:
        return 1
    # each time is a median already, so no repeats; few sizes, as each costs a launch; gains below 3 % are noise
    controller = Miad(smallest=min_piece, largest=case.nbytes, repeats=1, patience=1, tolerance=0.03)
    seconds_of: dict[int, float] = {}
    while not controller.settled:
        pieces = -(-case.nbytes // controller.next())  # `next`: bytes of a piece; rounded up
        if pieces not in seconds_of:
            if len(seconds_of) == MAX_TRIES:
                break
            pipelined = Runnable(pipeline(runnable.schedule, pieces), runnable.machine)
            seconds_of[pieces] = _measure_seconds(on, pipelined, case, how)
        controller.measured(seconds=seconds_of[pieces])
    return min(seconds_of, key=lambda pieces: (seconds_of[pieces], pieces))


def _measure_seconds(on: str, runnable: Runnable, case: Case, how: How) -> float:
    """Return the median seconds of a case with this program, in a launch of its own."""
    rows: dict[int, Row] = {}
    load_runtime(on).run([runnable], [replace(case, program=0)], how, rows.__setitem__)
    if not rows:
        raise AntiphonError("the number of pieces could not be measured")
    return float(rows[0]["seconds"])
