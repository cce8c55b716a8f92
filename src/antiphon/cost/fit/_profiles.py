"""Fits as profiles: only what the measurements determine."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from antiphon.cost.figures import FIGURES, Level, LogGP
from antiphon.cost.fit.genmodel import GenmodelFit
from antiphon.cost.fit.linear import DETERMINED, UNSEEN, WEAK, rounded
from antiphon.cost.fit.loggp import LogGPFit
from antiphon.cost.fit.memory import MemoryFit
from antiphon.cost.profile import Incast, Profile
from antiphon.errors import Invalid
from antiphon.units import format_size


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
        alpha={} if alpha is None else {kind: rounded(alpha / links)},
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


def loggp_level(found: LogGPFit, within: str = "", gamma: float = 0.0) -> Level:
    """The figures between ranks that share the place `within`; none is below 0. `gamma`: measured elsewhere.

    Sizes are the ends of every regime, so between the last of one and the first of the next figures pass from these to
    those; within a regime that a line does not describe (growing figures that are cut at 0) all that were measured.
    """
    sizes: list[float] = []
    figures: dict[str, list[float]] = {name: [] for name in FIGURES}
    for regime in found.regimes:
        inside = found.cells.sizes[(found.cells.sizes >= regime.low) & (found.cells.sizes <= regime.high)]
        bent = bool(regime.growth) and (regime.line("L", inside) < 0).any()
        at = inside if bent else inside[[0, -1]]
        made = regime.model(at)
        sizes += at.tolist()
        for name in FIGURES:
            figures[name] += map(rounded, made[name].tolist()) if name in made else [gamma] * len(at)
    if all(len(set(values)) == 1 for values in figures.values()):
        sizes, figures = [1.0], {name: values[:1] for name, values in figures.items()}
    return Level(within, tuple(sizes), **{name: tuple(values) for name, values in figures.items()})


def loggp_profile(
    found: LogGPFit, *, within: str = "", into: Profile | None = None, gamma: float = 0.0, name: str = ""
) -> Profile:
    """A profile with this level; `into`: one more level of that profile, or its level of this name anew.

    A new level is outside of those with a name that are there already, so add them from the inmost to the outmost; the
    level without a name stays the last. Radices are those that the measurements tell; else those of `into`. Invalid
    where nothing tells how long a byte or a message takes.
    """
    if all(regime.start[figure] == 0 for regime in found.regimes for figure in ("L", "o_s", "o_r", "g", "G")):
        raise Invalid("nothing to write into a profile: these measurements determine no figure")
    level = loggp_level(found, within, gamma)
    if into is None or into.loggp is None:
        return replace(into or Profile(name), loggp=_limited(LogGP((level,)), found))
    there = list(into.loggp.levels)
    names = [other.within for other in there]
    if within in names:
        there[names.index(within)] = level
    else:
        there.insert(len(there) - ("" in names) if within else len(there), level)
    return replace(into, loggp=_limited(replace(into.loggp, levels=tuple(there)), found))


def _limited(given: LogGP, found: LogGPFit) -> LogGP:
    """With the radices that are known; None: no limit was seen."""
    device, node = (found.radices[name] for name in ("device", "node"))
    if device.state in (DETERMINED, UNSEEN):
        given = replace(given, device_radix=device.count)
    if node.state in (DETERMINED, UNSEEN):
        given = replace(given, node_radix=node.count)
    return given


def loggp_left_out(found: LogGPFit) -> list[str]:
    """Which figures of such a profile are not determined, in words."""
    absent = []
    for regime in found.regimes:
        where = f"{format_size(regime.low)} to {format_size(regime.high)}"
        for name, figure in regime.figures.items():
            if not figure.usable:
                told = "0" if figure.value is None else f"{figure.value:.3g}"
                absent.append(f"{name} at {where} ({figure.state}: {told})")
    if found.at_once:
        absent += [
            f"{name}_radix ({found.radices[name].state})"
            for name in ("device", "node")
            if found.radices[name].state == WEAK
        ]
    return absent
