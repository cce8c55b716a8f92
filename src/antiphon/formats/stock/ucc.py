"""Write tuning strings for UCC: the algorithm of its component tl/ucp for each collective and size.

Example: allreduce:0-4095:[8]:@knomial selects the algorithm knomial for up to 4095 bytes and teams of 8 processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from antiphon.core.plan import Entry, Plan
from antiphon.errors import NotFound, Unsupported
from antiphon.formats.files import Files
from antiphon.formats.stock.measured import DEFAULT, HOW_TO_MEASURE, library_claim
from antiphon.formats.stock.ranges import count_members, merge_ranges, notes_of, planner_of
from antiphon.options import parse_yes

FILE = "ucc.conf"
NO_ALGORITHM = "UCC has no such algorithm"
COLLECTIVES = {"broadcast": "bcast", "reducescatter": "reduce_scatter"}  # where UCC calls them otherwise
OF_BLOCK = ("reducescatter",)  # collectives whose size in UCC is that of one process's result
# Collective -> UCC's algorithm -> names of our planners and of MPIs' algorithms that do the same.
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
    (kind, name): algorithm
    for kind, families in FAMILIES.items()
    for algorithm, names in families.items()
    for name in names
}


class UccRule(NamedTuple):
    """UCC's algorithm for a range of sizes; "": UCC chooses by itself, for this reason."""

    algorithm: str
    reason: str = ""


def ucc(plans: Mapping[str, Plan], *, unproven: bool = False) -> Files[str]:
    """Write one UCC configuration file for all plans, for teams of exactly as many processes as the machine has ranks.

    A string selects an algorithm where one of the MPI library was measured to be faster than the library's own choice,
    and UCC has the same algorithm.

    Parameters
    ----------
    unproven
        Also select UCC's algorithm that does the same as the planner, to be measured.
    """
    unproven = parse_yes(unproven, "option unproven")
    tokens, reasons = list[str](), list[str]()
    for kind, plan in plans.items():
        count = count_members(plan, "ucc")
        divisor = count if kind in OF_BLOCK else 1  # nbytes per byte of UCC
        for size_range in merge_ranges(plan, partial(_rule_of, unproven=unproven)):
            assert size_range.value is not None
            # UCC counts bytes of a block for the collectives in OF_BLOCK: round the lower end up, the upper end down.
            low = -(-size_range.start // divisor)
            high = "inf" if size_range.stop is None else str((size_range.stop - 1) // divisor)
            if not size_range.value.algorithm:
                reasons.append(size_range.value.reason)
            # A range without a multiple of `divisor` is empty in UCC's bytes.
            elif high == "inf" or int(high) >= low:
                tokens.append(f"{COLLECTIVES.get(kind, kind)}:{low}-{high}:[{count}]:@{size_range.value.algorithm}")
    if not tokens and all(reason == NO_ALGORITHM for reason in reasons):
        supported = ", ".join(sorted({name for _, name in _BY_NAME}))
        raise Unsupported(f"ucc: UCC has no algorithm for any plan of this table; it supports those of {supported}")
    if not tokens:
        raise NotFound(
            f"ucc: UCC's own choice may be as good: nothing to write ({'; '.join(dict.fromkeys(reasons))}); "
            f"{HOW_TO_MEASURE}, or write what the planners do by option unproven=yes, to measure it"
        )
    return Files({FILE: f"UCC_TL_UCP_TUNE = {'#'.join(tokens)}\n"}, notes_of(len(tokens), "UCC", reasons))


def _rule_of(entry: Entry, unproven: bool) -> UccRule:
    """Return UCC's name of the algorithm that was measured to be best; if none was and `unproven` is set, of the
    planner's algorithm.
    """
    claim, kind = library_claim(entry), entry.schedule.collective.kind
    if claim is not None and claim["algorithm"] == DEFAULT:
        return UccRule(algorithm="", reason="the MPI's own choice was measured to be as good")
    if claim is None and entry.served_by:
        return UccRule(algorithm="", reason="the table leaves these sizes to the library")
    name = _BY_NAME.get((kind, claim["algorithm"] if claim is not None else planner_of(entry)), "")
    if name and claim is None and not unproven:
        return UccRule(algorithm="", reason="no algorithm of a library was measured")
    return UccRule(name, "" if name else NO_ALGORITHM)
