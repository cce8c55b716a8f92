"""Replay a recorded job: which communication is exposed, what our plans would gain, which collective is worth tuning.

A trace of a training job gives, per rank, a list of computations and collectives with their dependencies. `cost.replay`
simulates it with any time (price) for each collective. Communication is exposed while ranks wait for it, hidden while
they compute. Four kinds of simulations give the result:

    as recorded              the step time of the job, and how much of each collective is exposed
    with our prices          the step time with our plans, hence the speedup
    without communication    every collective takes 0 s: what remains is computation, a lower bound of the step time
    one class changed        a class is all collectives of one kind, size and group; the others keep their recorded
                             times. With our price for the class: its gain. With 0 s: the most that any plan can gain

Gains of classes do not add up: a collective that is hidden behind computation gains nothing, and two on the critical
path may gain less together. Hence the simulations with one class changed, which show what to tune first.

Example: a step computes 80 ms, and two allreduces take 30 ms each, one of them hidden behind the computation. The
step takes 110 ms. Halving the hidden one gains 0 ms, halving the exposed one 15 ms; no plan gains more than 30 ms.

If the ranks share the cores of one host (`cores_of_host`), computations and collectives slow each other down. Then the
recorded times are first converted to those that each item would take with a core for every thread.

PyTorch's DDP reduces gradients in buckets, whose size is an option of the user: `_compare_buckets` replays the last
step with buckets of other sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

from antiphon.cost.basis import CALIBRATED, NOT_CALIBRATED
from antiphon.cost.replay import buckets, cores
from antiphon.cost.replay.job import WORK, ProcessGroup, RecordedJob
from antiphon.cost.replay.steps import ReplayOutcome, replay_job
from antiphon.select.prices import ByPlans, Price
from antiphon.select.together import compare_together

# Simulations with one class changed: at most MAX_CLASSES classes, and at most MAX_ITEMS timeline items (those of the
# job count once per class).
MAX_ITEMS = 2**23
MAX_CLASSES = 24


class PriceSource(Protocol):
    """A source of prices of collectives."""

    def price(self, kind: str, nbytes: int, group: int, about: ProcessGroup) -> Price | None:
        """Return the price, or None if unknown: then the collective keeps its recorded time.

        `group`: the number of the process group in the job; `about`: its size and members.
        """


ClassPrices = dict[tuple[str, int, int], Price | None]  # by kind, nbytes and number of the group


@dataclass(frozen=True)
class CallClass:
    """The collectives of one kind, size and process group."""

    kind: str
    nbytes: int
    group: int
    bucket: bool  # whether they reduce buckets of gradients of DDP
    calls: Sequence[int]  # their positions in `RecordedJob.calls`


@dataclass
class Replay:
    """The result of `replay`; users get `as_json()`."""

    job: RecordedJob
    cores: int | None  # that the ranks share
    as_recorded: ReplayOutcome  # the replay with the recorded times
    ours: ReplayOutcome  # the replay with our prices
    free: float  # seconds of a step without communication
    rows: list[dict[str, Any]]  # one per class
    bucket_sizes: dict[str, Any] | None  # step times by bucket size, of `_compare_buckets`
    notes: list[str] = field(default_factory=list)
    together: list[dict[str, Any]] = field(default_factory=list)  # sets of calls at the same time, of `together`

    def as_json(self) -> dict[str, Any]:
        steps = len(self.as_recorded.steps)
        seconds_per_step = sum(call.seconds for call in self.job.calls) / steps
        exposed = sum(self.as_recorded.waited) / steps  # waited: seconds of the ranks' waits for each call, their mean
        work_seconds = [sum(i.seconds for i in items if i.kind == WORK) / steps for items in self.job.ranks.values()]
        recorded = median(self.job.steps)
        best_class = max(self.rows, key=lambda row: row["gain"] or 0.0, default=None)
        worth_tuning = None  # no class, or none that gains
        if best_class is not None and (best_class["gain"] or 0.0) > 0:
            worth_tuning = {key: best_class[key] for key in ("collective", "nbytes", "group", "gain", "rests_on")}
        return {
            "ranks": sorted(self.job.ranks),
            "groups": [{"name": g.name, "size": g.size, "members": list(g.members)} for g in self.job.groups],
            "cores": self.cores,
            "steps": steps,
            "step": {
                "recorded": recorded,
                "replayed": self.as_recorded.step,
                "off": self.as_recorded.step / recorded - 1 if recorded else 0.0,
                "ours": self.ours.step,
                "speedup": self.as_recorded.step / self.ours.step if self.ours.step else 1.0,
                "rests_on": rests_on([row["rests_on"] for row in self.rows if row["rests_on"]]),
                "without_communication": self.free,
            },
            "computation": max(work_seconds),
            "communication": {
                "seconds": seconds_per_step, "exposed": exposed, "hidden": max(seconds_per_step - exposed, 0.0),
                "ours_exposed": sum(self.ours.waited) / steps,
            },
            "calls": self.rows,
            "worth_tuning": worth_tuning,
            "buckets": self.bucket_sizes,
            "together": self.together,
            "notes": self.notes,
        }  # fmt: skip


def rests_on(bases: Sequence[str]) -> str:
    """Return the measurements that calibrate the prices, each once, and whether some prices are not calibrated."""
    calibrations = list(dict.fromkeys(item for basis in bases if basis != NOT_CALIBRATED for item in basis.split("; ")))
    if not calibrations:
        return NOT_CALIBRATED if bases else "no prices of ours"
    return "; ".join([*calibrations, *([f"partly {NOT_CALIBRATED}"] if NOT_CALIBRATED in bases else [])])


def replay(
    job: RecordedJob, ours: PriceSource, library: PriceSource | None = None, *, cores_of_host: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> Replay:  # fmt: skip
    """Replay the job with our prices, and with those of one class at a time.

    `ours` prices our plans, `library` (if known) NCCL by its model. `cores_of_host`: all ranks share this number of
    cores, and what runs at the same time slows each other down; None: every thread has a core. `progress` receives what
    is done next, in words.
    """
    report = progress or (lambda _: None)
    undisturbed_job = job if cores_of_host is None else cores.remove_slowdown(job, cores_of_host)

    # serial: collectives of a group run one after another, as in our runtimes; else in the trace's streams or threads
    def run(variant: RecordedJob, seconds: Sequence[float], serial: bool) -> ReplayOutcome:
        if cores_of_host is None:
            return replay_job(variant, seconds, serial=serial)
        return cores.replay_job(variant, seconds, cores_of_host, serial=serial)

    recorded = [call.seconds for call in undisturbed_job.calls]
    report("as it was")
    as_recorded = run(undisturbed_job, recorded, serial=False)
    classes = _classify_calls(job)
    prices: ClassPrices = {}
    for c in classes:
        report(f"{c.kind} of {c.nbytes} bytes")
        prices[c.kind, c.nbytes, c.group] = ours.price(c.kind, c.nbytes, c.group, job.groups[c.group])
    # calls without a price of ours keep their recorded time
    our_seconds = [
        _price_or_recorded(prices[c.kind, c.nbytes, c.group], s)
        for c, s in zip(undisturbed_job.calls, recorded, strict=True)
    ]
    with_ours = run(undisturbed_job, our_seconds, serial=any(prices.values()))  # if any class runs by our plans
    computation_only = run(undisturbed_job, [0.0] * len(recorded), serial=False).step
    rows = _class_rows(job, classes, as_recorded, prices, library)
    # each class takes two more simulations of all items, and gives keys of its row, in seconds per step: "gain" with
    # our price, "most" with 0 s, the most that any plan can gain
    class_count = min(MAX_CLASSES, MAX_ITEMS // sum(map(len, job.ranks.values())))
    for row, c in list(zip(rows, classes, strict=True))[:class_count]:
        report(f"{c.kind} of {c.nbytes} bytes alone")
        calls = set(c.calls)
        for key, seconds in (("gain", our_seconds), ("most", [0.0] * len(our_seconds))):
            variant_seconds = [seconds[k] if k in calls else recorded[k] for k in range(len(recorded))]
            row[key] = as_recorded.step - run(undisturbed_job, variant_seconds, serial=False).step
    notes = list(job.notes)
    unpriced = sorted({c.kind for c in classes if prices[c.kind, c.nbytes, c.group] is None})
    if unpriced:
        reason = f"there is no plan of ours for {', '.join(unpriced)} at some sizes, or they are left to the library"
        notes.append(f"{reason}: these keep their recorded times")
    if cores_of_host is not None:
        notes.append(f"the ranks share {cores_of_host} cores: computation and collectives slow each other down")
    # CALIBRATED: by published measurements, all of GPUs
    if job.processor and any(price and CALIBRATED in price.rests_on for price in prices.values()):
        notes.append(
            "the job computed on CPUs, but our plans are priced as on the GPUs of this machine: this trace does not "
            "show what a step would take there"
        )
    report("groups at the same time")
    together, reasons = compare_together(job, ours) if isinstance(ours, ByPlans) else ([], [])
    notes += reasons
    report("buckets")
    bucket_sizes = _compare_buckets(undisturbed_job, ours, run, notes)
    return Replay(
        job, cores=cores_of_host, as_recorded=as_recorded, ours=with_ours, free=computation_only, rows=rows,
        bucket_sizes=bucket_sizes, notes=notes, together=together,
    )  # fmt: skip


def _price_or_recorded(price: Price | None, recorded: float) -> float:
    return recorded if price is None else price.seconds


def _classify_calls(job: RecordedJob) -> list[CallClass]:
    """Return the classes of calls; first the one that takes longest in total."""
    calls_of: dict[tuple[str, int, int, bool], list[int]] = {}
    for number, call in enumerate(job.calls):
        calls_of.setdefault((call.kind, call.nbytes, call.group, call.bucket), []).append(number)
    classes = [CallClass(*key, calls) for key, calls in calls_of.items()]
    return sorted(classes, key=lambda c: -sum(job.calls[call].seconds for call in c.calls))


def _class_rows(
    job: RecordedJob, classes: Sequence[CallClass], as_recorded: ReplayOutcome, prices: ClassPrices,
    library: PriceSource | None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return a row per class of collectives: per step its exposed and hidden time, per call its seconds and prices.

    The caller sets `gain` and `most`.
    """
    steps = len(as_recorded.steps)
    rows = []
    for c in classes:
        seconds = [job.calls[call].seconds for call in c.calls]
        exposed = [min(as_recorded.waited[call], job.calls[call].seconds) for call in c.calls]
        price, group = prices[c.kind, c.nbytes, c.group], job.groups[c.group]
        model = None if library is None else library.price(c.kind, c.nbytes, c.group, group)
        rows.append(
            {
                "collective": c.kind, "nbytes": c.nbytes, "group": group.name, "ranks": group.size,
                "bucket": c.bucket, "per_step": len(c.calls) / steps, "seconds": median(seconds),
                "exposed": sum(exposed) / steps, "hidden": max(sum(seconds) - sum(exposed), 0.0) / steps,
                "ours": price and price.seconds, "by": price and price.by, "rests_on": price and price.rests_on,
                "library": model and model.seconds, "library_by": model and model.by, "gain": None, "most": None,
            }
        )  # fmt: skip
    return rows


