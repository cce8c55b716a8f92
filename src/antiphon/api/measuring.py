"""Plans measured beside the library's own collectives, and what models are fitted to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from antiphon.api import _given
from antiphon.api._checked import (
    checked,
    dtype,
    operator,
    path,
    per_byte,
    public,
    several,
    size,
    text,
    whole,
    yes_or_no,
)
from antiphon.errors import Invalid, unknown

if TYPE_CHECKING:
    from antiphon.api._kinds import (
        CollectiveLike,
        Ground,
        MachineLike,
        Path,
        PlanLike,
        ProfileLike,
        Row,
        Seconds,
        Sizes,
    )
    from antiphon.core.plan import Plan
    from antiphon.cost.fit import Added, GenmodelFit, LogGPFit, Measured, MemoryFit, RoundTrip

LADDER = "1KB:16MB:4"


@overload
def bench(  # type: ignore[overload-overlap]  # a collective is named otherwise
    what: Literal["genmodel"], *, nbytes: Sizes | None = None, ranks: int | None = None,
    plans: Sequence[str] = ("cps", "incast"), on: str = "mpi", iterations: int = 20, warmup: int = 3, mpiexec: str = "",
    timeout: Seconds = 600.0, progress: Callable[[str], None] | None = None,
) -> list[Measured] | None: ...  # fmt: skip


@overload
def bench(  # type: ignore[overload-overlap]  # a collective is named otherwise
    what: Literal["loggp"], *, nbytes: Sizes | None = None, on: str = "mpi", n: int = 16, repetitions: int = 7,
    iterations: int = 20, warmup: int = 3, mpiexec: str = "", timeout: Seconds = 600.0, ranks: int | None = None,
    between: bool = False, progress: Callable[[str], None] | None = None,
) -> list[RoundTrip] | None: ...  # fmt: skip


@overload
def bench(  # type: ignore[overload-overlap]  # a collective is named otherwise
    what: Literal["memory"], *, nbytes: int | str | None = None, most: int = 15, repeat: int = 5, threads: int = 1,
    on: str = "", progress: Callable[[str], None] | None = None,
) -> list[Added]: ...  # fmt: skip


@overload
def bench(
    what: Literal["micro"], topology: MachineLike | None = None, nbytes: Sizes | None = None, *, on: Ground = "mpi",
    ranks: int | None = None, patterns: Sequence[str] = (), pieces: int | None = None, iterations: int = 20,
    warmup: int = 5, model: str = "", profile: ProfileLike = None, mpiexec: str = "",
    timeout: Seconds = 600.0, progress: Callable[[Row], None] | None = None,
) -> list[Row] | None: ...  # fmt: skip


@overload
def bench(
    what: PlanLike | CollectiveLike | Sequence[Plan], topology: MachineLike | None = None, nbytes: Sizes | None = None,
    *, on: Ground = "mpi", planner: str = "", options: Mapping[str, Any] | None = None, root: int | None = None,
    ranks: Sequence[int] | None = None, dtype: str | Sequence[str] = "float32", op: str | Sequence[str] = "sum",
    iterations: int = 20, warmup: int = 5, model: str = "", profile: ProfileLike = None, miad: bool = False,
    seed: int = 0, mpiexec: str = "", compiler: str = "", scale: str = "", timeout: Seconds = 600.0,
    hybrid: bool = False, progress: Callable[[Row], None] | None = None,
) -> list[Row] | None: ...  # fmt: skip


@public
def bench(what: Any, topology: Any = None, nbytes: Any = None, **how: Any) -> Any:
    """Measurements: of plans beside the library's own collectives, a row per size, or for `fit`. Under mpiexec or srun
    all processes but the first get None.

    `what`: plans: a plan, several, their file, what `tune` gave; or, with `topology`, a collective (or "all"), planned
    for the sizes. For `fit`: "genmodel", "loggp", or "memory". "micro": the micro-benchmarks of Blink.
    `topology`: of a collective: the machine, its name or its file.
    `nbytes`: a size, a range ("1KB:16MB:4"), or several sizes.
    `on`: "mpi", "torch", "lab", "threads" or "cuda".
    `planner`, `options`: of a collective: by whom it is planned; left out, all are tuned by the model.
    `root`, `ranks`: of a collective, as for `plan`; for genmodel `ranks` is a number: 2, 3, ... so many are measured.
    `dtype`, `op`: of the data, one or several of each.
    `iterations`, `warmup`: runs, of which the median counts, and runs before that do not count.
    `model`, `profile`: what predicts the times beside the measured ones; `model` left out, as of `predict`.
    `miad`: find the number of pieces by measuring, for each size.
    `seed`: of the data.
    `mpiexec`, `compiler`: on mpi, the launcher with its options, and the compiler for the engine.
    `scale`: on lab, how slow it is.
    `hybrid`: on threads, cuda and hip, whether kinds of links that a plan leaves idle carry a part of the data, too.
    `timeout`: seconds after which it is given up.
    `progress`: hears every row; for `fit`, a line now and then.
    `patterns`, `pieces`: for micro: "chain-forward", "mimo", ..., and the pipelining depth.
    `plans`: for genmodel: "cps", "incast" or "ring".
    `n`, `repetitions`: for loggp: messages sent one after the other, and rows of each measurement; with `ranks` also
    how many messages go at once among so many, `between`: from half of these ranks to the other, which is elsewhere.
    `most`, `repeat`, `threads`: for memory: vectors added at once, runs of each, and threads that add; or `on` "cuda",
    "hip" or "threads": the engine for GPUs does.
    """
    if isinstance(what, str) and what in ("genmodel", "loggp", "memory"):
        if topology is not None:
            raise Invalid(f"topology: {what} is measured on the machine at hand; leave it out")
        return _for_fit(what, nbytes, how)
    if isinstance(what, str) and what == "micro":
        return _micro(topology, nbytes, how)
    from antiphon.runtimes.measure.bench import bench as measure
    from antiphon.units import parse_sizes as sizes

    if not _given.is_path(what):
        given_ones = what if isinstance(what, list | tuple) else [what]
        what = [plan for one in given_ones for plan in _given.plans(one, "what").values()]
    machine = None if topology is None else _given.machine(topology)
    given = checked(how, dtype=several(dtype), op=several(operator))
    return measure(_given.by_name(what), machine, sizes(LADDER if nbytes is None else nbytes, "nbytes"), **given)


def _micro(topology: Any, nbytes: Any, how: dict[str, Any]) -> Any:
    from antiphon.runtimes.measure.bench_micro import bench_micro
    from antiphon.units import parse_sizes as sizes

    given = checked(how, ranks=whole(1), patterns=several(text))
    machine = None if topology is None else _given.machine(topology)
    return bench_micro(machine, sizes(LADDER if nbytes is None else nbytes, "nbytes"), **given)


def _for_fit(what: str, nbytes: Any, how: dict[str, Any]) -> Any:
    from antiphon.units import parse_sizes as sizes

    positive = whole(1)
    given = checked(
        how, ranks=positive, plans=several(text), n=positive, repetitions=positive, most=positive, threads=positive,
        between=yes_or_no,
    )  # fmt: skip
    if what == "memory":
        from antiphon.runtimes.measure.bench_memory import bench_memory

        given |= {} if nbytes is None else {"nbytes": size(nbytes, "nbytes")}
        return bench_memory(**given)
    given |= {} if nbytes is None else {"sizes": sizes(nbytes, "nbytes")}
    if what == "loggp":
        from antiphon.runtimes.measure.bench_loggp import bench_loggp

        return bench_loggp(**given)
    from antiphon.runtimes.measure.bench_genmodel import bench_genmodel

    return bench_genmodel(**given)


@overload
def fit(
    what: Literal["genmodel"], measurements: Path | Sequence[Measured], *, beta: float | None = None,
    gamma: float | None = None, delta: float | None = None,
) -> GenmodelFit: ...  # fmt: skip


@overload
def fit(what: Literal["loggp"], measurements: Path | Sequence[RoundTrip]) -> LogGPFit: ...


@overload
def fit(what: Literal["memory"], measurements: Path | Sequence[Added]) -> MemoryFit: ...


@public
def fit(
    what: str, measurements: Any, *, beta: float | None = None, gamma: float | None = None, delta: float | None = None
) -> Any:
    """Model parameters from measurements: `parameters`, `combinations`, `notes`, `as_json()`; antiphon.cost.fit makes
    profiles of it.

    `what`: "genmodel", "loggp" or "memory".
    `measurements`: what `bench` gave, or the CSV file of it.
    `beta`, `gamma`, `delta`: for genmodel, what is known already: seconds per byte moved, added, and read or written.
    """
    from antiphon.core.files import within
    from antiphon.cost import fit as fits

    kinds: dict[str, tuple[type, Callable[[Any], Any], Callable[..., Any]]] = {
        "genmodel": (fits.Measured, fits.read_measured, fits.fit_genmodel),
        "loggp": (fits.RoundTrip, fits.read_round_trips, fits.fit_loggp),
        "memory": (fits.Added, fits.read_added, fits.fit_memory),
    }
    if not isinstance(what, str) or what not in kinds:
        raise unknown("fit", what, kinds)
    kind, read, find = kinds[what]
    where = "measurements"
    if isinstance(measurements, list | tuple):
        if not measurements or not all(isinstance(row, kind) for row in measurements):
            raise Invalid(f"measurements: expected rows that bench({what!r}) gave, or their file")
        rows = list(measurements)
    else:
        where = path(measurements, "measurements")
        rows = read(where)
    known = {name: per_byte(value, name) for name, value in (("beta", beta), ("gamma", gamma), ("delta", delta))
             if value is not None}  # fmt: skip
    if what != "genmodel" and known:
        raise Invalid(f"{next(iter(known))}: is known to genmodel only; leave it out")
    with within(where):
        return find(rows, known) if what == "genmodel" else find(rows)
