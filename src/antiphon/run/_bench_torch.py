"""Measuring schedules under PyTorch, beside gloo's own collectives."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from antiphon.core.plan import Plan
from antiphon.core.program import encode
from antiphon.errors import Invalid, Missing, Unsupported
from antiphon.lower.program import both
from antiphon.run._bench_wanted import How, Row, Wanted
from antiphon.run._build import library
from antiphon.run._launch import Failed, watch
from antiphon.run._mpi_job import taking_part
from antiphon.run._mpi_process import Case, Job
from antiphon.select import save_plans

KINDS = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "gather", "scatter", "alltoall")
IN_PLACE = ("allreduce", "allgather", "broadcast", "reduce")  # what PyTorch has in place


def ready(mpiexec: str, compiler: str) -> None:
    """Missing without PyTorch, or an engine."""
    if find_spec("torch") is None:
        raise Missing("to run under PyTorch needs the package torch: pip install 'antiphon[torch]'")
    library("sockets", compiler)


def measure(
    wanted: Sequence[Wanted], how: How, heard: Callable[[Row | None], None], enough: Callable[[], bool] = lambda: False
) -> None:
    """See `Measure`. One launch, on this machine; what PyTorch has in place only is out of place with a copy."""
    plans: dict[int, int] = {}
    programs: list[bytes] = []
    cases: list[Case | None] = []
    with tempfile.TemporaryDirectory(prefix="antiphon-") as name:
        folder = Path(name)
        for one in wanted:
            if id(one.schedule) not in plans:
                _refuse(one)
                plans[id(one.schedule)] = len(programs)
                save_plans(folder / f"plan{len(programs)}.json", {"plan": _plan(one)}, table=False)
                programs.append(encode(both(one.schedule)))
            case = Case(
                plans[id(one.schedule)], taking_part(one.schedule), one.unit, one.nbytes, one.dtype, one.op,
                one.in_place, how.seed, how.iterations, how.warmup,
            )  # fmt: skip
            able = not one.in_place or one.schedule.collective.kind in IN_PLACE
            cases.append(case if able else None)
        _run(folder, programs, cases, how, heard, enough)


def _plan(one: Wanted) -> Plan:
    return Plan.of(one.topology, one.schedule)


def _refuse(one: Wanted) -> None:
    collective = one.schedule.collective
    uneven = len(set(collective.weights.tolist())) > 1 or len(collective.roots) > 1
    if collective.kind not in KINDS or uneven or len(collective.members) != collective.ranks:
        raise Unsupported("--on torch: takes the eight collectives among all ranks, with even counts and one root")


def _run(
    folder: Path, programs: Sequence[bytes], cases: Sequence[Case | None], how: How,
    heard: Callable[[Row | None], None], enough: Callable[[], bool],
) -> None:  # fmt: skip
    some = [case for case in cases if case is not None]
    counts = {len(case.ranks) for case in some}
    if len(counts) > 1:
        raise Invalid("--on torch: the plans are for different numbers of ranks; measure one at a time")
    Job("", counts.pop(), list(programs), some).write(folder)
    left = iter(cases)
    told: list[Row] = []

    def hear(row: Row) -> None:
        if "fault" in row:
            raise Failed(f"PyTorch: {row['fault']}")
        told.append(row)
        for case in left:
            if case is not None:
                heard(row)
                break
            heard(None)
        if enough() and len(told) < len(some):
            raise _Stopped

    try:
        watch([sys.executable, "-m", "antiphon.run._bench_torch_process", str(folder)], hear, how.timeout, str(folder))
    except _Stopped:
        return
    if len(told) != len(some):
        raise Failed(f"PyTorch ended after {len(told)} of {len(some)} runs")
    for _ in left:
        heard(None)


class _Stopped(Exception):
    """Enough is known."""
