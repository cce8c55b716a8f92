"""Symmetries (automorphisms) of a machine, and a canonical form that is equal for all isomorphic machines.

Two machines are isomorphic if some renumbering, ranks to ranks and switches to switches, maps one to the other. Links
go to links of the same kind, bandwidth and latency (with the same multiplicity and direction), switches to switches
with the same abilities, and shared limits to shared limits of the same bandwidth. Names, places and the declared unit
do not count.

The graph library (BLISS, inside igraph) handles plain undirected graphs with coloured vertices, so a machine is encoded
as such a graph. All links between two nodes that are under no limit form one *bond*, described by the number of links
of each type in each direction:

- The most common bond that is equal both ways becomes a plain edge: no extra vertices for the bulk of the links.
- Any other bond that is equal both ways becomes a vertex between its ends, coloured by the bond.
- A bond that differs by direction becomes a path of two vertices, tail then head.
- Parallel links under the same limits become such a path, too, and each limit a vertex joined to its links' tails.
- If plain edges would join more than half of all pairs, the other pairs are joined instead: a full mesh of a
  thousand equal ranks is a graph of a thousand vertices without an edge.

Example: 4 ranks around a switch, equal links both ways. Five vertices, colours (rank, rank, rank, rank, switch), four
plain edges; BLISS returns generators of the 24 permutations of the ranks.

BLISS is slow if vertices of one colour belong to different orbits (sets of vertices that symmetries map to one
another), so `_split_orbits` refines the colours first (Weisfeiler and Leman 1968, with individualised vertices).
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antiphon.core.columns import HASH_MULTIPLIER, Ints, Longs, unique_inverse
from antiphon.core.reshape import check_permutation
from antiphon.core.topology import Ability, Topology
from antiphon.errors import Invalid

Types = tuple[tuple[int, int], ...]  # (class of link type, number of links), ascending
Bond = tuple[Types, Types]  # of the links from node a to node b, and of those from b to a
Sums = NDArray[np.uint64]
MAX_EDGE_VISITS = 10**8  # while separating orbits: a second or two


def automorphisms(topology: Topology, colour: list[int] | None = None) -> tuple[Ints, ...]:
    """Return generators of all symmetries, each a permutation of all nodes: node i goes to g[i].

    With `colour`, one per node, only symmetries that keep every node's colour. The identity is omitted: a machine
    without symmetries has no generators. BLISS has no polynomial bound, but machines are easy for it; the generators,
    fewer than nodes, take O(vertices) each.
    """
    encoded = _encode_graph(topology, colour)
    # Vertices beyond the nodes (bonds, limits) move along with the nodes; only the node part is reported.
    permutations: list[list[int]] = encoded.graph().automorphism_group(color=encoded.colour)
    identity = np.arange(topology.nodes, dtype=np.int32)
    out = []
    for permutation in permutations:
        generator = np.array(permutation[: topology.nodes], np.int32)
        if not np.array_equal(generator, identity):  # else it only swaps limits that bound the same links
            generator.setflags(write=False)
            out.append(generator)
    return tuple(out)


def orbit_labels(generators: Sequence[NDArray[Any]], count: int) -> Longs:
    """Return for each number below `count` the smallest in its orbit. Permutation [1, 2, 0, 3] gives [0, 0, 0, 3].

    Labels spread along images, and by pointer doubling: a few rounds of O(size) per generator. (SciPy's connected
    components do the same, but importing SciPy delays jobs that wait for their plans.)
    """
    label = np.arange(count)
    while True:
        before = label
        for image in generators:
            label = np.minimum(label, label[image])
            label[image] = np.minimum(label[image], label)
        label = label[label]
        if np.array_equal(label, before):
            return label


class Labelling(NamedTuple):
    """A canonical labelling of a machine: it renumbers all isomorphic machines to the same one."""

    new_number: Ints  # by node
    key: str  # equal exactly if machines are isomorphic


def canonical(topology: Topology, colour: list[int] | None = None) -> Labelling:
    """Return the canonical labelling of a machine.

    With `colour`, one per node, machines are isomorphic if a renumbering keeps colours, too. `relabel(topology,
    labelling.new_number)` is the same machine for all isomorphic ones, up to the numbers of its links. Keys are stable
    within one release of the graph library: compare them, do not store them.
    """
    encoded = _encode_graph(topology, colour)
    label, edges, colours = encoded.canonical(_split_orbits(encoded))
    # The key hashes everything that the isomorphism must keep: sizes, the legend of colours, the canonical edges and
    # colours.
    text = repr((topology.ranks, topology.switches, encoded.legend)).encode()
    digest = hashlib.sha256(text)
    for column in (colours, edges):
        digest.update(column.astype("<i8").tobytes())
    ranks = topology.ranks
    labelling = np.empty(topology.nodes, np.int32)
    # BLISS numbers all vertices; keep its order within ranks and within switches, so that ranks stay ranks.
    for low, high in ((0, ranks), (ranks, topology.nodes)):
        order = np.argsort(label[low:high])
        labelling[low + order] = np.arange(low, high)
    labelling.setflags(write=False)
    return Labelling(labelling, digest.hexdigest())


def link_map(topology: Topology, permutation: ArrayLike) -> Ints:
    """Return the image of every link under a symmetry; parallel links of equal type keep their order.

    Links under a limit map to links under the limit's image. Raises Invalid if the permutation is no symmetry of the
    machine. One sort of the links; with limits also two runs of BLISS on graphs whose nodes are all fixed (near
    linear).
    """
    target = check_permutation(topology, permutation)
    link_class, _ = _type_classes(topology)
    image = np.full(topology.links, -1, np.int64)
    limits_of = _limits_of(topology)
    free = np.ones(topology.links, bool)  # links under no limit
    free[list(limits_of)] = False
    links = np.flatnonzero(free)
    src, dst = topology.link_src[links], topology.link_dst[links]
    # Sort links by the images of their ends, and by their own ends: the i-th link of the first order has the i-th of
    # the second as its image.
    by_image = np.lexsort((links, link_class[links], target[dst], target[src]))
    by_ends = np.lexsort((links, link_class[links], dst, src))
    image[links[by_image]] = links[by_ends]
    if limits_of:
        _map_limited(topology, target, image)
    # Both orders match for any permutation of links; only for a symmetry do the ends, types and abilities agree.
    keeps_ends = np.array_equal(target[topology.link_src], topology.link_src[image]) and np.array_equal(
        target[topology.link_dst], topology.link_dst[image]
    )
    keeps_abilities = not topology.abilities or all(
        topology.ability(node) == topology.ability(int(target[node])) for node in range(topology.ranks, topology.nodes)
    )
    if not keeps_abilities or not keeps_ends or not np.array_equal(link_class, link_class[image]):
        raise Invalid(f"permutation: not a symmetry of {topology.name}; automorphisms() lists its symmetries")
    return image.astype(np.int32)


@dataclass(frozen=True)
class _ColouredGraph:
    """The coloured graph of a machine: vertices 0..nodes-1 are its nodes."""

    edges: Longs  # a row per edge: its two vertices
    colour: list[int]  # per vertex
    legend: tuple[Hashable, ...]  # the meaning of the colours: machines with equal graphs and legends are isomorphic
    # Tail vertex of parallel links under the same limits -> these links, in order of type, then number
    tails: dict[int, list[int]]

    def graph(self) -> Any:
        import igraph

        return igraph.Graph(n=len(self.colour), edges=self.edges)

    def canonical(self, finer: list[int] | None = None) -> tuple[Longs, Longs, Longs]:
        """Return every vertex's canonical number, and the canonical graph: its edges (each as one number, ascending),
        and the colour of every canonical number.

        `finer`: any finer colouring that does not depend on vertex numbers; it makes BLISS faster.
        """
        label = np.array(self.graph().canonical_permutation(color=finer or self.colour), np.int64)
        if _numbers_to_vertices():
            label = np.argsort(label)
        a, b = label[self.edges[:, 0]], label[self.edges[:, 1]]
        colours = np.empty(len(label), np.int64)
        colours[label] = self.colour
        return label, np.sort(np.minimum(a, b) * len(label) + np.maximum(a, b)), colours


@cache
def _numbers_to_vertices() -> bool:
    """Return whether igraph's canonical permutation maps new numbers to vertices (version 1) or the reverse (0.11).

    BLISS numbers vertices by colour first, so a graph of three vertices of three colours shows which.
    """
    import igraph

    permutation: list[int] = igraph.Graph(n=3).canonical_permutation(color=[1, 2, 0])
    return permutation == [2, 0, 1]  # the vertices of colours 0, 1 and 2; the reverse is [1, 2, 0]


def _split_orbits(encoded: _ColouredGraph) -> list[int]:
    """Refine the colours so that vertices of one colour belong, as far as is cheap to decide, to one orbit.

    If a class of equal-looking vertices holds several orbits, BLISS tries them all: twice the time for each further box
    of a cluster. So orbits are separated beforehand, by the colours of all vertices after one vertex of the orbit is
    marked. Colours are 64-bit hashes (`sums`); if two orbits get equal ones by chance, BLISS only takes longer.
    O(orbits * edges), up to MAX_EDGE_VISITS, beyond which colours are only refined without marks.
    """
    from scipy.sparse import csr_array

    count, (tail, head) = len(encoded.colour), encoded.edges.T
    ones = np.ones(2 * len(tail), np.uint64)
    adjacency = csr_array((ones, (np.concatenate([tail, head]), np.concatenate([head, tail]))), shape=(count, count))
    colour = np.array(encoded.colour, np.int64)
    # Stage 1: plain colour refinement.
    sums = _refine_colours(_scramble_bits(colour.astype(np.uint64)), adjacency)
    representative, orbit = _list_orbits(encoded)
    # Stage 2: only classes that hold several orbits are doubtful. Mark one vertex of each such orbit and refine again.
    classes, orbits_of = np.unique(sums[representative], return_counts=True)
    doubtful = np.flatnonzero(np.isin(sums[representative], classes[orbits_of > 1]))
    if doubtful.size and doubtful.size * (len(tail) + count) <= MAX_EDGE_VISITS:
        signatures = sums[representative]
        for i in doubtful:
            marked = sums.copy()
            marked[representative[i]] = ~marked[representative[i]]
            signatures[i] = _scramble_bits(_refine_colours(marked, adjacency)).sum()
        sums = _refine_colours(_scramble_bits(signatures)[orbit] ^ sums, adjacency)
    # Stage 3: number the refined classes, keeping the original colours in order.
    order = np.lexsort((sums, colour))
    begins_class = np.ones(count, bool)
    begins_class[1:] = (np.diff(colour[order]) != 0) | (sums[order][1:] != sums[order][:-1])
    finer = np.empty(count, np.int64)
    finer[order] = np.cumsum(begins_class) - 1
    return list(finer.tolist())


def _scramble_bits(values: Sums) -> Sums:
    """Hash 64-bit numbers (a multiply-xorshift finaliser)."""
    values = (values ^ (values >> np.uint64(32))) * HASH_MULTIPLIER
    values = (values ^ (values >> np.uint64(32))) * HASH_MULTIPLIER
    return values ^ (values >> np.uint64(32))


def _refine_colours(sums: Sums, adjacency: Any) -> Sums:
    """Refine colours by those of the neighbours until no class splits (Weisfeiler and Leman)."""
    classes = 0
    for _ in range(64):  # rounds: enough for machines; stopping early only separates fewer orbits
        new_classes = len(np.unique(sums))
        if new_classes <= classes:
            break
        classes = new_classes
        # the own colour counts three times, so that it is not taken for a neighbour's
        sums = _scramble_bits(sums * np.uint64(3) + adjacency @ _scramble_bits(sums + np.uint64(1)))
    return sums


def _list_orbits(encoded: _ColouredGraph) -> tuple[Longs, Longs]:
    """Return one vertex of every orbit of the graph's symmetries, and the orbit of every vertex."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    count = len(encoded.colour)
    rows, columns = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    # Orbits are the connected components of "some generator maps u to v".
    for generator in encoded.graph().automorphism_group(color=encoded.colour):
        vertex_image = np.array(generator, np.int64)
        moved = np.flatnonzero(vertex_image != np.arange(count))
        rows.append(moved)
        columns.append(vertex_image[moved])
    row, col = np.concatenate(rows), np.concatenate(columns)
    moves = csr_array((np.ones(len(row), np.int8), (row, col)), shape=(count, count))
    _, orbit = connected_components(moves, directed=False)
    _, representative = np.unique(orbit, return_index=True)
    return representative, orbit


