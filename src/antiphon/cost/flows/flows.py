"""The flow-level simulator: concurrent messages share links max-min fairly, and incast slows them down.

Each message is a flow over the links of its route. While the set of flows is constant every flow has a constant rate;
rates change only when a flow begins or ends. So the simulation jumps from one such moment to the next.

    tables.py   dependencies as counters: what a message reads, what a version waits for, which links a message uses
    run.py      the event loop: flow ends, latency expires, a rank finishes combining
    rates.py    max-min fair rates by progressive filling, recomputed only for flows that a change can reach
    _path.py    the critical path back from the last event: seconds of latency, bandwidth, incast and combining

Example: two flows of 1 MB share a link of 1 GB/s, and one of them also crosses a link of 0.25 GB/s. Max-min: the
second is limited to 0.25, the first gets the rest, 0.75. The first ends after 1.33 ms; the second goes on at 0.25 and
ends after 4 ms.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from antiphon.core.columns import Ints
from antiphon.core.messages import resource_name
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import expand_separately
from antiphon.cost.busy import Log, Utilisation
from antiphon.cost.flows._path import Walk
from antiphon.cost.flows.run import Moments, Run
from antiphon.cost.flows.tables import FlowTables, prepare_tables
from antiphon.cost.pieces import within_pieces
from antiphon.cost.prediction import Prediction, Predictor
from antiphon.cost.profile import Profile, as_profile
from antiphon.cost.steps import latency_name
from antiphon.cost.trace import Events


def flows(schedule: Schedule, topology: Topology, *, profile: Profile | str | Path | None = None) -> Predictor:
    """Simulate every message as a flow: it waits for what it reads, then for the latency of its route, then its bytes
    move.

    - All flows that cross a link or shared limit at the same time share it max-min fairly: no rate can grow except at
      the cost of one that is no greater. Rates change when a flow begins or ends.
    - A link gives 1 / (beta + epsilon * max(f - w_t, 0)) bytes per second while f flows cross it to one receiver;
      epsilon and w_t by kind of link from the profile's `incast`; a shared limit has that of its links.
    - Waits follow from the versions of cells (docs/schedule.md), never from steps, and messages of one connection (src,
      dst, route) move one after another, in the order of steps. Nothing else separates flows of different steps. Every
      piece of a message is a message of its own: two that meet in one step do not wait for each other's arrival.
    - A joint (docs/schedule.md) is one flow on all links of its tree, at one rate. It counts as one sender to one
      receiver, the ends of its first row; what it combined on its way arrives, and is combined with the cell's value,
      once.
    - A rank combines what arrives by gamma and delta of the profile, everything that meets in a cell at once: f values
      of a byte take f - 1 additions and f + 1 memory accesses. It does one such piece of work after another.

    Never below the bounds: no link ever carries more than its bandwidth, and each message pays its latency after what
    it waited for. Prepared in O(E log E) for E = rows times links per route; each size is simulated anew, in
    O(concurrent flows) NumPy work for each moment at which flows begin or end. Pieces are expanded, up to 2^17 rows in
    total; beyond that fewer, larger ones are simulated, and `note` states it.
    """
    loaded_profile = as_profile(profile)
    profiled_topology = loaded_profile.on(topology)
    reduced, note = within_pieces(schedule)
    fine, steps = expand_separately(reduced)
    return Flows(fine.sorted(), steps, profiled_topology, loaded_profile, note)


@dataclass(frozen=True, eq=False)
class FlowEvents(Events):
    """Turns on one link overlap here: `busy` has the load of each link."""

    busy: Utilisation


@dataclass(eq=False)
class Flows:
    """A schedule prepared for any size; predictions are cached."""

    schedule: Schedule
    steps: Ints  # per step of the expanded schedule, the pipelined step to report
    topology: Topology
    profile: Profile
    note: str = ""
    known: dict[int, Prediction] = field(default_factory=dict)

    @cached_property
    def tables(self) -> FlowTables:
        return prepare_tables(self.schedule, self.topology, self.profile, self.steps)

    def __post_init__(self) -> None:
        self.tables  # noqa: B018 (faults of the schedule show when it is prepared)

    def __call__(self, nbytes: int) -> Prediction:
        if nbytes not in self.known:
            self.known[nbytes] = self._predict_size(nbytes)
        return self.known[nbytes]

    def run(self, nbytes: int) -> Moments:
        """Return when everything happens."""
        return Run(self.tables, nbytes).run_events()

    def utilisation(self, nbytes: int) -> Utilisation:
        """Return how busy every link and limit is over time."""
        log = Log()
        Run(self.tables, nbytes, log).run_events()
        return log.runs(self.topology)

    def events(self, nbytes: int) -> FlowEvents:
        """Return when every message is in transit; its turn on each link lasts as long as its bytes move."""
        log, user = Log(), self.tables.paths.use_message
        moments = Run(self.tables, nbytes, log).run_events()
        turns = moments.begin[user], moments.sent[user]
        return FlowEvents(self.tables.paths, moments.ready, moments.sent, *turns, log.runs(self.topology))

    def _predict_size(self, nbytes: int) -> Prediction:
        walk = Walk(self.tables, self.run(nbytes)).trace_back()
        terms = dict(walk.terms)
        return Prediction(sum(terms.values()), terms, self._name_bottleneck(walk, terms), walk.hops(), self.note)

    def _name_bottleneck(self, walk: Walk, terms: dict[str, float]) -> str:
        greatest = max(terms, key=lambda term: terms[term])
        if not terms[greatest]:
            return "nothing takes time"
        if greatest == "alpha":
            return latency_name(walk.latencies, walk.slowest).replace("step", "message")
        if greatest in ("gamma", "delta"):
            return f"rank {max(walk.ranks, key=lambda rank: walk.ranks[rank])}: combining what arrives"
        named = resource_name(self.topology, max(walk.holding, key=lambda resource: walk.holding[resource]))
        return f"{named}: incast" if greatest == "epsilon" else named
