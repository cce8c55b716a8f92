"""A recorded job: for every rank its computation, the collectives it calls, and where it waits for them.

A rank has one line of computation (a thread, or the streams of a GPU together), which is a list of items:

    WORK   seconds of computation, or of anything else that keeps the line busy; within a call it is work of the
           recorded library, which is dropped if the collective is replayed with another time
    CALL   a collective may begin as far as this rank is concerned
    WAIT   nothing goes on before this collective is done; seconds: by how much it was done earlier here than elsewhere
    STEP   a step of the training ends here

A collective begins when all its ranks have called it and the collectives before it on its *lane* (a stream or thread
that runs collectives one after another) are done, and ends at all ranks at once. Worked example, two ranks, one
allreduce called `grads` that rank 1 calls 2 ms late:

    rank 0: WORK 10 ms, CALL grads, WORK 4 ms, WAIT grads, WORK 1 ms, STEP
    rank 1: WORK 12 ms, CALL grads, WORK 4 ms, WAIT grads, WORK 1 ms, STEP

With 6 ms for `grads` it runs from 12 to 18 ms; rank 0 waits from 14 on, rank 1 from 16 on, and the step takes 19 ms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from antiphon.errors import Invalid, Unsupported, quote

WORK, CALL, WAIT, STEP = range(4)  # kinds of items
MOST_ITEMS = 2**21  # items of all ranks
MOST_RANKS, MOST_SIZES = 2**22, 2**10  # of a job; different sizes of one collective


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a rank's line. `call`: the number of the collective (for work, the one in whose call it is, -1:
    none); `at`: when it began in the recording."""

    what: int
    seconds: float = 0.0
    call: int = -1
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of a group; nbytes as nccl-tests counts them.

    `seconds`: recorded time from the arrival of its last rank to its end. `bucket`: DDP made it from gradients.
    """

    kind: str
    nbytes: int
    group: int
    seconds: float
    start: float = 0.0
    bucket: bool = False

    @property
    def end(self) -> float:
        return self.start + self.seconds


@dataclass(frozen=True)
class ProcessGroup:
    """A process group. `members`: its ranks, () if the traces do not list them. `apart`: they are not listed, and may
    be on several hosts."""

    name: str
    size: int
    members: tuple[int, ...] = ()
    apart: bool = False


@dataclass(frozen=True)
class Gradient:
    """A parameter's gradient, ready after this many seconds of work of a rank's line since the beginning of its
    step."""

    nbytes: int
    work: float


@dataclass(frozen=True)
class Job:
    """A recorded job. `ranks`: per rank its items. `lanes`: per rank the collectives in the order in which each lane
    ran them. `steps`: recorded seconds of each step, of the slowest rank. `notes`: caveats about the figures.
    `processor`: it computed on CPUs."""

    groups: Sequence[ProcessGroup]
    calls: Sequence[Collective]
    ranks: Mapping[int, Sequence[Item]]
    lanes: Mapping[int, Sequence[Sequence[int]]]
    steps: Sequence[float]
    notes: Sequence[str] = ()
    gradients: Sequence[Gradient] = field(default=())
    processor: bool = False

    def check(self) -> None:
        """Raise Invalid if the job is inconsistent. O(items)."""
        if sum(map(len, self.ranks.values())) > MOST_ITEMS:
            raise Unsupported(f"the traces have more than {MOST_ITEMS} moments; record fewer steps")
        if not self.ranks or not self.calls:
            raise Invalid("the traces have no collective")
        if not self.steps:
            raise Invalid("the traces have no whole step")
        for group in self.groups:
            if not 0 < group.size <= MOST_RANKS:
                raise Invalid(f"group {quote(group.name)}: has {group.size} ranks")
        worst = max(self.calls, key=lambda call: call.nbytes)
        if worst.nbytes >= 2**60:
            raise Invalid(f"a {worst.kind} of {worst.nbytes} bytes")
        if len({(call.kind, call.nbytes, call.group) for call in self.calls}) > MOST_SIZES:
            raise Unsupported(f"the traces have collectives of more than {MOST_SIZES} sizes")

    @property
    def here(self) -> Sequence[frozenset[int]]:
        """Per collective the ranks that call it and whose traces are available."""
        callers: list[set[int]] = [set() for _ in self.calls]
        for rank, items in self.ranks.items():
            for item in items:
                if item.what == CALL:
                    callers[item.call].add(rank)
        return [frozenset(ranks) for ranks in callers]
