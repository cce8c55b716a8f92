"""Format text in columns and paragraphs that fit the width of the terminal.

`table` is for figures: numbers to the right, texts to the left. `wrap_table` is for a last column of running text.
`fitted_rows` drops the least useful columns of a table that is too wide. Columns are made narrower in stages: the
widest column of texts first, down to its longest word, then down to the longest part between hyphens.

    table(["planner", "time (us)"], [["ring", "12.5"], ["trees", "9"]])    planner  time (us)
                                                                           ring          12.5
                                                                           trees            9
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence

NARROWEST, WIDEST = 60, 200  # characters per line, on wider terminals too: longer lines are hard to read
DEFAULT_WIDTH, DEFAULT_LINES = 100, 24  # characters per line where the output is no terminal; lines do not matter
LABEL_INDENT = " " * 13  # of lines that go on under the text behind a label, such as "  because    "
_MIN_WIDTH = 10  # characters to which a column is narrowed at most, except as the last resort of `wrap_table`
# Characters to which a last column of running text is narrowed first. A word that is longer keeps no column wider.
_MIN_TEXT_WIDTH = 24


def width() -> int:
    """Return the characters per line: those of the terminal (or the variable COLUMNS), within limits."""
    return min(max(shutil.get_terminal_size((DEFAULT_WIDTH, DEFAULT_LINES)).columns, NARROWEST), WIDEST)


def time_column(seconds: Iterable[float | None]) -> tuple[str, Callable[[float | None], str]]:
    """Return the unit for the heads of columns with these times, and a function that writes a cell in that unit.

    A cell has up to four significant digits, and all digits of a number from 1000 on; it is "-" for None.

    >>> unit, cell = time_column([1.361e-05, None, 0.0136164])
    >>> unit, cell(0.0136164), cell(None)
    ('us', '13616', '-')
    """
    smallest = min((value for value in seconds if value), default=0.0)
    unit, scale = ("us", 1e-6) if smallest < 1e-3 else ("ms", 1e-3) if smallest < 1 else ("s", 1.0)
    return unit, lambda value: "-" if value is None else _four_digits(value / scale)


def _four_digits(value: float) -> str:
    """Return a number with up to four significant digits, from 1000 on as a whole number; never as 1.36e+04."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def natural_width(head: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Return the width of a table with every row on one line."""
    return _line_width(_column_widths([head, *rows]))


def _line_width(widths: Sequence[int]) -> int:
    """Return the width of a table's lines: indented by two blanks, and two between columns."""
    return 2 + sum(widths) + 2 * (len(widths) - 1)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table's lines, numbers to the right; texts are broken where it is wider than the terminal."""
    return [line for lines in table_rows(head, rows) for line in lines]


