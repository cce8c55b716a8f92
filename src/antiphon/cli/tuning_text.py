"""The result of tuning as text: the verdict, a table and notes; with --explain how the figures came about.

Fields of a `Range` used here:

    at          the size to which its figures (seconds, gap, speedup) belong
    reference   the library that is compared with, such as "nccl"
    over        what that library would choose at this size, such as "ring ll"; "": it has no figures here
    served_by   the library that should serve these sizes, as ours is not faster by more than the model's error; or ""
    without     where the candidate needs switches that multicast or reduce: the alternatives without them, or None

Status of a `Candidate`: ok; refused (the planner does not apply); failed (an error); timed out; skipped (not tried).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from antiphon.core.topology import Topology
from antiphon.cost.basis import BORROWED, CALLS, NOT_CALIBRATED
from antiphon.cost.nccl.accuracy import errors_text
from antiphon.cost.nccl.choice import AT_ONCE
from antiphon.errors import list_first
from antiphon.select import Range, Tuning, Tunings, format_switch_uses
from antiphon.select.tuning import FailureTuning
from antiphon.select.verdict import is_even
from antiphon.show import words
from antiphon.show.columns import dropped_text, fitted_rows, paragraph, table, time_column, under_names
from antiphon.show.ranges import group_ranges, range_cells, row_ends
from antiphon.units import format_size

MAX_OPTIONS = 3  # candidates with the same reason that are listed
MAX_SETTINGS = 6  # settings of a sweep that are listed
LEAST_USEFUL = ("at", "gap", "ranks", "speedup")  # columns that are dropped on a narrow terminal, in this order
CUT_OFF = "impossible: cuts off a rank"  # instead of the slowdown after a failure
NO_GAIN = 1.0005  # a speedup up to this is 1.00 as it is printed, and so has no size at which it is largest
EXPLAIN_HINT, SAVE_HINT = "--explain shows more", "-o plan.json writes the plan"
OPTIONS_HINT = "antiphon list planners NAME explains options"


def tuning_text(tuning: Tuning, explain: bool = False, *, origin: str = "", is_saved: bool = True) -> str:
    """Return the verdict, the ranges, how to read them, and what was lost.

    `origin`: where the plans come from, if `tuning` does not have all candidates. `is_saved`: whether a file has them.
    """
    lines = _verdict_lines(tuning)
    if tuning.ranges:
        lines += ["", *_ranges_table(tuning), ""]
        lines += [line for note in _note_texts([tuning], explain, origin, is_saved) for line in paragraph(note)]
        losses = [line for text in _loss_texts(tuning) for line in paragraph(text, rest="    ")]
        lines += [*([""] if losses else []), *losses, *_gains_lines(tuning), *_failure_lines(tuning)]
        lines += _counts_lines(tuning)
    else:
        lines += ["", *_refusals(tuning), *_unfinished(tuning)]
    if explain:
        lines += ["", *_explanation(tuning)]
    return "\n".join(lines)


def _counts_lines(tuning: Tuning) -> list[str]:
    """Return the gaps that the plan for the average counts has at measured counts, and its greatest loads at any."""
    loss = tuning.counts
    if loss is None:
        return []
    source = "one matrix" if loss.matrices == 1 else f"the average of {loss.matrices} matrices"
    lines = [f"Planned for {source} of counts, right for any."]
    if loss.gaps:
        sample = "" if len(loss.gaps) == loss.matrices else f" (of {len(loss.gaps)})"
        gaps = f"{median(loss.gaps):.2f} for the median matrix, {max(loss.gaps):.2f} for the worst{sample}"
        lines.append(f"Time / lower bound at {format_size(loss.nbytes)}: {gaps}.")
    greatest = math.ceil(loss.any_counts * 100 - 1e-6) / 100  # rounded up, but for rounding errors
    lines.append(f"Loads at any counts: at most {greatest:.2f} times those of the best routes.")
    return ["", *(line for text in lines for line in paragraph(text))]


def _failure_lines(tuning: Tuning) -> list[str]:
    """Return a table of single failures; those that leave isomorphic machines share a row.

    Its figures are slowdowns: the time at the greatest size over that of the intact machine.
    """
    if not tuning.failures:
        return []
    count, kinds = sum(len(failure.names) for failure in tuning.failures), len(tuning.failures)
    share = f"of {kinds} kinds (a plan serves all of a kind)" if kinds > 1 else "all alike"
    rows = []
    for failure in tuning.failures:
        names = list_first((_failed_name(tuning.topology, name) for name in failure.names), limit=3)
        rows.append([names, str(len(failure.names)), *(_failure_cell(tuning, failure, kind) for kind in tuning.plans)])
    lines = ["", *paragraph(f"{words.plural(count, 'single failure')}, {share}:")]
    lines += ["", *table(["failed", "failures", *tuning.plans], rows)]
    if any(cell.endswith("x") for row in rows for cell in row[2:]):
        lines += paragraph(f"x: time at {format_size(tuning.sizes[-1])} over that of the intact machine")
    has_wires = any(kind.bandwidth > tuning.topology.unit for kind in tuning.topology.types)
    # the failed link is named as 0-3; one of its unit links would be 0-3:1
    if has_wires and any(CUT_OFF in row and "-" in row[0] and ":" not in row[0] for row in rows):
        lines += paragraph("a link fails both ways, with all its unit links; --failures wires: one at a time")
    return lines


def _failure_cell(tuning: Tuning, failure: FailureTuning, kind: str) -> str:
    """Return the slowdown of a collective after a failure, or why there is no plan."""
    degraded, intact = (_last_seconds(each, kind) for each in (failure.tuning, tuning))
    if degraded and intact:
        return f"{degraded / intact:.2f}x"
    if failure.names[0] in map(str, tuning.plans[kind].collective.roots):
        return "impossible: its root failed"
    return CUT_OFF if failure.tuning is None else "no plan"


def _failed_name(topology: Topology, name: str) -> str:
    """Return what failed; a link to a switch ("0-8") by the places of its ends ("gpu0-nvswitch")."""
    link = re.fullmatch(r"(\d+)-(\d+)(:\d+)?", name)
    if link is None or max(int(link[1]), int(link[2])) < topology.ranks:
        return name
    last_words = [place.rpartition("/")[2] for place in topology.places]
    names = last_words if len(set(last_words)) == topology.nodes else topology.places
    return f"{names[int(link[1])]}-{names[int(link[2])]}{link[3] or ''}"


def _last_seconds(tuning: Tuning | None, kind: str) -> float | None:
    """Return the time of the best plan at the greatest size."""
    times = [r.seconds for r in tuning.ranges if r.collective == kind] if tuning is not None else []
    return times[-1] if times else None


def tunings_text(family: Tunings, explain: bool = False) -> str:
    """Return one verdict for each machine, and one table over all of them."""
    tunings = family.tunings
    subject = f"{family.topology} by {family.varied}"
    lines = paragraph(subject + ("" if family.complete else " (interrupted: not all was tried)"), first="")
    values_of: dict[str, list[str]] = {}  # by verdict
    for value, tuning in tunings.items():
        for text in _verdict_texts(tuning):
            values_of.setdefault(text, []).append(str(value))
    for value, why in family.refused.items():
        values_of.setdefault(f"refused: {why}", []).append(str(value))
    for text, values in values_of.items():
        lines += paragraph(f"{family.varied}={','.join(values)}: {text}", first="  ", rest="    ")
    planned = {value: tuning for value, tuning in tunings.items() if tuning.ranges}
    if planned:
        lines += ["", *_family_table(family.varied, planned), ""]
        lines += [line for note in _note_texts([*planned.values()], explain) for line in paragraph(note)]
    for value, tuning in tunings.items():
        name = f"{family.varied}={value}"
        lines += ["", f"{name}:", *_refusals(tuning), *_unfinished(tuning)] if not tuning.ranges else []
        lines += ["", f"{name}:", *_explanation(tuning)] if explain and tuning.ranges else []
    return "\n".join(lines)


# ---- verdict and notes ----


def _verdict_lines(tuning: Tuning) -> list[str]:
    """Return the verdict with machine and sizes; of several collectives a line for each verdict."""
    span = " to ".join(dict.fromkeys(format_size(size) for size in tuning.span))
    interruption = "" if tuning.complete else " (interrupted: not all candidates were tried)"
    subject = f" on {tuning.topology.name}, {span}{interruption}"
    if len(tuning.collectives) == 1:
        kind = tuning.collectives[0]
        plan = tuning.plans.get(kind)
        name = kind if plan is None else plan.collective.title  # of groups at the same time: what each does
        return paragraph(f"{name}{subject}: {tuning.verdicts.get(kind, 'nothing could be planned')}", first="")
    texts = _verdict_texts(tuning)
    title = f"{len(tuning.collectives)} collectives{subject}:"
    return [*paragraph(title, first=""), *(line for text in texts for line in paragraph(text, rest="    "))]


def _verdict_texts(tuning: Tuning) -> list[str]:
    """Return the verdict for each collective; those with the same verdict share a line."""
    kinds_of: dict[str, list[str]] = {}
    for kind in tuning.collectives:
        text = tuning.verdicts.get(kind, "nothing could be planned")
        kinds_of.setdefault(text, []).append(kind)
    return [f"{', '.join(kinds)}: {text}" for text, kinds in kinds_of.items()]


def _legend(tunings: Sequence[Tuning], dropped: Sequence[str], dropped_note: str) -> list[str]:
    """Return what the columns of the ranges mean, in one line, without `dropped`: those that did not fit the terminal;
    then the note on these.
    """
    # in the order of the columns; the text for speedup follows below
    ranges = [r for tuning in tunings for r in tuning.ranges]
    # the first sentence states the gaps and speedups of all sizes; do they go beyond those of the rows?
    covers_more = any((r.largest_gap, r.largest_speedup) != (r.gap, r.speedup) for r in ranges if not r.served_by)
    inner_sizes = [size for tuning in tunings for size in tuning.sizes[1:-1]]
    are_powers = bool(inner_sizes) and not any(n & (n - 1) for n in inner_sizes)
    evaluated = ["evaluated: powers of two and both ends"] if are_powers else []
    evaluated += ["the first sentence covers all"] if covers_more else []
    sizes = f" ({'; '.join(evaluated)})" if evaluated else ""
    texts = {"from, to": "", "#N": "", "at": f"size that the figures are for, the row's largest evaluated{sizes}"}
    shares_ends = any(before.collective == r.collective and before.stop == r.start for before, r in pairwise(ranges))
    is_single = any(r.stop == r.start + 1 and not r.served_by for r in ranges)
    end_notes = {
        "a size in two rows belongs to the second": shares_ends,
        "a row of one size is for it alone": is_single,
    }
    texts["from, to"] = ", ".join(note for note, applies in end_notes.items() if applies)
    if any(r.candidate.variant and not r.candidate.options and not r.served_by for r in ranges):
        texts["#N"] = "the planner's Nth schedule"
    has_own_rates = any(tuning.profile is not None or tuning.model.startswith(CALLS) for tuning in tunings)
    texts["gap"] = f"time / lower bound by the same model{' (its link rates, not nominal)' if has_own_rates else ''}"
    library = next((r.reference.upper() for r in ranges if r.over), "")
    baselines = [f"{library}{_error_note(tunings) if any(map(is_even, ranges)) else ''}"] if library else []
    for tuning in tunings:
        if any(r.speedup is not None and not r.over for r in tuning.ranges):
            baselines += [name for group in tuning.baselines.values() for name in group]
    texts["speedup"] = f"over {' or '.join(dict.fromkeys(baselines))}" if baselines else ""
    legend = [f"{name}: {text}" for name, text in texts.items() if text and name not in dropped]
    return paragraph("; ".join([*legend, *([dropped_note] if dropped_note else [])]))


def _error_note(tunings: Sequence[Tuning]) -> str:
    """Return what ~1 means, with the errors of the library's model for these collectives and sizes."""
    errors = errors_text(
        (kind, size, tuning.library.error_at(kind, size))
        for tuning in tunings if tuning.library is not None for kind in tuning.plans for size in tuning.sizes
    )  # fmt: skip
    return f" (~1: differs by less than the model's error{errors and f', {errors}'})"


