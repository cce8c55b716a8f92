"""The stand-in for NCCL and CUDA (tests/nccl_standin), compiled, and a program on it in several processes."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import antiphon
from antiphon.runtimes.engine.build import NATIVE, TARGETS, library, native_folder
from antiphon.select import save_plans

FOLDER = Path(__file__).with_name("nccl_standin")
FLAGS = ("-O0", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{FOLDER}", f"-I{NATIVE}")


@cache
def header() -> Path | None:
    """The folder of nccl.h."""
    given = os.environ.get("ANTIPHON_TEST_NCCL", "")
    spec = find_spec("nvidia.nccl") if find_spec("nvidia") is not None else None
    folders = (
        [Path(given)]
        if given
        else [Path(p) / "include" for p in (spec.submodule_search_locations or ())]
        if spec
        else []
    )
    return next((folder for folder in folders if (folder / "nccl.h").exists()), None)


def cuda_names(folder: Path) -> Path:
    """nccl.h asks for CUDA's headers, of which it takes the names of streams and events."""
    made = folder / "cuda"
    made.mkdir(exist_ok=True)
    (made / "cuda_runtime.h").write_text(
        "typedef struct CUstream_st *cudaStream_t;\ntypedef struct CUevent_st *cudaEvent_t;\n"
    )
    for name in ("fp16", "bf16", "fp8"):
        (made / f"cuda_{name}.h").write_text("")
    return made


def compiled(folder: Path) -> Path:
    """The stand-in as libnccl.so.2, which programs here are linked with, and these beside it; once for a folder."""
    standin = folder / "libnccl.so.2"
    if standin.exists():
        return standin
    folder.mkdir(exist_ok=True)
    sources = [str(FOLDER / f"{name}.c") for name in ("cuda", "fabric", "numbers", "nccl")]
    flags = ("-shared", "-fPIC", f"-Wl,-soname,{standin.name}")
    subprocess.run(["cc", *FLAGS, *flags, *sources, "-o", str(standin)], check=True, timeout=1000)
    program(folder, "drive")
    program(folder, "edges")
    return standin


def preload() -> Path:
    """The library for LD_PRELOAD, made for the stand-in's CUDA; processes that run tests together compile it once."""
    folder = native_folder().with_name("tests")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "nccl.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return library("nccl", str(FOLDER / "nvcc"))


def preload_with(folder: Path, name: str, old: str, new: str) -> Path:
    """The same with a change in one of its files."""
    native = folder / "engine" / "native"
    shutil.copytree(NATIVE, native)
    (folder / "device").symlink_to(NATIVE.parents[1] / "device")
    text = (native / name).read_text()
    assert old in text
    (native / name).write_text(text.replace(old, new))
    known, made = TARGETS["nccl"], folder / "libantiphon_nccl.so"
    names = ["-DAP_FOR_NCCL", f'-DAP_PYTHON="{sys.executable}"', f'-DAP_PACKAGE="{NATIVE.parents[2]}"']
    host = [flag for flag in TARGETS["threads"].flags if flag not in ("-shared", "-O3")]
    parts = [str(native / part) for part in known.parts]
    subprocess.run(["cc", *host, "-r", *names, *parts, "-o", str(folder / "parts.o")], check=True, timeout=1000)
    queues = [str(native / source) for source in known.sources]
    command = [str(FOLDER / "nvcc"), *known.flags, str(folder / "parts.o"), *queues, "-o", str(made)]
    subprocess.run(command, check=True, timeout=1000)
    return made


def tables(folder: Path, ranks: Sequence[int], planners: Mapping[str, str]) -> str:
    """A table for each number of ranks, compiled, as ANTIPHON_TABLE has them."""
    paths = []
    for count in ranks:
        machine = antiphon.topology(f"full:ranks={count}")
        text = "-".join(sorted(set(planners.values())))
        path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:8]}-{count}.json"
        if not path.exists():
            plans = {kind: antiphon.plan(kind, machine, planner=planner) for kind, planner in planners.items()}
            save_plans(path, plans, table=True)
        paths.append(str(path))
    return ":".join(paths)


def program(folder: Path, name: str) -> None:
    link = (f"-L{folder}", "-l:libnccl.so.2", f"-Wl,-rpath,{folder}")
    subprocess.run(["cc", *FLAGS, str(FOLDER / f"{name}.c"), "-o", str(folder / name), *link], check=True, timeout=1000)


@dataclass
class Done:
    """How the processes of a job have ended."""

    codes: list[int] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    complained: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        return not any(self.codes)


def run(
    folder: Path,
    ranks: int,
    *words: object,
    name: str = "drive",
    env: dict[str, str] | None = None,
    timeout: float = 100,
) -> Done:
    """`name RANK RANKS FILE words...` for each rank; all are killed where one does not come to its end."""
    meeting = folder / f"id-{os.getpid()}-{os.urandom(4).hex()}"
    given = {**os.environ, "STANDIN_SEED": "1", **(env or {})}
    processes = [
        subprocess.Popen(
            [str(folder / name), str(rank), str(ranks), str(meeting), *map(str, words)],
            env=given, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    done = Done()
    try:
        _gather(processes, done, timeout)
    finally:
        for process in processes:
            process.kill()
            process.wait()
        meeting.unlink(missing_ok=True)
        for process in processes:
            for left in Path("/dev/shm").glob(f"standin-{process.pid:x}-*"):
                left.unlink(missing_ok=True)
    return done


def _gather(processes: Sequence[subprocess.Popen[str]], done: Done, timeout: float) -> None:
    for process in processes:
        try:
            out, complaint = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            for one in processes:
                one.kill()
            out, complaint = process.communicate()
        done.codes.append(process.returncode)
        done.said.append(out)
        done.complained.append(complaint)
