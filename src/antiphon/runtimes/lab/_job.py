"""Run `antiphon lab run PLAN` inside a lab: a process for each rank, in its namespace, and a leader.

Started there as `python -m antiphon.runtimes.lab._job`, with the job on stdin and rows on stdout. The ranks are forked
from the leader, which has imported everything already. Each rank enters its network namespace, connects to its peers
and measures the cases of the job. Leader and ranks exchange lines of JSON over a pair of sockets each:

    rank: {"all": value}      leader: the values of all ranks
    rank: {"ready": true}     leader: the time at which all begin the next run
    rank: {"watch": true}     leader: {}, once it has read the byte counters of the links
    rank: {"rows": [...]}     the result of a group of cases
    rank: {"fault": text}     the rank failed; the leader ends the job

The leader counts the bytes that the links carry in a watched run.
"""

from __future__ import annotations

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
from antiphon.core.program import collective_of
from antiphon.errors import AntiphonError
from antiphon.runtimes.engine.launch import MARK
from antiphon.runtimes.engine.native import Engine, OpenProgram
from antiphon.runtimes.lab.kernel import CLONE_NEWNET, HOST, SPACES, die_with_parent, join_namespace
from antiphon.runtimes.measure.case import Case, Row, group_cases
from antiphon.runtimes.measure.loop import Measurement, Peers, RankBuffers
from antiphon.runtimes.measure.recorder import record_wires
from antiphon.runtimes.serve.mesh import connect_mesh, detach_all

START_DELAY = 0.004  # seconds from the start message until all begin, enough for it to reach every rank
QUIET = 0.01  # seconds after a run in which a rank leaves the processor to others
SETTLE = 0.1  # seconds after a run until TCP has sent its last replies, which counters include
FAULT_DELAY = 0.3  # seconds to collect the faults of other ranks after the first
_IFF_RUNNING, _SIOCGIFFLAGS = 0x40, 0x8913  # as in <linux/if.h> and <linux/sockios.h>


@dataclass(frozen=True)
class LabJob:
    """What the ranks run. Keys of dictionaries are ranks as text, as JSON requires."""

    library: str  # file of the engine, the C library that runs programs
    ranks: list[int]
    peers: dict[str, list[int]]  # rank -> the ranks that it exchanges messages with
    addresses: dict[str, str]  # rank -> its address in the lab
    ports: list[tuple[str, str]]  # (network namespace, device) of the links whose bytes are counted
    cases: list[Case]  # what is measured: a program with its size; `timeout`: seconds without any progress
    programs: list[bytes] = field(default_factory=list, repr=False)  # schedules compiled to operations per rank

    def encode(self) -> bytes:
        """Return a line of JSON, then the programs; the line has their `lengths` in bytes."""
        fields = {key: value for key, value in vars(self).items() if key != "programs"}
        fields |= {
            "cases": [asdict(case) for case in self.cases],
            "lengths": [len(program) for program in self.programs],
        }
        return json.dumps(fields).encode() + b"\n" + b"".join(self.programs)

    @classmethod
    def decode(cls, data: bytes) -> LabJob:
        head, _, rest = data.partition(b"\n")
        fields = json.loads(head)
        fields["cases"] = [Case(**case) for case in fields["cases"]]
        ends = [0, *accumulate(fields.pop("lengths"))]
        return cls(**fields, programs=[rest[begin:end] for begin, end in pairwise(ends)])


# ---- one rank ----


