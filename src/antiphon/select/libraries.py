"""The algorithms of communication libraries: which planners stand for NCCL, and which are the classics.

A speedup compares with a baseline. In order of preference:

    1. NCCL's own choice of algorithm by its model (`cost.nccl`), if the figures of these GPUs are known (`own_choice`).
    2. The best schedule of the planners that stand for NCCL: rings and trees; those whose switches reduce or multicast,
       if NCCL would use that; sends for alltoall, gather and scatter (`groups_of`).
    3. No baseline: if one of these planners failed or timed out, it might have been the fastest, and a speedup over the
       others would be too great (`_why_incomparable`).

`groups_of` returns groups of planners in order of preference. The first group counts that has a planner with a
schedule. Example: on a torus neither multi-ring nor double-binary-tree may be possible; then `ring` stands for NCCL.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from antiphon.core.collective import KINDS, Collective
from antiphon.core.topology import Topology
from antiphon.cost.basis import CALLS, usual_model
from antiphon.cost.nccl.library import OPTIONS, Library, library_among
from antiphon.cost.profile import Profile
from antiphon.options import name_with_options
from antiphon.registry import find
from antiphon.select.task import FAILED, TIMED_OUT, Done, Task

RINGS_AND_TREES = ("multi-ring", "double-binary-tree")
SENDS = ("direct", "pairwise")
Groups = tuple[tuple[str, ...], ...]
BASELINES: Mapping[str, Groups] = {
    **dict.fromkeys(KINDS, (RINGS_AND_TREES, ("ring",))),
    **dict.fromkeys(("alltoall", "gather", "scatter"), (SENDS, ("ring",))),
}
# Algorithms that libraries use. Many are equally fast by a model on a machine whose links are all equal, so `tune --on`
# measures the best of each.
CLASSICS = (
    "ring", "recursive-doubling", "halving-doubling", "direct", "bruck", "pairwise", "binomial-tree",
    "double-binary-tree", "colocated-ps",
)  # fmt: skip
# Collectives for which NCCL lets switches multicast or reduce (NVLink SHARP, InfiniBand SHARP), with the ability that
# the switches need, a field of `Topology.joint_abilities`; and the planners that stand for it, beside those of rings
# and trees.
IN_SWITCHES = {"allreduce": "reduce", "reducescatter": "reduce", "allgather": "multicast"}
BY_SWITCHES = ("nvls", "nvls-tree", "sharp")
OURS_ALONE = "beside"  # an option of planner nvls: with it, its schedules are not those of any library
NOBODY = "can plan it here"  # end of the reason why there is no baseline


def model_for(topology: Topology, targets: Mapping[str, Collective], profile: Profile | None = None) -> str:
    """Return the default model of the machine for all of these collectives."""
    return usual_model(topology, profile, wanted=tuple(targets.values()))


def own_choice(
    model: str, options: Mapping[str, Any], topology: Topology, targets: Mapping[str, Collective]
) -> Library | None:
    """Return the model of NCCL's own choice, if the model is `calls` and has its figures."""
    if model.partition(":")[0] != CALLS:
        return None
    library_options = {key: str(value) for key, value in options.items() if key in OPTIONS}
    library = library_among(topology, targets.values(), **library_options)
    # The ledger sets the lower bounds once their tasks have proved them; predictions are not compared with any until
    # then.
    return library and replace(library, limits=dict.fromkeys(targets))


def by_switches(topology: Topology, kind: str) -> bool:
    """Return whether NCCL would let switches of this machine multicast or reduce."""
    return kind in IN_SWITCHES and bool(getattr(topology.joint_abilities, IN_SWITCHES[kind]))


def groups_of(topology: Topology, kind: str) -> Groups:
    """Return the groups of planners that stand for NCCL, in order of preference."""
    first, *fallbacks = BASELINES.get(kind, ((),))
    if by_switches(topology, kind):
        first = (*first, *(name for name in BY_SWITCHES if kind in find("planner", name).can.collectives))
    return (first, *fallbacks)


def _why_incomparable(kind: str, tasks: Sequence[Task], ended: Mapping[int, Done], group: Collection[str]) -> str:
    """Return why a speedup over this group of planners would be misleading: one of them failed or did not end. "" if
    none.
    """
    for task in tasks:
        if task.kind == kind and task.entry is not None and task.planner in group:
            end = ended.get(task.index)
            name = name_with_options(task.planner, task.options)
            if end is None:
                return f"{name} was not tried to the end"
            if end.status in (FAILED, TIMED_OUT):
                return f"{name} {end.status}: {end.reason}"
    return ""


def find_baseline(
    kind: str,
    tasks: Sequence[Task],
    ended: Mapping[int, Done],
    able: Collection[str],
    groups: Groups | None = None,
) -> tuple[tuple[str, ...], str]:
    """Return the planners that stand for NCCL: those of the first group with a schedule, and "".

    If a planner of that group, or of a group before it, failed or timed out: no planners, and the reason. `able`: the
    planners with a schedule. `groups`: those of the machine (default: those of any machine).
    """
    groups = BASELINES.get(kind, ()) if groups is None else groups
    for group in groups:
        why = _why_incomparable(kind, tasks, ended, group)
        if why:
            return (), why
        names = tuple(name for name in group if name in able)
        if names:
            return names, ""
    listed = ", ".join(name for group in groups for name in group)
    return (), f"none of {listed} {NOBODY}" if groups else f"nothing stands for NCCL in a {kind} collective"
