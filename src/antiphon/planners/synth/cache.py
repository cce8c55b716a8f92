"""What engines decided, kept from one run to the next.

A file per question: a problem in canonical numbers (so a machine numbered otherwise asks the same), parts, steps,
rounds, seed, and what made the answer: this package's own text and the releases of the libraries that it depends on.
They lie in $ANTIPHON_CACHE/sccl, else in antiphon/sccl of $XDG_CACHE_HOME or ~/.cache; ANTIPHON_CACHE=off keeps none.
The least recently used are removed beyond MOST_BYTES. A folder that cannot be used is no cache; a file that is not
what was written is no answer, and the next answer replaces it. Nothing in a file is believed: whenever an answer is
used, its algorithm is checked again, and so is the proof by resolution that there is none. What only an engine says
is not kept.

An answer tells how many turns it took and what it cost, so that whoever has less is told what he would have found
himself: with or without the cache a request has one result.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from antiphon import __version__
from antiphon.core.cache import cache_folder
from antiphon.core.files import read_bytes, write_bytes
from antiphon.core.ksync.instance import Instance
from antiphon.core.ksync.proof import Refutation, check_refutation
from antiphon.errors import AntiphonError
from antiphon.options import parse_yes
from antiphon.planners.synth.task import Move, rounds_of

MOST_BYTES = 2**28  # of all files together
MOST_OF_ONE = 2**26  # unpacked
FORMAT = 1
_LIBRARIES = ("igraph", "python-sat", "scipy")
_OURS = re.compile(r"[0-9a-f]{64}\.json\.gz|\.antiphon-[0-9a-f]+\.tmp")  # the latter: left by a run that was killed
_EVERY = 64  # answers kept from one look at the size to the next


@dataclass(frozen=True)
class Question:
    """Is there an algorithm? `name`: that of all files about it."""

    instance: Instance
    parts: int
    steps: int
    rounds: int
    name: str


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The moves, or the proof that there are none. `prices`: what engine `auto` had spent after each of its turns."""

    prices: list[int]
    engine: str = ""
    moves: list[Move] | None = None
    resolution: dict[str, Any] | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    question: str
    check: str
    answer: Kept


def question(instance: Instance, problem: str, parts: int, steps: int, rounds: int, seed: int) -> Question:
    """`problem`: the instance's fingerprint."""
    text = repr((FORMAT, makers(), problem, parts, steps, rounds, seed))
    return Question(instance, parts, steps, rounds, hashlib.sha256(text.encode()).hexdigest())


def fingerprint(instance: Instance) -> str:
    """The same for equal problems, whatever their machines, blocks and chunks per rank are called."""
    kinds = [(kind.holders, kind.dests, kind.weight) for kind in instance.kinds]
    ends = instance.ranks, instance.nodes, instance.tail.tolist(), instance.head.tolist()
    text = repr((ends, [str(c) for c in instance.capacity], instance.limits_of, kinds))
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def makers() -> tuple[str, ...]:
    """What an answer may depend on beyond the question: releases of ours and of libraries, and our own text."""
    folder_of_planner = Path(__file__).parent
    text = hashlib.sha256()
    for folder in (folder_of_planner, folder_of_planner.parents[1] / "core" / "ksync"):
        for path in sorted(folder.glob("*.py")):
            text.update(path.read_bytes())
    versions = [__version__, text.hexdigest()]
    for library in _LIBRARIES:
        try:
            versions.append(metadata.version(library))
        except metadata.PackageNotFoundError:
            versions.append("")
    return tuple(versions)


def asked_for(option: object) -> Cache | None:
    """What the option `cache` (true, false) means: the one that the environment names, or none."""
    if not parse_yes(option, "planner sccl: cache"):
        return None
    folder = cache_folder("sccl")
    return None if folder is None else Cache(folder)