class _Rank(Peers):
    """The process of a rank. `Measurement` reaches other ranks by the methods of `Peers`, here through the leader."""

    def __init__(self, job: LabJob, collectives: Sequence[Collective], rank: int, leader: TextIO) -> None:
        self.job, self.collectives, self.rank, self.leader = job, collectives, rank, leader

    def send(self, **message: Any) -> None:
        self.leader.write(json.dumps(message) + "\n")
        self.leader.flush()

    def receive(self) -> Any:
        line = self.leader.readline()
        if not line:
            os._exit(1)  # the leader has ended
        return json.loads(line)

    def meet(self) -> float:
        self.send(ready=True)
        begin = float(self.receive())
        time.sleep(max(begin - time.monotonic(), 0.0))
        return begin

    def all(self, value: Any) -> list[Any]:
        self.send(all=value)
        values: list[Any] = self.receive()
        return values

    def rest(self) -> None:
        time.sleep(QUIET)

    def watch(self) -> None:
        self.send(watch=True)
        self.receive()

    def go(self) -> None:
        """Connect, and measure all cases in which this rank takes part."""
        job, rank = self.job, self.rank
        join_namespace(f"{SPACES}/r{rank}", CLONE_NEWNET)
        engine = Engine(Path(job.library))
        programs: dict[int, OpenProgram] = {}
        ranks = self.collectives[0].ranks

        def exchange(text: str) -> list[str]:
            text_of = dict(zip(job.ranks, self.all(text), strict=True))
            # an empty object for ranks without a process, to which nobody connects
            return [text_of.get(other, "{}") for other in range(ranks)]

        timeout = max(case.timeout for case in job.cases)
        sockets = connect_mesh(
            rank, ranks, exchange, address=job.addresses[str(rank)], peers=job.peers[str(rank)], timeout=timeout
        )
        wire = engine.sockets(rank, detach_all(sockets))
        for numbers in group_cases(job.cases):
            cases = [job.cases[number] for number in numbers]
            if rank not in cases[0].ranks:
                continue
            plans = []
            for case in cases:
                if case.program not in programs:
                    programs[case.program] = engine.program(job.programs[case.program])
                plans.append(programs[case.program].plan(rank, case.unit, case.in_place, case.split))
            case, buffers = cases[0], RankBuffers(self.collectives[cases[0].program], rank, cases[0])
            calls = [plan.bound(buffers.source_argument, buffers.target, wire, case.op, case.timeout) for plan in plans]
            with record_wires({rank: wire} if case.trace else {}) as recorder:
                # theirs=None: there is no library's own collective; `messages` of all ranks are added up in the rows
                measurement = Measurement(cases, buffers, calls, theirs=None, peers=self, recorder=recorder)
                rows = measurement.run(messages=[plan.needs.sends for plan in plans])
            self.send(rows=rows)
            del calls, plans
        self.send(rows=[])
        self.receive()  # no rank closes its sockets while others may still receive
        wire.close()


def _one_rank(job: LabJob, collectives: Sequence[Collective], rank: int, stream: socket.socket) -> None:
    """Be the process of a rank; report a failure to the leader."""
    process = _Rank(job, collectives, rank, stream.makefile("rw", encoding="utf-8"))
    try:
        process.go()
    except BaseException as error:
        if not isinstance(error, AntiphonError):
            traceback.print_exc()
        process.send(fault=str(error) or type(error).__name__, kind=type(error).__name__)


# ---- the leader ----


class _Fault(Exception):
    """One or more ranks failed: the fault that each reported, or the signal that ended it."""

    def __init__(self, messages: Mapping[int, dict[str, Any]]) -> None:
        super().__init__()
        self.messages = messages


