"""Apply failures to a machine: links that are down or slow, named as `topology show` prints them, missing ranks, or a
random fraction of failed links.

A link is named by its two ends: "0-1", "3-nvswitch", or whole places. A fraction of links is chosen by hashing each
pair of nodes with the seed and taking the smallest hashes, so that a larger fraction includes a smaller one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from antiphon.core.reshape import degrade, keep
from antiphon.core.topology import Topology
from antiphon.errors import Invalid, quote, unknown, warn_unlikely
from antiphon.units import exact

Pair = tuple[int, int]
DEGRADED = " degraded"  # appended to the machine's name, once


def degrade_machine(
    topology: Topology,
    *,
    drop_links: Sequence[str] = (),
    slow: Mapping[str, object] | None = None,
    drop_ranks: Sequence[int] = (),
    fraction: object = None,
    seed: int = 0,
) -> Topology:
    """Return the machine after these failures; a link stands for both directions.

    `drop_links`: failed links. `slow`: by link the remaining bandwidth, a factor below 1 (0.5: half) or a bandwidth.
    `fraction`: the share of all links that fail, chosen by `seed`. `drop_ranks`: removed last; the others are
    renumbered from 0. Linear in the links, times the different values of `slow`.
    """
    if not (drop_links or slow or drop_ranks or fraction is not None):
        raise Invalid("degrade: says nothing to degrade; give drop_links, slow, drop_ranks or fraction")
    name = topology.name if topology.name.endswith(DEGRADED) else f"{topology.name}{DEGRADED}"
    machine = topology
    by_value: dict[str, list[Pair]] = {}
    for link, remaining in (slow or {}).items():
        by_value.setdefault(str(remaining), []).append(pair_of(topology, link))
    for remaining, pairs in by_value.items():
        machine = degrade(machine, pairs=pairs, name=name, **_degrade_arguments(remaining))  # type: ignore[arg-type]
    dropped = [pair_of(topology, link) for link in drop_links]
    if fraction is not None:
        dropped += _chosen_pairs(topology, fraction, seed)
    if dropped:
        machine = degrade(machine, pairs=list(dict.fromkeys(dropped)), remove=True, name=name)
    if drop_ranks:
        dropped_ranks = {_check_rank(topology, rank) for rank in drop_ranks}
        surviving = [rank for rank in range(topology.ranks) if rank not in dropped_ranks]
        if not surviving:
            raise Invalid("drop_ranks: names every rank; leave at least one")
        machine = keep(machine, surviving).topology
    _warn_if_disconnected(machine)
    return machine


def pair_of(topology: Topology, link: str) -> Pair:
    """Return the two nodes of a link as people name it: "0-1", "3-nvswitch", "host0/gpu3-host0/nvswitch"."""
    for at in (i for i, char in enumerate(link) if char == "-"):  # names may have a hyphen, too
        ends = [_nodes_named(topology, name.strip()) for name in (link[:at], link[at + 1 :])]
        if all(ends):
            for name, nodes in zip((link[:at], link[at + 1 :]), ends, strict=True):
                if len(nodes) > 1:
                    candidates = ", ".join(topology.places[node] for node in nodes[:4])
                    raise Invalid(f"link {quote(link)}: {name.strip()} could be {candidates}; name the whole place")
            return ends[0][0], ends[1][0]
    if "-" not in link:
        raise Invalid(f"link {quote(link)}: expected two nodes, such as 0-1")
    unknown_end = next((p.strip() for p in link.split("-", 1) if not _nodes_named(topology, p.strip())), link)
    raise unknown(
        f"node of {topology.name}", unknown_end, [*map(str, range(topology.ranks)), *topology.places[topology.ranks :]]
    )


def _nodes_named(topology: Topology, name: str) -> list[int]:
    """Return the nodes of this name: a number, a place, or the last parts of a place."""
    if name.isdigit() and len(name) < 10:
        return [int(name)] if int(name) < topology.nodes else []
    exact_matches = [node for node, place in enumerate(topology.places) if place == name]
    return exact_matches or [node for node, place in enumerate(topology.places) if place.endswith(f"/{name}")]


def _degrade_arguments(remaining: str) -> dict[str, object]:
    """Return the arguments of `degrade`: a bandwidth as upper limit, or a factor of time."""
    if any(char.isalpha() for char in remaining.replace("e-", "")):
        return {"to": remaining}
    share = exact(remaining, "slow")
    if not 0 < share < 1:
        raise Invalid(f"slow: {quote(remaining)}: expected the remaining bandwidth, such as 0.5 or 10GB/s")
    return {"slower": 1 / share}


def _chosen_pairs(topology: Topology, fraction: object, seed: int) -> list[Pair]:
    """Return the fraction (rounded up) of all linked pairs of nodes whose hashes with the seed are smallest."""
    share: Fraction = exact(fraction, "fraction")
    if not 0 < share < 1:
        raise Invalid(f"fraction: expected a number between 0 and 1, such as 0.02, got {quote(fraction)}")
    low, high = (f(topology.link_src, topology.link_dst) for f in (np.minimum, np.maximum))
    pairs = np.unique(np.stack([low, high], axis=1), axis=0).tolist()

    def order(pair: list[int]) -> bytes:
        return hashlib.sha256(f"{seed} {pair[0]} {pair[1]}".encode()).digest()

    return [(a, b) for a, b in sorted(pairs, key=order)[: math.ceil(share * len(pairs))]]


def _check_rank(topology: Topology, rank: int) -> int:
    if not 0 <= rank < topology.ranks:
        raise Invalid(f"drop_ranks: rank {rank} is out of range; {topology.name} has ranks 0 to {topology.ranks - 1}")
    return rank


def _warn_if_disconnected(topology: Topology) -> None:
    """Warn if some rank is no longer reached from rank 0, or no longer reaches it."""
    for src, dst, how in (
        (topology.link_src, topology.link_dst, "is no longer reached from rank 0"),
        (topology.link_dst, topology.link_src, "no longer reaches rank 0"),
    ):
        reached = np.zeros(topology.nodes, bool)
        reached[0] = True
        count = 0
        while count != (count := int(reached.sum())):
            reached[dst[reached[src]]] = True
        unreached = np.flatnonzero(~reached[: topology.ranks])
        if unreached.size:
            ranks = f"rank {unreached[0]}" + (f" (and {unreached.size - 1} more)" if unreached.size > 1 else "")
            warn_unlikely(f"{topology.name}: {ranks} {how}; collectives of all ranks have no plan there")
            return
