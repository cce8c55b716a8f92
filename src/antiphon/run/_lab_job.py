"""What `antiphon lab run PLAN` does inside a lab: a process for each rank, in its namespace, and one that leads them.

Started there as `python -m antiphon.run._lab_job`: the job comes by stdin, rows go to stdout. The ranks are forked from
the leader, which has loaded everything already; it tells each when to begin, and counts what the links let through.
"""

from __future__ import annotations

import fcntl
import json
import os
import selectors
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, TextIO

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.datatypes import data_type
from antiphon.core.program import decode
from antiphon.errors import AntiphonError
from antiphon.run._lab_kernel import HOST, NEW_NETWORK, SPACES, die_with_parent, join
from antiphon.run._launch import MARK
from antiphon.run._mesh import handed_over, mesh
from antiphon.run._mpi_data import RankData
from antiphon.run._native import Engine

LEAD = 0.004  # seconds from the word to begin until all begin
QUIET = 0.01  # seconds after its end in which a rank leaves the processor to those that are not done yet
SETTLE = 0.1  # seconds until the last replies have come
NEWS = 0.3  # seconds for the others to say what they know when one has failed
_RUNNING, _FLAGS = 0x40, 0x8913


@dataclass(frozen=True)
class Case:
    """One size. `stall`: seconds without any progress after which a rank gives up."""

    unit: int
    nbytes: int
    stall: float


@dataclass(frozen=True)
class Job:
    """`ranks`: those that take part; `peers`, `addresses`: of each; `ports`: (namespace, device) to count at."""

    library: str
    ranks: list[int]
    peers: dict[str, list[int]]
    addresses: dict[str, str]
    ports: list[tuple[str, str]]
    cases: list[Case]
    dtype: str
    op: str
    in_place: bool
    seed: int
    repeat: int
    warmup: int
    program: bytes = field(default=b"", repr=False)

    def encode(self) -> bytes:
        known = {key: value for key, value in asdict(self).items() if key != "program"}
        return json.dumps(known).encode() + b"\n" + self.program

    @classmethod
    def decode(cls, data: bytes) -> Job:
        head, _, program = data.partition(b"\n")
        known = json.loads(head)
        known["cases"] = [Case(**one) for one in known["cases"]]
        return cls(**known, program=program)


# ---- one rank ----


class _Rank:
    def __init__(self, job: Job, collective: Collective, rank: int, leader: TextIO) -> None:
        self.job, self.collective, self.rank, self.leader = job, collective, rank, leader

    def tell(self, **what: Any) -> None:
        self.leader.write(json.dumps(what) + "\n")
        self.leader.flush()

    def hear(self) -> Any:
        line = self.leader.readline()
        if not line:
            os._exit(1)  # the leader is gone, and all is over
        return json.loads(line)

    def _exchange(self, text: str) -> list[str]:
        self.tell(card=text)
        cards: dict[str, str] = self.hear()
        return [cards.get(str(rank), "{}") for rank in range(self.collective.ranks)]

    def go(self) -> None:
        job, rank = self.job, self.rank
        join(f"{SPACES}/r{rank}", NEW_NETWORK)
        engine = Engine(Path(job.library))
        program = engine.program(job.program)
        found = mesh(
            rank, self.collective.ranks, self._exchange, address=job.addresses[str(rank)],
            peers=job.peers[str(rank)], timeout=max(case.stall for case in job.cases),
        )  # fmt: skip
        wire = engine.sockets(rank, handed_over(found))
        dtype = data_type(job.dtype)
        for case in job.cases:
            plan = program.plan(rank, case.unit, job.in_place)
            data = RankData(self.collective, rank, case.unit, dtype, job.op, job.in_place, job.seed)
            source = np.zeros(0 if job.in_place else data.sizes[0], dtype)
            target = np.zeros(data.sizes[1], dtype)
            fresh = np.zeros(data.sizes[1], dtype)
            data.fill(fresh if job.in_place else source)
            kept = source.copy()
            call = plan.bound(None if job.in_place else source, target, wire, job.op, case.stall)
            for turn in range(job.warmup + job.repeat):
                target[:] = fresh if job.in_place else dtype.type(77)
                self.tell(ready=True)
                begin = self.hear()["begin"]
                time.sleep(max(begin - time.monotonic(), 0.0))
                call()
                end = time.monotonic()
                time.sleep(QUIET)
                self.tell(end=end)
                del turn
            wrong = data.count_wrong(target) + int(np.count_nonzero(source != kept))
            self.tell(wrong=wrong, messages=plan.needs.sends)
            del call, plan
        self.hear()  # nobody closes while others may still listen
        wire.close()


def _one_rank(job: Job, collective: Collective, rank: int, mine: socket.socket) -> None:
    one = _Rank(job, collective, rank, mine.makefile("rw", encoding="utf-8"))
    try:
        one.go()
    except BaseException as error:
        if not isinstance(error, AntiphonError):
            traceback.print_exc()
        one.tell(fault=str(error) or type(error).__name__, kind=type(error).__name__)


# ---- the leader ----


class _Fault(Exception):
    """One or more ranks failed: what each said, or by which signal it was ended."""

    def __init__(self, said: Mapping[int, dict[str, Any]]) -> None:
        super().__init__()
        self.said = said


