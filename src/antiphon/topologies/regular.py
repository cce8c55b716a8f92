"""Regular networks of any size, all links alike.

Direct networks: ranks are joined with each other. With routers=true every rank has a switch of its own, and the
switches are joined: then any rank can send to any other in one step, loading every link on the route. The link between
a rank and its switch has no latency and the summed bandwidth of the network links of the switch with most of them
(assumed), so that it is never the bottleneck.
"""

from __future__ import annotations

import math

import numpy as np

from antiphon.core.columns import Longs, as_int32
from antiphon.core.topology import LinkType, Topology
from antiphon.errors import Invalid
from antiphon.options import parse_yes
from antiphon.topologies.options import (
    BANDWIDTH,
    LATENCY,
    Bandwidth,
    Latency,
    check_link_count,
    check_node_count,
    link_type,
    name_with_options,
    parse_dimensions,
    ranks_of,
)

YesOrNo = bool | str  # as `parse_yes` reads it
_AXES = "xyzwvu"  # letters of axes in places ("x1/y0"); with more axes: a0., a1., ...


def ring(
    *, ranks: int, bandwidth: Bandwidth = BANDWIDTH, latency: Latency = LATENCY, routers: YesOrNo = False
) -> Topology:
    """Rank i is linked with i-1 and i+1, both ways (two ranks: one link each way)."""
    nodes = np.arange(ranks_of(ranks))  # at least 2: `ranks_of` refuses fewer
    neighbours = [(nodes + 1) % ranks] if ranks == 2 else [(nodes + 1) % ranks, (nodes - 1) % ranks]
    src, dst = np.tile(nodes, len(neighbours)), np.concatenate(neighbours)
    return _build_network(f"ring:ranks={ranks}", ranks, src, dst, bandwidth, latency, routers)


def line(
    *, ranks: int, bandwidth: Bandwidth = BANDWIDTH, latency: Latency = LATENCY, routers: YesOrNo = False
) -> Topology:
    """Rank i is linked with i+1, both ways; the ends with one neighbour only."""
    lower = np.arange(ranks_of(ranks) - 1)
    src, dst = np.concatenate([lower, lower + 1]), np.concatenate([lower + 1, lower])
    places = tuple(f"x{i}" for i in range(check_node_count(ranks, f"ranks={ranks}")))
    return _build_network(f"line:ranks={ranks}", ranks, src, dst, bandwidth, latency, routers, places)


def full(
    *, ranks: int, bandwidth: Bandwidth = BANDWIDTH, latency: Latency = LATENCY, routers: YesOrNo = False
) -> Topology:
    """A link from every rank to every other."""
    ranks_of(ranks)  # only to refuse what is no number of ranks
    check_link_count(ranks * (ranks - 1), f"ranks={ranks}: a full mesh of that size")
    src, dst = np.divmod(np.arange(ranks * ranks), ranks)
    is_pair = src != dst
    return _build_network(f"full:ranks={ranks}", ranks, src[is_pair], dst[is_pair], bandwidth, latency, routers)


def star(*, ranks: int, bandwidth: Bandwidth = BANDWIDTH, latency: Latency = LATENCY) -> Topology:
    """One switch in the middle, a link each way between it and every rank: a step crosses two links.

    Rank 0 in the middle instead, which holds data and sends on by itself, is a tree of ranks: give it as a file.
    """
    # the switch is the node behind the ranks
    members, middle = np.arange(ranks_of(ranks)), np.full(ranks, ranks)
    src, dst = np.concatenate([members, middle]), np.concatenate([middle, members])
    kind = (link_type("link", bandwidth, latency),)
    name = name_with_options(f"star:ranks={ranks}", bandwidth=(bandwidth, BANDWIDTH), latency=(latency, LATENCY))
    return Topology(
        name,
        ranks,
        switches=1,
        link_src=as_int32(src),
        link_dst=as_int32(dst),
        link_type=np.zeros(2 * ranks, np.int32),
        types=kind,
    )


def mesh(
    *,
    dims: str | int | None = None,
    ranks: int | None = None,
    bandwidth: Bandwidth = BANDWIDTH,
    latency: Latency = LATENCY,
    routers: YesOrNo = False,
) -> Topology:
    """A grid of any dimension: rank = position in row-major order, linked with its neighbours along each axis.

    dims=4x8 gives the sizes; ranks= alone gives two sizes as equal as they can be.
    """
    sizes = parse_dimensions("mesh", dims, ranks)
    return _build_grid("mesh", sizes, bandwidth, latency, routers, closed=False)


def torus(
    *,
    dims: str | int | None = None,
    ranks: int | None = None,
    bandwidth: Bandwidth = BANDWIDTH,
    latency: Latency = LATENCY,
    routers: YesOrNo = False,
) -> Topology:
    """A mesh whose every axis closes to a ring (a size of 2 does already, and keeps one link each way)."""
    sizes = parse_dimensions("torus", dims, ranks)
    return _build_grid("torus", sizes, bandwidth, latency, routers, closed=True)


