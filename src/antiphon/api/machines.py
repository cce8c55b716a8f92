"""List what is available; return machines, collectives and lower bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from antiphon.api import _inputs
from antiphon.api._checked import public

if TYPE_CHECKING:
    from antiphon.api._kinds import CollectiveLike, MachineLike, Row
    from antiphon.core.bounds import Bound
    from antiphon.core.collective import Collective
    from antiphon.core.topology import Topology


def topologies() -> list[Row]:
    """List the machines in the catalogue.

    Returns
    -------
    list of dict
        A row per machine: name, about, the numbers of ranks it can have, and an example.

    Examples
    --------
    >>> sorted(topologies()[0])[:2]
    ['about', 'example']
    """
    from antiphon.show.listing import list_entries

    return list_entries("topology")


def planners() -> list[Row]:
    """List the planners.

    Returns
    -------
    list of dict
        A row per planner: name, about, and its collectives, machines and options.

    Examples
    --------
    >>> "ring" in [row["name"] for row in planners()]
    True
    """
    from antiphon.show.listing import list_entries

    return list_entries("planner")


def models() -> list[Row]:
    """List the cost models.

    Returns
    -------
    list of dict
        A row per model: name, about, and what it can price.

    Examples
    --------
    >>> "alpha-beta" in [row["name"] for row in models()]
    True
    """
    from antiphon.show.listing import list_entries

    return list_entries("model")


def formats() -> list[Row]:
    """List the formats that plans can be exported to.

    Returns
    -------
    list of dict
        A row per format: name, about, what it accepts, its options, and `missing`: the library or tool that is not
        installed here ("" if the format is `available`).

    Examples
    --------
    >>> "goal" in [row["name"] for row in formats()]
    True
    """
    return _with_missing("backend")  # the registry's word for a format


def runtimes() -> list[Row]:
    """List the runtimes that plans can run on.

    Returns
    -------
    list of dict
        A row per runtime: name, about, the library that is measured beside it, options, the number of slices into which
        it cuts messages if the plan sets no pieces, and `missing`: the library or tool that is not installed here (""
        if the runtime is `available`).

    Examples
    --------
    >>> "local" in [row["name"] for row in runtimes()]
    True
    """
    return _with_missing("runtime")


def doctor() -> Row:
    """Find what this computer has, and which uses of Antiphon work here, such as plans under an MPI program.

    Returns
    -------
    dict
        processors, memory (bytes), gpus, cards (network cards), mpi, launchers, compilers, packages, libraries, and
        routes, the uses of Antiphon (not routes of transfers): a row each with route, works, missing, status (how far
        it is proven) and commands, in the order in which to try them.
    """
    from antiphon.runtimes.inventory import list_workflows, look_here

    inventory = look_here()
    return {**inventory, "routes": list_workflows(inventory)}


def _with_missing(kind: str) -> list[Row]:
    """List the entries of a kind, with the libraries and tools that are not installed here."""
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
    """Return a machine.

    Parameters
    ----------
    spec
        Its name ("dgx1v"), a family with options ("ring:ranks=8,bandwidth=10GB/s"), a JSON file, or a Topology.
    only
        Keep only these ranks, as an allocation of a batch system does. The other ranks lose their links; all nodes keep
        their numbers.

    Returns
    -------
    Topology
        The machine; `.ranks` is its number of ranks.

    Raises
    ------
    Invalid
        No machine of the catalogue has this name, or the file or an option is wrong.

    Examples
    --------
    >>> topology("ring:ranks=4").ranks
    4
    """
    from antiphon.core.reshape import only as keep_only

    machine = _inputs.machine(spec)
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
    drop_nics: Sequence[str] | str | None = None,
    of: str = "links",
    remaining: float | str | None = None,
) -> Topology:
    """Return a machine with failures, to plan on and to compare with the intact one (`tune(..., against=)`).

    Parameters
    ----------
    topology
        The machine, its name or its file.
    drop_links
        Failed links, in both directions, named by node numbers or as `topology show` prints them: "0-1,3-nvswitch", or
        a list. "0-1:2": two of its parallel wires; "0-1:pcie": only its links of this kind.
    slow
        Slower links, network cards or ranks, each with a factor or its new bandwidth: {"0-1": 0.5, "2": "10GB/s"}, or
        "0-1=0.5,host0/nic1=0.5".
    drop_ranks
        Failed ranks: they lose their links. All ranks keep their numbers.
    fraction
        Share of all links that fail, such as 0.02 for 2 %, chosen by `seed`.
    seed
        Seed of that choice; the same seed fails the same links everywhere.
    drop_nics
        Failed network cards, by the name of their shared limit ("host0/nic1") or the rank that has the card to itself.
    of
        What the fraction is of: "links", "nics" or "ranks".
    remaining
        What `fraction` chooses does not fail, but becomes as slow as this: a factor or a bandwidth, as for `slow`.

    Returns
    -------
    Topology
        The degraded machine, with the warning UnlikelyInput if it falls apart, which names the parts.

    Raises
    ------
    Invalid
        A link or rank does not exist.

    Examples
    --------
    >>> degrade("ring:ranks=4", drop_links="0-1").ranks
    4
    """
    from antiphon.topologies.degraded import degrade_machine

    # `public` has made a list of `drop_links` and a dictionary of `slow`
    return degrade_machine(
        _inputs.machine(topology), drop_links=drop_links or (), slow=slow or {},  # type: ignore[arg-type]
        drop_ranks=drop_ranks or (), fraction=fraction, seed=seed, drop_nics=drop_nics or (), of=of,
        remaining=remaining,
    )  # fmt: skip


@public
def collective(
    collective: CollectiveLike,
    topology: MachineLike,
    *,
    root: int | None = None,
    ranks: Sequence[int] | None = None,
    mesh: Mapping[str, int] | str | None = None,
) -> Collective:
    """Return a collective among the ranks of a machine, or in several groups at the same time.

    Parameters
    ----------
    collective
        Its name ("allreduce") or a JSON file; in groups "allreduce@every=8", "allreduce@0-3;4-7", "allgather@rows" (of
        a grid), or along dimensions of the mesh "allreduce@data + 2*alltoall@expert" (the second with twice the data).
    topology
        The machine, its name or its file.
    root
        Root of a rooted collective. Default: the lowest participating rank.
    ranks
        Participating ranks, a process group; the others may relay. Default: all.
    mesh
        Sizes of the named dimensions in which the ranks are numbered, as in PyTorch's DeviceMesh: "data=4,tensor=8".

    Returns
    -------
    Collective
        Its blocks, with the ranks that hold each block before and after.

    Raises
    ------
    Invalid
        No collective has this name, or the file is wrong.

    Examples
    --------
    >>> collective("allgather", "ring:ranks=4").blocks
    4
    """
    return _inputs.collective(collective, _inputs.machine(topology), root, ranks, mesh)


@public
def bound(
    collective: CollectiveLike, topology: MachineLike, *, root: int | None = None, ranks: Sequence[int] | None = None
) -> Bound:
    """Return exact lower bounds on the steps and the time of a collective, with their witnesses.

    Parameters
    ----------
    collective
        A collective, its name or its file.
    topology
        The machine, its name or its file.
    root, ranks
        Root and participating ranks of a collective passed by name, as for `collective`.

    Returns
    -------
    Bound
        `.latency_steps` is the lower bound on steps, `.inverse` the bound on time per unit of data over a unit link
        (SCCL's R/C), `.bytes_per_second` the corresponding rate; each comes with a witness that can be checked by hand.

    Raises
    ------
    Unsupported
        The machine cannot perform the collective, or is too large for an exact bound.

    Examples
    --------
    >>> bound("allreduce", "ring:ranks=4").latency_steps
    2
    """
    from antiphon.core.bounds import bound as find_bound

    machine = _inputs.machine(topology)
    return find_bound(machine, _inputs.collective(collective, machine, root, ranks))
