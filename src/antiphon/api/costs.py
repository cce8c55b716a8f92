"""Predict the time of plans, and of libraries, by cost models."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from antiphon.api import _inputs
from antiphon.api._checked import public, size
from antiphon.errors import Invalid

if TYPE_CHECKING:
    from antiphon.api._kinds import CollectiveLike, MachineLike, Path, PlanLike, ProfileLike, Row, Size, Sizes
    from antiphon.core.plan import Plan


@public
def predict(
    plan: PlanLike | CollectiveLike | Sequence[PlanLike],
    nbytes: Sizes,
    *,
    model: str = "",
    profile: ProfileLike = None,
    collective: str = "",
    topology: MachineLike | None = None,
    library: str = "",
    trace: Path | None = None,
) -> list[Row]:
    """Predict the time of a plan by a cost model, at each size.

    Parameters
    ----------
    plan
        A plan, its file, or the result of `tune`; with `library`, a collective or its name. Plans in a list run at the
        same time and share the links; each moves its own `nbytes`.
    nbytes
        A size ("64MiB"), a range ("1KB:1GB" doubles, "1KB:1GB:10" multiplies by ten), or several sizes.
    model
        A model (`antiphon.available.models()`), with its options after a colon. Default: `calls` if its figures are
        known for the machine and the plan's ranks and no profile is passed, else `alpha-beta`.
    profile
        Measured parameters: a Profile, its file, or the name of a shipped one.
    collective
        The collective to choose from a file with plans for several.
    topology
        The machine, for files that name none (MSCCL's XML, plans of MSCCL++), and with `library`.
    library
        nccl, rccl or msccl: predict that library instead of a plan; rows are then those of `predict_library`.
    trace
        For one size: simulate every message and write when each is in flight to this file (Chrome's trace format). The
        row then has `critical_path`, and `model` defaults to `critical-path`.

    Returns
    -------
    list of dict
        A row per size: collective, topology, planner, nbytes, seconds, algbw, busbw, terms (seconds by cause, such as
        latency), bottleneck, note, model, rests_on (the calibration of the figure, or "not calibrated"), gap (seconds
        over the lower bound by this model; None if that is unknown, and above 64 ranks) and gap_model.

    Raises
    ------
    Unsupported
        The model cannot price this plan.

    Examples
    --------
    >>> from antiphon.api.plans import plan
    >>> predict(plan("allreduce", "ring:ranks=4"), "1MB")[0]["nbytes"]
    1000000
    """
    from antiphon.cost import as_profile
    from antiphon.cost import predict as predict_plan
    from antiphon.select.limits import add_gaps
    from antiphon.select.plans import run_plans_together
    from antiphon.units import parse_sizes

    if library:
        if topology is None or model or profile is not None or collective or trace is not None:
            raise Invalid("library: give a collective, nbytes and topology beside it, and leave the others out")
        return predict_library(plan, topology, nbytes, library=library)  # type: ignore[arg-type]
    if trace is not None:
        return simulate(
            cast(Any, plan), size(nbytes, "nbytes"), model=model, profile=profile, trace=trace, collective=collective,
            topology=topology,
        )  # fmt: skip

    if not isinstance(plan, list | tuple):
        placed = _place_plan(cast(Any, plan), collective, topology)
        rows = predict_plan(placed, nbytes, model=model, profile=profile)
        return add_gaps(placed, rows, as_profile(profile))
    plans = [_place_plan(each, collective, topology) for each in plan]
    joint = {size_each: run_plans_together(plans, size_each) for size_each in parse_sizes(nbytes)}
    rows = [
        row for size_each, each in joint.items() for row in predict_plan(each, size_each, model=model, profile=profile)
    ]
    return add_gaps(next(iter(joint.values())), rows, as_profile(profile))  # all are of the same collective


@public
def simulate(
    plan: PlanLike,
    nbytes: Size,
    *,
    model: str = "",
    profile: ProfileLike = None,
    trace: Path | None = None,
    collective: str = "",
    topology: MachineLike | None = None,
) -> list[Row]:
    """Simulate every message of a plan at one size.

    Parameters
    ----------
    plan
        A plan, its file, or the result of `tune`.
    nbytes
        One size, such as "64MiB".
    model
        A model (`antiphon.available.models()`), with its options after a colon. Default: `critical-path`, with launch
        costs and protocols (`calls:by=critical-path`) if these are known for the machine and the ranks and no profile
        is passed.
    profile
        Measured parameters: a Profile, its file, or the name of a shipped one.
    trace
        A file for the times at which each message is in flight (Chrome's trace format).
    collective
        The collective to choose from a file with plans for several.
    topology
        The machine, for files that name none (MSCCL's XML, plans of MSCCL++).

    Returns
    -------
    list of dict
        One row with the keys of `predict` and `critical_path`: the messages that determine the time.

    Examples
    --------
    >>> from antiphon.api.plans import plan
    >>> "critical_path" in simulate(plan("allreduce", "ring:ranks=4"), "1MB")[0]
    True
    """
    from antiphon.core.files import write_bytes
    from antiphon.cost import simulate as simulate_plan

    row, events = simulate_plan(
        _place_plan(plan, collective, topology),
        size(nbytes, "nbytes"),
        model=model,
        profile=profile,
        trace=trace is not None,
    )
    if trace is not None and events is not None:
        write_bytes(os.fspath(trace), events)
    return [row]


@public
def predict_library(
    collective: CollectiveLike, topology: MachineLike, nbytes: Sizes, *, library: str = "nccl"
) -> list[Row]:
    """Predict the algorithm and the time of NCCL, RCCL or MSCCL at each size.

    Parameters
    ----------
    collective
        A collective or its name, such as "allreduce". Among a subset of ranks, the others do not relay.
    topology
        The machine.
    nbytes
        A size ("64MiB"), a range ("1KB:1GB" doubles, "1KB:1GB:10" multiplies by ten), or several sizes.
    library
        nccl, a version of it (nccl-2.32), rccl or msccl, with options after a colon: gpu=, network= (whose figures to
        use), processes=one (one process drives all GPUs of a node), algorithm= (only this one), registered=yes (all
        buffers are symmetric windows of NCCL).

    Returns
    -------
    list of dict
        A row per size: nbytes, seconds, algbw, busbw, algorithm, protocol, error (median of the model on machines that
        it was not fitted to, or None), error_above_aim (the error aimed at, if exceeded), terms (seconds by cause),
        mostly (the largest term), limit (the bottleneck of the bytes), limited_by (the witness of the lower bound,
        where the prediction attains it), why (the reason of the choice), chosen_by (for MSCCL, the range of sizes), sms
        (maximum multiprocessors used per GPU, None if unknown), sms_of (multiprocessors of the GPU), without_sms
        (seconds by copy engines), calibrated (the published tables used), others (seconds of the other choices).

    Raises
    ------
    Unsupported
        The library's behaviour on this machine is not known, or its model would beat the lower bound there.

    Examples
    --------
    >>> predict_library("allreduce", "dgx1v", "1MB")[0]["nbytes"]
    1000000
    """
    from antiphon.core.reshape import keep
    from antiphon.cost.nccl.library import library as parse_library
    from antiphon.units import parse_sizes

    machine = _inputs.machine(topology, "topology")
    target = _inputs.collective(collective, machine)
    members = sorted(target.members)
    root = members.index(target.roots[0]) if target.roots else 0
    if len(members) < machine.ranks:
        machine = keep(machine, members, name=machine.name).topology
    # a new cache of lower bounds: they are computed when they are needed, for this root
    model = replace(parse_library(library, machine), root=root, lower_bounds={})
    return model.rows(target.kind, parse_sizes(nbytes))


def _place_plan(plan: PlanLike | CollectiveLike, collective: str, topology: MachineLike | None) -> Plan:
    """Return the plan, on a machine whose links are known."""
    from antiphon.formats.foreign import has_real_machine

    machine = None if topology is None else _inputs.machine(topology, "topology")
    chosen = _inputs.plan(plan, collective, on=machine)
    if not has_real_machine(chosen):
        raise Invalid("plan: its file does not name the machine; give it with --topology (in Python topology=)")
    return chosen
