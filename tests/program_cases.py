"""What tests of programs share: inputs, comparison with the interpreter, damage, a reader of the file by the page."""

import struct
import sys
import zlib
from collections.abc import Iterable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from program_run import run_program
from small_plans import of_rows

import antiphon
from antiphon.core.collective import Collective
from antiphon.core.interpret import interpret
from antiphon.core.interpret.buffers import sides
from antiphon.core.program import Program, decode, encode, prove
from antiphon.core.schedule import COPY, Schedule
from antiphon.errors import Invalid, Unsupported
from antiphon.formats.program import lower
from antiphon.runtimes.serve.book import encode_book, make_book

sys.path.append(str(Path(__file__).resolve().parent.parent / "fuzz"))
Definition = import_module("_definition").Definition
Array = NDArray[Any]


def inputs_of(collective: Collective, unit: int, in_place: bool, dtype: Any = np.int64, seed: int = 0) -> list[Array]:
    """Random whole numbers; fractions where the type has them. Replicas of one contribution agree."""
    first, _ = sides(collective, in_place)
    random = np.random.default_rng(seed)

    def values(count: int) -> Array:
        made = random.integers(-1000, 1000, count)
        return made.astype(dtype) if np.dtype(dtype).kind in "iu" else (made / 7).astype(dtype)

    buffers = [values(int(weight) * unit) for weight in first.size]
    if collective.custom is None:
        return buffers
    relation, named = collective.relation, dict[tuple[int, int], Array]()
    columns = zip(relation.pre_block.tolist(), relation.pre_rank.tolist(), relation.pre_id.tolist(), strict=True)
    held = dict[tuple[int, int], list[int]]()
    for block, rank, name in columns:
        held.setdefault((rank, block), []).append(name)
        named.setdefault((block, name), values(int(collective.weights[block]) * unit))
    for rank, block, start in zip(first.rank.tolist(), first.block.tolist(), first.start.tolist(), strict=True):
        here = slice(start * unit, (start + int(collective.weights[block])) * unit)
        buffers[rank][here] = sum(named[block, name] for name in held[rank, block])
    return buffers


def variants(schedule: Schedule, **options: Any) -> list[Program]:
    made = []
    for in_place in (False, True):
        try:
            made.append(lower(schedule, in_place=in_place, **options))
        except Unsupported:
            assert in_place
            assert schedule.collective.kind == "alltoall"
    return made


def compare(
    schedule: Schedule,
    units: Iterable[int] = (0, 1, 7),
    seeds: Iterable[int] = (0, 1),
    dtype: Any = np.int64,
    op: str = "sum",
    **options: Any,
) -> list[Program]:
    """Every bit as the interpreter has it, out of place and in place; and proven for all sizes."""
    programs = variants(schedule, **options)
    prove(*programs)
    for program in programs:
        for unit in units:
            given = inputs_of(schedule.collective, unit, program.in_place, dtype, unit)
            wanted = interpret(schedule, [a.copy() for a in given], op=op, in_place=program.in_place)
            for seed in seeds:
                found = run_program(program, [a.copy() for a in given], op=op, seed=seed)
                for rank, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
                    assert mine.tobytes() == theirs.tobytes(), (program, unit, seed, rank)
    return programs


class Wrong(Exception):
    pass


def judge(program: Program, unit: int) -> None:
    """Raise Wrong, and why, unless runs in eight legal orders give what the collective defines. Sharing nothing with
    the proof but the columns of the program."""
    for op, seeds in (("sum", range(4)), ("avg", range(4, 8))):
        wanted = Definition(program.collective, unit, "int64", op, unit)
        for seed in seeds:
            given = [wanted.before(rank, program.in_place) for rank in range(program.ranks)]
            try:
                found = run_program(program, given, op=op, seed=seed, strict=seed % 2 == 0)
            except (Invalid, ValueError, IndexError) as error:  # of lengths that differ, of buffers that are not there
                raise Wrong(str(error)) from error
            for rank, mine in enumerate(found):
                if not np.array_equal(mine, wanted.after(rank, program.in_place)):
                    raise Wrong(f"rank {rank} ends with a wrong result")


def messages(program: Program) -> list[tuple[int, ...]]:
    """All that other ranks see of a rank, in its order."""
    crossing = np.flatnonzero(program.kind <= 1)
    length = np.zeros(program.operations)
    whole = program.point_whole + program.point_numerator / program.denominator
    np.add.at(length, program.part_op, whole[program.part_end] - whole[program.part_begin])
    columns = (program.rank, program.kind, program.peer, program.channel, program.pieces, program.when)
    exact = np.rint(length * 5040).astype(int)
    return list(zip(*(column[crossing].tolist() for column in (*columns, exact)), strict=True))


# ---- schedules by hand ----


