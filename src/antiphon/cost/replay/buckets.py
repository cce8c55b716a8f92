"""DDP's buckets cut anew: gradients are made when they are made, but go out in collectives of another size.

DDP adds gradients up in the order in which they are made and sends a bucket once it holds at least so many bytes; what
is left goes when all are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from antiphon.cost.replay.job import CALL, STEP, WAIT, WORK, Collective, Gradient, Item, Job

MOST_BUCKETS = 4096


def bucketed(job: Job) -> bool:
    """Whether DDP ran in it."""
    return any(call.bucket for call in job.calls)


def last_step(job: Job) -> Job:
    """The job's last step alone, each rank from its own begin on. O(items)."""
    ranks = {}
    for rank, items in job.ranks.items():
        cuts = [place for place, item in enumerate(items) if item.what == STEP]
        first = cuts[-2] + 1 if len(cuts) > 1 else 0
        ranks[rank] = items[first : cuts[-1] + 1]
    inside = set.intersection(*({i.call for i in items if i.what == CALL} for items in ranks.values()))
    number = {call: place for place, call in enumerate(sorted(inside))}
    for rank, items in ranks.items():
        kept = [
            i if i.call < 0 else replace(i, call=number.get(i.call, -1))
            for i in items if i.what == WORK or i.call < 0 or i.call in inside
        ]  # fmt: skip
        ranks[rank] = [Item(WORK, 0.0, at=kept[0].at if kept else 0.0), *kept]
    lanes = {
        rank: [[number[call] for call in lane if call in inside] for lane in lanes] for rank, lanes in job.lanes.items()
    }
    calls = [job.calls[call] for call in sorted(inside)]
    return replace(job, ranks=ranks, calls=calls, lanes=lanes, steps=job.steps[-1:])


def gradients_of(step: Job, told: Sequence[Gradient]) -> tuple[list[Gradient], bool]:
    """When the bytes of all gradients were made, and whether the trace tells it of all; else each bucket's came evenly
    since the one before."""
    whole = sum(call.nbytes for call in step.calls if call.bucket)
    if sum(one.nbytes for one in told) == whole:
        return sorted(told, key=lambda one: one.work), True
    items = next(iter(step.ranks.values()))
    found, work, before = [], 0.0, None
    for item in items:
        if item.what == WORK:
            work += item.seconds
        elif item.what == CALL and step.calls[item.call].bucket:
            nbytes, parts = step.calls[item.call].nbytes, 16
            begin = work if before is None else before
            made = [nbytes * (k + 1) // parts - nbytes * k // parts for k in range(parts)]
            found += [Gradient(n, begin + (work - begin) * (k + 1) / parts) for k, n in enumerate(made)]
            before = work
    return found, False


def cut(step: Job, gradients: Sequence[Gradient], most: int) -> Job:
    """The same step with buckets of at least so many bytes. O(items)."""
    sizes: list[tuple[float, int]] = []
    total = 0
    for place, one in enumerate(gradients, 1):
        total += one.nbytes
        if total >= most or place == len(gradients):
            sizes.append((one.work, total))
            total = 0
    old = [call for call in step.calls if call.bucket]
    kept = [number for number, call in enumerate(step.calls) if not call.bucket]
    number = {call: place for place, call in enumerate(kept)}
    made = [Collective(old[0].kind, nbytes, old[0].group, 0.0, bucket=True) for _, nbytes in sizes]
    ranks = {
        rank: _line(step, items, number, [(work, len(kept) + k) for k, (work, _) in enumerate(sizes)])
        for rank, items in step.ranks.items()
    }
    return replace(step, ranks=ranks, calls=[*(step.calls[call] for call in kept), *made], lanes={})


def _line(step: Job, items: Sequence[Item], number: dict[int, int], new: Sequence[tuple[float, int]]) -> list[Item]:
    """A rank's items with these buckets called after so much work, and waited for where the first old one was."""
    found: list[Item] = []
    todo, work, waited = list(new), 0.0, False
    for item in items:
        if item.what == WORK:
            left, mine = item.seconds, number.get(item.call, -1)
            gone = item.call >= 0 and mine < 0  # it was done within the call of an old bucket
            while todo and todo[0][0] <= work + left:
                at, call = todo.pop(0)
                part = max(at - work, 0.0)
                found += [Item(WORK, 0.0 if gone else part, mine, item.at), Item(CALL, call=call)]
                work, left = work + part, left - part
            found.append(Item(WORK, 0.0 if gone else left, mine, item.at))
            work += left
        elif item.call >= 0 and step.calls[item.call].bucket:
            if item.what == WAIT and not waited:
                found += [Item(CALL, call=call) for _, call in todo]
                found += [Item(WAIT, call=call) for _, call in new]
                todo, waited = [], True
        else:
            found.append(item if item.call < 0 else replace(item, call=number[item.call]))
    return found
