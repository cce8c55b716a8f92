"""Accept parameters that `tune` had in the previous version, now in `Search` or in `antiphon.measure.tune`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from antiphon.api.search import FIELDS, Search, as_search
from antiphon.deprecations import warn_old
from antiphon.errors import Invalid

P = ParamSpec("P")
R = TypeVar("R")
MEASURING = (
    "factor", "few", "dtype", "op", "iterations", "warmup", "limit", "mpiexec", "compiler", "scale", "library_only",
)  # fmt: skip


def old_search_options(function: Callable[P, R]) -> Callable[P, R]:
    """Accept the fields of `Search` as keywords, too, with a warning."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        options: dict[str, Any] = dict(kwargs)
        old = {name: options.pop(name) for name in FIELDS if name in options}
        if old:
            values = {name: value for name, value in old.items() if value is not None}
            listed = ", ".join(f"{name}=..." for name in old)
            warn_old(f"antiphon.{function.__name__}(..., {listed})", f"search=antiphon.Search({listed})")
            new = as_search(options.get("search"))
            options["search"] = Search(**{**{name: getattr(new, name) for name in FIELDS}, **values})
        return cast(R, cast(Any, function)(*args, **options))

    return call


def old_measuring(function: Callable[P, R]) -> Callable[P, R]:
    """Accept `on` and the options for measuring, too, with a warning, and call `antiphon.measure.tune`."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        options: dict[str, Any] = dict(kwargs)
        on = options.pop("on", None)
        measuring = {name: options.pop(name) for name in MEASURING if name in options}
        measuring = {name: value for name, value in measuring.items() if value is not None}
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
