"""The best plan for every size, of all planners, by a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from antiphon.api import _given
from antiphon.api._checked import public
from antiphon.api._old_options import old_measuring, old_search_options
from antiphon.api.search import Search, as_search
from antiphon.errors import Invalid, quote

if TYPE_CHECKING:
    from antiphon.api._kinds import CollectiveLike, MachineLike, ProfileLike, Sizes
    from antiphon.select import Tuning, Tunings

SPAN = "1KB:1GB"


@old_search_options
@old_measuring
@public
def tune(  # noqa: PLR0913
    wanted: CollectiveLike,
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
    """Find the best plan for every size, of all that the planners can make; every schedule is verified.

    The result has `.plan` (`.plans` for several collectives), `.ranges`, `.candidates`, `.stopped` (how many of these
    ended by their budget), `.as_json()` and `.save(file)`. Ctrl-C ends it early with what was found.
    `antiphon.measure.tune` also measures the best, and chooses by that.

    `wanted`: a collective, its name or its file, or "all" for the eight.
    `topology`: the machine, its name or its file.
    `nbytes`: a range ("1KB:1GB", which it is by default), one size, or several.
    `model`: what predicts the times (`antiphon.available.models()`), with its options behind a colon; left out, `calls`
    where published measurements tell what a call costs on these GPUs, else `alpha-beta`.
    `profile`: what was measured: a Profile, its file, or the name of a shipped one.
    `planners`: only these, or this one; left out, all that can.
    `root`: of a rooted collective the root; left out, the first rank that takes part.
    `ranks`: those that take part; the others may relay. Left out, all.
    `nccl`: False leaves out what is only there to compare with, and the speedup.
    `against`: the intact machine, if the topology is a degraded one: bounds before and after, and lost links.
    `progress`: called with the number of candidates done, their total, and the last one; every few seconds also, with
    the same numbers, with a text that begins with "still at work": the current candidates, and their CPU seconds.
    `search`: how hard to search: `antiphon.Search(effort=, budget=, seed=, workers=, deterministic=, sweep=, plans=,
    shortlist=)`.
    """
    from antiphon.select import tune as find

    machine = _given.machine(topology)
    options = as_search(search).options()
    target: Any = wanted
    if isinstance(wanted, str) and wanted == "all":
        options |= {"root": root, "ranks": ranks}
    else:
        target = _given.collective(wanted, machine, root, ranks)
    return find(
        target, machine, nbytes=SPAN if nbytes is None else nbytes, model=model or "", profile=profile,
        planners=planners, nccl=nccl, against=None if against is None else _given.machine(against, "against"),
        progress=progress, **options,
    )  # fmt: skip


@old_search_options
@public
def tune_over(  # noqa: PLR0913
    wanted: CollectiveLike,
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
    """`tune` for several machines of a family: `.tunings` and `.refused` by value, `.as_json()`, `.save(directory)`.

    `wanted`: a collective, its name or its file, or "all".
    `topology`: the family's name with the options that stay: "delta", "ring:bandwidth=10GB/s".
    `vary`: the option that changes, with its values: {"nodes": [1, 2, 4]} or "nodes=1,2,4".
    `nbytes`, `model`, `profile`, `planners`, `root`, `ranks`, `nccl`, `progress`, `search`: as for `tune`.
    """
    from antiphon.select import tune_over as find

    options = as_search(search).options()
    for name in ("plans", "shortlist"):
        if options.pop(name, None):
            raise Invalid(f"{name}: is for one machine; leave it out")

    return find(
        _given.by_name(wanted), topology, vary=vary, nbytes=SPAN if nbytes is None else nbytes, model=model or "",
        profile=profile, planners=planners, root=root, ranks=ranks, nccl=nccl, progress=progress, **options,
    )  # fmt: skip


@public
def report(tuning: Tuning) -> str:
    """A tuning as one HTML page that needs nothing else.

    `tuning`: what `tune` gave (without `on`).
    """
    from antiphon.select import Tuning as Found
    from antiphon.show.pages.report import report_html
    from antiphon.show.pictures.svg import topology_svg
    from antiphon.show.text import topology_text

    if not isinstance(tuning, Found):
        raise Invalid(f"tuning: expected what tune gave, with all its candidates, got {quote(tuning)}")
    return report_html(tuning, topology_svg, topology_text)
