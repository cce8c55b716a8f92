"""Witnesses of bounds: records that hold enough to recheck a bound on its own, as JSON and as text for people.

Four proofs of a lower bound, checked in recheck.py (docs/bounds.md explains why each is valid):

    Distance   a path and distances that prove the number of steps
    Cut        a set of nodes, the weight that must leave it and the capacity out of it
    Partition  for allreduce: sets of ranks, and the capacity between them
    LpDual     prices of links and shared limits, with the `Family` needs that must pay them

and one of an upper bound, checked in packing.py: `Packing`, trees that attain the bound. The *weight* of a block is its
relative size, a whole number; a bound in seconds is weight / capacity * (nbytes / total weight of the buffer).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

from antiphon.core.topology import Topology
from antiphon.errors import Invalid
from antiphon.units import format_bandwidth, plain

_SHOWN = 12  # names of links or ranges of ranks listed in a text, before "and 3 more"


def _to_json(value: Any) -> Any:
    """Convert a field to JSON: fractions exactly, as numbers or "a/b"; tuples as lists; records by their fields."""
    if isinstance(value, Fraction):
        return plain(value)
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    return value.as_json() if hasattr(value, "as_json") else value


@dataclass(frozen=True)
class Record:
    """A frozen record that becomes JSON by its fields, with its `kind` first if it has one."""

    def as_json(self) -> dict[str, Any]:
        values = {f.name: _to_json(getattr(self, f.name)) for f in fields(self)}
        kind = getattr(self, "kind", None)
        return values if kind is None else {"kind": kind, **values}


@dataclass(frozen=True)
class Distance(Record):
    """A proof of latency: data that only `holders` have must reach `rank`, which takes `steps` steps.

    `path` (nodes) shows that steps suffice. `distances`, one per node, shows that fewer do not: they are 0 at
    the holders, grow by at most 1 along a link into a rank and not at all along one into a switch, and are
    `steps` at rank.
    """

    holders: tuple[int, ...]
    rank: int
    steps: int
    path: tuple[int, ...]
    distances: tuple[int, ...]

    def describe(self, topology: Topology) -> str:
        via = [topology.node_name(node) for node in self.path[1:-1]]
        through = f" (by way of {_join_names(via)})" if via else ""
        steps = "1 step" if self.steps == 1 else f"{self.steps} steps"
        return f"distance: rank {self.path[0]} is {steps} from rank {self.rank}{through}"


@dataclass(frozen=True)
class Cut(Record):
    """Blocks of total `weight` must leave the nodes `side`, at `capacity` bytes/s at most.

    The capacity is that of the shared limits `limits` and of the outgoing links that load none of them.
    """

    side: tuple[int, ...]
    weight: int
    capacity: Fraction
    limits: tuple[int, ...] = ()

    kind = "cut"

    def describe(self, topology: Topology, buffer_weight: int = 1) -> str:
        inside = [node for node in self.side if node < topology.ranks]
        outside = sorted(set(range(topology.ranks)) - set(inside))
        share = Fraction(self.weight, buffer_weight)
        amount = "all of nbytes" if share == 1 else f"{plain(share)} of nbytes"
        speed = format_bandwidth(self.capacity)
        if len(inside) <= len(outside):
            return f"cut: {_describe_ranks(inside)} can send out only {speed}, {amount} must leave"
        return f"cut: {_describe_ranks(outside)} can take in only {speed}, {amount} must enter"


@dataclass(frozen=True)
class Partition(Record):
    """At least 2 (parts - 1) transfers of all data run between the parts, at `capacity` bytes/s at most in total.

    `parts` are disjoint sets of nodes, each with a member of the collective. Every rank and every switch that helps
    (multicasts or reduces) is in exactly one; other switches may be in any number of them. `direction`: whether the
    capacity "out" of the parts or "in" to them is summed. "both": if there are at least three parts, out and in
    together carry all data at least 2 (parts + 1) times; switches that also load the links of ranks with the ranks' own
    data (`own`) are then in no part. `limits`: (shared limit, how often it counts).
    """

    parts: tuple[tuple[int, ...], ...]
    direction: str
    weight: int
    capacity: Fraction
    limits: tuple[tuple[int, int], ...] = ()

    kind = "partition"

    @property
    def times(self) -> int:
        """How often all data cross between parts."""
        return 2 * (len(self.parts) + 1) if self.direction == "both" else 2 * (len(self.parts) - 1)

    def describe(self, topology: Topology, buffer_weight: int = 1) -> str:
        named = [_describe_ranks([n for n in part if n < topology.ranks]) for part in self.parts]
        count = len(self.parts)
        if all(len([n for n in part if n < topology.ranks]) == 1 for part in self.parts):
            named = ["each rank alone"]
        return (
            f"partition into {count}: {' | '.join(named[:8])}{' | ...' if len(named) > 8 else ''}: at least "
            f"{self.times} transfers of all data must cross, "
            f"over {format_bandwidth(self.capacity)} in all{' both ways' if self.direction == 'both' else ''}"
        )


@dataclass(frozen=True)
class Family(Record):
    """Needs that are charged for the loads `lengths` of a dual: (link, length) pairs, or None for the link costs of the
    dual.

    `of`: "to" (data that rank at[0] needs), "from" (data that only rank at[0] holds), "pair" (data that only at[0]
    holds and at[1] needs) or "all". Of each block the farthest need counts, once.
    """

    of: str
    at: tuple[int, ...]
    lengths: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True)
class LpDual(Record):
    """Prices of links and shared limits, and the needs that any schedule must pay for at these prices.

    `prices`: (resource, price), resources numbered as in topology.resources. `potentials`: (switch, value): a route
    pays the value on entering the switch and gets it back on leaving. A link costs its price, plus those of its limits,
    plus potential(head) - potential(tail). Every family pays for the lengths it is charged for, every partition
    (partitions: (partition, multiplier)) for its crossings; together they may not pay more for any link than it costs.
    The bound: their total payment over the sum of price times capacity.
    """

    prices: tuple[tuple[int, int], ...]
    families: tuple[Family, ...]
    potentials: tuple[tuple[int, int], ...] = ()
    partitions: tuple[tuple[Partition, int], ...] = ()

    kind = "lp_dual"

    def describe(self, topology: Topology, buffer_weight: int = 1) -> str:
        names = [_describe_resource(topology, resource) for resource, _ in self.prices]
        return f"lp_dual: the bottleneck is {_join_names(names)} together, at prices {_describe_prices(self.prices)}"


Witness = Cut | Partition | LpDual


@dataclass(frozen=True)
class Tree(Record):
    """A share of a block, of weight `rate`, and the routes (lists of links from rank to rank) that it takes.

    `way`: "out" of `root` to all ranks that want the block, or "in" to it from all ranks that hold a contribution.
    """

    block: int
    way: str
    root: int
    rate: Fraction
    routes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Packing(Record):
    """Trees that together do the collective; if their time equals a lower bound, the bound is attained."""

    trees: tuple[Tree, ...]


def witness_of(value: Mapping[str, Any]) -> Witness:
    """Read a witness from its JSON; raise Invalid if it is none. Whether it proves anything is for `recheck` to
    check."""
    try:
        kind = value["kind"]
        if kind == "cut":
            return Cut(
                _int_tuple(value["side"]),
                int(value["weight"]),
                Fraction(value["capacity"]),
                _int_tuple(value["limits"]),
            )
        if kind == "partition":
            parts, limits = tuple(map(_int_tuple, value["parts"])), tuple(map(_int_pair, value["limits"]))
            capacity = Fraction(value["capacity"])
            return Partition(parts, str(value["direction"]), int(value["weight"]), capacity, limits)
        if kind == "lp_dual":
            families = tuple(
                Family(
                    str(f["of"]),
                    _int_tuple(f["at"]),
                    None if f["lengths"] is None else tuple(map(_int_pair, f["lengths"])),
                )
                for f in value["families"]
            )
            partitions = []
            for partition_json, times in value["partitions"]:
                inner = witness_of(partition_json)
                if not isinstance(inner, Partition):
                    raise TypeError("expected a partition")
                partitions.append((inner, int(times)))
            prices, potentials = tuple(map(_int_pair, value["prices"])), tuple(map(_int_pair, value["potentials"]))
            return LpDual(prices, families, potentials, tuple(partitions))
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise Invalid(f"witness of a bound: cannot be read ({error!r}); plan anew") from None
    raise Invalid(f"witness of a bound: kind {kind!r} is not known (cut, partition, lp_dual); plan anew")


def _int_tuple(values: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def _int_pair(values: Iterable[Any]) -> tuple[int, int]:
    a, b = values
    return int(a), int(b)


def _describe_prices(prices: tuple[tuple[int, int], ...]) -> str:
    """Return the range of the prices in words."""
    values = sorted({price for _, price in prices})
    return f"from {values[0]} to {values[-1]}" if len(values) > 1 else "that are all equal"


def _describe_resource(topology: Topology, resource: int) -> str:
    """Return the name of a shared limit, or the two ends of a link."""
    if resource >= topology.links:
        return f"limit {topology.limits[resource - topology.links].name}"
    ends = (int(topology.link_src[resource]), int(topology.link_dst[resource]))
    return " -> ".join(topology.node_name(node) for node in ends)


def _join_names(names: list[str]) -> str:
    """Return the distinct names, the first `_SHOWN` in full."""
    distinct = list(dict.fromkeys(names))
    rest = f" and {len(distinct) - _SHOWN} more" if len(distinct) > _SHOWN else ""
    return ", ".join(distinct[:_SHOWN]) + rest


def _describe_ranks(ranks: list[int]) -> str:
    """Return ranks in short form: {0-3,8}."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    texts = [str(a) if a == b else f"{a}-{b}" if b > a + 1 else f"{a},{b}" for a, b in runs]
    return "ranks {" + ",".join(texts[:_SHOWN]) + (",..." if len(texts) > _SHOWN else "") + "}"