def rotation(ranks: int) -> Schedule:
    """A broadcast's value goes round twice: everybody reads what is written over in the same step."""
    listed = [(r - 1, 0, r - 1, r, COPY) for r in range(1, ranks)]
    listed += [(ranks, 0, r, (r + 1) % ranks, COPY) for r in range(ranks)]
    return of_rows(Collective("broadcast", ranks), listed)


# ---- damage ----


def without_wait(program: Program, at: int) -> Program:
    ptr = program.wait_ptr.copy()
    ptr[int(program.wait_op[at]) + 1 :] -= 1
    return replace(program, wait=np.delete(program.wait, at), wait_ptr=ptr)


def changed(program: Program, column: str, at: int, value: int) -> Program:
    values = getattr(program, column).copy()
    values[at] = value
    return replace(program, **{column: values})


def implied(program: Program, at: int) -> bool:
    """Whether other waits lead to the same: then nothing is lost without this one. All must have as many pieces."""
    later, earlier = int(program.wait_op[at]), int(program.wait[at])
    todo = [int(w) for w in program.wait[program.wait_ptr[later] : program.wait_ptr[later + 1]] if w != earlier]
    while todo:
        one = todo.pop()
        if one == earlier:
            return True
        todo += program.wait[program.wait_ptr[one] : program.wait_ptr[one + 1]].tolist()
    return False


def idle(program: Program) -> Program:
    """The same without any operation: outputs stay what they were."""
    none = np.zeros(0, np.int64)
    columns = ("kind", "channel", "peer", "pieces", "when", "part_begin", "part_end", "part_base", "wait")
    more = dict.fromkeys((*columns, "slot_class", "base_shift", "base_buffer", "base_slot", "base_origin"), none)
    more |= dict.fromkeys(("part_ptr", "wait_ptr"), np.zeros(1, np.int64))
    zero = np.zeros(program.ranks + 1, np.int64)
    more |= dict.fromkeys(("op_ptr", "base_ptr", "slot_ptr", "finish_ptr"), zero)
    return replace(program, **more, **{f"finish_{c}": none for c in ("begin", "end", "base", "count")})


def idle_book(path: Path, ranks: int) -> Path:
    """A book with right checksums whose allreduce does nothing: outputs are memory that was never written."""
    plan = antiphon.plan("allreduce", antiphon.topology(f"full:ranks={ranks}"), planner="ring")
    book = make_book([plan])
    nothing = encode([idle(one) for one in decode(book.programs[0])])
    path.write_bytes(encode_book(replace(book, programs=(nothing,))))
    return path


# ---- the file, read as the page says ----


class Plain:
    """One rank's section, read by nothing but struct."""

    def __init__(self, data: bytes, rank: int, variant: int) -> None:
        assert data[:8] == b"ANTIPROG"
        version, crc = struct.unpack_from("<II", data, 8)
        head, size = struct.unpack_from("<QQ", data, 16)
        assert (version, size, zlib.crc32(data[16:head])) == (1, len(data), crc)
        ranks = struct.unpack_from("<I", data, 36)[0]
        self.denominator = struct.unpack_from("<Q", data, 64)[0]
        entry = head - 2 * ranks * 24 + 24 * (variant * ranks + rank)
        begin, length, crc = struct.unpack_from("<QQI", data, entry)
        assert zlib.crc32(data[begin : begin + length]) == crc
        owner, kind, self.first, self.last, *counts = struct.unpack_from("<IIQQ8I", data, begin)
        assert (owner, kind) == (rank, variant)
        at = begin + 56
        forms = ("<qq", "<qIIII", "<qqII", "<I", "<HHIIIIIII", "<III", "<I", "<IIIIQ")
        tables = []
        for form, count in zip(forms, counts, strict=True):
            width = struct.calcsize(form)
            tables.append([struct.unpack_from(form, data, at + i * width) for i in range(count)])
            at += count * width
            at += -at % 8
        assert at == begin + length
        self.points, self.bases, self.classes, self.slots, self.operations, self.parts, self.waits, self.finish = tables

    def part(self, number: int, unit: int) -> tuple[int, int, int, int]:
        """Buffer, beginning, length and stride of a part."""
        begin, end, base = self.parts[number]
        shift, buffer, slot, origin, _ = self.bases[base]
        length = self._at(end, unit) - self._at(begin, unit)
        if buffer < 2:
            return buffer, unit * shift + self._at(begin, unit), length, 0
        offset = sum(self._size(s, unit)[0] for s in range(slot))
        start = offset + self._at(begin, unit) - self._at(origin, unit)
        return buffer, start, length, self._size(slot, unit)[1]

    def _at(self, point: int, unit: int) -> int:
        whole, part = self.points[point]
        return int(unit * whole + unit * part // self.denominator)

    def _size(self, slot: int, unit: int) -> tuple[int, int]:
        whole, part, pieces, _ = self.classes[self.slots[slot][0]]
        room = -(-unit * (whole * self.denominator + part) // self.denominator)
        stride = -(-room // pieces)
        return pieces * stride, stride
