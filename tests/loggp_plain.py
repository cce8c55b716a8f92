"""LogGP with ports and NICs in plain Python: explicit lines and a heap of moments, slow and obviously right.

Written from docs/models/loggp.md alone, step by step as it is told there. Nothing of the engine is used. Numbers may
be whole, fractions or floats: whole figures give exact results.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

Number = Any  # int, Fraction or float
NEVER = None  # a port that was not used yet
TINY = 1e-12  # floats as near as that are one moment


@dataclass
class Message:
    """What is sent, what it waits for, and its own figures (those of its level at its size)."""

    src: int
    dst: int
    nbytes: Number
    deps: Sequence[int] = ()  # these must be done
    combined: Number = 0
    L: Number = 0
    o_s: Number = 0
    o_r: Number = 0
    g: Number = 0
    G: Number = 0
    gamma: Number = 0
    behind: Sequence[int] = ()  # of these the last byte must have left


@dataclass
class Clock:
    """What happens when; at one moment what was set in motion first comes first."""

    now: Number = 0
    heap: list[Any] = field(default_factory=list)
    number: Any = field(default_factory=count)

    def at(self, when: Number, what: Callable[[], None]) -> None:
        heapq.heappush(self.heap, (when, next(self.number), what))

    def run(self) -> None:
        while self.heap:
            self.now, _, what = heapq.heappop(self.heap)
            what()


class Line:
    """So many servers (None: no limit) and a line before them: first come, first served."""

    def __init__(self, servers: int | None) -> None:
        self.unlimited = servers is None
        self.free: deque[Number | None] = deque([NEVER] * (servers or 0))  # the one that is free the longest first
        self.waiting: deque[Callable[[Number | None], None]] = deque()
        self.held = 0

    def take(self, use: Callable[[Number | None], None]) -> None:
        """Calls `use` with when the server was freed, at once or when it is one's turn."""
        if self.unlimited or self.free:
            self.held += 1
            use(NEVER if self.unlimited else self.free.popleft())
        else:
            self.waiting.append(use)

    def give(self, now: Number) -> None:
        self.held -= 1
        if not self.unlimited:
            self.free.append(now)
            if self.waiting:
                self.take(self.waiting.popleft())


class Incoming:
    """A node's NIC on the way in: no line, but a server is occupied for as long as a packet needs."""

    def __init__(self, servers: int | None) -> None:
        self.until: list[Number] | None = None if servers is None else [0] * servers

    def through(self, first_byte: Number, G: Number, nbytes: Number) -> Number:
        """When the last byte of a packet is in."""
        if self.until is None:
            return first_byte + G * before_last(nbytes)
        free = [until for until in self.until if until <= first_byte * (1 + TINY)]
        server = self.until.index(max(free) if free else min(self.until))
        begin = max(first_byte, self.until[server])
        self.until[server] = begin + G * nbytes
        return begin + G * before_last(nbytes)


def before_last(nbytes: Number) -> Number:
    """The bytes that go before the last one; of a byte or less, nothing."""
    return max(nbytes - 1, 0)


def after_gap(now: Number, last: Number | None, g: Number) -> Number:
    return now if last is NEVER else max(now, last + g)


