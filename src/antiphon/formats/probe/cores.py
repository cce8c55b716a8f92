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

COPY = LinkType("core", Fraction(10 * GB), 1e-7)
CACHE_HOP = 5e-8  # assumed, as the latency of a core's link is
SOCKET_HOP = 3e-7
MAX_CORES = 2**13
MAX_PAIRED = 32  # packages that are joined in pairs; more are joined by a switch

Core = tuple[str, str, str]  # the package, the memory and the last cache that it is in, each by any name


def of_cores(cores: Sequence[Core], name: str, notes: Sequence[str] = ()) -> Probed:
    """Return a machine: a rank per core, a switch per cache, memory and package with several members. O(cores)."""
    if not cores:
        raise Invalid("lists no GPU and no core")
    if len(cores) > MAX_CORES:
        raise Invalid(f"shows {len(cores)} cores; at most {MAX_CORES} are read")
    below: dict[Core, dict[Core | int, None]] = {}
    packages: dict[Core, None] = {}
    for rank, (package, memory, cache) in enumerate(cores):
        path = [(package, "", ""), (package, memory, ""), (package, memory, cache)]
        packages[path[0]] = None
        for high, low in pairwise(path):
            if high != low:
                below.setdefault(high, {})[low] = None
        below.setdefault(path[-1], {})[rank] = None
    drawing = _Drawing(below, len(cores))
    tops = [drawing.visit(package, f"socket{number}") for number, package in enumerate(packages)]
    drawing.between(tops)
    assumptions = [
        "no GPUs: a rank is a core",
        "what cores copy, 10 GB/s each way, and what is between sockets is assumed",
    ]
    machine = build(
        name[:100], len(cores), drawing.links, switches=len(drawing.places) - len(cores), places=drawing.places,
        unit=COPY.bandwidth,
    )  # fmt: skip
    return Probed(machine, (*notes, *assumptions), tuple(f"core {rank}" for rank in range(len(cores))))


class _Drawing:
    """The links and places of the machine, made from the outermost containers inwards."""

    def __init__(self, below: dict[Core, dict[Core | int, None]], ranks: int) -> None:
        self.below, self.links = below, list[Link]()
        self.places = [f"host0/core{rank}" for rank in range(ranks)]

    def visit(self, container: Core, place: str) -> tuple[int, int]:
        """Return the node of a package, memory or cache and the number of cores below; a container of one member is
        replaced by that."""
        inner = self.below[container]
        ends = []
        for number, member in enumerate(inner):
            if isinstance(member, int):
                self.places[member] = f"host0/{place}/core{member}"
                ends.append((member, 1))
            else:
                word = "cache" if member[2] else "memory"
                ends.append(self.visit(member, place if len(inner) == 1 else f"{place}/{word}{number}"))
        if len(ends) == 1:
            return ends[0]
        self.places.append(f"host0/{place}/switch")
        me, cores = len(self.places) - 1, sum(count for _, count in ends)
        for node, count in ends:
            kind = COPY if count == 1 else LinkType("cache", count * COPY.bandwidth, CACHE_HOP)
            self.links += [(node, me, kind), (me, node, kind)]
        return me, cores

    def between(self, tops: Sequence[tuple[int, int]]) -> None:
        """Join the packages: in pairs, or if there are many, by a switch."""
        kind = LinkType("socket", BETWEEN_SOCKETS, SOCKET_HOP)
        if len(tops) > MAX_PAIRED:
            self.places.append("host0/switch")
            pairs = [(place, len(self.places) - 1) for place, _ in tops]
        else:
            pairs = list(combinations([place for place, _ in tops], 2))
        self.links += both_ways(pairs, kind)
