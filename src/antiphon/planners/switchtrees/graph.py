"""Read a machine as a tree of switches with the members as leaves.

Input: a machine and its members. Output of `read_tree`: a `UnrootedTree` that is a tree, without a root yet; raises
Unsupported, with a cycle named, if the machine is no tree even after two simplifications:

    parallel switches   Real fabrics are not trees: a leaf-spine network has many spine switches. Spines that join the
                        same leaf switches are equivalent, so they are merged into one switch whose links have the total
                        bandwidth, from the leaves up (`_merge_switches`). (GenTree, section 4.2, keeps one of them and
                        forgets the others.)
    boxes               A host whose GPUs are joined inside, and which has several network cards, becomes one switch
                        with the GPUs below it (`_find_boxes`).

Example: 4 leaf switches, each linked to 2 spines by 100 GB/s links, become 4 leaf switches below one spine with 200
GB/s to each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from antiphon.core.columns import Ints
from antiphon.core.topology import Topology
from antiphon.errors import Unsupported
from antiphon.planners.shared.groups import ranks_by_host

HINT = "use trees, relay, ring or hierarchical-ring"  # end of error messages


@dataclass(frozen=True, eq=False)
class UnrootedTree:
    """A tree without a root. Nodes 0..servers-1 are the members, the others switches (merged ones and boxes, too)."""

    servers: int
    names: tuple[str, ...]  # by node
    neighbours: tuple[tuple[int, ...], ...]  # by node
    links: dict[tuple[int, int], list[int]]  # (node, neighbour) -> the machine's links from node to neighbour
    plain: bool  # nothing was merged and each pair has one link, so a path in the tree is a path of the machine
    boxes: bool  # some nodes are boxes


def read_tree(topology: Topology, members: Sequence[int]) -> UnrootedTree:
    """Return the tree that joins these ranks; raises Unsupported if there is none. O(links log links)."""
    box, boxes = _find_boxes(topology, members)
    a, b, link = _link_ends(topology, members, box)
    links: dict[tuple[int, int], list[int]] = {}
    for first, second, link_number in zip(a.tolist(), b.tolist(), link.tolist(), strict=True):
        links.setdefault((first, second), []).append(link_number)
    neighbours_of: dict[int, set[int]] = {rank: set() for rank in members}
    # only neighbours that are linked both ways: the two halves of an allreduce run in opposite directions
    for first, second in links:
        if (second, first) in links:
            neighbours_of.setdefault(first, set()).add(second)
            neighbours_of.setdefault(second, set()).add(first)
    _check_leaves(topology, members, neighbours_of, boxes)
    # nodes of the tree: each set of merged switches is represented by its lowest number
    representative = _merge_switches(topology, neighbours_of, boxes)
    merged_into = {node: representative.get(node, node) for node in neighbours_of}
    # the tree of merged nodes, without switches that lead to no member
    tree: dict[int, set[int]] = {}
    for node, neighbours in neighbours_of.items():
        tree.setdefault(merged_into[node], set()).update(merged_into[second] for second in neighbours)
    _prune_switches(tree, set(members))
    if not set(members) <= tree.keys() or not _is_connected(tree):
        raise Unsupported(
            f"planner gentree: the switches of {topology.name} do not join all ranks that take part; "
            "use relay, or ranks that are joined"
        )
    # number the nodes, members first, and collect the links between them
    nodes = [*members, *sorted(node for node in tree if node >= topology.ranks)]
    number = {node: i for i, node in enumerate(nodes)}
    tree_links: dict[tuple[int, int], list[int]] = {}
    for (first, second), link_numbers in links.items():
        tail, head = merged_into.get(first, -1), merged_into.get(second, -1)  # -1: a node without links both ways
        if tail in number and head in number and tail != head:
            tree_links.setdefault((number[tail], number[head]), []).extend(link_numbers)
    merged_nodes: dict[int, list[int]] = {}  # by representative
    for node in sorted(merged_into):
        merged_nodes.setdefault(merged_into[node], []).append(node)
    return UnrootedTree(
        len(members),
        tuple(_switch_name(topology, merged_nodes[node], boxes) for node in nodes),
        tuple(tuple(sorted(number[second] for second in tree[node])) for node in nodes),
        tree_links,
        plain=not boxes and not representative and all(len(links) == 1 for links in tree_links.values()),
        boxes=bool(boxes),
    )


def _link_ends(topology: Topology, members: Sequence[int], box: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the ends and numbers of the links, as the tree sees them: a rank's links within a box lead to the box.

    `box`: by node, its box (-1: none). A link between two ranks of a box counts twice: from its sender to the box, and
    from the box to its receiver.
    """
    src, dst, link = topology.link_src, topology.link_dst, np.arange(topology.links, dtype=np.int32)
    takes_part = np.zeros(topology.nodes, np.bool_)  # members and all switches
    takes_part[list(members)] = True
    takes_part[topology.ranks :] = True
    used = takes_part[src] & takes_part[dst]
    src, dst, link = src[used], dst[used], link[used]
    # links within a box lead from a rank to the box, or from the box to a rank; the others keep their ends, with boxes
    # in place of the switches and cards inside
    within_box = (box[src] == box[dst]) & (box[src] >= 0)
    to_box, from_box, outer = within_box & (src < topology.ranks), within_box & (dst < topology.ranks), ~within_box
    outer_src, outer_dst = (np.where(box[end] >= 0, box[end], end) for end in (src[outer], dst[outer]))
    return (
        np.concatenate([src[to_box], box[dst[from_box]], outer_src]),
        np.concatenate([box[src[to_box]], dst[from_box], outer_dst]),
        np.concatenate([link[to_box], link[from_box], link[outer]]),
    )


