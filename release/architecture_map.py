"""The table of folders in docs/architecture.md, generated from the docstrings of the packages.

Run: python release/architecture_map.py prints the table; with --write it replaces the one in the page.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "antiphon"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- map -->\n", "<!-- end of map -->"


def build_map() -> str:
    """The table: one row per folder, in the order of their names, with the first sentence of its docstring."""
    rows = ["| folder | contents |", "|---|---|"]
    for file in sorted(PACKAGE.glob("*/**/__init__.py")):
        docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        rows.append(f"| `{file.parent.relative_to(PACKAGE)}` | {_first_sentence(docstring)} |")
    return "\n".join(rows) + "\n"


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.split("\n\n", maxsplit=1)[0].split())
    sentence = re.split(r"(?<=\.)\s+(?=[A-Z])", paragraph)[0]
    without_page = re.sub(r" \(docs/[\w/.-]+\)", "", sentence)
    return without_page.rstrip(".")


def read_map(page: str) -> str:
    """The table that stands in the page."""
    return page[page.index(BEGIN) + len(BEGIN) : page.index(END)]


if __name__ == "__main__":
    table = build_map()
    if "--write" in sys.argv[1:]:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(page.replace(BEGIN + read_map(page), BEGIN + table), encoding="utf-8")
    else:
        print(table, end="")
