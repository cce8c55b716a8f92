"""GenModel: alpha, beta and gamma, plus the costs of incast and memory access (GenModel paper, section 3).

Steps are barriers. work.py computes, as piecewise constant functions over steps, what each link carries, how many ranks
send to one receiver over it, and what each rank combines; runs.py has the operations on such functions. This file takes
the maximum per step: the slowest message, the busiest link, the busiest rank. All maxima are independent of the size,
so a schedule's time is a constant plus nbytes times a constant per term.

Example: 8 ranks send S bytes each to rank 0 over a switch, w_t = 4: the link into rank 0 takes 8 S (beta + 4 epsilon)
if all 8 count as senders, and rank 0 then reads 9 S and writes S: 10 S delta, 8 S gamma.
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
PLAIN = "no incast, gamma or delta: the profile states none, so latency and bandwidth are all"


def genmodel(schedule: Schedule, topology: Topology, *, profile: Profile | str | Path | None = None) -> Predictor:
    """Price steps as barriers. A step takes, one after another,

    - alpha: the latency of its slowest message, summed over the links of its route;
    - beta and epsilon: its busiest link or shared limit, load * (1 / bandwidth + epsilon * max(w - w_t, 0)), with w the
      greatest number of ranks that send to one receiver over that link or limit at once; epsilon and w_t by kind of
      link;
    - gamma and delta: its busiest rank; combining f values of a byte at once, its own included, takes f - 1 additions
      and f + 1 memory accesses.

    Equation 11 of the paper, for any schedule; named plans get the same times as in `genmodel_forms`. Pieces are not
    expanded: in each pipelined step the same holds for all messages in progress.

    Prepared once in O(E log E) for E = rows times links per route; then any size in O(1).
    """
    loaded_profile = as_profile(profile)
    profiled_topology = loaded_profile.on(topology)
    note = "" if loaded_profile.incast or loaded_profile.gamma or loaded_profile.delta else PLAIN
    return _Busy(Work(schedule, profiled_topology, loaded_profile)).predictor(note)


def alpha_beta_gamma(
    schedule: Schedule, topology: Topology, *, profile: Profile | str | Path | None = None
) -> Predictor:
    """GenModel without its two terms: the profile's incast and delta are left out (section 2.2, Table 1)."""
    plain_profile = replace(as_profile(profile), incast={}, delta=0.0)
    return _Busy(Work(schedule, plain_profile.on(topology), plain_profile)).predictor("")


