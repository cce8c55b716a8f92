"""Blink's micro-benchmarks on a runtime: rows as of `bench`, beside what a model predicts and the paper measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from antiphon.core.topology import Topology
from antiphon.errors import Invalid
from antiphon.runtimes.measure.bench import decides, measure_plans
from antiphon.runtimes.measure.case import Row
from antiphon.runtimes.measure.micro_patterns import Pattern, plan_on
from antiphon.runtimes.measure.micro_patterns import patterns as made
from antiphon.select.parse_request import machine_of
from antiphon.topologies import topology as named
from antiphon.units import Sizes

RANKS = 5  # as many as the least of every kind but the long chains need
# Bytes per second that a link carries, on a DGX-1 with V100s: sections 2.2 (Figures 7, 8) and A.1 (Figure 24); from so
# many bytes on.
PUBLISHED = {
    ("chain-forward", 3): (22e9, 10**9), ("chain-forward", 8): (20e9, 10**9),
    ("chain-reduce", 3): (21e9, 10**9), ("chain-reduce", 8): (19e9, 10**9),
    ("chain-reduce-broadcast", 3): (19e9, 10**9), ("chain-reduce-broadcast", 8): (16e9, 10**9),
    ("mimo", 0): (18e9, 10**7), ("mca", 0): (18e9, 10**7),
}  # fmt: skip


def bench_micro(
    machine: Topology | str | None = None,
    nbytes: Sizes = "1MB:16MB:4",
    *,
    ranks: int | None = None,
    patterns: Sequence[str] = (),
    pieces: int | None = None,
    progress: Callable[[Row], None] | None = None,
    **how: Any,
) -> list[Row] | None:
    """Rows of `measure_plans`, out of place, with `pattern`, `throughput` (bytes per second of the busiest link),
    `predicted_throughput` and `published` (the paper's, at sizes that it is of).

    On `ranks` that are all linked (5), or on a machine. `patterns`: names of them, else all that it has room for.
    `how`: as of `measure_plans`. Under mpiexec or srun only process 0 has rows, the others None.
    """
    if machine is not None and ranks is not None:
        raise Invalid("ranks: the machine has its own; leave one of both out")
    if pieces is not None and not 1 <= pieces <= 2**20:
        raise Invalid(f"pieces: expected 1 to {2**20}, got {pieces}")
    where = named(f"full:ranks={RANKS if ranks is None else ranks}") if machine is None else machine_of(machine)
    some = list(made(patterns, where.ranks))
    if not some:
        raise Invalid(f"{where.name} has {where.ranks} ranks: every pattern needs 3 at least")
    with decides(how.get("on", "mpi"), mpiexec=how.get("mpiexec", "")) as deciding:
        if not deciding:
            return None
        plans = {one.title: plan_on(one, where, pieces) for one in some}
        known = {one.title: one for one in some}

        def told(row: Row) -> Row:
            return _with_throughput(row, known[row["planner"]], plans[row["planner"]].collective.buffer_weight)

        def heard(row: Row) -> None:
            if progress is not None:
                progress(told(row))

        return [told(row) for row in measure_plans(list(plans.values()), nbytes, progress=heard, in_place=False, **how)]


def _with_throughput(row: Row, pattern: Pattern, blocks: int) -> Row:
    """With what the busiest link carries."""
    carried = row["nbytes"] * pattern.busiest / blocks
    said, least = PUBLISHED.get((pattern.name, pattern.size), (None, 0))
    return {
        **row, "pattern": pattern.title, "throughput": carried / row["seconds"] if row["seconds"] else 0.0,
        "predicted_throughput": carried / row["predicted_seconds"] if row["predicted_seconds"] else None,
        "published": said if carried >= least else None,
    }  # fmt: skip