def _note_texts(tunings: Sequence[Tuning], explain: bool, origin: str = "", is_saved: bool = True) -> list[str]:
    """Return at most three lines: where the times are from, the use of switches, and what was tried."""
    notes = [f"Predicted by {'; or '.join(dict.fromkeys(map(_basis_text, tunings)))}."]
    switch_ranges = [r for tuning in tunings for r in tuning.ranges if r.without is not None and not r.served_by]
    if switch_ranges:
        kinds = ", ".join(dict.fromkeys(r.collective for r in switch_ranges))
        kinds += f" by {', '.join(dict.fromkeys(r.candidate.planner for r in switch_ranges))}"
        uses = format_switch_uses(dict.fromkeys(use for r in switch_ranges for use in r.candidate.uses))
        notes.append(f"Plans for {kinds} use {uses}; --explain: what a runtime without it can do.")
    if origin:
        return [*notes, f"Plans {origin}."]
    count = sum(c.status == "ok" for tuning in tunings for c in tuning.candidates)
    outcomes = [f"{words.plural(count, 'schedule')}, all verified" if count != 1 else "1 schedule, verified"]
    failed_planners = list(dict.fromkeys(c.planner for t in tunings for c in t.candidates if c.status == "failed"))
    outcomes += [f"failed: {', '.join(failed_planners)}"] if failed_planners else []
    if any(tuning.ended_early or tuning.untried for tuning in tunings):
        outcomes.append(words.stopped_text(tunings))
    has_options = any(r.candidate.options and not r.served_by for tuning in tunings for r in tuning.ranges)
    hints = {OPTIONS_HINT: has_options, EXPLAIN_HINT: not explain, SAVE_HINT: not is_saved}
    return [*notes, f"{'; '.join([*outcomes, *(hint for hint, applies in hints.items() if applies)])}."]


