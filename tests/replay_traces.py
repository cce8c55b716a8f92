"""Traces as PyTorch's profiler writes them, built by hand from what version 2.13 recorded, and from the facts that its
issues tell of kernels of NCCL (github.com/pytorch/pytorch, issue 131462; pull request 177148)."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from antiphon.cost.replay.job import RecordedJob
from antiphon.formats.jobs import read_recording

MAIN, WORKER = 100, 101
HOOK = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


def read_job(given: Sequence[Path]) -> RecordedJob:
    """The job of which these are the traces."""
    return read_recording(given)


def op(name: str, ts: float, dur: float, tid: int = MAIN, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": MAIN, "tid": tid, "ts": ts, "dur": dur, "args": args}


def step(number: int, ts: float, dur: float) -> dict[str, Any]:
    return {**op(f"ProfilerStep#{number}", ts, dur), "cat": "user_annotation"}


def carried(name: str, ts: float, dur: float, elements: int, tid: int = WORKER) -> dict[str, Any]:
    """What a thread of gloo did."""
    told = {"Input type": ["float"], "Input Dims": [[elements]]}
    return {**op(f"gloo:{name}", ts, dur, tid, **told), "cat": "user_annotation"}


def allreduce(ts: float, dur: float, elements: int) -> dict[str, Any]:
    told = {
        "Input type": ["TensorList", "", "", "", "Scalar", "Scalar"],
        "Input Dims": [[[elements]], [], [], [], [], []],
    }
    return op("c10d::allreduce_", ts, dur, **told)


def kernel(name: str, ts: float, dur: float, stream: int, correlation: int, **args: Any) -> list[dict[str, Any]]:
    """A kernel, launched 5 us before it could begin."""
    launch = {**op("cudaLaunchKernel", args.pop("launch"), 2.0, correlation=correlation), "cat": "cuda_runtime"}
    told = {"stream": stream, "correlation": correlation, **args}
    return [launch, {**op(name, ts, dur, stream, **told), "cat": "kernel", "pid": 0}]


def nccl(ts: float, dur: float, launch: float, correlation: int, elements: int) -> list[dict[str, Any]]:
    told = {
        "Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements, "Group size": 2,
        "dtype": "BFloat16", "Process Group Name": "0", "Process Group Ranks": "[0, 1]",
    }  # fmt: skip
    name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    return kernel(name, ts, dur, 20, correlation, launch=launch, **told)


def of_rank(rank: int, events: Sequence[dict[str, Any]], size: int = 2, host: str = "here") -> dict[str, Any]:
    group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cpu:gloo", "pg_size": size,
             "ranks": list(range(size))}  # fmt: skip
    about = {"backend": "gloo", "rank": rank, "world_size": size, "pg_count": 1, "pg_config": [group]}
    return {"schemaVersion": 1, "distributedInfo": about, "host_name": host, "traceEvents": list(events)}


def ddp(rank: int, late: float = 0.0) -> dict[str, Any]:
    """Two steps of 20 ms: 8 ms forward, two buckets of 1 MB that the hooks of DDP call after 10 and 14 ms, the first
    over after 15 ms, the second after 19; `late`: this rank computes so many ms more before the first."""
    events: list[dict[str, Any]] = []
    us = 1000.0
    for number in (0, 1):
        at = number * 20 * us
        events.append(step(number, at, 20 * us))
        events.append(op("aten::linear", at + 0.1 * us, (8 + late) * us))
        for bucket, (made, length) in enumerate(((9.9 + late, 0.2), (13.9, 0.2))):
            hook = at + made * us
            before = 8.2 + late if not bucket else 10.2 + late
            events.append(
                op("autograd::engine::evaluate_function: MulBackward0", at + before * us, (made - before) * us)
            )
            events.append(op("aten::mul", at + before * us, (made - before) * us))
            events.append(op(HOOK, hook, length * us))
            events.append(op("torch::distributed::reducer::mul_out", hook, 50.0, **{
                "Input type": ["float"], "Input Dims": [[250_000]]}))  # fmt: skip
            events.append(allreduce(hook + 100, 50.0, 250_000))
        events.append(carried("all_reduce", at + (10.1 + late) * us, (4.9 - late) * us, 250_000))
        events.append(carried("all_reduce", at + 15 * us, 4 * us, 250_000))
        events.append(op("torch.distributed.ddp.reducer::copy_bucket_to_grad", at + 15.1 * us, 100.0))
        events.append(op("torch.distributed.ddp.reducer::copy_bucket_to_grad", at + 19.1 * us, 100.0))
        events.append(op("aten::add_", at + 19.3 * us, 600.0))
    return of_rank(rank, events)


def gpu(rank: int) -> dict[str, Any]:
    """A step of 10 ms: 4 ms of computation, then two more while 5 ms of NCCL run, a gap until these are over, 1 ms."""
    work = "sm90_xmma_gemm_bf16"
    events = [
        step(0, 0.0, 500.0),
        *kernel(work, 50.0, 4000.0, 7, 1, launch=10.0),
        *nccl(4060.0, 5000.0, launch=20.0, correlation=2, elements=500_000),
        *kernel(work, 4050.0, 2000.0, 7, 3, launch=30.0),
        *kernel(work, 9062.0, 1000.0, 7, 4, launch=40.0),
    ]
    return of_rank(rank, events)


def profile_of_nccl(rank: int) -> list[dict[str, Any]]:
    told = {"SeqNum": 0, "CommHash": 77, "Rank": rank, "Count": 1000, "Datatype": "ncclFloat32", "nChannels": 2}
    begin = {"name": "AllGather", "cat": "COLL", "ph": "b", "id": 0, "pid": 5, "tid": 1, "ts": 10.0, "args": told}
    return [begin, {"name": "AllGather", "cat": "COLL", "ph": "e", "id": 0, "pid": 5, "tid": 1, "ts": 60.0}]


def inspected(rank: int, number: int, seconds: float, coll: str = "AllReduce") -> str:
    return json.dumps(
        {
            "header": {"id": "0x7f", "rank": rank, "n_ranks": 2, "nnodes": 1},
            "metadata": {"inspector_output_format_version": "v4.0", "hostname": "a", "dump_timestamp_us": 1},
            "coll_perf": {
                "coll": coll, "coll_sn": number, "coll_msg_size_bytes": 4096, "coll_exec_time_us": seconds * 1e6,
                "coll_algobw_gbs": 1.0, "coll_busbw_gbs": 1.0,
            },
        }
    )  # fmt: skip


def write(folder: Path, traces: Sequence[dict[str, Any]]) -> list[Path]:
    files = []
    for rank, trace in enumerate(traces):
        files.append(folder / f"rank{rank}.json")
        files[-1].write_text(json.dumps(trace))
    return files
