"""Encode and decode programs as binary files, laid out as in docs/program.md, and print them as text for people.

A file holds the program of one collective out of place, in place, or both: a header with the collective, a directory,
and a section per rank and variant, so that a rank can read just its own. Checksums cover the head and every section,
and `decode` refuses every damaged file with an error (prove.py then proves what the program computes). A *variant* is
the program out of place (0) or in place (1). kinds.py explains points, bases, classes, parts, `when`, joins and the
finish table.

Example: `decode(encode([program]))` gives a list with an equal program; `dump(program, 0)` prints rank 0, with lines
like `2  @1  fold out[1/3:2/3] = in[1/3:2/3] + slot0[0:1/3]  (after 0)`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.collective import KINDS, MAX_BLOCKS, Collective, Relation
from antiphon.core.columns import SAFE_INT64, Longs, pair_keys, pointers
from antiphon.core.program.form import refuse_collective, refuse_work
from antiphon.core.program.kinds import FOLD, JOIN, NAMES, RECEIVE, SCRATCH, SEND, Program
from antiphon.errors import Invalid, Unsupported

# The layout of program files (docs/program.md): headers, then one struct per row of a table
MAGIC, VERSION = b"ANTIPROG", 1
# A file holds the index of the collective's kind in this list, so its order never changes
_KINDS = (
    "broadcast", "reduce", "scatter", "gather", "allgather", "reducescatter", "allreduce", "alltoall", "custom",
)  # fmt: skip
assert sorted(_KINDS) == sorted((*KINDS, "custom"))
# magic, version, checksum, bytes of the head, bytes of the file, then the numbers that `encode` lists
HEADER = struct.Struct("<8sIIQQ8IQQ4I")
DIRECTORY_ENTRY = struct.Struct("<QQII")  # of a section: offset, size, checksum, 0
SECTION_HEADER = struct.Struct("<IIQQ8I")  # rank, variant, weights of input and output, rows of each of `TABLES`
# `part` of a point or class: its fraction, as a numerator over the program's denominator (`point_numerator` and
# `class_numerator` of a program). `part` elsewhere is an interval of a buffer: an operand of an operation.
# A field without a name is padding.
_POINT = np.dtype([("whole", "<i8"), ("part", "<i8")])
_BASE = np.dtype([("shift", "<i8"), ("buffer", "<u4"), ("slot", "<u4"), ("origin", "<u4"), ("", "<u4")])
_CLASS = np.dtype([("whole", "<i8"), ("part", "<i8"), ("pieces", "<u4"), ("", "<u4")])
_OPERATION = np.dtype(
    [("kind", "<u2"), ("channel", "<u2")]
    + [(name, "<u4") for name in ("peer", "pieces", "when", "first_part", "parts", "first_wait", "waits")]
)
_PART = np.dtype([("begin", "<u4"), ("end", "<u4"), ("base", "<u4")])
_FINISH = np.dtype([("begin", "<u4"), ("end", "<u4"), ("base", "<u4"), ("", "<u4"), ("count", "<u8")])
_U4 = np.dtype("<u4")
TABLES = (_POINT, _BASE, _CLASS, _U4, _OPERATION, _PART, _U4, _FINISH)  # in the order in which a section holds them
POINTS, BASES, CLASSES, SLOTS, OPERATIONS, PARTS, WAITS, FINISH = range(8)  # positions in TABLES
Table = NDArray[Any]


# ---- writing ----


def encode(programs: Sequence[Program]) -> bytes:
    """Return the file of one collective's programs: out of place, in place, or both. Linear. Unsupported beyond the
    limits."""
    variants = {program.in_place: program for program in programs}
    if not programs or len(variants) != len(programs):
        raise Invalid("a file holds one program out of place, one in place, or both")
    first = programs[0]
    if any(
        p.collective != first.collective or p.channels != first.channels or p.label != first.label for p in programs
    ):
        raise Invalid("the programs of a file must be of one schedule with equally many channels")
    if any(p.denominator != first.denominator for p in programs):
        raise Invalid("the programs of a file must be of one schedule: their denominators differ")
    if any(len(program.joint) for program in programs):
        raise Unsupported("a file of programs cannot hold what switches combine or multicast; lower without joints")
    refuse_collective(first.collective)
    for program in programs:
        refuse_work(program)  # more than the limits of an engine (form.py)
    sections = [
        _encode_section(variants[v], r) if v in variants else b"" for v in (False, True) for r in range(first.ranks)
    ]
    tables = b"".join(map(_pad_to_8, _head_tables(first)))
    head = HEADER.size + len(tables) + DIRECTORY_ENTRY.size * len(sections)  # bytes before the sections
    # The directory: offset, size and checksum of every section; all zero for a variant that the file lacks.
    offset, entries = head, []
    for section in sections:
        entries.append(DIRECTORY_ENTRY.pack(offset if section else 0, len(section), zlib.crc32(section), 0))
        offset += len(section)
    collective, relation = first.collective, first.collective.custom
    wants = relation.wants if relation else ()
    # `variants` as bits: 1 for out of place, 2 for in place
    numbers = [
        _KINDS.index(collective.kind), first.ranks, len(collective.members), len(collective.roots), collective.blocks,
        first.channels, sum(1 << int(v) for v in variants), len(first.label.encode()),
        first.denominator, collective.buffer_weight,
        len(relation.pre_block) if relation else 0, len(relation.post_block) if relation else 0,
        len(wants), sum(map(len, wants)),
    ]  # fmt: skip
    # The checksum covers everything after itself (from byte 16) up to the sections, which have their own. `offset` is
    # by now the length of the file.
    body = HEADER.pack(MAGIC, VERSION, 0, head, offset, *numbers)[16:] + tables + b"".join(entries)
    return MAGIC + struct.pack("<II", VERSION, zlib.crc32(body)) + body + b"".join(sections)


def _pad_to_8(data: bytes) -> bytes:
    """Pad to a multiple of 8 bytes."""
    return data + bytes(-len(data) % 8)


def _head_tables(program: Program) -> list[bytes]:
    """Return the tables of the head: members, roots, weights, label and, of a custom collective, its relation."""
    collective, relation = program.collective, program.collective.custom
    columns: list[bytes] = [
        np.array(collective.members, "<i4").tobytes(), np.array(collective.roots, "<i4").tobytes(),
        collective.weights.astype("<i8").tobytes(), program.label.encode(),
    ]  # fmt: skip
    if relation is None:
        return columns
    names = ("pre_block", "pre_rank", "pre_id", "post_block", "post_rank", "post_want")
    columns += [getattr(relation, name).astype("<i4").tobytes() for name in names]
    columns.append(np.array([len(want) for want in relation.wants], "<u4").tobytes())
    columns.append(np.array([i for want in relation.wants for i in want], "<i4").tobytes())
    return columns


def _encode_section(program: Program, rank: int) -> bytes:
    """Return the section of one rank: its own points, bases, classes and slots.

    Points and classes are renumbered, bases are counted from the rank's first one. Slots need no new numbers, as each
    rank numbers its own.
    """
    op_rows = slice(int(program.op_ptr[rank]), int(program.op_ptr[rank + 1]))
    part_rows = slice(int(program.part_ptr[op_rows.start]), int(program.part_ptr[op_rows.stop]))
    waits = slice(int(program.wait_ptr[op_rows.start]), int(program.wait_ptr[op_rows.stop]))
    bases = slice(int(program.base_ptr[rank]), int(program.base_ptr[rank + 1]))
    slots = slice(int(program.slot_ptr[rank]), int(program.slot_ptr[rank + 1]))
    finish_rows = slice(int(program.finish_ptr[rank]), int(program.finish_ptr[rank + 1]))
    scratch = program.base_buffer[bases] == SCRATCH
    origins = program.base_origin[bases][scratch]
    # Points are shared by all ranks in memory; a section holds only the points that it names, renumbered.
    point_columns = (
        program.part_begin[part_rows], program.part_end[part_rows], origins,
        program.finish_begin[finish_rows], program.finish_end[finish_rows],
    )  # fmt: skip
    points, number = np.unique(np.concatenate(point_columns), return_inverse=True)
    begin, end, origins, finish_begin, finish_end = np.split(number, np.cumsum([len(n) for n in point_columns])[:-1])
    origin = np.zeros(len(scratch), np.int64)
    origin[scratch] = origins
    classes, slot_class = np.unique(program.slot_class[slots], return_inverse=True)
    # Row numbers in a section count from its own first row.
    first_part, first_wait = program.part_ptr[op_rows] - part_rows.start, program.wait_ptr[op_rows] - waits.start
    # `when` is twice the step, plus 1 for folds; a file holds 32 bits of it.
    if len(program.when[op_rows]) and int(program.when[op_rows].max()) >= 2**32:
        raise Unsupported("the program takes more than 2^31 steps; use fewer pieces")
    tables = (
        _fill_table(_POINT, whole=program.point_whole[points], part=program.point_numerator[points]),
        _fill_table(
            _BASE, shift=program.base_shift[bases], buffer=program.base_buffer[bases], slot=program.base_slot[bases],
            origin=origin,
        ),
        _fill_table(_CLASS, whole=program.class_whole[classes], part=program.class_numerator[classes],
                    pieces=program.class_pieces[classes]),
        slot_class.astype(_U4),
        _fill_table(
            _OPERATION, kind=program.kind[op_rows], channel=program.channel[op_rows], peer=program.peer[op_rows],
            pieces=program.pieces[op_rows], when=program.when[op_rows], first_part=first_part,
            parts=np.diff(program.part_ptr[op_rows.start : op_rows.stop + 1]), first_wait=first_wait,
            waits=np.diff(program.wait_ptr[op_rows.start : op_rows.stop + 1]),
        ),
        _fill_table(_PART, begin=begin, end=end, base=program.part_base[part_rows] - bases.start),
        (program.wait[waits] - op_rows.start).astype(_U4),
        _fill_table(_FINISH, begin=finish_begin, end=finish_end, base=program.finish_base[finish_rows] - bases.start,
                    count=program.finish_count[finish_rows]),
    )  # fmt: skip
    weights = [int(w[rank]) for w in program.weights]  # of the input and output buffer
    head = SECTION_HEADER.pack(rank, int(program.in_place), *weights, *map(len, tables))
    return head + b"".join(_pad_to_8(table.tobytes()) for table in tables)


def _fill_table(form: np.dtype[Any], /, **columns: Longs) -> Table:
    """Return a structured array of this type with these columns."""
    length = len(next(iter(columns.values())))
    table = np.zeros(length, form)
    for name, values in columns.items():
        table[name] = values
    return table


# ---- reading ----


def decode(data: bytes) -> list[Program]:
    """Read the programs of a file and check their form; prove.py checks their results. Linear.

    Raises Invalid if anything is damaged or inconsistent, Unsupported for another version.
    """
    reader = _Reader(data)
    return [reader.program(variant) for variant in range(2) if (reader.variants >> variant) & 1]


def collective_of(data: bytes) -> Collective:
    """Return the collective that every program of a file carries out."""
    program, *_ = decode(data)
    return program.collective


class _Reader:
    """Reads the head of a file, and its sections."""

    def __init__(self, data: bytes) -> None:
        if len(data) < HEADER.size or data[:8] != MAGIC:
            raise Invalid("is not the file of a program: it does not begin with ANTIPROG")
        fields = HEADER.unpack_from(data)
        _, version, crc, head, size, kind, ranks, members, roots, blocks = fields[:10]
        self.channels, self.variants, label, self.denominator, buffer_weight, pre, post, wants, wanted_ids = fields[10:]
        if version != VERSION:
            raise Unsupported(f"is a program of version {version}; this reads version {VERSION}: make it anew")
        if size != len(data):
            raise Invalid(f"is cut short or has something behind it: {len(data)} bytes, not {size}")
        if not HEADER.size <= head <= size or zlib.crc32(data[16:head]) != crc:
            raise Invalid("is damaged: the checksum of its head is wrong")
        if kind >= len(_KINDS) or not 1 <= self.denominator < SAFE_INT64 or self.variants not in (1, 2, 3):
            raise Invalid("its head makes no sense: an unknown kind, variant or denominator")
        self.data, self.ranks = data, ranks
        self.at = HEADER.size  # read position in the head
        self.end = head - 2 * ranks * DIRECTORY_ENTRY.size  # where the tables of the head end and the directory begins
        self.free = head  # the first byte after the sections that were read
        member_ranks, root_ranks = self._take_array("<i4", members), self._take_array("<i4", roots)
        weights = self._take_array("<i8", blocks)
        try:
            self.label = self._take_bytes(label).decode()
        except UnicodeDecodeError:
            raise Invalid("its label is not UTF-8 text") from None
        custom = self._read_relation(pre, post, wants, wanted_ids) if _KINDS[kind] == "custom" else None
        if self.at != self.end:
            raise Invalid("its head does not have the length that it states")
        self.collective = Collective(
            _KINDS[kind], ranks, members=tuple(member_ranks.tolist()), roots=tuple(root_ranks.tolist()),
            weights=weights.astype(np.int64), custom=custom,
            # only a custom collective may state what nbytes measures; for others it is the largest buffer
            nbytes_weight=buffer_weight if custom is not None else 0,
        )  # fmt: skip
        refuse_collective(self.collective)
        if self.collective.blocks != blocks or self.collective.buffer_weight != buffer_weight or self.channels < 1:
            raise Invalid("its head does not fit its collective")
        self.directory = [
            DIRECTORY_ENTRY.unpack_from(data, self.end + i * DIRECTORY_ENTRY.size) for i in range(2 * ranks)
        ]

    def _take_bytes(self, count: int) -> bytes:
        """Return the next bytes of the head, and skip the padding to a multiple of 8 bytes."""
        stop = self.at + count
        padded_stop = stop + -stop % 8
        if padded_stop > self.end:
            raise Invalid("its head is shorter than its tables")
        content = self.data[self.at : stop]
        self.at = padded_stop
        return content

    def _take_array(self, kind: str, count: int) -> Table:
        """Return the next array of the head."""
        return np.frombuffer(self._take_bytes(count * np.dtype(kind).itemsize), kind)

    def _read_relation(self, pre: int, post: int, wants: int, wanted_ids: int) -> Relation:
        """Read the relation of a custom collective, checked for range and order.

        The arguments are numbers: of `pre` rows, of `post` rows, of wants, and of the ids of all wants together.
        """
        pre_columns = [self._take_array("<i4", pre).astype(np.int32) for _ in range(3)]
        post_columns = [self._take_array("<i4", post).astype(np.int32) for _ in range(3)]
        lengths, ids = self._take_array("<u4", wants), self._take_array("<i4", wanted_ids).tolist()
        ends = np.cumsum(lengths.astype(np.int64)).tolist()
        if (ends[-1] if ends else 0) != wanted_ids:
            raise Invalid("its relation does not fit together")
        # These bounds limit the memory that a damaged number of a block or rank could claim before the relation is
        # checked.
        for blocks, ranks, _ in (pre_columns, post_columns):
            for column, bound in ((blocks, MAX_BLOCKS), (ranks, self.ranks)):
                if len(column) and not 0 <= int(column.min()) <= int(column.max()) < bound:
                    raise Invalid("its relation names a block or rank that does not exist")
        # A (block, rank) may recur on the `pre` side, with other ids, but not on the `post` side.
        for (blocks, ranks, _), min_step in ((pre_columns, 0), (post_columns, 1)):
            if np.any(np.diff(pair_keys(blocks, ranks)) < min_step):
                raise Invalid("its relation is not in the order of its blocks and ranks")
        (pre_block, pre_rank, pre_id), (post_block, post_rank, post_want) = pre_columns, post_columns
        if len(post_want) and not -1 <= int(post_want.min()) <= int(post_want.max()) < wants:
            raise Invalid("its relation wants a set that is not listed")
        want_ids = tuple(tuple(ids[a:b]) for a, b in zip([0, *ends[:-1]], ends, strict=True)) if ends else ()
        return Relation(pre_block, pre_rank, pre_id, post_block, post_rank, post_want, want_ids)

    def program(self, variant: int) -> Program:
        """Return one variant (0: out of place, 1: in place): the sections of all ranks, concatenated.

        >>> from antiphon.core.example import star
        >>> from antiphon.lower.lowering import lower
        >>> program = lower(star())
        >>> [same] = decode(encode([program]))
        >>> same.part_base.tolist() == program.part_base.tolist(), same.base_shift.tolist(), same.base_ptr.tolist()
        (True, [0, 0, 0, 0, 0, 0, 0, 0], [0, 4, 6, 8])
        """
        sections = [self._decode_section(variant, rank) for rank in range(self.ranks)]
        # Stage 1: concatenate the tables of all ranks. `before`: the number of rows of each table at earlier ranks.
        count = np.array([[len(table) for table in tables] for _, tables in sections], np.int64)
        before = np.cumsum(count, axis=0) - count
        points, bases, classes, slots, ops, part_table, waits, finish = (
            np.concatenate([tables[i] for _, tables in sections]) for i in range(len(TABLES))
        )
        # Stage 2: row numbers count within a section; add the rows of earlier ranks. (name, of, per): a column of table
        # `per` holds row numbers of table `of`.
        shift = {
            name: np.repeat(before[:, of], count[:, per])
            for name, of, per in (
                ("base_point", POINTS, BASES), ("slot_class", CLASSES, SLOTS), ("part_point", POINTS, PARTS),
                ("part_base", BASES, PARTS), ("wait_op", OPERATIONS, WAITS), ("finish_point", POINTS, FINISH),
                ("finish_base", BASES, FINISH),
            )
        }  # fmt: skip
        ptr = [pointers(np.repeat(np.arange(self.ranks), count[:, i]), self.ranks) for i in range(len(TABLES))]
        scratch = bases["buffer"] == SCRATCH
        program = Program(
            self.collective, in_place=bool(variant), channels=self.channels, label=self.label,
            denominator=self.denominator,
            point_whole=points["whole"], point_numerator=points["part"],
            base_ptr=ptr[BASES], base_shift=bases["shift"], base_buffer=bases["buffer"], base_slot=bases["slot"],
            base_origin=np.where(scratch, bases["origin"] + shift["base_point"], 0),
            class_whole=classes["whole"], class_numerator=classes["part"], class_pieces=classes["pieces"],
            slot_ptr=ptr[SLOTS], slot_class=slots + shift["slot_class"],
            op_ptr=ptr[OPERATIONS], kind=ops["kind"], channel=ops["channel"], peer=ops["peer"],
            pieces=ops["pieces"], when=ops["when"],
            part_ptr=np.concatenate([[0], np.cumsum(ops["parts"].astype(np.int64))]),
            part_begin=part_table["begin"] + shift["part_point"], part_end=part_table["end"] + shift["part_point"],
            part_base=part_table["base"] + shift["part_base"],
            wait_ptr=np.concatenate([[0], np.cumsum(ops["waits"].astype(np.int64))]), wait=waits + shift["wait_op"],
            finish_ptr=ptr[FINISH], finish_begin=finish["begin"] + shift["finish_point"],
            finish_end=finish["end"] + shift["finish_point"], finish_base=finish["base"] + shift["finish_base"],
            finish_count=finish["count"],
        )  # fmt: skip
        for rank, (weights, _) in enumerate(sections):
            if weights != tuple(int(w[rank]) for w in program.weights):
                raise Invalid(f"the section of rank {rank} states other buffers than the collective has")
        refuse_work(program)
        return program

    def _decode_section(self, variant: int, rank: int) -> tuple[tuple[int, int], list[Table]]:
        """Return the buffer weights and the tables of one rank's section."""
        begin, size, crc, _ = self.directory[variant * self.ranks + rank]
        data = self.data[begin : begin + size]
        section_name = f"the section of rank {rank}"
        if not begin or begin % 8 or size < SECTION_HEADER.size or len(data) != size or zlib.crc32(data) != crc:
            raise Invalid(f"is damaged: {section_name} is missing, or its checksum is wrong")
        if begin < self.free:
            raise Invalid(f"{section_name} does not stand behind the one before it")
        self.free = begin + size
        section_rank, section_variant, input_weight, output_weight, *counts = SECTION_HEADER.unpack_from(data)
        if (section_rank, section_variant) != (rank, variant):
            raise Invalid(f"{section_name} is that of rank {section_rank}")
        offset, tables = SECTION_HEADER.size, []
        for table, count in zip(TABLES, counts, strict=True):
            if offset + count * table.itemsize > size:
                raise Invalid(f"{section_name} is shorter than its tables")
            tables.append(np.frombuffer(data, table, count, offset))
            offset += count * table.itemsize
            offset += -offset % 8  # padding, as of `_pad_to_8`
        if offset != size:
            raise Invalid(f"{section_name} does not have the length that it states")
        misfit = _find_misfit(counts, tables, self.ranks)
        if misfit:
            raise Invalid(f"{section_name}: {misfit}")
        return (input_weight, output_weight), tables


