"""Plans as rounds of NCCL's messages, from Python: a process for each rank, each on its own GPU (nccl_direct.h)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int32
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.errors import TimedOut, Unsupported
from antiphon.runtimes.engine.native import OPERATORS, Engine, OpenProgram, type_number

Array = NDArray[Any]
ID = 128  # bytes of an ncclUniqueId


class Nccl:
    """An NCCL, opened by its path, and the engine that asks it for messages. This process has one GPU, whose memory is
    kept by what it is for: all communicators here share it, as one of them has a call at a time."""

    def __init__(self, library: Path, path: str) -> None:
        self._nccl = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)  # what is called NCCL may bring CUDA's names, too
        self.engine, self._memory = Engine(library), dict[str, tuple[int, int]]()
        self.call = self.engine.library
        if self.call.ap_direct_library(path.encode()):
            raise self.refused()

    def refused(self) -> Unsupported:
        return Unsupported((self.call.ap_direct_why() or b"").decode(errors="replace"))

    def identity(self) -> bytes:
        """What one rank tells all others, so that they find each other."""
        found = ctypes.create_string_buffer(ID)
        if self.call.ap_direct_id(found):
            raise self.refused()
        return found.raw

    def memory(self, purpose: str, nbytes: int) -> int:
        """At least so much, whatever was in it; where it grows, what was given for this purpose before is no more.
        Once a communicator is open, which takes the GPU."""
        at, room = self._memory.get(purpose, (0, 0))
        if at and room >= nbytes:
            return at
        self._give_back(purpose)
        at = int(self.call.ap_direct_memory(nbytes) or 0)
        if not at:
            raise self.refused()
        self._memory[purpose] = at, nbytes
        return at

    def _give_back(self, purpose: str) -> None:
        if purpose in self._memory:
            self.call.ap_direct_free(self._memory.pop(purpose)[0])

    def close(self) -> None:
        """Once its communicators are closed."""
        for purpose in list(self._memory):
            self._give_back(purpose)


class Communicator:
    """This rank among others; collective. `device`: its GPU."""

    def __init__(self, nccl: Nccl, ranks: int, rank: int, identity: bytes, device: int) -> None:
        self.nccl = nccl
        self.handle = nccl.call.ap_direct_open(ranks, rank, identity, device)
        if not self.handle:
            raise nccl.refused()

    def bring(self, at: int, values: Array) -> None:
        if values.nbytes and self.nccl.call.ap_direct_copy(self.handle, at, values.ctypes.data, values.nbytes):
            raise self.nccl.refused()

    def fetch(self, at: int, into: Array) -> None:
        if into.nbytes and self.nccl.call.ap_direct_copy(self.handle, into.ctypes.data, at, into.nbytes):
            raise self.nccl.refused()

    def close(self) -> None:
        if self.handle:
            self.nccl.call.ap_direct_close(self.handle)
            self.handle = 0


class Rounds:
    """What a rank of a program does at a size. `place_of`: of each rank of the program its rank here, -1: none."""

    def __init__(
        self, there: Communicator, program: OpenProgram, rank: int, unit: int, dtype: np.dtype[Any], in_place: bool,
        place_of: Sequence[int],
    ) -> None:  # fmt: skip
        self._there, self._program, self._type = there, program, type_number(dtype)
        places = (c_int32 * len(place_of))(*place_of)
        self._handle = there.nccl.call.made(
            "ap_direct_prepare", program.handle, rank, int(in_place), unit, dtype.itemsize, places
        )
        self.scratch = int(there.nccl.call.ap_direct_scratch(self._handle))

    def go(self, source: int, target: int, op: str, timeout: float) -> None:
        there = self._there
        scratch, number = there.nccl.memory("scratch", self.scratch), OPERATORS[op]
        code = there.nccl.call.ap_direct_go(
            there.handle, self._handle, source, target, scratch, self._type, number, timeout
        )
        if code < 0:
            raise TimedOut(f"NCCL: {timeout} seconds were not enough for a call")
        if code:
            raise there.nccl.refused()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._there.nccl.call.ap_direct_end(self._handle)
            self._handle = 0
