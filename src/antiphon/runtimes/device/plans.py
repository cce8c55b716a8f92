"""Plans as a device has them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import c_void_p
from typing import Any

import numpy as np

from antiphon.errors import Invalid, Unsupported
from antiphon.lower.device.table import Table
from antiphon.runtimes.device.functions import Device
from antiphon.runtimes.engine.native import type_number


def handles_of(ranks: Mapping[int, int]) -> ctypes.Array[c_void_p]:
    """As device.h takes those of several ranks, in their order."""
    return (c_void_p * len(ranks))(*ranks.values())


def kernel_type(dtype: np.dtype[Any]) -> int:
    """Return the number by which the kernel knows a data type; it has no float8."""
    if dtype.name.startswith("float8"):
        raise Unsupported(f"the kernel for GPUs does not support {dtype.name}; use float16 or bfloat16")
    return type_number(dtype)


class DevicePlan:
    """The tables of all ranks of a group, those of its own ranks as its device has them. `ranks`: of the group."""

    def __init__(self, device: Device, ranks: Mapping[int, int], tables: Sequence[Table]) -> None:
        self._device, self.ranks = device, ranks
        self.streams, self.sliced = max(one.streams for one in tables), all(one.sliced for one in tables)
        self.packets = any(one.packets for one in tables)
        self.handles: dict[int, int] = {}
        for rank, its in ranks.items():
            words = np.ascontiguousarray(tables[rank].words, np.int64)
            handle = self._device.call.ad_plan_new(its, words.ctypes.data, len(words))
            if not handle:
                raise Invalid(f"the device table of rank {rank}: {self._device.why()}")
            self.handles[rank] = handle
        self.every = handles_of(self.handles)

    def fits(self, unit: int, dtype: np.dtype[Any]) -> bool:
        """Whether its packets have room in the boxes of these ranks."""
        call, most = self._device.call, self._device.call.ad_box_bytes() // 2
        return all(call.ad_plan_box(one, unit, kernel_type(dtype)) <= most for one in self.handles.values())

    def scratch(self, rank: int, unit: int) -> int:
        """Elements of scratch at a rank, where a unit of weight has so many."""
        return int(self._device.call.ad_plan_scratch(self.handles[rank], unit))

    def __del__(self) -> None:
        for handle in getattr(self, "handles", {}).values():
            self._device.call.ad_plan_free(handle)
