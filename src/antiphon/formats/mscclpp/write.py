"""Execution plans of MSCCL++: one file per schedule and place, for the executor of its NCCL library or its own calls.

Every rank has a channel to each peer in each stream; data goes straight to where it is wanted. Joints of the schedule
are what switches do (`lower.onesided.switched`). Sizes are multiples of the alignment and of the chunks. All ranks must
hand over buffers that lie equally far behind the beginning of their allocation: the executor reckons remote addresses
with its own.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable

from antiphon.core.collective import Collective
from antiphon.core.interpret.buffers import sides
from antiphon.core.plan import Plan
from antiphon.core.program import Bound, Program
from antiphon.core.program.kinds import INPUT, OUTPUT, SCRATCH
from antiphon.core.schedule import Schedule
from antiphon.core.serialize import dumps
from antiphon.core.transform import unjoined
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.formats.mscclpp.blocks import Block, Ends, Gpu, gpu_of, kinds_of
from antiphon.formats.mscclpp.limits import FEW_CELLS, MOST_BLOCKS, MOST_OFFSET, SWITCH
from antiphon.formats.mscclpp.register import registration
from antiphon.lower.grain import chunked
from antiphon.lower.lowering import lower
from antiphon.lower.onesided.steps import one_sided
from antiphon.lower.onesided.switched import INSTEAD, Switched, squeezed, switched
from antiphon.options import parse_yes
from antiphon.planners.shared.places import hosts

WHAT = "back end mscclpp-json"
MOST_CHUNKS = 2**20
_NEVER = 2**20  # steps until scratch is used again
_SIZED = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce", "alltoall")


def mscclpp_json(
    plan: Plan, *, blocks: int = 32, threads: int = 1024, alignment: int = 16, lag: int = 0, alone: bool = False,
    name: str = "",
) -> dict[str, bytes]:  # fmt: skip
    """plan0.json for the first schedule, plan0-in-place.json, and register.py, which hands them to MSCCL++.

    `blocks`: at most so many thread blocks of a GPU work side by side (more where the schedule does not fit).
    `threads`: of each. `alignment`: of chunks, in bytes. `lag`: as of programs; 0: scratch is not used twice, unless it
    were more than twice the largest buffer. `alone`: what switches would combine or multicast goes row by row.
    `name`: what names of plans begin with: letters, digits, - and _.
    """
    for what, value, low, high in (
        ("blocks", blocks, 1, MOST_BLOCKS), ("threads", threads, 32, 1024), ("alignment", alignment, 16, 2**16),
        ("lag", lag, 0, _NEVER),
    ):  # fmt: skip
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise Invalid(f"{what}: expected a whole number from {low} to {high}, got {quote(value)}")
    if threads % 32 or alignment % 16:
        raise Invalid("threads come in warps of 32, alignment in multiples of 16 bytes")
    if not re.fullmatch(r"[A-Za-z0-9_-]{0,64}", name):
        raise Invalid(f"name: expected up to 64 letters, digits, - and _, got {quote(name)}")
    alone = parse_yes(alone, "option alone")
    files: dict[str, bytes] = {}
    rows: list[tuple[str, str, bool, int, int]] = []
    far = _far(plan)
    for number, entry in enumerate(plan.entries):
        for in_place in (False, True):
            if in_place and plan.collective.kind == "alltoall" and not _equal(plan.collective):
                continue
            schedule = unjoined(entry.schedule) if alone else entry.schedule
            program, bound, known = _program(schedule, in_place, lag)
            gpus = _gpus(program, bound, known, blocks, far)
            head = _Head(program, bound, (entry.start, entry.stop), threads, alignment, name)
            file = f"plan{number}{'-in-place' if in_place else ''}.json"
            files[file] = head.text(gpus)
            rows.append((file, head.label, in_place, *head.sizes))
    per_host = {len(ranks) for ranks in hosts(plan.topology, range(plan.collective.ranks))}
    files["register.py"] = registration(plan.collective, rows, per_host.pop() if len(per_host) == 1 else 0)
    return files


def json_of(program: Program, *, blocks: int = 32) -> bytes:
    """The plan of a program as it stands, for all sizes, among ranks of one host."""
    bound, known = _switched(program)
    gpus = _gpus(program, bound, known, blocks, lambda a, b: False)
    return _Head(program, bound, (0, None), 1024, 16, "").text(gpus)


def _equal(collective: Collective) -> bool:
    try:
        sides(collective, True)
    except Unsupported:
        return False
    return True


def _far(plan: Plan) -> Callable[[int, int], bool]:
    host = [0] * plan.collective.ranks
    for number, ranks in enumerate(hosts(plan.topology, range(plan.collective.ranks))):
        for rank in ranks:
            host[rank] = number
    return lambda a, b: host[a] != host[b]


def _switched(program: Program) -> tuple[Bound, Switched]:
    """Its addresses, and what of it switches do."""
    bound = chunked(program, MOST_CHUNKS, WHAT)
    known = switched(program, bound, WHAT)
    return squeezed(program, bound, known), known


def _program(schedule: Schedule, in_place: bool, lag: int) -> tuple[Program, Bound, Switched]:
    for lags in (lag,) if lag else (_NEVER, 1):
        try:
            program = lower(schedule, in_place=in_place, lag=lags, joints=True)
        except Unsupported as error:
            if schedule.joint is None:
                raise
            raise Unsupported(f"{error}; {INSTEAD}") from None
        bound, known = _switched(program)
        if lags == lag or int(bound.sizes[:, SCRATCH].max()) <= 2 * int(bound.sizes[:, :SCRATCH].max()):
            break
    total = int(bound.sizes.sum())
    if total > FEW_CELLS:
        raise Unsupported(
            f"{WHAT}: {total} chunks in the buffers of all ranks, of at most {FEW_CELLS}; take a planner, or "
            "options of it, with fewer chunks or with shares of smaller denominators"
        )
    return program, bound, known


def _gpus(
    program: Program, bound: Bound, known: Switched, blocks: int, far: Callable[[int, int], bool]
) -> list[Gpu]:  # fmt: skip
    """In as many streams as asked; where blocks are too full for these, in more."""
    kind = kinds_of(whole_of(program.collective) if program.in_place else None)
    groups = sorted({(ranks, kind(buffer)) for ranks, buffer in known.groups})
    if any(far(ranks[0], rank) for ranks, _ in groups for rank in ranks):
        raise Unsupported(f"{WHAT}: lets switches work for ranks of one host only; {INSTEAD}")
    ends = [Ends(rank, far, kind, [one for one in groups if rank in one[0]]) for rank in range(program.ranks)]
    why = ""
    for most in sorted({blocks, max(blocks, 64), MOST_BLOCKS}):
        streams = one_sided(program, bound, most, known)
        try:
            made = [gpu_of(one, (s[one.rank] for s in streams)) for one in ends]
        except Unsupported as error:
            why = str(error)
            continue
        most_blocks = max(len(gpu.blocks) for gpu in made)
        if most_blocks <= MOST_BLOCKS:
            return made
        why = f"a rank needs {most_blocks} thread blocks, of at most {MOST_BLOCKS} that are there at once"
        if len(streams) < most:
            break
    raise Unsupported(f"{WHAT}: {why}; take a planner with fewer steps, or fewer chunks")


def whole_of(collective: Collective) -> int:
    """In place: whether the input or the output that callers hand over is the one buffer, whole."""
    return INPUT if collective.kind in ("reducescatter", "scatter") else OUTPUT


def declared(collective: Collective, in_place: bool, grain: int) -> list[tuple[int, int]]:
    """Chunks of the input and the output that each rank hands over. The loader divides by both: where a rank has no
    input, or no output, it hands over the other buffer again; with neither, as much as the first member does."""
    first, last = (side.size.tolist() for side in sides(collective))
    if in_place and collective.kind == "custom":
        first = last = sides(collective, True)[0].size.tolist()
    found = [(a or b, b or a) for a, b in zip(first, last, strict=True)]
    usual = found[collective.members[0]]
    return [(a * grain, b * grain) if a else (usual[0] * grain, usual[1] * grain) for a, b in found]


class _Head:
    """What stands around the GPUs of a plan."""

    def __init__(
        self, program: Program, bound: Bound, span: tuple[int, int | None], threads: int, alignment: int, name: str
    ) -> None:
        self.program, self.bound, self.span = program, bound, span
        self.threads, self.alignment, self.name = threads, alignment, name
        self.label, self.sizes = "", (0, 0)  # known with the text

    def text(self, gpus: list[Gpu]) -> bytes:
        """The name has a checksum of what follows: the executor tells plans apart by their names alone."""
        collective, in_place = self.program.collective, self.program.in_place
        chunks = declared(collective, in_place, self.bound.unit)
        parts = [self._gpu(rank, gpu, chunks[rank]) for rank, gpu in enumerate(gpus)]
        smallest, largest = self.sizes = self._sizes(chunks)
        body = ",\n".join(parts)
        label = f"{self.name or 'antiphon'}-{collective.kind}-{collective.ranks}{'-in-place' if in_place else ''}"
        ours = dumps(collective).decode().strip()
        tail = (
            f'"collective":"{collective.kind}","protocol":"Simple","inplace":{_bool(in_place)},'
            f'"reuse_resources":false,"num_threads_per_block":{self.threads},"use_double_scratch_buffer":false,'
            f'"buffer_alignment":{self.alignment},"min_message_size":{smallest},"max_message_size":{largest},\n'
            f'"antiphon":{{"collective":{ours}}},\n"gpus":[\n{body}\n]}}\n'
        )
        self.label = f"{label}-{zlib.crc32(tail.encode()):08x}"
        return f'{{"name":"{self.label}",\n{tail}'.encode()

    def _sizes(self, chunks: list[tuple[int, int]]) -> tuple[int, int]:
        """For which sizes: those of the plan's range, as far as all offsets fit into 32 bits."""
        collective = self.program.collective
        most = max(int(self.bound.sizes[:, SCRATCH].max()), *(max(pair) for pair in chunks))
        chunk = (MOST_OFFSET - 1) // most // self.alignment * self.alignment
        counts = {pair[1] if collective.kind == "allgather" else pair[0] for pair in chunks}
        largest = chunk * max(counts)
        if collective.kind not in _SIZED or len(counts) > 1:
            return 0, largest
        start, stop = self.span
        return start, min(largest, stop - 1) if stop is not None else largest

    def _gpu(self, rank: int, gpu: Gpu, chunks: tuple[int, int]) -> str:
        channels = ",".join(
            f'{{"channel_type":"{kind}","connected_to":{_list(peers)}}}'
            for kind, peers in gpu.channels.items()
            if peers
        )
        groups = ",".join(
            f'{{"channel_type":"{SWITCH}","buffer_type":"{kind}","rank_groups":[{{"size":{len(ranks)},'
            f'"ranks":{_list(ranks)}}}]}}'
            for ranks, kind in gpu.groups
        )
        channels = ",".join(filter(None, (channels, groups)))
        buffers = ",".join(
            f'{{"rank":{peer},"type":"{kind}","access_channel_types":["{access}"]}}'
            for peer, kind, access in gpu.buffers
        )
        blocks = ",\n".join(self._block(number, block) for number, block in enumerate(gpu.blocks))
        semaphores = ",".join(['{"init_value":0}'] * gpu.semaphores)
        scratch = int(self.bound.sizes[rank, SCRATCH])
        return (
            f'{{"id":{rank},"input_chunks":{chunks[0]},"output_chunks":{chunks[1]},"scratch_chunks":{scratch},'
            f'"threadblocks":[\n{blocks}],"channels":[{channels}],"remote_buffers":[{buffers}],'
            f'"semaphores":[{semaphores}]}}'
        )

    def _block(self, number: int, block: Block) -> str:
        channels = ",".join(
            f'{{"channel_type":"{kind}","channel_ids":{_list(ids)}}}' for kind, ids in block.channels.items() if ids
        )
        buffers = ",".join(
            f'{{"access_channel_type":"{kind}","remote_buffer_ids":{_list(ids)}}}'
            for kind, ids in block.buffers.items()
            if ids
        )
        operations = ",".join(block.operations)
        return f'{{"id":{number},"ops":[{operations}],"channels":[{channels}],"remote_buffer_refs":[{buffers}]}}'


def _list(numbers: Iterable[int]) -> str:
    return "[" + ",".join(map(str, numbers)) + "]"


def _bool(value: bool) -> str:
    return "true" if value else "false"
