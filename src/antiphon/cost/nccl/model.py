"""The model `calls`: price a schedule with launch, protocols and bandwidth fractions, as NCCL pays them on GPUs.

For each protocol (LL, LL128, Simple) the links get the protocol's latency per hop and fraction of bandwidth as a
profile, and the model alpha-beta or critical-path prices the schedule. Three terms are added: the launch; seconds for
simultaneous messages of a rank; and the `ramp` of the call's first bytes over links within nodes (choice.py), unless
they wait for the network as long anyway. The prediction is that of the fastest protocol. The figures are those by which
NCCL itself is priced (library.py), so a speedup over NCCL compares like with like.

Example: an allreduce of 1 KB in 2 steps on h100: launch 6 us + 2 hops by LL of 0.7 us + bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import (
    Longs,
    distinct,
    pack_columns,
    unique_inverse,
)
from antiphon.core.loads import loads
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.cost.barriers.alpha_beta import alpha_beta
from antiphon.cost.barriers.critical_path import critical_path
from antiphon.cost.nccl.calls import CALL_TERMS, SIMPLE, CallFigures
from antiphon.cost.nccl.choice import COLLNET, NVLS, RING, Costs, occupied_multiprocessors
from antiphon.cost.nccl.gpus import kinds_within
from antiphon.cost.nccl.layout import TRUNK, NcclLayout, node_of_ranks
from antiphon.cost.nccl.library import LibraryModel, library_here, library_of
from antiphon.cost.nccl.link_figures import (
    LinkFigures,
    figures_by_protocol,
    profile_by_kind,
    sort_kinds,
    switched_figures,
)
from antiphon.cost.prediction import Prediction, Predictor
from antiphon.cost.profile import Profile, as_profile
from antiphon.cost.steps import Barriers
from antiphon.cost.trace import Events
from antiphon.errors import Invalid, Unsupported, quote

ScheduleModel = Callable[..., Predictor]
Bounded = tuple[NDArray[Any], int]  # a column and an upper bound of its values
MODELS: Mapping[str, ScheduleModel] = {"alpha-beta": alpha_beta, "critical-path": critical_path}


def calls(
    schedule: Schedule,
    topology: Topology,
    *,
    profile: Profile | str | Path | None = None,
    gpu: str = "",
    network: str = "",
    processes: str = "each",
    by: str = "alpha-beta",
) -> _CallPredictor:
    """Price a launch, then the schedule by the model `by`, with whichever protocol is fastest at the size.

    A hop within a node, or between nodes, has the protocol's latency, and links have the protocol's fraction of their
    bandwidth. `by`: alpha-beta, or critical-path: slower, but more accurate for rings and trees over several nodes,
    which do not wait for the slowest hop at every step. The figures are those by which NCCL is priced
    (docs/models/nccl.md). Schedules that use switches to multicast and reduce have the latency and fraction of NVLS.
    `gpu`, `network`, `processes`: as for `predict --library nccl`, by default the machine's own. Raises Unsupported if
    no figures are known.
    """
    if profile is not None and as_profile(profile) != Profile():
        raise Invalid("model calls: has figures of its own; leave out the profile, or take alpha-beta")
    if by not in MODELS:
        raise Invalid(f"model calls: by={quote(by)}: expected {' or '.join(MODELS)}")
    node = node_of_ranks(topology)
    crosses = node[schedule.src] != node[schedule.dst]  # per row: between nodes
    uses_network = bool(crosses.any())
    library = _find_library(
        topology, schedule.collective.members, uses_network, {"gpu": gpu, "network": network, "processes": processes}
    )
    predictors, network_figures = _prepare_protocols(library, schedule, topology, MODELS[by]), library.costs.network
    message_seconds = 0.0 if network_figures is None else network_figures.message
    extra = {"messages": _count_messages(schedule, node) * message_seconds}
    # Switches that multicast and reduce (NVLS) spare the ranks the fan.
    extra["fan"] = _count_fan(schedule, node) * library.costs.gpu.message if NVLS not in predictors else 0.0
    costs = library.costs if uses_network else replace(library.costs, network=None)
    joined = schedule.joint is not None and bool((crosses & (schedule.joint >= 0)).any())
    has_events = all(hasattr(predictor, "events") for predictor in predictors.values())
    on_wire = _seconds_on_wire(library.layout, schedule, topology) if uses_network else None
    remark = _remark_uncalibrated(library, schedule, topology)
    predictor_class = _CallPredictorWithEvents if has_events else _CallPredictor
    return predictor_class(
        predictors, library.layout, extra, costs, on_wire=on_wire, joined=joined, uncalibrated=remark
    )


def _find_library(
    topology: Topology, members: Sequence[int], uses_network: bool, overrides: Mapping[str, str]
) -> LibraryModel:
    """Return the library whose figures apply.

    For a group of ranks: those of the topology that it forms. If there are none, or if the group is in one node but
    sends through others, those of the whole machine.
    """
    if len(members) == topology.ranks:
        return library_here(topology, **overrides)
    try:
        library = library_of(topology, members, **overrides)
    except (Invalid, Unsupported):
        return library_here(topology, **overrides)
    if uses_network and library.layout.nodes == 1:
        with suppress(Invalid, Unsupported):
            return library_here(topology, **overrides)
    return library


@dataclass(frozen=True, eq=False)
class _CallPredictor:
    """The predictor of a schedule.

    `by_protocol`: predictors without launch and ramp. `extra`: seconds of simultaneous messages. `on_wire`: if the
    schedule uses the network, seconds per byte of the links within nodes at their nominal bandwidth, else None.
    `joined`: whether switches between nodes multicast or reduce. `uncalibrated`: a remark about links without figures.
    """

    by_protocol: Mapping[str, Predictor]
    layout: NcclLayout
    extra: Mapping[str, float]
    costs: Costs
    on_wire: float | None
    joined: bool
    uncalibrated: str

    def price_protocols(self, nbytes: int) -> list[tuple[str, Prediction]]:
        """Return each protocol with the prediction of a call by it, the fastest first."""
        calls = [(name, self._price(name, predictor(nbytes), nbytes)) for name, predictor in self.by_protocol.items()]
        # If one process launches so slowly that all protocols take equally long, the one is best whose other terms take
        # least time, which leaves most of it to the launch.

        def order(call: tuple[str, Prediction]) -> tuple[float, float]:
            _, prediction = call
            return prediction.seconds, -prediction.terms["launch"]

        return sorted(calls, key=order)

    def _price(self, name: str, transfers: Prediction, nbytes: int) -> Prediction:
        """Add the launch, simultaneous messages and the ramp to the prediction for a protocol."""
        gpu, switched = self.costs.gpu, name == NVLS
        within_nodes = transfer_seconds = transfers.terms["bandwidth"]
        if self.on_wire is not None:
            share = gpu.nvls.share if switched and gpu.nvls is not None else gpu.share[name]
            within_nodes = min(self.on_wire * nbytes / share, transfer_seconds)
        waiting = transfer_seconds - within_nodes  # seconds in which data wait for the network
        ramp = max(gpu.ramp_seconds(within_nodes, in_switches=switched) - waiting, 0.0)
        rest = sum(self.extra.values()) + ramp + transfers.seconds
        # Our kernels count as opening as many channels as NCCL's rings.
        channels = self.costs.channels(self.layout, RING, SIMPLE if switched else name, nbytes)
        launch = self.costs.launch(self.layout.local, rest, channels)
        terms = {"launch": launch, **self.extra, "ramp": ramp, **transfers.terms}
        greatest = max(terms, key=lambda term: terms[term])
        bottleneck = f"{greatest}: {CALL_TERMS[greatest]}" if greatest in CALL_TERMS else transfers.bottleneck
        return replace(transfers, seconds=launch + rest, terms=terms, bottleneck=bottleneck)

    def seconds_by_protocol(self, nbytes: int) -> dict[str, float]:
        """Return the seconds of a call by each protocol."""
        return {name: call.seconds for name, call in self.price_protocols(nbytes)}

    def __call__(self, nbytes: int) -> Prediction:
        (name, best), *_ = self.price_protocols(nbytes)
        note, rests_on = self._describe_basis(name)
        return replace(best, note=note, rests_on=rests_on)

    def _describe_basis(self, protocol: str) -> tuple[str, str]:
        """Return the note on the multiprocessors in use and the basis of the figures, and the basis in brief."""
        switched = protocol == NVLS
        # NVLS runs by the Simple protocol, so its remarks are those of Simple.
        remarks = self.costs.uncalibrated_remark(SIMPLE if switched else protocol, in_switches=switched)
        remarks += self.costs.simultaneity_remark(self.extra)
        remarks += (f"; {COLLNET} not calibrated" if self.joined else "") + self.uncalibrated
        units = units_text(self.costs, NVLS if switched else RING)
        return f"protocol {protocol}; {units}{self.costs.basis()}{remarks}", self.costs.brief() + remarks


class _CallPredictorWithEvents(_CallPredictor):
    """Like `_CallPredictor`, for models that also return when every message is in transit."""

    def events(self, nbytes: int) -> Events:
        """Return the events of the fastest protocol, after the launch and the other terms added to the transfers."""
        (name, best), *_ = self.price_protocols(nbytes)
        unshifted: Events = self.by_protocol[name].events(nbytes)  # type: ignore[attr-defined]
        delay = sum(best.terms[term] for term in ("launch", "ramp", *self.extra))
        times = ("start", "landed", "use_start", "use_end")
        return replace(unshifted, **{name: getattr(unshifted, name) + delay for name in times})


def units_text(costs: Costs, algorithm: str) -> str:
    """Describe the multiprocessors occupied on a GPU, if known."""
    units, occupied = costs.gpu.units, occupied_multiprocessors(costs, algorithm)
    return "" if units is None or occupied is None else f"occupies up to {occupied} of a GPU's {units.of} SMs; "


def _seconds_on_wire(layout: NcclLayout, schedule: Schedule, topology: Topology) -> float:
    """Return the seconds per byte in which the busiest rank sends its data within its node, at its nominal bandwidth.

    O(rows log rows), shared with the predictors.
    """
    kinds_within_nodes, _, _ = sort_kinds(layout, topology)
    load = loads(schedule, topology)
    # Shared limits are numbered after the links; clipped to a valid link here, they are left out by `selected`.
    link = np.minimum(load.resource, topology.links - 1)
    inside = np.isin(
        topology.link_type, [i for i, kind in enumerate(topology.types) if kind.kind in kinds_within_nodes]
    )
    selected = (load.resource < topology.links) & inside[link] & (topology.link_src[link] < topology.ranks)
    # An entry loads its link by load / scale of nbytes in each of the `window` steps of its pieces.
    sent = np.bincount(
        topology.link_src[link[selected]], weights=(load.load[selected] * load.window[selected]).astype(np.float64)
    )
    return float(sent.max(initial=0.0)) / load.scale / layout.wire if layout.wire else 0.0


def _count_messages(schedule: Schedule, node: Longs) -> float:
    """Count the simultaneous messages of the busiest rank to or from other nodes, beyond its first in each step.

    Returns the sum over the steps, including those of pieces. O(rows log rows).
    """
    crossing = np.flatnonzero(node[schedule.src] != node[schedule.dst])
    senders, receivers = _row_ends(schedule, crossing)
    sides = (
        _beyond_first(schedule, crossing, [senders], receivers),
        _beyond_first(schedule, crossing, [receivers], senders),
    )
    return max(float(side.sum()) for side in sides) * _pipelining_factor(schedule)


def _count_fan(schedule: Schedule, node: Longs) -> float:
    """Count the ranks of its node, beyond the first, to which a rank sends the same chunk, or whose chunks it reduces.

    Returns the sum over the steps, including those of pieces, of the greatest such number. O(rows log rows).
    """
    inner = np.flatnonzero(node[schedule.src] == node[schedule.dst])
    senders, receivers = _row_ends(schedule, inner)
    chunks = (schedule.chunk[inner], len(schedule.chunks))
    sides = (
        _beyond_first(schedule, inner, [senders, chunks], receivers),
        _beyond_first(schedule, inner, [receivers, chunks], senders),
    )
    return float(np.maximum(*sides).sum()) * _pipelining_factor(schedule)


def _row_ends(schedule: Schedule, rows: Longs) -> tuple[Bounded, Bounded]:
    """Return senders and receivers of these rows."""
    return (schedule.src[rows], schedule.collective.ranks), (schedule.dst[rows], schedule.collective.ranks)


def _beyond_first(schedule: Schedule, rows: Longs, equal: Sequence[Bounded], partner: Bounded) -> Longs:
    """Return, for each step with any of these rows, the maximum number, less one, of distinct values of `partner` among
    rows with the same values in the columns `equal`. Two sorts.

    >>> from antiphon.core.example import star
    >>> schedule = star()  # in step 0 rank 0 gets from two others, in step 1 both get from one
    >>> _beyond_first(schedule, np.arange(4), [(schedule.dst, 3)], (schedule.src, 3))
    array([1, 0])
    """
    steps, step = unique_inverse(schedule.step[rows], schedule.steps or 1)
    # Distinct partners per (step, equal columns), then the maximum per step.
    groups, group = unique_inverse(*pack_columns((step, len(steps)), *equal))
    pairs, _ = pack_columns((group, len(groups)), partner)
    _, partner_bound = partner
    count = np.bincount(distinct(pairs) // partner_bound, minlength=len(groups))
    step_of_group = np.empty(len(groups), np.int64)
    step_of_group[group] = step
    maxima = np.zeros(len(steps), np.int64)
    np.maximum.at(maxima, step_of_group, count - 1)
    return maxima


def _pipelining_factor(schedule: Schedule) -> float:
    """Return by how much pieces lengthen a schedule: its steps with pieces, divided by those without."""
    pieces = schedule.pieces if isinstance(schedule.pieces, int) else max(schedule.pieces)
    return (schedule.steps + pieces - 1) / schedule.steps if schedule.steps else 0.0


def _prepare_protocols(
    library: LibraryModel, schedule: Schedule, topology: Topology, model: ScheduleModel
) -> dict[str, Predictor]:
    """Prepare a predictor per protocol, with the latency and bandwidth share of each kind of link."""
    costs, layout = library.costs, library.layout
    if schedule.joint is not None and (switched := switched_figures(costs, layout, topology)) is not None:
        return {NVLS: _prepare_switched(schedule, topology, switched)}
    figures = figures_by_protocol(costs, layout, topology)
    return {protocol: model(schedule, topology, profile=profile_by_kind(links)) for protocol, links in figures.items()}


@dataclass(frozen=True)
class ProtocolFigures:
    """The costs of every schedule among some ranks: a launch, and the figures of links by one of the protocols.

    `launch`: from the other seconds of a call to those of its launch. `switched`: the figures if switches reduce and
    multicast; None if none are known. `gpu`: its ramp is added to the time of the bytes; None if the schedule may use a
    network, as waiting for it may hide the ramp.
    """

    gpu: CallFigures | None
    launch: Callable[[float], float]
    protocols: tuple[Profile, ...]
    switched: Profile | None


def protocol_figures(
    topology: Topology, members: Sequence[int], *, gpu: str = "", network: str = "", processes: str = "each",
    by: str = "alpha-beta",
) -> list[ProtocolFigures]:  # fmt: skip
    """Return the figures that `calls` may use for schedules among these ranks; raise Unsupported if none are known.

    Among all ranks there is one set of figures. A group has two: for schedules that send through other nodes, and for
    those that do not. `by` has no influence; it is among the model's options, with which this is called.
    """
    overrides = {"gpu": gpu, "network": network, "processes": processes}
    figures = []
    for uses_network in (False,) if len(members) == topology.ranks else (False, True):
        library = _find_library(topology, members, uses_network, overrides)
        switched = switched_figures(library.costs, library.layout, topology)
        figures.append(
            ProtocolFigures(
                gpu=library.costs.gpu if library.layout.nodes == 1 and not uses_network else None,
                launch=partial(library.costs.launch, library.layout.local),
                protocols=tuple(
                    profile_by_kind(links)
                    for links in figures_by_protocol(library.costs, library.layout, topology).values()
                ),
                switched=None if switched is None else profile_by_kind(switched),
            )
        )
    return figures


def _remark_uncalibrated(library: LibraryModel, schedule: Schedule, topology: Topology) -> str:
    """Return a remark if the schedule uses kinds of links without figures; "" if it does not."""
    layout, network = library.layout, library.costs.network
    calibrated = {kind for kind, _ in layout.inner}
    if network is not None:
        calibrated |= {*layout.kinds, *layout.trunks, *network.kinds, TRUNK}
    if all(kind.kind in calibrated for kind in topology.types):
        return ""
    resource = loads(schedule, topology).resource
    types = np.unique(topology.link_type[np.unique(resource[resource < topology.links])]).tolist()
    uncalibrated = {topology.types[i].kind for i in types} - calibrated
    uncalibrated -= kinds_within(library.costs.gpu) if uncalibrated else set()
    return f"; links of kind {', '.join(sorted(uncalibrated))} not calibrated" if uncalibrated else ""


def _prepare_switched(schedule: Schedule, topology: Topology, link_figures: LinkFigures) -> Predictor:
    """Prepare a predictor for switches that reduce and multicast.

    Latency counts once per step of the whole schedule, not per piece, as it was measured.
    """
    # Separate predictors: latency of the schedule without pieces, plus bandwidth with zero latency.
    latency = Barriers(replace(schedule, pieces=1), profile_by_kind(link_figures).on(topology)).predictor()(0)
    without_latency = {kind: (0.0, share) for kind, (_, share) in link_figures.items()}
    bandwidth = Barriers(schedule, profile_by_kind(without_latency).on(topology)).predictor()

    def predict(nbytes: int) -> Prediction:
        transfers = bandwidth(nbytes)
        terms = {name: seconds + transfers.terms.get(name, 0.0) for name, seconds in latency.terms.items()}
        longer = latency if latency.seconds > transfers.seconds else transfers
        return Prediction(latency.seconds + transfers.seconds, terms, longer.bottleneck, transfers.critical_path)

    return predict
