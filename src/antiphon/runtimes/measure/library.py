"""List the algorithms of an MPI library and select one of them, through MPI's tools interface (MPI_T).

An algorithm is selected by setting a control variable, an integer whose values have names (an MPI_T enumeration), such
as coll_tuned_allreduce_algorithm = 4 ("ring") in Open MPI, MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM in MPICH. `candidates`
lists the algorithms to try for a size, with the values of their parameters. `Steering` sets the variables of a
candidate and restores all others. `Control` reads and writes variables by ctypes.
"""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from antiphon.errors import Unsupported, quote
from antiphon.runtimes.engine.launch import MARK

OPEN_MPI, MPICH = "Open MPI", "MPICH"
OPEN_MPI_NAMES = {
    "allgather": "allgather", "allreduce": "allreduce", "alltoall": "alltoall", "broadcast": "bcast",
    "gather": "gather", "reduce": "reduce", "reducescatter": "reduce_scatter_block", "scatter": "scatter",
}  # fmt: skip
# Algorithms that cut messages into segments, and the sizes of segments to try (0: the default).
SEGMENTED = {
    "allreduce": ("segmented_ring",),
    "broadcast": ("chain", "pipeline", "split_binary_tree", "binary_tree", "binomial", "knomial"),
    "reduce": ("chain", "pipeline", "binary", "binomial", "in-order_binary"),
}
SEGMENTS = (0, 8192, 65536)  # bytes
FANS = (2, 4)  # numbers of chains that begin at the root
MPICH_NAMES = {
    "allgather": "ALLGATHER", "allreduce": "ALLREDUCE", "alltoall": "ALLTOALL", "broadcast": "BCAST",
    "reduce": "REDUCE", "reducescatter": "REDUCE_SCATTER_BLOCK",
}  # fmt: skip
_EXCHANGE = {"k": "RECEXCH_KVAL", "single_phase_recv": "RECEXCH_SINGLE_PHASE_RECV"}
_TREE = {"k": "TREE_KVAL", "is_non_blocking": "IS_NON_BLOCKING"}
_PIPELINE = {**_TREE, "chunk_size": "TREE_PIPELINE_CHUNK_SIZE", "recv_pre_posted": "RECV_PRE_POST"}
# Collective -> algorithm that a rule of MPICH's selection file can name -> parameter of such a rule -> suffix of the
# control variable that sets it: broadcast, tree, k -> TREE_KVAL, as in MPIR_CVAR_BCAST_TREE_KVAL.
MPICH_ALGORITHMS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "allgather": {
        "nb": {}, "brucks": {}, "k_brucks": {"k": "BRUCKS_KVAL"}, "recursive_doubling": {}, "ring": {},
        "recexch_doubling": _EXCHANGE, "recexch_halving": _EXCHANGE,
    },
    "allreduce": {
        "nb": {}, "smp": {}, "recursive_doubling": {}, "recursive_multiplying": {"k": "RECURSIVE_MULTIPLYING_KVAL"},
        "reduce_scatter_allgather": {}, "recexch": _EXCHANGE, "ring": {}, "k_reduce_scatter_allgather": _EXCHANGE,
        "tree": {
            "k": "TREE_KVAL", "chunk_size": "TREE_PIPELINE_CHUNK_SIZE", "buffer_per_child": "TREE_BUFFER_PER_CHILD",
        },
    },
    "alltoall": {"nb": {}, "brucks": {}, "k_brucks": {"k": "BRUCKS_KVAL"}, "pairwise": {}, "scattered": {}},
    "broadcast": {
        "nb": {}, "smp": {}, "binomial": {}, "scatter_recursive_doubling_allgather": {}, "scatter_ring_allgather": {},
        "tree": _TREE, "pipelined_tree": _PIPELINE,
    },
    "reduce": {"nb": {}, "smp": {}, "binomial": {}, "reduce_scatter_gather": {}},
    "reducescatter": {
        "nb": {}, "noncommutative": {}, "recursive_doubling": {}, "pairwise": {}, "recursive_halving": {},
    },
}  # fmt: skip
POWERS = {("allgather", "recursive_doubling"), ("reducescatter", "noncommutative")}  # powers of two of ranks only
RADICES = (2, 4, 8)  # values of the parameters k (KVAL) to try
SEGMENT = 8192  # bytes, in a pipelined tree
DYNAMIC = "coll_tuned_use_dynamic_rules"  # Open MPI ignores variables of algorithms unless this is 1
DEVICE, FALLBACK = "MPIR_CVAR_DEVICE_COLLECTIVES", "MPIR_CVAR_COLLECTIVE_FALLBACK"
NO_REPLACEMENT = {DEVICE: "none", FALLBACK: "error"}  # MPICH then never replaces the algorithm that is set
NESTED = ("smp",)  # calls a collective within each host, where smp itself is not allowed: MPICH must replace it there


