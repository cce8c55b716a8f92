"""The model `calls`: what a schedule takes with launch, protocols and shares of the wire, as NCCL pays them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Longs, dense, distinct, packed
from antiphon.core.loads import loads
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.cost.barriers.alpha_beta import alpha_beta
from antiphon.cost.barriers.critical_path import critical_path
from antiphon.cost.nccl.calls import PROTOCOLS, SIMPLE, Calls
from antiphon.cost.nccl.choice import COLLNET, NVLS, RING, Costs, taken
from antiphon.cost.nccl.gpus import kinds_within
from antiphon.cost.nccl.library import Library, library_here, library_of
from antiphon.cost.nccl.place import TRUNK, Place, node_of_ranks, wires_of
from antiphon.cost.prediction import Prediction, Predictor
from antiphon.cost.profile import Profile, as_profile
from antiphon.cost.steps import Barriers
from antiphon.cost.trace import Events
from antiphon.errors import Invalid, Unsupported, quote

# By kind of link its latency, None: as the machine has it, and the share
Seen = Mapping[str, tuple[float | None, float]]
By = Callable[..., Predictor]
Bounded = tuple[NDArray[Any], int]  # a column, and a bound of its values
BY: Mapping[str, By] = {"alpha-beta": alpha_beta, "critical-path": critical_path}
NVLS_PASSES = 4  # links that a reduction in a node's switches and the multicast after it pass, one after the other


def calls(
    schedule: Schedule,
    topology: Topology,
    *,
    profile: Profile | str | Path | None = None,
    gpu: str = "",
    network: str = "",
    processes: str = "each",
    by: str = "alpha-beta",
) -> Predictor:
    """A launch, and then the schedule as of `by`, by whichever protocol is fastest at the size: a hop within a node, or
    between, takes what the protocol takes, and links give the share of their bandwidth that it has.

    `by`: alpha-beta, or critical-path: slower, but nearer for rings and trees over several nodes, which do not wait
    for the slowest hop at every step. The figures are those that NCCL is priced by (docs/models/nccl.md), so both pay
    the same. What lets switches multicast and reduce has the latency and the share of NVLS. `gpu`, `network`,
    `processes`: as of `predict --library nccl`, by default what the machine is. Unsupported where no figures are known.
    """
    if profile is not None and as_profile(profile) != Profile():
        raise Invalid("model calls: has figures of its own; leave out the profile, or take alpha-beta")
    if by not in BY:
        raise Invalid(f"model calls: by={quote(by)}: expected {' or '.join(BY)}")
    node = node_of_ranks(topology)
    far = node[schedule.src] != node[schedule.dst]
    own = _find_library(
        topology, schedule.collective.members, bool(far.any()), {"gpu": gpu, "network": network, "processes": processes}
    )
    predictors, between = _prepare_protocols(own, schedule, topology, BY[by]), own.costs.network
    extra = {"messages": _count_messages(schedule, node) * between.message if between is not None else 0.0}
    extra["fan"] = _count_fan(schedule, node) * own.costs.gpu.message if NVLS not in predictors else 0.0
    costs = own.costs if far.any() else replace(own.costs, network=None)
    joined = schedule.joint is not None and bool((far & (schedule.joint >= 0)).any())
    traced = all(hasattr(predictor, "events") for predictor in predictors.values())
    launch, strange = partial(own.costs.launch, own.place.local), _remark_uncalibrated(own, schedule, topology)
    return (_Traced if traced else _Called)(predictors, launch, extra, costs, joined, strange)


def _find_library(topology: Topology, members: Sequence[int], leaves: bool, overrides: Mapping[str, str]) -> Library:
    """Return whose figures apply: those of a group's own topology, which also decides whether any are known; otherwise,
    and where the group sends through other nodes, those of the whole."""
    if len(members) == topology.ranks:
        return library_here(topology, **overrides)
    try:
        library = library_of(topology, members, **overrides)
    except (Invalid, Unsupported):
        return library_here(topology, **overrides)
    if leaves and library.place.nodes == 1:
        with suppress(Invalid, Unsupported):
            return library_here(topology, **overrides)
    return library


@dataclass(frozen=True, eq=False)
class _Called:
    """`ways`: predictors by protocol; `launch`: its seconds, by those of the rest; `more`: seconds of simultaneous
    messages; `costs`: the figures used; `joined`: whether switches between nodes multicast or reduce; `strange`: remark
    about links without figures."""

    ways: Mapping[str, Predictor]
    launch: Callable[[float], float]
    more: Mapping[str, float]
    costs: Costs
    joined: bool
    strange: str

    def best(self, nbytes: int) -> tuple[str, Prediction]:
        return min(
            ((name, predictor(nbytes)) for name, predictor in self.ways.items()), key=lambda pair: pair[1].seconds
        )

    def __call__(self, nbytes: int) -> Prediction:
        name, best = self.best(nbytes)
        rest = sum(self.more.values()) + best.seconds
        terms = {"launch": self.launch(rest), **self.more, **best.terms}
        return Prediction(
            terms["launch"] + rest, terms, best.bottleneck, best.critical_path, *self._describe_units(name)
        )

    def _describe_units(self, protocol: str) -> tuple[str, str]:
        """Describe the GPU units used and the basis of the figures, at length and briefly."""
        switched = protocol == NVLS
        # NVLS runs by the Simple protocol, so its remarks are those of Simple.
        remarks = self.costs.beyond(SIMPLE if switched else protocol, in_switches=switched) + self.costs.at_once(
            self.more
        )
        remarks += (f"; {COLLNET} not calibrated" if self.joined else "") + self.strange
        units = units_text(self.costs, NVLS if switched else RING)
        return f"protocol {protocol}; {units}{self.costs.basis()}{remarks}", self.costs.brief() + remarks


class _Traced(_Called):
    """As `_Called`, for models that also return when every message is in transit."""

    def events(self, nbytes: int) -> Events:
        """Return the events of the fastest protocol, all after the launch."""
        name, best = self.best(nbytes)
        unshifted: Events = self.ways[name].events(nbytes)  # type: ignore[attr-defined]
        extra = sum(self.more.values())
        late = self.launch(extra + best.seconds) + extra
        return replace(
            unshifted,
            start=unshifted.start + late,
            landed=unshifted.landed + late,
            use_start=unshifted.use_start + late,
            use_end=unshifted.use_end + late,
        )


def units_text(costs: Costs, algorithm: str) -> str:
    """Describe the multiprocessors used of a GPU, where known."""
    units, used = costs.gpu.units, taken(costs, algorithm)
    return "" if units is None or used is None else f"up to {used} of {units.of} SMs; "


def _count_messages(schedule: Schedule, node: Longs) -> float:
    """Count messages to or from other nodes that a rank has beyond the first of a step, summed over the steps,
    including those of pieces. O(rows log rows)."""
    crossing = np.flatnonzero(node[schedule.src] != node[schedule.dst])
    senders, receivers = _row_ends(schedule, crossing)
    sides = (
        _beyond_first(schedule, crossing, [senders], receivers),
        _beyond_first(schedule, crossing, [receivers], senders),
    )
    return max(float(side.sum()) for side in sides) * _step_counts(schedule)


def _count_fan(schedule: Schedule, node: Longs) -> float:
    """Count the ranks of its node, beyond the first, to which a rank sends the same data in a step, or with whose data
    it combines its own; summed over the steps, including those of pieces. O(rows log rows)."""
    inner = np.flatnonzero(node[schedule.src] == node[schedule.dst])
    senders, receivers = _row_ends(schedule, inner)
    data = (schedule.chunk[inner], len(schedule.chunks))
    sides = (
        _beyond_first(schedule, inner, [senders, data], receivers),
        _beyond_first(schedule, inner, [receivers, data], senders),
    )
    return float(np.maximum(*sides).sum()) * _step_counts(schedule)


def _row_ends(schedule: Schedule, rows: Longs) -> tuple[Bounded, Bounded]:
    """Senders and receivers of these rows."""
    return (schedule.src[rows], schedule.collective.ranks), (schedule.dst[rows], schedule.collective.ranks)


def _beyond_first(schedule: Schedule, rows: Longs, alike: Sequence[Bounded], other: Bounded) -> Longs:
    """For each step with any of these rows: the maximum number, less one, of distinct values of `other` among rows with
    equal columns `alike`. Columns come with a bound of their values. Two sorts.

    >>> from antiphon.core.example import star
    >>> schedule = star()  # in step 0 rank 0 gets from two others, in step 1 both get from one
    >>> _beyond_first(schedule, np.arange(4), [(schedule.dst, 3)], (schedule.src, 3))
    array([1, 0])
    """
    times, step = dense(schedule.step[rows], schedule.steps or 1)
    # Distinct partners per (step, equal columns), then the maximum per step.
    groups, group = dense(*packed((step, len(times)), *alike))
    pairs = distinct(packed((group, len(groups)), other)[0])
    count = np.bincount(pairs // other[1], minlength=len(groups))
    when = np.empty(len(groups), np.int64)
    when[group] = step
    maxima = np.zeros(len(times), np.int64)
    np.maximum.at(maxima, when, count - 1)
    return maxima


def _step_counts(schedule: Schedule) -> float:
    """How often a step counts where pieces follow one another."""
    pieces = schedule.pieces if isinstance(schedule.pieces, int) else max(schedule.pieces)
    return (schedule.steps + pieces - 1) / schedule.steps if schedule.steps else 0.0


def _prepare_protocols(own: Library, schedule: Schedule, topology: Topology, by: By) -> dict[str, Predictor]:
    """Prepare a predictor per protocol, with the latency and bandwidth share of each kind of link."""
    if schedule.joint is not None and (switched := _switched_figures(own, topology)) is not None:
        return {"nvls": _prepare_switched(schedule, topology, switched)}
    figures = _figures_by_protocol(own, topology)
    return {protocol: by(schedule, topology, profile=_profile_by_kind(links)) for protocol, links in figures.items()}


def _switched_figures(own: Library, topology: Topology) -> Seen | None:
    """Return the figures of links where switches reduce and multicast; None where none are known."""
    near, far, trunks = _sort_kinds(own.place, topology)
    nvls = own.costs.gpu.nvls
    if nvls is None:
        return None
    latency, share = nvls.latency / NVLS_PASSES, nvls.share
    return {**dict.fromkeys(near, (latency, share)), **_network_figures(own.costs.network, far, trunks, SIMPLE)}


def _figures_by_protocol(own: Library, topology: Topology) -> dict[str, Seen]:
    """Return by protocol the latency and bandwidth share of each kind of link."""
    gpu, network, place = own.costs.gpu, own.costs.network, own.place
    near, far, trunks = _sort_kinds(place, topology)
    links = 2 if (place if place.local > 1 else wires_of(topology)).switched else 1
    return {
        protocol: {
            **dict.fromkeys(near, (gpu.hop[protocol] / links, gpu.share[protocol])),
            **_network_figures(network, far, trunks, protocol),
        }
        for protocol in PROTOCOLS
        if protocol in gpu.hop and (network is None or protocol in network.hop)
    }


@dataclass(frozen=True)
class ProtocolFigures:
    """What every schedule among some ranks pays: a launch, and the figures of links by one of the protocols.

    `switched`: those where switches reduce and multicast; None where none are known.
    """

    launch: Callable[[float], float]
    protocols: tuple[Profile, ...]
    switched: Profile | None


def protocol_figures(
    topology: Topology, members: Sequence[int], *, gpu: str = "", network: str = "", processes: str = "each",
    by: str = "alpha-beta",
) -> list[ProtocolFigures]:  # fmt: skip
    """Return the figures that `calls` may take for schedules among these ranks. Unsupported where none are known.

    Among all ranks there is one set of figures. A group has two: for schedules that send through other nodes, and for
    those that do not.
    """
    overrides = {"gpu": gpu, "network": network, "processes": processes}
    figures = []
    for leaves in (False,) if len(members) == topology.ranks else (False, True):
        own = _find_library(topology, members, leaves, overrides)
        switched = _switched_figures(own, topology)
        figures.append(
            ProtocolFigures(
                partial(own.costs.launch, own.place.local),
                tuple(_profile_by_kind(links) for links in _figures_by_protocol(own, topology).values()),
                None if switched is None else _profile_by_kind(switched),
            )
        )
    return figures


def _sort_kinds(place: Place, topology: Topology) -> tuple[set[str], set[str], set[str]]:
    """Return the kinds of links within nodes, into or out of them, and between switches; kinds that a group lacks but
    may use are those of the whole machine."""
    wires = wires_of(topology)
    near = {kind for kind, _ in place.inner}
    far, trunks = set(place.kinds), set(place.trunks) - set(place.kinds)
    if near & (far | trunks):
        names = ", ".join(sorted(near & (far | trunks)))
        raise Unsupported(
            f"model calls: links of kind {names} are within nodes and between them; give them names apart"
        )
    near |= {kind for kind, _ in wires.inner} - far - trunks
    far |= set(wires.kinds) - near - trunks
    return near, far, trunks | (set(wires.trunks) - near - far)


def _remark_uncalibrated(own: Library, schedule: Schedule, topology: Topology) -> str:
    """Return a remark where it sends over kinds of links without figures, or for a group over those of the rest of the
    machine."""
    place, network = own.place, own.costs.network
    calibrated = {kind for kind, _ in place.inner}
    if network is not None:
        calibrated |= {*place.kinds, *place.trunks, *network.kinds, TRUNK}
    if all(kind.kind in calibrated for kind in topology.types):
        return ""
    on = loads(schedule, topology).resource
    used = np.unique(topology.link_type[np.unique(on[on < topology.links])]).tolist()
    strange = {topology.types[kind].kind for kind in used} - calibrated
    strange -= kinds_within(own.costs.gpu) if strange else strange
    return f"; links of kind {', '.join(sorted(strange))} not calibrated" if strange else ""


def _prepare_switched(schedule: Schedule, topology: Topology, link_figures: Seen) -> Predictor:
    """Prepare a predictor for switches that reduce and multicast: latency counts once per step of the whole, not per
    piece, as it was measured."""
    # Separate predictors: latency of the schedule without pieces, plus bandwidth with zero latency.
    late = Barriers(replace(schedule, pieces=1), _profile_by_kind(link_figures).on(topology)).predictor()(0)
    still = {kind: (0.0, share) for kind, (_, share) in link_figures.items()}
    flow = Barriers(schedule, _profile_by_kind(still).on(topology)).predictor()

    def predict(nbytes: int) -> Prediction:
        moved = flow(nbytes)
        terms = {name: seconds + moved.terms.get(name, 0.0) for name, seconds in late.terms.items()}
        top = late if late.seconds > moved.seconds else moved
        return Prediction(late.seconds + moved.seconds, terms, top.bottleneck, moved.critical_path)

    return predict


def _network_figures(network: Calls | None, kinds: set[str], trunks: set[str], protocol: str) -> Seen:
    """Half of a hop's latency on either side of the network; links between its switches keep their own."""
    if network is None:
        return {}
    share = network.share[protocol]
    return {**dict.fromkeys(kinds, (network.hop[protocol] / 2, share)), **dict.fromkeys(trunks, (None, share))}


def _profile_by_kind(by_kind: Seen) -> Profile:
    return Profile(
        alpha={kind: latency for kind, (latency, _) in by_kind.items() if latency is not None},
        bandwidth_factor={kind: Fraction(share) for kind, (_, share) in by_kind.items()},
    )
