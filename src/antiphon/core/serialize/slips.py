"""Warn about valid but unlikely values of a topology file: bandwidths and latencies without unit, one-way links.

Example: "bandwidth": 25 means 25 bytes per second, but its author most likely meant 25 GB/s; the warning names the
position and the likely unit. Values written with a unit ("25B/s", "1s") are never reported: write one to confirm it.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from antiphon.core.columns import pair_keys
from antiphon.core.jsontext import locate
from antiphon.core.serialize.schemas import Exact, TopologyRow
from antiphon.units import exact, is_bare, plain

MIN_BANDWIDTH = 10**6  # bytes per second: no link or card of today is slower
MAX_GB_NUMBER = 10**3  # a number without a unit below this is most likely in GB/s, else in MB/s
MAX_LATENCY = 0.1  # seconds: no link has a greater latency; a 1 without a unit is most likely 1 us
_ONE_WAY_ADVICE = "give it a type of its own if one way is meant"


def bandwidth_out(bandwidth: Fraction) -> int | str:
    """Return a bandwidth as written to files: a number, with its unit if it would otherwise be reported as a slip."""
    number = plain(bandwidth)
    return f"{number}B/s" if bandwidth < MIN_BANDWIDTH else number


def latency_out(seconds: float) -> float | str:
    """Return a latency as written to files: a number of seconds, with its unit if it would be reported as a slip."""
    return f"{seconds!r}s" if seconds >= MAX_LATENCY else seconds


def first_slip(row: TopologyRow, data: bytes, prefix: str = "") -> str:
    """Return a warning about the first unlikely value, with its position and the number of others; "" for none. Linear.

    `prefix`: the path of the topology in the file ("topology." in a plan), for positions in `data`.
    """
    # The one-way links of a plan's topology were reported when the topology's own file was read.
    slips = [*_bare_values(row), *(() if prefix else _one_way(row))]
    if not slips:
        return ""
    value_path, explanation = slips[0]
    others_text = f" (and {len(slips) - 1} more like it in this file)" if len(slips) > 1 else ""
    path = prefix + value_path
    return f"{locate(f'{path}: ', data)}{path}: {explanation}{others_text}"


def _bare_values(row: TopologyRow) -> Iterator[tuple[str, str]]:
    """Yield the path of each value that likely lacks its unit, and the likely intention."""
    speeds: list[tuple[str, Exact | None]] = [
        (f"types[{i}].bandwidth", kind.bandwidth) for i, kind in enumerate(row.types)
    ]
    speeds += [(f"limits[{i}].bandwidth", limit.bandwidth) for i, limit in enumerate(row.limits)]
    speeds += [(f"cards[{i}].bandwidth", card.bandwidth) for i, card in enumerate(row.cards)]
    for path, speed in [*speeds, ("unit", row.unit)]:
        if speed is not None and is_bare(speed) and exact(speed) < MIN_BANDWIDTH:
            unit = "GB/s" if exact(speed) < MAX_GB_NUMBER else "MB/s"
            yield (
                path,
                f'{speed} without a unit is in bytes per second; write "{speed}{unit}", or "{speed}B/s" if it is meant',
            )
    for i, kind in enumerate(row.types):
        latency = kind.latency
        if not isinstance(latency, str) and latency >= MAX_LATENCY:
            yield (
                f"types[{i}].latency",
                f'{latency} without a unit is in seconds; write "{latency}us", or "{latency}s" if it is meant',
            )


def _one_way(row: TopologyRow) -> Iterator[tuple[str, str]]:
    """Yield links without a reverse link, of types most of whose links have one (otherwise the type is one-way)."""
    src_of, dst_of, type_of = np.array(row.links, np.int64).reshape(-1, 3).T
    lacks_reverse = ~np.isin(pair_keys(src_of, dst_of), pair_keys(dst_of, src_of))
    one_way_count, link_count = (
        np.bincount(types, minlength=len(row.types)) for types in (type_of[lacks_reverse], type_of)
    )
    is_two_way = 2 * one_way_count <= link_count
    for link in np.flatnonzero(lacks_reverse & is_two_way[type_of]).tolist():
        src, dst, kind = row.links[link]
        yield (
            f"links[{link}]",
            f"[{src}, {dst}, {kind}] has no link back; add [{dst}, {src}, {kind}], or {_ONE_WAY_ADVICE}",
        )
