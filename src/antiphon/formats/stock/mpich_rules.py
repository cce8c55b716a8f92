"""Write selection trees for MPICH 4 and 5: which of its own algorithms serves which size.

A selection tree has conditions on the communicator and the message as inner nodes and algorithms as leaves
(mpich_trees). For each collective of the table, the library's own tree is kept except for communicators of as many
processes as the machine has ranks: there conditions on the size are inserted, one branch per range of sizes. Example,
an allreduce of 8 processes by `ring` up to 64 KB; conditions are tried in this order: {"comm_size<=7": the library's
own branch, "comm_size<=8": {"avg_msg_size<65536": {"algorithm=...ring": {}}, "avg_msg_size=any": the library's own
branch}, "comm_size=any": the library's own branch}.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from antiphon.core.plan import Plan
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.formats.files import Files
from antiphon.formats.stock.measured import MAX_PARAMETER, NO_RULE_REASON, MeasuredAlgorithm, algorithm_of, library_of
from antiphon.formats.stock.mpich_trees import (
    CH4,
    MPIR,
    Tree,
    find_first_leaf,
    read_library_trees,
    replace_for_count,
    split_intra,
    tree_text,
)
from antiphon.formats.stock.ranges import RuleRange, count_members, merge_ranges, notes_of

FILES = {MPIR: "mpich-mpir.json", CH4: "mpich-ch4.json"}


class MpichCollective(NamedTuple):
    """A collective as MPICH's selection files name it."""

    name: str
    size: str  # the quantity in conditions on the message size
    of_block: bool = False  # whether that quantity counts the block for one process, not the whole buffer


COLLECTIVES = {
    "allgather": MpichCollective("allgather", "total_msg_size"),
    "allreduce": MpichCollective("allreduce", "avg_msg_size"),
    "alltoall": MpichCollective("alltoall", "avg_msg_size", of_block=True),
    "broadcast": MpichCollective("bcast", "avg_msg_size"),
    "reduce": MpichCollective("reduce", "avg_msg_size"),
    "reducescatter": MpichCollective("reduce_scatter_block", "total_msg_size"),
}
# Conditions of the tree that a call must meet for an algorithm to be right for it; other calls go as without rules.
COMMUTES, BUILT_IN, ENOUGH_ELEMENTS, PARENT = "is_commutative", "is_op_built_in", "count", "comm_hierarchy"
NEEDS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("allreduce", "recursive_multiplying"): (COMMUTES,), ("allreduce", "ring"): (COMMUTES,),
    ("allreduce", "k_reduce_scatter_allgather"): (COMMUTES,), ("allreduce", "smp"): (COMMUTES, PARENT),
    ("reduce", "smp"): (COMMUTES, PARENT), ("broadcast", "smp"): (PARENT,),
    ("allreduce", "reduce_scatter_allgather"): (BUILT_IN, ENOUGH_ELEMENTS),
    ("reduce", "reduce_scatter_gather"): (BUILT_IN, ENOUGH_ELEMENTS),
    ("reducescatter", "pairwise"): (COMMUTES,), ("reducescatter", "recursive_halving"): (COMMUTES,),
}  # fmt: skip
# (kind, algorithm) -> the type of its tree, which a rule must name: the library's default, with which it was measured.
TREES = {("allreduce", "tree"): "knomial_1", ("broadcast", "tree"): "kary", ("broadcast", "pipelined_tree"): "kary"}
# (algorithm of a range, None if the library chooses; the library's own branch) -> the branch to write
Branch = Callable[[MeasuredAlgorithm | None, Tree], Tree]


def mpich_rules(plans: Mapping[str, Plan], *, library: str = "") -> Files[str]:
    """Write MPICH's own selection trees with rules for all plans inserted.

    They apply to communicators of exactly as many processes as the machine has ranks, and to the measured sizes;
    everything else stays as in the library.

    Parameters
    ----------
    library
        The libmpi.so whose trees are read. Default: the measured one.
    """
    about = library_of(plans, "MPICH")
    path = library or about["file"]
    if not isinstance(path, str):
        raise Invalid(f"library: expected a file, got {quote(path)}")
    own = read_library_trees(path)
    trees = dict(own.trees)
    rules, left_to_library = 0, 0
    for kind, plan in plans.items():
        count = count_members(plan, "mpich-rules")
        size_ranges = merge_ranges(plan, algorithm_of)
        algorithms = [size_range.value for size_range in size_ranges if size_range.value is not None]
        left_to_library += len(size_ranges) - len(algorithms)
        if not algorithms:
            continue
        rules += len(algorithms)
        if kind not in COLLECTIVES:
            raise Unsupported(f"mpich-rules: selection files of MPICH know no sizes of {kind} in bytes")
        for algorithm in algorithms:
            own.refuse_unknown(_leaf_name(kind, algorithm), dict(algorithm.parameters), path)
        trees = {level: _with_rules(tree, level, kind, count, size_ranges, path) for level, tree in trees.items()}
    return Files(
        {FILES[level]: tree_text(tree) for level, tree in trees.items()},
        notes_of(rules, "MPICH", [NO_RULE_REASON] * left_to_library),
    )


