"""What MSCCL++ does with registered plans, as far as choosing goes: written from what is documented of it, for tests.

A request goes to the selector that the program set, and where that gives nothing to a fallback, which compares the
constraint, collective, place and size of every registered plan. The loader then accepts the size, or throws. Nothing
of this looks at roots, operators or memory. `load_rank`: what loader and executor want of each rank's part."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

BASE = 2**40  # addresses of buffers: far apart


class ThrowError(Exception):
    """A C++ exception that leaves a call of NCCL."""


class Mode(Enum):
    IN_PLACE = 1
    OUT_OF_PLACE = 2


class Plan:
    def __init__(self, path: str, rank: int) -> None:
        self.file: dict[str, Any] = json.loads(Path(path).read_text())
        self.rank, self.name = rank, self.file["name"]


class Algorithm:
    Constraint = SimpleNamespace

    def __init__(self, *, id: str, execution_plan: Any, tags: Mapping[str, int], constraint: Any) -> None:
        self.id, self.plan, self.constraint = id, execution_plan, constraint

    def load(self, input_bytes: int, output_bytes: int) -> None:
        plan = self.plan.file
        gpu, align = plan["gpus"][self.plan.rank], plan["buffer_alignment"]
        for nbytes, chunks in ((input_bytes, gpu["input_chunks"]), (output_bytes, gpu["output_chunks"])):
            if nbytes % align or nbytes // align % chunks:
                raise ThrowError(f"{self.id}: not aligned")
        size = output_bytes if plan["collective"] == "allgather" else input_bytes
        smallest = plan["min_message_size"]  # the loader reads it as an int, and compares it as a size
        if not (smallest + 2**31) % 2**32 - 2**31 == smallest <= size <= plan["max_message_size"]:
            raise ThrowError(f"{self.id}: not within the valid range")


MOST = {"blocks": 108, "operations": 64, "channels": 16, "of one": 8, "places": 10, "semaphores": 16, "barriers": 16}


def load_rank(file: Mapping[str, Any], rank: int) -> None:
    """AssertionError where a rank's part names what is not there, goes beyond a buffer, or exceeds a fixed array."""
    gpus: list[dict[str, Any]] = file["gpus"]
    gpu, kinds = gpus[rank], {"i": "input_chunks", "o": "output_chunks", "s": "scratch_chunks"}
    assert gpu["id"] == rank
    assert len(gpu["threadblocks"]) <= MOST["blocks"]
    assert len(gpu["semaphores"]) <= MOST["semaphores"]
    switches = [row["buffer_type"] for row in gpu["channels"] if "rank_groups" in row for _ in row["rank_groups"]]
    peers = {kind: _peers(gpu, kind) for kind in ("memory", "port")}
    assert all(0 <= peer < len(gpus) and peer != rank for ranks in peers.values() for peer in ranks)
    there = {kind: sum(ranks.values()) for kind, ranks in peers.items()} | {"switch": len(switches)}
    for number, block in enumerate(gpu["threadblocks"]):
        assert block["id"] == number
        channels: dict[str, list[int]] = {kind: [] for kind in there}
        buffers: dict[str, list[dict[str, Any]]] = {kind: [] for kind in there}
        for row in block["channels"]:
            channels[row["channel_type"]] += row["channel_ids"]
        for row in block["remote_buffer_refs"]:
            kind = row["access_channel_type"]
            buffers[kind] += [gpu["remote_buffers"][i] for i in row["remote_buffer_ids"]]
            assert all(kind in buffer["access_channel_types"] for buffer in buffers[kind])
        assert all(i < there[kind] for kind, ids in channels.items() for i in ids)
        assert all(len(ids) <= MOST["channels"] for ids in channels.values())
        assert all(len(refs) <= MOST["channels"] for refs in buffers.values())
        operations = [inner for outer in block["ops"] for inner in (outer, *outer.get("ops", ()))]
        assert len(operations) <= MOST["operations"]
        for operation in operations:
            kind = operation.get("channel_type", "")
            ids, semaphores = operation.get("channel_ids", []), operation.get("semaphore_ids", [])
            assert len(ids) <= MOST["of one"]
            assert all(i < len(channels[kind]) for i in ids)
            assert all(i < len(gpu["semaphores"]) for i in semaphores)
            assert operation.get("barrier_id", 0) < MOST["barriers"]
            for places in (operation.get("src_buff", []), operation.get("dst_buff", [])):
                assert len(places) <= MOST["places"]
                for place in places:
                    owner, buffer = gpu, place.get("type")
                    if "buffer_id" in place:
                        remote = buffers[kind][place["buffer_id"]]
                        owner, buffer = gpus[remote["rank"]], remote["type"]
                    elif "switch_channel_id" in place:
                        buffer = switches[channels["switch"][place["switch_channel_id"]]]
                    assert place["index"] + place["size"] <= owner[kinds[str(buffer)]]


