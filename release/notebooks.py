"""Run the notebooks of examples/ and keep what they show: `notebooks.py [--write]`, without Jupyter.

A cell is executed as Jupyter does it: what it prints, then the value of its last expression, as HTML where that has
`_repr_html_`. --write stores these outputs in the notebooks, as they are seen where nobody runs them. They run in a new
folder, and no output may name a place on this machine.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
JUPYTER_METHOD = "_repr_html_"
Output = dict[str, Any]


def list_notebooks() -> list[Path]:
    return sorted(EXAMPLES.glob("*.ipynb"))


def run_notebook(path: Path) -> list[list[Output]]:
    """The outputs of each code cell, in the form of nbformat 4."""
    names: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return [_run_cell("".join(cell["source"]), names) for cell in _code_cells(_read(path))]


def _run_cell(source: str, names: dict[str, Any]) -> list[Output]:
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    outputs: list[Output] = []
    if text := printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        if html := html_of(value):
            data["text/html"] = html.splitlines(keepends=True)
        outputs.append({"output_type": "execute_result", "execution_count": None, "metadata": {}, "data": data})
    return outputs


def html_of(value: Any) -> str:
    """What a notebook shows of a value, if that is not plain text."""
    show = getattr(value, JUPYTER_METHOD, None)
    return show() if show is not None else ""


def stored_outputs(path: Path) -> list[list[Output]]:
    """The outputs that a notebook holds, by code cell."""
    return [cell["outputs"] for cell in _code_cells(_read(path))]


def write_outputs(path: Path, outputs: list[list[Output]]) -> None:
    notebook = _read(path)
    for cell, shown in zip(_code_cells(notebook), outputs, strict=True):
        cell["outputs"] = shown
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def _code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


if __name__ == "__main__":
    os.environ["COLUMNS"] = "100"
    for notebook in list_notebooks():
        results = run_notebook(notebook)
        print(f"{notebook.name}: {len(results)} cells")
        if "--write" in sys.argv:
            write_outputs(notebook, results)
