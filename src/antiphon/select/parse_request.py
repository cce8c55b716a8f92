"""Convert the arguments of a request to values: collective, machine, budget and sizes, as people write them.

For example "allreduce" or a JSON file, "dgx1v" or "ring:ranks=8", "5s", and "1KB:1GB". A wrong argument raises Invalid
with its name and what is expected.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import SupportsIndex

from antiphon.core.collective import KINDS, ROOTED, Collective, kind_named
from antiphon.core.reshape import linked_ranks
from antiphon.core.topology import Topology
from antiphon.errors import Invalid, quote, unknown, warn_unlikely
from antiphon.units import Sizes, Span, parse_seconds, parse_sizes, parse_span, ranks_text


def is_file(spec: str) -> bool:
    """Return whether a text is the path of a file, and not a name."""
    return spec.endswith((".json", ".json.gz")) or "/" in spec


def names_groups(spec: str) -> bool:
    """Return whether a collective's text names groups, as in allreduce@rows."""
    return "@" in spec and not is_file(spec)


def collective(
    spec: str, topology: Topology, *, root: int | None = None, ranks: Sequence[int] | None = None,
    mesh: str | Mapping[str, int] | None = None,
) -> Collective:  # fmt: skip
    """Return a collective by its name ("allreduce") or JSON file on this machine, or on a subset of its ranks; or that
    of several groups at the same time ("allreduce@rows", "allreduce@data" with a mesh).

    `root`, `ranks`: of a collective by its name. Default: its lowest rank; all ranks, of a degraded machine those that
    still have links.
    """
    if not isinstance(spec, str):
        raise Invalid(f"collective: expected its name, its file or a Collective, got {quote(spec)}")
    if ranks is not None:
        ranks = _rank_numbers(ranks)
    if root is not None and (isinstance(root, bool) or not isinstance(root, SupportsIndex)):
        raise Invalid(f"root: expected the number of a rank, got {quote(root)}")
    if names_groups(spec):
        from antiphon.select.parse_groups import joint_collective

        if root is not None:
            raise Invalid(f"{spec}: the lowest rank of every group is its root; leave root out")
        return joint_collective(spec, topology, mesh=mesh, ranks=ranks)
    if mesh:
        raise Invalid(f"mesh: {spec} names no dimension of it; write {spec}@DIMENSION")
    if is_file(spec):
        from antiphon.core.serialize import load_collective

        loaded = load_collective(Path(spec))
        if loaded.ranks != topology.ranks:
            raise Invalid(
                f"{spec}: the collective is for {loaded.ranks} ranks, but topology {topology.name} has {topology.ranks}"
            )
        if root is not None or ranks is not None:
            raise Invalid(f"{spec}: a collective from a file names its own ranks and root; leave out root and ranks")
        return loaded
    kind = kind_named(spec)
    if kind is None:
        raise unknown("collective", spec, KINDS)
    if root is not None and kind not in ROOTED:
        raise Invalid(f"{kind} has no root; leave it out")
    if root is not None and not 0 <= root < topology.ranks:
        raise Invalid(f"root {root} is out of range; topology {topology.name} has ranks 0 to {topology.ranks - 1}")
    roots = () if root is None else (operator.index(root),)
    return Collective(kind, topology.ranks, tuple(ranks or _connected_ranks(topology, root)), roots)


def _connected_ranks(topology: Topology, root: int | None) -> tuple[int, ...]:
    """Return the ranks that take part if none are named: on a degraded machine (`degrade`), those that still have
    links, with a warning that names the others.

    (): all, also where fewer than two ranks have links. On other machines a rank without links is a mistake.
    """
    from antiphon.topologies.degraded import DEGRADED

    if DEGRADED not in topology.name:
        return ()
    linked = linked_ranks(topology)
    if len(linked) == topology.ranks or len(linked) < 2:
        return ()
    unlinked = ranks_text(sorted({*range(topology.ranks)} - {*linked}))
    if root is not None and root not in linked:
        raise Invalid(f"root {root}: has no links on {topology.name}; choose a rank that has (not {unlinked})")
    warn_unlikely(f"{topology.name}: ranks without links are left out: {unlinked}")
    return tuple(linked)


def _rank_numbers(ranks: Sequence[int]) -> tuple[int, ...]:
    """Return ranks as ints, NumPy's included."""
    try:
        return tuple(operator.index(rank) for rank in ranks)
    except TypeError:
        raise Invalid(f"ranks: expected the numbers of ranks, got {quote(ranks)}") from None


def machine_of(topology: Topology | str, name: str = "topology") -> Topology:
    """Return a machine from itself, its name ("dgx1v") or its file. `name`: of the argument, for errors."""
    if isinstance(topology, str):
        from antiphon.topologies import topology as read_spec

        return read_spec(topology)
    if not isinstance(topology, Topology):
        raise Invalid(f"{name}: expected a Topology, its name or its file, got {quote(topology)}")
    return topology


def budget_of(budget: float | str) -> float:
    """Return the seconds of a budget: a number, or a text such as "5s"."""
    seconds = parse_seconds(budget, "budget", bare=True)
    if not seconds > 0:
        raise Invalid(f"budget: must be greater than 0 seconds, got {quote(budget)}")
    return seconds


def sizes_of(nbytes: Sizes) -> tuple[tuple[int, int], tuple[int, ...]]:
    """Return the least and the greatest size, and the sizes to price.

    FROM:TO means both ends and the powers of two between them; FROM:TO:FACTOR means FROM times powers of the factor,
    and TO; a list of sizes means these.
    """
    if isinstance(nbytes, str):
        low, high, factor = parse_span(nbytes)
        powers = (1 << k for k in range(max(low - 1, 0).bit_length(), high.bit_length()))  # of two, from low to high
        sizes = {low, high, *(powers if factor is None else Span(low, high, factor).sizes())}
    else:
        sizes = set(parse_sizes(nbytes))
    if not sizes or min(sizes) < 1:
        raise Invalid(f"nbytes: expected a size from 1 byte, or a range such as 1KB:1GB, got {quote(nbytes)}")
    return (min(sizes), max(sizes)), tuple(sorted(sizes))
