"""Read recorded jobs: traces of PyTorch's profiler, of Chakra's tools and of NCCL's profilers.

The format follows from the content of the files; all readers return the same type of job: per rank, when collectives
were called, when they ran, and when computation waited for them (cost/replay).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from antiphon.core.files import name_of, read_bytes, reading
from antiphon.cost.replay.job import RecordedJob
from antiphon.cost.replay.recorded import RankTrace, join
from antiphon.errors import Invalid
from antiphon.formats.nccl_profile import (
    Call,
    is_inspector_log,
    is_profile,
    join_profiles,
    read_inspector,
    read_profile,
)

MAX_FILES = 1024  # traces of a job, one per rank
Profile = dict[int, list[Call]]  # the calls of each rank in a file of NCCL's example profiler
NO_RECORDING = "is neither a trace of PyTorch's profiler nor of a profiler of NCCL; traces of Chakra are files .et"
_JSON, _CHAKRA = (".json", ".json.gz", ".jsonl", ".jsonl.gz", ".log"), (".et", ".et.gz")


def read_recording(files: Sequence[str | os.PathLike[str]]) -> RecordedJob:
    """Return the job of these traces: a file for each rank, or the folder that they are in. Invalid names the file."""
    paths = _list_paths(files)
    if all(path.name.endswith(_CHAKRA) for path in paths):
        from antiphon.formats.chakra.read import rank_traces_of, read_traces

        return join(rank_traces_of(read_traces(paths)))
    recordings: list[RankTrace] = []
    profiles: list[Profile] = []
    for path in paths:
        with reading(name_of(path)):
            recording = _read_file(name_of(path), read_bytes(path))
            if isinstance(recording, dict):
                profiles.append(recording)
            else:
                recordings += recording
    return join([*recordings, *join_profiles(profiles)])


def _list_paths(files: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Return the files, with the traces in a folder instead of the folder."""
    paths: list[Path] = []
    for entry in map(Path, files):
        if entry.is_dir():
            paths += sorted(path for path in entry.iterdir() if path.name.endswith((*_JSON, *_CHAKRA)))
        else:
            paths.append(entry)
    if not 0 < len(paths) <= MAX_FILES:
        raise Invalid(f"expected 1 to {MAX_FILES} traces, or a folder with them; there are {len(paths)}")
    return paths


def _read_file(name: str, data: bytes) -> list[RankTrace] | Profile:
    """Return the recordings of ranks in a file; of a file of NCCL's example profiler its calls, which can
    only be joined to recordings once all files are read."""
    if is_inspector_log(data):
        return read_inspector(data)
    from antiphon.formats.chrome import ChromeTrace
    from antiphon.formats.kineto.read import is_kineto, rank_of, record_rank

    if data[:100].lstrip().startswith(b"{") and b'"traceEvents"' not in data:  # another JSON file, such as a plan
        raise Invalid(NO_RECORDING)
    trace = ChromeTrace(name, data)
    if is_profile(trace.events):
        return read_profile(trace.events)
    if not is_kineto(trace):
        raise Invalid(NO_RECORDING)
    return [record_rank(trace, rank_of(name))]
