"""The model `lowering`: price a schedule for each of SCCL's ways to run it on GPUs (*lowerings*, section 4).

lowering_costs.py describes the lowerings and their costs `start`, `step`, `copy` and `share` (of the bandwidth).

Costs come from the profile, or else from the figures of NCCL on the machine's GPUs (nccl/calls.py):

             start    step                                  copy                     share of the bandwidth
    kernel   launch   a hop by protocol Simple              0                        that of Simple
    steps    0        launch + a hop by LL (the flight)     0                        that of Simple
    copies   launch   launch                                latency of copy engine   that of copy engines
    -pull    as above; step: a flight more, for the request; share / 1.1, as SCCL found pushing up to 10 % faster

Kernels move the first bytes of a call more slowly (the ramp). By `copies`, a step that reduces takes a second step for
the reduction; by `steps`, the kernel of the next step does it. Prepared in O(E log E), E = rows times hops.

Example: (2, 2, 3) allgather on a DGX-1 by copies: 2 steps, in each of which a rank sends to its 4 neighbours, with 3/16
of nbytes on the busiest links. It pays a launch, one more per step, 8 copies, and 3/16 nbytes / (share * 25 GB/s).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from antiphon.core.columns import distinct
from antiphon.core.messages import messages
from antiphon.core.schedule import REDUCE, Schedule
from antiphon.core.topology import Topology
from antiphon.cost.basis import profile_basis
from antiphon.cost.lowering_costs import COPIES, KERNEL, PULL, STEPS, LoweringCosts, check_lowering
from antiphon.cost.nccl.calls import CALL_TERMS, LL, SIMPLE, CallFigures
from antiphon.cost.nccl.layout import node_of_ranks
from antiphon.cost.nccl.library import library_here
from antiphon.cost.prediction import LazyPath, Prediction, Predictor
from antiphon.cost.profile import Profile, as_profile
from antiphon.cost.steps import Barriers
from antiphon.errors import Unsupported

PUSH_OVER_PULL = 1.1  # SCCL, section 4: "up to 10% faster"
ASSUMED = "steps, copies and pull assumed from its launch, hops and copy engines"


@dataclass(frozen=True)
class LoweringWork:
    """What a lowering pays for in a schedule: its steps (launches) and copies, and the seconds per byte of the busiest
    links at their nominal bandwidth, summed over the steps."""

    steps: float
    copies: float
    seconds_per_byte: float

    def seconds(self, costs: LoweringCosts, nbytes: int) -> dict[str, float]:
        """Return the terms of the time."""
        return {
            "launch": costs.start, "steps": costs.step * self.steps, "copies": costs.copy * self.copies,
            "bandwidth": self.seconds_per_byte * nbytes / costs.share,
        }  # fmt: skip


def count_work(schedule: Schedule, barriers: Barriers, lowering: str) -> LoweringWork:
    """Count what a lowering pays for. `barriers`: the schedule, prepared by the model. O(rows log rows)."""
    kind = lowering.removesuffix(PULL)
    # the lengths of runs of steps with equal latency: all steps, further steps of pieces included
    steps = float(barriers.latencies.length.sum())
    repeats = steps / max(schedule.steps, 1)  # pieces follow one another in further steps
    # rows within a rank bring nothing from others
    combining_steps = schedule.step[(schedule.op == REDUCE) & (schedule.src != schedule.dst)]
    if kind == STEPS:  # a kernel after the last step reduces what that step brings
        steps += bool(len(combining_steps) and combining_steps.max() == schedule.step.max())
    if kind == COPIES:
        steps += len(distinct(combining_steps)) * repeats
    pulls = lowering != kind  # its name ends in PULL: the receiver reads
    copies = _most_messages(schedule, pulls) * repeats if kind == COPIES else 0.0
    return LoweringWork(steps, copies, float(barriers.timeline.total))


def _most_messages(schedule: Schedule, pull: bool = False) -> float:
    """Count the messages of the rank that sends (with `pull`: receives) most in each step, summed over the steps.

    >>> from antiphon.core.example import star
    >>> _most_messages(star())  # in step 1 rank 0 sends to two others
    3.0
    """
    table = messages(schedule)
    between_ranks = table.src != table.dst
    step, rank = (
        table.step[between_ranks].astype(np.int64),
        (table.dst if pull else table.src)[between_ranks].astype(np.int64),
    )
    pairs, counts = np.unique(step * schedule.collective.ranks + rank, return_counts=True)
    largest = np.zeros(schedule.steps, np.int64)
    np.maximum.at(largest, pairs // schedule.collective.ranks, counts)
    return float(largest.sum())


def costs_on(gpu: CallFigures) -> dict[str, LoweringCosts]:
    """Return the costs of every lowering that follow from the figures of NCCL's calls on these GPUs."""
    if LL not in gpu.hop or SIMPLE not in gpu.hop:
        return {}
    launch, flight, share = gpu.launch, gpu.hop[LL], gpu.share[SIMPLE]
    costs = {
        KERNEL: LoweringCosts(start=launch, step=gpu.hop[SIMPLE], copy=0.0, share=share),
        STEPS: LoweringCosts(start=0.0, step=launch + flight, copy=0.0, share=share),
    }
    if gpu.copies is not None:
        costs[COPIES] = LoweringCosts(start=launch, step=launch, copy=gpu.copies.latency, share=gpu.copies.share)
    pulled = {
        kind + PULL: replace(cost, step=cost.step + flight, share=cost.share / PUSH_OVER_PULL)
        for kind, cost in costs.items()
    }
    return costs | pulled


