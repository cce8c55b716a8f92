"""Cache the answers of engine `auto` on disk from one run to the next.

A question is a problem with a candidate (parts, steps, rounds); an answer is its algorithm, or a proof that there is
none. One file per question, in $ANTIPHON_CACHE/sccl (default: antiphon/sccl in $XDG_CACHE_HOME or ~/.cache;
ANTIPHON_CACHE=off disables it). Its name hashes the canonical problem (canonical.py), parts, steps, rounds, seed, and
what produced the answer: the source text of this folder and the versions of the libraries that it uses. So isomorphic
machines share entries, and a new release starts afresh.

Nothing in a file is trusted: an algorithm is verified and a resolution proof is checked each time that it is read.
Decisions without a checkable proof are not stored. An unusable folder means no cache, a damaged file means no answer.
Beyond MOST_BYTES the least recently used files are removed.

An answer records its price, the effort spent, after each turn of `auto` (which asks engines in turns). So a
request with less effort gets exactly what it would have computed without a cache: results do not depend on the cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from antiphon.core.cache import cache_folder, versions_of
from antiphon.core.files import read_bytes, write_bytes
from antiphon.core.ksync.instance import Instance
from antiphon.core.ksync.proof import Refutation, check_refutation
from antiphon.errors import AntiphonError
from antiphon.options import parse_yes
from antiphon.planners.synth.task import Move, rounds_of

MOST_BYTES = 2**28  # of all files together
MOST_FILE_BYTES = 2**26  # bytes of one file, decompressed
FORMAT = 1
_OWN_FILES = re.compile(r"[0-9a-f]{64}\.json\.gz|\.antiphon-[0-9a-f]+\.tmp")  # .tmp: left behind by a killed run
_CLEANUP_INTERVAL = 64  # answers written between two checks of the folder's size


@dataclass(frozen=True)
class Question:
    """A decision problem. `name`: the file name of its answer."""

    instance: Instance
    parts: int
    steps: int
    rounds: int
    name: str


class CachedAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An answer: the moves (an algorithm), or the resolution proof that there is none.

    `prices`: the effort that engine `auto` had spent after each of its turns. `engine`: the one that found the moves.
    """

    prices: list[int]
    engine: str = ""
    moves: list[Move] | None = None
    resolution: dict[str, Any] | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of a cache file. `question`: the question's name; `check`: checksum of the answer."""

    format: int
    question: str
    check: str
    answer: CachedAnswer


def make_question(instance: Instance, problem: str, parts: int, steps: int, rounds: int, seed: int) -> Question:
    """Return the question with its file name. `instance`: in canonical numbers. `problem`: its fingerprint."""
    text = repr((FORMAT, producer_versions(), problem, parts, steps, rounds, seed))
    return Question(instance, parts, steps, rounds, hashlib.sha256(text.encode()).hexdigest())


def fingerprint(instance: Instance) -> str:
    """Return a hash that is equal for equal problems, independent of names of machines and blocks."""
    kinds = [(kind.holders, kind.dests, kind.weight) for kind in instance.kinds]
    ends = instance.ranks, instance.nodes, instance.tail.tolist(), instance.head.tolist()
    text = repr((ends, [str(c) for c in instance.capacity], instance.limits_of, kinds))
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def producer_versions() -> tuple[str, ...]:
    """Return what an answer may depend on beyond the question: the source of this folder and of core/ksync, and the
    versions of libraries."""
    folder_of_planner = Path(__file__).parent
    return versions_of(folder_of_planner, folder_of_planner.parents[1] / "core" / "ksync")


def cache_for_option(option: object) -> Cache | None:
    """Return the cache for option `cache` (true, false): the one that the environment names, or None."""
    if not parse_yes(option, "planner sccl: cache"):
        return None
    folder = cache_folder("sccl")
    return None if folder is None else Cache(folder)


