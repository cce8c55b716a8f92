"""An MPI process of `run` and `bench --on mpi`: it measures cases one after another and checks every element.

Started as `python -m antiphon.runtimes.measure.mpi_process FOLDER`: rank 0 reads the job there and prints a line for
every case. If a launcher started the command itself, process 0 may `work` on one job after another; the others `follow`
until process 0 calls `dismiss`. "Collective." in a docstring says that all processes must make the call.

A job has programs and cases (a program at one size). Process 0 broadcasts the job, then for each group of cases, which
are measured in turns, their numbers. All processes of a group measure it together (`MpiProcess.run`), by one of:

    NativePlan.bound   our program beside MPI's own collective, called from Python
    MpiCalls           the same race in C, as the preload library would call them
    library_rows       only algorithms of the MPI library
"""

from __future__ import annotations

import json
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing
from ctypes import Structure, byref, c_double, c_int32, c_void_p
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.collective import Collective
from antiphon.core.datatypes import data_type
from antiphon.core.program import collective_of
from antiphon.errors import AntiphonError, Unsupported
from antiphon.runtimes.engine.launch import MARK, import_mpi_to_measure
from antiphon.runtimes.engine.native import OPERATORS, Engine, NativePlan, OpenProgram, type_number
from antiphon.runtimes.measure._mpi_reference import MPI_TYPES, make_library_call
from antiphon.runtimes.measure.case import Case, Row, group_cases
from antiphon.runtimes.measure.library import Steering
from antiphon.runtimes.measure.loop import Measurement, Peers, RankBuffers, TimedCall
from antiphon.runtimes.measure.recorder import record_wires

Array = NDArray[Any]
Call = Callable[[], None]


# ---- the algorithms of the MPI library ----


def library_rows(cases: Sequence[Case], collective: Collective, comm: Any, mpi: Any, peers: Peers) -> list[Row]:
    """Race algorithms of the library; return the row of each case, {"refused": reason} if the library refuses it."""
    case = cases[0]
    steering, buffers = Steering(mpi), RankBuffers(collective, case.ranks[comm.rank], case)

    def call_on(communicator: Any) -> Call:
        library_call = make_library_call(
            collective, communicator, mpi, case.unit, buffers.dtype, case.op, case.in_place
        )
        if library_call is None:
            raise Unsupported(f"--library-only: MPI has no {collective.kind} of this form")
        return partial(library_call, buffers.source, buffers.target)

    default_call = call_on(comm)
    communicators = [steering.communicator(comm, race_case.library or {}) for race_case in cases]
    calls = [call_on(communicator) for communicator in communicators]
    # what to set before a call, by the call's id; nothing for the default call
    settings: dict[int, dict[str, int]] = {
        id(call): dict(race_case.library or {}) if steering.reads_at_calls else {}
        for call, race_case in zip(calls, cases, strict=True)
    }
    faults = [_try_once(steering, buffers, call, settings[id(call)], peers) for call in calls]
    working = [number for number, fault in enumerate(faults) if not fault]
    rows: list[Row] = [{"refused": fault} for fault in faults]
    if working:
        measurement = Measurement(
            [cases[n] for n in working], buffers, [calls[n] for n in working], default_call, peers,
            lambda call: steering.apply(settings.get(id(call), {})),
        )  # fmt: skip
        for number, row in zip(working, measurement.run(), strict=True):
            rows[number] = row
    steering.apply({})
    for communicator in communicators:
        if communicator is not comm:
            communicator.Free()
    return rows


def _try_once(steering: Steering, buffers: RankBuffers, call: Call, settings: dict[str, int], peers: Peers) -> str:
    """Return the error of one call, "" if it works at all processes."""
    steering.apply(settings)
    buffers.refresh()
    fault = ""
    try:
        call()
    except Exception as error:  # of mpi4py, which this module does not import
        fault = " ".join(str(error).split()) or type(error).__name__
    steering.apply({})
    return next((message for message in peers.all(fault) if message), "")