def _find_boxes(topology: Topology, members: Sequence[int]) -> tuple[Ints, list[str]]:
    """Return, by node, the number of its box (from `topology.nodes` on; -1: none), and the names of the boxes.

    There are boxes if ranks have several neighbours and their places name several hosts. Raises Unsupported if the
    members of a box are not joined inside it.
    """
    no_box = np.full(topology.nodes, -1, np.int32)
    pairs = np.unique(topology.link_src.astype(np.int64) * topology.nodes + topology.link_dst)
    neighbour_counts = np.bincount(pairs // topology.nodes, minlength=topology.nodes)[: topology.ranks]
    if not topology.switches or not len(neighbour_counts) or neighbour_counts.max() < 2:
        return no_box, []
    groups = ranks_by_host(topology, range(topology.ranks))
    host_names = _host_names(topology, groups)
    if host_names is None:
        return no_box, []
    box = no_box.copy()
    number = {name: topology.nodes + i for i, name in enumerate(host_names)}
    for node, place in enumerate(topology.places):
        levels = place.split("/")
        # the box whose name is the beginning of the node's place
        box[node] = next((number[p] for i in range(len(levels)) if (p := "/".join(levels[: i + 1])) in number), -1)
    is_member = np.zeros(topology.nodes, np.bool_)
    is_member[list(members)] = True
    for group in groups:
        _check_joined_inside(topology, [rank for rank in group if is_member[rank]], box)
    return box, host_names


def _host_names(topology: Topology, groups: Sequence[Sequence[int]]) -> list[str] | None:
    """Return the name of every host, the common beginning of its ranks' places; None if these are not distinct."""
    names = []
    for group in groups:
        paths = [topology.places[rank].split("/")[:-1] for rank in group]
        # the longest common prefix of all the host's places: the names on each level, while there is one only
        levels = takewhile(lambda level: len(level) == 1, map(set, zip(*paths, strict=False)))
        names.append("/".join(name for (name,) in levels))
    return names if len(names) > 1 and all(names) and len(set(names)) == len(names) else None


def _check_joined_inside(topology: Topology, group: Sequence[int], box: Ints) -> None:
    """Raise Unsupported unless these ranks are pairwise linked, or joined by switches, without leaving their box."""
    if len(group) < 2:
        return
    box_number = box[group[0]]
    inner_links = np.flatnonzero((box[topology.link_src] == box_number) & (box[topology.link_dst] == box_number))
    out: dict[int, list[int]] = {}
    for link in inner_links.tolist():
        out.setdefault(int(topology.link_src[link]), []).append(int(topology.link_dst[link]))
    for source in group:
        reached, pending = {source}, [source]
        while pending:
            new_nodes = [node for node in out.get(pending.pop(), ()) if node not in reached]
            reached.update(new_nodes)
            pending += [node for node in new_nodes if node >= topology.ranks]  # only switches forward
        unreachable = [rank for rank in group if rank not in reached]
        if unreachable:
            raise Unsupported(
                f"planner gentree: rank {source} and rank {unreachable[0]} of {topology.name} are in one box, but not "
                f"linked or joined by switches in it; {HINT}"
            )


def _check_leaves(
    topology: Topology, members: Iterable[int], neighbours_of: dict[int, set[int]], boxes: Sequence[str]
) -> None:
    """Raise Unsupported unless every member is linked to exactly one switch."""
    for rank in members:
        neighbours = sorted(neighbours_of[rank])
        if len(neighbours) == 1 and neighbours[0] >= topology.ranks:
            continue
        if not neighbours:
            raise Unsupported(
                f"planner gentree: rank {rank} of {topology.name} has no links both ways; use relay, or ranks that are "
                "joined"
            )
        cycle = _find_cycle(neighbours_of)
        why = (
            f"a cycle leads through {_list_nodes(topology, cycle, boxes)}"
            if cycle
            else f"rank {rank} is linked with {_list_nodes(topology, neighbours, boxes)}, and ranks do not forward"
        )
        raise Unsupported(
            f"planner gentree: {topology.name} is no tree of switches with ranks as leaves: {why}; {HINT}"
        )


def _merge_switches(topology: Topology, neighbours_of: dict[int, set[int]], boxes: Sequence[str]) -> dict[int, int]:
    """Return, for switches that are merged, the node that represents them.

    Leaves are removed again and again, as long as there are any; a tree vanishes. If nodes remain, they form cycles:
    the lowest remaining switches are joined by several switches above them. The upper switches are merged if each lower
    switch is linked with all of them or with none (spines, or the planes of a fat tree). Otherwise raises Unsupported.
    """
    representative: dict[int, int] = {}
    remaining = {node: set(neighbours) for node, neighbours in neighbours_of.items()}
    low = {node for node in remaining if node < topology.ranks}  # servers, and switches right above what was removed
    # each pass removes leaves until none is left, then merges one layer of parallel switches
    while len(remaining) > 1:
        leaves = [node for node, neighbours in remaining.items() if len(neighbours) <= 1]
        while leaves:
            node = leaves.pop()
            for neighbour in remaining.pop(node, set()):  # set(): it may have been listed twice
                remaining[neighbour].discard(node)
                if node in low:
                    low.add(neighbour)
                if len(remaining[neighbour]) == 1:
                    leaves.append(neighbour)
        if len(remaining) <= 1:
            break
        groups = _find_parallel_switches(remaining, low)
        if not groups:
            cycle = _find_cycle(remaining)
            cycle_names = _list_nodes(topology, cycle, boxes)
            raise Unsupported(
                f"planner gentree: {topology.name} is no tree: a cycle leads through {cycle_names}; {HINT}"
            )
        for group in groups:
            first = min(group)
            for node in group:
                representative[node] = first
            # nodes merged earlier into a switch of this group are now merged into `first`, too
            representative |= {node: first for node, to in representative.items() if to in group}
            neighbours = set().union(*(remaining.pop(node) for node in group))
            for neighbour in neighbours:
                remaining[neighbour] = (remaining[neighbour] - group) | {first}
            remaining[first] = neighbours
    return representative


def _find_parallel_switches(remaining: dict[int, set[int]], low: set[int]) -> list[set[int]]:
    """Return groups of switches to merge: those above a low node, if they all are linked with the same low nodes.

    `low`: the servers, and the switches right above what `_merge_switches` removed.
    """
    groups: list[set[int]] = []
    grouped: set[int] = set()
    for node in sorted(remaining):
        above = remaining[node]
        # nodes that are linked with low ones have no single layer above; a single switch above needs no merging
        if node not in low or above & low or len(above) < 2 or above & grouped:
            continue
        # all low nodes at these switches must be linked with exactly the same ones
        below = {other for high in above for other in remaining[high] if other in low}
        if all(remaining[other] == above for other in below) and not any(remaining[high] & above for high in above):
            groups.append(set(above))
            grouped |= above
    return groups


def _find_cycle(neighbours_of: dict[int, set[int]]) -> list[int]:
    """Return the nodes of some cycle, or []."""
    remaining = {node: set(neighbours) for node, neighbours in neighbours_of.items()}
    leaves = [node for node, neighbours in remaining.items() if len(neighbours) <= 1]
    while leaves:
        node = leaves.pop()
        for neighbour in remaining.pop(node, set()):
            remaining[neighbour].discard(node)
            if len(remaining[neighbour]) <= 1:
                leaves.append(neighbour)
    if not remaining:
        return []
    # without leaves every node has two neighbours or more: a walk that never turns back must return to one of its nodes
    path = [min(remaining)]
    while True:
        before = path[-2] if len(path) > 1 else -1
        next_node = min(node for node in remaining[path[-1]] if node != before)
        if next_node in path:
            return path[path.index(next_node) :]
        path.append(next_node)


def _prune_switches(tree: dict[int, set[int]], members: set[int]) -> None:
    """Remove switches below which there is no member."""
    useless = [node for node, neighbours in tree.items() if len(neighbours) <= 1 and node not in members]
    while useless:
        node = useless.pop()
        for neighbour in tree.pop(node, set()):
            tree[neighbour].discard(node)
            if len(tree[neighbour]) <= 1 and neighbour not in members:
                useless.append(neighbour)


def _is_connected(tree: dict[int, set[int]]) -> bool:
    """Return whether all nodes can be reached from any of them."""
    reached = {next(iter(tree))}
    pending = list(reached)
    while pending:
        new_nodes = tree[pending.pop()] - reached
        reached |= new_nodes
        pending += new_nodes
    return len(reached) == len(tree)


def _switch_name(topology: Topology, nodes: Sequence[int], boxes: Sequence[str]) -> str:
    """Return the name of a node that was merged from `nodes`.

    It is the place of a switch, the places of the first and last of merged switches, or a box's name (`boxes`: by box;
    box i is node `topology.nodes` + i).
    """
    if nodes[0] >= topology.nodes:
        return boxes[nodes[0] - topology.nodes]
    places = [topology.places[node] for node in nodes]
    return places[0] if len(places) == 1 else f"{places[0]}..{places[-1].rpartition('/')[2]}"


def _list_nodes(topology: Topology, nodes: Sequence[int], boxes: Sequence[str]) -> str:
    """Return the names of up to six nodes, for an error."""
    names = [
        topology.node_name(node) if node < topology.nodes else f"box {_switch_name(topology, [node], boxes)}"
        for node in nodes[:6]
    ]
    return ", ".join(names) + (" and more" if len(nodes) > 6 else "")
