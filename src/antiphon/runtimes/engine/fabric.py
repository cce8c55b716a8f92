"""Network cards that libfabric knows, for a wire by them."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_double, c_uint32, c_void_p

import numpy as np

from antiphon.runtimes.engine.native import Engine, Failure, Wire, raised

RAILS, _PROVIDER, _ADDRESS = 8, 64, 128
_NAME = _PROVIDER + 4 + 4 + 8 + RAILS * _ADDRESS  # bytes of an ap_fabric_name


class Fabric:
    """Opened cards of this process; `name`: what others need to reach them. Unsupported where there are none."""

    def __init__(self, engine: Engine, provider: str, places: str) -> None:
        """`provider`: as libfabric calls it, or "": the first that is more than TCP; `places`: addresses of this host
        or names of cards, with commas between, or "": all that there are."""
        self.handle, self._engine, error = 0, engine, Failure()
        name = ctypes.create_string_buffer(_NAME)
        make = engine.library.ap_fabric_make
        make.argtypes, make.restype = [c_char_p, c_char_p, c_void_p, POINTER(Failure)], c_void_p
        self.handle = make(provider.encode(), places.encode(), name, byref(error)) or 0
        if not self.handle:
            raise raised(error)
        self.name = name.raw

    @property
    def provider(self) -> str:
        return provider_of(self.name)

    @property
    def rails(self) -> int:
        return int.from_bytes(self.name[_PROVIDER : _PROVIDER + 4], sys.byteorder)

    def wire(self, rank: int, names: Sequence[bytes], sockets: Sequence[int], timeout: float = 60.0) -> Wire:
        """Collective. By these cards, to those that have these names. `sockets`: for each rank the number of one that
        is connected to it, or -1; they tell when it is gone. They and the cards belong to the wire from now on."""
        handle, self.handle = self.handle, 0
        open_, error = self._engine.library.ap_fabric_open, Failure()
        open_.argtypes = [c_void_p, c_uint32, c_uint32, c_char_p, c_void_p, c_double, POINTER(Failure)]
        open_.restype = c_void_p
        numbers = np.asarray(sockets, np.int32)
        made = open_(handle, rank, len(numbers), b"".join(names), numbers.ctypes.data, timeout, byref(error))
        if not made:
            raise raised(error)
        return Wire(self._engine, made)

    def close(self) -> None:
        """Where no wire was made."""
        close, handle = self._engine.library.ap_fabric_close, self.handle
        close.argtypes, close.restype, self.handle = [c_void_p], None, 0
        if handle:
            close(handle)


def provider_of(name: bytes) -> str:
    return name[:_PROVIDER].partition(b"\0")[0].decode(errors="replace")


def is_name(name: bytes) -> bool:
    """Whether it is as long as it must be; what is in it is looked at when it is used."""
    return len(name) == _NAME