def _peers(gpu: Mapping[str, Any], kind: str) -> Counter[int]:
    """By peer the number of channels of this type."""
    return Counter(peer for row in gpu["channels"] if row["channel_type"] == kind for peer in row["connected_to"])


@dataclass
class Request:
    """A call, as the NCCL interface describes it to selectors."""

    world_size: int
    n_ranks_per_node: int
    rank: int
    input_buffer: int
    output_buffer: int
    message_size: int
    collective: str
    hints: dict[str, list[int]]
    dtype: Any = None

    def buffer_mode(self) -> Mode:
        shift = self.rank * self.message_size if self.collective == "allgather" else 0
        in_place = self.input_buffer in (self.output_buffer, self.output_buffer + shift)
        return Mode.IN_PLACE if in_place else Mode.OUT_OF_PLACE


@dataclass
class Builder:
    """Of one process."""

    algorithms: dict[str, dict[str, Algorithm]] = field(default_factory=dict)
    selector: Callable[..., Algorithm | None] = lambda algorithms, request: None

    def add_algorithm_builder(self, algorithm: Algorithm) -> None:
        plan = algorithm.plan
        self.algorithms.setdefault(plan.file["collective"], {})[plan.name] = algorithm

    def set_algorithm_selector(self, selector: Callable[..., Algorithm | None]) -> None:
        self.selector = selector

    def select(self, request: Request) -> Algorithm | None:
        return self.selector(self.algorithms, request) or self._fall_back(request)

    def _fall_back(self, request: Request) -> Algorithm | None:
        size = request.message_size * (request.world_size if request.collective == "allgather" else 1)
        for algorithm in self.algorithms.get(request.collective, {}).values():
            plan, constraint = algorithm.plan.file, algorithm.constraint
            place = Mode.IN_PLACE if plan["inplace"] else Mode.OUT_OF_PLACE
            if (constraint.world_size, constraint.n_ranks_per_node) != (request.world_size, request.n_ranks_per_node):
                continue
            if request.buffer_mode() == place and plan["min_message_size"] <= size <= plan["max_message_size"]:
                return algorithm
        return None


def module_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The namespace of register.py in a folder, with this in place of mscclpp."""
    stand_in = ModuleType("mscclpp")
    stand_in.__dict__.update(ExecutionPlan=Plan, Algorithm=Algorithm)
    monkeypatch.setitem(sys.modules, "mscclpp", stand_in)
    space: dict[str, Any] = {"__file__": str(folder / "register.py")}
    exec(compile((folder / "register.py").read_text(), "register.py", "exec"), space)
    return space


class Job:
    """All ranks of a communicator, each with a builder of its own."""

    def __init__(self, ranks: int, per_node: int = 0) -> None:
        self.ranks, self.per_node = ranks, per_node or ranks
        self.builders = [Builder() for _ in range(ranks)]

    def register(self, space: dict[str, Any], **options: Any) -> None:
        for rank, builder in enumerate(self.builders):
            space["register"](builder, rank, self.ranks, self.per_node, **options)

    def call(
        self, kind: str, count: int, place: str = "out", root: int | None = None, dtype: str | None = None
    ) -> dict[str, Any] | None:  # fmt: skip
        """The plan that all ranks run, or None: `count` bytes, as NCCL counts them for this collective. AssertionError
        where ranks choose differently, which hangs. `place`: in, out, or "root": the root's input is its output, and
        that of others is nothing."""
        chosen: list[dict[str, Any] | None] = []
        whole = count * self.ranks
        for rank, builder in enumerate(self.builders):
            source, target = BASE, 2 * BASE
            if place == "in":
                source, target = {
                    "allgather": (target + rank * count, target), "reducescatter": (source, source + rank * count),
                }.get(kind, (source, source))  # fmt: skip
            elif place == "root":
                source = target if rank == root else 0
            size = whole if kind == "reducescatter" else count
            hints = {} if root is None else {"root": [root]}
            type_ = None if dtype is None else SimpleNamespace(name=dtype)
            request = Request(self.ranks, self.per_node, rank, source, target, size, kind, hints, type_)
            algorithm = builder.select(request)
            chosen.append(None if algorithm is None else algorithm.plan.file)
            if algorithm is not None:
                algorithm.load(whole if kind == "reducescatter" else count, whole if kind == "allgather" else count)
        assert len({plan and plan["name"] for plan in chosen}) == 1, "ranks run different plans and wait for ever"
        return chosen[0]
