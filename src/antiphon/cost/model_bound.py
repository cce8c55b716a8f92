"""Lower bounds under a cost model: the gap of a plan divides its predicted time by such a bound of the same model.

Every model has assumptions of its own (a launch per call, protocols, barriers between steps), so a bound holds for one
model and one profile. `BOUNDS` has a function for each model whose bound is known; for the others there is no gap.
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
    """The launch once, and the least over the protocols: each has its own latency of a hop and share of the links."""
    from antiphon.cost.nccl.model import protocol_figures

    try:
        figures = protocol_figures(proofs.topology, proofs.collective.members, **options)
    except (Invalid, Unsupported):  # no figures for this machine: the model prices nothing here, either
        return None
    bounds = [_bound_by_protocols(proofs, each, options.get("by", "alpha-beta")) for each in figures]
    return lambda nbytes: min(bound(nbytes) for bound in bounds)


def _bound_by_protocols(proofs: ProvedLimits, figures: ProtocolFigures, by: str) -> Seconds:
    bound_of = proofs.barriers if by == "alpha-beta" else proofs.without_barriers
    # Where no figures of NVLS are known, schedules with help of switches are priced by the protocols, too.
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
    "sccl": _alpha_beta,  # rounds loads up
    "critical-path": _critical_path,
    "flows": _critical_path,  # links are shared, never faster
    "calls": _calls,
}


def model_bound(
    model: str, options: Mapping[str, Any], proofs: ProvedLimits, profile: Profile | None = None
) -> Seconds | None:
    """Return the least seconds by nbytes under a model, or None where no bound of it is known."""
    if model not in BOUNDS or not len(proofs.needs):
        return None
    return BOUNDS[model](proofs, as_profile(profile), options)
