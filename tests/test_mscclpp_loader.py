"""MSCCL++'s loader, as documented, takes what is exported: 131 plans, all files and ranks, both ends of the sizes."""

import copy
import json
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from mscclpp_runtime import Algorithm, ThrowError, load_rank
from quick import in_turn

import antiphon
from antiphon.core.collective import KINDS
from antiphon.formats import emit

MACHINES, PLANNERS = ("full:ranks=8", "hgx-h100", "mi300x", "delta:nodes=2"), ("direct", "ring", "multi-ring", "relay")
NVLS = [("hgx-h100", "nvls")]


def files_of(kind: str, machine: str, planner: str) -> list[dict[str, Any]]:
    files = emit(antiphon.plan(kind, machine, planner=planner), "mscclpp-json", options={"packets": "64KiB"})
    return [json.loads(text) for name, text in files.items() if name.endswith(".json") and isinstance(text, bytes)]


@pytest.mark.parametrize(("machine", "planner"), [*in_turn(product(MACHINES, PLANNERS), 16), *NVLS])
def test_every_rank_loads(machine: str, planner: str) -> None:
    kinds = KINDS if planner != "nvls" else ("allreduce", "allgather", "broadcast")
    for kind in kinds:
        for plan in files_of(kind, machine, planner):
            side = "output_chunks" if kind == "allgather" else "input_chunks"
            unit = plan["buffer_alignment"] * max(gpu[side] for gpu in plan["gpus"])
            for rank, gpu in enumerate(plan["gpus"]):
                load_rank(plan, rank)
                algorithm = Algorithm(
                    id=kind, execution_plan=SimpleNamespace(file=plan, rank=rank), tags={}, constraint=None
                )
                for units in (max(1, -(-plan["min_message_size"] // unit)), plan["max_message_size"] // unit):
                    nbytes = units * plan["buffer_alignment"]
                    algorithm.load(nbytes * gpu["input_chunks"], nbytes * gpu["output_chunks"])
                with pytest.raises(ThrowError, match="not aligned"):
                    algorithm.load(8, 8)


DAMAGES: list[tuple[str, Any]] = [
    ("dst_buff", {"index": 2**20}), ("dst_buff", {"size": 2**20}), ("dst_buff", {"buffer_id": 99}),
    ("src_buff", {"type": "s", "index": 2**20}), ("channel_ids", [99]), ("channel_ids", [0] * 9), ("barrier_id", 16),
    ("semaphore_ids", [99]),
]  # fmt: skip


def test_what_no_loader_takes_is_seen() -> None:
    plan = files_of("allreduce", "hgx-h100", "ring")[0]
    operations = [one for block in plan["gpus"][3]["threadblocks"] for one in block["ops"]]
    put = next(one for one in operations if one.get("dst_buff") and one.get("channel_ids"))
    sound = copy.deepcopy(put)
    for name, value in DAMAGES:
        load_rank(plan, 3)
        put[name] = [{**sound[name][0], **value}] if isinstance(value, dict) else value
        with pytest.raises((AssertionError, IndexError)):
            load_rank(plan, 3)
        put.clear()
        put.update(copy.deepcopy(sound))
    plan["gpus"][3]["channels"][0]["connected_to"].append(3)
    with pytest.raises(AssertionError):
        load_rank(plan, 3)