def _find_misfit(counts: Sequence[int], tables: Sequence[Table], ranks: int) -> str:
    """Describe the first number of a section that refers to a missing row; "" if all are valid."""
    points, bases, classes, slots, ops, part_table, waits, finish = tables
    scratch = bases[bases["buffer"] == SCRATCH]
    references: list[tuple[str, Table, int]] = [  # name of a row, the row numbers, the number of rows that exist
        ("a buffer", bases["buffer"], len(_BUFFERS)), ("a slot", scratch["slot"], counts[SLOTS]),
        ("an origin", scratch["origin"], counts[POINTS]),
        ("a class", slots, counts[CLASSES]), ("a kind", ops["kind"], len(NAMES)), ("a peer", ops["peer"], ranks),
        ("a base", part_table["base"], counts[BASES]), ("a base", finish["base"], counts[BASES]),
        ("an operation", waits, counts[OPERATIONS]),
    ]  # fmt: skip
    for table in (part_table, finish):
        references += [("a point", table[end], counts[POINTS]) for end in ("begin", "end")]
    for row_name, values, bound in references:
        if len(values) and int(values.max()) >= bound:
            return f"names {row_name} that does not exist"
    for row_name, first, count_name, total in (
        ("part", "first_part", "parts", counts[PARTS]),
        ("wait", "first_wait", "waits", counts[WAITS]),
    ):
        length = ops[count_name].astype(np.int64)
        if int(length.sum()) != total or np.any(ops[first] != np.cumsum(length) - length):
            return f"its operations do not cover its {row_name}s one after another"
    if np.any(ops["pieces"] < 1) or np.any(classes["pieces"] < 1):
        return "an operation or class has no pieces"
    # `refuse_form` (form.py) checks, before a proof, that points lie on the line and parts end after they begin
    if np.any(points["part"] < 0) or np.any(finish["count"] < 1):
        return "a point or count is negative or 0"
    return ""


