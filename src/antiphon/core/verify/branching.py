"""Check the trees of joints: their paths must form a tree, and its switches must be able to do their part in it.

A joint binds the rows of one multicast (one source, several destinations), one reduction (several sources, one
destination) or both. Its paths must form a tree. In a multicast every switch at which the tree branches must multicast;
in a reduction every switch at which branches meet must reduce.

A tree with several sources and several destinations needs a *hub*, a switch at which combining ends and spreading
begins: every link then serves combining, if it leads towards the hub, or spreading, if it leads away. Testing each node
as hub separately would be quadratic. Instead the number of faults with a node as hub is computed for all nodes at once
by rerooting: moving the hub across one link only changes what the two ends of this link require of each other. So the
faults at the first node plus the sum of changes along the path give the faults everywhere.

A *place* in this file is a node of the machine within one joint's tree; a rank has two, one as a source and one as a
destination.

Example: 4 GPUs under one NVLS switch, allreduce joint: 4 sources, 4 destinations. The switch as hub reduces 4 inputs
and multicasts to 4 outputs: no fault if it has both abilities.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from antiphon.core.columns import Bools, Ints, Longs, dense, distinct, ranges, starts
from antiphon.core.routes import Resolved
from antiphon.core.topology import Topology


@dataclass(frozen=True, eq=False)
class JointRows:
    """Rows of joints, grouped: those of joint i are the indices ptr[i] to ptr[i + 1] - 1.

    `row`: row numbers in the schedule; `joint_of`: the joint of each (0, 1, ...); `src`, `dst`: its ranks.
    """

    row: Longs
    joint_of: Longs
    ptr: Longs
    src: Ints
    dst: Ints

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def only(self, joints: Longs) -> JointRows:
        """Return the rows of these joints."""
        size = np.diff(self.ptr)[joints]
        index = ranges(self.ptr[joints], size)
        joint_of = np.repeat(np.arange(len(joints)), size)
        return JointRows(self.row[index], joint_of, np.append(0, np.cumsum(size)), self.src[index], self.dst[index])

    def _distinct_ranks(self, end: Ints) -> Longs:
        """Return joint * 2^32 + rank for every rank at this end of a joint's rows, each once."""
        return distinct((self.joint_of << 32) | end)

    @cached_property
    def sources(self) -> Longs:
        """The number of distinct sources per joint."""
        return np.bincount(self._distinct_ranks(self.src) >> 32, minlength=len(self))

    @cached_property
    def destinations(self) -> Longs:
        """The number of distinct destinations per joint."""
        return np.bincount(self._distinct_ranks(self.dst) >> 32, minlength=len(self))

    @cached_property
    def lacking(self) -> Longs:
        """The number of missing rows per joint: each source must send to each destination other than itself.

        >>> rows = np.arange(3)  # the first joint lacks 0 to 3 and 1 to 2
        >>> joints = JointRows(rows, np.array([0, 0, 1]), np.array([0, 2, 3]), np.array([0, 1, 0]), np.array([2, 3, 2]))
        >>> joints.sources.tolist(), joints.destinations.tolist(), joints.lacking.tolist()
        ([2, 1], [2, 1], [2, 0])
        """
        ends_of_both = np.intersect1d(
            self._distinct_ranks(self.src), self._distinct_ranks(self.dst), assume_unique=True
        )
        twice = np.bincount(ends_of_both >> 32, minlength=len(self))
        return self.sources * self.destinations - twice - np.diff(self.ptr)


@dataclass(frozen=True, eq=False)
class Abilities:
    """The abilities of every node, for an operator and data type if given; ranks as destinations are numbered after all
    nodes."""

    multicast: Bools
    reduce: Bools
    through: Bools  # combines data that pass through it on the way to other switches
    own: Bools  # a rank's own contribution crosses its link, too
    at_once: Longs  # the number of joints that it serves in one step; 0: any number

    @staticmethod
    def of(topology: Topology, op: str | None, dtype: str | None) -> Abilities:
        """Look up the abilities of all nodes."""
        nodes = topology.nodes + topology.ranks
        op = "sum" if op == "avg" else op  # ranks divide, once
        no = np.zeros(nodes, np.bool_)
        out = Abilities(no, no.copy(), no.copy(), no.copy(), np.zeros(nodes, np.int64))
        for node, ability in enumerate(topology.abilities, topology.ranks):
            out.multicast[node], out.reduce[node] = ability.multicast, ability.combines(op, dtype)
            out.through[node], out.own[node], out.at_once[node] = ability.through, ability.own, ability.at_once
        return out


