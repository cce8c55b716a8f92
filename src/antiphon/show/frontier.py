"""Print the latency-bandwidth frontier: its points, the meaning of their proofs, and the impossible points.

A point (C, S, R) is a schedule with C chunks of each rank's input, S steps and R rounds; the frontier has those that no
other beats in both S and R/C. Each point has a certificate. Its label states what is proved: that no schedule is
better, that none is better among those with R <= S + k, or nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.core.ksync.certificate import BEST_FOUND, COMPOSED, FOR_K, OPTIMAL
from antiphon.select import Frontier, FrontierPoint
from antiphon.show.columns import paragraph, table
from antiphon.show.words import assumed_text, ratio
from antiphon.units import DECIMAL, format_bandwidth, format_seconds, format_size, plural

POINT_HEAD = ["C", "S", "R", "R/C", "gap", "best from", "proof", "found by"]
BEST_FROM_DIGITS = 3  # significant digits of the size from which a point is the best
# Label of a certificate -> what it means
_LABELS = {
    OPTIMAL: "no algorithm of as many steps has a smaller R/C",
    FOR_K: "no algorithm of S steps with R at most S + {k} has a smaller R/C",
    BEST_FOUND: "the best that was found; better ones may exist (sccl searches longer with --effort)",
}


def optimality_text(certificate: Mapping[str, Any]) -> str:
    """Return what a schedule's certificate proves, in words."""
    label = certificate["proof"]
    meaning = _LABELS[label].format(k=certificate["k"])
    return f"{label}: {f'of its halves: {meaning}' if certificate['about'] == COMPOSED else meaning}"


def frontier_text(frontier: Frontier) -> str:
    """Return a frontier as text: a table of its points, then what their labels mean and what is impossible."""
    name = f"{frontier.collective.kind} on {frontier.topology.name}"
    count = ("all " if len(frontier.points) > 1 and _is_whole(frontier) else "") + plural(len(frontier.points), "point")
    rows = point_rows(frontier)
    lines = [
        *paragraph(f"{name}: {count} of the latency-bandwidth frontier, by {frontier.planner}", first=""),
        *(paragraph(f"stopped early ({frontier.stopped}): the best so far") if frontier.stopped else []),
        "", *table(POINT_HEAD, rows), "",
        *paragraph(
            "C chunks of each rank's input, S steps, R rounds: time S * latency + R/C * (input / unit link of "
            f"{format_bandwidth(frontier.topology.unit)}); gap: R/C over that of the bound; best from: the size "
            f"above which no other point takes less, at {format_seconds(_step_latency(frontier))} per step (-: at no "
            "size); found by: engine of the search and its solver (docs/planners/sccl.md lists them). Every point is "
            "verified, every certificate rechecked.",
        ),
    ]  # fmt: skip
    if any(point.has_no_certificate for point in frontier.points):
        lines += paragraph("no certificate: only the bounds below are proved, nothing for that many steps", rest="    ")
    for label in dict.fromkeys(point.proof for point in frontier.points):
        k_values = sorted({p.k for p in frontier.points if p.proof == label and p.k is not None})
        # the least k: the label then holds for every point that has it
        lines += paragraph(f"{label}: {_LABELS[label].format(k=k_values[0] if k_values else 'k')}", rest="    ")
    if any(_is_of_halves(point) for point in frontier.points):
        lines += paragraph(
            "of halves: of reducescatter, then allgather; the proof is that of the allgather. An allreduce that is "
            "made otherwise may be better", rest="    ",
        )  # fmt: skip
    lines += _trusted_lines(frontier) + _bound_lines(frontier) + _unfinished_lines(frontier)
    for note in frontier.notes:
        lines += paragraph(f"note: {note}", rest="    ")
    return "\n".join(lines)


def _is_whole(frontier: Frontier) -> bool:
    """Return whether no point can be missing: each number of steps, up to the bound on time, has a proved optimum."""
    points, limits = frontier.points, frontier.limits  # `limits.inverse`: the lower bound on R/C of any schedule
    is_proved = all(point.proof == OPTIMAL and not point.trusted and not _is_of_halves(point) for point in points)
    steps = [*range(limits.latency_steps, limits.latency_steps + len(points))]
    return bool(points) and is_proved and [p.steps for p in points] == steps and points[-1].ratio == limits.inverse


def point_line(point: FrontierPoint) -> str:
    """Return one line for a point, printed when the search finds it; later ones may replace it."""
    label = "not proved optimal" if point.proof == BEST_FOUND else point.proof
    if _is_of_halves(point) and point.proof != BEST_FOUND:
        label += f" among allreduces of two halves of {plural(point.steps // 2, 'step')}"
    return f"found (C, S, R) = ({point.chunks}, {point.steps}, {point.rounds}), R/C = {point.ratio}: {label}"


def point_rows(frontier: Frontier) -> list[list[str]]:
    """Return the cells of the points."""
    starts = _best_from(frontier)
    return [_point_row(point, start) for point, start in zip(frontier.points, starts, strict=True)]


def _step_latency(frontier: Frontier) -> float:
    """Return the largest latency of a link, which a step takes at most."""
    return max(kind.latency for kind in frontier.topology.types)