def _basis_text(tuning: Tuning) -> str:
    """Return the model of the times and the hardware that calibrates it."""
    model = words.model_text(tuning)
    if tuning.library is not None:
        costs = tuning.library.costs
        hardware = [figures.name.upper() for figures in (costs.gpu, costs.network) if figures and figures.calibrated_by]
        if hardware:
            times = f"{tuning.library.name.upper()}'s times on {' and '.join(hardware)}"
            limits = f" ({'; '.join(remarks)})" if (remarks := _basis_remarks(tuning)) else ""
            return f"{model}, calibrated by {times}, not by those of Antiphon's kernels{limits}"
    if all(r.rests_on == NOT_CALIBRATED for r in tuning.ranges):
        return f"{model} from nominal link speeds; not calibrated by measurements"
    return model


def _basis_remarks(tuning: Tuning) -> list[str]:
    """Return what is not calibrated by times of its own, with its collectives if they are not all of the tuning."""
    kinds_of: dict[str, list[str]] = {}  # by remark
    for r in tuning.ranges:
        for remark in r.rests_on.split("; ")[1:]:  # the first of the bases names the hardware
            kinds = kinds_of.setdefault(remark.removeprefix(f"{r.collective} "), [])
            kinds += [r.collective] if r.collective not in kinds else []
    return [
        (f"{', '.join(kinds)}{' ' if BORROWED in remark else ': '}" if len(kinds) < len(tuning.plans) else "")
        + remark.replace(f"{AT_ONCE} {NOT_CALIBRATED}", f"the cost of {AT_ONCE} is assumed")
        for remark, kinds in kinds_of.items()
    ]


