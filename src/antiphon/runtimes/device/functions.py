"""Declare the C functions of device.h for Python, in the library of a device: CUDA, HIP, or threads.

`Group` (group.py) and its memory call them as `Device.call.NAME`; device.h says what each does.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_double, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path

from antiphon.runtimes.engine.build import library

_FUNCTIONS = {  # by name: the type of the result (None: void), then those of the arguments
    "ad_why": (c_char_p,),
    "ad_rank_new": (c_void_p, c_uint32, c_uint32, c_uint32, c_uint32),
    "ad_rank_free": (None, c_void_p),
    "ad_memory_new": (c_void_p, c_void_p, c_size_t),
    "ad_memory_free": (None, c_void_p, c_void_p),
    "ad_memory_shared": (c_void_p, c_void_p, c_size_t, c_void_p),
    "ad_memory_reached": (c_void_p, c_void_p, c_char_p),
    "ad_memory_left": (None, c_void_p, c_void_p),
    "ad_fetch": (c_int, c_void_p, c_void_p, c_void_p, c_size_t),
    "ad_bring": (c_int, c_void_p, c_void_p, c_void_p, c_size_t),
    "ad_copy": (c_int, c_void_p, c_void_p, c_void_p, c_size_t),
    "ad_joint_new": (c_int, c_uint32, c_void_p, c_size_t, c_void_p),
    "ad_joint_free": (None, c_void_p, c_void_p),
    "ad_joint_make": (c_int, c_void_p, c_uint32, c_size_t, c_void_p),
    "ad_joint_enter": (c_int, c_void_p, c_char_p),
    "ad_joint_own": (c_void_p, c_void_p, c_void_p),
    "ad_joint_reached": (c_void_p, c_void_p, c_char_p),
    "ad_joint_all": (c_int, c_uint32, c_void_p),
    "ad_joint_dropped": (None,),
    "ad_rank_signals": (None, c_void_p, c_uint32, c_void_p),
    "ad_box_bytes": (c_size_t,),
    "ad_rank_box": (None, c_void_p, c_uint32, c_void_p),
    "ad_plan_new": (c_void_p, c_void_p, c_void_p, c_int64),
    "ad_plan_free": (None, c_void_p),
    "ad_plan_scratch": (c_int64, c_void_p, c_int64),
    "ad_plan_box": (c_int64, c_void_p, c_int64, c_int),
    "ad_start": (
        c_int, c_uint32, c_void_p, c_void_p, c_uint64, c_int64, c_int, c_int, c_uint32, c_uint32, c_void_p, c_void_p,
    ),
    "ad_wait": (c_int, c_uint32, c_void_p, c_double, c_void_p),
    "ad_graph_new": (
        c_void_p, c_uint32, c_void_p, c_void_p, c_int64, c_int, c_int, c_uint32, c_uint32, c_void_p, c_void_p,
    ),
    "ad_library_new": (c_void_p, c_uint32, c_void_p, c_char_p),
    "ad_library_go": (c_int, c_void_p, c_int, c_int64, c_int, c_int, c_int, c_void_p, c_void_p),
    "ad_library_free": (None, c_void_p),
    "ad_graph_begin": (c_int, c_void_p, c_uint64),
    "ad_graph_free": (None, c_void_p),
    "ad_graph_count": (c_int, c_void_p, c_uint64),
    "ad_graph_enqueue": (c_int, c_void_p, c_void_p),
    "ad_graph_counted": (c_int, c_void_p, c_void_p),
    "ad_graph_stop": (None, c_void_p),
    "ad_stream_new": (c_void_p, c_void_p),
    "ad_stream_end": (c_int, c_void_p, c_void_p),
    "ad_stream_free": (None, c_void_p, c_void_p),
    "ad_stream_record": (c_int, c_void_p, c_void_p),
    "ad_stream_recorded": (c_void_p, c_void_p, c_void_p),
    "ad_recording_enqueue": (c_int, c_void_p, c_void_p, c_void_p),
    "ad_recording_free": (None, c_void_p),
    "ad_by_host": (
        c_int, c_uint32, c_void_p, c_void_p, c_uint64, c_int64, c_int, c_int, c_uint32, c_int, c_void_p, c_void_p,
        c_double,
    ),
}  # fmt: skip


class Device:
    """A library with the functions of device.h."""

    def __init__(self, path: Path) -> None:
        self.call = ctypes.CDLL(str(path))
        for name, (result, *arguments) in _FUNCTIONS.items():
            function = getattr(self.call, name)
            function.restype, function.argtypes = result, arguments

    def why(self) -> str:
        """Return the reason of the last failure."""
        return (self.call.ad_why() or b"").decode(errors="replace")


device = cache(Device)  # Device(path), one per path: a library loaded twice would have two sets of ranks and memory


def threads(compiler: str = "") -> Device:
    """Return the device that runs the kernel on processor threads. `compiler`: "" is the default (build.py)."""
    return device(library("device", compiler))
