"""Call NCCL's or RCCL's collectives on the buffers of a group, to compare with plans; loaded by name at run time."""

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

# in the order of the enum in native/library.h
KINDS = ("broadcast", "reduce", "scatter", "gather", "allgather", "reducescatter", "allreduce", "alltoall")
UNSUPPORTED_TYPES = ("int16", "uint16")  # types of ours that NCCL does not have
POINT_TO_POINT = ("scatter", "gather", "alltoall")  # made of sends and receives, which have no form in place


def path_of(name: str) -> str:
    """Return the path of a library in a wheel of NVIDIA, else its name for the dynamic loader to find."""
    in_wheels = sorted(Path(sysconfig.get_paths()["purelib"]).glob(f"nvidia/*/lib/{name}"))
    return str(in_wheels[0]) if in_wheels else name


class NcclGroup:
    """The library for a group with all ranks in this process, each on its own device. Unsupported if it is missing."""

    def __init__(self, group: Group, name: str) -> None:
        # `group.device` is our C library for this kind of GPU (native/); it loads NCCL or RCCL.
        self._group, self._handle = group, 0  # 0: not opened, or closed
        ranks = (c_void_p * group.ranks)(*group.handles.values())
        handle = group.device.call.ad_library_new(group.ranks, ranks, path_of(name).encode())
        if not handle:
            raise Unsupported(f"{name}: {group.device.why()}")
        self._handle = int(handle)

    def call(
        self, collective: Collective, unit: int, where: NDArray[np.uintp], dtype: np.dtype[Any], op: str, in_place: bool
    ) -> Callable[[], None]:  # fmt: skip
        """Return a function that makes the library's call of this collective; Unsupported if the library has none.

        `where`: addresses by [rank, buffer], as in `Group.go`; `unit`: elements per weight 1 of a block."""
        kind, ranks = collective.kind, collective.ranks
        # NCCL's collectives have equal blocks, and all ranks are members
        even = bool((collective.weights == collective.weights[0]).all()) and len(collective.members) == ranks
        if kind not in KINDS or not even or dtype.name in UNSUPPORTED_TYPES or (in_place and kind in POINT_TO_POINT):
            raise Unsupported(f"the library has no {kind} of this kind")
        count = unit * int(collective.weights[0])
        source, target = where[:, OUTPUT if in_place else INPUT].copy(), where[:, OUTPUT].copy()
        offsets = np.arange(ranks, dtype=np.uintp) * np.uintp(count * dtype.itemsize)
        # in place the single buffer has all blocks: a rank's own contribution or result is its block there
        if in_place and kind == "allgather":
            source += offsets
        if in_place and kind == "reducescatter":
            target += offsets
        root = collective.roots[0] if collective.roots else 0
        arguments = (KINDS.index(kind), count, type_number(dtype), OPERATORS[op], int(root))

        def call() -> None:
            group = self._group
            if group.device.call.ad_library_go(self._handle, *arguments, source.ctypes.data, target.ctypes.data):
                raise Unsupported(f"the library: {group.device.why()}")

        return call

    def close(self) -> None:
        if self._handle:
            self._group.device.call.ad_library_free(self._handle)
            self._handle = 0
