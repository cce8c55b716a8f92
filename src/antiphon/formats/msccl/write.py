"""Write schedules as MSCCL XML, which MSCCL's executor and RCCL run instead of their own algorithms.

Input: a plan. Output: files by name, one per range of sizes, for calls out of place and in place. Each rank's sends and
receives are assigned to thread blocks, at most one send peer and one receive peer per block, as the executor requires.
Steps of a block run in order; a dependency on another block is a `depid`/`deps` pair. An element, for thread block 0 of
a rank that sends chunk 3 of its input to rank 1 (read.py describes the format):

    <tb id="0" send="1" recv="-1" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="3" dstbuf="i" dstoff="3" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>

Stages per schedule: lower it to a program (lower/lowering), assign its operations to blocks (lower/blocks), number
chunks as the executor does (`_ChunkOffsets`), write the text. With several `instances` all blocks are repeated, each
copy on its own share of every chunk and on channels of its own: more parallelism for large messages.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace

from antiphon.core.plan import GPU_LIBRARIES, Entry, Plan
from antiphon.core.program import Program, among, job_of
from antiphon.core.program.kinds import INPUT, OUTPUT, SCRATCH
from antiphon.core.schedule import Schedule
from antiphon.core.transform import unjoined
from antiphon.errors import Invalid, NotFound, Unsupported, quote
from antiphon.formats.files import Files
from antiphon.formats.msccl.read import KINDS, LETTERS, NODES, SLOTS_OF_PROTOCOL
from antiphon.formats.predicted_times import PredictedTimes
from antiphon.formats.served import refuse_served
from antiphon.lower.blocks.blocks import Blocks, NumberedBlock, NumberedStep, Place, compile_to_blocks
from antiphon.lower.blocks.place import RuntimeLimits
from antiphon.lower.lowering import lower
from antiphon.lower.machine.code import CellPlaces
from antiphon.lower.without_gc import without_gc
from antiphon.options import parse_yes
from antiphon.units import format_size

FORMAT_NAME = "MSCCL XML"
AUTO = "auto"  # the protocol that is predicted to be the fastest
MAX_INSTANCES = 32  # each has a channel of its own, and MSCCL's executor has 32
MAX_NAME = 100  # characters of a name
MAX_RCCL_BLOCKS = 64  # thread blocks per rank that RCCL holds; files without fused steps are for RCCL


def msccl_xml(
    plan: Plan, *, proto: str = "auto", instances: int = 1, fused: bool = True, alone: bool = False, name: str = ""
) -> Files[Iterator[bytes]]:  # fmt: skip
    """Write MSCCL XML: a file per schedule for calls out of place and in place, or one for both if they are the same.

    A file serves the sizes of its schedule in the plan that are multiples of its chunks; for all others the runtime
    uses its own algorithm. For a subset of the machine's ranks, the file is for a communicator of that subset, in its
    order.

    Parameters
    ----------
    proto
        Simple, LL or LL128. Default: the fastest at the size for which tuning chose the schedule, else Simple. Sizes at
        which NCCL is predicted to be faster are left to it.
    instances
        Run this number of copies of the algorithm, each on its share of every chunk with channels of its own.
    fused
        "no" is for RCCL: no steps that receive and forward at once, and at most 64 thread blocks per rank.
    alone
        Replace multicasts and reductions of switches by single transfers.
    name
        Name of the files and of the algorithm in them. Default: the planner's.
    """
    if proto not in (AUTO, *SLOTS_OF_PROTOCOL):
        raise Invalid(f"proto: expected {AUTO}, {', '.join(SLOTS_OF_PROTOCOL)}, got {quote(proto)}")
    if isinstance(instances, bool) or not isinstance(instances, int) or not 1 <= instances <= MAX_INSTANCES:
        raise Invalid(f"instances: expected a whole number from 1 to {MAX_INSTANCES}, got {quote(instances)}")
    fused, alone = parse_yes(fused, "option fused"), parse_yes(alone, "option alone")
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]*", name, re.ASCII) or len(name) > MAX_NAME:
        raise Invalid(f"name: expected up to {MAX_NAME} letters, digits, '_', '-' and '.', got {quote(name)}")
    files: dict[str, Iterator[bytes]] = {}
    notes = refuse_served(plan, FORMAT_NAME)
    for number, entry in enumerate(plan.entries):
        sizes = bytes_of(entry, plan)
        if sizes is None or entry.served_by in GPU_LIBRARIES:
            continue
        title = name or _default_title(entry)
        if entry.schedule.joint is not None and not alone:
            raise Unsupported(
                f"{FORMAT_NAME}: has nothing that lets switches multicast or combine; take a planner that does without"
            )
        schedule = unjoined(entry.schedule)
        times = PredictedTimes.of(plan, entry, schedule)
        fastest = times.fastest_protocol(times.tuned_bytes) if times.tuned_bytes else ""
        protocol = (
            proto if proto != AUTO else next((name for name in SLOTS_OF_PROTOCOL if name.lower() == fastest), "Simple")
        )
        last = None if entry.stop is None else entry.stop - 1
        # an export without the work of switches (`alone`) was asked for, so it serves all sizes
        note, served = times.compare(protocol, entry.start, last, may_leave=not alone)
        notes += [f"{plan.collective.kind} from {format_size(entry.start)}: {note}"] if note else []
        if served is None:  # the library is faster at all sizes
            continue
        smallest, largest = served
        sizes = bytes_of(replace(entry, start=smallest, stop=None if largest is None else largest + 1), plan)
        if sizes is None:
            continue
        for suffix, text in _write_places(schedule, title, protocol, instances, fused, sizes).items():
            files[f"{title}-{number}{suffix}.xml"] = iter([text])
    if notes and not files:
        raise NotFound(f"{FORMAT_NAME}: nothing to write: {'; '.join(notes)}")
    if not files:
        raise Unsupported(f"{FORMAT_NAME}: the plan is for no bytes at all, which runtimes do not ask schedules for")
    return Files(files, notes)


def bytes_of(entry: Entry, plan: Plan) -> tuple[int, int] | None:
    """Return the range of sizes of a file as the runtime counts them: least and largest bytes, 0 for no upper limit;
    None if it serves no size above 0.

    The runtime counts the argument of the call: for gather and scatter that is the share of one rank.
    """
    # convert bytes of the buffer to bytes of the argument
    share = len(plan.collective.members) if plan.collective.kind in ("gather", "scatter") else 1
    low, high = -(-entry.start // share), 0 if entry.stop is None else (entry.stop - 1) // share
    if entry.stop is not None and (not high or high < low):
        return None
    return low, high


def _default_title(entry: Entry) -> str:
    planner = str(entry.schedule.provenance.get("planner", "")) or "schedule"
    return re.sub(r"[^\w.-]", "_", f"{entry.schedule.collective.kind}-{planner}", flags=re.ASCII)[:MAX_NAME]


def _write_places(
    schedule: Schedule, title: str, proto: str, instances: int, fused: bool, sizes: tuple[int, int]
) -> dict[str, bytes]:  # fmt: skip
    """Return the files out of place and in place, by the suffix of their names."""
    members = job_of(schedule.collective)
    out_of_place = _write_body(among(lower(schedule), members), proto, instances, fused)
    in_place: Body | None = None
    # a schedule that needs the input afterwards has no form in place
    with contextlib.suppress(Unsupported):
        in_place = _write_body(among(lower(schedule, in_place=True), members), proto, instances, fused)
    files = {"": _file_text(title, proto, sizes, out_of_place, (in_place == out_of_place, True))}
    if in_place is not None and in_place != out_of_place:
        files["-in-place"] = _file_text(title, proto, sizes, in_place, (True, False))
    return files


def xml_of(
    program: Program, *, proto: str = "Simple", instances: int = 1, fused: bool = True, name: str = "antiphon"
) -> bytes:
    """Return the file of one program, for all sizes."""
    places = program.in_place, not program.in_place
    return _file_text(name, proto, (0, 0), _write_body(program, proto, instances, fused), places)


Body = tuple[str, list[bytes]]  # attributes of the head, and the text of each rank


def _file_text(title: str, proto: str, sizes: tuple[int, int], body: Body, places: tuple[bool, bool]) -> bytes:
    """Return a whole file. `places`: whether it serves calls in place, and out of place."""
    (head, ranks), (in_place, out_of_place), (min_bytes, max_bytes) = body, places, sizes
    text = (
        f'<algo name="{title}" proto="{proto}" {head} inplace="{in_place:d}" outofplace="{out_of_place:d}" '
        f'minBytes="{min_bytes}" maxBytes="{max_bytes}">\n'
    )
    return b"".join([text.encode(), *ranks, b"</algo>\n"])


@without_gc()
def _write_body(program: Program, proto: str, instances: int, fused: bool) -> Body:
    """Return the text that is the same for every name and size: attributes of the head, and each rank."""
    refuse_collective(program)
    defaults = RuntimeLimits()
    # instances share the executor's limits
    limits = RuntimeLimits(
        channels=defaults.channels // instances, blocks=(defaults.blocks if fused else MAX_RCCL_BLOCKS) // instances,
        waited=defaults.waited // instances, chunks=defaults.chunks // instances, slots=SLOTS_OF_PROTOCOL[proto],
        fused_receives=fused,
    )  # fmt: skip
    numbered_blocks = compile_to_blocks(program, limits, split_blocks=instances > 1, format_name=FORMAT_NAME)
    collective = program.collective
    unit = numbered_blocks.unit * instances  # chunks of a block of weight 1
    # nchunksperloop: chunks of the argument of the call, which is one rank's share for gather and scatter
    loop = unit if collective.kind in ("gather", "scatter") else unit * collective.buffer_weight
    head = (
        f'nchannels="{numbered_blocks.channels * instances}" nchunksperloop="{loop}" ngpus="{program.ranks}" '
        f'coll="{collective.kind}"'
    )
    if len(collective.roots) == 1:
        head += f' root="{collective.roots[0]}"'
    return head, [_rank_text(numbered_blocks, rank, instances) for rank in range(program.ranks)]


def refuse_collective(program: Program) -> None:
    """Raise Unsupported where MSCCL has no such call."""
    collective = program.collective
    if collective.kind not in KINDS:
        raise Unsupported(f"{FORMAT_NAME}: has no {collective.kind} collective; its kinds are {', '.join(KINDS)}")
    if len(collective.members) != collective.ranks:
        raise Unsupported(f"{FORMAT_NAME}: all ranks of a communicator take part; plan for the members alone")
    if len(collective.roots) > 1:
        raise Unsupported(f"{FORMAT_NAME}: has calls with one root only, and this has {len(collective.roots)}")
    if any(weight != 1 for weight in collective.weights.tolist()):
        raise Unsupported(f"{FORMAT_NAME}: blocks are all of one size; plan with equal counts, or pad to the largest")


class _ChunkOffsets:
    """The positions of chunks in the buffers of the runtime, for each instance.

    `first`, `sizes`: by kind of buffer (INPUT, OUTPUT, SCRATCH) the number of its first chunk at this rank, and of its
    chunks.
    """

    def __init__(self, numbered_blocks: Blocks, rank: int, instances: int) -> None:
        program = numbered_blocks.program
        self.unit, self.instances = numbered_blocks.unit, instances
        self.scratch = numbered_blocks.sizes[rank][SCRATCH]
        scratch = [sizes[SCRATCH] for sizes in numbered_blocks.sizes]
        places = CellPlaces.of(program.collective, program.in_place, numbered_blocks.unit, scratch)
        begin = int(places.begin[rank])
        self.first = [int(cell) - begin for cell in places.first[rank]]
        self.sizes = [int(size) for size in places.size[rank]]
        self.in_place = program.in_place

    def find(self, place: Place | None, count: int, instance: int) -> tuple[str, int]:
        """Return buffer letter and offset of `count` chunks.

        In place there is one buffer, the user's output, or the input where that is larger. Whichever buffer `place`
        names, its position then counts from the beginning of that one.
        """
        if place is None:
            return "i", -1
        buffer, at = place
        if buffer == SCRATCH:
            return "s", instance * self.scratch + at
        if self.in_place:
            inside = self.first[OUTPUT] <= at and at + count <= self.first[OUTPUT] + self.sizes[OUTPUT]
            buffer = OUTPUT if inside else INPUT
            at -= self.first[buffer]
        # chunks of one block are followed by those of its other instances
        block = at // self.unit * self.unit
        return LETTERS[buffer], block * self.instances + instance * self.unit + at - block


def _rank_text(numbered_blocks: Blocks, rank: int, instances: int) -> bytes:
    """Return the element <gpu> of a rank. Unsupported if it has more elements than the runtime holds."""
    rank_blocks, offsets = numbered_blocks.ranks[rank], _ChunkOffsets(numbered_blocks, rank, instances)
    # A rank parses into a table of fixed size: <algo>, <gpu> of all ranks, and its own thread blocks and steps.
    nodes = 1 + numbered_blocks.program.ranks + instances * sum(1 + len(block.rows) for block in rank_blocks)
    if nodes > NODES:
        raise Unsupported(
            f"{FORMAT_NAME}: rank {rank} has {nodes} elements (thread blocks and steps), and the runtime holds "
            f"{NODES}; take a planner with fewer steps, fewer chunks, or fewer instances"
        )
    # Blocks that others wait for need low numbers, as the executor stores few bits. `compile_to_blocks` numbers them
    # first, below `awaited`; the file has these of all instances first, then the others of all instances.
    awaited = 1 + max(
        (row.after[0] for block in rank_blocks for row in block.rows if row.after is not None), default=-1
    )  # row.after: the block and the step that it waits for
    sizes = [size * instances for size in offsets.sizes]
    lines = [f'  <gpu id="{rank}" i_chunks="{sizes[0]}" o_chunks="{sizes[1]}" s_chunks="{sizes[2]}">\n']
    for low, high in ((0, awaited), (awaited, len(rank_blocks))):
        for instance in range(instances):
            start = low * instances + instance * (high - low)
            for number, block in enumerate(rank_blocks[low:high], start):
                channel = block.channel * instances + instance
                lines += _block_lines(block, number, channel, offsets, instance, awaited)
    lines.append("  </gpu>\n")
    return "".join(lines).encode()


def _block_lines(
    block: NumberedBlock, number: int, channel: int, offsets: _ChunkOffsets, instance: int, awaited: int
) -> Iterator[str]:
    """Yield the element <tb>; `awaited`: the number of blocks of an instance that others may wait for."""
    yield f'    <tb id="{number}" send="{block.send}" recv="{block.recv}" chan="{channel}">\n'
    for step, row in enumerate(block.rows):
        yield _step_line(step, row, offsets, instance, awaited)
    yield "    </tb>\n"


def _step_line(step: int, row: NumberedStep, offsets: _ChunkOffsets, instance: int, awaited: int) -> str:
    src, dst = offsets.find(row.src, row.count, instance), offsets.find(row.dst, row.count, instance)
    if row.src is None or row.dst is None:  # an unused place is written as the other one
        src, dst = (dst, dst) if row.src is None else (src, src)
    (src_buffer, src_offset), (dst_buffer, dst_offset) = src, dst
    after, number = row.after or (-1, -1)
    if row.after is not None:
        after += instance * awaited  # the awaited block of the same instance
    return (
        f'      <step s="{step}" type="{row.verb}" srcbuf="{src_buffer}" srcoff="{src_offset}" dstbuf="{dst_buffer}" '
        f'dstoff="{dst_offset}" cnt="{row.count}" depid="{after}" deps="{number}" hasdep="{row.flag:d}"/>\n'
    )
