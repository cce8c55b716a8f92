"""Which share of the best speedup is reached if a cheap model chooses k (PICCL, section V.E, Figure 9; see piccl.py).

k is the parameter of a family of algorithms: k-ring, recursive multiplying, and the latter with blocks permuted at the
end (piccl_plans.py). The reference is the packet simulation, the most detailed model. A method chooses k by the times
of a cheaper model. The share that it captures is the speedup of its k divided by the speedup of the best k, both timed
by the reference. It shows what the cheaper models lose against the most detailed one, not how close that one is to a
machine.

Example: over the plain algorithm (k = 2) the reference has k = 4 twice as fast and k = 8 three times as fast. A cheaper
model that prefers k = 4 captures 2/3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, starmap

from antiphon.cost import as_profile
from antiphon.reproduce.piccl_plans import (
    ASSUMPTIONS,
    CLOSED_FORMS,
    FAMILIES,
    KRING,
    MESSAGES,
    NO_CONTENTION,
    PACKETS,
    PROFILE,
    TIE_TOLERANCE,
    PaperAlgorithm,
    Plans,
    Times,
    delta_machine,
    fastest_k,
    geomean,
    plan_family,
    radices_of,
    round_values,
    speedups_by_k,
)
from antiphon.reproduce.rows import NEAR, Each, Row, agreement, row

NODES = (1, 2, 4, 8, 16, 32)
SIZES = tuple(2**e for e in range(4, 22))  # up to 2 MB
KINDS = ("allgather", "allreduce")
# means of the paper over all bars of its Figure 9: the speedup of its choice of k, and its share of the best speedup
PAPER_SPEEDUP = 1.20
PAPER_CAPTURED = 0.98

# Method of choosing k -> the model by whose times it chooses. BY_VALID_FORMS chooses only among those k for which the
# closed forms hold (`compute_bar`).
BY_MESSAGES = "whole messages"
BY_VALID_FORMS = "closed forms, where they hold"
METHODS: Mapping[str, str] = {
    BY_MESSAGES: MESSAGES, "closed forms": CLOSED_FORMS, BY_VALID_FORMS: CLOSED_FORMS,
    "no contention": NO_CONTENTION,
}  # fmt: skip

COMPARED_WITH_PAPER = (BY_MESSAGES,)  # the paper chooses k so
NOTES = {
    BY_MESSAGES: "the reference here is the packet simulation, the paper's was measured",
    BY_VALID_FORMS: "only k with no more messages at once than a GPU has ports; the formulas ignore shared NICs",
}
# the note of all other methods
IGNORES_CONTENTION = "nothing limits what a rank or a node sends at once, so large k seem too good"

Key = tuple[str, int]  # name of a family, and k


@dataclass(frozen=True, eq=False)
class Bar:
    """A bar of Figure 9: the seconds of one family on `nodes` computers, by k and size.

    `reference`: by the packet simulation. `by_method`: by the model that each method uses to choose k.
    """

    kind: str  # of collective
    family: PaperAlgorithm
    nodes: int
    reference: Times
    by_method: Mapping[str, Times]

    def best(self) -> list[int]:
        """Return the best k at each size by the reference."""
        return fastest_k(self.reference)

    def mean_speedup(self, chosen: Sequence[int]) -> float:
        """Return the geometric mean over sizes of the speedup of these k, one per size, over `family.plain`."""
        by_k = speedups_by_k(self.reference)  # over the first k, which is `family.plain`
        return geomean([by_k[k][i] for i, k in enumerate(chosen)])

    def captured(self, method: str) -> float:
        """Return the share of the best speedup that a method's choice of k reaches."""
        return self.mean_speedup(fastest_k(self.by_method[method])) / self.mean_speedup(self.best())


def compute_bar(kind: str, family: PaperAlgorithm, nodes: int, sizes: Sequence[int] = SIZES) -> Bar:
    """Plan a family for every k, and time the plans by the reference and by all methods."""
    plans = plan_family(family, kind, delta_machine(nodes))
    by_model = {model: plans.times(sizes, model) for model in dict.fromkeys(METHODS.values())}
    by_method = {method: by_model[model] for method, model in METHODS.items()}
    by_method[BY_VALID_FORMS] = {k: seconds for k, seconds in by_model[CLOSED_FORMS].items() if _has_ports(plans, k)}
    return Bar(kind, family, nodes, plans.times(sizes, PACKETS), by_method)


