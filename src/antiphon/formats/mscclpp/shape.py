"""The form of an execution plan: its fields, and the limits of MSCCL++'s executor.

The executor does not check its limits (execution_common.hpp, as of 2026). The loader reads by name and ignores unknown
names; so does this. Required fields must be present. `parsed` is called by read.py; writing has the same limits.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import msgspec

from antiphon.core.jsontext import check_keys, decode
from antiphon.errors import Invalid, Unsupported, quote

# limits of the executor, unless a comment says otherwise
MOST_OPERATIONS = 64  # of a thread block, those within a pipeline counted with it
MOST_CHANNELS = 16  # of each type in a thread block; also the limit of remote buffers
MOST_OF_ONE = 8  # channels of an operation
MOST_PLACES = 10  # sources of an operation, and likewise its destinations
MOST_SEMAPHORES = 16  # of a GPU, and in an operation
MOST_BARRIERS = 16  # of a GPU
MOST_BLOCKS = 108  # of a GPU: all must be there at once, and an A100 has 108 multiprocessors
MOST_OFFSET = 2**32  # bytes: offsets are numbers of 32 bits
MOST_SMALLEST = 2**31 - 1  # the min_message_size to write: the loader reads an int. register.py has a plan's exact one
SCRATCH = 2**26  # bytes of scratch that plans with reuse_resources share
MOST_CELLS = 2**21  # chunks of all buffers: our own limit, since a short file could declare any number
LL, SIMPLE = "LL", "Simple"  # the protocols: of packets, and of plain data

# Types of channels: to memory of the same host; through a proxy thread, to other hosts; to the memories behind a switch
MEMORY, PORT, SWITCH = "memory", "port", "switch"
KINDS = ("i", "o", "s")  # input, output, scratch, in the order of core.program.kinds


# ---- form ----


WARP, MOST_THREADS = 32, 1024  # threads of a warp, and of a thread block
ACCESS_BYTES = 16  # that a thread reads or writes at once
MOST_RANKS = 2**14  # far above real machines; a wrong file ends before memory does
MOST_CONNECTIONS = 2**14  # of a type, of one GPU
# Numbers of 32 and of 16 bits without sign
Count = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Small = Annotated[int, msgspec.Meta(ge=0, le=2**16 - 1)]


class _Row(msgspec.Struct, gc=False):
    """A JSON object; unknown names are ignored."""


class Buffer(_Row):
    """`size` chunks from chunk `index` on: of this rank's buffer `type`, of a remote buffer (`buffer_id`: its position
    in the thread block's list), or of the buffers of a switch's group (`switch_channel_id`, likewise)."""

    index: Count
    size: Count
    type: str | None = None
    buffer_id: Small | None = None
    switch_channel_id: Small | None = None


class BlockGroup(_Row):
    """The share of an operation that a thread block performs: number `tb_id` of `tbg_size` equal ones."""

    tb_id: Small
    tbg_size: Small


class Iterations(_Row):
    """The loop of a pipeline: `num_chunks` chunks, in turns of `unit_size` bytes."""

    unit_size: Count
    num_chunks: Count


class Inner(_Row):
    """An operation, also one within a pipeline. Fields that an operation of its name does not use are None.

    It reads `src_buff` and writes `dst_buff`; `channel_ids` are positions in the thread block's list of channels of
    `channel_type`. `barrier_id` and `num_threadblocks` are those of a barrier, `semaphore_ids` those of sem_acquire and
    sem_release. `tbg_info`: the share that this thread block performs; None: all.
    """

    name: str
    channel_type: str | None = None
    channel_ids: list[Small] | None = None
    src_buff: list[Buffer] | None = None
    dst_buff: list[Buffer] | None = None
    tbg_info: BlockGroup | None = None
    barrier_id: Small | None = None
    num_threadblocks: Small | None = None
    semaphore_ids: list[Small] | None = None
    reduce_op: str | None = None


class Operation(Inner):
    """An operation of a thread block; one named "pipeline" repeats `ops` as `iter_context` states."""

    iter_context: Iterations | None = None
    ops: list[Inner] | None = None


class BlockChannels(_Row):
    """The channels of a type that a thread block uses: numbers among the rank's channels of this type."""

    channel_type: str
    channel_ids: list[Small]


