"""Execution plans of MSCCL++: one file per schedule and place, for the executor of its NCCL library or its own calls.

Every rank has a channel to each peer in each stream; data goes straight to where it is wanted. Joints of the schedule
are what switches do (`lower.onesided.switched`). Sizes are multiples of the alignment and of the chunks. All ranks must
hand over buffers that lie equally far behind the beginning of their allocation: the executor reckons remote addresses
with its own. A small module, register.py, beside the plans hands them to MSCCL++."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Sequence

from antiphon.core.collective import Collective
from antiphon.core.interpret.buffers import sides
from antiphon.core.plan import GPU_LIBRARIES, Plan
from antiphon.core.program import SEND, Bound, Program, among, counted_anew, job_of
from antiphon.core.program.kinds import SCRATCH, chunked
from antiphon.core.schedule import Schedule
from antiphon.core.serialize import dumps
from antiphon.core.transform import unjoined
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.formats.files import Files
from antiphon.formats.mscclpp.blocks import MOST_CHUNKS, WHAT, BlockText, Gpu, gpus_by_packets, gpus_of
from antiphon.formats.mscclpp.shape import FEW_CELLS, LL, MOST_BLOCKS, MOST_OFFSET, SWITCH
from antiphon.formats.served import refuse_served
from antiphon.lower.lowering import MAX_LAG, has_little_scratch, lower
from antiphon.lower.onesided.packets import fit
from antiphon.lower.onesided.switched import INSTEAD, Switched, squeezed, switched
from antiphon.lower.uncollected import uncollected
from antiphon.options import parse_yes
from antiphon.planners.shared.groups import ranks_by_host
from antiphon.units import parse_size

_TEXT = '''"""Hands the execution plans beside this file to MSCCL++. Written by Antiphon; unproven on GPUs.

    import register
    builder = mscclpp.ext.AlgorithmCollectionBuilder()
    register.register(builder, rank, world_size, ranks_per_node)

