"""Rules for NCCL's own algorithms: chosen from a table of plans, and written for our tuner plugin.

A rule names algorithm, protocol, channels and chunk size for a collective and a range of sizes; in all other ranges
NCCL chooses by itself. Rules come from two sources:

    measurement   `tune --from-logs` claims NCCL's fastest settings per range, where they beat its own choice beyond
                  the noise. They are written as measured.
    model         the planner of an entry maps to NCCL's algorithm that does the same (`FAMILIES`). A rule is written
                  only if NCCL's model predicts a gain beyond its own error at every size of the range, or as
                  `unproven`, to be measured.

A table of two ranges becomes (`COLUMNS` names the columns)

    allreduce 65536 131071 tree ll128 0 16 2
    # allreduce 131072 -: left to NCCL: its own choice was measured to be as good

`nccl_csv` writes the same rules for readers of CSV.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from antiphon.core.plan import LIBRARY, Entry, Plan
from antiphon.core.topology import Topology
from antiphon.cost.nccl.accuracy import is_clearly_faster
from antiphon.cost.nccl.layout import count_nodes
from antiphon.cost.nccl.library import LibraryModel, library_of
from antiphon.errors import Invalid, NotFound, Unsupported, quote
from antiphon.formats.files import Files
from antiphon.formats.stock.measured import algorithm_of, library_claim
from antiphon.formats.stock.ranges import count_members, first_plan, merge_ranges, notes_of, planner_of
from antiphon.options import parse_yes
from antiphon.units import format_ends, format_size

FILE, HEAD = "nccl-tuner.txt", "antiphon-nccl-tuner 1"  # HEAD: the first line, the form of the file and its version
COLUMNS = "# collective from to algorithm protocol channels ranks nodes"
PROTOCOLS = ("auto", "simple", "ll", "ll128")  # auto: NCCL chooses the protocol
MAX_CHANNELS, MAX_CHUNK = 64, 2**30  # MAXCHANNELS of NCCL from 2.25 on; bytes, beyond any buffer in use
MIN_SPEEDUP = 1.005  # less prints as 1x
NO_ALGORITHM = "NCCL has no algorithm like the planner's"
# Reasons for which nothing is known of a range; the first begins so
NO_FIGURES, UNMEASURED = "the model has no figures", "nothing was measured"
MEASURED = "measured"  # how the reasons of measured rules begin
NEEDS_ONE_PER_NODE = "NCCL's pat needs one rank per node"
NO_CHUNKS = "its gain was measured with a chunk size, which this format cannot state"
# NCCL's algorithm -> the planners whose schedules do the same
FAMILIES = {
    "ring": ("ring", "multi-ring", "hierarchical-ring", "kring"),
    "tree": ("double-binary-tree", "binomial-tree", "trees", "blink", "gentree"),
    "nvls": ("nvls",),
    "nvls-tree": ("nvls-tree",),
    "collnet-direct": ("sharp",),
    "collnet-chain": (),
    "pat": ("bruck", "recursive-doubling", "halving-doubling"),  # with one rank per node
}
_BASIC = ("allreduce", "allgather", "reducescatter")
SUPPORTED = {  # NCCL's algorithm -> the collectives that it serves
    "ring": (*_BASIC, "broadcast", "reduce"),
    "tree": ("allreduce",),
    "nvls": _BASIC,
    "nvls-tree": ("allreduce",),
    "collnet-direct": _BASIC,
    "collnet-chain": ("allreduce",),
    "pat": ("allgather", "reducescatter"),
}
# NCCL's algorithms, in the order of its numbers
ALGORITHMS = ("tree", "ring", "collnet-direct", "collnet-chain", "nvls", "nvls-tree", "pat")
_BY_PLANNER = {planner: family for family, planners in FAMILIES.items() for planner in planners}

# NCCL's algorithm -> its name in the model of NCCL (`predict --library nccl`), if that differs
MODELLED = {"collnet-direct": "collnet"}
MIN_MODELLED, MAX_MODELLED = 1024, 2**30  # bytes between which the model is evaluated


class TunerRule(NamedTuple):
    """NCCL's algorithm for a range of sizes, or the reason why NCCL chooses by itself."""

    algorithm: str  # "": NCCL chooses by itself
    reason: str  # why it does; of a rule, the measured or predicted gain
    protocol: str = "auto"  # one of PROTOCOLS
    channels: int = 0  # 0: NCCL's own number
    chunk: int = 0  # bytes, 0: NCCL's own

    def __str__(self) -> str:
        """Return the settings in words: ring simple, 16 channels, chunks of 512KiB."""
        words = self.algorithm if self.protocol == "auto" else f"{self.algorithm} {self.protocol}"
        words += f", {self.channels} channels" if self.channels else ""
        return words + (f", chunks of {format_size(self.chunk)}" if self.chunk else "")


