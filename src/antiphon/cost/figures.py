"""Hold the LogGP parameters of a profile, by level and by message size.

The parameters are

    L          latency in seconds
    o_s, o_r   seconds that the sender and the receiver spend per message
    g          minimum seconds between two messages of a rank (LogGP calls it the gap)
    G          seconds per byte of a message
    gamma      seconds per byte that a rank reduces

A *level* holds the parameters between ranks that share a place, such as a host. Example: with levels "host" and ""
(everything else) ranks in one host use the first, all other pairs the second. Parameters may depend on the message
size; between the listed sizes they are interpolated linearly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from antiphon.core.columns import Longs
from antiphon.core.topology import Topology
from antiphon.errors import Invalid, quote
from antiphon.units import exact

Floats = NDArray[np.float64]
FIGURES = ("L", "o_s", "o_r", "g", "G", "gamma")  # LogGP's parameters, see the module
PACKET = 4096  # default size of a packet, in bytes
MAX_PACKET = 2**40  # bytes
MAX_RADIX = 2**16  # simultaneous messages
MAX_FIGURE = 3600.0  # seconds, or seconds per byte


@dataclass(frozen=True)
class Level:
    """The parameters between ranks that share a place: linear between `sizes`, constant outside of them.

    Each parameter (see the module) has one value, or one for every size.
    """

    within: str = ""  # name of the place without number ("host": host0, host1, ...); "": all other pairs
    sizes: tuple[float, ...] = (1,)  # bytes, ascending
    L: tuple[float, ...] = (0.0,)
    o_s: tuple[float, ...] = (0.0,)
    o_r: tuple[float, ...] = (0.0,)
    g: tuple[float, ...] = (0.0,)
    G: tuple[float, ...] = (0.0,)
    gamma: tuple[float, ...] = (0.0,)

    def __post_init__(self) -> None:
        sizes = _parse_figures(self.sizes, "sizes", float("inf"))
        if not sizes or any(b <= a for a, b in pairwise(sizes)):
            raise Invalid("sizes: expected bytes in ascending order, each once")
        # A single size is arbitrary, as the figures are then constant.
        object.__setattr__(self, "sizes", sizes if len(sizes) > 1 else (1.0,))
        for name in FIGURES:
            values = _parse_figures(getattr(self, name), name, MAX_FIGURE)
            if len(values) == 1:
                values *= len(sizes)
            if len(values) != len(sizes):
                raise Invalid(
                    f"{name}: {len(values)} figures for {len(sizes)} sizes; give one for each, or one for all"
                )
            object.__setattr__(self, name, values)

    def at(self, nbytes: ArrayLike) -> dict[str, Floats]:
        """Return every parameter at these sizes, in bytes."""
        sizes = np.asarray(nbytes, np.float64)
        return {name: np.interp(sizes, self.sizes, getattr(self, name)) for name in FIGURES}

    def as_json(self) -> dict[str, Any]:
        row: dict[str, Any] = {"within": self.within} if self.within else {}
        if len(self.sizes) > 1:
            row["sizes"] = list(self.sizes)
        for name in FIGURES:
            values = getattr(self, name)
            if any(values):
                row[name] = values[0] if len(set(values)) == 1 else list(values)
        return row


@dataclass(frozen=True)
class LogGP:
    """Levels from the innermost to the outermost, and the limits on simultaneous messages (None: no limit)."""

    levels: tuple[Level, ...]
    device_radix: int | None = 1  # messages that a rank sends at once; it receives as many
    node_radix: int | None = 1  # packets of messages that a host's network card sends at once; it receives as many
    node: str = "host"  # name of the place whose ranks share a network card
    packet: int = PACKET  # bytes of a packet, into which messages between hosts are cut

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", tuple(self.levels))
        if not self.levels or not all(isinstance(level, Level) for level in self.levels):
            raise Invalid("levels: expected one Level or more, the innermost first")
        names = [level.within for level in self.levels]
        if len(set(names)) < len(names) or "" in names[:-1]:
            raise Invalid('levels: every "within" once, and only the last level may be without one')
        for name in ("device_radix", "node_radix", "packet"):
            value = getattr(self, name)
            if value is None and name != "packet":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_PACKET:
                raise Invalid(f"{name}: expected a whole number from 1 on, got {quote(value)}")
            if name != "packet" and value > MAX_RADIX:
                raise Invalid(f"{name}: at most {MAX_RADIX}, got {value}; null stands for no limit")

    def groups(self, topology: Topology) -> tuple[Longs, ...]:
        """Return for every level the number of each rank's place, -1 if no place of the rank has that name."""
        return tuple(places_named(topology, level.within) for level in self.levels)

    def nodes(self, topology: Topology) -> Longs:
        """Return the node of every rank, -1 if it is in none (its network card is not shared)."""
        return places_named(topology, self.node)

    def as_json(self) -> dict[str, Any]:
        row: dict[str, Any] = {"levels": [level.as_json() for level in self.levels]}
        row |= {"device_radix": self.device_radix, "node_radix": self.node_radix}
        row |= {"node": self.node} if self.node != "host" else {}
        return row | ({"packet": self.packet} if self.packet != PACKET else {})


def places_named(topology: Topology, name: str) -> Longs:
    """Return per rank the number of the place of this name that it is in, -1 if none; "": a place that all share.

    A rank's place is written such as "host3/gpu1". O(ranks).
    """
    number_of: dict[str, int] = {}
    place_numbers = []
    for place in topology.places[: topology.ranks]:
        components = place.split("/")[:-1]  # without the last one, which is the rank itself
        at = next((i for i, component in enumerate(components) if component.rstrip("0123456789") == name), None)
        if name and at is None:
            place_numbers.append(-1)
            continue
        path = "/".join(components[: at + 1]) if name and at is not None else ""  # "": the place of all ranks
        place_numbers.append(number_of.setdefault(path, len(number_of)))
    return np.array(place_numbers, np.int64)


class LevelRow(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A level in a profile's file; fields as in `Level`."""

    within: str = ""
    sizes: list[float] | float = 1
    L: list[float] | float = 0
    o_s: list[float] | float = 0
    o_r: list[float] | float = 0
    g: list[float] | float = 0
    G: list[float] | float = 0
    gamma: list[float] | float = 0


class LogGPRow(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The value of "loggp" in a profile's file; fields as in `LogGP`."""

    levels: list[LevelRow]
    device_radix: int | None = 1
    node_radix: int | None = 1
    node: str = "host"
    packet: int = PACKET

    def read(self) -> LogGP:
        """Build the parameters; raise Invalid with the level's number."""
        levels = []
        for number, row in enumerate(self.levels):
            fields: Mapping[str, Any] = {name: getattr(row, name) for name in ("sizes", *FIGURES)}
            try:
                levels.append(Level(row.within, **fields))
            except Invalid as error:
                raise Invalid(f"loggp.levels[{number}].{error}") from None
        return LogGP(tuple(levels), self.device_radix, self.node_radix, self.node, self.packet)


def _parse_figures(values: object, label: str, maximum: float) -> tuple[float, ...]:
    """Return one figure or several as floats from 0 to `maximum`."""
    sequence = values if isinstance(values, Sequence) and not isinstance(values, str) else (values,)
    if isinstance(values, np.ndarray):
        sequence = values.tolist()
    figures = []
    for value in sequence:
        number = exact(value, label)
        if not 0 <= number <= maximum:
            limit = "" if maximum == float("inf") else f" to {maximum:g}"
            raise Invalid(f"{label}: expected figures from 0 on{limit}, got {quote(value)}")
        figures.append(float(number))
    return tuple(figures)
