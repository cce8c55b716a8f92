"""What a plan takes, by a model."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from antiphon.api import _given
from antiphon.api._checked import public, size
from antiphon.errors import Invalid, Unsupported

if TYPE_CHECKING:
    from antiphon.api._kinds import CollectiveLike, MachineLike, Path, PlanLike, ProfileLike, Row, Size, Sizes
    from antiphon.core.plan import Plan


@public
def predict(
    plan: PlanLike | CollectiveLike,
    nbytes: Sizes,
    *,
    model: str = "",
    profile: ProfileLike = None,
    collective: str = "",
    topology: MachineLike | None = None,
    library: str = "",
    trace: Path | None = None,
) -> list[Row]:
    """What a plan takes by a model, a row per size: nbytes, seconds, algbw, busbw, terms, bottleneck, note, model,
    rests_on (what the figure is calibrated by, or: not calibrated).

    `plan`: a plan, its file, or what `tune` gave.
    `nbytes`: a size ("64MiB"), a range ("1KB:1GB" doubles, "1KB:1GB:10" takes tens), or several sizes.
    `model`: which (`antiphon.available.models()`), with its options behind a colon; left out, as `tune` takes it:
    `calls` where its figures are known of the machine and of the plan's ranks, and no profile is given, else
    `alpha-beta`.
    `profile`: what was measured: a Profile, its file, or the name of a shipped one.
    `collective`: of several plans the one for this.
    `topology`: the machine, for files that name none (MSCCL's XML, plans of MSCCL++), and with `library`.
    `library`: nccl, rccl or msccl: what that would do; then `plan` is a collective or its name, and the rows are those
    of `predict_library`.
    `trace`: of one size: follow every message, and write to this file when each is under way (Chrome's trace format);
    the row then has the path that held it up (critical_path). `model` is then `critical-path` where it is left out.
    """
    from antiphon.cost import predict as price

    if library:
        if topology is None or model or profile is not None or collective or trace is not None:
            raise Invalid("library: give a collective, nbytes and topology beside it, and leave the others out")
        return predict_library(plan, topology, nbytes, library=library)  # type: ignore[arg-type]
    if trace is not None:
        return simulate(
            cast(Any, plan), size(nbytes, "nbytes"), model=model, profile=profile, trace=trace, collective=collective,
            topology=topology,
        )  # fmt: skip

    return price(_placed(plan, collective, topology), nbytes, model=model, profile=profile)


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
    """Follow every message of one size: a row as of `predict`, with the path that held it up (critical_path).

    `plan`: a plan, its file, or what `tune` gave.
    `nbytes`: one size, such as "64MiB".
    `model`: which (`antiphon.available.models()`), with its options behind a colon; left out, `critical-path`,
    with launch and protocols (`calls:by=critical-path`) where these are known of the machine and the ranks and no
    profile is given.
    `profile`: what was measured: a Profile, its file, or the name of a shipped one.
    `trace`: a file for when each message is under way (Chrome's trace format).
    `collective`: of several plans the one for this.
    `topology`: the machine, for files that name none (MSCCL's XML, plans of MSCCL++).
    """
    from antiphon.core.files import write_bytes
    from antiphon.cost import simulate as follow

    row, events = follow(
        _placed(plan, collective, topology),
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
    wanted: CollectiveLike, topology: MachineLike, nbytes: Sizes, *, library: str = "nccl"
) -> list[Row]:
    """What NCCL, RCCL or MSCCL would do at each size, and take: a row per size with nbytes, seconds, algbw, busbw,
    algorithm, protocol, terms, limit (limited_by: its witness, where that is the proven bound), why, chosen_by, mostly,
    sms (multiprocessors of each GPU taken at most, None: not known), sms_of (there are so many), without_sms (seconds
    by copy engines), calibrated (which published tables the figure rests on), others.

    `wanted`: a collective or its name, such as "allreduce", among all ranks.
    `topology`: the machine.
    `nbytes`: a size ("64MiB"), a range ("1KB:1GB" doubles, "1KB:1GB:10" takes tens), or several sizes.
    `library`: nccl, rccl or msccl, with options behind a colon: gpu=, network= (whose figures), processes=one (one
    process drives all GPUs of a node), algorithm= (this one only).
    """
    from antiphon.cost.nccl.library import library as library_of
    from antiphon.units import parse_sizes

    machine = _given.machine(topology, "topology")
    target = _given.collective(wanted, machine)
    if len(target.members) < machine.ranks:
        raise Unsupported(f"library {library.partition(':')[0]}: only among all ranks of a machine")
    root = target.roots[0] if target.roots else 0
    return replace(library_of(library, machine), root=root, limits={}).rows(target.kind, parse_sizes(nbytes))


def _placed(plan: PlanLike | CollectiveLike, collective: str, topology: MachineLike | None) -> Plan:
    """The plan, on a machine whose links are known."""
    from antiphon.formats.foreign import machine_is_told

    on = None if topology is None else _given.machine(topology, "topology")
    chosen = _given.plan(plan, collective, on=on)
    if not machine_is_told(chosen):
        raise Invalid("plan: its file says nothing of the machine; give it by --topology (in Python topology=)")
    return chosen
