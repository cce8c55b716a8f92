"""Lower bounds under a cost model: the gap of a plan divides its predicted time by such a bound of the same model.

Every model has assumptions of its own (a launch per call, protocols, barriers between steps), so a bound holds for one
model and one profile. `BOUNDS` has a function for each model whose bound is known; for the others there is no gap.
`model_bound` returns a function from nbytes to seconds. The models (docs/models.md):

    alpha-beta, sccl       barriers between steps: a step begins when the one before has ended everywhere
    critical-path, flows   messages wait for their data and their links only
    calls                  NCCL-like calls: a launch, then one of the two above (option `by`: alpha-beta or
                           critical-path) with the latencies and bandwidths of the fastest protocol

Example: under critical-path a one-way ring of 4 ranks, 1 us per link and a bandwidth bound of 1.5 s per GB. The
farthest rank is 3 links away; and the busiest link is busy for 1.5e-9 * nbytes, after which its last message still
takes the latency of 1 us. The bound is max(3 us, 1 us + 1.5e-9 * nbytes).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from antiphon.cost.bound_evaluator import BoundEvaluator, SecondsBySize
from antiphon.cost.profile import Profile, as_profile
from antiphon.errors import Invalid, Unsupported

if TYPE_CHECKING:
    from antiphon.cost.nccl.model import ProtocolFigures


def _alpha_beta(proofs: BoundEvaluator, profile: Profile, options: Mapping[str, Any]) -> SecondsBySize:
    return proofs.with_barriers(profile)


def _critical_path(proofs: BoundEvaluator, profile: Profile, options: Mapping[str, Any]) -> SecondsBySize:
    return proofs.without_barriers(profile)


def _calls(proofs: BoundEvaluator, profile: Profile, options: Mapping[str, Any]) -> SecondsBySize | None:
    """Return the launch plus the least bound over the protocols, each with its own latency per hop and share of the
    bandwidth.
    """
    from antiphon.cost.nccl.model import protocol_figures

    try:
        figures = protocol_figures(proofs.topology, proofs.collective.members, **options)
    except (Invalid, Unsupported):  # no figures for this machine, so the model itself prices nothing either
        return None
    # A process group has two sets of figures: for schedules that send through other nodes, and for those that do not.
    bounds = [_bound_by_protocols(proofs, each, options.get("by", "alpha-beta")) for each in figures]
    return lambda nbytes: min(bound(nbytes) for bound in bounds)


def _bound_by_protocols(proofs: BoundEvaluator, figures: ProtocolFigures, by: str) -> SecondsBySize:
    """Return the bound for one set of figures. `by`: the model that prices the schedule after the launch."""
    bound_of = proofs.with_barriers if by == "alpha-beta" else proofs.without_barriers
    # With figures for switches that multicast and reduce (NVLS), the model prices schedules that use such switches by
    # these figures, and only all others, whose switches just forward (unaided), by the protocols. Without, it prices
    # all schedules by the protocols, so the bounds must hold for all.
    has_nvls = figures.switched is not None
    # Every schedule moves bytes for at least the bandwidth bound, so it has at least the ramp of that. By critical-path
    # the ramp is that of the bytes on the longest path, which may be fewer.
    gpu = figures.gpu if by == "alpha-beta" else None

    def with_ramp(bound: SecondsBySize, profile: Profile, *, unaided: bool, in_switches: bool = False) -> SecondsBySize:
        if gpu is None:
            return bound
        moving = proofs.moving_seconds(profile, unaided=unaided)
        return lambda nbytes: bound(nbytes) + gpu.ramp_seconds(moving(nbytes), in_switches=in_switches)

    bounds = [
        with_ramp(bound_of(protocol_profile, unaided=has_nvls), protocol_profile, unaided=has_nvls)
        for protocol_profile in figures.protocols
    ]
    # bound.unaided is None if the machine has no such switches, or this collective cannot use them.
    if figures.switched is not None and proofs.bound.unaided is not None:
        # The model adds the latency of the steps to the time of the transfers.
        aided = proofs.without_barriers(figures.switched, add_latency=True)
        bounds.append(with_ramp(aided, figures.switched, unaided=False, in_switches=True))

    def seconds(nbytes: int) -> float:
        # launch(t) + t never falls as t grows, so the least t gives a lower bound of the sum.
        after_launch = min(bound(nbytes) for bound in bounds)
        return figures.launch(after_launch) + after_launch

    return seconds


BOUNDS: Mapping[str, Callable[[BoundEvaluator, Profile, Mapping[str, Any]], SecondsBySize | None]] = {
    "alpha-beta": _alpha_beta,
    "sccl": _alpha_beta,  # rounding loads up only makes times longer
    "critical-path": _critical_path,
    "flows": _critical_path,  # links are shared, never faster
    "calls": _calls,
}


def model_bound(
    model: str, options: Mapping[str, Any], proofs: BoundEvaluator, profile: Profile | None = None
) -> SecondsBySize | None:
    """Return the least seconds by nbytes under a model; None if no bound is known for it, or if nothing must move."""
    if model not in BOUNDS or not len(proofs.needs):
        return None
    return BOUNDS[model](proofs, as_profile(profile), options)
