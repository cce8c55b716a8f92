"""A table for our tuner plugin of NCCL: which of its algorithms for which collective and size."""

from __future__ import annotations

from collections.abc import Mapping

from antiphon.core.plan import Entry, Plan
from antiphon.core.topology import hosts
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.formats.stock.ranges import first, planner_of, ranges, refuse_part

FILE, HEAD = "nccl-tuner.txt", "antiphon-nccl-tuner 1"
COLUMNS = "# collective from to algorithm protocol channels ranks nodes"
PROTOCOLS = ("auto", "simple", "ll", "ll128")
MOST_CHANNELS = 64
# What NCCL has that does as these planners do; what it has for which collectives.
FAMILIES = {
    "ring": ("ring", "multi-ring", "hierarchical-ring", "kring"),
    "tree": ("double-binary-tree", "binomial-tree", "trees", "blink", "gentree"),
    "nvls": ("nvls",),
    "nvls-tree": ("nvls-tree",),
    "collnet-direct": ("sharp",),
}
_SOME = ("allreduce", "allgather", "reducescatter")
ABLE = {
    "ring": (*_SOME, "broadcast", "reduce"),
    "tree": ("allreduce",),
    "nvls": _SOME,
    "nvls-tree": ("allreduce",),
    "collnet-direct": _SOME,
}
_BY_PLANNER = {planner: family for family, planners in FAMILIES.items() for planner in planners}


def nccl_tuner(plans: Mapping[str, Plan], *, protocol: str = "auto", channels: int = 0) -> dict[str, str]:
    """One table of all plans. Ranges whose planner does what NCCL has no algorithm for, or that are left to the
    library, have no line: there NCCL chooses by itself.

    `protocol`: auto (what NCCL holds to be best for the algorithm), simple, ll or ll128. `channels`: 0 (NCCL's choice)
    to 64.
    """
    if protocol not in PROTOCOLS:
        raise Invalid(f"protocol: expected {', '.join(PROTOCOLS)}, got {quote(protocol)}")
    if isinstance(channels, bool) or not isinstance(channels, int) or not 0 <= channels <= MOST_CHANNELS:
        raise Invalid(f"channels: expected a whole number from 0 (NCCL's choice) to {MOST_CHANNELS}, got "
                      f"{quote(channels)}")  # fmt: skip
    machine = first(plans).topology
    where = f"{machine.ranks} {len(set(hosts(machine))) or 1}"
    lines, rules = [HEAD, f"# for {' '.join(machine.name.split())[:100]}", COLUMNS], 0
    for kind, plan in plans.items():
        refuse_part(plan, "nccl-tuner")
        for one in ranges(plan, _algorithm):
            start, stop = one.start, "-" if one.stop is None else str(one.stop - 1)
            if one.what is None:
                lines.append(f"# {kind} {start} {stop}: left to NCCL")
                continue
            lines.append(f"{kind} {start} {stop} {one.what} {protocol} {channels} {where}")
            rules += 1
    if not rules:
        raise Unsupported(
            f"nccl-tuner: nothing in this table is what NCCL has an algorithm for ({_in_words(plans)}); NCCL knows the "
            f"planners {', '.join(_BY_PLANNER)}, of each for some collectives"
        )
    return {FILE: "\n".join(lines) + "\n"}


def _algorithm(entry: Entry) -> str | None:
    """NCCL's algorithm that does as this entry does; None where it has none, or shall choose."""
    family = _BY_PLANNER.get(planner_of(entry))
    if family is None or entry.claims.get("served_by") == "library":
        return None
    return family if entry.schedule.collective.kind in ABLE[family] else None


def _in_words(plans: Mapping[str, Plan]) -> str:
    told = dict.fromkeys(f"{kind} by {planner_of(entry)}" for kind, plan in plans.items() for entry in plan.entries)
    return ", ".join(list(told)[:8])
