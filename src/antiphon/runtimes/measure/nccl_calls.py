"""Call NCCL or RCCL with every setting that it has, on the GPU of this process; by ctypes, so nothing is compiled.

How a setting reaches the library depends on its version:

    algorithm, protocol,   from 2.32 the configuration of each call (ncclAllReduceConfig); before, communicators of
    channels, CTA policy   their own, made while NCCL_ALGO and NCCL_PROTO are set, with minCTAs, maxCTAs and CTAPolicy
    symmetric kernels      likewise (all names that begin with SYMK_); before, NCCL chooses for registered buffers
    chunk size             a communicator of its own, whose tuner is our plugin, with a rule per collective (from 2.30)
    registered buffers     a communicator of its own, with the buffers as symmetric windows (from 2.27)
    library                a communicator of another library with NCCL's interface: 0 NCCL, 1 MSCCL++

So a communicator is made for each `Nccl.key(setting)`. Settings are numbers by name, those of a `LibraryCandidate`
(library.py); the default is {}: the library's own choice. What the library does not do raises `Refused` and is not
measured.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from ctypes import Structure, byref, c_char, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from antiphon.core.collective import Collective
from antiphon.errors import Missing, Unsupported
from antiphon.formats.stock.nccl_tuner import ALGORITHMS, HEAD, SUPPORTED
from antiphon.runtimes.device.nccl_library import path_of
from antiphon.runtimes.measure.case import Case

Settings = Mapping[str, int]
PROTOCOLS = ("ll", "ll128", "simple")
# NCCL's numbers of types and operators are positions in its enumerations
_NAMES = "int8 uint8 int32 uint32 int64 uint64 float16 float32 float64 bfloat16 float8_e4m3fn float8_e5m2"
TYPES = {name: number for number, name in enumerate(_NAMES.split())}
OPERATORS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
# By collective: the function, and which of operator and root it takes.
ENTRIES = {
    "allreduce": ("ncclAllReduce", ("op",)), "reducescatter": ("ncclReduceScatter", ("op",)),
    "reduce": ("ncclReduce", ("op", "root")), "broadcast": ("ncclBroadcast", ("root",)),
    "allgather": ("ncclAllGather", ()), "alltoall": ("ncclAlltoAll", ()), "gather": ("ncclGather", ("root",)),
    "scatter": ("ncclScatter", ("root",)),
}  # fmt: skip
# versions as ncclGetVersion returns them (2.32.0: 23200)
PER_CALL = 23200  # from here on the configuration of a call (CallConfig, since 2.31) also selects protocols
CHUNKS = 23000  # from here on tuner plugins set chunk sizes
WINDOWS = 22700  # from here on there are symmetric windows
CONFIGURED = 22703  # the version whose fields CommConfig has
# as in nccl.h:
EFFICIENT, ZERO = 1, 2  # CTA policies: few multiprocessors; none (copy engines)
SYMMETRIC = 1  # kind of windows: at the same place on all ranks
UNDEFINED, MAGIC = -(2**31), 0xCAFEBEEF  # a field that is not set; the mark of a configuration
COMMUNICATOR_KEYS = ("library", "registered", "chunk")  # settings that always need a communicator of their own
VARIABLES = ("NCCL_ALGO", "NCCL_PROTO")
GPU_RUNTIMES = {
    "cuda": ("libcudart.so", "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"), "hip": ("libamdhip64.so",),
}  # fmt: skip
# as in the headers of CUDA and HIP:
TO_GPU, FROM_GPU = 1, 2  # directions of copies
NOT_WAITING = 1  # kind of streams: they do not wait for the default stream


class Refused(Unsupported):
    """The library does not support or rejects a setting."""


class UniqueId(Structure):
    """What the processes of a communicator have in common."""

    _fields_ = (("internal", c_char * 128),)


class CommConfig(Structure):
    """The beginning of ncclConfig_t, as far as NCCL 2.27 has it."""

    _fields_ = (
        ("size", c_size_t), ("magic", c_uint), ("version", c_uint), ("blocking", c_int), ("cgaClusterSize", c_int),
        ("minCTAs", c_int), ("maxCTAs", c_int), ("netName", c_char_p), ("splitShare", c_int), ("trafficClass", c_int),
        ("commName", c_char_p), ("collnetEnable", c_int), ("CTAPolicy", c_int),
    )  # fmt: skip


class CallConfig(Structure):
    """ncclCollConfig_t of NCCL 2.31: later versions append to it."""

    _fields_ = (
        ("size", c_size_t), ("magic", c_uint), ("version", c_uint), ("ext", c_void_p), ("minCTAs", c_int),
        ("maxCTAs", c_int), ("nvlsCTAs", c_int), ("cgaClusterSize", c_int), ("algSelection", c_char_p),
        ("forceAlgSelection", c_int), ("CTAPolicy", c_int), ("userProfilerTag", c_uint64),
    )  # fmt: skip


def make_config(kind: type[Any], version: int, settings: Settings) -> Any:
    """Return a configuration with the channels and the policy of these settings alone."""
    config = kind(ctypes.sizeof(kind), MAGIC, version)
    for name, type_ in kind._fields_[3:]:  # the first three are set
        if type_ is c_int:
            setattr(config, name, UNDEFINED)
    config.minCTAs = config.maxCTAs = settings.get("channels", UNDEFINED)
    config.CTAPolicy = settings.get("policy", UNDEFINED)
    return config


def selection_text(algorithm: str, protocol: str) -> str:
    """Return NCCL's algSelection for an algorithm: a name selects all those that begin with it, "+^NAME" excludes.

    >>> selection_text("ring", "ll")
    'RING_LL+^RING_LL128'
    """
    name = "NVLSTREE" if algorithm == "nvls-tree" else algorithm.replace("-", "_").upper()
    return f"{name}_{protocol.upper()}" + (f"+^{name}_LL128" if protocol == "ll" else "")


def load_library(name: str, files: Sequence[str]) -> ctypes.CDLL:
    """Return the first of these libraries that loads, from the system's search or a wheel."""
    for path in [*files, *(path_of(file) for file in files)]:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise Missing(f"--on nccl: {files[0]} of {name} is not found; install it, or name its folder in LD_LIBRARY_PATH")


