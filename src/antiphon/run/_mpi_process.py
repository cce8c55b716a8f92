"""What every MPI process of `run` and `bench --on mpi` does: cases one after another, each checked in every element.

Started as `python -m antiphon.run._mpi_process FOLDER`: rank 0 reads the job there and prints a line for every case.
Where a launcher started the command itself, process 0 may `work` on one job after another; the others `follow`, until
it says that there are no more (`dismiss`).
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.collective import Collective
from antiphon.core.datatypes import data_type
from antiphon.core.program import decode
from antiphon.errors import AntiphonError
from antiphon.run._case import in_turn
from antiphon.run._launch import MARK
from antiphon.run._mpi_data import RankData
from antiphon.run._mpi_reference import reference
from antiphon.run._native import Engine, Program

Array = NDArray[Any]
SMALL = "alone"  # fault: fewer processes than wanted
GRACE = 0.5  # seconds for what was said to get through: Open MPI may spoil the last line of one who aborts
IDLE = 1e-3  # seconds between two looks of a process that waits for its turn


@dataclass(frozen=True)
class Case:
    """One run. `program`: which of the job's; `ranks`: which of its ranks are processes, in their order."""

    program: int
    ranks: list[int]
    unit: int
    nbytes: int
    dtype: str = "float32"
    op: str = "sum"
    in_place: bool = False
    seed: int = 0
    repeat: int = 3
    warmup: int = 1
    inner: int = 1  # calls one after another that are timed together
    split: int | None = None
    timeout: float = 0.0
    digest: bool = False  # tell what the outputs are, too, as a checksum for every process


@dataclass
class Job:
    """All that the processes need. `library`: the engine, compiled on the host of rank 0."""

    library: str
    processes: int
    programs: list[bytes]
    cases: list[Case]
    collectives: list[Collective] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        about = {"library": self.library, "processes": self.processes, "cases": [asdict(case) for case in self.cases]}
        (folder / "job.json").write_text(json.dumps({**about, "programs": len(self.programs)}), encoding="utf-8")
        for number, data in enumerate(self.programs):
            (folder / f"program{number}.bin").write_bytes(data)

    @classmethod
    def read(cls, folder: Path) -> Job:
        about = json.loads((folder / "job.json").read_text(encoding="utf-8"))
        programs = [(folder / f"program{number}.bin").read_bytes() for number in range(about["programs"])]
        return cls(about["library"], about["processes"], programs, [Case(**case) for case in about["cases"]])


class Process:
    """One of the processes."""

    def __init__(self, job: Job, mpi: Any, world: Any) -> None:
        self.job, self.mpi, self.world = job, mpi, world
        self.engine = Engine(Path(job.library))
        self.programs: dict[int, Program] = {}
        self.comms: dict[int, Any] = {}

    def comm(self, count: int) -> Any:
        """The first so many processes; collective over all."""
        if count not in self.comms:
            self.comms[count] = self.world.Split(0 if self.world.rank < count else 1, self.world.rank)
        return self.comms[count]

    def run(self, case: Case) -> dict[str, Any]:
        comm = self.comm(len(case.ranks))
        row: dict[str, Any] = {}
        if self.world.rank < len(case.ranks):
            if case.program not in self.programs:
                self.programs[case.program] = self.engine.program(self.job.programs[case.program])
            wire = self.engine.mpi(comm, case.ranks, self.job.collectives[case.program].ranks)
            try:
                row = _Run(self, case, comm, wire).go()
            finally:
                wire.close()
        _meet(self.world)
        return row

    def close(self) -> None:
        for comm in self.comms.values():
            comm.Free()


def _meet(world: Any) -> None:
    """Wait for all, without taking processor time from them."""
    request = world.Ibarrier()
    while not request.Test():
        time.sleep(IDLE)


