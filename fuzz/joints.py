"""Schedules whose rows are bound to be multicasts and reductions of the network, against what the documents say.

Correct ones on machines with able switches, and those damaged in one to three places (rows, chunks, paths, abilities):
`verify` must say what an independent judge says, with an operator and a type at times; the interpreter must find wrong
data just where the rows alone are wrong; and where a schedule is right, every link must carry what the documents say.
"""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
from _damage import abilities, damage
from _harness import CASES, Found, main
from _meaning import Judge
from generate_joints import joined_case

from antiphon.core.interpret import interpret
from antiphon.core.joints import joints_of
from antiphon.core.loads import loads
from antiphon.core.plan import Plan
from antiphon.core.schedule import Schedule
from antiphon.core.serialize import dumps
from antiphon.core.topology import Topology
from antiphon.core.transform import unjoined
from antiphon.core.verify import verify
from antiphon.errors import Invalid

NAME = "joints"
PER_SEED = 40
MOST_ELEMENTS = 100
VALUE = 10**9  # more than any contribution is counted
KINDS = ("multicast", "reduction", "through")


def compare(
    schedule: Schedule, machine: Topology, judge: Judge, what: str, counts: Counter[str], data: dict[str, str]
) -> None:
    counts[CASES] += 1
    found = joints_of(schedule)
    for kind in set() if found is None else {*found.kind.tolist()}:
        counts[f"with a {KINDS[kind]}"] += 1
    files: dict[str, bytes | str] = {"plan.json": dumps(Plan.of(machine, schedule))}
    wrong, fault = judge.judge(schedule, **data), verify(schedule, machine, **data).fault  # type: ignore[arg-type]
    counts["right" if wrong is None else "wrong"] += 1
    if (wrong is None) != (fault is None):
        said = fault.message if fault is not None else "right"
        raise Found(f"verify says: {said}; the documents say: {wrong or 'right'} ({what}, {data})", files)
    counts["wrong by a joint"] += fault is not None and fault.kind == "joint"
    if fault is None or fault.kind in ("joint", "post"):  # else no row is read, or not all have a way
        ended = ends_right(schedule, judge)
        counts["run"] += ended is not None
        if ended not in (None, judge.judge(unjoined(schedule)) is None):
            raise Found(f"the interpreter says {ended}, the documents otherwise, of the data ({what})", files)
    if wrong is None:
        told, carried = judge.joined(schedule).loads(), loads(schedule, machine)
        entries = zip(carried.resource.tolist(), carried.load.tolist(), carried.window.tolist(), strict=True)
        sums: dict[int, Fraction] = {}
        for link, load, window in entries:
            if link < machine.links:
                sums[link] = sums.get(link, Fraction(0)) + Fraction(load * window, carried.scale)
        if {k: v for k, v in sums.items() if v} != {k: v for k, v in told.items() if v}:
            raise Found(f"loads are {sums}; the documents say {told} ({what})", files)


def ends_right(schedule: Schedule, judge: Judge) -> bool | None:
    """Whether the interpreter ends with what every rank should have, of numbers of which no two sums agree by chance.
    None where some chunk would need too long buffers."""
    chunks, collective = schedule.chunks, schedule.collective
    size = -(-chunks.denominator // int(chunks.share.min(initial=chunks.denominator)))
    if size > MOST_ELEMENTS:
        return None
    have, want = judge.relation(collective)
    inputs: list[Any] = []
    for rank in range(collective.ranks):
        held = [sum(times * VALUE**i for i, times in have[b][rank].items()) for b in sorted(have) if rank in have[b]]
        inputs.append(np.array([value for value in held for _ in range(size)], object) if held else None)
    try:
        outputs = interpret(schedule, inputs, dtype=object)
    except Invalid:
        return False
    for rank, out in enumerate(outputs):
        ends = [sum(times * VALUE**i for i, times in want[b][rank].items()) for b in sorted(want) if rank in want[b]]
        if out.tolist() != [value for value in ends for _ in range(size)]:
            return False
    return True


def one(seed: int, counts: Counter[str]) -> None:
    rng = random.Random(f"{NAME} {seed}")
    base = joined_case(rng)
    if base is None:
        return
    judge = Judge(base.topology)
    for i in range(PER_SEED):
        data = rng.choice([{}, {}, {"op": "sum"}, {"op": "avg", "dtype": "float32"}, {"op": "max", "dtype": "int8"}])
        if i == 0:
            compare(base.schedule, base.topology, judge, "built", counts, data)
            continue
        if rng.random() < 0.2:
            other = abilities(rng, base.topology)
            compare(base.schedule, other, Judge(other), "built, then other abilities", counts, data)
            continue
        hurt, done = damage(rng, base.schedule, base.topology)
        compare(hurt, base.topology, judge, f"built, then {', '.join(done)}", counts, data)


if __name__ == "__main__":
    main(NAME, one, 10_000, __doc__)
