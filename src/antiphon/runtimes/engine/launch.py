"""Starting programs that measure under an MPI launcher, and hearing what they say."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from json import JSONDecoder
from pathlib import Path
from typing import Any

from antiphon.errors import AntiphonError, Invalid, Missing, TimedOut, quote
from antiphon.runtimes.engine.complaint import complaint
from antiphon.units import format_seconds

MARK = "antiphon-row "
HELP = "pip install 'antiphon[mpi]' (mpi4py and Open MPI)"
LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "MPI_LOCALRANKID")
_KEPT = 200  # lines of what a launcher said


class Failed(AntiphonError):
    """The programs ran and did not do what they should."""

    exit_code = 1


def launched() -> bool:
    """Whether mpiexec or srun started this very process as one of several."""
    return any(name in os.environ for name in LAUNCHED)


def processes(ranks: int | None) -> int:
    """How many the launcher started; Invalid where another number was asked for."""
    from mpi4py import MPI

    there = int(MPI.COMM_WORLD.size)
    if ranks is not None and ranks != there:
        raise Invalid(f"-n {ranks}: the launcher started {there} processes; leave -n out")
    return there


def launcher(given: str, count: int) -> list[str]:
    """The command that starts so many processes; an option for what Open MPI would refuse."""
    command = found_launcher(given)
    return [*command, *([] if given else consent(command[0], count)), "-n", str(count)]


def found_launcher(given: str) -> list[str]:
    """The launcher as it was given, or the one that is here; Missing where there is none."""
    command = shlex.split(given) if given else [_mpiexec()]
    if not command or shutil.which(command[0]) is None:
        name = command[0] if command else given
        raise Missing(f"{quote(name)}: no such program; name another by --mpiexec, or {HELP}")
    return command


def unfit(program: str, found: int, count: int) -> Missing:
    """The launcher is that of another MPI than mpi4py's: every process thinks it is alone."""
    return Missing(
        f"{program} and mpi4py do not fit together: {found} of {count} processes found each other; name the launcher "
        f"of mpi4py's own MPI by --mpiexec, or {HELP}"
    )


def _mpiexec() -> str:
    beside = Path(sys.executable).with_name("mpiexec")
    path = str(beside) if beside.exists() else shutil.which("mpiexec")
    if path is None:
        raise Missing(f"bench on mpi needs mpiexec, which is not on the PATH: {HELP}")
    return path


def consent(program: str, count: int) -> list[str]:
    """Open MPI will neither run as root nor put several processes on a core unless told to."""
    try:
        told = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    if "open" not in told.stdout.lower() and "prte" not in told.stdout.lower():
        return []
    root = ["--allow-run-as-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return [*root, *(["--oversubscribe"] if count > cores else [])]


def watch(
    command: Sequence[str], heard: Callable[[dict[str, Any]], object], timeout: float, temporary: str | None = None
) -> bool:
    """Run it to its end, each line behind MARK being told; whatever ends this call early ends the processes as well.
    False where `heard` said so by True: enough is known.

    `temporary`: the folder for what they may leave over."""
    environment = None if temporary is None else {**os.environ, "TMPDIR": temporary}
    with Starting() as starting:
        process = starting.start(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace", env=environment
        )
        late = threading.Event()

        def stop() -> None:
            late.set()
            end(process)

        clock = threading.Timer(timeout, stop)
        clock.start()
        other: deque[str] = deque(maxlen=_KEPT)
        try:
            assert process.stdout is not None
            for line in process.stdout:
                before, mark, row = line.partition(MARK)
                if not mark:
                    other.append(before)
                elif heard(_read(row)) is True:
                    return False
            code = process.wait()
        finally:
            clock.cancel()
    if late.is_set():
        raise TimedOut(
            f"{command[0]} was not done within {format_seconds(timeout)}; give --timeout more, or fewer sizes"
        )
    if code:
        raise Failed(f"{command[0]} failed with exit code {code}: {complaint(other) or 'it said nothing'}")
    return True


def _read(row: str) -> dict[str, Any]:
    """The row, without what others may have added to the line: Open MPI a NUL when it ends all, processes their own."""
    try:
        found: dict[str, Any] = JSONDecoder().raw_decode(row.lstrip("\0 "))[0]
    except ValueError:
        raise Failed(f"a process said what is no row: {quote(row.strip())}") from None
    return found


class Starting:
    """A process in a session of its own, which has ended when the block is left, whenever that is: Ctrl-C in the middle
    of Popen, after its fork, would leave it behind. So a thread starts it, which hears no signals, and ends it at once
    where nobody waits for it any more. It is started within the block: there is no moment between the two."""

    def __init__(self) -> None:
        self._made: list[subprocess.Popen[str] | OSError] = []
        self._begun, self._done, self._left = threading.Event(), threading.Event(), threading.Event()

    def __enter__(self) -> Starting:
        return self

    def start(self, command: Sequence[str], **how: Any) -> subprocess.Popen[str]:
        threading.Thread(target=self._start, args=(command, how)).start()  # it may be there before this returns
        self._done.wait()  # an interrupted join would take the thread for stopped (Python 3.11)
        if isinstance(self._made[0], OSError):
            raise self._made[0]
        return self._made[0]

    def _start(self, command: Sequence[str], how: Mapping[str, Any]) -> None:
        self._begun.set()
        try:
            self._made.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, text=True, start_new_session=True, **how)
            )
        except OSError as error:
            self._made.append(error)
        finally:
            if self._left.is_set():
                self._close()
            self._done.set()

    def _close(self) -> None:
        if self._made and isinstance(self._made[0], subprocess.Popen):
            with self._made[0] as process:
                end(process)

    def __exit__(self, *_: object) -> None:
        self._left.set()
        if self._begun.is_set():
            self._done.wait()
        self._close()


def end(process: subprocess.Popen[str]) -> None:
    """The launcher passes this on to what it started; what does not heed it is killed."""
    if process.poll() is not None:
        return
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