class _Leader:
    """Starts the ranks, and speaks with all of them at once."""

    def __init__(self, job: Job, collective: Collective) -> None:
        self.job = job
        self.children: dict[int, int] = {}
        self.streams: dict[int, socket.socket] = {}
        self.heard: dict[int, bytes] = {}
        self.ended: set[int] = set()
        self.selector = selectors.DefaultSelector()
        for rank in job.ranks:
            ours, theirs = socket.socketpair()
            child = os.fork()
            if not child:
                code = 1
                try:
                    die_with_parent()
                    for other in [ours, *self.streams.values()]:
                        other.close()
                    _one_rank(job, collective, rank, theirs)
                    code = 0
                finally:
                    os._exit(code)
            theirs.close()
            self.children[rank], self.streams[rank], self.heard[rank] = child, ours, b""
            self.selector.register(ours, selectors.EVENT_READ, rank)

    def tell(self, what: Any) -> None:
        line = json.dumps(what).encode() + b"\n"
        for one in self.streams.values():
            one.sendall(line)

    def hear(self) -> dict[int, dict[str, Any]]:
        """The next line of every rank; _Fault when one has failed, with what others say soon after."""
        said: dict[int, dict[str, Any]] = {}
        end = float("inf")
        while True:
            for rank in self.children:
                if rank not in said and (line := self._next(rank)) is not None:
                    said[rank] = line
            faults = {rank: line for rank, line in said.items() if "fault" in line}
            if len(said) == len(self.children) or time.monotonic() > end:
                break
            if faults:
                end = min(end, time.monotonic() + NEWS)
            for key, _ in self.selector.select(None if end == float("inf") else max(end - time.monotonic(), 0.0)):
                self._receive(int(key.data))
        if faults:
            raise _Fault(faults)
        return said

    def _receive(self, rank: int) -> None:
        try:
            more = self.streams[rank].recv(2**20)
        except ConnectionResetError:
            more = b""
        self.heard[rank] += more
        if not more:
            self.selector.unregister(self.streams[rank])
            self.ended.add(rank)

    def _next(self, rank: int) -> dict[str, Any] | None:
        """What a rank said next, or how it ended; None if there is nothing yet."""
        line, mark, rest = self.heard[rank].partition(b"\n")
        if mark:
            self.heard[rank] = rest
            found: dict[str, Any] = json.loads(line)
            return found
        return {"fault": self._how_ended(rank), "kind": "ended"} if rank in self.ended else None

    def _how_ended(self, rank: int) -> str:
        code = os.waitstatus_to_exitcode(os.waitpid(self.children[rank], 0)[1])
        return f"ended by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"ended with exit code {code}"

    def run(self) -> None:
        self.tell({rank: one["card"] for rank, one in self.hear().items()})
        for number, case in enumerate(self.job.cases):
            spent = []
            before: list[int] = []
            for turn in range(self.job.warmup + self.job.repeat):
                self.hear()
                if turn == self.job.warmup + self.job.repeat - 1:
                    time.sleep(SETTLE)
                    before = sent(self.job.ports)
                begin = time.monotonic() + LEAD
                self.tell({"begin": begin})
                spent.append(max(one["end"] for one in self.hear().values()) - begin)
            found = self.hear().values()
            time.sleep(SETTLE)
            row = {
                "case": number, "nbytes": case.nbytes, "spent": spent[self.job.warmup :],
                "seconds": median(spent[self.job.warmup :]), "wrong": sum(one["wrong"] for one in found),
                "messages": sum(one["messages"] for one in found),
                "counted": [after - first for after, first in zip(sent(self.job.ports), before, strict=True)],
            }  # fmt: skip
            print(MARK + json.dumps(row), flush=True)
        self.tell({})


def sent(ports: Sequence[Sequence[str]]) -> list[int]:
    """Bytes that went out of each device, headers included. Visits the namespaces; back in that of the leader."""
    found: dict[str, dict[str, int]] = {}
    for space in sorted({space for space, _ in ports}):
        join(f"{SPACES}/{space}", NEW_NETWORK)
        lines = Path("/proc/thread-self/net/dev").read_text(encoding="ascii").splitlines()[2:]
        found[space] = {name.strip(): int(rest.split()[8]) for name, _, rest in (line.partition(":") for line in lines)}
    join(f"{SPACES}/{HOST}", NEW_NETWORK)
    return [found[space].get(device, 0) for space, device in ports]


def broken(ports: Sequence[Sequence[str]]) -> list[tuple[str, str]]:
    """The links that are down, or gone."""
    found = []
    for space, device in ports:
        join(f"{SPACES}/{space}", NEW_NETWORK)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            try:
                told = fcntl.ioctl(asked, _FLAGS, struct.pack("16sH14x", device.encode(), 0))
                if not struct.unpack("16sH14x", told)[1] & _RUNNING:
                    found.append((space, device))
            except OSError:
                found.append((space, device))
    join(f"{SPACES}/{HOST}", NEW_NETWORK)
    return found


def main() -> None:
    job = Job.decode(sys.stdin.buffer.read())
    try:
        _Leader(job, decode(job.program)[0].collective).run()
    except _Fault as fault:
        faults = [{"rank": rank, **said} for rank, said in sorted(fault.said.items())]
        print(MARK + json.dumps({"faults": faults, "broken": broken(job.ports)}), flush=True)
    except Exception as error:
        traceback.print_exc()
        print(MARK + json.dumps({"faults": [{"rank": -1, "fault": str(error), "kind": "error"}], "broken": []}))


if __name__ == "__main__":
    main()
