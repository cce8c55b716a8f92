"""`--library nccl`: the choice of NCCL (RCCL, MSCCL) on a topology at each size, its time, its share of the GPUs, and
the basis of the figures."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from antiphon.core.collective import Collective
from antiphon.core.interpret import busbw_factor
from antiphon.core.reshape import keep
from antiphon.core.topology import Topology
from antiphon.cost.nccl.calls import Calls, shipped_calls
from antiphon.cost.nccl.choice import (
    ALGORITHMS,
    CHOSEN,
    COLLNET,
    COPIES,
    KINDS,
    NVLS,
    NVLS_TREE,
    PAT,
    SENDS,
    TO_EACH,
    Costs,
    Priced,
    copied_by_engines,
    prices,
    taken,
)
from antiphon.cost.nccl.gpus import generation_of
from antiphon.cost.nccl.msccl import Algorithm, priced_by, registered
from antiphon.cost.nccl.place import Place, by_name, network_of, place_of
from antiphon.cost.nccl.proven import BOUND, Proven, proven_limit
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.options import parse_options
from antiphon.units import format_seconds

MSCCL = "msccl"
LIBRARIES = ("nccl", "rccl", MSCCL)
OPTIONS = ("gpu", "network", "processes", "algorithm")
PROCESSES = ("each", "one")  # a process for each GPU, or one for all of a node
NO_TABLE = (COLLNET, PAT, SENDS, COPIES)  # ways that no table of part fit has in it
EXAMPLE = "nccl:gpu=h100,network=ib"
# The median over machines of what each is off in the median, as bench/bench_nccl.py tells machines
OFF = (("up to 64 KB", 0.079), ("between", 0.295), ("from 64 MB on", 0.061))
MAX_ERROR = max(error for _, error in OFF)  # assumed where no error is known (alltoall, gather, scatter)
SMALL, LARGE = 64_000, 64_000_000  # where these begin and end


@dataclass(frozen=True)
class Library:
    """A library on a machine: `at` returns its choice at a size. `registered`: the algorithms of MSCCL, which go before
    all others where their ranges have the size. `root`: of rooted collectives, for the bound that predictions are held
    to. `limits`: bounds by collective that are known already; None: no bound is known, and none is computed."""

    name: str
    place: Place
    costs: Costs
    machine: Topology
    algorithms: Sequence[str] = CHOSEN
    registered: Sequence[Algorithm] = ()
    root: int = 0
    limits: dict[str, Proven | None] = field(default_factory=dict)

    def at(self, collective: str, nbytes: int) -> list[Priced]:
        """Return all options, the chosen one first; none is faster than the proven bound of the topology."""
        options = prices(self.place, self.costs, collective, nbytes, self.algorithms)
        algorithm = self._find_registered(collective, nbytes)
        if algorithm is not None:
            options = [priced_by(algorithm, self.place, self.costs, nbytes, options), *options]
        return [self._apply_bound(option, collective, nbytes) for option in options]

    def limit(self, collective: str) -> Proven | None:
        """The proven bound of a collective, where it is known."""
        if collective not in self.limits:
            self.limits[collective] = proven_limit(self.machine, collective, self.root)
        return self.limits[collective]

    def _apply_bound(self, option: Priced, collective: str, nbytes: int) -> Priced:
        limit = self.limit(collective)
        return option if limit is None else limit.hold(option, nbytes)

    def _find_registered(self, collective: str, nbytes: int) -> Algorithm | None:
        return next((algorithm for algorithm in self.registered if algorithm.has(collective, nbytes)), None)

    def _chosen_by(self, collective: str, nbytes: int) -> str:
        """Return why MSCCL chooses this: an algorithm's range, or that it has none here."""
        algorithm = self._find_registered(collective, nbytes)
        return (
            algorithm.why() if algorithm is not None else "no algorithm of MSCCL's here" if self.name == MSCCL else ""
        )

    def _choice_reason(self, collective: str, nbytes: int, best: Priced, rest: Sequence[Priced]) -> str:
        """Return its range, if chosen by that; otherwise the gain over the next best, and the bottleneck."""
        chosen_by = self._chosen_by(collective, nbytes)
        if self._find_registered(collective, nbytes) is not None:
            return f"{chosen_by}; {rest[0].name} would take {format_seconds(rest[0].seconds)}"
        return f"{chosen_by}; {why(best, rest)}" if chosen_by else why(best, rest)

    def taken(self, collective: str, nbytes: int) -> int | None:
        """Return the maximum number of multiprocessors of each GPU that the choice uses; None where unknown."""
        algorithm = self._find_registered(collective, nbytes)
        return (
            algorithm.blocks if algorithm is not None else taken(self.costs, self.at(collective, nbytes)[0].algorithm)
        )

    def basis(self, collective: str, nbytes: int) -> str:
        """Whether the figure of the choice is calibrated, and by which tables."""
        algorithm = self._find_registered(collective, nbytes)
        if algorithm is not None:
            return algorithm.basis(self.costs)
        return self.costs.basis() + self._remark_missing(collective, self.at(collective, nbytes)[0])

    def brief(self, collective: str, nbytes: int) -> str:
        """The basis of the choice at a size, without the names of the tables."""
        algorithm = self._find_registered(collective, nbytes)
        if algorithm is not None:
            return algorithm.basis(self.costs)
        return self.costs.brief() + self._remark_missing(collective, self.at(collective, nbytes)[0])

    def _remark_missing(self, collective: str, option: Priced) -> str:
        """Return remarks on what of a figure no table of this collective covers."""
        remark = self.costs.beyond(option.protocol, in_switches=option.algorithm in (NVLS, NVLS_TREE))
        if option.algorithm in NO_TABLE:
            return f"; {option.algorithm} not calibrated{remark}"
        return remark if collective == "allreduce" else f"; {collective} by the figures of allreduce{remark}"

    def rows(self, collective: str, sizes: Sequence[int]) -> list[dict[str, Any]]:
        """A row per size: nbytes, seconds, algbw, busbw, algorithm, protocol, terms, limit, why, calibrated, others; of
        multiprocessors `sms` (taken at most) and `sms_of` (there are), and `without_sms`: seconds by copy engines.
        Where `limit` is the proven bound, `limited_by` is its witness in words."""
        # busbw = algbw * factor, as nccl-tests reports it.
        factor = busbw_factor(Collective(collective, self.place.ranks))
        rows = []
        for nbytes in sizes:
            best, *rest = self.at(collective, nbytes)
            algbw = nbytes / best.seconds if best.seconds else 0.0
            units, copied = self.costs.gpu.units, copied_by_engines(self.place, self.costs, collective, nbytes)
            copied = copied and self._apply_bound(copied, collective, nbytes)
            limit = self.limit(collective) if best.limit == BOUND else None
            rows.append(
                {
                    "nbytes": nbytes,
                    "seconds": best.seconds,
                    "algbw": algbw,
                    "busbw": algbw * factor,
                    "algorithm": best.algorithm,
                    "protocol": best.protocol,
                    "terms": dict(best.terms),
                    "limit": best.limit,
                    "limited_by": limit and limit.because,
                    "why": self._choice_reason(collective, nbytes, best, rest),
                    "chosen_by": self._chosen_by(collective, nbytes),
                    "mostly": dominant_term(best),
                    "sms": self.taken(collective, nbytes),
                    "sms_of": units and units.of,
                    "without_sms": copied and copied.seconds,
                    "calibrated": self.basis(collective, nbytes),
                    "others": {option.name: option.seconds for option in rest},
                }
            )
        return rows


