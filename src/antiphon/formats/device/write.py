"""A plan as one file of CUDA or HIP that compiles and runs by itself, on threads of a processor too (docs/device.md).

It holds the headers of our kernel as they stand in runtimes/device/native, the plan as functions made of its tables,
and a driver with `main`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from antiphon.core.collective import Collective
from antiphon.core.columns import AnyInts
from antiphon.core.datatypes import data_type
from antiphon.core.interpret.buffers import Side, sides
from antiphon.core.plan import Plan
from antiphon.core.schedule import Schedule
from antiphon.errors import Invalid, Unsupported, quote, unknown
from antiphon.formats.device.shapes import Function, functions
from antiphon.formats.device.statements import MOST_AT_ONCE, Rank, Statement, statements
from antiphon.lower.device.packets import PACKED
from antiphon.lower.device.table import Table, tables
from antiphon.options import parse_yes

NATIVE = Path(__file__).parents[2] / "runtimes" / "device" / "native"
TYPES = {
    "int8": "int8_t", "uint8": "uint8_t", "int16": "int16_t", "uint16": "uint16_t", "int32": "int32_t",
    "uint32": "u32", "int64": "i64", "uint64": "u64", "float16": "half16", "bfloat16": "brain16",
    "float32": "float", "float64": "double",
}  # fmt: skip
OPERATORS = {"sum": "Sum", "prod": "Prod", "max": "Max", "min": "Min", "avg": "Sum"}
HIP_FLAGS = "-mllvm -amdgpu-function-calls=true"  # else hipcc inlines all into one function, and takes minutes
MOST_STREAMS = 16
MANY_LINES = 2_000  # then fewer streams are tried, in which ranks are more alike
MOST_SMALL = 400  # by packets, which compilers take much longer for
MOST_LINES = 12_000  # of all functions: compilers take minutes for more
MOST_ROWS = 100_000  # of data that are given and wanted


class _Made(NamedTuple):
    """A way to make calls: with signals, or by packets. `lines`: how many statements."""

    tables: list[Table]
    ranks: list[Rank]
    functions: list[list[Function]]
    lines: int

    @property
    def most(self) -> int:
        """Places that are named one by one."""
        return max(_listed(stream) for one in self.ranks for stream in one.streams)


def cuda(
    plan: Plan, *, dtype: str = "float32", op: str = "sum", in_place: bool = False, streams: int = 4,
    arrival: bool = False, packets: bool | None = None, pull: bool = False,
) -> dict[str, str]:  # fmt: skip
    """plan0.cu for the first schedule, and so on.

    `dtype`, `op`: what it is compiled for, unless the compiler is told otherwise (-DTYPE=, -DOPERATOR=). `in_place`: in
    one buffer. `streams`: at most so many parts of the plan go on side by side, each in blocks of its own. `arrival`:
    blocks lie as they arrive until they are permuted at the end (planner permrecmult). `packets`: small data also as
    packets, which the program then tries: unless told otherwise where neither of the other two is asked for, which
    exclude it and each other. `pull`: who receives reads.
    """
    how = _How(dtype, op, in_place, streams, **_one_of(arrival, packets, pull))
    return _files(plan, "cu", how)


def hip(
    plan: Plan, *, dtype: str = "float32", op: str = "sum", in_place: bool = False, streams: int = 4,
    arrival: bool = False, packets: bool | None = None, pull: bool = False,
) -> dict[str, str]:  # fmt: skip
    """plan0.hip.cpp, ...: as for CUDA."""
    how = _How(dtype, op, in_place, streams, **_one_of(arrival, packets, pull))
    return _files(plan, "hip.cpp", how)


class _How(NamedTuple):
    dtype: str = "float32"
    op: str = "sum"
    in_place: bool = False
    streams: int = 4
    arrival: bool = False
    packets: bool = True
    pull: bool = False


def _one_of(arrival: bool, packets: bool | None, pull: bool) -> dict[str, bool]:
    """Packets lie in boxes, what is pulled in its place, neither in an order of arrival."""
    given = {"pull": pull, "arrival": arrival, "packets": False if packets is None else packets}
    read = {name: parse_yes(value, f"option {name}") for name, value in given.items()}
    asked = [name for name, value in read.items() if value]
    if len(asked) > 1:
        raise Invalid(f"options {' and '.join(asked)}: take one")
    return {**read, "packets": not asked} if packets is None else read


def _files(plan: Plan, suffix: str, how: _How) -> dict[str, str]:
    if how.op not in OPERATORS:
        raise unknown("op", how.op, OPERATORS)
    if isinstance(how.streams, bool) or not isinstance(how.streams, int) or not 1 <= how.streams <= MOST_STREAMS:
        raise Invalid(f"streams: expected a whole number from 1 to {MOST_STREAMS}, got {quote(how.streams)}")
    name = data_type(how.dtype).name
    if name not in TYPES:  # Python's whole numbers
        raise unknown("data type", name, TYPES)
    how = how._replace(dtype=name, in_place=parse_yes(how.in_place, "option in_place"))
    return {
        f"plan{number}.{suffix}": source(entry.schedule, plan.topology.name, **how._asdict())
        for number, entry in enumerate(plan.entries)
    }


def source(
    schedule: Schedule, machine: str, dtype: str = "float32", op: str = "sum", in_place: bool = False, streams: int = 4,
    arrival: bool = False, packets: bool = True, pull: bool = False,
) -> str:  # fmt: skip
    """The file of one schedule. Unsupported where it is too long for compilers: such a plan runs by its table."""
    how = _How(dtype, op, in_place, streams, arrival, packets, pull)
    if not schedule.transfers:
        raise Unsupported("generated code: nothing is sent in this plan, so there is nothing to write")
    plain = _short(schedule, how._replace(packets=False))
    if plain.lines > MOST_LINES:
        raise Unsupported(
            f"generated code: {plain.lines} statements, more than {MOST_LINES}, take compilers too long; run it by its "
            "table (--on cuda), or take fewer pieces"
        )
    ways = [plain, *_small(schedule, how, MOST_LINES - plain.lines)]
    collective = schedule.collective
    inputs, outputs = sides(collective, in_place)
    title = f"{collective.kind} of {collective.ranks} ranks on {machine}, planner {schedule.provenance.get('planner')}"
    title = re.sub(r"[^A-Za-z0-9_ ,.:=+-]", "_", title)  # it stands in a comment, and in a text
    most = max(MOST_AT_ONCE, *(one.most for one in ways))
    blocks = max(len(one.functions) for one in ways)
    head = _About(collective, op).text(title, dtype, in_place, most, blocks)
    size = _table("i64", "INPUTS", [0 if in_place else int(one) for one in inputs.size], host=True)
    size += _table("i64", "OUTPUTS", [int(one) for one in outputs.size], host=True) + _layouts(ways)
    seen = set[str]()
    parts = [
        _opening(title), _expanded("signals.h", seen), _expanded("packets.h", seen), head, size,
        _data(collective, inputs, outputs), _expanded("written.h", seen), _heading("The plan"),
        *(one.text() for way in ways for some in way.functions for one in some), _dispatch(ways),
        _heading("The program around it"), _expanded("driver.h", seen),
    ]  # fmt: skip
    return "\n".join(parts)


def _short(schedule: Schedule, how: _How) -> _Made:
    """In so many streams, or fewer where there are many lines: then ranks are more alike."""
    found, many = _stream_code(schedule, how), MOST_SMALL if how.packets else MANY_LINES
    while found.lines > many and how.streams > 1:
        how = how._replace(streams=how.streams // 2)
        other = _stream_code(schedule, how)
        found = other if other.lines < found.lines else found
    return found


def _small(schedule: Schedule, how: _How, room: int) -> list[_Made]:
    """By packets, where there are such tables and room for as many lines."""
    if not how.packets or how.arrival or how.pull:
        return []
    try:
        found = _short(schedule, how)
    except Unsupported:
        return []
    return [found] if found.lines <= min(room, MOST_SMALL) else []


def _stream_code(schedule: Schedule, how: _How) -> _Made:
    """What divides sums is left out where nothing is averaged."""
    made = tables(
        schedule, in_place=how.in_place, streams=how.streams, arrival=how.arrival, packets=how.packets,
        pull=how.pull,
    )  # fmt: skip
    read = [statements(one, averages=how.op == "avg") for one in made]
    name = "packets" if how.packets else "stream"
    found = functions([one.streams for one in read], len(read[0].classes), name)
    return _Made(made, read, found, sum(one.lines for some in found for one in some))


def _layouts(ways: Sequence[_Made]) -> str:
    """Where data lies at a size, each way."""
    text, rows = "", list[str]()
    for name, way in zip(("PLAIN", "PACKED"), ways, strict=False):
        one = way.ranks[0]
        classes = one.classes or [[0, 0]]
        text += _table("i64", f"{name}_PARTS", one.parts, host=True)
        text += _rows("i64", f"{name}_CLASSES", classes, host=True)
        text += _rows("i64", f"{name}_SLOTS", [rank.slots or [0] for rank in way.ranks], host=True)
        text += _table("i64", f"{name}_BOXES", [rank.boxes for rank in way.ranks], host=True)
        sliced = int(all(table.sliced for table in way.tables))
        rows.append(
            f"{{{one.denominator}, {one.atoms}, {sliced}, {int(one.hears)}, {len(one.parts)}, {len(classes)}, "
            f"{name}_PARTS, {name}_CLASSES[0], {name}_SLOTS[0], {name}_BOXES}}"
        )
    about = """/* Of a way to make calls: how units are cut, slots of scratch by rank and class (whole units, a cut), of
 * packets how many slots come to a rank, and the atoms of the longest. `hears`: whether at the end all have heard from
 * all. */
