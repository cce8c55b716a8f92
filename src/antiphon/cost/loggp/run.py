"""A schedule prepared for LogGP: what any size costs, and which path of messages that is the length of."""

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

MOST_SOURCES = 64  # of a rank up to which they are told apart
MOST_LOGGED = 2**20  # messages up to which a prediction tells its terms
CAUSES = ("", "a port to send", "its node's NIC", "a port to receive", "the receiver's NIC", "the rank to combine",
          "the rank's processor")  # fmt: skip


@dataclass(frozen=True, eq=False)
class Outcome:
    """A simulation: seconds, the message done last, the log where one was kept; ports still held, bytes received."""

    seconds: float
    last: int
    done: int
    log: engine.Log
    held: int = 0
    received: float = 0.0


@dataclass(frozen=True, eq=False)
class LoggpEvents(Events):
    """`about`: per message when it was ready, and what it waited for longest."""

    about: list[dict[str, object]]


@dataclass(eq=False)
class Simulation:
    """A schedule prepared for any size; what was answered is kept."""

    topology: Topology
    profile: Profile
    work: SentWork
    options: Options
    note: str = ""
    local: tuple[float, str] = (0.0, "")  # seconds per byte of work at the end, and its name
    known: dict[int, Prediction] = field(default_factory=dict)

    def __call__(self, nbytes: int) -> Prediction:
        if nbytes not in self.known:
            self.known[nbytes] = self._predicted(nbytes)
        return self.known[nbytes]

    # ---- the simulation ----

    @cached_property
    def _ends(self) -> tuple[Longs, Longs]:
        """How many messages every rank sends, and how many it receives."""
        sent, ranks = self.work.sent, len(self.work.node)
        return counts(sent.src, ranks), counts(sent.dst, ranks)

    @cached_property
    def ports(self) -> int:
        """Of every rank; 0 where there is no limit, or more than it has messages."""
        most = max(int(many.max(initial=0)) for many in self._ends)
        radix = self.options.limits.device_radix
        return 0 if radix is None or radix >= most else radix

    @cached_property
    def nics(self) -> int:
        """Of every node, likewise."""
        inside = self.work.node >= 0
        node = self.work.node[inside]
        most = max(int(np.bincount(node, many[inside]).max(initial=0)) for many in self._ends)
        radix = self.options.limits.node_radix
        return 0 if radix is None or radix >= most else radix

    @cached_property
    def _at_once(self) -> tuple[int, int]:
        """The most messages of a rank, and of a node with others, where rounds keep those of other times apart."""
        sent, most = self.work.sent, min(max(self.ports, self.nics, 1), MOST_SOURCES)
        if not self.work.in_rounds:
            return most + 1, most + 1
        step, src, dst, node = fixed(sent.step, sent.src, sent.dst, self.work.node)
        both: tuple[int, int] = at_once(step, src, dst, node, most)
        return both

    def waited_for(self, cost: engine.Cost) -> tuple[int, int]:
        """Ports and NICs; 0 where nobody ever waits for one: as many are never taken at once, and who goes on when a
        message is received comes later than its ports and NICs are clear, by more than moments are rounded."""
        if not self.ports and not self.nics:
            return 0, 0
        real = self.work.level >= 0
        latency, send, receive, gap, flight, busy, _ = (one[real] for one in cost)
        later = sum(float(one.min(initial=np.inf)) for one in (latency, send, receive))
        clear = max(float(gap.max(initial=0)), float((busy - flight).max(initial=0)))
        longest = sum(float(one.max(initial=0)) for one in (latency, send, receive, gap, flight, busy, cost.work))
        if later - clear <= longest * len(self.work) * 2.0**-48:
            return self.ports, self.nics
        ranks, nodes = self._at_once
        return self.ports if ranks > self.ports else 0, self.nics if nodes > self.nics else 0

    def sizes(self, nbytes: int) -> Floats:
        """Bytes by class; whole ones where only rounding kept them from it, as a hair more would be a packet more."""
        size = self.work.share * nbytes
        whole = np.rint(size)
        return np.where(np.abs(size - whole) <= 1e-9 * np.maximum(size, 1.0), whole, size)

    def figures(self, nbytes: int) -> dict[str, Floats]:
        """L, o_s, ... of every class of messages; one within a rank has but the gamma of the inmost level."""
        size = self.sizes(nbytes)
        out = {name: np.zeros(len(size)) for name in FIGURES}
        if self.profile.loggp is None:
            real = self.work.level >= 0
            out["L"][real] = self.work.latency[self.work.level[real]]
            out["G"][real] = self.work.per_byte[self.work.level[real]]
            out["gamma"][:] = self.profile.gamma
            return out
        for number, level in enumerate(self.profile.loggp.levels):
            mine = self.work.level == number
            for name, values in level.at(size[mine]).items():
                out[name][mine] = values
        inside = self.work.level < 0
        out["gamma"][inside] = self.profile.loggp.levels[0].at(size[inside])["gamma"]
        return out

    def cost(self, nbytes: int) -> tuple[engine.Cost, Floats, Floats]:
        """Seconds by class, and its bytes and seconds per byte."""
        told, size = self.figures(nbytes), self.sizes(nbytes)
        flight, busy = told["G"] * np.maximum(size - 1, 0), told["G"] * size
        combining = told["gamma"] * self.work.combined * nbytes + self.work.seconds
        cost = engine.Cost(told["L"], told["o_s"], told["o_r"], told["g"], flight, busy, combining)
        return cost, size, told["G"]

    def run(self, nbytes: int, record: bool = True) -> Outcome:
        """Simulate one size."""
        work, log = self.work, engine.new_log(len(self.work)) if record else engine.no_log()
        if not len(work):
            return Outcome(0.0, -1, 0, log)
        outcome = self._simulated(nbytes, record, log)
        if outcome.done != len(work):
            raise RuntimeError(f"LogGP simulation: only {outcome.done} of {len(work)} messages came to their end")
        for grains in (log.ready, log.begin, log.landed, log.done, log.port, log.nic, log.combining, log.longest):
            np.divide(grains, engine.GRAINS, out=grains)
        return replace(outcome, seconds=outcome.seconds / engine.GRAINS)

    def _simulated(self, nbytes: int, record: bool, log: engine.Log) -> Outcome:
        """In grains."""
        work = self.work
        exact, size, per_byte = self.cost(nbytes)
        cost = engine.Cost(*(np.rint(one * engine.GRAINS) for one in exact))
        ports, nics = self.ports, self.nics
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
        seconds, last, done, held, received = simulate(work.graph, cost, cut, work.node, ports, nics, log)
        return Outcome(seconds, last, done, log, held, received)

    # ---- what it says ----

    def _predicted(self, nbytes: int) -> Prediction:
        logged = len(self.work) <= MOST_LOGGED
        outcome = self.run(nbytes, logged)
        if logged:
            terms, path = self._terms(outcome, nbytes)
        else:
            terms, path = {"messages": outcome.seconds}, np.zeros(0, np.int64)
        seconds, busiest = outcome.seconds, self.work.capacity * nbytes
        note = self.note
        if busiest > seconds:
            terms = {**dict.fromkeys(terms, 0.0), "busiest link": busiest}
            seconds = busiest
            said = "the busiest link alone takes longer than what is simulated, which knows ranks and ports only"
            note = f"{note}; {said}" if note else said
        if self.local[0]:
            terms["local"] = self.local[0] * nbytes
            seconds += terms["local"]
        hops = LazyPath(lambda: self._hops(path if logged else self.path(self.run(nbytes))))
        return Prediction(float(seconds), terms, self._bottleneck(terms, outcome, path, nbytes), hops, note)

    @property
    def _waiting(self) -> str:
        """What messages wait for at a rank."""
        return "processors" if self.options.processors else "ports"

    def path(self, outcome: Outcome) -> Longs:
        """The messages that waited for each other until the last one, in order of time."""
        path, at = [], outcome.last
        while at >= 0:
            path.append(at)
            at = int(outcome.log.before[at])
        return np.array(path[::-1], np.int64)

    def _hops(self, path: Longs) -> tuple[Hop, ...]:
        columns = (c[path].tolist() for c in (self.work.sent.step, self.work.sent.src, self.work.sent.dst))
        return tuple(zip(*columns, strict=True))

    def _terms(self, outcome: Outcome, nbytes: int) -> tuple[dict[str, float], Longs]:
        """What the messages of that path took, and waited for."""
        path, log = self.path(outcome), outcome.log
        cost, *_ = self.cost(nbytes)
        kind = self.work.klass[path]
        left = np.zeros(len(path), np.bool_)  # what follows waited until it had left only: it is overwritten then
        left[:-1] = log.ready[path[1:]] < log.done[path[:-1]]
        parts = {
            "overhead": cost.send[kind] + np.where(left, 0.0, cost.receive[kind]),
            "latency": np.where(left, 0.0, cost.latency[kind]),
            "bandwidth": np.where(left & self.options.processors, 0.0, cost.flight[kind]),
            self._waiting: np.where(left, 0.0, np.maximum(log.port[path], 0.0)),
            "NICs": np.where(left, 0.0, log.nic[path]),
            "combining": np.where(left, 0.0, log.combining[path]),
        }
        terms = {name: float(values.sum()) for name, values in parts.items()}
        least = 1e-12 * outcome.seconds  # below that differences of moments say nothing
        terms = {name: seconds if seconds > least else 0.0 for name, seconds in terms.items()}
        terms[self._waiting] += max(outcome.seconds - sum(terms.values()), 0.0) if left.any() else 0.0
        return terms, path

    def _bottleneck(self, terms: dict[str, float], outcome: Outcome, path: Longs, nbytes: int) -> str:
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
        """Where the message of the path waited that waited longest."""
        log = outcome.log
        waited = {self._waiting: log.port, "NICs": log.nic, "combining": log.combining}[term][path]
        worst = int(path[int(waited.argmax())])
        src, dst = int(self.work.sent.src[worst]), int(self.work.sent.dst[worst])
        if term == "combining":
            return f"rank {dst}: combining what arrives"
        if term == "processors":
            return f"processors of ranks {src} and {dst}, or their ports"
        if term == "NICs":
            return f"NICs of {self._node(src)} and {self._node(dst)}"
        sends = log.cause[worst] == engine.SEND_PORT
        return f"rank {src}: sends to more at once than it has ports" if sends else (
            f"rank {dst}: receives from more at once than it has ports")  # fmt: skip

    def _busiest_level(self, flight: Floats, path: Longs) -> str:
        level = self.work.level[self.work.klass[path]]
        best = max(set(level.tolist()), key=lambda one: float(flight[level == one].sum()))
        count = int((level == best).sum())
        if self.profile.loggp is None:
            worst = int(path[int(np.where(level == best, flight, -1.0).argmax())])
            return f"{count} messages as from rank {self.work.sent.src[worst]} to rank {self.work.sent.dst[worst]}"
        within = self.profile.loggp.levels[best].within
        if within:
            return f"bytes of {count} messages within a {within}"
        outer = self.profile.loggp.levels[best - 1].within if best else ""
        return f"bytes of {count} messages" + (f" between one {outer} and another" if outer else "")

    def _node(self, rank: int) -> str:
        if self.work.node[rank] < 0:
            return f"rank {rank}"
        parts = self.topology.places[rank].split("/")
        at = next(i for i, part in enumerate(parts) if part.rstrip("0123456789") == self.options.limits.node)
        return "/".join(parts[: at + 1])

    # ---- traces ----

    def events(self, nbytes: int) -> LoggpEvents:
        """When every message is under way (from its first byte until it is done), and what it waited for."""
        log = self.run(nbytes).log
        none: NDArray[np.float64] = np.zeros(0)
        about: list[dict[str, object]] = []
        columns = (log.ready, log.longest, log.cause, log.holder)
        for ready, longest, cause, holder in zip(*(c.tolist() for c in columns), strict=True):
            told: dict[str, object] = {"ready_us": ready * 1e6}
            if cause:
                told |= {"waited_us": longest * 1e6, "waited_for": CAUSES[cause]}
            if cause and holder >= 0:
                src, dst, step = (int(c[holder]) for c in (self.work.sent.src, self.work.sent.dst, self.work.sent.step))
                told["behind"] = f"{src} to {dst}, step {step}"
            about.append(told)
        return LoggpEvents(self._unrouted(), log.begin, log.done, none, none, about)

    def _unrouted(self) -> Paths:
        """The messages, with no links: this model knows ranks and NICs."""
        none, sent = np.zeros(0, np.int64), self.work.sent
        assert isinstance(sent, Messages)
        route = np.full(len(sent), -1, np.int32)
        return Paths(sent, self.topology, NO_ROUTES, route, np.zeros(len(sent)), (none, none))
