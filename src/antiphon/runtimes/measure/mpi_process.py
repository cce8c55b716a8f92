"""What every MPI process of `run` and `bench --on mpi` does: cases one after another, each checked in every element.

Started as `python -m antiphon.runtimes.measure.mpi_process FOLDER`: rank 0 reads the job there and prints a line for
every case.
Where a launcher started the command itself, process 0 may `work` on one job after another; the others `follow`, until
it says that there are no more (`dismiss`).
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from antiphon.core.collective import Collective
from antiphon.core.program import decode
from antiphon.errors import AntiphonError
from antiphon.runtimes.engine.launch import MARK
from antiphon.runtimes.engine.mpi_calls import MpiCalls
from antiphon.runtimes.engine.native import Engine, NativePlan, OpenProgram
from antiphon.runtimes.measure._mpi_library import library_rows
from antiphon.runtimes.measure._mpi_preload import PreloadedCall, call_of
from antiphon.runtimes.measure._mpi_reference import reference
from antiphon.runtimes.measure.case import Case, Row, heats
from antiphon.runtimes.measure.loop import Heat, Seat, Together
from antiphon.runtimes.measure.recorder import recording

SMALL = "alone"  # fault: fewer processes than wanted
GRACE = 0.5  # seconds for what was said to get through: Open MPI may spoil the last line of one who aborts
IDLE = 1e-3  # seconds between two looks of a process that waits for its turn


@dataclass
class Job:
    """All that the processes need. `library`: the engine, compiled on the host of rank 0."""

    library: str
    processes: int
    programs: list[bytes]
    cases: list[Case]
    collectives: list[Collective] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        cases = [asdict(case) for case in self.cases]
        about = {"library": self.library, "processes": self.processes, "cases": cases}
        (folder / "job.json").write_text(json.dumps({**about, "programs": len(self.programs)}), encoding="utf-8")
        for number, data in enumerate(self.programs):
            (folder / f"program{number}.bin").write_bytes(data)

    @classmethod
    def read(cls, folder: Path) -> Job:
        about = json.loads((folder / "job.json").read_text(encoding="utf-8"))
        programs = [(folder / f"program{number}.bin").read_bytes() for number in range(about["programs"])]
        cases = [Case(**case) for case in about["cases"]]
        return cls(about["library"], about["processes"], programs, cases)


class Process:
    """One of the processes."""

    def __init__(self, job: Job, mpi: Any, world: Any) -> None:
        self.job, self.mpi, self.world = job, mpi, world
        self.engine = Engine(Path(job.library))
        self.programs: dict[int, OpenProgram] = {}
        self.comms: dict[int, Any] = {}

    def comm(self, count: int) -> Any:
        """The first so many processes; collective over all."""
        if count not in self.comms:
            self.comms[count] = self.world.Split(0 if self.world.rank < count else 1, self.world.rank)
        return self.comms[count]

    def run(self, cases: Sequence[Case]) -> list[Row]:
        """Cases that are measured together: their rows, where this process takes part."""
        case = cases[0]
        comm = self.comm(len(case.ranks))
        rows: list[Row] = []
        if self.world.rank < len(case.ranks) and case.library is not None:
            rows = library_rows(cases, self.job.collectives[case.program], comm, self.mpi, _Among(comm))
        elif self.world.rank < len(case.ranks):
            wire = self.engine.mpi(comm, case.ranks, self.job.collectives[case.program].ranks)
            try:
                rows = self._measured(cases, comm, wire)
            finally:
                wire.close()
        _meet(self.world)
        return rows

    def _measured(self, cases: Sequence[Case], comm: Any, wire: Any) -> list[Row]:
        case, rank = cases[0], cases[0].ranks[comm.rank]
        collective = self.job.collectives[case.program]
        seat, plans = Seat(collective, rank, case), []
        for one in cases:
            plans.append(self._program(one).plan(rank, one.unit, one.in_place, one.split))
        ours = [plan.bound(seat.given, seat.target, wire, case.op, case.timeout) for plan in plans]
        made = reference(collective, comm, self.mpi, case.unit, seat.dtype, case.op, case.in_place)
        theirs = None if made is None else partial(made, seat.source, seat.target)
        call = (
            call_of(collective, comm, case, seat, self._program(case))
            if made is not None and case.race is not None
            else None
        )
        if call is not None:
            for run in ours:  # whose plans then know what they need
                run()
            programs = [self._program(one) for one in cases]
            with closing(MpiCalls(self.engine, comm, case.ranks, collective.ranks)) as calls:
                preloaded = [PreloadedCall(calls, program, call, seat) for program in programs]
                rows = Heat(cases, seat, preloaded, PreloadedCall(calls, None, call, seat), _Among(comm)).go()
            return self._with_needs(rows, plans, comm, seat)
        with recording({rank: wire} if case.trace else {}) as recorder:
            rows = Heat(cases, seat, ours, theirs, _Among(comm), recorder=recorder).go()
        return self._with_needs(rows, plans, comm, seat)

    @staticmethod
    def _with_needs(rows: list[Row], plans: Sequence[NativePlan], comm: Any, seat: Seat) -> list[Row]:
        needs = comm.allgather([(plan.needs.sends, plan.needs.scratch) for plan in plans])
        for number, row in enumerate(rows):
            row["messages"] = sum(one[number][0] for one in needs)
            row["scratch"] = max(one[number][1] for one in needs) * seat.dtype.itemsize
        return rows

    def _program(self, case: Case) -> OpenProgram:
        if case.program not in self.programs:
            self.programs[case.program] = self.engine.program(self.job.programs[case.program])
        return self.programs[case.program]

    def close(self) -> None:
        for comm in self.comms.values():
            comm.Free()


class _Among(Together):
    """The processes of a communicator."""

    def __init__(self, comm: Any) -> None:
        self.comm, self.first = comm, comm.rank == 0

    def meet(self) -> float:
        self.comm.Barrier()
        return time.monotonic()

    def all(self, value: Any) -> list[Any]:
        found: list[Any] = self.comm.allgather(value)
        return found


def _meet(world: Any) -> None:
    """Wait for all, without taking processor time from them."""
    request = world.Ibarrier()
    while not request.Test():
        time.sleep(IDLE)


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
    for heat in heats(job.cases):
        if enough():
            break
        world.bcast(heat)
        for number, row in zip(heat, process.run([job.cases[number] for number in heat]), strict=True):
            tell({"case": number, **row})
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
        while (heat := world.bcast(None)) is not None:
            process.run([job.cases[number] for number in heat])
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
