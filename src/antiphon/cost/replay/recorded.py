"""What one rank's trace tells, whatever wrote it, and the ranks of a job joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from antiphon.cost.replay.job import CALL, STEP, WAIT, WORK, Collective, Gradient, Item, Job, ProcessGroup
from antiphon.errors import Invalid, quote

Span = tuple[float, float]
MOST_GRADIENTS = 2**20
_LEFT = -1  # beside what items are: the line leaves a call


@dataclass(frozen=True)
class Heard:
    """One collective at one rank, in seconds. `called`: the rank's line has come so far that it may begin; `start`,
    `end`: as it ran; `lane`: what carried it out; `step`: in which it was called; `due`: by when it is waited for at
    the latest (None: by the end of its step); `bucket`: DDP made it of gradients; `left`: when the line left the
    call itself (None: at once)."""

    kind: str
    nbytes: int
    group: str
    called: float
    start: float
    end: float
    lane: str
    step: int
    due: float | None = None
    bucket: bool = False
    left: float | None = None


@dataclass(frozen=True)
class Recorded:
    """One rank. `steps`: begin and end of each; `waits`: from when to when nothing went on because of a collective (by
    its number in `calls`); `processor`: it computed on a processor, not on a GPU."""

    rank: int
    host: str
    groups: Mapping[str, ProcessGroup]
    steps: Sequence[Span]
    calls: Sequence[Heard]
    waits: Sequence[tuple[float, float, int]] = ()
    gradients: Sequence[tuple[float, int]] = ()  # when one was made, and its bytes
    notes: Sequence[str] = ()
    processor: bool = False


def join(traces: Sequence[Recorded]) -> Job:
    """The job of which these are the ranks. Invalid where they do not call the same. O(n log n)."""
    by_rank = {one.rank: one for one in sorted(traces, key=lambda one: one.rank)}
    if not by_rank:
        raise Invalid("the traces have no collective")
    if len(by_rank) < len(traces):
        raise Invalid("two of the traces are of the same rank")
    many = {len(one.steps) for one in by_rank.values()}
    if len(many) > 1:
        raise Invalid(f"the traces have {min(many)} to {max(many)} steps; record the same ones at all ranks")
    names, groups = _groups(by_rank)
    matched, numbers = _match(by_rank)
    ahead = _ahead(by_rank, matched)
    begun = {rank: _begun(one) for rank, one in by_rank.items()}
    calls = [_collective(who, begun, by_rank, names, ahead) for who in matched]
    ranks = {rank: _line(one, numbers[rank], ahead[rank], calls) for rank, one in by_rank.items()}
    steps = [max(one.steps[k][1] - _before(one, k) for one in by_rank.values()) for k in range(min(many))]
    notes = list(dict.fromkeys(note for one in by_rank.values() for note in one.notes))
    size = max((group.size for group in groups), default=1)
    if len(by_rank) < size:
        notes.append(
            f"traces of {len(by_rank)} of {size} ranks: what these waited for the others counts as communication"
        )
    first = next(iter(by_rank.values()))
    job = Job(groups, calls, ranks, {rank: _lanes(one, numbers[rank]) for rank, one in by_rank.items()}, steps, notes)
    job.check()
    gradients = _gradients(first, ranks[first.rank], ahead[first.rank])
    return replace(job, gradients=gradients, processor=any(one.processor for one in by_rank.values()))


def _before(one: Recorded, step: int) -> float:
    """When the step before ended: what is between two steps belongs to the later one."""
    return one.steps[step - 1][1] if step else one.steps[0][0]


def _groups(by_rank: Mapping[int, Recorded]) -> tuple[dict[str, int], list[ProcessGroup]]:
    names: dict[str, int] = {}
    found: list[ProcessGroup] = []
    for one in by_rank.values():
        for key, group in one.groups.items():
            if key not in names:
                names[key] = len(found)
                found.append(group)
            elif found[names[key]] != group:
                raise Invalid(f"group {quote(key)}: ranks tell different members of it")
    return names, found


def _match(by_rank: Mapping[int, Recorded]) -> tuple[list[dict[int, int]], dict[int, list[int]]]:
    """Collectives as {rank: its number there}, and of every rank which one each of its calls is: the first of a group
    in a step with the first of it elsewhere, and so on."""
    found: dict[tuple[str, int, int], dict[int, int]] = {}
    for rank, one in by_rank.items():
        seen: dict[tuple[str, int], int] = {}
        for number, call in enumerate(one.calls):
            place = seen.get((call.group, call.step), 0)
            seen[call.group, call.step] = place + 1
            who = found.setdefault((call.group, call.step, place), {})
            if who:
                other = next(iter(who))
                same = by_rank[other].calls[who[other]]
                if (same.kind, same.nbytes) != (call.kind, call.nbytes):
                    raise Invalid(
                        f"step {call.step}, call {place} of group {quote(call.group)}: rank {other} calls {same.kind} "
                        f"of {same.nbytes} bytes, rank {rank} {call.kind} of {call.nbytes}"
                    )
            who[rank] = number
    matched = list(found.values())
    numbers = {rank: [0] * len(one.calls) for rank, one in by_rank.items()}
    for which, who in enumerate(matched):
        for rank, number in who.items():
            numbers[rank][number] = which
    return matched, numbers


def _ahead(by_rank: Mapping[int, Recorded], matched: Sequence[Mapping[int, int]]) -> dict[int, float]:
    """By how much the clock of each rank is ahead of the first's: 0 on the same host, else by when collectives end,
    which they do everywhere at about the same time."""
    first = next(iter(by_rank))
    found = dict.fromkeys(by_rank, 0.0)
    for rank, one in by_rank.items():
        both = [who for who in matched if first in who and rank in who]
        if one.host != by_rank[first].host and both:
            found[rank] = median(one.calls[w[rank]].end - by_rank[first].calls[w[first]].end for w in both)
    return found


def _collective(who: Mapping[int, int], begun: Mapping[int, Sequence[float]], by_rank: Mapping[int, Recorded],
                names: Mapping[str, int], ahead: Mapping[int, float]) -> Collective:  # fmt: skip
    """From when all had called it and had their lane free, so that what lies between a call and what carries it out
    counts, until it was over."""
    start = max(begun[rank][number] - ahead[rank] for rank, number in who.items())
    end = max(by_rank[rank].calls[number].end - ahead[rank] for rank, number in who.items())
    rank, number = next(iter(who.items()))
    one = by_rank[rank].calls[number]
    return Collective(one.kind, one.nbytes, names[one.group], max(end - start, 0.0), min(start, end), one.bucket)


def _begun(one: Recorded) -> list[float]:
    """Of every call when it might have begun at this rank."""
    found = [call.called for call in one.calls]
    free: dict[str, float] = {}
    for number in sorted(range(len(found)), key=lambda n: one.calls[n].start):
        call = one.calls[number]
        found[number] = min(max(call.called, free.get(call.lane, call.called)), call.end)
        free[call.lane] = call.end
    return found


def _lanes(one: Recorded, numbers: Sequence[int]) -> list[list[int]]:
    found: dict[str, list[tuple[float, int]]] = {}
    for call, number in zip(one.calls, numbers, strict=True):
        found.setdefault(call.lane, []).append((call.start, number))
    return [[number for _, number in sorted(lane)] for lane in found.values()]


def _line(one: Recorded, numbers: Sequence[int], ahead: float, calls: Sequence[Collective]) -> list[Item]:
    """The items of a rank, from the begin of its first step to the end of its last."""
    waits = {call for _, _, call in one.waits}
    marks: list[tuple[float, int, int, float]] = []  # from, kind, call, until
    for number, call in enumerate(one.calls):
        marks.append((call.called, CALL, number, call.called))
        if call.left is not None:
            marks.append((max(call.left, call.called), _LEFT, number, call.called))
        if number not in waits:
            due = max(one.steps[call.step][1] if call.due is None else call.due, call.called, call.end)
            marks.append((due, WAIT, number, due))
    marks += [(begin, WAIT, number, end) for begin, end, number in one.waits]
    marks += [(end, STEP, step, end) for step, (_, end) in enumerate(one.steps)]
    now, items, within = one.steps[0][0], [], -1
    for begin, what, which, end in sorted(marks):
        if begin > now:
            items.append(Item(WORK, begin - now, within, at=now - ahead))
            now = begin
        within = (
            -1 if what == _LEFT else numbers[which] if what == CALL and one.calls[which].left is not None else within
        )
        if what == _LEFT:
            continue
        place = -1 if what == STEP else numbers[which]
        early = calls[place].end - (one.calls[which].end - ahead) if what == WAIT else 0.0
        items.append(Item(what, max(early, 0.0), place, now - ahead))
        now = max(now, end)
    if items and items[0].what != WORK:
        items.insert(0, Item(WORK, 0.0, at=one.steps[0][0] - ahead))
    return items


def _gradients(one: Recorded, items: Sequence[Item], ahead: float) -> list[Gradient]:
    """Those of the last step, with the work that its line has done in this step until then."""
    if not one.gradients or len(one.gradients) > MOST_GRADIENTS:
        return []
    begin, end = _before(one, len(one.steps) - 1) - ahead, one.steps[-1][1] - ahead
    work = [i for i in items if i.what == WORK and i.at + i.seconds > begin]
    found, done, place = list[Gradient](), 0.0, 0
    for moment, nbytes in sorted(one.gradients):
        at = moment - ahead
        if not begin <= at <= end:
            continue
        while place < len(work) and work[place].at + work[place].seconds <= at:
            done += work[place].seconds - max(begin - work[place].at, 0.0)
            place += 1
        part = max(at - max(work[place].at, begin), 0.0) if place < len(work) else 0.0
        found.append(Gradient(nbytes, done + part))
    return found
