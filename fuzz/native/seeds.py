"""What the fuzzer of the engine begins with: small programs and books of real plans, of every kind and every trait."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

import antiphon
from antiphon.core.collective import Collective, custom_relation
from antiphon.core.plan import Plan
from antiphon.core.program import encode
from antiphon.core.schedule import COPY, REDUCE, Schedule, cut
from antiphon.core.transform import pipeline
from antiphon.errors import Unsupported
from antiphon.formats.program import both
from antiphon.runtimes.serve.book import encode_book, make_book

PLANS = [
    ("allreduce", "ring", "full:ranks=2"), ("allreduce", "ring", "ring:ranks=3"),
    ("allreduce", "direct", "full:ranks=3"), ("allreduce", "halving-doubling", "full:ranks=4"),
    ("allreduce", "double-binary-tree", "full:ranks=4"), ("allreduce", "trees", "star:ranks=3"),
    ("allgather", "bruck", "full:ranks=3"), ("allgather", "ring", "ring:ranks=3"),
    ("reducescatter", "ring", "ring:ranks=3"), ("reducescatter", "direct", "full:ranks=2"),
    ("broadcast", "binomial-tree", "full:ranks=4"), ("broadcast", "trees", "ring:ranks=3"),
    ("reduce", "binomial-tree", "full:ranks=3"), ("gather", "direct", "star:ranks=3"),
    ("gather", "ring", "ring:ranks=4"), ("scatter", "direct", "full:ranks=3"),
    ("alltoall", "pairwise", "full:ranks=3"), ("alltoall", "bruck", "full:ranks=4"),
]  # fmt: skip


def schedules() -> Iterator[tuple[str, Schedule, int]]:
    """Named, with a number of channels."""
    for kind, planner, machine in PLANS:
        found = antiphon.plan(kind, antiphon.topology(machine), planner=planner).at(0).schedule
        name = f"{kind}-{planner}-{machine.partition(':')[0]}"
        yield name, found, 1
        yield f"{name}-pieces", pipeline(found, 3), 2
    full = antiphon.topology("full:ranks=3")
    for kind, weights in (("allgather", [2, 0, 3]), ("alltoall", [1, 2, 3, 0, 1, 1, 5, 1, 1]), ("scatter", [4, 1, 1])):
        uneven = Collective(kind, 3, weights=weights)
        yield f"{kind}-uneven", antiphon.plan(uneven, full, planner="direct").at(0).schedule, 1
    some = Collective("allgather", 3, members=(0, 2))
    yield "allgather-members", antiphon.plan(some, full, planner="direct").at(0).schedule, 1
    relation = custom_relation([(0, 0, 0), (0, 1, 1), (1, 2, 2)], [(0, 2, None), (1, 0, None), (1, 1, (2,))], 3)
    custom = Collective("custom", 3, custom=relation)
    rows = np.array([(0, 0, 0, 2, COPY), (0, 1, 2, 0, COPY), (0, 1, 2, 1, COPY), (1, 0, 1, 2, REDUCE)]).T
    yield "custom", Schedule(custom, cut(custom, 1), *rows), 1  # step, chunk, source, target, what is done


def books() -> Iterator[tuple[str, list[Plan]]]:
    two, three = antiphon.topology("full:ranks=2"), antiphon.topology("ring:ranks=3")
    yield "two", [antiphon.plan("allreduce", two, planner="ring"), antiphon.plan("broadcast", two, planner="direct")]
    ring = antiphon.plan("allgather", three, planner="ring")
    entry = replace(ring.entries[0], stop=4096)
    left = replace(ring.entries[0], start=4096, claims={"planner": "ring", "served_by": "library"})
    yield "three", [replace(ring, entries=(entry, left)), antiphon.plan("gather", three, planner="ring")]


def write(folder: Path) -> int:
    """The seeds as files; how many."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, schedule, channels in schedules():
        try:
            (folder / f"{name}.bin").write_bytes(encode(both(schedule, channels=channels)))
        except Unsupported as error:
            raise SystemExit(f"{name}: {error}") from None
    for name, plans in books():
        (folder / f"{name}.book").write_bytes(encode_book(make_book(plans)))
    return len(list(folder.iterdir()))
