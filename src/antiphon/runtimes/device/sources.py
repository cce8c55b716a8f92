"""Symmetric memory of libraries that a program has set up already: windows of NCCL, NVSHMEM's heap, PyTorch's.

`Group(..., mine=[rank], tell=..., source=Windows(...))` has its signals, its boxes and all that it is asked for there,
in the place of CUDA's IPC: among hosts that share an NVLink, too, and with a multicast address where there is one. The
libraries are asked by name, so that nothing is linked with them. A process has one rank, as they map memory for one
device. Never run on a GPU (docs/device.md): tried on threads with libraries that do the same there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_size_t, c_void_p
from importlib import import_module
from typing import Any

from antiphon.errors import Unsupported
from antiphon.runtimes.device.beside import path_of
from antiphon.runtimes.device.symmetric import Symmetric

NCCL, NVSHMEM = "libnccl.so.2", "libnvshmem_host.so.3"
_COLLECTIVE = 1  # NCCL_WIN_COLL_SYMMETRIC
_WORLD = 0  # NVSHMEM_TEAM_WORLD
_REFUSALS = (RuntimeError, NotImplementedError, AttributeError)  # what PyTorch says where it has no such memory
_INITIALIZED = 2  # NVSHMEM_STATUS_IS_INITIALIZED; beyond it there is more than that

# Of each function its result, its arguments, and the same as its header declares it (held against that by a test).
NCCL_CALLS: Mapping[str, tuple[Any, tuple[Any, ...], str]] = {
    "ncclMemAlloc": (c_int, (POINTER(c_void_p), c_size_t), "ncclResult_t(void **, size_t)"),
    "ncclMemFree": (c_int, (c_void_p,), "ncclResult_t(void *)"),
    "ncclCommWindowRegister": (
        c_int, (c_void_p, c_void_p, c_size_t, POINTER(c_void_p), c_int),
        "ncclResult_t(ncclComm_t, void *, size_t, ncclWindow_t *, int)",
    ),
    "ncclCommWindowDeregister": (c_int, (c_void_p, c_void_p), "ncclResult_t(ncclComm_t, ncclWindow_t)"),
    "ncclCommCount": (c_int, (c_void_p, POINTER(c_int)), "ncclResult_t(ncclComm_t, int *)"),
    "ncclGetPeerDevicePointer": (
        c_int, (c_void_p, c_size_t, c_int, POINTER(c_void_p)), "ncclResult_t(ncclWindow_t, size_t, int, void **)",
    ),
    "ncclGetLsaMultimemDevicePointer": (
        c_int, (c_void_p, c_size_t, POINTER(c_void_p)), "ncclResult_t(ncclWindow_t, size_t, void **)",
    ),
    "ncclGetErrorString": (c_char_p, (c_int,), "const char *(ncclResult_t)"),
}  # fmt: skip
NVSHMEM_CALLS: Mapping[str, tuple[Any, tuple[Any, ...], str]] = {
    "nvshmemx_init_status": (c_int, (), "int(void)"),
    "nvshmem_n_pes": (c_int, (), "int(void)"),
    "nvshmem_malloc": (c_void_p, (c_size_t,), "void *(size_t)"),
    "nvshmem_free": (None, (c_void_p,), "void(void *)"),
    "nvshmem_ptr": (c_void_p, (c_void_p, c_int), "void *(const void *, int)"),
    "nvshmemx_mc_ptr": (c_void_p, (c_int32, c_void_p), "void *(nvshmem_team_t, const void *)"),
}


def _opened(name: str, calls: Mapping[str, tuple[Any, tuple[Any, ...], str]]) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(path_of(name))
        for call, (result, arguments, _) in calls.items():
            function = getattr(library, call)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise Unsupported(f"{name}: {error}") from None
    return library


class Windows:
    """Windows of NCCL, from 2.29 on. `communicator`: of the program, as ncclComm_t; rank i of the group is its rank i.
    Which device is the current one, the program has set."""

    def __init__(self, communicator: int, library: str = NCCL) -> None:
        self._call, self._communicator = _opened(library, NCCL_CALLS), communicator
        ranks = c_int()
        self._do(self._call.ncclCommCount(communicator, byref(ranks)))
        self._ranks = ranks.value
        self._windows: dict[Symmetric, tuple[int, int]] = {}  # and where the memory is that was asked for

    def begun(self, nbytes: int) -> c_void_p:
        own = c_void_p()
        self._do(self._call.ncclMemAlloc(byref(own), nbytes))
        return own

    def dropped(self, begun: c_void_p) -> None:
        self._call.ncclMemFree(begun)

    def taken(self, begun: c_void_p, nbytes: int) -> Symmetric:
        call, own, window = self._call, begun, c_void_p()
        try:
            self._do(call.ncclCommWindowRegister(self._communicator, own, nbytes, byref(window), _COLLECTIVE))
            if not window.value:
                raise Unsupported("NCCL has no windows of symmetric memory here")
        except Unsupported:
            self.dropped(own)
            raise
        found, every = Symmetric(tuple(self._place(window, rank) for rank in range(self._ranks)), nbytes), c_void_p()
        if not call.ncclGetLsaMultimemDevicePointer(window, 0, byref(every)):  # an error: there are no such switches
            found = found._replace(multicast=every.value or 0)
        self._windows[found] = window.value, own.value or 0
        return found

    def _place(self, window: c_void_p, rank: int) -> int:
        """0 where there is an error, too: the window is one of all processes by now."""
        found = c_void_p()
        code = self._call.ncclGetPeerDevicePointer(window, 0, rank, byref(found))
        return 0 if code else found.value or 0

    def given_back(self, memory: Symmetric) -> None:
        window, own = self._windows.pop(memory)
        self._do(self._call.ncclCommWindowDeregister(self._communicator, window))
        self._do(self._call.ncclMemFree(own))

    def _do(self, code: int) -> None:
        if code:
            said = self._call.ncclGetErrorString(code) or b""
            raise Unsupported(f"NCCL: {said.decode(errors='replace')}")


class Heap:
    """The symmetric heap of NVSHMEM, which the program has set up; rank i of the group is its PE i."""

    def __init__(self, library: str = NVSHMEM) -> None:
        self._call = _opened(library, NVSHMEM_CALLS)
        if self._call.nvshmemx_init_status() < _INITIALIZED:
            raise Unsupported("NVSHMEM is not set up in this process")
        self._own: dict[Symmetric, int] = {}

    def begun(self, nbytes: int) -> None:
        """All of it is one call, which all processes make."""

    def dropped(self, begun: None) -> None:
        """There is nothing yet."""

    def taken(self, begun: None, nbytes: int) -> Symmetric:
        call = self._call
        own = call.nvshmem_malloc(nbytes)
        if not own:
            raise Unsupported(f"{nbytes} bytes: the heap of NVSHMEM is full")
        places = tuple(int(call.nvshmem_ptr(own, rank) or 0) for rank in range(call.nvshmem_n_pes()))
        found = Symmetric(places, nbytes, int(call.nvshmemx_mc_ptr(_WORLD, own) or 0))
        self._own[found] = own
        return found

    def given_back(self, memory: Symmetric) -> None:
        self._call.nvshmem_free(self._own.pop(memory))


class Tensors:
    """Symmetric memory of PyTorch (torch.distributed._symmetric_memory) on this device, among a process group; rank i
    is its rank i. `module`: what has `empty` and `rendezvous`, if not that."""

    def __init__(self, device: Any, group: Any, module: Any = None) -> None:
        try:
            self._module = module or import_module("torch.distributed._symmetric_memory")
        except ImportError as error:
            raise Unsupported(f"PyTorch has no symmetric memory here: {error}") from None
        self._device, self._group = device, group
        self._tensors: dict[Symmetric, Any] = {}

    def begun(self, nbytes: int) -> Any:
        try:
            return self._module.empty(nbytes, dtype=self._module.torch.uint8, device=self._device)
        except _REFUSALS as error:
            raise Unsupported(f"PyTorch: {error}") from None

    def dropped(self, begun: Any) -> None:
        """It goes with the last who knows of it."""

    def taken(self, begun: Any, nbytes: int) -> Symmetric:
        try:
            found = symmetric_of(begun, self._module.rendezvous(begun, self._group))
        except _REFUSALS as error:
            raise Unsupported(f"PyTorch: {error}") from None
        self._tensors[found] = begun
        return found

    def given_back(self, memory: Symmetric) -> None:
        del self._tensors[memory]


def symmetric_of(tensor: Any, handle: Any) -> Symmetric:
    """A symmetric tensor of a program itself, with what `rendezvous` gave for it: for Group.known. It may begin behind
    where its memory does."""
    behind = tensor.data_ptr() - handle.buffer_ptrs[handle.rank]
    places = tuple(place and place + behind for place in handle.buffer_ptrs)
    every = handle.multicast_ptr
    return Symmetric(places, tensor.numel() * tensor.element_size(), every + behind if every else 0)
