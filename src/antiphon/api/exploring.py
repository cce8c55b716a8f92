"""Show results as an interactive page: one file that loads nothing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

from antiphon.api import _inputs
from antiphon.api._checked import public
from antiphon.errors import Invalid, quote

if TYPE_CHECKING:
    from antiphon.api._kinds import PlanLike, ProfileLike, Size
    from antiphon.sweeps.results import SweepResult

SIZES = "1KB:1GB"  # at which the plans of a file are priced


@public
def explore(
    result: PlanLike | SweepResult,
    *,
    nbytes: Size | None = None,
    model: str = "",
    profile: ProfileLike = None,
    collective: str = "",
    origin: str = "",
) -> str:
    """Return a result as one self-contained HTML page to explore.

    The page shows the machine, every transfer over time, time against size, and what limits every plan.

    Parameters
    ----------
    result
        A plan, a table or the result of `tune`, a frontier, a sweep; or the file of one: a plan, a table, what
        `frontier --certificate` or `sweep -o` (.csv) wrote.
    nbytes
        The size at which plans are played. Default: the size that a tuned plan names, else 1 MB.
    model
        The cost model of the whole page (`antiphon.available.models()`). Default: that of the plan.
    profile
        Measured parameters: a Profile, its file, or the name of a shipped one.
    collective
        Of several plans, only the one for this collective.
    origin
        The date and the command, for the last line of the page.

    Returns
    -------
    str
        The page.

    Raises
    ------
    Unsupported
        The model cannot price this plan.

    Examples
    --------
    >>> from antiphon.api.plans import plan
    >>> explore(plan("allreduce", "ring:ranks=4")).startswith("<!DOCTYPE html>")
    True
    """
    from antiphon.cost import as_profile
    from antiphon.formats.foreign import machine_is_told
    from antiphon.select import Frontier, Tuning, is_frontier_file, load_frontier, sizes_of
    from antiphon.show.explorer import payload
    from antiphon.show.explorer.page import explorer_html
    from antiphon.sweeps.results import SweepResult, load_sweep
    from antiphon.units import parse_size

    size = None if nbytes is None else parse_size(nbytes)
    if size == 0:
        raise Invalid(f"nbytes: expected a size from 1 byte, got {quote(nbytes)}")
    content: Any = result
    if _inputs.is_path(result):
        name = os.fspath(cast(Any, result))
        content = load_frontier(name) if is_frontier_file(name) else load_sweep(name) if name.endswith(".csv") else name
    if isinstance(content, Tuning | SweepResult):
        if size is not None or model or profile is not None:
            raise Invalid("result: has its sizes, model and profile; leave nbytes, model and profile out")
        page = payload.tuning_page(content) if isinstance(content, Tuning) else payload.sweep_page(content)
        return explorer_html(page, origin)
    sizes = sizes_of(SIZES)[1]
    if isinstance(content, Frontier):
        if profile is not None:
            raise Invalid("profile: a frontier counts steps and rounds; leave it out")
        return explorer_html(payload.frontier_page(content, sizes, size, model), origin)
    plans = _inputs.plans(content)
    if collective:
        chosen = _inputs.plan(content, collective)
        plans = {chosen.collective.kind: chosen}
    if not all(machine_is_told(each) for each in plans.values()):
        raise Invalid("result: its file names no machine; explore the plan (.json) that it was written from")
    figures = as_profile(profile) if profile is not None else None
    return explorer_html(payload.plans_page(plans, sizes, size, model, figures), origin)
