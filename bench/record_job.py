"""Record a small training under PyTorch, by gloo and by our plans, in turns (docs/replay.md).

    torchrun --nproc-per-node 2 bench/record_job.py FOLDER --kind ddp --blocks 8

Every block is some steps of one training by gloo, then the same by ours, each with a profiler of its own: so both meet
the same load of the machine. FOLDER gets gloo-K.RANK.json and antiphon-K.RANK.json for block K, and measured.json: what
each collective of the training takes by either, alone and in turns, as `antiphon replay --measured` reads it; and how
often the ranks were put off their cores by others in each block (`disturbed`, involuntary switches a second of either).
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

import antiphon.torch  # noqa: F401  # registers the backend

BACKENDS = ("gloo", "antiphon")


def training(kind: str, group: Any, told: argparse.Namespace) -> Callable[[], None]:
    """A step of a training of linear layers: data parallel, or with sharded parameters."""
    torch.manual_seed(0)
    wide = told.wide
    layers = [one for _ in range(told.layers) for one in (torch.nn.Linear(wide, wide), torch.nn.ReLU())]
    model: torch.nn.Module = torch.nn.Sequential(*layers)
    if kind == "ddp":
        model = DistributedDataParallel(model, process_group=group, bucket_cap_mb=told.bucket)
    else:
        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in layers:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(told.batch, wide)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step


def record(step: Callable[[], None], steps: int, file: Path) -> float:
    """The first step only warms the profiler up; the last is there because of those of ours that a later one tells.
    How often a second this rank was put off its core meanwhile."""
    plan = schedule(wait=0, warmup=1, active=steps, repeat=1)
    dist.barrier()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, schedule=plan) as found:
        begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        for _ in range(steps + 1):
            step()
            found.step()
        often = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - before
        disturbed = often / (time.perf_counter() - begin)
    found.export_chrome_trace(str(file))
    return disturbed


def call_of(kind: str, nbytes: int, group: Any) -> Callable[[], None]:
    ranks, many = dist.get_world_size(group), nbytes // 4
    whole, part = torch.ones(many), torch.ones(many // ranks)
    if kind == "allreduce":
        return lambda: dist.all_reduce(whole, group=group)
    if kind == "allgather":
        return lambda: dist.all_gather_into_tensor(whole, part, group=group)
    return lambda: dist.reduce_scatter_tensor(part, whole, group=group)


def measure(
    sizes: list[tuple[str, int]], groups: dict[str, Any], runs: int, told: argparse.Namespace
) -> list[dict[str, Any]]:
    """Medians of what each takes from when the last rank has come until the last is done, by the clock that processes
    of a computer share; the two in turns. Each after some computation of the training's kind, as in it: on a busy
    machine a thread that has just computed waits longer for its turn than one that has rested."""
    rows = []
    layer, batch = torch.nn.Linear(told.wide, told.wide), torch.randn(told.batch, told.wide)
    for kind, nbytes in sizes:
        took: dict[str, list[float]] = {name: [] for name in groups}
        calls = {name: call_of(kind, nbytes, group) for name, group in groups.items()}
        for turn in range(runs + 2):
            for name, call in calls.items():
                dist.barrier()
                layer(batch).sum().backward()
                dist.barrier()
                begin = time.perf_counter()
                call()
                last = torch.tensor([begin, time.perf_counter()], dtype=torch.float64)
                dist.all_reduce(last, dist.ReduceOp.MAX)
                if turn >= 2:
                    took[name].append(float(last[1] - last[0]))
        seconds = {name: statistics.median(times) for name, times in took.items()}
        rows.append(
            {"collective": kind, "nbytes": nbytes, "seconds": seconds["antiphon"], "reference_seconds": seconds["gloo"]}
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kind", choices=("ddp", "fsdp"), default="ddp")
    for name, usual in (("blocks", 8), ("steps", 4), ("wide", 512), ("layers", 6), ("batch", 256), ("bucket", 2)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    told = parser.parse_args()
    if told.steps < 2 or told.blocks < 1:
        parser.error("--steps: 2 or more, as the step after it completes the calls of a step; --blocks: 1 or more")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups = {name: dist.new_group(backend=name) for name in BACKENDS}
    rank = dist.get_rank()
    told.folder.mkdir(parents=True, exist_ok=True)
    trainings = {name: training(told.kind, group, told) for name, group in groups.items()}
    for step in trainings.values():
        step()
        step()
    layer = (told.wide * told.wide + told.wide) * 4
    sizes = [(kind, layer) for kind in ("allgather", "reducescatter")]
    if told.kind == "ddp":
        sizes = [("allreduce", layer * many) for many in (1, 2, told.layers)]
    rows: list[list[dict[str, Any]]] = []
    disturbed: list[float] = []
    for block in range(told.blocks):
        rows.append(measure(sizes, groups, 4, told))
        worst = torch.zeros(1)
        for name in BACKENDS if block % 2 else BACKENDS[::-1]:
            worst += record(trainings[name], told.steps, told.folder / f"{name}-{block}.{rank}.json")
        dist.all_reduce(worst, dist.ReduceOp.MAX)
        disturbed.append(float(worst))
    if rank == 0:
        best = [
            {**row, **{key: statistics.median(one[k][key] for one in rows) for key in ("seconds", "reference_seconds")}}
            for k, row in enumerate(rows[0])
        ]
        (told.folder / "measured.json").write_text(json.dumps({"rows": best, "disturbed": disturbed}) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