# ---- calls timed in C: by a plan as under the preload library, or by the MPI library ----


class _Call(Structure):
    """ap_timed_call of native/preload.h."""

    _fields_ = [
        *((name, c_int32) for name in ("kind", "root", "type", "op", "count")),
        ("send", c_void_p), ("recv", c_void_p),
    ]  # fmt: skip


class MpiCall:
    """One call on buffers of this process. `kind`: the number of the collective in the engine; `root`: a process of the
    communicator, -1 for none; `count`: elements of a block."""

    def __init__(self, kind: int, root: int, op: str, count: int, source: Array, target: Array) -> None:
        self.buffers = source, target  # kept alive as long as their addresses
        addresses = source.ctypes.data, target.ctypes.data
        self.structure = _Call(kind, root, type_number(target.dtype), OPERATORS[op], count, *addresses)


class MpiCalls:
    """Calls on a duplicate of a communicator. `rank_of`: the rank of each process, among `ranks` ranks of the programs.
    Methods are collective."""

    def __init__(self, engine: Engine, comm: Any, rank_of: Sequence[int], ranks: int) -> None:
        self.engine = engine
        numbers = np.asarray(rank_of, np.int32)
        self.handle = engine.library.create("ap_measure_open", comm.py2f(), numbers.ctypes.data, ranks)

    def measure(self, program: OpenProgram | None, call: MpiCall, count: int) -> float:
        """Return the mean seconds within a call by this program (None: by the MPI library), the same at all processes.

        The mean is over `count` calls, each preceded by a barrier, and over the processes."""
        seconds = c_double()
        chosen = program.handle if program is not None else None
        self.engine.library.check(
            "ap_measure_calls", self.handle, chosen, byref(call.structure), count, byref(seconds)
        )  # fmt: skip
        return seconds.value

    def close(self) -> None:
        if self.handle:
            self.engine.library.ap_measure_close(self.handle)
        self.handle = 0


CALLS_FACTOR = 4  # short calls that are timed together in C, as a multiple of those in a loop of Python
MAX_COUNT = 2**31 - 1  # elements of a block: MPI counts them in an int


def call_of(
    collective: Collective, comm: Any, case: Case, buffers: RankBuffers, program: OpenProgram
) -> MpiCall | None:
    """Return the MPI call of a case; None if C cannot make it.

    C supports no calls in place and no other cuts of messages than the engine's (`split`), a few types and operators,
    and only blocks of equal size.
    """
    if case.in_place or case.split is not None or case.op not in ("sum", "prod", "min", "max") or comm.size < 2:
        return None
    if data_type(case.dtype).name not in MPI_TYPES or len(set(collective.weights.tolist())) != 1:
        return None
    # elements of a block: the input of these kinds is a single block at every rank, else the output is
    count = len(buffers.source if collective.kind in ("reduce", "gather", "allgather") else buffers.target)
    if collective.kind == "alltoall":
        count //= comm.size
    root = collective.members.index(collective.roots[0]) if collective.roots else -1
    if count > MAX_COUNT:
        return None
    return MpiCall(program.facts.kind, root, case.op, count, buffers.source, buffers.target)


class PreloadedCall(TimedCall):
    """A call as under the preload library: by a program, or by the MPI library if that is None."""

    def __init__(self, calls: MpiCalls, program: OpenProgram | None, call: MpiCall, buffers: RankBuffers) -> None:
        self.calls, self.program, self.call, self.buffers = calls, program, call, buffers
        self.copies_input = buffers.collective.kind == "broadcast" and buffers.rank == buffers.collective.roots[0]

    def measure(self, count: int) -> float:
        if self.copies_input:  # MPI_Bcast has one buffer: the root's data must lie there
            self.buffers.target[:] = self.buffers.source
        return self.calls.measure(self.program, self.call, CALLS_FACTOR * count if count > 1 else 1)


# ---- jobs ----

TOO_FEW = "alone"  # fault: fewer processes than needed
ABORT_DELAY = 0.5  # seconds: Open MPI may garble the last line of a process that aborts at once
IDLE = 1e-3  # seconds between two polls of a process that waits for its turn


