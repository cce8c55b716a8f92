"""Ranks with one processor each in plain Python: at every moment all that waits is looked at, slow and obviously right.

Written from docs/models/loggp.md alone, where it tells of `cpu=shared`. Nothing of the engine is used.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from loggp_plain import Message, before_last

SENDING, TAKING, COMBINING = "sending", "taking", "combining"


@dataclass
class Rank:
    """When its processor and its ports are free, and a line for each kind of work: (turn, message)."""

    ports: int | None
    processor: Any = 0
    free: dict[str, list[Any]] = field(default_factory=dict)
    lines: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: {SENDING: [], TAKING: [], COMBINING: []})

    def __post_init__(self) -> None:
        self.free = {way: [0] * (self.ports or 0) for way in (SENDING, TAKING)}

    def can_begin(self, kind: str) -> Any:
        """When it may do such work at the earliest."""
        return max([self.processor, *([min(self.free[kind])] if self.free.get(kind) else [])])

    def use_port(self, kind: str, until: Any) -> None:
        if self.free[kind]:
            self.free[kind][self.free[kind].index(min(self.free[kind]))] = until


@dataclass
class Processors:
    """One run; `eager`: bytes up to which a send is over before the receiver takes the message."""

    messages: Sequence[Message]  # `deps`: done; `behind`: over for the rank that sent them
    ranks: int
    ports: int | None
    eager: float = float("inf")

    def run(self) -> list[Any]:
        """When every message is done."""
        self.turns, self.now = count(), 0
        self.rank = [Rank(self.ports) for _ in range(self.ranks)]
        self.coming: list[tuple[Any, int, str, int]] = []  # moment, turn, kind, message: not in line yet
        self.missing = [{("done", i) for i in m.deps} | {("over", i) for i in m.behind} for m in self.messages]
        self.ready: list[Any] = [0] * len(self.messages)
        self.done: list[Any] = [None] * len(self.messages)
        self.held: list[Any] = [0] * len(self.messages)
        for i in sorted(range(len(self.messages)), key=lambda i: self.messages[i].src):
            if not self.missing[i]:
                self.motion(i, 0)
        while self.step():
            pass
        return self.done

    def motion(self, i: int, when: Any) -> None:
        """It may be sent from then on; within a rank there is combining only."""
        self.ready[i] = when
        inside = self.messages[i].src == self.messages[i].dst
        self.coming.append((when, next(self.turns), COMBINING if inside else SENDING, i))

    def step(self) -> bool:
        """The next thing that happens: the earliest, of one moment that of the oldest turn."""
        heads = [(max(self.now, rank.can_begin(kind)), *line[0], kind, rank)
                 for rank in self.rank for kind, line in rank.lines.items() if line]  # fmt: skip
        first = min(self.coming, default=None)
        head = min(heads, key=lambda one: one[:2], default=None)
        if first is not None and (head is None or first[:2] <= head[:2]):
            self.coming.remove(first)
            self.now, turn, kind, i = first
            one = self.messages[i]
            self.rank[one.src if kind == SENDING else one.dst].lines[kind].append((turn, i))
            return True
        if head is None:
            return False
        self.now, _, i, kind, rank = head
        rank.lines[kind].pop(0)
        getattr(self, kind)(i, self.messages[i], rank)
        return True

    def sending(self, i: int, one: Message, rank: Rank) -> None:
        rank.processor = self.now + one.o_s
        rank.use_port(SENDING, self.now + one.g + one.G * before_last(one.nbytes))
        self.coming.append((rank.processor + one.L, next(self.turns), TAKING, i))
        if one.nbytes <= self.eager:
            self.tell(("over", i), rank.processor)

    def taking(self, i: int, one: Message, rank: Rank) -> None:
        flight = one.G * before_last(one.nbytes)
        rank.processor = self.now + flight + one.o_r
        rank.use_port(TAKING, self.now + one.g + flight)
        work = one.gamma * one.combined
        if work:
            self.coming.append((rank.processor, next(self.turns), COMBINING, i))
        if one.nbytes > self.eager:
            self.tell(("over", i), self.now)
        if not work:
            self.finish(i, rank.processor)

    def combining(self, i: int, one: Message, rank: Rank) -> None:
        rank.processor = self.now + one.gamma * one.combined
        if one.src == one.dst:
            self.tell(("over", i), rank.processor)
        self.finish(i, rank.processor)

    def finish(self, i: int, when: Any) -> None:
        self.done[i] = when
        self.tell(("done", i), when)

    def tell(self, what: tuple[str, int], when: Any) -> None:
        for i, missing in enumerate(self.missing):
            if what in missing:
                missing.remove(what)
                self.held[i] = max(self.held[i], when)
                if not missing:
                    self.motion(i, self.held[i])
