"""How fast programs are proven to be their collective, against lowering and writing the same programs in the same run.

Run: python bench/bench_prove.py. CPU seconds of this process, medians; both variants of every program.
"""

from __future__ import annotations

from _common import medians, print_machine, print_table, save

import antiphon
from antiphon.core.program import SEND, encode, prove
from antiphon.core.transform import pipeline
from antiphon.formats.program import both

CASES = (
    ("allreduce", "full:ranks=8", "ring", 1),
    ("allreduce", "full:ranks=64", "ring", 1),
    ("allreduce", "full:ranks=64", "ring", 64),
    ("allreduce", "full:ranks=256", "direct", 1),
    ("allreduce", "full:ranks=256", "halving-doubling", 1),
    ("allgather", "full:ranks=256", "bruck", 1),
    ("alltoall", "full:ranks=128", "direct", 1),
    ("alltoall", "full:ranks=64", "bruck", 1),
    ("broadcast", "dgx1v", "trees", 1),
)


def main() -> None:
    print_machine()
    rows = []
    for kind, spec, planner, pieces in CASES:
        schedule = antiphon.plan(kind, antiphon.topology(spec), planner=planner).at(0).schedule
        if pieces > 1:
            schedule = pipeline(schedule, pieces)
        programs = both(schedule)
        messages = sum(int((program.kind == SEND).sum()) for program in programs)
        proven, lowered, written = (
            medians(function, 3)["cpu_seconds"]
            for function in (
                lambda programs=programs: prove(*programs),
                lambda schedule=schedule: both(schedule),
                lambda programs=programs: encode(programs),
            )
        )
        rows.append(
            {
                "case": f"{kind} {spec} {planner}" + f" in {pieces} pieces" * (pieces > 1),
                "messages": messages,
                "seconds": round(proven, 4),
                "per_100k_messages": round(proven / messages * 1e5, 3),
                "of_lowering": round(proven / lowered, 2),
                "of_encode": round(proven / written, 2),
            }
        )
    titles = ["case", "messages", "seconds", "s per 10^5 messages", "of lowering", "of encode"]
    print_table(titles, [list(row.values()) for row in rows])
    save("prove", {"rows": rows})


if __name__ == "__main__":
    main()
