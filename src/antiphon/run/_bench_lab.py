"""Measuring schedules in the emulated cluster. There is no library's own to compare with; what it should take, the
lab knows."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from antiphon.errors import Unsupported
from antiphon.lower.program import lower
from antiphon.run._bench_wanted import How, Row, Wanted
from antiphon.run._build import library
from antiphon.run._lab_keeping import name_of, need_root, standing

NONE = ("reference_seconds", "reference_quartiles", "reference_wrong", "ratio", "ratio_quartiles")


def ready(mpiexec: str, compiler: str) -> None:
    """Missing where no lab can be made, or no engine for it."""
    need_root()
    library("sockets", compiler)


def measure(
    wanted: Sequence[Wanted], how: How, heard: Callable[[Row | None], None], enough: Callable[[], bool] = lambda: False
) -> None:
    """See `Measure`. One lab for all of a machine, unless one is up; its own warm-up is one run."""
    run = importlib.import_module("antiphon.run.lab").lab_run
    with ExitStack() as stack:
        up: set[int] = set()
        for one in wanted:
            if enough():
                return
            if id(one.topology) not in up:
                up.add(id(one.topology))
                stack.enter_context(standing(one.topology, how.scale, name_of(one.topology)))
            if one.in_place and not _in_place(one):
                heard(None)
                continue
            (row,) = run(
                one.schedule, one.topology, one.nbytes, one.dtype, one.op, how.seed, how.iterations, one.in_place,
                scale=how.scale, timeout=how.timeout,
            )  # fmt: skip
            told = {key: row[key] for key in ("seconds", "wrong", "predicted_seconds")}
            heard({**told, "quartiles": row.get("quartiles", [row["least"], row["most"]]), **dict.fromkeys(NONE)})


def _in_place(one: Wanted) -> bool:
    try:
        lower(one.schedule, in_place=True)
    except Unsupported:
        return False
    return True
