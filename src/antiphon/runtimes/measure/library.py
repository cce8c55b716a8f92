"""The algorithms that an MPI library has of its own, and how it is made to use one of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from antiphon.errors import Unsupported, quote
from antiphon.runtimes.engine.launch import MARK
from antiphon.runtimes.measure.control import Control

OPEN_MPI, MPICH = "Open MPI", "MPICH"
OPEN_MPI_NAMES = {
    "allgather": "allgather", "allreduce": "allreduce", "alltoall": "alltoall", "broadcast": "bcast",
    "gather": "gather", "reduce": "reduce", "reducescatter": "reduce_scatter_block", "scatter": "scatter",
}  # fmt: skip
# Those that cut messages into segments, and with how many bytes in one they are tried (0: as they choose themselves).
SEGMENTED = {
    "allreduce": ("segmented_ring",),
    "broadcast": ("chain", "pipeline", "split_binary_tree", "binary_tree", "binomial", "knomial"),
    "reduce": ("chain", "pipeline", "binary", "binomial", "in-order_binary"),
}
SEGMENTS = (0, 8192, 65536)
FANS = (2, 4)  # how many chains begin at the root
MPICH_NAMES = {
    "allgather": "ALLGATHER", "allreduce": "ALLREDUCE", "alltoall": "ALLTOALL", "broadcast": "BCAST",
    "reduce": "REDUCE", "reducescatter": "REDUCE_SCATTER_BLOCK",
}  # fmt: skip
# Those that a rule can name with what it is measured with: for every parameter the end of its variable.
_EXCHANGE = {"k": "RECEXCH_KVAL", "single_phase_recv": "RECEXCH_SINGLE_PHASE_RECV"}
_TREE = {"k": "TREE_KVAL", "is_non_blocking": "IS_NON_BLOCKING"}
_PIPELINE = {**_TREE, "chunk_size": "TREE_PIPELINE_CHUNK_SIZE", "recv_pre_posted": "RECV_PRE_POST"}
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
POWERS = {("allgather", "recursive_doubling"), ("reducescatter", "noncommutative")}  # of two, only for these
RADICES = (2, 4, 8)
SEGMENT = 8192  # bytes of a piece in a pipelined tree
DYNAMIC = "coll_tuned_use_dynamic_rules"
DEVICE, FALLBACK = "MPIR_CVAR_DEVICE_COLLECTIVES", "MPIR_CVAR_COLLECTIVE_FALLBACK"
ALONE = {DEVICE: "none", FALLBACK: "error"}  # nothing else is taken in the place of what is set
NESTED = ("smp",)  # calls itself within a host, where it cannot be: there others must be taken


@dataclass(frozen=True)
class Library:
    """An MPI as it says of itself: of every collective its algorithms with their numbers. `file`: its libmpi, "" where
    that cannot be told. `always`: what is set with each of them."""

    name: str
    version: str
    file: str
    algorithms: Mapping[str, Mapping[str, int]]
    always: Mapping[str, int] = field(default_factory=dict)

    @property
    def about(self) -> dict[str, str]:
        return {"name": self.name, "version": self.version, "file": self.file}


@dataclass(frozen=True)
class Candidate:
    """One way to do it. `parameters` is what a rule must say; `settings`: variables of the library."""

    name: str
    parameters: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, int] = field(default_factory=dict)


def library_here(mpi: Any) -> Library:
    """The MPI of this process."""
    told = mpi.Get_library_version().strip("\0 \n")
    for name, form in ((OPEN_MPI, r"Open MPI v([\w.]+)"), (MPICH, r"MPICH Version:\s*([\w.]+)")):
        version = re.search(form, told)
        if version:
            control = Control(mpi)
            variables = {kind: _variable(name, kind) for kind in (OPEN_MPI_NAMES if name == OPEN_MPI else MPICH_NAMES)}
            algorithms = {kind: control.names(variable) for kind, variable in variables.items()}
            always = {DYNAMIC: 1}
            if name == MPICH:
                said = {key: control.names(key) for key in ALONE}
                always = {key: said[key][word] for key, word in ALONE.items() if word in said[key]}
            return Library(name, version[1], _file(), algorithms, always)
    first = told.splitlines()[0] if told else "an MPI without a name"
    raise Unsupported(f"--library-only: knows the algorithms of Open MPI and MPICH, this is {quote(first)}")


def _variable(name: str, kind: str) -> str:
    if name == OPEN_MPI:
        return f"coll_tuned_{OPEN_MPI_NAMES[kind]}_algorithm"
    return f"MPIR_CVAR_{MPICH_NAMES[kind]}_INTRA_ALGORITHM"


def _file() -> str:
    """Which libmpi this process has loaded."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text(encoding="utf-8", errors="replace").splitlines() if maps.exists() else []
    paths = (line.split(maxsplit=5)[-1] for line in lines)
    return next((path for path in paths if re.fullmatch(r"/.*/libmpi\.so[.\d]*", path)), "")


