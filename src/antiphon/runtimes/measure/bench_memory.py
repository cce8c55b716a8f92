"""The micro-benchmark of memory access (GenModel paper, section 3.1): the time of adding x vectors at once.

On a device: the time of a reduce of x ranks minus that of its messages alone, both launched step by step. `most`: the
greatest x.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.cost.fit import AdditionTime
from antiphon.errors import Invalid, unknown
from antiphon.runtimes.engine.launch import Failed
from antiphon.runtimes.measure.bench_loggp import fan_in
from antiphon.runtimes.measure.case import Case, How, Row, Runnable
from antiphon.runtimes.measure.device import STEPWISE
from antiphon.runtimes.measure.local import free_memory
from antiphon.select import plan
from antiphon.topologies import topology
from antiphon.units import format_size

MIN_BYTES = 1024  # below this only the calls themselves are measured
Vector = NDArray[Any]
ITEM = 4  # bytes of a float32


def bench_memory(
    most: int = 15,
    nbytes: int = 32 * 2**20,
    *,
    repeat: int = 5,
    threads: int = 1,
    on: str = "",
    progress: Callable[[str], None] | None = None,
) -> list[AdditionTime]:
    """Add 2 .. `most` vectors of `nbytes` (float32) into one, each `repeat` times after one to warm up: medians.

    With several threads each adds its own part. Needs (most + 1) * nbytes of memory. The sum is checked. `on`: a device
    of STEPWISE, which needs twice that; times that noise makes zero or less have no row.
    """
    _check_arguments(most, nbytes, repeat, threads)
    if on:
        return _on_device(on, most, nbytes, repeat, threads, progress or (lambda _: None))
    elements = nbytes // ITEM
    vectors = [np.full(elements, i + 1, np.float32) for i in range(most)]
    out = np.zeros(elements, np.float32)
    counts = range(2, most + 1)  # numbers of vectors
    seconds: dict[int, list[float]] = {x: [] for x in counts}
    with ThreadPoolExecutor(threads) as pool:
        for turn in range(repeat + 1):
            if progress is not None:
                phase = f"run {turn} of {repeat}" if turn else "warming up"
                progress(f"adding 2 to {most} vectors of {format_size(elements * ITEM)}: {phase}")
            for x in counts:  # in turn, so that disturbances slow all of them
                jobs = _split_work(vectors[:x], out, threads)
                began = time.perf_counter()
                if threads == 1:
                    [(vectors_of_job, out_of_job)] = jobs
                    add_all(vectors_of_job, out_of_job)
                else:
                    list(pool.map(lambda job: add_all(*job), jobs))
                spent = time.perf_counter() - began
                if turn:
                    seconds[x].append(spent)
                elif not (out == x * (x + 1) // 2).all():  # 1 + 2 + ... + x, as vector i holds i + 1
                    raise RuntimeError(f"the sum of {x} vectors is wrong")
    return [AdditionTime(x, elements * ITEM, median(seconds[x])) for x in counts]


def _on_device(
    on: str, most: int, nbytes: int, repeat: int, threads: int, progress: Callable[[str], None]
) -> list[AdditionTime]:
    """Return times of reduces minus those of their messages (first quartiles). Differences of zero or less are
    reported and left out."""
    if on not in STEPWISE:
        raise unknown("device", on, STEPWISE)
    if threads != 1:
        raise Invalid(f"threads: mean nothing to --on {on}; leave them out")
    runtime, how, counts = STEPWISE[on](), How(), range(2, most + 1)
    runtime.ready(how)
    elements = nbytes // ITEM
    # Two programs for each number of vectors x: the messages of x ranks with their sum, and without.
    programs, cases = list[Runnable](), list[Case]()
    program_kinds = list[tuple[int, bool]]()  # per program: x, and whether it adds
    for x in counts:
        machine = topology(f"full:ranks={x}")
        reduce, *_ = plan("reduce", machine, planner="direct", root=0).entries
        for adds, schedule in ((True, reduce.schedule), (False, fan_in(range(1, x), x))):
            nbytes_of_case = elements * ITEM * schedule.collective.buffer_weight
            program = len(programs)
            cases.append(Case(program, ranks=[*range(x)], unit=elements, nbytes=nbytes_of_case, repeat=repeat))
            programs.append(Runnable(schedule, machine))
            program_kinds.append((x, adds))
    seconds: dict[tuple[int, bool], float] = {}

    def on_row(number: int, row: Row) -> None:
        x, adds = program_kinds[number]
        if row["wrong"]:
            raise Failed(f"{row['wrong']} elements of {x} vectors were wrong; please report it")
        first_quartile, *_ = row["quartiles"]
        seconds[x, adds] = first_quartile  # disturbances only make a run longer
        if not adds:  # the second of the two
            progress(f"adding {x} vectors of {format_size(elements * ITEM)} on {on}")

    runtime.run(programs, cases, how, on_row)
    vectors, rows = f"vectors of {format_size(elements * ITEM)}", list[AdditionTime]()
    for x in counts:
        spent = seconds[x, True] - seconds[x, False]
        if spent > 0:
            rows.append(AdditionTime(x, elements * ITEM, spent))
        else:
            progress(f"{x} {vectors} are left out: with their sum they took no longer than without")
    if not rows:
        raise Invalid(f"{vectors} took no longer with their sums than without: take longer ones, or more runs of each")
    return rows


def _split_work(vectors: Sequence[Vector], out: Vector, threads: int) -> list[tuple[list[Vector], Vector]]:
    """Return the work of each thread: a range of all vectors, and that of their sum."""
    ends = [len(out) * thread // threads for thread in range(threads + 1)]
    return [([vector[low:high] for vector in vectors], out[low:high]) for low, high in pairwise(ends)]


def _check_arguments(most: int, nbytes: int, repeat: int, threads: int) -> None:
    if not 3 <= most <= 1000:
        raise Invalid(f"vectors: expected 3 to 1000 at most, got {most}; one number of vectors would tell nothing")
    if nbytes < MIN_BYTES:
        raise Invalid(f"nbytes: expected {MIN_BYTES} or more, far more than the caches hold, got {nbytes}")
    if repeat < 1 or threads < 1:
        raise Invalid(f"repeat and threads: expected 1 or more, got {repeat} and {threads}")
    room = free_memory()
    if room is not None and (most + 1) * nbytes > room:
        raise Invalid(
            f"{most} vectors of {format_size(nbytes)} and their sum need {(most + 1) * nbytes / 1e9:.1f} GB, of which "
            f"{room / 1e9:.1f} GB are free; take fewer or shorter ones"
        )


# ---- adding vectors, as GenModel counts it: each is read from memory once, the sum is written once ----

BLOCK = 2**16  # bytes of the sum, which stay in the core's cache


def add_all(vectors: Sequence[Vector], out: Vector) -> None:
    """out = the sum of two vectors or more, block by block: x vectors take x + 1 accesses of memory per element.

    Adding vector by vector would take 3 (x - 1), as the sum would go to memory and back every time. `out` may be the
    first of the vectors. Releases the interpreter's lock.
    """
    step = max(BLOCK // out.itemsize, 1)
    first, second, *rest = vectors
    for low in range(0, len(out), step):
        high = low + step
        sum_block = out[low:high]
        np.add(first[low:high], second[low:high], out=sum_block)
        for vector in rest:
            np.add(sum_block, vector[low:high], out=sum_block)