def _loss_texts(tuning: Tuning) -> list[str]:
    """Return which links a degraded machine has lost, and what each collective loses by that."""
    damage_text = tuning.damage.describe() if tuning.damage is not None else ""
    return [*([damage_text] if damage_text else []), *map(words.loss_text, tuning.losses)]


# ---- tables ----


def _ranges_table(tuning: Tuning) -> list[str]:
    """Return one table, in which each of several collectives has its name above its rows."""
    kinds = [kind for kind in tuning.collectives if kind in tuning.plans]
    groups = {kind: group_ranges([r for r in tuning.ranges if r.collective == kind]) for kind in kinds}
    head, cells = range_cells([group for kind_groups in groups.values() for group in kind_groups])
    (head_lines, *row_lines), dropped = fitted_rows(head, cells, LEAST_USEFUL)
    return [
        *head_lines,
        *under_names(groups, row_lines),
        *_legend([tuning], dropped, dropped_text(head, cells, dropped)),
    ]


def _family_table(varied: str, tunings: dict[Any, Tuning]) -> list[str]:
    """Return a row per collective, machine and range; only the first row of a machine names it."""
    groups: dict[str, list[Sequence[Range]]] = {}
    first_cells: list[list[str]] = []  # per row: the machine and its number of ranks
    for kind in dict.fromkeys(kind for tuning in tunings.values() for kind in tuning.collectives):
        for value, tuning in tunings.items():
            machine_groups = group_ranges([r for r in tuning.ranges if r.collective == kind])
            groups.setdefault(kind, []).extend(machine_groups)
            name = [str(value), str(tuning.topology.ranks)]
            # ".": as in the row above
            first_cells += [name if i == 0 else [".", "."] for i in range(len(machine_groups))]
    head, cells = range_cells([group for kind_groups in groups.values() for group in kind_groups])
    rows = [[*first, *row] for first, row in zip(first_cells, cells, strict=True)]
    head = [varied, "ranks", *head]
    (head_lines, *row_lines), dropped = fitted_rows(head, rows, LEAST_USEFUL)
    legend = _legend([*tunings.values()], dropped, dropped_text(head, rows, dropped))
    return [*head_lines, *under_names(groups, row_lines), *legend]


