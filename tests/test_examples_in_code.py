"""Worked examples in docstrings say what comes out."""

import doctest
import importlib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "antiphon"


def with_examples() -> list[str]:
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")]
    return [".".join(("antiphon", *path.relative_to(PACKAGE).with_suffix("").parts)) for path in paths]


def test_there_are_some() -> None:
    assert "antiphon.core.columns" in with_examples()


@pytest.mark.parametrize("name", with_examples())
def test_an_example_holds(name: str) -> None:
    module = importlib.import_module(name.removesuffix(".__init__"))
    result = doctest.testmod(module)
    assert not result.failed
    assert result.attempted == Path(str(module.__file__)).read_text(encoding="utf-8").count(
        ">>> "
    )  # none is passed over
