"""Regular networks of any size, all links alike.

Direct networks: ranks are joined with each other. With routers=true every rank hangs on a switch of its own and the
switches are joined: then any rank can send to any other in one step, loading every link on the way. The link between
a rank and its switch is as wide as all network links of the widest switch together and takes no time (assumed), so
that it never binds before the network does.
"""

from __future__ import annotations

import math

import numpy as np

from antiphon.core.columns import Longs, narrow
from antiphon.core.topology import LinkType, Topology
from antiphon.errors import Invalid
from antiphon.options import parse_yes
from antiphon.topologies.options import (
    BANDWIDTH,
    LATENCY,
    Bandwidth,
    Latency,
    dimensions,
    link_type,
    most_links,
    most_placed,
    named,
    ranks_of,
)

Switch = bool | str
_AXES = "xyzwvu"


def ring(
    *, ranks: int, bandwidth: Bandwidth = BANDWIDTH, latency: Latency = LATENCY, routers: Switch = False
) -> Topology:
    """Rank i is linked with i-1 and i+1, both ways (two ranks: one link each way)."""
    here = np.arange(ranks_of(ranks))
    nearby = [(here + 1) % ranks] if ranks == 2 else [(here + 1) % ranks, (here - 1) % ranks]
    src, dst = np.tile(here, len(nearby)), np.concatenate(nearby)
    return _network(f"ring:ranks={ranks}", ranks, src, dst, bandwidth, latency, routers)


def line(
    *, ranks: int, bandwidth: Bandwidth = BANDWIDTH, latency: Latency = LATENCY, routers: Switch = False
) -> Topology:
    """Rank i is linked with i+1, both ways; the ends with one neighbour only."""
    here = np.arange(ranks_of(ranks) - 1)
    src, dst = np.concatenate([here, here + 1]), np.concatenate([here + 1, here])
    places = tuple(f"x{i}" for i in range(most_placed(ranks, f"ranks={ranks}")))
    return _network(f"line:ranks={ranks}", ranks, src, dst, bandwidth, latency, routers, places)


def full(
    *, ranks: int, bandwidth: Bandwidth = BANDWIDTH, latency: Latency = LATENCY, routers: Switch = False
) -> Topology:
    """A link from every rank to every other."""
    ranks_of(ranks)
    most_links(ranks * (ranks - 1), f"ranks={ranks}: a full mesh of so many")
    src, dst = np.divmod(np.arange(ranks * ranks), ranks)
    apart = src != dst
    return _network(f"full:ranks={ranks}", ranks, src[apart], dst[apart], bandwidth, latency, routers)


def star(*, ranks: int, bandwidth: Bandwidth = BANDWIDTH, latency: Latency = LATENCY) -> Topology:
    """One switch in the middle, a link each way between it and every rank: a step crosses two links.

    Rank 0 in the middle instead, which holds data and sends on by itself, is a tree of ranks: give it as a file.
    """
    here, middle = np.arange(ranks_of(ranks)), np.full(ranks, ranks)
    src, dst = np.concatenate([here, middle]), np.concatenate([middle, here])
    kind = (link_type("link", bandwidth, latency),)
    name = named(f"star:ranks={ranks}", bandwidth=(bandwidth, BANDWIDTH), latency=(latency, LATENCY))
    return Topology(name, ranks, 1, narrow(src), narrow(dst), np.zeros(2 * ranks, np.int32), kind)


def mesh(
    *,
    dims: str | int | None = None,
    ranks: int | None = None,
    bandwidth: Bandwidth = BANDWIDTH,
    latency: Latency = LATENCY,
    routers: Switch = False,
) -> Topology:
    """A grid of any dimension: rank = position in row-major order, linked with its neighbours along each axis.

    dims=4x8 gives the sizes; ranks= alone gives two sizes as equal as they can be.
    """
    return _grid("mesh", dimensions("mesh", dims, ranks), False, bandwidth, latency, routers)


def torus(
    *,
    dims: str | int | None = None,
    ranks: int | None = None,
    bandwidth: Bandwidth = BANDWIDTH,
    latency: Latency = LATENCY,
    routers: Switch = False,
) -> Topology:
    """A mesh whose every axis closes to a ring (a size of 2 does already, and keeps one link each way)."""
    return _grid("torus", dimensions("torus", dims, ranks), True, bandwidth, latency, routers)