`register` refuses, with a RuntimeError that says why, what the plans are not for. `select` chooses by collective, size
and place; for a call that no plan fits it gives None, and MSCCL++ goes on with its own. So it does for calls with a
root, which requests do not tell. With a selector of your own, call `select(algorithms, request)` from it. Older
versions have an ExecutionPlanRegistry instead: use `fitting` with that.
"""

import os

COLLECTIVE = {collective!r}
RANKS = {ranks}
RANKS_PER_NODE = {per_node}  # 0: any
ROOTS = {roots!r}
# file, name of the plan, in place, smallest and largest size in bytes, and what sizes must be multiples of
PLANS = (
{rows})
_HERE = os.path.dirname(os.path.abspath(__file__))


def check(world_size, ranks_per_node):
    """RuntimeError where the plans are for other jobs."""
    if world_size != RANKS:
        raise RuntimeError(f"these plans are for {{RANKS}} ranks, not for {{world_size}}")
    if RANKS_PER_NODE and ranks_per_node != RANKS_PER_NODE:
        raise RuntimeError(f"these plans are for {{RANKS_PER_NODE}} ranks per node, not for {{ranks_per_node}}")
    for file, *_ in PLANS:
        if not os.path.isfile(os.path.join(_HERE, file)):
            raise RuntimeError(f"{{file}} is missing beside {{__file__}}")


def fitting(collective, nbytes, in_place, root=None):
    """The name of the plan for a call, or None."""
    if collective != COLLECTIVE or (ROOTS and root is not None and (root,) != ROOTS):
        return None
    for _, name, place, smallest, largest, unit in PLANS:
        if place == in_place and smallest <= nbytes <= largest and nbytes and nbytes % unit == 0:
            return name
    return None


def select(algorithms, request):
    """A selector: what fits the request, of the algorithms that were registered, by collective and name."""
    if ROOTS or request.world_size != RANKS or (RANKS_PER_NODE and request.n_ranks_per_node != RANKS_PER_NODE):
        return None
    mode = request.buffer_mode()
    in_place = getattr(mode, "name", str(mode)).upper().replace("_", "").endswith("INPLACE")
    name = fitting(request.collective, request.message_size, in_place)
    return algorithms.get(COLLECTIVE, {{}}).get(name) if name else None


def register(builder, rank, world_size, ranks_per_node):
    """Add all plans, and the selector, to an AlgorithmCollectionBuilder of mscclpp.ext; gives the algorithms."""
    check(world_size, ranks_per_node)
    import mscclpp

    made = []
    for file, name, *_ in PLANS:
        plan = mscclpp.ExecutionPlan(os.path.join(_HERE, file), rank)
        constraint = mscclpp.Algorithm.Constraint(world_size=RANKS, n_ranks_per_node=RANKS_PER_NODE)
        made.append(mscclpp.Algorithm(id=name, execution_plan=plan, tags={{}}, constraint=constraint))
        builder.add_algorithm_builder(made[-1])
    builder.set_algorithm_selector(select)
    return made
'''


# ---- plans ----


_SIZED = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce", "alltoall")


def mscclpp_json(
    plan: Plan, *, blocks: int = 32, threads: int = 1024, alignment: int = 16, lag: int = 0, alone: bool = False,
    name: str = "", packets: int | str = 0,
) -> Files[bytes]:  # fmt: skip
    """Write execution plans for MSCCL++ (plan0.json, plan0-in-place.json, ...) and register.py, which registers them.

    For a subset of the machine's ranks, the files are for a communicator of that subset, in its order.

    Parameters
    ----------
    blocks
        Maximum number of concurrent thread blocks per GPU (more if the schedule does not fit).
    threads
        Threads of each block.
    alignment
        Alignment of chunks in bytes.
    lag
        As for programs; 0: scratch is not reused, unless it were more than twice the largest buffer.
    alone
        Replace multicasts and reductions of switches by single transfers.
    name
        Prefix of the plans' names: letters, digits, - and _.
    packets
        Calls of up to this size use packets (protocol LL), in plan0-packets.json and plan0-packets-in-place.json, if
        all ranks exchange data within a host and no switch combines.
    """
    for option, value, low, high in (
        ("blocks", blocks, 1, MOST_BLOCKS), ("threads", threads, 32, 1024), ("alignment", alignment, 16, 2**16),
        ("lag", lag, 0, MAX_LAG),
    ):  # fmt: skip
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise Invalid(f"{option}: expected a whole number from {low} to {high}, got {quote(value)}")
    if threads % 32 or alignment % 16:
        raise Invalid("threads come in warps of 32, alignment in multiples of 16 bytes")
    if not re.fullmatch(r"[A-Za-z0-9_-]{0,64}", name):
        raise Invalid(f"name: expected up to 64 letters, digits, - and _, got {quote(name)}")
    alone, small = parse_yes(alone, "option alone"), parse_size(packets, "packets")
    files: dict[str, bytes] = {}
    rows: list[tuple[str, str, bool, int, int, int]] = []  # file, name, in place, sizes, and their divisor
    members = job_of(plan.collective)
    collective = counted_anew(plan.collective, members)
    far, of_hosts = _find_hosts(plan, members)
    skipped = refuse_served(plan, WHAT)
    for number, entry in enumerate(plan.entries):
        if entry.served_by in GPU_LIBRARIES:
            continue
        for in_place in (False, True):
            if in_place and collective.kind == "alltoall" and not _has_equal_counts(collective):
                continue
            schedule = unjoined(entry.schedule) if alone else entry.schedule
            start, stop = entry.start, entry.stop
            # A range is split at `small`: packets below, plain data above.
            by = _by_packets(schedule, in_place, blocks, far) if start <= small > 0 else None
            variants: list[tuple[str, Program, Bound, list[Gpu], tuple[int, int | None]]] = []
            if by is not None:
                end = small + 1 if stop is None else min(stop, small + 1)
                variants.append(("-packets", *by, (start, end)))
                start = end
            if stop is None or start < stop:
                program, bound, switched = _lower_plan(schedule, in_place, lag)
                variants.append(("", program, bound, gpus_of(program, bound, switched, blocks, far), (start, stop)))
            for which, variant, places, gpus, span in variants:
                head = _Head(variant, places, span, threads, alignment, name, flagged=bool(which))
                file = f"plan{number}{which}{'-in-place' if in_place else ''}.json"
                files[file] = head.text(gpus)
                rows.append((file, head.label, in_place, *head.sizes))
    files["register.py"] = _TEXT.format(
        collective=collective.kind, ranks=collective.ranks, roots=collective.roots,
        per_node=of_hosts.pop() if len(of_hosts) == 1 else 0,  # ranks of each host, 0 where these differ
        rows="".join(f"    {row!r},\n" for row in rows),
    ).encode()  # fmt: skip
    return Files(files, skipped)


@uncollected()
def json_of(program: Program, *, blocks: int = 32, packets: bool = False) -> bytes:
    """The plan of a program as it stands, for all sizes, among ranks of one host; by packets, if it is fit for that."""
    if packets:
        if not fit(program):
            raise Unsupported(f"{WHAT}: not everyone hears from everyone, as packets need; leave them out")
        bound, gpus = gpus_by_packets(program, blocks, lambda a, b: False)
        return _Head(program, bound, (0, None), 1024, 16, "", flagged=True).text(gpus)
    bound, switched_part = _find_switched(program)
    gpus = gpus_of(program, bound, switched_part, blocks, lambda a, b: False)
    return _Head(program, bound, (0, None), 1024, 16, "").text(gpus)


def _has_equal_counts(collective: Collective) -> bool:
    try:
        sides(collective, True)
    except Unsupported:
        return False
    return True


def _find_hosts(plan: Plan, members: Sequence[int]) -> tuple[Callable[[int, int], bool], set[int]]:
    """Return a test whether two members are on different hosts, and the set of the hosts' numbers of members."""
    number = {rank: place for place, rank in enumerate(members)}
    host = [0] * len(members)
    sizes = set()
    for at, ranks in enumerate(ranks_by_host(plan.topology, members)):
        sizes.add(len(ranks))
        for rank in ranks:
            host[number[rank]] = at
    return lambda a, b: host[a] != host[b], sizes


