"""A process of `bench --on torch`: `python -m ... FOLDER` starts all of them, `... FOLDER RANK` is one of them.

FOLDER holds the job (`mpi_process.MpiJob`: programs and cases) and the plans. The process groups run the plans; of the
programs only the collectives are read. Each process calls torch.distributed's collectives on a process group of backend
"antiphon" per plan and, for comparison, on gloo's. Rank 0 prints a line of JSON per case. Processes measure each group
of cases together (`loop.Measurement`).
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from antiphon.core.program import collective_of
from antiphon.errors import AntiphonError
from antiphon.runtimes.engine.launch import MARK
from antiphon.runtimes.measure.case import Case, group_cases
from antiphon.runtimes.measure.loop import Call, Measurement, RankBuffers
from antiphon.runtimes.measure.mpi_process import CommPeers, MpiJob
from antiphon.runtimes.measure.recorder import record_wires

Array = NDArray[Any]
_OPERATORS = {
    "sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG, "prod": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}  # fmt: skip

# types that gloo reduces and moves; others are measured without a comparison
GLOO_TYPES = ("int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64")


def tensor_of(array: Array) -> torch.Tensor:
    """Return a tensor in the memory of an array."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    if array.dtype.name.startswith("float8"):
        return torch.from_numpy(array.view(np.uint8)).view(getattr(torch, array.dtype.name))
    return torch.from_numpy(array)


def call_of(case: Case, buffers: RankBuffers, group: Any) -> Call:
    """Return a call of a collective of PyTorch on the buffers of a rank: by this process group, or by gloo's (None)."""
    kind, in_place = buffers.collective.kind, case.in_place
    source, target = tensor_of(buffers.source), tensor_of(buffers.target)
    op = _OPERATORS[case.op]
    root = buffers.collective.roots[0] if buffers.collective.roots else 0
    at_root, ranks = buffers.rank == root, buffers.collective.ranks
    if kind in ("allreduce", "broadcast", "reduce"):
        tensor = target if len(target) else source.clone()  # a reduce has a target at its root only
        call_on_tensor = {
            "allreduce": lambda: dist.all_reduce(tensor, op, group),
            "broadcast": lambda: dist.broadcast(tensor, root, group),
            "reduce": lambda: dist.reduce(tensor, root, op, group),
        }[kind]
        if in_place or (kind == "broadcast" and not at_root):
            return call_on_tensor

        def call() -> None:
            tensor.copy_(source)
            call_on_tensor()

        return call
    if kind == "allgather":
        own_block = target[buffers.rank * case.unit :][: case.unit] if in_place else source
        return lambda: dist.all_gather_into_tensor(target, own_block, group)
    if kind == "reducescatter":
        return lambda: dist.reduce_scatter_tensor(target, source, op, group)
    if kind == "alltoall":
        return lambda: dist.all_to_all_single(target, source, group=group)
    blocks = list((target if kind == "gather" else source).chunk(ranks)) if at_root else None
    if kind == "gather":
        return lambda: dist.gather(source, blocks, root, group)
    return lambda: dist.scatter(target, blocks, root, group)


class TorchWorld:
    """All processes, with the methods of a communicator of MPI, over gloo. `where`: arguments of init_process_group."""

    def __init__(self, **where: Any) -> None:
        # a day: processes may wait for long while others measure, and the job has a timeout of its own
        dist.init_process_group("gloo", timeout=timedelta(days=1), **where)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def bcast(self, value: Any = None) -> Any:
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def allgather(self, value: Any) -> list[Any]:
        values = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def Barrier(self) -> None:  # noqa: N802 (MPI's name)
        dist.barrier()

    def Ibarrier(self) -> TorchWorld:  # noqa: N802
        """Wait at once, and return this object as the request."""
        dist.barrier()
        return self

    def Test(self) -> bool:  # noqa: N802
        """Return True: `Ibarrier` has waited already."""
        return True

    def Abort(self, code: int) -> None:  # noqa: N802
        os._exit(code)


def main(folder: Path, rank: int) -> None:
    """Run all cases of a job as process `rank`, and print the rows if it is 0."""
    # imported here: the process that starts the others needs no backend
    backend = importlib.import_module("antiphon.runtimes.serve.torch_backend")
    group_module = importlib.import_module("antiphon.runtimes.serve.torch_group")
    backend.register()
    torch.set_num_threads(1)
    job = MpiJob.read(folder)
    store = dist.FileStore(str(folder / "store"), job.processes)
    world = CommPeers(TorchWorld(store=store, rank=rank, world_size=job.processes))
    collectives = list(map(collective_of, job.programs))
    groups: dict[int, Any] = {}
    for numbers in group_cases(job.cases):
        cases = [job.cases[number] for number in numbers]
        for case in cases:
            if case.program not in groups:
                # the plan of all groups that are created from now on
                group_module.use(str(folder / f"plan{case.program}.json"))
                groups[case.program] = dist.new_group(backend="antiphon")
        case_groups, collective = [groups[case.program] for case in cases], collectives[cases[0].program]
        buffers = RankBuffers(collective, rank, cases[0])
        gloo_supports = cases[0].dtype in GLOO_TYPES and (cases[0].op != "avg" or not collective.combining)
        gloo_call = call_of(cases[0], buffers, group=None) if gloo_supports else None
        calls = [call_of(cases[0], buffers, group) for group in case_groups]
        # A traced case is alone in its group (`Case.trace`).
        with record_wires({rank: case_groups[0].calls.serving.wire} if cases[0].trace else {}) as recorder:
            rows = Measurement(cases, buffers, calls, gloo_call, world, recorder=recorder).run()
        for group in case_groups:
            gloo_rows = [row for row in backend.report(group) if row["served_by"] == "library"]
            if gloo_rows and cases[0].unit:  # an empty call may go to gloo
                raise AntiphonError(f"our schedule did not serve {gloo_rows[0]['collective']}: {gloo_rows[0]['why']}")
        for number, row in zip(numbers if rank == 0 else (), rows, strict=False):  # only rank 0 prints
            print(MARK + json.dumps({"case": number, **row}), flush=True)
    dist.destroy_process_group()


def start(folder: str, processes: int) -> int:
    """Start all processes; the first that fails ends the others."""
    command = [sys.executable, "-m", "antiphon.runtimes.measure.torch_process", folder]
    running = [subprocess.Popen([*command, str(rank)]) for rank in range(processes)]
    code = 0
    while running and not code:
        time.sleep(0.05)
        code = next((process.returncode for process in running if process.poll()), 0)
        running = [process for process in running if process.poll() is None]
    for process in running:
        process.kill()
        process.wait()
    return code


if __name__ == "__main__":
    if len(sys.argv) == 2:
        exit_code = start(sys.argv[1], MpiJob.read(Path(sys.argv[1])).processes)
        sys.exit(1 if exit_code else 0)  # negative after a signal, which is no exit code
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]))
    except Exception as error:
        print(MARK + json.dumps({"fault": f"{type(error).__name__}: {error}"}), flush=True)
        sys.exit(1)