def _encode_graph(topology: Topology, node_colour: list[int] | None = None) -> _ColouredGraph:
    """Encode a machine as a coloured graph; `node_colour` (one per node) distinguishes nodes beyond rank and switch."""
    link_class, type_legend = _type_classes(topology)
    limits_of = _limits_of(topology)
    plain, limited = _collect_bonds(topology, link_class, limits_of)
    ranks = topology.ranks
    descriptions: list[Hashable] = [
        ("node", node >= ranks, node_colour[node] if node_colour else 0, *_ability_words(topology.ability(node)))
        for node in range(topology.nodes)
    ]
    # One description per vertex; equal descriptions become equal colours at the end.
    common, plain_edges = _plain_edges(topology.nodes, plain)
    common_bond = None if common is None else common[0]
    edges: list[tuple[int, int]] = []
    for bond, pairs in plain.items():
        if bond == common_bond:
            continue
        for a, b in pairs.tolist():
            # Equal both ways: one vertex. Otherwise two, so that the direction can be read back.
            if bond[0] == bond[1]:
                edges += [(a, len(descriptions)), (len(descriptions), b)]
                descriptions.append(("bond", bond))
            else:
                edges += [
                    (a, len(descriptions)),
                    (len(descriptions), len(descriptions) + 1),
                    (len(descriptions) + 1, b),
                ]
                descriptions += [("bond tail", bond), ("bond head", bond)]
    tails: dict[int, list[int]] = {}
    first_limit = len(descriptions)
    descriptions += [("limit", str(limit.bandwidth)) for limit in topology.limits]
    for (a, b, limits), links in limited.items():
        links.sort(key=lambda link: (int(link_class[link]), link))
        types = tuple(sorted(Counter(int(link_class[link]) for link in links).items()))
        tails[len(descriptions)] = links
        edges += [(a, len(descriptions)), (len(descriptions), len(descriptions) + 1), (len(descriptions) + 1, b)]
        edges += [(len(descriptions), first_limit + limit) for limit in limits]
        descriptions += [("limited tail", types), ("limited head", types)]
    all_edges = np.concatenate([plain_edges, np.array(edges, np.int64).reshape(-1, 2)])
    distinct = sorted(set(descriptions), key=repr)
    colour_of = {description: i for i, description in enumerate(distinct)}
    legend = (type_legend, common, tuple(distinct))
    return _ColouredGraph(all_edges, [colour_of[description] for description in descriptions], legend, tails)


