"""Regroup DDP's gradients into buckets of another size; the times at which gradients are ready stay as recorded.

DDP (PyTorch's data-parallel training) collects gradients in the order in which they are computed and sends a bucket
once it has reached the bucket size; the remainder is sent when all are computed. `rebucket` replaces the recorded
buckets of a step, so that steps.py can replay it; select/replay.py calls it per bucket size. Words such as lane, CALL
and WAIT are those of job.py; "work" is the seconds that a rank has computed since the step began.

Example: gradients of 4, 4, 4 MB are ready at 1, 2, 3 ms. With buckets of 8 MB, one bucket of 8 MB is sent at 2 ms and
one of 4 MB at 3 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from antiphon.cost.replay.job import CALL, STEP, WAIT, WORK, Gradient, RecordedCollective, RecordedJob, TimelineItem

MAX_BUCKETS = 4096  # per step; select/replay.py leaves out bucket sizes that give more, as their replay takes too long


def has_buckets(job: RecordedJob) -> bool:
    """Return whether the job ran DDP."""
    return any(call.bucket for call in job.calls)


def last_step(job: RecordedJob) -> RecordedJob:
    """Return a job of the last step only; each rank begins where its previous step ended. O(items)."""
    ranks = {}
    for rank, items in job.ranks.items():
        step_ends = [position for position, item in enumerate(items) if item.kind == STEP]  # at least one
        *earlier_ends, last_end = step_ends
        first = earlier_ends[-1] + 1 if earlier_ends else 0
        ranks[rank] = items[first : last_end + 1]
    # Calls of the last step that are in the timeline of every rank.
    complete_calls = set.intersection(*({i.call for i in items if i.kind == CALL} for items in ranks.values()))
    new_number = {call: position for position, call in enumerate(sorted(complete_calls))}
    for rank, items in ranks.items():
        step_items = [
            i if i.call < 0 else replace(i, call=new_number.get(i.call, -1))
            for i in items if i.kind == WORK or i.call < 0 or i.call in complete_calls
        ]  # fmt: skip
        ranks[rank] = [
            TimelineItem(WORK, seconds=0.0, recorded_at=step_items[0].recorded_at if step_items else 0.0),
            *step_items,
        ]
    lanes = {
        rank: [[new_number[call] for call in lane if call in complete_calls] for lane in lanes]
        for rank, lanes in job.lanes.items()
    }
    calls = [job.calls[call] for call in sorted(complete_calls)]
    return replace(job, ranks=ranks, calls=calls, lanes=lanes, steps=job.steps[-1:])


def ready_gradients(step: RecordedJob, recorded: Sequence[Gradient]) -> tuple[list[Gradient], bool]:
    """Return the gradients in the order in which they are ready, and whether the trace records all of them.

    `recorded`: those of the trace. If they are not all, each bucket's bytes are spread evenly over the work since the
    previous bucket.
    """
    total = sum(call.nbytes for call in step.calls if call.bucket)
    if sum(gradient.nbytes for gradient in recorded) == total:
        return sorted(recorded, key=lambda gradient: gradient.work), True
    items = next(iter(step.ranks.values()))
    gradients, work, previous = [], 0.0, None
    for item in items:
        if item.kind == WORK:
            work += item.seconds
        elif item.kind == CALL and step.calls[item.call].bucket:
            nbytes, slices = step.calls[item.call].nbytes, 16  # enough gradients per bucket to be nearly even
            begin = work if previous is None else previous  # of the first bucket only the end is known
            sizes = [nbytes * (k + 1) // slices - nbytes * k // slices for k in range(slices)]
            gradients += [Gradient(n, begin + (work - begin) * (k + 1) / slices) for k, n in enumerate(sizes)]
            previous = work
    return gradients, False


def rebucket(step: RecordedJob, gradients: Sequence[Gradient], min_bytes: int) -> RecordedJob:
    """Return the step with buckets of at least `min_bytes` bytes. O(items).

    The result has no lanes: it is to be replayed with serial=True (steps.py), which makes a lane for each group.
    """
    ready_buckets: list[tuple[float, int]] = []  # (work after which the bucket is ready, its bytes)
    total = 0
    for position, gradient in enumerate(gradients, 1):
        total += gradient.nbytes
        if total >= min_bytes or position == len(gradients):
            ready_buckets.append((gradient.work, total))
            total = 0
    old_buckets = [call for call in step.calls if call.bucket]
    other_calls = [number for number, call in enumerate(step.calls) if not call.bucket]
    new_number = {call: position for position, call in enumerate(other_calls)}
    buckets = [
        RecordedCollective(old_buckets[0].kind, nbytes, old_buckets[0].group, seconds=0.0, bucket=True)
        for _, nbytes in ready_buckets
    ]
    ranks = {
        rank: _rebucket_timeline(
            step, items, new_number, [(work, len(other_calls) + k) for k, (work, _) in enumerate(ready_buckets)]
        )
        for rank, items in step.ranks.items()
    }
    return replace(step, ranks=ranks, calls=[*(step.calls[call] for call in other_calls), *buckets], lanes={})


def _rebucket_timeline(
    step: RecordedJob,
    items: Sequence[TimelineItem],
    new_number: dict[int, int],
    bucket_calls: Sequence[tuple[float, int]],
) -> list[TimelineItem]:
    """Return a rank's timeline with the new buckets. Each is called once its gradients are ready; the rank waits for
    all of them where it waited for the first old bucket.

    `new_number`: the new number of each call that is no bucket. `bucket_calls`: the work after which each new bucket is
    called, and its number.
    """
    new_items: list[TimelineItem] = []
    pending, work_done, waited = list(bucket_calls), 0.0, False
    for item in items:
        if item.kind == WORK:
            remaining, call_number = item.seconds, new_number.get(item.call, -1)
            replaced = item.call >= 0 and call_number < 0  # this work was done within the call of an old bucket
            while pending:
                at, call = pending[0]
                if at > work_done + remaining:
                    break
                pending.pop(0)
                done = max(at - work_done, 0.0)
                new_items += [
                    TimelineItem(WORK, 0.0 if replaced else done, call_number, item.recorded_at),
                    TimelineItem(CALL, call=call),
                ]
                work_done, remaining = work_done + done, remaining - done
            new_items.append(TimelineItem(WORK, 0.0 if replaced else remaining, call_number, item.recorded_at))
            work_done += remaining
        elif item.call >= 0 and step.calls[item.call].bucket:
            if item.kind == WAIT and not waited:
                new_items += [TimelineItem(CALL, call=call) for _, call in pending]
                new_items += [TimelineItem(WAIT, call=call) for _, call in bucket_calls]
                pending, waited = [], True
        else:
            new_items.append(item if item.call < 0 else replace(item, call=new_number[item.call]))
    return new_items
