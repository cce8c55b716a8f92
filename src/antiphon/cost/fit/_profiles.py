"""Turn fits into profiles, with only the figures that the measurements determine.

A profile is the file that models read (cost/profile.py). Example: a GenModel fit with alpha = 4 us over 2 links and a
determined w_t (the number of senders beyond which incast slows a receiver) gives {"alpha": {"ethernet": 2e-6},
"incast": {"ethernet": {...}}}; an undetermined delta is left out, and `list_missing_figures` names it. The states of
estimates (DETERMINED, UNSEEN, WEAK) are explained in linear.py.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from antiphon.cost.figures import FIGURES, Level, LogGP
from antiphon.cost.fit.genmodel import MIN_SIZES, GenmodelFit
from antiphon.cost.fit.linear import DETERMINED, UNSEEN, WEAK, round_portably
from antiphon.cost.fit.loggp import LogGPFit
from antiphon.cost.fit.memory import MemoryFit
from antiphon.cost.profile import MAX_FACTOR, Incast, Profile
from antiphon.errors import Invalid
from antiphon.units import format_size


def genmodel_profile(
    fit: GenmodelFit, kind: str, *, links: int = 2, bandwidth: Fraction | float | None = None, name: str = ""
) -> Profile:
    """Return a profile with the determined figures for links of this kind; raise Invalid if there are none.

    `links`: the number of links from a rank to another (2: through one switch), among which a step's alpha is divided.
    `bandwidth`: the topology's bandwidth of such a link, in bytes per second, as a profile holds the fraction reached;
    None: unknown, so that beta is left out. `name`: of the profile.
    """
    usable_values = {key: estimate.value for key, estimate in fit.parameters.items() if estimate.usable}
    alpha, beta, epsilon = usable_values.get("alpha"), usable_values.get("beta"), usable_values.get("epsilon")
    # Share of the nominal bandwidth that is reached: (1 / beta) / bandwidth.
    factor = None if beta is None or not beta or bandwidth is None else 1 / (Fraction(beta) * Fraction(bandwidth))
    if factor is not None and not Fraction(1, MAX_FACTOR) <= factor <= MAX_FACTOR:  # a wrong unit of `bandwidth`
        raise Invalid(
            f"bandwidth: beta = {beta:.4g} s per byte is {float(factor):.3g} times the {float(bandwidth or 0):.4g} "
            "bytes per second said of a link; give that of the links measured"
        )
    has_incast = fit.w_t.state == DETERMINED and epsilon is not None and fit.w_t.value is not None
    profile = Profile(
        name,
        alpha={} if alpha is None else {kind: round_portably(alpha / links)},
        # A fraction of short numbers, nearer than any measurement, instead of one of 2^52 or more.
        bandwidth_factor={} if factor is None else {kind: factor.limit_denominator(10**9)},
        incast={kind: Incast(epsilon or 0.0, int(fit.w_t.value or 0))} if has_incast else {},
        gamma=usable_values.get("gamma") or 0.0,
        delta=usable_values.get("delta") or 0.0,
    )
    if profile == Profile(name):
        sizes = len({row.nbytes for row in fit.measured})
        advice = "measure more sizes, with more --iterations" if sizes >= MIN_SIZES else f"measure {MIN_SIZES} at least"
        raise Invalid(
            "nothing to write into a profile: these measurements determine no parameter alone (the combinations that "
            f"they do determine are listed without -o); sizes measured: {sizes}; {advice}"
        )
    return profile


def list_missing_figures(fit: GenmodelFit, bandwidth: object) -> list[str]:
    """List the figures that a profile of this fit lacks, except UNSEEN ones, whose effects may be too small to see.

    `bandwidth`: that of `genmodel_profile`; None: beta cannot become a share of it.
    """
    missing_figures = [
        f"{key} ({fit.parameters[key].state})"
        for key in ("alpha", "beta", "gamma", "delta", "epsilon")
        if not fit.parameters[key].usable and fit.parameters[key].state != UNSEEN
    ]
    if fit.parameters["beta"].usable and bandwidth is None:
        missing_figures.append("the bandwidth reached (give --known bandwidth=, what the topology says of a link)")
    return missing_figures


def memory_profile(fit: MemoryFit, name: str = "") -> Profile:
    """Return a profile with gamma and delta. Invalid if neither is determined."""
    usable_values = {key: estimate.value or 0.0 for key, estimate in fit.parameters.items() if estimate.usable}
    if not usable_values:
        raise Invalid("nothing to write into a profile: these measurements determine neither gamma nor delta")
    return Profile(name, gamma=usable_values.get("gamma", 0.0), delta=usable_values.get("delta", 0.0))


def loggp_level(fit: LogGPFit, within: str = "", gamma: float = 0.0) -> Level:
    """Return the LogGP figures between ranks that share the place `within`; none is below 0.

    `gamma`: seconds to reduce one byte, which round trips do not show. Sizes are the ends of every regime, and figures
    are interpolated between the last size of one and the first of the next. The line of L, but of no other figure, may
    fall below 0 within a regime and is then cut at 0; such a regime is not linear, so every measured size in it is
    listed.
    """
    sizes: list[float] = []
    figures: dict[str, list[float]] = {name: [] for name in FIGURES}
    for regime in fit.regimes:
        measured_sizes = fit.medians.sizes[(fit.medians.sizes >= regime.low) & (fit.medians.sizes <= regime.high)]
        is_bent = bool(regime.growth) and (regime.line("L", measured_sizes) < 0).any()
        # Level interpolates linearly between sizes, so both ends suffice where the regime is a line.
        sizes_here = measured_sizes if is_bent else measured_sizes[[0, -1]]
        regime_figures = regime.model(sizes_here)
        sizes += sizes_here.tolist()
        for name in FIGURES:
            figures[name] += (
                map(round_portably, regime_figures[name].tolist())
                if name in regime_figures
                else [gamma] * len(sizes_here)
            )
    if all(len(set(values)) == 1 for values in figures.values()):
        sizes, figures = [1.0], {name: values[:1] for name, values in figures.items()}
    return Level(within, tuple(sizes), **{name: tuple(values) for name, values in figures.items()})


def loggp_profile(
    fit: LogGPFit, *, within: str = "", into: Profile | None = None, gamma: float = 0.0, name: str = ""
) -> Profile:
    """Return a profile with the level of a fit (`within`, `gamma`: as for `loggp_level`).

    `into`: add the level to that profile, or replace its level of this name; None: to a new profile called `name`.

    A new level is placed outside the named ones that exist, so add levels from the innermost to the outermost; the
    level without a name stays last. Radices, the messages that a rank or a network card sends at once, are those that
    were measured, else those of `into`. Raises Invalid if the measurements determine no figure.
    """
    if all(regime.start[figure] == 0 for regime in fit.regimes for figure in ("L", "o_s", "o_r", "g", "G")):
        raise Invalid("nothing to write into a profile: these measurements determine no figure")
    level = loggp_level(fit, within, gamma)
    if into is None or into.loggp is None:
        return replace(into or Profile(name), loggp=_set_radices(LogGP((level,)), fit))
    levels = list(into.loggp.levels)
    names = [other.within for other in levels]
    if within in names:
        levels[names.index(within)] = level
    else:
        # Levels are ordered from the innermost outwards; the one without a name matches everything and stays last.
        levels.insert(len(levels) - 1 if within and "" in names else len(levels), level)
    return replace(into, loggp=_set_radices(replace(into.loggp, levels=tuple(levels)), fit))


def _set_radices(figures: LogGP, fit: LogGPFit) -> LogGP:
    """Set the radices that are known; a radix is None where no limit was seen."""
    device, node = (fit.radices[name] for name in ("device", "node"))
    if device.state in (DETERMINED, UNSEEN):
        figures = replace(figures, device_radix=device.count)
    if node.state in (DETERMINED, UNSEEN):
        figures = replace(figures, node_radix=node.count)
    return figures


def list_missing_loggp_figures(fit: LogGPFit) -> list[str]:
    """List the figures that a profile of this fit lacks because the measurements do not determine them."""
    missing_figures = []
    for regime in fit.regimes:
        where = f"{format_size(regime.low)} to {format_size(regime.high)}"
        for name, figure in regime.figures.items():
            if not figure.usable:
                value = "0" if figure.value is None else f"{figure.value:.3g}"
                missing_figures.append(f"{name} at {where} ({figure.state}: {value})")
    if fit.simultaneous:
        missing_figures += [
            f"{name}_radix ({fit.radices[name].state})"
            for name in ("device", "node")
            if fit.radices[name].state == WEAK
        ]
    return missing_figures
