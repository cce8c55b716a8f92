"""Programs with one number changed, written with valid checksums and read again; and what both judges say of them."""

import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import generate
import numpy as np
from program_cases import Wrong, judge, variants

import antiphon
from antiphon.core.collective import KINDS
from antiphon.core.program import Program, decode, encode, prove
from antiphon.core.transform import pipeline
from antiphon.errors import Invalid, Unsupported

UNITS = (1, 2, 3, 5, 7, 12)
# Columns and how often each is changed.
COLUMNS = {
    "point_whole": 2, "point_numerator": 2, "base_shift": 3, "base_buffer": 2, "base_slot": 3, "base_origin": 2,
    "class_whole": 1, "class_numerator": 1, "class_pieces": 1, "slot_class": 1, "kind": 2, "channel": 1, "peer": 3,
    "pieces": 1, "when": 3, "part_begin": 4, "part_end": 4, "part_base": 5, "wait": 4, "finish_begin": 1,
    "finish_end": 1, "finish_base": 1, "finish_count": 1,
}  # fmt: skip
PLANNED = (
    ("allreduce", "ring:ranks=3", "ring"), ("allreduce", "full:ranks=4", "recursive-doubling"),
    ("allreduce", "full:ranks=4", "colocated-ps"), ("alltoall", "full:ranks=3", "direct"),
    ("allgather", "full:ranks=5", "bruck"), ("reducescatter", "ring:ranks=3", "ring"),
    ("reduce", "full:ranks=5", "binomial-tree"), ("gather", "full:ranks=3", "direct"),
    ("scatter", "full:ranks=4", "binomial-tree"), ("broadcast", "ring:ranks=4", "relay"),
)  # fmt: skip


def bases(seeds: range) -> list[Program]:
    """Programs of small random schedules, of planners, and of schedules in pieces."""
    made: list[Program] = []
    for kind, spec, planner in PLANNED:
        schedule = antiphon.plan(kind, antiphon.topology(spec), planner=planner).at(0).schedule
        made += variants(schedule)
        made += variants(pipeline(schedule, 3))
    for seed in seeds:
        kind = (*KINDS, "custom")[seed % 9]
        schedule = generate.case(seed, kind, most_ranks=4).schedule
        made += variants(schedule, lag=seed % 2, channels=1 + seed % 3 // 2)
    return [one for one in made if 0 < one.operations < 120 and int(one.collective.weights.sum()) < 60]


def mutant(program: Program, rng: random.Random) -> Program | None:
    """One change: a number, two numbers swapped, a wait taken away or added, an operation's parts in another order."""
    what = rng.random()
    if what > 0.85:
        return _both_sides(program, rng)
    if what < 0.15 and len(program.wait):
        return _waits(program, rng.randrange(len(program.wait)), None)
    if what < 0.2:
        return _waits(program, rng.randrange(program.operations), rng.randrange(program.operations))
    name = rng.choices(list(COLUMNS), list(COLUMNS.values()))[0]
    values = getattr(program, name).copy()
    if not len(values):
        return None
    at, other = rng.randrange(len(values)), rng.randrange(len(values))
    how = rng.randrange(4)
    if how == 0:
        values[at], values[other] = values[other], values[at]
    elif how == 1:
        values[at] = values[other]
    elif how == 2:
        values[at] += rng.choice((-2, -1, 1, 2))
    else:
        values[at] = rng.randrange(int(values.max()) + 2)
    if np.array_equal(values, getattr(program, name)) or (values.min() < 0 and name != "base_shift"):
        return None
    return replace(program, **{name: values})


def _both_sides(program: Program, rng: random.Random) -> Program | None:
    """The same change in a send and in its receive, so that they still fit."""
    ends = []
    for kind, way in ((0, ("rank", "peer")), (1, ("peer", "rank"))):
        found = np.flatnonzero(program.kind == kind)
        keys = [getattr(program, name)[found] for name in ("when", "channel", way[1], way[0])]
        ends.append(found[np.lexsort((found, *keys))].tolist())
    if not ends[0] or len(ends[0]) != len(ends[1]):
        return None
    pair = rng.choice(list(zip(*ends, strict=True)))
    name = rng.choice(("when", "channel", "pieces", "part_begin", "part_end", "part_end"))
    if name.startswith("part"):
        nth = rng.randrange(4)
        pair = tuple(int(program.part_ptr[op]) + nth for op in pair)
        if max(pair) >= len(program.part_begin):
            return None
    values = getattr(program, name).copy()
    new = int(values[pair[0]]) + rng.choice((-2, -1, 1, 2)) if rng.random() < 0.5 else int(rng.choice(values))
    if new < 0 or all(values[list(pair)] == new):
        return None
    values[list(pair)] = new
    return replace(program, **{name: values})


def _waits(program: Program, at: int, added: int | None) -> Program:
    ptr, wait = program.wait_ptr.copy(), program.wait
    if added is None:
        ptr[int(program.wait_op[at]) + 1 :] -= 1
        return replace(program, wait_ptr=ptr, wait=np.delete(wait, at))
    wait = np.insert(wait, ptr[at + 1], added)
    ptr[at + 1 :] += 1
    return replace(program, wait_ptr=ptr, wait=wait)


def mutants(programs: list[Program], count: int, seed: int) -> Iterator[Program]:
    """So many that a file can hold, read from its bytes."""
    rng = random.Random(seed)
    while count:
        made = mutant(rng.choice(programs), rng)
        if made is None:
            continue
        try:
            (again,) = decode(encode([made]))
        except (Invalid, Unsupported, IndexError):
            continue  # no file, so nothing to prove
        count -= 1
        yield again


def tried(programs: list[Program], count: int, seed: int, units: Sequence[int] = UNITS) -> Counter[str]:
    """How many were refused, and how many that were not are right by the second judge. AssertionError at a miss."""
    found: Counter[str] = Counter()
    for program in mutants(programs, count, seed):
        try:
            prove(program)
        except (Invalid, Unsupported):
            found["refused"] += 1
            continue
        for unit in units:
            try:
                judge(program, unit)
            except Wrong as error:
                raise AssertionError(f"proven, but at {unit} elements a unit: {error}: {program.label}") from error
        found["right"] += 1
    return found


if __name__ == "__main__":
    wanted, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    print(dict(tried(bases(range(first, first + 60)), wanted, first)))