def _leaf_name(kind: str, algorithm: MeasuredAlgorithm) -> str:
    """Return the leaf of an algorithm. "nb" calls the nonblocking collective, for communicators of all types."""
    where = "allcomm" if algorithm.name == "nb" else "intra"
    return f"algorithm=MPIR_{COLLECTIVES[kind].name.capitalize()}_{where}_{algorithm.name}"


def _with_rules(
    trees: Tree, level: str, kind: str, count: int, size_ranges: Sequence[RuleRange[MeasuredAlgorithm]], path: str
) -> Tree:  # fmt: skip
    """Return the tree of a level with the rules for one collective; a collective that CH4 lacks is left to MPIR."""
    key = f"collective={COLLECTIVES[kind].name}"
    if level == CH4 and key not in trees:
        return trees
    own, inter_trees = split_intra(trees, COLLECTIVES[kind].name, path)
    branch = _to_mpir(find_first_leaf(own)) if level == CH4 else _mpir_branch(kind)

    def rewrite(own_branch: Tree) -> Tree:
        return _by_size(kind, count, size_ranges, own_branch, branch)

    return {**trees, key: {"comm_type=intra": replace_for_count(own, count, rewrite), **inter_trees}}


def _by_size(
    kind: str, count: int, size_ranges: Sequence[RuleRange[MeasuredAlgorithm]], own: Tree, branch: Branch
) -> Tree:
    """Return one branch for each range of sizes."""
    size_rule = COLLECTIVES[kind]
    branches: Tree = {}
    for size_range in size_ranges:
        if size_range.stop is None:
            break
        # Sizes of the plan are those of the whole buffer; MPICH may count a block.
        stop = -(-size_range.stop // count) if size_rule.of_block else size_range.stop
        condition = f"{size_rule.size}<{stop}" if stop <= MAX_PARAMETER else f"{size_rule.size}<={MAX_PARAMETER}"
        # A range in which no size is a whole number of blocks has the condition of the one before, whose branch stays.
        branches.setdefault(condition, branch(size_range.value, own))
        if stop > MAX_PARAMETER:  # the last condition that a number can express
            break
    # Sizes above the last measured one keep the library's own branch, unless its range has no end.
    last = size_ranges[-1]
    branches[f"{size_rule.size}=any"] = branch(last.value if last.stop is None else None, own)
    if kind == "alltoall":  # in place there is no type of what is sent, hence no size
        return {"is_sendbuf_inplace=yes": own, "is_sendbuf_inplace=no": branches}
    return branches


def _mpir_branch(kind: str) -> Branch:
    """Return what makes a branch of MPIR's tree: the algorithm where its needs are met, elsewhere the library's own."""

    def branch(algorithm: MeasuredAlgorithm | None, own: Tree) -> Tree:
        if algorithm is None:
            return own
        tree = TREES.get((kind, algorithm.name))
        parameters = [
            *([f"tree_type={tree}"] if tree else []),
            *(f"{key}={value}" for key, value in algorithm.parameters),
        ]
        rule_tree: Tree = {_leaf_name(kind, algorithm): {parameter: {} for parameter in parameters}}
        # Nest the conditions, the first of them outermost.
        for need in reversed(NEEDS.get((kind, algorithm.name), ())):
            rule_tree = _branch_on_need(need, rule_tree, own)
        return rule_tree

    return branch


def _branch_on_need(need: str, rule_tree: Tree, own: Tree) -> Tree:
    """Return a tree with the rule for calls that meet a need of its algorithm, and the library's own for all others.

    PARENT is the need of algorithms by host: they call the same collective on parts of the communicator, where the rule
    must not apply again.
    """
    if need == ENOUGH_ELEMENTS:  # pow2: the greatest power of two up to the number of processes
        return {"count<pow2": own, "count=any": rule_tree}
    if need == PARENT:
        return {f"{need}=parent": rule_tree, f"{need}=any": own}
    return {f"{need}=yes": rule_tree, f"{need}=no": own}


def _to_mpir(leaf: str) -> Branch:
    """Return what makes a branch of CH4's tree: where there is a rule nothing fits, so that MPIR's tree decides.

    `leaf`: any algorithm that this MPICH knows, as a branch must end in one; it is never chosen.
    """

    def branch(algorithm: MeasuredAlgorithm | None, own: Tree) -> Tree:
        # calls that come here have an intracommunicator, so that this condition never holds
        return own if algorithm is None else {"comm_type=inter": {leaf: {}}}

    return branch