def _ability_words(ability: Ability) -> tuple[str, ...]:
    """Return what a switch can do besides forwarding, in words; nothing for other nodes."""
    abilities = ((field.name, getattr(ability, field.name)) for field in fields(ability))
    return tuple(name if value is True else f"{name}={value}" for name, value in abilities if value)


def _plain_edges(nodes: int, plain: Mapping[Bond, Longs]) -> tuple[tuple[Bond, bool] | None, Longs]:
    """Return the bond encoded as plain edges, whether the pairs *without* it are joined instead, and these edges."""
    both_ways = [(len(pairs), bond) for bond, pairs in plain.items() if bond[0] == bond[1]]
    if not both_ways:
        return None, np.zeros((0, 2), np.int64)
    count, bond = max(both_ways)  # of equally common bonds the greatest, so that isomorphic machines agree
    # Join whichever are fewer, the pairs with this bond or those without it: count <= half of nodes * (nodes - 1) / 2.
    if 4 * count <= nodes * (nodes - 1):
        return (bond, False), plain[bond]
    absent = np.triu(np.ones((nodes, nodes), bool), 1)
    absent[plain[bond].min(axis=1), plain[bond].max(axis=1)] = False
    return (bond, True), np.argwhere(absent)


def _type_classes(topology: Topology) -> tuple[Longs, tuple[Hashable, ...]]:
    """Return the class of every link's type, and the classes by value: equal for isomorphic machines."""
    values = [(t.kind, str(t.bandwidth), t.latency.hex()) for t in topology.types]
    used_values = sorted({values[i] for i in np.unique(topology.link_type)})
    class_of_value = {value: i for i, value in enumerate(used_values)}
    class_of_type = np.array([class_of_value.get(value, -1) for value in values], np.int64)
    return class_of_type[topology.link_type], tuple(used_values)


