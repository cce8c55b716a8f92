"""Read the published tables of nccl-tests and rccl-tests, and check them: measurements, each with its public source.

`data/published.json` is a list of tables. A row has nbytes, then the time in microseconds and the bus bandwidth in GB/s
out of place, then both in place, as the tests print them. `part` says what a table is used for:

    fit       the costs of calls are fitted to these (`fit_nccl.py`)
    held out  whole machines that nothing is fitted to; predictions are checked against them (`bench_nccl.py`)
    told      used for neither: a network with no other table, settings by hand, single rows
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from antiphon.core.collective import KINDS, Collective
from antiphon.core.files import read_bytes, reading
from antiphon.core.interpret import busbw_factor
from antiphon.core.jsontext import check_keys, decode
from antiphon.core.reshape import keep
from antiphon.cost.nccl.layout import NcclLayout, layout_of
from antiphon.errors import Invalid, quote
from antiphon.topologies import topology

FORMAT, VERSION = "antiphon-published", 1
TABLES = Path(__file__).parent / "data" / "published.json"
# Times of RCCL and of RCCLX's hand-made relays among 2 and 4 of the 8 MI350X of a box, all others idle: ms, bfloat16,
# the least of several runs, timed by GPU events from PyTorch. The last column is the version of 27 August 2026.
RELAYS = TABLES.with_name("rcclx-relay.csv")
RELAY_SOURCE = "https://github.com/meta-pytorch/torchcomms/pull/3686"
# Collectives among the 8 GPUs of a box, as XLA's cost model stores them (collective_interpolator_data.h, July 2026):
# bytes in all and us. Two published runs of the H100 table differ by up to 70 % below 2 MiB, by 7 % from 8 MiB on.
XLA = TABLES.with_name("xla-points.csv")
XLA_SOURCE = "https://github.com/openxla/xla/tree/main/xla/service/gpu/model"
XLA_LEAST = 2 * 2**20
# XLA's calls take 1.10 times as long as those of nccl-tests, as the fit says if this is one more of its figures: an
# allreduce of 1 GiB on 8 H100 has 398 GB/s of bus bandwidth, by nccl-tests 466.
XLA_PACE = 1.10
XLA_MACHINES = {"sm_90": ("hgx-h100", "h100"), "sm_100_B200": ("hgx-b200", "b200")}
FIT, HELD_OUT, TOLD = PARTS = ("fit", "held out", "told")
ONE_EACH, ONE_FOR_ALL = "one per GPU", "one for all GPUs"
AGREES = 0.02  # by what part the bus bandwidth may differ from factor * nbytes / time
_ROUNDED = 0.0051  # GB/s: the tests print two digits
_US, _GB = 1e-6, 1e9

Measured = tuple[int, float, float, float, float]


class Published(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """One table. `topology`: the machine as the catalogue has it; `gpu` and `fabric`: what the figures go by.

    `complete`: whether all rows that were published are here, and not some only. `processes`: whether each GPU had a
    process of its own, or one process drove all (each call then launches on one GPU after the other).
    """

    name: str
    machine: str
    collective: str
    ranks: int
    nodes: int
    rows: list[Measured]
    source: str
    part: str
    topology: str = ""
    gpu: str = ""
    fabric: str = ""
    library: str = "NCCL"
    version: str = ""
    environment: str = ""
    processes: str = ONE_EACH
    complete: bool = True

    @property
    def layout(self) -> NcclLayout:
        """The machine as NCCL sees it; of a larger machine its first ranks."""
        machine = topology(self.topology)
        return layout_of(machine if machine.ranks == self.ranks else keep(machine, range(self.ranks)).topology)

    @property
    def factor(self) -> float:
        """Bus bandwidth over nbytes / time."""
        return busbw_factor(Collective(self.collective, self.ranks))

    def seconds(self) -> list[tuple[int, float]]:
        """(nbytes, seconds out of place), ascending."""
        return [(row[0], row[1] * _US) for row in self.rows]

    def check(self) -> None:
        """Invalid where it cannot be what nccl-tests printed: every bus bandwidth is recomputed from size and time."""
        if self.collective not in KINDS:
            raise Invalid(f"collective {quote(self.collective)}: not one of {', '.join(KINDS)}")
        for what, value, known in (("part", self.part, PARTS), ("processes", self.processes, (ONE_EACH, ONE_FOR_ALL))):
            if value not in known:
                raise Invalid(f"{what} {quote(value)}: expected {', '.join(known)}")
        if not 1 <= self.nodes <= self.ranks or self.ranks % self.nodes:
            raise Invalid(f"{self.ranks} ranks on {self.nodes} nodes")
        if "https://" not in self.source or not self.machine:
            raise Invalid("tells no machine, or no public address of its source")
        sizes = [row[0] for row in self.rows]
        if not sizes or sizes[0] <= 0 or sizes != sorted(set(sizes)):
            raise Invalid("rows: expected sizes above 0, ascending, each once")
        for row in self.rows:
            self._check_row(row)

    def _check_row(self, row: Measured) -> None:
        nbytes = row[0]
        for time, told in ((row[1], row[2]), (row[3], row[4])):
            if time <= 0:
                raise Invalid(f"row {nbytes}: a time of {time} us")
            computed = self.factor * nbytes / (time * _US) / _GB
            if abs(told - computed) > AGREES * computed + _ROUNDED:
                raise Invalid(f"row {nbytes}: tells {told} GB/s of bus bandwidth, but its time makes {computed:.2f}")


class _File(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    format: str
    version: int
    tables: list[Published]


def read_published(data: bytes) -> tuple[Published, ...]:
    """The tables in the text of such a file, each checked."""
    file = decode(data, _File)
    check_keys(data)
    if (file.format, file.version) != (FORMAT, VERSION):
        raise Invalid(f'expected "format": "{FORMAT}", "version": {VERSION}')
    names: set[str] = set()
    for number, table in enumerate(file.tables):
        if table.name in names:
            raise Invalid(f"tables[{number}]: {quote(table.name)} is there twice")
        names.add(table.name)
        try:
            table.check()
        except Invalid as error:
            raise Invalid(f"tables[{number}] ({table.name}): {error}") from None
    return tuple(file.tables)


@cache
def published() -> tuple[Published, ...]:
    """Return the tables of `data/published.json`."""
    with reading(TABLES.name):
        return read_published(read_bytes(TABLES))


class Relayed(NamedTuple):
    """A row of `data/rcclx-relay.csv`. `nbytes`: the input of one busy rank; seconds of RCCL, of the relay as first
    published, and of the pipelined one (NaN: not published)."""

    collective: str
    busy: int
    nbytes: int
    nccl: float
    relay: float
    pipelined: float


@cache
def relay_sweep() -> tuple[Relayed, ...]:
    """Return the rows of `data/rcclx-relay.csv`."""
    with RELAYS.open(encoding="utf-8", newline="") as file:
        return tuple(
            Relayed(
                row["collective"], int(row["busy"]), int(row["nbytes"]), float(row["nccl_ms"]) / 1e3,
                float(row["relay_ms"]) / 1e3, float(row["pipelined_relay_ms"] or "nan") / 1e3,
            )
            for row in csv.DictReader(file)
        )  # fmt: skip


@cache
def relay_tables() -> tuple[Published, ...]:
    """Return RCCL's times of that sweep as tables.

    Plans are held against those of an allreduce between two, so nothing is fitted to them; alltoall is made of sends,
    which the fit leaves out.
    """
    tables = []
    for kind, busy in dict.fromkeys((row.collective, row.busy) for row in relay_sweep()):
        rows = [row for row in relay_sweep() if (row.collective, row.busy) == (kind, busy)]
        measured = [(row.nbytes * (busy if kind == "allgather" else 1), row.nccl / _US) for row in rows]
        table = Published(
            name=f"mi350x-{busy}-{kind}", machine="a box of 8 MI350X", collective=kind, ranks=busy, nodes=1,
            rows=_one_time_each(kind, busy, measured), source=RELAY_SOURCE, topology="mi350x", gpu="mi350x",
            part=TOLD if kind == "alltoall" or (kind, busy) == ("allreduce", 2) else FIT, library="RCCL",
        )  # fmt: skip
        table.check()
        tables.append(table)
    return tuple(tables)


@cache
def xla_tables() -> tuple[Published, ...]:
    """Return the times of `data/xla-points.csv` from 2 MiB on, over XLA_PACE, as tables: H100 in part fit, B200 held
    out."""
    points: dict[tuple[str, str, str, int], list[tuple[int, float]]] = {}
    with XLA.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if int(row["nbytes"]) >= XLA_LEAST:
                key = row["table"], row["part"], row["collective"], int(row["ranks"])
                points.setdefault(key, []).append((int(row["nbytes"]), float(row["us"]) / XLA_PACE))
    tables = []
    for (name, part, kind, ranks), measured in points.items():
        box, gpu = XLA_MACHINES[name]
        table = Published(
            name=f"{gpu}-xla-{kind}", machine=f"8 {gpu.upper()} as XLA has them", collective=kind, ranks=ranks, nodes=1,
            rows=_one_time_each(kind, ranks, measured), source=XLA_SOURCE, topology=box, gpu=gpu, part=part,
            complete=False,
        )  # fmt: skip
        table.check()
        tables.append(table)
    return tuple(tables)


def _one_time_each(kind: str, ranks: int, measured: list[tuple[int, float]]) -> list[Measured]:
    """Return rows as nccl-tests prints them where one time in us per size is published."""
    factor = busbw_factor(Collective(kind, ranks))
    rates = [factor * nbytes / (us * _US) / _GB for nbytes, us in measured]
    return [(nbytes, us, rate, us, rate) for (nbytes, us), rate in zip(measured, rates, strict=True)]
