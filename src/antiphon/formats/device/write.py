"""Write a plan as one CUDA or HIP source file that compiles and runs by itself, also on CPU threads (docs/device.md).

The file contains the headers of our kernel from runtimes/device/native, the plan as generated functions, and a driver
with `main` that checks the results and prints times. Functions are generated from the plan's tables: `statements` reads
the tables, `shapes` finds functions that ranks share, loops and formulas.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from antiphon.core.collective import Collective
from antiphon.core.columns import AnyInts
from antiphon.core.datatypes import data_type
from antiphon.core.interpret.buffers import Side, sides
from antiphon.core.plan import Plan
from antiphon.core.schedule import Schedule
from antiphon.cost.lowering_costs import COPIES, KERNEL, STEPS
from antiphon.errors import Invalid, Unsupported, quote, unknown
from antiphon.formats.device.launches import Copy, CopyPlace, Launches, cut_launches
from antiphon.formats.device.shapes import Function, functions
from antiphon.formats.device.statements import MOST_PLACES, Rank, Statement, statements
from antiphon.lower.device.packets import PACKED
from antiphon.lower.device.table import Table, tables
from antiphon.options import parse_yes

NATIVE = Path(__file__).parents[2] / "runtimes" / "device" / "native"
TYPES = {  # data type -> its name in the C++ headers
    "int8": "int8_t", "uint8": "uint8_t", "int16": "int16_t", "uint16": "uint16_t", "int32": "int32_t",
    "uint32": "u32", "int64": "i64", "uint64": "u64", "float16": "half16", "bfloat16": "brain16",
    "float32": "float", "float64": "double",
}  # fmt: skip
OPERATORS = {"sum": "Sum", "prod": "Prod", "max": "Max", "min": "Min", "avg": "Sum"}  # avg: the sum is divided at last
HIP_FLAGS = "-mllvm -amdgpu-function-calls=true"  # else hipcc inlines all into one function, and takes minutes
MOST_STREAMS = 16  # each takes thread blocks of its own, and a GPU has some 100 multiprocessors for all of them
LOWERINGS = (KERNEL, STEPS, COPIES)
# limits on statements, the lines of the generated functions
SHORT_CODE = 2_000  # above this fewer streams are tried: then more ranks share a function, and the code is shorter
MAX_PACKET_STATEMENTS = 400  # of the variant with packets, for which compilers take much longer
MAX_STATEMENTS = 12_000  # of all functions: compilers take minutes for more
MOST_ROWS = 100_000  # blocks of data that ranks hold, or must end with


class _Variant(NamedTuple):
    """The code with signals (a flag for the receiver after the data is written) or with packets (a flag in each
    packet, beside its data)."""

    tables: list[Table]  # by rank
    ranks: list[Rank]  # by rank: its table, read
    functions: list[list[Function]]  # by stream; each serves several ranks
    statement_count: int  # of all functions
    launches: Launches | None  # None: one kernel

    @property
    def max_places(self) -> int:
        """Return the most places of one operation that are each named by a statement ("to" or "from")."""
        return max(_max_places(stream) for rank in self.ranks for stream in rank.streams)


def cuda(
    plan: Plan, *, dtype: str = "float32", op: str = "sum", in_place: bool = False, streams: int = 4,
    arrival: bool = False, packets: bool | None = None, pull: bool = False, lowering: str = KERNEL,
) -> dict[str, str]:  # fmt: skip
    """Write a CUDA program per schedule (plan0.cu, ...) that runs the plan, checks the results and prints times.

    Parameters
    ----------
    dtype, op
        Data type and operator; the compiler can override them (-DTYPE=, -DOPERATOR=).
    in_place
        Input and output are one buffer.
    streams
        Maximum number of concurrent streams of the plan, each in thread blocks of its own.
    arrival
        Leave blocks in the order of arrival and permute them at the end (planner permrecmult).
    packets
        Also send small data as packets, which the program then tries. Default: yes unless `arrival` or `pull` is set;
        the three exclude each other.
    pull
        The receiver reads, instead of the sender writing.
    lowering
        kernel: one kernel for a call; steps: a kernel per step; copies: the same, with copies by copy engines.
    """
    how = _Options(dtype, op, in_place, streams, **_read_exclusive_options(arrival, packets, pull, lowering))
    return _write_files(plan, "cu", how)


def hip(
    plan: Plan, *, dtype: str = "float32", op: str = "sum", in_place: bool = False, streams: int = 4,
    arrival: bool = False, packets: bool | None = None, pull: bool = False, lowering: str = KERNEL,
) -> dict[str, str]:  # fmt: skip
    """Write a HIP program per schedule (plan0.hip.cpp, ...); options as for cuda."""
    how = _Options(dtype, op, in_place, streams, **_read_exclusive_options(arrival, packets, pull, lowering))
    return _write_files(plan, "hip.cpp", how)


class _Options(NamedTuple):
    """The options of `cuda` and `hip`; of `arrival`, `packets` and `pull` at most one is set."""

    dtype: str = "float32"
    op: str = "sum"
    in_place: bool = False
    streams: int = 4
    arrival: bool = False
    packets: bool = True
    pull: bool = False
    lowering: str = KERNEL


def _read_exclusive_options(arrival: bool, packets: bool | None, pull: bool, lowering: str) -> dict[str, Any]:
    """Return the options `arrival`, `packets` and `pull`, at most one of them set, and `lowering`."""
    options = {"pull": pull, "arrival": arrival, "packets": False if packets is None else packets}
    read = {name: parse_yes(value, f"option {name}") for name, value in options.items()}
    chosen = [name for name, value in read.items() if value]
    if len(chosen) > 1:
        raise Invalid(f"options {' and '.join(chosen)}: take one")
    if lowering not in LOWERINGS:
        raise unknown("lowering", lowering, LOWERINGS)
    if lowering != KERNEL and read["packets"]:
        raise Invalid(f"options packets and lowering={lowering}: take one; packets need one kernel")
    # by default packets are sent if nothing excludes them
    wants_packets = read["packets"] if packets is not None else not chosen and lowering == KERNEL
    return {**read, "lowering": lowering, "packets": wants_packets}


def _write_files(plan: Plan, suffix: str, how: _Options) -> dict[str, str]:
    """Return the sources by file name, after a check of the options that were not read yet."""
    if how.op not in OPERATORS:
        raise unknown("op", how.op, OPERATORS)
    if isinstance(how.streams, bool) or not isinstance(how.streams, int) or not 1 <= how.streams <= MOST_STREAMS:
        raise Invalid(f"streams: expected a whole number from 1 to {MOST_STREAMS}, got {quote(how.streams)}")
    name = data_type(how.dtype).name
    if name not in TYPES:  # Python's int, which C lacks
        raise unknown("data type", name, TYPES)
    how = how._replace(dtype=name, in_place=parse_yes(how.in_place, "option in_place"))
    return {
        f"plan{number}.{suffix}": source(entry.schedule, plan.topology.name, **how._asdict())
        for number, entry in enumerate(plan.entries)
    }


def source(  # noqa: PLR0913
    schedule: Schedule, machine: str, dtype: str = "float32", op: str = "sum", in_place: bool = False, streams: int = 4,
    arrival: bool = False, packets: bool = True, pull: bool = False, *, lowering: str = KERNEL,
) -> str:  # fmt: skip
    """Return the file of one schedule. Unsupported if it is too long for compilers; the kernel that reads tables runs
    such a plan."""
    how = _Options(dtype, op, in_place, streams, arrival, packets, pull, lowering)
    if not schedule.transfers:
        raise Unsupported("generated code: nothing is sent in this plan, so there is nothing to write")
    plain = _shortest_code(schedule, how._replace(packets=False))
    if plain.statement_count > MAX_STATEMENTS:
        raise Unsupported(
            f"generated code: {plain.statement_count} statements, more than {MAX_STATEMENTS}, take compilers too long; "
            "run it by its table (--on cuda), or take fewer pieces"
        )
    variants = [plain, *_packet_code(schedule, how, MAX_STATEMENTS - plain.statement_count)]
    collective = schedule.collective
    inputs, outputs = sides(collective, in_place)
    title = f"{collective.kind} of {collective.ranks} ranks on {machine}, planner {schedule.provenance.get('planner')}"
    title = re.sub(r"[^A-Za-z0-9_ ,.:=+-]", "_", title)  # it stands in a comment and in a C string
    # room for the places of one operation: of a single statement, or listed one by one
    max_places = max(MOST_PLACES, *(variant.max_places for variant in variants))
    stream_count = max(len(variant.functions) for variant in variants)
    constants = _constants_text(collective, how, title, max_places, stream_count)
    # in units, by rank; in place there is no input buffer to allocate
    sizes = _table_text("INPUTS", [0 if in_place else size for size in inputs.size.tolist()], host=True)
    sizes += _table_text("OUTPUTS", outputs.size.tolist(), host=True)
    included = set[str]()
    sections = [
        _opening_comment(title), _expand_header("signals.h", included), _expand_header("packets.h", included),
        constants, sizes, _layout_tables(variants), _launch_tables(plain, how.lowering),
        _data_tables(collective, inputs, outputs),
        _expand_header("written.h", included),
        _heading_comment("The plan"),
        *(function.text() for variant in variants for group in variant.functions for function in group),
        _dispatch_function(variants),
        _heading_comment("The program around it"), _expand_header("driver.h", included),
    ]  # fmt: skip
    return "\n".join(sections)


def _shortest_code(schedule: Schedule, how: _Options) -> _Variant:
    """Return the code in `how.streams` streams. Where it is long, halve the streams and return the shortest code."""
    shortest, short_enough = _stream_code(schedule, how), MAX_PACKET_STATEMENTS if how.packets else SHORT_CODE
    while shortest.statement_count > short_enough and how.streams > 1:
        how = how._replace(streams=how.streams // 2)
        other = _stream_code(schedule, how)
        shortest = other if other.statement_count < shortest.statement_count else shortest
    return shortest


def _packet_code(schedule: Schedule, how: _Options, room: int) -> list[_Variant]:
    """Return [the variant that sends packets], or [] if there is none or it has more than `room` statements."""
    if not how.packets or how.arrival or how.pull or how.lowering != KERNEL:
        return []
    try:
        packet_variant = _shortest_code(schedule, how)
    except Unsupported:
        return []
    return [packet_variant] if packet_variant.statement_count <= min(room, MAX_PACKET_STATEMENTS) else []


def _stream_code(schedule: Schedule, how: _Options) -> _Variant:
    """Return the code of a schedule by its options; divisions are omitted where nothing is averaged."""
    rank_tables = tables(
        schedule, in_place=how.in_place, streams=how.streams, arrival=how.arrival, packets=how.packets,
        pull=how.pull,
    )  # fmt: skip
    ranks = [statements(table, averages=how.op == "avg") for table in rank_tables]
    prefix = "packets" if how.packets else "stream"
    launches = None if how.lowering == KERNEL else cut_launches(ranks, how.lowering == COPIES)
    streams_of_ranks = [rank.streams for rank in ranks] if launches is None else launches.ranks
    size_count = len(ranks[0].slot_sizes)
    by_stream = functions(streams_of_ranks, size_count, prefix)
    statement_count = sum(function.statement_count for group in by_stream for function in group)
    return _Variant(rank_tables, ranks, by_stream, statement_count, launches)


def _layout_tables(variants: Sequence[_Variant]) -> str:
    """Return the C tables from which the program computes where data lies at a size, for each variant."""
    text, rows = "", list[str]()
    for name, variant in zip(("PLAIN", "PACKED"), variants, strict=False):  # there may be no variant with packets
        first_rank = variant.ranks[0]  # ranks differ in slots and boxes only
        slot_sizes = first_rank.slot_sizes or [[0, 0]]
        text += _table_text(f"{name}_PARTS", first_rank.cuts, host=True)
        text += _rows_text("i64", f"{name}_CLASSES", slot_sizes, host=True)
        text += _rows_text("i64", f"{name}_SLOTS", [rank.slots or [0] for rank in variant.ranks], host=True)
        text += _table_text(f"{name}_BOXES", [rank.boxes for rank in variant.ranks], host=True)
        sliced = int(all(table.sliced for table in variant.tables))
        rows.append(
            f"{{{first_rank.denominator}, {first_rank.atoms}, {sliced}, {int(first_rank.receives_all)}, "
            f"{len(first_rank.cuts)}, {len(slot_sizes)}, "
            f"{name}_PARTS, {name}_CLASSES[0], {name}_SLOTS[0], {name}_BOXES}}"
        )
    struct = """/* Where the data of a call lies, by variant (signals, packets). A unit is cut at part[i] / denominator
 * of its elements. A scratch slot of class i has of_class[2 i] units and of_class[2 i + 1] / denominator of one. */
