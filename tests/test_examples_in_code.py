"""Worked examples in docstrings say what comes out."""

import ast
import doctest
import importlib
import sys
from pathlib import Path

import pytest
import quick

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "antiphon"
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

LONG = ("antiphon.planners.shared.reach", "antiphon.runtimes.device.hybrid")  # seconds


def with_examples() -> list[str]:
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")]
    return [".".join(("antiphon", *path.relative_to(PACKAGE).with_suffix("").parts)) for path in paths]


def docstrings(text: str) -> list[tuple[int, str]]:
    """Line and text of each, those of cached properties as well, which doctest itself does not look for."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, DOCUMENTED)]
    found = [(node.body[0].lineno, ast.get_docstring(node, clean=False)) for node in nodes if node.body]
    return [(line, one) for line, one in found if one]


def test_there_are_some() -> None:
    assert "antiphon.core.columns" in with_examples()


def run_uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace what Numba would compile for each example by the same functions in Python, wherever one calls another."""
    for name, module in list(sys.modules.items()):
        for key, value in list(vars(module).items()) if name.startswith("antiphon.") else ():
            if hasattr(value, "py_func"):
                monkeypatch.setattr(module, key, value.py_func)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in with_examples()]
)
def test_an_example_holds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(name.removesuffix(".__init__"))
    path = str(module.__file__)
    text = Path(path).read_text(encoding="utf-8")
    runner, parser = doctest.DocTestRunner(), doctest.DocTestParser()
    if quick.ordinary and any(hasattr(value, "py_func") for value in vars(module).values()):
        run_uncompiled(monkeypatch)
    names = dict(vars(module))
    for line, docstring in docstrings(text):
        runner.run(parser.get_doctest(docstring, names, name, path, line - 1))
    result = runner.summarize(verbose=False)
    assert not result.failed
    assert result.attempted == text.count(">>> ")  # none is passed over
