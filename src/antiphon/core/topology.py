"""The machine: ranks, switches, directed links, shared limits, and a place for every node.

Ranks (numbers 0 to ranks - 1) hold data. Switches (the numbers after them) forward them; an `Ability` states if they
also multicast or reduce. Links are stored as columns of source, destination and type, because a full mesh of a thousand
ranks has a million of them; the kind, bandwidth and latency of a type are stored once in a table. Bandwidths are exact
fractions, so that bounds are exact.

Example: two GPUs joined both ways by 25 GB/s NVLink: `build("pair", 2, both_ways([(0, 1)], LinkType("nvlink", "25GB/s",
"1us")))`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

import numpy as np

from antiphon.core.columns import Ints, Longs, column, concat_ranges
from antiphon.core.display import Displayed
from antiphon.errors import Invalid, quote
from antiphon.units import exact, parse_bandwidth, parse_seconds

MAX_NODES = 2**24  # far above real machines; a wrong number in a file ends before memory does
MAX_NAME = 200  # characters


def check_text(value: object, label: str) -> None:
    """Check a name to be shown on terminals and in pictures: short, and without control characters."""
    if not isinstance(value, str) or len(value) > MAX_NAME or not value.isprintable():
        raise Invalid(f"{label}: expected a short text without control characters, got {quote(value)}")


@dataclass(frozen=True)
class LinkType:
    """The properties that links share: a topology stores each type once, and the number of its type per link."""

    kind: str  # nvlink, pcie, ib, ...
    bandwidth: Fraction  # bytes per second, exact
    latency: float = 0.0  # seconds

    def __post_init__(self) -> None:
        check_text(self.kind, "link kind")
        if not self.kind:
            raise Invalid("link kind: expected a short name, got none")
        object.__setattr__(self, "bandwidth", parse_bandwidth(self.bandwidth, f"bandwidth of link type {self.kind}"))
        object.__setattr__(self, "latency", parse_seconds(self.latency, f"latency of link type {self.kind}"))


@dataclass(frozen=True)
class SharedLimit:
    """The summed bandwidth of these links is bounded: a NIC, a PCIe bus, a host's egress."""

    name: str
    links: tuple[int, ...]
    bandwidth: Fraction  # bytes per second, exact

    def __post_init__(self) -> None:
        check_text(self.name, "shared limit name")
        object.__setattr__(self, "links", tuple(int(link) for link in self.links))
        object.__setattr__(self, "bandwidth", parse_bandwidth(self.bandwidth, f"bandwidth of limit {self.name}"))


@dataclass(frozen=True)
class Ability:
    """What a switch can do besides forwarding. The field names are the keys of a topology file."""

    multicast: bool = False  # sends data that arrive once out of several links
    reduce: bool = False  # combines data that arrive over several links
    through: bool = False  # what it combined may leave by several links without reaching a rank in between
    # The destination's own contribution to a reduction, and the copy that the source of a multicast keeps, cross the
    # switch like other data (NVLS); otherwise they stay in the rank's memory.
    own: bool = False
    at_once: int = 0  # joints that the switch can serve in one step; 0: no limit is stated
    operators: tuple[str, ...] = ()  # that it can apply: "sum", or "max of float16" for one type only; empty: all
    types: tuple[str, ...] = ()  # data types that it can combine; empty: all

    def __post_init__(self) -> None:
        count = self.at_once
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count < 2**31:
            raise Invalid(f"ability at_once: expected a whole number from 0 (no limit), got {quote(count)}")
        for key in ("operators", "types"):
            names = tuple(getattr(self, key))
            for name in names:
                check_text(name, f"ability {key}")
            object.__setattr__(self, key, tuple(sorted({*names})))
        restricts = self.through or self.own or self.at_once or self.operators or self.types
        if restricts and not (self.multicast or self.reduce):
            raise Invalid(
                "ability: states how a switch multicasts or reduces, but not that it does; set multicast or reduce"
            )

    def can_combine(self, op: str | None, dtype: str | None) -> bool:
        """Return whether the switch can combine data of this type by this operator; None stands for any."""
        if not self.reduce or (dtype is not None and self.types and dtype not in self.types):
            return False
        named = [name.partition(" of ") for name in self.operators]  # (operator, " of ", its type); "": of all types
        return not named or any(op in (None, name) and dtype in (None, of or dtype) for name, _, of in named)

    def with_links_reversed(self) -> Ability:
        """Return the ability of the switch in the reversed machine, where a multicast is a reduction and vice versa."""
        return replace(self, multicast=self.reduce, reduce=self.multicast)


FORWARD_ONLY = Ability()  # of ranks and of ordinary switches


