"""What a predicted figure rests on, in a few words: measurements that were published, a profile, or nothing."""

from __future__ import annotations

from antiphon.core.topology import Topology
from antiphon.cost.profile import Profile
from antiphon.options import parse_options

CALLS = "calls"  # the model that has published figures
NOT_CALIBRATED = "not calibrated"  # launch, protocols and what a wire really gives are left out
_PLACE = ("gpu", "network", "processes")  # options of that model which say whose figures


def profile_basis(profile: Profile | None) -> str:
    """Of models that take a profile; one that says nothing is none."""
    return NOT_CALIBRATED if profile is None or profile == Profile() else f"profile {profile.name or '(unnamed)'}"


def basis_of(model: str, profile: Profile | None, topology: Topology) -> str:
    """Of a model as it is asked for, with its options behind a colon."""
    name, _, behind = model.partition(":")
    if name != CALLS:
        return profile_basis(profile)
    from antiphon.cost.nccl.library import library_here

    told = parse_options(behind.split(",") if behind else (), f"model {model}", "calls:gpu=h100")
    return library_here(topology, **{key: value for key, value in told.items() if key in _PLACE}).costs.brief()
