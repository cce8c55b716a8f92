"""Start programs under an MPI launcher, read their rows, and summarize their errors.

The processes print results as lines of MARK and a JSON object (a row), amid any other output; `watch` starts the
command, passes each row to a callback at once and turns a failure into one readable line (`summarize_errors`). No
process outlives the call, even after Ctrl-C (`Starting`).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from json import JSONDecoder
from pathlib import Path
from typing import Any

from antiphon.errors import AntiphonError, Invalid, Missing, TimedOut, quote
from antiphon.units import format_seconds

MARK = "antiphon-row "
HELP = "pip install 'antiphon[mpi]' (mpi4py and Open MPI)"
LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "MPI_LOCALRANKID")  # variables that launchers set
THREAD_LEVEL = "MPI4PY_RC_THREAD_LEVEL"  # variable that mpi4py reads when MPI is imported
_MAX_LINES = 200  # lines of output that are kept for an error message
_VERSION_TIMEOUT = 60  # seconds that a launcher may take to print its version
_TERMINATION_SECONDS = 5  # between SIGTERM and SIGKILL


class Failed(AntiphonError):
    """Programs ran but failed."""

    exit_code = 1


def is_launched() -> bool:
    """Return whether mpiexec or srun started this very process as one of several."""
    return any(name in os.environ for name in LAUNCHED)


def import_mpi_to_measure() -> Any:
    """Import mpi4py's MPI with the thread level of a program that calls MPI_Init, unless the user chose another.

    mpi4py asks for MPI_THREAD_MULTIPLE, whose locks make MPICH's small calls two to four times slower; a table measured
    so would replace calls of the library that are faster in a C program. Has no effect if MPI was imported before."""
    user_level = os.environ.get(THREAD_LEVEL)
    os.environ[THREAD_LEVEL] = user_level or "single"
    try:
        from mpi4py import MPI
    finally:
        if user_level is None:
            del os.environ[THREAD_LEVEL]
    return MPI


def count_processes(ranks: int | None) -> int:
    """Return the number of processes that the launcher started; Invalid if `ranks` is another number."""
    count = int(import_mpi_to_measure().COMM_WORLD.size)
    if ranks is not None and ranks != count:
        raise Invalid(f"-n {ranks}: the launcher started {count} processes; leave -n out")
    return count


def launcher_command(mpiexec: str, count: int) -> list[str]:
    """Return the command that starts `count` processes, with the options that Open MPI requires."""
    command = find_launcher(mpiexec)
    return [*command, *([] if mpiexec else open_mpi_options(command[0], count)), "-n", str(count)]


def find_launcher(mpiexec: str) -> list[str]:
    """Return the launcher of the user, else the one that is installed; Missing if there is none."""
    command = shlex.split(mpiexec) if mpiexec else [_find_mpiexec()]
    if not command or shutil.which(command[0]) is None:
        name = command[0] if command else mpiexec
        raise Missing(f"{quote(name)}: no such program; name another by --on mpi:mpiexec=..., or {HELP}")
    return command


def launcher_mismatch(program: str, connected: int, count: int) -> Missing:
    """Return the error for a launcher of another MPI than mpi4py's. Under it every process is a world of its own."""
    return Missing(
        f"{program} and mpi4py do not fit together: {connected} of {count} processes found each other; name the "
        f"launcher of mpi4py's own MPI by --on mpi:mpiexec=..., or {HELP}"
    )


def _find_mpiexec() -> str:
    """Return mpiexec beside this Python (from a wheel), else on the PATH."""
    beside = Path(sys.executable).with_name("mpiexec")
    path = str(beside) if beside.exists() else shutil.which("mpiexec")
    if path is None:
        raise Missing(f"bench on mpi needs mpiexec, which is not on the PATH: {HELP}")
    return path