@dataclass(frozen=True)
class NetworkCard:
    """A network card of a box that is connected to nothing yet."""

    name: str
    bandwidth: Fraction | None  # bytes per second in each direction; None: unknown
    nodes: tuple[int, ...]  # the nodes next to it: ranks, or a PCIe switch

    def __post_init__(self) -> None:
        check_text(self.name, "network card name")
        if self.bandwidth is not None:
            speed = parse_bandwidth(self.bandwidth, f"bandwidth of network card {self.name}")
            object.__setattr__(self, "bandwidth", speed)
        object.__setattr__(self, "nodes", tuple(int(node) for node in self.nodes))


@dataclass(frozen=True, eq=False)
class Topology(Displayed):
    """A machine. Nodes 0..ranks-1 are ranks (they hold data), the others are switches (they forward and hold none)."""

    name: str
    ranks: int
    switches: int
    link_src: Ints
    link_dst: Ints
    link_type: Ints  # index into `types`
    types: tuple[LinkType, ...]
    limits: tuple[SharedLimit, ...] = ()
    places: tuple[str, ...] = ()  # where every node is, e.g. "dc0/rack3/host2/gpu1"; by default "rank0", "switch0", ...
    unit: Fraction = field(default=Fraction(0))  # bandwidth of a unit link; 0: that of the slowest link
    abilities: tuple[Ability, ...] = ()  # per switch; empty if no switch does more than forward
    cards: tuple[NetworkCard, ...] = ()  # unconnected network cards, by which the machine can be joined to others

    def __post_init__(self) -> None:
        check_text(self.name, "topology name")
        for label, count, low in (("ranks", self.ranks, 1), ("switches", self.switches, 0)):
            if isinstance(count, bool) or not isinstance(count, int) or not low <= count <= MAX_NODES:
                raise Invalid(
                    f"topology {label}: expected a whole number from {low} to {MAX_NODES}, got {quote(count)}"
                )
        object.__setattr__(self, "types", tuple(self.types))
        object.__setattr__(self, "limits", tuple(self.limits))
        # `column` returns int32, and raises Invalid unless all values are from the first bound to below the second
        object.__setattr__(self, "link_src", column(self.link_src, "link source", 0, self.nodes))
        object.__setattr__(self, "link_dst", column(self.link_dst, "link destination", 0, self.nodes))
        object.__setattr__(self, "link_type", column(self.link_type, "link type", 0, len(self.types)))
        if not len(self.link_src) == len(self.link_dst) == len(self.link_type):
            raise Invalid("topology links: sources, destinations and types differ in number")
        loops = np.flatnonzero(self.link_src == self.link_dst)
        if loops.size:
            raise Invalid(f"link {loops[0]} goes from node {self.link_src[loops[0]]} to itself; remove it")
        self._check_limits()
        object.__setattr__(self, "places", tuple(self.places) or default_places(self.ranks, self.switches))
        if len(self.places) != self.nodes:
            raise Invalid(f"topology places: expected {self.nodes} texts, one per node, got {len(self.places)}")
        for place in self.places:
            check_text(place, "topology place")
        has_abilities = any(ability != FORWARD_ONLY for ability in self.abilities)
        object.__setattr__(self, "abilities", tuple(self.abilities) if has_abilities else ())
        if has_abilities and len(self.abilities) != self.switches:
            raise Invalid(f"topology abilities: expected {self.switches}, one per switch, got {len(self.abilities)}")
        object.__setattr__(self, "cards", tuple(self.cards))
        for number, card in enumerate(self.cards):
            if not card.nodes or len({*card.nodes}) < len(card.nodes):
                raise Invalid(f"cards[{number}] ({quote(card.name)}): expected the nodes that it serves, each once")
            if not 0 <= min(card.nodes) <= max(card.nodes) < self.nodes:
                raise Invalid(
                    f"cards[{number}] ({quote(card.name)}): serves a node out of range (0 to {self.nodes - 1})"
                )
        speeds = [self.types[i].bandwidth for i in np.unique(self.link_type)]
        object.__setattr__(self, "unit", exact(self.unit, "unit bandwidth") or min(speeds, default=Fraction(1)))
        if self.unit <= 0:
            raise Invalid(f"unit bandwidth: must be greater than 0, got {self.unit}")

    def _check_limits(self) -> None:
        """Check that every shared limit names at least one link, each once and in range."""
        for number, limit in enumerate(self.limits):
            position = f"limits[{number}] (shared limit {quote(limit.name)})"
            if not limit.links:
                raise Invalid(f"{position}: names no links; a limit bounds one link or several together")
            if len(set(limit.links)) != len(limit.links):
                raise Invalid(f"{position}: names a link twice; list each once")
            if min(limit.links) < 0 or max(limit.links) >= self.links:
                raise Invalid(f"{position}: link out of range (0 to {self.links - 1})")

    @property
    def nodes(self) -> int:
        return self.ranks + self.switches

    @property
    def links(self) -> int:
        return len(self.link_src)

    def bandwidth(self, link: int) -> Fraction:
        """Return a link's bandwidth in bytes per second."""
        return self.types[int(self.link_type[link])].bandwidth

    def node_name(self, node: int) -> str:
        """Return a node's name for people: a rank's number, a switch's place."""
        return f"rank {node}" if node < self.ranks else f"switch {self.places[node]}"

    def ability(self, node: int) -> Ability:
        """Return what a node can do besides forwarding."""
        return self.abilities[node - self.ranks] if self.abilities and node >= self.ranks else FORWARD_ONLY

    @cached_property
    def joint_abilities(self) -> Ability:
        """What switches can do for a collective on this machine: only `multicast` and `reduce` are set. O(links).

        `multicast` needs a switch with this ability from which links lead to several nodes, `reduce` one into which
        links from several nodes lead.
        """
        if not self.abilities:
            return FORWARD_ONLY
        pairs = np.unique(np.stack([self.link_src, self.link_dst], axis=1), axis=0)
        # per node, the number of nodes from which links lead to it, and of those to which its links lead
        sources, destinations = (np.bincount(pairs[:, end], minlength=self.nodes) for end in (1, 0))
        switches = [(node, self.ability(node)) for node in range(self.ranks, self.nodes)]
        return Ability(
            multicast=any(a.multicast and sources[node] and destinations[node] > 1 for node, a in switches),
            reduce=any(a.reduce and sources[node] > 1 and destinations[node] for node, a in switches),
        )

    @cached_property
    def resources(self) -> Resources:
        return Resources.of(self)

    def key(self) -> tuple[object, ...]:
        """Return a hashable value that is equal for equal topologies."""
        columns = (self.link_src.tobytes(), self.link_dst.tobytes(), self.link_type.tobytes())
        return (
            self.name,
            self.ranks,
            self.switches,
            *columns,
            self.types,
            self.limits,
            self.places,
            self.unit,
            self.abilities,
            self.cards,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Topology) and self.key() == other.key()

    def __hash__(self) -> int:
        return hash(self.key())

    def __repr__(self) -> str:
        return f"Topology({self.name!r}, ranks={self.ranks}, switches={self.switches}, links={self.links})"