def error_at(collective: str, nbytes: int) -> float | None:
    """The relative error of a prediction, in the median over machines held out of the fit; None: not known."""
    if collective in TO_EACH:
        return None
    return OFF[0 if nbytes <= SMALL else 1 if nbytes < LARGE else 2][1]


def is_within_error(collective: str, nbytes: int, speedup: float) -> bool:
    """Whether a predicted speedup over the library is indistinguishable from 1, given the error of the library's
    model."""
    error = error_at(collective, nbytes)
    largest = 1 + (MAX_ERROR if error is None else error)
    return 1 / largest <= speedup <= largest


def is_clearly_faster(collective: str, nbytes: int, speedup: float) -> bool:
    """Whether a schedule is predicted to be faster than the library by more than the error of the library's model.

    Sizes at which it is not are left to the library, in tables and in exports.
    """
    return speedup > 1 and not is_within_error(collective, nbytes, speedup)


def how_near(collectives: Iterable[str]) -> str:
    """Return a remark on the error of NCCL's predicted times, for output of speedups; empty where all collectives are
    by sends, which no fitted table includes."""
    kinds = sorted(set(collectives))
    without = [kind for kind in kinds if kind in TO_EACH]
    if without == kinds:
        return ""
    off = ", ".join(f"{off:.1%} {where}" for where, off in OFF)
    aside = f" ({', '.join(without)} aside)" if without else ""
    return (
        f"; on machines held out of the fit its times{aside} are off, in the median over machines, by {off}: "
        "treat smaller speedups as noise"
    )


def dominant_term(best: Priced) -> str:
    """Return the term that takes most of the time."""
    if best.limit == BOUND:
        return "the proven bound"
    term = max(best.terms, key=lambda name: best.terms[name])
    return f"its {best.limit}" if term == "bytes" else {"network": "network hops"}.get(term, term)


def why(best: Priced, rest: Sequence[Priced]) -> str:
    """Return the gain over the next best option, and the bottleneck."""
    if not rest:
        return f"the only way; mostly {dominant_term(best)}"
    # Compare with another algorithm if there is one, not merely with another protocol.
    other = next((option for option in rest if option.algorithm != best.algorithm), rest[0])
    return f"{other.name} would take {format_seconds(other.seconds)}; mostly {dominant_term(best)}"


