"""Cut the statements of all ranks into kernel launches, for programs in which the CPU starts one kernel per step (SCCL,
section 4).

Between two launches all GPUs wait for each other, so no signal is needed: an operation goes into the first launch that
begins after everything that it waited for has ended. `cut_launches` follows the signals through all ranks, as a run
would, and replaces them by statements `step k`, behind which the operations of launch k come:

    rank 0, one kernel:  copy; sync; signal 1             rank 1:  wait 0; sync; fold
    by launches:         step 0; copy                              step 1; fold

With `copies`, copies between ranks are taken out of the kernels: copy engines make them, beside the kernel of the same
launch. A sync between two operations then puts them into different launches, unless the kernel does both: it syncs by
itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from antiphon.errors import Unsupported
from antiphon.formats.device.statements import BUFFERS, Rank, Statement

KERNEL, ENGINE = "kernel", "engine"  # workers: what carries out an operation of a launch
MOST_COPIES = 50_000  # in a program: each is a row of its table


class CopyPlace(NamedTuple):
    """A place of a copy: numbers as in `Statement.values`; those of scratch are 0 in other buffers."""

    buffer: int  # its position in BUFFERS
    rank: int  # whose buffer it is
    units: int  # whole units before the place
    cut: int  # its number in the program's list of cuts, which are positions within a unit
    origin_cut: int  # of scratch: the cut at which the data of its slot begin; units and cut count from there
    slots_before: tuple[int, ...]  # of scratch: for each size of slots, the slots before it

    def numbers(self) -> list[int]:
        """Return its part of a row of the program's table."""
        return [*self[:-1], *self.slots_before]


class Copy(NamedTuple):
    """A copy by a copy engine of `rank`, beside the kernel of its launch."""

    launch: int
    rank: int
    target: CopyPlace
    source: CopyPlace
    cut: int  # at which the data begin
    number: int  # length of the data: cuts from there to their end

    def numbers(self) -> list[int]:
        """Return a row of the program's table."""
        return [self.launch, self.rank, *self.target.numbers(), *self.source.numbers(), self.cut, self.number]


class Launches(NamedTuple):
    """The launches of all ranks.

    `ranks`: by rank and stream the statements of kernels, those of a launch preceded by `step`. `kernels`: by launch
    and rank whether a kernel has work.
    """

    ranks: list[list[list[Statement]]]
    copies: list[Copy]
    kernels: list[list[bool]]


@dataclass
class _Follower:
    """How far a rank is in a stream.

    `launch`: the first one possible for its next operation; `last`: the launch of its last operation, -1: none.
    """

    rank: int
    stream: int
    statements: Sequence[Statement]
    at: int = 0  # index of the next statement
    launch: int = 0
    last: int = -1
    done: set[str] = field(default_factory=set)  # workers (KERNEL, ENGINE) in the last launch since the last sync
    synced: set[str] = field(default_factory=set)  # workers in the last launch before that sync
    written: list[Statement] = field(default_factory=list)  # the statements of the kernels so far
    written_launch: int = -1  # launch of the last statement written, -1: none
    wants_sync: bool = False  # whether there was a sync since that statement

    def begin(self, worker: str) -> None:
        """Place the next operation of this worker: `launch` and `last` become its launch."""
        # Engines cannot sync within a launch: if one works before or after the sync, the operation is for the next.
        if self.launch == self.last and self.synced and {worker, *self.synced} != {KERNEL}:
            self.launch += 1
        if self.launch > self.last:
            self.done, self.synced = set(), set()
        self.last = self.launch
        self.done.add(worker)

    def write(self, statement: Statement) -> None:
        """Write an operation of the kernel, preceded by the start of its launch, or by the sync that it needs."""
        self.begin(KERNEL)
        if self.written_launch != self.launch:
            self.written.append(Statement(("step",), (self.launch,)))
        elif self.wants_sync:
            self.written.append(Statement(("sync",), values=()))
        self.written.append(statement)
        self.written_launch, self.wants_sync = self.launch, False

    def sync(self) -> None:
        """Note a sync: later operations may depend on all earlier ones."""
        self.synced, self.done, self.wants_sync = self.synced | self.done, set(), True


