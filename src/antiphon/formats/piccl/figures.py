"""Read and write the file of LogGP parameters that PICCL (a published planner of collectives) reads: CSV by size.

Columns: message size s in bytes; latency L, overheads o_s and o_r of sender and receiver, and gap g between messages in
seconds; G in seconds per byte; then, optionally, gamma, seconds per byte of a reduction. readers.py calls this file.
Example of a row: 1,1e-5,4e-6,4e-6,1e-5,1e-11.
"""

from __future__ import annotations

import csv
import io
import os

from antiphon.core.files import name_of, read_bytes, reading, within
from antiphon.cost.figures import FIGURES, Level
from antiphon.errors import Invalid, Unsupported, quote

COLUMNS = ("s", "L", "o_s", "o_r", "g", "G")
MAX_ROWS = 2**20  # above this a file is refused; real ones have a row per measured size
_END_SIZES = (1, 2**30)  # bytes: the two rows of figures that do not depend on the size


def read_figures(path: str | os.PathLike[str], name: str = "") -> Level:
    """Return the parameters in a file as a level of LogGP: linear between sizes, constant below the least and above the
    greatest. Rows may come in any order; a column gamma may follow, and nothing else. `name`: of the file, for messages
    (default: its path). O(n log n)."""
    with reading(name or name_of(path)):
        data = read_bytes(path)
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise Invalid("is not UTF-8 text; expected lines s,L,o_s,o_r,g,G") from None
        return figures_in(text)


def figures_in(text: str) -> Level:
    """Return the parameters in the text of such a file."""
    rows: dict[int, tuple[str, ...]] = {}
    lines = csv.reader(io.StringIO(text, newline=""))
    head: tuple[str, ...] = ()
    try:
        for cells in lines:
            fields = tuple(cell.strip() for cell in cells)
            if not any(fields):
                continue
            with within(f"line {lines.line_num}"):
                if not head:
                    head = _check_head(fields)
                else:
                    _add_row(fields, head, rows)
    except csv.Error as error:
        raise Invalid(f"line {lines.line_num}: is not CSV: {error}") from None
    if not rows:
        raise Invalid("has no figures; expected a line s,L,o_s,o_r,g,G and one such as 1,1e-5,4e-6,4e-6,1e-5,1e-11")
    sizes = tuple(sorted(rows))
    figures = {name: tuple(rows[size][i] for size in sizes) for i, name in enumerate(head[1:])}
    if all(len(set(values)) == 1 for values in figures.values()):
        sizes, figures = sizes[:1], {name: values[:1] for name, values in figures.items()}
    # within="": between all ranks; Level converts the texts to floats
    return Level(within="", sizes=sizes, **figures)  # type: ignore[arg-type]


def _check_head(fields: tuple[str, ...]) -> tuple[str, ...]:
    if fields[:6] != COLUMNS or fields[6:] not in ((), ("gamma",)):
        # The line is not quoted: it may be secret.
        raise Invalid(f"expected the columns {','.join(COLUMNS)} (then gamma or none), got others")
    return fields


def _add_row(fields: tuple[str, ...], head: tuple[str, ...], rows: dict[int, tuple[str, ...]]) -> None:
    if len(fields) != len(head):
        raise Invalid(f"has {len(fields)} fields, expected {len(head)}: {','.join(head)}")
    if not (fields[0].isdigit() and fields[0].isascii()) or len(fields[0]) > 18:
        raise Invalid(f"s is {quote(fields[0])}; expected a whole number of bytes")
    size = int(fields[0])
    if size in rows:
        raise Invalid(f"size {size} stands twice; keep one")
    if len(rows) >= MAX_ROWS:
        raise Invalid(f"has more than {MAX_ROWS} sizes")
    # Only to check the row here, where its line number is known.
    Level(within="", sizes=(size,), **{name: (value,) for name, value in zip(head[1:], fields[1:], strict=True)})  # type: ignore[arg-type]
    rows[size] = fields[1:]


def figures_text(level: Level) -> str:
    """Return the text of a file that `read_figures` reads as the same level; with a column gamma if it is not 0."""
    names = [name for name in FIGURES if name != "gamma" or any(level.gamma)]
    sizes, columns = level.sizes, [getattr(level, name) for name in names]
    if len(sizes) == 1:  # two rows, for readers that need something to interpolate between
        sizes, columns = _END_SIZES, [values * 2 for values in columns]
    if any(size != int(size) for size in sizes):
        raise Unsupported("PICCL's figures are for whole sizes; round the sizes of the profile")
    rows = zip(sizes, *columns, strict=True)
    lines = [",".join(["s", *names]), *(",".join([str(int(row[0])), *map(repr, row[1:])]) for row in rows)]
    return "\n".join(lines) + "\n"