def hypercube(
    *,
    ranks: int | None = None,
    dims: int | None = None,
    bandwidth: Bandwidth = BANDWIDTH,
    latency: Latency = LATENCY,
    routers: YesOrNo = False,
) -> Topology:
    """Ranks are linked whose numbers differ in one bit; ranks= a power of 2, or dims= the number of bits."""
    if (dims is None) == (ranks is None):
        raise Invalid("hypercube needs ranks or dims, one of them; for example hypercube:ranks=16 or hypercube:dims=4")
    if dims is not None and (isinstance(dims, bool) or not isinstance(dims, int) or not 1 <= dims <= 20):
        raise Invalid(f"dims={dims!r}: expected the number of bits of a rank's number, from 1 to 20")
    count = ranks_of(2**dims if dims is not None else ranks)  # at least 2: `ranks_of` refuses fewer
    if count & (count - 1):
        low = 1 << (count.bit_length() - 1)
        raise Invalid(f"ranks={count}: a hypercube has a power of 2 of them; {low} or {2 * low}")
    sizes = (2,) * (count.bit_length() - 1)
    check_node_count(count, f"ranks={count}")
    name = f"hypercube:ranks={count}"
    return _build_grid("hypercube", sizes, bandwidth, latency, routers, closed=False, name=name)


def _build_grid(
    family: str,
    sizes: tuple[int, ...],
    bandwidth: Bandwidth,
    latency: Latency,
    routers: YesOrNo,
    *,
    closed: bool,
    name: str = "",
) -> Topology:
    """Return a grid, `closed` to rings along every axis or not. Links are in order of axes, each first upwards."""
    ranks = math.prod(sizes)
    check_link_count(2 * len(sizes) * ranks, f"{family} of {ranks} ranks")
    rank = np.arange(ranks)
    position = np.unravel_index(rank, sizes)
    src, dst = [], []
    for axis, size in enumerate(sizes):
        stride = math.prod(sizes[axis + 1 :])
        for direction in (1, -1):
            is_at_end = (position[axis] == size - 1) if direction == 1 else (position[axis] == 0)
            has_neighbour = ~is_at_end | (closed and size > 2)  # of 2, the next rank around is the one before
            hop = np.where(is_at_end, -direction * (size - 1) * stride, direction * stride)
            src.append(rank[has_neighbour])
            dst.append((rank + hop)[has_neighbour])
    axes = [_AXES[a] if len(sizes) <= len(_AXES) else f"a{a}." for a in range(len(sizes))]
    places = tuple(
        "/".join(f"{axis}{value}" for axis, value in zip(axes, coordinates, strict=True))
        for coordinates in zip(*(column.tolist() for column in position), strict=True)
    )
    name = name or f"{family}:dims={'x'.join(map(str, sizes))}"
    return _build_network(name, ranks, np.concatenate(src), np.concatenate(dst), bandwidth, latency, routers, places)


def _build_network(
    name: str,
    ranks: int,
    src: Longs,
    dst: Longs,
    bandwidth: Bandwidth,
    latency: Latency,
    routers: YesOrNo,
    places: tuple[str, ...] = (),
) -> Topology:
    """Return a machine with a link from every `src` to its `dst`; with routers, between the switches of these ranks.

    >>> machine = _build_network("x", 2, np.array([0, 1]), np.array([1, 0]), BANDWIDTH, LATENCY, True)  # routers 2, 3
    >>> machine.link_src.tolist(), machine.link_dst.tolist(), machine.link_type.tolist()
    ([2, 3, 0, 1, 2, 3], [3, 2, 2, 3, 0, 1], [0, 0, 1, 1, 1, 1])
    """
    kind = link_type("link", bandwidth, latency)
    name = name_with_options(name, bandwidth=(bandwidth, BANDWIDTH), latency=(latency, LATENCY))
    if not parse_yes(routers, "routers"):
        return Topology(
            name,
            ranks,
            switches=0,
            link_src=as_int32(src),
            link_dst=as_int32(dst),
            link_type=np.zeros(len(src), np.int32),
            types=(kind,),
            limits=(),
            places=places,
        )
    check_link_count(len(src) + 2 * ranks, f"{name} with routers")
    check_node_count(2 * ranks, f"{name} with routers")
    max_links = int(np.bincount(src, minlength=ranks).max())  # network links of the switch with most of them
    port_type = LinkType("port", max_links * kind.bandwidth, latency=0.0)
    rank_nodes, router_nodes = np.arange(ranks), ranks + np.arange(ranks)
    base_places = places or tuple(f"p{i}" for i in range(ranks))
    # links: the network's (type 0), then from ranks to their switches and back (type 1)
    return Topology(
        f"{name},routers=true", ranks, ranks,
        as_int32(np.concatenate([src + ranks, rank_nodes, router_nodes])),
        as_int32(np.concatenate([dst + ranks, router_nodes, rank_nodes])),
        np.repeat(np.array([0, 1], np.int32), [len(src), 2 * ranks]), (kind, port_type), limits=(),
        places=tuple(f"{place}/{end}" for end in ("rank", "router") for place in base_places), unit=kind.bandwidth,
    )  # fmt: skip