def _gains_lines(tuning: Tuning) -> list[str]:
    """Return what choosing values of swept options gains: a table, and for one collective the best settings by size."""
    if not tuning.gains:
        return []
    has_several_kinds = len(tuning.collectives) > 1
    rows = []
    for gain in tuning.gains:
        planner = f"{gain.planner} for {gain.collective}" if has_several_kinds else gain.planner
        at = format_size(gain.at) if gain.most > NO_GAIN else "-"
        rows.append([planner, words.options_text(dict(gain.first)), f"{gain.mean:.3g}x", f"{gain.most:.3g}x", at])
    head = ["planner", "over", "mean gain", "largest gain", "at"]
    lines = ["", f"  Gain from choosing {', '.join(tuning.sweep)} for each size:", "", *table(head, rows)]
    lines += paragraph("over: the first value of the sweep; mean: geometric, over the sizes")
    for gain in tuning.gains if not has_several_kinds else ():
        settings = [f"{words.options_text(dict(best))} from {format_size(start)}" for start, _stop, best in gain.best]
        more_text = f", and {len(settings) - MAX_SETTINGS} more" if len(settings) > MAX_SETTINGS else ""
        lines += paragraph(f"{gain.planner}: {'; '.join(settings[:MAX_SETTINGS])}{more_text}", rest="    ")
    return lines


# ---- with --explain ----


def _explanation(tuning: Tuning) -> list[str]:
    """Return how the figures came about, the best of ours in every range, and which candidates are missing and why."""
    lines = [*_best_of_ours(tuning), ""]
    notes = [f"time, gap, speedup: {words.FIGURES_NOTE}", f"gap: time over the bound, which {words.bound_text(tuning)}"]
    if any(tuning.baselines.values()):
        notes.append(f"speedup: over {words.baseline_text(tuning, {r.collective for r in tuning.ranges})}")
    losses = _loss_texts(tuning)
    notes += [*words.use_lines(tuning), *(note for note in words.all_notes(tuning) if note not in losses)]
    lines += [line for note in notes for line in paragraph(note, rest="    ")]
    return [*lines, *_unfinished(tuning), *_refusals(tuning), *paragraph(words.stopped_text([tuning]))]


