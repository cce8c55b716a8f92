"""A schedule prepared for LogGP: simulate any size, and explain the time by its critical path of messages.

`Simulation` turns the profile's figures into costs per class of messages, chooses one of three engines (event_loop for
ports and NICs, processors for cpu=shared, passes.simulate_free if nothing can queue), and splits the recorded critical
path into terms: overhead (o_s, o_r), latency, bandwidth, waiting for ports and NICs, combining.

Example: two messages one after the other, each o_s = o_r = 1 us, L = 2 us, 3 us of bytes: overhead 4 us, latency 4 us,
bandwidth 6 us, in total 14 us.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Floats, Longs, counts
from antiphon.core.messages import Messages, Paths, resource_name
from antiphon.core.routes import NO_ROUTES
from antiphon.core.topology import Topology
from antiphon.cost.figures import FIGURES
from antiphon.cost.loggp import state as engine
from antiphon.cost.loggp.compiled import fixed
from antiphon.cost.loggp.event_loop import simulate
from antiphon.cost.loggp.options import Options
from antiphon.cost.loggp.passes import at_once, simulate_free
from antiphon.cost.loggp.processors import simulate_processors
from antiphon.cost.loggp.work import SentWork
from antiphon.cost.prediction import Hop, LazyPath, Prediction
from antiphon.cost.profile import Profile
from antiphon.cost.steps import latency_name
from antiphon.cost.trace import Events

MOST_SOURCES = 64  # sources per rank that `at_once` distinguishes
MOST_LOGGED = 2**20  # up to this many messages a prediction lists its terms
# By number: what a message waited for (state.py)
CAUSES = ("", "a port to send", "its node's NIC", "a port to receive", "the receiver's NIC", "the rank to combine",
          "the rank's processor")  # fmt: skip


@dataclass(frozen=True, eq=False)
class Outcome:
    """Result of a simulation: seconds, the message done last, the number done, the log if there is one; ports still
    held, bytes received."""

    seconds: float
    last: int
    done: int
    log: engine.Log
    held: int = 0
    received: float = 0.0


@dataclass(frozen=True, eq=False)
class LoggpEvents(Events):
    """`about`: per message when it was ready, and its longest wait."""

    about: list[dict[str, object]]


@dataclass(eq=False)
class Simulation:
    """A schedule prepared for any size; results are cached."""

    topology: Topology
    profile: Profile
    work: SentWork
    options: Options
    note: str = ""
    local: tuple[float, str] = (0.0, "")  # seconds per byte of work at the end, and its name
    known: dict[int, Prediction] = field(default_factory=dict)

    def __call__(self, nbytes: int) -> Prediction:
        if nbytes not in self.known:
            self.known[nbytes] = self._predict_size(nbytes)
        return self.known[nbytes]

    # ---- the simulation ----

    @cached_property
    def _ends(self) -> tuple[Longs, Longs]:
        """The number of messages that every rank sends, and receives."""
        sent, ranks = self.work.sent, len(self.work.node)
        return counts(sent.src, ranks), counts(sent.dst, ranks)

    @cached_property
    def ports(self) -> int:
        """Ports of every rank; 0 if they limit nothing."""
        max_messages = max(int(counts.max(initial=0)) for counts in self._ends)
        radix = self.options.limits.device_radix
        return 0 if radix is None or radix >= max_messages else radix

    @cached_property
    def nics(self) -> int:
        """NICs of every node; 0 if they limit nothing."""
        inside = self.work.node >= 0
        node = self.work.node[inside]
        max_messages = max(int(np.bincount(node, counts[inside]).max(initial=0)) for counts in self._ends)
        radix = self.options.limits.node_radix
        return 0 if radix is None or radix >= max_messages else radix

    @cached_property
    def _at_once(self) -> tuple[int, int]:
        """The most simultaneous messages of any rank, and of any node with other nodes, given that rounds do not
        overlap at a rank."""
        sent, limit = self.work.sent, min(max(self.ports, self.nics, 1), MOST_SOURCES)
        if not self.work.in_rounds:
            return limit + 1, limit + 1
        step, src, dst, node = fixed(sent.step, sent.src, sent.dst, self.work.node)
        counts: tuple[int, int] = at_once(step, src, dst, node, limit)
        return counts

    def waited_for(self, cost: engine.Cost) -> tuple[int, int]:
        """Return ports and NICs, each 0 if no message can ever wait for one.

        That is so if never more messages than ports or NICs are in progress, and each is clear again before its rank
        can go on, by more than rounding.
        """
        if not self.ports and not self.nics:
            return 0, 0
        # clear: how long a port stays taken; later: least time until its rank sends again. If later > clear, no wait.
        real = self.work.level >= 0
        latency, send, receive, gap, flight, busy, _ = (values[real] for values in cost)
        later = sum(float(values.min(initial=np.inf)) for values in (latency, send, receive))
        clear = max(float(gap.max(initial=0)), float((busy - flight).max(initial=0)))
        longest = sum(float(values.max(initial=0)) for values in (latency, send, receive, gap, flight, busy, cost.work))
        if later - clear <= longest * len(self.work) * 2.0**-48:
            return self.ports, self.nics
        ranks, nodes = self._at_once
        return self.ports if ranks > self.ports else 0, self.nics if nodes > self.nics else 0

    def sizes(self, nbytes: int) -> Floats:
        """Return the bytes of each class, rounded to whole bytes where only floating-point error separates them from
        one.

        A tiny excess would cost a whole packet more.
        """
        size = self.work.share * nbytes
        rounded = np.rint(size)
        return np.where(np.abs(size - rounded) <= 1e-9 * np.maximum(size, 1.0), rounded, size)

    def figures(self, nbytes: int) -> dict[str, Floats]:
        """Return L, o_s, ... of every class of messages; messages within a rank only have the gamma of the first
        level."""
        size = self.sizes(nbytes)
        out = {name: np.zeros(len(size)) for name in FIGURES}
        if self.profile.loggp is None:
            real = self.work.level >= 0
            out["L"][real] = self.work.latency[self.work.level[real]]
            out["G"][real] = self.work.per_byte[self.work.level[real]]
            out["gamma"][:] = self.profile.gamma
            return out
        for number, level in enumerate(self.profile.loggp.levels):
            in_level = self.work.level == number
            for name, values in level.at(size[in_level]).items():
                out[name][in_level] = values
        inside = self.work.level < 0
        out["gamma"][inside] = self.profile.loggp.levels[0].at(size[inside])["gamma"]
        return out

    def cost(self, nbytes: int) -> tuple[engine.Cost, Floats, Floats]:
        """Return the costs of each class in seconds, its bytes, and its seconds per byte."""
        figures, size = self.figures(nbytes), self.sizes(nbytes)
        flight, busy = figures["G"] * np.maximum(size - 1, 0), figures["G"] * size
        combining = figures["gamma"] * self.work.combined * nbytes + self.work.seconds
        cost = engine.Cost(figures["L"], figures["o_s"], figures["o_r"], figures["g"], flight, busy, combining)
        return cost, size, figures["G"]

    def run(self, nbytes: int, record: bool = True) -> Outcome:
        """Simulate one size."""
        work, log = self.work, engine.new_log(len(self.work)) if record else engine.no_log()
        if not len(work):
            return Outcome(0.0, -1, 0, log)
        outcome = self._simulate_size(nbytes, record, log)
        if outcome.done != len(work):
            raise RuntimeError(f"LogGP simulation: only {outcome.done} of {len(work)} messages came to their end")
        for grains in (log.ready, log.begin, log.landed, log.done, log.port, log.nic, log.combining, log.longest):
            np.divide(grains, engine.GRAINS, out=grains)
        return replace(outcome, seconds=outcome.seconds / engine.GRAINS)

    def _simulate_size(self, nbytes: int, record: bool, log: engine.Log) -> Outcome:
        """Simulate in grains of time with the engine that fits."""
        work = self.work
        # Whole grains: sums of integers below 2^53 are exact in a double, so ties do not depend on order.
        exact, size, per_byte = self.cost(nbytes)
        cost = engine.Cost(*(np.rint(values * engine.GRAINS) for values in exact))
        ports, nics = self.ports, self.nics
        # Three engines: processors; free ports in rounds; queues for ports and NICs (the general case).
        if self.options.processors:
            eager = size <= self.options.eager
            return Outcome(*simulate_processors(work.graph, cost, eager, len(work.node), ports, log), log)
        cut = None
        if self.options.packets:
            cut = engine.Packets(float(self.options.limits.packet), size, per_byte * engine.GRAINS)
        else:
            ports, nics = self.waited_for(cost)
            alone = not cost.work.any() or self._at_once[0] <= 1  # no rank combines two at once
            if alone and work.in_rounds and not (ports or nics or record):
                wait, moments = work.waits, np.zeros(len(work.waits))
                seconds, last = simulate_free(work.klass, cost, wait.need, wait.done, wait.before, moments)
                return Outcome(seconds, last, len(work), log)
        seconds, last, done, held_ports, received = simulate(work.graph, cost, cut, work.node, ports, nics, log)
        return Outcome(seconds, last, done, log, held_ports, received)

    # ---- predictions ----

    def _predict_size(self, nbytes: int) -> Prediction:
        """Predict one size: simulate, and split the time into terms."""
        logged = len(self.work) <= MOST_LOGGED
        outcome = self.run(nbytes, logged)
        if logged:
            terms, path = self._split_terms(outcome, nbytes)
        else:
            terms, path = {"messages": outcome.seconds}, np.zeros(0, np.int64)
        # Ranks and ports alone may undercut the busiest link; the prediction is the greater of both.
        seconds, busiest = outcome.seconds, self.work.capacity * nbytes
        note = self.note
        if busiest > seconds:
            terms = {**dict.fromkeys(terms, 0.0), "busiest link": busiest}
            seconds = busiest
            reason = "the busiest link alone takes longer than what is simulated, which knows ranks and ports only"
            note = f"{note}; {reason}" if note else reason
        if self.local[0]:
            terms["local"] = self.local[0] * nbytes
            seconds += terms["local"]
        hops = LazyPath(lambda: self._path_hops(path if logged else self.path(self.run(nbytes))))
        return Prediction(float(seconds), terms, self._name_bottleneck(terms, outcome, path, nbytes), hops, note)

    @property
    def _waiting(self) -> str:
        """Name of the resource of a rank that messages queue for."""
        return "processors" if self.options.processors else "ports"

    def path(self, outcome: Outcome) -> Longs:
        """Return the chain of messages that the last one depended on, in order of time."""
        path, at = [], outcome.last
        while at >= 0:
            path.append(at)
            at = int(outcome.log.before[at])
        return np.array(path[::-1], np.int64)

    def _path_hops(self, path: Longs) -> tuple[Hop, ...]:
        columns = (c[path].tolist() for c in (self.work.sent.step, self.work.sent.src, self.work.sent.dst))
        return tuple(zip(*columns, strict=True))

    def _split_terms(self, outcome: Outcome, nbytes: int) -> tuple[dict[str, float], Longs]:
        """Split the time of the critical path into terms: costs and queueing of its messages. Also return the path."""
        path, log = self.path(outcome), outcome.log
        cost, *_ = self.cost(nbytes)
        kind = self.work.klass[path]
        until_sent = np.zeros(len(path), np.bool_)  # the next message waited only until this one had left
        until_sent[:-1] = log.ready[path[1:]] < log.done[path[:-1]]
        terms_by_message = {
            "overhead": cost.send[kind] + np.where(until_sent, 0.0, cost.receive[kind]),
            "latency": np.where(until_sent, 0.0, cost.latency[kind]),
            "bandwidth": np.where(until_sent & self.options.processors, 0.0, cost.flight[kind]),
            self._waiting: np.where(until_sent, 0.0, np.maximum(log.port[path], 0.0)),
            "NICs": np.where(until_sent, 0.0, log.nic[path]),
            "combining": np.where(until_sent, 0.0, log.combining[path]),
        }
        terms = {name: float(values.sum()) for name, values in terms_by_message.items()}
        resolution = 1e-12 * outcome.seconds  # smaller differences of moments are rounding
        terms = {name: seconds if seconds > resolution else 0.0 for name, seconds in terms.items()}
        # The rest of the time, if a wait ended when data left, is queueing: terms must add up to the time.
        terms[self._waiting] += max(outcome.seconds - sum(terms.values()), 0.0) if until_sent.any() else 0.0
        return terms, path

    def _name_bottleneck(self, terms: dict[str, float], outcome: Outcome, path: Longs, nbytes: int) -> str:
        greatest = max(terms, key=lambda term: terms[term], default="")
        if not greatest or not terms[greatest]:
            return "nothing takes time"
        if greatest in ("busiest link", "local"):
            return self.local[1] if greatest == "local" else resource_name(self.topology, self.work.busiest)
        if not len(path):
            return f"{len(self.work)} messages"
        cost, *_ = self.cost(nbytes)
        kind = self.work.klass[path]
        if greatest == "latency":
            return latency_name(len(path), float(cost.latency[kind].max())).replace("step", "message")
        if greatest == "overhead":
            return f"overheads (o_s, o_r) of {len(path)} messages, one after the other"
        return self._busiest_level(cost.flight[kind], path) if greatest == "bandwidth" else self._longest_wait(
            greatest, outcome, path)  # fmt: skip

    def _longest_wait(self, term: str, outcome: Outcome, path: Longs) -> str:
        """Describe the longest wait on the path."""
        log = outcome.log
        waited = {self._waiting: log.port, "NICs": log.nic, "combining": log.combining}[term][path]
        worst = int(path[int(waited.argmax())])
        src, dst = int(self.work.sent.src[worst]), int(self.work.sent.dst[worst])
        if term == "combining":
            return f"rank {dst}: combining what arrives"
        if term == "processors":
            return f"processors of ranks {src} and {dst}, or their ports"
        if term == "NICs":
            return f"NICs of {self._name_node(src)} and {self._name_node(dst)}"
        sends = log.cause[worst] == engine.SEND_PORT
        return f"rank {src}: sends to more at once than it has ports" if sends else (
            f"rank {dst}: receives from more at once than it has ports")  # fmt: skip

    def _busiest_level(self, flight: Floats, path: Longs) -> str:
        level = self.work.level[self.work.klass[path]]
        best = max(set(level.tolist()), key=lambda candidate: float(flight[level == candidate].sum()))
        count = int((level == best).sum())
        if self.profile.loggp is None:
            worst = int(path[int(np.where(level == best, flight, -1.0).argmax())])
            return f"{count} messages as from rank {self.work.sent.src[worst]} to rank {self.work.sent.dst[worst]}"
        within = self.profile.loggp.levels[best].within
        if within:
            return f"bytes of {count} messages within a {within}"
        outer = self.profile.loggp.levels[best - 1].within if best else ""
        return f"bytes of {count} messages" + (f" between one {outer} and another" if outer else "")

    def _name_node(self, rank: int) -> str:
        if self.work.node[rank] < 0:
            return f"rank {rank}"
        names = self.topology.places[rank].split("/")
        at = next(i for i, name in enumerate(names) if name.rstrip("0123456789") == self.options.limits.node)
        return "/".join(names[: at + 1])

    # ---- traces ----

    def events(self, nbytes: int) -> LoggpEvents:
        """Return when every message is in transit (from its first byte until it is done), and what it waited for."""
        log = self.run(nbytes).log
        none: NDArray[np.float64] = np.zeros(0)
        about: list[dict[str, object]] = []
        columns = (log.ready, log.longest, log.cause, log.holder)
        for ready, longest, cause, holder in zip(*(c.tolist() for c in columns), strict=True):
            details: dict[str, object] = {"ready_us": ready * 1e6}
            if cause:
                details |= {"waited_us": longest * 1e6, "waited_for": CAUSES[cause]}
            if cause and holder >= 0:
                src, dst, step = (int(c[holder]) for c in (self.work.sent.src, self.work.sent.dst, self.work.sent.step))
                details["behind"] = f"{src} to {dst}, step {step}"
            about.append(details)
        return LoggpEvents(self._paths_without_links(), log.begin, log.done, none, none, about)

    def _paths_without_links(self) -> Paths:
        """The messages without links: this model knows only ranks and NICs."""
        none, sent = np.zeros(0, np.int64), self.work.sent
        assert isinstance(sent, Messages)
        route = np.full(len(sent), -1, np.int32)
        return Paths(sent, self.topology, NO_ROUTES, route, np.zeros(len(sent)), (none, none))