@dataclass(frozen=True, eq=False)
class _Busy:
    """The bottlenecks of every segment (a run of steps in which the same messages are in progress)."""

    work: Work

    @cached_property
    def message(self) -> Longs:
        """Per segment the message with the greatest latency."""
        span = self.work.segments
        return greatest_per_segment(span.low, span.high, self.work.paths.alpha, len(span))

    @cached_property
    def carried(self) -> tuple[Floats, Floats]:
        """Seconds per byte of nbytes of the runs of `loads`: by bandwidth, and by incast."""
        return self.work.carried_loads()

    @cached_property
    def run(self) -> Longs:
        """Per segment the run of `loads` that takes longest."""
        loads, (beta, epsilon) = self.work.loads, self.carried
        return greatest_per_segment(loads.low, loads.high, beta + epsilon, len(self.work.segments))

    @cached_property
    def computed(self) -> tuple[Floats, Floats]:
        """Seconds per byte of nbytes of the runs of `combined`: by additions, and by memory access."""
        additions, accesses = self.work.combined.values
        return additions * self.work.profile.gamma, accesses * self.work.profile.delta

    @cached_property
    def rank(self) -> Longs:
        """Per segment the run of `combined` that takes longest."""
        if not (self.work.profile.gamma or self.work.profile.delta):
            return np.full(len(self.work.segments), -1, np.int64)
        combined, (gamma, delta) = self.work.combined, self.computed
        return greatest_per_segment(combined.low, combined.high, gamma + delta, len(self.work.segments))

    def over_steps(self, value: Floats, which: Longs) -> Floats:
        """Return the bottleneck's value in each segment, times its number of steps."""
        spent: Floats = np.zeros(len(which))
        used = np.flatnonzero(which >= 0)
        spent[used] = value[which[used]] * self.work.segments.length[used]
        return spent

    def coefficients(self) -> dict[str, float]:
        """Return alpha in seconds, and all other terms in seconds per byte of nbytes."""
        values = {"alpha": (self.work.paths.alpha, self.message)}
        values |= {name: (value, self.run) for name, value in zip(("beta", "epsilon"), self.carried, strict=True)}
        if (self.rank >= 0).any():
            values |= {name: (value, self.rank) for name, value in zip(("gamma", "delta"), self.computed, strict=True)}
        return dict.fromkeys(TERMS, 0.0) | {
            name: math.fsum(self.over_steps(value, which).tolist()) for name, (value, which) in values.items()
        }

    def names(self) -> Mapping[str, str]:
        """Return the bottleneck of each term."""
        steps = self.work.segments.length[self.message >= 0]
        slowest = self.work.paths.alpha[self.message[self.message >= 0]].max(initial=0.0)
        rank = self._busiest_rank()
        return {
            "alpha": latency_name(int(steps.sum()), float(slowest)),
            "beta": self._busiest_resource(),
            "epsilon": self._busiest_resource(),
            "gamma": rank,
            "delta": rank,
        }

    def _busiest_resource(self) -> str:
        """Return the link or limit that is the bottleneck for the longest total time, and its incast, if it has any."""
        loads, used = self.work.loads, np.flatnonzero(self.run >= 0)
        if not len(used):
            return "no link"
        beta, epsilon = self.carried
        # Sum over segments the time for which each resource is the bottleneck; name the greatest.
        spent = np.bincount(loads.key[self.run[used]], weights=self.over_steps(beta + epsilon, self.run)[used])
        resource = int(spent.argmax())
        runs = self.run[used][loads.key[self.run[used]] == resource]
        named = resource_name(self.work.topology, resource)
        if not epsilon[runs].any():
            return named
        return f"{named}: incast of up to {int(loads.values[1][runs].max())} senders to one receiver"

    def _busiest_rank(self) -> str:
        """Return the rank that is the bottleneck of combining for the longest total time."""
        combined, used = self.work.combined, np.flatnonzero(self.rank >= 0)
        if not len(used):
            return "no rank"
        gamma, delta = self.computed
        spent = np.bincount(combined.key[self.rank[used]], weights=self.over_steps(gamma + delta, self.rank)[used])
        return f"rank {int(spent.argmax())}: combining what arrives"

    def path(self) -> list[Hop]:
        """Return per segment a message over its busiest link or limit. O(E)."""
        sent, span, loads = self.work.paths, self.work.segments, self.work.loads
        out = []
        # Index uses by resource, so that the messages over the bottleneck are one slice.
        at = np.argsort(sent.use_resource, kind="stable")
        resource, message = sent.use_resource[at], sent.use_message[at]
        for segment in np.flatnonzero(self.run >= 0).tolist():
            key = loads.key[self.run[segment]]
            candidates = message[np.searchsorted(resource, key) : np.searchsorted(resource, key, side="right")]
            at = candidates[(span.low[candidates] <= segment) & (segment < span.high[candidates])].min()
            out.append((int(span.begin[segment]), int(sent.messages.src[at]), int(sent.messages.dst[at])))
        return out

    def predictor(self, note: str) -> Predictor:
        """Return the predictor."""
        # All maxima are independent of the size, so a prediction is alpha + nbytes times a constant per term.
        per_byte = self.coefficients()
        alpha = per_byte.pop("alpha")
        names, path = self.names(), LazyPath(self.path)

        def predict(nbytes: int) -> Prediction:
            terms = {"alpha": alpha, **{name: seconds * nbytes for name, seconds in per_byte.items()}}
            largest = max(terms, key=lambda name: terms[name])
            named = names[largest] if terms[largest] else "nothing takes time"
            return Prediction(sum(terms.values()), terms, named, path, note)

        return predict