def _limits_of(topology: Topology) -> dict[int, list[int]]:
    """Return the limits of every link that has any."""
    out: dict[int, list[int]] = defaultdict(list)
    for i, limit in enumerate(topology.limits):
        for link in limit.links:
            out[link].append(i)
    return dict(out)


def _collect_bonds(
    topology: Topology, link_class: Longs, limits_of: dict[int, list[int]]
) -> tuple[dict[Bond, Longs], dict[tuple[int, int, tuple[int, ...]], list[int]]]:
    """Return the bonds without limits, as `Bond` -> pairs (a, b) of nodes, and the links under limits by (src, dst,
    limits). Of a pair, a is the end whose links to the other have the greater word (`_number_words`)."""
    limited: dict[tuple[int, int, tuple[int, ...]], list[int]] = defaultdict(list)
    free = np.ones(topology.links, bool)  # links under no limit
    for link, limits in limits_of.items():
        free[link] = False
        limited[int(topology.link_src[link]), int(topology.link_dst[link]), tuple(limits)].append(link)
    nodes = topology.nodes
    pair = topology.link_src[free].astype(np.int64) * nodes + topology.link_dst[free]
    keys, pair_index = unique_inverse(pair, bound=nodes * nodes)
    word, words = _number_words(pair_index, link_class[free], len(keys))
    # The description of the same pair seen from the other end.
    opposite_key = keys % nodes * nodes + keys // nodes
    opposite_index = np.minimum(np.searchsorted(keys, opposite_key), max(len(keys) - 1, 0))
    opposite_word = np.where(keys[opposite_index] == opposite_key, word[opposite_index], 0)  # word 0: no link back
    # Every pair of nodes once; where both words are equal, from the node with the lesser number.
    is_listed = (word > opposite_word) | ((word == opposite_word) & (keys // nodes < keys % nodes))
    plain: dict[Bond, Longs] = {}
    codes = word[is_listed] * len(words) + opposite_word[is_listed]
    order = np.argsort(codes, kind="stable")
    distinct_codes, first = np.unique(codes[order], return_index=True)
    ends = np.stack([keys[is_listed] // nodes, keys[is_listed] % nodes], axis=1)[order]
    # Not strict: without any pair the last list still has its final entry.
    for code, low, high in zip(distinct_codes.tolist(), first, [*first[1:], len(ends)], strict=False):
        pairs = ends[low:high]
        plain[words[code // len(words)], words[code % len(words)]] = pairs
    return plain, dict(limited)


def _number_words(pair: Longs, link_class: Longs, pairs: int) -> tuple[Longs, list[Types]]:
    """Return for every pair of nodes the number of its *word* (from 1), and the words in ascending order.

    A word lists the number of links of each class between a pair. Most pairs have one class; these are compared by
    columns, and Python handles only the words.

    >>> pair, link_class = np.array([0, 1, 2, 2, 2]), np.array([0, 0, 0, 1, 1])
    >>> number, words = _number_words(pair, link_class, 3)  # pair 2 has a link of class 0 and two of class 1
    >>> number.tolist(), words
    ([1, 1, 2], [(), ((0, 1),), ((0, 1), (1, 2))])
    """
    classes = int(link_class.max(initial=0)) + 1
    rows, count = np.unique(pair * classes + link_class, return_counts=True)
    owner, link_class = rows // classes, rows % classes
    first = np.searchsorted(owner, np.arange(pairs + 1))
    singles = np.flatnonzero(np.diff(first) == 1)
    index: dict[Types, int] = {}
    word_index = np.zeros(pairs, np.int64)
    single_rows = first[singles]
    count_bound = int(count.max(initial=0)) + 1
    single_codes = link_class[single_rows] * count_bound + count[single_rows]
    codes, word_index[singles] = np.unique(single_codes, return_inverse=True)
    # Pairs with links of one class: numbered by columns, without a Python loop over pairs.
    for code in codes.tolist():
        index[((code // count_bound, code % count_bound),)] = len(index)  # a word of a single class
    for i in np.flatnonzero(np.diff(first) > 1).tolist():
        low, high = first[i], first[i + 1]
        word = tuple(zip(link_class[low:high].tolist(), count[low:high].tolist(), strict=True))
        word_index[i] = index.setdefault(word, len(index))
    sorted_words: list[Types] = sorted(index)
    sorted_number = np.zeros(len(sorted_words), np.int64)  # per word (numbered by `index`) its number in the result
    sorted_number[[index[word] for word in sorted_words]] = np.arange(1, len(sorted_words) + 1)
    return sorted_number[word_index], [(), *sorted_words]


def _map_limited(topology: Topology, node_image: Ints, image: Longs) -> None:
    """Fill in the images of links under limits.

    Encode the machine twice, with every node coloured by its image and with every node coloured by its own number. If
    `node_image` is a symmetry, the canonical forms of both graphs are equal, and vertices with equal canonical numbers
    correspond.
    """
    image_graph = _encode_graph(topology, node_image.tolist())
    own_graph = _encode_graph(topology, list(range(topology.nodes)))
    image_label, *image_form = image_graph.canonical()
    own_label, *own_form = own_graph.canonical()
    is_equal = all(np.array_equal(a, b) for a, b in zip(image_form, own_form, strict=True))
    if image_graph.legend != own_graph.legend or not is_equal:
        raise Invalid(f"permutation: not a symmetry of {topology.name}; automorphisms() lists its symmetries")
    vertex_of_label = np.argsort(own_label)
    for vertex, links in image_graph.tails.items():
        image[links] = own_graph.tails[int(vertex_of_label[image_label[vertex]])]
