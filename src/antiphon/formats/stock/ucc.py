"""Tuning strings for UCC: which algorithm of its component tl/ucp for which collective and size."""

from __future__ import annotations

from collections.abc import Mapping

from antiphon.core.plan import Entry, Plan
from antiphon.errors import Unsupported
from antiphon.formats.stock.measured import about
from antiphon.formats.stock.ranges import planner_of, ranges, refuse_part

FILE = "ucc.conf"
COLLECTIVES = {"broadcast": "bcast", "reducescatter": "reduce_scatter"}  # where UCC calls them otherwise
OF_BLOCK = ("reducescatter",)  # whose size UCC knows as that of what one process gets
# Which of UCC's algorithms does as our planners, and as algorithms of MPIs by their names there.
FAMILIES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "allreduce": {
        "knomial": ("recursive-doubling", "recmult", "permrecmult", "recursive_doubling", "recursive_multiplying",
                    "recexch"),
        "sra_knomial": ("halving-doubling", "rabenseifner", "reduce_scatter_allgather", "k_reduce_scatter_allgather"),
        "dbt": ("double-binary-tree",),
        "ring": ("ring", "multi-ring", "segmented_ring"),
    },
    "allgather": {
        "knomial": ("recursive-doubling", "recursive_doubling", "recexch_doubling", "recexch_halving"),
        "ring": ("ring", "multi-ring"),
        "neighbor": ("neighbor",),
        "bruck": ("bruck", "brucks", "k_brucks"),
        "sparbit": ("sparbit",),
        "linear": ("direct", "linear"),
    },
    "alltoall": {"pairwise": ("pairwise", "direct"), "bruck": ("bruck", "brucks", "modified_bruck", "k_brucks")},
    "broadcast": {
        "knomial": ("binomial-tree", "binomial", "knomial"),
        "sag_knomial": ("scatter_allgather", "scatter_recursive_doubling_allgather", "scatter_allgather_ring",
                        "scatter_ring_allgather"),
        "dbt": ("double-binary-tree",),
    },
    "reduce": {
        "knomial": ("binomial-tree", "binomial"),
        "dbt": ("double-binary-tree",),
        "srg": ("rabenseifner", "reduce_scatter_gather"),
    },
    "reducescatter": {"ring": ("ring", "multi-ring"), "knomial": ("halving-doubling", "recursive_halving")},
    "gather": {"knomial": ("binomial-tree", "binomial")},
}  # fmt: skip
_BY_NAME = {
    (kind, name): algorithm for kind, some in FAMILIES.items() for algorithm, names in some.items() for name in names
}


def ucc(plans: Mapping[str, Plan]) -> dict[str, str]:
    """A configuration file with one string for all plans, for teams of exactly as many processes as the machine has
    ranks. Where UCC has nothing that does the same, nothing is said, and it chooses itself."""
    tokens = []
    for kind, plan in plans.items():
        refuse_part(plan, "ucc")
        count = plan.topology.ranks
        share = count if kind in OF_BLOCK else 1
        for one in ranges(plan, _algorithm):
            least = -(-one.start // share)
            most = "inf" if one.stop is None else str((one.stop - 1) // share)
            if one.what is not None and (most == "inf" or int(most) >= least):
                tokens.append(f"{COLLECTIVES.get(kind, kind)}:{least}-{most}:[{count}]:@{one.what}")
    if not tokens:
        known = ", ".join(sorted({name for _, name in _BY_NAME}))
        raise Unsupported(f"ucc: nothing in this table is what UCC has an algorithm for; it has what does as {known}")
    return {FILE: f"UCC_TL_UCP_TUNE = {'#'.join(tokens)}\n"}


def _algorithm(entry: Entry) -> str | None:
    """What was measured of a library's algorithms, else what the planner does, as UCC calls it."""
    told = about(entry)
    if told is None and entry.claims.get("served_by") == "library":
        return None
    return _BY_NAME.get((entry.schedule.collective.kind, told["algorithm"] if told is not None else planner_of(entry)))
