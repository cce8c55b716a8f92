"""What libraries do: the planners that stand for NCCL, whether they had their say, and the classics."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from antiphon.core.collective import KINDS, Collective
from antiphon.core.topology import Topology
from antiphon.cost.basis import CALLS, usual_model
from antiphon.cost.nccl.library import OPTIONS, Library, library_among
from antiphon.cost.profile import Profile
from antiphon.registry import find
from antiphon.select.task import FAILED, TIMED_OUT, Done, Task

RINGS_AND_TREES = ("multi-ring", "double-binary-tree")
SENDS = ("direct", "pairwise")
Groups = tuple[tuple[str, ...], ...]
BASELINES: Mapping[str, Groups] = {
    **dict.fromkeys(KINDS, (RINGS_AND_TREES, ("ring",))),
    **dict.fromkeys(("alltoall", "gather", "scatter"), (SENDS, ("ring",))),
}
# What libraries use, and what is good on flat machines, where a model may not see the difference.
CLASSICS = (
    "ring", "recursive-doubling", "halving-doubling", "direct", "bruck", "pairwise", "binomial-tree",
    "double-binary-tree", "colocated-ps",
)  # fmt: skip
# What NCCL lets switches do that can (NVLink SHARP, InfiniBand SHARP): what they must be able to do for it, and which
# planners stand for that, beside those that stand for its rings and trees.
IN_SWITCHES = {"allreduce": "reduce", "reducescatter": "reduce", "allgather": "multicast"}
BY_SWITCHES = ("nvls", "nvls-tree", "sharp")
OURS_ALONE = "beside"  # the option by which nvls does what no library does
NOBODY = "can plan it here"


def model_for(topology: Topology, targets: Mapping[str, Collective], profile: Profile | None = None) -> str:
    """The model where none is asked for: the usual one of the machine for all of these."""
    return usual_model(topology, profile, wanted=tuple(targets.values()))


def own_choice(
    model: str, options: Mapping[str, Any], topology: Topology, targets: Mapping[str, Collective]
) -> Library | None:
    """What tells NCCL's own choice, by the figures that the model calls has."""
    if model.partition(":")[0] != CALLS:
        return None
    told = {key: str(value) for key, value in options.items() if key in OPTIONS}
    found = library_among(topology, targets.values(), **told)
    # bounds come from the tasks that prove them anyway (Ledger.hear); until then predictions are held to none
    return found and replace(found, limits=dict.fromkeys(targets))


def by_switches(topology: Topology, kind: str) -> bool:
    """Whether NCCL would use what the switches of this machine can do."""
    return kind in IN_SWITCHES and bool(getattr(topology.helpers, IN_SWITCHES[kind]))


def groups_of(topology: Topology, kind: str) -> Groups:
    """The groups of planners that stand for NCCL, the first that can plan counts."""
    first, *others = BASELINES.get(kind, ((),))
    if by_switches(topology, kind):
        first = (*first, *(name for name in BY_SWITCHES if kind in find("planner", name).can["collectives"]))
    return (first, *others)


def spoilt(kind: str, tasks: Sequence[Task], ended: Mapping[int, Done], group: Collection[str]) -> str:
    """Why this group of planners cannot be compared with: one of them failed, or did not end. "" if it can."""
    for task in tasks:
        if task.kind == kind and task.entry is not None and task.planner in group:
            end = ended.get(task.index)
            who = " ".join([task.planner, *(f"{k}={v}" for k, v in task.options.items())])
            if end is None:
                return f"{who} was not tried to the end"
            if end.status in (FAILED, TIMED_OUT):
                return f"{who} {end.status}: {end.reason}"
    return ""


def baseline(
    kind: str,
    tasks: Sequence[Task],
    ended: Mapping[int, Done],
    able: Collection[str],
    groups: Groups | None = None,
) -> tuple[tuple[str, ...], str]:
    """Who stands for NCCL: the first group of planners of which one could plan. Nobody where one of that group, or
    of one before, failed or timed out, as it might have been the fastest; then the reason. `groups`: where they are not
    those of every machine."""
    groups = BASELINES.get(kind, ()) if groups is None else groups
    for group in groups:
        why = spoilt(kind, tasks, ended, group)
        if why:
            return (), why
        names = tuple(name for name in group if name in able)
        if names:
            return names, ""
    listed = ", ".join(name for group in groups for name in group)
    return (), f"none of {listed} {NOBODY}" if groups else f"nothing stands for NCCL in a {kind} collective"