class _Run:
    """One case at one process of it."""

    def __init__(self, process: Process, case: Case, comm: Any, wire: Any) -> None:
        self.case, self.comm, self.wire, self.mpi = case, comm, wire, process.mpi
        self.collective = process.job.collectives[case.program]
        rank = case.ranks[comm.rank]
        self.dtype = data_type(case.dtype)
        self.data = RankData(self.collective, rank, case.unit, self.dtype, case.op, case.in_place, case.seed)
        self.plan = process.programs[case.program].plan(rank, case.unit, case.in_place, case.split)
        self.source = np.zeros(0 if case.in_place else self.data.sizes[0], self.dtype)
        self.target = np.zeros(self.data.sizes[1], self.dtype)
        if not case.in_place:
            self.data.fill(self.source)
        self.kept = self.source.copy()
        self.fresh = np.zeros(self.data.sizes[1] if case.in_place else 0, self.dtype)
        if case.in_place:
            self.data.fill(self.fresh)
        given = None if case.in_place else self.source
        self.ours = self.plan.bound(given, self.target, wire, case.op, case.timeout)
        theirs = reference(self.collective, comm, process.mpi, case.unit, self.dtype, case.op, case.in_place)
        self.theirs = None if theirs is None else partial(theirs, self.source, self.target)

    def once(self, ours: bool, inner: int = 1) -> float:
        """Seconds of one call, all starting together."""
        if self.case.in_place:
            self.target[:] = self.fresh
        call = self.ours if ours or self.theirs is None else self.theirs
        self.comm.Barrier()
        began = time.perf_counter()
        for _ in range(inner):
            call()
        return (time.perf_counter() - began) / inner

    def go(self) -> dict[str, Any]:
        case = self.case
        wrong, theirs_wrong = self.checked(True), self.checked(False) if self.theirs else 0
        for _ in range(case.warmup):
            self.once(True)
            self.once(False)
        spent = in_turn(lambda ours: self.once(ours, case.inner), case.repeat, self.theirs is not None)
        slowest = np.zeros_like(spent)
        self.comm.Allreduce([spent, self.mpi.DOUBLE], [slowest, self.mpi.DOUBLE], op=self.mpi.MAX)
        wrong += self.checked(True)  # once more: buffers have been used before
        digest = self._digest() if case.digest else ""
        found = self.comm.gather((wrong, theirs_wrong, self.plan.needs.sends, self.plan.needs.scratch, digest))
        if found is None:
            return {}
        return {
            **timed(slowest, self.theirs is not None),
            **({"digests": [one[4] for one in found]} if case.digest else {}),
            "wrong": sum(one[0] for one in found), "reference_wrong": sum(one[1] for one in found),
            "messages": sum(one[2] for one in found), "scratch": max(one[3] for one in found) * self.dtype.itemsize,
        }  # fmt: skip

    def checked(self, ours: bool) -> int:
        """Elements that are wrong after one call into a spoiled buffer, the input included."""
        self.target[:] = self.dtype.type(77)
        self.once(ours)
        return self.data.count_wrong(self.target) + int(np.count_nonzero(self.source != self.kept))

    def _digest(self) -> str:
        digest = hashlib.sha256()
        for _, block in self.data.blocks_out(self.target):
            digest.update(block.tobytes())
        return digest.hexdigest()


def timed(slowest: Array, both: bool) -> dict[str, Any]:
    """Medians and quartiles of what the slowest process took, and of ours over theirs in pairs."""
    low, middle, high = np.quantile(slowest[0], [0.25, 0.5, 0.75]).tolist()
    found: dict[str, Any] = {"seconds": middle, "quartiles": [low, high], "reference_seconds": None}
    found |= {"reference_quartiles": None, "ratio": None, "ratio_quartiles": None}
    if both:
        low, middle, high = np.quantile(slowest[1], [0.25, 0.5, 0.75]).tolist()
        found |= {"reference_seconds": middle, "reference_quartiles": [low, high]}
        low, middle, high = np.quantile(slowest[0] / slowest[1], [0.25, 0.5, 0.75]).tolist()
        found |= {"ratio": middle, "ratio_quartiles": [low, high]}
    return found


_busy = False  # process 0 has handed out a job that is not done


def work(
    job: Job, mpi: Any, world: Any, tell: Callable[[dict[str, Any]], None], enough: Callable[[], bool] = lambda: False
) -> None:
    """Run the cases as process 0, which tells a row for each, or a fault; the others `follow`. `enough`: asked before
    each case whether to leave the rest."""
    global _busy  # noqa: PLW0603
    if world.size != job.processes:
        tell({"fault": SMALL, "processes": world.size})
        return
    job.collectives = [decode(data)[0].collective for data in job.programs]
    _busy = True
    _meet(world)
    world.bcast(job)
    process = Process(job, mpi, world)
    for number, case in enumerate(job.cases):
        if enough():
            break
        world.bcast(number)
        tell({"case": number, **process.run(case)})
    world.bcast(None)
    process.close()
    _busy = False


def follow(mpi: Any, world: Any) -> None:
    """What all processes but 0 do: wait for jobs, and take part."""
    while True:
        _meet(world)
        job = world.bcast(None)
        if job is None:
            return
        process = Process(job, mpi, world)
        while (number := world.bcast(None)) is not None:
            process.run(job.cases[number])
        process.close()


def dismiss(why: str = "") -> None:
    """Process 0 has nothing more to do: the others go home; all are ended where it leaves a job undone."""
    from mpi4py import MPI

    if _busy:
        print(f"antiphon: {why or 'stopped'}", file=sys.stderr, flush=True)
        MPI.COMM_WORLD.Abort(1)
    _meet(MPI.COMM_WORLD)
    MPI.COMM_WORLD.bcast(None)


def main(folder: str) -> None:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    try:
        if world.rank:
            follow(MPI, world)
            return
        job = Job.read(Path(folder))
        work(job, MPI, world, lambda row: print(MARK + json.dumps(row), flush=True))
        dismiss()
    except Exception as error:
        kind = type(error).__name__
        print(MARK + json.dumps({"fault": str(error), "kind": kind}) + "\n", flush=True)
        time.sleep(GRACE)
        if not isinstance(error, AntiphonError):
            traceback.print_exc()
        world.Abort(1)


if __name__ == "__main__":
    main(sys.argv[1])
