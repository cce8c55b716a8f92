"""The networks of the GenTree paper's simulations (section on evaluation; parameters in its Table 5).

Speeds follow from Table 5's beta (seconds per float of 4 bytes): 6.4e-9 for a server's link (row "Middle SW", also
for the one switch of ss24 and ss32) and across data centres, 6.4e-10 between a middle switch and the root. Its alpha
(seconds) counts the nodes on a path: 3 alpha inside a switch, 5 by way of the root, 4 and the WAN's alpha across data
centres. The latencies of links that add up to this: 3/2 alpha for a server's link, 1 alpha for a link to the root, and
for the WAN link its own alpha less one alpha.
"""

from __future__ import annotations

from fractions import Fraction

from antiphon.core.topology import LinkType, Topology, both_ways, build
from antiphon.topologies.trees import TreeNodes, grow_tree, read_shape

_ALPHA, _ALPHA_WAN = 6.58e-3, 3e-2  # seconds: inside a data centre, and of the WAN between two (Table 5)


def _bytes_per_second(beta: str) -> Fraction:
    """Return the bandwidth of `beta` seconds per float."""
    return 4 / Fraction(beta)


_SERVER = LinkType("ethernet", _bytes_per_second("6.4e-9"), 1.5 * _ALPHA)
_ROOT = LinkType("trunk", _bytes_per_second("6.4e-10"), _ALPHA)
_WAN = LinkType("wan", _bytes_per_second("6.4e-9"), _ALPHA_WAN - _ALPHA)


def ss24() -> Topology:
    """24 servers on one switch."""
    return _build_tree("ss24", "24")


def ss32() -> Topology:
    """32 servers on one switch."""
    return _build_tree("ss32", "32")


def sym384() -> Topology:
    """A root over 16 middle switches of 24 servers each."""
    return _build_tree("sym384", "16x24")


def sym512() -> Topology:
    """A root over 16 middle switches of 32 servers each."""
    return _build_tree("sym512", "16x32")


def asy384() -> Topology:
    """A root over 8 middle switches of 32 servers and 8 of 16."""
    return _build_tree("asy384", "16x(8*32+8*16)")


def cdc384() -> Topology:
    """Two data centres, 8 middle switches each, of 32 servers in one and of 16 in the other; one link joins their
    roots."""
    data_centres = [_grow_tree(fanouts) for fanouts in ("8x32", "8x16")]
    ranks = sum(centre.ranks for centre in data_centres)
    # all ranks come first, then all switches; per data centre its first rank and its first switch, which is its root
    links, first_nodes = [], [(0, ranks), (data_centres[0].ranks, ranks + data_centres[0].switches)]
    places = [""] * (ranks + sum(centre.switches for centre in data_centres))
    for number, (centre, (rank, switch)) in enumerate(zip(data_centres, first_nodes, strict=True)):
        # the number in this machine of each node of the tree
        node_numbers = [*range(rank, rank + centre.ranks), *range(switch, switch + centre.switches)]
        links += [(node_numbers[a], node_numbers[b], kind) for a, b, kind in centre.links]
        for node, place in zip(node_numbers, centre.places, strict=True):
            places[node] = f"dc{number}/{place}"
    (_, first_root), (_, second_root) = first_nodes
    links += both_ways([(first_root, second_root)], _WAN)
    switches = sum(centre.switches for centre in data_centres)
    return build("cdc384", ranks, links, switches=switches, places=places, unit=_SERVER.bandwidth)


def _grow_tree(fanouts: str) -> TreeNodes:
    """Return a tree of servers; a middle switch has the link `_ROOT` upwards."""
    return grow_tree(read_shape(fanouts), _SERVER, lambda *_: _ROOT, "server")


def _build_tree(name: str, fanouts: str) -> Topology:
    tree = _grow_tree(fanouts)
    return build(name, tree.ranks, tree.links, switches=tree.switches, places=tree.places, unit=_SERVER.bandwidth)
