"""Find the fastest plan for every message size by a cost model, for one machine or a family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from antiphon.api import _inputs
from antiphon.api._checked import public
from antiphon.api._old_options import old_measuring, old_search_options
from antiphon.api.search import Search, as_search
from antiphon.errors import Invalid, Unsupported, quote

if TYPE_CHECKING:
    from antiphon.api._kinds import CollectiveLike, MachineLike, ProfileLike, Sizes
    from antiphon.core.topology import Topology
    from antiphon.select import Tuning, Tunings

SPAN = "1KB:1GB"


@old_search_options
@old_measuring
@public
def tune(  # noqa: PLR0913
    collective: CollectiveLike,
    topology: MachineLike,
    *,
    nbytes: Sizes | None = None,
    model: str | None = None,
    profile: ProfileLike = None,
    planners: str | Sequence[str] = (),
    root: int | None = None,
    ranks: Sequence[int] | None = None,
    nccl: bool = True,
    against: MachineLike | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    search: Search | None = None,
) -> Tuning:
    """Find the fastest verified schedule for every message size.

    Ctrl-C ends the search early with the candidates so far. `antiphon.measure.tune` also measures the best candidates
    and chooses by that.

    Parameters
    ----------
    collective
        A collective, its name or its file, or "all" for the eight collectives.
    topology
        The machine, its name or its file.
    nbytes
        A range (default "1KB:1GB"), one size, or several.
    model
        Cost model (`antiphon.available.models()`), with its options after a colon. Default: `calls` where published
        measurements cover these GPUs, else `alpha-beta`.
    profile
        Measured parameters: a Profile, its file, or the name of a shipped one.
    planners
        Only these planners, or this one. Default: every planner that supports the request.
    root
        Root of a rooted collective. Default: the lowest participating rank.
    ranks
        Participating ranks; the others may relay. Default: all.
    nccl
        False omits the baselines and the speedup over them.
    against
        The intact machine, if `topology` is a degraded one: adds bounds before and after, and lost links.
    progress
        Called with the number of finished candidates, their total, and a text. It names the candidates "running" with
        the CPU seconds of each (if none is, the one that ended last), then the best so far for the largest size, its
        gap, and the largest gap at any size.
    search
        How hard to search: `antiphon.Search(effort=, budget=, seed=, workers=, deterministic=, sweep=, plans=,
        shortlist=, failures=, counts=)`.

    Returns
    -------
    Tuning
        `.plan` is the best plan (`.plans` for several collectives), `.ranges` maps sizes to schedules;
        also `.candidates`, `.stopped` (candidates that reached their budget), `.as_json()` and `.save(file)`;
        with measured counts of an alltoall in `search`, `.counts`: the plan's time at them over the lower bound, at the
        largest size.

    Raises
    ------
    Invalid
        An argument is wrong. Planners that do not support the request are not an error: see `.candidates`.

    Examples
    --------
    >>> tune("allreduce", "ring:ranks=4", nbytes="1MB", planners="ring").plan.collective.kind
    'allreduce'
    """
    from antiphon.core.reshape import linked_ranks
    from antiphon.planners.shared.tree_repair import surviving_collective
    from antiphon.select import tune as find
    from antiphon.select import tune_failures
    from antiphon.select.counts import measure_loss, of_request
    from antiphon.topologies.degraded import name_failures

    machine = _inputs.machine(topology)
    options = as_search(search).options()
    failures, counts = options.pop("failures", ""), options.pop("counts", None)
    target: Any = collective
    if isinstance(collective, str) and collective == "all":
        options |= {"root": root, "ranks": ranks}
    else:
        target = _inputs.collective(collective, machine, root, ranks)
    measured_counts = None
    if counts is not None:  # plan for their average; the plan's loss at each of them is measured below
        measured_counts, target = of_request(counts, _inputs.collective(collective, machine, root, ranks))
    if failures:  # refused before anything is planned
        name_failures(machine, failures)
        if not isinstance(target, str) and target.custom is not None:
            raise Unsupported("failures: custom collectives and groups have no tables for failures; leave it out")
    options |= {
        "nbytes": SPAN if nbytes is None else nbytes, "profile": profile, "planners": planners, "nccl": nccl,
        "progress": progress,
    }  # fmt: skip
    intact = None if against is None else _inputs.machine(against, "against")
    tuning = find(target, machine, model=model or "", against=intact, **options)
    if measured_counts is not None and tuning.complete and tuning.plans:
        loss = measure_loss(tuning.plan, measured_counts, tuning.sizes[-1], tuning.model, profile)
        tuning = replace(tuning, counts=loss)
    if not failures or not tuning.complete or not tuning.plans:  # not complete: Ctrl-C ended the search early
        return tuning

    def tune_again(broken: Topology) -> Tuning:
        """Tune for the ranks that still have links; of "all", collectives without their root get another one."""
        if not isinstance(target, str):
            surviving, _ = surviving_collective(target, broken)
            return find(surviving, broken, model=tuning.model, **options)
        linked = linked_ranks(broken)
        members = [rank for rank in ranks or range(broken.ranks) if rank in linked]
        reduced: dict[str, Any] = {"ranks": members, "root": root if root in members else None}
        if len(linked) < broken.ranks:
            return find(target, broken, model=tuning.model, **options | reduced)
        return find(target, broken, model=tuning.model, **options)  # all ranks still take part, as in the request

    return tune_failures(tuning, failures, tune_again)


@old_search_options
@public
def tune_family(  # noqa: PLR0913
    collective: CollectiveLike,
    topology: str,
    *,
    vary: Mapping[str, Any] | str,
    nbytes: Sizes | None = None,
    model: str | None = None,
    profile: ProfileLike = None,
    planners: str | Sequence[str] = (),
    root: int | None = None,
    ranks: Sequence[int] | None = None,
    nccl: bool = True,
    progress: Callable[[int, int, str], None] | None = None,
    search: Search | None = None,
) -> Tunings:
    """Tune for several machines of a family.

    Parameters
    ----------
    collective
        A collective, its name or its file, or "all".
    topology
        Name of the family with its fixed options: "delta", "ring:bandwidth=10GB/s".
    vary
        The option that varies, with its values: {"nodes": [1, 2, 4]} or "nodes=1,2,4".
    nbytes, model, profile, planners, root, ranks, nccl, progress, search
        As for `tune`.

    Returns
    -------
    Tunings
        `.tunings` and `.refused` by value, `.as_json()` and `.save(directory)`.

    Raises
    ------
    Invalid
        `search` has plans, a shortlist, failures or counts, which are for one machine.

    Examples
    --------
    >>> list(tune_family("allreduce", "ring", vary="ranks=3,4", nbytes="1MB", planners="ring").tunings)
    [3, 4]
    """
    from antiphon.select import tune_family as find

    checked_search = as_search(search)
    of_one_machine = ("plans", "shortlist", "failures", "counts")
    for name in of_one_machine:
        if checked_search.has(name):
            raise Invalid(f"{name}: is for one machine; leave it out")
    # `options` has the shortlist even if it is not set
    options = {name: value for name, value in checked_search.options().items() if name not in of_one_machine}
    return find(
        _inputs.path_as_text(collective), topology, vary=vary, nbytes=SPAN if nbytes is None else nbytes,
        model=model or "",
        profile=profile, planners=planners, root=root, ranks=ranks, nccl=nccl, progress=progress, **options,
    )  # fmt: skip


@public
def report(tuning: Tuning, *, origin: str = "") -> str:
    """Return a tuning as one self-contained HTML page, as `antiphon.pages.explore` does for any result.

    Parameters
    ----------
    tuning
        A result of `tune` (not of `antiphon.measure.tune`).
    origin
        The date and the command, for the last line of the page.

    Returns
    -------
    str
        The page.

    Raises
    ------
    Invalid
        The argument is not a result of `tune`.

    Examples
    --------
    >>> report(tune("allgather", "ring:ranks=4", nbytes="1MB", planners="ring")).startswith("<!DOCTYPE html>")
    True
    """
    from antiphon.api.exploring import explore
    from antiphon.select import Tuning as TuningResult

    if not isinstance(tuning, TuningResult):
        raise Invalid(f"tuning: expected a result of tune, with all its candidates, got {quote(tuning)}")
    return explore(tuning, origin=origin)