class BlockBuffers(_Row):
    """The remote buffers that a thread block reaches by channels of a type: positions in the rank's list."""

    access_channel_type: str
    remote_buffer_ids: list[Small]


class ThreadBlock(_Row):
    """A thread block: its operations, and the channels and remote buffers that they name by position, by type."""

    id: Small
    ops: list[Operation]
    channels: list[BlockChannels]
    remote_buffer_refs: list[BlockBuffers] = []


class RankGroup(_Row):
    size: Count
    ranks: list[Small]


class Channel(_Row):
    """Channels of a rank: one to each peer in `connected_to`, or (switch) one for each of `rank_groups` on a buffer."""

    channel_type: str
    connected_to: list[Small] | None = None
    buffer_type: str | None = None
    rank_groups: list[RankGroup] | None = None


class RemoteBuffer(_Row):
    """A buffer of another rank, and the types of the channels that may reach it."""

    rank: Small
    type: str
    access_channel_types: list[str]


class Semaphore(_Row):
    """A counter by which thread blocks of one GPU wait for each other: acquire takes one, release adds one."""

    init_value: Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class Gpu(_Row):
    """A rank: its buffers in chunks, and the lists to which its thread blocks refer."""

    id: Small
    input_chunks: Count
    output_chunks: Count
    scratch_chunks: Count
    threadblocks: list[ThreadBlock]
    channels: list[Channel]
    remote_buffers: list[RemoteBuffer]
    semaphores: list[Semaphore] = []


class Ours(_Row):
    """Antiphon's own addition: the collective with its members and roots, which plans do not contain."""

    collective: msgspec.Raw = msgspec.Raw()


class File(_Row):
    """A whole file. With `use_double_scratch_buffer`, calls use the halves of scratch in turn."""

    name: str
    collective: str
    protocol: str
    inplace: bool
    gpus: list[Gpu]
    reuse_resources: bool = False  # one set of connections serves all buffers, as ranks access only others' scratch
    num_threads_per_block: Small = MOST_THREADS
    use_double_scratch_buffer: bool = False
    buffer_alignment: Count = ACCESS_BYTES
    min_message_size: int = 0  # bytes of the calls that the plan serves
    max_message_size: int = 2**64 - 1
    antiphon: Ours | None = None


def parsed(data: bytes) -> File:
    """Parse a file and check it against the limits; each fault is one line that names the place."""
    file = decode(data, File)
    check_keys(data)
    if not 1 <= len(file.gpus) <= MOST_RANKS:
        raise Invalid(f"gpus: expected 1 to {MOST_RANKS}, got {len(file.gpus)}")
    if file.protocol not in (SIMPLE, LL):
        raise Unsupported(f"protocol: expected Simple or {LL}, got {quote(file.protocol)}")
    if file.buffer_alignment < ACCESS_BYTES or file.buffer_alignment % ACCESS_BYTES:
        raise Unsupported(f"buffer_alignment: expected a multiple of 16 bytes, got {file.buffer_alignment}")
    if not WARP <= file.num_threads_per_block <= MOST_THREADS or file.num_threads_per_block % WARP:
        raise Invalid(f"num_threads_per_block: expected 32 to 1024 in warps of 32, got {file.num_threads_per_block}")
    if not 0 <= file.min_message_size <= file.max_message_size < 2**64:
        raise Invalid(
            f"min_message_size, max_message_size: {file.min_message_size} to {file.max_message_size} is no range "
            "from 0 to 2^64 - 1"
        )
    for rank, gpu in enumerate(file.gpus):
        _check_gpu(rank, gpu)
    return file


