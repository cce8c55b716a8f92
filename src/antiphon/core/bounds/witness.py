"""Witnesses of bounds: records that hold enough to recheck a bound on its own, as JSON and as text for people.

Five kinds of record prove a lower bound. recheck.py checks them, and docs/bounds.md explains why each is valid:

    Distance   steps: a path and distances
    Cut        time: a set of nodes, the weight that must leave it and the capacity out of it
    Partition  time of an allreduce: sets of ranks, and the capacity between them
    LpDual     time: prices of links and shared limits, and the least that demands (`Family`) cost at these prices
    JointDual  time of a joint collective: an `LpDual` for each group, all at the same prices

A sixth record, `Packing`, proves that a bound is attained; packing.py checks it. It lists trees that take the bound's
time.

The *weight* of a block is its relative size, a whole number. A bound in seconds is weight / capacity * (nbytes /
`buffer_weight`), where `buffer_weight` is the total weight of the buffer that nbytes counts.

Example: on 4 ranks in a ring of 1 GB/s links both ways, the `Cut` of an allgather is side = (0, 1, 2), weight = 3,
capacity = 2 GB/s: three blocks of weight 1 must reach rank 3 over its two links. With nbytes = 4 GB (four blocks, so
buffer_weight = 4) that takes 3 / (2 GB/s) * (4 GB / 4) = 1.5 s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

from antiphon.core.topology import Topology
from antiphon.errors import Invalid
from antiphon.units import format_bandwidth, plain, plural

_SHOWN = 12  # at most this many names of links or ranges of ranks are listed in a text; then "and 3 more" or "..."


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

    `path`
        Nodes from a holder to `rank`: `steps` steps suffice.
    `distances`
        Per node a lower bound on the steps to it, which shows that fewer steps do not suffice. It is 0 at the holders,
        grows by at most 1 along a link into a rank and by 0 along a link into a switch, and is `steps` at `rank`.
    """

    holders: tuple[int, ...]
    rank: int
    steps: int
    path: tuple[int, ...]
    distances: tuple[int, ...]

    def describe(self, topology: Topology) -> str:
        via = [topology.node_name(node) for node in self.path[1:-1]]
        through = f" (by way of {_join_names(via)})" if via else ""
        return f"distance: rank {self.path[0]} is {plural(self.steps, 'step')} from rank {self.rank}{through}"


@dataclass(frozen=True)
class Cut(Record):
    """Blocks of total `weight` must leave the nodes `side`, at `capacity` bytes/s at most.

    capacity = sum over the shared limits `limits` + sum over the outgoing links outside of them.
    """

    side: tuple[int, ...]
    weight: int
    capacity: Fraction
    limits: tuple[int, ...] = ()

    kind = "cut"

    def describe(self, topology: Topology, buffer_weight: int = 1) -> str:
        """Return the cut in words. `buffer_weight`: the weight that nbytes counts, to state the weight in nbytes."""
        inside = [node for node in self.side if node < topology.ranks]
        outside = sorted(set(range(topology.ranks)) - set(inside))
        share = Fraction(self.weight, buffer_weight)
        amount = "all of nbytes" if share == 1 else f"{plain(share)} {'times' if share > 1 else 'of'} nbytes"
        speed = format_bandwidth(self.capacity) + self._kinds_text(topology)
        if len(inside) <= len(outside):
            return f"cut: {_describe_ranks(inside)} can send out only {speed}, {amount} must leave"
        return f"cut: {_describe_ranks(outside)} can take in only {speed}, {amount} must enter"

    def _kinds_text(self, topology: Topology) -> str:
        """Return the capacity by kind of link, if the links of the cut are of several kinds and under no limit."""
        if self.limits:
            return ""
        side, by_kind = set(self.side), Counter[str]()
        ends = zip(topology.link_src.tolist(), topology.link_dst.tolist(), topology.link_type.tolist(), strict=True)
        for link_type in (topology.types[number] for src, dst, number in ends if src in side and dst not in side):
            by_kind[link_type.kind] += link_type.bandwidth
        texts = [f"{kind} {format_bandwidth(capacity)}" for kind, capacity in by_kind.items()]
        return f" ({' + '.join(texts)})" if len(texts) > 1 else ""


