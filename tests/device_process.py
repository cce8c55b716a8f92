"""Some ranks of a group in a process of their own: python device_process.py WAY RANKS CALLS MINE...

It says what it tells the others, a line each time, and reads what all have told; then whether all was right.
"""

from __future__ import annotations

import sys

import numpy as np

import antiphon
from antiphon.core.program.kinds import INPUT, OUTPUT, SCRATCH
from antiphon.errors import Unsupported
from antiphon.lower.device.table import tables
from antiphon.runtimes.device.functions import threads
from antiphon.runtimes.device.group import CALLS, WAYS, Group
from antiphon.runtimes.measure.random_data import RandomData

PLANS = [("allreduce", "ring"), ("alltoall", "direct"), ("allgather", "ring")]


def tell(data: bytes) -> list[bytes]:
    print(data.hex(), flush=True)
    return [bytes.fromhex(one) for one in sys.stdin.readline().strip().split(",")]


def by_switches(ranks: int, calls: int, mine: list[int]) -> str:
    """Sums of float32 as something in place of a switch makes them, from the last rank to the first: which shows that
    memory of all processes has one address."""
    schedule = antiphon.plan("allreduce", "hgx-h100", planner="nvls").at(2**20).schedule
    unit, wrong = 4096, 0  # all in whole 16 bytes
    with Group(threads(), ranks, 2, own_ranks=mine, tell=tell) as group:
        plan = group.plan(tables(schedule, streams=1))
        sizes = [unit, unit, plan.scratch(mine[0], unit)]
        for call in range(calls):
            random = np.random.default_rng(call)
            given = (random.standard_normal((ranks, unit)) * 10.0 ** random.integers(-2, 3, unit)).astype(np.float32)
            empty = np.zeros(unit, np.float32)
            with group.for_a_while():
                known = [group.joined(dict(enumerate(one))) for one in (given, [empty] * ranks)]
                known.append(group.everywhere({rank: np.zeros(sizes[SCRATCH], np.float32) for rank in mine}))
                where = np.array(known, np.uintp).T.copy()
                group.go(plan, unit, where, np.array([sizes] * ranks, np.int64), given.dtype, timeout=60)
                right = given[-1]
                for one in given[-2::-1]:
                    right = right + one
                for rank in mine:
                    group.fetch(rank, int(where[rank, OUTPUT]), empty)
                    wrong += int((empty.view(np.uint32) != right.view(np.uint32)).sum())
                tell(b"")  # nobody gives memory back that another may still reach
    return f"wrong: {wrong}"


def main() -> str:
    way = sys.argv[1]
    ranks, calls, *mine = map(int, sys.argv[2:])
    try:
        return by_switches(ranks, calls, mine) if way == "switches" else by_calls(way, ranks, calls, mine)
    except Unsupported as error:
        return f"none: {error}"


def by_calls(way: str, ranks: int, calls: int, mine: list[int]) -> str:
    machine, wrong = antiphon.topology(f"full:ranks={ranks}"), 0
    schedules = [antiphon.plan(kind, machine, planner=planner).at(2**16).schedule for kind, planner in PLANS]
    made = [tables(one, streams=2) for one in schedules]
    dtype, unit = np.dtype(np.float32), 100
    with Group(threads(), ranks, 4, 2, CALLS - 3, own_ranks=mine, tell=tell) as group:
        held = [group.plan(one) for one in made]
        lengths = np.zeros((len(PLANS), ranks, 3), np.int64)
        for number, schedule in enumerate(schedules):
            sizes = [RandomData(schedule.collective, unit, dtype, "sum").rank(rank).sizes for rank in range(ranks)]
            lengths[number, :, :SCRATCH] = sizes
            lengths[number, :, SCRATCH] = max(held[number].scratch(rank, unit) for rank in mine)
        most = lengths.max(axis=(0, 1))
        where = np.array(
            [group.everywhere({rank: np.zeros(most[place], dtype) for rank in mine}) for place in range(3)], np.uintp
        ).T.copy()
        for call in range(calls):
            number = call % len(PLANS)
            data = RandomData(schedules[number].collective, unit, dtype, "sum", seed=call)
            for rank in mine:
                given = np.zeros(lengths[number, rank, INPUT], dtype)
                data.rank(rank).fill(given)
                group.bring(rank, int(where[rank, INPUT]), given)
            chosen = WAYS[(call + mine[0]) % len(WAYS)] if way == "any" else way  # any: each process its own
            what = (held[number], unit, where, lengths[number], dtype)
            if chosen != "kernel":
                group.go_by_host(*what, lanes=1 + call % 3, way=chosen, timeout=60)
            else:
                group.go(*what, **({"lanes": 2, "rounds": 1 + call % 2} if way != "any" else {}), timeout=60)
            for rank in mine:
                got = np.zeros(lengths[number, rank, OUTPUT], dtype)
                group.fetch(rank, int(where[rank, OUTPUT]), got)
                wrong += data.rank(rank).count_wrong(got)
    return f"wrong: {wrong}"


if __name__ == "__main__":
    print(main(), flush=True)
