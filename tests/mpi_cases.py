"""Cases of collective x planner x size x type x operator, and what must come out of each.

As a program, `mpi_cases.py SEED COUNT MOST`, it runs a sample under the MPI of the Python that runs it.
"""

import hashlib
import random
import sys
from functools import cache
from itertools import product
from typing import Any

import numpy as np

import antiphon
from antiphon.core.datatypes import data_type
from antiphon.core.interpret import interpret
from antiphon.core.program import encode
from antiphon.core.schedule import Schedule
from antiphon.core.transform import pipeline
from antiphon.formats.program import both
from antiphon.runtimes.engine.native import OPERATORS, TYPES
from antiphon.runtimes.measure.case import Case, active_ranks
from antiphon.runtimes.measure.mpi import run_cases
from antiphon.runtimes.measure.random_data import RandomData

# The collective, the planner, and the machines it is asked for.
PLANS = [
    ("allreduce", "ring", "ring:ranks={}", (2, 3, 5, 8, 16)),
    ("allreduce", "recursive-doubling", "full:ranks={}", (2, 4, 8, 16)),
    ("allreduce", "halving-doubling", "full:ranks={}", (4, 8, 12)),
    ("allreduce", "direct", "full:ranks={}", (3, 6)),
    ("allreduce", "double-binary-tree", "full:ranks={}", (5, 7)),
    ("allreduce", "trees", "dgx1v", (8,)),
    ("allgather", "ring", "ring:ranks={}", (3, 8, 15)),
    ("allgather", "bruck", "full:ranks={}", (5, 6, 11)),
    ("allgather", "direct", "full:ranks={}", (4,)),
    ("reducescatter", "ring", "ring:ranks={}", (4, 7, 16)),
    ("reducescatter", "halving-doubling", "full:ranks={}", (8,)),
    ("broadcast", "binomial-tree", "full:ranks={}", (2, 6, 13)),
    ("reduce", "binomial-tree", "full:ranks={}", (3, 8, 14)),
    ("gather", "direct", "full:ranks={}", (4, 9)),
    ("scatter", "direct", "full:ranks={}", (5, 10)),
    ("alltoall", "pairwise", "full:ranks={}", (4, 7, 16)),
    ("alltoall", "bruck", "full:ranks={}", (5,)),
]
SIZES = (0, 1, 7, 1000, 4097, 65536, 2**20, 2**23)  # bytes, and elements for the first three
LARGE = 2**22  # bytes on all ranks: a sample has no more
SEEN = 2**19  # bytes on all ranks up to which the outputs are held against the interpreter's, bit by bit


@cache
def schedules() -> list[Schedule]:
    found = []
    for kind, planner, machine, counts in PLANS:
        for count in counts:
            plan = antiphon.plan(kind, antiphon.topology(machine.format(count)), planner=planner)
            found.append(plan.at(0).schedule)
    found.append(pipeline(found[2], 3))  # a ring of 5
    return found


def unit_of(schedule: Schedule, size: int) -> int:
    return size if size < 10 else size // (schedule.collective.buffer_weight * 4)


def everything(most: int, **common: Any) -> list[Case]:
    """The whole product, but for cases of more than so many bytes on all ranks."""
    found = []
    for number, schedule in enumerate(schedules()):
        ranks, weight = active_ranks(schedule), schedule.collective.buffer_weight
        for dtype, op, size in product(TYPES, OPERATORS if schedule.collective.combining else ("sum",), SIZES):
            unit = unit_of(schedule, size)
            seen = unit * weight * 8 * len(ranks) <= SEEN
            for place in (False, True):
                how = {"repeat": 1, "warmup": 0, "in_place": place, "digest": seen, **common}
                found.append(Case(number, ranks, unit, unit * weight, dtype, op, **how))
    return [case for case in found if case.nbytes * len(case.ranks) <= most]


def case_of(number: int, draw: random.Random) -> Case:
    schedule, dtype = schedules()[number], draw.choice([*TYPES])
    ranks, weight = active_ranks(schedule), schedule.collective.buffer_weight
    unit = unit_of(schedule, draw.choice([size for size in SIZES if size * len(ranks) <= LARGE]))
    return Case(
        number, ranks, unit, unit * weight, dtype, draw.choice([*OPERATORS]),
        in_place=draw.random() < 0.5, seed=draw.randrange(99), repeat=1, warmup=0,
        split=draw.choice([None, None, 256, 0]), timeout=draw.choice([0.0, 60.0]),
        digest=unit * weight * 8 * len(ranks) <= SEEN,
    )  # fmt: skip


def sample(seed: int, more: int, most: int = 16, each: int = 2) -> list[Case]:
    """One of `each` schedules (which ones: by the seed), of those for at most so many processes, and some more; the
    types that MPI lacks with every operator; 8 MB of an odd count."""
    draw = random.Random(seed)
    few = [number for number, schedule in enumerate(schedules()) if len(active_ranks(schedule)) <= most]
    numbers = [*few[seed % each :: each], *draw.choices(few, k=more)]
    found = [case_of(number, draw) for number in numbers]
    combining = [number for number in numbers if schedules()[number].collective.combining]
    for place, (dtype, op) in enumerate(product(("float16", "bfloat16"), OPERATORS)):
        number = combining[5 * place % len(combining)]
        ranks, unit = active_ranks(schedules()[number]), 101 + 900 * (place % 2)
        found.append(Case(number, ranks, unit, unit, dtype, op, place % 3 == 0, seed, repeat=1, warmup=0, digest=True))
    return [*found, Case(0, [0, 1], 2**21 - 1, 2**23 - 4, repeat=1, warmup=0)]


def check_cases(cases: list[Case]) -> list[dict[str, Any]]:
    used = sorted({case.program for case in cases})
    place = {number: i for i, number in enumerate(used)}
    told = [Case(**{**case.__dict__, "program": place[case.program]}) for case in cases]
    rows = run_cases([encode(both(schedules()[number])) for number in used], told, timeout=500.0)
    for case, row in zip(cases, rows, strict=True):
        assert row["wrong"] == 0, case
        # Open MPI adds whole numbers of 8 and 16 bits with saturation; C and NCCL wrap around
        assert not row["reference_wrong"] or "int8" in case.dtype or "int16" in case.dtype, case
        assert row["messages"] > 0 or case.unit == 0, case
        if case.digest:
            assert row["digests"] == digests(case), case
    return rows


def digests(case: Case) -> list[str]:
    """What the processes must tell of their outputs: those of the interpreter."""
    schedule, dtype = schedules()[case.program], data_type(case.dtype)
    everyone = range(schedule.collective.ranks)
    made = RandomData(schedule.collective, case.unit, dtype, case.op, case.in_place, case.seed)
    data = [made.rank(r) for r in everyone]
    given = [np.zeros(one.sizes[1 if case.in_place else 0], dtype) for one in data]
    for one, buffer in zip(data, given, strict=True):
        one.fill(buffer)
    found = interpret(schedule, given, op=case.op, dtype=dtype, in_place=case.in_place)
    told = []
    for rank in case.ranks:
        blocks = [block.tobytes() for _, block in data[rank].outputs(found[rank])]
        told.append(hashlib.sha256(b"".join(blocks)).hexdigest())
    return told


if __name__ == "__main__":
    found = check_cases(sample(*map(int, sys.argv[1:5])))
    print(len(found), "right,", sum("digests" in row for row in found), "bit by bit")