struct Layout {
    i64 denominator;
    i64 atoms;          /* stretches between cuts in the longest message by packets; 0: no packets are sent */
    i64 sliced;         /* whether lanes may share the work */
    i64 receives_all;   /* whether each rank has received from all others when its call ends */
    i64 parts, classes; /* lengths of `part` (cuts) and `of_class` (sizes of scratch slots) */
    const i64 *part, *of_class;
    const i64 *slots;   /* [rank][class]: how many slots the scratch of a rank has */
    const i64 *boxes;   /* [rank]: how many slots for incoming packets a rank has */
};
"""
    body = ",\n    ".join(rows)
    return f"{text}{struct}static const Layout LAYOUTS[] = {{\n    {body}}};\n"


def _launch_tables(variant: _Variant, lowering: str) -> str:
    """Return C tables of what each launch of a call consists of, if the host makes calls step by step."""
    # one kernel for a call is one launch, with work at all ranks
    launches = variant.launches or Launches(ranks=[], copies=[], kernels=[[True] * len(variant.ranks)])
    copies = launches.copies
    if not copies:  # C has no empty arrays: one copy of no launch
        size_count = max(len(variant.ranks[0].slot_sizes), 1)  # ranks have as many
        no_place = CopyPlace(buffer=0, rank=0, units=0, cut=0, origin_cut=0, slots_before=(0,) * size_count)
        copies = [Copy(launch=-1, rank=0, target=no_place, source=no_place, cut=0, number=0)]
    kernels = [list(map(int, row)) for row in launches.kernels]
    return (
        f'#define PLAIN_NAME "{lowering if variant.launches else "signals"}"\n'
        f"const i64 LAUNCHES = {len(launches.kernels)}; /* of a call */\n"
        f"const bool STEPWISE = {str(variant.launches is not None).lower()}; /* whether each awaits the one before */\n"
        "/* By launch and rank: whether a kernel has work. */\n" + _rows_text("i64", "KERNELS", kernels, host=True)
        + "/* Copies by copy engines, a row each: launch; rank; target; source; the cut of a unit where data begins;\n"
        " * the number of cuts to its end. Target and source: buffer; rank; whole units; cut; of scratch also the cut\n"
        " * where the slot begins, which is subtracted, and the slots before it, by class. */\n"
        + _rows_text("i64", "COPIES", [copy.numbers() for copy in copies], host=True)
    )  # fmt: skip


def _max_places(stream: Sequence[Statement]) -> int:
    """Return the length of the longest run of "to" and "from" statements that each add a place to a list."""
    longest = run = 0
    for statement in stream:
        run = run + 1 if statement.kind in ("to", "from") else 0
        longest = max(longest, run)
    return longest


def _opening_comment(title: str) -> str:
    return f"""/* {title}.
 *
 *     nvcc -std=c++17 -O3 -arch=sm_90 FILE.cu -o plan
 *     hipcc -std=c++17 -O3 -x hip --offload-arch=gfx90a {HIP_FLAGS} FILE.hip.cpp -o plan
 *     c++ -std=c++17 -O2 -pthread -x c++ FILE -o plan
 *
 * The last runs all ranks on threads of a processor. ./plan -b 1M -e 64M prints a table, and checks what it computes.
 */