@dataclass(frozen=True)
class Resources:
    """Everything that data can load: the links, numbered as such, then the shared limits; each has a capacity.

    Capacities are exact integers over one scale: resource r has capacity[class_of[r]] * scale bytes per second. Data
    that cross link i load link i and the shared limits limit_of[limit_ptr[i]:limit_ptr[i + 1]].
    """

    capacity: tuple[int, ...]  # per class of equal capacity, ascending
    scale: Fraction  # bytes per second
    class_of: Ints  # resource -> its class of equal capacity: an index into `capacity`
    limit_ptr: Longs  # CSR offsets by link
    limit_of: Ints  # shared limits, as resource numbers

    @staticmethod
    def of(topology: Topology) -> Resources:
        """Express every bandwidth as a whole number of `scale`, and number links and then limits by their class of
        capacity.

        >>> link, limit = LinkType("wire", 2 * 10**9, 0), SharedLimit("both", (0, 1), 3 * 10**9)
        >>> table = Resources.of(build("two", 2, both_ways([(0, 1)], link), limits=[limit]))
        >>> table.capacity, table.scale, table.class_of.tolist()
        ((2, 3), Fraction(1000000000, 1), [0, 0, 1])
        >>> table.limit_ptr.tolist(), table.limit_of.tolist()  # each link is under limit 2, the number after the links
        ([0, 1, 2], [2, 2])
        """
        by_type = [t.bandwidth for t in topology.types]
        distinct = sorted({*by_type, *(limit.bandwidth for limit in topology.limits)})
        index = {bandwidth: i for i, bandwidth in enumerate(distinct)}
        denominator = math.lcm(*(b.denominator for b in distinct)) if distinct else 1
        numerators = [int(b * denominator) for b in distinct]
        common = math.gcd(*numerators) or 1
        type_class = np.array([index[b] for b in by_type], np.int32)
        limit_class = np.array([index[limit.bandwidth] for limit in topology.limits], np.int32)
        link = np.array([link for limit in topology.limits for link in limit.links], np.int64)
        owner = np.repeat(
            np.arange(len(topology.limits), dtype=np.int32) + topology.links, [len(x.links) for x in topology.limits]
        )
        order = np.argsort(link, kind="stable")  # by link, as CSR offsets require
        return Resources(
            capacity=tuple(n // common for n in numerators),
            scale=Fraction(common, denominator),
            class_of=np.concatenate([type_class[topology.link_type], limit_class]).astype(np.int32),
            limit_ptr=np.concatenate([[0], np.cumsum(np.bincount(link, minlength=topology.links))]).astype(np.int64),
            limit_of=owner[order].astype(np.int32),
        )

    def limits_of(self, link: int) -> list[int]:
        """Return the shared limits that a link is under, as resource numbers."""
        limits: list[int] = self.limit_of[self.limit_ptr[link] : self.limit_ptr[link + 1]].tolist()
        return limits

    def with_limits(self, link: Longs) -> tuple[Longs, Longs]:
        """Return these links, then the limits that they are under, as (index in `link`, resource).

        Of links 0 to 3 the links 0 and 2 share a limit, which is resource 4:

        >>> table = Resources((1,), Fraction(1), np.zeros(5, int), np.array([0, 1, 1, 2, 2]), np.array([4, 4]))
        >>> [column.tolist() for column in table.with_limits(np.array([3, 2, 0]))]
        [[0, 1, 2, 1, 2], [3, 2, 0, 4, 4]]
        """
        index = np.arange(len(link))
        if not len(self.limit_of):
            return index, link
        limit_counts = self.limit_ptr[link + 1] - self.limit_ptr[link]
        limits = self.limit_of[concat_ranges(self.limit_ptr[link], limit_counts)].astype(np.int64)
        return np.concatenate([index, np.repeat(index, limit_counts)]), np.concatenate([link, limits])

    def scaled_capacity(self, resource: int) -> int:
        """Return a resource's capacity as a whole number of `scale` bytes per second."""
        return self.capacity[int(self.class_of[resource])]

    def bytes_per_second(self, resource: int) -> Fraction:
        """Return a resource's capacity in bytes per second."""
        return self.scaled_capacity(resource) * self.scale


HOST_PREFIXES = ("host", "box", "server", "node")  # how the component of a place that names a computer begins


def hosts(machine: Topology) -> tuple[int, ...]:
    """Return the number of every rank's host, from the component of its place that begins with one of HOST_PREFIXES.

    That component is the first that begins so in the places of all ranks; with those before it, it identifies the host.
    () if places do not name hosts, or if one host has all ranks. Places "host0/gpu0", "host0/gpu1", "host1/gpu0" give
    (0, 0, 1).
    """
    paths = [place.split("/") for place in machine.places[: machine.ranks]]
    for depth in range(min(map(len, paths))):
        if all(levels[depth].startswith(HOST_PREFIXES) for levels in paths):
            boxes = [tuple(levels[: depth + 1]) for levels in paths]
            number = {box: i for i, box in enumerate(dict.fromkeys(boxes))}
            return tuple(number[box] for box in boxes) if len(number) > 1 else ()
    return ()


def default_places(ranks: int, switches: int) -> tuple[str, ...]:
    """Return the places of nodes that a topology does not state: "rank0", ..., "switch0", ..."""
    return tuple(f"rank{i}" for i in range(ranks)) + tuple(f"switch{i}" for i in range(switches))


Link = tuple[int, int, LinkType]


def build(
    name: str,
    ranks: int,
    links: Iterable[Link],
    *,
    switches: int = 0,
    limits: Sequence[SharedLimit] = (),
    places: Sequence[str] = (),
    unit: Fraction | int = 0,
    abilities: Sequence[Ability] = (),
    cards: Sequence[NetworkCard] = (),
) -> Topology:
    """Build a topology from (src, dst, LinkType) triples, collecting the table of types; options as of `Topology`."""
    table: dict[LinkType, int] = {}
    rows = [(src, dst, table.setdefault(link_type, len(table))) for src, dst, link_type in links]
    src, dst, type_number = zip(*rows, strict=True) if rows else ((), (), ())
    return Topology(
        name, ranks, switches, link_src=np.array(src), link_dst=np.array(dst), link_type=np.array(type_number),
        types=tuple(table), limits=tuple(limits), places=tuple(places), unit=Fraction(unit),
        abilities=tuple(abilities), cards=tuple(cards),
    )  # fmt: skip


def both_ways(pairs: Iterable[tuple[int, int]], kind: LinkType) -> list[Link]:
    """Return links of one type in both directions for every pair."""
    return [link for a, b in pairs for link in ((a, b, kind), (b, a, kind))]
