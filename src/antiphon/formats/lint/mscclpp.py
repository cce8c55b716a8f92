"""Rules of MSCCL++ 0.9 and its NCCL interface: which calls its selector serves by an execution plan, and how
the executor runs them.

Programs register execution plans (files that `antiphon export` writes, with a register.py). For each call the selector
picks a registered plan, and the executor runs its operations; "glres" and "gstore" reduce and multicast in a switch.
"""

from __future__ import annotations

from collections.abc import Iterator

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

# `Head.verbs` holds the names of operations in a file.
TYPES = ("float16", "float32", "bfloat16", "int32", "uint32", "float8_e4m3fn", "float8_e5m2")
SWITCH_TYPES = ("float16", "bfloat16", "float32", "int32", "uint32")  # that switches add, by NVLink's multicast
SWITCH_OPERATIONS = {"glres", "gstore", "gstorepkt"}  # reduce; multicast, of data or of packets with flags
# Collectives for which the NCCL interface asks the selector
SELECTED_KINDS = ("allreduce", "allgather", "reducescatter", "broadcast")
REDUCING_KINDS = ("allreduce", "reduce", "reducescatter")


def _check_operator(head: Head, call: ApplicationCall) -> Iterator[Finding]:
    """Report operators other than sum: the executor is handed the operator and does not look at it."""
    if head.kind in REDUCING_KINDS and call.op != "sum":
        yield Finding("wrong", f"it adds, even for operator {call.op}", "use sum")


def _check_collective(head: Head, call: ApplicationCall) -> Iterator[Finding]:
    """Report a collective that the NCCL interface never asks plans for."""
    if head.kind not in SELECTED_KINDS:
        yield Finding(
            "ignored",
            f"its NCCL interface asks for plans of {', '.join(SELECTED_KINDS)}, and not of {head.kind}",
            "call the executor from Python",
        )


def _check_root(head: Head, call: ApplicationCall) -> Iterator[Finding]:
    """Report another root than the plan's: register.py then leaves the call to the library."""
    if head.root is not None and call.root not in (None, head.root):
        yield Finding(
            "ignored",
            f"it is for root {head.root}, and register.py takes it for no other; the call has root {call.root}",
            f"plan with root={call.root}",
        )


def _check_type(head: Head, call: ApplicationCall) -> Iterator[Finding]:
    """Report a type that the executor does not have."""
    if call.dtype not in TYPES:
        yield Finding("refused", f"the executor has no type {call.dtype}", f"use one of {', '.join(TYPES)}")


def _check_switches(head: Head, call: ApplicationCall) -> Iterator[Finding]:
    """Report types that switches cannot add, and note that they reach only certain allocations."""
    if "glres" in head.verbs and call.dtype in TYPES and call.dtype not in SWITCH_TYPES:
        yield Finding(
            "refused",
            f"switches add {', '.join(SWITCH_TYPES)}, and not {call.dtype}",
            "use one of these, or a planner that does without switches",
        )
    if head.verbs & SWITCH_OPERATIONS:
        yield Finding(
            "note",
            "switches reach only memory that is allocated for them, on GPUs of compute capability 9.0 or more, of the "
            "same size at all ranks",
            "allocate buffers with its GpuBuffer or ncclMemAlloc",
        )


def _check_divisible(head: Head, call: ApplicationCall) -> Iterator[Finding]:
    """Report an indivisible size: the call ends in an error, as the selector chose the plan without checking it."""
    align = head.extra.get("alignment", 16)  # bytes of each chunk must be a multiple of this
    if head.serves_size(call.nbytes) and (call.nbytes == 0 or call.nbytes % (align * head.chunks)):
        yield Finding(
            "refused",
            f"{format_size(call.nbytes)} is no multiple of {head.chunks} times {align} bytes: the call ends in error",
            f"pad the buffer to a multiple of {align * head.chunks} bytes, or register the plan with a selector that "
            "looks at that (register.py, which export writes, does)",
        )


_note_registration = always_note(
    "plans are found only by programs that registered them", "import register.py, which export writes"
)
MSCCLPP = RuntimeRules(
    "mscclpp-0.9", "MSCCL++ 0.9, its executor and NCCL interface", "mscclpp-json",
    (_check_collective, check_ranks, _check_root, _check_operator, _check_type, _check_switches, check_sizes,
     _check_divisible, check_in_place, _note_registration),
)  # fmt: skip
