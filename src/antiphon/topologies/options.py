"""Parse the options of topologies: integers, dimensions, factors, speeds; and limit sizes before memory is used.

In `torus:dims=4x8,bandwidth=25GB/s`, `parse_dimensions` turns "4x8" into (4, 8), and `link_type` parses the speed.
Every error names the option and what was expected.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

from antiphon.core.topology import LinkType
from antiphon.errors import Invalid, quote, unknown
from antiphon.topologies.spec import KEYS_WITH_UNITS
from antiphon.units import exact, parse_bandwidth, parse_seconds

# Limits of a machine of the catalogue, so that a short name cannot fill the memory
MAX_LINKS = 2**25  # links, where they are built as arrays (regular.py)
MAX_LISTED = 2**19  # links, where they are built one by one as Python objects (the other files)
MAX_PLACED = 2**20  # nodes, since their places are built one by one
MAX_DIMENSIONS = 20

Bandwidth = str | int | float | Fraction
Latency = str | int | float
BANDWIDTH, LATENCY = "25GB/s", "1us"  # defaults of a link


def check_integer(value: object, option: str, low: int = 1, high: int = MAX_PLACED) -> int:
    """Check that an option is a whole number from low to high; return it."""
    # here and below: Python counts True as the number 1, which ranks=true must not be
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise Invalid(f"{option}={quote(value)}: expected a whole number from {low} to {high}")
    return value


def ranks_of(ranks: object) -> int:
    """Parse a number of ranks: at least two."""
    if isinstance(ranks, bool) or not isinstance(ranks, int) or not 2 <= ranks <= MAX_PLACED:
        raise Invalid(
            f"ranks={quote(ranks)}: expected a whole number; a network needs at least 2 ranks, at most {MAX_PLACED}"
        )
    return ranks


def one_of(value: object, option: str, names: tuple[str, ...]) -> str:
    """Check that an option is one of a few names; return it."""
    if not isinstance(value, str) or value not in names:
        raise unknown(option, value, names)
    return value


def parse_oversubscription(value: object) -> Fraction:
    """Parse a number of 1 or more: 2, 1.5 or 3/2."""
    number = exact(value, "oversubscription")
    if not 1 <= number <= 10**6:
        why = "expected a number of 1 or more (2 = half as much upwards as downwards)"
        raise Invalid(f"oversubscription={quote(value)}: {why}")
    return number


def link_type(kind: str, bandwidth: Bandwidth, latency: Latency, option: str = "") -> LinkType:
    """Return a type of link with bandwidth and latency parsed, such as "25GB/s" and "1us".

    `kind`: its name in files. `option`: the option that they are from, for errors; "": those called bandwidth, latency.
    """
    where = f"{option}: " if option else ""
    return LinkType(kind, parse_bandwidth(bandwidth, f"{where}bandwidth"), parse_seconds(latency, f"{where}latency"))


def name_with_options(name: str, **options: tuple[object, object]) -> str:
    """Return a machine's name with the options that differ from their defaults, so that it specifies the machine.

    Each option is (value, default). "100GB/s" and 10**11 are the same bandwidth.
    """
    changed = ((key, value) for key, (value, default) in options.items() if not _is_default(key, value, default))
    texts = [f"{key}={as_text(key, value)}" for key, value in changed]
    separator = "," if ":" in name else ":"  # the name may have options already
    return name + (separator + ",".join(texts) if texts else "")


def as_text(key: str, value: object) -> str:
    """Return an option's value as in a machine's name; a number of an option with a unit is seconds or bytes/s."""
    if isinstance(value, str | bool) or not KEYS_WITH_UNITS.fullmatch(key):
        return str(value).strip()
    return f"{value}s" if key.endswith("latency") else f"{exact(value)}B/s"


def _is_default(key: str, value: object, default: object) -> bool:
    """Return whether an option has its default; None: not set."""
    if value is None or default is None:
        return value is default
    if key.endswith("bandwidth"):
        return parse_bandwidth(value) == parse_bandwidth(default)  # type: ignore[arg-type]
    return parse_seconds(value) == parse_seconds(default) if key == "latency" else value == default  # type: ignore[arg-type]


def parse_dimensions(name: str, dims: object, ranks: object) -> tuple[int, ...]:
    """Return the sizes along each axis, from dims=4x8, from ranks= (two axes, as equal as they can be), or both.

    A size of 1 is refused, as it adds nothing; a prime number of ranks without `dims` gives a single axis.
    """
    if dims is None:
        if ranks is None:
            raise Invalid(f"{name} needs dims or ranks; for example {name}:dims=4x4 or {name}:ranks=16")
        count = check_node_count(ranks_of(ranks), name)
        shorter = next(i for i in range(math.isqrt(count), 0, -1) if count % i == 0)  # the shorter axis
        return (shorter, count // shorter) if shorter > 1 else (count,)
    text = str(dims) if not isinstance(dims, bool) else ""
    if len(text) > 100 or not re.fullmatch(r"[0-9]+(x[0-9]+)*", text):
        raise Invalid(f"dims={quote(dims)}: expected sizes such as 4x8 or 2x2x4")
    sizes = tuple(int(size) for size in text.split("x"))
    if len(sizes) > MAX_DIMENSIONS or min(sizes) < 2:
        raise Invalid(f"dims={quote(dims)}: expected at most {MAX_DIMENSIONS} sizes of at least 2 each")
    count = check_node_count(math.prod(sizes), f"dims={text}")
    if ranks is not None and ranks != count:
        raise Invalid(f"dims={text} makes {count} ranks, but ranks={quote(ranks)}; leave one of them out")
    return sizes


def check_node_count(nodes: int, subject: str) -> int:
    """Raise Invalid for a machine with too many nodes, before any memory is used; return the number."""
    if nodes > MAX_PLACED:
        raise Invalid(f"{subject}: makes {nodes} ranks and switches; at most {MAX_PLACED}")
    return nodes


def check_link_count(links: int, subject: str, limit: int = MAX_LINKS) -> int:
    """Raise Invalid for a machine with too many links, before any memory is used; return the number."""
    if links > limit:
        raise Invalid(f"{subject}: makes {links} links; at most {limit}")
    return links