def lowering(
    schedule: Schedule,
    topology: Topology,
    *,
    profile: Profile | str | Path | None = None,
    kind: str = "",
    gpu: str = "",
) -> Predictor:
    """Price the lowering `kind`, or at each size the fastest of those whose costs are known.

    The costs are the profile's (`antiphon fit lowering` finds them), or else those of the machine's GPUs, or of
    the generation that `gpu` names. Raises Unsupported if there are none, if a message leaves its host, or if switches
    reduce.
    """
    profile = as_profile(profile)
    check_lowering(kind, "kind of lowering")
    host = node_of_ranks(topology)
    if bool((host[schedule.src] != host[schedule.dst]).any()):
        raise Unsupported("model lowering: kernels and copy engines reach GPUs of one host only; use --model calls")
    if schedule.joint is not None and bool((schedule.joint >= 0).any()):
        raise Unsupported("model lowering: has no costs of switches that multicast or reduce; use --model calls")
    if profile == Profile():
        gpu_costs = library_here(topology, gpu=gpu).costs
        figures: CallFigures | None = gpu_costs.gpu
        costs: Mapping[str, LoweringCosts] = costs_on(gpu_costs.gpu)
        basis = f"{gpu_costs.brief()}; {ASSUMED}"
    else:
        costs, figures, basis = profile.lowerings, None, profile_basis(profile)
    if not costs or (kind and kind not in costs):
        raise Unsupported(
            f"model lowering: {basis.partition(';')[0]}: no costs of {kind or 'any lowering'}"
            + (f"; it has {', '.join(costs)}" if costs else "")
            + "; antiphon fit lowering finds them"
        )
    barriers = Barriers(schedule, profile.on(topology))
    chosen = {name: cost for name, cost in costs.items() if kind in ("", name)}
    return _Lowered(chosen, {name: count_work(schedule, barriers, name) for name in chosen}, barriers, figures, basis)


@dataclass(frozen=True, eq=False)
class _Lowered:
    """A prepared schedule: costs and work by lowering. `gpu`: the GPUs, for their ramp; None: unknown."""

    costs: Mapping[str, LoweringCosts]
    work: Mapping[str, LoweringWork]
    barriers: Barriers
    gpu: CallFigures | None
    basis: str

    def __call__(self, nbytes: int) -> Prediction:
        by_name = {name: self._terms(name, nbytes) for name in self.costs}
        name = min(by_name, key=lambda name: sum(by_name[name].values()))
        terms = by_name[name]
        greatest = max(terms, key=lambda term: terms[term])
        steps = f"{self.work[name].steps:.0f} steps by {name}"
        bottleneck = {term: f"{term}: {text}" for term, text in CALL_TERMS.items()}
        bottleneck |= {"steps": steps, "copies": f"{self.work[name].copies:.0f} copies"}
        return Prediction(
            sum(terms.values()), terms, bottleneck.get(greatest, self.barriers.busiest), LazyPath(self.barriers.path),
            f"lowering {name}", self.basis,
        )  # fmt: skip

    def _terms(self, name: str, nbytes: int) -> dict[str, float]:
        """Return the terms of a lowering; copy engines have no ramp."""
        terms = self.work[name].seconds(self.costs[name], nbytes)
        if self.gpu is not None and not name.startswith(COPIES):
            terms["ramp"] = self.gpu.ramp_seconds(terms["bandwidth"])
        return terms