def _best_of_ours(tuning: Tuning) -> list[str]:
    """Return our best plan of every range, also of those left to a library, beside the choice of the library."""
    has_library = any(r.over for r in tuning.ranges)
    groups: dict[str, list[Range]] = {}
    for r in tuning.ranges:
        groups.setdefault(r.collective, []).append(r)
    ranges = [r for group in groups.values() for r in group]
    unit, time_text = time_column(r.seconds for r in ranges)
    head = ["from", "to", "Antiphon's best", "at", f"time {unit}"]
    head += [*(["library's choice", "speedup"] if has_library else []), "calibrated by"]
    rows = []
    for r in ranges:
        choice = [r.over or "-", words.ratio(r.speedup)] if has_library else []
        name, basis = words.candidate_text(r.candidate), r.rests_on.removeprefix("calibrated by ")
        rows.append([*row_ends(r.start, r.stop), name, format_size(r.at), time_text(r.seconds), *choice, basis])
    (head_lines, *row_lines), _ = fitted_rows(head, rows, ("library's choice", "speedup", "at"))
    return [*head_lines, *under_names(groups, row_lines)]


def _unfinished(tuning: Tuning) -> list[str]:
    """Return candidates that failed or timed out, and why."""
    lines = []
    for status in ("failed", "timed out"):
        options_by_end: dict[tuple[str, str], list[str]] = {}
        for c in tuning.candidates:
            if c.status == status:
                end = (f"{c.collective} by {c.planner}", c.reason)
                options_by_end.setdefault(end, []).append(words.options_text(c.options))
        for (subject, reason), options in options_by_end.items():
            more_text = f" and {len(options) - MAX_OPTIONS} more" if len(options) > MAX_OPTIONS else ""
            options_text = " | ".join(options[:MAX_OPTIONS]) + more_text
            lines += paragraph(f"{status}: {f'{subject} {options_text}'.strip()}: {reason}", rest="    ")
    return lines


def _refusals(tuning: Tuning) -> list[str]:
    """Return the planners that are not applicable, those with the same reason together."""
    counts: dict[str, int] = {}  # candidates by planner
    texts_of: dict[str, list[str]] = {}  # reasons by planner, one for each refused candidate
    for c in tuning.candidates:
        counts[c.planner] = counts.get(c.planner, 0) + 1
        # which collectives a planner supports is in `antiphon list planners`, not worth a line here
        if c.status == "refused" and not c.reason.startswith("it does not plan"):
            texts_of.setdefault(c.planner, []).append(c.reason)
    reasons = {planner: texts[0] for planner, texts in texts_of.items()}
    planners_by_reason: dict[str, list[str]] = {}
    # without any plan, only the reasons that no planner can get around
    for planner, reason in (reasons if tuning.plans else words.decisive_reasons(reasons)).items():
        share = f" ({len(texts_of[planner])} of {counts[planner]})" if len(texts_of[planner]) < counts[planner] else ""
        planners_by_reason.setdefault(_strip_planner(reason, planner), []).append(planner + share)
    skipped: dict[str, dict[str, str]] = {}  # by collective the reason by planner
    for c in tuning.candidates:
        if c.status == "skipped":
            skipped.setdefault(c.collective, {})[c.planner] = c.reason
    lines = []
    for kind, why in skipped.items():
        lines += paragraph(f"skipped for {kind}: {', '.join(why)}: {next(iter(why.values()))}", rest="    ")
    for reason, planners in planners_by_reason.items():
        lines += paragraph(f"not applicable: {', '.join(planners)}: {reason}", rest="    ")
    return lines


def _strip_planner(reason: str, planner: str) -> str:
    """Return a reason without the planner that it begins with, so that planners with the same reason share a line."""
    return reason.removeprefix(f"planner {planner}").removeprefix(":").strip()