class _Leader:
    """Start the ranks, and exchange messages with all of them at once."""

    def __init__(self, job: LabJob, collectives: Sequence[Collective]) -> None:
        self.job = job
        self.children: dict[int, int] = {}  # rank -> process
        self.streams: dict[int, socket.socket] = {}  # by rank, as all below
        self.received: dict[int, bytes] = {}  # bytes that are not yet read as messages
        self.ended: set[int] = set()
        self.selector = selectors.DefaultSelector()
        for rank in job.ranks:
            ours, theirs = socket.socketpair()
            child = os.fork()
            if not child:
                code = 1
                try:
                    die_with_parent()
                    # a rank must not hold the leader's ends, or the leader's end would not be noticed
                    for other in [ours, *self.streams.values()]:
                        other.close()
                    _one_rank(job, collectives, rank, theirs)
                    code = 0
                finally:
                    os._exit(code)
            theirs.close()
            self.children[rank], self.streams[rank], self.received[rank] = child, ours, b""
            self.selector.register(ours, selectors.EVENT_READ, rank)

    def send(self, ranks: Sequence[int], message: Any) -> None:
        line = json.dumps(message).encode() + b"\n"
        for rank in ranks:
            self.streams[rank].sendall(line)

    def receive(self, ranks: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Return the next message of each rank; _Fault, with faults that others report soon after, if one failed."""
        messages: dict[int, dict[str, Any]] = {}
        end = float("inf")
        while True:
            for rank in ranks:
                if rank not in messages and (line := self._next_message(rank)) is not None:
                    messages[rank] = line
            # one failure causes others: wait a little, and report them together
            faults = {rank: line for rank, line in messages.items() if "fault" in line}
            if len(messages) == len(ranks) or time.monotonic() > end:
                break
            if faults:
                end = min(end, time.monotonic() + FAULT_DELAY)
            for key, _ in self.selector.select(None if end == float("inf") else max(end - time.monotonic(), 0.0)):
                self._receive_bytes(int(key.data))
        if faults:
            raise _Fault(faults)
        return messages

    def _receive_bytes(self, rank: int) -> None:
        """Add the bytes that a rank has sent, or note that it has ended."""
        try:
            data = self.streams[rank].recv(2**20)
        except ConnectionResetError:
            data = b""
        self.received[rank] += data
        if not data:
            self.selector.unregister(self.streams[rank])
            self.ended.add(rank)

    def _next_message(self, rank: int) -> dict[str, Any] | None:
        """Return the next message of a rank, or how it ended; None if there is none yet."""
        line, mark, rest = self.received[rank].partition(b"\n")
        if mark:
            self.received[rank] = rest
            message: dict[str, Any] = json.loads(line)
            return message
        return {"fault": self._how_ended(rank), "kind": "ended"} if rank in self.ended else None

    def _how_ended(self, rank: int) -> str:
        code = os.waitstatus_to_exitcode(os.waitpid(self.children[rank], 0)[1])
        return f"ended by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"ended with exit code {code}"

    def run(self) -> None:
        """Lead all ranks through their setup, each group of cases, and the end."""
        ranks = self.job.ranks
        self._share_values(ranks)
        for numbers in group_cases(self.job.cases):
            # every case has one watched run (`Measurement.run`), in the order of the cases
            rows, counted = self._lead_group(self.job.cases[numbers[0]].ranks)
            for number, row, carried in zip(numbers, rows, counted, strict=True):
                print(MARK + json.dumps({"case": number, **row, "counted": carried}), flush=True)
        self.receive(ranks)  # the empty rows by which each rank shows that it is done
        self.send(ranks, {})  # now all may close their sockets

    def _share_values(self, ranks: Sequence[int]) -> None:
        """Receive a value from each rank, and send all of them to all."""
        messages = self.receive(ranks)
        self.send(ranks, [messages[rank]["all"] for rank in ranks])

    def _lead_group(self, ranks: Sequence[int]) -> tuple[list[Row], list[list[int]]]:
        """Lead ranks through a group of cases; return their rows, and per watched run the bytes that each port sent."""
        # `before`: counters before the watched run under way; empty: none is, as a lab has links
        counted, before = list[list[int]](), list[int]()
        while True:
            # all ranks of a group take the same steps, so their messages are of one kind, and their rows equal
            messages = self.receive(ranks)
            first = messages[ranks[0]]
            # after `watch` a rank sends `ready` for the watched run; any other message means that the run is over
            if before and "ready" not in first:
                time.sleep(SETTLE)
                counted.append(
                    [after - earlier for after, earlier in zip(count_sent_bytes(self.job.ports), before, strict=True)]
                )
                before = []
            if "rows" in first:
                return first["rows"], counted
            if "watch" in first:
                time.sleep(SETTLE)
                before = count_sent_bytes(self.job.ports)
                self.send(ranks, {})
            elif "ready" in first:
                # all ranks share the clock of this host: they begin at this time
                self.send(ranks, time.monotonic() + START_DELAY)
            else:
                self.send(ranks, [messages[rank]["all"] for rank in ranks])


def count_sent_bytes(ports: Sequence[Sequence[str]]) -> list[int]:
    """Return the bytes sent by each device, with headers. Enters each namespace, then that of the leader again."""
    bytes_of: dict[str, dict[str, int]] = {}
    for space in sorted({space for space, _ in ports}):
        join_namespace(f"{SPACES}/{space}", CLONE_NEWNET)
        # two lines of titles; then, per device, eight counters of what it received and eight of what it sent
        _, _, *lines = Path("/proc/thread-self/net/dev").read_text(encoding="ascii").splitlines()
        bytes_of[space] = {
            name.strip(): int(rest.split()[8]) for name, _, rest in (line.partition(":") for line in lines)
        }
    join_namespace(f"{SPACES}/{HOST}", CLONE_NEWNET)
    return [bytes_of[space].get(device, 0) for space, device in ports]


def find_broken_links(ports: Sequence[Sequence[str]]) -> list[tuple[str, str]]:
    """Return the links that are down or missing."""
    import fcntl

    links = []
    for space, device in ports:
        join_namespace(f"{SPACES}/{space}", CLONE_NEWNET)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                reply = fcntl.ioctl(probe, _SIOCGIFFLAGS, struct.pack("16sH14x", device.encode(), 0))
                _, flags = struct.unpack("16sH14x", reply)  # struct ifreq: name, flags
                if not flags & _IFF_RUNNING:
                    links.append((space, device))
            except OSError:
                links.append((space, device))
    join_namespace(f"{SPACES}/{HOST}", CLONE_NEWNET)
    return links


def main() -> None:
    job = LabJob.decode(sys.stdin.buffer.read())
    try:
        _Leader(job, list(map(collective_of, job.programs))).run()
    except _Fault as fault:
        faults = [{"rank": rank, **message} for rank, message in sorted(fault.messages.items())]
        print(MARK + json.dumps({"faults": faults, "broken": find_broken_links(job.ports)}), flush=True)
    except Exception as error:
        traceback.print_exc()
        print(MARK + json.dumps({"faults": [{"rank": -1, "fault": str(error), "kind": "error"}], "broken": []}))


if __name__ == "__main__":
    main()
