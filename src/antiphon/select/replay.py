"""A recorded job replayed: what of its communication is exposed, what ours makes of it, what is worth tuning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

from antiphon.cost.basis import CALIBRATED, NOT_CALIBRATED
from antiphon.cost.replay import buckets, cores
from antiphon.cost.replay.job import WORK, Collective, Job, ProcessGroup
from antiphon.cost.replay.steps import Outcome, follow
from antiphon.select.prices import Price

MOST_MOVES = 2**23  # of items in all that is followed
MOST_CLASSES = 24  # of which it is told what they alone would gain


class Prices(Protocol):
    """Who says what a collective takes."""

    def price(self, kind: str, nbytes: int, group: int, about: ProcessGroup) -> Price | None:
        """None: nobody knows, and it stays as it was."""


@dataclass(frozen=True)
class Class:
    """The collectives of one kind, size and group."""

    kind: str
    nbytes: int
    group: int
    bucket: bool
    calls: Sequence[int]


@dataclass
class Replay:
    """What `replay` found; `as_json` is what users get."""

    job: Job
    cores: int | None
    now: Outcome
    ours: Outcome
    free: float
    rows: list[dict[str, Any]]
    cuts: dict[str, Any] | None
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        steps = len(self.now.steps)
        total = sum(call.seconds for call in self.job.calls) / steps
        exposed = sum(self.now.waited) / steps
        work = [sum(i.seconds for i in items if i.what == WORK) / steps for items in self.job.ranks.values()]
        recorded = median(self.job.steps)
        worth = max(self.rows, key=lambda row: row["gain"] or 0.0, default=None)
        return {
            "ranks": sorted(self.job.ranks),
            "groups": [{"name": g.name, "size": g.size, "members": list(g.members)} for g in self.job.groups],
            "cores": self.cores,
            "steps": steps,
            "step": {
                "recorded": recorded,
                "replayed": self.now.step,
                "off": self.now.step / recorded - 1 if recorded else 0.0,
                "ours": self.ours.step,
                "speedup": self.now.step / self.ours.step if self.ours.step else 1.0,
                "rests_on": rests_on([row["rests_on"] for row in self.rows if row["rests_on"]]),
                "without_communication": self.free,
            },
            "computation": max(work),
            "communication": {
                "seconds": total, "exposed": exposed, "hidden": max(total - exposed, 0.0),
                "ours_exposed": sum(self.ours.waited) / steps,
            },
            "calls": self.rows,
            "worth_tuning": (worth and worth["gain"] and worth["gain"] > 0 and {
                key: worth[key] for key in ("collective", "nbytes", "group", "gain", "rests_on")
            }) or None,
            "buckets": self.cuts,
            "notes": self.notes,
        }  # fmt: skip


def rests_on(told: Sequence[str]) -> str:
    """What all prices together rest on: each thing once, and last that some rest on nothing."""
    known = list(dict.fromkeys(part for one in told if one != NOT_CALIBRATED for part in one.split("; ")))
    if not known:
        return NOT_CALIBRATED if told else "no prices of ours"
    return "; ".join([*known, *([f"partly {NOT_CALIBRATED}"] if NOT_CALIBRATED in told else [])])


def replay(
    job: Job, ours: Prices, library: Prices | None = None, *, cores_of_host: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> Replay:  # fmt: skip
    """`ours` prices what we would do, `library` (where it is known) what NCCL does by its model. `cores_of_host`: all
    ranks share so many cores, and what runs at the same time slows each other down."""
    tell = progress or (lambda _: None)
    alone = job if cores_of_host is None else cores.alone(job, cores_of_host)

    def run(one: Job, seconds: Sequence[float], serial: bool) -> Outcome:
        if cores_of_host is None:
            return follow(one, seconds, serial=serial)
        return cores.follow(one, seconds, cores_of_host, serial=serial)

    recorded = [call.seconds for call in alone.calls]
    tell("as it was")
    now = run(alone, recorded, False)
    classes = _classes(job)
    prices: dict[tuple[str, int, int], Price | None] = {}
    for one in classes:
        tell(f"{one.kind} of {one.nbytes} bytes")
        prices[one.kind, one.nbytes, one.group] = ours.price(one.kind, one.nbytes, one.group, job.groups[one.group])
    best = [_or(prices[c.kind, c.nbytes, c.group], s) for c, s in zip(alone.calls, recorded, strict=True)]
    with_ours = run(alone, best, any(prices.values()))
    free = run(alone, [0.0] * len(recorded), False).step
    rows = _rows(job, classes, now, prices, library)
    many = min(MOST_CLASSES, MOST_MOVES // sum(map(len, job.ranks.values())))
    for row, one in list(zip(rows, classes, strict=True))[:many]:
        tell(f"{one.kind} of {one.nbytes} bytes alone")
        mine = set(one.calls)
        for key, seconds in (("gain", best), ("most", [0.0] * len(best))):
            mixed = [seconds[k] if k in mine else recorded[k] for k in range(len(recorded))]
            row[key] = now.step - run(alone, mixed, False).step
    notes = list(job.notes)
    unknown = sorted({one.kind for one in classes if prices[one.kind, one.nbytes, one.group] is None})
    if unknown:
        told = f"nothing is known of ours for {', '.join(unknown)} at some sizes, or they are left to the library"
        notes.append(f"{told}: these stay as they were")
    if cores_of_host is not None:
        notes.append(f"the ranks share {cores_of_host} cores: computation and collectives slow each other down")
    if job.processor and any(price and CALIBRATED in price.rests_on for price in prices.values()):
        notes.append(
            "the job computed on processors, but ours are priced as on the GPUs of this machine: what a step would "
            "take there is not told by this trace"
        )
    tell("buckets")
    return Replay(job, cores_of_host, now, with_ours, free, rows, _buckets(alone, ours, run, notes), notes)


def _or(price: Price | None, seconds: float) -> float:
    return seconds if price is None else price.seconds


def _classes(job: Job) -> list[Class]:
    """The ones that take longest in all come first."""
    found: dict[tuple[str, int, int, bool], list[int]] = {}
    for number, call in enumerate(job.calls):
        found.setdefault((call.kind, call.nbytes, call.group, call.bucket), []).append(number)
    made = [Class(*key, calls) for key, calls in found.items()]
    return sorted(made, key=lambda one: -sum(job.calls[call].seconds for call in one.calls))


def _rows(
    job: Job, classes: Sequence[Class], now: Outcome, prices: dict[tuple[str, int, int], Price | None],
    library: Prices | None,
) -> list[dict[str, Any]]:  # fmt: skip
    steps = len(now.steps)
    rows = []
    for one in classes:
        took = [job.calls[call].seconds for call in one.calls]
        exposed = [min(now.waited[call], job.calls[call].seconds) for call in one.calls]
        price, group = prices[one.kind, one.nbytes, one.group], job.groups[one.group]
        model = None if library is None else library.price(one.kind, one.nbytes, one.group, group)
        rows.append(
            {
                "collective": one.kind, "nbytes": one.nbytes, "group": group.name, "ranks": group.size,
                "bucket": one.bucket, "per_step": len(one.calls) / steps, "seconds": median(took),
                "exposed": sum(exposed) / steps, "hidden": max(sum(took) - sum(exposed), 0.0) / steps,
                "ours": price and price.seconds, "by": price and price.by, "rests_on": price and price.rests_on,
                "library": model and model.seconds, "library_by": model and model.by, "gain": None, "most": None,
            }
        )  # fmt: skip
    return rows


def _buckets(
    job: Job, ours: Prices, run: Callable[[Job, Sequence[float], bool], Outcome], notes: list[str]
) -> dict[str, Any] | None:
    """What a step would take by ours with buckets of other sizes; None where DDP did not run, or ours is not known."""
    if not buckets.bucketed(job):
        return None
    step = buckets.last_step(job)
    if not buckets.bucketed(step):
        return None
    gradients, told = buckets.gradients_of(step, job.gradients)
    total = sum(one.nbytes for one in gradients)
    recorded = max(call.nbytes for call in step.calls if call.bucket)
    sizes = sorted({recorded, *(2**k for k in range(16, 29) if 2**k < 2 * total), max(total, 1)})
    rows = []
    for size in sizes:
        made = buckets.cut(step, gradients, size)
        many = sum(call.bucket for call in made.calls)
        if many > buckets.MOST_BUCKETS:
            continue
        prices = [ours.price(c.kind, c.nbytes, c.group, job.groups[c.group]) for c in made.calls]
        if any(price is None for price, call in zip(prices, made.calls, strict=True) if call.bucket):
            return None
        seconds = [_or(price, _taken(call)) for price, call in zip(prices, made.calls, strict=True)]
        rows.append({"nbytes": size, "buckets": many, "seconds": run(made, seconds, True).step})
    if not told:
        notes.append("the trace does not tell when each gradient was made: those of a bucket are taken to come evenly")
    best = min(rows, key=lambda row: (row["seconds"], -row["nbytes"]))
    return {"recorded": recorded, "best": best["nbytes"], "rows": rows}


def _taken(call: Collective) -> float:
    return call.seconds