def _has_ports(plans: Plans, k: int) -> bool:
    """Return whether a rank has a port for everything that it sends at once, as the formulas assume.

    A rank of a k-ring sends one message at a time, so it always has.
    """
    loggp = as_profile(PROFILE).loggp
    ports = loggp.device_radix if loggp else None  # None: unlimited
    # in a round with radix r, a rank sends to the r - 1 others of its group at once
    return plans.family == KRING or ports is None or max(radices_of(plans.by_k[k])) - 1 <= ports


def selection(each: Each = starmap, nodes: Sequence[int] = NODES, sizes: Sequence[int] = SIZES) -> Iterator[Row]:
    """Yield a row per collective and family, with a value per number of nodes; then one per method over all of them.

    `engine` of a row names the cost model that computed the reference.
    """
    bars: list[Bar] = []
    computed = each(compute_bar, [(kind, family, n, sizes) for kind in KINDS for family in FAMILIES for n in nodes])
    for kind in KINDS:
        for family in FAMILIES:
            family_bars = list(islice(computed, len(nodes)))
            bars += family_bars
            yield row(
                name=f"{kind}, {family.name}", published=None,
                ours={
                    "best": round_values({str(each.nodes): each.mean_speedup(each.best()) for each in family_bars}),
                    **{
                        method: round_values({str(each.nodes): each.captured(method) for each in family_bars})
                        for method in METHODS
                    },
                }, ok=True,
                note=f"values by number of nodes; best: the speedup over k = {family.plain} with the best k for every "
                "size; the others: the share of it that this way to choose k captures", engine="loggp",
            )  # fmt: skip
    for method in METHODS:
        yield overall(method, bars)
    yield _with_families(bars)


def overall(method: str, bars: Sequence[Bar]) -> Row:
    """Compare geometric means over all bars with the paper's: 20 % faster, and 98 % of the best speedup captured."""
    chosen = geomean([bar.mean_speedup(fastest_k(bar.by_method[method])) for bar in bars])
    best = geomean([bar.mean_speedup(bar.best()) for bar in bars])
    worst_bar = min(bars, key=lambda bar: bar.captured(method))
    where = f"{worst_bar.captured(method):.3f} for {worst_bar.kind}, {worst_bar.family.name}, {worst_bar.nodes} nodes"
    published = {"speedup": PAPER_SPEEDUP, "captured": PAPER_CAPTURED} if method in COMPARED_WITH_PAPER else None
    captures = chosen / best >= PAPER_CAPTURED
    # near the paper's speedup: its figures are reproduced; greater: only their shape, the trend (`agreement`)
    return row(
        f"chosen by {method}", published,
        {"speedup": round(chosen, 3), "best": round(best, 3), "captured": round(chosen / best, 4), "least": where},
        published is None
        or agreement(
            figures=abs(chosen / PAPER_SPEEDUP - 1) <= NEAR and captures, shape=chosen >= PAPER_SPEEDUP and captures
        ),
        deviation=f"speedup {chosen / PAPER_SPEEDUP - 1:+.0%}".replace("%", " %") if published else None,
        note=f"geometric means; {NOTES.get(method, IGNORES_CONTENTION)}; {ASSUMPTIONS}", engine="loggp",
    )  # fmt: skip


def _with_families(bars: Sequence[Bar]) -> Row:
    """Return the row of the share that each method captures if it chooses the family together with k."""
    groups: dict[tuple[str, int], list[Bar]] = {}
    for bar in bars:
        groups.setdefault((bar.kind, bar.nodes), []).append(bar)
    ours: dict[str, float] = {}
    for method in METHODS:
        shares: list[float] = []
        for group in groups.values():
            reference = _merge_families([(bar, bar.reference) for bar in group])
            estimated = _merge_families([(bar, bar.by_method[method]) for bar in group])
            for i in range(len(next(iter(reference.values())))):  # index of a size
                # of times that are equal within the tolerance, take the first family and its first k
                limit = min(seconds[i] for seconds in estimated.values()) * (1 + TIE_TOLERANCE)
                choice = next(key for key, seconds in estimated.items() if seconds[i] <= limit)
                shares.append(min(seconds[i] for seconds in reference.values()) / reference[choice][i])
        ours[method] = geomean(shares)
    return row(
        "family and k chosen together", published=None, ours={"captured": round_values(ours)}, ok=True,
        note="for every collective, number of nodes and size: the fastest family and k", engine="loggp",
    )  # fmt: skip


def _merge_families(times: Sequence[tuple[Bar, Times]]) -> dict[Key, Sequence[float]]:
    """Return the seconds of several families by (family, k)."""
    return {(bar.family.name, k): seconds for bar, by_k in times for k, seconds in by_k.items()}