@dataclass(frozen=True)
class Library:
    """A library of collectives (an MPI, or NCCL): by collective its algorithms, with their numbers.

    `file`: an MPI's libmpi.so, "" if unknown. `always`: values of variables that are set with each algorithm."""

    name: str
    version: str
    file: str
    algorithms: Mapping[str, Mapping[str, int]]
    always: Mapping[str, int] = field(default_factory=dict)

    @property
    def description(self) -> dict[str, str]:
        return {"name": self.name, "version": self.version, "file": self.file}


@dataclass(frozen=True)
class LibraryCandidate:
    """An algorithm to try. `parameters`: as a file of rules states them. `settings`: control variables to set."""

    name: str
    parameters: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, int] = field(default_factory=dict)


def library_here(mpi: Any) -> Library:
    """Return the MPI of this process."""
    description = mpi.Get_library_version().strip("\0 \n")
    for name, pattern in ((OPEN_MPI, r"Open MPI v([\w.]+)"), (MPICH, r"MPICH Version:\s*([\w.]+)")):
        version = re.search(pattern, description)
        if version:
            control = Control(mpi)
            variables = {
                kind: _algorithm_variable(name, kind) for kind in (OPEN_MPI_NAMES if name == OPEN_MPI else MPICH_NAMES)
            }
            algorithms = {kind: control.names(variable) for kind, variable in variables.items()}
            always = {DYNAMIC: 1}
            if name == MPICH:
                values_of = {key: control.names(key) for key in NO_REPLACEMENT}
                always = {key: values_of[key][word] for key, word in NO_REPLACEMENT.items() if word in values_of[key]}
            return Library(name, version[1], _libmpi_path(), algorithms, always)
    first_line = description.splitlines()[0] if description else "an MPI without a name"
    raise Unsupported(f"--library-only: knows the algorithms of Open MPI and MPICH, this is {quote(first_line)}")


def _algorithm_variable(name: str, kind: str) -> str:
    if name == OPEN_MPI:
        return f"coll_tuned_{OPEN_MPI_NAMES[kind]}_algorithm"
    return f"MPIR_CVAR_{MPICH_NAMES[kind]}_INTRA_ALGORITHM"