class CLibrary:
    """A library whose functions return 0, or the number of an error. `prefix`: of their names."""

    def __init__(self, library: ctypes.CDLL, prefix: str) -> None:
        self.library, self.prefix = library, prefix

    def has(self, name: str) -> bool:
        return hasattr(self.library, self.prefix + name)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function. Refused if it is missing or fails."""
        if not self.has(name):
            raise Refused(f"the library has no {self.prefix}{name}")
        code = getattr(self.library, self.prefix + name)(*arguments)
        if code:
            text = getattr(self.library, f"{self.prefix}GetErrorString")
            text.restype = c_char_p
            raise Refused(f"{self.prefix}{name}: {text(code).decode('utf-8', 'replace')}")

    def get(self, kind: type[Any], name: str, *arguments: Any) -> int:
        """Return what the function writes through its first argument."""
        value = kind()
        self.call(name, byref(value), *arguments)
        return value.value or 0


class GpuRuntime(CLibrary):
    """The GPU of this process, by CUDA's or HIP's runtime; `local`: the number of this process on its host."""

    def __init__(self, vendor: str, local: int) -> None:
        super().__init__(load_library(vendor, GPU_RUNTIMES[vendor]), vendor)
        devices, why = 0, ""
        try:
            devices = self.get(c_int, "GetDeviceCount")
        except Refused as error:
            why = f" ({error})"
        if not devices:
            raise Missing(f"--on nccl: this process sees no GPU{why}; see nvidia-smi or rocm-smi")
        self.call("SetDevice", c_int(local % devices))
        self.stream = c_void_p(self.get(c_void_p, "StreamCreateWithFlags", c_uint(NOT_WAITING)))
        self.events = [c_void_p(self.get(c_void_p, "EventCreate")) for _ in range(2)]

    def copy(self, target: int, source: int, nbytes: int, direction: int) -> None:
        self.call("Memcpy", c_void_p(target), c_void_p(source), c_size_t(nbytes), c_int(direction))


class Nccl(CLibrary):
    """A library with NCCL's interface. `table`: the file that our tuner plugin reads, if it is loaded; `per_call`:
    whether algorithm, protocol, channels and policy are settings of calls."""

    def __init__(self, path: str, table: Path | None = None) -> None:
        super().__init__(load_library("NCCL", (path,)), "nccl")
        self.table, self.version = table, self.get(c_int, "GetVersion")
        self.per_call = self.version >= PER_CALL and self.has("AllReduceConfig")

    def unique_id(self) -> bytes:
        identity = UniqueId()
        self.call("GetUniqueId", byref(identity))
        return bytes(identity)

    def key(self, settings: Settings) -> tuple[tuple[str, int], ...]:
        """Return the settings that need a communicator of their own, sorted.

        These are all settings if calls take none, or if one is a chunk, since the tuner's rule states the others, too.
        """
        needs_all = "chunk" in settings or not self.per_call
        return tuple(sorted((k, v) for k, v in settings.items() if needs_all or k in COMMUNICATOR_KEYS))

    def open(self, settings: Settings, identity: bytes, rank: int, ranks: int) -> c_void_p:
        """Return a new communicator with the settings of a `key`. Collective."""
        communicator = c_void_p()
        arguments = (byref(communicator), c_int(ranks), UniqueId.from_buffer_copy(identity), c_int(rank))
        if self.table is not None:
            self.table.write_text(_chunk_rules(settings), encoding="utf-8")
        # if calls take the settings, or only COMMUNICATOR_KEYS are set, then calls, registrations or the plugin's table
        # state everything; else the communicator's configuration and VARIABLES must
        if self.per_call or not settings.keys() - COMMUNICATOR_KEYS:
            self.call("CommInitRank", *arguments)
            return communicator
        words = [word.replace("-", "") for word in _words(settings)] if "algorithm" in settings else []
        os.environ.update(zip(VARIABLES, words, strict=False))
        try:
            config = make_config(CommConfig, min(self.version, CONFIGURED), settings)
            self.call("CommInitRankConfig", *arguments, byref(config))
        finally:
            # no value of the user is lost: nccl.nccl_here has refused a job in which these variables are set
            for name, _ in zip(VARIABLES, words, strict=False):
                del os.environ[name]
        return communicator

    def collective(
        self, collective: Collective, case: Case, communicator: c_void_p, stream: c_void_p, pointers: Sequence[int]
    ) -> Callable[[], None]:
        """Return the call of a case. Refused if the library has none. `pointers`: input and output on the GPU."""
        entry, needs = ENTRIES[collective.kind]
        name = entry.removeprefix("nccl")
        values = {"op": OPERATORS.get(case.op, -1), "root": collective.roots[0] if collective.roots else 0}
        # `case.library`: the settings of the library's own collective (case.py)
        settings, type_ = case.library or {}, TYPES.get(case.dtype, -1)
        if type_ < 0 or ("op" in needs and values["op"] < 0):
            raise Refused(f"the library has no {case.dtype} {case.op}")
        if name == "AlltoAll" and not self.has(name):
            name = "AllToAll"  # RCCL's
        count = case.unit * int(collective.weights[0])
        arguments: list[Any] = [*map(c_void_p, pointers), c_size_t(count), c_int(type_)]
        arguments += [*(c_int(values[key]) for key in needs), communicator, stream]
        if self.per_call and settings.keys() - COMMUNICATOR_KEYS:
            config = make_config(CallConfig, PER_CALL, settings)
            config.forceAlgSelection = 1
            if "algorithm" in settings:
                config.algSelection = selection_text(*_words(settings)).encode()
            elif settings.get("symmetric"):
                config.algSelection = b"SYMK_"
            name, arguments = f"{name}Config", [*arguments, byref(config)]
        return lambda: self.call(name, *arguments)


def _words(settings: Settings) -> tuple[str, str]:
    """Return the names of the algorithm and the protocol, such as ("nvls-tree", "simple")."""
    return ALGORITHMS[settings["algorithm"]], PROTOCOLS[settings["protocol"]]


def _chunk_rules(settings: Settings) -> str:
    """Return our plugin's table for a communicator: rules for its chunks, or none for NCCL's own choice."""
    if "chunk" not in settings:
        return f"{HEAD}\n"
    # columns as in nccl_tuner.COLUMNS: sizes from and to, algorithm, protocol, channels (0: NCCL's own number), ranks
    # and nodes (*: any), and the bytes of a chunk
    rule = f"0 - {' '.join(_words(settings))} {settings.get('channels', 0)} * * {settings['chunk']}"
    # A rule for every collective that any algorithm serves (the ring serves them all): only the measured one is called.
    return "\n".join([HEAD, *(f"{kind} {rule}" for kind in SUPPORTED["ring"]), ""])
