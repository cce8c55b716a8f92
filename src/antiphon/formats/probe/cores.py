"""Model a server without GPUs: its ranks are cores, below the caches and memories that they share.

No tool reports the copy bandwidth of a core: 10 GB/s each way are assumed, and caches and memories carry the sum of
their cores. Between sockets the figure is NCCL's.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations, pairwise

from antiphon.core.topology import Link, LinkType, both_ways, build
from antiphon.errors import Invalid
from antiphon.formats.probe.probed import Probed
from antiphon.topologies.links import GB
from antiphon.topologies.pcie import BETWEEN_SOCKETS

COPY = LinkType("core", Fraction(10 * GB), latency=1e-7)  # bytes per second and seconds of latency; both assumed
CACHE_HOP = 5e-8  # seconds of latency between a cache or memory and the container around it; assumed
SOCKET_HOP = 3e-7  # seconds of latency between packages; assumed
MAX_CORES = 2**13
MAX_PAIRED = 32  # packages of which every two are joined; more are joined by a switch

Core = tuple[str, str, str]  # names of a core's package, memory (NUMA node) and last-level cache
Container = Core  # a package, memory or cache: the names up to it, and "" for those within


def model_cores(cores: Sequence[Core], name: str, notes: Sequence[str] = ()) -> Probed:
    """Return a machine: a rank per core, a switch per cache, memory and package with several members. O(cores).

    `notes`: of the caller; they come before those on assumptions.
    """
    if not cores:
        raise Invalid("lists no GPU and no core")
    if len(cores) > MAX_CORES:
        raise Invalid(f"shows {len(cores)} cores; at most {MAX_CORES} are read")
    # ordered sets: by container (package, memory, cache) the containers or ranks directly in it
    below: dict[Container, dict[Container | int, None]] = {}
    packages: dict[Container, None] = {}
    for rank, (package, memory, cache) in enumerate(cores):
        path = [(package, "", ""), (package, memory, ""), (package, memory, cache)]
        packages[path[0]] = None
        for high, low in pairwise(path):
            if high != low:
                below.setdefault(high, {})[low] = None
        below.setdefault(path[-1], {})[rank] = None
    builder = _MachineBuilder(below, len(cores))
    visited = [builder.visit(package, f"socket{number}") for number, package in enumerate(packages)]
    package_nodes = [node for node, _ in visited]
    builder.join_packages(package_nodes)
    assumptions = [
        "no GPUs: a rank is a core",
        "what cores copy, 10 GB/s each way, and what is between sockets is assumed",
    ]
    machine = build(
        name[:100], len(cores), builder.links, switches=len(builder.places) - len(cores), places=builder.places,
        unit=COPY.bandwidth,
    )  # fmt: skip
    return Probed(machine, (*notes, *assumptions), tuple(f"core {rank}" for rank in range(len(cores))))


class _MachineBuilder:
    """Builds the links and places of the machine from the containers in each container."""

    def __init__(self, below: dict[Container, dict[Container | int, None]], ranks: int) -> None:
        self.below, self.links = below, list[Link]()
        self.places = [f"host0/core{rank}" for rank in range(ranks)]

    def visit(self, container: Container, place: str) -> tuple[int, int]:
        """Add a package, memory or cache; return its node and the number of cores in it.

        A container with one member gets no switch: the member takes its place.
        """
        inner = self.below[container]
        ends = []
        for number, member in enumerate(inner):
            if isinstance(member, int):
                self.places[member] = f"host0/{place}/core{member}"
                ends.append((member, 1))
            else:
                kind = "cache" if member[2] else "memory"
                ends.append(self.visit(member, place if len(inner) == 1 else f"{place}/{kind}{number}"))
        if len(ends) == 1:
            return ends[0]
        self.places.append(f"host0/{place}/switch")
        switch, cores = len(self.places) - 1, sum(count for _, count in ends)
        for node, count in ends:
            link = COPY if count == 1 else LinkType("cache", count * COPY.bandwidth, CACHE_HOP)
            self.links += [(node, switch, link), (switch, node, link)]
        return switch, cores

    def join_packages(self, nodes: Sequence[int]) -> None:
        """Join every two nodes of packages, or, if there are many, all by a switch."""
        if len(nodes) > MAX_PAIRED:
            self.places.append("host0/switch")
            pairs = [(node, len(self.places) - 1) for node in nodes]
        else:
            pairs = list(combinations(nodes, 2))
        self.links += both_ways(pairs, LinkType("socket", BETWEEN_SOCKETS, SOCKET_HOP))
