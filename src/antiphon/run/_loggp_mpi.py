"""What both MPI processes of `antiphon bench loggp` run: parametrized round trips PRTT(n, d, s), and receiving alone.

Started as `python -m antiphon.run._loggp_mpi JSON`; rank 0, the client, prints a line for every measurement. Messages
go by non-blocking calls and into receives that are posted already, as they do within a collective.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter as now
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.run._launch import MARK

WRONG, SMALL = "wrong", "alone"  # faults
DATA, BACK, READY, DONE = 1, 2, 3, 4  # tags
PAUSE = 2e-5  # seconds between two runs: the other side posts its receives meanwhile
COVER, LEAST_DELAY = 1.5, 2e-6  # a delay is so many gaps long: o_s + d >= g + (s-1) G whatever o_s is, with some room
LARGEST = 251

Vector = NDArray[np.uint8]


@dataclass(frozen=True)
class Task:
    """What to measure between ranks 0 and 1. `n`: messages; a row is the median of `iterations` runs."""

    sizes: list[int]
    n: int = 16
    repetitions: int = 7
    iterations: int = 20
    warmup: int = 3
    expected: int = 2


class Pair:
    """One of the two processes, with buffers for one size."""

    def __init__(self, comm: Any, mpi: Any, nbytes: int, n: int) -> None:
        self.comm, self.mpi, self.nbytes = comm, mpi, nbytes
        self.other = 1 - comm.rank
        self.out: Vector = given(comm.rank, nbytes)
        self.inbox: Vector = np.zeros((n, nbytes), np.uint8)
        self.answer: Vector = np.zeros(nbytes, np.uint8)
        self.calling = 0.0  # what calling `idle` itself takes

    def post(self, n: int) -> list[Any]:
        inbox, byte, other, receive = self.inbox, self.mpi.BYTE, self.other, self.comm.Irecv
        return [receive([inbox[i], byte], other, DATA) for i in range(n)]

    def idle(self, seconds: float) -> float:
        """Let MPI get on with its messages for so long; how long it really was."""
        probe, other = self.comm.Iprobe, self.other
        began = now()
        end = began + seconds
        while now() < end:
            probe(other, DONE)
        return now() - began

    def calibrate(self, calls: int = 200) -> None:
        """A delay is as long as seen from outside: what the call takes belongs to no message."""
        over = []
        for _ in range(calls):
            began = now()
            inner = self.idle(0.0)
            over.append(now() - began - inner)
        self.calling = median(over)

    def ask(self, n: int, delay: float) -> tuple[float, float]:
        """Client: send n, `delay` between two, until one is back. The seconds, and the delay there really was."""
        packet, send, waited = [self.out, self.mpi.BYTE], self.comm.Isend, 0.0
        self.idle(PAUSE)
        back = self.comm.Irecv([self.answer, self.mpi.BYTE], self.other, BACK)
        sent = []
        began = now()
        for i in range(n):
            if i and delay:
                waited += self.idle(delay) + self.calling
            sent.append(send(packet, self.other, DATA))
        if n > 1:
            self.mpi.Request.Waitall(sent)
        back.Wait()
        spent = now() - began
        if n == 1:
            sent[0].Wait()
        return spent, waited / max(n - 1, 1)

    def answering(self, n: int, runs: int) -> None:
        """Server: n receives, then one message back."""
        posted = self.post(n)
        self.comm.Send([self.out[:1], self.mpi.BYTE], self.other, READY)
        for turn in range(runs):
            if n == 1:
                posted[0].Wait()
            else:
                self.mpi.Request.Waitall(posted)
            self.comm.Send([self.out, self.mpi.BYTE], self.other, BACK)
            posted = self.post(n) if turn < runs - 1 else []

    def asking(self, n: int, delay: float, runs: int) -> list[tuple[float, float]]:
        self.comm.Recv([self.answer[:1], self.mpi.BYTE], self.other, READY)
        return [self.ask(n, delay) for _ in range(runs)]

    def receiving(self, n: int, runs: int) -> list[float]:
        """Server: what completing n receives takes, posted before, once all messages are there.

        Posting is in no round trip either: it is done while nothing has come yet.
        """
        spent = []
        small = np.zeros(1, np.uint8)
        for _ in range(runs):
            posted = self.post(n)
            self.comm.Send([small, self.mpi.BYTE], self.other, READY)
            while not self.comm.Iprobe(self.other, DONE):
                pass
            self.idle(PAUSE)
            began = now()
            for request in posted:
                request.Wait()
            spent.append(now() - began)
            self.comm.Recv([small, self.mpi.BYTE], self.other, DONE)
        return spent

    def supplying(self, n: int, runs: int) -> None:
        """Client: the messages that `receiving` waits for, and word that all have left."""
        small = np.zeros(1, np.uint8)
        for _ in range(runs):
            self.comm.Recv([small, self.mpi.BYTE], self.other, READY)
            sent = [self.comm.Isend([self.out, self.mpi.BYTE], self.other, DATA) for _ in range(n)]
            self.mpi.Request.Waitall(sent)
            self.comm.Send([small, self.mpi.BYTE], self.other, DONE)

    def correct(self, n: int) -> bool:
        """Whether all that came last is what the other side sent."""
        expected = given(self.other, self.nbytes)
        if self.comm.rank == 0:
            return bool((self.answer == expected).all())
        return bool((self.inbox[:n] == expected).all())


def given(rank: int, nbytes: int) -> Vector:
    made: Vector = ((np.arange(nbytes) * 7 + rank * 13 + 1) % LARGEST).astype(np.uint8)
    return made


def measure(task: Task, mpi: Any, world: Any) -> Iterator[dict[str, Any]]:
    """On rank 0 four rows, or a fault, for every repetition and size; nothing on rank 1."""
    if world.size != task.expected:
        yield {"fault": SMALL, "processes": world.size}
        return
    for _ in range(task.repetitions):  # in turn: what slows the machine for a while slows all sizes a little
        for nbytes in task.sizes:
            yield from _measured(task, Pair(world, mpi, nbytes, task.n))


def _measured(task: Task, pair: Pair) -> Iterator[dict[str, Any]]:
    client, runs, n = pair.comm.rank == 0, task.warmup + task.iterations, task.n
    pair.calibrate()
    rows: list[dict[str, Any]] = []

    def trip(count: int, delay: float) -> float:
        if client:
            seen = pair.asking(count, delay, runs)[task.warmup :]
            rows.append(_row("rtt", count, median(d for _, d in seen), pair.nbytes, _middle(seen, count)))
        else:
            pair.answering(count, runs)
        right = pair.comm.allreduce(pair.correct(count), op=pair.mpi.LAND)
        if client and not right:
            rows[-1]["fault"] = WRONG
        pair.inbox[:] = 0
        return float(rows[-1]["seconds"]) if client else 0.0

    one = trip(1, 0.0)
    many = trip(n, 0.0)
    trip(n, COVER * max(many - one, 0.0) / (n - 1) + LEAST_DELAY)
    if client:
        pair.supplying(n, runs)
        rows.append(_row("server", n, 0.0, pair.nbytes, pair.comm.recv(source=1)))
        yield from rows
    else:
        pair.comm.send(median(pair.receiving(n, runs)[task.warmup :]), dest=0)


def _middle(seen: list[tuple[float, float]], n: int) -> float:
    """The median without delays, and the median delays put back: a delay that lasted longer is not the message's."""
    bare = median(spent - (n - 1) * waited for spent, waited in seen)
    return bare + (n - 1) * median(waited for _, waited in seen)


def _row(kind: str, n: int, delay: float, nbytes: int, seconds: float) -> dict[str, Any]:
    return {"kind": kind, "n": n, "delay": delay, "nbytes": nbytes, "seconds": seconds}


def run(task: Task, tell: Callable[[dict[str, Any]], None]) -> bool:
    """Measure as one of the two processes that a launcher started; True on rank 0, which alone is told rows."""
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
