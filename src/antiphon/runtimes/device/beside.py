"""The collectives of NCCL or RCCL on the same buffers, to be measured beside ours; opened by name."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from ctypes import c_void_p
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.collective import Collective
from antiphon.core.program.kinds import INPUT, OUTPUT
from antiphon.errors import Unsupported
from antiphon.runtimes.device.group import Group
from antiphon.runtimes.engine.native import OPERATORS, type_number

KINDS = ("broadcast", "reduce", "scatter", "gather", "allgather", "reducescatter", "allreduce", "alltoall")
FOREIGN = ("int16", "uint16")  # types that it has not
WHOLE = ("scatter", "gather", "alltoall")  # made of single messages, which have no form in place


def path_of(name: str) -> str:
    """Where a wheel has it, else what the system finds by its name."""
    beside = sorted(Path(sysconfig.get_paths()["purelib"]).glob(f"nvidia/*/lib/{name}"))
    return str(beside[0]) if beside else name


class Library:
    """Of a group whose ranks are all here, each on a device of its own. Unsupported where it cannot be had."""

    def __init__(self, group: Group, name: str) -> None:
        self._group, self._handle = group, 0
        ranks = (c_void_p * group.ranks)(*group.handles.values())
        found = group.device.call.ad_library_new(group.ranks, ranks, path_of(name).encode())
        if not found:
            raise Unsupported(f"{name}: {group.device.why()}")
        self._handle = int(found)

    def call(
        self, collective: Collective, unit: int, where: NDArray[np.uintp], dtype: np.dtype[Any], op: str, in_place: bool
    ) -> Callable[[], None]:  # fmt: skip
        """The call that does the same. Unsupported where it has none."""
        kind, ranks = collective.kind, collective.ranks
        even = bool((collective.weights == collective.weights[0]).all()) and len(collective.members) == ranks
        if kind not in KINDS or not even or dtype.name in FOREIGN or (in_place and kind in WHOLE):
            raise Unsupported(f"the library has no {kind} of this kind")
        count = unit * int(collective.weights[0])
        source, target = where[:, OUTPUT if in_place else INPUT].copy(), where[:, OUTPUT].copy()
        own = np.arange(ranks, dtype=np.uintp) * np.uintp(count * dtype.itemsize)
        if in_place and kind == "allgather":
            source += own
        if in_place and kind == "reducescatter":
            target += own
        root = collective.roots[0] if collective.roots else 0
        what = (KINDS.index(kind), count, type_number(dtype), OPERATORS[op], int(root))

        def call() -> None:
            group = self._group
            if group.device.call.ad_library_go(self._handle, *what, source.ctypes.data, target.ctypes.data):
                raise Unsupported(f"the library: {group.device.why()}")

        return call

    def close(self) -> None:
        if self._handle:
            self._group.device.call.ad_library_free(self._handle)
            self._handle = 0
