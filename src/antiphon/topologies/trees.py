"""Any tree of switches by its fan-outs."""

from __future__ import annotations

from fractions import Fraction

from antiphon.core.topology import LinkType, Topology, build
from antiphon.errors import Invalid, quote
from antiphon.topologies.levels import grow, read_shape
from antiphon.topologies.options import BANDWIDTH, LATENCY, Bandwidth, Latency, factor, link_type, named


def tree(
    *,
    fanouts: str | int,
    bandwidth: Bandwidth = BANDWIDTH,
    uplink: Bandwidth | None = None,
    oversubscription: str | int = 1,
    latency: Latency = LATENCY,
) -> Topology:
    """Switches in a tree, ranks as its leaves.

    fanouts=4x8: a root over 4 switches of 8 ranks. 2x(3+5): 2 switches, of 3 and of 5 ranks. 8*32 in such a list
    stands for eight times 32, and 0 for a rank that hangs there directly: 3x(4+2+0). A rank's link has `bandwidth`.
    A switch's uplink is as wide as its links below together, over `oversubscription`; or `uplink`: for all levels
    (50GB/s), or from the lowest upwards (50GB/s+100GB/s, the last also for what is above).
    """
    shape = read_shape(fanouts)
    leaf = link_type("link", bandwidth, latency)
    thinner = factor(oversubscription, "oversubscription")
    if uplink is not None and thinner != 1:
        raise Invalid(f"uplink={quote(uplink)}: fixes what oversubscription={oversubscription} would; leave one out")
    levels = uplink.split("+") if isinstance(uplink, str) else [] if uplink is None else [uplink]
    given = [link_type("uplink", part, latency, "uplink") for part in levels]

    def above(height: int, below: Fraction) -> LinkType:
        if given:
            return given[min(height, len(given)) - 1]
        return LinkType("uplink", below / thinner, leaf.latency)

    grown = grow(shape, leaf, above)
    name = named(
        f"tree:fanouts={fanouts}", bandwidth=(bandwidth, BANDWIDTH), uplink=(uplink, None),
        oversubscription=(oversubscription, oversubscription if thinner == 1 else 1), latency=(latency, LATENCY),
    )  # fmt: skip
    return build(
        name, grown.ranks, grown.links,
        switches=grown.switches, places=grown.places, unit=leaf.bandwidth,
    )  # fmt: skip
