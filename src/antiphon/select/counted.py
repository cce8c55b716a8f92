"""Collectives that were only counted, priced: what they would take where somebody says how large they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from antiphon.core.topology import Topology, hosts
from antiphon.cost.replay.counted import Called, Communicator, Dump, called, standing
from antiphon.cost.replay.job import ProcessGroup
from antiphon.select.prices import Price, members_of

MOST_NAMED = 8  # ranks that a note tells
NO_SIZES = (
    "RAS counts collectives and tells neither how large they are nor how long they take: say sizes (--size "
    "allreduce=64MB), or replay a trace of PyTorch's profiler or NCCL's Inspector, which have both"
)
NO_COUNTS = "as text, RAS tells counts only where ranks differ; ncclras -f json (NCCL 2.28.7 and later) tells all"

MIXED = "what is counted of all kinds together has no size and no price (NCCL 2.26 and later tell each kind)"


class Prices(Protocol):
    """Who says what a collective takes."""

    def price(self, kind: str, nbytes: int, group: int, about: ProcessGroup) -> Price | None:
        """None: nobody knows."""


@dataclass
class Class:
    """Communicators of one shape that call one kind."""

    kind: str
    shape: Communicator
    calls: list[Called] = field(default_factory=list)

    @property
    def group(self) -> ProcessGroup:
        """One of them, if there is one of which is known where it is."""
        one = next((call.communicator for call in self.calls if call.communicator.members), self.shape)
        return ProcessGroup(one.name, one.size, one.members, one.apart)

    @property
    def many(self) -> int:
        return sum(one.communicator.alike for one in self.calls)

    @property
    def launched(self) -> int:
        return max(one.launched for one in self.calls)

    @property
    def between(self) -> int | None:
        told = [one.between for one in self.calls if one.between is not None]
        return max(told) if told else None


def counted(
    dumps: Sequence[Dump], sizes: Mapping[str, int], ours: Prices | None, library: Prices | None,
    machine: Topology | None = None,
) -> dict[str, Any]:  # fmt: skip
    """What the dumps say of the job's communicators and collectives; `sizes`: bytes of one, by kind; `machine`: that of
    the prices."""
    classes, seconds = classes_of(dumps), _seconds(dumps)
    rows = [_row(one, number, sizes, seconds, ours, library) for number, one in enumerate(classes)]
    last = dumps[-1]
    shares = {key: _share(classes, [row[key] for row in rows], seconds) for key in ("library", "ours")}
    return {
        "step": None,
        "dumps": [one.when or None for one in dumps],
        "seconds": seconds,
        "communicators": [_communicator_row(one) for one in last.communicators],
        "calls": rows,
        "share": shares,
        "notes": [
            *_notes(dumps, rows, sizes),
            *_unpriced(rows, ours is not None or library is not None),
            *_places(classes, sizes, machine),
        ],
    }


def _seconds(dumps: Sequence[Dump]) -> float | None:
    first, last = dumps[0].at, dumps[-1].at
    return last - first if first is not None and last is not None and last > first else None


def classes_of(dumps: Sequence[Dump]) -> list[Class]:
    """Those called most come first."""
    found: dict[tuple[Any, ...], Class] = {}
    for one in called(dumps):
        at = one.communicator
        found.setdefault((one.kind, at.size, at.nodes, at.per_node), Class(one.kind, at)).calls.append(one)
    return sorted(found.values(), key=lambda one: (-one.launched, one.kind, one.shape.size))


def _row(
    one: Class, number: int, sizes: Mapping[str, int], seconds: float | None, ours: Prices | None,
    library: Prices | None,
) -> dict[str, Any]:  # fmt: skip
    nbytes = sizes.get(one.kind)
    prices = [
        who.price(one.kind, nbytes, number, one.group) if who is not None and nbytes is not None else None
        for who in (library, ours)
    ]
    told = one.between is not None and seconds is not None
    return {
        "collective": one.kind or None, "ranks": one.shape.size, "nodes": one.shape.nodes, "communicators": one.many,
        "launched": one.launched, "between": one.between,
        "per_second": one.between / seconds if told and one.between is not None and seconds else None,
        "nbytes": nbytes, "library": prices[0] and prices[0].seconds, "library_by": prices[0] and prices[0].by,
        "ours": prices[1] and prices[1].seconds, "by": prices[1] and prices[1].by,
    }  # fmt: skip


def _share(classes: Sequence[Class], prices: Sequence[float | None], seconds: float | None) -> float | None:
    """By what part of the time between the dumps the rank that calls most is in collectives, were they one after the
    other. Of what has a price; a communicator whose ranks are not known is taken to share none with another."""
    busy: dict[int | str, float] = {}
    for one, took in zip(classes, prices, strict=True):
        for call in one.calls if took is not None else ():
            for rank in call.communicator.members or (f"of {call.communicator.name}",):
                busy[rank] = busy.get(rank, 0.0) + (took or 0.0) * (call.between or 0)
    return max(busy.values()) / seconds if busy and seconds else None


def _communicator_row(one: Communicator) -> dict[str, Any]:
    return {
        "name": one.name, "communicators": one.alike, "ranks": one.size, "nodes": one.nodes,
        "per_node": list(one.per_node), "status": one.status, "errors": one.errors, "missing": list(one.missing),
        "members": list(one.members),
        "launched": {
            kind or "all": {"most": count.most, "least": count.least, "behind": list(count.behind)}
            for kind, count in one.counts.items()
        },
    }  # fmt: skip


def _unpriced(rows: Sequence[Mapping[str, Any]], asked: bool) -> list[str]:
    """`asked`: there is somebody who prices."""
    left = [row for row in rows if row["nbytes"] is not None and row["library"] is None and row["ours"] is None]
    if not left:
        return []
    if not asked:
        return ["say by --topology which machine the job runs on, or what its collectives take by --measured"]
    what = dict.fromkeys(f"{row['collective']} among {row['ranks']} ranks" for row in left)
    return [f"nobody prices {', '.join(what)}"]


def _places(classes: Sequence[Class], sizes: Mapping[str, int], machine: Topology | None) -> list[str]:
    """Of what was to be priced: which is not known to be where, and which is not there as it was in the job."""
    unknown, elsewhere = dict[str, None](), dict[str, None]()
    for one in classes if machine is not None else ():
        if one.kind not in sizes or machine is None:
            continue
        what = f"{one.kind} among {one.shape.size} ranks on {one.shape.nodes} nodes"
        members, boxes = members_of(one.group, machine), hosts(machine)
        there = len({boxes[rank] for rank in members}) if boxes else 0
        if not members:
            unknown[what] = None
        elif there and not one.shape.missing and there != one.shape.nodes:
            elsewhere[f"{what}, of {machine.name} on {there}"] = None
    found = []
    if unknown:
        found.append(
            f"no price by the machine, as the dumps do not tell which of its ranks these are: {'; '.join(unknown)}"
        )
    if elsewhere:
        found.append(f"priced at ranks of the machine that are not so spread: {'; '.join(elsewhere)}")
    return found


def _notes(dumps: Sequence[Dump], rows: Sequence[Mapping[str, Any]], sizes: Mapping[str, int]) -> list[str]:
    last = dumps[-1]
    found = []
    if not last.complete:
        found.append(NO_COUNTS)
    unsized = list(dict.fromkeys(row["collective"] for row in rows if row["collective"] and row["nbytes"] is None))
    if unsized or not rows:
        found.append(NO_SIZES + (f"; none is given of {', '.join(unsized)}" if unsized else ""))
    if any(row["collective"] is None for row in rows):
        found.append(MIXED)
    if len(dumps) < 2:
        found.append("one dump tells what was called until then; a second one some time later tells how often")
    elif _seconds(dumps) is None:
        found.append("the dumps tell no times, or the same one: how often something is called is not known")
    for one, kind, count in standing(dumps):
        ranks = ", ".join(map(str, count.behind[:MOST_NAMED])) or "some"
        more = f" and {len(count.behind) - MOST_NAMED} more" if len(count.behind) > MOST_NAMED else ""
        found.append(
            f"communicator {one.name} stands still: {kind or 'collectives'} {count.most}, at ranks {ranks}{more} not, "
            "in the first dump and in the last"
        )
    for one in last.communicators:
        if one.missing:
            ranks = ", ".join(map(str, one.missing[:MOST_NAMED]))
            found.append(f"communicator {one.name}: {len(one.missing)} of its ranks told nothing ({ranks})")
    if last.left_out:
        found.append(f"counted, and not priced: {', '.join(last.left_out[:MOST_NAMED])}")
    unused = sorted(set(sizes) - {row["collective"] for row in rows})
    if unused:
        found.append(f"sizes were given of what the job does not call: {', '.join(unused)}")
    return found