@dataclass(frozen=True)
class Partition(Record):
    """All data cross between the parts at least `times` times, at `capacity` bytes/s at most in total.

    `parts`
        Sets of nodes, each with a member of the collective. Every rank and every switch that multicasts or reduces is
        in exactly one of them (an exception below); other switches may be in several or none.
    `direction`
        Which crossings count: links "out" of the parts, "in" to them, or "both".
    `weight`
        The weight of all data, counted once. The lower bound is times * weight / capacity.
    `limits`
        (limit, count): the capacity counts the shared limit `count` times, and each of its links `count` times less
        often. A link that leaves one part and enters another counts twice for "both", and so may its limit.

    `times` is 2 (parts - 1) for "out" and "in", and 2 (parts + 1) for "both". The direction "both" takes at least three
    parts and serves machines with switches of the ability `own`: a multicast or reduction there also loads the link of
    the rank that it starts from or ends at. Such a switch may be in no part if it joins ranks only. Then a multicast by
    it, from one part to m others, crosses the link to the switch, m links from it, and the link back to its source.
    docs/bounds.md proves `times` under "Own operands".
    """

    parts: tuple[tuple[int, ...], ...]
    direction: str
    weight: int
    capacity: Fraction
    limits: tuple[tuple[int, int], ...] = ()

    kind = "partition"

    @property
    def times(self) -> int:
        """How often all data cross between parts: an allreduce leaves and enters all parts but one; see the class for
        "both"."""
        return 2 * (len(self.parts) + 1) if self.direction == "both" else 2 * (len(self.parts) - 1)

    def describe(self, topology: Topology, buffer_weight: int = 1) -> str:
        """Return the partition in words. `buffer_weight` is for witnesses that state amounts (`Cut`)."""
        ranks_of_parts = [[node for node in part if node < topology.ranks] for part in self.parts]
        texts = [_describe_ranks(ranks) for ranks in ranks_of_parts]
        if all(len(ranks) == 1 for ranks in ranks_of_parts):
            texts = ["each rank is a part"]
        return (
            f"partition into {len(self.parts)}: {' | '.join(texts[:_SHOWN])}{' | ...' if len(texts) > _SHOWN else ''}: "
            f"all data must cross from part to part at least {self.times} times, and all links between parts "
            f"together carry {format_bandwidth(self.capacity)}{', both ways' if self.direction == 'both' else ''}"
        )


@dataclass(frozen=True)
class Family(Record):
    """Demands of an `LpDual`. A demand is (block, holders, rank): the rank must end with data that only the holders
    begin with, so the data travel at least the shortest distance from the holders to the rank.

    `of`
        Which demands: "to" (data that rank at[0] needs), "from" (data that only rank at[0] holds), "pair" (data that
        only at[0] holds and at[1] needs) or "all".
    `at`
        The rank or ranks that `of` mentions.
    `lengths`
        The lengths of links by which distance is measured, as (link, length); links not listed have length 0. None:
        the link costs of the `LpDual`.

    If several ranks need a block, only its farthest demand counts.
    """

    of: str
    at: tuple[int, ...]
    lengths: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True)
class LpDual(Record):
    """A solution of a dual linear program: prices of links and shared limits, with the demands and the partitions whose
    cost at these prices bounds the time from below.

    `prices`
        (resource, price), resources numbered as in topology.resources.
    `families`
        Sets of demands, each with its lengths of links.
    `potentials`
        (switch, value), 0 at all other nodes. A route adds the value on entering the switch and subtracts it on
        leaving, so potentials change the cost of single links and of no route.
    `partitions`
        (partition, multiplier).

    The cost of a link is its price + the prices of its shared limits + potential(head) - potential(tail). For every
    link,

        sum over families f of length(f, link) + sum over partitions p of multiplier(p) * crossings(p, link) <= cost

    where crossings(p, link) is the number of parts that the link leaves, enters, or both, by the direction of p. Then
    the lower bound, in seconds per byte of a block of weight 1, is

        (sum over f, and over the blocks b of its demands, of weight(b) * distance(f, farthest demand of b)
         + sum over p of multiplier(p) * times(p) * weight(p))  /  sum over resources of price * capacity
    """

    prices: tuple[tuple[int, int], ...]
    families: tuple[Family, ...]
    potentials: tuple[tuple[int, int], ...] = ()
    partitions: tuple[tuple[Partition, int], ...] = ()

    kind = "lp_dual"

    def describe(self, topology: Topology, buffer_weight: int = 1) -> str:
        """Return the dual in words. `buffer_weight` is for witnesses that state amounts (`Cut`)."""
        names = [_describe_resource(topology, resource) for resource, _ in self.prices]
        return f"lp_dual: the bottleneck is {_join_names(names)} together, at prices {_describe_prices(self.prices)}"


