"""Select the size ranges that a plan serves itself; sizes that it leaves to a GPU library get no file."""

from __future__ import annotations

from itertools import groupby

from antiphon.core.plan import GPU_LIBRARIES, Plan
from antiphon.errors import NotFound
from antiphon.units import range_text


def refuse_served(plan: Plan, format_name: str) -> list[str]:
    """Return a note for each range that is left to the library; NotFound if all of them are."""
    served = [entry for entry in plan.entries if entry.served_by in GPU_LIBRARIES]
    name = served[0].served_by.upper() if served else ""
    if len(served) == len(plan.entries):
        raise NotFound(
            f"{format_name}: {name}'s own choice is as good for {plan.collective.kind} at all sizes: nothing to write "
            "(a plan made by antiphon plan, or tuned with --no-nccl, is always written)"
        )
    # consecutive ranges are one
    runs = [[*run] for is_left, run in groupby(plan.entries, lambda entry: entry.served_by in GPU_LIBRARIES) if is_left]
    spans = [range_text(run[0].start, run[-1].stop) for run in runs]
    return [f"left to {name}, which is as good: {plan.collective.kind} {', '.join(spans)}"] if served else []
