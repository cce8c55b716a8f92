"""Fits as profiles: only what the measurements determine."""

from __future__ import annotations

from fractions import Fraction

from antiphon.cost._profile import Incast, Profile
from antiphon.cost.fit._genmodel import GenmodelFit
from antiphon.cost.fit._linear import DETERMINED, UNSEEN
from antiphon.cost.fit._memory import MemoryFit
from antiphon.errors import Invalid


def genmodel_profile(
    found: GenmodelFit, kind: str, *, links: int = 2, bandwidth: Fraction | float | None = None, name: str = ""
) -> Profile:
    """What is determined, for links of this kind; what is not stays as by default. Invalid if nothing is.

    `links`: how many links lead from a rank to another (2: through one switch); a step's alpha is theirs together.
    `bandwidth`: what the topology says of such a link, in bytes per second: a profile holds the part that is reached.
    """
    told = {key: estimate.value for key, estimate in found.parameters.items() if estimate.usable}
    alpha, beta, epsilon = told.get("alpha"), told.get("beta"), told.get("epsilon")
    factor = None if beta is None or not beta or bandwidth is None else 1 / (Fraction(beta) * Fraction(bandwidth))
    if factor is not None and not Fraction(1, 1000) <= factor <= 1000:
        raise Invalid(
            f"bandwidth: beta = {beta:.4g} s per byte is {float(factor):.3g} times the {float(bandwidth or 0):.4g} "
            "bytes per second said of a link; give that of the links measured"
        )
    seen = found.w_t.state == DETERMINED and epsilon is not None and found.w_t.value is not None
    profile = Profile(
        name,
        alpha={} if alpha is None else {kind: alpha / links},
        bandwidth_factor={} if factor is None else {kind: factor.limit_denominator(10**9)},
        incast={kind: Incast(epsilon or 0.0, int(found.w_t.value or 0))} if seen else {},
        gamma=told.get("gamma") or 0.0,
        delta=told.get("delta") or 0.0,
    )
    if profile == Profile(name):
        raise Invalid(
            "nothing to write into a profile: these measurements determine no parameter alone (the combinations that "
            "they do determine are listed without -o); measure at least 3 sizes"
        )
    return profile


def left_out(found: GenmodelFit, bandwidth: object) -> list[str]:
    """What a profile of this fit lacks, in words."""
    absent = [
        f"{key} ({found.parameters[key].state})"
        for key in ("alpha", "beta", "gamma", "delta", "epsilon")
        if not found.parameters[key].usable and found.parameters[key].state != UNSEEN
    ]
    if found.parameters["beta"].usable and bandwidth is None:
        absent.append("the bandwidth reached (give --bandwidth, what the topology says of a link)")
    return absent


def memory_profile(found: MemoryFit, name: str = "") -> Profile:
    """gamma and delta. Invalid if neither is determined."""
    told = {key: estimate.value or 0.0 for key, estimate in found.parameters.items() if estimate.usable}
    if not told:
        raise Invalid("nothing to write into a profile: these measurements determine neither gamma nor delta")
    return Profile(name, gamma=told.get("gamma", 0.0), delta=told.get("delta", 0.0))
