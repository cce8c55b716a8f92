"""Cut the statements of all ranks into launches, for programs whose host makes a call step by step (SCCL, section 4).

Between two launches all GPUs wait for each other, so no signal is needed: an operation goes into the first launch that
begins after everything that it waited for has ended. `cut_launches` follows the signals through all ranks, as a run
would, and puts the numbers of launches in their place:

    rank 0, one kernel:  copy; sync; signal 1             rank 1:  wait 0; sync; fold
    by launches:         step 0; copy                              step 1; fold

With `copies`, copies between ranks leave the functions: copy engines make them, beside the kernel of the same launch.
Then a sync between two operations parts them, unless both are of the kernel, which has the sync itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from antiphon.errors import Unsupported
from antiphon.formats.device.statements import BUFFERS, Rank, Statement

KERNEL, ENGINE = "kernel", "engine"
MOST_COPIES = 50_000  # rows of the program's table


class Launches(NamedTuple):
    """`ranks`: by rank and stream the statements of kernels, each behind the number of its launch. `copies`: rows of
    launch, rank, the places of target and source (buffer, rank, units, cut, cut of the origin, slots before), cut and
    length. `kernels`: by launch and rank whether a kernel has work."""

    ranks: list[list[list[Statement]]]
    copies: list[list[int]]
    kernels: list[list[bool]]


@dataclass
class _Follower:
    """How far a rank is in a stream. `launch`: of what comes next; `last`: of what was done last, -1: nothing."""

    rank: int
    stream: int
    statements: Sequence[Statement]
    at: int = 0
    launch: int = 0
    last: int = -1
    done: set[str] = field(default_factory=set)  # who worked in this launch since the last sync
    synced: set[str] = field(default_factory=set)  # who worked in this launch before it
    written: list[Statement] = field(default_factory=list)  # with the numbers of launches
    written_launch: int = -1  # of the last one written
    wants_sync: bool = False  # whether the kernel has left out a sync since then

    def begin(self, worker: str) -> None:
        """Find the launch of the next operation."""
        # An engine knows no sync: what a sync parts from its copies begins behind the next launch.
        if self.launch == self.last and self.synced and {worker, *self.synced} != {KERNEL}:
            self.launch += 1
        if self.launch > self.last:
            self.done, self.synced = set(), set()
        self.last = self.launch
        self.done.add(worker)

    def write(self, statement: Statement) -> None:
        """Write an operation of the kernel, behind the number of its launch or the sync that it needs."""
        self.begin(KERNEL)
        if self.written_launch != self.launch:
            self.written.append(Statement(("step",), (self.launch,)))
        elif self.wants_sync:
            self.written.append(Statement(("sync",), ()))
        self.written.append(statement)
        self.written_launch, self.wants_sync = self.launch, False

    def sync(self) -> None:
        self.synced, self.done, self.wants_sync = self.synced | self.done, set(), True


def cut_launches(ranks: Sequence[Rank], copies: bool) -> Launches:
    """Cut the statements of all ranks into launches. Linear in the statements."""
    followers = [
        _Follower(rank, number, stream) for rank, of in enumerate(ranks) for number, stream in enumerate(of.streams)
    ]
    signalled: dict[tuple[int, int, int, int], int] = {}  # stream, from, to, number: last launch that it stands for
    classes = max(len(of.classes) for of in ranks) or 1
    rows = list[list[int]]()
    moved = True
    while moved:
        moved = False
        for follower in followers:
            while follower.at < len(follower.statements) and _follow(
                follower, signalled, rows if copies else None, classes
            ):
                follower.at += 1
                moved = True
    if any(follower.at < len(follower.statements) for follower in followers):
        raise Unsupported("generated code: a rank waits for a signal that no rank gives")
    if len(rows) > MOST_COPIES:
        raise Unsupported(f"generated code: {len(rows)} copies, more than {MOST_COPIES}; take fewer pieces")
    count = 1 + max(follower.last for follower in followers)
    kernels = [[False] * len(ranks) for _ in range(count)]
    by_rank: list[list[list[Statement]]] = [[] for _ in ranks]
    for follower in followers:
        by_rank[follower.rank].append(follower.written)
        for statement in follower.written:
            if statement.form[0] == "step":
                kernels[statement.values[0]][follower.rank] = True
    return Launches(by_rank, sorted(rows), kernels)


def _follow(
    follower: _Follower, signalled: dict[tuple[int, int, int, int], int], rows: list[list[int]] | None, classes: int
) -> bool:
    """Follow the next statement; return False if what it waits for was not reached yet."""
    statement = follower.statements[follower.at]
    kind, values = statement.form[0], statement.values
    if kind == "signal":
        # It stands for what this rank has done, and for all that it has waited for.
        peer, number = values
        signalled[follower.stream, follower.rank, peer, number] = max(follower.last, follower.launch - 1)
    elif kind == "wait":
        peer, number = values
        before = signalled.get((follower.stream, peer, follower.rank, number))
        if before is None:
            return False
        follower.launch = max(follower.launch, before + 1)
    elif kind == "sync":
        follower.sync()
    elif rows is not None and kind == "copy" and (row := _copy_row(follower.rank, statement, classes)):
        follower.begin(ENGINE)
        rows.append([follower.launch, follower.rank, *row])
    else:
        follower.write(statement)
    return True


def _copy_row(rank: int, statement: Statement, classes: int) -> list[int]:
    """Return places and length of a copy between ranks; [] within a rank."""
    row, values = list[int](), list(statement.values)
    for buffer in statement.form[2:]:
        # As in `Statement.values`: scratch has the cut of its origin and the slots before it, too.
        width = 4 + classes if buffer == "scratch" else 3
        place, values = values[:width], values[width:]
        row += [BUFFERS.index(buffer), *place, *[0] * (4 + classes - width)]
    return row + values if {row[1], row[6 + classes]} != {rank} else []