class RangeRule(NamedTuple):
    """A rule for start <= nbytes < stop (None: no end)."""

    kind: str  # of collective
    start: int
    stop: int | None
    rule: TunerRule

    def __str__(self) -> str:
        return f"{self.kind} {self.start} {'-' if self.stop is None else self.stop - 1}"


class RuleTable(NamedTuple):
    """The rules of all plans of a table."""

    library: LibraryModel | None  # the model of NCCL or RCCL on this machine; None if it has no figures of it
    title: str  # first comment of the file
    ranks: int  # of the communicator
    nodes: int  # the number of its hosts, as NCCL counts nodes
    rules: Sequence[RangeRule]
    left_to_library: Sequence[RangeRule]  # ranges in which the library chooses by itself

    @property
    def name(self) -> str:
        """Return the library: NCCL or RCCL."""
        return self.library.name.upper() if self.library is not None else "NCCL"

    def notes(self) -> list[str]:
        """Return the summary: measured rules with their gains, and what the library keeps, with the reason."""
        counts, *reasons = notes_of(len(self.rules), self.name, [item.rule.reason for item in self.left_to_library])
        measured = [item for item in self.rules if item.rule.reason.startswith(MEASURED)]
        lines = [
            f"  {item.kind} {' to '.join(format_ends(item.start, item.stop))}: {item.rule}: {item.rule.reason}"
            for item in measured
        ]
        return [counts, *lines, *reasons]


def nccl_tuner(
    plans: Mapping[str, Plan], *, protocol: str = "auto", channels: int = 0, unproven: bool = False
) -> Files[str]:
    """Write one table for the tuner plugin: a line for each range with a gain that was measured, or is predicted beyond
    the error of the model of NCCL.

    In all other ranges NCCL chooses by itself.

    Parameters
    ----------
    protocol
        auto (NCCL's best for the algorithm), simple, ll or ll128; for rules that name none.
    channels
        0 (NCCL's choice) to 64; for rules that name none.
    unproven
        Also write lines without a predicted gain, with their predicted cost, to be measured.
    """
    table = choose_rules("nccl-tuner", plans, protocol, channels, unproven)
    if table.name == "RCCL" and not parse_yes(unproven, "option unproven"):
        raise Unsupported(
            "nccl-tuner: RCCL stops using the tuner table of AMD as soon as a plugin is loaded, which slows down all "
            "calls without a rule; export --to nccl-csv for its built-in tuner"
        )
    lines = [HEAD, table.title, COLUMNS + (" chunk" if any(item.rule.chunk for item in table.rules) else "")]
    for item in sorted(
        (*table.rules, *table.left_to_library), key=lambda item: (list(plans).index(item.kind), item.start)
    ):
        rule = item.rule
        if rule.algorithm:
            lines += [f"# {rule.reason}"] if rule.reason else []
            chunk = f" {rule.chunk}" if rule.chunk else ""
            settings = f"{rule.algorithm} {rule.protocol} {rule.channels}"
            lines.append(f"{item} {settings} {table.ranks} {table.nodes}{chunk}")
        else:
            lines.append(f"# {item}: left to NCCL: {rule.reason}")
    notes = table.notes()
    if table.name == "RCCL":
        notes.append("with a plugin RCCL ignores AMD's own tuner table: measure calls without a rule, too")
    return Files({FILE: "\n".join(lines) + "\n"}, notes)


