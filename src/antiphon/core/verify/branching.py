"""Check the trees of joints: their paths must form a tree, and its switches must have the abilities that it needs.

A joint binds the rows of one multicast (one source, several destinations), one reduction (several sources, one
destination) or both. Its paths must form a tree. In a multicast every switch at which the tree branches must multicast;
in a reduction every switch at which branches meet must reduce.

A tree with several sources and several destinations needs a *hub*, a switch at which combining ends and spreading
begins: every link then serves combining, if it leads towards the hub, or spreading, if it leads away. The hub passes on
what it has just combined, which a switch can do only with the ability `through`; the other switches only combine, or
only multicast.

Testing each node as hub separately would be quadratic. Instead the number of faults with a node as hub is computed for
all nodes at once, by rerooting. Moving the hub across one link changes only the direction of that link, so only its two
ends can gain or lose a fault. The faults with the root as hub, plus the changes along the path from the root to a node,
give the faults with that node as hub.

A *vertex* is a node of the machine within one joint's tree; a rank has two vertices, one as a source and one as a
destination. The tree is searched from its first vertex, its *root*.

Example: 4 GPUs under one NVLS switch, allreduce joint: 4 sources, 4 destinations. The switch as hub reduces 4 inputs
and multicasts to 4 outputs: no fault if it has both abilities.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from antiphon.core.columns import (
    Bools,
    Ints,
    Longs,
    concat_ranges,
    distinct,
    pair_keys,
    run_starts,
    split_keys,
    unique_inverse,
)
from antiphon.core.routes import Resolved
from antiphon.core.topology import Topology


@dataclass(frozen=True, eq=False)
class JointRows:
    """Rows of joints, grouped by joint."""

    row: Longs  # row numbers in the schedule
    joint_of: Longs  # per row its joint: 0, 1, ...
    ptr: Longs  # joint i has the rows ptr[i] to ptr[i + 1] - 1 of these columns
    src: Ints  # per row
    dst: Ints  # per row

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def only(self, joints: Longs) -> JointRows:
        """Return the rows of these joints."""
        size = np.diff(self.ptr)[joints]
        index = concat_ranges(self.ptr[joints], size)
        joint_of = np.repeat(np.arange(len(joints)), size)
        return JointRows(self.row[index], joint_of, np.append(0, np.cumsum(size)), self.src[index], self.dst[index])

    def _distinct_ranks(self, end: Ints) -> Longs:
        """Return the `pair_keys` of joint and rank for every rank at this end of a joint's rows, each once."""
        return distinct(pair_keys(self.joint_of, end))

    def _count_per_joint(self, joints_and_ranks: Longs) -> Longs:
        """Count these `pair_keys` of joint and rank per joint."""
        joint, _ = split_keys(joints_and_ranks)
        return np.bincount(joint, minlength=len(self))

    @cached_property
    def sources(self) -> Longs:
        """The number of distinct sources per joint."""
        return self._count_per_joint(self._distinct_ranks(self.src))

    @cached_property
    def destinations(self) -> Longs:
        """The number of distinct destinations per joint."""
        return self._count_per_joint(self._distinct_ranks(self.dst))

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
        both_roles = self._count_per_joint(ends_of_both)  # ranks that are source and destination
        return self.sources * self.destinations - both_roles - np.diff(self.ptr)


@dataclass(frozen=True, eq=False)
class Abilities:
    """The abilities of every node, for an operator and data type if given; ranks as destinations are numbered after all
    nodes."""

    multicast: Bools
    reduce: Bools
    through: Bools  # can send on what it has just combined to other switches, as a hub must
    own: Bools  # also returns the single source's copy to it, or takes the single destination's operand from it
    at_once: Longs  # the number of joints that the switch serves in one step; 0: any number

    @staticmethod
    def of(topology: Topology, op: str | None, dtype: str | None) -> Abilities:
        """Look up the abilities of all nodes."""
        nodes = topology.nodes + topology.ranks
        op = "sum" if op == "avg" else op  # switches only sum; ranks divide, once
        flags = np.zeros(nodes, np.bool_)
        out = Abilities(flags, flags.copy(), flags.copy(), flags.copy(), np.zeros(nodes, np.int64))
        for node, ability in enumerate(topology.abilities, topology.ranks):
            out.multicast[node], out.reduce[node] = ability.multicast, ability.can_combine(op, dtype)
            out.through[node], out.own[node], out.at_once[node] = ability.through, ability.own, ability.at_once
        return out


