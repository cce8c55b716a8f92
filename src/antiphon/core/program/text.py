"""A program as text for people."""

from __future__ import annotations

from fractions import Fraction

from antiphon.core.program.kinds import FOLD, JOIN, NAMES, RECEIVE, SCRATCH, SEND, Program
from antiphon.errors import Invalid

_BUFFERS = ("in", "out", "scratch")


def dump(program: Program, rank: int) -> str:
    """What one rank does, an operation a line. Stretches in units of weight: of the buffer, or of the slot."""
    if not 0 <= rank < program.ranks:
        raise Invalid(f"rank: expected 0 to {program.ranks - 1}, got {rank}")
    weights = tuple(int(w[rank]) for w in program.weights)
    place = "in place" if program.in_place else "out of place"
    slots = int(program.slot_ptr[rank + 1] - program.slot_ptr[rank])
    lines = [f"rank {rank}: {program.label}, {place}; in {weights[0]}, out {weights[1]}, {slots} slots"]
    first = int(program.op_ptr[rank])
    for row in range(first, int(program.op_ptr[rank + 1])):
        parts = [_part(program, i) for i in range(int(program.part_ptr[row]), int(program.part_ptr[row + 1]))]
        kind, peer, pieces = int(program.kind[row]), int(program.peer[row]), int(program.pieces[row])
        does = {SEND: f"{' '.join(parts)} to {peer}", RECEIVE: f"{' '.join(parts)} from {peer}", JOIN: ""}
        does[FOLD] = f"{parts[0]} = {' + '.join(parts[1:])}" if kind == FOLD and parts else ""
        waits = [str(int(w) - first) for w in program.wait[program.wait_ptr[row] : program.wait_ptr[row + 1]]]
        more = [f"in {pieces} pieces"] if pieces > 1 else []
        more += [f"channel {int(program.channel[row])}"] if program.channels > 1 else []
        more += [f"after {' '.join(waits)}"] if waits else []
        text = f"{row - first:6d}  @{int(program.when[row])}  {NAMES[kind]} {does[kind]}".rstrip()
        lines.append(text + (f"  ({', '.join(more)})" if more else ""))
    for row in range(int(program.finish_ptr[rank]), int(program.finish_ptr[rank + 1])):
        begin, end = (
            _point(program, int(point[row])) + int(program.base_shift[program.finish_base[row]])
            for point in (program.finish_begin, program.finish_end)
        )
        lines.append(f"   avg  out[{begin}:{end}] / {int(program.finish_count[row])}")
    return "\n".join(lines) + "\n\n"


def _point(program: Program, point: int) -> Fraction:
    part = Fraction(int(program.point_part[point]), program.denominator)
    return int(program.point_whole[point]) + part


def _part(program: Program, part: int) -> str:
    base = int(program.part_base[part])
    begin, end = _point(program, int(program.part_begin[part])), _point(program, int(program.part_end[part]))
    buffer = int(program.base_buffer[base])
    if buffer == SCRATCH:
        origin = _point(program, int(program.base_origin[base]))
        return f"slot{int(program.base_slot[base])}[{begin - origin}:{end - origin}]"
    shift = int(program.base_shift[base])
    return f"{_BUFFERS[buffer]}[{begin + shift}:{end + shift}]"
