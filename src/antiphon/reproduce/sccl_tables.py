"""The figures of SCCL's Tables 3 (NCCL_DGX1), 4 (DGX1) and 5 (Z52); rows of the last two are `Published`.

The paper prints a collective and its dual in one row, with C of the first. C of a reducescatter or scatter is that C
times the number of ranks, as the input of each rank has a block for every rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """A row of a table."""

    chunks: int
    steps: int
    rounds: int
    seconds: float  # that SCCL took to synthesize it
    optimal: str  # "latency", "bandwidth", "both", or "" if the paper claims none

    @property
    def point(self) -> tuple[int, int, int]:
        return self.chunks, self.steps, self.rounds


Rows = tuple[Published, ...]
# collective -> its dual, which the paper prints in the same row
DUALS = {"allgather": "reducescatter", "broadcast": "reduce", "gather": "scatter"}


def _published_rows(*rows: tuple[int, int, int, float, str]) -> Rows:
    return tuple(Published(*row) for row in rows)


DGX1: Mapping[str, Rows] = {
    "allgather": _published_rows(
        (1, 2, 2, 0.3, "latency"), (2, 3, 3, 0.8, ""), (3, 4, 4, 1.5, ""), (4, 5, 5, 2.3, ""), (5, 6, 6, 3.3, ""),
        (6, 7, 7, 4.6, "bandwidth"), (6, 3, 7, 6.6, "bandwidth"), (2, 2, 3, 0.9, "latency"),
    ),
    "allreduce": _published_rows(
        (8, 4, 4, 0.3, "latency"), (16, 6, 6, 0.6, ""), (24, 8, 8, 1.3, ""), (32, 10, 10, 2.9, ""),
        (40, 12, 12, 5.6, ""), (48, 14, 14, 12.8, "bandwidth"), (48, 6, 14, 23.0, "bandwidth"),
        (16, 4, 6, 0.8, "latency"),
    ),
    "broadcast": _published_rows(
        (2, 2, 2, 0.1, "latency"), (6, 3, 3, 0.3, ""), (12, 4, 4, 1.0, ""), (18, 5, 5, 8.5, ""), (6, 3, 5, 0.9, ""),
    ),
    "gather": _published_rows(
        (1, 2, 2, 0.3, "latency"), (2, 3, 3, 0.9, ""), (3, 4, 4, 1.6, ""), (4, 5, 5, 2.7, ""), (5, 6, 6, 3.8, ""),
        (6, 7, 7, 6.0, "bandwidth"), (6, 3, 7, 11.4, "bandwidth"), (2, 2, 3, 1.0, "latency"),
    ),
    "alltoall": _published_rows(
        (8, 3, 3, 2.6, ""), (8, 2, 3, 3.0, "latency"), (24, 8, 8, 133.7, "bandwidth"), (24, 2, 8, 24.3, "both"),
    ),
}  # fmt: skip

Z52: Mapping[str, Rows] = {
    "allgather": _published_rows((1, 4, 4, 0.5, "latency"), (2, 7, 7, 1.3, "bandwidth"), (2, 4, 7, 1.7, "both")),
    "allreduce": _published_rows((8, 8, 8, 0.4, "latency"), (16, 14, 14, 0.9, "bandwidth"), (16, 8, 14, 1.6, "both")),
    "broadcast": _published_rows(
        (2, 4, 4, 0.1, "latency"), (4, 5, 5, 0.2, ""), (6, 6, 6, 0.3, ""), (8, 7, 7, 0.5, ""), (10, 8, 8, 0.6, ""),
    ),
    "gather": _published_rows((1, 4, 4, 0.4, "latency"), (2, 4, 7, 1.8, "both")),
    "alltoall": _published_rows((8, 4, 8, 8.2, "both")),
}  # fmt: skip

# Table 3: (C, S, R)
NCCL_DGX1: Mapping[str, tuple[int, int, int]] = {
    "allgather": (6, 7, 7), "reducescatter": (48, 7, 7), "allreduce": (48, 14, 14),
}  # fmt: skip
NCCL_PIPELINED = ("broadcast", "reduce")  # (6 m, 6 + m, 6 + m) with m pieces


def rows_of_kind(table: Mapping[str, Rows], kind: str, ranks: int) -> Rows:
    """Return the rows of a collective, also of one that the paper prints together with another."""
    printed_kind = next((first for first, second in DUALS.items() if second == kind), kind)
    factor = ranks if kind in ("reducescatter", "scatter") else 1
    return tuple(Published(r.chunks * factor, r.steps, r.rounds, r.seconds, r.optimal) for r in table[printed_kind])
