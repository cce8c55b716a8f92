"""What is asked for: a collective by name, and sizes."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from pathlib import Path
from typing import SupportsIndex

from antiphon.core.collective import KINDS, ROOTED, Collective
from antiphon.core.topology import Topology
from antiphon.errors import Invalid, quote, unknown
from antiphon.units import parse_seconds, parse_size


def is_file(spec: str) -> bool:
    """Whether a collective is named by its file."""
    return spec.endswith((".json", ".json.gz")) or "/" in spec


def collective(
    spec: str, topology: Topology, *, root: int | None = None, ranks: Sequence[int] | None = None
) -> Collective:
    """A collective as people name it ("allreduce", or a JSON file) on this machine, or on a group of its ranks."""
    if not isinstance(spec, str):
        raise Invalid(f"collective: expected its name, its file or a Collective, got {quote(spec)}")
    if ranks is not None:
        ranks = _whole_numbers(ranks)
    if root is not None and (isinstance(root, bool) or not isinstance(root, SupportsIndex)):
        raise Invalid(f"root: expected the number of a rank, got {quote(root)}")
    if is_file(spec):
        from antiphon.core.serialize import load_collective

        loaded = load_collective(Path(spec))
        if loaded.ranks != topology.ranks:
            raise Invalid(
                f"{spec}: the collective is for {loaded.ranks} ranks, but topology {topology.name} has {topology.ranks}"
            )
        if root is not None or ranks is not None:
            raise Invalid(f"{spec}: a collective from a file says itself who takes part; leave out root and ranks")
        return loaded
    if spec not in KINDS:
        raise unknown("collective", spec, KINDS)
    if root is not None and spec not in ROOTED:
        raise Invalid(f"{spec} has no root; leave it out")
    if root is not None and not 0 <= root < topology.ranks:
        raise Invalid(f"root {root} is out of range; topology {topology.name} has ranks 0 to {topology.ranks - 1}")
    return Collective(spec, topology.ranks, tuple(ranks or ()), () if root is None else (operator.index(root),))


def _whole_numbers(ranks: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(operator.index(rank) for rank in ranks)
    except TypeError:
        raise Invalid(f"ranks: expected the numbers of ranks, got {quote(ranks)}") from None


def machine_of(topology: Topology | str, what: str = "topology") -> Topology:
    """A machine, or the one that people call so ("dgx1v", or a JSON file)."""
    if isinstance(topology, str):
        from antiphon.topologies import topology as make

        return make(topology)
    if not isinstance(topology, Topology):
        raise Invalid(f"{what}: expected a Topology, its name or its file, got {quote(topology)}")
    return topology


def budget_of(budget: float | str) -> float:
    """Seconds, or as people write them ("5s")."""
    seconds = parse_seconds(budget, "budget", bare=True)
    if not seconds > 0:
        raise Invalid(f"budget: must be greater than 0 seconds, got {quote(budget)}")
    return seconds


def sizes_of(nbytes: SupportsIndex | str | Sequence[int | str]) -> tuple[tuple[int, int], tuple[int, ...]]:
    """The range asked for ("1KB:1GB", one size, or two), and the sizes to price: its two ends and the powers of two
    in it; of three sizes or more just these."""
    parts: list[SupportsIndex | str]
    if isinstance(nbytes, str):
        parts = [*nbytes.split(":")]
    elif isinstance(nbytes, SupportsIndex):
        parts = [nbytes]
    elif isinstance(nbytes, Sequence):
        parts = list(nbytes)
    else:
        parts = []
    if not parts or (len(parts) > 2 and isinstance(nbytes, str)):
        raise Invalid(f"nbytes: expected a size or a range such as 1KB:1GB, got {quote(nbytes)}")
    given = [_size(part) for part in parts]
    low, high = (min(given), max(given)) if len(given) > 2 else (given[0], given[-1])
    if low < 1 or high < low:
        raise Invalid(f"nbytes: expected a range from 1 byte or more upwards, such as 1KB:1GB, got {quote(nbytes)}")
    if len(given) > 2:
        return (low, high), tuple(sorted(set(given)))
    powers = {1 << k for k in range((low - 1).bit_length(), high.bit_length())}
    return (low, high), tuple(sorted({low, high, *powers}))


def _size(value: SupportsIndex | str) -> int:
    if isinstance(value, str | bool):
        return parse_size(value, "nbytes")
    try:
        return parse_size(operator.index(value), "nbytes")
    except TypeError:
        raise Invalid(f"nbytes: expected a size such as 64KB, got {quote(value)}") from None