def candidates(library: Library, kind: str, ranks: int, nbytes: int) -> list[Candidate]:
    """The algorithms worth measuring for a size, in the order of their numbers; none where there is no choice."""
    if kind not in library.algorithms:
        return []
    make = _of_open_mpi if library.name == OPEN_MPI else _of_mpich
    found = list(make(library, kind, ranks, nbytes))
    return found if len(found) > 1 else []


def _of_open_mpi(library: Library, kind: str, ranks: int, nbytes: int) -> Iterator[Candidate]:
    variable = _variable(OPEN_MPI, kind)
    for name, number in library.algorithms[kind].items():
        if not number or (name == "two_proc" and ranks != 2):
            continue
        segmented = name in SEGMENTED.get(kind, ())
        for segment, fan in product(SEGMENTS if segmented else (0,), FANS if name == "chain" else (0,)):
            if segment >= nbytes or fan > max(ranks - 1, 1):
                continue
            settings = {**library.always, variable: number, f"{variable}_segmentsize": segment}
            settings |= {f"{variable}_chain_fanout": fan} if fan else {}
            yield Candidate(name, {"number": number, "segment": segment, "fan": fan}, settings)


def _of_mpich(library: Library, kind: str, ranks: int, nbytes: int) -> Iterator[Candidate]:
    del nbytes
    prefix = f"MPIR_CVAR_{MPICH_NAMES[kind]}"
    for name, parameters in MPICH_ALGORITHMS[kind].items():
        number = library.algorithms[kind].get(name)
        if number is None or ((kind, name) in POWERS and ranks & (ranks - 1)):
            continue
        pipelined = name == "pipelined_tree"
        radices: tuple[int, ...] = (
            (1, 2) if pipelined else tuple(radix for radix in RADICES if radix <= max(ranks, RADICES[0]))
        )
        for radix in radices if "k" in parameters else (0,):
            usual = {"k": radix, "is_non_blocking": 1, "chunk_size": SEGMENT if pipelined else 0}
            values = {key: usual.get(key, 0) for key in parameters}
            own = {f"{prefix}_{parameters[key]}": value for key, value in values.items()}
            settings = {**library.always, _variable(MPICH, kind): number, **own}
            if name in NESTED:
                settings.pop(FALLBACK, None)
            yield Candidate(name, values, settings)


class Steering:
    """Makes the library use one algorithm after another, and lets it choose itself again."""

    def __init__(self, mpi: Any) -> None:
        self.mpi, self.control = mpi, Control(mpi)
        self.late = self.control.has(FALLBACK)  # MPICH looks at every call, Open MPI when a communicator is made
        self.before: dict[str, int] = {}
        self.now: dict[str, int] = {}

    def take(self, settings: Mapping[str, int]) -> None:
        """From here on these, and what was before for all others."""
        if settings == self.now:
            return
        self.now = dict(settings)
        for name, value in self.before.items():
            if name not in settings:
                self.control.set(name, value)
        for name, value in settings.items():
            self.before.setdefault(name, self.control.get(name))
            self.control.set(name, value)

    def communicator(self, comm: Any, settings: Mapping[str, int]) -> Any:
        """One on which calls go by these."""
        if self.late:
            return comm
        self.take(settings)
        made = comm.Dup()
        self.take({})
        return made


def read(row: Mapping[str, Any]) -> Library:
    """What `main` says."""
    return Library(row["name"], row["version"], row["file"], row["algorithms"], row["always"])


def main() -> None:
    """Print what the MPI of this process is."""
    from mpi4py import MPI

    try:
        here = library_here(MPI)
        row: dict[str, Any] = {**here.about, "algorithms": here.algorithms, "always": here.always}
    except Unsupported as error:
        row = {"fault": str(error)}
    print(MARK + json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
