"""Every planner that can, over a range of sizes: the best for every size."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.core.collective import ROOTED, Collective
from antiphon.core.request import effort_of
from antiphon.core.topology import Topology
from antiphon.core.transform import Cuts
from antiphon.cost import Profile, as_profile, model_of
from antiphon.errors import Invalid, quote, unknown
from antiphon.registry import Entry, find, table
from antiphon.select.ledger import Ledger, Progress
from antiphon.select.libraries import BASELINES, Groups, groups_of, model_for, own_choice
from antiphon.select.losses import damage, losses
from antiphon.select.own_plans import ENTRY, OWN, files_by_kind
from antiphon.select.pool import run_tasks
from antiphon.select.sweep import Sweep, Value, combinations, resolved
from antiphon.select.task import Context, Task
from antiphon.select.tuning import Tuning
from antiphon.select.uses import helpful, needs_switches
from antiphon.select.wish import budget_of, collective, machine_of, sizes_of
from antiphon.units import Sizes

BUDGET, EFFORT = 60.0, 5.0
ProfileLike = Profile | str | os.PathLike[str] | None


def tune(  # noqa: PLR0913
    wanted: str | Collective,
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
) -> Tuning:
    """The best schedule for every size, of all that the planners here can make; every one of them is verified.

    `wanted`: a collective, or "all" for the eight. `model`: "" is calls where its figures are known of the machine,
    else alpha-beta. `planners`: just these (what stands for NCCL is priced, too).
    `effort`: how much a planner that searches tries, in units of about a second, which it counts, so that the result is
    the same on every machine. `budget`: CPU seconds after which a candidate is stopped, which is told. `profile`: what
    was measured, or its file: times and the bound beside them are by it; what the plans claim of rounds and gaps
    stays that of the topology. `workers`: processes, by default (or 0) one per core; "none": all is done in this
    one. `sweep`: values of options ({"k": range(2, 65)}, "2:64", "factors", ...): those planners that have the option
    are asked for every combination, instead of what their entries declare. `nccl=False`: nothing is priced for
    comparison only, and no speedup told. `deterministic`: every element is combined in one and the same order at all
    sizes; of the orders there are the one that is fastest on the whole. `shortlist`: so many of the best at every size,
    and the best of every classic, come with their schedules, for who measures them. `cuts`: how the runtime that it is
    for sends what has no pieces; priced is what it really sends. `in_switches`: whether that runtime
    can let switches multicast and combine; if not, what would is refused. `plans`: files of plans that are
    candidates, too. `against`: the whole machine, of
    which the topology is what is left: bounds before and after are told, and which links are slower. `progress` hears
    the number of candidates done, their total, and what was done last. The result does not depend on `workers`. Ctrl-C
    ends it early with what was found. Time: that of the planners, with what exceeds two seconds spread over the
    workers; memory: the schedules that can still win, and one per worker.
    """
    topology = machine_of(topology)
    span, sizes = sizes_of(nbytes)
    seconds, processes = budget_of(budget), _processes(workers)
    targets = _targets(wanted, topology, root, ranks)
    named = list(dict.fromkeys([planners] if isinstance(planners, str) else planners))
    names = named or _usual_planners(topology)
    for name in names:
        find("planner", name)
    values = resolved(sweep, names, len(next(iter(targets.values())).members))
    whole = None if against is None else machine_of(against, "against")
    if whole is not None and whole.ranks != topology.ranks:
        raise Invalid(f"{whole.name} has {whole.ranks} ranks, {topology.name} {topology.ranks}; compare like with like")
    given = None if profile is None else as_profile(profile)
    model = model if model != "" else model_for(topology, targets, given)
    entry, options = _model_of(model)
    context = Context(
        topology,
        targets,
        model,
        entry,
        given,
        sizes,
        seconds,
        seed,
        options,
        deterministic=deterministic,
        effort=effort_of(effort),
        cuts=cuts,
        in_switches=in_switches,
    )
    context.seen(topology)  # refuse a profile of other links now, not once per candidate
    compared = {kind: groups_of(topology, kind) for kind in targets} if nccl else {}
    own = own_choice(model, options, topology, targets)
    tasks = _tasks(targets, names, values, compared, bool(named))
    for kind, files in files_by_kind(plans, topology, targets).items():
        tasks += [Task(len(tasks) + i, kind, OWN, ENTRY, {"file": file}) for i, file in enumerate(files)]
    ledger = Ledger(context, tasks, {*names, OWN}, progress, nccl, shortlist, own)
    complete = True
    try:
        run_tasks(context, ledger.to_do, processes, ledger.hear)
    except KeyboardInterrupt:
        complete = False
    lost = losses(context, ledger.limits, whole) if whole is not None and complete else ()
    members = frozenset(rank for target in targets.values() for rank in target.members)
    links = damage(whole, topology, members) if whole is not None else None
    return ledger.close(span, lost, links, complete, values)


def _model_of(model: str) -> tuple[Entry, Mapping[str, Any]]:
    """A model and its options; what it does not have is refused now, not once per candidate."""
    if not isinstance(model, str):
        raise unknown("model", model, table("model"))
    entry, options = model_of(model)
    if options:
        name, parameters = model.partition(":")[0], inspect.signature(entry.load()).parameters.values()
        known = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} - {"profile"}
        for key in options if all(p.kind is not p.VAR_KEYWORD for p in parameters) else ():
            if not known:
                raise Invalid(f"model {name} takes no options, got {quote(key)}")
            if key not in known:
                raise unknown(f"option of model {name}", key, known)
    return entry, options


def _processes(workers: int | str | None) -> int:
    """How many; 0 means none beside this one."""
    if workers == "none":
        return 0
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 0):
        raise Invalid(f'workers: expected a number of processes, 0 (one per core) or "none", got {quote(workers)}')
    return workers or _cores()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _targets(
    wanted: str | Collective, topology: Topology, root: int | None, ranks: Sequence[int] | None
) -> dict[str, Collective]:
    if isinstance(wanted, Collective):
        return {wanted.kind: wanted}
    if not isinstance(wanted, str) or wanted != "all":
        found = collective(wanted, topology, root=root, ranks=ranks)
        return {found.kind: found}
    return {
        kind: collective(kind, topology, root=root if kind in ROOTED else None, ranks=ranks)
        for kind in ("allreduce", "allgather", "reducescatter", "alltoall", *ROOTED)
    }


def _usual_planners(topology: Topology) -> list[str]:
    """All but those that say of themselves that another does the same, better, or that need switches that can more than
    those of this machine."""
    usual = [(name, entry) for name, entry in table("planner").items() if entry.can.get("tuned", True)]
    return [name for name, entry in usual if helpful(topology) or not needs_switches(entry)]


def _usual(entry: Entry, kind: str) -> bool:
    """Whether a planner that nobody names is asked for a collective: those that it declares, or says are worth it."""
    tuned = entry.can.get("tuned", True)
    return tuned is True or kind in tuned or kind not in entry.can["collectives"]  # what it cannot do is told


def _tasks(
    targets: Mapping[str, Collective], names: Sequence[str],
    values: Mapping[str, Sequence[Value]] | None = None, beside: Mapping[str, Groups] = BASELINES, named: bool = True,
) -> list[Task]:  # fmt: skip
    """For every collective its bounds, then every planner that declares it, with each of its sweep of options; those
    that are there to compare with, for the collectives in `beside`, are swept as they declare it. `named`: whether
    somebody asked for just these."""
    tasks: list[Task] = []
    for kind in targets:
        tasks.append(Task(len(tasks), kind))
        compared = [n for group in beside.get(kind, ()) for n in group if n not in names and n in table("planner")]
        for name in [*names, *compared]:
            entry = find("planner", name)
            if not named and not _usual(entry, kind):
                continue
            declared: Sequence[Mapping[str, Any]] = entry.can.get("sweep") or ({},)
            swept = combinations(values if values and name in names else {}, entry.can["options"], declared)
            for options in swept if kind in entry.can["collectives"] else ({},):
                tasks.append(Task(len(tasks), kind, name, entry, options))
    return tasks
