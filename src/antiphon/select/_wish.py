"""What is asked for: a collective by name, and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from antiphon.core.collective import KINDS, ROOTED, Collective
from antiphon.core.topology import Topology
from antiphon.errors import Invalid, quote, unknown
from antiphon.units import parse_size


def is_file(spec: str) -> bool:
    """Whether a collective is named by its file."""
    return spec.endswith((".json", ".json.gz")) or "/" in spec


def collective(
    spec: str, topology: Topology, *, root: int | None = None, ranks: Sequence[int] | None = None
) -> Collective:
    """A collective as people name it ("allreduce", or a JSON file) on this machine, or on a group of its ranks."""
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
    return Collective(spec, topology.ranks, tuple(ranks or ()), () if root is None else (root,))


def sizes_of(nbytes: int | str | Sequence[int]) -> tuple[tuple[int, int], tuple[int, ...]]:
    """The range asked for ("1KB:1GB", one size, or two), and the sizes to price: the powers of two in it.

    Where there is none in it, its two ends.
    """
    if isinstance(nbytes, str):
        parts: list[int | str] = [*nbytes.split(":")]
    else:
        parts = [nbytes] if isinstance(nbytes, int) else list(nbytes)
    if not 1 <= len(parts) <= 2:
        raise Invalid(f"nbytes: expected a size or a range such as 1KB:1GB, got {quote(nbytes)}")
    low, high = parse_size(parts[0], "nbytes"), parse_size(parts[-1], "nbytes")
    if low < 1 or high < low:
        raise Invalid(f"nbytes: expected a range from 1 byte or more upwards, such as 1KB:1GB, got {quote(nbytes)}")
    powers = [1 << k for k in range((low - 1).bit_length(), high.bit_length())]
    return (low, high), tuple(powers or sorted({low, high}))