@dataclass(frozen=True)
class JointDual(Record):
    """Prices of links and shared limits at which the costs of all groups of a joint collective bound the time.

    `prices`
        As in `LpDual`, for all groups.
    `groups`
        For every group an `LpDual` of its own collective at these prices; the field `prices` of each is empty.

    The lower bound, in seconds per byte of a block of weight 1 of the joint collective, is the sum over groups of
    numerator * (weight of a block of the group in the joint collective / its weight in the group's own collective),
    divided by the sum over resources of price * capacity. The numerator is that of the group's `LpDual`.
    """

    prices: tuple[tuple[int, int], ...]
    groups: tuple[LpDual, ...]

    kind = "joint_dual"

    def describe(self, topology: Topology, buffer_weight: int = 1) -> str:
        """Return the dual in words, as `LpDual` does."""
        text = LpDual(self.prices, families=()).describe(topology, buffer_weight).removeprefix("lp_dual: ")
        return f"joint_dual: for the {len(self.groups)} groups {text}"


Witness = Cut | Partition | LpDual | JointDual
"""Proof of a lower bound on the time of a collective on a machine. A `Distance` proves a bound on steps instead."""


@dataclass(frozen=True)
class Tree(Record):
    """A share of a block and the routes that it takes.

    `way`
        "out" of `root` to all ranks that want the block, or "in" to it from all ranks that hold a contribution.
    `rate`
        The weight of the share (a rate of flow where all trees run at once). It may be a fraction: the shares of a
        block sum to the block's weight.
    `routes`
        Lists of links, each from a rank to a rank.
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
    """Read a witness of a bound on time from its JSON; raise Invalid if it is none. Whether it proves the bound is for
    `recheck` to check."""
    try:
        kind = value["kind"]
        if kind == "cut":
            return Cut(
                side=_int_tuple(value["side"]),
                weight=int(value["weight"]),
                capacity=Fraction(value["capacity"]),
                limits=_int_tuple(value["limits"]),
            )
        if kind == "partition":
            parts, limits = tuple(map(_int_tuple, value["parts"])), tuple(map(_int_pair, value["limits"]))
            capacity = Fraction(value["capacity"])
            return Partition(
                parts, direction=str(value["direction"]), weight=int(value["weight"]), capacity=capacity, limits=limits
            )
        if kind == "lp_dual":
            families = tuple(
                Family(
                    of=str(f["of"]),
                    at=_int_tuple(f["at"]),
                    lengths=None if f["lengths"] is None else tuple(map(_int_pair, f["lengths"])),
                )
                for f in value["families"]
            )
            partitions = []
            for partition_json, multiplier in value["partitions"]:
                inner = witness_of(partition_json)
                if not isinstance(inner, Partition):
                    raise TypeError("expected a partition")
                partitions.append((inner, int(multiplier)))
            prices, potentials = tuple(map(_int_pair, value["prices"])), tuple(map(_int_pair, value["potentials"]))
            return LpDual(prices, families, potentials, tuple(partitions))
        if kind == "joint_dual":
            # the duals of the groups have no prices of their own
            duals = [witness_of({**group, "prices": [], "kind": "lp_dual"}) for group in value["groups"]]
            prices = tuple(map(_int_pair, value["prices"]))
            return JointDual(prices, tuple(dual for dual in duals if isinstance(dual, LpDual)))
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise Invalid(f"witness of a bound: cannot be read ({error!r}); plan anew") from None
    raise Invalid(f"witness of a bound: kind {kind!r} is not known (cut, partition, lp_dual, joint_dual); plan anew")


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
    suffix = f" and {len(distinct) - _SHOWN} more" if len(distinct) > _SHOWN else ""
    return ", ".join(distinct[:_SHOWN]) + suffix


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
    # runs of one rank, of three or more, and of two: 8, 0-3 and 4,5
    texts = [str(a) if a == b else f"{a}-{b}" if b > a + 1 else f"{a},{b}" for a, b in runs]
    return "ranks {" + ",".join(texts[:_SHOWN]) + (",..." if len(texts) > _SHOWN else "") + "}"
