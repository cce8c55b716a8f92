"""The header of the messages of a call, which shows when processes make different calls (ap_call_id in api.h).

If process 0 calls allreduce while process 1 calls broadcast, the messages of both carry different headers; the receiver
notices, and `explain_mismatch` names both calls instead of the program hanging or computing nonsense.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
from functools import cache
from typing import Any

from antiphon.core.collective import COMBINING, KINDS, ROOTED

# ap_call_id: group (a digest of what must be the same), number, nbytes; kind, operator, type, stage; root, rank
_LAYOUT = struct.Struct("=3Q4B4xiI")
_NUMBER = 1  # index of `number` among the 64-bit words
# Stages of a call:
#   CALL         the call itself
#   BOOK_LENGTH  the length of a default book, which process 0 broadcasts for the call
#   BOOK_BYTES   its bytes
#   CHOICE       allreduces and agreements before the call, by which the processes choose plans together
#   END          the agreement after the call on whether all processes have succeeded
CALL, BOOK_LENGTH, BOOK_BYTES, CHOICE, END = range(5)
_pack = _LAYOUT.pack_into
_NAMES = (*KINDS, "barrier")
_OPERATORS = ("", "sum", "prod", "max", "min", "avg", "band", "bor", "bxor", "another operator")
_PLAIN = (
    "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32",
    "float64", "bool", "complex32", "complex64", "complex128", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2", "another type",
)  # fmt: skip
_TYPES = ("", *_PLAIN, *(f"sparse {name}" for name in _PLAIN))  # 0: calls without elements


@cache
def type_code(dtype: Any, sparse: bool = False) -> int:
    """Return the number in a header of an element type of NumPy or PyTorch."""
    name = getattr(dtype, "name", None) or str(dtype).removeprefix("torch.")
    return _TYPES.index(("sparse " if sparse else "") + (name if name in _PLAIN else "another type"))


@cache
def _kind_codes(kind: str, op: str) -> tuple[int, int]:
    """Return the numbers in a header of a kind of call and of its operator, 0 if it combines nothing."""
    operator = op if op in _OPERATORS else "another operator"
    return _NAMES.index(kind), _OPERATORS.index(operator) if kind in COMBINING else 0


class CallHead:
    """The header in memory, which the engine reads when a call begins. `number` counts the calls of the group.

    `common`: bytes that must be the same at all processes; the header has their digest."""

    def __init__(self, rank: int, common: bytes) -> None:
        self.rank, self.number = rank, 0
        self.memory = ctypes.create_string_buffer(_LAYOUT.size)
        self._numbers = memoryview(self.memory).cast("B").cast("Q")
        self._group = 0
        self._call = "barrier", 0, 0, "", -1  # kind, nbytes, type, operator and root, as `begin` has them
        self._written = False  # `_call` is in memory, except for its number
        self.extend(common)

    def extend(self, common: bytes) -> None:
        """Add bytes, of a book, that must be the same at all processes from now on."""
        digest = hashlib.sha256(self._group.to_bytes(8, "little") + common).digest()
        self._group = int.from_bytes(digest[:8], "little")
        self._written = False

    def begin(self, kind: str, nbytes: int, type_: int, op: str = "sum", root: int = -1) -> None:
        """Begin the next call of the group, run by the engine or another library. `nbytes`: of one process, 0 where
        these may differ; `type_`: of `type_code`. Programs repeat calls, and then only the number is written."""
        self.number += 1
        call = kind, nbytes, type_, op, root
        if self._written and call == self._call:
            self._numbers[_NUMBER] = self.number
        else:
            self._call = call
            self.stage(CALL)

    def stage(self, stage: int) -> None:
        """Write the header of a stage of the call, CALL to END: messages of different stages do not match."""
        kind, nbytes, type_, op, root = self._call
        kind_code, op_code = _kind_codes(kind, op)
        _pack(self.memory, 0, self._group, self.number, nbytes, kind_code, op_code, type_, stage, root, self.rank)
        self._written = stage == CALL

    def describe(self, call: bytes | None = None) -> str:
        """Return a call (default: this one) in the words of a user."""
        _, number, nbytes, kind, op, type_, _, root, _ = _LAYOUT.unpack(call or self.memory.raw)
        name = _NAMES[kind] if kind < len(_NAMES) else "?"
        combining = f" ({_OPERATORS[op]})" if 0 < op < len(_OPERATORS) else ""
        peer = f" {'from' if name in ('broadcast', 'scatter') else 'to'} rank {root}" if name in ROOTED else ""
        data = f" of {nbytes} bytes of {_TYPES[type_]}" if 0 < type_ < len(_TYPES) else ""
        return f"call {number}: {name}{combining}{peer}{data}"

    def explain_mismatch(self, theirs: bytes) -> str:
        """Return why a message with this header cannot belong to this call."""
        *_, rank = _LAYOUT.unpack(theirs)
        own_call, their_call = self.describe(), self.describe(theirs)
        # The same words: the headers differ in what `describe` leaves out, the digest of the books or the stage, as
        # where only one process lacks a plan and is at BOOK_LENGTH.
        if own_call == their_call:
            return f"rank {rank} makes {their_call} by other plans than this rank"
        return f"rank {rank} makes {their_call}, this rank {own_call}; all must make the same calls in the same order"
