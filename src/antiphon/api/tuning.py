"""The best plan for every size, of all planners; by a model, or measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from antiphon.api import _given
from antiphon.api._checked import path, public, several
from antiphon.errors import Invalid, quote

if TYPE_CHECKING:
    from antiphon.api._kinds import CollectiveLike, Ground, MachineLike, ProfileLike, Seconds, Sizes
    from antiphon.runtimes.measure.choose import MeasuredTuning
    from antiphon.select import Tuning, Tunings

SPAN = "1KB:1GB"


@overload
def tune(
    wanted: CollectiveLike, topology: MachineLike, *, nbytes: Sizes | None = None, model: str | None = None,
    profile: ProfileLike = None, planners: str | Sequence[str] = (), sweep: Mapping[str, Any] | None = None,
    root: int | None = None, ranks: Sequence[int] | None = None, budget: Seconds = 60.0,
    effort: float = 5.0, seed: int = 0,
    deterministic: bool = False, nccl: bool = True, against: MachineLike | None = None,
    workers: int | Literal["none"] | None = None, progress: Callable[[int, int, str], None] | None = None,
    shortlist: int = 0, plans: str | Sequence[str] = (), on: None = None,
) -> Tuning: ...  # fmt: skip


@overload
def tune(
    wanted: CollectiveLike, topology: MachineLike, *, on: Ground, nbytes: Sizes | None = None,
    model: str | None = None, profile: ProfileLike = None, planners: str | Sequence[str] = (),
    sweep: Mapping[str, Any] | None = None, root: int | None = None, ranks: Sequence[int] | None = None,
    budget: Seconds = 60.0, effort: float = 5.0, seed: int = 0, deterministic: bool = False,
    workers: int | Literal["none"] | None = None,
    progress: Callable[[int, int, str], None] | None = None, factor: int = 4, few: int = 4, dtype: str = "float32",
    op: str = "sum", iterations: int = 20, warmup: int = 3, limit: Seconds = 600.0, mpiexec: str = "",
    compiler: str = "", scale: str = "", library_only: bool = False, plans: str | Sequence[str] = (),
) -> MeasuredTuning | None: ...  # fmt: skip


@public
def tune(  # noqa: PLR0913
    wanted: CollectiveLike,
    topology: MachineLike,
    *,
    nbytes: Sizes | None = None,
    model: str | None = None,
    profile: ProfileLike = None,
    planners: str | Sequence[str] = (),
    sweep: Mapping[str, Any] | None = None,
    root: int | None = None,
    ranks: Sequence[int] | None = None,
    budget: Seconds = 60.0,
    effort: float = 5.0,
    seed: int = 0,
    deterministic: bool = False,
    nccl: bool | None = None,
    against: MachineLike | None = None,
    workers: int | Literal["none"] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    shortlist: int | None = None,
    plans: str | Sequence[str] | None = None,
    on: Ground | None = None,
    factor: int | None = None,
    few: int | None = None,
    dtype: str | None = None,
    op: str | None = None,
    iterations: int | None = None,
    warmup: int | None = None,
    limit: Seconds | None = None,
    mpiexec: str | None = None,
    compiler: str | None = None,
    scale: str | None = None,
    library_only: bool | None = None,
) -> Tuning | MeasuredTuning | None:
    """The best plan for every size, of all that the planners can make; every schedule is verified.

    The result has `.plan` (`.plans` for several collectives), `.ranges`, `.candidates`, `.stopped` (how many of these
    ended by their budget), `.as_json()` and `.save(file)`; with `on` `.plan`, `.plans`, `.ranges`, `.rows` and
    `.tuning` (what the model said), and None in all processes but the first. Ctrl-C ends it early with what was found.

    `wanted`: a collective, its name or its file, or "all" for the eight.
    `topology`: the machine, its name or its file.
    `nbytes`: a range ("1KB:1GB", which it is by default; 1KB:16MB with `on`), one size, or several.
    `model`: what predicts the times (`antiphon.models()`), with its options behind a colon; left out, `calls` where
    published measurements tell what a call costs on these GPUs (not with `on`), else `alpha-beta`.
    `profile`: what was measured: a Profile, its file, or the name of a shipped one.
    `planners`: just these, or this one; left out, all that can.
    `sweep`: values of options to try, {"k": "2:64"}, {"k": [2, 4]} or {"k": "factors"} (of the number of ranks).
    `root`: of a rooted collective the root; left out, the first rank that takes part.
    `ranks`: those that take part; the others may relay. Left out, all.
    `effort`: how much each candidate tries that searches (`sccl`), in units of about a second; they are counted, so the
    same is found on every machine.
    `budget`: CPU seconds, or "60s", for each candidate: a safety stop.
    `seed`: the same seed gives the same plans.
    `deterministic`: every element is combined in one and the same order at all sizes.
    `nccl`: False leaves out what is only there to compare with, and the speedup.
    `against`: the whole machine, of which the topology is what is left: bounds before and after, and lost links.
    `workers`: processes; left out, or 0, one per core; "none": all is done in this one. It changes no result.
    `progress`: hears how many candidates are done, how many there are, and what was done last; every few seconds also,
    with the same numbers, a text that begins with "still at work": which candidates are, and their CPU seconds so far.
    `shortlist`: so many of the best at every size come with their schedules (`.shortlist`).
    `plans`: files of plans of your own (`antiphon.write`, MSCCL's XML, ...), which are candidates, too, by name `plan`.
    `on`: also measure the best, and choose by that: "mpi", "torch" or "lab". Only with it:
    `factor`: each size measured is so many times the last (4).
    `few`: so many of the model's best are measured at every size (4), beside the classics.
    `dtype`, `op`: of the data that are moved (float32, sum).
    `iterations`, `warmup`: runs of each (20), and runs before that do not count (3).
    `limit`: seconds, or "600s", for all measurements.
    `mpiexec`, `compiler`: on mpi, the launcher with its options, and the compiler for the engine.
    `scale`: on lab, how slow it is, as for `lab("up")`.
    `library_only`: on mpi, choose among the algorithms of the MPI library itself, for what `export` writes for it.
    """
    machine = _given.machine(topology)
    options: dict[str, Any] = {
        "model": model or ("" if on is None else "alpha-beta"), "profile": profile, "planners": planners,
        "sweep": sweep, "budget": budget, "effort": effort, "seed": seed, "deterministic": deterministic,
        "workers": workers, "progress": progress,
    }  # fmt: skip
    priced = _given_options(nccl=nccl, against=against, shortlist=shortlist)
    measured = _given_options(
        factor=factor, few=few, dtype=dtype, op=op, iterations=iterations, warmup=warmup, limit=limit, mpiexec=mpiexec,
        compiler=compiler, scale=scale, library_only=library_only,
    )  # fmt: skip
    if plans:
        if library_only:
            raise Invalid("plans: do not go together with library_only, which chooses among algorithms of MPI")
        options["plans"] = several(path)(plans, "plans")
    target: Any = wanted
    if isinstance(wanted, str) and wanted == "all":
        options |= {"root": root, "ranks": ranks}
    else:
        target = _given.wanted(wanted, machine, root, ranks)
    if on is not None:
        from antiphon.runtimes.measure.choose import tune_measured
        from antiphon.runtimes.measure.library_choose import tune_library

        if priced:
            raise Invalid(f"{next(iter(priced))}: does not go together with on={on!r}; leave one of them out")
        sizes: Any = "" if nbytes is None else nbytes if isinstance(nbytes, str | Sequence) else [nbytes]
        measure = tune_library if measured.pop("library_only", False) else tune_measured
        return measure(target, machine, on=on, nbytes=sizes, **options, **measured)
    from antiphon.select import tune as find

    if measured:
        raise Invalid(f"{next(iter(measured))}: is for measuring; give on, too (mpi, torch or lab), or leave it out")
    if against is not None:
        priced["against"] = _given.machine(against, "against")
    return find(target, machine, nbytes=SPAN if nbytes is None else nbytes, **options, **priced)


def _given_options(**options: Any) -> dict[str, Any]:
    """Those that are given."""
    return {name: value for name, value in options.items() if value is not None}


@public
def tune_over(  # noqa: PLR0913
    wanted: CollectiveLike,
    topology: str,
    *,
    vary: Mapping[str, Any] | str,
    nbytes: Sizes | None = None,
    model: str | None = None,
    profile: ProfileLike = None,
    planners: str | Sequence[str] = (),
    sweep: Mapping[str, Any] | None = None,
    root: int | None = None,
    ranks: Sequence[int] | None = None,
    budget: Seconds = 60.0,
    effort: float = 5.0,
    seed: int = 0,
    deterministic: bool = False,
    nccl: bool = True,
    workers: int | Literal["none"] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Tunings:
    """`tune` for several machines of a family: `.tunings` and `.refused` by value, `.as_json()`, `.save(directory)`.

    `wanted`: a collective, its name or its file, or "all".
    `topology`: the family's name with the options that stay: "delta", "ring:bandwidth=10GB/s".
    `vary`: the option that changes, with its values: {"nodes": [1, 2, 4]} or "nodes=1,2,4".
    `nbytes`, `model`, `profile`, `planners`, `sweep`, `root`, `ranks`, `effort`, `budget`, `seed`, `deterministic`,
    `nccl`, `workers`, `progress`: as for `tune`.
    """
    from antiphon.select import tune_over as find

    return find(
        _given.by_name(wanted), topology, vary=vary, nbytes=SPAN if nbytes is None else nbytes, model=model or "",
        profile=profile, planners=planners, sweep=sweep, root=root, ranks=ranks, budget=budget, effort=effort,
        seed=seed, deterministic=deterministic, nccl=nccl, workers=workers, progress=progress,
    )  # fmt: skip


@public
def report(tuning: Tuning) -> str:
    """A tuning as one HTML page that needs nothing else.

    `tuning`: what `tune` gave (without `on`).
    """
    from antiphon.select import Tuning as Found
    from antiphon.show.pages.report import report_html
    from antiphon.show.pictures.svg import topology_svg
    from antiphon.show.text import topology_text

    if not isinstance(tuning, Found):
        raise Invalid(f"tuning: expected what tune gave, with all its candidates, got {quote(tuning)}")
    return report_html(tuning, topology_svg, topology_text)
