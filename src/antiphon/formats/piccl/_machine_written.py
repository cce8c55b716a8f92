"""Write a machine and its LogGP parameters for PICCL, a simulator of collectives by the LogGP model: nested groups, and
a file of parameters for each level.

Input: a topology and a profile with LogGP parameters, whose levels say for which pairs of ranks they hold ("within" a
host, a rack, or all). Output: topology.xml with a <group> per place, nested, and a CSV file of parameters per level. In
PICCL a pair of ranks has the parameters of its lowest common group, so the profile's levels must be nested likewise.

    levels of the profile: "host", ""       <group level="1" param_file="level1.csv">     all ranks
                                              <group level="0" param_file="level0.csv">   a host, with a <node
                                              id=.../> for each rank
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from xml.sax.saxutils import quoteattr

import numpy as np

from antiphon.core.columns import Longs
from antiphon.core.topology import Topology
from antiphon.cost.figures import MAX_RADIX, Level, LogGP
from antiphon.errors import Unsupported
from antiphon.formats.piccl.figures import figures_text

TOPOLOGY = "topology.xml"


@dataclass(frozen=True, eq=False)
class _Tier:
    """A level of the file: it divides all ranks into groups, each with the figures of one level of the profile."""

    group: Longs  # by rank
    level: Longs  # by group: the number of the profile's level whose figures it has


def topology_files(topology: Topology, loggp: LogGP) -> dict[str, str]:
    """Return topology.xml and level0.csv, ... by name. O(ranks * levels).

    PICCL's format has no name, device radix (messages that a rank sends at once; PICCL has an argument for it) and
    gamma: they are additional attributes and an additional column, which our reader (_topology.py) reads. The size of
    packets is not written.
    """
    tiers = _make_tiers(topology, loggp)
    names = _file_names(tiers)
    _check_nodes(topology, loggp, tiers)
    # `ports` in PICCL: packets that the network card of a computer sends at once
    ports = loggp.node_radix if loggp.node_radix is not None else MAX_RADIX
    radix = loggp.device_radix if loggp.device_radix is not None else MAX_RADIX
    name = quoteattr(topology.name)
    lines = [f'<topo num_nodes="{topology.ranks}" num_levels="{len(tiers)}" name={name} device_radix="{radix}">']
    _write_groups(lines, tiers, len(tiers) - 1, np.arange(topology.ranks), names, ports)
    files = {TOPOLOGY: "\n".join([*lines, "</topo>"]) + "\n"}
    return files | {name: figures_text(replace(loggp.levels[i], within="")) for i, name in names.items()}


def _write_groups(
    lines: list[str], tiers: list[_Tier], number: int, ranks: Longs, names: dict[int, str], ports: int
) -> None:
    """Add the groups of tier `number` that contain `ranks`, with all groups inside them. `names`: the parameter file of
    each level of the profile."""
    tier = tiers[number]
    for group in np.unique(tier.group[ranks]).tolist():
        inside = ranks[tier.group[ranks] == group]
        indent = "    " * (len(tiers) - number)
        port_attribute = f' ports="{ports}"' if number == 0 else ""
        file = quoteattr(names[int(tier.level[group])])
        lines.append(f'{indent}<group level="{number}" id="{group}"{port_attribute} param_file={file}>')
        if number:
            _write_groups(lines, tiers, number - 1, inside, names, ports)
        else:
            lines.extend(f'{indent}    <node id="{rank}"/>' for rank in inside.tolist())
        lines.append(f"{indent}</group>")


def _make_tiers(topology: Topology, loggp: LogGP) -> list[_Tier]:
    """Return the tiers, the inmost first: each divides all ranks into groups.

    A level of the profile without some of the ranks shares a tier with the next level that has them all. Where a group
    of that tier is a place of the incomplete level, it has the figures of the incomplete (inner) level.

    Example: ranks 0 and 1 are in a host and in rack a, 2 to 4 in rack b without a host. Levels "host", "rack", "" give
    two tiers: racks a (with the figures of "host") and b (with those of "rack"), then all ranks.
    """
    tiers: list[_Tier] = []
    waiting: list[tuple[int, Longs]] = []  # levels (number, groups) of the next tier
    for number, group in enumerate(loggp.groups(topology)):  # by rank its place of this level, -1 if it has none
        if (group < 0).all():
            continue
        waiting.append((number, group))
        if (group < 0).any():
            continue
        level = np.full(int(group.max()) + 1, number, np.int64)
        for inner, inner_groups in reversed(waiting[:-1]):  # outer ones first, so that the innermost figures stay
            for place in np.unique(inner_groups[inner_groups >= 0]).tolist():
                around = np.unique(group[inner_groups == place])
                if len(around) > 1 or int((group == around[0]).sum()) != int((inner_groups == place).sum()):
                    raise _refuse_level(loggp.levels[inner], "covers a part only of a place of the next level")
                level[around[0]] = inner
        if tiers and not _is_within(tiers[-1].group, group):
            raise _refuse_level(loggp.levels[number], "cuts through the places of the level inside it")
        tiers.append(_Tier(group, level))
        waiting = []
    if waiting or not tiers or int(tiers[-1].group.max()) > 0:
        raise Unsupported("PICCL needs figures for every pair: give the profile a last level without a place")
    return tiers


def _is_within(inner: Longs, outer: Longs) -> bool:
    """Return whether every inner group lies in one outer group."""
    # by inner group the outer group of its last rank, which is that of all its ranks if it lies in one
    around = np.full(int(inner.max()) + 1, -1, np.int64)
    around[inner] = outer
    return bool((around[inner] == outer).all())


def _refuse_level(level: Level, why: str) -> Unsupported:
    return Unsupported(
        f"level {level.within or 'of all'!r} of the profile {why}; PICCL has groups in groups of all ranks"
    )


def _check_nodes(topology: Topology, loggp: LogGP, tiers: list[_Tier]) -> None:
    """Check that the ranks that share a network card are PICCL's inmost groups, which have the ports."""
    if loggp.node_radix is None or len(tiers) == 1:
        return
    nodes = loggp.nodes(topology)
    if (nodes < 0).any() or not (_is_within(nodes, tiers[0].group) and _is_within(tiers[0].group, nodes)):
        raise Unsupported(
            f"the profile shares a NIC in every {loggp.node!r}, PICCL in every place of the inmost level; "
            f"give the profile figures within {loggp.node!r}"
        )


def _file_names(tiers: list[_Tier]) -> dict[int, str]:
    """Return the name of the parameter file of each level of the profile."""
    names: dict[int, str] = {}
    for number, tier in enumerate(tiers):
        # the outer level, which is the greatest number, gets the plain name
        for i, level in enumerate(np.unique(tier.level)[::-1].tolist()):
            names[level] = f"level{number}.csv" if i == 0 else f"level{number}-{i}.csv"
    return names