def _compare_buckets(
    job: RecordedJob,
    ours: PriceSource,
    run: Callable[[RecordedJob, Sequence[float], bool], ReplayOutcome],
    notes: list[str],
) -> dict[str, Any] | None:
    """Return the time of a step by our plans with DDP buckets of other sizes; None without DDP, or without our
    prices.
    """
    if not buckets.has_buckets(job):
        return None
    step = buckets.last_step(job)
    if not buckets.has_buckets(step):
        return None
    # in the order in which they are ready; is_timed: the trace records when that is
    gradients, is_timed = buckets.ready_gradients(step, job.gradients)
    # the recorded size, powers of two from 64 KiB to 256 MiB (below twice all gradients), and all in one bucket
    total = sum(gradient.nbytes for gradient in gradients)
    recorded = max(call.nbytes for call in step.calls if call.bucket)
    sizes = sorted({recorded, *(2**k for k in range(16, 29) if 2**k < 2 * total), max(total, 1)})
    rows = []
    for size in sizes:
        variant = buckets.rebucket(step, gradients, size)
        count = sum(call.bucket for call in variant.calls)
        if count > buckets.MAX_BUCKETS:
            continue
        prices = [ours.price(c.kind, c.nbytes, c.group, job.groups[c.group]) for c in variant.calls]
        if any(price is None for price, call in zip(prices, variant.calls, strict=True) if call.bucket):
            return None
        seconds = [_price_or_recorded(price, call.seconds) for price, call in zip(prices, variant.calls, strict=True)]
        step_seconds = run(variant, seconds, True).step  # noqa: FBT003 (serial, as in our runtimes)
        rows.append({"nbytes": size, "buckets": count, "seconds": step_seconds})
    if not is_timed:
        notes.append(
            "the trace does not show when each gradient was ready: those of a bucket are assumed to be ready evenly"
        )
    best = min(rows, key=lambda row: (row["seconds"], -row["nbytes"]))  # of equal times the largest buckets
    return {"recorded": recorded, "best": best["nbytes"], "rows": rows}
