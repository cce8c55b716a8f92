"""Text in columns and paragraphs, for terminals of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

WIDTH = 80
_LEAST = 24  # a last column narrower than this is not worth reading


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns under each other, numbers to the right."""
    cells = [list(head), *map(list, rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    right = [all(row[i][:1].isdigit() or row[i] in (".", "-") for row in rows) for i in range(len(head))]
    return [
        "  " + "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)).rstrip()
        for row in cells
    ]


def wrapped(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The same to the left, the last column broken to fit into WIDTH, at its own line ends too. No head: []."""
    cells = [list(row) for row in (head, *rows) if row]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]) - 1)]
    left = 2 + sum(widths) + 2 * len(widths)
    lines = []
    for row in cells:
        told = [part for line in row[-1].split("\n") for part in _broken(line, max(WIDTH - left, _LEAST))]
        first = "  " + "".join(cell.ljust(width + 2) for cell, width in zip(row, widths, strict=False))
        lines += [
            (start + part).rstrip() for start, part in zip([first, *[" " * left] * len(told)], told, strict=False)
        ]
    return lines


def paragraph(text: str, first: str = "  ", rest: str = "  ") -> list[str]:
    """Running text, broken between words."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def _broken(line: str, width: int) -> list[str]:
    return textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""]
