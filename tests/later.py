"""Packages that take seconds to load and that few tests use: not while all tests are collected, in every process."""

from importlib import import_module
from typing import Any


class Later:
    """A module, imported when something public of it is first asked for: pytest asks all that it collects for names of
    its own."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)
