"""Planners, models and back ends by the names of their functions: `from entries import trees, alpha_beta, goal`.

They are called as users call them: options are checked against their declarations."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from antiphon.registry import call, table


def __getattr__(name: str) -> Callable[..., Any]:
    for kind in ("planner", "model", "backend"):
        for key, entry in table(kind).items():
            if entry.where.endswith(f":{name}"):
                return _checked(kind, key, entry.load())
    raise AttributeError(name)


def _checked(kind: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def checked(*args: Any, **options: Any) -> Any:
        return call(kind, name, function, options, *args)

    return checked
