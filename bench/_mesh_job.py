"""One rank of a job that allreduces along both dimensions of a mesh at the same time, in a lab.

Run in a lab: python _mesh_job.py DATA TENSOR NBYTES REPEAT. Rank 0 prints JSON: the seconds of each repetition, of the
slowest rank, and what served the calls.
"""

import json
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import antiphon.torch


def main() -> None:
    data, tensor, nbytes, repeat = map(int, sys.argv[1:5])
    dist.init_process_group("antiphon")
    mesh = init_device_mesh("cpu", (data, tensor), mesh_dim_names=("data", "tensor"))
    groups = [mesh[name].get_group() for name in ("data", "tensor")]
    seconds = []
    for _ in range(repeat + 1):  # the first connects the groups
        buffers = [torch.ones(nbytes // 4) for _ in groups]
        dist.barrier()
        begin = time.perf_counter()
        for work in [dist.all_reduce(b, group=g, async_op=True) for b, g in zip(buffers, groups, strict=True)]:
            work.wait()
        slowest = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
        if not ((buffers[0] == data).all() and (buffers[1] == tensor).all()):
            sys.exit("wrong sums")
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        seconds.append(slowest.item())
    if dist.get_rank() == 0:
        served = sorted({row["schedule"] for group in groups for row in antiphon.torch.report(group)})
        print(json.dumps({"seconds": seconds[1:], "served": served}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
