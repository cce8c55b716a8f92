"""Packages that take seconds to load and that few tests use: not while all tests are collected, in every process."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Later:
    """A module, imported when something of it is first asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)
