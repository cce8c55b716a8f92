"""Run a command of nccl-tests once per setting of NCCL, and keep a log of each, for `tune --from-logs`.

    default, default-again      NCCL's own choice; how far the two differ is the noise
    ring-ll, ..., nvls-simple   each algorithm for the collective, with each of its protocols
    ring-ll-again, ring-ll-8ch  those that are the fastest at some size, and there at most MAX_BEHIND times as slow as
                                NCCL's own choice: repeated, and with different numbers of channels

Settings are passed as NCCL's environment variables, so the command must hand them to all processes (srun does; Open
MPI on several hosts needs -x NCCL_ALGO and so on). A log begins with the command and the variables that
it set. Logs that exist are kept, so an interrupted sweep goes on where it stopped. A setting that NCCL refuses leaves a
log without rows; a run that exceeds its time limit leaves a log with the one line "stopped after N s". The reader
skips both.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from antiphon.errors import Invalid, Missing, quote
from antiphon.formats.benchmark_log import read_runs
from antiphon.formats.stock.nccl_tuner import SUPPORTED
from antiphon.runtimes.engine.launch import Starting, summarize_errors
from antiphon.runtimes.measure.library import LibraryCandidate

_PROTOCOLS = {"ring": ("ll", "ll128", "simple"), "tree": ("ll", "ll128", "simple")}  # the others have simple alone
CHANNEL_COUNTS = (4, 8, 16, 32)  # numbers of channels that are tried
# Time over that of NCCL's own choice. Other channel counts seldom gain more, nor do chunk sizes, which nccl_choose.py
# tries.
MAX_BEHIND = 1.1
# time limit of a run: STARTUP seconds + MAX_SLOWDOWN * the time of NCCL's default
MAX_SLOWDOWN, STARTUP = 10, 60.0
FIRST_LIMIT = 3600.0  # seconds: limit of the first run, and of all runs if the default's time is unknown


def list_algorithms(collective: str, command: str = "") -> list[tuple[str, str]]:
    """Return NCCL's algorithms for a collective, each with each of its protocols.

    Those that add in the network are tried only where NCCL_COLLNET_ENABLE=1 allows them, here or in the command:
    without it NCCL has none, and older versions then ignore NCCL_ALGO, so that their own choice would be measured.
    """
    has_collnet = os.environ.get("NCCL_COLLNET_ENABLE") == "1" or "NCCL_COLLNET_ENABLE=1" in command
    return [
        (algorithm, protocol)
        for algorithm, collectives in SUPPORTED.items()
        if collective in collectives and (has_collnet or not algorithm.startswith("collnet"))
        for protocol in _PROTOCOLS.get(algorithm, ("simple",))
    ]


def run_sweep(
    command: str, folder: Path, collective: str, list_contenders: Callable[[], Sequence[LibraryCandidate]],
    progress: Callable[[int, int, str], None] | None,
) -> int:  # fmt: skip
    """Run all settings; return 0, or after Ctrl-C the number of settings of the interrupted stage that have no log, at
    least 1. Ctrl-C during the first run, of the default, is raised again.

    `list_contenders` returns the settings to run again, by the logs so far. The `name` of each is its algorithm and its
    protocol with a space between them ("ring ll").
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise Invalid(f"--run {quote(command)}: {error}") from None
    if not words or shutil.which(words[0]) is None:
        raise Missing(f"--run {quote(command)}: no such program; give the command that starts nccl-tests")
    folder.mkdir(parents=True, exist_ok=True)
    resumed = (folder / "default.log").exists()  # an earlier sweep wrote it, so the time of the run is unknown
    # `stage`: the settings that run now, as (name, variables); after Ctrl-C those without a log are counted
    begun, stage = time.monotonic(), [("default", dict[str, str]())]
    try:
        log_run(words, variables={}, path=folder / "default.log", limit=FIRST_LIMIT)
        limit = FIRST_LIMIT if resumed else STARTUP + MAX_SLOWDOWN * (time.monotonic() - begun)
        _check_default(folder / "default.log", command)
        pairs = list_algorithms(collective, command)
        stage = [("default-again", {}), *((f"{a}-{p}", _variables(a, p)) for a, p in pairs)]
        _log_stage(words, stage, folder, limit, progress)
        stage = []
        for setting in list_contenders():
            algorithm, protocol = setting.name.split(" ")
            stage.append((f"{algorithm}-{protocol}-again", _variables(algorithm, protocol)))
            stage += [(f"{algorithm}-{protocol}-{n}ch", _variables(algorithm, protocol, n)) for n in CHANNEL_COUNTS]
        _log_stage(words, stage, folder, limit, progress)
    except KeyboardInterrupt:
        if not (folder / "default.log").exists():
            raise
        # at least 1: between two stages all logs of the first exist, and the settings of the second are not known yet
        return max(1, sum(not (folder / f"{name}.log").exists() for name, _ in stage))
    return 0


def _variables(algorithm: str, protocol: str, channels: int = 0) -> dict[str, str]:
    """Return the environment variables of a setting. `channels`: 0: NCCL chooses their number."""
    variables = {"NCCL_ALGO": algorithm.replace("-", ""), "NCCL_PROTO": protocol}
    return variables | (dict.fromkeys(("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"), str(channels)) if channels else {})


def _log_stage(
    words: Sequence[str], stage: Sequence[tuple[str, Mapping[str, str]]], folder: Path, limit: float,
    progress: Callable[[int, int, str], None] | None,
) -> None:  # fmt: skip
    """Run the settings of a stage, as (name, variables), one after another."""
    for number, (name, variables) in enumerate(stage):
        if progress is not None:
            progress(number, len(stage), f"{name} is measured")
        log_run(words, variables, folder / f"{name}.log", limit)


def log_run(words: Sequence[str], variables: Mapping[str, str], path: Path, limit: float) -> None:
    """Write what a run prints to a file, unless that exists. The run is stopped after `limit` seconds."""
    if path.exists():
        return
    unfinished = path.with_suffix(".unfinished")
    try:
        with (
            open(unfinished, "w", encoding="utf-8") as file,
            Starting() as starting,  # terminates the run if it has not ended
        ):
            assignments = [f"{name}={value}" for name, value in variables.items()]
            file.write(" ".join(["$", *assignments, shlex.join(words)]) + "\n")
            file.flush()
            starting.start(words, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, **variables}).wait(limit)
    except subprocess.TimeoutExpired:
        unfinished.write_text(f"stopped after {limit:.0f} s\n", encoding="utf-8")
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    unfinished.replace(path)


def _check_default(path: Path, command: str) -> None:
    """Refuse a command whose first run measured nothing, and delete its log."""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        read_runs(text)
    except Invalid as error:
        path.unlink()
        reason = summarize_errors(text.splitlines()[1:]) or str(error)  # the first line is the command
        raise Invalid(f"--run {quote(command)}: printed no times: {reason}") from None
