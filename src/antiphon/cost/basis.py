"""What a predicted figure rests on, in a few words: measurements that were published, a profile, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from antiphon.core.topology import Topology
from antiphon.cost.profile import Profile
from antiphon.errors import Invalid, Unsupported
from antiphon.options import parse_options

CALLS, PLAIN = "calls", "alpha-beta"  # the model that has published figures; that which needs none
CALIBRATED = "calibrated by"
NOT_CALIBRATED = "not calibrated"  # launch, protocols and what a wire really gives are left out
_PLACE = ("gpu", "network", "processes")  # options of that model which say whose figures


def usual_model(topology: Topology, profile: Profile | None = None, plain: str = PLAIN) -> str:
    """The model where none is asked for: that with launch and protocols where their figures are known of this machine
    and no profile has others, else `plain`; of what follows messages rather than steps by the same model."""
    from antiphon.cost.nccl.library import library_here

    if profile is not None and profile != Profile():
        return plain
    try:
        library_here(topology)
    except (Invalid, Unsupported):
        return plain
    return CALLS if plain == PLAIN else f"{CALLS}:by={plain}"


def profile_basis(profile: Profile | None) -> str:
    """Of models that take a profile; one that says nothing is none."""
    return NOT_CALIBRATED if profile is None or profile == Profile() else f"profile {profile.name or '(unnamed)'}"


def basis_of(model: str, profile: Profile | None, topology: Topology) -> Callable[[Mapping[str, float]], str]:
    """Of a model as it is asked for, with its options behind a colon; by the terms of a figure."""
    name, _, behind = model.partition(":")
    if name != CALLS:
        return lambda terms: profile_basis(profile)
    from antiphon.cost.nccl.library import library_here

    told = parse_options(behind.split(",") if behind else (), f"model {model}", "calls:gpu=h100")
    costs = library_here(topology, **{key: value for key, value in told.items() if key in _PLACE}).costs
    brief = costs.brief()
    return lambda terms: brief + costs.at_once(terms)


def in_short(rests_on: str) -> str:
    """Whether all figures of a line are calibrated, where there is no room for what they rest on."""
    parts = [NOT_CALIBRATED in part for part in rests_on.split("; ")]
    return "no" if all(parts) else "partly" if any(parts) else "profile" if rests_on.startswith("profile") else "yes"
