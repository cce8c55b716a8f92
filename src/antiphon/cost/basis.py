"""The basis of a predicted figure in a few words: published measurements, a profile, or none."""

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
    """Return the default model: the one with launch and protocols where their figures are known for this topology and
    no profile overrides them, else `plain`. `wanted`: for collectives that NCCL lacks, and for groups without figures,
    `plain`, as there is nothing comparable."""
    from antiphon.cost.nccl.library import library_among

    if profile is not None and profile != Profile():
        return plain
    try:
        library = library_among(topology, wanted)
    except (Invalid, Unsupported):
        return plain
    if library is None:
        return plain
    return CALLS if plain == PLAIN else f"{CALLS}:by={plain}"


def profile_basis(profile: Profile | None) -> str:
    """The basis of models that take a profile; an empty profile counts as none."""
    return NOT_CALIBRATED if profile is None or profile == Profile() else f"profile {profile.name or '(unnamed)'}"


def basis_of(prediction: Prediction, profile: Profile | None) -> str:
    """The basis of a prediction: as its model states it, or the profile."""
    return prediction.rests_on or profile_basis(profile)


def join_bases(bases: Sequence[str]) -> str:
    """Join the bases of several figures, each once, in their order."""
    return "; ".join(dict.fromkeys(basis for text in bases for basis in text.split("; ") if basis))


def in_short(rests_on: str) -> str:
    """Summarise whether all figures of a line are calibrated, for narrow tables."""
    uncalibrated = [NOT_CALIBRATED in basis for basis in rests_on.split("; ")]
    if all(uncalibrated):
        return "no"
    if any(uncalibrated) or TAKEN in rests_on or BORROWED in rests_on:
        return "partly"
    return "profile" if rests_on.startswith("profile") else "yes"
