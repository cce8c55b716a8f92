"""Rows about trees: made by a planner, verified, and measured against what no schedule can beat."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from antiphon.core.loads import throughput
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.verify import verify
from antiphon.reproduce.blink_rates import from_zero

Row = dict[str, Any]
Planner = Callable[..., Iterator[Schedule]]


def row(
    name: str, published: Row | None, ours: Row | None, ok: bool | None, *, deviation: str | None = None,
    note: str = "", engine: str = "", proof: Sequence[str] = (),
) -> Row:  # fmt: skip
    """`ok`: see `judged`. What it took to make is told by whoever asks for rows one after the other (`reproduce`)."""
    return {
        "name": name, "published": published, "ours": ours, "deviation": deviation, "ok": ok, "note": note,
        "engine": engine, "seconds": 0.0, "proof": list(proof),
    }  # fmt: skip


def judged(figures: bool, shape: bool) -> bool | None:
    """True where ours are the figures published, by the rule of the page; None where they only have their shape (who
    is faster, what grows, what is at least so much); else False."""
    return True if figures else None if shape else False


@dataclass(frozen=True)
class Made:
    """A verified schedule: its rate in links, of how many trees, what its planner tells of them, and whether it has
    proved that fewer cannot do."""

    schedule: Schedule
    rate: Fraction
    count: int
    told: str

    @property
    def proved(self) -> bool:
        return self.told.endswith("proved")

    @property
    def weights(self) -> str:
        """The rates of the trees, in links: each carries one chunk."""
        chunks = self.schedule.chunks
        return weighed(self.rate * int(share) / chunks.denominator for share in chunks.share.tolist())


def weighed(rates: Iterable[Fraction]) -> str:
    """The greatest first."""
    return ", ".join(map(str, sorted(rates, reverse=True)))


def measured_plan(planner: Planner, machine: Topology, kind: str) -> Made:
    """The rate is read off the loads of the schedule, not taken from the planner."""
    schedule = next(iter(planner(Request(machine, from_zero(kind, machine.ranks)), pieces=1)))
    verify(schedule, machine).or_raise()
    rate = throughput(schedule, machine) or Fraction(0)
    found = schedule.provenance["found"]
    return Made(schedule, rate / machine.unit, int(found["trees"]), str(found.get("few") or found["how"]))
