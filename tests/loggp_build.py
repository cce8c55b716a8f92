"""What the tests of the LogGP simulation build: graphs of messages, profiles of two levels, plain messages of both."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from loggp_plain import Machine, Message
from numpy.typing import NDArray

from antiphon.core.columns import Longs
from antiphon.core.messages import MessageGraph
from antiphon.core.topology import Topology
from antiphon.cost import Level, LogGP, Profile
from antiphon.cost.figures import FIGURES
from antiphon.cost.loggp.loggp import simulate_graph
from antiphon.cost.loggp.run import Outcome, Simulation
from antiphon.topologies import topology

FIDELITIES = ("message", "packet")
HOST = Level("host", L=10, o_s=5, o_r=6, g=8, G=1, gamma=2)
BEYOND = Level("", L=100, o_s=5, o_r=6, g=8, G=10, gamma=3)
PER_HOST = 4
RADICES = (1, 1, 2, 3, None)
KNOTS = (0, 20, 90)  # bytes
RANGES = {"L": 60, "o_s": 9, "o_r": 9, "g": 30, "G": 6, "gamma": 4}
DELTA = "loggp-delta"


def delta(nodes: int = 4) -> Topology:
    return topology(f"delta:nodes={nodes}")


def hosts_of(ranks: int, per_host: int) -> Topology:
    """Ranks around a switch, so many to a host by their places."""
    made = topology(f"star:ranks={ranks}")
    places = tuple(f"host{rank // per_host}/gpu{rank % per_host}" for rank in range(ranks))
    return replace(made, places=places + made.places[ranks:])


def graph(ranks: int, messages: Sequence[Message]) -> MessageGraph:
    deps = [sorted(set(one.deps)) for one in messages]
    pointer = np.concatenate([[0], np.cumsum([len(d) for d in deps], dtype=np.int64)]).astype(np.int64)
    flat = np.array([i for d in deps for i in d], np.int64)
    columns: dict[str, Any] = {
        name: np.array([getattr(one, name) for one in messages], np.int64)
        for name in ("src", "dst", "nbytes", "combined")
    }
    return MessageGraph(ranks, deps_ptr=pointer, deps=flat, **columns)


def simulation(messages: Sequence[Message], given: LogGP, fidelity: str, nodes: int = 4, **more: Any) -> Simulation:
    made = graph(PER_HOST * nodes, messages)
    found = simulate_graph(made, delta(nodes), profile=Profile(loggp=given), fidelity=fidelity, **more)
    assert isinstance(found, Simulation)
    return found


def held_to_account(found: Outcome, messages: Sequence[Message], fidelity: str) -> None:
    """All is done, all bytes came, no port is held, and every message keeps the order of its own moments."""
    assert found.ports_in_use == 0
    assert found.done == len(messages)
    if fidelity == "packet":
        assert found.received == sum(one.nbytes for one in messages if one.src != one.dst)
    log = found.log
    for earlier, later in ((log.ready, log.begin), (log.begin, log.landed), (log.landed, log.done)):
        assert (earlier <= later * (1 + 1e-12)).all()
    assert found.seconds == log.done.max(initial=0)
    assert found.last == -1 or log.done[found.last] == found.seconds


def with_figures(messages: Sequence[Message], given: LogGP, node: Sequence[int]) -> list[Message]:
    """The same messages, each with the figures of its level at its size."""
    out = []
    for one in messages:
        level = given.levels[0 if node[one.src] == node[one.dst] else 1].at(float(one.nbytes))
        out.append(replace(one, **{name: float(level[name]) for name in FIGURES}))
    return out


def plain(messages: Sequence[Message], given: LogGP, fidelity: str, node: Sequence[int]) -> Machine:
    """The plain simulation of these, run."""
    told = with_figures(messages, given, node)
    packet = given.packet if fidelity == "packet" else None
    machine = Machine(told, node, given.device_radix, given.node_radix, packet)
    machine.run()
    return machine


def figures(rng: random.Random, whole: bool = False, knots: tuple[int, ...] = KNOTS) -> LogGP:
    """Figures that differ with size, so that no two moments are the same; or whole ones, so that many are."""

    def level(within: str) -> Level:
        if whole:
            return Level(within, **{name: float(rng.randint(0, most)) for name, most in RANGES.items()})
        drawn = {name: tuple(rng.uniform(0, most) for _ in knots) for name, most in RANGES.items()}
        return Level(within, knots, **drawn)

    packet = rng.choice([1, 3, 5, 8, 17, 100])
    return LogGP((level("host"), level("")), rng.choice(RADICES), rng.choice(RADICES), "host", packet)


def topology_of(name: str) -> Topology:
    return topology(name)


def placed(topology: Topology, per_host: int) -> Topology:
    places = tuple(f"host{rank // per_host}/gpu{rank % per_host}" for rank in range(topology.ranks))
    return replace(topology, places=places + topology.places[topology.ranks :])


def level_of(levels: Sequence[Longs], src: NDArray[Any], dst: NDArray[Any]) -> Longs:
    """The inmost level that both ends of each pair share; as many as there are levels where they share none."""
    out = np.full(len(src), len(levels), np.int64)
    for number in range(len(levels) - 1, -1, -1):
        group = levels[number]
        out[(group[src] == group[dst]) & (group[src] >= 0)] = number
    return out