def open_mpi_options(program: str, count: int) -> list[str]:
    """Return options of Open MPI to run as root, or with several processes per core."""
    try:
        version = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    # Only Open MPI, or its launcher PRTE, requires an option for root and for more processes than cores.
    if "open" not in version.stdout.lower() and "prte" not in version.stdout.lower():
        return []
    root = ["--allow-run-as-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return [*root, *(["--oversubscribe"] if count > cores else [])]


def watch(
    command: Sequence[str], on_row: Callable[[dict[str, Any]], object], timeout: float, temporary: str | None = None
) -> bool:
    """Run a command and pass the row on each line after MARK to `on_row`. The processes end with this call.

    Returns False if `on_row` ended the run by returning True. `temporary`: a folder for their temporary files."""
    environment = None if temporary is None else {**os.environ, "TMPDIR": temporary}
    with Starting() as starting:
        process = starting.start(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace", env=environment
        )
        timed_out = threading.Event()

        def stop() -> None:
            timed_out.set()
            terminate(process)

        clock = threading.Timer(timeout, stop)
        clock.start()
        other_lines: deque[str] = deque(maxlen=_MAX_LINES)
        try:
            assert process.stdout is not None
            for line in process.stdout:
                # rows are marked, as launchers and libraries print to the same stream
                text, mark, row = line.partition(MARK)
                if not mark:
                    other_lines.append(text)
                elif on_row(_parse_row(row)) is True:
                    return False
            code = process.wait()
        finally:
            clock.cancel()
    if timed_out.is_set():
        raise TimedOut(
            f"{command[0]} was not done within {format_seconds(timeout)}; give it more time (--on mpi:timeout=...)"
        )
    if code:
        raise Failed(f"{command[0]} failed with exit code {code}: {summarize_errors(other_lines) or 'it said nothing'}")
    return True


def _parse_row(row: str) -> dict[str, Any]:
    """Return the row of a line. Open MPI may add a NUL to it when it aborts, and processes may add output behind it."""
    try:
        fields: dict[str, Any]
        fields, _ = JSONDecoder().raw_decode(row.lstrip("\0 "))
    except ValueError:
        raise Failed(f"a process said what is no row: {quote(row.strip())}") from None
    return fields


class Starting:
    """A context in which a process is started, in its own session, and ended with the block even if that raises.

    Ctrl-C within Popen, after its fork, would leave the process behind. So a thread, which gets no signals, starts it,
    and ends it at once if the block has ended meanwhile."""

    def __init__(self) -> None:
        self._outcome: subprocess.Popen[str] | OSError | None = None  # of Popen; None: not called yet
        # The thread has begun; it has set the outcome; the block has ended.
        self._begun, self._done, self._abandoned = threading.Event(), threading.Event(), threading.Event()

    def __enter__(self) -> Starting:
        return self

    def start(self, command: Sequence[str], **how: Any) -> subprocess.Popen[str]:
        """Start a command, and return its process. `how`: arguments of Popen. OSError if it cannot be started."""
        # If Ctrl-C interrupts this call, the thread may run already: so it sets `_begun`, for which `__exit__` looks.
        threading.Thread(target=self._start_process, args=(command, how)).start()
        # An event, not a join: after an interrupted join Python 3.11 takes the thread for stopped, and `__exit__` could
        # not wait for it.
        self._done.wait()
        if isinstance(self._outcome, OSError):
            raise self._outcome
        assert self._outcome is not None
        return self._outcome

    def _start_process(self, command: Sequence[str], how: Mapping[str, Any]) -> None:
        self._begun.set()
        try:
            self._outcome = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, text=True, start_new_session=True, **how
            )
        except OSError as error:
            self._outcome = error
        finally:
            if self._abandoned.is_set():
                self._close_process()
            self._done.set()

    def _close_process(self) -> None:
        if isinstance(self._outcome, subprocess.Popen):
            with self._outcome as process:
                terminate(process)

    def __exit__(self, *_: object) -> None:
        self._abandoned.set()
        if self._begun.is_set():
            self._done.wait()
        self._close_process()


def terminate(process: subprocess.Popen[str]) -> None:
    """Terminate a process group, and kill it if it does not end. Launchers pass the signal to their processes."""
    if process.poll() is not None:
        return
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(_TERMINATION_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


# ---- errors in the output of programs ----

_MAX_CHARACTERS = 400  # of an error message
_TAIL = 3  # last lines, shown if none is marked as an error
_MIN_DASHES = 4  # of a row of dashes, as launchers print above and below their errors
_LETTER = re.compile(r"[^\W\d_]")
_ERROR = re.compile(r"\berror\b|\b\w+(Error|Exception)\b|not found|no such file|no space left", re.IGNORECASE)
_IGNORED = ("= ", "NOTE: ")  # beginnings of lines, as in MPICH's box


def summarize_errors(output: Iterable[str]) -> str:
    """Return the most informative part of the output; "" if there is none.

    That is the first line that looks like an error, else the first paragraph below a row of dashes, as launchers print
    their errors, else the last lines.
    """
    # lines without letters (rows of dashes, blank lines) separate paragraphs
    paragraphs: list[list[str]] = [[]]
    framed: list[list[str]] = []
    for line in output:
        words = " ".join(line.split())
        if words.startswith(_IGNORED):
            continue
        if _LETTER.search(words):
            paragraphs[-1].append(words)
            continue
        paragraphs.append([])
        if len(words) >= _MIN_DASHES:
            framed.append(paragraphs[-1])
    lines = [line for paragraph in paragraphs for line in paragraph]
    errors = list(dict.fromkeys(line for line in lines if _ERROR.search(line)))
    if errors:
        return errors[0][:_MAX_CHARACTERS]
    first = next((paragraph for paragraph in framed if paragraph), None)
    if first is None and framed:
        # nothing below any row of dashes: the error stands above the first
        first = next((paragraph for paragraph in paragraphs if paragraph), None)
    return (" ".join(first) if first else " / ".join(lines[-_TAIL:]))[:_MAX_CHARACTERS]
