"""Read traces of PyTorch's profiler: when each rank computed, called collectives, and waited for them.

A trace is a JSON file of one rank in Chrome's format; `formats.chrome` reads it and checks its events. `record_rank`
takes rank, process groups and the times of training steps from it. It leaves the other events to `kineto.gpu` if there
are GPU kernels among them, else to `kineto.processor`. The result is used to replay recorded jobs (cost/replay).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.cost.replay.job import ProcessGroup
from antiphon.cost.replay.recorded import RankTrace
from antiphon.errors import Invalid
from antiphon.formats.chrome import ChromeTrace
from antiphon.formats.kineto.gpu import read_gpu_rank
from antiphon.formats.kineto.processor import read_processor_rank

_STEP = re.compile(r"ProfilerStep#[0-9]{1,9}")
# rank3, .3, -3 or _3 in the name of a file
_RANK = re.compile(r"(?:rank|[._-])[._-]?([0-9]{1,6})(?=[._-]|$)")
_US = 1e-6  # seconds; times in a trace are microseconds


def is_kineto(trace: ChromeTrace) -> bool:
    """Return whether PyTorch's profiler wrote the trace."""
    return trace.distributed_info is not None or any(
        event.get("cat") in ("cpu_op", "kernel", "user_annotation") for event in trace.events
    )


def record_rank(trace: ChromeTrace, rank_in_name: int | None) -> RankTrace:
    """Return the recording of the rank of a trace.

    `rank_in_name`: the rank by the file's name, used if the trace states none.
    """
    info: Mapping[str, Any] = trace.distributed_info if isinstance(trace.distributed_info, dict) else {}
    rank, size = _count_or_none(info.get("rank")), _count_or_none(info.get("world_size"))
    complete_events = [event for event in trace.events if event["ph"] == "X"]
    groups = _read_groups(info, size)
    training_steps = sorted(
        (event["ts"], event["ts"] + event.get("dur", 0.0))
        for event in complete_events
        if event.get("cat") == "user_annotation" and _STEP.fullmatch(str(event.get("name", "")))
    )
    spans = [(begin * _US, end * _US) for begin, end in training_steps]
    read_rank = read_gpu_rank if any(event.get("cat") == "kernel" for event in complete_events) else read_processor_rank
    number = rank if rank is not None else rank_in_name or 0
    return read_rank(complete_events, spans, number, str(trace.host or ""), groups, size)


def _count_or_none(value: object) -> int | None:
    """Return a plausible rank or number of ranks, else None: no job has 4 million ranks."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**22 else None


def rank_of(name: str) -> int | None:
    """Return the rank in a name such as rank3.json, trace.3.json or job_rank-3.pt.trace.json.gz; None if none."""
    numbers = _RANK.findall(re.sub(r"(\.pt)?(\.trace)?\.json(\.gz)?$", "", os.path.basename(name)))
    return int(numbers[-1]) if numbers else None


def _read_groups(info: Mapping[str, Any], size: int | None) -> dict[str, ProcessGroup]:
    """Return the process groups of a trace by name; if it lists none, one of all `size` ranks (None: unknown)."""
    groups: dict[str, ProcessGroup] = {}
    configs = info.get("pg_config", [])
    for config in configs if isinstance(configs, Sequence) and not isinstance(configs, str) else []:
        if not isinstance(config, dict) or not isinstance(config.get("ranks", []), list):
            raise Invalid("distributedInfo: pg_config: expected objects with pg_name and ranks")
        members = tuple(rank for rank in config.get("ranks", []) if _count_or_none(rank) is not None)
        count = _count_or_none(config.get("pg_size")) or len(members)
        # The profiler shortens long lists. A group without a list is of use, its size is known; part of a list is not.
        if count and len(members) in (0, count):
            groups[str(config.get("pg_name", ""))] = ProcessGroup(str(config.get("pg_name", "")), count, members)
    if not groups and size:
        groups["0"] = ProcessGroup("0", size, tuple(range(size)))
    return groups
