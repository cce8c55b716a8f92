"""A table of lower/device/table.py as statements: what a rank does in a stream, one after another."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from antiphon.core.program.kinds import SCRATCH
from antiphon.lower.device.table import DIVIDE, HEAD, PERMUTE, Table
from antiphon.lower.onesided.form import PACKETS, PUT, SIGNAL, SYNC, WAIT

BUFFERS = ("input", "output", "scratch")
MOST_AT_ONCE = 8  # places that one statement names; where there are more, each has one of its own


class Statement(NamedTuple):
    """`form`: what it is, and the buffers that it names, by which its numbers are read. `values`: its numbers: of a
    place the rank, whole units, a cut, and in scratch also a cut to take off and how many slots of each class come
    before; of packets (`box`) the rank and their slot."""

    form: tuple[str, ...]
    values: tuple[int, ...]


class _Argument(NamedTuple):
    rank: int
    region: int
    whole: int
    part: int
    number: int


@dataclass(frozen=True)
class Rank:
    """What stands in the table of a rank. `classes`: whole units and a cut; `slots`: how many it has of each. `boxes`:
    how many slots of packets come here; `atoms`: those of the longest (0: there are no packets); `hears`: whether at
    its end all have heard from all."""

    denominator: int
    parts: list[int]
    classes: list[list[int]]
    slots: list[int]
    weights: tuple[int, int]
    streams: list[list[Statement]]
    boxes: int
    atoms: int
    hears: bool


def statements(table: Table, averages: bool = True) -> Rank:
    """Linear in its words. `averages`: whether sums are divided, where averages are asked for."""
    words = table.words.tolist()
    denominator, weights = words[5], (words[6], words[7])
    parts, classes, regions, blocks, steps, arguments = words[8:14]
    at = HEAD

    def rows(count: int, width: int) -> list[list[int]]:
        nonlocal at
        found = [words[at + width * k : at + width * (k + 1)] for k in range(count)]
        at += width * count
        return found

    cuts, kinds, slots = rows(parts, 1), rows(classes, 2), rows(classes, 1)
    places, streams, some = rows(regions, 3 + classes), rows(blocks, 2), rows(steps, 4)
    every = [_Argument(*one) for one in rows(arguments, 5)]
    reader = _Reader(places, table.packets)
    made = [
        [
            one
            for kind, begin, length, more in some[first : first + count]
            if averages or kind != DIVIDE
            for one in reader.read(kind, every[begin : begin + length], more)
        ]
        for first, count in streams
    ]
    made = [_turned(stream, words[3], words[2]) for stream in made]
    return Rank(
        denominator,
        [cut for (cut,) in cuts],
        kinds,
        [one for (one,) in slots],
        weights,
        made,
        words[14],
        words[15],
        bool(words[16]),
    )


def _turned(stream: list[Statement], rank: int, ranks: int) -> list[Statement]:
    """Signals one after another, and waits, by number and by how far away their peer is: so ranks do more alike.
    Between them nothing happens that could depend on their order."""
    found: list[Statement] = []
    for form, some in groupby(stream, key=lambda one: one.form):
        if form in (("signal",), ("wait",), ("wait_begun",)):
            found += sorted(some, key=lambda one: (one.values[1], (one.values[0] - rank) % ranks))
        else:
            found += some
    return found


@dataclass(frozen=True)
class _Reader:
    regions: list[list[int]]
    packets: bool

    def place(self, a: _Argument) -> tuple[str, list[int]]:
        """Its buffer, and its numbers."""
        buffer, whole, part, *before = self.regions[a.region]
        if buffer == PACKETS:
            return "box", [a.rank, before[-1]]
        if buffer != SCRATCH:
            return BUFFERS[buffer], [a.rank, a.whole, a.part]
        return BUFFERS[buffer], [a.rank, a.whole - whole, a.part, part, *before]

    def read(self, kind: int, some: list[_Argument], more: int) -> list[Statement]:
        if kind == SYNC:
            return [Statement(("sync_begun" if more else "sync",), ())]
        if kind in (SIGNAL, WAIT):
            name = "signal" if kind == SIGNAL else "wait_begun" if more else "wait"
            return [Statement((name,), (a.rank, a.number)) for a in some]
        if kind == PUT:
            name = "relay" if self.packets else "copy"
            return [self._one(name, [to], [source]) for source, to in zip(some[::2], some[1::2], strict=True)]
        if kind == DIVIDE:
            buffer, values = self.place(some[0])
            return [Statement(("divide", buffer), (*values, some[0].part, some[0].number, more))]
        if kind == PERMUTE:
            permute = Statement(("permute_listed",), (some[0].part, some[0].number))
            return [*(self._listed("to", a) for a in some), permute]
        results, operands = some[:more], some[more:]
        if len(some) <= MOST_AT_ONCE:
            name = "copy" if len(some) == 2 else "spread" if len(operands) == 1 else "fold"
            name = "relay" if self.packets else name
            return [self._one(name, results, operands)]
        each = [self._listed("to", a) for a in results] + [self._listed("from", a) for a in operands]
        last = "relay_listed" if self.packets else "spread_listed" if len(operands) == 1 else "fold_listed"
        return [*each, Statement((last,), (results[0].part, results[0].number))]

    def _listed(self, name: str, a: _Argument) -> Statement:
        buffer, values = self.place(a)
        return Statement((name, buffer), tuple(values))

    def _one(self, name: str, results: list[_Argument], operands: list[_Argument]) -> Statement:
        """All places in one statement; the first that is no packets says how much."""
        buffers, values = list[str](), list[int]()
        for a in (*results, *operands):
            buffer, numbers = self.place(a)
            buffers.append(buffer)
            values += numbers
        told = next(a for a in (*results, *operands) if self.regions[a.region][0] != PACKETS)
        return Statement((name, str(len(results)), *buffers), (*values, told.part, told.number))
