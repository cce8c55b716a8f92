"""The question of a job with ANTIPHON_TABLE=auto, and its answer: plans for the processes of the job.

A question is text in lines: what the user calls the machine, and for each process its host and the GPUs that it sees
(`process_line`). Two starts of the same allocation have the same question, so its hash finds a cached answer without
probing the machine. The preloaded library writes the same text (preload_auto_plan.c):

    antiphon auto 1 0.9               format 1, version of Antiphon
    machine =dgx1v -                  =$ANTIPHON_TOPOLOGY, digest of that file (-: no file)
    ranks =                           =$ANTIPHON_RANKS, not set here
    process 0b7c...2f host1 =0,1      boot id, host, =GPUs (see `ProcessPlace`)

An answer is a line of words separated by tabs, then a book (book.py). The words: its origin ("planned", or "alike":
for an isomorphic machine), the machine, the predicted gain, notes. A cached file is used if it and its folder belong to
this user or root and nobody else may write there; the process that wrote it has proven the programs of the book.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from antiphon import __version__
from antiphon.core.files import is_ours, one_line
from antiphon.errors import Invalid
from antiphon.runtimes.serve.book import Book, decode_book

TABLE, AUTO = "ANTIPHON_TABLE", "auto"
MACHINE, RANKS = "ANTIPHON_TOPOLOGY", "ANTIPHON_RANKS"
VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
ENDING = ".plan"  # of cache files
MAX_CHARACTERS = 200  # of a word of the question
_FIRST_LINE = f"antiphon auto 1 {__version__}"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class ProcessPlace:
    """Where a process runs."""

    boot: str  # the random id that Linux draws at every boot; processes with the same one are on the same host
    host: str  # name of the host
    visible: str  # the GPUs that it sees: "=" and the value of the environment variable; "-" if none is set


def process_line() -> str:
    """Return the line of this process in a question, without the word "process"."""
    boot = "-"
    with suppress(OSError):
        boot = _BOOT.read_text(encoding="ascii", errors="replace").strip()
    visible = next((os.environ[name] for name in VISIBLE if name in os.environ), None)
    return f"{_as_word(boot)} {_as_word(socket.gethostname())} {'-' if visible is None else '=' + _as_word(visible)}"


def build_question(process_lines: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Return the question about processes with these lines (`process_line`)."""
    environment = os.environ if environment is None else environment
    machine, ranks = environment.get(MACHINE, ""), environment.get(RANKS, "")
    lines = [_FIRST_LINE, f"machine ={_as_word(machine)} {_file_digest(machine)}", f"ranks ={_as_word(ranks)}"]
    return "".join(f"{line}\n" for line in [*lines, *(f"process {line}" for line in process_lines)])


def read_processes(text: str) -> list[ProcessPlace]:
    """Return the processes of a question. Invalid if it is none, or of another version."""
    first, *lines = text.splitlines() or [""]
    if first != _FIRST_LINE:
        raise Invalid("the question of this job is not one of this version of Antiphon; build and start anew")
    rows = [line.split(" ")[1:] for line in lines if line.startswith("process ")]
    if not rows or any(len(row) != 3 for row in rows):
        raise Invalid("the question of this job is damaged")
    return [ProcessPlace(*row) for row in rows]


def kept_name(text: str) -> str:
    """Return the name of the file in which the answer to a question is cached."""
    return hashlib.sha256(text.encode()).hexdigest() + ENDING


def _as_word(text: str) -> str:
    """Replace everything that would end a word or a line: all but visible ASCII."""
    return re.sub(r"[^!-~]", "?", text)[:MAX_CHARACTERS]


def _file_digest(name: str) -> str:
    """Return the digest of the file of this name, "-" if there is none, so that its content is part of the question."""
    with suppress(OSError, ValueError):
        return hashlib.sha256(Path(name).read_bytes()).hexdigest()
    return "-"


# ---- answers ----

PLANNED, ALIKE, KEPT = "planned", "alike", "kept"
_WORDS = 4  # in the first line of an answer
MAX_BYTES = 2**28  # of a cache file


@dataclass(frozen=True)
class AutoAnswer:
    """Plans for a job."""

    how: str  # PLANNED, ALIKE (planned for an isomorphic machine) or KEPT (cached for this question)
    machine: str  # its name
    gain: str  # predicted speedups, in words
    notes: str  # assumptions about the machine, in words
    book: bytes  # the encoded book (book.py)

    @cached_property
    def pages(self) -> Book:
        return decode_book(self.book)

    def encode(self) -> bytes:
        words = (
            one_line(word, limit=1000).replace("\t", " ") for word in (self.how, self.machine, self.gain, self.notes)
        )
        return "\t".join(words).encode() + b"\n" + self.book

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(self.book).digest()


def decode_answer(data: bytes, how: str = "") -> AutoAnswer:
    """Read an answer; Invalid if it is damaged. `how`: replaces the origin in the file."""
    line, mark, book = data.partition(b"\n")
    words = line.decode("utf-8", "replace").split("\t")
    if not mark or len(words) != _WORDS:
        raise Invalid("it is cut off or damaged")
    origin, machine, gain, notes = words
    answer = AutoAnswer(how or origin, machine, gain, notes, book)
    _ = answer.pages  # Invalid if the book is damaged
    return answer


def read_kept(path: Path) -> tuple[AutoAnswer | None, str]:
    """Return the cached answer or None, and why it cannot be used; (None, "") if there is no such file."""
    try:
        path.lstat()
    except OSError:
        return None, ""
    # programs in a book run without being verified again: never read one that others could have written
    if not is_ours(path.parent, folder=True) or not is_ours(path):
        return None, f"{path} is not trusted: others may write there"
    try:
        if path.stat().st_size > MAX_BYTES:
            raise Invalid("it is too large")
        return decode_answer(path.read_bytes(), KEPT), ""
    except (OSError, Invalid) as error:
        return None, f"{path} is not used: {error}"
