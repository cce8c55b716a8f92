"""Read the published tables of nccl-tests and rccl-tests, and check them: measurements, each with its public source.

`data/published.json` is a list of tables. A row has nbytes, then the time in microseconds and the bus bandwidth in GB/s
out of place, then both in place, as the tests print them. `part` says what a table is used for:

    fit       the costs of calls are fitted to these (`fit_nccl.py`)
    held out  whole machines that nothing is fitted to; predictions are checked against them (`bench_nccl.py`)
    told      used for neither: a network with no other table, settings by hand, single rows
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from antiphon.core.collective import KINDS, Collective
from antiphon.core.files import read_bytes, reading
from antiphon.core.interpret import busbw_factor
from antiphon.core.jsontext import check_keys, decode
from antiphon.errors import Invalid, quote

FORMAT, VERSION = "antiphon-published", 1
TABLES = Path(__file__).parent / "data" / "published.json"
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