"""


def _heading_comment(text: str) -> str:
    return f"/* ======== {text} ======== */\n"


def _expand_header(name: str, included: set[str]) -> str:
    """Return the text of a header, with the headers that it includes in place of the directives, each once."""
    if name in included:
        return ""
    included.add(name)
    out = []
    for line in (NATIVE / name).read_text(encoding="utf-8").splitlines():
        include = re.fullmatch(r'#include "(.*)"', line)
        if include:
            out.append(_expand_header(include[1], included).rstrip("\n"))
        elif line != "#pragma once":
            out.append(line)
    return "\n".join(out) + "\n"


def _constants_text(collective: Collective, how: _Options, title: str, max_places: int, streams: int) -> str:
    """Return the constants of a plan as C: type, operator, ranks, and the factor of bus bandwidth."""
    members, contributions = len(collective.members), int(collective.contributions_per_block.max(initial=1))
    bus = {"allreduce": 2 * (members - 1) / members}.get(
        collective.kind,
        (members - 1) / members if collective.kind in ("allgather", "reducescatter", "alltoall") else 1.0,
    )
    return f"""{_heading_comment("The constants of the plan")}
#ifndef TYPE
#define TYPE {TYPES[how.dtype]}
#endif
#ifndef OPERATOR
#define OPERATOR {OPERATORS[how.op]}
#endif
#define AS_TEXT(NAME) #NAME
#define TEXT_OF(NAME) AS_TEXT(NAME)
#define TYPE_NAME TEXT_OF(TYPE)
#define OPERATOR_NAME {'"avg"' if how.op == "avg" else "TEXT_OF(OPERATOR)"}
#define TITLE "{title}"
typedef TYPE T;
typedef OPERATOR Rule;

