"""Links cut at random under a running MPI or PyTorch job: right results or a clear error, and then the repaired table.

Run as root: python bench/bench_cuts.py [mpi|torch] [--cuts 100] [--seed 0] [--machine FILE] [--timeout 1] [--agree]. A
job in the emulated cluster makes one checked allreduce of 200 KB after another (`_cut_job.py`), by a table that `tune
--failures links` made; `--agree` sets ANTIPHON_AGREE. At a random moment a link goes down, in or between calls; 3
seconds later the network knows a path around it. After an error the job makes a new communicator or process group,
which takes the plans for that failure. Then the link is up again, and the next is cut. The MPI is MPICH, from
$ANTIPHON_TEST_MPICH, else the folder mpich of this environment.

Printed per cut: at how many ranks each failed call ended with an error, and the seconds until the last such call; in
the end how many calls failed at all ranks and at some. A wrong result, or no progress for a minute, is an error.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from _common import keep, print_machine

import antiphon
from antiphon.core.topology import Topology
from antiphon.runtimes.engine.build import library

MPICH = Path(os.environ.get("ANTIPHON_TEST_MPICH") or Path(sys.prefix) / "mpich") / "bin"
JOB = Path(__file__).with_name("_cut_job.py")
SCALE = "link=40Mbit"
START, PATIENCE = 300.0, 60.0  # seconds until the first call, and without a call that ends: the job hangs


def kite() -> Topology:
    """Four ranks in a ring, with one of the two diagonals."""
    return antiphon.machines.degrade("full:ranks=4", drop_links="1-3")


class Job:
    """A job under way in a lab of its own; `calls` reads how its calls went."""

    def __init__(self, kind: str, machine: Topology, folder: Path, timeout: float, agree: bool) -> None:
        self.folder, self.name = folder, f"cuts-{os.getpid()}"
        table = folder / "table.json"
        antiphon.tune(
            "allreduce", machine, nbytes="200KB", planners=["trees", "relay"], nccl=False,
            search=antiphon.Search(failures="links"),
        ).save(table)  # fmt: skip
        self.settings = {
            "ANTIPHON_TABLE": str(table), "ANTIPHON_TIMEOUT": str(timeout), "ANTIPHON_LEAST": "0",
            "ANTIPHON_AFTER": "0", "ANTIPHON_REPORT": str(folder / "report.json"), "OMP_NUM_THREADS": "1",
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "MASTER_PORT": "29511", "ANTIPHON_AGREE": "1" if agree else "0",
        }  # fmt: skip
        program = [str(JOB), kind, str(folder), str(timeout)]
        self.command = [sys.executable, *program]
        if kind == "mpi":
            compiler = str(MPICH / "mpicc")
            self.settings["LD_PRELOAD"] = str(library("mpi", compiler))
            antiphon.native.build("mpi", compiler, [table])
            self.command = [str(MPICH / "mpiexec"), "-n", str(machine.ranks), str(MPICH / "python"), *program]
        antiphon.lab.up(machine, scale=SCALE, name=self.name)
        with (folder / "messages").open("w", encoding="utf-8") as messages:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "antiphon", "lab", "run", self.name, "--timeout", "7200s", "--", *self.command],
                env={**os.environ, **self.settings}, stdout=messages, stderr=messages,
            )  # fmt: skip

    def calls(self) -> list[dict[str, Any]]:
        path = self.folder / "calls"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def wait_for(self, count: int) -> list[dict[str, Any]]:
        """Wait until so many calls have ended; RuntimeError if the job hangs, ends or computes something wrong."""
        progress, seen = time.monotonic(), 0
        while len(calls := self.calls()) < count:
            if len(calls) > seen:
                progress, seen = time.monotonic(), len(calls)
            if self.process.poll() is not None:
                raise RuntimeError(f"the job ended with exit code {self.process.returncode}: {self.last_messages()}")
            if time.monotonic() > progress + (PATIENCE if calls else START):
                raise RuntimeError(
                    f"no call has ended for {PATIENCE:g} seconds, after {len(calls)} calls: {self.last_messages()}"
                )
            time.sleep(0.05)
        if any("wrong" in call["how"] for call in calls):
            raise RuntimeError(f"a result is wrong: {next(call for call in calls if 'wrong' in call['how'])}")
        return calls

    def last_messages(self) -> str:
        return (self.folder / "messages").read_text(encoding="utf-8", errors="replace")[-20000:]

    def close(self) -> None:
        (self.folder / "stop").touch()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(PATIENCE)
        antiphon.lab.down(self.name)
        self.process.wait()


def cut_links(job: Job, machine: Topology, cuts: int, seed: int) -> list[dict[str, Any]]:
    """Cut a random link at a random moment, wait for three right calls, mend it, and again; return a row per cut."""
    rng, rows = random.Random(seed), []
    ends = zip(machine.link_src.tolist(), machine.link_dst.tolist(), strict=True)
    links = sorted({f"{a}-{b}" for a, b in ends if a < b})
    for number in range(cuts):
        before = len(job.wait_for(len(job.calls()) + 2))
        time.sleep(rng.uniform(0, 0.5))
        link, began = rng.choice(links), time.monotonic()
        antiphon.lab.cut(job.name, link)
        calls = job.wait_for(len(job.calls()) + 3)
        while any("error" in call["how"] for call in calls[-3:]):
            calls = job.wait_for(len(calls) + 1)
        failed = [call for call in calls[before:] if "error" in call["how"]]
        counts = [call["how"].count("error") for call in failed]
        seconds = failed[-1]["at"] - began if failed else 0.0
        rows.append({"link": link, "failed_ranks": counts, "seconds": round(seconds, 3)})
        text = f"errors at {counts} of {machine.ranks} ranks, the last after {seconds:.2f} s" if failed else "no error"
        print(f"{number}: {link} cut: {text}", flush=True)
        antiphon.lab.cut(job.name, "")
    return rows


def run(kind: str, machine: Topology, cuts: int, seed: int, timeout: float, agree: bool = False) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        job = Job(kind, machine, Path(folder), timeout, agree)
        try:
            rows = cut_links(job, machine, cuts, seed)
        finally:
            job.close()
        if job.process.returncode:
            raise RuntimeError(f"the job ended with exit code {job.process.returncode}: {job.last_messages()}")
        report = Path(folder, "report.json")
        served = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
        calls = job.calls()
    failed = [count for row in rows for count in row["failed_ranks"]]
    return {
        "kind": kind, "machine": machine.name, "cuts": cuts, "calls": len(calls), "timeout": timeout,
        "failed_at_all_ranks": sum(count == machine.ranks for count in failed),
        "failed_at_some_ranks": sum(count < machine.ranks for count in failed),
        "cuts_without_error": sum(not row["failed_ranks"] for row in rows),
        "median_seconds": statistics.median(row["seconds"] for row in rows),
        "max_seconds": max(row["seconds"] for row in rows), "rows": rows, "served": served.get("served"),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", default=["mpi", "torch"])
    parser.add_argument("--cuts", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=1.0)
    parser.add_argument("--machine", default="")
    parser.add_argument("--agree", action="store_true")
    args = parser.parse_args()
    print_machine()
    machine = antiphon.topology(args.machine) if args.machine else kite()
    for kind in args.kinds:
        result = run(kind, machine, args.cuts, args.seed, args.timeout, args.agree)
        print({key: value for key, value in result.items() if key not in ("rows", "served")})
        keep("cuts", {f"{kind}, agreed" if args.agree else kind: result})


if __name__ == "__main__":
    main()