@dataclass
class MpiJob:
    """What the processes run. `library`: the engine, compiled on the host of rank 0. `collectives`: of the programs,
    which `work` fills in."""

    library: str
    processes: int
    programs: list[bytes]
    cases: list[Case]
    collectives: list[Collective] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        (folder / "job.pickle").write_bytes(pickle.dumps(self))

    @classmethod
    def read(cls, folder: Path) -> MpiJob:
        """Return a job from a folder that only this user can write to."""
        job: MpiJob = pickle.loads((folder / "job.pickle").read_bytes())
        return job

    def open(self, mpi: Any, world: Any) -> MpiProcess:
        """Return this process as a participant of the job."""
        return MpiProcess(self, mpi, world)


class MpiProcess:
    """One of the processes of a job: its engine, the programs opened so far, and communicators by size."""

    def __init__(self, job: MpiJob, mpi: Any, world: Any) -> None:
        self.job, self.mpi, self.world = job, mpi, world
        self.engine = Engine(Path(job.library))
        self.programs: dict[int, OpenProgram] = {}
        self.comms: dict[int, Any] = {}

    def comm(self, count: int) -> Any:
        """Return a communicator of the first `count` processes, at the others one that they do not use. Collective."""
        if count not in self.comms:
            self.comms[count] = self.world.Split(0 if self.world.rank < count else 1, self.world.rank)
        return self.comms[count]

    def run(self, cases: Sequence[Case]) -> list[Row]:
        """Measure cases together; return their rows if this process takes part."""
        case = cases[0]
        comm = self.comm(len(case.ranks))
        rows: list[Row] = []
        if self.world.rank < len(case.ranks) and case.library is not None:
            rows = library_rows(cases, self.job.collectives[case.program], comm, self.mpi, CommPeers(comm))
        elif self.world.rank < len(case.ranks):
            wire = self.engine.mpi(comm, case.ranks, self.job.collectives[case.program].ranks)
            try:
                rows = self._measure_cases(cases, comm, wire)
            finally:
                wire.close()
        _wait_for_all(self.world)
        return rows

    def _measure_cases(self, cases: Sequence[Case], comm: Any, wire: Any) -> list[Row]:
        """Measure our programs beside the MPI library's collective; return the row of each case."""
        case, rank = cases[0], cases[0].ranks[comm.rank]
        collective = self.job.collectives[case.program]
        buffers, plans = RankBuffers(collective, rank, case), []
        for race_case in cases:
            program = self._open_program(race_case)
            plans.append(program.plan(rank, race_case.unit, race_case.in_place, race_case.split))
        ours = [plan.bound(buffers.source_argument, buffers.target, wire, case.op, case.timeout) for plan in plans]
        library_call = make_library_call(collective, comm, self.mpi, case.unit, buffers.dtype, case.op, case.in_place)
        theirs = None if library_call is None else partial(library_call, buffers.source, buffers.target)
        # races decide what the preload library serves, so they time calls as that library makes them
        mpi_call = (
            call_of(collective, comm, case, buffers, self._open_program(case))
            if library_call is not None and case.race is not None
            else None
        )
        if mpi_call is not None:
            for run in ours:  # the needs of a plan are known after its first run
                run()
            programs = [self._open_program(race_case) for race_case in cases]
            with closing(MpiCalls(self.engine, comm, case.ranks, collective.ranks)) as calls:
                preloaded = [PreloadedCall(calls, program, mpi_call, buffers) for program in programs]
                rows = Measurement(
                    cases,
                    buffers,
                    preloaded,
                    PreloadedCall(calls, program=None, call=mpi_call, buffers=buffers),
                    CommPeers(comm),
                ).run()
            return self._with_needs(rows, plans, comm, buffers)
        with record_wires({rank: wire} if case.trace else {}) as recorder:
            rows = Measurement(cases, buffers, ours, theirs, CommPeers(comm), recorder=recorder).run()
        return self._with_needs(rows, plans, comm, buffers)

    @staticmethod
    def _with_needs(rows: list[Row], plans: Sequence[NativePlan], comm: Any, buffers: RankBuffers) -> list[Row]:
        """Add the messages of all ranks and the largest scratch (bytes) to the rows. Collective; after a run."""
        needs = comm.allgather([(plan.needs.sends, plan.needs.scratch) for plan in plans])
        for number, row in enumerate(rows):
            sends, scratch = zip(*(rank_needs[number] for rank_needs in needs), strict=True)  # per rank
            row["messages"] = sum(sends)
            row["scratch"] = max(scratch) * buffers.dtype.itemsize
        return rows

    def _open_program(self, case: Case) -> OpenProgram:
        if case.program not in self.programs:
            self.programs[case.program] = self.engine.program(self.job.programs[case.program])
        return self.programs[case.program]

    def close(self) -> None:
        for comm in self.comms.values():
            comm.Free()


