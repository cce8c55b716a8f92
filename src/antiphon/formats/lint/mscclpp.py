"""Rules of MSCCL++ 0.9 and its NCCL interface: which calls its selector serves by a plan, and how the executor runs
them.
"""

from __future__ import annotations

from collections.abc import Iterator

from antiphon.formats.lint.form import Call, Finding, Head, Runtime, check_places, check_ranks, check_sizes
from antiphon.units import format_size

TYPES = ("float16", "float32", "bfloat16", "int32", "uint32", "float8_e4m3fn", "float8_e5m2")
ADDED = ("float16", "bfloat16", "float32", "int32", "uint32")  # by switches, on GPUs with NVLink's multicast
SWITCHES = {"glres", "gstore", "gstorepkt"}
SELECTED = ("allreduce", "allgather", "reducescatter", "broadcast")
COMBINES = ("allreduce", "reduce", "reducescatter")


def _check_operator(head: Head, call: Call) -> Iterator[Finding]:
    """Report operators other than sum: the executor is handed the operator and does not look at it."""
    if head.kind in COMBINES and call.op != "sum":
        yield Finding("wrong", f"it adds, even for operator {call.op}", "use sum")


def _check_collective(head: Head, call: Call) -> Iterator[Finding]:
    if head.kind not in SELECTED:
        yield Finding(
            "ignored",
            f"its NCCL interface asks for plans of {', '.join(SELECTED)}, and not of {head.kind}",
            "call the executor from Python",
        )


def _check_root(head: Head, call: Call) -> Iterator[Finding]:
    if head.root is not None and call.root not in (None, head.root):
        yield Finding(
            "ignored",
            f"it is for root {head.root}, and register.py takes it for no other; the call has root {call.root}",
            f"plan with root={call.root}",
        )


def _check_type(head: Head, call: Call) -> Iterator[Finding]:
    if call.dtype not in TYPES:
        yield Finding("refused", f"the executor has no type {call.dtype}", f"use one of {', '.join(TYPES)}")


def _check_switches(head: Head, call: Call) -> Iterator[Finding]:
    """Report limits of switches: the executor binds whole allocations, and has a kernel for these types only."""
    if "glres" in head.verbs and call.dtype in TYPES and call.dtype not in ADDED:
        yield Finding(
            "refused",
            f"switches add {', '.join(ADDED)}, and not {call.dtype}",
            "use one of these, or a planner that does without switches",
        )
    if head.verbs & SWITCHES:
        yield Finding(
            "note",
            "switches reach only memory that is allocated for them, on GPUs of compute capability 9.0 or more, of the "
            "same size at all ranks",
            "allocate buffers with its GpuBuffer or ncclMemAlloc",
        )


def _check_divisible(head: Head, call: Call) -> Iterator[Finding]:
    """Report an indivisible size: an error, not left to the library, as the plan has been chosen by then."""
    align = head.extra.get("alignment", 16)
    if call.nbytes == 0 or call.nbytes % (align * head.chunks):
        yield Finding(
            "refused",
            f"{format_size(call.nbytes)} is no multiple of {head.chunks} times {align} bytes: the call ends in error",
            f"pad the buffer to a multiple of {align * head.chunks} bytes, or register the plan with a selector that "
            "looks at that (register.py, which export writes, does)",
        )


def _note_registration(head: Head, call: Call) -> Iterator[Finding]:
    yield Finding(
        "note", "plans are found only by programs that registered them", "import register.py, which export writes"
    )


MSCCLPP = Runtime(
    "mscclpp-0.9", "MSCCL++ 0.9, its executor and NCCL interface", "mscclpp-json",
    (_check_collective, check_ranks, _check_root, _check_operator, _check_type, _check_switches, check_sizes,
     _check_divisible, check_places, _note_registration),
)  # fmt: skip
