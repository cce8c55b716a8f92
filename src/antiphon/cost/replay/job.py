"""The data of a recorded job: for every rank its computation, the collectives it calls, and where it waits for them.

A rank has one timeline (of a thread, or of the streams of a GPU together), which is a list of items:

    WORK   seconds of computation, or of anything else that keeps the rank busy. Work during the call of a collective is
           that of the recorded library: it is dropped if the collective is replayed with another time
    CALL   the rank is ready for a collective, which may begin once all its ranks are
    WAIT   the rank waits until this collective is done; `seconds`: by how much earlier the recorded collective ended on
           this rank than on the last one
    STEP   a step of the training ends here

A collective begins when all its ranks have called it and the collectives before it on its *lane* are done. A lane is a
stream or thread that runs collectives one after another. A collective ends at all ranks at once. Example: two ranks and
one allreduce `grads`, which rank 1 calls 2 ms late:

    rank 0: WORK 10 ms, CALL grads, WORK 4 ms, WAIT grads, WORK 1 ms, STEP
    rank 1: WORK 12 ms, CALL grads, WORK 4 ms, WAIT grads, WORK 1 ms, STEP

With 6 ms for `grads` it runs from 12 to 18 ms; rank 0 waits from 14 on, rank 1 from 16 on, and the step takes 19 ms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from antiphon.errors import Invalid, Unsupported, quote

WORK, CALL, WAIT, STEP = range(4)  # kinds of items
MAX_ITEMS = 2**21  # items of all ranks
MAX_RANKS = 2**22  # ranks of a process group
MAX_SIZES = 2**10  # different (kind, size, group) of collectives


@dataclass(frozen=True, slots=True)
class TimelineItem:
    """One item of a rank's timeline."""

    kind: int  # WORK, CALL, WAIT or STEP
    seconds: float = 0.0
    call: int = -1  # number of the collective; of WORK, the collective during whose call it is done, -1 if none
    recorded_at: float = 0.0  # seconds at which it began in the recording


@dataclass(frozen=True, slots=True)
class RecordedCollective:
    """One call of a collective in a process group."""

    kind: str  # "allreduce", ...
    nbytes: int  # as nccl-tests counts them
    group: int  # number of the process group
    seconds: float  # recorded time from the call of its last rank to its end
    start: float = 0.0  # recorded time at which its last rank had called it
    bucket: bool = False  # whether it reduces a bucket of gradients of DDP (PyTorch's data-parallel training)

    @property
    def end(self) -> float:
        return self.start + self.seconds


@dataclass(frozen=True)
class ProcessGroup:
    """A process group of the recorded job."""

    name: str
    size: int  # number of ranks
    members: tuple[int, ...] = ()  # its ranks; () if the traces do not list them


@dataclass(frozen=True)
class Gradient:
    """The gradient of a parameter."""

    nbytes: int
    work: float  # seconds that a rank works in a step before the gradient is ready


@dataclass(frozen=True)
class RecordedJob:
    """A recorded job."""

    groups: Sequence[ProcessGroup]
    calls: Sequence[RecordedCollective]  # items refer to them by position
    ranks: Mapping[int, Sequence[TimelineItem]]  # per rank its timeline
    lanes: Mapping[int, Sequence[Sequence[int]]]  # per rank and lane the numbers of the collectives in order
    steps: Sequence[float]  # recorded seconds of each training step, of the slowest rank
    notes: Sequence[str] = ()  # caveats about the figures
    gradients: Sequence[Gradient] = field(default=())  # of the last step, if recorded
    processor: bool = False  # whether it computed on CPUs, not GPUs

    def check(self) -> None:
        """Raise Invalid if the job is empty or has impossible sizes, Unsupported if it exceeds a limit. O(items)."""
        if sum(map(len, self.ranks.values())) > MAX_ITEMS:
            raise Unsupported(f"the traces have more than {MAX_ITEMS} moments; record fewer steps")
        if not self.ranks or not self.calls:
            raise Invalid("the traces have no collective; record steps in which the job communicates")
        if not self.steps:
            raise Invalid("the traces have no whole step; record at least one from its beginning to its end")
        for group in self.groups:
            if not 0 < group.size <= MAX_RANKS:
                raise Invalid(f"group {quote(group.name)}: has {group.size} ranks")
        largest = max(self.calls, key=lambda call: call.nbytes)
        if largest.nbytes >= 2**60:  # more than any memory: the trace is damaged
            raise Invalid(f"a {largest.kind} of {largest.nbytes} bytes")
        if len({(call.kind, call.nbytes, call.group) for call in self.calls}) > MAX_SIZES:
            raise Unsupported(f"the traces have collectives of more than {MAX_SIZES} sizes")

    @property
    def callers(self) -> Sequence[frozenset[int]]:
        """Return per collective the ranks that call it and whose traces are available."""
        callers: list[set[int]] = [set() for _ in self.calls]
        for rank, items in self.ranks.items():
            for item in items:
                if item.kind == CALL:
                    callers[item.call].add(rank)
        return [frozenset(ranks) for ranks in callers]
