"""The flow-level simulator: concurrent messages share links max-min fairly, and incast slows them down.

Each message is a flow over the links of its route. Rates change only when a flow begins or ends, so the simulation
jumps from one such moment to the next.

    tables.py   dependencies as counters: what a message reads, what a version (the value of a cell between two writes)
                waits for, which links a message uses
    run.py      the event loop: flow ends, latency expires, a rank finishes combining
    rates.py    max-min fair rates by progressive filling, recomputed only for flows that a change can reach
    _path.py    the critical path back from the last event: seconds of latency, bandwidth, incast and combining

Example: flows A and B of 1 MB share a link of 1 GB/s, and B also crosses a link of 0.25 GB/s. So B gets 0.25 GB/s and
A the rest, 0.75 GB/s. A ends after 1.33 ms; B goes on at 0.25 GB/s and ends after 4 ms.
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
from antiphon.cost.busy import LoadLog, Utilisation
from antiphon.cost.flows._path import Walk
from antiphon.cost.flows.run import FlowSimulation, Moments
from antiphon.cost.flows.tables import FlowTables, prepare_tables
from antiphon.cost.pieces import limit_pieces
from antiphon.cost.prediction import Prediction, Predictor
from antiphon.cost.profile import Profile, as_profile
from antiphon.cost.steps import latency_name
from antiphon.cost.trace import Events


def flows(schedule: Schedule, topology: Topology, *, profile: Profile | str | Path | None = None) -> Predictor:
    """Prepare a schedule for flow-level simulation; return its predictor.

    Every message is a flow: it waits for what it reads, then for the latency of its route, then its bytes move.

    - All flows that cross a link or shared limit at the same time share it max-min fairly: no rate can grow except at
      the cost of one that is no greater. Rates change when a flow begins or ends.
    - A link carries 1 / (beta + epsilon * max(f - w_t, 0)) bytes per second while f flows cross it to one receiver.
      beta: seconds per byte of the link. w_t: senders to one receiver that cost nothing. epsilon: seconds per byte for
      each further sender. The profile's `incast` has both by kind of link; a shared limit has those of its links.
    - A message waits for the versions that it reads (docs/schedule.md) and for the previous message of its connection
      (src, dst, route). It does not wait for the other messages of an earlier step: there is no barrier between steps.
      Every piece of a message is a message of its own: pieces that are sent in one step wait for each other only if
      they use the same connection.
    - A joint (docs/schedule.md) is one flow on all links of its tree, at one rate. For incast it counts as one flow
      from the sender to the receiver of its first row. Its result arrives once, and is combined once with the cell's
      value.
    - A rank combines all values that meet in a cell at once. For f values, every byte takes f - 1 additions, gamma
      seconds each, and f + 1 memory accesses, delta seconds each (both from the profile). A rank combines what
      meets at one moment before it begins with what meets later.

    No prediction is below the lower bound: no link ever carries more than its bandwidth, and the latency of a message
    begins after what it waited for. Prepared in O(E log E) for E = rows times links per route; each size is simulated
    anew, in O(concurrent flows) NumPy work for each moment at which flows begin or end. Pieces are expanded, up to 2^17
    rows in total; beyond that fewer, larger pieces are simulated, and `note` states it.
    """
    loaded_profile = as_profile(profile)
    profiled_topology = loaded_profile.on(topology)
    simulable, note = limit_pieces(schedule)
    expanded, reported_step = expand_separately(simulable)
    return Flows(expanded.sorted(), reported_step, profiled_topology, loaded_profile, note)


@dataclass(frozen=True, eq=False)
class FlowEvents(Events):
    """Times of messages. The times at which messages use one link may overlap, so `busy` has the load of each link."""

    busy: Utilisation


@dataclass(eq=False)
class Flows:
    """A schedule prepared for any size; predictions are cached."""

    schedule: Schedule
    reported_step: Ints  # per step of the expanded schedule: the step of the caller's schedule that reports name
    topology: Topology
    profile: Profile
    note: str = ""
    cached: dict[int, Prediction] = field(default_factory=dict)  # by nbytes

    @cached_property
    def tables(self) -> FlowTables:
        """Return the tables of the simulation, made once."""
        return prepare_tables(self.schedule, self.topology, self.profile, self.reported_step)

    def __post_init__(self) -> None:
        self.tables  # noqa: B018 (made now, so that a fault of the schedule is reported when it is prepared)

    def __call__(self, nbytes: int) -> Prediction:
        if nbytes not in self.cached:
            self.cached[nbytes] = self._predict_size(nbytes)
        return self.cached[nbytes]

    def run(self, nbytes: int) -> Moments:
        """Simulate one size; return when every message and every version is complete."""
        return FlowSimulation(self.tables, nbytes).run_events()

    def utilisation(self, nbytes: int) -> Utilisation:
        """Return how busy every link and limit is over time."""
        log = LoadLog()
        FlowSimulation(self.tables, nbytes, log).run_events()
        return log.utilisation(self.topology)

    def events(self, nbytes: int) -> FlowEvents:
        """Return when every message is in transit. It uses each link of its route for as long as its bytes move."""
        log, message_of_use = LoadLog(), self.tables.paths.use_message  # a use: one message on one link or limit
        moments = FlowSimulation(self.tables, nbytes, log).run_events()
        # `ready`: all that the message reads is written. `begin`: after its latency, its bytes begin to move. `sent`:
        # its last byte has arrived.
        use_begin, use_end = moments.begin[message_of_use], moments.sent[message_of_use]
        load = log.utilisation(self.topology)
        return FlowEvents(self.tables.paths, moments.ready, moments.sent, use_begin, use_end, load)

    def _predict_size(self, nbytes: int) -> Prediction:
        """Return the prediction for a size: the terms are those along the critical path."""
        walk = Walk(self.tables, self.run(nbytes)).trace_back()
        terms = dict(walk.terms)
        return Prediction(sum(terms.values()), terms, self._name_bottleneck(walk, terms), walk.hops(), self.note)

    def _name_bottleneck(self, walk: Walk, terms: dict[str, float]) -> str:
        """Return the bottleneck in words: what causes the greatest term of the critical path."""
        greatest = max(terms, key=lambda term: terms[term])
        if not terms[greatest]:
            return "nothing takes time"
        if greatest == "alpha":
            return latency_name(walk.latency_count, walk.greatest_latency, terms["alpha"], noun="message")
        if greatest in ("gamma", "delta"):
            return f"rank {max(walk.combining, key=lambda rank: walk.combining[rank])}: combining what arrives"
        # `delay`: seconds in which a link or limit set a message's rate, those of bandwidth (beta) and incast (epsilon)
        # together
        name = resource_name(self.topology, max(walk.delay, key=lambda resource: walk.delay[resource]))
        return f"{name}: incast" if greatest == "epsilon" else name
