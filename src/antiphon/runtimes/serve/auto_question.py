"""What is asked at the start of a job with ANTIPHON_TABLE=auto: plans for these processes, wherever they are.

A question is text in lines: what the machine is called by who started the job, and for each process its host and the
GPUs that it sees. Two starts of the same allocation ask the same, so what was planned is found again by the question
alone, and no machine need be probed for it. The preloaded library asks in the same words (preload_auto.c).
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from antiphon import __version__
from antiphon.errors import Invalid

TABLE, AUTO = "ANTIPHON_TABLE", "auto"
MACHINE, RANKS = "ANTIPHON_TOPOLOGY", "ANTIPHON_RANKS"
VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
ENDING = ".plan"
MOST_LETTERS = 200  # of what one process says
_BEGINS = f"antiphon auto 1 {__version__}"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Process:
    """Where a process is: its host by what is drawn anew at every boot, and by name; the GPUs that it sees, by numbers
    or by whatever the variable says, "-" where none is set."""

    boot: str
    host: str
    visible: str


def facts() -> str:
    """What this process says of itself: one line."""
    boot = "-"
    with suppress(OSError):
        boot = _BOOT.read_text(encoding="ascii", errors="replace").strip()
    told = next((os.environ[name] for name in VISIBLE if name in os.environ), None)
    return f"{_plain(boot)} {_plain(socket.gethostname())} {'-' if told is None else '=' + _plain(told)}"


def question(said: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Of all processes' facts, by the process that leads."""
    given = os.environ if environment is None else environment
    named, only = given.get(MACHINE, ""), given.get(RANKS, "")
    lines = [_BEGINS, f"machine ={_plain(named)} {_content(named)}", f"ranks ={_plain(only)}"]
    return "".join(f"{line}\n" for line in [*lines, *(f"process {one}" for one in said)])


def processes(text: str) -> list[Process]:
    """Those of a question. Invalid where it is none, or one of another version."""
    first, *lines = text.splitlines() or [""]
    if first != _BEGINS:
        raise Invalid("the question of this job is not one of this version of Antiphon; build and start anew")
    found = [line.split(" ")[1:] for line in lines if line.startswith("process ")]
    if not found or any(len(one) != 3 for one in found):
        raise Invalid("the question of this job is damaged")
    return [Process(*one) for one in found]


def kept_name(text: str) -> str:
    """The file in which the answer to a question is kept."""
    return hashlib.sha256(text.encode()).hexdigest() + ENDING


def _plain(text: str) -> str:
    """Without what would end a word or a line."""
    return re.sub(r"[^!-~]", "?", text)[:MOST_LETTERS]


def _content(named: str) -> str:
    """What a file holds is part of the question, "-" where none is named."""
    with suppress(OSError, ValueError):
        return hashlib.sha256(Path(named).read_bytes()).hexdigest()
    return "-"
