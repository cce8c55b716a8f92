"""Build trees of switches with ranks as leaves from their fan-outs.

`fanouts` is read by recursive descent: "8" is a switch of 8 ranks, "4x8" a root over 4 switches of 8 ranks each, and
"2x(3+5)" a root over 2 different switches, of 3 and of 5 ranks. In such a list, "8*32" stands for 8 switches of 32
ranks each, and "0" for a rank directly below the list's switch.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from antiphon.core.topology import Link, LinkType, Topology, build
from antiphon.errors import Invalid, quote
from antiphon.topologies.options import (
    BANDWIDTH,
    LATENCY,
    Bandwidth,
    Latency,
    check_node_count,
    link_type,
    name_with_options,
    parse_oversubscription,
)

EXAMPLE = "4x8 (4 switches of 8 ranks), 2x(3+5) (2 switches, of 3 and of 5) or 16x(8*32+8*16)"
_MAX_TEXT = 200  # characters of `fanouts`
_MAX_LEVELS = 16  # of switches, one below the other


@dataclass(frozen=True)
class TreeShape:
    """A node of a tree: its children in order as (count, shape), each for `count` equal children."""

    children: tuple[tuple[int, TreeShape], ...] = ()  # a rank has none

    @property
    def ranks(self) -> int:
        """The number of ranks in this tree."""
        return sum(count * child.ranks for count, child in self.children) if self.children else 1

    @property
    def nodes(self) -> int:
        """The number of ranks and switches in this tree."""
        return 1 + sum(count * child.nodes for count, child in self.children)


RANK = TreeShape()


def read_shape(fanouts: object) -> TreeShape:
    """Return the tree that `fanouts` describes, as the shape of its root switch.

    node = 8 (a switch of 8 ranks) | 4xNODE (4 equal children) | 2x(NODE+NODE) (2 children, one after another; 8*NODE
    repeats one); 0 in such a list is a rank.
    """
    text = str(fanouts) if not isinstance(fanouts, bool) else ""
    # tokens have at most 9 digits: a longer number makes two tokens, which the parser refuses
    tokens = re.findall(r"[0-9]{1,9}|[x(+*)]", text) if len(text) <= _MAX_TEXT else []
    if not tokens or "".join(tokens) != text:
        raise Invalid(f"fanouts={quote(fanouts)}: write for example {EXAMPLE}")
    reader = _Reader(text, tokens)
    shape = reader.node(0)
    if reader.at != len(tokens):
        raise reader.syntax_error()
    if shape.ranks < 2:
        raise Invalid(f"fanouts={quote(text)}: makes {shape.ranks} rank; a network needs at least 2")
    check_node_count(shape.nodes, f"fanouts={text}")
    return shape


class _Reader:
    """A recursive-descent parser of `fanouts`. `at`: the number of the next token."""

    def __init__(self, text: str, tokens: list[str]) -> None:
        self.text, self.tokens, self.at = text, tokens, 0

    def syntax_error(self) -> Invalid:
        token = repr(self.tokens[self.at]) if self.at < len(self.tokens) else "its end"
        return Invalid(f"fanouts={quote(self.text)}: cannot read it at {token}; write for example {EXAMPLE}")

    def take(self, token: str) -> bool:
        """Read the next token if it is this one; return whether it is."""
        matches = self.at < len(self.tokens) and self.tokens[self.at] == token
        self.at += matches
        return matches

    def number(self) -> int:
        """Read a number."""
        if self.at >= len(self.tokens) or not self.tokens[self.at].isdigit():
            raise self.syntax_error()
        self.at += 1
        return int(self.tokens[self.at - 1])

    def node(self, depth: int) -> TreeShape:
        """Read a node and all below it; `depth`: levels above it."""
        if depth > _MAX_LEVELS:
            raise Invalid(f"fanouts={quote(self.text)}: more than {_MAX_LEVELS} levels")
        return self.children(self.number(), depth)

    def children(self, count: int, depth: int) -> TreeShape:
        """Return a node of fan-out `count`: read what follows that, its children, or nothing if they are ranks."""
        if not self.take("x"):
            return TreeShape(((count, RANK),)) if count else RANK  # 0: the node itself is a rank
        if not count:
            raise Invalid(f"fanouts={quote(self.text)}: a switch without children; leave out the 0")
        if not self.take("("):
            return TreeShape(((count, self.node(depth + 1)),))
        children = [self.list_item(depth + 1)]
        while self.take("+"):
            children.append(self.list_item(depth + 1))
        if not self.take(")"):
            raise self.syntax_error()
        listed = sum(number for number, _ in children)
        if listed != count:
            raise Invalid(
                f"fanouts={quote(self.text)}: {count} children, but {listed} are listed behind them; write one for each"
            )
        return TreeShape(tuple(children))

    def list_item(self, depth: int) -> tuple[int, TreeShape]:
        """Read an item between "+" in parentheses: 8*NODE, or NODE, which here may be 0 for a rank."""
        number = self.number()
        if self.take("*"):
            if not number:
                raise Invalid(f"fanouts={quote(self.text)}: 0 times something; leave it out")
            return number, self.node(depth)
        return 1, self.children(number, depth)


# height of a switch (1: only ranks below), sum of the bytes/s of its links to children -> its link upwards
Uplink = Callable[[int, Fraction], LinkType]


@dataclass
class TreeNodes:
    """A tree as nodes: ranks from 0 on, then switches, the root first; links both ways."""

    links: list[Link]  # (source node, destination node, type)
    places: list[str]  # of all nodes
    ranks: int  # the number of ranks
    switches: int


def grow_tree(shape: TreeShape, leaf: LinkType, uplink: Uplink, rank_name: str = "rank") -> TreeNodes:
    """Return a shape as nodes and links; ranks and switches are numbered depth first. O(nodes).

    `leaf`: the link of a rank; `uplink`: that of a switch. Child 3 of child 1 of the root is at "sw1/sw3" if it is a
    switch, and at "sw1/rank9" if it is rank 9; `rank_name` replaces "rank".
    """
    ranks = shape.ranks
    places = [""] * shape.nodes
    links: list[Link] = []
    next_rank, next_switch = itertools.count(), itertools.count(ranks)

    def visit(node: TreeShape, path: str) -> tuple[int, int, LinkType]:
        """Number a node and all below it; return its number, its height, and the link above it."""
        if not node.children:
            number = next(next_rank)
            places[number] = f"{path}{rank_name}{number}"
            return number, 0, leaf
        number = next(next_switch)
        places[number] = path.rstrip("/") or "root"
        # bandwidth of all links below decides the uplink, so children come first
        height, below, ordinal = 0, Fraction(0), 0
        for repeats, child in node.children:
            for _ in range(repeats):
                end, child_height, link = visit(child, f"{path}sw{ordinal}/" if child.children else path)
                ordinal += 1
                links.extend(((end, number, link), (number, end, link)))
                height, below = max(height, child_height + 1), below + link.bandwidth
        return number, height, uplink(height, below)

    visit(shape, "")  # the root has no link above it: its own is not used
    return TreeNodes(links, places, ranks, shape.nodes - ranks)


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
    stands for eight times 32, and 0 for a rank without a switch of its own: 3x(4+2+0). A rank's link has `bandwidth`.
    A switch's uplink is as wide as its links below together, over `oversubscription`; or `uplink`: for all levels
    (50GB/s), or from the lowest upwards (50GB/s+100GB/s, the last also for what is above).
    """
    shape = read_shape(fanouts)
    leaf = link_type("link", bandwidth, latency)
    taper = parse_oversubscription(oversubscription)
    if uplink is not None and taper != 1:
        raise Invalid(f"uplink={quote(uplink)}: fixes what oversubscription={oversubscription} would; leave one out")
    levels = uplink.split("+") if isinstance(uplink, str) else [] if uplink is None else [uplink]
    uplinks = [link_type("uplink", level, latency, option="uplink") for level in levels]

    def uplink_of(height: int, below: Fraction) -> LinkType:
        # explicit uplinks by level, the last one for all levels above
        if uplinks:
            return uplinks[min(height, len(uplinks)) - 1]
        return LinkType("uplink", below / taper, leaf.latency)

    tree_nodes = grow_tree(shape, leaf, uplink_of)
    # (value, default): a name leaves out an oversubscription of 1, also if written "1.0"
    name = name_with_options(
        f"tree:fanouts={fanouts}", bandwidth=(bandwidth, BANDWIDTH), uplink=(uplink, None),
        oversubscription=(oversubscription, oversubscription if taper == 1 else 1), latency=(latency, LATENCY),
    )  # fmt: skip
    return build(
        name, tree_nodes.ranks, tree_nodes.links,
        switches=tree_nodes.switches, places=tree_nodes.places, unit=leaf.bandwidth,
    )  # fmt: skip
