"""Measurements as CSV: `antiphon bench` writes them and `antiphon fit` reads them.

`fit genmodel` reads times of an algorithm, called a plan here (cps: see cost.fit.plans.NAMES). A column `collective`
may follow; without it the measurements are of an allreduce.

    plan,ranks,nbytes,seconds
    cps,8,1MiB,0.00183

`fit memory` reads times of adding that many vectors of nbytes each into one:

    vectors,nbytes,seconds
    2,67108864,0.0412

The first line names the columns, in any order; empty lines and lines that begin with # are skipped. Errors name file
and line.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from antiphon.core.files import name_of, read_bytes, within, write_bytes
from antiphon.cost.fit.plans import ALLREDUCE, NamedAlgorithm, plan_of
from antiphon.errors import Invalid, quote, unknown
from antiphon.units import parse_seconds, parse_size

MAX_COUNT = 2**16  # ranks or vectors of a measurement
MAX_FILE_BYTES = 2**30  # of a file
MAX_ROWS = 2**14  # measurements in a file
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PlanTime:
    """The measured time of a plan (a named algorithm)."""

    plan: NamedAlgorithm
    ranks: int
    nbytes: int  # size of the call; for plan `incast` (everyone sends to everyone), the bytes that each rank receives
    seconds: float
    line: int = 0  # of the file, for error messages; 0: not read from one


@dataclass(frozen=True, slots=True)
class AdditionTime:
    """A measured addition: the time of adding that many vectors of nbytes each into one."""

    vectors: int
    nbytes: int
    seconds: float
    line: int = 0


def read_plan_times(path: str | os.PathLike[str]) -> list[PlanTime]:
    """Read the file of `fit genmodel`. Linear."""
    return read_rows(path, ("plan", "ranks", "nbytes", "seconds"), ("collective",), _parse_plan_time)


def read_addition_times(path: str | os.PathLike[str]) -> list[AdditionTime]:
    """Read the file of `fit memory`. Linear."""
    return read_rows(path, ("vectors", "nbytes", "seconds"), optional=(), parse_row=_parse_addition_time)


def write_plan_times(rows: Sequence[PlanTime], path: str | os.PathLike[str]) -> None:
    """Write the file that `read_plan_times` reads as the same rows."""
    with_collective = any(row.plan.collective != ALLREDUCE for row in rows)
    head = ["plan", "ranks", "nbytes", "seconds", *(["collective"] if with_collective else [])]
    lines = [
        [row.plan.name, row.ranks, row.nbytes, repr(row.seconds), *([row.plan.collective] if with_collective else [])]
        for row in rows
    ]
    write_rows(head, lines, path)


def write_addition_times(rows: Sequence[AdditionTime], path: str | os.PathLike[str]) -> None:
    """Write the file that `read_addition_times` reads as the same rows."""
    write_rows(["vectors", "nbytes", "seconds"], [[row.vectors, row.nbytes, repr(row.seconds)] for row in rows], path)


def write_rows(head: Sequence[str], lines: Sequence[Sequence[Any]], path: str | os.PathLike[str]) -> None:
    """Write CSV: the names of columns, then a line per measurement."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *lines])
    write_bytes(path, text.getvalue().encode())


def _parse_plan_time(row: Mapping[str, str], line: int) -> PlanTime:
    ranks = parse_whole(row["ranks"], "ranks", minimum=2)
    plan = plan_of(row["plan"], ranks, row.get("collective") or ALLREDUCE)
    return PlanTime(plan, ranks, parse_positive_bytes(row["nbytes"]), parse_positive_seconds(row["seconds"]), line)


def _parse_addition_time(row: Mapping[str, str], line: int) -> AdditionTime:
    return AdditionTime(
        parse_whole(row["vectors"], "vectors", minimum=2),
        parse_positive_bytes(row["nbytes"]),
        parse_positive_seconds(row["seconds"]),
        line,
    )


def parse_whole(text: str, label: str, minimum: int) -> int:
    """Parse a whole number from `minimum` to MAX_COUNT."""
    # longer texts are above MAX_COUNT, and very long ones take `int` long
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    if not minimum <= number <= MAX_COUNT:
        raise Invalid(f"{label}: expected a whole number from {minimum} to {MAX_COUNT}, got {quote(text)}")
    return number


def parse_positive_bytes(text: str) -> int:
    """Parse a positive size."""
    size = parse_size(text, "nbytes")
    if size == 0:
        raise Invalid("nbytes: a measurement of 0 bytes shows nothing here; leave the line out")
    return size


def parse_positive_seconds(text: str) -> float:
    """Parse a positive time."""
    seconds = parse_seconds(text, "seconds", bare=True)  # bare: seconds if there is no unit
    if seconds == 0:
        raise Invalid("seconds: expected more than 0; leave the line out")
    return seconds


def read_rows(
    path: str | os.PathLike[str],
    needed: Sequence[str],
    optional: Sequence[str],
    parse_row: Callable[[Mapping[str, str], int], T],
) -> list[T]:
    """Read a CSV file; see `parse_rows`. Errors name the file."""
    with within(name_of(path)):
        return parse_rows(read_text(path, needed), needed, optional, parse_row)


def read_text(path: str | os.PathLike[str], needed: Sequence[str]) -> str:
    """Read a text file; raise Invalid if it is not text."""
    try:
        return read_bytes(path, MAX_FILE_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Invalid(f"not a text file in UTF-8 (byte {error.start}); expected CSV: {','.join(needed)}") from None


def parse_rows(
    text: str, needed: Sequence[str], optional: Sequence[str], parse_row: Callable[[Mapping[str, str], int], T]
) -> list[T]:
    """Parse CSV with the columns `needed` and perhaps `optional` ones. Linear.

    Return `parse_row`(cells by column, line number) of every line but the first and repetitions of it.
    """
    lines = csv.reader(io.StringIO(text))
    head: list[str] = []
    rows: list[T] = []
    try:
        for cells in lines:
            stripped = [cell.strip() for cell in cells]
            if not any(stripped) or stripped[0].startswith("#"):
                continue
            if not head:
                head = _check_header(stripped, needed, optional)
                continue
            if [cell.lower() for cell in stripped] == head:  # the first line of another file that was appended
                continue
            with within(f"line {lines.line_num}"):
                if len(stripped) != len(head):
                    raise Invalid(f"has {len(stripped)} columns, the first line has {len(head)}: {','.join(head)}")
                if len(rows) == MAX_ROWS:
                    raise Invalid(f"has more than {MAX_ROWS} measurements; keep fewer, such as their medians")
                rows.append(parse_row(dict(zip(head, stripped, strict=True)), lines.line_num))
    except csv.Error as error:
        raise Invalid(f"line {lines.line_num}: {error}") from None
    if not rows:
        raise Invalid(f"holds no measurements; expected CSV: {','.join(needed)}")
    return rows


def _check_header(cells: list[str], needed: Sequence[str], optional: Sequence[str]) -> list[str]:
    """Return the names of columns in the first line: all `needed` ones and perhaps `optional` ones, none twice."""
    names = [cell.lower() for cell in cells]
    for name in needed:
        if name not in names:
            raise Invalid(f"the first line names no column {name}; expected {','.join(needed)}")
    for name in names:
        if name not in (*needed, *optional):
            raise unknown("column", name, (*needed, *optional))
        if names.count(name) > 1:
            raise Invalid(f"the first line names column {name} twice")
    return names
