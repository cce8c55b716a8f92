"""The result of tuning as text for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from antiphon.cost.basis import in_short
from antiphon.cost.nccl.library import how_near
from antiphon.select import Range, Tuning, Tunings
from antiphon.show.columns import natural_width, paragraph, table_rows, under_names, width
from antiphon.show.text import table
from antiphon.show.words import (
    WHEN,
    decisive,
    ends_text,
    loss_text,
    model_text,
    notes,
    options_text,
    ratio,
    stopped_text,
    unbeaten,
    use_lines,
    use_text,
)
from antiphon.units import format_seconds, format_size

CALIBRATED = "calibrated"  # the column that says it in short
NARROW = 72  # columns of a terminal: below, the size `at` is left out
MOST_ALIKE = 3  # options that ended alike, each told
MOST_BEST = 6  # ranges of best settings, each told


def tuning_text(tuning: Tuning) -> str:
    """The ranges, what they are measured by, what was lost, and what could not take part and why."""
    low, high = (format_size(size) for size in tuning.span)
    what = tuning.collectives[0] if len(tuning.collectives) == 1 else f"{len(tuning.collectives)} collectives"
    ok = sum(c.status == "ok" for c in tuning.candidates)
    ranges, marks = _ranges(tuning)
    lines = [
        *paragraph(
            f"{what} on {tuning.topology.name}, {low} to {high}, by {model_text(tuning)}: "
            + (f"{ok} schedules, all verified" if ok else "no schedule")
            + ("" if tuning.complete else " (interrupted: not all candidates were tried)"),
            "",
        ),
        "",
        *(ranges if tuning.ranges else ["  nothing could be planned"]),
        "",
    ]
    if tuning.ranges:
        lines += [*paragraph(f"time, gap, speedup: {WHEN}", rest="    "), *marks]
        lines += paragraph(f"gap: time over the bound, which {unbeaten(tuning)}", rest="    ")
        if any(tuning.baselines.values()):
            lines += paragraph(f"speedup: over what NCCL would do: {_baselines(tuning)}", rest="    ")
        lines += [line for text in use_lines(tuning) for line in paragraph(text, rest="    ")]
        lines += [line for note in notes(tuning) for line in paragraph(note, rest="    ")]
    missing = [kind for kind in tuning.collectives if kind not in tuning.plans]
    if missing and tuning.plans:
        lines += paragraph(f"no planner could plan {', '.join(missing)}", rest="    ")
    for loss in tuning.losses:
        lines += paragraph(loss_text(loss), rest="    ")
    return "\n".join([*lines, *_others(tuning), *_gains(tuning)])


def last_line(tunings: Sequence[Tuning]) -> list[str]:
    """How many candidates were stopped: one line, so that it is the last, however wide the terminal."""
    return [f"  {stopped_text(tunings)}"]


def tunings_text(found: Tunings) -> str:
    """One table over all machines; below it what is to be known of any of them."""
    some = next((one for one in found.tunings.values()), None)
    span = f", {format_size(some.span[0])} to {format_size(some.span[1])}, by {model_text(some)}" if some else ""
    ok = sum(c.status == "ok" for one in found.tunings.values() for c in one.candidates)
    kinds = some.collectives if some is not None else ()
    what = kinds[0] if len(kinds) == 1 else f"{len(kinds)} collectives"
    stopped = "" if found.complete else " (interrupted: not all was tried)"
    lines = [
        *paragraph(f"{what} on {found.topology} by {found.varied}{span}: {ok} schedules, all verified{stopped}", ""),
        "",
    ]
    rows = {kind: _varied_rows(found, kind) for kind in kinds}
    head = [found.varied, "ranks", *_head(_told_over(found.tunings.values()))]
    (top, *body), marks = _fitting(head, [row for mine in rows.values() for row in mine])
    lines += [*top, *under_names(rows, body)]
    lines += ["", *paragraph(f"time, gap, speedup: {WHEN}", rest="    "), *marks]
    lines += paragraph(f"gap: time over the bound, which {unbeaten(some)}", rest="    ") if some is not None else []
    said: dict[str, list[str]] = {}
    for value, one in found.tunings.items():
        names = _baselines(one) if any(one.baselines.values()) else ""
        for note in ([f"speedup: over what NCCL would do: {names}"] if names else []) + use_lines(one) + notes(one):
            said.setdefault(note, []).append(str(value))
        if not one.plans:
            said.setdefault("nothing could be planned", []).append(str(value))
    for value, why in found.refused.items():
        said.setdefault(f"refused: {why}", []).append(str(value))
    for note, values in said.items():
        where = "" if len(values) == len(found.tunings) else f"{found.varied}={','.join(values)}: "
        lines += paragraph(where + note, rest="    ")
    return "\n".join(lines)


def _varied_rows(found: Tunings, kind: str) -> list[list[str]]:
    """A row per machine and range; of a machine only the first tells which it is."""
    rows, over = [], _told_over(found.tunings.values())
    for value, one in found.tunings.items():
        mine = [_row(r, over) for r in one.ranges if r.collective == kind] or [["-"] * len(_head(over))]
        ranks = str(one.topology.ranks)
        rows += [[*([str(value), ranks] if i == 0 else [".", "."]), *row] for i, row in enumerate(mine)]
    return rows


def _gains(tuning: Tuning) -> list[str]:
    """What choosing the values of the options swept is worth: a table, and of one collective the best ones by size."""
    if not tuning.gains:
        return []
    several = len(tuning.collectives) > 1
    rows = []
    for gain in tuning.gains:
        who = f"{gain.planner} for {gain.collective}" if several else gain.planner
        at = format_size(gain.at) if gain.most > 1.0005 else "-"
        rests = in_short(gain.rests_on)
        rows.append([who, options_text(dict(gain.first)), f"{gain.mean:.3g}x", f"{gain.most:.3g}x", at, rests])
    head = ["choosing", "over", "on average", "at most", "at", CALIBRATED]
    lines = ["", f"  what choosing {', '.join(tuning.sweep)} by size is worth:", "", *table(head, rows)]
    lines += [""] if not several else []
    for gain in tuning.gains if not several else ():
        best = [f"{options_text(dict(setting))} from {format_size(start)}" for start, _, setting in gain.best]
        more = f", and {len(best) - MOST_BEST} more" if len(best) > MOST_BEST else ""
        lines += paragraph(f"{gain.planner}: {'; '.join(best[:MOST_BEST])}{more}", rest="    ")
    return lines


def _ranges(tuning: Tuning) -> tuple[list[str], list[str]]:
    """One table; of several collectives each has its name above its rows. And what its marks mean."""
    kinds = [kind for kind in tuning.collectives if kind in tuning.plans]
    over = _told_over([tuning])
    rows = {kind: [_row(r, over) for r in tuning.ranges if r.collective == kind] for kind in kinds}
    (top, *body), marks = _fitting(_head(over), [row for mine in rows.values() for row in mine])
    return [*top, *under_names(rows, body)], marks


def _fitting(head: list[str], rows: list[list[str]]) -> tuple[list[list[str]], list[str]]:
    """The table, its head and every row as lines; with what a row rests on (and what its speedup is over) as its last
    columns, or where that is wider than the terminal, in short with a mark, and what the marks mean."""
    if natural_width(head, rows) <= width():
        return table_rows(head, rows), []
    kept = head.index("speedup") + 1
    said = [_said(row[kept:]) for row in rows]
    told = list(dict.fromkeys(said))
    marks = ["*"] if len(told) == 1 else [_letters(number) for number in range(len(told))]
    mark = dict(zip(told, marks, strict=True))
    marked = [[*row[:kept], f"{in_short(row[-1])} {mark[text]}"] for row, text in zip(rows, said, strict=True)]
    lines = [line for text in told for line in paragraph(f"{mark[text]} {text}", rest="    ")]
    if natural_width([*head[:kept], CALIBRATED], marked) > width():
        narrow = [*head[:kept], ""], *([*row[:kept], mark[text]] for row, text in zip(rows, said, strict=True))
        if width() < NARROW:
            at = head.index("at")
            narrow = tuple([*row[:at], *row[at + 1 :]] for row in narrow)
            lines = [*lines, *paragraph("at: on a wider terminal, or by --json")]
        return table_rows(narrow[0], narrow[1:]), lines
    return table_rows([*head[:kept], CALIBRATED], marked), lines


def _said(cells: list[str]) -> str:
    """The last columns of a line in words."""
    *over, rests = cells
    return f"speedup over {over[0]}; {rests}" if over and over[0] != "-" else rests


def _letters(number: int) -> str:
    """a, b, ..., z, aa, ab, ..."""
    return (_letters(number // 26 - 1) if number > 25 else "") + chr(ord("a") + number % 26)


def _head(over: bool) -> list[str]:
    return [
        "from", "to", *(["use"] if over else []), "planner", "at", "time", "gap", "speedup",
        *(["over"] if over else []), "rests on",
    ]  # fmt: skip


def _row(r: Range, over: bool) -> list[str]:
    who = f"{r.candidate.planner} {options_text(r.candidate.options, r.candidate.variant)}".strip()
    figures = [format_seconds(r.seconds), ratio(r.gap), ratio(r.speedup)]
    use = [use_text(r)] if over else []
    return [*ends_text(r), *use, who, format_size(r.at), *figures, *([r.over or "-"] if over else []), r.rests_on]


def _told_over(tunings: Iterable[Tuning]) -> bool:
    """Whether of some range it is known what NCCL would choose."""
    return any(r.over for tuning in tunings for r in tuning.ranges)


def _baselines(tuning: Tuning) -> str:
    if tuning.library is not None:
        kinds = {r.collective for r in tuning.ranges}
        return f"what its own model holds to be best at that size, {tuning.library.costs.basis()}{how_near(kinds)}"
    said: dict[tuple[str, ...], list[str]] = {}
    for kind, names in tuning.baselines.items():
        if names:
            said.setdefault(names, []).append(kind)
    parts = [" or ".join(names) for names in said]
    if len(parts) == 1:
        return parts[0]
    return "; ".join(f"{', '.join(kinds)}: {part}" for part, kinds in zip(parts, said.values(), strict=True))


def _others(tuning: Tuning) -> list[str]:
    """Who failed or timed out and why; who was refused, with reasons only where nothing else is to be said."""
    lines = []
    for status in ("failed", "timed out"):
        said: dict[tuple[str, str], list[str]] = {}
        for c in tuning.candidates:
            if c.status == status:
                said.setdefault((f"{c.collective} by {c.planner}", c.reason), []).append(options_text(c.options))
        for (who, reason), options in said.items():
            more = f" and {len(options) - MOST_ALIKE} more" if len(options) > MOST_ALIKE else ""
            told = " | ".join(options[:MOST_ALIKE]) + more
            lines += paragraph(f"{status}: {f'{who} {told}'.strip()}: {reason}", rest="    ")
    refused: dict[str, str] = {}
    counts: dict[str, list[int]] = {}  # of those that also made something: how many were refused, of how many
    for c in tuning.candidates:
        mine = counts.setdefault(c.planner, [0, 0])
        mine[1] += 1
        if c.status == "refused" and not c.reason.startswith("it does not plan"):
            refused.setdefault(c.planner, c.reason)
            mine[0] += 1
    if refused and tuning.plans:
        where = "some" if len(tuning.collectives) > 1 else "this"
        names = [p + (f" ({counts[p][0]} of {counts[p][1]})" if counts[p][0] < counts[p][1] else "") for p in refused]
        lines += paragraph(f"refused {where}: {', '.join(names)} (--json and --report say why)", rest="    ")
    if not tuning.plans:
        alike: dict[str, list[str]] = {}
        for planner, reason in decisive(refused).items():
            alike.setdefault(_without(reason, planner), []).append(planner)
        for reason, planners in alike.items():
            lines += paragraph(f"refused: {', '.join(planners)}: {reason}", rest="    ")
    return lines


def _without(reason: str, planner: str) -> str:
    return reason.removeprefix(f"planner {planner}").removeprefix(":").strip()
