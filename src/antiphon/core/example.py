"""The small schedule and machine that the worked examples in docstrings use."""

from __future__ import annotations

from typing import Any

from antiphon.core.collective import Collective
from antiphon.core.schedule import COPY, REDUCE, Schedule, cut
from antiphon.core.topology import LinkType, Topology, both_ways, build

Row = tuple[int, int, int, int, int]  # step, chunk, src, dst, op


def of_rows(
    kind: str, ranks: int, rows: list[Row], *, roots: tuple[int, ...] = (), parts: int = 1, **columns: Any
) -> Schedule:
    """Build a schedule from rows (step, chunk, src, dst, op), each block cut into `parts` chunks.

    `columns`: further arguments of `Schedule`.
    """
    collective = Collective(kind, ranks, roots=roots)
    step, chunk, src, dst, op = zip(*rows, strict=True)
    return Schedule(collective, cut(collective, parts), step, chunk, src, dst, op, **columns)  # type: ignore[arg-type]


def star() -> Schedule:
    """Return an allreduce on three ranks through rank 0, the example of many docstrings.

    row  step  chunk  src  dst  op
    0    0     0      1    0    reduce
    1    0     0      2    0    reduce
    2    1     0      0    1    copy
    3    1     0      0    2    copy
    """
    return of_rows("allreduce", 3, [(0, 0, 1, 0, REDUCE), (0, 0, 2, 0, REDUCE), (1, 0, 0, 1, COPY), (1, 0, 0, 2, COPY)])


def machine() -> Topology:
    """Return the machine of these examples: ranks 0, 1 and 2 with four links of 1 GB/s and 1 us of latency.

    Link 0 leads from rank 0 to 1, link 1 from 1 to 0, link 2 from 0 to 2, link 3 from 2 to 0.
    """
    return build("example", 3, both_ways([(0, 1), (0, 2)], LinkType("wire", "1GB/s", "1us")))  # type: ignore[arg-type]