enum {{ IN_PLACE = {int(how.in_place)}, AVERAGE = {int(how.op == "avg")} }};
enum {{ MOST_PLACES = {max_places}, MOST_CONTRIBUTIONS = {contributions} }};
const i64 RANKS = {collective.ranks}, STREAMS = {streams}, BUFFER_WEIGHT = {collective.buffer_weight};
const double BUS = {bus!r}; /* bus bandwidth / algorithmic bandwidth, as in nccl-tests */
enum {{ MOST_PACKED = {PACKED} }}; /* bytes: above that no packets are tried */
"""


def _data_tables(collective: Collective, inputs: Side, outputs: Side) -> str:
    """Return C tables of the blocks that each rank holds and must end with, by which the program checks its results.

    `inputs`, `outputs`: the blocks in the buffers, a row each. A row of a table: rank, block, begin and length in
    units, and a range of CONTRIBUTIONS; the contributions to a block are numbered from 0.
    """
    relation = collective.relation
    # by rank and block: contributions, by their ids in the collective
    held_contributions: dict[tuple[int, int], list[int]] = {}
    for block, rank, contribution in _zip_columns(relation.pre_block, relation.pre_rank, relation.pre_id):
        held_contributions.setdefault((rank, block), []).append(contribution)
    all_of_block: dict[int, set[int]] = {}
    for (_, block), contributions in held_contributions.items():
        all_of_block.setdefault(block, set()).update(contributions)
    wanted_contributions = {
        (rank, block): sorted(all_of_block[block]) if want < 0 else list(relation.wants[want])
        for block, rank, want in _zip_columns(relation.post_block, relation.post_rank, relation.post_want)
    }
    number_of = {
        block: {contribution: number for number, contribution in enumerate(sorted(contributions))}
        for block, contributions in all_of_block.items()
    }
    array: list[int] = []  # the array CONTRIBUTIONS: all distinct lists of numbers, one after another
    first_of: dict[tuple[int, ...], int] = {}  # where each list begins
    text = ""
    for title, side, contributions_of in (
        ("HELD", inputs, held_contributions),
        ("WANTED", outputs, wanted_contributions),
    ):
        rows = []
        for rank, block, start in _zip_columns(side.rank, side.block, side.start):
            numbers = tuple(number_of[block][contribution] for contribution in contributions_of.get((rank, block), ()))
            if not numbers:
                continue
            if numbers not in first_of:
                first_of[numbers] = len(array)
                array += numbers
            rows.append([rank, block, start, int(collective.weights[block]), first_of[numbers], len(numbers)])
        if len(rows) > MOST_ROWS:
            raise Unsupported(f"generated code: {len(rows)} blocks of data, more than {MOST_ROWS}, for its check")
        text += f"enum {{ {title}_ROWS = {len(rows)} }};\n" + _rows_text("DataRow", title, rows or [[0] * 6])
    struct = """/* Data of a rank: a block of `length` from `begin` on, in units, and what is combined there:
 * `contributions` numbers in CONTRIBUTIONS, from `first` on. */
