"""Checks of torch_process.py: calls on tensors that are elsewhere go to a group of PyTorch's own, here gloo in NCCL's
place; and devices that are not there are not chosen."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._C._distributed_c10d import Backend
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec

import antiphon.torch
from antiphon.runtimes.serve import torch_far
from antiphon.runtimes.serve.torch_far import Far

NAMES = (
    "allreduce", "allreduce_coalesced", "reduce", "broadcast", "allgather", "_allgather_base", "reduce_scatter",
    "_reduce_scatter_base", "gather", "scatter", "alltoall", "alltoall_base", "send", "recv", "recv_anysource",
    "_start_coalescing", "_end_coalescing", "supports_coalescing", "shutdown",
)  # fmt: skip


def check_elsewhere(rank: int, size: int) -> dict[str, Any]:
    """Every call as PyTorch makes it, and without options, by a group that has the names of backends only."""
    assert [name for name in NAMES if not hasattr(Backend, name)] == []
    group: Any = dist.new_group()
    far = Far(group._gloo(), group._worker.submit)
    group._elsewhere = lambda tensors, peer=None: far
    total, mine, line = float(sum(range(size))), torch.full((4,), float(rank)), torch.empty(4 * size)
    every = torch.arange(size).repeat_interleave(4).float()
    one = mine.clone()
    dist.all_reduce(one, group=group)
    assert (one == total).all()
    group.allreduce([one]).wait()
    assert (one == total * size).all()
    dist.all_gather_into_tensor(line, mine, group=group)
    assert torch.equal(line, every)
    parts = [torch.empty(4) for _ in range(size)]
    dist.all_gather(parts, mine, group=group)
    assert torch.equal(torch.cat(parts), every)
    dist.reduce_scatter_tensor(one, mine.repeat(size), group=group)
    assert (one == total).all()
    dist.reduce_scatter(one, [mine] * size, group=group)
    assert (one == total).all()
    many = functional.all_gather_into_tensor_coalesced([mine, mine + 1], group)
    assert torch.equal(many[0], every)
    assert torch.equal(many[1], every + 1)
    many = functional.reduce_scatter_tensor_coalesced([mine.repeat(size), mine.repeat(size)], "sum", [0, 0], group)
    assert all((one == total).all() for one in many)
    one = mine.clone()
    dist.broadcast(one, 1, group=group)
    assert (one == 1).all()
    one = mine.clone()
    dist.reduce(one, 0, group=group)
    assert rank or (one == total).all()
    dist.gather(mine, parts if rank == 0 else None, 0, group=group)
    dist.scatter(one, parts if rank == 0 else None, 0, group=group)
    assert torch.equal(one, mine)
    dist.all_to_all_single(line, every.clone(), group=group)
    assert torch.equal(line, mine.repeat(size))
    if rank < 2:
        dist.send(mine, 1, group) if rank == 0 else dist.recv(one, 0, group)
        assert (one == 0).all()
    assert antiphon.torch.report(group) == []
    return {"marked": between_marks(mine)}


def between_marks(given: torch.Tensor) -> list[str]:
    """The calls at a group that can do several as one."""
    nccl = mock.Mock(supports_coalescing=True)
    far = Far(nccl, lambda results, do: None)
    assert far.several("_allgather_base", [given], [given], None) is nccl._allgather_base.return_value
    assert far.several("_reduce_scatter_base", [given] * 2, [given] * 2, "sum") is nccl._end_coalescing.return_value
    return [call[0] for call in nccl.method_calls]


def check_devices(rank: int, size: int) -> dict[str, Any]:
    """Only those that are there, and so does what looks for one by itself."""
    assert torch.cuda.device_count() == 0
    assert dist.Backend.backend_capability["antiphon"] == ["cpu"]
    with mock.patch("torch.backends.cuda.is_built", return_value=True):
        assert torch_far.devices() == ["cpu"]
        with mock.patch("torch.cuda.device_count", return_value=1):
            assert torch_far.devices() == ["cpu", "cuda"]
    spec = ChunkShardingSpec(dim=0, placements=[f"rank:{r}/cpu" for r in range(size)])
    whole = torch.zeros(2 * size) if rank == 0 else None
    sharded_tensor.full(spec, (2 * size,), 3.0).gather(dst=0, out=whole)
    assert whole is None or (whole == 3).all()
    return {}


def check_monitored(rank: int, size: int) -> dict[str, Any]:
    """No patience at all is not that of the group: as gloo's own."""
    said = []
    for name in ("gloo", "antiphon"):
        group: Any = dist.new_group(backend=name)
        dist.barrier()
        began = time.monotonic()
        if rank == 0:
            try:
                group.monitored_barrier(timedelta(0))
            except RuntimeError as error:
                said.append(str(error).splitlines()[0])
        waited = time.monotonic() - began
        dist.barrier()
        assert waited < 10  # the group's is 20
    assert len({*said}) == int(rank == 0), said
    return {"said": said}
