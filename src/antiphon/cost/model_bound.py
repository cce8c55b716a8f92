"""Lower bounds under a cost model: the gap of a plan divides its predicted time by such a bound of the same model.

Every model has assumptions of its own (a launch per call, protocols, barriers between steps), so a bound holds for one
model and one profile. `BOUNDS` has a function for each model whose bound is known; for the others there is no gap.
`model_bound` returns a function from nbytes to seconds.

Example: under critical-path a ring of 4 ranks with 1 us latency and a bandwidth bound of 1.5 s per GB has the bound
max(3 us, 1 us + 1.5e-9 * nbytes) if the farthest rank is 3 us away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from antiphon.cost.profile import Profile, as_profile
from antiphon.cost.proved_limits import ProvedLimits, Seconds
from antiphon.errors import Invalid, Unsupported

if TYPE_CHECKING:
    from antiphon.cost.nccl.model import ProtocolFigures


def _alpha_beta(proofs: ProvedLimits, profile: Profile, options: Mapping[str, Any]) -> Seconds:
    return proofs.barriers(profile)


def _critical_path(proofs: ProvedLimits, profile: Profile, options: Mapping[str, Any]) -> Seconds:
    return proofs.without_barriers(profile)


def _calls(proofs: ProvedLimits, profile: Profile, options: Mapping[str, Any]) -> Seconds | None:
    """Return the launch plus the least over the protocols, each of which has its own latency per hop and fraction of
    bandwidth."""
    from antiphon.cost.nccl.model import protocol_figures

    try:
        figures = protocol_figures(proofs.topology, proofs.collective.members, **options)
    except (Invalid, Unsupported):  # no figures for this machine, so the model itself prices nothing either
        return None
    bounds = [_bound_by_protocols(proofs, each, options.get("by", "alpha-beta")) for each in figures]
    return lambda nbytes: min(bound(nbytes) for bound in bounds)


def _bound_by_protocols(proofs: ProvedLimits, figures: ProtocolFigures, by: str) -> Seconds:
    """Return the bound for one set of figures."""
    bound_of = proofs.barriers if by == "alpha-beta" else proofs.without_barriers
    # Without figures of NVLS, the model prices schedules that use switches by the protocols, too.
    unaided = figures.switched is not None
    protocols = [bound_of(by_protocol, unaided=unaided) for by_protocol in figures.protocols]
    if figures.switched is not None and proofs.bound.unaided is not None:
        protocols.append(proofs.without_barriers(figures.switched, any_latency=True))

    def seconds(nbytes: int) -> float:
        rest = min(protocol(nbytes) for protocol in protocols)
        return figures.launch(rest) + rest

    return seconds


BOUNDS: Mapping[str, Callable[[ProvedLimits, Profile, Mapping[str, Any]], Seconds | None]] = {
    "alpha-beta": _alpha_beta,
    "sccl": _alpha_beta,  # rounding loads up only makes times longer
    "critical-path": _critical_path,
    "flows": _critical_path,  # links are shared, never faster
    "calls": _calls,
}


def model_bound(
    model: str, options: Mapping[str, Any], proofs: ProvedLimits, profile: Profile | None = None
) -> Seconds | None:
    """Return the least seconds by nbytes under a model, or None if no bound is known for it."""
    if model not in BOUNDS or not len(proofs.needs):
        return None
    return BOUNDS[model](proofs, as_profile(profile), options)
