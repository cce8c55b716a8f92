"""What goes with the messages of a call, so that processes which make different ones find out (ap_called in api.h)."""

from __future__ import annotations

import ctypes
import hashlib
import struct
from functools import cache
from typing import Any

from antiphon.core.collective import COMBINING, KINDS, ROOTED

_LAYOUT = struct.Struct("=3Q4B4xiI")
_NUMBER = 1  # of its numbers of 64 bits, that of the call
_pack = _LAYOUT.pack_into
_NAMES = (*KINDS, "barrier")
_OPERATORS = ("", "sum", "prod", "max", "min", "avg", "band", "bor", "bxor", "another operator")
_PLAIN = (
    "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32",
    "float64", "bool", "complex32", "complex64", "complex128", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2", "another type",
)  # fmt: skip
_TYPES = ("", *_PLAIN, *(f"sparse {name}" for name in _PLAIN))  # 0 is for calls without elements


@cache
def type_code(dtype: Any, sparse: bool = False) -> int:
    """The number of a type of NumPy or PyTorch in a head."""
    name = getattr(dtype, "name", None) or str(dtype).removeprefix("torch.")
    return _TYPES.index(("sparse " if sparse else "") + (name if name in _PLAIN else "another type"))


@cache
def _kind_codes(kind: str, op: str) -> tuple[int, int]:
    known = op if op in _OPERATORS else "another operator"
    return _NAMES.index(kind), _OPERATORS.index(known) if kind in COMBINING else 0


class CallHead:
    """The memory that the engine reads when a call begins. `number` counts the calls of the group.

    `about`: what else all must have alike."""

    def __init__(self, rank: int, about: bytes) -> None:
        self.rank, self.number = rank, 0
        self.memory = ctypes.create_string_buffer(_LAYOUT.size)
        self._numbers = memoryview(self.memory).cast("B").cast("Q")
        self._group = 0
        self._call = "barrier", 0, 0, "", -1
        self._stands = False  # it stands in the memory, but for its number
        self.extend(about)

    def extend(self, about: bytes) -> None:
        """More that all must have alike from now on: plans."""
        whole = hashlib.sha256(self._group.to_bytes(8, "little") + about).digest()
        self._group = int.from_bytes(whole[:8], "little")
        self._stands = False

    def begin(self, kind: str, nbytes: int, type_: int, op: str = "sum", root: int = -1) -> None:
        """The next call of the group, whatever serves it: `nbytes` of the elements of one process, 0 where these may
        differ; `type_` as of `type_code`. Programs make the same call many times, and then only its number is new."""
        self.number += 1
        call = kind, nbytes, type_, op, root
        if self._stands and call == self._call:
            self._numbers[_NUMBER] = self.number
        else:
            self._call = call
            self.stage(0)

    def stage(self, stage: int) -> None:
        """0: the call itself; 1 and 2: the plan for it; 3: whether there are plans for all."""
        kind, nbytes, type_, op, root = self._call
        kind_, op_ = _kind_codes(kind, op)
        _pack(self.memory, 0, self._group, self.number, nbytes, kind_, op_, type_, stage, root, self.rank)
        self._stands = stage == 0

    def says(self, call: bytes | None = None) -> str:
        """What a call is to who makes it; left out: this one."""
        _, number, nbytes, kind, op, type_, _, root, _ = _LAYOUT.unpack(call or self.memory.raw)
        name = _NAMES[kind] if kind < len(_NAMES) else "?"
        combining = f" ({_OPERATORS[op]})" if 0 < op < len(_OPERATORS) else ""
        whose = f" {'from' if name in ('broadcast', 'scatter') else 'to'} rank {root}" if name in ROOTED else ""
        of = f" of {nbytes} bytes of {_TYPES[type_]}" if 0 < type_ < len(_TYPES) else ""
        return f"call {number}: {name}{combining}{whose}{of}"

    def against(self, theirs: bytes) -> str:
        """Why a message of another cannot be of this call."""
        rank = _LAYOUT.unpack(theirs)[-1]
        mine, other = self.says(), self.says(theirs)
        if mine == other:
            return f"rank {rank} makes {other} by other plans than this rank"
        return f"rank {rank} makes {other}, this rank {mine}; all must make the same calls in the same order"
