"""Recorded jobs replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from antiphon.api import _given
from antiphon.api._checked import path as path_of
from antiphon.api._checked import public
from antiphon.errors import Invalid, quote

if TYPE_CHECKING:
    from antiphon.api._kinds import MachineLike, Path, PlanLike, ProfileLike, Row
    from antiphon.core.collective import Collective
    from antiphon.core.plan import Plan
    from antiphon.core.topology import Topology


MOST_SIZES = 64  # that plans are sought for; others are served by the next below


@public
def replay(  # noqa: PLR0913
    files: Path | Sequence[Path],
    topology: MachineLike | None = None,
    *,
    table: PlanLike | None = None,
    measured: Path | Sequence[Row] | None = None,
    model: str = "",
    profile: ProfileLike = None,
    planners: str | Sequence[str] = (),
    library: str = "",
    cores: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """A recorded job once more: the time of a step as it was and with our plans, what of its communication is exposed
    and what hidden, which collective is worth tuning, and the best size of DDP's buckets (docs/replay.md has the keys).

    `files`: traces of PyTorch's profiler, of Chakra or of a profiler of NCCL, one for each rank, or their folder.
    `topology`: the machine that the job ran on; left out, that of the table. Needed where nothing was measured.
    `table`: our plans; what it has none for is planned, and without it everything. What a table that was measured
    says of its plans goes before the model, unless one is named; what it leaves to the library stays as it was.
    `measured`: what ours take where the job runs: what `bench --json` printed (a file, or its rows), or the output of
    nccl-tests. It goes before the model.
    `model`: what predicts the times (`antiphon.available.models()`); left out, `calls` where its figures are known,
    else `alpha-beta`.
    `profile`: what was measured: a Profile, its file, or the name of a shipped one.
    `planners`: where there is no table, just these.
    `library`: nccl or rccl, with options as of `predict_library`; left out, what the machine's figures are of.
    `cores`: the ranks share so many cores, on which collectives run as well.
    `progress`: hears what is done next.
    """
    from antiphon.formats.jobs import read_recording
    from antiphon.select.replay import replay as run

    given = [files] if _given.is_path(files) else files
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise Invalid(f"files: expected several, got {quote(files)}")
    if cores is not None and (isinstance(cores, bool) or not isinstance(cores, int) or not 0 < cores <= 2**20):
        raise Invalid(f"cores: expected a whole number from 1, got {quote(cores)}")
    if progress is not None:
        progress("reading")
    job = read_recording([path_of(one, "files") for one in given])
    wanted = [(call.kind, call.group, call.nbytes) for call in job.calls]
    ours, known, machine = _prices(wanted, topology, table, measured, model, profile, planners, library)
    found = run(job, ours, known, cores_of_host=cores, progress=progress)
    return {"topology": machine, **found.as_json()}


def _prices(
    wanted: Sequence[tuple[str, int, int]],
    topology: Any,
    table: Any,
    measured: Any,
    model: str,
    profile: Any,
    planners: Any,
    library: str,
) -> tuple[Any, Any, str | None]:
    """Who prices ours, who the library, and the machine's name. `wanted`: kinds, groups by number, sizes."""
    from antiphon.select.prices import ByLibrary, ByMeasurements, ByPlans

    plans: dict[str, Plan] = {} if table is None else _given.plans(table, "table")
    if topology is None and plans:
        machine: Topology | None = next(iter(plans.values())).topology
    else:
        machine = None if topology is None else _given.machine(topology)
    _check_plans(plans, machine)
    known = None if machine is None else ByLibrary(machine, library)
    if measured is not None:
        points, name = _points(measured)
        return ByMeasurements(points, name), known, None if machine is None else machine.name
    if machine is None:
        raise Invalid("topology: say which machine the job ran on, or give a table, or what was measured")
    sizes: dict[tuple[str, int], list[int]] = {}
    for kind, group, nbytes in wanted:
        sizes.setdefault((kind, group), []).append(nbytes)
    planned = _planner(machine, model, profile, planners)
    by_claims = not model and profile is None
    return ByPlans(machine, plans, planned, model, profile, by_claims, sizes), known, machine.name


def _check_plans(plans: dict[str, Plan], machine: Topology | None) -> None:
    for plan in plans.values():
        if machine is not None and plan.topology != machine:
            raise Invalid(f"table: its plans are for {plan.topology.name}, not for {machine.name}")


def _planner(machine: Topology, model: str, profile: Any, planners: Any) -> Any:
    """Plans as `tune` makes them, for the sizes of the job."""
    from antiphon.select import collective
    from antiphon.select import tune as search

    def planned(kind: str, members: Sequence[int], sizes: Sequence[int]) -> Plan | None:
        wanted: Collective = collective(kind, machine, ranks=None if len(members) == machine.ranks else list(members))
        asked = sorted({max(size, 1) for size in sizes}) or [2**20]
        if len(asked) > MOST_SIZES:
            asked = asked[:: -(-len(asked) // MOST_SIZES)] + asked[-1:]
        found = search(wanted, machine, nbytes=asked, model=model, profile=profile, planners=planners, nccl=False)
        return found.plans.get(kind)

    return planned


def _points(measured: Any) -> tuple[Any, str]:
    """Seconds by kind and size, and the name of what tells them."""
    from antiphon.core.files import name_of, read_bytes, reading
    from antiphon.core.jsontext import decode
    from antiphon.formats.xml import opening
    from antiphon.select.prices import printed, rows_of

    if not _given.is_path(measured):
        if not isinstance(measured, Sequence) or not all(isinstance(row, dict) for row in measured):
            raise Invalid(f"measured: expected a file, or rows, got {quote(measured)}")
        return rows_of(measured), "here"
    name = name_of(path_of(measured, "measured"))
    with reading(name):
        data = read_bytes(measured)
        if not opening(data).startswith(("{", "[")):
            return printed(data.decode("utf-8", "replace")), name
        whole = decode(data, Any)
        rows = whole.get("rows") if isinstance(whole, dict) else whole
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise Invalid("expected what bench --json prints: rows with collective, nbytes and seconds")
        return rows_of(rows), name