def _check_gpu(rank: int, gpu: Gpu) -> None:
    """Raise Invalid if the loader or the executor would misread a GPU, or if it exceeds their limits."""
    where = f"gpus[{rank}]"
    if gpu.id != rank:
        raise Invalid(f"{where}.id: is {gpu.id}; the loader wants every GPU at the place of its number")
    for field_name, value in (("input_chunks", gpu.input_chunks), ("output_chunks", gpu.output_chunks)):
        if not value:
            raise Invalid(
                f"{where}.{field_name}: is 0, by which the loader divides; where a rank has no such buffer, pass "
                "the other buffer and state its number of chunks"
            )
    if len(gpu.semaphores) > MOST_SEMAPHORES:
        raise Invalid(f"{where}.semaphores: {len(gpu.semaphores)}, of at most {MOST_SEMAPHORES}")
    for number, semaphore in enumerate(gpu.semaphores):
        if not 0 <= semaphore.init_value < 2**16:
            raise Invalid(f"{where}.semaphores[{number}]: begins at {semaphore.init_value}; expected 0 to 65535")
    for number, block in enumerate(gpu.threadblocks):
        _check_block(f"rank {rank}, block {number}", number, block, len(gpu.semaphores))


def _check_block(where: str, number: int, block: ThreadBlock, semaphores: int) -> None:
    """Raise Invalid if a thread block exceeds a limit; `semaphores`: the number of those of its GPU."""
    if block.id != number:
        raise Invalid(f"{where}: its id is {block.id}; the loader wants every block at the place of its number")
    rows = [(row.channel_type, "channels", row.channel_ids) for row in block.channels]
    rows += [(row.access_channel_type, "remote buffers", row.remote_buffer_ids) for row in block.remote_buffer_refs]
    counts: Counter[tuple[str, str]] = Counter()
    for kind, list_name, ids in rows:
        if kind not in (MEMORY, PORT, SWITCH):
            raise Invalid(f"{where}: expected {list_name} of type memory, port or switch, got {quote(kind)}")
        counts[kind, list_name] += len(ids)
        if counts[kind, list_name] > MOST_CHANNELS:
            raise Invalid(f"{where}: {counts[kind, list_name]} {list_name} of type {kind}, of at most {MOST_CHANNELS}")
    total = sum(1 + len(operation.ops or ()) for operation in block.ops)
    if total > MOST_OPERATIONS:
        raise Invalid(f"{where}: {total} operations, of at most {MOST_OPERATIONS}")
    for step, operation in enumerate(block.ops):
        for inner in (operation, *operation.ops) if operation.ops else (operation,):
            # a shortcut: nearly all nops have no lists, and so nothing to check
            if inner.name != "nop" or inner.channel_ids or inner.src_buff or inner.dst_buff or inner.semaphore_ids:
                _check_lists(where, step, inner)
            if (
                inner.barrier_id is not None or inner.semaphore_ids is not None or inner.reduce_op is not None
                or inner.tbg_info is not None
            ):  # fmt: skip
                _check_operation(f"{where}, step {step} ({inner.name[:24]})", inner, semaphores)


def _check_lists(where: str, step: int, operation: Inner) -> None:
    """Raise Invalid if a list of the operation is longer than the executor allows."""
    for field_name, values, max_length in (
        ("channel_ids", operation.channel_ids, MOST_OF_ONE), ("src_buff", operation.src_buff, MOST_PLACES),
        ("dst_buff", operation.dst_buff, MOST_PLACES), ("semaphore_ids", operation.semaphore_ids, MOST_SEMAPHORES),
    ):  # fmt: skip
        if values and len(values) > max_length:
            raise Invalid(
                f"{where}, step {step} ({operation.name[:24]}): {len(values)} in {field_name}, of at most {max_length}"
            )


def _check_operation(where: str, operation: Inner, semaphores: int) -> None:
    if operation.barrier_id is not None and operation.barrier_id >= MOST_BARRIERS:
        raise Invalid(f"{where}: barrier {operation.barrier_id}, but GPUs have 0 to {MOST_BARRIERS - 1}")
    for semaphore in operation.semaphore_ids or ():
        if semaphore >= semaphores:
            raise Invalid(f"{where}: semaphore {semaphore}, but this GPU has {semaphores}")
    if operation.reduce_op not in (None, "sum"):
        raise Unsupported(f"{where}: reduce_op is {quote(operation.reduce_op)}; the executor sums in any case")
    if operation.tbg_info is not None and operation.tbg_info.tb_id >= operation.tbg_info.tbg_size:
        raise Invalid(f"{where}: is the part {operation.tbg_info.tb_id} of {operation.tbg_info.tbg_size}")