def table_rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the lines of each row of `table`, the head first."""
    lines, _ = _lines_and_excess(head, rows)
    return lines


def fitted_rows(
    head: Sequence[str], rows: Sequence[Sequence[str]], least_useful: Sequence[str]
) -> tuple[list[list[str]], list[str]]:
    """Return the lines of the head and of every row, and the columns left out.

    Columns of `least_useful` are left out, in this order, until the table fits the terminal.
    """
    dropped: list[str] = []
    lines, excess = _lines_and_excess(head, rows)
    for name in least_useful:
        if excess <= 0:
            break
        if name in head:
            column = list(head).index(name)
            head, *rows = ([*row[:column], *row[column + 1 :]] for row in (head, *rows))
            dropped.append(name)
            lines, excess = _lines_and_excess(head, rows)
    return lines, dropped


def dropped_text(head: Sequence[str], rows: Sequence[Sequence[str]], dropped: Sequence[str]) -> str:
    """Return at which width of the terminal the columns that were left out are shown; "" if none were left out.

    It is the width at which no text is broken, at most WIDEST. Narrower terminals may do, as texts are broken before a
    column is left out.
    """
    return f"at {min(natural_width(head, rows), WIDEST)}+ columns also: {', '.join(dropped)}" if dropped else ""


def _lines_and_excess(head: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[list[str]], int]:
    """Return the lines of the head and of every row, and the characters by which they exceed the terminal."""
    cells = [list(head), *map(list, rows)]
    widths = _column_widths(cells)
    # columns of numbers, which are aligned to the right and never broken; ~1 is a number, "." and "-" stand for none
    is_numeric = [
        all(row[i].lstrip("~")[:1].isdigit() or row[i] in (".", "-") for row in rows) for i in range(len(head))
    ]
    text_columns = [i for i, numeric in enumerate(is_numeric) if not numeric]
    excess = _fit_columns(cells, widths, text_columns, natural_width(head, rows) - width())
    return [_lines_of(row, widths, is_numeric) for row in cells], excess


def under_names(rows: Mapping[str, Sequence[object]], lines: Iterable[list[str]]) -> list[str]:
    """Return the lines of all rows, each group under its name if there are several.

    `rows`: the rows of each group, by name. `lines`: the lines of each row, as `table_rows` returns them after the
    head.
    """
    remaining = iter(lines)
    text_lines: list[str] = []
    for name, group in rows.items():
        text_lines += [name] if len(rows) > 1 else []
        text_lines += [line for _ in group for line in next(remaining)]
    return text_lines


def wrap_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table of texts, all to the left, the last column broken to fit. `head`: [] for none."""
    cells = [list(row) for row in (head, *rows) if row]
    columns = list(zip(*cells, strict=True))
    widths = [max(len(line) for cell in column for line in cell.split("\n")) for column in columns]
    excess = _line_width(widths) - width()
    excess = _narrow_columns(widths, [len(widths) - 1], [_MIN_TEXT_WIDTH] * len(widths), excess)
    excess = _fit_columns(cells, widths, range(len(widths)), excess)
    # the last resort: less than the usual minimum
    _narrow_columns(widths, range(len(widths)), [_MIN_WIDTH // 2] * len(widths), excess)
    return [line for row in cells for line in _lines_of(row, widths, [False] * len(widths))]


def paragraph(text: str, first: str = "  ", rest: str = "  ") -> list[str]:
    """Return running text as lines, broken between words. `first`, `rest`: indents."""
    return textwrap.wrap(
        text, width(), initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def _column_widths(cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*cells, strict=True)]


def _fit_columns(cells: Sequence[Sequence[str]], widths: list[int], columns: Sequence[int], excess: int) -> int:
    """Narrow these columns by `excess` characters in total: to their longest word, then to its longest part.

    Return the excess that remains.
    """
    for pattern in (r"\s+", r"\s+|(?<=-)"):
        by_column = zip(*cells, strict=True)
        longest = [max(len(word) for cell in column for word in re.split(pattern, cell)) for column in by_column]
        # a column is not kept wide for one very long word: `_break_cell` breaks it
        minimum = [min(max(word, _MIN_WIDTH), _MIN_TEXT_WIDTH) for word in longest]
        excess = _narrow_columns(widths, columns, minimum, excess)
    return excess


def _narrow_columns(widths: list[int], columns: Sequence[int], minimum: Sequence[int], excess: int) -> int:
    """Take `excess` from the widths of these columns, each time from the widest. Return the excess that remains."""
    while excess > 0 and (wider := [column for column in columns if widths[column] > minimum[column]]):
        widths[max(wider, key=widths.__getitem__)] -= 1
        excess -= 1
    return excess


def _lines_of(row: Sequence[str], widths: Sequence[int], is_numeric: Sequence[bool]) -> list[str]:
    """Return a row of a table as lines, its cells broken to the widths of their columns."""
    cells_lines = [_break_cell(cell, column_width) for cell, column_width in zip(row, widths, strict=True)]
    lines = []
    for number in range(max(map(len, cells_lines))):
        cells = [cell_lines[number] if number < len(cell_lines) else "" for cell_lines in cells_lines]
        aligned = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, is_numeric, strict=True)]
        lines.append(("  " + "  ".join(aligned)).rstrip())
    return lines


def _break_cell(cell: str, column_width: int) -> list[str]:
    """Return a cell as lines, broken between words; a word wider than its column at a hyphen, else anywhere."""
    lines = []
    for line in cell.split("\n"):
        hyphens = any(len(word) > column_width for word in line.split())
        lines += [line] if len(line) <= column_width else textwrap.wrap(line, column_width, break_on_hyphens=hyphens)
    return lines
