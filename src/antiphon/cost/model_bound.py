"""Lower bounds under a cost model. The gap of a plan is its predicted time divided by the bound under the same model.

Every model has assumptions of its own (a launch per call, protocols, barriers between steps), so a bound holds for one
model and one profile. `BOUNDS` has a function for each model whose bound is known; for the others there is no gap.
`model_bound` returns a function from nbytes to seconds. The models (docs/models.md):

    alpha-beta, sccl       barriers between steps: a step begins when the one before has ended everywhere
    critical-path, flows   messages wait for their data and their links only
    calls                  NCCL-like calls: a launch, then one of the two above (option `by`: alpha-beta or
                           critical-path) with the latencies and bandwidths of the fastest protocol

Example: under critical-path a one-way ring of 4 ranks, 1 us per link and a bandwidth bound of 1.5 s per GB. The
farthest rank is 3 links away. The busiest link is busy for 1.5e-9 * nbytes, and its last message then still takes the
latency of 1 us. The bound is max(3 us, 1 us + 1.5e-9 * nbytes).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from antiphon.cost.bound_evaluator import BoundEvaluator, SecondsBySize
from antiphon.cost.profile import Profile, as_profile
from antiphon.errors import Invalid, Unsupported

if TYPE_CHECKING:
    from antiphon.cost.nccl.model import ProtocolFigures


# The functions of BOUNDS share one signature, of which some need only a part.


def _alpha_beta(proofs: BoundEvaluator, profile: Profile, options: Mapping[str, Any]) -> SecondsBySize:
    return proofs.with_barriers(profile)


def _critical_path(proofs: BoundEvaluator, profile: Profile, options: Mapping[str, Any]) -> SecondsBySize:
    return proofs.without_barriers(profile)


def _calls(proofs: BoundEvaluator, profile: Profile, options: Mapping[str, Any]) -> SecondsBySize | None:
    """Return the launch plus the least bound of a protocol, with its latency per hop and share of the bandwidth."""
    from antiphon.cost.nccl.model import protocol_figures

    try:
        figures = protocol_figures(proofs.topology, proofs.collective.members, **options)
    except (Invalid, Unsupported):  # no figures for this machine, so the model itself prices nothing either
        return None
    # A process group has two sets of figures: for schedules that send through other nodes, and for those that do not.
    bounds = [_bound_by_protocols(proofs, figure_set, options.get("by", "alpha-beta")) for figure_set in figures]
    return lambda nbytes: min(bound(nbytes) for bound in bounds)


def _bound_by_protocols(proofs: BoundEvaluator, figures: ProtocolFigures, by: str) -> SecondsBySize:
    """Return the bound for one set of figures. `by`: the model that prices the schedule after the launch."""
    bound_of = proofs.with_barriers if by == "alpha-beta" else proofs.without_barriers
    # Unaided: of schedules in which switches only forward. NVLS: switches multicast and reduce. If there are figures
    # for them, the model prices schedules that use them by these figures; the protocols then price only schedules whose
    # switches just forward (`unaided`). If there are none, the protocols price all schedules, so their bounds must hold
    # for all.
    has_nvls = figures.switched is not None
    # The ramp, the time lost by the slow first bytes of a call, grows with the seconds in which bytes move. By
    # alpha-beta these are at least the bandwidth bound, so its ramp is part of the bound. By critical-path they are
    # those of the bytes on the longest path, which may be fewer, so no ramp is certain.
    gpu = figures.gpu if by == "alpha-beta" else None

    def with_ramp(bound: SecondsBySize, profile: Profile, *, unaided: bool, in_switches: bool = False) -> SecondsBySize:
        """Return the bound with the ramp of the profile's bandwidth bound added, if a ramp is certain."""
        if gpu is None:
            return bound
        moving = proofs.moving_seconds(profile, unaided=unaided)
        return lambda nbytes: bound(nbytes) + gpu.ramp_seconds(moving(nbytes), in_switches=in_switches)

    bounds = [
        with_ramp(bound_of(protocol_profile, unaided=has_nvls), protocol_profile, unaided=has_nvls)
        for protocol_profile in figures.protocols
    ]
    # bound.unaided is None if the machine has no such switches, or this collective cannot use them. Then no schedule is
    # priced by `switched`, and `unaided=True` above means the one bound that there is.
    if figures.switched is not None and proofs.bound.unaided is not None:
        # For both values of `by` the model adds the latency of the steps to the time of transfers in switches.
        aided = proofs.without_barriers(figures.switched, add_latency=True)
        bounds.append(with_ramp(aided, figures.switched, unaided=False, in_switches=True))

    def seconds(nbytes: int) -> float:
        # The launch may depend on the time t after it: one process launches on further GPUs while the first one works.
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
