"""Execution plans of MSCCL++ that stand in public, by what their channels tell; and what a person draws of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from probe_text import Case

REPOSITORY = "microsoft/mscclpp, "
FIRST = {"memory": "sm", "port": "proxy", "switch": "nvls"}  # what the first generation calls them


def _plan(
    ranks: int,
    reach: Mapping[str, Sequence[Sequence[int]]],
    group: Sequence[int] = (),
    first: bool = False,
    ways: int = 1,
) -> str:
    """`reach`: of every rank the ranks that its channels of a type lead to, `ways` times; `group`: on one switch."""
    gpus = []
    for rank in range(ranks):
        channels: list[dict[str, Any]] = []
        rows = [(kind, {"connected_to": [*others[rank]] * ways}) for kind, others in reach.items() if others[rank]]
        if rank in group:
            rows.append(("switch", {"rank_groups": [{"size": len(group), "ranks": [*group]}]}))  # type: ignore[dict-item]
        for kind, row in rows:
            if first:
                names = {"connected_to": "connectedTo", "rank_groups": "rankGroups"}
                channels.append({"srcbuff": "i", "type": FIRST[kind], **{names[key]: row[key] for key in row}})
            else:
                channels.append({"channel_type": kind, **row})
        gpus.append({"id": rank, "threadblocks": [{"id": 0, "ops": [{"name": "nop"}]}], "channels": channels})
    return json.dumps({"name": "plan", "collective": "allreduce", "protocol": "Simple", "gpus": gpus}, indent=1)


def _others(ranks: int) -> list[list[int]]:
    return [[other for other in range(ranks) if other != rank] for rank in range(ranks)]


def _ring(ranks: int, steps: Sequence[int]) -> list[list[int]]:
    return [[(rank + step) % ranks for step in steps] for rank in range(ranks)]


WHO = ("who reaches whom",)
PLANS = [
    Case("two GPUs, eight channels", REPOSITORY + "test/execution-files/allreduce.json",
         _plan(2, {"memory": _others(2)}, ways=8), 2, 0, "nvlink 25: 0-1", notes=WHO),
    Case("two GPUs, packets of the first generation", REPOSITORY + "test/execution-files/sendrecv.json",
         _plan(2, {"port": _others(2)}, first=True), 2, 1, "ib 50: 0,1-network", notes=("a card of 50 GB/s",)),
    Case("two hosts", REPOSITORY + "test/executor-tests/execution-plans/multi_node_transfer.json",
         _plan(2, {"port": _others(2)}, ways=2), 2, 1, "ib 25: 0,1-network", notes=("a card of 25 GB/s",),
         options={"nic": "200Gbit/s"}),
    Case("two GPUs on a switch", REPOSITORY + "test/executor-tests/execution-plans/reduce_nvls.json",
         _plan(2, {"memory": _others(2)}, range(2)), 2, 1, "nvlink 450: 0,1-nvswitch", sharp=True,
         options={"nvlink": "450GB/s"}),
    Case("four GPUs on a switch, pipelined", REPOSITORY + "test/execution-files/allreduce_pipeline.json",
         _plan(4, {"memory": _others(4)}, range(4), ways=2), 4, 1, "nvlink 25: *-nvswitch", sharp=True),
    Case("eight GPUs on a switch, first generation", REPOSITORY + "test/execution-files/allreduce_nvls.json",
         _plan(8, {"memory": _others(8)}, range(8), first=True), 8, 1, "nvlink 25: *-nvswitch", sharp=True),
    Case("eight GPUs, first generation", REPOSITORY + "apps/nccl/test/execution-files/allreducesm.json",
         _plan(8, {"memory": _others(8)}, first=True, ways=8), 8, 0, "nvlink 25: all", notes=WHO),
    Case("eight GPUs, packets", REPOSITORY + "test/execution-files/allreduce_packet2.json",
         _plan(8, {"memory": _others(8)}, ways=2), 8, 0, "nvlink 25: all"),
    Case("four GPUs, alltoallv", REPOSITORY + "test/dynamic_alltoallv_plan.json",
         _plan(4, {"memory": _others(4)}), 4, 0, "nvlink 25: all"),
    Case("two boxes of two", REPOSITORY + "python/mscclpp/language/tests/test2.json",
         _plan(4, {"memory": [[1], [0], [3], [2]], "port": [[2], [3], [0], [1]]}), 4, 1,
         "nvlink 25: 0-1 2-3; ib 50: *-network"),
    Case("a ring of four hosts", REPOSITORY + "test.json",
         _plan(4, {"port": _ring(4, (1, 3))}, ways=4), 4, 1, "ib 50: *-network"),
    Case("sixteen hosts", REPOSITORY + "test.json",
         _plan(16, {"port": _ring(16, (4, 12))}, ways=4), 16, 1, "ib 50: *-network"),
    Case("a rank that is left alone", REPOSITORY + "python/mscclpp/language/tests/test.json",
         _plan(3, {}, range(2)), 3, 1, "nvlink 25: 0,1-nvswitch", sharp=True, notes=("joined by nothing",)),
]  # fmt: skip