def _find_switched(program: Program) -> tuple[Bound, Switched]:
    """Its addresses, and what of it switches do."""
    bound = chunked(program, MOST_CHUNKS, WHAT)
    switched_part = switched(program, bound, WHAT)
    return squeezed(program, bound, switched_part), switched_part


def _lower_plan(schedule: Schedule, in_place: bool, lag: int) -> tuple[Program, Bound, Switched]:
    if not schedule.collective.weights.any():
        raise Unsupported(f"{WHAT}: no rank has any data, and a loader divides by the chunks of its buffers")
    # First without reuse of scratch; with reuse only if that needs too much.
    for lags in (lag,) if lag else (MAX_LAG, 1):
        try:
            program = among(lower(schedule, in_place=in_place, lag=lags, joints=True), job_of(schedule.collective))
        except Unsupported as error:
            if schedule.joint is None:
                raise
            raise Unsupported(f"{error}; {INSTEAD}") from None
        bound, switched_part = _find_switched(program)
        if lags == lag or has_little_scratch(bound):
            break
    total = int(bound.sizes.sum())
    if total > FEW_CELLS:
        raise Unsupported(
            f"{WHAT}: {total} chunks in the buffers of all ranks, of at most {FEW_CELLS}; take a planner, or "
            "options of it, with fewer chunks or with shares of smaller denominators"
        )
    return program, bound, switched_part


def _by_packets(
    schedule: Schedule, in_place: bool, blocks: int, far: Callable[[int, int], bool]
) -> tuple[Program, Bound, list[Gpu]] | None:
    """By packets, in scratch that is used once; None where that cannot be."""
    if schedule.joint is not None:
        return None
    program = among(lower(schedule, in_place=in_place, lag=MAX_LAG), job_of(schedule.collective))
    sends = program.kind == SEND
    if not fit(program) or any(map(far, program.rank[sends].tolist(), program.peer[sends].tolist())):
        return None
    try:
        return program, *gpus_by_packets(program, blocks, far)
    except Unsupported:
        return None


def declared(collective: Collective, in_place: bool, grain: int) -> list[tuple[int, int]]:
    """Chunks of the input and the output that each rank hands over. The loader divides by both: where a rank has no
    input, or no output, it hands over the other buffer again; with neither, as much as the first member does."""
    first, last = (side.size.tolist() for side in sides(collective))
    if in_place and collective.kind == "custom":
        first = last = sides(collective, True)[0].size.tolist()
    declared_chunks = [(a or b, b or a) for a, b in zip(first, last, strict=True)]
    usual = declared_chunks[collective.members[0]]
    return [(a * grain, b * grain) if a else (usual[0] * grain, usual[1] * grain) for a, b in declared_chunks]


