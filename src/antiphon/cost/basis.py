"""State the basis of a predicted figure in a few words: published measurements, a profile, or nothing.

Also choose the default model: `calls`, which has figures for launch and protocols, if they are known for the machine's
GPUs; else alpha-beta, which needs none.
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.core.collective import Collective
from antiphon.core.topology import Topology
from antiphon.cost.prediction import Prediction
from antiphon.cost.profile import Profile
from antiphon.errors import Invalid, Unsupported

CALLS = "calls"  # the model with figures from published measurements
PLAIN = "alpha-beta"  # the model that needs no figures
CALIBRATED = "calibrated by"  # predictions rest on published measurements
NOT_CALIBRATED = "not calibrated"  # predictions ignore launch, protocols and the bandwidth that is really reached
BORROWED = "by the figures of"  # figures of another collective, as there are none of this one


def usual_model(
    topology: Topology, profile: Profile | None = None, plain: str = PLAIN, *, wanted: Sequence[Collective]
) -> str:
    """Return the default model for these collectives: `calls` if its figures are known for the topology, else `plain`.

    `calls` with `by=` uses the model `plain` instead of alpha-beta for the times of messages.
    With a profile it is `plain`, as the profile overrides the known figures. It is `plain`, too, for collectives that
    NCCL lacks, and for process groups without figures: there is nothing to compare with.
    """
    from antiphon.cost.nccl.library import find_library_model

    if profile is not None and profile != Profile():
        return plain
    try:
        library = find_library_model(topology, wanted)
    except (Invalid, Unsupported):
        return plain
    if library is None:
        return plain
    return CALLS if plain == PLAIN else f"{CALLS}:by={plain}"


def profile_basis(profile: Profile | None) -> str:
    """Return the basis of models that take a profile; an empty profile counts as none."""
    return NOT_CALIBRATED if profile is None or profile == Profile() else f"profile {profile.name or '(unnamed)'}"


def basis_of(prediction: Prediction, profile: Profile | None) -> str:
    """Return the basis of a prediction: as its model states it, or the profile."""
    return prediction.rests_on or profile_basis(profile)


def join_bases(bases: Sequence[str]) -> str:
    """Join the bases of several figures, each once, in their order."""
    return "; ".join(dict.fromkeys(basis for text in bases for basis in text.split("; ") if basis))