def _libmpi_path() -> str:
    """Return the path of the libmpi.so that this process has loaded, "" if there is none."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text(encoding="utf-8", errors="replace").splitlines() if maps.exists() else []
    paths = (line.split(maxsplit=5)[-1] for line in lines)
    return next((path for path in paths if re.fullmatch(r"/.*/libmpi\.so[.\d]*", path)), "")


def candidates(library: Library, kind: str, ranks: int, nbytes: int) -> list[LibraryCandidate]:
    """Return the algorithms of an MPI to measure for a size; none if there is no choice. (NCCL's: nccl_choose.py.)"""
    if kind not in library.algorithms:
        return []
    make = _of_open_mpi if library.name == OPEN_MPI else _of_mpich
    selected = list(make(library, kind, ranks, nbytes))
    return selected if len(selected) > 1 else []


def _of_open_mpi(library: Library, kind: str, ranks: int, nbytes: int) -> Iterator[LibraryCandidate]:
    """Yield Open MPI's algorithms with several segment sizes and fan-outs."""
    variable = _algorithm_variable(OPEN_MPI, kind)
    for name, number in library.algorithms[kind].items():
        if not number or (name == "two_proc" and ranks != 2):  # number 0: Open MPI chooses
            continue
        segmented = name in SEGMENTED.get(kind, ())
        for segment, fan in product(SEGMENTS if segmented else (0,), FANS if name == "chain" else (0,)):
            if segment >= nbytes or fan > max(ranks - 1, 1):
                continue
            # every collective has a variable for the size of segments, also where the algorithm ignores it
            settings = {**library.always, variable: number, f"{variable}_segmentsize": segment}
            settings |= {f"{variable}_chain_fanout": fan} if fan else {}
            yield LibraryCandidate(name, {"number": number, "segment": segment, "fan": fan}, settings)


def _of_mpich(library: Library, kind: str, ranks: int, nbytes: int) -> Iterator[LibraryCandidate]:
    """Yield MPICH's algorithms with several radices, the same for all sizes."""
    del nbytes  # `candidates` calls both generators alike
    prefix = f"MPIR_CVAR_{MPICH_NAMES[kind]}"
    for name, parameters in MPICH_ALGORITHMS[kind].items():
        number = library.algorithms[kind].get(name)
        if number is None or ((kind, name) in POWERS and ranks & (ranks - 1)):
            continue
        pipelined = name == "pipelined_tree"
        # A pipelined tree of radix 1 is a chain. Every node sends each segment to all its children, so wide trees,
        # which save latency, have little bandwidth.
        radices: tuple[int, ...] = (
            (1, 2) if pipelined else tuple(radix for radix in RADICES if radix <= max(ranks, RADICES[0]))
        )
        for radix in radices if "k" in parameters else (0,):
            # chunk_size 0: without pipelining; parameters that are not listed here are 0
            candidate_values = {"k": radix, "is_non_blocking": 1, "chunk_size": SEGMENT if pipelined else 0}
            values = {key: candidate_values.get(key, 0) for key in parameters}
            parameter_settings = {f"{prefix}_{parameters[key]}": value for key, value in values.items()}
            settings = {**library.always, _algorithm_variable(MPICH, kind): number, **parameter_settings}
            if name in NESTED:
                settings.pop(FALLBACK, None)
            yield LibraryCandidate(name, values, settings)


class Steering:
    """Set the library's control variables for one algorithm after another, and restore them."""

    def __init__(self, mpi: Any) -> None:
        self.mpi, self.control = mpi, Control(mpi)
        # MPICH, which alone has FALLBACK, reads the variables at every call; Open MPI when a communicator is made
        self.reads_at_calls = self.control.has(FALLBACK)
        self.original: dict[str, int] = {}  # the user's values of all variables that were ever set here
        self.settings: dict[str, int] = {}  # the variables set now

    def apply(self, settings: Mapping[str, int]) -> None:
        """Set these variables, and restore all others."""
        if settings == self.settings:
            return
        self.settings = dict(settings)
        for name, value in self.original.items():
            if name not in settings:
                self.control.set(name, value)
        for name, value in settings.items():
            self.original.setdefault(name, self.control.get(name))
            self.control.set(name, value)

    def communicator(self, comm: Any, settings: Mapping[str, int]) -> Any:
        """Return a communicator for calls with these settings.

        Where the library `reads_at_calls` it is `comm` itself, and the caller must `apply` the settings before calls.
        """
        if self.reads_at_calls:
            return comm
        self.apply(settings)
        duplicate = comm.Dup()
        self.apply(settings={})
        return duplicate


def read_library(row: Mapping[str, Any]) -> Library:
    """Return the library that `main` printed."""
    return Library(row["name"], row["version"], row["file"], row["algorithms"], row["always"])


def main() -> None:
    """Print the MPI of this process as a line of JSON, or {"fault": reason} if it is not supported."""
    from mpi4py import MPI

    try:
        library = library_here(MPI)
        row: dict[str, Any] = {**library.description, "algorithms": library.algorithms, "always": library.always}
    except Unsupported as error:
        row = {"fault": str(error)}
    print(MARK + json.dumps(row), flush=True)


# ---- control variables ----

_MAX_TEXT = 8192  # bytes of a name or description that MPI_T returns; longer ones are cut


class Control:
    """The integer control variables of this process's MPI. Raises Unsupported if the MPI refuses a call."""

    def __init__(self, mpi: Any) -> None:
        self.calls = ctypes.CDLL(mpi.__file__)  # the library that mpi4py is linked to
        self.handles: dict[str, ctypes.c_void_p] = {}
        level = ctypes.c_int()
        self._call_checked("MPI_T_init_thread", 0, ctypes.byref(level))

    def has(self, name: str) -> bool:
        return self._variable_index(name) is not None

    def get(self, name: str) -> int:
        value = ctypes.c_int(0)  # 0: if the variable has a single byte (a boolean), MPI overwrites only the lowest one
        self._call_checked("MPI_T_cvar_read", self._variable_handle(name), ctypes.byref(value))
        return value.value

    def set(self, name: str, value: int) -> None:
        self._call_checked("MPI_T_cvar_write", self._variable_handle(name), ctypes.byref(ctypes.c_int(value)))

    def names(self, name: str) -> dict[str, int]:
        """Return the values of a variable by name: from its description, which has a line "NAME - ..." for each value
        from 0 on, else from its MPI_T enumeration; none if there is no such variable.
        """
        index, length = self._variable_index(name), ctypes.c_int(_MAX_TEXT)
        if index is None:
            return {}
        text, unused = ctypes.create_string_buffer(_MAX_TEXT), ctypes.c_int()
        datatype, names = ctypes.c_void_p(), ctypes.c_void_p()
        # `unused` gets verbosity, binding and scope in turn
        self._call_checked(
            "MPI_T_cvar_get_info", index, None, None, ctypes.byref(unused), ctypes.byref(datatype), ctypes.byref(names),
            text, ctypes.byref(length), ctypes.byref(unused), ctypes.byref(unused),
        )  # fmt: skip
        words = re.findall(r"^(\w+) +- ", text.value.decode("utf-8", "replace"), re.MULTILINE)
        return {word: number for number, word in enumerate(words)} if words else self._enumeration_items(names)

    def _enumeration_items(self, names: ctypes.c_void_p) -> dict[str, int]:
        """Return the values of an MPI_T enumeration by name; none for a null handle."""
        if not names.value:
            return {}
        count, items = ctypes.c_int(), dict[str, int]()
        self._call_checked("MPI_T_enum_get_info", names, ctypes.byref(count), None, None)
        for index in range(count.value):
            value, text, length = ctypes.c_int(), ctypes.create_string_buffer(_MAX_TEXT), ctypes.c_int(_MAX_TEXT)
            self._call_checked("MPI_T_enum_get_item", names, index, ctypes.byref(value), text, ctypes.byref(length))
            items[text.value.decode("utf-8", "replace")] = value.value
        return items

    def _variable_index(self, name: str) -> int | None:
        """Return the number that a control variable has in this process; None if there is no such variable."""
        index = ctypes.c_int()
        code: int = self.calls.MPI_T_cvar_get_index(name.encode(), ctypes.byref(index))
        return None if code else index.value

    def _variable_handle(self, name: str) -> ctypes.c_void_p:
        """Return the handle that reads and writes a control variable. Unsupported if there is no such variable."""
        if name not in self.handles:
            index, handle, count = self._variable_index(name), ctypes.c_void_p(), ctypes.c_int()
            if index is None:
                raise Unsupported(f"this MPI has no variable {name}")
            self._call_checked("MPI_T_cvar_handle_alloc", index, None, ctypes.byref(handle), ctypes.byref(count))
            self.handles[name] = handle
        return self.handles[name]

    def _call_checked(self, call: str, *arguments: Any) -> None:
        code = getattr(self.calls, call)(*arguments)
        if code:
            raise Unsupported(f"this MPI does not let its variables be set: {call} gave error {code}")


if __name__ == "__main__":
    main()