@dataclass(frozen=True, eq=False)
class Tree:
    """The links of all joints, each once, as a forest of places (see the module), which are sorted by joint."""

    joint: Longs  # per place
    node: Longs  # per place; ranks as destinations are numbered after all nodes
    link: Longs  # the links, each from place `tail` to place `head`
    tail: Longs
    head: Longs
    order: Longs  # places in breadth-first order from the first one of each joint; unconnected ones are missing
    up: Longs  # the place before each in that search; -1 for the first

    @staticmethod
    def of(joints: JointRows, topology: Topology, resolved: Resolved) -> Tree:
        """Build the forest from the paths of the rows."""
        route = resolved.route[joints.row]
        begin, hops = resolved.table.ptr[route], np.diff(resolved.table.ptr)[route]
        link_count = max(topology.links, 1)
        pair = distinct(np.repeat(joints.joint_of * link_count, hops) + resolved.table.links[ranges(begin, hops)])
        joint, link = pair // link_count, pair % link_count
        src, dst = topology.link_src[link].astype(np.int64), topology.link_dst[link].astype(np.int64)
        dst = np.where(dst < topology.ranks, dst + topology.nodes, dst)
        width = topology.nodes + topology.ranks
        key = np.concatenate([joint * width + src, joint * width + dst])
        places, place = dense(key, max(len(joints), 1) * width)
        tail, head = place[: len(link)], place[len(link) :]
        order, up = _search_trees(places // width, tail, head)
        return Tree(places // width, places % width, link, tail, head, order, up)

    @cached_property
    def edges(self) -> Longs:
        """Joined pairs of places, each once, as lesser * places + greater."""
        return distinct(np.minimum(self.tail, self.head) * len(self.node) + np.maximum(self.tail, self.head))

    def _count_places(self, places: Longs) -> Longs:
        return np.bincount(places, minlength=len(self.node))

    @cached_property
    def into(self) -> Longs:
        """The number of links into each place."""
        return self._count_places(self.head)

    @cached_property
    def out(self) -> Longs:
        """The number of links out of each place."""
        return self._count_places(self.tail)

    @cached_property
    def edges_at(self) -> Longs:
        """The number of neighbours of each place."""
        return self._count_places(np.concatenate([self.edges // len(self.node), self.edges % len(self.node)]))

    @cached_property
    def upward(self) -> tuple[Bools, Bools]:
        """Per place, whether a link leads from it to the place before it (`up`), and whether one leads back."""
        low, high = self.up[self.tail] == self.head, self.up[self.head] == self.tail
        return self._count_places(self.tail[low]) > 0, self._count_places(self.head[high]) > 0


def _search_trees(joint: Longs, tail: Longs, head: Longs) -> tuple[Longs, Longs]:
    """Search all joints at once, breadth first: return the places in order, and the place before each."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order

    count = len(joint)
    first = np.flatnonzero(starts(joint))  # an extra place is joined to the first of every joint
    rows = np.concatenate([tail, head, np.full(len(first), count)])
    columns = np.concatenate([head, tail, first])
    graph = csr_array((np.ones(len(rows), np.int8), (rows, columns)), shape=(count + 1, count + 1))
    order, before = breadth_first_order(graph, count, directed=True, return_predecessors=True)
    up = before[:count].astype(np.int64)
    return order[1:].astype(np.int64), np.where((up == count) | (up < 0), -1, up)


def shape_faults(joints: JointRows, tree: Tree, topology: Topology) -> dict[int, str]:
    """Return, by first row, the joints whose paths are no tree, or that leave or reach a rank by several links."""
    first = joints.row[joints.ptr[:-1]]
    wrong: dict[int, str] = {}

    def report(faulty: Longs, why: str) -> None:
        for joint in distinct(faulty).tolist():
            wrong.setdefault(int(first[joint]), why)

    rank = (tree.node < topology.ranks) | (tree.node >= topology.nodes)
    report(tree.joint[rank & (tree.edges_at > 1)], "leaves or reaches a rank by several links")
    directed_pairs = tree.tail * len(tree.node) + tree.head
    ordered = np.sort(directed_pairs)
    report(tree.joint[ordered[~starts(ordered)] // max(len(tree.node), 1)], "takes parallel links between two nodes")
    edges = np.bincount(tree.joint[tree.edges // max(len(tree.node), 1)], minlength=len(joints))
    places = np.bincount(tree.joint, minlength=len(joints))
    reached = np.bincount(tree.joint[tree.order], minlength=len(joints))
    # A connected graph with n places and n - 1 edges is a tree.
    no_tree = np.flatnonzero((edges != places - 1) | (reached != places))
    report(no_tree, "goes by paths that are no tree: two of them part and meet again, or never meet")
    return wrong


def branch_faults(joints: JointRows, tree: Tree, topology: Topology, abilities: Abilities) -> dict[int, str]:
    """Return, by first row, the joints that need an ability that a switch lacks. `tree`: of joints whose shape is
    right."""
    first = joints.row[joints.ptr[:-1]]
    wrong: dict[int, str] = {}
    single_source, fans_out = joints.sources[tree.joint] == 1, joints.destinations[tree.joint] > 1
    # Places at which a multicast tree branches, or branches of a reduction tree meet, without the ability.
    split = single_source & (tree.out > 1) & ~abilities.multicast[tree.node]
    meets = ~single_source & ~fans_out & (tree.into > 1) & ~abilities.reduce[tree.node]
    for place in np.flatnonzero(split | meets).tolist():
        ability = "multicast" if split[place] else "combine"
        name = topology.node_name(int(tree.node[place]))
        wrong.setdefault(int(first[tree.joint[place]]), f"needs {name} to {ability}, which it cannot")
    for joint in _no_hub(joints, tree, abilities).tolist():
        why = "has several sources and several destinations, but no switch on its way can be where combining ends and "
        wrong.setdefault(int(first[joint]), why + "sending on begins (through)")
    for joint, node in _no_way_back(joints, tree, topology, abilities):
        name = topology.node_name(node)
        why = f"needs what the rank has itself to cross {name}, too, but no link leads back"
        wrong.setdefault(int(first[joint]), why)
    return wrong


def _no_way_back(joints: JointRows, tree: Tree, topology: Topology, abilities: Abilities) -> list[tuple[int, int]]:
    """Return (joint, switch) pairs for which a switch with ability `own` needs a rank's own data, but no link leads
    there.

    That is the destination's operand of a reduction, or the copy that the source of a multicast keeps.
    """
    single_source, fans_out = joints.sources[tree.joint] == 1, joints.destinations[tree.joint] > 1
    leaves = (
        single_source[tree.tail]
        & fans_out[tree.tail]
        & (tree.node[tree.tail] < topology.ranks)
        & abilities.own[tree.node[tree.head]]
    )
    lands = ~single_source[tree.tail] & ~fans_out[tree.tail] & (tree.node[tree.head] >= topology.nodes)
    lands &= abilities.own[tree.node[tree.tail]]
    links = np.flatnonzero(leaves | lands)
    if not len(links):
        return []
    existing_links = set(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))
    src, dst = topology.link_src[tree.link[links]].tolist(), topology.link_dst[tree.link[links]].tolist()
    joint = tree.joint[tree.tail[links]].tolist()
    return [(j, max(a, b)) for j, a, b in zip(joint, src, dst, strict=True) if (b, a) not in existing_links]


def _no_hub(joints: JointRows, tree: Tree, abilities: Abilities) -> Longs:
    """Return the joints with several sources and destinations that have no hub.

    `rising` counts the faults between a place and the one before it (`up`) if the hub is that one or beyond, `falling`
    if it is the place or beyond. The place nearer to the hub must receive everything that comes from the other side and
    supply everything wanted there; if data meet at a place that is not the hub they must be combined, if they part,
    multicast.
    """
    needs_hub = (joints.sources > 1) & (joints.destinations > 1)
    if not needs_hub.any():
        return np.zeros(0, np.int64)
    node, up = tree.node, np.maximum(tree.up, 0)
    rises, falls = tree.upward
    sends, takes = _count_beyond(tree, (tree.into == 0)), _count_beyond(tree, (tree.out == 0))
    unable_in, unable_out = ~abilities.reduce[node], ~abilities.multicast[node]

    def asks(places: Longs, into: Longs, out: Longs) -> Bools:
        return ((into > 1) & unable_in[places]) | ((out > 1) & unable_out[places])

    every = np.arange(len(node))
    rising = asks(every, tree.into - falls, tree.out - rises) | ((sends > 0) & ~rises) | ((takes > 0) & ~falls)
    falling = asks(up, tree.into[up] - rises, tree.out[up] - falls)
    falling |= (joints.sources[tree.joint] > sends) & ~falls
    falling |= (joints.destinations[tree.joint] > takes) & ~rises
    inner = tree.up >= 0
    # Rerooting: faults(place) = faults(first place) + sum of (falling - rising) along the path.
    change = np.where(inner, falling.astype(np.int64) - rising, 0)
    wrong = np.bincount(tree.joint[inner & rising], minlength=len(joints))[tree.joint] + _sum_upward(tree, change)
    fit = abilities.through[node] & ~asks(every, tree.into, tree.out) & (wrong == 0)
    return np.flatnonzero(needs_hub & (np.bincount(tree.joint[fit], minlength=len(joints)) == 0))


def _sum_upward(tree: Tree, values: Longs) -> Longs:
    """Return for each place the sum of `values` on its path to the first place of its joint: log2(path length)
    rounds."""
    total, up = values.copy(), tree.up.copy()
    # Pointer jumping: after k rounds every place has the sum over its 2^k nearest ancestors.
    while bool((unfinished := np.flatnonzero(up >= 0)).size):
        total[unfinished] += total[up[unfinished]]
        up[unfinished] = up[up[unfinished]]
    return total


def _count_beyond(tree: Tree, marks: Bools) -> Longs:
    """Count, for every place, the marked places in its subtree, itself included."""
    depth = _sum_upward(tree, (tree.up >= 0).astype(np.int64))
    total = marks.astype(np.int64)
    order = np.argsort(depth, kind="stable")
    # Deepest places first, so that every subtree is complete when it is added to its parent.
    for same_depth in np.split(order, np.flatnonzero(np.diff(depth[order])) + 1)[:0:-1]:
        np.add.at(total, tree.up[same_depth], total[same_depth])
    return total