struct Layout {
    i64 denominator, atoms, sliced, hears, parts, classes;
    const i64 *part, *of_class, *slots, *boxes;
};
"""
    body = ",\n    ".join(rows)
    return f"{text}{about}static const Layout LAYOUTS[] = {{\n    {body}}};\n"


def _listed(stream: Sequence[Statement]) -> int:
    """The most places that are named one by one."""
    most = now = 0
    for one in stream:
        name = one.form[0]
        now = now + 1 if name in ("to", "from") else 0
        most = max(most, now)
    return most


def _opening(title: str) -> str:
    return f"""/* {title}.
 *
 *     nvcc -std=c++17 -O3 -arch=sm_90 FILE.cu -o plan
 *     hipcc -std=c++17 -O3 -x hip --offload-arch=gfx90a {HIP_FLAGS} FILE.hip.cpp -o plan
 *     c++ -std=c++17 -O2 -pthread -x c++ FILE -o plan
 *
 * The last runs all ranks on threads of a processor. ./plan -b 1M -e 64M prints a table, and checks what it computes.
 */
"""


def _heading(text: str) -> str:
    return f"/* ======== {text} ======== */\n"


def _expanded(name: str, seen: set[str]) -> str:
    """A header with those that it includes in their places, each once."""
    if name in seen:
        return ""
    seen.add(name)
    out = []
    for line in (NATIVE / name).read_text(encoding="utf-8").splitlines():
        include = re.fullmatch(r'#include "(.*)"', line)
        if include:
            out.append(_expanded(include[1], seen).rstrip("\n"))
        elif line != "#pragma once":
            out.append(line)
    return "\n".join(out) + "\n"


class _About:
    def __init__(self, collective: Collective, op: str) -> None:
        self.collective, self.op = collective, op

    def text(self, title: str, dtype: str, in_place: bool, places: int, streams: int) -> str:
        collective = self.collective
        members, names = len(collective.members), int(collective.ids_per_block.max(initial=1))
        bus = {"allreduce": 2 * (members - 1) / members}.get(
            collective.kind,
            (members - 1) / members if collective.kind in ("allgather", "reducescatter", "alltoall") else 1.0,
        )
        return f"""{_heading("The plan, told in numbers")}
