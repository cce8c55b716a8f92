"""What `antiphon lab run PLAN` does inside a lab: a process for each rank, in its namespace, and one that leads them.

Started there as `python -m antiphon.runtimes.lab._job`: the job comes by stdin, rows go to stdout. The ranks are forked
from the leader, which has loaded everything already; it tells each when to begin, and counts what the links let
through.
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
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, TextIO

from antiphon.core.collective import Collective
from antiphon.core.program import decode
from antiphon.errors import AntiphonError
from antiphon.runtimes.engine.launch import MARK
from antiphon.runtimes.engine.native import Engine, OpenProgram
from antiphon.runtimes.lab.kernel import HOST, NEW_NETWORK, SPACES, die_with_parent, join
from antiphon.runtimes.measure.case import Case, Row, heats
from antiphon.runtimes.measure.loop import Heat, Seat, Together
from antiphon.runtimes.measure.recorder import recording
from antiphon.runtimes.serve.mesh import handed_over, mesh

LEAD = 0.004  # seconds from the word to begin until all begin
QUIET = 0.01  # seconds after its end in which a rank leaves the processor to those that are not done yet
SETTLE = 0.1  # seconds until the last replies have come
NEWS = 0.3  # seconds for the others to say what they know when one has failed
_RUNNING, _FLAGS = 0x40, 0x8913


@dataclass(frozen=True)
class Job:
    """`ranks`: those that take part; `peers`, `addresses`: of each; `ports`: (namespace, device) to count at. The
    `timeout` of a case: seconds without any progress after which a rank gives up."""

    library: str
    ranks: list[int]
    peers: dict[str, list[int]]
    addresses: dict[str, str]
    ports: list[tuple[str, str]]
    cases: list[Case]
    programs: list[bytes] = field(default_factory=list, repr=False)

    def encode(self) -> bytes:
        known = {key: value for key, value in vars(self).items() if key != "programs"}
        known |= {"cases": [asdict(one) for one in self.cases], "lengths": [len(one) for one in self.programs]}
        return json.dumps(known).encode() + b"\n" + b"".join(self.programs)

    @classmethod
    def decode(cls, data: bytes) -> Job:
        head, _, rest = data.partition(b"\n")
        known = json.loads(head)
        known["cases"] = [Case(**one) for one in known["cases"]]
        ends = [0, *accumulate(known.pop("lengths"))]
        return cls(**known, programs=[rest[begin:end] for begin, end in pairwise(ends)])


# ---- one rank ----


class _Rank(Together):
    def __init__(self, job: Job, collectives: Sequence[Collective], rank: int, leader: TextIO) -> None:
        self.job, self.collectives, self.rank, self.leader = job, collectives, rank, leader

    def tell(self, **what: Any) -> None:
        self.leader.write(json.dumps(what) + "\n")
        self.leader.flush()

    def hear(self) -> Any:
        line = self.leader.readline()
        if not line:
            os._exit(1)  # the leader is gone, and all is over
        return json.loads(line)

    def meet(self) -> float:
        self.tell(ready=True)
        begin = float(self.hear())
        time.sleep(max(begin - time.monotonic(), 0.0))
        return begin

    def all(self, value: Any) -> list[Any]:
        self.tell(all=value)
        found: list[Any] = self.hear()
        return found

    def rest(self) -> None:
        time.sleep(QUIET)

    def watch(self) -> None:
        self.tell(watch=True)
        self.hear()

    def go(self) -> None:
        job, rank = self.job, self.rank
        join(f"{SPACES}/r{rank}", NEW_NETWORK)
        engine = Engine(Path(job.library))
        programs: dict[int, OpenProgram] = {}
        ranks = self.collectives[0].ranks

        def exchange(text: str) -> list[str]:
            cards = dict(zip(job.ranks, self.all(text), strict=True))
            return [cards.get(other, "{}") for other in range(ranks)]

        stall = max(case.timeout for case in job.cases)
        found = mesh(rank, ranks, exchange, address=job.addresses[str(rank)], peers=job.peers[str(rank)], timeout=stall)
        wire = engine.sockets(rank, handed_over(found))
        for heat in heats(job.cases):
            cases = [job.cases[number] for number in heat]
            if rank not in cases[0].ranks:
                continue
            plans = []
            for case in cases:
                if case.program not in programs:
                    programs[case.program] = engine.program(job.programs[case.program])
                plans.append(programs[case.program].plan(rank, case.unit, case.in_place, case.split))
            case, seat = cases[0], Seat(self.collectives[cases[0].program], rank, cases[0])
            calls = [plan.bound(seat.given, seat.target, wire, case.op, case.timeout) for plan in plans]
            with recording({rank: wire} if case.trace else {}) as recorder:
                heat_of = Heat(cases, seat, calls, None, self, recorder=recorder)
                rows = heat_of.go(messages=[plan.needs.sends for plan in plans])
            self.tell(rows=rows)
            del calls, plans
        self.tell(rows=[])
        self.hear()  # nobody closes while others may still listen
        wire.close()


def _one_rank(job: Job, collectives: Sequence[Collective], rank: int, mine: socket.socket) -> None:
    one = _Rank(job, collectives, rank, mine.makefile("rw", encoding="utf-8"))
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

    def __init__(self, job: Job, collectives: Sequence[Collective]) -> None:
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
                    _one_rank(job, collectives, rank, theirs)
                    code = 0
                finally:
                    os._exit(code)
            theirs.close()
            self.children[rank], self.streams[rank], self.heard[rank] = child, ours, b""
            self.selector.register(ours, selectors.EVENT_READ, rank)

    def tell(self, ranks: Sequence[int], what: Any) -> None:
        line = json.dumps(what).encode() + b"\n"
        for rank in ranks:
            self.streams[rank].sendall(line)

    def hear(self, ranks: Sequence[int]) -> dict[int, dict[str, Any]]:
        """The next line of these ranks; _Fault when one has failed, with what others say soon after."""
        said: dict[int, dict[str, Any]] = {}
        end = float("inf")
        while True:
            for rank in ranks:
                if rank not in said and (line := self._next(rank)) is not None:
                    said[rank] = line
            faults = {rank: line for rank, line in said.items() if "fault" in line}
            if len(said) == len(ranks) or time.monotonic() > end:
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
        """Lead all ranks to what they have in common, then those of each heat through it, then all to the end."""
        everyone = self.job.ranks
        self._together(everyone)
        for heat in heats(self.job.cases):
            rows, counted = self._heat(self.job.cases[heat[0]].ranks)
            for number, row, carried in zip(heat, rows, counted, strict=True):
                print(MARK + json.dumps({"case": number, **row, "counted": carried}), flush=True)
        self.hear(everyone)
        self.tell(everyone, {})

    def _together(self, ranks: Sequence[int]) -> None:
        said = self.hear(ranks)
        self.tell(ranks, [said[rank]["all"] for rank in ranks])

    def _heat(self, ranks: Sequence[int]) -> tuple[list[Row], list[list[int]]]:
        """Begin every run at one moment, hand on what they tell each other, count the runs that are to be counted."""
        counted, before = list[list[int]](), list[int]()
        while True:
            said = self.hear(ranks)
            first = said[ranks[0]]
            if before and "ready" not in first:
                time.sleep(SETTLE)
                counted.append([after - then for after, then in zip(sent(self.job.ports), before, strict=True)])
                before = []
            if "rows" in first:
                return first["rows"], counted
            if "watch" in first:
                time.sleep(SETTLE)
                before = sent(self.job.ports)
                self.tell(ranks, {})
            elif "ready" in first:
                self.tell(ranks, time.monotonic() + LEAD)
            else:
                self.tell(ranks, [said[rank]["all"] for rank in ranks])


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
        _Leader(job, [decode(one)[0].collective for one in job.programs]).run()
    except _Fault as fault:
        faults = [{"rank": rank, **said} for rank, said in sorted(fault.said.items())]
        print(MARK + json.dumps({"faults": faults, "broken": broken(job.ports)}), flush=True)
    except Exception as error:
        traceback.print_exc()
        print(MARK + json.dumps({"faults": [{"rank": -1, "fault": str(error), "kind": "error"}], "broken": []}))


if __name__ == "__main__":
    main()
