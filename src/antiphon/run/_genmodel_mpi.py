"""What every MPI process of `antiphon bench genmodel` runs: plans timed among the first 2, 3, ... of the processes.

Started as `python -m antiphon.run._genmodel_mpi JSON`; rank 0 prints a line for every measurement.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from antiphon.run._adding import Vector, add_all
from antiphon.run._launch import MARK

WRONG, SMALL = "wrong", "alone"  # faults
IDLE = 1e-3  # seconds between two looks of a process that waits for its turn: it must not take time from the others
LARGEST = 97  # whole numbers below this are summed: exactly, in float32, for up to 2^24 / 97 ranks


@dataclass(frozen=True)
class Task:
    """What to measure. `expected`: how many processes there should be."""

    expected: int
    ranks: list[int]
    sizes: list[int]
    plans: list[str]
    iterations: int = 20
    warmup: int = 3


@dataclass
class Bench:
    """One plan among the processes of `comm`, its buffers made once: call `step` as often as wanted, then `correct`."""

    comm: Any
    mpi: Any
    nbytes: int
    data: Vector = field(init=False)
    out: Vector = field(init=False)
    inbox: Vector = field(init=False)
    ends: list[int] = field(init=False)

    def __post_init__(self) -> None:
        n = max(self.nbytes // 4, 1)
        count = self.comm.size
        self.ends = [n * i // count for i in range(count + 1)]
        self.data = self.given(self.comm.rank, n)
        self.out = np.zeros(n, np.float32)
        self.inbox = np.zeros((count, max(self.widths)), np.float32)

    @property
    def widths(self) -> list[int]:
        return [high - low for low, high in pairwise(self.ends)]

    def given(self, rank: int, n: int) -> Vector:
        made: Vector = ((np.arange(n) * 7 + rank * 13) % LARGEST).astype(np.float32)
        return made

    def block(self, vector: Vector, i: int) -> Vector:
        return vector[self.ends[i] : self.ends[i + 1]]

    def step(self) -> None:
        raise NotImplementedError

    def correct(self) -> bool:
        """Whether every element of this process is the sum of all given ones."""
        n = len(self.data)
        whole = np.zeros(n, np.float32)
        for rank in range(self.comm.size):
            whole += self.given(rank, n)
        return bool((self.out == whole).all())


class Colocated(Bench):
    """Every rank serves a block: all send to all, each adds what came at once and sends the sum to all."""

    def step(self) -> None:
        comm, me = self.comm, self.comm.rank
        others = [(me + d) % comm.size for d in range(1, comm.size)]
        mine = self.ends[me + 1] - self.ends[me]
        waiting = [comm.Irecv([self.inbox[o][:mine], self.mpi.FLOAT], o, 1) for o in others]
        waiting += [comm.Isend([self.block(self.data, o), self.mpi.FLOAT], o, 1) for o in others]
        self.mpi.Request.Waitall(waiting)
        served = self.block(self.out, me)
        add_all([self.block(self.data, me), *(self.inbox[o][:mine] for o in others)], served)
        waiting = [comm.Irecv([self.block(self.out, o), self.mpi.FLOAT], o, 2) for o in others]
        waiting += [comm.Isend([served, self.mpi.FLOAT], o, 2) for o in others]
        self.mpi.Request.Waitall(waiting)


class Ring(Bench):
    """Blocks go round once to be summed and once more to be known."""

    def step(self) -> None:
        comm, me, n = self.comm, self.comm.rank, self.comm.size
        left, right = (me - 1) % n, (me + 1) % n
        np.copyto(self.out, self.data)
        for turn in range(2 * (n - 1)):
            away, here = (me - turn) % n, (me - turn - 1) % n
            into = self.inbox[0][: self.widths[here]] if turn < n - 1 else self.block(self.out, here)
            request = comm.Irecv([into, self.mpi.FLOAT], left, 3)
            comm.Send([self.block(self.out, away), self.mpi.FLOAT], right, 3)
            request.Wait()
            if turn < n - 1:
                target = self.block(self.out, here)
                add_all([target, into], target)


class Incast(Bench):
    """Everyone sends to everyone, each receives nbytes in all and combines nothing (equation 6)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        part = max(self.nbytes // 4 // max(self.comm.size - 1, 1), 1)
        self.data = self.given(self.comm.rank, part)
        self.inbox = np.zeros((self.comm.size, part), np.float32)

    def step(self) -> None:
        comm, me = self.comm, self.comm.rank
        others = [(me + d) % comm.size for d in range(1, comm.size)]
        waiting = [comm.Irecv([self.inbox[o], self.mpi.FLOAT], o, 4) for o in others]
        waiting += [comm.Isend([self.data, self.mpi.FLOAT], o, 4) for o in others]
        self.mpi.Request.Waitall(waiting)

    def correct(self) -> bool:
        others = [o for o in range(self.comm.size) if o != self.comm.rank]
        return all(bool((self.inbox[o] == self.given(o, len(self.data))).all()) for o in others)


PLANS: dict[str, type[Bench]] = {"cps": Colocated, "ring": Ring, "incast": Incast}


def measure(task: Task, mpi: Any, world: Any) -> Iterator[dict[str, Any]]:
    """On rank 0 a row or a fault for every plan, number of ranks and size; nothing on the others."""
    if world.size != task.expected:
        yield {"fault": SMALL, "processes": world.size}
        return
    for count in task.ranks:
        comm = world.Split(0 if world.rank < count else 1, world.rank)
        for plan in task.plans:
            for nbytes in task.sizes:
                seconds, right = _timed(PLANS[plan], comm, mpi, nbytes, task) if world.rank < count else (0.0, True)
                _wait(world)
                if world.rank == 0:
                    row = {"plan": plan, "ranks": count, "nbytes": nbytes, "seconds": seconds}
                    yield row if right else {**row, "fault": WRONG}
        comm.Free()


def _timed(kind: type[Bench], comm: Any, mpi: Any, nbytes: int, task: Task) -> tuple[float, bool]:
    """The median over iterations of what the slowest process took, and whether all were right."""
    bench = kind(comm, mpi, nbytes)
    spent = np.zeros(task.iterations)
    for turn in range(-task.warmup, task.iterations):
        comm.Barrier()
        began = mpi.Wtime()
        bench.step()
        if turn >= 0:
            spent[turn] = mpi.Wtime() - began
    slowest = np.zeros_like(spent)
    comm.Allreduce([spent, mpi.DOUBLE], [slowest, mpi.DOUBLE], op=mpi.MAX)
    right = comm.allreduce(bench.correct(), op=mpi.LAND)
    return float(median(slowest.tolist())), bool(right)


def _wait(world: Any) -> None:
    """A barrier in which processes sleep."""
    request = world.Ibarrier()
    while not request.Test():
        time.sleep(IDLE)


def run(task: Task, tell: Callable[[dict[str, Any]], None]) -> bool:
    """Measure as one of the processes that a launcher started; True on rank 0, which alone is told rows."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    for row in measure(task, MPI, world):
        if world.rank == 0:
            tell(row)
    return bool(world.rank == 0)


def main(text: str) -> None:
    run(Task(**json.loads(text)), lambda row: print(MARK + json.dumps(row), flush=True))


def as_argument(task: Task) -> str:
    return json.dumps(asdict(task))


if __name__ == "__main__":
    main(sys.argv[1])
