"""The result of tuning as text for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from antiphon.cost.basis import in_short
from antiphon.cost.nccl.library import how_near
from antiphon.select import Range, Tuning, Tunings
from antiphon.show import words
from antiphon.show.columns import natural_width, paragraph, table_rows, under_names, width
from antiphon.show.text import table
from antiphon.units import format_seconds, format_size

CALIBRATED = "calibrated"  # the column that says it in short
NARROW = 72  # columns of a terminal: below, the size `at` is left out
MAX_OPTIONS = 3  # with the same end, listed
MAX_SETTINGS = 6  # the best by size, listed


def tuning_text(tuning: Tuning) -> str:
    """The ranges, how to read them, what was lost, and which candidates failed and why."""
    low, high = (format_size(size) for size in tuning.span)
    ok = sum(c.status == "ok" for c in tuning.candidates)
    ranges, marks = _ranges(tuning)
    lines = [
        *paragraph(
            f"{_kinds_text(tuning.collectives)} on {tuning.topology.name}, {low} to {high}, "
            f"by {words.model_text(tuning)}: "
            + (f"{ok} schedules, all verified" if ok else "no schedule")
            + ("" if tuning.complete else " (interrupted: not all candidates were tried)"),
            "",
        ),
        "",
        *(ranges if tuning.ranges else ["  nothing could be planned"]),
        "",
    ]
    if tuning.ranges:
        lines += [*paragraph(f"time, gap, speedup: {words.WHEN}", rest="    "), *marks]
        lines += paragraph(f"gap: time over the bound, which {words.bound_text(tuning)}", rest="    ")
        if any(tuning.baselines.values()):
            lines += paragraph(f"speedup: over what NCCL would do: {_baselines(tuning)}", rest="    ")
        lines += [line for text in words.use_lines(tuning) for line in paragraph(text, rest="    ")]
        lines += [line for note in words.all_notes(tuning) for line in paragraph(note, rest="    ")]
    missing = [kind for kind in tuning.collectives if kind not in tuning.plans]
    if missing and tuning.plans:
        lines += paragraph(f"no planner could plan {', '.join(missing)}", rest="    ")
    for loss in tuning.losses:
        lines += paragraph(words.loss_text(loss), rest="    ")
    return "\n".join([*lines, *_unplanned(tuning), *_gains(tuning)])


def _kinds_text(kinds: Sequence[str]) -> str:
    return kinds[0] if len(kinds) == 1 else f"{len(kinds)} collectives"


def last_line(tunings: Sequence[Tuning]) -> list[str]:
    """How many candidates were stopped, in one line, however wide the terminal."""
    return [f"  {words.stopped_text(tunings)}"]


def tunings_text(family: Tunings) -> str:
    """One table over all machines; below it the notes of each."""
    tunings = family.tunings
    first = next(iter(tunings.values()), None)
    span = ""
    if first is not None:
        span = f", {format_size(first.span[0])} to {format_size(first.span[1])}, by {words.model_text(first)}"
    kinds = first.collectives if first is not None else ()
    ok = sum(c.status == "ok" for tuning in tunings.values() for c in tuning.candidates)
    stopped = "" if family.complete else " (interrupted: not all was tried)"
    title = f"{_kinds_text(kinds)} on {family.topology} by {family.varied}{span}: {ok} schedules, all verified{stopped}"
    rows = {kind: _family_rows(family, kind) for kind in kinds}
    head = [family.varied, "ranks", *_head(_has_library(tunings.values()))]
    (top, *body), marks = _fitting(head, [row for of_kind in rows.values() for row in of_kind])
    lines = [*paragraph(title, ""), "", *top, *under_names(rows, body)]
    lines += ["", *paragraph(f"time, gap, speedup: {words.WHEN}", rest="    "), *marks]
    if first is not None:
        lines += paragraph(f"gap: time over the bound, which {words.bound_text(first)}", rest="    ")
    values_of: dict[str, list[str]] = {}  # of a note
    for value, tuning in tunings.items():
        names = _baselines(tuning) if any(tuning.baselines.values()) else ""
        notes = [f"speedup: over what NCCL would do: {names}"] if names else []
        notes += words.use_lines(tuning) + words.all_notes(tuning)
        notes += [] if tuning.plans else ["nothing could be planned"]
        for note in notes:
            values_of.setdefault(note, []).append(str(value))
    for value, why in family.refused.items():
        values_of.setdefault(f"refused: {why}", []).append(str(value))
    for note, values in values_of.items():
        where = "" if len(values) == len(tunings) else f"{family.varied}={','.join(values)}: "
        lines += paragraph(where + note, rest="    ")
    return "\n".join(lines)


def _family_rows(family: Tunings, kind: str) -> list[list[str]]:
    """A row per machine and range; only the first row of a machine names it."""
    rows, over = [], _has_library(family.tunings.values())
    for value, tuning in family.tunings.items():
        ranges = [_row(r, over) for r in tuning.ranges if r.collective == kind] or [["-"] * len(_head(over))]
        ranks = str(tuning.topology.ranks)
        rows += [[*([str(value), ranks] if i == 0 else [".", "."]), *row] for i, row in enumerate(ranges)]
    return rows


def _gains(tuning: Tuning) -> list[str]:
    """What choosing values of swept options is worth: a table, and for one collective the best settings by size."""
    if not tuning.gains:
        return []
    several = len(tuning.collectives) > 1
    rows = []
    for gain in tuning.gains:
        planner = f"{gain.planner} for {gain.collective}" if several else gain.planner
        at = format_size(gain.at) if gain.most > 1.0005 else "-"
        rests = in_short(gain.rests_on)
        rows.append(
            [planner, words.options_text(dict(gain.first)), f"{gain.mean:.3g}x", f"{gain.most:.3g}x", at, rests]
        )
    head = ["choosing", "over", "on average", "at most", "at", CALIBRATED]
    lines = ["", f"  what choosing {', '.join(tuning.sweep)} by size is worth:", "", *table(head, rows)]
    lines += [""] if not several else []
    for gain in tuning.gains if not several else ():
        best = [f"{words.options_text(dict(setting))} from {format_size(start)}" for start, _, setting in gain.best]
        unlisted = f", and {len(best) - MAX_SETTINGS} more" if len(best) > MAX_SETTINGS else ""
        lines += paragraph(f"{gain.planner}: {'; '.join(best[:MAX_SETTINGS])}{unlisted}", rest="    ")
    return lines


def _ranges(tuning: Tuning) -> tuple[list[str], list[str]]:
    """One table, in which each of several collectives has its name above its rows, and what its marks mean."""
    kinds = [kind for kind in tuning.collectives if kind in tuning.plans]
    over = _has_library([tuning])
    rows = {kind: [_row(r, over) for r in tuning.ranges if r.collective == kind] for kind in kinds}
    (top, *body), marks = _fitting(_head(over), [row for of_kind in rows.values() for row in of_kind])
    return [*top, *under_names(rows, body)], marks


def _fitting(head: list[str], rows: list[list[str]]) -> tuple[list[list[str]], list[str]]:
    """The table, its head and every row as lines, and what its marks mean.

    Its last columns are what calibrates a row, and what its speedup is over. On a narrow terminal a mark replaces them,
    beside a short form of the first, or alone where that is too wide, too.
    """
    if natural_width(head, rows) <= width():
        return table_rows(head, rows), []
    columns = head.index("speedup") + 1
    bases = [_basis_text(row[columns:]) for row in rows]
    distinct = list(dict.fromkeys(bases))
    marks = ["*"] if len(distinct) == 1 else [_letters(number) for number in range(len(distinct))]
    mark = dict(zip(distinct, marks, strict=True))
    marked = [[*row[:columns], f"{in_short(row[-1])} {mark[text]}"] for row, text in zip(rows, bases, strict=True)]
    lines = [line for text in distinct for line in paragraph(f"{mark[text]} {text}", rest="    ")]
    if natural_width([*head[:columns], CALIBRATED], marked) > width():
        narrow = [[*head[:columns], ""], *([*row[:columns], mark[text]] for row, text in zip(rows, bases, strict=True))]
        if width() < NARROW:
            at = head.index("at")
            narrow = [[*row[:at], *row[at + 1 :]] for row in narrow]
            lines += paragraph("at: on a wider terminal, or by --json")
        return table_rows(narrow[0], narrow[1:]), lines
    return table_rows([*head[:columns], CALIBRATED], marked), lines


def _basis_text(cells: list[str]) -> str:
    """The last columns of a line in words."""
    *over, rests_on = cells
    return f"speedup over {over[0]}; {rests_on}" if over and over[0] != "-" else rests_on


def _letters(number: int) -> str:
    """a, b, ..., z, aa, ab, ..."""
    return (_letters(number // 26 - 1) if number > 25 else "") + chr(ord("a") + number % 26)


def _head(over: bool) -> list[str]:
    return [
        "from", "to", *(["use"] if over else []), "planner", "at", "time", "gap", "speedup",
        *(["over"] if over else []), "rests on",
    ]  # fmt: skip


def _row(r: Range, over: bool) -> list[str]:
    planner = f"{r.candidate.planner} {words.options_text(r.candidate.options, r.candidate.variant)}".strip()
    figures = [format_seconds(r.seconds), words.ratio(r.gap), words.ratio(r.speedup)]
    use = [words.use_text(r)] if over else []
    return [
        *words.ends_text(r),
        *use,
        planner,
        format_size(r.at),
        *figures,
        *([r.over or "-"] if over else []),
        r.rests_on,
    ]


def _has_library(tunings: Iterable[Tuning]) -> bool:
    """Whether NCCL's own choice is known for any range."""
    return any(r.over for tuning in tunings for r in tuning.ranges)


