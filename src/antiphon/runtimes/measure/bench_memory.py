"""The micro-benchmark of memory access (GenModel paper, section 3.1): what adding x vectors at once takes here.

On a device it is what the engine takes for it: a reduce of x ranks less the same messages alone, step by step, so that
what is left is the fold.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from statistics import median

import numpy as np

from antiphon.cost.fit import Added
from antiphon.errors import Invalid, unknown
from antiphon.runtimes.engine.launch import Failed
from antiphon.runtimes.measure.adding import Vector, add_all
from antiphon.runtimes.measure.bench_radix import fan_in
from antiphon.runtimes.measure.case import Case, How, Row, Runnable
from antiphon.runtimes.measure.device import STEPWISE
from antiphon.runtimes.measure.memory import free_memory
from antiphon.select import plan
from antiphon.topologies import topology
from antiphon.units import format_size

LEAST = 1024  # bytes: below this nothing but the calls themselves is measured
ITEM = 4  # float32


def bench_memory(
    most: int = 15,
    nbytes: int = 32 * 2**20,
    *,
    repeat: int = 5,
    threads: int = 1,
    on: str = "",
    progress: Callable[[str], None] | None = None,
) -> list[Added]:
    """Add 2 .. `most` vectors of `nbytes` (float32) into one, each `repeat` times after one to warm up: medians.

    With several threads each adds a part of its own. Takes (most + 1) * nbytes of memory. The sum is checked. `on`: a
    device of STEPWISE, which takes twice that; numbers that it cannot tell from none are not among the rows.
    """
    _check(most, nbytes, repeat, threads)
    if on:
        return _on_device(on, most, nbytes, repeat, threads, progress or (lambda _: None))
    elements = nbytes // 4
    vectors = [np.full(elements, i + 1, np.float32) for i in range(most)]
    out = np.zeros(elements, np.float32)
    counts = range(2, most + 1)
    seconds: dict[int, list[float]] = {x: [] for x in counts}
    with ThreadPoolExecutor(threads) as pool:
        for turn in range(repeat + 1):
            if progress is not None:
                what = f"run {turn} of {repeat}" if turn else "warming up"
                progress(f"adding 2 to {most} vectors of {format_size(elements * 4)}: {what}")
            for x in counts:  # in turn: what slows the machine for a while slows them all
                jobs = _parts(vectors[:x], out, threads)
                began = time.perf_counter()
                if threads == 1:
                    add_all(*jobs[0])
                else:
                    list(pool.map(lambda job: add_all(*job), jobs))
                spent = time.perf_counter() - began
                if turn:
                    seconds[x].append(spent)
                elif not (out == x * (x + 1) // 2).all():
                    raise RuntimeError(f"the sum of {x} vectors is wrong")
    return [Added(x, elements * 4, median(seconds[x])) for x in counts]


def _on_device(on: str, most: int, nbytes: int, repeat: int, threads: int, tell: Callable[[str], None]) -> list[Added]:
    """First quartiles of reduces, less those of their messages; what noise makes nothing or less is left out, and told:
    it measures nothing."""
    if on not in STEPWISE:
        raise unknown("device", on, STEPWISE)
    if threads != 1:
        raise Invalid(f"threads: mean nothing to --on {on}; leave them out")
    there, how, counts = STEPWISE[on](), How(), range(2, most + 1)
    there.ready(how)
    elements = nbytes // ITEM
    programs, cases = list[Runnable](), list[Case]()
    for x in counts:
        machine = topology(f"full:ranks={x}")
        reduce = plan("reduce", machine, planner="direct", root=0).entries[0].schedule
        for schedule in (reduce, fan_in(range(1, x), x)):
            whole = elements * ITEM * schedule.collective.buffer_weight
            cases.append(Case(len(programs), [*range(x)], elements, whole, repeat=repeat))
            programs.append(Runnable(schedule, machine))
    seconds: dict[int, float] = {}

    def heard(number: int, row: Row) -> None:
        x = number // 2 + 2
        if row["wrong"]:
            raise Failed(f"{row['wrong']} elements of {x} vectors were wrong; please report it")
        seconds[number] = row["quartiles"][0]  # what disturbs a run only makes it longer
        if number % 2:
            tell(f"adding {x} vectors of {format_size(elements * ITEM)} on {on}")

    there.run(programs, cases, how, heard)
    vectors, rows = f"vectors of {format_size(elements * ITEM)}", list[Added]()
    for number, x in enumerate(counts):
        spent = seconds[2 * number] - seconds[2 * number + 1]
        if spent > 0:
            rows.append(Added(x, elements * ITEM, spent))
        else:
            tell(f"{x} {vectors} are left out: with their sum they took no longer than without")
    if not rows:
        raise Invalid(f"{vectors} took no longer with their sums than without: take longer ones, or more runs of each")
    return rows


def _parts(vectors: Sequence[Vector], out: Vector, threads: int) -> list[tuple[list[Vector], Vector]]:
    """The work of each thread: adjoining parts of all vectors."""
    ends = [len(out) * t // threads for t in range(threads + 1)]
    return [([v[low:high] for v in vectors], out[low:high]) for low, high in pairwise(ends)]


def _check(most: int, nbytes: int, repeat: int, threads: int) -> None:
    if not 3 <= most <= 1000:
        raise Invalid(f"vectors: expected 3 to 1000 at most, got {most}; one number of vectors would tell nothing")
    if nbytes < LEAST:
        raise Invalid(f"nbytes: expected {LEAST} or more, far more than the caches hold, got {nbytes}")
    if repeat < 1 or threads < 1:
        raise Invalid(f"repeat and threads: expected 1 or more, got {repeat} and {threads}")
    room = free_memory()
    if room is not None and (most + 1) * nbytes > room:
        raise Invalid(
            f"{most} vectors of {format_size(nbytes)} and their sum need {(most + 1) * nbytes / 1e9:.1f} GB, of which "
            f"{room / 1e9:.1f} GB are free; take fewer or shorter ones"
        )
