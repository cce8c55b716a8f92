"""Write rules for Open MPI's component coll/tuned, versions 4.1 and 5: its algorithm for each size.

The file is a tree of counts, each followed by that number of entries: collectives, sizes of communicators, sizes of
messages. For allreduce on 8 ranks, algorithm 4 from 64 KB on:

    1 # collectives                     then, for collective 2 (allreduce):
    3 # sizes of communicators          from 0 and from 9 processes on: one rule, 0 0 0 0 (its own choice)
    8 # processes                       2 rules: 0 0 0 0, and 65536 4 0 0
"""

from __future__ import annotations

from collections.abc import Mapping

from antiphon.core.plan import Plan
from antiphon.errors import Unsupported
from antiphon.formats.files import Files
from antiphon.formats.stock.measured import (
    NO_RULE_REASON,
    MeasuredAlgorithm,
    algorithm_of,
    library_of,
    required_parameter,
)
from antiphon.formats.stock.ranges import RuleRange, count_members, merge_ranges, notes_of

FILE = "openmpi-rules.conf"
# How coll/tuned numbers collectives. Its message size is our nbytes in all of them.
NUMBERS = {
    "allgather": 0, "allreduce": 2, "alltoall": 3, "broadcast": 7, "gather": 9, "reduce": 11, "reducescatter": 13,
    "scatter": 15,
}  # fmt: skip
OWN_CHOICE = "0 0 0 0"  # from 0 bytes on algorithm 0: Open MPI chooses; see `_rule_line`


def openmpi_rules(plans: Mapping[str, Plan]) -> Files[str]:
    """Write one file of Open MPI rules for all plans.

    They apply to communicators of exactly as many processes as the machine has ranks, and to the measured sizes; all
    other rules are algorithm 0, by which Open MPI chooses itself. A reducescatter is MPI_Reduce_scatter_block, because
    that was measured.
    """
    claim = library_of(plans, "Open MPI")
    lines: list[str] = []
    collectives_written, rules_written, left_to_library = 0, 0, 0
    for kind, plan in plans.items():
        count = count_members(plan, "openmpi-rules")
        if kind not in NUMBERS:
            raise Unsupported(f"openmpi-rules: Open MPI has no {kind}")
        size_ranges = merge_ranges(plan, algorithm_of)
        ranges_left = sum(size_range.value is None for size_range in size_ranges)
        left_to_library += ranges_left
        if ranges_left == len(size_ranges):
            continue
        rules_written += len(size_ranges) - ranges_left
        collectives_written += 1
        rules = [_rule_line(size_range) for size_range in size_ranges]
        lines += [f"{NUMBERS[kind]} # {kind}", "3 # sizes of communicators"]
        lines += ["0 # from no process on: its own choice", "1", OWN_CHOICE]
        lines += [f"{count} # processes", str(len(rules)), *rules]
        lines += [f"{count + 1} # and more: its own choice", "1", OWN_CHOICE]
    head = f"{collectives_written} # collectives, by what was measured on Open MPI {claim['version']}"
    return Files(
        {FILE: "\n".join([head, *lines]) + "\n"},
        notes_of(rules_written, "Open MPI", [NO_RULE_REASON] * left_to_library),
    )


def _rule_line(size_range: RuleRange[MeasuredAlgorithm]) -> str:
    """Return a line: first bytes of the range, algorithm, fan-out, bytes of a segment (0: the algorithm's default)."""
    if size_range.value is None:
        return f"{size_range.start} 0 0 0 # its own choice"
    algorithm = size_range.value
    numbers = " ".join(str(required_parameter(algorithm, key)) for key in ("number", "fan", "segment"))
    return f"{size_range.start} {numbers} # {algorithm.name}"