def _baselines(tuning: Tuning) -> str:
    if tuning.library is not None:
        kinds = {r.collective for r in tuning.ranges}
        return f"what its own model holds to be best at that size, {tuning.library.costs.basis()}{how_near(kinds)}"
    kinds_of: dict[tuple[str, ...], list[str]] = {}
    for kind, names in tuning.baselines.items():
        if names:
            kinds_of.setdefault(names, []).append(kind)
    if len(kinds_of) == 1:
        return " or ".join(next(iter(kinds_of)))
    return "; ".join(f"{', '.join(kinds)}: {' or '.join(names)}" for names, kinds in kinds_of.items())


def _unplanned(tuning: Tuning) -> list[str]:
    """Candidates that failed or timed out, and why; those refused, with reasons only if nothing was planned."""
    lines = []
    for status in ("failed", "timed out"):
        options_by_end: dict[tuple[str, str], list[str]] = {}
        for c in tuning.candidates:
            if c.status == status:
                end = (f"{c.collective} by {c.planner}", c.reason)
                options_by_end.setdefault(end, []).append(words.options_text(c.options))
        for (subject, reason), options in options_by_end.items():
            unlisted = f" and {len(options) - MAX_OPTIONS} more" if len(options) > MAX_OPTIONS else ""
            listed = " | ".join(options[:MAX_OPTIONS]) + unlisted
            lines += paragraph(f"{status}: {f'{subject} {listed}'.strip()}: {reason}", rest="    ")
    refused: dict[str, str] = {}
    counts: dict[str, list[int]] = {}  # by planner its refused candidates, and all
    for c in tuning.candidates:
        count = counts.setdefault(c.planner, [0, 0])
        count[1] += 1
        if c.status == "refused" and not c.reason.startswith("it does not plan"):
            refused.setdefault(c.planner, c.reason)
            count[0] += 1
    if refused and tuning.plans:
        where = "some" if len(tuning.collectives) > 1 else "this"
        names = [p + (f" ({counts[p][0]} of {counts[p][1]})" if counts[p][0] < counts[p][1] else "") for p in refused]
        lines += paragraph(f"refused {where}: {', '.join(names)} (--json and --report say why)", rest="    ")
    if not tuning.plans:
        planners_by_reason: dict[str, list[str]] = {}
        for planner, reason in words.decisive_reasons(refused).items():
            planners_by_reason.setdefault(_without(reason, planner), []).append(planner)
        for reason, planners in planners_by_reason.items():
            lines += paragraph(f"refused: {', '.join(planners)}: {reason}", rest="    ")
    return lines


def _without(reason: str, planner: str) -> str:
    return reason.removeprefix(f"planner {planner}").removeprefix(":").strip()
