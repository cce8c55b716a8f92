"""What `antiphon replay` says to people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.show.columns import paragraph, table
from antiphon.units import format_seconds, format_size

SHOWN = 12


def replay_text(found: Mapping[str, Any]) -> str:
    """A step as it was and with ours, the collectives in the order of what they take, buckets, notes."""
    return "\n".join([*_step(found), "", *_calls(found["calls"]), *_worth(found), *_buckets(found), *_notes(found)])


def _step(found: Mapping[str, Any]) -> list[str]:
    step, moved = found["step"], found["communication"]
    ranks = len(found["ranks"])
    lines = paragraph(
        f"a step takes {format_seconds(step['recorded'])} (median of {found['steps']}, {ranks} "
        f"rank{'s' * (ranks > 1)}); replayed as it was {format_seconds(step['replayed'])} ({step['off']:+.1%})", ""
    )  # fmt: skip
    lines += paragraph(
        f"with ours {format_seconds(step['ours'])}: {step['speedup']:.2f} times as fast ({step['rests_on']}); "
        f"without any communication {format_seconds(step['without_communication'])}", ""
    )  # fmt: skip
    lines += paragraph(
        f"computation {format_seconds(found['computation'])}; communication {format_seconds(moved['seconds'])}, of "
        f"which exposed {format_seconds(moved['exposed'])}, hidden {format_seconds(moved['hidden'])}; exposed with "
        f"ours {format_seconds(moved['ours_exposed'])}", ""
    )  # fmt: skip
    return lines


def _calls(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    head = ["collective", "nbytes", "ranks", "a step", "takes", "exposed", "ours", "library", "gain", "ours is"]
    cells = [
        [
            row["collective"], format_size(row["nbytes"]), str(row["ranks"]), f"{row['per_step']:.4g}",
            format_seconds(row["seconds"]), format_seconds(row["exposed"]), _time(row["ours"]), _time(row["library"]),
            "-" if row["gain"] is None else _signed(row["gain"]), row["rests_on"] or "-",
        ]
        for row in rows[:SHOWN]
    ]  # fmt: skip
    left = len(rows) - SHOWN
    lines = [*table(head, cells), *([f"  and {left} more (--json tells all)"] if left > 0 else [])]
    lines += paragraph("takes: one of them, as recorded; library: by the model of it; exposed, gain: of a step")
    for by in dict.fromkeys(row["by"] for row in rows if row["by"]):
        lines += paragraph(f"ours: {by}", "  ", "    ")
    for by in dict.fromkeys(row["library_by"] for row in rows if row["library_by"]):
        lines += paragraph(f"library: {by}", "  ", "    ")
    return lines


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_seconds(seconds)


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else ''}{format_seconds(abs(seconds))}"


def _worth(found: Mapping[str, Any]) -> list[str]:
    worth = found["worth_tuning"]
    if worth is None:
        return paragraph("worth tuning: none; ours would not make a step shorter by any of them", "")
    what = f"{worth['collective']} of {format_size(worth['nbytes'])}"
    return paragraph(f"worth tuning first: {what}, {format_seconds(worth['gain'])} of a step ({worth['rests_on']})", "")


def _buckets(found: Mapping[str, Any]) -> list[str]:
    cut = found["buckets"]
    if cut is None:
        return []
    marks = (("best", " (best)"), ("recorded", " (as recorded)"))
    rows = [
        [
            format_size(row["nbytes"]) + "".join(told for key, told in marks if row["nbytes"] == cut[key]),
            str(row["buckets"]), format_seconds(row["seconds"]),
        ]
        for row in cut["rows"]
    ]  # fmt: skip
    told = f"the last step by ours ({found['step']['rests_on']}), with DDP's buckets of"
    return ["", told, *table(["at least", "buckets", "step"], rows)]


def _notes(found: Mapping[str, Any]) -> list[str]:
    return [line for note in found["notes"] for line in paragraph(f"note: {note}", "", "  ")]
