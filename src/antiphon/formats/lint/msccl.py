"""Rules of MSCCL's executor, and of RCCL's, for a file, a size, a data type and an operator.

Each rule (see form.Rule) reproduces one decision of the runtime: it yields nothing if the call passes. A file lists,
for each rank, thread blocks of operations: s sends a chunk, r receives one, rcs receives a chunk, copies and forwards
it. The objects `MSCCL` and `RCCL` at the end collect the rules of each. They share most; RCCL has no fused operations
such as rcs, and takes fewer thread blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from antiphon.formats.lint.form import (
    ApplicationCall,
    Finding,
    Head,
    RuntimeRules,
    always_note,
    check_in_place,
    check_ranks,
    check_sizes,
)
from antiphon.units import format_size

OPERATORS = ("sum", "prod", "max", "min")  # of the executor
ROOTED = ("broadcast", "reduce", "gather", "scatter")
# operations that receive and, at once, copy (c), reduce (the second r) or forward (s)
FUSED_OPERATIONS = ("rcs", "rrs", "rrc", "rrcs")
EXECUTOR_CHANNELS = 32  # MAXCHANNELS of NCCL 2.23, which the executor is part of
MAX_THREAD_BLOCKS = 64  # per rank, as RCCL is built
MULTIPROCESSORS = 108  # multiprocessors of an A100; an H100 has 132
MAX_GPU_MEMORY = 288 * 10**9  # bytes of the largest GPUs
NCCL_TYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16")


def _executor_call(head: Head, call: ApplicationCall) -> ApplicationCall:
    """Return the call with the bytes that the executor sees: for gather and scatter those of one rank's block."""
    if head.kind in ("gather", "scatter"):
        return replace(call, nbytes=call.nbytes // max(call.ranks, 1))
    return call


def _executor_size(head: Head, call: ApplicationCall) -> int:
    """Return the bytes that the executor compares with a file's range."""
    return _executor_call(head, call).nbytes


def _check_size(head: Head, call: ApplicationCall) -> Iterator[Finding]:
    """Report a size outside of the file's range."""
    yield from check_sizes(head, _executor_call(head, call))


def _check_divisible(head: Head, call: ApplicationCall) -> Iterator[Finding]:
    """Report a count that chunks do not divide: the runtime leaves it to the library without a message."""
    executor_call = _executor_call(head, call)
    count = executor_call.nbytes // executor_call.itemsize
    if not head.serves_size(executor_call.nbytes):
        return  # `_check_size` reports that
    # Each chunk must be a whole number of elements.
    if executor_call.nbytes % executor_call.itemsize or count == 0 or count % head.chunks:
        multiple = head.chunks * executor_call.itemsize
        yield Finding(
            "ignored",
            f"{count} elements of {call.dtype} cannot be cut into {head.chunks} equal chunks",
            f"pad the buffer to a multiple of {multiple} bytes, or export with fewer chunks (pieces=1, another "
            "planner)",
        )


def _check_operator(head: Head, call: ApplicationCall) -> Iterator[Finding]:
    """Report an operator that the runtime leaves to the library."""
    if head.kind in ("allreduce", "reduce", "reducescatter") and call.op not in OPERATORS:
        yield Finding(
            "ignored", f"operator {call.op} is left to the library; it takes {', '.join(OPERATORS)}",
            "sum, and divide in the program" if call.op == "avg" else "use another operator",
        )  # fmt: skip


def _check_type(head: Head, call: ApplicationCall) -> Iterator[Finding]:
    """Report a type that NCCL does not have."""
    if call.dtype not in NCCL_TYPES:
        yield Finding("refused", f"NCCL has no type {call.dtype}", f"use one of {', '.join(NCCL_TYPES)}")


def _check_root(head: Head, call: ApplicationCall) -> Iterator[Finding]:
    """Report a root that is not the file's: the executor runs the file for any root of the call."""
    if head.kind not in ROOTED:
        return
    if call.root is not None and head.root is not None and call.root != head.root:
        yield Finding(
            "wrong",
            f"it is for root {head.root}, the call has root {call.root}, and the executor does not compare them",
            f"remove it where roots other than {head.root} are used, or plan with root={call.root}",
        )
    elif call.root is None:
        yield Finding(
            "note", f"it is right for root {head.root} only, and the executor takes it for every root",
            "keep it where all calls have this root",
        )  # fmt: skip


def _check_channels(head: Head, call: ApplicationCall) -> Iterator[Finding]:
    """Report more channels than NCCL has. Option `instances` of the export (copies of the algorithm, each on a share of
    the data) multiplies channels and thread blocks."""
    if head.channels > EXECUTOR_CHANNELS:
        reason = f"it has {head.channels} channels; NCCL has at most {EXECUTOR_CHANNELS}"
        yield Finding("refused", reason, "export with fewer instances")


def _check_fused(head: Head, call: ApplicationCall) -> Iterator[Finding]:
    """Report fused operations, without which RCCL's kernels are compiled: it refuses the file at the call."""
    fused_verbs = [verb for verb in FUSED_OPERATIONS if verb in head.verbs]
    if fused_verbs:
        yield Finding(
            "refused",
            f"RCCL's kernels are built without fused steps ({', '.join(fused_verbs)}): the call ends in an error, "
            '"this version of MSCCL build doesn\'t support full Ops"',
            "export with option fused=no",
        )


def _check_thread_blocks(head: Head, call: ApplicationCall) -> Iterator[Finding]:
    """Report too many thread blocks: RCCL loads files when it creates a communicator, which then fails."""
    thread_blocks = head.extra.get("blocks", 0)  # the most of any rank
    if thread_blocks > MAX_THREAD_BLOCKS:
        yield Finding(
            "refused",
            f"a rank has {thread_blocks} thread blocks, and RCCL takes {MAX_THREAD_BLOCKS}: with this file in the "
            "folder no communicator can be made",
            "export with option fused=no, with fewer instances, or a planner with fewer partners",
        )


def _check_resident(head: Head, call: ApplicationCall) -> Iterator[Finding]:
    """Report more thread blocks than multiprocessors: each occupies one until the end, and they wait for each other."""
    thread_blocks = head.extra.get("blocks", 0)
    if thread_blocks > MULTIPROCESSORS:
        yield Finding(
            "note",
            f"it has {thread_blocks} thread blocks, which must all run at once: on a GPU with fewer multiprocessors "
            f"(A100: {MULTIPROCESSORS}, H100: 132) calls hang",
            "export with fewer instances, or take a planner with fewer partners",
        )


def _check_scratch(head: Head, call: ApplicationCall) -> Iterator[Finding]:
    """Report scratch that is too large: the executor allocates what the file declares, even if operations use less."""
    declared, used = head.extra.get("scratch", 0), head.extra.get("used", 0)  # chunks, the most of any rank
    # Scratch has chunks of the same size as the buffer.
    nbytes = _executor_call(head, call).nbytes * declared // head.chunks
    if nbytes > MAX_GPU_MEMORY:
        yield Finding(
            "note",
            f"the runtime allocates {format_size(nbytes)} of scratch for such a call (s_chunks={declared}), more than "
            "a GPU has",
            f"set s_chunks to {used}, as many as its steps use"
            if used < declared
            else "take a planner with less scratch",
        )


_note_machine = always_note(
    "RCCL uses such files on two shapes of box only: eight GPUs all joined, and sixteen in eight modules",
    "set RCCL_MSCCL_FORCE_ENABLE=1 on all others",
)
_note_process = always_note("the executor is off where one process drives several GPUs", "start a process for each GPU")
# rules of both runtimes, in the order in which they decide
COMMON = (
    check_ranks,
    _check_operator,
    _check_type,
    _check_divisible,
    _check_size,
    check_in_place,
    _check_root,
    _check_scratch,
)

MSCCL = RuntimeRules(
    "msccl",
    "MSCCL's executor (NCCL 2.23), as of its last release",
    "msccl-xml",
    (*COMMON, _check_channels, _check_resident, _note_process),
    size_of=_executor_size,
)
RCCL = RuntimeRules(
    "rccl-6",
    "RCCL of ROCm 6, which has MSCCL's executor in it",
    "msccl-xml",
    (*COMMON, _check_fused, _check_thread_blocks, _note_machine),
    options={"fused": "no"},  # of `antiphon export`, for this runtime
    size_of=_executor_size,
)
