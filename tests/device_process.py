"""Some ranks of a group in a process of their own: python device_process.py WAY RANKS CALLS MINE...

It says what it tells the others, a line each time, and reads what all have told; then whether all was right.
"""

from __future__ import annotations

import sys

import numpy as np

import antiphon
from antiphon.core.program.kinds import INPUT, OUTPUT, SCRATCH
from antiphon.lower.device.table import tables
from antiphon.runtimes.device.group import CALLS, WAYS, Group, threads
from antiphon.runtimes.measure.made_up import MadeUp

PLANS = [("allreduce", "ring"), ("alltoall", "direct"), ("allgather", "ring")]


def tell(data: bytes) -> list[bytes]:
    print(data.hex(), flush=True)
    return [bytes.fromhex(one) for one in sys.stdin.readline().strip().split(",")]


def main() -> str:
    way = sys.argv[1]
    ranks, calls, *mine = map(int, sys.argv[2:])
    machine, wrong = antiphon.topology(f"full:ranks={ranks}"), 0
    schedules = [antiphon.plan(kind, machine, planner=planner).at(2**16).schedule for kind, planner in PLANS]
    made = [tables(one, streams=2) for one in schedules]
    dtype, unit = np.dtype(np.float32), 100
    with Group(threads(), ranks, 4, 2, CALLS - 3, mine=mine, tell=tell) as group:
        held = [group.plan(one) for one in made]
        lengths = np.zeros((len(PLANS), ranks, 3), np.int64)
        for number, schedule in enumerate(schedules):
            sizes = [MadeUp(schedule.collective, unit, dtype, "sum").rank(rank).sizes for rank in range(ranks)]
            lengths[number, :, :SCRATCH] = sizes
            lengths[number, :, SCRATCH] = max(held[number].scratch(rank, unit) for rank in mine)
        most = lengths.max(axis=(0, 1))
        where = np.array(
            [group.everywhere({rank: np.zeros(most[place], dtype) for rank in mine}) for place in range(3)], np.uintp
        ).T.copy()
        for call in range(calls):
            number = call % len(PLANS)
            data = MadeUp(schedules[number].collective, unit, dtype, "sum", seed=call)
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
