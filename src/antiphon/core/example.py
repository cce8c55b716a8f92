"""What the worked examples in docstrings are about: one small schedule, and how to write down others like it."""

from __future__ import annotations

from typing import Any

from antiphon.core.collective import Collective
from antiphon.core.schedule import COPY, REDUCE, Schedule, cut
from antiphon.core.topology import LinkType, Topology, both_ways, build

Row = tuple[int, int, int, int, int]


def of_rows(
    kind: str, ranks: int, rows: list[Row], *, roots: tuple[int, ...] = (), parts: int = 1, **columns: Any
) -> Schedule:
    """A schedule of rows (step, chunk, src, dst, op), each block cut into `parts`."""
    collective = Collective(kind, ranks, roots=roots)
    step, chunk, src, dst, op = zip(*rows, strict=True)
    return Schedule(collective, cut(collective, parts), step, chunk, src, dst, op, **columns)  # type: ignore[arg-type]


def star() -> Schedule:
    """An allreduce among three ranks by way of rank 0: what the examples of many columns follow from room to room.

    row  step  chunk  src  dst  op
    0    0     0      1    0    reduce
    1    0     0      2    0    reduce
    2    1     0      0    1    copy
    3    1     0      0    2    copy
    """
    return of_rows("allreduce", 3, [(0, 0, 1, 0, REDUCE), (0, 0, 2, 0, REDUCE), (1, 0, 0, 1, COPY), (1, 0, 0, 2, COPY)])


def machine() -> Topology:
    """Links 0: 0 to 1, 1: back, 2: 0 to 2, 3: back; each of 1 GB/s, and 1 microsecond of latency."""
    return build("example", 3, both_ways([(0, 1), (0, 2)], LinkType("wire", "1GB/s", "1us")))  # type: ignore[arg-type]