# ---- as text ----


_BUFFERS = ("in", "out", "scratch")


def dump(program: Program, rank: int) -> str:
    """Return one rank's operations as text, one per line: number within the rank, `@when`, kind and operands.

    Positions are in units of weight within the buffer or slot.
    """
    if not 0 <= rank < program.ranks:
        raise Invalid(f"rank: expected 0 to {program.ranks - 1}, got {rank}")
    weights = tuple(int(w[rank]) for w in program.weights)
    variant = "in place" if program.in_place else "out of place"
    slots = int(program.slot_ptr[rank + 1] - program.slot_ptr[rank])
    lines = [f"rank {rank}: {program.label}, {variant}; in {weights[0]}, out {weights[1]}, {slots} slots"]
    first = int(program.op_ptr[rank])
    for row in range(first, int(program.op_ptr[rank + 1])):
        operands = [_part_text(program, i) for i in range(int(program.part_ptr[row]), int(program.part_ptr[row + 1]))]
        kind, peer, pieces = int(program.kind[row]), int(program.peer[row]), int(program.pieces[row])
        action = {SEND: f"{' '.join(operands)} to {peer}", RECEIVE: f"{' '.join(operands)} from {peer}", JOIN: ""}
        action[FOLD] = f"{operands[0]} = {' + '.join(operands[1:])}" if kind == FOLD and operands else ""
        waits = [str(int(w) - first) for w in program.wait[program.wait_ptr[row] : program.wait_ptr[row + 1]]]
        remarks = [f"in {pieces} pieces"] if pieces > 1 else []
        remarks += [f"channel {int(program.channel[row])}"] if program.channels > 1 else []
        remarks += [f"after {' '.join(waits)}"] if waits else []
        text = f"{row - first:6d}  @{int(program.when[row])}  {NAMES[kind]} {action[kind]}".rstrip()
        lines.append(text + (f"  ({', '.join(remarks)})" if remarks else ""))
    for row in range(int(program.finish_ptr[rank]), int(program.finish_ptr[rank + 1])):
        begin, end = (
            _point_position(program, int(point[row])) + int(program.base_shift[program.finish_base[row]])
            for point in (program.finish_begin, program.finish_end)
        )
        lines.append(f"   avg  out[{begin}:{end}] / {int(program.finish_count[row])}")
    return "\n".join(lines) + "\n\n"


def _point_position(program: Program, point: int) -> Fraction:
    """Return a point in units of weight."""
    fraction = Fraction(int(program.point_numerator[point]), program.denominator)
    return int(program.point_whole[point]) + fraction


def _part_text(program: Program, part_row: int) -> str:
    """Return a part as text, such as in[0:1/3] or slot0[0:1/3]."""
    base = int(program.part_base[part_row])
    begin, end = (
        _point_position(program, int(program.part_begin[part_row])),
        _point_position(program, int(program.part_end[part_row])),
    )
    buffer = int(program.base_buffer[base])
    if buffer == SCRATCH:
        origin = _point_position(program, int(program.base_origin[base]))
        return f"slot{int(program.base_slot[base])}[{begin - origin}:{end - origin}]"
    shift = int(program.base_shift[base])
    return f"{_BUFFERS[buffer]}[{begin + shift}:{end + shift}]"