def choose_rules(
    format_name: str, plans: Mapping[str, Plan], protocol: str, channels: int, unproven: bool, *,
    has_chunks: bool = True, has_auto: bool = True,
) -> RuleTable:  # fmt: skip
    """Choose a rule, or none, for each range of the plans. Raise NotFound if no range has one.

    `has_chunks`: the format can state chunk sizes; without one, a gain that was measured with it is not that of the
    rule, so the library chooses by itself. `has_auto`: it can leave the protocol to the library.
    """
    if protocol not in PROTOCOLS:
        raise Invalid(f"protocol: expected {', '.join(PROTOCOLS)}, got {quote(protocol)}")
    if isinstance(channels, bool) or not isinstance(channels, int) or not 0 <= channels <= MAX_CHANNELS:
        raise Invalid(f"channels: expected a whole number from 0 (NCCL's choice) to {MAX_CHANNELS}, got "
                      f"{quote(channels)}")  # fmt: skip
    is_unproven = parse_yes(unproven, "option unproven")
    machine, members = first_plan(plans).topology, first_plan(plans).collective.members
    for plan in plans.values():
        count_members(plan, format_name)
    library = _library_on(machine, members)
    nodes = count_nodes(machine, members)

    def choose_rule(entry: Entry, unproven: bool) -> TunerRule:
        """Return the rule of an entry, with the options' protocol and channels; none if the job or format lacks it."""
        rule = rule_of(entry, library, protocol, unproven, one_per_node=nodes == len(members))
        if rule.chunk and not has_chunks:
            return TunerRule(algorithm="", reason=NO_CHUNKS)
        return rule._replace(
            protocol=protocol if rule.protocol == "auto" else rule.protocol, channels=rule.channels or channels
        )

    def rules_of_plans(unproven: bool) -> list[RangeRule]:
        return [
            RangeRule(kind, span.start, span.stop, span.value)
            for kind, plan in plans.items()
            for span in merge_ranges(plan, partial(choose_rule, unproven=unproven))
            if span.value is not None  # every entry has a rule
        ]

    every_rule = rules_of_plans(is_unproven)
    rules = [item for item in every_rule if item.rule.algorithm]
    left_to_library = [item for item in every_rule if not item.rule.algorithm]
    reasons = dict.fromkeys(item.rule.reason for item in left_to_library)
    if not rules and list(reasons) == [NO_ALGORITHM]:
        raise Unsupported(
            f"{format_name}: NCCL has no algorithm for any plan of this table ({_in_words(plans)}); NCCL knows the "
            f"planners {', '.join(_BY_PLANNER)}, of each for some collectives"
        )
    if not rules:
        name = library.name.upper() if library is not None else "NCCL"
        unknown = (UNMEASURED, NO_CHUNKS, NEEDS_ONE_PER_NODE)
        is_unknown = any(reason in unknown or reason.startswith(NO_FIGURES) for reason in reasons)
        judgement = (
            f"no setting is known to beat {name}'s own choice" if is_unknown else f"{name}'s own choice is as good"
        )
        measurable = [] if is_unproven else [item.rule for item in rules_of_plans(unproven=True) if item.rule.algorithm]
        unpriced = [rule for rule in measurable if rule.reason.startswith(NO_FIGURES)]
        costs = ", each with what it costs by the model" if len(unpriced) < len(measurable) else ""
        needs_protocol = not has_auto and any(rule.protocol == "auto" for rule in unpriced)
        names = "options unproven=yes,protocol=simple write" if needs_protocol else "option unproven=yes writes"
        advice = f"; {names} lines to measure{costs}" if measurable else ""
        raise NotFound(f"{format_name}: {judgement}: nothing to write ({'; '.join(reasons)}){advice}")
    title = f"# for {' '.join(machine.name.split())[:100]}"
    return RuleTable(library, title, len(members), nodes, rules, left_to_library)


def _library_on(machine: Topology, members: Sequence[int]) -> LibraryModel | None:
    """Return the model of NCCL or RCCL among these ranks; None if it has no figures of the machine."""
    try:
        return library_of(machine, members)
    except (Invalid, Unsupported):
        return None


