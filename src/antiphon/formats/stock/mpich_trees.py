"""Extract the built-in selection trees of an MPICH from its library, and reduce them for a given number of processes.

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

Tree = dict[str, Any]
MPIR, CH4 = "MPIR", "CH4"
_LONGEST = 2**20
_MARKS = {MPIR: "algorithm=MPIR_I", CH4: "composition=MPIDI_"}  # only the first has collectives that do not block
LEAVES = ("algorithm=", "composition=")


@dataclass(frozen=True, eq=False)
class Own:
    """What an MPICH has in itself: the tree of MPIR, and where there is one that of the device CH4. `data`: all of the
    library, for the words that it knows in such trees: algorithms, and names of parameters with = behind."""

    trees: Mapping[str, Tree]
    data: bytes

    def refuse_unknown(self, leaf: str, parameters: Iterable[str], path: str) -> None:
        """MPICH takes a word that it does not know for any algorithm."""
        for word in (leaf, *(f"{key}=" for key in parameters)):
            if f"{word}\0".encode() not in self.data:  # it may be the end of a longer one
                raise Unsupported(
                    f"{path}: this MPICH does not support {quote(word)} in a selection file; tune again with it"
                )


def own_trees(path: str) -> Own:
    """Read out of a library file (libmpi.so)."""
    with reading(path):
        data = read_bytes(path)
    trees: dict[str, Tree] = {}
    # The trees are C strings in the library's data: they begin and end with a zero byte.
    for at in re.finditer(rb'\{\s*"collective=', data):
        stop = data.find(b"\0", at.start(), at.start() + _LONGEST)
        text = data[at.start() : stop] if stop > 0 and data[at.start() - 1 : at.start()] == b"\0" else b""
        for name, mark in _MARKS.items():
            if name not in trees and mark.encode() in text:
                trees[name] = _parse_tree(text, path)
    if MPIR not in trees:
        raise NotFound(f"{path}: contains no selection tree; is it the libmpi of an MPICH 4 or 5?")
    return Own(trees, data)


def _parse_tree(text: bytes, path: str) -> Tree:
    try:
        tree = json.loads(text, object_pairs_hook=_refuse_duplicates)
    except (ValueError, RecursionError):
        raise Invalid(f"{path}: its selection tree is not in a known JSON form") from None
    if not isinstance(tree, dict):
        raise Invalid(f"{path}: its selection tree is not an object")
    return tree


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> Tree:
    tree = dict(pairs)
    if len(tree) != len(pairs):
        raise ValueError("a key stands twice")
    return tree


def of_intra(trees: Tree, collective: str, path: str) -> tuple[Tree, Tree]:
    """Of a collective the tree for communicators of one group, and the rest."""
    both_types = trees.get(f"collective={collective}")
    if not isinstance(both_types, dict) or not isinstance(both_types.get("comm_type=intra"), dict):
        raise Invalid(f"{path}: its selection tree for {quote(collective)} has an unknown form")
    return both_types["comm_type=intra"], {key: value for key, value in both_types.items() if key != "comm_type=intra"}


def at_size(tree: Tree, count: int) -> Tree:
    """Simplify a tree for `count` processes. MPICH decides by their number when it makes a communicator, as far as
    conditions on messages do not stand before that; so do we, as behind such a condition it takes < for <=.

    >>> at_size({"comm_size<4": {"algorithm=a": {}}, "comm_size=any": {"count<=2": {"comm_size<4": {}}}}, 4)
    {'count<=2': {'comm_size<4': {}}}
    """
    if any(key.startswith(LEAVES) for key in tree):
        return tree
    for key, inner in tree.items():
        holds = _condition_holds(key, count)
        if holds is True:
            return at_size(inner, count)
        # Undecidable here: a condition on messages ends the simplification, one on the communicator only drops branches
        # that cannot hold.
        if holds is None:
            if not key.startswith(("comm_", "is_node_consecutive")):
                return tree
            return {k: at_size(v, count) for k, v in tree.items() if _condition_holds(k, count) is not False}
    return tree


def _condition_holds(key: str, count: int) -> bool | None:
    """Whether a condition holds for `count` processes; None if that depends on more."""
    if key == "any" or key.endswith("=any"):
        return True
    if key == "comm_size=pow2":
        return count & (count - 1) == 0
    at = re.fullmatch(r"comm_size(<=?)(\d+)", key)
    if at is None:
        return None
    return count <= int(at[2]) if at[1] == "<=" else count < int(at[2])


def leaf_of(tree: Mapping[str, Any]) -> str:
    """The first leaf in it."""
    for key, inner in tree.items():
        if key.startswith(LEAVES):
            return key
        leaf = leaf_of(inner)
        if leaf:
            return leaf
    return ""


def for_processes(own: Tree, count: int, inside: Callable[[Tree], Tree]) -> Tree:
    """The library's own tree for all numbers of processes but `count`; for these what `inside` makes of it."""
    return {f"comm_size<={count - 1}": own, f"comm_size<={count}": inside(at_size(own, count)), "comm_size=any": own}


def written(tree: Tree) -> str:
    """As MPICH can read it: it takes the file from memory up to the first zero, so it must not end with a page."""
    text = json.dumps(tree, indent=1) + "\n"
    return text if len(text) % 4096 else text + "\n"
