"""The model `calls`: what a schedule takes with launch, protocols and shares of the wire, as NCCL pays them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np

from antiphon.core.columns import Longs
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.cost.barriers.alpha_beta import alpha_beta
from antiphon.cost.barriers.critical_path import critical_path
from antiphon.cost.nccl.calls import PROTOCOLS, SIMPLE, Calls
from antiphon.cost.nccl.choice import NVLS, RING, Costs, taken
from antiphon.cost.nccl.library import Library, library_here
from antiphon.cost.nccl.place import node_of_ranks
from antiphon.cost.prediction import Prediction, Predictor
from antiphon.cost.profile import Profile, as_profile
from antiphon.cost.steps import Barriers
from antiphon.errors import Invalid, quote

By = Callable[..., Predictor]
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
    `processes`: as of `predict --as nccl`, by default what the machine is. Unsupported where no figures are known.
    """
    if profile is not None and as_profile(profile) != Profile():
        raise Invalid("model calls: has figures of its own; leave out the profile, or take alpha-beta")
    if by not in BY:
        raise Invalid(f"model calls: by={quote(by)}: expected {' or '.join(BY)}")
    own = library_here(topology, gpu=gpu, network=network, processes=processes)
    ways = _ways(own, schedule, topology, BY[by])
    launch, basis = own.costs.launch(own.place.local), own.costs.basis()
    told = units_text(own.costs, NVLS if schedule.joint is not None else RING)

    between = _messages(schedule, node_of_ranks(topology)) * (own.costs.network.message if own.costs.network else 0.0)

    def predict(nbytes: int) -> Prediction:
        name, best = min(((name, way(nbytes)) for name, way in ways.items()), key=lambda pair: pair[1].seconds)
        terms = {"launch": launch, "messages": between, **best.terms}
        note = f"protocol {name}; {told}{basis}" + ("; several messages at once not calibrated" if between else "")
        return Prediction(launch + between + best.seconds, terms, best.bottleneck, best.critical_path, note)

    return predict


def units_text(costs: Costs, algorithm: str) -> str:
    """What it takes of a GPU's multiprocessors, where that is known."""
    units, many = costs.gpu.units, taken(costs, algorithm)
    return "" if units is None or many is None else f"up to {many} of {units.of} SMs; "


def _messages(schedule: Schedule, node: Longs) -> float:
    """Messages to or from other nodes that a rank has beyond the first of a step, summed over the steps, those of
    pieces too. O(rows log rows)."""
    away = np.flatnonzero(node[schedule.src] != node[schedule.dst])
    columns = [np.asarray(c, np.int64)[away] for c in (schedule.step, schedule.src, schedule.dst)]
    rows = np.unique(np.stack(columns, axis=1), axis=0) if len(away) else np.zeros((0, 3), np.int64)
    found = 0.0
    for side in (1, 2):
        _, which, count = np.unique(rows[:, [0, side]], axis=0, return_index=True, return_counts=True)
        most = np.zeros(schedule.steps or 1, np.int64)
        np.maximum.at(most, rows[which, 0], count - 1)
        found = max(found, float(most.sum()))
    pieces = schedule.pieces if isinstance(schedule.pieces, int) else max(schedule.pieces)
    return found * (schedule.steps + pieces - 1) / schedule.steps if schedule.steps else 0.0


def _ways(own: Library, schedule: Schedule, topology: Topology, by: By) -> dict[str, Predictor]:
    """On the machine as each protocol sees it: the latency of a link and the share of it, by kind."""
    gpu, network = own.costs.gpu, own.costs.network
    far = set(own.place.kinds)
    near = {kind.kind for kind in topology.types} - far
    if schedule.joint is not None and gpu.nvls is not None:
        latency, share = gpu.nvls.latency / NVLS_PASSES, gpu.nvls.share
        seen = dict.fromkeys(near, (latency, share)) | _far(network, far, SIMPLE)
        return {"nvls": _flowing(schedule, topology, seen)}
    able = [p for p in PROTOCOLS if p in gpu.hop and (network is None or p in network.hop)]
    links = 2 if own.place.switched else 1
    found: dict[str, Predictor] = {}
    for p in able:
        seen = dict.fromkeys(near, (gpu.hop[p] / links, gpu.share[p])) | _far(network, far, p)
        found[p] = by(schedule, topology, profile=_profile(seen))
    return found


def _flowing(schedule: Schedule, topology: Topology, seen: Mapping[str, tuple[float, float]]) -> Predictor:
    """Through switches that reduce and multicast pieces flow on: latency once for each step of the whole, not of every
    piece, as the figure was measured."""
    late = Barriers(replace(schedule, pieces=1), _profile(seen).on(topology)).predictor()(0)
    still = {kind: (0.0, share) for kind, (_, share) in seen.items()}
    flow = Barriers(schedule, _profile(still).on(topology)).predictor()

    def predict(nbytes: int) -> Prediction:
        moved = flow(nbytes)
        terms = {name: seconds + moved.terms.get(name, 0.0) for name, seconds in late.terms.items()}
        top = late if late.seconds > moved.seconds else moved
        return Prediction(late.seconds + moved.seconds, terms, top.bottleneck, moved.critical_path)

    return predict


def _far(network: Calls | None, kinds: set[str], protocol: str) -> dict[str, tuple[float, float]]:
    """Half of a hop on either side of the network's switch."""
    return {} if network is None else dict.fromkeys(kinds, (network.hop[protocol] / 2, network.share[protocol]))


def _profile(by_kind: Mapping[str, tuple[float, float]]) -> Profile:
    return Profile(
        alpha={kind: latency for kind, (latency, _) in by_kind.items()},
        bandwidth_factor={kind: Fraction(share) for kind, (_, share) in by_kind.items()},
    )
