"""How much of the best possible speedup a choice of k captures (V.E, Figure 9): the truth is the simulation by packets,
the choice is made by something cheaper.

It tells what the cheaper models lose against the most detailed one, not how near that one is to a machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from antiphon.cost import as_profile
from antiphon.reproduce.blink_made import Row, judged, row
from antiphon.reproduce.gentree_made import NEAR
from antiphon.reproduce.piccl_made import (
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
    choices,
    delta,
    geomean,
    planned,
    radices_of,
    short,
    speedups,
)

NODES = (1, 2, 4, 8, 16, 32)
SIZES = tuple(2**e for e in range(4, 22))  # up to 2 MB
KINDS = ("allgather", "allreduce")
SPEEDUP, CAPTURED = 1.20, 0.98

# how k is chosen -> by which times
BY_MESSAGES = "whole messages"
BY_PORTS = "closed forms, where they hold"
WAYS: Mapping[str, str] = {
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
    """One family on so many nodes: seconds by k and size, in truth and by each way to choose."""

    kind: str
    family: Family
    nodes: int
    truth: Times
    seen: Mapping[str, Times]

    def best(self) -> list[int]:
        return choices(self.truth)

    def gained(self, chosen: Sequence[int]) -> float:
        """The geometric mean over sizes of the speedup over the algorithm without a parameter."""
        gain = speedups(self.truth)
        return geomean([gain[k][at] for at, k in enumerate(chosen)])

    def captured(self, way: str) -> float:
        return self.gained(choices(self.seen[way])) / self.gained(self.best())


def bar(kind: str, family: Family, nodes: int, sizes: Sequence[int] = SIZES) -> Bar:
    plans = planned(family, kind, delta(nodes))
    by_model = {model: plans.times(sizes, model) for model in dict.fromkeys(WAYS.values())}
    seen = {way: by_model[model] for way, model in WAYS.items()}
    seen[BY_PORTS] = {k: seconds for k, seconds in by_model[CLOSED].items() if _has_ports(plans, k)}
    return Bar(kind, family, nodes, plans.times(sizes, PACKETS), seen)


def _has_ports(plans: Plans, k: int) -> bool:
    """Whether a rank has a port for everything it sends at once, as the formulas assume."""
    figures = as_profile(PROFILE).loggp
    ports = figures.device_radix if figures else None
    return plans.family is KRING or ports is None or max(radices_of(plans.by_k[k])) - 1 <= ports


def selection(nodes: Sequence[int] = NODES, sizes: Sequence[int] = SIZES) -> Iterator[Row]:
    """A row per collective and family, by number of nodes; then all of them together, by how k was chosen."""
    bars: list[Bar] = []
    for kind in KINDS:
        for family in FAMILIES:
            mine = [bar(kind, family, one, sizes) for one in nodes]
            bars += mine
            yield row(
                f"{kind}, {family.name}", None,
                {
                    "best": short({str(one.nodes): one.gained(one.best()) for one in mine}),
                    **{way: short({str(one.nodes): one.captured(way) for one in mine}) for way in WAYS},
                }, True,
                note=f"by number of nodes: best, the speedup over k = {family.plain} with the best k for every size, "
                f"and how much of it is captured by each way to choose k", engine="loggp",
            )  # fmt: skip
    for way in WAYS:
        yield overall(way, bars)
    yield _with_families(bars)


def overall(way: str, bars: Sequence[Bar]) -> Row:
    """Geometric means over all bars, as the paper's 20 % and 98 %, which it has of a simulation with contention."""
    chosen = geomean([one.gained(choices(one.seen[way])) for one in bars])
    best = geomean([one.gained(one.best()) for one in bars])
    least = min(bars, key=lambda one: one.captured(way))
    where = f"{least.captured(way):.3f} for {least.kind}, {least.family.name}, {least.nodes} nodes"
    published = {"speedup": SPEEDUP, "captured": CAPTURED} if way in SIMULATED else None
    held = chosen / best >= CAPTURED
    return row(
        f"chosen by {way}", published,
        {"speedup": round(chosen, 3), "best": round(best, 3), "captured": round(chosen / best, 4), "least": where},
        published is None or judged(abs(chosen / SPEEDUP - 1) <= NEAR and held, chosen >= SPEEDUP and held),
        deviation=f"speedup {chosen / SPEEDUP - 1:+.0%}".replace("%", " %") if published else None,
        note=f"geometric means; {NOTES.get(way, CROWDED)}; {ASSUMED}", engine="loggp",
    )  # fmt: skip


def _with_families(bars: Sequence[Bar]) -> Row:
    """The family chosen, too: how much slower than the best family with its best k."""
    groups: dict[tuple[str, int], list[Bar]] = {}
    for one in bars:
        groups.setdefault((one.kind, one.nodes), []).append(one)
    ours: dict[str, float] = {}
    for way in WAYS:
        parts: list[float] = []
        for mine in groups.values():
            truth = _merged([(one, one.truth) for one in mine])
            seen = _merged([(one, one.seen[way]) for one in mine])
            for at in range(len(next(iter(truth.values())))):
                least = min(seconds[at] for seconds in seen.values()) * (1 + EQUAL)
                pick = next(key for key, seconds in seen.items() if seconds[at] <= least)
                parts.append(min(seconds[at] for seconds in truth.values()) / truth[pick][at])
        ours[way] = geomean(parts)
    return row(
        "family and k chosen together", None, {"captured": short(ours)}, True,
        note="for every collective, number of nodes and size the fastest of all", engine="loggp",
    )  # fmt: skip


def _merged(times: Sequence[tuple[Bar, Times]]) -> dict[Key, Sequence[float]]:
    return {(one.family.name, k): seconds for one, by_k in times for k, seconds in by_k.items()}
