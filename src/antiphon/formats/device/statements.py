"""Read the GPU engine's table of a rank (lower/device/table) as statements, one after another for each stream.

The table is an array of numbers (`Table.words`): a head, the cuts of a unit, the sizes of scratch slots, regions
of buffers, and per stream (thread blocks that work on their own) steps with arguments. A cut is a position
within a unit; data between neighbouring cuts is an atom. A statement is one step in a form from which `shapes` writes a
line of C++: its kind with the buffers that it names, and its numbers. A copy of the second unit of rank 0's input to
the output of rank 1 reads

    Statement(("copy", "1", "output", "input"), (1, 1, 0,  0, 1, 0,  0, 1))
               kind, results, buffers            to: rank, units, cut;  from: the same;  data: from cut 0 on, 1 cut long
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from antiphon.core.program.kinds import SCRATCH
from antiphon.lower.device.table import DIVIDE, HEAD, PERMUTE, Table
from antiphon.lower.onesided.form import PACKETS, PUT, SIGNAL, SYNC, WAIT

BUFFERS = ("input", "output", "scratch")  # by their numbers in core.program.kinds
MOST_PLACES = 8  # places that one statement names; for a step with more, each place is a statement of its own


class Statement(NamedTuple):
    """One operation. `form`: its kind and the buffers that it names, which determine the meaning of its numbers.

    `values`: its numbers: of a place the rank, whole units and a cut; in scratch also the cut at which the data of its
    slot begin (it is subtracted), and the number of slots of each size before it; of packets (`box`) the rank and slot.
    """

    form: tuple[str, ...]
    values: tuple[int, ...]

    @property
    def kind(self) -> str:
        """The first word of the form."""
        return self.form[0]


class _Argument(NamedTuple):
    """A place in memory: rank, region of a buffer, offset in units and a cut; `number`: slot, signal or length."""

    rank: int
    region: int
    units: int
    cut: int
    number: int


@dataclass(frozen=True)
class Rank:
    """The content of the table of a rank."""

    denominator: int  # of cuts
    cuts: list[int]  # positions within a unit, over `denominator`
    slot_sizes: list[list[int]]  # sizes of scratch slots: whole units, and a numerator over `denominator`
    slots: list[int]  # the number of slots of each of these sizes
    weights: tuple[int, int]  # units in the input and in the output
    streams: list[list[Statement]]
    boxes: int  # the number of slots for incoming packets
    atoms: int  # in the longest message by packets; 0: there are no packets
    receives_all: bool  # whether each rank has received from all others at the end of a call


def statements(table: Table, averages: bool = True) -> Rank:
    """Read a table, in time linear in its words. `averages`: whether the code divides sums for averages."""
    words = table.words.tolist()
    # as `_encode_blocks` in lower/device/table.py writes it: _ are the magic number, the version, and "in place"
    _, _, ranks, rank, _, denominator, input_weight, output_weight, *counts, boxes, atoms, receives_all = words[:HEAD]
    cut_count, size_count, region_count, stream_count, step_count, argument_count = counts
    at = HEAD

    def rows(count: int, width: int) -> list[list[int]]:
        """Return the next `count` rows of `width` numbers."""
        nonlocal at
        rows_read = [words[at + width * k : at + width * (k + 1)] for k in range(count)]
        at += width * count
        return rows_read

    cuts, slot_sizes, slots = rows(cut_count, 1), rows(size_count, 2), rows(size_count, 1)
    regions, stream_rows, step_rows = rows(region_count, 3 + size_count), rows(stream_count, 2), rows(step_count, 4)
    arguments = [_Argument(*row) for row in rows(argument_count, 5)]
    reader = _Reader(regions, table.packets)
    streams = [
        [
            statement
            for kind, begin, length, extra in step_rows[first : first + count]
            if averages or kind != DIVIDE
            for statement in reader.read(kind, arguments[begin : begin + length], extra)
        ]
        for first, count in stream_rows
    ]
    return Rank(
        denominator=denominator, cuts=[cut for (cut,) in cuts], slot_sizes=slot_sizes,
        slots=[count for (count,) in slots], weights=(input_weight, output_weight),
        streams=[_sort_signals(stream, rank, ranks) for stream in streams],
        boxes=boxes, atoms=atoms, receives_all=bool(receives_all),
    )  # fmt: skip


def _sort_signals(stream: list[Statement], rank: int, ranks: int) -> list[Statement]:
    """Sort consecutive signals, and waits, by number and the peer's distance, so that ranks have the same statements.

    Nothing that could depend on their order happens between them.
    """
    ordered: list[Statement] = []
    for form, group in groupby(stream, key=lambda statement: statement.form):
        if form in (("signal",), ("wait",), ("wait_begun",)):
            ordered += sorted(group, key=lambda statement: (statement.values[1], (statement.values[0] - rank) % ranks))
        else:
            ordered += group
    return ordered


@dataclass(frozen=True)
class _Reader:
    """Turns steps into statements. `packets`: data travels as packets, which carry their own flags."""

    regions: list[list[int]]  # buffer; whole units and cut of its origin; slots of each size before it
    packets: bool

    def place(self, a: _Argument) -> tuple[str, list[int]]:
        """Return the buffer of a place, and its numbers as in `Statement.values`."""
        buffer, origin_units, origin_cut, *before = self.regions[a.region]
        if buffer == PACKETS:
            return "box", [a.rank, before[-1]]  # packets are slots of the last size
        if buffer != SCRATCH:
            return BUFFERS[buffer], [a.rank, a.units, a.cut]
        return BUFFERS[buffer], [a.rank, a.units - origin_units, a.cut, origin_cut, *before]

    def read(self, kind: int, arguments: list[_Argument], extra: int) -> list[Statement]:
        """Return the statements of a step.

        `extra`, by kind: of waits and syncs, 1 if they are skipped once all ranks are known to have begun the call; of
        divisions, the divisor; otherwise the number of results.
        """
        if kind == SYNC:
            return [Statement(("sync_begun" if extra else "sync",), values=())]
        if kind in (SIGNAL, WAIT):
            name = "signal" if kind == SIGNAL else "wait_begun" if extra else "wait"
            return [Statement((name,), (a.rank, a.number)) for a in arguments]
        if kind == PUT:
            name = "relay" if self.packets else "copy"  # relay: copies, or combines, where any place may be packets
            return [
                self._join_places(name, [to], [source])
                for source, to in zip(arguments[::2], arguments[1::2], strict=True)
            ]
        if kind == DIVIDE:
            buffer, values = self.place(arguments[0])
            return [Statement(("divide", buffer), (*values, arguments[0].cut, arguments[0].number, extra))]
        if kind == PERMUTE:
            permute = Statement(("permute_listed",), (arguments[0].cut, arguments[0].number))
            return [*(self._list_place("to", a) for a in arguments), permute]
        results, operands = arguments[:extra], arguments[extra:]
        if len(arguments) <= MOST_PLACES:
            name = "copy" if len(arguments) == 2 else "spread" if len(operands) == 1 else "fold"
            name = "relay" if self.packets else name
            return [self._join_places(name, results, operands)]
        each = [self._list_place("to", a) for a in results] + [self._list_place("from", a) for a in operands]
        last = "relay_listed" if self.packets else "spread_listed" if len(operands) == 1 else "fold_listed"
        return [*each, Statement((last,), (results[0].cut, results[0].number))]

    def _list_place(self, name: str, a: _Argument) -> Statement:
        """Return a statement that adds one place to the list of the next operation, which has too many for one line."""
        buffer, values = self.place(a)
        return Statement((name, buffer), tuple(values))

    def _join_places(self, name: str, results: list[_Argument], operands: list[_Argument]) -> Statement:
        """Return one statement with all places; the first place of data gives its length."""
        buffers, values = list[str](), list[int]()
        for a in (*results, *operands):
            buffer, numbers = self.place(a)
            buffers.append(buffer)
            values += numbers
        measured = next(a for a in (*results, *operands) if self.regions[a.region][0] != PACKETS)
        return Statement((name, str(len(results)), *buffers), (*values, measured.cut, measured.number))
