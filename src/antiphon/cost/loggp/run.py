"""Simulate a schedule under LogGP for any size, and explain the time by its critical path of messages.

`Simulation` is the predictor of model loggp. It turns the profile's parameters into costs per *class* of messages
(those with equal size and level). It chooses one of three loops: event_loop for ports and NICs (network cards),
processors for cpu=shared, passes.simulate_free if nothing can queue. It splits the critical path into terms: overhead
(o_s, o_r), latency, bandwidth, waiting for ports and NICs, combining.

Example: two messages one after the other, each with o_s = o_r = 1 us, L = 2 us, and 3 us for its bytes. Overhead is 4
us, latency 4 us, bandwidth 6 us, in total 14 us.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Floats, Ints, Longs
from antiphon.core.messages import Messages, Paths, resource_name
from antiphon.core.routes import NO_ROUTES
from antiphon.core.topology import Topology
from antiphon.cost.figures import FIGURES
from antiphon.cost.loggp import state
from antiphon.cost.loggp.compiled import read_only
from antiphon.cost.loggp.event_loop import simulate
from antiphon.cost.loggp.options import Options
from antiphon.cost.loggp.passes import max_simultaneous, simulate_free
from antiphon.cost.loggp.processors import simulate_processors
from antiphon.cost.loggp.work import SentWork
from antiphon.cost.prediction import Hop, LazyPath, Prediction
from antiphon.cost.profile import Profile
from antiphon.cost.steps import latency_name
from antiphon.cost.trace import Events

MAX_SENDERS = 64  # senders per rank up to which `max_simultaneous` counts
MAX_LOGGED_MESSAGES = 2**20  # up to this many messages a prediction has terms and a critical path
MAX_PORT_CLASSES = 2**22  # ranks times classes up to which `_sent_by_class` counts messages
SLACK = 1e-9  # relative; greater than the rounding errors of a lower bound
WHOLE_TOLERANCE = 1e-9  # relative, of bytes: sizes this near to whole numbers are whole


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of a simulation."""

    seconds: float
    last: int  # the message done last, -1 if there is none
    done: int  # number of messages done
    log: state.Log  # empty if nothing was recorded
    ports_in_use: int = 0  # ports still in use at the end, for checks
    received: float = 0.0  # bytes received, counted only for packets, for checks


