"""Replay recorded jobs with our plans: read the traces, price each collective by our plans, and predict a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from antiphon.api import _inputs
from antiphon.api._checked import path as path_of
from antiphon.api._checked import public
from antiphon.errors import Invalid, quote

if TYPE_CHECKING:
    from antiphon.api._kinds import MachineLike, Path, PlanLike, ProfileLike, Row
    from antiphon.core.plan import Plan
    from antiphon.core.topology import Topology
    from antiphon.runtimes.engine.learned import LearnedLine


MAX_SIZES = 64  # sizes of a collective for which plans are tuned; others use the plan of the next smaller one


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
    """Replay a recorded job with our plans.

    Predicts the time of a step as recorded and with the plans, its exposed and hidden communication, which collective
    is worth tuning, and the best size of DDP's buckets.

    Parameters
    ----------
    files
        Traces of PyTorch's profiler, of Chakra or of a profiler of NCCL, one for each rank, or their folder.
    topology
        The machine that the job ran on. Default: that of the table. Required unless `measured` is passed.
    table
        Plans; collectives without one are planned. Times in a measured table take precedence over the model, unless
        `model` is passed; sizes that the table leaves to the library stay as recorded.
    measured
        Times of our plans where the job ran: the output of `bench --json` (a file, or its rows) or of nccl-tests. They
        take precedence over the model.
    model
        Cost model (`antiphon.available.models()`). Default: `calls` where its figures are known, else `alpha-beta`.
    profile
        Measured parameters: a Profile, its file, or the name of a shipped one.
    planners
        Without a table, only these planners.
    library
        nccl or rccl, with options as for `predict_library`. Default: the one with published figures for the machine's
        GPUs.
    cores
        Number of cores of the host, if ranks compute and communicate on the same ones.
    progress
        Called with the next activity.

    Returns
    -------
    dict
        The keys that docs/replay.md lists.

    Raises
    ------
    Invalid
        A trace cannot be read, or the machine is not known.

    Examples
    --------
    ::

        result = antiphon.replay.job("trace.json", "dgx1v", table="table.json")
    """
    from antiphon.formats.jobs import read_recording
    from antiphon.select.prices import ByLibrary, ByMeasurements, ByPlans
    from antiphon.select.replay import PriceSource
    from antiphon.select.replay import replay as run

    traces = [files] if _inputs.is_path(files) else files
    if not isinstance(traces, Sequence) or isinstance(traces, str | bytes):
        raise Invalid(f"files: expected several, got {quote(files)}")
    # 2^20: no host has more
    if cores is not None and (isinstance(cores, bool) or not isinstance(cores, int) or not 0 < cores <= 2**20):
        raise Invalid(f"cores: expected a whole number from 1, got {quote(cores)}")
    if progress is not None:
        progress("reading")
    job = read_recording([path_of(file, "files") for file in traces])
    sizes: dict[tuple[str, int], list[int]] = {}  # (kind, process group) -> nbytes of each call
    for call in job.calls:
        sizes.setdefault((call.kind, call.group), []).append(call.nbytes)
    plans: dict[str, Plan] = {} if table is None else _inputs.plans(table, "table")
    machine: Topology | None = None
    if topology is not None:
        machine = _inputs.machine(topology)
    elif plans:
        machine = next(iter(plans.values())).topology
    for plan in plans.values():
        if plan.topology != machine:
            raise Invalid(f"table: its plans are for {plan.topology.name}, not for {machine and machine.name}")
    by_library = None if machine is None else ByLibrary(machine, library)
    if measured is not None:
        ours: PriceSource = ByMeasurements(*_read_measured(measured))
    elif machine is None:
        raise Invalid("topology: name the machine that the job ran on, or pass a table or measured times")
    else:
        plan_collective = _make_planner(machine, model, profile, planners)
        by_claims = not model and profile is None  # else the user wants times by these
        ours = ByPlans(machine, plans, plan_collective, model, profile, by_claims=by_claims, sizes=sizes)
    result = run(job, ours, by_library, cores_of_host=cores, progress=progress)
    return {"topology": machine and machine.name, **result.as_json()}


@public
def policies(file: Path, names: Sequence[str] = ("fixed", "trial", "bandit")) -> dict[str, Any]:
    """Compare policies that choose among candidates for each call, on recorded calls.

    Parameters
    ----------
    file
        A CSV file: collective, nbytes, and seconds of each candidate (docs/replay.md).
    names
        `fixed`: the plan of the table; `trial`: the plan or the library, whichever was faster in the first eight calls;
        `bandit`: learning (ANTIPHON_LEARN=1); `prior`: learning that starts from the file of ANTIPHON_LEARNED.

    Returns
    -------
    dict
        The keys that docs/replay.md lists.

    Raises
    ------
    Invalid
        The file cannot be read, or a name is not that of a policy.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
    ...     print("collective,nbytes,library,ring", file=file)
    ...     print("allreduce,1024,2e-5,1e-5", file=file, flush=True)
    ...     best = policies(file.name)["rows"][0]["best"]
    >>> best
    'ring'
    """
    from antiphon.runtimes.measure.policies import compare_policies, read_recordings

    if isinstance(names, str) or not isinstance(names, Sequence) or not names:
        raise Invalid(f"names: expected names of policies, got {quote(names)}")
    return compare_policies(read_recordings(path_of(file, "file")), names)


@public
def learned(files: Path | Sequence[Path]) -> list[LearnedLine]:
    """Read files of what jobs have learned (ANTIPHON_LEARNED), several of them merged.

    Parameters
    ----------
    files
        One file or several. Samples of the same candidate add up; if files chose different candidates, the fastest of
        these is chosen.

    Returns
    -------
    list of LearnedLine
        A line per candidate: `calls` (collective, ranks, root, nbytes), `name`, `samples`, `seconds`, `low` and `high`
        (the least and the greatest seconds), `chosen`.

    Raises
    ------
    Invalid
        A file cannot be read, or is not a file of learned times.

    Examples
    --------
    ::

        lines = antiphon.replay.learned("learned.txt")
        print([(line.name, line.seconds) for line in lines if line.chosen])
    """
    from antiphon.runtimes.engine.learned import merge_learned, read_learned

    paths = [files] if _inputs.is_path(files) else files
    if not isinstance(paths, Sequence) or isinstance(paths, str | bytes) or not paths:
        raise Invalid(f"files: expected some, got {quote(files)}")
    return merge_learned([read_learned(path_of(file, "files")) for file in paths])


def _make_planner(machine: Topology, model: str, profile: Any, planners: Any) -> Any:
    """Return a function that plans as `tune` does, for the sizes of the job."""
    from antiphon.select import collective
    from antiphon.select import tune as search

    def plan_collective(kind: str, members: Sequence[int], sizes: Sequence[int]) -> Plan | None:
        """Return the plan of one collective among these ranks, or None if no planner supports it."""
        target = collective(kind, machine, ranks=None if len(members) == machine.ranks else list(members))
        tuned_sizes = sorted({max(size, 1) for size in sizes}) or [2**20]  # 1 MiB: without sizes, any will do
        if len(tuned_sizes) > MAX_SIZES:
            every = math.ceil(len(tuned_sizes) / MAX_SIZES)
            tuned_sizes = tuned_sizes[::every] + tuned_sizes[-1:]  # the largest, too, which may then occur twice
        tuning = search(
            target, machine, nbytes=tuned_sizes, model=model, profile=profile, planners=planners,
            nccl=False,  # no comparison with NCCL: its time is predicted by `ByLibrary`
        )  # fmt: skip
        return tuning.plans.get(kind)

    return plan_collective


def _read_measured(measured: Any) -> tuple[Any, str]:
    """Return (size, seconds) pairs by kind, and what messages call their source: the file, or "here" for rows."""
    from antiphon.core.files import name_of, read_bytes, reading
    from antiphon.core.jsontext import decode
    from antiphon.formats.benchmark_log import read_points
    from antiphon.formats.xml import opening
    from antiphon.select.prices import fastest_rows

    if not _inputs.is_path(measured):
        if not isinstance(measured, Sequence) or not all(isinstance(row, dict) for row in measured):
            raise Invalid(f"measured: expected a file, or rows, got {quote(measured)}")
        return fastest_rows(measured), "here"
    name = name_of(path_of(measured, "measured"))
    with reading(name):
        data = read_bytes(measured)
        # output of nccl-tests: text, or JSON with the key out_of_place, which bench does not have
        if not opening(data).startswith(("{", "[")) or b'"out_of_place"' in data:
            return read_points(data.decode("utf-8", "replace")), name
        value = decode(data, Any)
        rows = value.get("rows") if isinstance(value, dict) else value
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise Invalid("expected the output of bench --json: rows with collective, nbytes and seconds")
        return fastest_rows(rows), name