struct DataRow {
    i64 rank, block, begin, length, first, contributions;
};
"""
    return f"{struct}{_table_text('CONTRIBUTIONS', array or [0])}{text}"


def _zip_columns(*columns: AnyInts) -> list[tuple[int, ...]]:
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _table_text(name: str, values: Sequence[int], host: bool = False) -> str:
    """Return a C array of integers, in memory of the host or, by ON_TABLE (world.h), in memory that kernels read."""
    lines = [", ".join(map(str, values[low : low + 16])) for low in range(0, len(values), 16)]  # 16 on a line
    body = ",\n    ".join(lines)
    return f"{'static const' if host else 'ON_TABLE'} i64 {name}[] = {{\n    {body}}};\n"


def _rows_text(kind: str, name: str, rows: Sequence[Sequence[int]], host: bool = False) -> str:
    """Return a C array of rows, where `_table_text` puts it."""
    width = "" if kind == "DataRow" else f"[{len(rows[0])}]"
    body = ",\n    ".join("{" + ", ".join(map(str, row)) + "}" for row in rows)
    return f"{'static const' if host else 'ON_TABLE'} {kind} {name}[]{width} = {{\n    {body}}};\n"


def _dispatch_function(variants: Sequence[_Variant]) -> str:
    """Return the C function that calls the function of a rank in a stream, of each variant."""
    lines = [
        "/* Run a stream of a rank; return whether it was stopped. */",
        "ON_DEVICE bool run_stream(Work &w, u32 stream) {",
        "    switch ((w.call.variant * STREAMS + stream) * RANKS + w.me) {",
    ]
    stream_count = max(len(variant.functions) for variant in variants)
    for variant_number, variant in enumerate(variants):
        for stream, group in enumerate(variant.functions):
            for function in group:
                for member, rank in enumerate(function.members):
                    case = f"{variant_number * stream_count + stream} * RANKS + {rank}"
                    lines.append(f"    case {case}: w.member = {member}; return {function.name}(w);")
    return "\n".join([*lines, "    default: return false;", "    }", "}", ""])