#ifndef TYPE
#define TYPE {TYPES[dtype]}
#endif
#ifndef OPERATOR
#define OPERATOR {OPERATORS[self.op]}
#endif
#define AS_TEXT(NAME) #NAME
#define TEXT_OF(NAME) AS_TEXT(NAME)
#define TYPE_NAME TEXT_OF(TYPE)
#define OPERATOR_NAME {'"avg"' if self.op == "avg" else "TEXT_OF(OPERATOR)"}
#define TITLE "{title}"
typedef TYPE T;
typedef OPERATOR Rule;

enum {{ IN_PLACE = {int(in_place)}, AVERAGE = {int(self.op == "avg")} }};
enum {{ MOST_PLACES = {places}, MOST_NAMES = {names} }};
const i64 RANKS = {collective.ranks}, STREAMS = {streams}, BUFFER_WEIGHT = {collective.buffer_weight};
const double BUS = {bus!r}; /* what goes over the busiest link, in sizes */
enum {{ MOST_PACKED = {PACKED} }}; /* bytes: above that no packets are tried */
"""


def _data(collective: Collective, inputs: Side, outputs: Side) -> str:
    """Of each rank the blocks that it holds and that it must end with: rank, block, begin, length in units, and which
    contributions to it. Those to a block are numbered from 0 on."""
    relation = collective.relation
    held: dict[tuple[int, int], list[int]] = {}
    for block, rank, name in _zipped(relation.pre_block, relation.pre_rank, relation.pre_id):
        held.setdefault((rank, block), []).append(name)
    everyone: dict[int, set[int]] = {}
    for (_, block), some in held.items():
        everyone.setdefault(block, set()).update(some)
    wanted = {
        (rank, block): sorted(everyone[block]) if want < 0 else list(relation.wants[want])
        for block, rank, want in _zipped(relation.post_block, relation.post_rank, relation.post_want)
    }
    number_of = {block: {name: at for at, name in enumerate(sorted(some))} for block, some in everyone.items()}
    names: list[int] = []
    known: dict[tuple[int, ...], int] = {}
    text = ""
    for title, side, of in (("HELD", inputs, held), ("WANTED", outputs, wanted)):
        rows = []
        for rank, block, start in _zipped(side.rank, side.block, side.start):
            which = tuple(number_of[block][name] for name in of.get((rank, block), ()))
            if not which:
                continue
            if which not in known:
                known[which] = len(names)
                names += which
            rows.append([rank, block, start, int(collective.weights[block]), known[which], len(which)])
        if len(rows) > MOST_ROWS:
            raise Unsupported(f"generated code: {len(rows)} blocks of data, more than {MOST_ROWS}, for its check")
        text += f"enum {{ {title}_ROWS = {len(rows)} }};\n" + _rows("Given", title, rows or [[0] * 6])
    about = (
        "/* Data of a rank: a block of `length` from `begin` on, in units; the names of what is combined there. */\n"
    )
    about += "struct Given {\n    i64 rank, block, begin, length, first, names;\n};\n"
    return f"{about}{_table('i64', 'NAMES', names or [0])}{text}"


def _zipped(*columns: AnyInts) -> list[tuple[int, ...]]:
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _table(kind: str, name: str, values: Sequence[int], host: bool = False) -> str:
    lines = [", ".join(map(str, values[low : low + 16])) for low in range(0, len(values), 16)]
    body = ",\n    ".join(lines)
    return f"{'static const' if host else 'ON_TABLE'} {kind} {name}[] = {{\n    {body}}};\n"


def _rows(kind: str, name: str, rows: Sequence[Sequence[int]], host: bool = False) -> str:
    width = "" if kind == "Given" else f"[{len(rows[0])}]"
    body = ",\n    ".join("{" + ", ".join(map(str, row)) + "}" for row in rows)
    return f"{'static const' if host else 'ON_TABLE'} {kind} {name}[]{width} = {{\n    {body}}};\n"


def _dispatch(ways: Sequence[_Made]) -> str:
    """Which function a rank has in a stream, each way."""
    lines = [
        "/* What a rank does in a stream; gives whether it was stopped. */",
        "ON_DEVICE bool run_stream(Work &w, u32 stream) {",
        "    switch ((w.call.way * STREAMS + stream) * RANKS + w.me) {",
    ]
    blocks = max(len(one.functions) for one in ways)
    for way, made in enumerate(ways):
        for number, some in enumerate(made.functions):
            for one in some:
                for at, rank in enumerate(one.members):
                    where = f"{way * blocks + number} * RANKS + {rank}"
                    lines.append(f"    case {where}: w.which = {at}; return {one.name}(w);")
    return "\n".join([*lines, "    default: return false;", "    }", "}", ""])
