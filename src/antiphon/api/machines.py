"""Tables of what is available, machines, collectives, and bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from antiphon.api import _given
from antiphon.api._checked import public

if TYPE_CHECKING:
    from antiphon.api._kinds import CollectiveLike, MachineLike, Row
    from antiphon.core.bounds import Bound
    from antiphon.core.collective import Collective
    from antiphon.core.topology import Topology


def topologies() -> list[Row]:
    """The machines in the catalogue: name, about, the ranks each can have, an example."""
    from antiphon.show.listing import list_entries

    return list_entries("topology")


def planners() -> list[Row]:
    """The planners: name, about, and for which collectives, on which machines, with which options."""
    from antiphon.show.listing import list_entries

    return list_entries("planner")


def models() -> list[Row]:
    """The cost models: name, about, and what each can price."""
    from antiphon.show.listing import list_entries

    return list_entries("model")


def formats() -> list[Row]:
    """What plans can be written as: name, about, what each takes, its options, and what is `missing` here ("": nothing;
    then it is `available`)."""
    return _with_missing("backend")


def runtimes() -> list[Row]:
    """Where plans can run: name, about, the library beside, the options, how each cuts messages, and what is `missing`
    here ("": nothing; then it is `available`)."""
    return _with_missing("runtime")


def _with_missing(kind: str) -> list[Row]:
    from antiphon.formats import lacks
    from antiphon.registry import table
    from antiphon.show.listing import list_entries

    rows = list_entries(kind)
    for row in rows:
        row["missing"] = lacks(table(kind)[row["name"]])
        row["available"] = not row["missing"]
    return rows


@public
def topology(spec: MachineLike, *, only: Sequence[int] | None = None) -> Topology:
    """A machine.

    `spec`: its name ("dgx1v"), its family with options ("ring:ranks=8,bandwidth=10GB/s"), or a JSON file.
    `only`: keep just these ranks, as an allocation does; the rest vanishes, the numbers stay.
    """
    from antiphon.core.reshape import only as keep_only

    machine = _given.machine(spec)
    return machine if only is None else keep_only(machine, only)


@public
def degrade(
    topology: MachineLike,
    *,
    drop_links: Sequence[str] | str | None = None,
    slow: Mapping[str, float | str] | str | None = None,
    drop_ranks: Sequence[int] | None = None,
    fraction: float | str | None = None,
    seed: int = 0,
) -> Topology:
    """A machine with failures, to plan on and to compare with the intact one (`tune(..., against=)`).

    `topology`: the machine, its name or its file.
    `drop_links`: links that are gone, in both directions, named by numbers of nodes or as `topology show` prints them:
    "0-1,3-nvswitch", or a list of these.
    `slow`: slower links with a factor or their new bandwidth: {"0-1": 0.5, "2-3": "10GB/s"}, or "0-1=0.5".
    `drop_ranks`: ranks that are gone; the others are renumbered from 0.
    `fraction`: of all links that are gone, 0.02 for 2 %, chosen by `seed`: the same on every machine.
    """
    from antiphon.topologies.degraded import degrade_machine

    return degrade_machine(
        _given.machine(topology), drop_links=drop_links or (), slow=slow or {},  # type: ignore[arg-type]
        drop_ranks=drop_ranks or (), fraction=fraction, seed=seed,
    )  # fmt: skip


@public
def collective(
    wanted: CollectiveLike, topology: MachineLike, *, root: int | None = None, ranks: Sequence[int] | None = None
) -> Collective:
    """What must be communicated.

    `wanted`: its name ("allreduce") or a JSON file.
    `topology`: the machine, its name or its file.
    `root`: of a rooted collective the root; left out, the first rank that takes part.
    `ranks`: those that take part, a process group; the others may relay. Left out, all.
    """
    return _given.collective(wanted, _given.machine(topology), root, ranks)


@public
def bound(
    wanted: CollectiveLike, topology: MachineLike, *, root: int | None = None, ranks: Sequence[int] | None = None
) -> Bound:
    """Exact lower bounds on steps and time, with their witnesses.

    `wanted`: a collective, its name or its file.
    `topology`: the machine, its name or its file.
    `root`, `ranks`: with a name, its root and the ranks that take part, as for `collective`.
    """
    from antiphon.core.bounds import bound as find

    machine = _given.machine(topology)
    return find(machine, _given.collective(wanted, machine, root, ranks))
