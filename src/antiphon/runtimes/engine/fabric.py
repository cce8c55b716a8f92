"""Network cards that libfabric knows, for a wire by them."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence

import numpy as np

from antiphon.runtimes.engine.native import Engine, Wire

RAILS, _PROVIDER, _ADDRESS = 8, 64, 128
_NAME = _PROVIDER + 4 + 4 + 8 + RAILS * _ADDRESS  # bytes of an ap_fabric_name


class Fabric:
    """Opened cards of this process; `name`: what others need to reach them. Unsupported where there are none."""

    def __init__(self, engine: Engine, provider: str, places: str) -> None:
        """`provider`: as libfabric calls it, or "": the first that is more than TCP; `places`: addresses of this host
        or names of cards, with commas between, or "": all that there are."""
        self.handle, self._engine = 0, engine
        name = ctypes.create_string_buffer(_NAME)
        self.handle = engine.library.made("ap_fabric_make", provider.encode(), places.encode(), name)
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
        numbers = np.asarray(sockets, np.int32)
        given = handle, rank, len(numbers), b"".join(names), numbers.ctypes.data, timeout
        return Wire(self._engine, self._engine.library.made("ap_fabric_open", *given))

    def close(self) -> None:
        """Where no wire was made."""
        handle, self.handle = self.handle, 0
        if handle:
            self._engine.library.ap_fabric_close(handle)


def provider_of(name: bytes) -> str:
    return name[:_PROVIDER].partition(b"\0")[0].decode(errors="replace")


def is_name(name: bytes) -> bool:
    """Whether it is as long as it must be; what is in it is looked at when it is used."""
    return len(name) == _NAME