class _Head:
    """The text of a plan around its GPUs."""

    def __init__(
        self, program: Program, bound: Bound, span: tuple[int, int | None], threads: int, alignment: int, name: str,
        *, flagged: bool = False,
    ) -> None:  # fmt: skip
        self.program, self.bound, self.span = program, bound, span
        self.threads, self.alignment, self.name, self.flagged = threads, alignment, name, flagged
        self.label, self.sizes = "", (0, 0, 1)  # known with the text

    @uncollected()
    def text(self, gpus: list[Gpu]) -> bytes:
        """The name has a checksum of what follows: the executor tells plans apart by their names alone."""
        collective, in_place = self.program.collective, self.program.in_place
        chunks = declared(collective, in_place, self.bound.unit)
        gpu_texts = [self._gpu_text(rank, gpu, chunks[rank]) for rank, gpu in enumerate(gpus)]
        smallest, largest, _ = self.sizes = self._find_sizes(chunks)
        body = ",\n".join(gpu_texts)
        label = f"{self.name or 'antiphon'}-{collective.kind}-{collective.ranks}{'-in-place' if in_place else ''}"
        ours, protocol = dumps(collective).decode().strip(), LL if self.flagged else "Simple"
        tail = (
            f'"collective":"{collective.kind}","protocol":"{protocol}","inplace":{str(in_place).lower()},'
            f'"reuse_resources":false,"num_threads_per_block":{self.threads},'
            f'"use_double_scratch_buffer":{str(self.flagged).lower()},'
            f'"buffer_alignment":{self.alignment},"min_message_size":{smallest},"max_message_size":{largest},\n'
            f'"antiphon":{{"collective":{ours}}},\n"gpus":[\n{body}\n]}}\n'
        )
        self.label = f"{label}-{zlib.crc32(tail.encode()):08x}"
        return f'{{"name":"{self.label}",\n{tail}'.encode()

    def _find_sizes(self, chunks: list[tuple[int, int]]) -> tuple[int, int, int]:
        """For which sizes: those of the plan's range, as far as all offsets fit into 32 bits; and multiples of what."""
        collective = self.program.collective
        # Offsets of the executor have 32 bits: chunk size * largest number of chunks < MOST_OFFSET.
        scratch = int(self.bound.sizes[:, SCRATCH].max()) * (4 if self.flagged else 1)  # packets, in two buffers
        max_chunks = max(scratch, *(max(pair) for pair in chunks))
        chunk = (MOST_OFFSET - 1) // max_chunks // self.alignment * self.alignment
        counts = {pair[1] if collective.kind == "allgather" else pair[0] for pair in chunks}
        largest, unit = chunk * max(counts), self.alignment * max(counts)
        if collective.kind not in _SIZED or len(counts) > 1:
            return 0, largest, unit
        # Ranges end before `stop`; the file states the last size included.
        start, stop = self.span
        return start, min(largest, stop - 1) if stop is not None else largest, unit

    def _gpu_text(self, rank: int, gpu: Gpu, chunks: tuple[int, int]) -> str:
        channels = ",".join(
            f'{{"channel_type":"{kind}","connected_to":{_json_list(peers)}}}'
            for kind, peers in gpu.channels.items()
            if peers
        )
        groups = ",".join(
            f'{{"channel_type":"{SWITCH}","buffer_type":"{kind}","rank_groups":[{{"size":{len(ranks)},'
            f'"ranks":{_json_list(ranks)}}}]}}'
            for ranks, kind in gpu.groups
        )
        channels = ",".join(filter(None, (channels, groups)))
        buffers = ",".join(
            f'{{"rank":{peer},"type":"{kind}","access_channel_types":["{access}"]}}'
            for peer, kind, access in gpu.buffers
        )
        blocks = ",\n".join(self._block_text(number, block) for number, block in enumerate(gpu.blocks))
        semaphores = ",".join(['{"init_value":0}'] * gpu.links.semaphores)
        scratch = int(self.bound.sizes[rank, SCRATCH])
        return (
            f'{{"id":{rank},"input_chunks":{chunks[0]},"output_chunks":{chunks[1]},"scratch_chunks":{scratch},'
            f'"threadblocks":[\n{blocks}],"channels":[{channels}],"remote_buffers":[{buffers}],'
            f'"semaphores":[{semaphores}]}}'
        )

    def _block_text(self, number: int, block: BlockText) -> str:
        channels = ",".join(
            f'{{"channel_type":"{kind}","channel_ids":{_json_list(ids)}}}'
            for kind, ids in block.channels.items()
            if ids
        )
        buffers = ",".join(
            f'{{"access_channel_type":"{kind}","remote_buffer_ids":{_json_list(ids)}}}'
            for kind, ids in block.buffers.items()
            if ids
        )
        operations = ",".join(block.operations)
        return f'{{"id":{number},"ops":[{operations}],"channels":[{channels}],"remote_buffer_refs":[{buffers}]}}'


def _json_list(numbers: Iterable[int]) -> str:
    return "[" + ",".join(map(str, numbers)) + "]"
