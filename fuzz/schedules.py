"""Schedules against the meaning that the documents give them: `verify` must say what an independent judge says.

Correct schedules (of all planners and of the tests' generator), wholly random ones on two or three ranks, and all of
them damaged in one to three places.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from _damage import damage, links
from _harness import CASES, Found, main
from _meaning import Judge
from generate import case
from generate import collective as any_collective
from generate import topology as any_machine

from antiphon.core import verify as verifier
from antiphon.core.collective import KINDS, ROOTED, Collective
from antiphon.core.plan import Plan
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule, cut
from antiphon.core.serialize import dumps
from antiphon.core.topology import Topology
from antiphon.core.verify import layout, sets
from antiphon.errors import AntiphonError
from antiphon.registry import call, table

NAME = "schedules"
PER_SEED = 60  # damaged schedules of one base
MOST_ROWS = 160
SLOW = ("sccl",)  # a solver; its schedules come out of `tests` as well
# The verifier cuts its work at sizes that small schedules never reach: at times they are made so small that these do.
CUTS: tuple[tuple[tuple[Any, str, int], ...], ...] = (
    (),
    (),
    ((layout, "MAX_CELLS", 16), (layout, "MAX_ROWS", 4), (sets, "MAX_STATE_BYTES", 64)),
    ((sets, "MAX_STATE_BYTES", 1), (sets, "ROWS_PER_GROUP", 2)),
)
SHAPES = ("full:ranks={}", "ring:ranks={}", "star:ranks={}", "line:ranks={}")


def planned(rng: random.Random, most_ranks: int = 8) -> tuple[Schedule, Topology] | None:
    """One planner's schedule on a small machine of a common shape or of none."""
    from antiphon.topologies import topology as named

    ranks = rng.randint(2, most_ranks)
    machine = named(rng.choice(SHAPES).format(ranks)) if rng.random() < 0.6 else any_machine(rng, ranks)
    name = rng.choice([n for n in table("planner") if n not in SLOW])
    entry = table("planner")[name]
    kind = rng.choice(entry.can.collectives)
    wanted = (
        any_collective(rng, ranks, kind)
        if kind == "custom"
        else Collective(kind, ranks, (), (rng.randrange(ranks),) if kind in ROOTED else ())
    )
    option = rng.choice([{}, {}, *entry.can.sweep])
    try:
        made = next(iter(call("planner", name, entry.load(), option, Request(machine, wanted, seed=1))), None)
    except AntiphonError:
        return None
    return (made, machine) if made is not None and made.transfers <= MOST_ROWS else None


def scribbled(rng: random.Random, most_ranks: int = 3) -> tuple[Schedule, Topology]:
    """A few rows at random: on so little, some are right by chance."""
    ranks = rng.randint(2, most_ranks)
    machine = any_machine(rng, ranks)
    kind = rng.choice([k for k in KINDS if k != "alltoall"])
    wanted = Collective(kind, ranks, (), (rng.randrange(ranks),) if kind in ROOTED else ())
    parts = cut(wanted, rng.choice([1, 1, 1, 2]))
    count = rng.randint(1, 2 * ranks * len(parts))
    bounds = {"step": 3, "chunk": len(parts), "src": ranks, "dst": ranks, "op": 2}
    columns = {key: np.array([rng.randrange(top) for _ in range(count)]) for key, top in bounds.items()}
    if rng.random() < 0.2:
        columns |= {side: np.array([rng.randrange(2) for _ in range(count)]) for side in ("src_slot", "dst_slot")}
    if kind in ("broadcast", "scatter", "gather", "allgather") and rng.random() < 0.7:
        columns["op"][:] = 0
    return Schedule(wanted, parts, **columns), machine


def is_first(fault: Any, judge: Judge, schedule: Schedule) -> bool:
    """Return whether the fault is one that comes first, by the documents; rows bound together have faults of theirs."""
    if judge.first and schedule.joint is None:
        return (fault.step, fault.chunk, fault.kind) in judge.first
    return bool(judge.first) or fault.step is None or schedule.joint is not None


def compare(schedule: Schedule, machine: Topology, judge: Judge, what: str, counts: Counter[str]) -> None:
    wrong = judge.judge(schedule)
    fault = verifier.verify(schedule, machine).fault
    counts[CASES] += 1
    counts["right" if wrong is None else "wrong"] += 1
    if (wrong is None) != (fault is None) or (fault is not None and not is_first(fault, judge, schedule)):
        said = fault.message if fault is not None else "right"
        message = f"verify says: {said}; the documents say: {wrong or 'right'} ({what})"
        raise Found(message, {"plan.json": dumps(Plan.of(machine, schedule))})


@contextmanager
def cut_small(cuts: tuple[tuple[Any, str, int], ...]) -> Iterator[None]:
    before = [getattr(module, name) for module, name, _ in cuts]
    try:
        for module, name, value in cuts:
            setattr(module, name, value)
        yield
    finally:
        for (module, name, _), value in zip(cuts, before, strict=True):
            setattr(module, name, value)


def one(seed: int, counts: Counter[str]) -> None:
    rng = random.Random(f"{NAME} {seed}")
    with cut_small(rng.choice(CUTS)):
        judge_some(rng, counts)


def judge_some(rng: random.Random, counts: Counter[str]) -> None:
    way = rng.choice(["planned", "planned", "built", "built", "scribbled"])
    if way == "scribbled":
        for _ in range(PER_SEED):
            schedule, machine = scribbled(rng)
            compare(schedule, machine, Judge(machine), way, counts)
        return
    if way == "planned":
        base = planned(rng)
    else:
        made = case(rng.randrange(2**32), most_ranks=rng.choice([3, 4, 6, 8]))
        base = made.schedule, made.topology
    if base is None or base[0].transfers > MOST_ROWS:
        return
    schedule, machine = base
    judge = Judge(machine)
    compare(schedule, machine, judge, way, counts)
    for _ in range(PER_SEED):
        hurt, done = damage(rng, schedule, machine)
        compare(hurt, machine, judge, f"{way}, then {', '.join(done)}", counts)
    for _ in range(3):
        other = links(rng, machine)
        compare(schedule, other, Judge(other), f"{way}, then another machine", counts)


if __name__ == "__main__":
    main(NAME, one, 10_000, __doc__)
