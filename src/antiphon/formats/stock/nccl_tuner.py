"""Write a table for our NCCL tuner plugin: NCCL's algorithm for each collective and size."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from antiphon.core.plan import LIBRARY, Entry, Plan
from antiphon.core.topology import Topology, hosts
from antiphon.cost.nccl.library import Library, library_here
from antiphon.errors import Invalid, NotFound, Unsupported, quote
from antiphon.formats.files import Files
from antiphon.formats.stock.ranges import first_plan, merge_ranges, notes_of, planner_of, refuse_subset
from antiphon.options import parse_yes
from antiphon.units import format_size

FILE, HEAD = "nccl-tuner.txt", "antiphon-nccl-tuner 1"
COLUMNS = "# collective from to algorithm protocol channels ranks nodes"
PROTOCOLS = ("auto", "simple", "ll", "ll128")
MAX_CHANNELS = 64
MIN_SPEEDUP = 1.005  # of NCCL's algorithm over NCCL's own choice, both by the model: less would print as 1x
NO_ALGORITHM = "NCCL has no algorithm that does as the planner does"
# What NCCL has that does as these planners do; what it has for which collectives.
FAMILIES = {
    "ring": ("ring", "multi-ring", "hierarchical-ring", "kring"),
    "tree": ("double-binary-tree", "binomial-tree", "trees", "blink", "gentree"),
    "nvls": ("nvls",),
    "nvls-tree": ("nvls-tree",),
    "collnet-direct": ("sharp",),
}
_BASIC = ("allreduce", "allgather", "reducescatter")
ABLE = {
    "ring": (*_BASIC, "broadcast", "reduce"),
    "tree": ("allreduce",),
    "nvls": _BASIC,
    "nvls-tree": ("allreduce",),
    "collnet-direct": _BASIC,
}
_BY_PLANNER = {planner: family for family, planners in FAMILIES.items() for planner in planners}


# The same in the model of NCCL (`predict --library nccl`), where it has another name there.
MODELLED = {"collnet-direct": "collnet"}
MIN_MODELLED, MAX_MODELLED = 1024, 2**30  # bytes between which the model is evaluated


class Rule(NamedTuple):
    """NCCL's algorithm for a range ("": none), and why NCCL shall choose by itself, or what the choice costs."""

    algorithm: str
    reason: str


def nccl_tuner(
    plans: Mapping[str, Plan], *, protocol: str = "auto", channels: int = 0, unproven: bool = False
) -> Files[str]:
    """Write one table for the tuner plugin: a line for each range in which the model of NCCL predicts a gain.

    In all other ranges NCCL chooses by itself.

    Parameters
    ----------
    protocol
        auto (NCCL's best for the algorithm), simple, ll or ll128.
    channels
        0 (NCCL's choice) to 64.
    unproven
        Also write lines without a predicted gain, with their predicted cost, to be measured.
    """
    if protocol not in PROTOCOLS:
        raise Invalid(f"protocol: expected {', '.join(PROTOCOLS)}, got {quote(protocol)}")
    if isinstance(channels, bool) or not isinstance(channels, int) or not 0 <= channels <= MAX_CHANNELS:
        raise Invalid(f"channels: expected a whole number from 0 (NCCL's choice) to {MAX_CHANNELS}, got "
                      f"{quote(channels)}")  # fmt: skip
    unproven = parse_yes(unproven, "option unproven")
    machine = first_plan(plans).topology
    library = _library_on(machine)
    where = f"{machine.ranks} {len(set(hosts(machine))) or 1}"
    lines, rules, reasons = [HEAD, f"# for {' '.join(machine.name.split())[:100]}", COLUMNS], 0, list[str]()
    for kind, plan in plans.items():
        refuse_subset(plan, "nccl-tuner")
        for size_range in merge_ranges(plan, partial(rule_of, library=library, protocol=protocol, unproven=unproven)):
            assert size_range.value is not None
            start, stop = size_range.start, "-" if size_range.stop is None else str(size_range.stop - 1)
            if not size_range.value.algorithm:
                lines.append(f"# {kind} {start} {stop}: left to NCCL: {size_range.value.reason}")
                reasons.append(size_range.value.reason)
                continue
            lines += [f"# {size_range.value.reason}"] if size_range.value.reason else []
            lines.append(f"{kind} {start} {stop} {size_range.value.algorithm} {protocol} {channels} {where}")
            rules += 1
    if not rules and all(reason == NO_ALGORITHM for reason in reasons):
        raise Unsupported(
            f"nccl-tuner: NCCL has no algorithm for any plan of this table ({_in_words(plans)}); NCCL knows the "
            f"planners {', '.join(_BY_PLANNER)}, of each for some collectives"
        )
    if not rules:
        raise NotFound(
            f"nccl-tuner: NCCL's own choice is as good: nothing to write ({'; '.join(dict.fromkeys(reasons))}); "
            "--option unproven=yes writes lines to measure, each with what it costs by the model"
        )
    return Files({FILE: "\n".join(lines) + "\n"}, notes_of(rules, "NCCL", reasons))


def _library_on(machine: Topology) -> Library | None:
    """NCCL or RCCL on this machine; None where no figures of it are known."""
    try:
        return library_here(machine)
    except (Invalid, Unsupported):
        return None


def rule_of(entry: Entry, library: Library | None, protocol: str, unproven: bool) -> Rule:
    """NCCL's algorithm that does as this entry does, where it gains by NCCL's own model."""
    family, kind = _BY_PLANNER.get(planner_of(entry), ""), entry.schedule.collective.kind
    if entry.served_by == LIBRARY or (entry.served_by and not unproven):
        return Rule("", "our plan is not clearly faster")
    if not family or kind not in ABLE[family]:
        return Rule("", NO_ALGORITHM)
    name = library.name.upper() if library is not None else "NCCL"
    gains = {} if library is None else _gains_by_size(library, kind, family, protocol, entry)
    if not gains:
        reason = f"the model has no figures of {name}'s {family} here"
    else:
        worst = min(gains, key=lambda nbytes: gains[nbytes])
        if gains[worst] >= MIN_SPEEDUP:
            return Rule(family, "")
        slower = 1 / gains[worst] - 1
        reason = f"by the model {family} is no faster than {name}'s own choice"
        reason += f", up to {slower:.0%} slower ({format_size(worst)})" if slower >= MIN_SPEEDUP - 1 else ""
    return Rule(family if unproven else "", reason)


def _gains_by_size(library: Library, kind: str, family: str, protocol: str, entry: Entry) -> dict[int, float]:
    """Return the library's speedup by this algorithm over its own choice, by size; {} if unknown."""
    last = MAX_MODELLED if entry.stop is None else min(entry.stop - 1, MAX_MODELLED)
    sizes = [max(entry.start, min(MIN_MODELLED, last))]
    while 2 * sizes[-1] < last:
        sizes.append(2 * sizes[-1])
    gains = {}
    for nbytes in dict.fromkeys([*sizes, max(last, sizes[0])]):
        own, *alternatives = library.at(kind, nbytes)
        forced = [
            choice.seconds for choice in (own, *alternatives)
            if choice.algorithm == MODELLED.get(family, family) and protocol in ("auto", choice.protocol)
        ]  # fmt: skip
        if not forced:
            return {}
        gains[nbytes] = own.seconds / min(forced) if min(forced) else 1.0
    return gains


def _in_words(plans: Mapping[str, Plan]) -> str:
    phrases = dict.fromkeys(f"{kind} by {planner_of(entry)}" for kind, plan in plans.items() for entry in plan.entries)
    return ", ".join(list(phrases)[:8])
