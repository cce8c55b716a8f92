"""How well `plan --budget` is kept: random calls, and the CPU time that each takes beyond its budget.

Run: python bench/bench_budget.py [--calls 2000] [--seed 0] [--workers 2]. A call is a random planner, collective,
machine, size, model and budget from 0.1 to 5 s. Half are made by the command line, half by `antiphon.plan`, each in a
process forked from this one, which has loaded the package: what loading takes is not in the figures, all else is (the
machine, the text, JSON). CPU time is that of the process and all its descendants, so other work on the machine does
not count. Goal: nobody takes more than 1.3 times the budget and 0.5 s. Every plan that comes is checked: by
`antiphon.verify`, or as JSON that says `verified`. A call that ends by a refusal (exit code 2) needs no budget.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import random
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from _common import print_machine, print_table, save

import antiphon
from antiphon import cli
from antiphon.core.collective import KINDS
from antiphon.errors import AntiphonError
from antiphon.isolate import cpu_clock
from antiphon.registry import find, table

FACTOR, EXTRA = 1.3, 0.5
MIN_BUDGET, MAX_BUDGET = 0.1, 5.0
BOXES = ("dgx-a100", "hgx-h100", "dgx1v", "mi250", "mi300x", "pcie8")
MODELS = ("alpha-beta", "critical-path", "flows", "loggp")
OUTCOMES = {0: "plan", 1: "no plan", 2: "refused"}


class Case(NamedTuple):
    """One call. `nbytes` is "" for none, `model` "" for the usual one."""

    kind: str
    machine: str
    planner: str
    nbytes: str
    model: str
    budget: float
    in_python: bool


def random_machine(choice: random.Random) -> str:
    n = choice.choice([2, 3, 4, 8, 13, 16, 32, 64, 128, 256])
    a, b = choice.choice([2, 3, 4, 8]), choice.choice([2, 4, 5, 8])
    box = f"cluster:box={choice.choice(BOXES)},boxes={choice.choice([2, 3, 4, 8, 16, 32])}"
    regular = [f"ring:ranks={n}", f"full:ranks={min(n, 128)}", f"star:ranks={n}", f"line:ranks={n}"]
    grids = [f"torus:dims={a}x{b}", f"mesh:dims={a}x{b}", f"torus:dims={a}x{b}x{a}", f"torus:dims={4 * a}x{4 * b}"]
    catalogue = [str(entry.can.example) for entry in table("topology").values()]
    return choice.choice([*regular, *grids, *[box] * 4, choice.choice(catalogue), choice.choice(catalogue)])


def random_case(seed: int) -> Case:
    choice = random.Random(seed)
    planner = choice.choice(list(table("planner")))
    kinds = [kind for kind in find("planner", planner).can.collectives if kind in KINDS]
    nbytes = choice.choice(["", "", "4KB", "1MB", "64MB", "1GB"])
    model = choice.choice(MODELS) if nbytes and choice.random() < 0.3 else ""
    budget = round(math.exp(choice.uniform(math.log(MIN_BUDGET), math.log(MAX_BUDGET))), 3)
    return Case(
        choice.choice(kinds), random_machine(choice), planner, nbytes, model, budget, bool(choice.getrandbits(1))
    )


def call_command(case: Case, out: BinaryIO) -> int:
    words = ["plan", case.kind, case.machine, "--planner", case.planner, "--budget", f"{case.budget}s", "--json"]
    words += ["--nbytes", case.nbytes] if case.nbytes else []
    words += ["--model", case.model] if case.model else []
    os.dup2(out.fileno(), 1)
    return cli.run(words)


def call_function(case: Case, out: BinaryIO) -> int:
    """Its CPU time is taken before the plan is checked."""
    begin = cpu_clock()
    try:
        plan = antiphon.plan(
            case.kind, case.machine, planner=case.planner, nbytes=case.nbytes or None, model=case.model or None,
            budget=case.budget,
        )  # fmt: skip
    except AntiphonError as error:
        plan, code = None, error.exit_code
    else:
        code = 0
    used = cpu_clock() - begin
    told: dict[str, Any] = {"cpu_seconds": used}
    if plan is not None:
        claims = plan.entries[0].claims
        told |= {"verified": antiphon.verify(plan).ok, "stopped": claims.get("stopped")}
    out.write(json.dumps(told).encode())
    out.flush()
    return code


def start(case: Case, out: BinaryIO) -> int:
    """The process that makes the call; its output goes to the file."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        silence = os.open(os.devnull, os.O_RDWR)
        os.dup2(silence, 2)
        code = call_function(case, out) if case.in_python else call_command(case, out)
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os._exit(code)