def rule_of(
    entry: Entry, library: LibraryModel | None, protocol: str, unproven: bool, one_per_node: bool = False
) -> TunerRule:
    """Return NCCL's algorithm as measured; else the one that does as this entry does, if it gains by NCCL's model.

    `library`: that model, None if it has no figures of the machine. `unproven`: also without a gain by the model.
    `one_per_node`: each node has one rank.
    """
    claim = library_claim(entry)
    if claim is not None and claim["name"] in ("NCCL", "RCCL"):
        return _measured_rule(entry)
    family, kind = _BY_PLANNER.get(planner_of(entry), ""), entry.schedule.collective.kind
    # `served_by` is LIBRARY where a measured table leaves the range to the library, as it was faster or (claim
    # "measured" false) was not measured there; it is the library's name where predictions leave it
    if entry.served_by == LIBRARY and entry.claims.get("measured") is False:
        return TunerRule(algorithm="", reason=UNMEASURED)
    if entry.served_by == LIBRARY or (entry.served_by and not unproven):
        return TunerRule(algorithm="", reason="our plan is not clearly faster")
    if not family or kind not in SUPPORTED[family]:
        return TunerRule(algorithm="", reason=NO_ALGORITHM)
    if family == "pat" and not one_per_node:
        return TunerRule(algorithm="", reason=NEEDS_ONE_PER_NODE)
    name = library.name.upper() if library is not None else "NCCL"
    gains = {} if library is None else _gains_by_size(library, kind, family, protocol, entry)
    if library is None or not gains:
        reason = f"{NO_FIGURES} of {name}'s {family} here"
    elif all(is_clearly_faster(gain, library.error_at(kind, nbytes)) for nbytes, gain in gains.items()):
        return TunerRule(family, reason="", protocol=protocol)
    else:
        least_gain_size = min(gains, key=lambda nbytes: gains[nbytes])
        slower = 1 / gains[least_gain_size] - 1
        if gains[least_gain_size] >= MIN_SPEEDUP:
            reason = f"by the model {family} gains less than the model's error over {name}'s own choice"
        else:
            reason = f"by the model {family} is no faster than {name}'s own choice"
        reason += f", up to {slower:.0%} slower ({format_size(least_gain_size)})" if slower >= MIN_SPEEDUP - 1 else ""
    return TunerRule(family, reason, protocol) if unproven else TunerRule(algorithm="", reason=reason)


def _measured_rule(entry: Entry) -> TunerRule:
    """Return the library's settings ("ring simple", channels, chunk) that were measured to beat its own choice."""
    algorithm, kind = algorithm_of(entry), entry.schedule.collective.kind
    if algorithm is None:
        return TunerRule(algorithm="", reason="its own choice was measured to be as good")
    name, _, protocol = algorithm.name.partition(" ")
    parameters = dict(algorithm.parameters)
    channels, chunk = parameters.pop("channels", 0), parameters.pop("chunk", 0)
    valid = name in ALGORITHMS and (protocol or "auto") in PROTOCOLS and not parameters
    if not valid or channels > MAX_CHANNELS or chunk > MAX_CHUNK:
        raise Invalid(
            f"claims.library: {quote(str(algorithm))}: expected one of {', '.join(ALGORITHMS)}, a protocol of "
            f"{', '.join(PROTOCOLS)}, channels up to {MAX_CHANNELS} and chunk up to {MAX_CHUNK} bytes"
        )
    if kind not in SUPPORTED["ring"]:  # the ring serves all collectives for which NCCL asks a tuner
        return TunerRule(algorithm="", reason=f"no tuner chooses for {kind}")
    rows = entry.claims.get("measurements")
    # by size: the library's time with these settings divided by that of its own choice
    ratios = (
        [row.get("library_over_default") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    )
    gains = sorted(1 / ratio for ratio in ratios if isinstance(ratio, int | float) and ratio > 0)
    spread = " to ".join(dict.fromkeys(f"{gain:.3g}x" for gain in (gains[0], gains[-1]))) if gains else ""
    return TunerRule(
        name, f"{MEASURED}: {spread} over the default" if gains else MEASURED, protocol or "auto", channels, chunk
    )


def _gains_by_size(library: LibraryModel, kind: str, family: str, protocol: str, entry: Entry) -> dict[int, float]:
    """Return the library's speedup by this algorithm over its own choice, by size; {} if unknown."""
    last = MAX_MODELLED if entry.stop is None else min(entry.stop - 1, MAX_MODELLED)
    # sizes that double, from the first of the range that the model describes, and the last one
    sizes = [max(entry.start, min(MIN_MODELLED, last))]
    while 2 * sizes[-1] < last:
        sizes.append(2 * sizes[-1])
    gains = {}
    for nbytes in dict.fromkeys([*sizes, max(last, sizes[0])]):
        try:
            default_choice, *alternatives = library.at(kind, nbytes)  # the library's own choice comes first
        except Unsupported:  # the model does not describe this machine
            return {}
        # also the default choice, if it is by this algorithm
        seconds_by_algorithm = [
            choice.seconds for choice in (default_choice, *alternatives)
            if choice.algorithm == MODELLED.get(family, family) and protocol in ("auto", choice.protocol)
        ]  # fmt: skip
        if not seconds_by_algorithm:
            return {}
        gains[nbytes] = default_choice.seconds / min(seconds_by_algorithm) if min(seconds_by_algorithm) else 1.0
    return gains


def _in_words(plans: Mapping[str, Plan]) -> str:
    phrases = dict.fromkeys(f"{kind} by {planner_of(entry)}" for kind, plan in plans.items() for entry in plan.entries)
    return ", ".join(list(phrases)[:8])
