"""What every process of `bench --on torch` does. `python -m ... FOLDER` starts them all, `... FOLDER RANK` is one."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from antiphon.core.program import decode
from antiphon.errors import AntiphonError
from antiphon.runtimes.engine.launch import MARK
from antiphon.runtimes.measure.case import Case, heats
from antiphon.runtimes.measure.loop import Call, Heat, Seat, Together
from antiphon.runtimes.measure.mpi_process import Job
from antiphon.runtimes.measure.recorder import recording

Array = NDArray[Any]
_OPERATORS = {
    "sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG, "prod": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}  # fmt: skip

GLOO_TYPES = ("int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64")


def tensor_of(array: Array) -> torch.Tensor:
    """The same memory."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    if array.dtype.name.startswith("float8"):
        return torch.from_numpy(array.view(np.uint8)).view(getattr(torch, array.dtype.name))
    return torch.from_numpy(array)


def call_of(case: Case, seat: Seat, group: Any) -> Call:
    """A collective of PyTorch on the buffers of a seat: by our group, or by gloo's (None)."""
    kind, inside = seat.collective.kind, case.in_place
    given, out = tensor_of(seat.source), tensor_of(seat.target)
    op = _OPERATORS[case.op]
    root = seat.collective.roots[0] if seat.collective.roots else 0
    here, parts = seat.rank == root, seat.collective.ranks
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
        mine = out[seat.rank * case.unit :][: case.unit] if inside else given
        return lambda: dist.all_gather_into_tensor(out, mine, group)
    if kind == "reducescatter":
        return lambda: dist.reduce_scatter_tensor(out, given, op, group)
    if kind == "alltoall":
        return lambda: dist.all_to_all_single(out, given, group=group)
    pieces = list((out if kind == "gather" else given).chunk(parts)) if here else None
    if kind == "gather":
        return lambda: dist.gather(given, pieces, root, group)
    return lambda: dist.scatter(out, pieces, root, group)


class _Everyone(Together):
    """The processes of the world."""

    def __init__(self) -> None:
        self.first = dist.get_rank() == 0

    def meet(self) -> float:
        dist.barrier()
        return time.monotonic()

    def all(self, value: Any) -> list[Any]:
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, value)
        return found


def main(folder: Path, rank: int) -> None:
    ours = importlib.import_module("antiphon.runtimes.serve.torch_backend")
    chosen = importlib.import_module("antiphon.runtimes.serve.torch_group")
    ours.register()
    torch.set_num_threads(1)
    job = Job.read(folder)
    store = dist.FileStore(str(folder / "store"), job.processes)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=job.processes)
    collectives = [decode(data)[0].collective for data in job.programs]
    groups: dict[int, Any] = {}
    for heat in heats(job.cases):
        cases = [job.cases[number] for number in heat]
        for case in cases:
            if case.program not in groups:
                chosen.use(str(folder / f"plan{case.program}.json"))
                groups[case.program] = dist.new_group(backend="antiphon")
        mine, collective = [groups[case.program] for case in cases], collectives[cases[0].program]
        seat = Seat(collective, rank, cases[0])
        able = cases[0].dtype in GLOO_TYPES and (cases[0].op != "avg" or not collective.combining)
        theirs = call_of(cases[0], seat, None) if able else None
        calls = [call_of(cases[0], seat, group) for group in mine]
        with recording({rank: mine[0].calls.serving.wire} if cases[0].trace else {}) as recorder:
            rows = Heat(cases, seat, calls, theirs, _Everyone(), recorder=recorder).go()
        for group in mine:
            others = [one for one in ours.report(group) if one["served_by"] == "library"]
            if others and cases[0].unit:
                raise AntiphonError(f"our schedule did not serve {others[0]['collective']}: {others[0]['why']}")
        for number, row in zip(heat if rank == 0 else (), rows, strict=False):
            print(MARK + json.dumps({"case": number, **row}), flush=True)
    dist.destroy_process_group()


def start(folder: str, processes: int) -> int:
    """All of them; the first that fails ends the others."""
    command = [sys.executable, "-m", "antiphon.runtimes.measure.torch_process", folder]
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