def _best_from(frontier: Frontier) -> list[str]:
    """Return for each point the size from which it takes the least time, up to the next point's; "-": at no size.

    A point's time is that of its steps, plus the size times its seconds per byte: its R/C over the bound's is its time
    per byte over that of the bound. So the points that are best at some size form the lower hull of these lines.
    """
    limits, latency = frontier.limits, _step_latency(frontier)
    if not limits.bytes_per_second:  # nothing must move
        return ["-"] * len(frontier.points)
    seconds_per_byte = 1 / (limits.inverse * limits.bytes_per_second)  # of R/C = 1
    lines = [(point.steps * latency, float(point.ratio * seconds_per_byte)) for point in frontier.points]

    def crossing(i: int, j: int) -> float:
        """Return the size from which point j, of more steps and a smaller R/C than i, is no slower than i."""
        return (lines[j][0] - lines[i][0]) / (lines[i][1] - lines[j][1])

    texts = []
    for number in range(len(lines)):
        start = max((crossing(i, number) for i in range(number)), default=0.0)
        stop = min((crossing(number, j) for j in range(number + 1, len(lines))), default=math.inf)
        texts.append(format_size(int(float(f"{start:.{BEST_FROM_DIGITS}g}")), DECIMAL) if start < stop else "-")
    return texts


def _point_row(point: FrontierPoint, best_from: str) -> list[str]:
    """Return the cells of a point; * stands for claims that were not rechecked."""
    label = point.proof + (", of halves" if _is_of_halves(point) else "") + (" *" if point.trusted else "")
    label += ", no certificate" if point.has_no_certificate else ""
    numbers = [str(value) for value in (point.chunks, point.steps, point.rounds, point.ratio)]
    return [*numbers, ratio(point.claims["bandwidth_gap"]), best_from, label, point.engine or "-"]


def _is_of_halves(point: FrontierPoint) -> bool:
    """Return whether the point is an allreduce made of reducescatter and allgather, and the proof is about those.

    Such a point has no `least`, the lower bound for all algorithms of as many steps.
    """
    return point.about == COMPOSED and point.least is None


def _trusted_lines(frontier: Frontier) -> list[str]:
    texts = dict.fromkeys(text for point in frontier.points for text in point.trusted)
    return [line for text in texts for line in paragraph(f"* not rechecked: {text}", rest="    ")]


def _bound_lines(frontier: Frontier) -> list[str]:
    """Return what is impossible: the fewest steps, the least R/C for given steps, and the least R/C at all."""
    lines = [""]
    limits, name = frontier.limits, frontier.collective.kind
    if limits.latency_witness is not None and limits.latency_steps > 1:
        _, _, why = limits.latency_witness.describe(frontier.topology).partition(": ")  # after "distance: "
        lines += paragraph(f"no {name} has S below {limits.latency_steps}: {why}", rest="    ")
    for impossibility in frontier.impossible:
        # one about the collective itself is listed only if it goes beyond the bound for any number of steps
        if impossibility.collective != name or impossibility.ratio > limits.inverse:
            point_text = f"no {impossibility.collective} with S = {impossibility.steps}"
            lines.append(f"  {point_text} has R/C below {impossibility.ratio} (by a certificate)")
    if limits.witness is not None:
        description = limits.witness.describe(frontier.topology, frontier.collective.buffer_weight)
        _, _, why = description.partition(": ")  # after the kind of witness, such as "cut: "
        lines += paragraph(f"no {name} at all has R/C below {limits.inverse}: {why}", rest="    ")
    if frontier.assumes:
        lines += paragraph(f"all this assumes {assumed_text(frontier.assumes)}", rest="    ")
    return lines


def _unfinished_lines(frontier: Frontier) -> list[str]:
    """Return a note if the search has ended before any point met the bound."""
    if frontier.stopped is not None or any(point.ratio == frontier.limits.inverse for point in frontier.points):
        return []
    hint = "; option steps=N lets it take more steps" if frontier.planner.partition(":")[0] == "sccl" else ""
    return paragraph(f"no point meets the bound{hint}", rest="    ")


# The label of the schedule that a statement is about (select/proofs.py): "4KiB to 16KiB, (C, S, R) = (26, 7, 18): ..."
_SCHEDULE_LABEL = re.compile(r"(.*?\(C, S, R\) = \([\d, ]+\)): (.*)", re.DOTALL)


def proofs_text(proved: Sequence[str], trusted: Sequence[str], stated: Sequence[str]) -> list[str]:
    """Return what `verify --proof` rechecked, what it trusts a solver for, and what it only repeats from the file.

    Statements about one schedule stand under its label.
    """
    lines = []
    for title, texts in (
        ("rechecked without a solver:", proved),
        ("NOT rechecked, a solver reported it:", trusted),
        ("as stated in the file, not checked (docs/tuning.md explains the names):", stated),
    ):
        lines += paragraph(title, first="") if texts else []
        last_label = ""
        for text in texts:
            match = _SCHEDULE_LABEL.fullmatch(text)
            label, statement = match.groups() if match else ("", text)
            if label and label != last_label:
                lines += paragraph(f"{label}:")
            lines += paragraph(statement, first="    " if label else "  ", rest=" " * 6 if label else "    ")
            last_label = label
    if any(_SCHEDULE_LABEL.fullmatch(text) for text in (*proved, *trusted, *stated)):
        lines += paragraph("(C, S, R): chunks of each rank's input, steps, rounds", first="")
    return lines


# Where the sentence of a refusal is broken into lines: before the words that begin its clauses. The sentences stem from
# _explain.py and one_point.py in planners/synth: "no algorithm with S = 1 exists for ...: rank 2 is 2 steps away ...".
_CLAUSE_BREAKS = re.compile(
    r"(?<!with one of them): (?=as |counting |rank |each |for each |a proof )|; (?=with |in step |as )"
)


def refusal_text(why: str) -> str:
    """Return why a point does not exist, with a line break before each part of the sentence."""
    first, *rest = _CLAUSE_BREAKS.split(why)
    lines = paragraph(first, first="", rest="  ")
    for clause in rest:
        lines += paragraph(clause, first="  ", rest="    ")
    return "\n".join(lines)
