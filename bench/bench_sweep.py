"""A sweep of 200 machines by each engine, two workers each, one killed in the middle: is the table that of one process?

Run: python bench/bench_sweep.py [ENGINE ...] [--machines N]. An engine that is not installed is skipped.

`use` is the part of the time between the first and the last result in which a worker had a processor (ran) or would
have taken one (waited for it, as others use the machine, too): by the kernel's /proc/PID/task/TID/schedstat. So it is
hardly spoiled by others; threads of a worker that wait at once may bring it above 100 %. `cpu` counts only what ran.
Goal: 90 %.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from _common import print_machine, print_table

from antiphon.sweeps.request import SweepRequest, read_sweep_file
from antiphon.sweeps.results import SweepResult, run_sweep

MODULES = {"processes:2": "antiphon", "dask": "distributed", "ray": "ray"}
MARKS = ("spawn_main", "ray::_result_or_error", "ray::IDLE")  # in the command lines of workers of Dask and Ray
STUDY = """
collectives = "allreduce"
nbytes = "1KB:1GB:1000"
planners = ["ring", "direct", "relay"]
model = "alpha-beta"
[[machines]]
topology = "torus"
vary = {{ dims = ["2x4", "3x3", "4x4", "2x2x2", "4x5"], bandwidth = {bandwidths} }}
"""
KINDS = 5  # values of dims above


def read_study(machines: int) -> SweepRequest:
    bandwidths = [f"{10 + i}GB/s" for i in range(max(1, machines // KINDS))]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "study.toml"
        file.write_text(STUDY.format(bandwidths=bandwidths), encoding="utf-8")
        return read_sweep_file(file)


def list_workers() -> list[int]:
    """Return the processes below this one that plan cells."""
    parents, words = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it may end meanwhile
            pid = int(folder.name)
            parents[pid] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            words[pid] = (folder / "cmdline").read_text()

    def is_ours(pid: int) -> bool:
        while pid in parents and pid != os.getpid():
            pid = parents[pid]
        return pid == os.getpid()

    own = words[os.getpid()]  # also the words of a forked worker
    workers = [pid for pid, text in words.items() if text == own or any(mark in text for mark in MARKS)]
    return [pid for pid in workers if pid != os.getpid() and is_ours(pid)]


class Watch:
    """Seconds that each worker ran and waited for a processor; kills one worker in the middle."""

    def __init__(self) -> None:
        self.begin = self.end = 0.0
        self.first: dict[int, tuple[float, float]] = {}
        self.last: dict[int, tuple[float, float]] = {}
        self.killed = 0

    def __call__(self, done: int, total: int, name: str) -> None:
        if done == 1:
            self.begin = time.perf_counter()
        self.end = time.perf_counter()
        if done == 1 or done % 10 == 0 or done == total:
            for pid in list_workers():
                self._sample(pid, began_later=done > 1)
        if done == total // 2 and not self.killed:
            self.killed = max(self.last, key=lambda pid: self.last[pid][0] - self.first[pid][0])
            os.kill(self.killed, signal.SIGKILL)

    def _sample(self, pid: int, *, began_later: bool) -> None:
        ran = waited = 0.0
        with suppress(OSError):
            for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                run, wait, _ = map(int, file.read_text().split())
                ran, waited = ran + run / 1e9, waited + wait / 1e9
            # of a worker that began after the first result, all counts; of others, what came before does not
            self.first.setdefault(pid, (0.0, 0.0) if began_later else (ran, waited))
            self.last[pid] = ran, waited

    def shares(self, workers: int) -> tuple[float, float]:
        """Return the shares of `workers` processors that ran, and that ran or waited."""
        seconds = workers * (self.end - self.begin)
        ran, waited = (sum(self.last[pid][i] - self.first[pid][i] for pid in self.last) for i in (0, 1))
        return ran / seconds, (ran + waited) / seconds


def start(engine: str) -> None:
    if engine == "ray":
        import ray

        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engines", nargs="*", default=list(MODULES))
    parser.add_argument("--machines", type=int, default=200)
    arguments = parser.parse_args()
    print_machine()
    request = read_study(arguments.machines)
    begin = time.process_time()
    reference = run_sweep(request, engine="processes:1")
    print(f"one process: {len(reference.answers)} cells, {time.process_time() - begin:.1f} s of CPU time", flush=True)
    wrong = 0
    for engine in arguments.engines:
        if find_spec(MODULES[engine]) is None:
            print(f"{engine}: not installed")
            continue
        start(engine)
        watch = Watch()
        result: SweepResult = run_sweep(request, engine=engine, progress=watch)
        same = list(result.rows()) == list(reference.rows())
        wrong += not (same and watch.killed)
        ran, used = watch.shares(2)
        row = [engine, f"{watch.end - watch.begin:.1f}", f"{ran:.0%}", f"{used:.0%}", "yes" if same else "NO"]
        print_table(["engine", "seconds", "cpu", "use", "same table, one killed"], [row])
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
