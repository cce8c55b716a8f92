"""What every process of `bench --on torch` does. `python -m ... FOLDER` starts them all, `... FOLDER RANK` is one."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from antiphon.core.collective import Collective
from antiphon.core.datatypes import data_type
from antiphon.core.program import decode
from antiphon.errors import AntiphonError
from antiphon.run._case import in_turn
from antiphon.run._launch import MARK
from antiphon.run._mpi_data import RankData
from antiphon.run._mpi_process import Case, Job, timed

Array = NDArray[Any]
Call = Callable[[], None]
_OPERATORS = {
    "sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG, "prod": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}  # fmt: skip

GLOO_TYPES = ("int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64")


def tensor_of(array: Array) -> torch.Tensor:
    """The same memory."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


class _Run:
    """One case at one process: ours and gloo's on the same data."""

    def __init__(self, case: Case, collective: Collective, group: Any) -> None:
        self.case, self.collective = case, collective
        self.rank, dtype = dist.get_rank(), data_type(case.dtype)
        self.data = RankData(collective, self.rank, case.unit, dtype, case.op, case.in_place, case.seed)
        self.source = np.zeros(0 if case.in_place else self.data.sizes[0], dtype)
        self.target = np.zeros(self.data.sizes[1], dtype)
        self.fresh = np.zeros(self.data.sizes[1] if case.in_place else 0, dtype)
        self.data.fill(self.fresh if case.in_place else self.source)
        self.kept = self.source.copy()
        self.ours = self._call(group)
        able = case.dtype in GLOO_TYPES and (case.op != "avg" or not collective.combining)
        self.theirs = self._call(None) if able else None

    def _call(self, group: Any) -> Call:
        kind, inside = self.collective.kind, self.case.in_place
        given, out = tensor_of(self.source), tensor_of(self.target)
        op = _OPERATORS[self.case.op]
        root = self.collective.roots[0] if self.collective.roots else 0
        here, parts = self.rank == root, self.collective.ranks
        if kind in ("allreduce", "broadcast", "reduce"):
            work = out if len(out) else given.clone()  # where a reduce leaves nothing
            alone = {
                "allreduce": lambda: dist.all_reduce(work, op, group),
                "broadcast": lambda: dist.broadcast(work, root, group),
                "reduce": lambda: dist.reduce(work, root, op, group),
            }[kind]
            if inside or (kind == "broadcast" and not here):
                return alone

            def copied() -> None:
                work.copy_(given)
                alone()

            return copied
        if kind == "allgather":
            mine = out[self.rank * self.case.unit :][: self.case.unit] if inside else given
            return lambda: dist.all_gather_into_tensor(out, mine, group)
        if kind == "reducescatter":
            return lambda: dist.reduce_scatter_tensor(out, given, op, group)
        if kind == "alltoall":
            return lambda: dist.all_to_all_single(out, given, group=group)
        pieces = list((out if kind == "gather" else given).chunk(parts)) if here else None
        if kind == "gather":
            return lambda: dist.gather(given, pieces, root, group)
        return lambda: dist.scatter(out, pieces, root, group)

    def once(self, ours: bool) -> float:
        if self.case.in_place:
            self.target[:] = self.fresh
        call = self.ours if ours or self.theirs is None else self.theirs
        dist.barrier()
        began = time.perf_counter()
        call()
        return time.perf_counter() - began

    def checked(self, ours: bool) -> int:
        self.target[:] = self.target.dtype.type(77)
        self.once(ours)
        return self.data.count_wrong(self.target) + int(np.count_nonzero(self.source != self.kept))

    def go(self) -> dict[str, Any]:
        case = self.case
        wrong, theirs_wrong = self.checked(True), self.checked(False) if self.theirs else 0
        for _ in range(case.warmup):
            self.once(True)
            self.once(False)
        spent = in_turn(self.once, case.repeat, self.theirs is not None)
        wrong += self.checked(True)
        slowest, counts = torch.from_numpy(spent), torch.tensor([wrong, theirs_wrong])
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        dist.all_reduce(counts)
        both = self.theirs is not None
        return {
            **timed(slowest.numpy(), both),
            "wrong": int(counts[0]),
            "reference_wrong": int(counts[1]) if both else None,
        }


def main(folder: Path, rank: int) -> None:
    ours = importlib.import_module("antiphon.run.torch_backend")
    ours.register()
    torch.set_num_threads(1)
    job = Job.read(folder)
    store = dist.FileStore(str(folder / "store"), job.processes)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=job.processes)
    collectives = [decode(data)[0].collective for data in job.programs]
    groups: dict[int, Any] = {}
    for case in job.cases:
        if case.program not in groups:
            ours.use(str(folder / f"plan{case.program}.json"))
            groups[case.program] = dist.new_group(backend="antiphon")
        group = groups[case.program]
        row = _Run(case, collectives[case.program], group).go()
        others = [one for one in ours.report(group) if one["served_by"] == "library"]
        if others and case.unit:
            raise AntiphonError(f"our schedule did not serve {others[0]['collective']}: {others[0]['why']}")
        if rank == 0:
            print(MARK + json.dumps(row), flush=True)
    dist.destroy_process_group()


def start(folder: str, processes: int) -> int:
    """All of them; the first that fails ends the others."""
    command = [sys.executable, "-m", "antiphon.run._bench_torch_process", folder]
    running = [subprocess.Popen([*command, str(rank)]) for rank in range(processes)]
    code = 0
    while running and not code:
        time.sleep(0.05)
        code = next((one.returncode for one in running if one.poll()), 0)
        running = [one for one in running if one.poll() is None]
    for one in running:
        one.kill()
        one.wait()
    return code


if __name__ == "__main__":
    if len(sys.argv) == 2:
        sys.exit(start(sys.argv[1], Job.read(Path(sys.argv[1])).processes) and 1)
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]))
    except Exception as error:
        print(MARK + json.dumps({"fault": f"{type(error).__name__}: {error}"}), flush=True)
        sys.exit(1)
