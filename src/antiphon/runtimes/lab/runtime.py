"""The runtime `lab`: programs in the emulated cluster, whose link rates predict their times (docs/lab.md).

`LabRuntime.run` makes a lab per machine (or uses the one that is up) and starts one job in it with all cases (`_job`).
It adds to each row the time that the model `flows` predicts for the lab's rates and, per link, the bytes that the
program sends over it beside those that the kernel counted.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from antiphon.core.datatypes import data_type
from antiphon.core.program import Program, layout_of
from antiphon.core.program.kinds import SEND
from antiphon.core.schedule import Schedule
from antiphon.core.transform import Cutting
from antiphon.cost import prepare
from antiphon.errors import TimedOut, Unsupported
from antiphon.runtimes.engine.build import library
from antiphon.runtimes.engine.launch import MARK, Failed
from antiphon.runtimes.lab._job import LabJob
from antiphon.runtimes.lab.commands import AT_ONCE, ETHERNET_HEADER, MTU, rank_address
from antiphon.runtimes.lab.keeping import SCRIPT, Lab, ensure_lab, name_of, need_root
from antiphon.runtimes.lab.kernel import HOST, wait_for_end
from antiphon.runtimes.lab.layout import LabLayout, check_paths
from antiphon.runtimes.measure.case import Case, How, Row, RowCallback, Runnable, Runtime, Stop, never
from antiphon.runtimes.measure.rows import cuts_of
from antiphon.units import format_seconds

# bytes: of IP and TCP with time stamps; of a full packet as the shaper counts it
HEADERS, PACKET = 52, MTU + ETHERNET_HEADER
OVERHEAD = PACKET / (MTU - HEADERS) - 1  # bytes on the link per byte of payload, minus 1
STALL = 5.0  # minimum seconds without progress before a rank gives up
MODEL = "flows"  # the cost model: flows share links as with TCP, without barriers


class LabRuntime(Runtime):
    """A process for each rank, in its namespace. All cases of a machine run in one launch, in its lab if that is up,
    else in one made for the launch. There is no library to compare with."""

    def ready(self, how: How) -> None:
        need_root()
        library("sockets", how.compiler)

    def run(
        self, programs: Sequence[Runnable], cases: Sequence[Case], how: How, on_row: RowCallback, enough: Stop = never
    ) -> None:
        self.ready(how)
        by_machine: dict[int, list[int]] = {}
        for number, case in enumerate(cases):
            by_machine.setdefault(id(programs[case.program].topology), []).append(number)
        for numbers in by_machine.values():
            if enough():
                return
            topology = programs[cases[numbers[0]].program].topology
            with ensure_lab(topology, how.scale, name_of(topology, how.name)) as lab:
                work = _CasesOfLab(lab, programs, [cases[number] for number in numbers], how)
                work.go(lambda number, row, numbers=numbers: on_row(numbers[number], row), enough)  # type: ignore[misc]


class _CasesOfLab:
    """The cases of one machine in its lab. `programs` and `expected` (functions from message size to predicted seconds)
    have the number of each program that is used as keys."""

    def __init__(self, lab: Lab, programs: Sequence[Runnable], cases: Sequence[Case], how: How) -> None:
        self.lab, self.layout, self.how = lab, lab.layout(), how
        used = list(dict.fromkeys(case.program for case in cases))
        self.programs = {number: programs[number] for number in used}
        self.expected = {
            number: self._prepare_predictor(runnable.schedule) for number, runnable in self.programs.items()
        }
        self.cases = [self._with_timeout(case) for case in cases]
        self.job_number = {number: i for i, number in enumerate(used)}  # in the job, which has the used programs only

    def _prepare_predictor(self, schedule: Schedule) -> Callable[[int], float]:
        check_paths(self.layout, schedule.src.tolist(), schedule.dst.tolist(), schedule.route, schedule.routes)
        return make_predictor(schedule, self.layout)

    def _with_timeout(self, case: Case) -> Case:
        """Return the case with a limit on the time without progress, unless it has one.

        Unsupported for a case in place whose schedule has no program in place."""
        if case.unit and case.in_place and not self.programs[case.program].in_place:
            raise Unsupported("this schedule has no program in place; run it out of place")
        # twice the predicted time may pass without progress, but less than the whole run has
        stall = min(max(STALL, 2 * self.expected[case.program](case.nbytes)), self.how.timeout / 2)
        return replace(case, timeout=case.timeout or stall)

    def go(self, on_row: RowCallback, enough: Callable[[], bool]) -> None:
        """Run all cases in one job, and pass the completed row of each to `on_row` at once."""
        ports = [port for port in self.layout.ports if port.links]
        ranks = sorted({rank for case in self.cases for rank in case.ranks})
        job = LabJob(
            library=str(library("sockets", self.how.compiler)), ranks=ranks,
            peers=_peers_of_ranks([runnable.schedule for runnable in self.programs.values()], ranks),
            addresses={str(rank): rank_address(rank) for rank in ranks},
            ports=[(self.layout.space(port.node), self.layout.space(port.peer)) for port in ports],
            cases=[replace(case, program=self.job_number[case.program]) for case in self.cases],
            programs=[runnable.data for runnable in self.programs.values()],
        )  # fmt: skip
        remaining = len(self.cases)

        def add_row(row: Row) -> bool:
            nonlocal remaining
            number, remaining = int(row.pop("case")), remaining - 1
            on_row(number, self._complete_row(self.cases[number], row))
            return remaining > 0 and enough()

        _run_job(self.lab, job, self.how.timeout, add_row)

    def _complete_row(self, case: Case, row: Row) -> Row:
        """Return a row with the predicted time, and with the bytes on each link, expected and counted."""
        runnable = self.programs[case.program]
        # `programs`: out of place, in place
        links = _link_rows(self.layout, runnable.programs[case.in_place], case, row.pop("counted"))
        predicted = self.expected[case.program](case.nbytes)
        # less than AT_ONCE bytes pass an idle link without delay, so its rate does not predict their time
        comparable = predicted and _greatest_load(self.layout, links) > AT_ONCE
        return {
            **row, "predicted_seconds": predicted, "over_predicted": row["seconds"] / predicted if comparable else None,
            "at_once": AT_ONCE, "overhead": OVERHEAD, "links": links,
        }  # fmt: skip


def make_predictor(schedule: Schedule, layout: LabLayout) -> Callable[[int], float]:
    """Return the seconds by message size that a schedule takes on the links of a lab, without latency and headers."""
    cutting, predictors = Cutting(schedule, cuts_of("lab")), dict[Any, Callable[[int], Any]]()

    def predict(nbytes: int) -> float:
        pieces = cutting.pieces(nbytes)  # sizes that the runtime cuts into as many pieces share a predictor
        if pieces not in predictors:
            predictors[pieces] = prepare(MODEL, cutting.at(nbytes), layout.machine)
        return float(predictors[pieces](nbytes).seconds)

    return predict


def _peers_of_ranks(schedules: Sequence[Schedule], ranks: Sequence[int]) -> dict[str, list[int]]:
    """Return the ranks that each rank exchanges messages with in any of the schedules."""
    pairs = np.unique(np.hstack([np.stack([schedule.src, schedule.dst]) for schedule in schedules]), axis=1).T.tolist()
    peers: dict[int, set[int]] = {rank: set() for rank in ranks}
    for src, dst in pairs:
        if src != dst:
            peers[src].add(dst)
            peers[dst].add(src)
    return {str(rank): sorted(ranks_of) for rank, ranks_of in peers.items()}


def _run_job(lab: Lab, job: LabJob, timeout: float, on_row: Callable[[Row], bool]) -> None:
    """Run a job; pass its rows to `on_row` at once. The job ends with this call, or when `on_row` returns True."""
    command = [*SCRIPT, "enter", str(lab.keeper), HOST, "once", sys.executable, "-m", "antiphon.runtimes.lab._job"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    late, row_count = threading.Event(), 0
    with tempfile.TemporaryFile() as complaints, subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints, env=environment,
        start_new_session=True,
    ) as process:  # fmt: skip

        def stop() -> None:
            late.set()
            _kill_group(process)

        clock = threading.Timer(timeout, stop)
        clock.start()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(job.encode())
                process.stdin.close()
            for line in process.stdout:
                _, mark, text = line.decode(errors="replace").partition(MARK)
                if not mark:
                    continue
                row = json.loads(text)
                if "faults" in row:
                    raise Failed(_fault_text(lab, row))
                row_count += 1
                if on_row(row):
                    return
            code = process.wait()
        finally:
            clock.cancel()
            _kill_group(process)
        complaints.seek(0)
        lines = [line for line in complaints.read().decode(errors="replace").splitlines() if line.strip()]
    if late.is_set():
        raise TimedOut(
            f"lab {lab.name} was not done within {format_seconds(timeout)}; give it more time (--on lab:timeout=...)"
        )
    if row_count != len(job.cases):
        killed = code in (-signal.SIGKILL, 128 + signal.SIGKILL)  # as subprocess, or as shells report it
        # the keeper ends after all others
        if not lab.is_up() or (killed and wait_for_end(lab.keeper, lab.began, timeout=1.0)):
            raise Failed(f"lab {lab.name} was taken down during the run")
        raise Failed(f"the run in lab {lab.name} failed: {' '.join(lines[-1:]) or f'exit code {code}'}")


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _fault_text(lab: Lab, row: Row) -> str:
    """Return the message of the most likely cause among the faults."""
    faults: list[Row] = row["faults"]
    if row["broken"]:
        space, device = row["broken"][0]
        followed = f"rank {faults[0]['rank']}: {faults[0]['fault']}"
        return f"lab {lab.name}: the link between {space} and {device} is down ({followed})"
    # Lower comes first: a process that crashed leaves the others with timeouts and failed messages.
    order = {
        "ended": 0, "error": 0, "Invalid": 1, "Unsupported": 1, "MemoryError": 1, "TransportFailed": 3, "TimedOut": 4,
    }  # fmt: skip
    worst = min(faults, key=lambda fault: order.get(fault["kind"], 2))
    return f"lab {lab.name}: rank {worst['rank']}: {worst['fault']}" if worst["rank"] >= 0 else str(worst["fault"])


def _greatest_load(layout: LabLayout, links: Sequence[Row]) -> int:
    """Return the most bytes that one shaper (tc's queue with a rate) passes: of a link direction or a shared limit."""
    load = {link["link"]: link["expected"] for link in links}  # by name as of `_link_rows`, such as "r0>s0"
    shared = [
        sum(
            load.get(">".join([near, far] if limit_queue.outward else [far, near]), 0)
            for near, far in ((layout.space(limit_queue.node), layout.space(peer)) for peer in limit_queue.peers)
        )
        for limit_queue in layout.limit_queues
    ]
    return max([*load.values(), *shared], default=0)


def _link_rows(layout: LabLayout, program: Program, case: Case, counted: Sequence[int]) -> list[Row]:
    """Return per link and direction the bytes that the program sends (`expected`), and those that the kernel counted,
    headers included."""
    # a part is a stretch of one buffer that an operation reads or writes; these columns have a row per part
    sends = program.kind[program.part_op] == SEND
    length = layout_of(program, case.unit).length[sends] * data_type(case.dtype).itemsize
    ranks = program.ranks
    # a number per (sender, receiver), which divmod takes apart below
    key = program.rank[program.part_op][sends] * ranks + program.peer[program.part_op][sends]
    pairs, inverse = np.unique(key, return_inverse=True)
    total = np.zeros(len(pairs), np.int64)  # bytes from rank to rank
    np.add.at(total, inverse, length)
    expected: dict[tuple[int, int], int] = {}
    machine = layout.machine
    for pair, payload in zip(pairs.tolist(), total.tolist(), strict=True):
        for link in layout.path(*divmod(pair, ranks)) or []:
            ends = int(machine.link_src[link]), int(machine.link_dst[link])
            expected[ends] = expected.get(ends, 0) + payload
    ports = [port for port in layout.ports if port.links]
    return [
        {"link": f"{layout.space(port.node)}>{layout.space(port.peer)}",
         "expected": expected.get((port.node, port.peer), 0), "counted": number}
        for port, number in zip(ports, counted, strict=True)
    ]  # fmt: skip
