"""NCCL's functions for a program that makes its communicators through our library, which serves them by plans."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from antiphon.runtimes.engine.build import library
from antiphon.runtimes.serve.torch_work import CollectiveFailed

TYPES = {
    torch.int8: 0, torch.uint8: 1, torch.int32: 2, torch.uint32: 3, torch.int64: 4, torch.uint64: 5,
    torch.float16: 6, torch.float32: 7, torch.float64: 8, torch.bfloat16: 9,
}  # fmt: skip
BYTES = TYPES[torch.uint8]
_OPERATORS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
_ID = 128  # bytes
_NO_COLOR = -1


class _Id(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * _ID),)


_DATA = (c_void_p, c_void_p, c_size_t, c_int)  # from, to, elements, type
_END = (c_void_p, c_void_p)  # communicator, stream
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "GetUniqueId": (POINTER(_Id),),
    "CommInitRank": (POINTER(c_void_p), c_int, _Id, c_int),
    "CommSplit": (c_void_p, c_int, c_int, POINTER(c_void_p), c_void_p),
    "CommDestroy": (c_void_p,),
    "CommAbort": (c_void_p,),
    "CommGetAsyncError": (c_void_p, POINTER(c_int)),
    "GroupStart": (),
    "GroupEnd": (),
    "AllReduce": (*_DATA, c_int, *_END),
    "Reduce": (*_DATA, c_int, c_int, *_END),
    "ReduceScatter": (*_DATA, c_int, *_END),
    "AllGather": (*_DATA, *_END),
    "Broadcast": (*_DATA, c_int, *_END),
    "AlltoAll": (*_DATA, *_END),
    "Gather": (*_DATA, c_int, *_END),
    "Scatter": (*_DATA, c_int, *_END),
    "Send": (c_void_p, c_size_t, c_int, c_int, *_END),
    "Recv": (c_void_p, c_size_t, c_int, c_int, *_END),
}
_LATE = ("AlltoAll", "Gather", "Scatter")  # which NCCL has from 2.28 on


@dataclass(frozen=True)
class Kind:
    """How tensors of a kind of device are reached: our library's target and its compiler, and NCCL's own library."""

    target: str
    behind: str
    compiler: str = ""


# By the name that PyTorch has for the kind of device.
KINDS = {"cuda": Kind("nccl", "libnccl.so.2") if torch.version.hip is None else Kind("rccl", "librccl.so.1")}


class Nccl:
    """OSError where there is no NCCL that can be opened by name, Missing where ours cannot be compiled."""

    def __init__(self, kind: Kind) -> None:
        if not sys.platform.startswith("linux"):
            raise OSError("NCCL is for Linux")
        self._real = ctypes.CDLL(kind.behind)
        self._ours = ctypes.CDLL(str(library(kind.target, kind.compiler)))
        self._ours.antiphon_nccl_behind.argtypes = (c_void_p,)
        self._ours.antiphon_nccl_behind(self._real._handle)
        self._ours.antiphon_nccl_book.argtypes = (c_char_p, c_uint64)
        self._became = self._ours.antiphon_nccl_became
        self._became.argtypes = (c_uint32, POINTER(c_void_p), POINTER(c_uint32))
        self._functions = {name: self._found(name, kind.target) for name in _FUNCTIONS}
        self.has_all = all(self._functions[name] is not None for name in _LATE)
        self._text = self._real.ncclGetErrorString
        self._text.restype, self._text.argtypes = c_char_p, (c_int,)

    def _found(self, name: str, target: str) -> Any:
        """Ours where NCCL has it, too: what is not planned must have somewhere to go."""
        full = "ncclAllToAll" if (name, target) == ("AlltoAll", "rccl") else f"nccl{name}"
        if not hasattr(self._real, full):
            return None
        function = getattr(self._ours if hasattr(self._ours, full) else self._real, full)
        function.restype, function.argtypes = c_int, _FUNCTIONS[name]
        return function

    def relax(self) -> None:
        """What this thread asks of the device is no part of graphs that others capture."""
        self._ours.antiphon_nccl_relax()

    def call(self, name: str, *arguments: Any) -> None:
        code = self._functions[name](*arguments)
        if code:
            raise CollectiveFailed(f"nccl{name}: {(self._text(code) or b'').decode(errors='replace')}")

    # ---- communicators ----

    def new_id(self) -> bytes:
        made = _Id()
        self.call("GetUniqueId", byref(made))
        return bytes(memoryview(made))

    def connect(self, book: bytes, ranks: int, rank: int, name: bytes) -> int:
        """A communicator that goes by this book, which need only be there at rank 0. Collective."""
        comm, given = c_void_p(), _Id.from_buffer_copy(name)
        with self._book(book):
            self.call("CommInitRank", byref(comm), ranks, given, rank)
        return int(comm.value or 0)

    def split(self, comm: int, book: bytes, color: int | None, key: int) -> int:
        """Collective of all in `comm`; 0 where there is no color."""
        made = c_void_p()
        with self._book(book):
            self.call("CommSplit", comm, _NO_COLOR if color is None else color, key, byref(made), None)
        return int(made.value or 0)

    @contextmanager
    def _book(self, book: bytes) -> Iterator[None]:
        kept = ctypes.create_string_buffer(book, len(book) + 1)  # where it begins at a multiple of 8
        self._ours.antiphon_nccl_book(ctypes.cast(kept, c_char_p), len(book))
        try:
            yield
        finally:
            self._ours.antiphon_nccl_book(None, 0)

    def fault(self, comm: int) -> str:
        """What has gone wrong meanwhile, or nothing."""
        state = c_int()
        self.call("CommGetAsyncError", comm, byref(state))
        return "" if state.value in (0, 7) else (self._text(state.value) or b"").decode(errors="replace")

    # ---- calls ----

    @contextmanager
    def group(self) -> Iterator[None]:
        """What is asked for meanwhile goes on side by side."""
        self.call("GroupStart")
        try:
            yield
        except BaseException:
            self._functions["GroupEnd"]()
            raise
        self.call("GroupEnd")

    def became(self, many: int) -> Sequence[tuple[bool, str]]:
        """Of each call of the last group of this thread whether it went by a plan, and which, or why not."""
        text, size, out = c_void_p(), c_uint32(), []
        for number in range(many):
            served = self._became(number, byref(text), byref(size))
            told = ctypes.string_at(text, size.value).decode(errors="replace") if served >= 0 and text else ""
            out.append((served == 1, told))
        return out


def operator(name: str) -> int:
    return _OPERATORS[name]


opened = cache(Nccl)
