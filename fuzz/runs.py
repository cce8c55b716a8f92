"""Runs against the definition: NumPy says what every rank must end with, and the interpreter (step by step, and in any
order), the program and the native engine (ranks as threads; now and then as MPI processes) must give just that.

Correct schedules of all planners and of the tests' generator, every type and operator, in place and not, 0 elements,
fewer elements than chunks, and sizes that nothing divides. All that must stay as it was is looked at too.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from _definition import OPERATORS, POISON, TYPES, Array, Definition
from _harness import CASES, ROOT, Found, main
from asynchronous import interpret_async
from generate import case
from program_run import run_program
from schedules import planned

from antiphon.core.interpret import interpret
from antiphon.core.plan import Plan
from antiphon.core.program import encode
from antiphon.core.schedule import Schedule
from antiphon.core.serialize import dumps
from antiphon.core.topology import Topology
from antiphon.errors import Unsupported
from antiphon.formats.program import lower

NAME = "runs"
UNITS = (0, 1, 1, 2, 3, 5, 7, 13)
MOST_ROWS = 150
MPI_EVERY = 200  # seeds; one of them also makes a launch, if there is an MPI
MPI_RANKS = 4
MPI_RUNS = 40  # in one launch


def drawn(rng: random.Random, most_ranks: int = 6) -> tuple[Schedule, Topology] | None:
    """A correct schedule of an ordinary size."""
    if rng.random() < 0.5:
        found = planned(rng, most_ranks)
    else:
        made = case(rng.randrange(2**32), most_ranks=most_ranks)
        found = made.schedule, made.topology
    return found if found is not None and found[0].transfers <= MOST_ROWS else None


def asked(rng: random.Random) -> tuple[int, str, str, int]:
    """A size (elements of a unit of weight), a type, an operator, a seed of the data."""
    return rng.choice(UNITS), rng.choice(TYPES), rng.choice(OPERATORS), rng.randrange(2**32)


def stepwise(schedule: Schedule, given: list[Array], op: str, in_place: bool, unit: int, seed: int) -> list[Array]:
    return interpret(schedule, given, op=op, dtype=given[0].dtype, in_place=in_place)


def any_order(schedule: Schedule, given: list[Array], op: str, in_place: bool, unit: int, seed: int) -> list[Array]:
    return interpret_async(schedule, given, op=op, dtype=given[0].dtype, in_place=in_place, seed=seed)


def program(schedule: Schedule, given: list[Array], op: str, in_place: bool, unit: int, seed: int) -> list[Array]:
    return run_program(lower(schedule, in_place=in_place), given, op=op, dtype=given[0].dtype, seed=seed)


@cache
def engine() -> Any:
    """The native engine for threads; None where there is no compiler."""
    if shutil.which("cc") is None:
        return None
    from antiphon.runtimes.engine.build import library
    from antiphon.runtimes.engine.native import Engine

    return Engine(library("threads"))


def threads(schedule: Schedule, given: list[Array], op: str, in_place: bool, unit: int, seed: int) -> list[Array]:
    ranks, outputs, faults = len(given), list(given), list[BaseException]()
    data = encode([lower(schedule, in_place=in_place)])
    opened, dtype = engine().program(data), given[0].dtype
    plans = [opened.plan(rank, unit, in_place, None) for rank in range(ranks)]
    wires = engine().threads(ranks)

    def go(rank: int) -> None:
        try:
            if not in_place:
                outputs[rank] = np.full(plans[rank].needs.output, POISON, dtype)
            plans[rank].run(None if in_place else given[rank], outputs[rank], wires[rank], op, 60.0)
        except BaseException as error:
            faults.append(error)

    running = [threading.Thread(target=go, args=(rank,)) for rank in range(ranks)]
    for one in running:
        one.start()
    for one in running:
        one.join()
    for wire in wires:
        wire.close()
    if faults:
        raise faults[0]
    return outputs


Runner = Callable[[Schedule, list[Array], str, bool, int, int], list[Array]]
RUNNERS: dict[str, Runner] = {
    "step by step": stepwise, "in any order": any_order, "as a program": program, "by threads": threads,
}  # fmt: skip


def compare(what: str, found: list[Array], definition: Definition, in_place: bool) -> str | None:
    for rank, mine in enumerate(found):
        theirs = definition.after(rank, in_place)
        if mine.dtype != theirs.dtype or mine.shape != theirs.shape or not np.array_equal(mine, theirs):
            return f"{what}: rank {rank} ends with {mine[:20].tolist()}, not with {theirs[:20].tolist()}"
    return None


def one(seed: int, counts: Counter[str]) -> None:
    if seed % MPI_EVERY == MPI_EVERY // 2:
        under_mpi(seed, counts)
    rng = random.Random(f"{NAME} {seed}")
    base = drawn(rng)
    if base is None:
        return
    schedule, machine = base
    for _ in range(2):
        unit, dtype, op, of_data = asked(rng)
        definition = Definition(schedule.collective, unit, dtype, op, of_data)
        in_place = rng.random() < 0.5 and definition.fits_in_place()
        told = f"{schedule.collective.kind}, unit {unit}, {dtype}, {op}, {'in place' if in_place else 'out of place'}"
        for what, runner in RUNNERS.items():
            if what == "by threads" and engine() is None:
                counts["no compiler"] += 1
                continue
            given = [definition.before(rank, in_place) for rank in range(definition.ranks)]
            try:
                found = runner(schedule, given, op, in_place, unit, rng.randrange(2**31))
            except Unsupported:
                counts["refused"] += 1
                continue
            counts[CASES] += 1
            counts[what] += 1
            wrong = compare(what, found, definition, in_place)
            untouched = in_place or all(
                np.array_equal(a, definition.before(rank, False)) for rank, a in enumerate(given)
            )
            if wrong or not untouched:
                message = f"{told}: {wrong or f'{what}: an input was written to'}"
                raise Found(message, {"plan.json": dumps(Plan.of(machine, schedule))})


# ---- MPI ----


def under_mpi(seed: int, counts: Counter[str]) -> None:
    """Many runs in one launch: every process makes the same ones from the seed, and looks at its own result."""
    from mpi_env import mpich, openmpi

    launchers = [found for found in (openmpi(), mpich()) if found is not None]
    if not launchers:
        counts["no MPI"] += 1
        return
    mpi = launchers[seed // MPI_EVERY % len(launchers)]
    from antiphon.runtimes.engine.build import library

    path = library("mpi", mpi.mpicc)
    own = [mpi.python, str(Path(__file__).resolve().parent / "_runs_mpi.py"), str(path), str(seed)]
    done = subprocess.run(
        [*mpi.mpiexec(MPI_RANKS), *own], env=mpi.env, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    said = [line for line in done.stdout.splitlines() if line.startswith("runs ")]
    if done.returncode or len(said) != 1:
        raise Found(f"under {mpi.name}: {(done.stdout + done.stderr)[-1500:]}")
    counts[CASES] += int(said[0].split()[1])
    counts[f"under {mpi.name}"] += int(said[0].split()[1])


if __name__ == "__main__":
    main(NAME, one, 3_000, __doc__)
