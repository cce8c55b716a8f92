"""Tune a collective: try every planner that supports it, and find the best schedule for every size.

    1. read the arguments; choose the planners (`usual_planners`, or those named) and the values of swept options
    2. list the tasks: for each collective its bounds, then a task per planner and combination of options, also for the
       planners that stand for NCCL
    3. run the tasks, in this process or in workers (`pool.run_tasks`)
    4. collect the results in a `Ledger`, which turns them into winners, ranges and plans

Example: tune("allreduce", "dgx1v", nbytes="1KB:1MB", planners=["ring", "trees"]) prices a dozen sizes. Tasks: the
bounds; ring; trees; and multi-ring and double-binary-tree, which stand for NCCL. The result is a range or two: for
example trees from 1 KB, ring from 256 KB, each with its gap and its speedup over NCCL.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from antiphon.core.collective import ROOTED, Collective
from antiphon.core.request import effort_of
from antiphon.core.topology import Topology
from antiphon.core.transform import Cuts
from antiphon.cost import Profile, as_profile, model_of
from antiphon.errors import Invalid, quote, unknown
from antiphon.isolate import available_processors
from antiphon.planners.shared.reach import Reach
from antiphon.registry import Entry, ModelCapabilities, PlannerCapabilities, find, refuse_unknown_options, table
from antiphon.select.failures import classify_failures, reduce_collective
from antiphon.select.ledger import Ledger, Progress
from antiphon.select.libraries import BASELINES, Groups, find_nccl_model, list_stand_ins, model_for
from antiphon.select.limits import compare_bounds, compare_links
from antiphon.select.parse_request import budget_of, collective, machine_of, sizes_of
from antiphon.select.plan_files import OWN_PLANS, OWN_PLANS_ENTRY, files_by_kind
from antiphon.select.pool import run_tasks
from antiphon.select.recording import SHIPPED, recording_name, replay, write_recording
from antiphon.select.sweep import Sweep, Value, list_combinations, resolve_sweep
from antiphon.select.task import Context, Task
from antiphon.select.tuning import FailureTuning, Tuning
from antiphon.select.uses import has_helpful_switches, needs_switches
from antiphon.topologies.degraded import connected_parts
from antiphon.units import Sizes

BUDGET = 60.0  # CPU seconds per candidate
EFFORT = 5.0  # limit on the work of planners that search, in units of about a second
MAX_JOINED = 256  # ranks up to which `_join_all_ranks` checks, which costs a search per rank
ProfileLike = Profile | str | os.PathLike[str] | None


def tune(  # noqa: PLR0913
    spec: str | Collective,
    topology: Topology | str,
    *,
    nbytes: Sizes = "1KB:1GB",
    model: str = "alpha-beta",
    planners: str | Sequence[str] = (),
    budget: float | str = BUDGET,
    effort: float = EFFORT,
    root: int | None = None,
    ranks: Sequence[int] | None = None,
    seed: int = 0,
    profile: ProfileLike = None,
    workers: int | str | None = None,
    against: Topology | str | None = None,
    sweep: Sweep | None = None,
    nccl: bool = True,
    deterministic: bool = False,
    shortlist: int = 0,
    cuts: Cuts | None = None,
    in_switches: bool = True,
    plans: Sequence[str] = (),
    progress: Progress | None = None,
    recordings: Path = SHIPPED,
    record: bool = False,
) -> Tuning:
    """Return the best schedule for every size among those of all planners; every schedule is verified.

    The result does not depend on `workers`. Ctrl-C ends the tuning early with the result so far. Time: that of the
    planners; what exceeds two seconds is spread over the workers. Memory: the schedules that can still win, and one per
    worker.

    Parameters
    ----------
    spec
        A collective, its name, or "all" for the eight common ones.
    model
        The cost model. "": `calls` if its figures for the machine are known, else alpha-beta.
    planners
        Use only these. The planners that stand for NCCL are priced, too.
    budget
        CPU seconds after which a candidate is stopped; this is reported.
    effort
        Limit on the work of a planner that searches, in units of about a second; the same on every computer.
    root, ranks
        Of collectives passed by name, their root and participating ranks. Default: the lowest rank, and all.
    profile
        Measurements, or their file. They determine times and the lower bound on time. Rounds and gaps that plans claim
        remain those of the topology.
    workers
        Number of worker processes. None or 0: one per core; "none": only this process.
    against
        The intact machine, if the topology is degraded: the result also states how much the bounds rose and which
        links are lost or slower.
    sweep
        Values of options to try ({"k": range(2, 65)}, "2:64", "factors", ...). Planners that have the option try every
        combination, instead of the options that their table entry declares.
    nccl
        False: do not compare with NCCL.
    deterministic
        Combine every element in the same order at all sizes: the order that is fastest over all sizes.
    shortlist
        Also return this many of the best schedules at every size, and the best of every classic algorithm, to be
        measured.
    cuts
        How the target runtime splits messages of schedules without pieces; the resulting messages are priced.
    in_switches
        False: refuse schedules in which switches multicast or reduce.
    plans
        Files of plans that are candidates, too.
    progress
        Receives the number of candidates done, their total, and the name of the last one.
    recordings
        The folder of recorded tunings. Where it has this request, its candidates are not planned again.
    record
        Record this request in that folder, if it can be replayed.
    """
    topology = machine_of(topology)
    span, sizes = sizes_of(nbytes)
    seconds, processes = budget_of(budget), _count_processes(workers)
    targets = _read_targets(spec, topology, root, ranks)
    named_planners = list(dict.fromkeys([planners] if isinstance(planners, str) else planners))
    loaded_profile = None if profile is None else as_profile(profile)
    model = model if model != "" else model_for(topology, targets, loaded_profile)
    entry, options = _model_of(model)
    names = named_planners or usual_planners(topology, barriers=entry.can.barriers)
    for name in names:
        planner, colon, own_options = name.partition(":") if isinstance(name, str) else (name, "", "")
        if colon and planner in table("planner"):
            raise Invalid(
                f"planners: {quote(name)} has options; tune tries values of its own: name {planner} alone, or sweep "
                f"{own_options or 'OPTION=VALUES'} (tune --sweep)"
            )
        find("planner", name)  # raises for an unknown one
    values = resolve_sweep(sweep, names, len(next(iter(targets.values())).members))
    intact = None if against is None else machine_of(against, "against")
    if intact is not None and intact.ranks != topology.ranks:
        raise Invalid(
            f"{intact.name} has {intact.ranks} ranks, {topology.name} {topology.ranks}; compare like with like"
        )
    context = Context(
        topology, targets, model_name=model, model=entry, profile=loaded_profile, sizes=sizes, budget=seconds,
        seed=seed, model_options=options, deterministic=deterministic, effort=effort_of(effort), cuts=cuts,
        in_switches=in_switches,
    )  # fmt: skip
    context.with_profile(topology)  # raises now, and not once per candidate, if the profile is of other links
    baselines = {kind: list_stand_ins(topology, kind) for kind in targets} if nccl else {}  # by collective
    tasks = _list_tasks(targets, names, values, baselines, named=bool(named_planners))
    library = find_nccl_model(model, options, topology, targets)
    for kind, files in files_by_kind(plans, topology, targets).items():
        tasks += [
            Task(len(tasks) + i, kind, OWN_PLANS, OWN_PLANS_ENTRY, {"file": file}) for i, file in enumerate(files)
        ]
    # without a model of the library, speedups need the planners that stand for it: these are never skipped
    stand_ins = (
        ()
        if library is not None
        else tuple(name for groups in baselines.values() for group in groups for name in group)
    )

    # may_skip: tasks, once the best plans reach the bound; may_drop: large schedules that are nowhere the fastest. Not
    # where the result lists every candidate that was requested, or needs more than the fastest ones
    def new_ledger() -> Ledger:
        return Ledger(
            context, tasks, names={*names, OWN_PLANS}, progress=progress, compare=nccl, shortlist=shortlist,
            library=library, may_skip=not (named_planners or shortlist or values or deterministic),
            required={OWN_PLANS, *stand_ins}, may_drop=not (shortlist or values or deterministic),
        )  # fmt: skip

    ledger, complete = new_ledger(), True
    # only tunings of all planners, with the default options and without measurements of the user, are recorded
    is_recordable = (
        loaded_profile is None and cuts is None and nccl and not (named_planners or shortlist or values or plans)
    )
    file = recordings / recording_name(context, tasks) if is_recordable and (record or recordings.exists()) else None
    try:
        if file is None or not file.exists() or not replay(ledger, file):
            ledger = new_ledger()  # a replay that failed midway has filled the first one
            # `with_rivals` gives a task the times that its schedules must beat to be kept
            run_tasks(context, ledger.pending, processes, ledger.receive, ledger.is_needed, ledger.with_rivals)
    except KeyboardInterrupt:
        complete = False
    bound_losses = (
        compare_bounds(targets, ledger.limits, context.with_profile(intact)) if intact is not None and complete else ()
    )
    # A rank outside `members` that has no links on this machine was excluded on purpose: `compare_links` does not count
    # its links of the intact machine as lost.
    members = frozenset(rank for target in targets.values() for rank in target.members)
    links = compare_links(intact, topology, members) if intact is not None else None
    tuning = ledger.close(span, bound_losses, links, complete, values)
    if record and file is not None and complete and not tuning.stopped:
        write_recording(ledger, file)
    return tuning


def _model_of(model: str) -> tuple[Entry[ModelCapabilities], Mapping[str, Any]]:
    """Return a model and its options. Raises now, and not once per candidate, if an option is unknown."""
    if not isinstance(model, str):
        raise unknown("model", model, table("model"))
    entry, options = model_of(model)
    if options:
        refuse_unknown_options("model", model.partition(":")[0], entry.load(), options, entry.can.needs)
    return entry, options


def _count_processes(workers: int | str | None) -> int:
    """Return the number of worker processes; 0 means only this process."""
    if workers == "none":
        return 0
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 0):
        raise Invalid(f'workers: expected a number of processes, 0 (one per core) or "none", got {quote(workers)}')
    return workers or available_processors()


def _read_targets(
    spec: str | Collective, topology: Topology, root: int | None, ranks: Sequence[int] | None
) -> dict[str, Collective]:
    """Return the collectives to tune, by kind."""
    if isinstance(spec, Collective):
        return {spec.kind: spec}
    if not isinstance(spec, str) or spec != "all":
        target = collective(spec, topology, root=root, ranks=ranks)
        return {target.kind: target}
    return {
        kind: collective(kind, topology, root=root if kind in ROOTED else None, ranks=ranks)
        for kind in ("allreduce", "allgather", "reducescatter", "alltoall", *ROOTED)
    }


def usual_planners(topology: Topology, *, barriers: bool = True) -> list[str]:
    """Return all planners that are tried if the user names none.

    The table entry of a planner leaves it out where another planner is always as good. That is everywhere (`tuned` is
    false), on fewer ranks than `tuned_from`, where links or switches join every two ranks (`tuned_joined` is false), or
    under a model with `barriers` between steps (`timed`). Planners whose schedules let switches multicast or reduce are
    left out if no switch of the machine can.
    """
    are_joined = _join_all_ranks(topology)
    available = [
        (name, entry)
        for name, entry in table("planner").items()
        if entry.can.tuned
        and topology.ranks >= entry.can.tuned_from
        and (entry.can.tuned_joined or not are_joined)
        and not (entry.can.timed and barriers)
    ]
    return [name for name, entry in available if has_helpful_switches(topology) or not needs_switches(entry)]


def _join_all_ranks(topology: Topology) -> bool:
    """Return whether links or switches join every two ranks; False above MAX_JOINED ranks, where it is not checked."""
    if topology.ranks > MAX_JOINED:
        return False
    reach, ranks = Reach(topology), set(range(topology.ranks))
    return all(reach.neighbours(rank).keys() >= ranks - {rank} for rank in ranks)


def _is_usual(entry: Entry[PlannerCapabilities], kind: str) -> bool:
    """Return whether an unnamed planner is tried for a collective, by the `tuned` of its entry."""
    tuned = entry.can.tuned  # True, False, or the collectives for which it is tried
    # a planner that does not support the collective gets a task, too, so that it is listed as refused
    return tuned is True or kind in (tuned or ()) or kind not in entry.can.collectives


def _list_tasks(
    targets: Mapping[str, Collective], names: Sequence[str], values: Mapping[str, Sequence[Value]] | None = None,
    baselines: Mapping[str, Groups] = BASELINES, named: bool = True,
) -> list[Task]:  # fmt: skip
    """Return the tasks: for every collective its bounds, then every planner with each combination of options to try.

    `values`: of swept options. `baselines`: by collective the planners that stand for NCCL, in groups of which the
    first that has a schedule counts; they try the options that their entries declare. `named`: whether the user named
    the planners.
    """
    tasks: list[Task] = []
    for kind in targets:
        tasks.append(Task(len(tasks), kind))
        compared_planners = [
            n for group in baselines.get(kind, ()) for n in group if n not in names and n in table("planner")
        ]
        for name in [*names, *compared_planners]:
            entry = find("planner", name)
            if not named and not _is_usual(entry, kind):
                continue
            combinations = list_combinations(values if values and name in names else {}, entry)
            for options in combinations if kind in entry.can.collectives else ({},):
                tasks.append(Task(len(tasks), kind, name, entry, options))
    return tasks


def tune_failures(intact: Tuning, of: str, tune_again: Callable[[Topology], Tuning]) -> Tuning:
    """Return `intact` with a tuning for each single failure of its machine.

    `of`: "links", "wires" (of a link of several wires, one of them), "nics" or "ranks". `tune_again` tunes the same
    request on a degraded machine. Failures that leave the same machine up to the numbers of its nodes form a class,
    which is tuned once.
    """
    collectives = [plan.collective for plan in intact.plans.values()]
    members = {rank for each in collectives for rank in each.members}
    tunings: list[FailureTuning] = []
    for names, machine in classify_failures(intact.topology, of, collectives):
        components = connected_parts(machine)  # the largest first
        # a failure of a rank has its number as name
        remaining = members - {int(names[0])} if of == "ranks" else members
        is_connected = bool(components) and remaining <= {*components[0]}
        has_collectives = any(reduce_collective(each, machine) for each in collectives)  # not if all lost their root
        tunings.append(FailureTuning(names, tune_again(machine) if is_connected and has_collectives else None))
        if not tunings[-1].complete:
            return replace(intact, failures=tuple(tunings), complete=False)
    return replace(intact, failures=tuple(tunings))
