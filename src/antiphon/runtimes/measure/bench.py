"""Plans measured like nccl-tests measures, against the library's own collectives; every result is checked.

docs/bench.md tells what comes out.
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
from antiphon.cost.profile import Profile
from antiphon.errors import AntiphonError, Infeasible, Invalid, NotFound, Unsupported, quote
from antiphon.registry import find
from antiphon.runtimes.engine.launch import launched
from antiphon.runtimes.measure._depth import depth
from antiphon.runtimes.measure.case import Case, How, Row, Runnable, inner_of
from antiphon.runtimes.measure.rows import can, cuts_of, first_on, has_in_place, row_of, run_schedule, runtime, units_of
from antiphon.runtimes.measure.traced import measured_trace
from antiphon.select import check, collective, is_file, load_plans, plan, tune
from antiphon.select.parse_request import machine_of
from antiphon.units import Sizes, parse_sizes


@dataclass(frozen=True, eq=False)
class _Sized:
    """What is measured out of place, then in place."""

    plan: Plan
    entry: Entry
    unit: int
    nbytes: int
    dtype: str
    op: str
    pieces: int | None = None  # found by measuring


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
    mpiexec: str = "",
    compiler: str = "",
    timeout: float = 600.0,
    scale: str = "",
    name: str = "",
    hybrid: bool = False,
    trace: str | os.PathLike[str] | None = None,
) -> list[Row] | None:
    """Run what a plan chooses for each size on random data, and check every element: a row for each (docs/bench.md).

    Of processes that a launcher started, only the first has rows. `trace`: a file for when everything happened in the
    run whose time is told (docs/traces.md), of one size.
    """
    how, rows, sizes = (
        _meant(on, How(mpiexec, compiler, timeout, scale, name, hybrid)),
        list[Row](),
        parse_sizes(nbytes),
    )
    if trace is not None and len(sizes) > 1:
        raise Invalid(f"trace: shows one run, and there are {len(sizes)} sizes; give one")
    if trace is not None and not can(on).get("trace"):
        raise Unsupported(f"--on {on}: its runs cannot be traced")
    for size in sizes:
        one = Runnable(plan.at(size).schedule, plan.topology)
        found = run_schedule(on, one, size, dtype, op, seed, repeat, in_place, how=how, trace=trace is not None)
        rows += found or []
    if trace is not None and rows:
        _write_trace(trace, plan, on, rows[0])
    return rows or None


def _write_trace(path: str | os.PathLike[str], plan: Plan, on: str, row: Row) -> None:
    """What a run recorded, out of its row and into a file."""
    title = f"{plan.collective.kind} on {plan.topology.name}, measured on {on}"
    about = {"nbytes": row["nbytes"], "runs": row["runs"], "seconds": row["seconds"]}
    write_bytes(path, measured_trace(row.pop("traced"), title, about))


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
    mpiexec: str = "",
    compiler: str = "",
    timeout: float = 600.0,
    scale: str = "",
    name: str = "",
    hybrid: bool = False,
    in_place: bool = True,
    progress: Callable[[Row], None] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> list[Row]:
    """Measure plans at each size, type and operator; of a plan with ranges each size takes its own schedule.

    A row out of place, and with `in_place` one in place where there is such a thing; docs/bench.md tells its keys.
    `progress` hears every row at once. `miad`: the number of pieces is driven by the measured throughput. `stopped`:
    asked now and then whether to leave the rest out. Of processes that a launcher started, for the one that decides
    (`first_on`).
    """
    there = _meant(on, How(mpiexec, compiler, timeout, scale, name, hybrid))
    for what, value, least in (("iterations", iterations, 1), ("warmup", warmup, 0), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise Invalid(f"{what}: expected a whole number from {least}, got {value!r}")
    lines = list(_lines([plans] if isinstance(plans, Plan) else plans, nbytes, _named(dtype), _operators(op)))
    if not lines:
        raise Invalid("there is nothing to measure: no plan, or no size")
    work = _LinesMeasured(on, there, Case(0, [], 0, 0, seed=seed, repeat=iterations, warmup=warmup))
    if miad:
        lines = [work.deeper(line) for line in lines]
    predicted, found = _Predictions(model, profile, on), list[Row]()
    cases = [(line, work.case(line, place)) for line in lines for place in work.places(line)[: 1 + in_place]]

    def heard(number: int, row: Row) -> None:
        line, case = cases[number]
        found.append(_row(line, row_of(case, line.plan.collective, row, on), predicted(line), predicted.told(line)))
        if progress is not None:
            progress(found[-1])

    runtime(on).run(work.programs, [case for _, case in cases], there, heard, stopped)
    return found


class _LinesMeasured:
    """Lines as cases of programs: each schedule is lowered once. `usual`: what is the same in all cases."""

    def __init__(self, on: str, how: How, usual: Case) -> None:
        self.on, self.how, self.usual = on, how, usual
        self.programs: list[Runnable] = []
        self.numbers: dict[int, int] = {}

    def _program(self, line: _Sized) -> int:
        schedule = line.entry.schedule
        if id(schedule) not in self.numbers:
            self.numbers[id(schedule)] = len(self.programs)
            self.programs.append(Runnable(schedule, line.plan.topology))
        return self.numbers[id(schedule)]

    def places(self, line: _Sized) -> list[bool]:
        """Out of place, and in place where there is such a thing."""
        able = has_in_place(self.on, line.plan.collective.kind) and self.programs[self._program(line)].in_place
        return [False, True] if able else [False]

    def case(self, line: _Sized, in_place: bool = False) -> Case:
        number = self._program(line)
        return replace(
            self.usual, program=number, ranks=self.programs[number].ranks, unit=line.unit, nbytes=line.nbytes,
            dtype=line.dtype, op=line.op, in_place=in_place, inner=inner_of(line.nbytes),
        )  # fmt: skip

    def deeper(self, line: _Sized) -> _Sized:
        """With the number of pieces that measuring finds best."""
        case = self.case(line)
        best = depth(self.on, self.programs[case.program], case, self.how)
        entry = replace(line.entry, schedule=pipeline(line.entry.schedule, best))
        return replace(line, entry=entry, pieces=best)


def bench(
    what: str | Plan | Sequence[Plan],
    topology: Topology | str | None = None,
    nbytes: Sizes = "1KB:16MB:4",
    *,
    planner: str = "",
    options: Mapping[str, Any] | None = None,
    root: int | None = None,
    ranks: Sequence[int] | None = None,
    **how: Any,
) -> list[Row] | None:
    """`bench_plans` of plans, or of what `plans_of` finds or makes: by default what is tuned for these sizes."""
    if not isinstance(what, str):
        return bench_plans(what, nbytes, **how)
    with first_on(*_there(how), before=lambda: check_names(what, topology, planner)) as deciding:
        if not deciding:
            return None
        span = parse_sizes(nbytes)
        made = plans_of(
            what, topology, nbytes=f"{span[0]}B:{span[-1]}B", planner=planner, options=options, root=root, ranks=ranks,
            **{key: how[key] for key in ("model", "profile") if key in how},
        )  # fmt: skip
        return measure_plans(made, nbytes, **how)


def bench_plans(plans: Plan | Sequence[Plan], nbytes: Sizes = "1KB:16MB:4", **how: Any) -> list[Row] | None:
    """`measure_plans`, in all processes: under mpiexec or srun only process 0 has rows, the others None."""
    with first_on(*_there(how)) as deciding:
        return measure_plans(plans, nbytes, **how) if deciding else None


def decides(on: str, before: Callable[[], object] = lambda: None, **there: Any) -> AbstractContextManager[bool]:
    """Whether this process decides what is measured, within a `with`: Missing where it cannot be. `before`: what it
    looks at before that (`check_names`)."""
    return first_on(*_there({"on": on, **there}), before=before)


def _there(given: Mapping[str, Any]) -> tuple[str, How]:
    on = given.get("on", "mpi")
    return on, _meant(on, How(**{one.name: given[one.name] for one in fields(How) if one.name in given}))


def _meant(on: str, how: How) -> How:
    """As it is, where all of it means something to this runtime."""
    how.refuse_unless(on, can(on)["options"])
    return how


def plans_of(
    what: str,
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
    """What is to be measured: the plans in a file, all verified; or, with a machine, those of a collective (or "all"),
    made by a planner, or tuned by the model for these sizes. A file of plans says its machine itself: another is
    an error."""
    if topology is not None and (there := _plans_in(what)):
        _check_machine(what, there, machine_of(topology))
        topology = None
    check_names(what, topology, planner)
    if topology is None:
        if root is not None or planner or options:
            raise Invalid(f"{what}: a plan says itself by which planner and for which root; leave those out")
        plans = list(load_plans(what).values())
        for one in plans:
            fault = check(one, one.topology, claims=False)
            if fault is not None:
                raise Infeasible(f"{what}: the plan for {one.collective.kind} is wrong and is not run: {fault.message}")
        return plans
    machine = machine_of(topology)
    if planner:
        kinds = KINDS if what == "all" else (what,)
        roots = {kind: root if what != "all" or kind in ROOTED else None for kind in kinds}
        return [plan(kind, machine, planner=planner, root=roots[kind], options=options, ranks=ranks) for kind in kinds]
    if options:
        raise Invalid("options are for a planner; name it, too")
    workers = "none" if launched() else None  # an MPI process should not start others of its kind
    found = tune(
        what, machine, nbytes=nbytes, root=root, ranks=ranks, model=model, profile=profile, nccl=False, workers=workers
    )
    if not found.plans:
        raise NotFound(f"no planner could plan {what} on {machine.name}")
    return list(found.plans.values())


def check_names(what: str, topology: Topology | str | None, planner: str = "") -> None:
    """What can be seen of these at once: an error where there is no such file, collective, machine or planner."""
    if topology is None and not is_file(what) and not Path(what).exists():
        raise Invalid(
            f"{quote(what)}: no such file of a plan or a table; a collective needs its machine, too, as in "
            "bench allreduce full:ranks=4 (genmodel and loggp measure what fit reads)"
        )
    if planner:
        find("planner", planner)
    if topology is not None:
        machine = machine_of(topology)
        if what != "all" and not is_file(what):
            collective(what, machine)


def _plans_in(what: str) -> Mapping[str, Plan]:
    """Those in a file; none where it is no file of plans: a collective may be a file as well."""
    try:
        return load_plans(what) if is_file(what) else {}
    except AntiphonError:
        return {}


def _check_machine(what: str, plans: Mapping[str, Plan], machine: Topology) -> None:
    kind, own = next((kind, one.topology) for kind, one in plans.items())
    if own != machine:
        other = "all" if len(plans) > 1 else kind
        raise Invalid(
            f"{what}: is for {own.name} ({own.ranks} ranks) and not for {machine.name} ({machine.ranks} ranks); leave "
            f"{machine.name} out to measure what the file holds, or bench {other} {machine.name}"
        )


def _named(given: str | Sequence[str]) -> list[str]:
    names = [data_type(name).name for name in ([given] if isinstance(given, str) else given)]
    if "object" in names:
        raise Invalid("data type: object has no size in bytes; choose a type of NCCL, like float32")
    return list(dict.fromkeys(names))


def _operators(given: str | Sequence[str]) -> list[str]:
    names = list(OPERATORS) if given == "all" else [given] if isinstance(given, str) else list(given)
    for name in names:
        combine_of(name)
    return list(dict.fromkeys(names))


def _lines(plans: Iterable[Plan], nbytes: Sizes, dtypes: Sequence[str], ops: Sequence[str]) -> Iterator[_Sized]:
    for one in plans:
        collective = one.collective
        for dtype in dtypes:
            for op in ops if collective.combining else ops[:1]:
                weight, before = collective.buffer_weight * data_type(dtype).itemsize, -1
                for size in parse_sizes(nbytes):
                    unit = units_of(size, weight)
                    if unit != before:  # sizes that are the same, rounded, are measured once
                        yield _Sized(one, one.at(unit * weight), unit, unit * weight, dtype, op)
                    before = unit


class _Predictions:
    """What the model says of a line, as the runtime cuts its messages; a model is prepared once per schedule."""

    def __init__(self, model: str, profile: Profile | None, on: str) -> None:
        self.model, self.profile, self.cuts = model, profile, cuts_of(on)
        self.ready: dict[int, tuple[Any, Predictor]] = {}

    def __call__(self, line: _Sized) -> float:
        return float(self._of(line).seconds)

    def _of(self, line: _Sized) -> Prediction:
        schedule = line.entry.schedule
        if id(schedule) not in self.ready:
            made = prepare(self._model(line), schedule, line.plan.topology, profile=self.profile, cuts=self.cuts)
            self.ready[id(schedule)] = schedule, made
        return self.ready[id(schedule)][1](line.nbytes)

    def told(self, line: _Sized) -> str:
        """The model, and what its figures rest on."""
        model = self._model(line)
        return f"{model}; {basis_of(self._of(line), self.profile)}"

    def _model(self, line: _Sized) -> str:
        return self.model or usual_model(line.plan.topology, self.profile, wanted=(line.plan.collective,))


def _row(line: _Sized, row: Row, predicted: float, told_by: str) -> Row:
    """`row` with what was measured; a prediction that it brings (a lab knows its links) stands."""
    collective, claims = line.plan.collective, line.entry.claims
    made = line.entry.schedule.provenance
    told: Row = {
        "collective": collective.kind, "planner": claims.get("planner", made.get("planner")),
        "options": _plain(made.get("options")),
        "topology": line.plan.topology.name, "ranks": len(collective.members),
        "root": collective.roots[0] if len(collective.roots) == 1 else None,
    }  # fmt: skip
    if claims.get("served_by"):
        told["served_by"] = claims["served_by"]
    if line.pieces is not None:
        told["pieces"] = line.pieces
    if "predicted_seconds" not in row:
        over = row["seconds"] / predicted if predicted else None
        row = {**row, "predicted_seconds": predicted, "over_predicted": over, "predicted_by": told_by}
    return {**told, **row}


def _plain(options: Any) -> dict[str, Any]:
    given = options.items() if isinstance(options, Mapping) else ()
    return {key: value for key, value in given if isinstance(value, bool | int | float | str)}
