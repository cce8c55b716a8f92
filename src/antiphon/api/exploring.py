"""Show results as an interactive page: one file that loads nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from antiphon.api import _inputs
from antiphon.api._checked import public
from antiphon.errors import Invalid, quote

if TYPE_CHECKING:
    from antiphon.api._kinds import PlanLike, ProfileLike, Size

SIZES = "1KB:1GB"  # at which the plans of a file are priced


@public
def explore(
    plan: PlanLike, *, nbytes: Size | None = None, model: str = "", profile: ProfileLike = None, origin: str = ""
) -> str:
    """Return a plan, a table or the result of `tune` as one self-contained HTML page to explore.

    The page shows the machine, every transfer over time, time against size, and what limits every plan.

    Parameters
    ----------
    plan
        A plan, its file, a table, or the result of `tune`.
    nbytes
        The size at which plans are played. Default: the size that a tuned plan names, else 1 MB.
    model
        The cost model of the whole page (`antiphon.available.models()`). Default: that of the plan.
    profile
        Measured parameters: a Profile, its file, or the name of a shipped one.
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
    from antiphon.select import Tuning, sizes_of
    from antiphon.show.explorer.page import explorer_html
    from antiphon.show.explorer.payload import plans_page, tuning_page
    from antiphon.units import parse_size

    if isinstance(plan, Tuning):
        if nbytes is not None or model or profile is not None:
            raise Invalid(
                "plan: a result of tune has its sizes, model and profile; leave nbytes, model and profile out"
            )
        return explorer_html(tuning_page(plan), origin)
    plans = _inputs.plans(plan)
    size = None if nbytes is None else parse_size(nbytes)
    if size == 0:
        raise Invalid(f"nbytes: expected a size from 1 byte, got {quote(nbytes)}")
    figures = as_profile(profile) if profile is not None else None
    page: dict[str, Any] = plans_page(plans, sizes_of(SIZES)[1], size, model, figures)
    return explorer_html(page, origin)
