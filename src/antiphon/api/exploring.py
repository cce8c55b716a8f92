"""Show results as an interactive page: one HTML file that loads no other (`antiphon.explore`)."""

from __future__ import annotations

import os
from html import escape
from typing import TYPE_CHECKING, Any, cast

from antiphon.api import _inputs
from antiphon.api._checked import public
from antiphon.errors import Invalid, quote

if TYPE_CHECKING:
    from antiphon.api._kinds import Path, PlanLike, ProfileLike, Size
    from antiphon.sweeps.results import SweepResult

SIZES = "1KB:1GB"  # the sizes at which the plans of a file are priced
FRAME_HEIGHT = 800  # pixels, in notebooks


class Page(str):
    """An HTML page, which notebooks show in a frame."""

    __slots__ = ()

    def __repr__(self) -> str:  # noqa: D105
        return f"<page of {len(self):,} characters>"

    def _repr_html_(self) -> str:
        permissions = "allow-scripts allow-downloads"
        style = f"width: 100%; height: {FRAME_HEIGHT}px; border: 0"
        return f'<iframe title="Explorer" sandbox="{permissions}" style="{style}" srcdoc="{escape(self)}"></iframe>'


@public
def explore(
    result: PlanLike | SweepResult,
    *,
    nbytes: Size | None = None,
    model: str = "",
    profile: ProfileLike = None,
    collective: str = "",
    trace: Path | None = None,
    origin: str = "",
) -> Page:
    """Return a result as one self-contained HTML page to explore.

    The page shows the machine, every transfer over time, time against size, and what limits every plan.

    Parameters
    ----------
    result
        A plan, a table or the result of `tune`, a frontier, a sweep; or the file of one: a plan, a table, what
        `frontier --certificate` or `sweep -o` (.csv) wrote, or a trace of `run` or `predict`.
    nbytes
        The size at which plans are played. Default: that of `trace`, or that a tuned plan names, else 1 MB.
    model
        The cost model of the whole page (`antiphon.available.models()`). Default: that of the plan.
    profile
        Measured parameters: a Profile, its file, or the name of a shipped one.
    collective
        If the result has several plans: show only the one for this collective.
    trace
        Of one plan, a trace of a run at one size (`run` with `trace`): its times are shown beside the predicted ones.
    origin
        The date and the command, for the last line of the page.

    Returns
    -------
    Page
        The page: a string that notebooks show in a frame.

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
    from antiphon.formats.foreign import has_real_machine
    from antiphon.formats.trace_messages import TracedMessages, is_trace_file, read_messages
    from antiphon.select import Frontier, Tuning, is_frontier_file, load_frontier, sizes_of
    from antiphon.show.explorer import payload
    from antiphon.show.explorer.page import explorer_html
    from antiphon.sweeps.results import SweepResult, load_sweep
    from antiphon.units import format_size, parse_size

    size = None if nbytes is None else parse_size(nbytes)
    if size == 0:
        raise Invalid(f"nbytes: expected a size from 1 byte, got {quote(nbytes)}")
    content: Any = result
    if _inputs.is_path(result):
        name = os.fspath(cast(Any, result))
        if is_frontier_file(name):
            content = load_frontier(name)
        elif name.endswith(".csv"):
            content = load_sweep(name)
        else:
            content = read_messages(name) if is_trace_file(name) else name
    if isinstance(content, Tuning | SweepResult | TracedMessages):
        if size is not None or model or profile is not None or trace is not None:
            raise Invalid("result: has sizes and times of its own; leave nbytes, model, profile and trace out")
        if isinstance(content, TracedMessages):
            return Page(explorer_html(payload.trace_page(content), origin))
        page = payload.tuning_page(content) if isinstance(content, Tuning) else payload.sweep_page(content)
        return Page(explorer_html(page, origin))
    _, sizes = sizes_of(SIZES)
    if isinstance(content, Frontier):
        if profile is not None or trace is not None:
            raise Invalid("result: a frontier counts steps and rounds; leave profile and trace out")
        return Page(explorer_html(payload.frontier_page(content, sizes, size, model), origin))
    plans = _inputs.plans(content)
    if collective:
        chosen = _inputs.plan(content, collective)
        plans = {chosen.collective.kind: chosen}
    if not all(has_real_machine(each) for each in plans.values()):
        raise Invalid("result: its file names no machine; explore the plan (.json) that it was written from")
    loaded_profile = as_profile(profile) if profile is not None else None
    traced = None if trace is None else read_messages(trace)
    if traced is not None:
        if len(plans) > 1:
            raise Invalid("trace: is of one collective; name it, as in table.json:allreduce (in Python collective=)")
        if size not in (None, traced.nbytes):
            raise Invalid(f"trace: is of {format_size(traced.nbytes)}; leave nbytes out")
        size = traced.nbytes
    return Page(explorer_html(payload.plans_page(plans, sizes, size, model, loaded_profile, traced), origin))
