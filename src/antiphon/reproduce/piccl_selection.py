"""How much of the best possible speedup a choice of k captures (PICCL, V.E, Figure 9; see piccl.py).

`truth` is the time by the simulation of packets, the most detailed model; `by_method` has the times of cheaper models,
by which k is chosen. Captured is the speedup of that choice divided by the best speedup, both by `truth`. It shows what
the cheaper models lose against the most detailed one, not how close that one is to a machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from antiphon.cost import as_profile
from antiphon.reproduce.piccl_plans import (
    ASSUMED,
    CLOSED,
    EQUAL,
    FAMILIES,
    FREE,
    KRING,
    MESSAGES,
    PACKETS,
    PROFILE,
    Family,
    Plans,
    Times,
    delta,
    fastest_k,
    geomean,
    plan_family,
    radices_of,
    round_values,
    speedups,
)
from antiphon.reproduce.rows import NEAR, Row, judge_row, row

NODES = (1, 2, 4, 8, 16, 32)
SIZES = tuple(2**e for e in range(4, 22))  # up to 2 MB
KINDS = ("allgather", "allreduce")
SPEEDUP, CAPTURED = 1.20, 0.98

# how k is chosen -> the model whose times decide
BY_MESSAGES = "whole messages"
BY_PORTS = "closed forms, where they hold"
METHODS: Mapping[str, str] = {
    BY_MESSAGES: MESSAGES, "closed forms": CLOSED, BY_PORTS: CLOSED, "no contention": FREE,
}  # fmt: skip

SIMULATED = (BY_MESSAGES,)
NOTES = {
    BY_MESSAGES: "the truth here is the simulation by packets, the paper's was measured",
    BY_PORTS: "only k with a port for every message of a round; they know no NICs",
}
CROWDED = "nothing limits what a rank or a node sends at once, so large k seem too good"

Key = tuple[str, int]  # a family, and its k


@dataclass(frozen=True, eq=False)
class Bar:
    """One family on `nodes` nodes: seconds by k and size, by the reference simulation and by each method."""

    kind: str
    family: Family
    nodes: int
    truth: Times
    by_method: Mapping[str, Times]

    def best(self) -> list[int]:
        """Return the best k at each size by the reference simulation."""
        return fastest_k(self.truth)

    def gained(self, chosen: Sequence[int]) -> float:
        """Return the geometric mean over sizes of the speedup of these k over the algorithm without a parameter."""
        gain = speedups(self.truth)
        return geomean([gain[k][at] for at, k in enumerate(chosen)])

    def captured(self, method: str) -> float:
        """Return the share of the best speedup that a method's choice of k reaches."""
        return self.gained(fastest_k(self.by_method[method])) / self.gained(self.best())


def bar(kind: str, family: Family, nodes: int, sizes: Sequence[int] = SIZES) -> Bar:
    """Return one bar of Figure 9: plan a family, and price it by all methods."""
    plans = plan_family(family, kind, delta(nodes))
    by_model = {model: plans.times(sizes, model) for model in dict.fromkeys(METHODS.values())}
    by_method = {method: by_model[model] for method, model in METHODS.items()}
    by_method[BY_PORTS] = {k: seconds for k, seconds in by_model[CLOSED].items() if _has_ports(plans, k)}
    return Bar(kind, family, nodes, plans.times(sizes, PACKETS), by_method)


def _has_ports(plans: Plans, k: int) -> bool:
    """Return whether a rank has a port for everything it sends at once, as the formulas assume."""
    figures = as_profile(PROFILE).loggp
    ports = figures.device_radix if figures else None
    return plans.family is KRING or ports is None or max(radices_of(plans.by_k[k])) - 1 <= ports


def selection(nodes: Sequence[int] = NODES, sizes: Sequence[int] = SIZES) -> Iterator[Row]:
    """A row per collective and family, by number of nodes; then all of them together, by how k was chosen."""
    bars: list[Bar] = []
    for kind in KINDS:
        for family in FAMILIES:
            family_bars = [bar(kind, family, count, sizes) for count in nodes]
            bars += family_bars
            yield row(
                f"{kind}, {family.name}", None,
                {
                    "best": round_values({str(each.nodes): each.gained(each.best()) for each in family_bars}),
                    **{
                        method: round_values({str(each.nodes): each.captured(method) for each in family_bars})
                        for method in METHODS
                    },
                }, True,
                note=f"by number of nodes: best, the speedup over k = {family.plain} with the best k for every size, "
                f"and how much of it is captured by each way to choose k", engine="loggp",
            )  # fmt: skip
    for method in METHODS:
        yield overall(method, bars)
    yield _with_families(bars)


def overall(method: str, bars: Sequence[Bar]) -> Row:
    """Compare geometric means over all bars with the paper's: 20 % faster, and 98 % of the best speedup captured."""
    chosen = geomean([bar.gained(fastest_k(bar.by_method[method])) for bar in bars])
    best = geomean([bar.gained(bar.best()) for bar in bars])
    worst = min(bars, key=lambda bar: bar.captured(method))
    where = f"{worst.captured(method):.3f} for {worst.kind}, {worst.family.name}, {worst.nodes} nodes"
    published = {"speedup": SPEEDUP, "captured": CAPTURED} if method in SIMULATED else None
    captures = chosen / best >= CAPTURED
    return row(
        f"chosen by {method}", published,
        {"speedup": round(chosen, 3), "best": round(best, 3), "captured": round(chosen / best, 4), "least": where},
        published is None or judge_row(abs(chosen / SPEEDUP - 1) <= NEAR and captures, chosen >= SPEEDUP and captures),
        deviation=f"speedup {chosen / SPEEDUP - 1:+.0%}".replace("%", " %") if published else None,
        note=f"geometric means; {NOTES.get(method, CROWDED)}; {ASSUMED}", engine="loggp",
    )  # fmt: skip


def _with_families(bars: Sequence[Bar]) -> Row:
    """Show how much is captured if the family is chosen together with k."""
    groups: dict[tuple[str, int], list[Bar]] = {}
    for bar in bars:
        groups.setdefault((bar.kind, bar.nodes), []).append(bar)
    ours: dict[str, float] = {}
    for method in METHODS:
        shares: list[float] = []
        for group in groups.values():
            truth = _merge_families([(bar, bar.truth) for bar in group])
            estimated = _merge_families([(bar, bar.by_method[method]) for bar in group])
            for at in range(len(next(iter(truth.values())))):
                limit = min(seconds[at] for seconds in estimated.values()) * (1 + EQUAL)
                choice = next(key for key, seconds in estimated.items() if seconds[at] <= limit)
                shares.append(min(seconds[at] for seconds in truth.values()) / truth[choice][at])
        ours[method] = geomean(shares)
    return row(
        "family and k chosen together", None, {"captured": round_values(ours)}, True,
        note="for every collective, number of nodes and size the fastest of all", engine="loggp",
    )  # fmt: skip


def _merge_families(times: Sequence[tuple[Bar, Times]]) -> dict[Key, Sequence[float]]:
    return {(bar.family.name, k): seconds for bar, by_k in times for k, seconds in by_k.items()}
