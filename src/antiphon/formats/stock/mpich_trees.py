"""Extract the built-in selection trees of an MPICH from its library, and reduce them for a given number of processes.

A selection tree decides which algorithm serves a call: its inner nodes are conditions on the communicator and the
message ("comm_size<4", "count<=2"), its leaves name algorithms ("algorithm=MPIR_Bcast_intra_tree"). MPICH has two of
them, as JSON in its library file: one of MPIR, its portable layer, and one of the device CH4.

A selection file replaces the whole tree for all collectives: an algorithm that it does not mention can no longer be
called. So our file is the library's own tree with our rules inserted, never a tree written from memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from antiphon.core.files import read_bytes, reading
from antiphon.errors import Invalid, NotFound, Unsupported, quote

Tree = dict[str, Any]  # condition, or leaf -> the tree below it; {} below a leaf without parameters
MPIR, CH4 = "MPIR", "CH4"
_MAX_TREE_BYTES = 2**20  # of one tree in a library: how far its end is searched for
# A string that occurs in only one of the trees: nonblocking algorithms (MPIR_I...) are in that of MPIR alone.
_MARKS = {MPIR: "algorithm=MPIR_I", CH4: "composition=MPIDI_"}
LEAVES = ("algorithm=", "composition=")  # how the keys of leaves begin; a composition is an algorithm of CH4


@dataclass(frozen=True, eq=False)
class LibraryTrees:
    """The selection trees that are built into an MPICH library."""

    trees: Mapping[str, Tree]  # of MPIR, and of CH4 if it has one
    data: bytes  # the whole library file; the words that it knows in such trees occur in it as C strings

    def refuse_unknown(self, leaf: str, parameters: Iterable[str], path: str) -> None:
        """Raise Unsupported for a word that this MPICH does not know: it would run an arbitrary algorithm instead."""
        for word in (leaf, *(f"{key}=" for key in parameters)):
            if f"{word}\0".encode() not in self.data:  # a longer word with this end passes, too
                raise Unsupported(
                    f"{path}: this MPICH does not support {quote(word)} in a selection file; tune again with it"
                )


def read_library_trees(path: str) -> LibraryTrees:
    """Read the selection trees out of a library file (libmpi.so)."""
    with reading(path):
        data = read_bytes(path)
    trees: dict[str, Tree] = {}
    # The trees are C strings in the library's data: they begin and end with a zero byte.
    for match in re.finditer(rb'\{\s*"collective=', data):
        stop = data.find(b"\0", match.start(), match.start() + _MAX_TREE_BYTES)
        text = data[match.start() : stop] if stop > 0 and data[match.start() - 1 : match.start()] == b"\0" else b""
        for name, mark in _MARKS.items():
            if name not in trees and mark.encode() in text:
                trees[name] = _parse_tree(text, path)
    if MPIR not in trees:
        raise NotFound(f"{path}: contains no selection tree; is it the libmpi of an MPICH 4 or 5?")
    return LibraryTrees(trees, data)


def _parse_tree(text: bytes, path: str) -> Tree:
    """Parse a tree; raise Invalid if it is not a JSON object without duplicate keys."""
    try:
        tree = json.loads(text, object_pairs_hook=_refuse_duplicates)
    except (ValueError, RecursionError):
        raise Invalid(f"{path}: its selection tree is not in a known JSON form") from None
    if not isinstance(tree, dict):
        raise Invalid(f"{path}: its selection tree is not an object")
    return tree


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> Tree:
    """Return a JSON object; ValueError for a key that occurs twice, of which MPICH would see both."""
    tree = dict(pairs)
    if len(tree) != len(pairs):
        raise ValueError("duplicate key")
    return tree


def split_intra(trees: Tree, collective: str, path: str) -> tuple[Tree, Tree]:
    """Return the tree of a collective for intracommunicators (of one group), and its other branches."""
    by_communicator_type = trees.get(f"collective={collective}")
    if not isinstance(by_communicator_type, dict) or not isinstance(by_communicator_type.get("comm_type=intra"), dict):
        raise Invalid(f"{path}: its selection tree for {quote(collective)} has an unknown form")
    return by_communicator_type["comm_type=intra"], {
        key: value for key, value in by_communicator_type.items() if key != "comm_type=intra"
    }


def simplify_for_count(tree: Tree, count: int) -> Tree:
    """Simplify a tree for `count` processes: drop the conditions on their number that do not hold.

    MPICH evaluates such conditions when it creates a communicator. Conditions below one on the message stay as they
    are: MPICH evaluates them per call, and treats < as <= there.

    >>> simplify_for_count({"comm_size<4": {"algorithm=a": {}}, "comm_size=any": {"count<=2": {"comm_size<4": {}}}}, 4)
    {'count<=2': {'comm_size<4': {}}}
    """
    if any(key.startswith(LEAVES) for key in tree):
        return tree
    for key, inner in tree.items():
        holds = _condition_holds(key, count)
        if holds is True:
            return simplify_for_count(inner, count)
        # Undecidable here: a condition on messages ends the simplification, one on the communicator only drops branches
        # that cannot hold.
        if holds is None:
            if not key.startswith(("comm_", "is_node_consecutive")):
                return tree
            return {k: simplify_for_count(v, count) for k, v in tree.items() if _condition_holds(k, count) is not False}
    return tree


def _condition_holds(key: str, count: int) -> bool | None:
    """Return whether a condition holds for `count` processes; None if it depends on something else, too."""
    if key == "any" or key.endswith("=any"):
        return True
    if key == "comm_size=pow2":
        return count & (count - 1) == 0
    match = re.fullmatch(r"comm_size(<=?)(\d+)", key)
    if match is None:
        return None
    return count <= int(match[2]) if match[1] == "<=" else count < int(match[2])


def find_first_leaf(tree: Mapping[str, Any]) -> str:
    """Return the first leaf of a tree, "" if it has none."""
    for key, inner in tree.items():
        if key.startswith(LEAVES):
            return key
        leaf = find_first_leaf(inner)
        if leaf:
            return leaf
    return ""


def replace_for_count(own: Tree, count: int, rewrite: Callable[[Tree], Tree]) -> Tree:
    """Return the library's own tree, in which `rewrite` has changed the simplified tree for `count` processes."""
    return {
        f"comm_size<={count - 1}": own,
        f"comm_size<={count}": rewrite(simplify_for_count(own, count)),
        "comm_size=any": own,
    }


def tree_text(tree: Tree) -> str:
    """Return the text of a selection file.

    MPICH maps the file into memory and reads up to the first zero byte. So its length must not be a multiple of the
    memory page (4096 bytes), as no zero would follow.
    """
    text = json.dumps(tree, indent=1) + "\n"
    return text if len(text) % 4096 else text + "\n"
