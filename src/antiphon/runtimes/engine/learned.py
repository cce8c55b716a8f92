"""Files of what jobs have learned (ANTIPHON_LEARNED, native/preload_learn.c): read, merge, compare.

A file has a line per candidate of each collective, number of ranks, root and size: how often it was timed, its latest
median, its spread, and whether it is the one that is used. A candidate is a plan in a number of slices. It is known by
a key, which is equal on isomorphic machines and for plans that differ only in what the key does not count
(serve/book.py), or by the checksum of its program, as in earlier versions. The cells of a line are the fields of
`LearnedLine`, with tabs between:

    allreduce 8 -1 1048576 5f3a01c2 4 120 0.000210 0.000205 0.000260 1 ring
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace
from math import isfinite
from typing import Any, NamedTuple

from antiphon.core.files import name_of, read_bytes, reading, write_bytes
from antiphon.errors import Invalid, quote
from antiphon.runtimes.engine.learner import PLANNED_SLICES

HEADER = "antiphon-learned\t1"
SLICES = range(1, 65)  # AP_MIN_SLICES to AP_MAX_SLICES (learn.h), in quarters of the planned number


class LearnedCalls(NamedTuple):
    """A kind of calls, for which one candidate is chosen."""

    collective: str
    ranks: int
    root: int  # -1: none
    nbytes: int


@dataclass(frozen=True)
class LearnedLine:
    """What was learned of a candidate for one kind of calls."""

    collective: str
    ranks: int
    root: int
    nbytes: int
    checksum: str  # the key of the plan, in hexadecimal; 0: the library
    slices: int  # in quarters of the planned number: 4 as planned, 8 twice as many
    samples: int  # calls that were timed
    seconds: float  # the latest median of a call
    low: float  # the least of the medians
    high: float  # the greatest of them
    chosen: int  # 1 if these calls use it, else 0
    planner: str

    @property
    def calls(self) -> LearnedCalls:
        return LearnedCalls(self.collective, self.ranks, self.root, self.nbytes)

    @property
    def name(self) -> str:
        """The planner, followed by slices / planned slices unless that is 1: "ring", "ring x2", "ring x0.5"."""
        return self.planner if self.slices == PLANNED_SLICES else f"{self.planner} x{self.slices / PLANNED_SLICES:g}"

    def as_json(self) -> dict[str, Any]:
        slices, chosen = self.slices / PLANNED_SLICES, bool(self.chosen)
        return {**{cell.name: getattr(self, cell.name) for cell in fields(self)}, "slices": slices, "chosen": chosen}


_TYPES = {"str": str, "int": int, "float": float}  # by name, as `fields` states the types of LearnedLine


def read_learned(path: str | os.PathLike[str], *, skip_damaged: bool = False) -> list[LearnedLine]:
    """Read a file of what was learned; Invalid if it is none, or if a line is damaged, with that line.

    Jobs skip damaged lines (`skip_damaged`), and take an empty file for one without lines.
    """
    with reading(name_of(path)):
        return parse_learned(read_bytes(path).decode("utf-8", "replace"), skip_damaged=skip_damaged)


def parse_learned(text: str, *, skip_damaged: bool = False) -> list[LearnedLine]:
    """Return the lines of a file's text, as `read_learned` does."""
    first, *lines = text.removesuffix("\n").split("\n")
    if first != HEADER and (text or not skip_damaged):
        raise Invalid(
            "is no file of what was learned, which jobs write with ANTIPHON_LEARN=1 and ANTIPHON_LEARNED=FILE"
        )
    parsed = []
    for number, line in enumerate(lines, 2):
        try:
            parsed.append(_read_line(number, line))
        except Invalid:
            if not skip_damaged:
                raise
    return parsed


def keep_learned(path: str | os.PathLike[str], lines: Sequence[LearnedLine]) -> None:
    """Write lines into a file of what was learned, in place of its lines with the same `_replacement_key`."""
    replaced = {_replacement_key(line) for line in lines}
    earlier = read_learned(path, skip_damaged=True) if os.path.exists(path) else []
    remaining = [line for line in earlier if _replacement_key(line) not in replaced]
    write_bytes(path, format_learned([*remaining, *lines]).encode())


def _replacement_key(line: LearnedLine) -> tuple[Any, ...]:
    """Return collective, ranks, root and bits of the size: sizes from a power of two to the next are learned as one."""
    return line.collective, line.ranks, line.root, line.nbytes.bit_length()


def _read_line(number: int, text: str) -> LearnedLine:
    cells = text.split("\t")
    try:
        values = [_TYPES[str(field.type)](cell) for field, cell in zip(fields(LearnedLine), cells, strict=True)]
        line = LearnedLine(*values)
        int(line.checksum, 16)  # raises ValueError
        is_time_right = 0 < line.low <= line.seconds <= line.high and isfinite(line.high)
        if line.samples <= 0 or line.slices not in SLICES or not is_time_right:
            raise ValueError
    except (ValueError, TypeError):
        raise Invalid(
            f"line {number}: expected {len(fields(LearnedLine))} cells with tabs between, got {quote(text)}"
        ) from None
    return line


def format_learned(lines: Sequence[LearnedLine]) -> str:
    """Return the text of a file, which `parse_learned` reads."""
    return "".join(f"{row}\n" for row in [HEADER, *("\t".join(map(str, astuple(line))) for line in lines)])


def merge_learned(files: Sequence[Sequence[LearnedLine]]) -> list[LearnedLine]:
    """Return one list, in which the lines of equal candidates are merged.

    Their sizes must be equal. Samples add up, the spread covers all, and the time is that of the line with more
    samples. Of several chosen candidates for the same calls, only the fastest stays chosen."""
    merged: dict[tuple[Any, ...], LearnedLine] = {}
    for line in (line for lines in files for line in lines):
        key = (line.calls, line.checksum, line.slices)
        merged[key] = _add_lines(merged[key], line) if key in merged else line
    best = _chosen_lines([line for line in merged.values() if line.chosen])
    return [replace(line, chosen=int(best.get(line.calls) is line)) for line in merged.values()]


def _add_lines(first: LearnedLine, second: LearnedLine) -> LearnedLine:
    """Merge two lines about one candidate."""
    return replace(
        first,
        samples=first.samples + second.samples,
        seconds=(first if first.samples >= second.samples else second).seconds,
        low=min(first.low, second.low),
        high=max(first.high, second.high),
        chosen=max(first.chosen, second.chosen),
    )


def _chosen_lines(lines: Sequence[LearnedLine]) -> dict[LearnedCalls, LearnedLine]:
    """Return the fastest chosen candidate of each kind of calls."""
    best: dict[LearnedCalls, LearnedLine] = {}
    for line in lines:
        if line.chosen and (line.calls not in best or line.seconds < best[line.calls].seconds):
            best[line.calls] = line
    return best


def diff_learned(old: Sequence[LearnedLine], new: Sequence[LearnedLine]) -> list[dict[str, Any]]:
    """Return a row for each kind of calls: the fields of LearnedCalls, the names `old` and `new` of the candidates that
    the two files have chosen, and `old_seconds` and `new_seconds`; None where a file has no chosen candidate.
    """
    before, after = _chosen_lines(old), _chosen_lines(new)
    rows = []
    for calls in dict.fromkeys([*before, *after]):
        row: dict[str, Any] = calls._asdict()
        old_line, new_line = before.get(calls), after.get(calls)
        row |= {"old": old_line and old_line.name, "new": new_line and new_line.name}
        row |= {"old_seconds": old_line and old_line.seconds, "new_seconds": new_line and new_line.seconds}
        rows.append(row)
    return rows
