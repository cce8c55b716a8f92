"""What a process group takes to start: ours beside gloo, in the same processes, one after the other in turn.

Run: python bench/bench_group_start.py [PROCESSES...]. Seconds from the call to its end, the last process's, medians
over 20 groups of each kind; processes are of this host, and meet in one store. What is kept on disk is there (the
engine, plans for groups of that size), as in every job but the first; `first`: with modules and memory still cold.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import _common
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

import antiphon.torch

TIMES = 20
PATIENCE = timedelta(seconds=60)


def process(rank: int, ranks: int, port: int, answers: Any) -> None:
    store = dist.TCPStore("127.0.0.1", port, ranks, rank == 0, timeout=PATIENCE)
    found: dict[str, list[float]] = {"gloo": [], "antiphon": []}
    descriptors: dict[str, int] = {}
    for number in range(TIMES + 1):
        for kind, times in found.items():
            here = PrefixStore(f"{kind}/{number}", store)
            together(here, rank, ranks)
            before = number_of("fd"), number_of("task")
            began = time.perf_counter()
            if kind == "gloo":
                group: Any = dist.ProcessGroupGloo(here, rank, ranks, timeout=PATIENCE)
            else:
                places = list(range(ranks))
                group = antiphon.torch.AntiphonGroup(here, rank, ranks, PATIENCE, places, ranks, True)
            times.append(time.perf_counter() - began)
            descriptors[kind] = number_of("fd") - before[0]
            descriptors[f"{kind} threads"] = number_of("task") - before[1]
            together(PrefixStore("made", here), rank, ranks)
            if kind == "antiphon":
                group.shutdown()
            del group
    answers.put((rank, found, descriptors))
    together(PrefixStore("end", store), rank, ranks)


def number_of(what: str) -> int:
    return len(os.listdir(f"/proc/self/{what}"))


def together(store: Any, rank: int, ranks: int) -> None:
    store.set(f"here/{rank}", "1")
    store.wait([f"here/{other}" for other in range(ranks)])


def measured(ranks: int) -> dict[str, Any]:
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    port = dist.TCPStore("127.0.0.1", 0, 1, True).port + 1
    workers = [context.Process(target=process, args=(rank, ranks, port, answers)) for rank in range(ranks)]
    for worker in workers:
        worker.start()
    told = [answers.get() for _ in workers]
    for worker in workers:
        worker.join()
    row: dict[str, Any] = {"processes": ranks}
    for kind in ("gloo", "antiphon"):
        each = [max(times) for times in zip(*(found[kind] for _, found, _ in told), strict=True)]
        row[kind], row[f"{kind} first"] = statistics.median(each[1:]), each[0]
        for what in (kind, f"{kind} threads"):
            row[f"{what}" if "threads" in what else f"{what} descriptors"] = max(more[what] for *_, more in told)
    row["ratio"] = row["antiphon"] / row["gloo"]
    return row


def main() -> None:
    _common.print_machine()
    rows = [measured(int(ranks)) for ranks in sys.argv[1:] or ("2", "4", "8")]
    _common.print_table(list(rows[0]), [list(row.values()) for row in rows])
    if not sys.argv[1:]:
        _common.save("group_start", {"rows": rows})


if __name__ == "__main__":
    assert threading.active_count() == 1, "processes are made by fork"
    main()
