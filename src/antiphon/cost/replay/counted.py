"""A job of which only is told which communicators there are and how many collectives each has called: no sizes, no
times but that of the telling.

    Dump at 10:00:00   communicator 0xab of 8 ranks on 1 node: allreduce 1000 (rank 3: 999)
    Dump at 10:00:10   the same: allreduce 1500

From the first to the second it called 500 in 10 s. Were each of 64 MB and took 0.5 ms, that is 2.5 % of the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from antiphon.errors import Invalid, quote

OK = "OK"


@dataclass(frozen=True)
class Count:
    """How many of one collective a communicator has called: at the rank that is furthest, at the one that is least far,
    and which ranks are behind the first."""

    most: int
    least: int
    behind: tuple[int, ...] = ()


@dataclass(frozen=True)
class Communicator:
    """`alike`: so many of them are told in one. `per_node`: the fewest and the most of its ranks on a node. `members`:
    its ranks by their numbers in the job, where that is known. `missing`: ranks that told nothing. `counts`: by kind;
    without a kind ("") where only all together are told."""

    name: str
    size: int
    nodes: int
    per_node: tuple[int, int]
    alike: int = 1
    status: str = ""
    errors: str = OK
    members: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    counts: Mapping[str, Count] = field(default_factory=dict)

    @property
    def apart(self) -> bool:
        """Whether it is not known to be on one node."""
        return self.nodes != 1 or bool(self.missing) or "INCOMPLETE" in self.errors


@dataclass(frozen=True)
class Dump:
    """One telling. `complete`: with all counts, not just those that differ among ranks. `at`: seconds, of some clock;
    None: not told. `left_out`: what was counted and is no collective that has a price."""

    communicators: Sequence[Communicator]
    complete: bool = True
    at: float | None = None
    when: str = ""
    left_out: Sequence[str] = ()


@dataclass(frozen=True)
class Called:
    """One kind of one communicator: since it began, and between the first and the last dump (None: not known)."""

    communicator: Communicator
    kind: str
    launched: int
    between: int | None


def in_order(dumps: Sequence[Dump]) -> list[Dump]:
    """By the time that they tell; as given where one tells none."""
    if any(one.at is None for one in dumps):
        return list(dumps)
    return sorted(dumps, key=lambda one: one.at or 0.0)


def called(dumps: Sequence[Dump]) -> list[Called]:
    """Of every communicator of the last dump what it called. Invalid where a count falls: that is another job, or
    another order. O(communicators)."""
    first, last = dumps[0], dumps[-1]
    before = {one.name: one.counts for one in first.communicators}
    found = []
    for one in last.communicators:
        known = before.get(one.name, {})
        for kind, count in one.counts.items():
            told = len(dumps) > 1 and (kind in known or first.complete)
            start = known[kind].most if kind in known else 0
            if told and count.most < start:
                raise Invalid(
                    f"communicator {quote(one.name)}: {start} {kind or 'collectives'} in one dump, {count.most} in a "
                    "later one; give dumps of one job, in their order"
                )
            found.append(Called(one, kind, count.most, count.most - start if told else None))
    return found


def standing(dumps: Sequence[Dump]) -> list[tuple[Communicator, str, Count]]:
    """What has ranks behind others, by the same counts in the first dump and in the last: it does not go on."""
    if len(dumps) < 2:
        return []
    before = {one.name: one for one in dumps[0].communicators}
    return [
        (one, kind, count)
        for one in dumps[-1].communicators
        for kind, count in one.counts.items()
        if count.least < count.most and one.name in before and before[one.name].counts.get(kind) == count
    ]
