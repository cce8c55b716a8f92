"""Switch a running group to plans that are made meanwhile: when its processes ask, and how all switch at the same call.

Process 0 has a subprocess that plans (`PlanningProcess`); its question describes the job, its answer is a book of
plans. All processes must start to use the book at the same call, or their messages would not fit together. At certain
calls, known from their numbers alone, they therefore add up eight integers by an allreduce of the engine
(`Turns.turn`). With them process 0 announces whether there is an answer, and its digest. From then on every process
prepares, one step at each such call: it reads the answer from the cache, makes the plans for calls like those so far,
and has their memory touched. If a process cannot read the file, process 0 broadcasts the bytes. The first call at which
all are ready uses the new plans, at all processes. An example:

    call 1, 2, 3    sum: still planning
    call 4          sum: process 0 has an answer, digest d; from here on a sum before every call
    call 5, 6       sum: 3 processes still have steps to prepare
    call 7          sum: 0 processes have; call 7 runs by the new plans

So no call waits for planning, and none does much more work than others. The sum costs a round of 64-byte messages. It
precedes only calls that synchronize all processes in any case, or that move much data: at first all of those, later
one call in 64.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import antiphon.errors
from antiphon.errors import AntiphonError, Unsupported
from antiphon.runtimes.serve.auto_question import AutoAnswer, decode_answer, read_kept
from antiphon.runtimes.serve.book import Book, decode_book
from antiphon.runtimes.serve.ledger import LedgerRow

PIPE_BYTES = 2**20  # capacity of the pipe for the answer
_F_SETPIPE_SZ = 1031  # fcntl's command to set it (Linux)
_END_TIMEOUT = 3.0  # seconds from SIGTERM to SIGKILL
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class PlanningProcess:
    """A subprocess that answers a question. It ends when this process ends, even by a crash."""

    def __init__(self, question: str, cache_file: Path | None) -> None:
        package = str(Path(str(antiphon.errors.__file__)).parents[1])
        # without LD_PRELOAD: the planning process must not load the MPI library of the job
        environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"} | _ONE_THREAD
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH", ""))))
        command = [sys.executable, "-P", "-m", "antiphon.runtimes.auto", "" if cache_file is None else str(cache_file)]
        try:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except OSError as error:
            raise Unsupported(f"the process that plans does not start: {error.strerror}") from None
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        self._received = bytearray()
        with suppress(OSError):
            import fcntl

            # a whole answer fits, so the subprocess never blocks on a job that is computing
            fcntl.fcntl(self._output, _F_SETPIPE_SZ, PIPE_BYTES)
        os.set_blocking(self._output, False)
        self._write_line(f"{question}end\n")

    def _write_line(self, text: str) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # if it has ended already, `poll` reports the missing answer
            self._process.stdin.write(text.encode())
            self._process.stdin.flush()

    def lower(self) -> None:
        """Lower the priority of the subprocess: from now on it only gets processor time that nothing else needs."""
        self._write_line("lower\n")

    def poll(self) -> AutoAnswer | None:
        """Return the answer if it is complete, without waiting. Unsupported, with the reason, if there will be none."""
        while True:
            try:
                data = os.read(self._output, PIPE_BYTES)
            except BlockingIOError:
                return None
            if not data:
                break
            self._received += data
        text = bytes(self._received)
        if text.startswith(b"failed\t"):
            raise Unsupported(text.removeprefix(b"failed\t").decode("utf-8", "replace").strip())
        try:
            return decode_answer(text)
        except AntiphonError:
            raise Unsupported("the process that plans ended without an answer") from None

    def end(self) -> None:
        """Stop the subprocess, and wait until it has ended."""
        process = self._process
        if process.stdin is not None and not process.stdin.closed:
            with suppress(OSError):
                process.stdin.close()
        with suppress(OSError):
            process.terminate()
        try:
            process.wait(_END_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None and not process.stdout.closed:
            process.stdout.close()


# ---- asking in turn with the calls of a group ----

Sum = Callable[[NDArray[Any]], None]  # over all processes, in place
SYNCHRONIZING = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")  # none ends before all have begun
LARGE_CALL_BYTES = 2**16  # bytes per process, from which any other call may be preceded by a sum, too
MAX_CALLS_WITHOUT_SUM = 64  # calls without a sum after which any call may be preceded by one
SPACING = 64  # after n calls the next sum comes n / SPACING calls later
_PLANNING, _READY, _NEVER = 0, 1, 2  # states of process 0: still planning; it has an answer; there will be none
# Positions of the integers. Of process 0: its state (above), the bytes of the book, its digest (four integers); then
# the numbers of processes that do not have the book, and that have steps left.
_STATE, _BYTES, _DIGEST, _LACKING, _BUSY = 0, 1, slice(2, 6), 6, 7


def _no_steps(book: Book) -> Iterator[None]:
    del book
    yield from ()


@dataclass
class Turns:
    """One process's part in adopting plans."""

    leads: bool  # whether this is process 0
    planning: PlanningProcess | None  # the subprocess of process 0 that plans
    path: str  # the cache file of the answer, "" for none
    row: LedgerRow  # of the report, in which the outcome is entered
    timeout: float  # seconds without any progress after which a sum fails
    next_number: int = 1  # the number of the call that may ask next
    over: bool = False  # whether plans were adopted, or will never come
    answer: AutoAnswer | None = None
    why: str = ""  # the reason if there will be no plans
    ready: Callable[[Book], Iterator[None]] = _no_steps  # returns the steps that prepare a process for a book
    data: bytes = b""  # of the book, once it is here
    book: Book | None = None
    _steps: Iterator[None] | None = None
    _lacks_book: bool = False  # whether process 0 must broadcast the book to this process
    _busy: bool = True  # whether steps are left, or have not begun

    def due(self, number: int, kind: str, nbytes: int) -> bool:
        """Return whether all processes ask (add up) before this call."""
        return number >= self.next_number and (
            kind in SYNCHRONIZING or nbytes >= LARGE_CALL_BYTES or number >= self.next_number + MAX_CALLS_WITHOUT_SUM
        )

    def turn(self, number: int, add: Sum) -> Book | None:
        """Ask. Return the book to use from this call on; None if there is none yet, or never."""
        # default: geometric spacing, so the cost of asking stays a constant fraction of all calls
        self.next_number = number + 1 + number // SPACING
        state = self._own_state()
        add(state)
        # process 0 has announced that there will be no plans
        if state[_STATE] == _NEVER:
            self.row.served_by, self.row.why = "nothing", self.why or "process 0 knows why"
            self.over = True
        # still planning
        if state[_STATE] != _READY:
            return None
        self.next_number = number + 1
        # some process cannot read the cache file: broadcast the book by the same kind of sum
        if self._steps is not None and state[_LACKING]:
            self._broadcast_book(int(state[_BYTES]), add)
        elif self._steps is not None and not state[_BUSY]:
            self.over = True
            if self.answer is not None:
                fill_row(self.row, self.answer, number)
            return self.book
        if self._steps is None:
            self._steps = self._prepare_book(state[_DIGEST].tobytes())
        # one step of preparation; the generator yields None until it ends
        self._busy = next(self._steps, self) is None
        return None

    def _own_state(self) -> NDArray[np.int64]:
        """Return the eight integers that this process adds to the sum."""
        # processes other than 0 contribute only the counters of lacking and busy processes
        state = np.zeros(8, np.int64)
        state[_LACKING], state[_BUSY] = self._lacks_book, self._busy
        if not self.leads:
            return state
        try:
            if self.planning is None:
                raise Unsupported(self.why or "nothing plans")
            self.answer = self.answer or self.planning.poll()
        except AntiphonError as error:
            state[_STATE], self.why = _NEVER, str(error)
        if self.answer is not None:
            state[_STATE], state[_BYTES] = _READY, len(self.answer.book)
            state[_DIGEST] = np.frombuffer(self.answer.digest, np.int64)
        return state

    def _prepare_book(self, digest: bytes) -> Iterator[None]:
        """Get the book of this digest, then get ready for calls by it, a step each."""
        if self.answer is None and self.path:
            cached, _ = read_kept(Path(self.path))
            if cached is not None and cached.digest == digest:
                self.answer = cached
        self._lacks_book = self.answer is None
        # `_broadcast_book` clears it
        while self._lacks_book:
            yield
        yield  # decoding the book is a step of its own
        if self.answer is not None:
            self.data, self.book = self.answer.book, self.answer.pages  # the bytes, and the same decoded
        assert self.book is not None
        yield from self.ready(self.book)

    def _broadcast_book(self, size: int, add: Sum) -> None:
        """Broadcast the book of process 0, by a sum to which the others add zeros."""
        buffer = np.zeros(size, np.uint8)
        if self.leads and self.answer is not None:
            buffer[:] = np.frombuffer(self.answer.book, np.uint8)
        add(buffer)
        if self._lacks_book:
            self.data = buffer.tobytes()
            self.book = decode_book(self.data)
        self._lacks_book = False

    def end(self) -> None:
        """Stop asking, and end the planning process. Not within a call: a process may take long to end."""
        self.over = True
        if self.planning is not None:
            self.planning.end()
        self.planning = None


def fill_row(row: LedgerRow, answer: AutoAnswer, number: int) -> None:
    """Fill the row of the report on plans that are used from call `number` on."""
    row.schedule, row.served_by = answer.machine, answer.how
    notes = f" ({answer.notes})" if answer.notes else ""
    row.why = f"from call {number} on; predicted: {answer.gain}{notes}"