def hypercube(
    *,
    ranks: int | None = None,
    dims: int | None = None,
    bandwidth: Bandwidth = BANDWIDTH,
    latency: Latency = LATENCY,
    routers: Switch = False,
) -> Topology:
    """Ranks are linked whose numbers differ in one bit; ranks= a power of 2, or dims= how many bits."""
    if (dims is None) == (ranks is None):
        raise Invalid("hypercube needs ranks or dims, one of them; for example hypercube:ranks=16 or hypercube:dims=4")
    if dims is not None and (isinstance(dims, bool) or not isinstance(dims, int) or not 1 <= dims <= 20):
        raise Invalid(f"dims={dims!r}: expected how many bits a rank's number has, from 1 to 20")
    count = ranks_of(2**dims if dims is not None else ranks)
    if count & (count - 1):
        low = 1 << (count.bit_length() - 1)
        raise Invalid(f"ranks={count}: a hypercube has a power of 2 of them; {low} or {2 * low}")
    sizes = (2,) * (count.bit_length() - 1)
    most_placed(count, f"ranks={count}")
    return _grid("hypercube", sizes, False, bandwidth, latency, routers, f"hypercube:ranks={count}")


def _grid(
    family: str,
    sizes: tuple[int, ...],
    closed: bool,
    bandwidth: Bandwidth,
    latency: Latency,
    routers: Switch,
    name: str = "",
) -> Topology:
    """Links axis by axis, towards higher positions first. O(ranks * axes)."""
    ranks = math.prod(sizes)
    most_links(2 * len(sizes) * ranks, f"{family} of {ranks} ranks")
    number = np.arange(ranks)
    at = np.unravel_index(number, sizes)
    src, dst = [], []
    for axis, size in enumerate(sizes):
        stride = math.prod(sizes[axis + 1 :])
        for way in (1, -1):
            wraps = (at[axis] == size - 1) if way == 1 else (at[axis] == 0)
            goes = ~wraps | (closed and size > 2)
            hop = np.where(wraps, -way * (size - 1) * stride, way * stride)
            src.append(number[goes])
            dst.append((number + hop)[goes])
    axes = [f"{_AXES[a]}" if len(sizes) <= len(_AXES) else f"a{a}." for a in range(len(sizes))]
    places = tuple(
        "/".join(f"{axis}{value}" for axis, value in zip(axes, where, strict=True))
        for where in zip(*(column.tolist() for column in at), strict=True)
    )
    name = name or f"{family}:dims={'x'.join(map(str, sizes))}"
    return _network(name, ranks, np.concatenate(src), np.concatenate(dst), bandwidth, latency, routers, places)


def _network(
    name: str,
    ranks: int,
    src: Longs,
    dst: Longs,
    bandwidth: Bandwidth,
    latency: Latency,
    routers: Switch,
    places: tuple[str, ...] = (),
) -> Topology:
    """The ranks joined like this, or, with routers, a switch per rank joined like this.

    >>> made = _network("x", 2, np.array([0, 1]), np.array([1, 0]), BANDWIDTH, LATENCY, True)  # routers 2 and 3
    >>> made.link_src.tolist(), made.link_dst.tolist(), made.link_type.tolist()
    ([2, 3, 0, 1, 2, 3], [3, 2, 2, 3, 0, 1], [0, 0, 1, 1, 1, 1])
    """
    kind = link_type("link", bandwidth, latency)
    name = named(name, bandwidth=(bandwidth, BANDWIDTH), latency=(latency, LATENCY))
    if not parse_yes(routers, "routers"):
        return Topology(name, ranks, 0, narrow(src), narrow(dst), np.zeros(len(src), np.int32), (kind,), (), places)
    most_links(len(src) + 2 * ranks, f"{name} with routers")
    most_placed(2 * ranks, f"{name} with routers")
    widest = int(np.bincount(src, minlength=ranks).max())
    own = LinkType("port", widest * kind.bandwidth, 0.0)
    here, there = np.arange(ranks), ranks + np.arange(ranks)
    where = places or tuple(f"p{i}" for i in range(ranks))
    return Topology(
        f"{name},routers=true", ranks, ranks,
        narrow(np.concatenate([src + ranks, here, there])), narrow(np.concatenate([dst + ranks, there, here])),
        np.repeat(np.array([0, 1], np.int32), [len(src), 2 * ranks]), (kind, own), (),
        tuple(f"{place}/rank" for place in where) + tuple(f"{place}/router" for place in where), kind.bandwidth,
    )  # fmt: skip
