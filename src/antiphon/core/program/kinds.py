"""The type of programs, and their addresses: at one message size (`layout_of`), or in equal chunks (`chunked`).

A program is a schedule compiled to operations per rank. Operations move and combine *parts*, intervals of buffers. A
part is given by two *points* and a *base*. All blocks of the collective lie end to end on one line, measured in units
of weight. Point `whole + numerator / denominator` (columns point_whole, point_numerator) is at element
unit * whole + floor(unit * numerator / denominator), where `unit` is the number of elements per weight 1. A base names
the input or output buffer and its shift against that line, or a slot of scratch and the point (its origin) at which the
slot begins. A *class* is a size of slots, in units of weight, too. All of this is independent of `unit`, so a program
is valid for every size.

Example: an allreduce of a block of weight 1 in thirds. The middle third is the part from point 1/3 to 2/3; at unit = 10
it is elements 3 to 5. `chunked` takes unit = 3, the least at which no point is rounded, for formats that count in
chunks.

`among` renumbers a program for a subset of the ranks. docs/program.md specifies all columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphon.core.collective import Collective
from antiphon.core.columns import Longs
from antiphon.core.interpret.buffers import sides
from antiphon.errors import Invalid, Unsupported

SEND, RECEIVE, FOLD, JOIN = range(4)  # operations; a fold combines all parts but its first into it, a join only waits
NAMES = ("send", "receive", "fold", "join")
INPUT, OUTPUT, SCRATCH = range(3)  # buffers of a rank
MAX_ELEMENTS = 2**62  # elements of all blocks together


class Pairs(NamedTuple):
    """Every send of a program with its receive: rows of operations, by sender, receiver, channel and time."""

    send: Longs
    receive: Longs


@dataclass(frozen=True, eq=False)
class Program:
    """Operations of all ranks, as columns.

    A column `x_ptr` delimits the rows of table x that belong to owner i: rows x_ptr[i] to x_ptr[i + 1] - 1. Operations,
    bases, slots and the finish table belong to ranks; parts and waits belong to operations.

    `in_place`
        Whether the output lies over the input: the ranks then have no input buffer.
    `channels`, `label`
        The number of channels, over which messages are spread by chunk; a name for people.
    `denominator`
        Of all points and sizes: each is a column `_whole` plus a column `_numerator` / `denominator`.
    `point_*`
        Points on the line of all blocks.
    `base_*`
        Where parts lie: the buffer and a shift; in scratch the slot (counted within its rank) and its origin.
    `class_*`, `slot_class`
        Sizes of slots and the number of pieces that each holds, and the class of every slot.
    `kind`, `channel`, `peer`, `pieces`
        Per operation. `kind` is SEND, RECEIVE, FOLD or JOIN, `peer` the other rank of a message, and `pieces` the
        number of slices in which the operation is done.
    `when`
        Per operation, a time (no clock) that orders operations on all ranks: twice the step, plus 1 for folds.
    `part_*`
        Per part the points at which it begins and ends, and its base. The first part of a fold is its result.
    `wait`
        Rows of operations that the owner waits for.
    `finish_*`
        Intervals of the output, and the count by which avg divides each.
    `joint`
        Per operation the schedule's joint that its message belongs to, or -1; empty if there are no joints. It only
        states which operations switches may perform; files of programs do not hold it.
    """

    collective: Collective
    in_place: bool
    channels: int
    label: str
    denominator: int
    point_whole: Longs
    point_numerator: Longs
    base_ptr: Longs
    base_shift: Longs
    base_buffer: Longs
    base_slot: Longs
    base_origin: Longs
    class_whole: Longs
    class_numerator: Longs
    class_pieces: Longs
    slot_ptr: Longs
    slot_class: Longs
    op_ptr: Longs
    kind: Longs
    channel: Longs
    peer: Longs
    pieces: Longs
    when: Longs
    part_ptr: Longs
    part_begin: Longs
    part_end: Longs
    part_base: Longs
    wait_ptr: Longs
    wait: Longs
    finish_ptr: Longs
    finish_begin: Longs
    finish_end: Longs
    finish_base: Longs
    finish_count: Longs
    joint: Longs = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        for column in fields(self):
            value = getattr(self, column.name)
            if isinstance(value, np.ndarray):
                value = np.ascontiguousarray(value, np.int64)
                value.setflags(write=False)
                object.__setattr__(self, column.name, value)

    @property
    def ranks(self) -> int:
        return self.collective.ranks

    @property
    def operations(self) -> int:
        return len(self.kind)

    @cached_property
    def rank(self) -> Longs:
        """The rank of each operation."""
        return np.repeat(np.arange(self.ranks), np.diff(self.op_ptr))

    @cached_property
    def part_op(self) -> Longs:
        """The operation of each part."""
        return np.repeat(np.arange(self.operations), np.diff(self.part_ptr))

    @cached_property
    def wait_op(self) -> Longs:
        """The operation that each wait belongs to."""
        return np.repeat(np.arange(self.operations), np.diff(self.wait_ptr))

    @cached_property
    def pairs(self) -> Pairs:
        """The messages: the k-th send from one rank to another on a channel matches the k-th receive there.

        This is the only place that pairs them. An unproven program may have more sends than receives; then the columns
        differ in length. O(n log n), once.

        Rank 0 of `core.example.star` adds what ranks 1 and 2 send (rows 5 and 7, received in rows 1 and 0), and sends
        the sum to both (rows 3 and 4, received in rows 6 and 8):

        >>> from antiphon.core.example import star
        >>> from antiphon.lower.lowering import lower
        >>> program = lower(star())
        >>> " ".join(f"{NAMES[kind]}@{rank}" for kind, rank in zip(program.kind, program.rank))
        'receive@0 receive@0 fold@0 send@0 send@0 send@1 receive@1 send@2 receive@2'
        >>> program.pairs.send.tolist(), program.pairs.receive.tolist()
        ([3, 4, 5, 7], [6, 8, 1, 0])
        """
        send, receive = (np.flatnonzero(self.kind == kind) for kind in (SEND, RECEIVE))
        ends = (self.rank[send], self.peer[send]), (self.peer[receive], self.rank[receive])
        ordered = [
            # Primary key last: by source, target, channel, then time; both sides sort alike, so row k matches row k.
            rows[np.lexsort((rows, self.when[rows], self.channel[rows], target, source))]
            for rows, (source, target) in zip((send, receive), ends, strict=True)
        ]
        return Pairs(*ordered)

    @cached_property
    def weights(self) -> tuple[Longs, Longs]:
        """The weights of the input and of the output buffer of every rank."""
        input_side, output_side = sides(self.collective, self.in_place)
        return input_side.size, output_side.size

    def __repr__(self) -> str:
        place = ", in place" if self.in_place else ""
        return f"Program({self.collective!r}, operations={self.operations}{place})"


@dataclass(frozen=True, eq=False)
class BufferLayout:
    """Where a program finds its data at one size (`layout_of`): addresses in elements of the ranks' buffers."""

    unit: int  # elements per weight 1 of a block
    at: Longs  # per point its element on the line of all blocks
    buffer: Longs  # per part
    begin: Longs  # per part, within its buffer
    length: Longs  # per part
    stride: Longs  # per part the distance between its pieces in scratch; 0 elsewhere
    sizes: NDArray[np.int64]  # per rank: elements of input, output and scratch

    def piece(self, part_row: int, piece: int, pieces: int) -> tuple[int, int]:
        """Return where a piece (0 to `pieces` - 1) of a part begins and ends in its buffer.

        In input and output pieces follow one another; in scratch each begins at a multiple of the stride.
        """
        length, begin = int(self.length[part_row]), int(self.begin[part_row])
        low, high = length * piece // pieces, length * (piece + 1) // pieces
        if self.buffer[part_row] == SCRATCH and pieces > 1:
            begin += piece * int(self.stride[part_row])
            return begin, begin + high - low
        return begin + low, begin + high


