"""Control variables of the MPI that this process runs in, by the tools interface of MPI (MPI_T)."""

from __future__ import annotations

import ctypes
import re
from typing import Any

from antiphon.errors import Unsupported

_LONGEST = 8192


class Control:
    """Variables that are whole numbers. Unsupported where the MPI says no to something."""

    def __init__(self, mpi: Any) -> None:
        self.calls = ctypes.CDLL(mpi.__file__)  # of the library that mpi4py itself is linked to
        self.handles: dict[str, ctypes.c_void_p] = {}
        level = ctypes.c_int()
        self._do("MPI_T_init_thread", 0, ctypes.byref(level))

    def has(self, name: str) -> bool:
        return self._index(name) is not None

    def get(self, name: str) -> int:
        value = ctypes.c_int(0)  # where it is of one byte, only that is written
        self._do("MPI_T_cvar_read", self._handle(name), ctypes.byref(value))
        return value.value

    def set(self, name: str, value: int) -> None:
        self._do("MPI_T_cvar_write", self._handle(name), ctypes.byref(ctypes.c_int(value)))

    def names(self, name: str) -> dict[str, int]:
        """What its values are called: as the library describes them, one a line in the order of their numbers, else as
        it enumerates them."""
        index, length = self._index(name), ctypes.c_int(_LONGEST)
        if index is None:
            return {}
        text, one, kind, names = (
            ctypes.create_string_buffer(_LONGEST),
            ctypes.c_int(),
            ctypes.c_void_p(),
            ctypes.c_void_p(),
        )
        self._do(
            "MPI_T_cvar_get_info", index, None, None, ctypes.byref(one), ctypes.byref(kind), ctypes.byref(names), text,
            ctypes.byref(length), ctypes.byref(one), ctypes.byref(one),
        )  # fmt: skip
        told = re.findall(r"^(\w+) +- ", text.value.decode("utf-8", "replace"), re.MULTILINE)
        return {word: number for number, word in enumerate(told)} if told else self._items(names)

    def _items(self, names: ctypes.c_void_p) -> dict[str, int]:
        if not names.value:
            return {}
        count, found = ctypes.c_int(), dict[str, int]()
        self._do("MPI_T_enum_get_info", names, ctypes.byref(count), None, None)
        for at in range(count.value):
            value, text, length = ctypes.c_int(), ctypes.create_string_buffer(_LONGEST), ctypes.c_int(_LONGEST)
            self._do("MPI_T_enum_get_item", names, at, ctypes.byref(value), text, ctypes.byref(length))
            found[text.value.decode("utf-8", "replace")] = value.value
        return found

    def _index(self, name: str) -> int | None:
        index = ctypes.c_int()
        code: int = self.calls.MPI_T_cvar_get_index(name.encode(), ctypes.byref(index))
        return None if code else index.value

    def _handle(self, name: str) -> ctypes.c_void_p:
        if name not in self.handles:
            index, handle, count = self._index(name), ctypes.c_void_p(), ctypes.c_int()
            if index is None:
                raise Unsupported(f"this MPI has no variable {name}")
            self._do("MPI_T_cvar_handle_alloc", index, None, ctypes.byref(handle), ctypes.byref(count))
            self.handles[name] = handle
        return self.handles[name]

    def _do(self, call: str, *given: Any) -> None:
        code = getattr(self.calls, call)(*given)
        if code:
            raise Unsupported(f"this MPI does not let its variables be set: {call} gave error {code}")