@dataclass
class Machine:
    """One run: `node` of every rank, radices (None: no limit), and `packet`: None for the message level."""

    messages: Sequence[Message]
    node: Sequence[int]
    device_radix: int | None
    node_radix: int | None
    packet: int | None

    def __post_init__(self) -> None:
        ranks, nodes = len(self.node), max(self.node) + 1
        self.clock = Clock()
        self.sending = [Line(self.device_radix) for _ in range(ranks)]
        self.receiving = [Line(self.device_radix) for _ in range(ranks)]
        self.out = [Line(self.node_radix) for _ in range(nodes)]
        self.incoming = [Incoming(self.node_radix) for _ in range(nodes)]
        self.combining: list[Number] = [0] * ranks
        self.missing = [len(set(m.deps)) + len(set(m.behind)) for m in self.messages]
        self.after: list[list[int]] = [[] for _ in self.messages]
        self.upon_leaving: list[list[int]] = [[] for _ in self.messages]
        for i, m in enumerate(self.messages):
            for dep in sorted(set(m.deps)):
                self.after[dep].append(i)
            for dep in sorted(set(m.behind)):
                self.upon_leaving[dep].append(i)
        self.ready: list[Number] = [None] * len(self.messages)
        self.first: list[Number] = [None] * len(self.messages)  # when its first byte may leave
        self.done: list[Number] = [None] * len(self.messages)

    def run(self) -> list[Number]:
        """When every message is done."""
        for i in [i for i, missing in enumerate(self.missing) if not missing]:
            self.start(i)
        self.clock.run()
        lines = [*self.sending, *self.receiving, *self.out]
        assert not any(line.held or line.waiting for line in lines)
        assert all(done is not None for done in self.done)
        return self.done

    def start(self, i: int) -> None:
        one = self.messages[i]
        self.ready[i] = self.clock.now
        if one.src == one.dst:  # work inside a rank: it needs no port, and costs what it combines
            # told by an event of its own: what was set in motion before at this moment comes first
            self.clock.at(self.clock.now, lambda: self.within_rank(i))
            return
        send = self.send_in_packets if self.packet else self.send_whole
        self.clock.at(self.clock.now + one.o_s, lambda: self.sending[one.src].take(lambda last: send(i, last)))

    def within_rank(self, i: int) -> None:
        self.release(self.upon_leaving[i])
        self.combine(i)

    def has_left(self, i: int) -> None:
        self.sending[self.messages[i].src].give(self.clock.now)
        self.release(self.upon_leaving[i])

    def within(self, i: int) -> bool:
        return self.node[self.messages[i].src] == self.node[self.messages[i].dst]

    # -- packets --------------------------------------------------------------------------------------------------

    def send_in_packets(self, i: int, last: Number | None) -> None:
        one, clock = self.messages[i], self.clock
        assert self.packet
        first = self.first[i] = after_gap(clock.now, last, one.g)
        if self.within(i):
            clock.at(first + one.G * before_last(one.nbytes), lambda: self.has_left(i))
            head = min(one.nbytes, self.packet)
            whole = first + one.G * before_last(one.nbytes) + one.L
            clock.at(first + one.G * before_last(head) + one.L, lambda: self.head_within(i, whole))
            return
        sizes: list[Number] = [self.packet] * int(one.nbytes // self.packet)
        if one.nbytes % self.packet or not sizes:
            sizes.append(one.nbytes % self.packet)
        left = Arrivals(sizes)
        clock.at(first, lambda: self.line_up(i, 0, left))

    def line_up(self, i: int, number: int, run: Arrivals) -> None:
        self.out[self.node[self.messages[i].src]].take(lambda _: self.serve(i, number, run))

    def serve(self, i: int, number: int, run: Arrivals) -> None:
        one, clock, size = self.messages[i], self.clock, run.sizes[number]
        final = number == len(run.sizes) - 1

        def over() -> None:
            self.out[self.node[one.src]].give(clock.now)
            if not final:
                self.line_up(i, number + 1, run)

        last_byte = clock.now + one.G * before_last(size)
        if final:
            clock.at(last_byte, lambda: self.has_left(i))
        clock.at(clock.now + one.G * size, over)
        clock.at(last_byte + one.L, lambda: self.arrive(i, number, run))

    def arrive(self, i: int, number: int, run: Arrivals) -> None:
        one, clock = self.messages[i], self.clock
        if number:
            self.late(i, number, clock.now, run)
            return
        arrived = clock.now

        def taken(last: Number | None) -> None:
            run.delay = after_gap(clock.now, last, one.g) - arrived
            self.late(i, 0, arrived, run)
            for other, when in run.held_up:
                self.late(i, other, when, run)

        self.receiving[one.dst].take(taken)

    def late(self, i: int, number: int, arrived: Number, run: Arrivals) -> None:
        """A packet of a message that is late by as much as its first."""
        if run.delay is None:
            run.held_up.append((number, arrived))
        else:
            self.clock.at(arrived + run.delay, lambda: self.pass_nic(i, number, run))

    def pass_nic(self, i: int, number: int, run: Arrivals) -> None:
        one, clock, size = self.messages[i], self.clock, run.sizes[number]
        first_byte = clock.now - one.G * before_last(size)
        come = self.incoming[self.node[one.dst]].through(first_byte, one.G, size)
        run.last_in = come if run.last_in is None else max(run.last_in, come)
        run.missing -= 1
        if not run.missing:
            clock.at(run.last_in, lambda: self.all_in(i))

    def head_within(self, i: int, whole: Number) -> None:
        """The first packet's worth of a message within a node has come."""
        one, clock, arrived = self.messages[i], self.clock, self.clock.now

        def taken(last: Number | None) -> None:
            delay = after_gap(clock.now, last, one.g) - arrived
            clock.at(whole + delay, lambda: self.all_in(i))

        self.receiving[one.dst].take(taken)

    # -- whole messages -------------------------------------------------------------------------------------------

    def send_whole(self, i: int, last: Number | None) -> None:
        one, clock = self.messages[i], self.clock
        first = self.first[i] = after_gap(clock.now, last, one.g)

        def leave() -> None:
            begin = clock.now
            clock.at(begin + one.G * before_last(one.nbytes), lambda: self.has_left(i))
            clock.at(begin + one.L, lambda: self.receiving[one.dst].take(lambda last: self.take_in(i, last)))

        def served(_: Number | None) -> None:
            leave()
            clock.at(clock.now + one.G * one.nbytes, lambda: self.out[self.node[one.src]].give(clock.now))

        if self.within(i):
            clock.at(first, leave)
        else:
            clock.at(first, lambda: self.out[self.node[one.src]].take(served))

    def take_in(self, i: int, last: Number | None) -> None:
        one, clock = self.messages[i], self.clock

        def enter() -> None:
            if self.within(i):
                come = clock.now + one.G * before_last(one.nbytes)
            else:
                come = self.incoming[self.node[one.dst]].through(clock.now, one.G, one.nbytes)
            clock.at(come, lambda: self.all_in(i))

        clock.at(after_gap(clock.now, last, one.g), enter)

    # -- both -----------------------------------------------------------------------------------------------------

    def all_in(self, i: int) -> None:
        one, clock = self.messages[i], self.clock
        self.receiving[one.dst].give(clock.now)
        clock.at(clock.now + one.o_r, lambda: self.combine(i))

    def combine(self, i: int) -> None:
        one, clock = self.messages[i], self.clock
        if not one.combined:
            self.finish(i)
            return
        done = max(clock.now, self.combining[one.dst]) + one.gamma * one.combined
        self.combining[one.dst] = done
        clock.at(done, lambda: self.finish(i))

    def finish(self, i: int) -> None:
        self.done[i] = self.clock.now
        self.release(self.after[i])

    def release(self, others: Sequence[int]) -> None:
        for other in others:  # in the order of their numbers
            self.missing[other] -= 1
            if not self.missing[other]:
                self.start(other)


class Arrivals:
    """Of one message between nodes: its packets, by how much they are late, and when the last byte is in."""

    def __init__(self, sizes: list[Number]) -> None:
        self.sizes = sizes
        self.missing = len(sizes)
        self.delay: Number | None = None
        self.held_up: list[tuple[int, Number]] = []
        self.last_in: Number | None = None


def simulate(
    messages: Iterable[Message], node: Sequence[int], *, device_radix: int | None = 1, node_radix: int | None = 1,
    packet: int | None = None,
) -> list[Number]:  # fmt: skip
    """When every message is done; `packet`: bytes, or None to take messages whole."""
    return Machine(list(messages), node, device_radix, node_radix, packet).run()