def cut_launches(ranks: Sequence[Rank], copies: bool) -> Launches:
    """Cut the statements of all ranks into launches. Linear in the statements."""
    followers = [
        _Follower(rank, number, stream) for rank, code in enumerate(ranks) for number, stream in enumerate(code.streams)
    ]
    # by stream, sender, receiver and number of a signal: the last launch that is over when it arrives
    signalled: dict[tuple[int, int, int, int], int] = {}
    size_count = max(len(code.slot_sizes) for code in ranks) or 1  # sizes of scratch slots; a row has one or more
    engine_copies = list[Copy]()
    progress = True
    while progress:
        progress = False
        for follower in followers:
            while follower.at < len(follower.statements) and _follow(
                follower, signalled, engine_copies if copies else None, size_count
            ):
                follower.at += 1
                progress = True
    if any(follower.at < len(follower.statements) for follower in followers):
        raise Unsupported("generated code: a rank waits for a signal that no rank gives")
    if len(engine_copies) > MOST_COPIES:
        raise Unsupported(f"generated code: {len(engine_copies)} copies, more than {MOST_COPIES}; take fewer pieces")
    count = 1 + max(follower.last for follower in followers)
    kernels = [[False] * len(ranks) for _ in range(count)]
    by_rank: list[list[list[Statement]]] = [[] for _ in ranks]
    for follower in followers:
        by_rank[follower.rank].append(follower.written)
        for statement in follower.written:
            if statement.kind == "step":
                kernels[statement.values[0]][follower.rank] = True
    return Launches(by_rank, sorted(engine_copies), kernels)


def _follow(
    follower: _Follower,
    signalled: dict[tuple[int, int, int, int], int],
    engine_copies: list[Copy] | None,
    size_count: int,
) -> bool:
    """Follow the next statement; return False if it is a wait for a signal that was not reached yet.

    `engine_copies`: gets the copies that copy engines make; None: kernels make all of them.
    """
    # There is no wait_begun or sync_begun (waits that are skipped if all ranks have begun): only packets have these,
    # which need one kernel.
    statement = follower.statements[follower.at]
    kind, values = statement.kind, statement.values
    if kind == "signal":
        # What this rank has done must be over, and everything that it has waited for.
        peer, number = values
        signalled[follower.stream, follower.rank, peer, number] = max(follower.last, follower.launch - 1)
    elif kind == "wait":
        peer, number = values
        signal_launch = signalled.get((follower.stream, peer, follower.rank, number))
        if signal_launch is None:
            return False
        follower.launch = max(follower.launch, signal_launch + 1)
    elif kind == "sync":
        follower.sync()
    elif (
        engine_copies is not None
        and kind == "copy"
        and (places := _remote_places(follower.rank, statement, size_count))
    ):
        follower.begin(ENGINE)
        cut, number = values[-2:]
        engine_copies.append(Copy(follower.launch, follower.rank, *places, cut, number))
    else:
        follower.write(statement)
    return True


def _remote_places(own_rank: int, statement: Statement, size_count: int) -> tuple[CopyPlace, CopyPlace] | None:
    """Return target and source of a copy between ranks; None within a rank."""
    places, values = list[CopyPlace](), iter(statement.values)
    for buffer in statement.form[2:]:  # behind "copy" and the number of results
        rank, units, cut = islice(values, 3)
        origin_cut, *slots = islice(values, 1 + size_count) if buffer == "scratch" else [0] * (1 + size_count)
        places.append(CopyPlace(BUFFERS.index(buffer), rank, units, cut, origin_cut, tuple(slots)))
    target, source = places
    return None if target.rank == source.rank == own_rank else (target, source)
