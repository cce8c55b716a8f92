"""What `tune --on` chooses against the best that there is: chosen, then all contestants measured again, apart.

Run: python bench/bench_choose.py [mpi|torch] [RANKS] [--mpiexec COMMAND] (default mpi 4). Six sizes; the run apart is a
race of all contestants for each size, twice as long. chosen / best is the median of their ratio within its rounds.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import _common

import antiphon
from antiphon.runtimes.measure import choose
from antiphon.runtimes.measure.case import Case, How, Row
from antiphon.runtimes.measure.rows import load_runtime

SIZES, FACTOR, ITERATIONS = "1KB:1024KB", 4, 20


def exhaustive(work: Any, rounds: int) -> dict[tuple[str, int, int], Row]:
    """Every contestant of every race again, `rounds` times, in turn."""
    programs, cases, owners = work.cases()
    found: dict[tuple[str, int, int], Row] = {}
    endless: list[Case] = [replace(case, repeat=rounds, seconds=float("inf")) for case in cases]

    def heard(number: int, row: Row) -> None:
        found[owners[number]] = row

    load_runtime(work.on).run(programs, endless, How(mpiexec=work.how.mpiexec), heard)
    return found


def main() -> None:
    arguments = sys.argv[1:]
    mpiexec = ""
    if "--mpiexec" in arguments:
        at = arguments.index("--mpiexec")
        mpiexec = arguments[at + 1]
        del arguments[at : at + 2]
    on = arguments[0] if arguments else "mpi"
    ranks = int(arguments[1]) if len(arguments) > 1 else 4
    _common.print_machine()
    kept: list[Any] = []
    measure_and_choose = choose.Races.measure_and_choose

    def remembered(self: Any, deterministic: bool) -> Any:
        kept.append(self)
        return measure_and_choose(self, deterministic)

    choose.Races.measure_and_choose = remembered  # type: ignore[method-assign]
    found = antiphon.measure.tune(
        "allreduce", f"full:ranks={ranks}", on=on, nbytes=SIZES, factor=FACTOR, iterations=ITERATIONS, mpiexec=mpiexec
    )
    again = exhaustive(kept[0], 2 * ITERATIONS)
    rows = []
    for size in sorted({one[1] for one in again}):
        mine = {number: row for (_, nbytes, number), row in again.items() if nbytes == size}
        entry = found.plan.at(size)
        shortlist = found.tuning.shortlist["allreduce"]
        chosen = next(n for n in mine if shortlist[n].schedule is entry.schedule)
        seconds = {n: row["seconds"] for n, row in mine.items()}
        best = min(seconds, key=lambda n: seconds[n])
        rows.append(
            {
                "nbytes": size, "chosen": entry.claims["planner"], "best": shortlist[best].candidate.planner,
                "chosen_over_best": mine[chosen]["over_best"], "contestants": len(mine),
                "worst_over_best": max(row["over_best"] for row in mine.values()),
                "ties": len(entry.claims["ties"]), "runs": mine[chosen]["runs"],
            }
        )  # fmt: skip
    _common.print_table(list(rows[0]), [list(row.values()) for row in rows])
    print(f"greatest chosen / best: {max(row['chosen_over_best'] for row in rows):.3f}")
    _common.save(f"choose-{on}", {"ranks": ranks, "mpiexec": mpiexec, "rows": rows})


if __name__ == "__main__":
    main()