@dataclass(frozen=True, eq=False)
class JointForest:
    """The links of all joints as a forest of vertices (see the module). Vertices are sorted by joint."""

    joint: Longs  # per vertex
    node: Longs  # per vertex; ranks as destinations are numbered after all nodes
    link: Longs  # every link of a joint, once
    tail: Longs  # per link, the vertex that it leaves
    head: Longs  # per link, the vertex that it enters
    order: Longs  # vertices in breadth-first order from the root of each joint; unconnected vertices are missing
    parent: Longs  # per vertex, the vertex from which that search came; -1 for roots

    @staticmethod
    def of(joints: JointRows, topology: Topology, resolved: Resolved) -> JointForest:
        """Build the forest from the paths of the rows."""
        route = resolved.route[joints.row]
        begin, hops = resolved.table.ptr[route], np.diff(resolved.table.ptr)[route]
        link_count = max(topology.links, 1)
        joint_links = distinct(  # joint * link_count + link
            np.repeat(joints.joint_of * link_count, hops) + resolved.table.links[concat_ranges(begin, hops)]
        )
        joint, link = joint_links // link_count, joint_links % link_count
        src, dst = topology.link_src[link].astype(np.int64), topology.link_dst[link].astype(np.int64)
        dst = np.where(dst < topology.ranks, dst + topology.nodes, dst)  # ranks as destinations
        node_bound = topology.nodes + topology.ranks
        # The distinct (joint, node), as joint * node_bound + node, are the vertices.
        vertices, vertex_of_end = unique_inverse(
            np.concatenate([joint * node_bound + src, joint * node_bound + dst]), bound=max(len(joints), 1) * node_bound
        )
        tail, head = np.split(vertex_of_end, 2)
        joint_of_vertex, node = vertices // node_bound, vertices % node_bound
        order, parent = _search_trees(joint_of_vertex, tail, head)
        return JointForest(
            joint=joint_of_vertex, node=node, link=link, tail=tail, head=head, order=order, parent=parent
        )

    @cached_property
    def edges(self) -> Longs:
        """Joined pairs of vertices, each once, as lesser * vertices + greater."""
        return distinct(np.minimum(self.tail, self.head) * len(self.node) + np.maximum(self.tail, self.head))

    def _count_vertices(self, vertices: Longs) -> Longs:
        """Return how often each vertex occurs in a list."""
        return np.bincount(vertices, minlength=len(self.node))

    @cached_property
    def into(self) -> Longs:
        """The number of links into each vertex."""
        return self._count_vertices(self.head)

    @cached_property
    def out(self) -> Longs:
        """The number of links out of each vertex."""
        return self._count_vertices(self.tail)

    @cached_property
    def edges_at(self) -> Longs:
        """The number of neighbours of each vertex."""
        return self._count_vertices(np.concatenate([self.edges // len(self.node), self.edges % len(self.node)]))

    @cached_property
    def parent_links(self) -> tuple[Bools, Bools]:
        """Per vertex, whether a link leads from it to its parent, and whether a link leads from its parent to it."""
        leads_up, leads_down = self.parent[self.tail] == self.head, self.parent[self.head] == self.tail  # per link
        return self._count_vertices(self.tail[leads_up]) > 0, self._count_vertices(self.head[leads_down]) > 0


def _search_trees(joint: Longs, tail: Longs, head: Longs) -> tuple[Longs, Longs]:
    """Search all joints at once, breadth first, from the first vertex of each.

    Return the vertices in the order of the search, and the parent of every vertex.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order

    count = len(joint)
    first = np.flatnonzero(run_starts(joint))  # the roots; one extra vertex is joined to all of them
    rows = np.concatenate([tail, head, np.full(len(first), count)])
    columns = np.concatenate([head, tail, first])
    graph = csr_array((np.ones(len(rows), np.int8), (rows, columns)), shape=(count + 1, count + 1))
    order, predecessors = breadth_first_order(graph, count, directed=True, return_predecessors=True)
    parent = predecessors[:count].astype(np.int64)
    return order[1:].astype(np.int64), np.where((parent == count) | (parent < 0), -1, parent)


def shape_faults(joints: JointRows, tree: JointForest, topology: Topology) -> dict[int, str]:
    """Return {first row in the schedule: reason} for the joints whose paths do not form a proper tree.

    Faults: the paths are no tree, take parallel links, or leave or reach a rank by several links.
    """
    first = joints.row[joints.ptr[:-1]]
    reasons: dict[int, str] = {}

    def report(faulty: Longs, why: str) -> None:
        for joint in distinct(faulty).tolist():
            reasons.setdefault(int(first[joint]), why)

    is_rank = (tree.node < topology.ranks) | (tree.node >= topology.nodes)
    report(tree.joint[is_rank & (tree.edges_at > 1)], "leaves or reaches a rank by several links")
    directed_pairs = tree.tail * len(tree.node) + tree.head
    pairs = np.sort(directed_pairs)
    report(tree.joint[pairs[~run_starts(pairs)] // max(len(tree.node), 1)], "takes parallel links between two nodes")
    edges = np.bincount(tree.joint[tree.edges // max(len(tree.node), 1)], minlength=len(joints))
    vertices = np.bincount(tree.joint, minlength=len(joints))
    reached = np.bincount(tree.joint[tree.order], minlength=len(joints))
    # A connected graph with n vertices and n - 1 edges is a tree.
    no_tree = np.flatnonzero((edges != vertices - 1) | (reached != vertices))
    report(no_tree, "goes by paths that are no tree: two of them part and meet again, or never meet")
    return reasons


def branch_faults(joints: JointRows, tree: JointForest, topology: Topology, abilities: Abilities) -> dict[int, str]:
    """Return {first row in the schedule: reason} for the joints that need an ability that a switch lacks.

    `tree`: of joints that `shape_faults` passed.
    """
    first = joints.row[joints.ptr[:-1]]
    reasons: dict[int, str] = {}
    single_source, fans_out = joints.sources[tree.joint] == 1, joints.destinations[tree.joint] > 1
    # Vertices at which a multicast tree branches, or branches of a reduction tree meet, without the ability.
    cannot_branch = single_source & (tree.out > 1) & ~abilities.multicast[tree.node]
    cannot_merge = ~single_source & ~fans_out & (tree.into > 1) & ~abilities.reduce[tree.node]
    for vertex in np.flatnonzero(cannot_branch | cannot_merge).tolist():
        ability = "multicast" if cannot_branch[vertex] else "combine"
        name = topology.node_name(int(tree.node[vertex]))
        reasons.setdefault(int(first[tree.joint[vertex]]), f"needs {name} to {ability}, which it cannot")
    for joint in _no_hub(joints, tree, abilities).tolist():
        why = "has several sources and several destinations, but no switch on its way can be where combining ends and "
        reasons.setdefault(int(first[joint]), why + "sending on begins (through)")
    for joint, node in _no_way_back(joints, tree, topology, abilities):
        name = topology.node_name(node)
        why = f"needs what the rank has itself to cross {name}, too, but no link leads back"
        reasons.setdefault(int(first[joint]), why)
    return reasons


def _no_way_back(
    joints: JointRows, tree: JointForest, topology: Topology, abilities: Abilities
) -> list[tuple[int, int]]:
    """Return (joint, switch) pairs in which a switch with the ability `own` lacks a link that a rank's own data need.

    - In a multicast, the copy that the source keeps comes back from the switch: by a link from switch to source.
    - In a reduction, the destination's own operand goes to the switch: by a link from destination to switch.
    """
    single_source, fans_out = joints.sources[tree.joint] == 1, joints.destinations[tree.joint] > 1
    leaves_source = (
        single_source[tree.tail]
        & fans_out[tree.tail]
        & (tree.node[tree.tail] < topology.ranks)
        & abilities.own[tree.node[tree.head]]
    )
    enters_destination = ~single_source[tree.tail] & ~fans_out[tree.tail] & (tree.node[tree.head] >= topology.nodes)
    enters_destination &= abilities.own[tree.node[tree.tail]]
    links = np.flatnonzero(leaves_source | enters_destination)
    if not len(links):
        return []
    existing_links = set(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))
    src, dst = topology.link_src[tree.link[links]].tolist(), topology.link_dst[tree.link[links]].tolist()
    joints_of_links = tree.joint[tree.tail[links]].tolist()
    # Of the two ends of a link, the switch is the greater: switches are numbered after ranks.
    return [
        (joint, max(tail, head))
        for joint, tail, head in zip(joints_of_links, src, dst, strict=True)
        if (head, tail) not in existing_links
    ]


def _no_hub(joints: JointRows, tree: JointForest, abilities: Abilities) -> Longs:
    """Return the joints with several sources and destinations that have no hub.

    Consider a vertex p, its parent q and the links between them. If the hub is q or on the side of q, p must send to q
    if there are sources in p's subtree, and q must send to p if there are destinations in it; and p needs abilities for
    the data that meet or part at it. If the hub is p or in p's subtree, the same holds with p and q exchanged.
    `fault_if_hub_above[p]` and `fault_if_hub_below[p]` are True where that fails.
    """
    needs_hub = (joints.sources > 1) & (joints.destinations > 1)
    if not needs_hub.any():
        return np.zeros(0, np.int64)
    node, parent = tree.node, np.maximum(tree.parent, 0)  # roots get any parent: `has_parent` leaves them out below
    to_parent, from_parent = tree.parent_links
    # In a tree that passed `shape_faults`, sources are the vertices without links into them, destinations without out.
    sources_below = _count_in_subtrees(tree, tree.into == 0)
    destinations_below = _count_in_subtrees(tree, tree.out == 0)
    cannot_reduce, cannot_multicast = ~abilities.reduce[node], ~abilities.multicast[node]

    def lacks_ability(vertices: Longs, into: Longs, out: Longs) -> Bools:
        return ((into > 1) & cannot_reduce[vertices]) | ((out > 1) & cannot_multicast[vertices])

    all_vertices = np.arange(len(node))
    # The links between p and q do not count for p's own branching: they lead to or from the hub.
    fault_if_hub_above = lacks_ability(all_vertices, tree.into - from_parent, tree.out - to_parent)
    fault_if_hub_above |= ((sources_below > 0) & ~to_parent) | ((destinations_below > 0) & ~from_parent)
    fault_if_hub_below = lacks_ability(parent, tree.into[parent] - to_parent, tree.out[parent] - from_parent)
    fault_if_hub_below |= (joints.sources[tree.joint] > sources_below) & ~from_parent
    fault_if_hub_below |= (joints.destinations[tree.joint] > destinations_below) & ~to_parent
    has_parent = tree.parent >= 0
    # Rerooting: faults(vertex) = faults(root) + sum of (below - above) along the path from the root to the vertex.
    faults_at_root = np.bincount(tree.joint[has_parent & fault_if_hub_above], minlength=len(joints))[tree.joint]
    change = np.where(has_parent, fault_if_hub_below.astype(np.int64) - fault_if_hub_above, 0)
    faults = faults_at_root + _sum_upward(tree, change)
    can_be_hub = abilities.through[node] & ~lacks_ability(all_vertices, tree.into, tree.out) & (faults == 0)
    return np.flatnonzero(needs_hub & (np.bincount(tree.joint[can_be_hub], minlength=len(joints)) == 0))


def _sum_upward(tree: JointForest, values: Longs) -> Longs:
    """Return for each vertex the sum of `values` on its path to the root, both included: log2(path length) rounds."""
    total, ancestor = values.copy(), tree.parent.copy()
    # Pointer jumping: after k rounds every vertex has the sum over itself and its 2^k - 1 nearest ancestors.
    while bool((unfinished := np.flatnonzero(ancestor >= 0)).size):
        total[unfinished] += total[ancestor[unfinished]]
        ancestor[unfinished] = ancestor[ancestor[unfinished]]
    return total


def _count_in_subtrees(tree: JointForest, marks: Bools) -> Longs:
    """Count, for every vertex, the marked vertices in its subtree, itself included."""
    depth = _sum_upward(tree, (tree.parent >= 0).astype(np.int64))
    total = marks.astype(np.int64)
    order = np.argsort(depth, kind="stable")
    # Deepest vertices first, so that every subtree is complete when it is added to its parent; roots ([0]) have none.
    for same_depth in np.split(order, np.flatnonzero(np.diff(depth[order])) + 1)[:0:-1]:
        np.add.at(total, tree.parent[same_depth], total[same_depth])
    return total