def positions(wholes: Longs, numerators: Longs, denominator: int, unit: int) -> Longs:
    """Return the element at each point: unit * whole + floor(unit * numerator / denominator), exactly. O(points).

    Halves of two blocks of seven elements:

    >>> positions(np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]), 2, 7)
    array([ 0,  3,  7, 10])
    """
    products: Any = numerators
    # numerator < denominator, so the product fits in int64 below 2^63; beyond, use Python's integers.
    if unit * denominator >= 2**63:
        products = numerators.astype(object)
    out: Longs = wholes * np.int64(unit) + np.asarray(products * unit // denominator).astype(np.int64)
    return out


def layout_of(program: Program, unit: int) -> BufferLayout:
    """Return the addresses for `unit` elements per weight 1. Linear in points, bases, slots and parts.

    In `core.example.star` at eight elements rank 0 receives twice into scratch (buffer 2), adds both to its input (0)
    in its output (1), and sends that twice; `sizes` are those of input, output and scratch.

    >>> from antiphon.core.example import star
    >>> from antiphon.lower.lowering import lower
    >>> program = lower(star())
    >>> [NAMES[kind] for kind in program.kind[: program.op_ptr[1]]], program.part_ptr[:6].tolist()
    (['receive', 'receive', 'fold', 'send', 'send'], [0, 1, 2, 6, 7, 8])
    >>> layout = layout_of(program, 8)
    >>> layout.buffer[:8].tolist(), layout.begin[:8].tolist(), layout.length[:8].tolist()
    ([2, 2, 1, 0, 2, 2, 1, 1], [0, 8, 0, 0, 8, 0, 0, 0], [8, 8, 8, 8, 8, 8, 8, 8])
    >>> layout.sizes.tolist()
    [[8, 8, 16], [8, 8, 0], [8, 8, 0]]
    """
    weight = max(int(program.collective.weights.sum()), 1)
    if unit < 0 or unit * weight >= MAX_ELEMENTS:
        raise Invalid(f"unit: {unit} elements for each of {weight} units of weight are no size; from 0 to 2^62 in all")
    # Points round down, sizes of classes round up: no slot is too small for the part that it holds.
    at = positions(program.point_whole, program.point_numerator, program.denominator, unit)
    class_size = -positions(-program.class_whole, -program.class_numerator, program.denominator, unit)  # rounded up
    # Every piece gets as much space as the largest piece, so pieces are at a constant stride.
    stride = -(-class_size // program.class_pieces)
    slot_room = (stride * program.class_pieces)[program.slot_class]
    # The slots of a rank lie side by side in its scratch: prefix sum over all slots, less that at the rank's first.
    ends = np.concatenate([[0], np.cumsum(slot_room)])
    first = ends[program.slot_ptr]
    ranks = np.repeat(np.arange(program.ranks), np.diff(program.base_ptr))
    scratch = program.base_buffer == SCRATCH
    offset = program.base_shift * np.int64(unit)  # per base: address in its buffer less position on the line
    slot = (program.slot_ptr[ranks] + program.base_slot)[scratch]
    # Scratch: subtract the position of the origin, so that position + offset is the address, as in other buffers.
    offset[scratch] = ends[slot] - first[ranks[scratch]] - at[program.base_origin[scratch]]
    base_stride = np.zeros(len(offset), np.int64)
    base_stride[scratch] = stride[program.slot_class[slot]]
    input_weights, output_weights = program.weights
    sizes = np.stack([input_weights * unit, output_weights * unit, np.diff(first)], axis=1)
    begin, base = at[program.part_begin], program.part_base
    return BufferLayout(
        unit,
        at,
        buffer=program.base_buffer[base],
        begin=offset[base] + begin,
        length=at[program.part_end] - begin,
        stride=base_stride[base],
        sizes=sizes,
    )


# ---- equal chunks ----


def grain(program: Program) -> int:
    """Return the grain of a program: the least number of elements per weight 1 at which no point is rounded. O(points).

    Two ranks that swap their blocks as a whole, and in halves:

    >>> from antiphon.core.example import of_rows
    >>> from antiphon.lower.lowering import lower
    >>> swap = [(0, 0, 0, 1, 0), (0, 1, 1, 0, 0)]
    >>> halves = [*swap, (0, 2, 0, 1, 0), (0, 3, 1, 0, 0)]
    >>> grain(lower(of_rows("allgather", 2, swap))), grain(lower(of_rows("allgather", 2, halves, parts=2)))
    (1, 2)
    """
    return program.denominator // math.gcd(program.denominator, int(np.gcd.reduce(program.point_numerator, initial=0)))


def chunked(program: Program, max_chunks: int, format_name: str) -> BufferLayout:
    """Return the addresses of a program counted in chunks: those at its grain.

    Runtimes support the sizes that the grain divides, and scale these addresses. Raises Unsupported, on behalf of
    `format_name`, if a buffer has more than `max_chunks` chunks.
    """
    unit = grain(program)
    max_weight = int(max(size.max(initial=0) for size in program.weights))
    if unit * max(max_weight, 1) > max_chunks:
        raise Unsupported(
            f"{format_name}: all its chunks are equal, and to cut a unit into {unit} of them makes {unit * max_weight} "
            f"in a buffer, of at most {max_chunks}; take fewer chunks, or a planner that cuts blocks evenly"
        )
    # The size of scratch is known only after `layout_of`, so it is checked second.
    layout = layout_of(program, unit)
    largest = int(layout.sizes.max(initial=0))
    if largest > max_chunks:
        raise Unsupported(
            f"{format_name}: {largest} chunks of scratch at one rank, of at most {max_chunks}; take fewer chunks, or "
            "another planner"
        )
    return layout


# ---- subsets of the ranks ----


def job_of(collective: Collective) -> tuple[int, ...]:
    """Return the ranks of a job that runs this collective: the members; for a custom collective all ranks."""
    return collective.members if collective.custom is None else tuple(range(collective.ranks))


def collective_among(collective: Collective, members: Sequence[int]) -> Collective:
    """Return the collective among these members (ascending) only, renumbered; of a custom one these are all ranks.

    It is for programs, whose operations state the order of combining: `ordered` is left out.
    """
    if len(members) == collective.ranks:
        return collective
    number = {rank: index for index, rank in enumerate(members)}
    roots = tuple(number[root] for root in collective.roots)
    return Collective(collective.kind, len(members), roots=roots, weights=collective.weights)


def among(program: Program, members: Sequence[int]) -> Program:
    """Return the program among these members (ascending) only, renumbered; all other ranks must have no work."""
    if len(members) == program.ranks:
        return program
    keep = np.asarray(members)
    number = np.full(program.ranks, -1)
    number[keep] = np.arange(len(keep))
    # Only the CSR pointers by rank change: rows of ranks without work are empty, so no row needs to move.
    outside = np.setdiff1d(np.arange(program.ranks), keep)
    pointers = {name: getattr(program, name) for name in ("base_ptr", "slot_ptr", "op_ptr", "finish_ptr")}
    if any(np.diff(ptr)[outside].any() for ptr in pointers.values()):
        raise Unsupported(
            "a rank that does not take part would have to help; plan on the machine without it (TOPO:only=RANKS)"
        )
    shortened: dict[str, Any] = {name: np.append(0, np.cumsum(np.diff(ptr)[keep])) for name, ptr in pointers.items()}
    collective = collective_among(program.collective, members)
    return replace(program, collective=collective, peer=number[program.peer], **shortened)
