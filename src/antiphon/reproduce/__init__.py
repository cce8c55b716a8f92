"""Tables of the papers, computed again beside the published figures (docs/reproduction.md)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from antiphon.deprecations import stay_callable

stay_callable(__name__)  # as the function antiphon.reproduce() of the previous version, with a warning


def names() -> list[dict[str, str]]:
    """Return all tables and figures that can be reproduced: name, description, and where each was published."""
    from antiphon.reproduce.table import TABLE

    return [{"name": name, "about": entry.about, "source": entry.can.source} for name, entry in TABLE.items()]


def reproduce(name: str, engine: str = "processes:1") -> Iterator[dict[str, Any]]:
    """Yield the rows of one table or figure as they are computed: name, published, ours, deviation, ok, note, ...

    Plain JSON values. `ok`: the published figure holds, or a proof refutes it; null: only its shape holds.
    `seconds`: CPU time from the previous row to this one, unless the row states its own.

    `engine` (isolate/_engines.py) computes the independent parts of a table whose function takes `each` (rows.py); of
    others a cluster computes the whole, and "processes" nothing.
    """
    from inspect import signature
    from time import process_time

    from antiphon.errors import unknown
    from antiphon.isolate import check_engine, run_each
    from antiphon.reproduce.table import TABLE

    if name not in TABLE:
        raise unknown("table to reproduce", name, TABLE)
    check_engine(engine)
    elsewhere = 0.0  # CPU seconds of workers, less those of waiting for them here

    def each(function: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        nonlocal elsewhere
        begin = process_time()
        for result, seconds in run_each(partial(_timed_result, function), arguments, engine):
            elsewhere += seconds - (process_time() - begin)
            yield result
            begin = process_time()

    begin = process_time()
    compute = TABLE[name].load()
    if "each" in signature(compute).parameters:
        rows: Iterator[dict[str, Any]] = compute(each)
    elif engine.startswith("processes"):  # the one job runs in this process, which prints rows as they come
        rows = compute()
    else:
        rows = itertools.chain.from_iterable(each(reproduce, [(name,)]))
    for row in rows:
        yield row if row["seconds"] != 0 else {**row, "seconds": process_time() - begin + elsewhere}
        begin, elsewhere = process_time(), 0.0


def _timed_result(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """Return what the function returns or yields, and its CPU seconds."""
    from time import process_time

    begin = process_time()
    result = function(*arguments)
    return list(result) if isinstance(result, Iterator) else result, process_time() - begin
