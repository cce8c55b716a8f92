"""Messages between two that PyTorch is to make together: its own function does that for its own groups only."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d


def batched(of: type) -> None:
    """From now on `batch_isend_irecv` makes those of such groups on a device as one: one after another they might wait
    for each other for ever."""
    theirs = distributed_c10d.batch_isend_irecv
    if getattr(theirs, "for_antiphon", False):
        return

    @wraps(theirs)
    def batch_isend_irecv(p2p_op_list: list[Any]) -> list[Any]:
        first = p2p_op_list[0] if p2p_op_list else None
        group = None if first is None else first.group or dist.group.WORLD
        if first is None or not isinstance(group, of) or first.tensor.device.type == "cpu":
            return theirs(p2p_op_list)
        distributed_c10d._check_p2p_op_list(p2p_op_list)
        with dist._coalescing_manager(group, first.tensor.device, async_ops=True) as together:
            for one in p2p_op_list:
                to = "group_dst" if one.op is dist.isend else "group_src"
                one.op(one.tensor, group=one.group, tag=one.tag, **{to: one.group_peer})
        works: list[Any] = together.works
        return works

    batch_isend_irecv.for_antiphon = True  # type: ignore[attr-defined]
    distributed_c10d.batch_isend_irecv = dist.batch_isend_irecv = batch_isend_irecv
