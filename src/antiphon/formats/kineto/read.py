"""Read traces of PyTorch's profiler: when each rank computed, called collectives, and waited for them.

A trace is a JSON file of one rank in Chrome's format (formats/chrome reads and checks its events). `record_rank` reads
rank, groups and steps of training, and leaves the events to `gpu` if there are kernels of GPUs, else to `processor`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.cost.replay.job import ProcessGroup
from antiphon.cost.replay.recorded import Recorded
from antiphon.errors import Invalid
from antiphon.formats.chrome import Read
from antiphon.formats.kineto.gpu import on_gpu
from antiphon.formats.kineto.processor import on_processor

_STEP = re.compile(r"ProfilerStep#[0-9]{1,9}")
_RANK = re.compile(r"(?:rank|[._-])[._-]?([0-9]{1,6})(?=[._-]|$)")
_US = 1e-6


def is_kineto(read: Read) -> bool:
    """Return whether PyTorch's profiler wrote the trace."""
    return read.job is not None or any(
        event.get("cat") in ("cpu_op", "kernel", "user_annotation") for event in read.events
    )


def record_rank(read: Read, named: int | None) -> Recorded:
    """Return the recording of the rank of a trace. `named`: the rank in the file's name, used if the trace has none."""
    about: Mapping[str, Any] = read.job if isinstance(read.job, dict) else {}
    rank, size = _checked_number(about.get("rank")), _checked_number(about.get("world_size"))
    slices = [event for event in read.events if event["ph"] == "X"]
    groups = _read_groups(about, size)
    steps = sorted(
        (event["ts"], event["ts"] + event.get("dur", 0.0))
        for event in slices
        if event.get("cat") == "user_annotation" and _STEP.fullmatch(str(event.get("name", "")))
    )
    spans = [(begin * _US, end * _US) for begin, end in steps]
    read_rank = on_gpu if any(event.get("cat") == "kernel" for event in slices) else on_processor
    number = rank if rank is not None else named or 0
    return read_rank(slices, spans, number, str(read.host or ""), groups, size)


def _checked_number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**22 else None


def rank_of(name: str) -> int | None:
    """Return the rank in a name such as rank3.json, trace.3.json or job_rank-3.pt.trace.json.gz; None if none."""
    numbers = _RANK.findall(re.sub(r"(\.pt)?(\.trace)?\.json(\.gz)?$", "", os.path.basename(name)))
    return int(numbers[-1]) if numbers else None


def _read_groups(about: Mapping[str, Any], size: int | None) -> dict[str, ProcessGroup]:
    """Return the process groups of a trace by name; without any in it, one of all ranks."""
    groups: dict[str, ProcessGroup] = {}
    configs = about.get("pg_config", [])
    for config in configs if isinstance(configs, Sequence) and not isinstance(configs, str) else []:
        if not isinstance(config, dict) or not isinstance(config.get("ranks", []), list):
            raise Invalid("distributedInfo: pg_config: expected objects with pg_name and ranks")
        members = tuple(rank for rank in config.get("ranks", []) if _checked_number(rank) is not None)
        count = _checked_number(config.get("pg_size")) or len(members)
        if count and len(members) in (0, count):
            groups[str(config.get("pg_name", ""))] = ProcessGroup(str(config.get("pg_name", "")), count, members)
    if not groups and size:
        groups["0"] = ProcessGroup("0", size, tuple(range(size)))
    return groups
