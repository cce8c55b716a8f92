"""GPUs made up: our simulator of packets, ports and NICs answers what a benchmark asks, run by run, with noise.

Ports, packets, gaps, latency and NICs are the simulator's. A rank's processor is made of its work: sending costs o_s of
it, taking in o_r, a copy within a rank what it costs, one after the other.
"""

from dataclasses import dataclass, field

import numpy as np
from fake_ground import Wanted
from loggp_build import hosts_of
from message_graphs import message_graph

from antiphon.core.messages import MessageGraph
from antiphon.core.schedule import Schedule
from antiphon.cost import Level, LogGP, Profile, prepare
from antiphon.cost.loggp.loggp import simulate_graph


@dataclass
class Gpus:
    """`per_host`: ranks of a host. `serial`: whether a rank has one processor; else overheads overlap with all."""

    L: float = 5e-6
    o_s: float = 1e-6
    o_r: float = 1.5e-6
    g: float = 6e-6
    G: float = 1e-10
    device_radix: int = 1
    node_radix: int = 1
    per_host: int = 1024
    noise: float = 0.0
    seed: int = 0
    serial: bool = True
    known: dict[tuple[int, int], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def copy(self, nbytes: int) -> float:
        return 5e-7 + 2e-12 * nbytes

    def speed(self, wanted: Wanted) -> tuple[float, float | None]:
        """One run: whatever disturbs it makes it longer."""
        key = id(wanted.schedule), wanted.nbytes
        if key not in self.known:
            self.known[key] = self.seconds(wanted.schedule, wanted.nbytes)
        return self.known[key] * (1 + self.noise * abs(float(self.random.standard_normal()))), None

    def seconds(self, schedule: Schedule, nbytes: int) -> float:
        machine = hosts_of(max(schedule.collective.ranks, 2), self.per_host)
        o_s, o_r = (0.0, 0.0) if self.serial else (self.o_s, self.o_r)
        level = Level("", (1,), (self.L,), (o_s,), (o_r,), (self.g,), (self.G,))
        profile = Profile(loggp=LogGP((level,), self.device_radix, self.node_radix))
        if not self.serial:
            options = {"fidelity": "packet", "order": "data"}
            return float(prepare("loggp", schedule, machine, profile=profile, options=options)(nbytes).seconds)
        graph = self._worked(message_graph(schedule, nbytes, "data"))
        return float(simulate_graph(graph, machine, profile=profile, fidelity="packet")(1).seconds)

    def _worked(self, graph: MessageGraph) -> MessageGraph:
        """Before each message what sending it costs its rank; behind it what taking it in costs."""
        src, dst, nbytes, seconds = list[int](), list[int](), list[int](), list[float]()
        needs, left, place = list[list[int]](), list[list[bool]](), dict[int, int]()
        for i in range(len(graph)):
            span = slice(int(graph.deps_ptr[i]), int(graph.deps_ptr[i + 1]))
            before = [place[int(j)] for j in graph.deps[span]]
            gone, inner = graph.left[span].tolist(), bool(graph.src[i] == graph.dst[i])
            src.append(int(graph.src[i]))
            dst.append(int(graph.src[i]))
            nbytes.append(0)
            seconds.append(self.copy(int(graph.nbytes[i])) if inner else self.o_s)
            needs.append(before)
            left.append([bool(flag) and dst[at] != src[at] for flag, at in zip(gone, before, strict=True)])
            if not inner:
                src.append(int(graph.src[i]))
                dst.append(int(graph.dst[i]))
                nbytes.append(int(graph.nbytes[i]))
                seconds.append(self.o_r)
                needs.append([len(needs) - 1])
                left.append([False])
            place[i] = len(needs) - 1
        pointer = np.concatenate([[0], np.cumsum([len(one) for one in needs])]).astype(np.int64)
        return MessageGraph(
            graph.ranks, np.array(src), np.array(dst), np.array(nbytes), pointer,
            np.array([i for one in needs for i in one], np.int64),
            left=np.array([flag for one in left for flag in one], np.bool_), seconds=np.array(seconds),
        )  # fmt: skip