class CommPeers(Peers):
    """The processes of a communicator of mpi4py, or of an object with its interface."""

    def __init__(self, comm: Any) -> None:
        self.comm, self.first = comm, comm.rank == 0

    def meet(self) -> float:
        self.comm.Barrier()
        return time.monotonic()

    def all(self, value: Any) -> list[Any]:
        values: list[Any] = self.comm.allgather(value)
        return values


def _wait_for_all(world: Any) -> None:
    """Wait for all processes, without using processor time."""
    request = world.Ibarrier()
    while not request.Test():
        time.sleep(IDLE)


_busy = False  # whether process 0 has broadcast a job that is not done


def work(
    job: MpiJob,
    mpi: Any,
    world: Any,
    on_row: Callable[[dict[str, Any]], None],
    enough: Callable[[], bool] = lambda: False,
) -> None:
    """Run the cases as process 0, which passes a row for each, or a fault, to `on_row`; the others `follow`. `enough`:
    called before each group of cases; if True, the remaining cases are skipped."""
    global _busy  # noqa: PLW0603
    if world.size != job.processes:
        on_row({"fault": TOO_FEW, "processes": world.size})
        return
    job.collectives = list(map(collective_of, job.programs))
    _busy = True
    _wait_for_all(world)
    world.bcast(job)
    process = job.open(mpi, world)
    for numbers in group_cases(job.cases):
        if enough():
            break
        world.bcast(numbers)
        for number, row in zip(numbers, process.run([job.cases[number] for number in numbers]), strict=True):
            on_row({"case": number, **row})
    world.bcast(None)
    process.close()
    _busy = False


def follow(mpi: Any, world: Any) -> None:
    """Wait for jobs and take part in them, at all processes but 0."""
    while True:
        _wait_for_all(world)
        job = world.bcast(None)  # received from process 0, here and below
        if job is None:
            return
        process = job.open(mpi, world)
        while (numbers := world.bcast(None)) is not None:
            process.run([job.cases[number] for number in numbers])
        process.close()


def dismiss(world: Any, why: str = "") -> None:
    """At process 0: end `follow` at the other processes. Abort all if a job is unfinished; `why`: printed then."""
    if _busy:
        print(f"antiphon: {why or 'stopped'}", file=sys.stderr, flush=True)
        world.Abort(1)
    _wait_for_all(world)
    world.bcast(None)


def main(folder: str) -> None:
    MPI = import_mpi_to_measure()
    world = MPI.COMM_WORLD
    try:
        if world.rank:
            follow(MPI, world)
            return
        job = MpiJob.read(Path(folder))
        work(job, MPI, world, lambda row: print(MARK + json.dumps(row), flush=True))
        dismiss(world)
    except Exception as error:
        kind = type(error).__name__
        print(MARK + json.dumps({"fault": str(error), "kind": kind}) + "\n", flush=True)
        time.sleep(ABORT_DELAY)
        if not isinstance(error, AntiphonError):
            traceback.print_exc()
        world.Abort(1)


if __name__ == "__main__":
    main(sys.argv[1])
