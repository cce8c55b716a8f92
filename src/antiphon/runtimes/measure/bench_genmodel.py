"""Measure the data for `fit genmodel`: three algorithms among 2, 3, ... ranks, as schedules on a runtime.

    cps      co-located parameter servers: every rank reduces one block of all and sends it back, in two steps
    ring     a ring allreduce
    incast   every rank sends its block to all others at once, and nothing is combined (x-to-x)

Their times grow differently with the number of ranks. The times of cps determine alpha, G = 2 beta + gamma, delta and
the slowdown by incast. Those of plan incast separate beta from gamma, as it combines nothing. Plan ring is a further
check, which is not among the default plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from antiphon.core.collective import Collective, custom_relation
from antiphon.core.schedule import COPY, Schedule, cut
from antiphon.cost.fit import PlanTime, plan_of
from antiphon.errors import Invalid, unknown
from antiphon.registry import find
from antiphon.runtimes.engine.launch import Failed, count_processes, is_launched
from antiphon.runtimes.measure.case import Case, How, Row, Runnable
from antiphon.runtimes.measure.rows import deciding_process, load_runtime
from antiphon.select import plan
from antiphon.topologies import topology
from antiphon.units import format_seconds, format_size

Progress = Callable[[str], None]
MAX_RANKS = 4096  # processes; a wrong number ends before memory does
ITEM = 4  # bytes of a float32
# plan -> (planner, its options); "": no planner, see `_incast_schedule`
PLANS = {"cps": ("colocated-ps", {}), "ring": ("ring", {"directions": 1}), "incast": ("", {})}


def bench_genmodel(
    ranks: int | None = None,
    sizes: Sequence[int] = (2**18, 2**20, 2**22),
    *,
    plans: Sequence[str] = ("cps", "incast"),
    iterations: int = 20,
    warmup: int = 3,
    on: str = "mpi",
    mpiexec: str = "",
    timeout: float = 600.0,
    progress: Progress | None = None,
) -> list[PlanTime] | None:
    """Time each plan among the first 2, 3, ... `ranks` ranks, for each size: medians of the slowest rank.

    They are schedules, run by the engine like all others. Each message goes in one piece, as the formulas assume.
    `ranks`: default 4; under a launcher it is the number of processes, and only the first one returns rows, all others
    None. `sizes`: bytes. `plans`: of PLANS. `timeout`: seconds for everything. Every element of the results is checked.
    Raises Missing if the runtime lacks something it needs.
    """
    how = How(mpiexec=mpiexec, timeout=timeout)
    how.refuse_unless(on, find("runtime", on).can.options)
    with deciding_process(on, how) as deciding:
        if not deciding:
            return None
        count = count_processes(ranks) if is_launched() else 4 if ranks is None else ranks
        checked_sizes = _check_arguments(count, sizes, plans, iterations, warmup)
        programs, cases, names = list[Runnable](), list[Case](), list[str]()
        # One program per plan and number of ranks, one case per program and size. split=0: messages are not cut.
        for group_size in range(2, count + 1):
            for name in dict.fromkeys(plans):
                schedule = schedule_of(name, group_size)
                weight = schedule.collective.buffer_weight
                for nbytes in checked_sizes:
                    unit = max(nbytes // ITEM // weight, 1)
                    cases.append(
                        Case(
                            program=len(programs),
                            ranks=[*range(group_size)],
                            unit=unit,
                            nbytes=nbytes,
                            repeat=iterations,
                            warmup=warmup,
                            split=0,
                        )
                    )
                    names.append(name)
                programs.append(Runnable(schedule, topology(f"full:ranks={group_size}")))
        measurements: list[PlanTime] = []

        def on_row(number: int, row: Row) -> None:
            name, case = names[number], cases[number]
            group_size, description = len(case.ranks), f"{name}, {len(case.ranks)} ranks, {format_size(case.nbytes)}"
            if row["wrong"]:
                raise Failed(f"{description}: {row['wrong']} elements were wrong; please report it")
            measurements.append(PlanTime(plan_of(name, group_size), group_size, case.nbytes, row["seconds"]))
            if progress is not None:
                progress(f"{description}: {format_seconds(row['seconds'])}")

        load_runtime(on).run(programs, cases, how, on_row)
    return measurements


def schedule_of(name: str, ranks: int) -> Schedule:
    """Return the schedule of a plan that `fit genmodel` has a formula for; Invalid for unknown names."""
    if name not in PLANS:
        raise unknown("plan", name, PLANS)
    planner, options = PLANS[name]
    if not planner:
        return _incast_schedule(ranks)
    machine = topology(f"full:ranks={ranks}")
    return plan("allreduce", machine, planner=planner, options=options).entries[0].schedule


def _incast_schedule(ranks: int) -> Schedule:
    """Return a schedule in which every rank sends its block to all others at once, combining nothing (GenModel, Eq. 6).

    The largest buffer is what a rank receives."""
    pairs = [(src, dst) for src in range(ranks) for dst in range(ranks) if src != dst]
    # rows (block, rank, contribution) and (block, rank, wanted contributions; None: all); block r is that of rank r
    relation = custom_relation([(r, r, r) for r in range(ranks)], [(src, dst, None) for src, dst in pairs], ranks)
    collective = Collective("custom", ranks, custom=relation)
    src, dst = np.array(pairs).T
    step, chunk = np.zeros(len(src), int), src  # chunk r is block r, which rank r sends
    return Schedule(collective, cut(collective, parts=1), step, chunk, src, dst, np.full(len(src), COPY))


def _check_arguments(count: int, sizes: Sequence[int], plans: Sequence[str], iterations: int, warmup: int) -> list[int]:
    """Check the arguments; return the sizes in whole elements."""
    if not 2 <= count <= MAX_RANKS:
        raise Invalid(f"ranks: expected 2 to {MAX_RANKS}, got {count}")
    for name in plans:
        if name not in PLANS:
            raise unknown("plan", name, PLANS)
    if not sizes or min(sizes) < ITEM:
        raise Invalid("nbytes: expected sizes from 4 bytes on (one float)")
    if iterations < 1 or warmup < 0:
        raise Invalid(f"iterations and warm-up: expected 1 or more and 0 or more, got {iterations} and {warmup}")
    return list(dict.fromkeys(size - size % ITEM for size in sizes))
