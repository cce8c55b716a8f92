"""What it costs to record what the engine does (docs/export.md): calls of one plan, recorded and not, in turns.

    python bench/bench_trace.py                       # about a minute
    python bench/bench_trace.py --ranks 2 --pairs 100 --save

The processes are those of one MPI job. In a turn each makes many calls with recording on, or off; turns come in
pairs, whose order changes from pair to pair. Of each pair the ratio on/off is taken, of what the slowest process took
and of the processor time of all, and of all pairs the median. On a busy machine the processor time tells more.
`off/off` is the same between turns that are both off: what this machine lets one see. `least` is the ratio of the
shortest turns, which nothing else has disturbed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from _common import print_machine, print_table, save

SIZES = ("256B", "4KB", "64KB", "1MB")
TURN = 0.002  # seconds that a turn should take: short, so that both of a pair see the same of what else runs
MARK = "row "


def compared(turn: Any, count: int, pairs: int) -> dict[str, Any]:
    """Pairs of turns that are on and off, and of turns that are both off, in turns."""
    seen: dict[str, list[Any]] = {"on/off": [], "off/off": []}
    off, least = list[float](), {True: float("inf"), False: float("inf")}
    for number in range(2 * pairs):
        on = number % 2 == 1
        first, second = on and number % 4 == 1, on and number % 4 == 3
        a, b = turn(first, count), turn(second, count)
        new, old = (a, b) if first else (b, a)
        seen["on/off" if on else "off/off"].append((new[0] / old[0], new[1] / old[1]))
        off.append(old[0])
        for which, (took, _) in ((first, a), (second, b)):
            least[which] = min(least[which], took)
    row: dict[str, Any] = {"us": statistics.median(off) * 1e6, "least": least[True] / least[False]}
    for what, ratios in seen.items():
        row[what] = statistics.median(wall for wall, _ in ratios)
        row[f"{what} cpu"] = statistics.median(cpu for _, cpu in ratios)
    return row


def as_process(pairs: int, sizes: list[str]) -> None:
    import numpy as np
    from mpi4py import MPI

    import antiphon
    from antiphon.core.program import encode
    from antiphon.formats.program import both
    from antiphon.runtimes.engine.build import library
    from antiphon.runtimes.engine.native import Engine
    from antiphon.runtimes.engine.trace import Trace
    from antiphon.units import parse_size

    world = MPI.COMM_WORLD
    engine = Engine(library("mpi"))
    wire = engine.mpi(world, range(world.size), world.size)
    trace = Trace(wire, 2**12)
    machine, span = f"full:ranks={world.size}", f"{sizes[0]}:{sizes[-1]}"
    plans = antiphon.tune("allreduce", machine, nbytes=span, search=antiphon.Search(workers="none")).plan
    for size in sizes:
        nbytes = parse_size(size)
        program = engine.program(encode(both(plans.at(nbytes).schedule)))
        plan = program.plan(world.rank, nbytes // 4 // plans.collective.buffer_weight)
        source, target = np.ones(nbytes // 4, np.float32), np.empty(nbytes // 4, np.float32)
        call = plan.bound(source, target, wire)

        def turn(on: bool, count: int, call: Any = call) -> tuple[float, float]:
            """Seconds of the slowest process for one call, and of the processors for all."""
            if on:
                trace.start()
            else:
                trace.stop()
            world.Barrier()
            used, began = time.process_time(), time.perf_counter()
            for _ in range(count):
                call()
            took, used = time.perf_counter() - began, time.process_time() - used
            return world.allreduce(took, MPI.MAX) / count, world.allreduce(used) / count

        turn(True, 5)
        count = world.bcast(max(int(TURN / turn(False, 20)[0]), 5))
        row = {"size": size, "ranks": world.size, "calls": count, **compared(turn, count, pairs)}
        trace.start()
        call()
        row["records"] = len(trace.call(0))
        if world.rank == 0:
            print(MARK + json.dumps(row), flush=True)
    trace.stop()
    wire.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--sizes", nargs="+", default=SIZES)
    parser.add_argument("--save", action="store_true", help="to bench/results/trace.json")
    parser.add_argument("--process", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.process:
        return as_process(given.pairs, given.sizes)
    from antiphon.runtimes.engine.launch import launcher_command

    print_machine()
    rows = []
    for ranks in given.ranks:
        me = [sys.executable, str(Path(__file__).resolve()), "--process", "--pairs", str(given.pairs), "--sizes"]
        command = [*launcher_command("", ranks), *me, *given.sizes]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
        rows += [json.loads(line[len(MARK) :]) for line in done.stdout.splitlines() if line.startswith(MARK)]
    keys = ["ranks", "size", "us", "records", "least", "on/off", "on/off cpu", "off/off", "off/off cpu"]
    print_table(keys, [[row[key] for key in keys] for row in rows])
    if given.save:
        save("trace", {"pairs": given.pairs, "rows": rows})
    return None


if __name__ == "__main__":
    main()
