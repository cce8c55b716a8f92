"""Planners, models and back ends by the names of their functions: `from entries import trees, alpha_beta, goal`."""

from collections.abc import Callable
from typing import Any

from antiphon.registry import table


def __getattr__(name: str) -> Callable[..., Any]:
    for kind in ("planner", "model", "backend"):
        for entry in table(kind).values():
            if entry.where.endswith(f":{name}"):
                return entry.load()
    raise AttributeError(name)
