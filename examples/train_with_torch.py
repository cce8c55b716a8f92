"""Train a small model on several processes, its gradients added up by the plans of a table.

    torchrun --nproc-per-node 4 examples/train_with_torch.py

Set ANTIPHON_TABLE to a table that `antiphon tune` wrote for your machine; without one, plans are made at once.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import antiphon.torch  # registers the backend

dist.init_process_group("antiphon")
rank, processes = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
parallel = DistributedDataParallel(model)
optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)

draw = torch.Generator().manual_seed(rank)  # each process learns from data of its own
inputs = torch.randn(256, 16, generator=draw)
wanted = inputs.square().mean(1, keepdim=True)

for step in range(101):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(parallel(inputs), wanted)
    loss.backward()
    optimizer.step()
    if step % 25 == 0:
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        if rank == 0:
            print(f"step {step:3}: loss {mean:.4f} on {processes} processes")

if rank == 0:
    for row in antiphon.torch.report():
        print(f"{row['calls']:5} x {row['collective']:9} by {row['schedule']} ({row['served_by']})")
dist.destroy_process_group()
