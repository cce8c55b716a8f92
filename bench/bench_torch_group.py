"""What a process group takes to start, and an uneven all_to_all: ours beside gloo, in the same processes, in turn.

Run: python bench/bench_torch_group.py [PROCESSES...]; with ANTIPHON_INTERFACE=lo as between hosts. Seconds from the
call to its end, the last process's, medians over 20 groups of each kind; processes are of this host, and meet in one
store. What is kept on disk is there (the engine, plans for groups of that size), as in every job but the first;
`first`: with modules and memory still cold. all_to_all_single as in mixtures of experts: every process sends 0.5 to 1.5
times the size named to each; medians of 200 calls, ten of one kind after ten of the other. Descriptors and threads of a
group: when it is made, and after collectives.
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
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

import antiphon.torch

TIMES = 20
CALLS, IN_TURN = 200, 10
SIZES = (1024, 8192, 65536)  # bytes from each to each
PATIENCE = timedelta(seconds=60)


def process(rank: int, ranks: int, port: int, answers: Any) -> None:
    store = dist.TCPStore("127.0.0.1", port, ranks, rank == 0, timeout=PATIENCE)
    found: dict[str, list[float]] = {"gloo": [], "antiphon": []}
    taken: dict[str, list[list[int]]] = {}
    for number in range(TIMES + 1):
        for kind, times in found.items():
            here = PrefixStore(f"{kind}/{number}", store)
            together(here, rank, ranks)
            before = counted()
            began = time.perf_counter()
            group = made(kind, here, rank, ranks)
            times.append(time.perf_counter() - began)
            if number == TIMES:
                taken[kind] = [[now - then for now, then in zip(row, before, strict=True)] for row in used(group)]
            together(PrefixStore("made", here), rank, ranks)
            if kind == "antiphon":
                group.shutdown()
            del group
    answers.put((rank, found, taken, served(store, rank, ranks)))
    store.set(f"end/{rank}", "1")
    if rank == 0:  # the store is in this process
        store.wait([f"end/{other}" for other in range(ranks)])


def made(kind: str, store: Any, rank: int, ranks: int) -> Any:
    if kind == "gloo":
        return dist.ProcessGroupGloo(store, rank, ranks, timeout=PATIENCE)
    return antiphon.torch.AntiphonGroup(store, rank, ranks, PATIENCE, list(range(ranks)), ranks, True)


def counted() -> list[int]:
    """Descriptors and threads of this process."""
    return [len(os.listdir(f"/proc/self/{what}")) for what in ("fd", "task")]


def used(group: Any) -> list[list[int]]:
    """What is counted now, and after collectives."""
    rows = [counted()]
    group.allreduce([torch.ones(1000)]).wait()
    group.barrier().wait()
    rows.append(counted())
    return rows


def served(store: Any, rank: int, ranks: int) -> dict[str, list[float]]:
    groups = {kind: made(kind, PrefixStore(f"served {kind}", store), rank, ranks) for kind in ("gloo", "antiphon")}
    times = uneven(groups, rank, ranks)
    groups["antiphon"].shutdown()
    return times


def uneven(groups: dict[str, Any], rank: int, ranks: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    opts, before = dist.AllToAllOptions(), dist.BarrierOptions()
    opts.asyncOp = before.asyncOp = False  # as `dist.all_to_all_single` says where it waits for the call
    for size in SIZES:
        table = [[size // 8 + (3 * i + 5 * j) % 5 * size // 16 for j in range(ranks)] for i in range(ranks)]
        given, back = table[rank], [table[other][rank] for other in range(ranks)]
        line, out = torch.ones(sum(given)), torch.zeros(sum(back))
        for _ in range(CALLS // IN_TURN):
            for name, group in groups.items():
                for number in range(IN_TURN + 2):  # the threads of the other kind come to rest in the first two
                    group.barrier(before).wait()
                    began = time.perf_counter()
                    group.alltoall_base(out, line, back, given, opts).wait()
                    if number >= 2:
                        found.setdefault(f"{name} {size}", []).append(time.perf_counter() - began)
    return found


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
        each = [max(times) for times in zip(*(found[kind] for _, found, *_ in told), strict=True)]
        row[kind], row[f"{kind} first"] = statistics.median(each[1:]), each[0]
        states = ("made", "after collectives")
        for place, what in enumerate(("descriptors", "threads")):
            for state, name in enumerate(states):
                row[f"{kind} {what} {name}"] = max(taken[kind][state][place] for _, _, taken, *_ in told)
    row["ratio"] = row["antiphon"] / row["gloo"]
    for size in SIZES:
        for kind in ("gloo", "antiphon"):
            each = [max(times) for times in zip(*(calls[f"{kind} {size}"] for *_, calls in told), strict=True)]
            row[f"{kind} uneven {size}"] = statistics.median(each)
        row[f"ratio uneven {size}"] = row[f"antiphon uneven {size}"] / row[f"gloo uneven {size}"]
    return row


def main() -> None:
    _common.print_machine()
    rows = [measured(int(ranks)) for ranks in sys.argv[1:] or ("2", "4", "8")]
    _common.print_table(
        ["", *(str(row["processes"]) for row in rows)], [[key, *(row[key] for row in rows)] for key in rows[0]]
    )
    if not sys.argv[1:]:
        _common.save("torch_group_between" if os.environ.get("ANTIPHON_INTERFACE") else "torch_group", {"rows": rows})


if __name__ == "__main__":
    assert threading.active_count() == 1, "processes are made by fork"
    main()
