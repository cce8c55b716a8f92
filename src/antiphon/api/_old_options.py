"""Decorators of public functions that accept parameters of the previous version, with a deprecation warning.

They are now fields of `Search`, or parameters of `antiphon.measure.tune`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from antiphon.api.search import FIELDS, Search, as_search
from antiphon.deprecations import warn_old
from antiphon.errors import Invalid

P = ParamSpec("P")
R = TypeVar("R")
MEASURING = (  # parameters of `antiphon.measure.tune`
    "factor", "few", "dtype", "op", "iterations", "warmup", "limit", "mpiexec", "compiler", "scale", "library_only",
)  # fmt: skip


def old_search_options(function: Callable[P, R]) -> Callable[P, R]:
    """Accept the fields of `Search` also as keywords, with a warning; they override those of `search`."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        options: dict[str, Any] = dict(kwargs)
        keywords = {name: options.pop(name) for name in FIELDS if name in options}
        if keywords:
            values = {name: value for name, value in keywords.items() if value is not None}  # else as in `search`
            keywords_text = ", ".join(f"{name}=..." for name in keywords)
            warn_old(f"antiphon.{function.__name__}(..., {keywords_text})", f"search=antiphon.Search({keywords_text})")
            search = as_search(options.get("search"))
            options["search"] = Search(**{**{name: getattr(search, name) for name in FIELDS}, **values})
        return cast(R, cast(Any, function)(*args, **options))

    return call


def old_measuring(function: Callable[P, R]) -> Callable[P, R]:
    """Accept also `on` and options for measuring: with `on`, warn and call `antiphon.measure.tune`."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        options: dict[str, Any] = dict(kwargs)
        on = options.pop("on", None)
        measuring = {name: options.pop(name) for name in MEASURING if name in options}
        measuring = {name: value for name, value in measuring.items() if value is not None}  # None: as not passed
        if on is None:
            if measuring:
                raise Invalid(f"{next(iter(measuring))}: is only for measuring; give on, too, or leave it out")
            return cast(R, cast(Any, function)(*args, **options))
        for name in ("nccl", "against"):
            if options.pop(name, None) is not None:
                raise Invalid(f"{name}: cannot be combined with on={on!r}; leave one of them out")
        warn_old("antiphon.tune(..., on=...)", "antiphon.measure.tune(..., on=...)")
        from antiphon.api.measuring import tune

        return cast(R, cast(Any, tune)(*args, on=on, **options, **measuring))

    return call