class Cache:
    """Answers in a folder that several processes may use at once: files are replaced atomically and never modified."""

    def __init__(self, folder: Path, max_bytes: int = MOST_BYTES) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._written = 0

    def get(self, question: Question) -> CachedAnswer | None:
        """Return the answer, verified, or None."""
        path = self._file_of(question)
        try:
            data = read_bytes(path, MOST_FILE_BYTES)
            entry = msgspec.json.decode(data, type=_File)
        except (AntiphonError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError, MemoryError):
            return None
        answer = entry.answer
        valid = entry.format == FORMAT and entry.question == question.name and entry.check == _answer_checksum(answer)
        # Prices are of all turns so far: nonnegative and ascending.
        valid = valid and bool(answer.prices) and [0, *answer.prices] == sorted([0, *answer.prices])
        if not valid:
            return None
        moves = answer.moves
        # Never trust the file: verify the answer by the question itself.
        if not (is_refuted(question, answer.resolution) if moves is None else is_algorithm(question, moves)):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # mark as recently used
        return answer

    def put(self, question: Question, answer: CachedAnswer) -> None:
        """Store an answer; one that is too large, or cannot be written, is dropped."""
        data = msgspec.json.encode(_File(FORMAT, question.name, _answer_checksum(answer), answer))
        if len(data) > MOST_FILE_BYTES:
            return
        with contextlib.suppress(OSError, AntiphonError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_bytes(self._file_of(question), data)
            # Scanning the folder costs more than writing, so do it rarely.
            if self._written % _CLEANUP_INTERVAL == 0:
                self._remove_oldest()
            self._written += 1

    def _file_of(self, question: Question) -> Path:
        return self.folder / f"{question.name}.json.gz"

    def _remove_oldest(self) -> None:
        """Remove the least recently used cache files until the others fit into `max_bytes`. O(files)."""
        files: list[tuple[int, str, int]] = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if _OWN_FILES.fullmatch(entry.name):
                    with contextlib.suppress(OSError):  # other processes remove files, too
                        status = entry.stat(follow_symlinks=False)
                        files.append((status.st_mtime_ns, entry.name, status.st_size))
        total = sum(size for _, _, size in files)
        for _, name, size in sorted(files):
            if total <= self.max_bytes:
                return
            with contextlib.suppress(OSError):
                os.unlink(self.folder / name)
            total -= size


def _answer_checksum(answer: CachedAnswer) -> str:
    return hashlib.sha256(msgspec.json.encode(answer)).hexdigest()


def is_algorithm(question: Question, moves: Sequence[Move]) -> bool:
    """Return whether these moves bring every chunk to its destinations within the steps and rounds. O(moves * path)."""
    instance = question.instance
    by_chunk: dict[tuple[int, int], list[tuple[int, int, int]]] = {
        (number, chunk): []
        for number, kind in enumerate(instance.kinds)
        for chunk in range(kind.weight * question.parts)
    }  # fmt: skip
    for kind, chunk, path, step in moves:
        ends = _path_ends(instance, path)
        if ends is None or not 0 <= step < question.steps or (kind, chunk) not in by_chunk:
            return False
        by_chunk[kind, chunk].append((step, *ends))
    for (number, _), hops in by_chunk.items():
        chunk_kind = instance.kinds[number]
        # `since[node]`: the first step in which the node can send the chunk.
        since = dict.fromkeys(chunk_kind.holders, 0)
        for step, tail, head in sorted(hops):
            # The sender must have the chunk before this step (step + 1: never), and no rank receives it twice.
            if since.get(tail, step + 1) > step or head in since:
                return False
            since[head] = step + 1
        if any(dest not in since for dest in chunk_kind.dests):
            return False
    # By definition R is at least S. A step without moves needs no round of its own: it may have one of another step's.
    return max(question.steps, sum(rounds_of(instance, moves))) <= question.rounds


def is_refuted(question: Question, resolution: Mapping[str, Any] | None) -> bool:
    """Return whether this resolution proof shows that there is no algorithm. O(clauses + literals that it names)."""
    if resolution is None:
        return False
    try:
        refutation = Refutation.of_json(resolution)
        # one with a `split` refutes only algorithms whose steps take at most these rounds each
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


def _path_ends(instance: Instance, path: Sequence[int]) -> tuple[int, int] | None:
    """Return the two ranks that this path through switches joins, or None if it is not such a path."""
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
