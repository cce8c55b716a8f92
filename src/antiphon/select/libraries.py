"""The algorithms of communication libraries: which planners stand for NCCL, and which are the classics.

A speedup compares our time with that of a baseline. In order of preference, the baseline is:

    1. NCCL's own choice of algorithm, predicted by its model (`cost.nccl`), if NCCL's parameters for these GPUs are
       known (`find_nccl_model`).
    2. The best schedule of the planners that stand for NCCL (`list_stand_ins`): rings and trees; for alltoall, gather
       and scatter, plain sends. Where NCCL would let switches reduce or multicast, planners that do so are added.
    3. None, if one of these planners failed or timed out: it might have been the fastest, and a speedup over the others
       would be too great (`_why_incomparable`).

`list_stand_ins` returns groups of planners in order of preference. The baseline is the first group with a planner that
found a schedule. Example: on a torus neither multi-ring nor double-binary-tree may be possible; then `ring` stands for
NCCL. Nothing stands for NCCL in a collective of the user's own ("custom"), which NCCL does not have.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from antiphon.core.collective import KINDS, Collective
from antiphon.core.topology import Topology
from antiphon.cost.basis import CALLS, usual_model
from antiphon.cost.nccl.choice import NVLS, RING, occupied_multiprocessors
from antiphon.cost.nccl.library import OPTIONS, LibraryModel, find_library_model
from antiphon.cost.profile import Profile
from antiphon.options import name_with_options
from antiphon.registry import find
from antiphon.select.task import FAILED, TIMED_OUT, Done, Task

RINGS_AND_TREES = ("multi-ring", "double-binary-tree")
SENDS = ("direct", "pairwise")
Groups = tuple[tuple[str, ...], ...]
# kind of collective -> the planners that stand for NCCL on any machine, in groups
BASELINES: Mapping[str, Groups] = {
    **dict.fromkeys(KINDS, (RINGS_AND_TREES, ("ring",))),
    **dict.fromkeys(("alltoall", "gather", "scatter"), (SENDS, ("ring",))),
}
# Algorithms that libraries use. Many are equally fast by a model on a machine whose links are all equal, so `tune --on`
# measures, for each of these planners, the schedule that the model predicts to be its fastest at a size.
CLASSICS = (
    "ring", "recursive-doubling", "halving-doubling", "direct", "bruck", "pairwise", "binomial-tree",
    "double-binary-tree", "colocated-ps",
)  # fmt: skip
# Kind of collective for which NCCL lets switches multicast or reduce (NVLink SHARP, InfiniBand SHARP) -> the ability
# that the switches need, a field of `Topology.joint_abilities`
SWITCH_ABILITY = {"allreduce": "reduce", "reducescatter": "reduce", "allgather": "multicast"}
# planners that stand for NCCL if it uses switches like that, in addition to those for rings and trees
SWITCH_PLANNERS = ("nvls", "nvls-tree", "sharp")
# ends the reason "none of multi-ring, ... can plan it here", by which `show.words` finds it
NONE_CAN_PLAN = "can plan it here"


def model_for(topology: Topology, targets: Mapping[str, Collective], profile: Profile | None = None) -> str:
    """Return the default model of the machine for all of these collectives."""
    return usual_model(topology, profile, wanted=tuple(targets.values()))


def find_nccl_model(
    model: str, options: Mapping[str, Any], topology: Topology, targets: Mapping[str, Collective]
) -> LibraryModel | None:
    """Return the model of NCCL's own choice, if the cost model is `calls` (times fitted to published measurements of
    whole calls) and NCCL's parameters for these GPUs are known.

    `options`: of the cost model; some of them are options of NCCL's model, too.
    """
    if model.partition(":")[0] != CALLS:
        return None
    library_options = {key: str(value) for key, value in options.items() if key in OPTIONS}
    nccl_model = find_library_model(topology, targets.values(), **library_options)
    # The lower bounds are unknown (None) until tuning fills them in (`Ledger.receive`).
    return nccl_model and replace(nccl_model, lower_bounds=dict.fromkeys(targets))


def list_stand_ins(topology: Topology, kind: str) -> Groups:
    """Return the groups of planners that stand for NCCL, in order of preference; () for a collective that it lacks."""
    groups = BASELINES.get(kind, ())
    # whether NCCL would let switches of this machine multicast or reduce
    if kind not in SWITCH_ABILITY or not getattr(topology.joint_abilities, SWITCH_ABILITY[kind]):
        return groups
    first, *fallbacks = groups
    in_switches = (name for name in SWITCH_PLANNERS if kind in find("planner", name).can.collectives)
    return ((*first, *in_switches), *fallbacks)


def _why_incomparable(kind: str, tasks: Sequence[Task], ended: Mapping[int, Done], group: Collection[str]) -> str:
    """Return why a speedup over this group of planners would be misleading: one of them failed or did not end. Return
    "" if none did.
    """
    for task in tasks:
        if task.kind == kind and task.planner in group:
            end = ended.get(task.index)
            name = name_with_options(task.planner, task.options)
            if end is None:
                return f"{name} was not tried to the end"
            if end.status in (FAILED, TIMED_OUT):
                return f"{name} {end.status}: {end.reason}"
    return ""


def find_baseline(
    kind: str, tasks: Sequence[Task], ended: Mapping[int, Done], able: Collection[str], groups: Groups | None = None
) -> tuple[tuple[str, ...], str]:
    """Return the planners that stand for NCCL and "", or () and the reason why there is no baseline.

    They are the planners with a schedule (`able`) of the first group that has one. There is no baseline if a planner of
    that group, or of a group before it, failed or timed out. `groups`: from `list_stand_ins`; by default those that
    hold on any machine.
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
    return (), f"none of {listed} {NONE_CAN_PLAN}" if groups else f"nothing stands for NCCL in a {kind} collective"


def count_multiprocessors(library: LibraryModel | None, in_switches: bool) -> tuple[int | None, int | None]:
    """Return the most multiprocessors of a GPU that a schedule takes, and the number the GPU has; None if unknown.

    A schedule is assumed to take as many as NCCL takes for the same kind of algorithm. `in_switches`: its switches
    multicast or reduce.
    """
    if library is None or library.costs.gpu.units is None:
        return None, None
    count = occupied_multiprocessors(library.costs, NVLS if in_switches else RING)
    return count, None if count is None else library.costs.gpu.units.of
