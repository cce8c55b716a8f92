"""Plans measured like nccl-tests measures, against the library's own collectives; every result is checked.

docs/bench.md tells what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from antiphon.core.collective import KINDS, ROOTED, Collective
from antiphon.core.datatypes import OPERATORS, combine_of, data_type
from antiphon.core.interpret import busbw_factor
from antiphon.core.plan import Entry, Plan
from antiphon.core.topology import Topology
from antiphon.core.transform import pipeline
from antiphon.cost import Predictor, prepare
from antiphon.cost._profile import Profile
from antiphon.errors import AntiphonError, Infeasible, Invalid, NotFound, quote
from antiphon.run._bench_depth import depth
from antiphon.run._bench_wanted import How, Row, Wanted, first_on, measure_on
from antiphon.run._launch import launched
from antiphon.select import check, is_file, load_plans, plan, tune
from antiphon.select._wish import machine_of
from antiphon.units import Sizes, parse_sizes

PER_PLACE = ("seconds", "quartiles", "wrong", "reference_seconds", "reference_quartiles", "reference_wrong", "ratio",
             "ratio_quartiles")  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Line:
    """A line of the table: measured out of place, then in place."""

    plan: Plan
    entry: Entry
    unit: int
    nbytes: int
    dtype: str
    op: str

    def wanted(self) -> list[Wanted]:
        one = Wanted(self.plan.topology, self.entry.schedule, self.unit, self.nbytes, self.dtype, self.op)
        return [one, replace(one, in_place=True)]


def measure_plans(  # noqa: PLR0913
    plans: Plan | Sequence[Plan],
    nbytes: Sizes = "1KB:16MB:4",
    *,
    on: str = "mpi",
    dtype: str | Sequence[str] = "float32",
    op: str | Sequence[str] = "sum",
    iterations: int = 20,
    warmup: int = 5,
    model: str = "alpha-beta",
    profile: Profile | None = None,
    miad: bool = False,
    seed: int = 0,
    mpiexec: str = "",
    compiler: str = "",
    timeout: float = 600.0,
    scale: str = "",
    progress: Callable[[Row], None] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> list[Row]:
    """Measure plans at each size, type and operator; of a plan with ranges each size takes its own schedule.

    A row per line; docs/bench.md tells its keys. `progress` hears every row at once. `miad`: the number of pieces is
    driven by the measured throughput. `stopped`: asked now and then whether to leave the rest out. Of processes that a
    launcher started, for the one that decides (`first_on`).
    """
    how = _how(iterations, warmup, seed, mpiexec, compiler, timeout, scale)
    lines = list(_lines([plans] if isinstance(plans, Plan) else plans, nbytes, _named(dtype), _operators(op)))
    if not lines:
        raise Invalid("there is nothing to measure: no plan, or no size")
    predicted = _Predictions(model, profile)
    measure = measure_on(on)
    found: list[Row] = []
    pieces: list[int | None] = [None] * len(lines)
    if miad:
        for number, line in enumerate(lines):
            best = pieces[number] = depth(line.wanted()[0], how, measure)
            lines[number] = replace(line, entry=_deeper(line.entry, best))
    pair: list[Row | None] = []

    def heard(row: Row | None) -> None:
        pair.append(row)
        if len(pair) < 2:
            return
        number = len(found)
        found.append(_row(lines[number], pair[0], pair[1], predicted(lines[number]), pieces[number]))
        pair.clear()
        if progress is not None:
            progress(found[-1])

    measure([one for line in lines for one in line.wanted()], how, heard, stopped)
    return found


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
    with first_on(*_ground(how)) as deciding:
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
    with first_on(*_ground(how)) as deciding:
        return measure_plans(plans, nbytes, **how) if deciding else None


def _ground(how: Mapping[str, Any]) -> tuple[str, str, str]:
    return how.get("on", "mpi"), how.get("mpiexec", ""), how.get("compiler", "")


def plans_of(
    what: str,
    topology: Topology | str | None = None,
    *,
    nbytes: str = "1KB:16MB",
    planner: str = "",
    options: Mapping[str, Any] | None = None,
    root: int | None = None,
    ranks: Sequence[int] | None = None,
    model: str = "alpha-beta",
    profile: Profile | None = None,
) -> list[Plan]:
    """What is to be measured: the plans in a file, all verified; or, with a machine, those of a collective (or "all"),
    made by a planner, or tuned by the model for these sizes. A file of plans says its machine itself: another is
    an error."""
    if topology is not None and (there := _plans_in(what)):
        _check_machine(what, there, machine_of(topology))
        topology = None
    if topology is None:
        if not is_file(what) and not Path(what).exists():
            raise Invalid(
                f"{quote(what)}: no such file of a plan or a table; a collective needs its machine, too, as in "
                "bench allreduce full:ranks=4 (genmodel and loggp measure what fit reads)"
            )
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


def _how(iterations: int, warmup: int, seed: int, mpiexec: str, compiler: str, timeout: float, scale: str) -> How:
    for what, value, least in (("iterations", iterations, 1), ("warmup", warmup, 0), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise Invalid(f"{what}: expected a whole number from {least}, got {value!r}")
    return How(iterations, warmup, seed, mpiexec, compiler, timeout, scale)


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


def _lines(plans: Iterable[Plan], nbytes: Sizes, dtypes: Sequence[str], ops: Sequence[str]) -> Iterator[_Line]:
    for one in plans:
        collective = one.collective
        for dtype in dtypes:
            for op in ops if collective.combining else ops[:1]:
                weight, before = collective.buffer_weight * data_type(dtype).itemsize, -1
                for size in parse_sizes(nbytes):
                    unit = size // weight
                    if unit != before:  # sizes that are the same, rounded down, are measured once
                        yield _Line(one, one.at(unit * weight), unit, unit * weight, dtype, op)
                    before = unit


def _deeper(entry: Entry, pieces: int) -> Entry:
    return replace(entry, schedule=pipeline(entry.schedule, pieces))


class _Predictions:
    """What the model says of a line; a model is prepared once per schedule."""

    def __init__(self, model: str, profile: Profile | None) -> None:
        self.model, self.profile = model, profile
        self.ready: dict[int, tuple[Any, Predictor]] = {}

    def __call__(self, line: _Line) -> float:
        schedule = line.entry.schedule
        if id(schedule) not in self.ready:
            made = prepare(self.model, schedule, line.plan.topology, profile=self.profile)
            self.ready[id(schedule)] = schedule, made
        return float(self.ready[id(schedule)][1](line.nbytes).seconds)


def _row(line: _Line, outside: Row | None, inside: Row | None, predicted: float, pieces: int | None) -> Row:
    collective, claims = line.plan.collective, line.entry.claims
    made = line.entry.schedule.provenance
    told = {
        "collective": collective.kind, "planner": claims.get("planner", made.get("planner")),
        "options": _plain(made.get("options")),
        "topology": line.plan.topology.name, "ranks": len(collective.members),
        "nbytes": line.nbytes, "count": line.unit, "dtype": line.dtype,
        "op": line.op if collective.combining else None,
        "root": collective.roots[0] if len(collective.roots) == 1 else None,
        "predicted_seconds": predicted,
    }  # fmt: skip
    if claims.get("served_by"):
        told["served_by"] = claims["served_by"]
    if pieces is not None:
        told["pieces"] = pieces
    assert outside is not None
    if "predicted_seconds" in outside:
        told["predicted_seconds"] = outside["predicted_seconds"]
    return {**told, **_place(line, collective, outside), "in_place": inside and _place(line, collective, inside)}


def _plain(options: Any) -> dict[str, Any]:
    given = options.items() if isinstance(options, Mapping) else ()
    return {key: value for key, value in given if isinstance(value, bool | int | float | str)}


def _place(line: _Line, collective: Collective, row: Row) -> Row:
    algbw = line.nbytes / row["seconds"]
    found = {key: row.get(key) for key in PER_PLACE}
    speeds = {"algbw": algbw, "busbw": algbw * busbw_factor(collective)}
    return {**found, **speeds, "correct": row["wrong"] == 0}
