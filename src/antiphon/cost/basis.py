"""What a predicted figure rests on, in a few words: measurements that were published, a profile, or nothing."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.core.collective import Collective
from antiphon.core.topology import Topology
from antiphon.cost.prediction import Prediction
from antiphon.cost.profile import Profile
from antiphon.errors import Invalid, Unsupported

CALLS, PLAIN = "calls", "alpha-beta"  # the model that has published figures; that which needs none
CALIBRATED = "calibrated by"
NOT_CALIBRATED = "not calibrated"  # launch, protocols and what a wire really gives are left out
BORROWED = "by the figures of"  # of another collective: no table has this one
TAKEN = "taken for"  # figures of what the machine does not tell that it is


def usual_model(
    topology: Topology, profile: Profile | None = None, plain: str = PLAIN, *, wanted: Sequence[Collective]
) -> str:
    """The model where none is asked for: that with launch and protocols where their figures are known of this machine
    and no profile has others, else `plain`; of what follows messages rather than steps by the same model. `wanted`: for
    collectives that NCCL has not, and groups of which nothing is known, `plain`, as there is nothing with such figures
    to compare with."""
    from antiphon.cost.nccl.library import library_among

    if profile is not None and profile != Profile():
        return plain
    try:
        known = library_among(topology, wanted)
    except (Invalid, Unsupported):
        return plain
    if known is None:
        return plain
    return CALLS if plain == PLAIN else f"{CALLS}:by={plain}"


def profile_basis(profile: Profile | None) -> str:
    """Of models that take a profile; one that says nothing is none."""
    return NOT_CALIBRATED if profile is None or profile == Profile() else f"profile {profile.name or '(unnamed)'}"


def basis_of(found: Prediction, profile: Profile | None) -> str:
    """What a figure rests on: as its model says, or the profile that it was given."""
    return found.rests_on or profile_basis(profile)


def together(told: Sequence[str]) -> str:
    """What several figures rest on, each thing once, in their order."""
    return "; ".join(dict.fromkeys(part for one in told for part in one.split("; ") if part))


def in_short(rests_on: str) -> str:
    """Whether all figures of a line are calibrated, where there is no room for what they rest on."""
    parts = [NOT_CALIBRATED in part for part in rests_on.split("; ")]
    if all(parts):
        return "no"
    if any(parts) or TAKEN in rests_on or BORROWED in rests_on:
        return "partly"
    return "profile" if rests_on.startswith("profile") else "yes"
