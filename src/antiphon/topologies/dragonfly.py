"""Dragonfly: groups of fully joined routers, groups joined pairwise (Kim, Dally, Scott, Abts, ISCA 2008)."""

from __future__ import annotations

from antiphon.core.topology import LinkType, Topology, both_ways, build
from antiphon.topologies.options import (
    BANDWIDTH,
    LATENCY,
    MAX_LISTED,
    Bandwidth,
    Latency,
    check_integer,
    check_link_count,
    check_node_count,
    link_type,
    name_with_options,
)
from antiphon.units import parse_bandwidth


def dragonfly(
    *,
    groups: int = 9,
    routers: int = 4,
    hosts: int = 2,
    bandwidth: Bandwidth = BANDWIDTH,
    local_bandwidth: Bandwidth | None = None,
    global_bandwidth: Bandwidth | None = None,
    latency: Latency = LATENCY,
) -> Topology:
    """`groups` groups of `routers` routers with `hosts` ranks each; the default is the paper's Figure 5 (72 ranks).

    Inside a group every router is joined with every other. Any two groups are joined by one link; a group's
    links to others are distributed over its routers in order, as evenly as possible. All links are as fast as a rank's
    (25 GB/s: HPE Slingshot 11, 200 Gbit/s) unless local_bandwidth or global_bandwidth say otherwise; the
    latency of each link is assumed.
    """
    check_integer(groups, "groups", 1, 10_000)
    check_integer(routers, "routers", 1, 10_000)
    check_integer(hosts, "hosts", 1, 10_000)
    ranks = check_integer(groups * routers * hosts, "groups times routers times hosts", 2)
    check_node_count(ranks + groups * routers, "dragonfly")
    links_of_groups = groups * routers * (routers - 1) + groups * (groups - 1)  # local and global, both ways
    check_link_count(2 * ranks + links_of_groups, "dragonfly", MAX_LISTED)
    port = link_type("port", bandwidth, latency)
    local_link = _link_like(port, "local", local_bandwidth)
    global_link = _link_like(port, "global", global_bandwidth)

    def router(group: int, number: int) -> int:
        """Return the node of a router: ranks come first."""
        return ranks + group * routers + number

    links = both_ways([(rank, ranks + rank // hosts) for rank in range(ranks)], port)
    pairs = [(a, b) for a in range(routers) for b in range(a + 1, routers)]
    links += both_ways([(router(g, a), router(g, b)) for g in range(groups) for a, b in pairs], local_link)
    # Link k (from 0) of group g leads to group g + k + 1, where it is link groups - 2 - k, which leads back to g:
    # (g + k + 1) + (groups - 2 - k) + 1 = g + groups. Router k * routers // group_links of a group has its link k.
    group_links = groups - 1
    links += both_ways(
        [
            (
                router(g, k * routers // group_links),
                router((g + k + 1) % groups, (group_links - 1 - k) * routers // group_links),
            )
            for g in range(groups)
            for k in range(group_links)
            if g < (g + k + 1) % groups  # once per pair
        ],
        global_link,
    )
    places = [f"group{r // (hosts * routers)}/router{r // hosts % routers}/rank{r}" for r in range(ranks)]
    places += [f"group{g}/router{a}" for g in range(groups) for a in range(routers)]
    name = name_with_options(
        f"dragonfly:groups={groups},routers={routers},hosts={hosts}", bandwidth=(bandwidth, BANDWIDTH),
        local_bandwidth=(local_bandwidth, None), global_bandwidth=(global_bandwidth, None), latency=(latency, LATENCY),
    )  # fmt: skip
    return build(name, ranks, links, switches=groups * routers, places=places, unit=port.bandwidth)


def _link_like(port: LinkType, kind: str, bandwidth: Bandwidth | None) -> LinkType:
    """Return a link of this kind ("local", "global") and bandwidth, by default that of a rank's port."""
    speed = port.bandwidth if bandwidth is None else parse_bandwidth(bandwidth, f"{kind}_bandwidth")
    return LinkType(kind, speed, port.latency)