class Cache:
    """Answers in a folder, which several processes may use at once: files come whole and are never changed."""

    def __init__(self, folder: Path, most: int = MOST_BYTES) -> None:
        self.folder = folder
        self.most = most
        self._written = 0

    def get(self, question: Question) -> Kept | None:
        """The answer, checked; None where there is none."""
        path = self._path(question)
        try:
            data = read_bytes(path, MOST_OF_ONE)
            entry = msgspec.json.decode(data, type=_File)
        except (AntiphonError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError, MemoryError):
            return None
        answer = entry.answer
        valid = entry.format == FORMAT and entry.question == question.name and entry.check == _check(answer)
        valid = valid and bool(answer.prices) and [0, *answer.prices] == sorted([0, *answer.prices])
        if not valid:
            return None
        moves = answer.moves
        if not (is_refuted(question, answer.resolution) if moves is None else is_algorithm(question, moves)):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # used now: to be removed last
        return answer

    def put(self, question: Question, answer: Kept) -> None:
        data = msgspec.json.encode(_File(FORMAT, question.name, _check(answer), answer))
        if len(data) > MOST_OF_ONE:
            return
        with contextlib.suppress(OSError, AntiphonError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_bytes(self._path(question), data)
            if self._written % _EVERY == 0:
                self._prune()
            self._written += 1

    def _path(self, question: Question) -> Path:
        return self.folder / f"{question.name}.json.gz"

    def _prune(self) -> None:
        """Remove the least recently used of our files until they fit. O(files)."""
        files: list[tuple[int, str, int]] = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if _OURS.fullmatch(entry.name):
                    with contextlib.suppress(OSError):  # others remove files, too
                        about = entry.stat(follow_symlinks=False)
                        files.append((about.st_mtime_ns, entry.name, about.st_size))
        total = sum(size for _, _, size in files)
        for _, name, size in sorted(files):
            if total <= self.most:
                return
            with contextlib.suppress(OSError):
                os.unlink(self.folder / name)
            total -= size


def _check(answer: Kept) -> str:
    return hashlib.sha256(msgspec.json.encode(answer)).hexdigest()


def is_algorithm(question: Question, moves: Sequence[Move]) -> bool:
    """Whether these moves bring every chunk where it is wanted, within the steps and rounds. O(moves * path)."""
    instance = question.instance
    by_chunk: dict[tuple[int, int], list[tuple[int, int, int]]] = {
        (number, chunk): []
        for number, kind in enumerate(instance.kinds)
        for chunk in range(kind.weight * question.parts)
    }  # fmt: skip
    for kind, chunk, path, step in moves:
        ends = _ends(instance, path)
        if ends is None or not 0 <= step < question.steps or (kind, chunk) not in by_chunk:
            return False
        by_chunk[kind, chunk].append((step, *ends))
    for (number, _), hops in by_chunk.items():
        about = instance.kinds[number]
        since = dict.fromkeys(about.holders, 0)
        for step, tail, head in sorted(hops):
            if since.get(tail, step + 1) > step or head in since:
                return False
            since[head] = step + 1
        if any(dest not in since for dest in about.dests):
            return False
    return max(question.steps, sum(rounds_of(instance, moves))) <= question.rounds


def is_refuted(question: Question, resolution: Mapping[str, Any] | None) -> bool:
    """Whether this proof by resolution shows that there is no algorithm. O(clauses + literals that it names)."""
    if resolution is None:
        return False
    try:
        refutation = Refutation.of_json(resolution)
        if (refutation.parts, refutation.steps, refutation.rounds, refutation.split) != (
            question.parts,
            question.steps,
            question.rounds,
            None,
        ):
            return False
        check_refutation(question.instance, refutation)
    except AntiphonError:
        return False
    return True


def _ends(instance: Instance, path: Sequence[int]) -> tuple[int, int] | None:
    """From which rank to which this path leads through switches; None if it is none."""
    if not path or not all(0 <= bond < len(instance.bonds) for bond in path):
        return None
    nodes = [int(instance.tail[path[0]])]
    for bond in path:
        if int(instance.tail[bond]) != nodes[-1]:
            return None
        nodes.append(int(instance.head[bond]))
    ranks = instance.ranks
    if nodes[0] >= ranks or nodes[-1] >= ranks or any(node < ranks for node in nodes[1:-1]):
        return None
    return nodes[0], nodes[-1]
