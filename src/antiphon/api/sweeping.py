"""Plan for many machines at once (`run`), and keep plans in a store for machines equal up to renumbering.

A `Question` is the key of a stored plan: the arguments of `tune` on which the plan depends. An `Answer` is the plan
with its figures.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from antiphon.api import _inputs
from antiphon.api._checked import public
from antiphon.api.search import Search, as_search
from antiphon.api.tuning import SPAN
from antiphon.errors import Invalid, quote

if TYPE_CHECKING:
    from antiphon.api._kinds import CollectiveLike, MachineLike, Path, ProfileLike, Sizes
    from antiphon.select.store import Answer, Question, Store
    from antiphon.sweeps.results import SweepResult

# Fields of Search that a stored answer depends on. `workers` changes no answer; one that `budget` cut short is not
# stored.
FIELDS = ("effort", "seed", "deterministic")


@public
def run(
    file: Path,
    *,
    store: Store | Path | None = None,
    engine: str = "processes",
    progress: Callable[[int, int, str], None] | None = None,
) -> SweepResult:
    r"""Plan every machine and collective that a file names, and compare the machines.

    Parameters
    ----------
    file
        A TOML file: collectives, nbytes, [[machines]] with `vary`, [[prices]] (docs/have/fabric.md).
    store
        Where plans are kept: a `Store`, a folder or a location of fsspec. Plans that it holds are not made again.
        Default: the store in your cache folder; none if ANTIPHON_CACHE is off.
    engine
        "processes", "processes:4", "ray", "ray:ADDRESS", "dask" or "dask:ADDRESS". It changes no result.
    progress
        Called with the number of pairs (collective, machine) that are planned, their total, and the last one.

    Returns
    -------
    SweepResult
        `.rows()` per machine, collective and size; `.machines()`, the fastest first; `.save("x.csv")`, `.as_json()`.

    Raises
    ------
    Invalid
        The file is wrong. Machines that cannot be made or planned for are no error: their rows say why.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> text = 'collectives = "allgather"\nnbytes = "1MB"\nplanners = ["ring"]\n[[machines]]\ntopology = "ring:ranks=4"'
    >>> with open(f"{folder}/study.toml", "w") as file:
    ...     _ = file.write(text)
    >>> [row["planner"] for row in run(f"{folder}/study.toml", store=folder, engine="processes:1").rows()]
    ['ring']
    """
    from antiphon.core.cache import cache_folder
    from antiphon.sweeps.request import read_sweep_file
    from antiphon.sweeps.results import run_sweep

    plan_store = None if store is None and cache_folder("store") is None else as_store(store)
    return run_sweep(read_sweep_file(file), store=plan_store, engine=engine, progress=progress)


@public
def tune(  # noqa: PLR0913
    collective: CollectiveLike,
    topology: MachineLike,
    *,
    store: Store | Path | None = None,
    nbytes: Sizes | None = None,
    model: str | None = None,
    profile: ProfileLike = None,
    planners: str | Sequence[str] = (),
    root: int | None = None,
    ranks: Sequence[int] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    search: Search | None = None,
) -> Answer:
    """Return the best plan for every size from a store; where it is not there yet, tune and store it.

    Parameters
    ----------
    collective
        One of the eight collectives, or its name.
    topology
        The machine, its name or its file. Plans of a machine that is equal up to renumbering are renumbered.
    store
        A `Store`, a folder or a location of fsspec. Default: the store in your cache folder.
    nbytes, model, profile, planners, root, ranks, progress, search
        As for `antiphon.tune`; of `search` not the fields sweep, plans, shortlist, failures and counts.

    Returns
    -------
    Answer
        `.plan`, verified on this machine; `.rows` with planner, seconds and gap by size; `.stored`: it was there.

    Raises
    ------
    Unsupported
        Custom collectives and uneven blocks cannot be stored.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> first = tune("allgather", "ring:ranks=4", store=folder, nbytes="1MB", planners="ring")
    >>> first.stored, tune("allgather", "ring:ranks=4", store=folder, nbytes="1MB", planners="ring").stored
    (False, True)
    """
    from antiphon.select.store import answer

    limits = as_search(search)
    question = _question(
        collective, topology, nbytes=nbytes, model=model, profile=profile, planners=planners, root=root, ranks=ranks,
        search=limits,
    )  # fmt: skip
    return answer(question, as_store(store), budget=limits.budget, workers=limits.workers, progress=progress)


@public
def get(  # noqa: PLR0913
    collective: CollectiveLike,
    topology: MachineLike,
    *,
    store: Store | Path | None = None,
    nbytes: Sizes | None = None,
    model: str | None = None,
    profile: ProfileLike = None,
    planners: str | Sequence[str] = (),
    root: int | None = None,
    ranks: Sequence[int] | None = None,
    search: Search | None = None,
) -> Answer | None:
    """Return what `tune` with these arguments has stored; None if it is not there. Nothing is planned.

    Parameters
    ----------
    collective, topology, store, nbytes, model, profile, planners, root, ranks, search
        As for `tune`.

    Returns
    -------
    Answer or None
        As `tune` returns it, verified on this machine.

    Raises
    ------
    Invalid
        The entry is damaged.

    Examples
    --------
    >>> import tempfile
    >>> get("allgather", "ring:ranks=4", store=tempfile.mkdtemp()) is None
    True
    """
    question = _question(
        collective, topology, nbytes=nbytes, model=model, profile=profile, planners=planners, root=root, ranks=ranks,
        search=as_search(search),
    )  # fmt: skip
    return as_store(store).get(question)


def _question(
    collective: CollectiveLike, topology: MachineLike, *, nbytes: Sizes | None, model: str | None, profile: ProfileLike,
    planners: str | Sequence[str], root: int | None, ranks: Sequence[int] | None, search: Search,
) -> Question:  # fmt: skip
    """Return the key of the plan that `tune` with these arguments stores."""
    from antiphon.cost import as_profile
    from antiphon.select import sizes_of
    from antiphon.select.store import Question

    machine = _inputs.machine(topology)
    target = _inputs.collective(collective, machine, root, ranks)
    for name in ("sweep", "plans", "shortlist", "failures", "counts"):
        if search.has(name):
            raise Invalid(f"search: {name} cannot be stored; leave it out, or tune without a store")
    names = (planners,) if isinstance(planners, str) else tuple(planners)
    fields = {"planners": names, **{name: getattr(search, name) for name in FIELDS}}
    _, sizes = sizes_of(SPAN if nbytes is None else nbytes)
    return Question(
        machine, target, sizes, model or "", profile=None if profile is None else as_profile(profile), search=fields
    )


def as_store(value: Store | Path | None) -> Store:
    """Return a store from its location; None: the one in the cache folder."""
    from antiphon.select.store import Store

    if isinstance(value, Store):
        return value
    if value is not None and not isinstance(value, str | os.PathLike):
        raise Invalid(f"store: expected a folder, a location such as s3://bucket/plans, or a Store, got {quote(value)}")
    return Store(value)