def results_of(cases: list[Case], workers: int) -> Iterator[tuple[Case, dict[str, Any]]]:
    waiting, running = list(reversed(cases)), dict[int, tuple[Case, Any]]()
    while waiting or running:
        while waiting and len(running) < workers:
            out = tempfile.TemporaryFile()  # noqa: SIM115
            case = waiting.pop()
            running[start(case, out)] = (case, out)
        pid, status, used = os.wait4(-1, 0)
        case, out = running.pop(pid)
        out.seek(0)
        text = out.read()
        out.close()
        code = os.waitstatus_to_exitcode(status)
        told = json.loads(text) if text.strip() else {}
        cpu = told.get("cpu_seconds", used.ru_utime + used.ru_stime)
        outcome = (
            "stopped with a plan" if code == 0 and told.get("stopped") else OUTCOMES.get(code, f"exit code {code}")
        )
        if code == 0 and told.get("verified") is not True:
            outcome = "WRONG"
        yield case, {"cpu_seconds": cpu, "outcome": outcome, "over": cpu - case.budget}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    print_machine()
    os.environ["ANTIPHON_CACHE"] = "off"
    for planner in ("ring", "flows", "sccl"):  # load what calls load
        antiphon.plan("alltoall", "ring:ranks=4", planner=planner, nbytes="1MB", model="loggp")
    with contextlib.redirect_stdout(io.StringIO()):
        cli.run(["plan", "allgather", "ring:ranks=4", "--planner", "trees"])
    cases = [random_case(given.seed * 10**6 + number) for number in range(given.calls)]
    rows: list[dict[str, Any]] = []
    for number, (case, result) in enumerate(results_of(cases, given.workers), start=1):
        excess = result["cpu_seconds"] - (FACTOR * case.budget + EXTRA)
        rows.append({**case._asdict(), **result, "excess": excess})
        if excess > 0 or result["outcome"] == "WRONG" or result["outcome"].startswith("exit code"):
            print(f"{number}: {case} {result}", flush=True)
    report(rows, given.seed)


def report(rows: list[dict[str, Any]], seed: int) -> None:
    outcomes = Counter(row["outcome"] for row in rows)
    print_table(["outcome", "calls"], [[name, count] for name, count in outcomes.most_common()])
    ended = [row for row in rows if row["outcome"] in ("no plan", "stopped with a plan")]
    over = sorted(row["over"] for row in ended)
    shares = {f"{q}%": over[min(int(len(over) * q / 100), len(over) - 1)] for q in (50, 90, 99, 100)} if over else {}
    print_table(["CPU s beyond the budget, of calls that it ended", "s"], [[k, v] for k, v in shares.items()])
    worst = sorted(rows, key=lambda row: -row["excess"])[:5]
    print_table(
        ["nearest to 1.3 budget + 0.5 s", "budget", "CPU s", "beyond the goal"],
        [[f"{r['planner']} {r['kind']} {r['machine']} {r['nbytes']} {r['model']}", r["budget"], r["cpu_seconds"],
          r["excess"]] for r in worst],
    )  # fmt: skip
    missed = sum(row["excess"] > 0 for row in rows)
    print(f"{len(rows)} calls, {missed} beyond the goal")
    save("budget", {
        "calls": len(rows), "seed": seed, "outcomes": dict(outcomes), "beyond_goal": missed,
        "over_seconds": shares, "median_cpu_seconds": statistics.median(row["cpu_seconds"] for row in rows),
        "worst": worst,
    })  # fmt: skip


if __name__ == "__main__":
    main()
