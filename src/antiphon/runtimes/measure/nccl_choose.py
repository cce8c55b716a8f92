"""Choose among NCCL's own settings by racing them on the GPUs: `tune --on nccl`.

Three races for each collective and size, each with NCCL's own choice among the contestants:

    1  every algorithm with each of its protocols; beside them the CTA policy that saves multiprocessors, registered
       buffers (symmetric kernels, copy engines), MSCCL++, and in a race of their own our best plans by MSCCL++
    2  the fastest algorithm and protocol of 1 with several numbers of channels, unless it is far behind the own choice
    3  the fastest of 2 with several chunk sizes, where NCCL takes them (from 2.30, unless another tuner is in use)

Each race measures the winner of the previous race again, and the last race decides: there a setting has to be faster
than NCCL's own choice by more than 2 %. Settings that no rule file of NCCL can state (policy, registered buffers,
MSCCL++) are measured but not chosen; notes state what they would gain.

Example: at 64 MB of an allreduce 1 finds ring simple 20 % faster than NCCL's own choice, 2 finds 16 channels 4 % faster
than that, 3 keeps NCCL's chunks. The table says ring simple, 16 channels, between the geometric
middles of 64 MB and its neighbours among the sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from antiphon.formats.stock.nccl_tuner import ALGORITHMS
from antiphon.runtimes.measure.case import Case, Row
from antiphon.runtimes.measure.choose import Measured, MeasuredTuning, Owner, relative_time
from antiphon.runtimes.measure.library import Library, LibraryCandidate
from antiphon.runtimes.measure.library_choose import DEFAULT, LibraryRaces
from antiphon.runtimes.measure.nccl import chunk_plugin, find_mscclpp, nccl_here, runs_plans
from antiphon.runtimes.measure.nccl_calls import EFFICIENT, PROTOCOLS, WINDOWS, ZERO
from antiphon.runtimes.measure.nccl_sweep import CHANNEL_COUNTS, MAX_BEHIND, list_algorithms
from antiphon.runtimes.measure.race import MARGIN
from antiphon.select.libraries import CLASSICS
from antiphon.units import format_size

ALGORITHM_RACE, CHANNEL_RACE, CHUNK_RACE = range(3)  # races 1, 2 and 3
CHUNK_SIZES = (2**17, 2**18, 2**19, 2**20, 2**22)  # bytes of the chunks that are tried
MIN_CHUNKED = 2**20  # bytes: below, a message is hardly more than a chunk of each channel
FIRST_VERSIONS = {"nvls": 21700, "nvls-tree": 21800, "pat": 22300}  # of NCCL, as NCCL_VERSION_CODE: 21700 is 2.17.0
NVIDIA_ONLY = ("nvls", "nvls-tree", "collnet-direct", "collnet-chain")
CHANGES = {  # what the program or its environment has to change for it
    "efficiency": "NCCL_CTA_POLICY=EFFICIENCY", "symmetric": "registered buffers and NCCL's symmetric kernels",
    "copies": "registered buffers and copy engines", "mscclpp": "MSCCL++'s library in the place of NCCL's",
}  # fmt: skip


def list_settings(library: Library, kind: str) -> Iterator[LibraryCandidate]:
    """Yield the settings that race 1 tries besides NCCL's own choice."""
    # nccl_here keeps the library's version code in `always`
    version, nvidia = library.always["version"], library.name == "NCCL"
    for algorithm, protocol in list_algorithms(kind):
        if (nvidia or algorithm not in NVIDIA_ONLY) and version >= FIRST_VERSIONS.get(algorithm, 0):
            settings = {"algorithm": ALGORITHMS.index(algorithm), "protocol": PROTOCOLS.index(protocol)}
            yield LibraryCandidate(f"{algorithm} {protocol}", settings=settings)
    if nvidia and version >= WINDOWS:
        yield LibraryCandidate("efficiency", settings={"policy": EFFICIENT})
        yield LibraryCandidate("symmetric", settings={"registered": 1, "symmetric": 1})
        yield LibraryCandidate("copies", settings={"registered": 1, "policy": ZERO})


def list_planners() -> tuple[str, ...]:
    """Return the planners to try by default; () stands for all, a few suffice if no plan of ours can be measured."""
    return () if runs_plans() else CLASSICS


