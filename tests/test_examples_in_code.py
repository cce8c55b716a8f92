"""Worked examples in docstrings say what comes out."""

import ast
import doctest
import importlib
from pathlib import Path

import pytest
import quick

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "antiphon"
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


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


@pytest.mark.parametrize("name", with_examples())
def test_an_example_holds(name: str) -> None:
    module = importlib.import_module(name.removesuffix(".__init__"))
    path = str(module.__file__)
    text = Path(path).read_text(encoding="utf-8")
    runner, parser = doctest.DocTestRunner(), doctest.DocTestParser()
    names = dict(vars(module))
    if quick.ordinary:  # without compiling for each example: the same functions as Python
        names = {key: getattr(value, "py_func", value) for key, value in names.items()}
    for line, docstring in docstrings(text):
        runner.run(parser.get_doctest(docstring, names, name, path, line - 1))
    result = runner.summarize(verbose=False)
    assert not result.failed
    assert result.attempted == text.count(">>> ")  # none is passed over