def library(request: str, machine: Topology) -> Library:
    """Return the library that `request` names on this topology: nccl, rccl or msccl, behind a colon gpu=, network=,
    processes=, algorithm=. Unsupported where its GPUs or its network have no figures and none are named."""
    name, _, behind = request.partition(":")
    if name not in LIBRARIES:
        raise Invalid(f"library {quote(name)}: expected {', '.join(LIBRARIES)}, such as {EXAMPLE}")
    options = parse_options(behind.split(",") if behind else (), f"library {quote(request)}", EXAMPLE)
    for key in options:
        if key not in OPTIONS:
            raise Invalid(f"library {name}: has no option {quote(key)}; it has {', '.join(OPTIONS)}")
    chosen = library_here(machine, **options)
    if name == MSCCL:
        algorithms = [] if "algorithm" in options else registered(chosen.costs.gpu.name, chosen.place)
        return replace(chosen, name=name, registered=algorithms)
    if chosen.name != name:
        figures = chosen.costs.gpu.name
        raise Unsupported(
            f"library {name}: the figures of {figures} are of {chosen.name.upper()}; ask for {chosen.name}"
        )
    return chosen


def library_here(
    machine: Topology, *, gpu: str = "", network: str = "", processes: str = PROCESSES[0], algorithm: str = ""
) -> Library:
    """Return the library whose figures this topology has."""
    place = place_of(machine)
    if place.local > 1 and not place.wire:
        raise Unsupported(
            f"topology {machine.name}: a rank has no link to others of its node; no model of NCCL is calibrated there"
        )
    figures, gpu_note = _gpu_figures(machine, place, gpu)
    between, network_note = _network_figures(machine, place, figures, network)
    if processes not in PROCESSES:
        raise Invalid(f"processes={quote(processes)}: expected {' or '.join(PROCESSES)}")
    if algorithm and algorithm not in ALGORITHMS:
        raise Invalid(f"algorithm={quote(algorithm)}: expected one of {', '.join(ALGORITHMS)}")
    assumptions = "; ".join(filter(None, (gpu_note, network_note)))
    costs = Costs(figures, between, processes == PROCESSES[1], assumptions)
    return Library(figures.library.lower(), place, costs, machine, (algorithm,) if algorithm else CHOSEN)


def library_of(machine: Topology, members: Collection[int], **options: str) -> Library:
    """Return the library of the topology that these ranks form."""
    if len(members) == machine.ranks:
        return library_here(machine, **options)
    group_library = library_here(keep(machine, members, name=machine.name).topology, **options)
    if not group_library.place.all_meet:
        raise Unsupported(f"topology {machine.name}: the links among {len(members)} of its ranks may make no ring")
    return group_library


def library_among(machine: Topology, collectives: Iterable[Collective], **options: str) -> Library | None:
    """Return the library that has figures for these collectives; among a subset of ranks, on the topology that it
    forms. None for groups without figures, and for custom collectives."""
    collectives = tuple(collectives)
    groups = {tuple(sorted(collective.members)) for collective in collectives}
    # A library's figures hold for one group of ranks at a time.
    if len(groups) != 1 or any(collective.kind not in KINDS for collective in collectives):
        return None
    (members,) = groups
    if len(members) == machine.ranks:
        return library_here(machine, **options)
    try:
        return library_of(machine, members, **options)
    except (Invalid, Unsupported):
        return None


def _gpu_figures(machine: Topology, place: Place, requested: str) -> tuple[Calls, str]:
    """Return the figures of its GPUs, and a remark where they are not known to be its own."""
    catalogue = shipped_calls()
    detected = generation_of(machine, place, catalogue)
    if requested:
        chosen = by_name(requested, catalogue, "gpu", boxes=True)
        own = detected is not None and chosen is detected[0] and not detected[1]
        return chosen, "" if own else f"GPUs taken for {chosen.name} as asked"
    if detected is None:
        able = ", ".join(name for name, calls in catalogue.items() if calls.boxes)
        raise Unsupported(
            f"topology {machine.name}: no figures are known of its GPUs; name a generation by gpu= (figures of {able})"
        )
    return detected


def _network_figures(machine: Topology, place: Place, gpu: Calls, requested: str) -> tuple[Calls | None, str]:
    """Return the figures of its network, and the same remark; None where there is no network."""
    catalogue = shipped_calls()
    chosen = by_name(requested, catalogue, "network", boxes=False) if requested else None
    if place.nodes == 1:
        return None, ""
    detected = network_of(place, gpu.name, catalogue)
    if chosen is not None:
        return chosen, "" if chosen is detected else f"network taken for {chosen.name} as asked"
    if detected is None:
        able = ", ".join(name for name, calls in catalogue.items() if not calls.boxes)
        raise Unsupported(
            f"topology {machine.name}: no figures are known of a network of {' and '.join(place.kinds)} links; name "
            f"one by network= (figures of {able})"
        )
    return detected, ""