class NcclRaces(LibraryRaces):
    """The three races.

    `stage`: the current race, ALGORITHM_RACE to CHUNK_RACE. By collective and size: `stage_of`, the last race with
    rows; `beside`, by number of the setting, rows of settings that are measured but not chosen. Setting 0 is NCCL's own
    choice (DEFAULT)."""

    def find_library(self) -> Library:
        self.stage, self.stage_of = ALGORITHM_RACE, dict[tuple[str, int], int]()
        self.beside: dict[tuple[str, int], dict[int, Row]] = {}
        self.wrong: dict[str, str] = {}  # by kind: the planner and size at which a plan of ours computed wrong values
        library = nccl_here(self.how)
        self.has_chunks = bool(chunk_plugin(library.name, library.always["version"], self.how.compiler))
        return library

    def measure_and_choose(self, deterministic: bool) -> MeasuredTuning:
        return replace(super().measure_and_choose(deterministic), notes=tuple(self._notes()))

    def measure(self, rows: Mapping[str, Measured]) -> None:
        for self.stage in (ALGORITHM_RACE, CHANNEL_RACE, CHUNK_RACE):
            self.measures_ours = self.stage == ALGORITHM_RACE and runs_plans()
            if not self.interrupted:
                super().measure(rows)

    def list_tried(self, kind: str, size: int, ranks: int, nbytes: int) -> list[int]:
        """Add the settings of this race to those tried; return the numbers of those that race now."""
        tried = self.tried.setdefault((kind, size), [])
        if self.stage == ALGORITHM_RACE:
            tried += [DEFAULT, *list_settings(self.library, kind)]
            if find_mscclpp():
                tried.append(LibraryCandidate("mscclpp", settings={"library": 1}))  # the second library (nccl_process)
            return list(range(len(tried)))
        rows = self.library_rows.get((kind, size), {})
        # the fastest algorithm with protocol: only their names have a blank
        best = min(
            (n for n in rows if " " in tried[n].name), key=lambda number: relative_time(rows[number]), default=None
        )
        if best is None or (0 in rows and relative_time(rows[best]) > MAX_BEHIND * relative_time(rows[0])):
            return []
        values: tuple[int, ...] = CHANNEL_COUNTS
        if self.stage == CHUNK_RACE:
            has_chunks = self.has_chunks and tried[best].name.endswith("simple") and nbytes >= MIN_CHUNKED
            values = CHUNK_SIZES if has_chunks else ()
        key = "channels" if self.stage == CHANNEL_RACE else "chunk"
        winner, count = self.best_number((kind, size)) or 0, len(tried)
        for value in values:
            parameters, settings = {**tried[best].parameters, key: value}, {**tried[best].settings, key: value}
            tried.append(LibraryCandidate(tried[best].name, parameters, settings))
        return [*sorted({0, winner, best}), *range(count, len(tried))] if values else []

    def add_row(
        self, owner: Owner, case: Case, row: Row, rows: Mapping[str, Measured], done_of_total: tuple[int, int]
    ) -> None:
        """Add a measurement, as in `Races`; without `case.library` it is of a plan of ours."""
        if case.library is None and ("refused" in row or row["wrong"]):
            kind, size, number = owner
            if "refused" not in row:
                planner = self.tuning.shortlist[kind][number].candidate.planner
                self.wrong[kind] = f"{planner} at {format_size(size)}"
            return
        super().add_row(owner, case, row, rows, done_of_total)

    def add_library_row(self, key: tuple[str, int], number: int, row: Row) -> None:
        if self.tried[key][number].name in CHANGES:
            self.beside.setdefault(key, {})[number] = row
            return
        if self.stage_of.get(key) != self.stage:  # rows of an earlier race: other contestants, so not comparable
            self.stage_of[key], self.library_rows[key] = self.stage, {}
        super().add_library_row(key, number, row)

    def _notes(self) -> Iterator[str]:
        """Yield notes: settings that gain still more but need a change of the program, and settings not tried."""
        for kind in self.tuning.plans:
            gains: dict[str, dict[int, float]] = {}
            for size in self.sizes:
                key = kind, size
                best = self.best_number(key)
                chosen = self.library_rows[key][best]["over_library"] if best else 1.0
                for number, row in self.beside.get(key, {}).items():
                    if row["over_library"] < MARGIN * chosen:
                        gains.setdefault(self.tried[key][number].name, {})[size] = chosen / row["over_library"]
            for name, by_size in gains.items():
                sizes = [format_size(size) for size in (min(by_size), max(by_size))]
                ends = " to ".join(dict.fromkeys(sizes))
                yield f"{kind} at {ends}: {CHANGES[name]} are up to {max(by_size.values()):.2g}x faster still"
        for kind, where in self.wrong.items():
            yield f"{kind} by MSCCL++ and our plan {where} computed wrong values and does not count; please report it"
        if not runs_plans() and not find_mscclpp():
            yield "MSCCL++ is not installed, so neither it nor plans of ours were measured beside NCCL"
        if not self.has_chunks:
            yield "chunk sizes were not tried: that needs NCCL 2.30, a C compiler, and no other tuner plugin"
