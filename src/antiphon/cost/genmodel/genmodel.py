"""GenModel: latency, bandwidth and additions, plus the costs of incast and memory access (GenModel paper, section 3).

    alpha    seconds of latency per message
    beta     seconds per byte on a link
    epsilon  further seconds per byte on a link for each sender to one receiver beyond the first w_t (incast)
    gamma    seconds per byte added
    delta    seconds per byte read from or written to memory while combining

Steps are separated by barriers. work.py computes, as piecewise constant functions over steps, what each link carries,
the number of ranks that send to one receiver over it, and what each rank combines; runs.py has the operations
on such functions. This file takes the maximum per step: the slowest message, the busiest link, the busiest rank. All
maxima are independent of the size, so a schedule's time is a constant plus nbytes times a constant per term.

Example: 8 other ranks send S bytes each to rank 0 over a switch, and w_t = 4. With 8 senders the link into rank 0 takes
8 S (beta + (8 - 4) epsilon). Rank 0 then adds 8 S, reads 9 S, its own value included, and writes S: 8 S gamma + 10 S
delta.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from antiphon.core.columns import Floats, Longs
from antiphon.core.messages import resource_name
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.cost.genmodel.runs import greatest_per_segment
from antiphon.cost.genmodel.work import Work
from antiphon.cost.prediction import Hop, LazyPath, Prediction, Predictor
from antiphon.cost.profile import Profile, as_profile
from antiphon.cost.steps import latency_name

# Terms of a prediction: latency, bytes, incast, additions, memory access
TERMS = ("alpha", "beta", "epsilon", "gamma", "delta")
NO_EXTRA_TERMS = "no incast, gamma or delta: the profile states none, so only latency and bandwidth are counted"


def genmodel(schedule: Schedule, topology: Topology, *, profile: Profile | str | Path | None = None) -> Predictor:
    """Price a schedule whose steps are separated by barriers. The time of a step is the sum of

    - alpha: the latency of its slowest message, summed over the links of its route;
    - beta and epsilon: the time of its busiest link or shared limit, load * (1 / bandwidth + epsilon * max(w - w_t,
      0)), with w the greatest number of ranks that send to one receiver over that link or limit at once; epsilon and
      w_t are per kind of link;
    - gamma and delta: the time of its busiest rank. Combining f inputs, the rank's own one included, takes f - 1
      additions and f + 1 memory accesses per byte.

    This is equation 11 of the paper, for any schedule; the algorithms of the paper (rings, parameter servers) get the
    same times as by the closed forms in forms.py. A message of k pieces is in progress in k steps, with one piece in
    each; every step is priced as above, over all messages in progress.

    `profile`: the figures of incast, gamma and delta, and others that replace the topology's nominal ones; None: there
    are none. Prepared once in O(E log E) for E = rows times links per route; then any size in O(1).
    """
    loaded_profile = as_profile(profile)
    profiled_topology = loaded_profile.on(topology)
    note = "" if loaded_profile.incast or loaded_profile.gamma or loaded_profile.delta else NO_EXTRA_TERMS
    return _Bottlenecks(Work(schedule, profiled_topology, loaded_profile)).predictor(note)


def alpha_beta_gamma(
    schedule: Schedule, topology: Topology, *, profile: Profile | str | Path | None = None
) -> Predictor:
    """Price by latency, bandwidth and additions only: GenModel without incast and delta (section 2.2, Table 1)."""
    plain_profile = replace(as_profile(profile), incast={}, delta=0.0)
    return _Bottlenecks(Work(schedule, plain_profile.on(topology), plain_profile)).predictor(note="")


@dataclass(frozen=True, eq=False)
class _Bottlenecks:
    """The bottlenecks of every segment: a stretch of steps in which the same messages are in progress (runs.py).

    `work.loads` (per link or limit) and `work.combined` (per rank) are piecewise constant functions over segments. A
    run is one of their constant parts: the link, limit or rank, its segments low to high - 1, and its values. The
    bottleneck of a segment is the index of a message or run, -1 if there is none.
    """

    work: Work

    @cached_property
    def slowest_message(self) -> Longs:
        """Per segment the message with the greatest latency."""
        segments = self.work.segments
        return greatest_per_segment(segments.low, segments.high, self.work.paths.alpha, len(segments))

    @cached_property
    def load_seconds(self) -> tuple[Floats, Floats]:
        """For each run of `loads` its seconds per byte of the call's size (nbytes): by bandwidth, and by incast."""
        return self.work.price_loads()

    @cached_property
    def busiest_load(self) -> Longs:
        """Per segment the run of `loads` that takes longest."""
        loads, (beta, epsilon) = self.work.loads, self.load_seconds
        return greatest_per_segment(loads.low, loads.high, beta + epsilon, len(self.work.segments))

    @cached_property
    def combine_seconds(self) -> tuple[Floats, Floats]:
        """For each run of `combined` its seconds per byte of nbytes: by additions, and by memory access."""
        additions, accesses = self.work.combined.values
        return additions * self.work.profile.gamma, accesses * self.work.profile.delta

    @cached_property
    def busiest_combine(self) -> Longs:
        """Per segment the run of `combined` that takes longest."""
        if not (self.work.profile.gamma or self.work.profile.delta):
            return np.full(len(self.work.segments), -1, np.int64)
        combined, (gamma, delta) = self.work.combined, self.combine_seconds
        return greatest_per_segment(combined.low, combined.high, gamma + delta, len(self.work.segments))

    def sum_over_steps(self, value: Floats, bottleneck: Longs) -> Floats:
        """Return per segment the value of its bottleneck, summed over the segment's steps; 0 if it has none."""
        spent: Floats = np.zeros(len(bottleneck))
        used = np.flatnonzero(bottleneck >= 0)
        spent[used] = value[bottleneck[used]] * self.work.segments.length[used]
        return spent

    def coefficients(self) -> dict[str, float]:
        """Return alpha in seconds, and all other terms in seconds per byte of nbytes."""
        beta, epsilon = self.load_seconds
        values = {
            "alpha": (self.work.paths.alpha, self.slowest_message),
            "beta": (beta, self.busiest_load),
            "epsilon": (epsilon, self.busiest_load),
        }
        if (self.busiest_combine >= 0).any():
            gamma, delta = self.combine_seconds
            values |= {"gamma": (gamma, self.busiest_combine), "delta": (delta, self.busiest_combine)}
        return dict.fromkeys(TERMS, 0.0) | {
            name: math.fsum(self.sum_over_steps(value, bottleneck).tolist())
            for name, (value, bottleneck) in values.items()
        }

    def name_bottlenecks(self, total_latency: float) -> Mapping[str, str]:
        """Return the bottleneck of each term. `total_latency`: of all steps, in seconds."""
        steps = self.work.segments.length[self.slowest_message >= 0]
        slowest = self.work.paths.alpha[self.slowest_message[self.slowest_message >= 0]].max(initial=0.0)
        rank = self._busiest_rank()
        return {
            "alpha": latency_name(int(steps.sum()), float(slowest), total_latency),
            "beta": self._busiest_resource(),
            "epsilon": self._busiest_resource(),
            "gamma": rank,
            "delta": rank,
        }

    def _busiest_resource(self) -> str:
        """Return the link or limit that is the bottleneck for the longest total time, and its incast, if it has any."""
        loads, used = self.work.loads, np.flatnonzero(self.busiest_load >= 0)
        if not len(used):
            return "no link"
        beta, epsilon = self.load_seconds
        # Sum over segments the time for which each resource is the bottleneck; name the greatest.
        busiest = self.busiest_load[used]
        spent = np.bincount(loads.key[busiest], weights=self.sum_over_steps(beta + epsilon, self.busiest_load)[used])
        resource = int(spent.argmax())
        runs = busiest[loads.key[busiest] == resource]
        name = resource_name(self.work.topology, resource)
        if not epsilon[runs].any():
            return name
        _, senders = loads.values
        return f"{name}: incast of up to {int(senders[runs].max())} senders to one receiver"

    def _busiest_rank(self) -> str:
        """Return the rank that is the bottleneck of combining for the longest total time."""
        combined, used = self.work.combined, np.flatnonzero(self.busiest_combine >= 0)
        if not len(used):
            return "no rank"
        gamma, delta = self.combine_seconds
        ranks = combined.key[self.busiest_combine[used]]
        spent = np.bincount(ranks, weights=self.sum_over_steps(gamma + delta, self.busiest_combine)[used])
        return f"rank {int(spent.argmax())}: combining what arrives"

    def path(self) -> list[Hop]:
        """Return the critical path: per segment (step, src, dst) of a message over its busiest link or limit. O(E)."""
        paths, segments, loads = self.work.paths, self.work.segments, self.work.loads
        hops = []
        # Index uses by resource, so that the messages over the bottleneck are one slice.
        order = np.argsort(paths.use_resource, kind="stable")
        resource, message = paths.use_resource[order], paths.use_message[order]
        for segment in np.flatnonzero(self.busiest_load >= 0).tolist():
            key = loads.key[self.busiest_load[segment]]
            candidates = message[np.searchsorted(resource, key) : np.searchsorted(resource, key, side="right")]
            # `low` and `high` are per message, `begin` is per segment.
            in_progress = (segments.low[candidates] <= segment) & (segment < segments.high[candidates])
            first = candidates[in_progress].min()
            hops.append((int(segments.begin[segment]), int(paths.messages.src[first]), int(paths.messages.dst[first])))
        return hops

    def predictor(self, note: str) -> Predictor:
        """Return the predictor: all maxima are independent of the size, so its terms are linear in nbytes."""
        per_byte = self.coefficients()
        alpha = per_byte.pop("alpha")
        names, path = self.name_bottlenecks(alpha), LazyPath(self.path)

        def predict(nbytes: int) -> Prediction:
            terms = {"alpha": alpha, **{name: seconds * nbytes for name, seconds in per_byte.items()}}
            largest = max(terms, key=lambda name: terms[name])
            bottleneck = names[largest] if terms[largest] else "nothing takes time"
            return Prediction(sum(terms.values()), terms, bottleneck, path, note)

        return predict