@dataclass(eq=False)
class Simulation:
    """A schedule prepared for any size; results are cached."""

    topology: Topology
    profile: Profile
    work: SentWork
    options: Options
    note: str = ""
    local: tuple[float, str] = (0.0, "")  # local work at the end: seconds per byte of nbytes, and its name
    cached: dict[int, Prediction] = field(default_factory=dict)  # by nbytes
    unlogged: dict[int, Outcome] = field(default_factory=dict)  # by nbytes: simulations without a log

    def __call__(self, nbytes: int) -> Prediction:
        if nbytes not in self.cached:
            self.cached[nbytes] = self._predict_size(nbytes)
        return self.cached[nbytes]

    @property
    def is_large(self) -> bool:
        """Return whether predictions have no critical path because there are too many messages."""
        return len(self.work) > MAX_LOGGED_MESSAGES

    def takes_less(self, nbytes: int, seconds: float) -> bool:
        """Return whether the predicted time at a size is less than `seconds`.

        If it is not, this costs less than a prediction: lower bounds come first, and the simulation stops at `seconds`.
        """
        local_per_byte, _ = self.local
        local = local_per_byte * nbytes
        if nbytes in self.cached:
            return self.cached[nbytes].seconds < seconds
        # work.capacity: seconds per byte of nbytes for which the busiest link is busy
        if self.work.capacity * nbytes + local >= seconds or self._port_seconds(nbytes) + local >= seconds:
            return False
        outcome = self.run(nbytes, record=False, stop=(seconds - local) * (1 + SLACK))
        if self.is_large and math.isfinite(outcome.seconds):
            self.unlogged[nbytes] = outcome  # a prediction of this size then needs no further run
        return max(outcome.seconds, self.work.capacity * nbytes) + local < seconds

    def _port_seconds(self, nbytes: int) -> float:
        """Return a lower bound: the time for which the ports of the busiest rank are in use, or wait for g."""
        if not self.ports or self.options.processors or self.options.packets or self._sent_by_class is None:
            return 0.0
        cost, *_ = self.cost(nbytes)
        between_ranks = self.work.level >= 0  # messages within a rank take no port
        seconds = np.where(between_ranks, cost.gap + cost.flight, 0.0)
        busiest = max(float((counts * seconds).sum(axis=1).max(initial=0.0)) for counts in self._sent_by_class)
        # some port carries at least the average; the g behind its last message need not pass before the end
        return (busiest / self.ports - float(cost.gap.max(initial=0.0))) * (1 - SLACK)

    @cached_property
    def _sent_by_class(self) -> tuple[Longs, Longs] | None:
        """Return by rank and class the numbers of messages sent and received; None if the tables would be large."""
        sent, ranks, classes = self.work.sent, len(self.work.node), len(self.work.level)
        if ranks * classes > MAX_PORT_CLASSES:
            return None

        def count(end: Ints) -> Longs:
            key = end * np.int32(classes) + self.work.cost_class
            return np.bincount(key, minlength=ranks * classes).reshape(ranks, classes)

        return count(sent.src), count(sent.dst)

    # ---- the simulation ----

    @cached_property
    def _message_counts(self) -> tuple[Longs, Longs]:
        """Return per rank the number of messages that it sends, and that it receives."""
        sent, ranks = self.work.sent, len(self.work.node)
        return np.bincount(sent.src, minlength=ranks), np.bincount(sent.dst, minlength=ranks)

    @cached_property
    def ports(self) -> int:
        """Return the number of ports of every rank; 0 if a rank has as many ports as messages."""
        max_messages = max(int(counts.max(initial=0)) for counts in self._message_counts)
        radix = self.options.figures.device_radix
        return 0 if radix is None or radix >= max_messages else radix

    @cached_property
    def nics(self) -> int:
        """Return the number of NICs of every node; 0 if a node has as many NICs as messages."""
        inside = self.work.node >= 0
        node = self.work.node[inside]
        max_messages = max(int(np.bincount(node, counts[inside]).max(initial=0)) for counts in self._message_counts)
        radix = self.options.figures.node_radix
        return 0 if radix is None or radix >= max_messages else radix

    @cached_property
    def _max_simultaneous(self) -> tuple[int, int]:
        """Return the maximum number of simultaneous messages of any rank, and of any node with other nodes.

        They are known only if a rank ends each step before the next; otherwise both are greater than all limits.
        """
        sent, limit = self.work.sent, min(max(self.ports, self.nics, 1), MAX_SENDERS)
        if not self.work.in_rounds:
            return limit + 1, limit + 1
        step, src, dst, node = read_only(sent.step, sent.src, sent.dst, self.work.node)
        counts: tuple[int, int] = max_simultaneous(step, src, dst, node, limit)
        return counts

    def active_limits(self, cost: state.Cost) -> tuple[int, int]:
        """Return the numbers of ports and of NICs to simulate; 0 if no message can ever wait for one.

        No message waits if there are never more messages in progress than ports or NICs, and each port and NIC is idle
        again before its rank can send the next message, by more than rounding.
        """
        if not self.ports and not self.nics:
            return 0, 0
        # until_next_send: minimum time until a rank sends again; in_use: maximum time for which a port or NIC is in use
        # after its last byte. Only if the first is greater by more than the rounding errors of all additions (each at
        # most 2^-52 of the time so far; 2^-48 leaves a margin) is every port idle in time.
        between_ranks = self.work.level >= 0
        latency, send, receive, gap, flight, busy, _ = (values[between_ranks] for values in cost)
        until_next_send = sum(float(values.min(initial=np.inf)) for values in (latency, send, receive))
        in_use = max(float(gap.max(initial=0)), float((busy - flight).max(initial=0)))
        longest = sum(float(values.max(initial=0)) for values in (latency, send, receive, gap, flight, busy, cost.work))
        if until_next_send - in_use <= longest * len(self.work) * 2.0**-48:
            return self.ports, self.nics
        ranks, nodes = self._max_simultaneous
        return self.ports if ranks > self.ports else 0, self.nics if nodes > self.nics else 0

    def sizes(self, nbytes: int) -> Floats:
        """Return the bytes of a message of each class.

        Values that differ from a whole number only by floating-point error are rounded: a tiny excess would cost a
        whole packet more.
        """
        size = self.work.share * nbytes
        rounded = np.rint(size)
        return np.where(np.abs(size - rounded) <= WHOLE_TOLERANCE * np.maximum(size, 1.0), rounded, size)

    def figures(self, nbytes: int) -> dict[str, Floats]:
        """Return L, o_s, ... per class of messages. Messages within a rank have only gamma, of the innermost level."""
        size = self.sizes(nbytes)
        figures = {name: np.zeros(len(size)) for name in FIGURES}
        if self.profile.loggp is None:
            between_ranks = self.work.level >= 0
            figures["L"][between_ranks] = self.work.latency[self.work.level[between_ranks]]
            figures["G"][between_ranks] = self.work.per_byte[self.work.level[between_ranks]]
            figures["gamma"][:] = self.profile.gamma
            return figures
        for number, level in enumerate(self.profile.loggp.levels):
            in_level = self.work.level == number
            for name, values in level.at(size[in_level]).items():
                figures[name][in_level] = values
        inside = self.work.level < 0
        figures["gamma"][inside] = self.profile.loggp.levels[0].at(size[inside])["gamma"]
        return figures

    def cost(self, nbytes: int) -> tuple[state.Cost, Floats, Floats]:
        """Return per class the costs in seconds, the bytes of a message, and the seconds per byte."""
        figures, size = self.figures(nbytes), self.sizes(nbytes)
        flight, busy = figures["G"] * np.maximum(size - 1, 0), figures["G"] * size
        combining = figures["gamma"] * self.work.combined * nbytes + self.work.seconds
        cost = state.Cost(figures["L"], figures["o_s"], figures["o_r"], figures["g"], flight, busy, combining)
        return cost, size, figures["G"]

    def run(self, nbytes: int, record: bool = True, stop: float = math.inf) -> Outcome:
        """Simulate one size; `record`: with a log. If it is not done before `stop`, its seconds are infinite."""
        work, log = self.work, state.new_log(len(self.work) if record else 0)
        if not len(work):
            return Outcome(seconds=0.0, last=-1, done=0, log=log)
        outcome = self._simulate_size(nbytes, record, log, stop * state.FEMTOSECONDS)
        if outcome.done != len(work) and math.isfinite(outcome.seconds):
            raise RuntimeError(f"LogGP simulation: only {outcome.done} of {len(work)} messages were done")
        for times in (log.ready, log.begin, log.landed, log.done, log.port, log.port_out, log.nic, log.combining):
            np.divide(times, state.FEMTOSECONDS, out=times)
        return replace(outcome, seconds=outcome.seconds / state.FEMTOSECONDS)

    def _simulate_size(self, nbytes: int, record: bool, log: state.Log, stop: float) -> Outcome:
        """Simulate with the loop that fits. Times, also `stop`, are in femtoseconds (state.py)."""
        work = self.work
        # Sums of whole numbers below 2^53 are exact in a double, so equal times do not depend on the order of addition.
        exact_cost, size, per_byte = self.cost(nbytes)
        cost = state.Cost(*(np.rint(values * state.FEMTOSECONDS) for values in exact_cost))
        ports, nics = self.ports, self.nics
        if self.options.processors:
            eager = size <= self.options.eager
            return Outcome(*simulate_processors(work.graph, cost, eager, len(work.node), ports, log), log)
        packets = None
        if self.options.packets:
            packets = state.Packets(float(self.options.figures.packet), size, per_byte * state.FEMTOSECONDS)
        else:
            ports, nics = self.active_limits(cost)
            # no rank combines two messages at a time: then combining never queues either
            max_of_rank, _ = self._max_simultaneous
            combines_one = not cost.work.any() or max_of_rank <= 1
            if combines_one and work.in_rounds and not (ports or nics or record):
                wait, moments = work.waits, np.zeros(len(work.waits))
                seconds, last = simulate_free(work.cost_class, cost, wait.need, wait.done, wait.before, moments, stop)
                return Outcome(seconds, last, len(work), log)
        seconds, last, done, held_ports, received = simulate(
            work.graph, cost, packets, work.node, ports, nics, log, stop
        )  # fmt: skip
        return Outcome(seconds, last, done, log, held_ports, received)

    # ---- predictions ----

    def _predict_size(self, nbytes: int) -> Prediction:
        """Predict one size: simulate, and split the time into terms."""
        outcome = self.unlogged.pop(nbytes, None) or self.run(nbytes, not self.is_large)
        if not self.is_large:
            terms, path = self._split_terms(outcome, nbytes)
        else:
            terms, path = {"messages": outcome.seconds}, np.zeros(0, np.int64)
        # The simulation knows ports, but not links that ranks share: the prediction is at least the busiest link's
        # time.
        seconds, busiest = outcome.seconds, self.work.capacity * nbytes
        note = self.note
        if busiest > seconds:
            terms = {**dict.fromkeys(terms, 0.0), "busiest link": busiest}
            seconds = busiest
            reason = "the busiest link alone takes longer than the simulation, which knows ranks and ports only"
            note = f"{note}; {reason}" if note else reason
        local_per_byte, _ = self.local
        if local_per_byte:
            terms["local"] = local_per_byte * nbytes
            seconds += terms["local"]
        hops = LazyPath(lambda: self._path_hops(self.path(self.run(nbytes)) if self.is_large else path))
        return Prediction(float(seconds), terms, self._name_bottleneck(terms, outcome, path, nbytes), hops, note)

    @property
    def _queue_term(self) -> str:
        """Return the name of the term for queueing at a rank."""
        return "processors" if self.options.processors else "ports"

    def path(self, outcome: Outcome) -> Longs:
        """Return the critical path: the chain of messages that the last one depended on, in order of time."""
        path, message = [], outcome.last
        while message >= 0:
            path.append(message)
            message = int(outcome.log.before[message])
        return np.array(path[::-1], np.int64)

    def _path_hops(self, path: Longs) -> tuple[Hop, ...]:
        """Return (step, src, dst) of the messages of a path."""
        columns = (c[path].tolist() for c in (self.work.sent.step, self.work.sent.src, self.work.sent.dst))
        return tuple(zip(*columns, strict=True))

    def _split_terms(self, outcome: Outcome, nbytes: int) -> tuple[dict[str, float], Longs]:
        """Return the seconds of the critical path by term (costs and queueing of its messages), and the path."""
        path, log = self.path(outcome), outcome.log
        cost, *_ = self.cost(nbytes)
        classes = self.work.cost_class[path]
        until_sent = np.zeros(len(path), np.bool_)  # the next message waited only until this one had left
        until_sent[:-1] = log.ready[path[1:]] < log.done[path[:-1]]
        # With processors a message has left before its bytes move, as these occupy the receiver: not on the path.
        terms_by_message = {
            "overhead": cost.send[classes] + np.where(until_sent, 0.0, cost.receive[classes]),
            "latency": np.where(until_sent, 0.0, cost.latency[classes]),
            "bandwidth": np.where(until_sent & self.options.processors, 0.0, cost.flight[classes]),
            self._queue_term: np.where(until_sent, 0.0, np.maximum(log.port[path], 0.0)),
            "NICs": np.where(until_sent, 0.0, log.nic[path]),
            "combining": np.where(until_sent, 0.0, log.combining[path]),
        }
        terms = {name: float(values.sum()) for name, values in terms_by_message.items()}
        resolution = 1e-12 * outcome.seconds  # smaller differences of times are rounding
        terms = {name: seconds if seconds > resolution else 0.0 for name, seconds in terms.items()}
        # If a message waited only until another had left, the rest of the time is queueing: terms must sum to the time.
        terms[self._queue_term] += max(outcome.seconds - sum(terms.values()), 0.0) if until_sent.any() else 0.0
        return terms, path

    def _name_bottleneck(self, terms: dict[str, float], outcome: Outcome, path: Longs, nbytes: int) -> str:
        """Return the bottleneck in words: what causes the greatest term."""
        greatest = max(terms, key=lambda term: terms[term], default="")
        if not greatest or not terms[greatest]:
            return "nothing takes time"
        if greatest == "local":
            _, bottleneck = self.local
            return bottleneck
        if greatest == "busiest link":
            return resource_name(self.topology, self.work.busiest)
        if not len(path):
            return f"{len(self.work)} messages"
        cost, *_ = self.cost(nbytes)
        classes = self.work.cost_class[path]
        if greatest == "latency":
            return latency_name(len(path), float(cost.latency[classes].max()), terms["latency"], noun="message")
        if greatest == "overhead":
            return f"overheads (o_s, o_r) of {len(path)} messages, one after the other"
        return self._busiest_level(cost.flight[classes], path) if greatest == "bandwidth" else self._longest_wait(
            greatest, outcome, path)  # fmt: skip

    def _longest_wait(self, term: str, outcome: Outcome, path: Longs) -> str:
        """Describe the longest wait on the path."""
        log = outcome.log
        waits = {self._queue_term: log.port, "NICs": log.nic, "combining": log.combining}[term][path]
        longest_wait = int(path[int(waits.argmax())])
        src, dst = int(self.work.sent.src[longest_wait]), int(self.work.sent.dst[longest_wait])
        if term == "combining":
            return f"rank {dst}: combining what arrives"
        if term == "processors":
            return f"processors of ranks {src} and {dst}, or their ports"
        if term == "NICs":
            return f"NICs of {self._name_node(src)} and {self._name_node(dst)}"
        sends = 2 * log.port_out[longest_wait] >= log.port[longest_wait]  # at least half of the wait is for sending
        return f"rank {src}: sends to more at once than it has ports" if sends else (
            f"rank {dst}: receives from more at once than it has ports")  # fmt: skip

    def _busiest_level(self, flight: Floats, path: Longs) -> str:
        """Describe the level whose messages on the path take the most time for their bytes."""
        level = self.work.level[self.work.cost_class[path]]
        busiest_level = max(set(level.tolist()), key=lambda candidate: float(flight[level == candidate].sum()))
        count = int((level == busiest_level).sum())
        if self.profile.loggp is None:
            message = int(path[int(np.where(level == busiest_level, flight, -1.0).argmax())])
            return f"{count} messages as from rank {self.work.sent.src[message]} to rank {self.work.sent.dst[message]}"
        within = self.profile.loggp.levels[busiest_level].within
        if within:
            return f"bytes of {count} messages within a {within}"
        outer = self.profile.loggp.levels[busiest_level - 1].within if busiest_level else ""
        return f"bytes of {count} messages" + (f" between one {outer} and another" if outer else "")

    def _name_node(self, rank: int) -> str:
        """Return the name of the host of a rank, or the rank if it is in none."""
        if self.work.node[rank] < 0:
            return f"rank {rank}"
        names = self.topology.places[rank].split("/")
        at = next(i for i, name in enumerate(names) if name.rstrip("0123456789") == self.options.figures.node)
        return "/".join(names[: at + 1])

    # ---- traces ----

    def events(self, nbytes: int) -> Events:
        """Return when every message is in transit, from its first byte until it is done."""
        log = self.run(nbytes).log
        no_uses: NDArray[np.float64] = np.zeros(0)
        return Events(self._paths_without_links(), log.begin, log.done, no_uses, no_uses)

    def _paths_without_links(self) -> Paths:
        """Return the messages without links: this model knows only ranks and NICs."""
        none, sent = np.zeros(0, np.int64), self.work.sent
        assert isinstance(sent, Messages)
        route = np.full(len(sent), -1, np.int32)
        return Paths(sent, self.topology, NO_ROUTES, route, np.zeros(len(sent)), (none, none))
