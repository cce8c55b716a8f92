"""`--library nccl`: predict what NCCL, RCCL or MSCCL does on a topology: its choice at each size, its time, the
multiprocessors that it occupies, and the basis of the figures.

`library(request, topology)` finds the figures of the machine's GPUs and network (gpus.py, calls.py).
`LibraryModel.at` prices all options at a size (choice.py), the chosen one first. It refuses a time below the proved
bound (proven.py). `LibraryModel.rows` makes the rows that the command line prints. accuracy.py states how far these
predictions can be trusted.

An *option* is an algorithm with a protocol. A `NcclLayout` (layout.py) describes the machine as this model sees it:
ranks, nodes (hosts), the bandwidth of a rank within its node and of a node. A version of NCCL (`nccl-2.32`) leaves out
the algorithms that came later (`SINCE`). With `registered=yes` all buffers are registered with NCCL as symmetric
windows: symmetric kernels are options, and on Blackwell copy engines take large allgathers. MSCCL has algorithms of its
own for ranges of sizes (msccl.py), which precede NCCL's choice there.

Example: `library("nccl", topology("hgx-h100")).choice("allreduce", 1 << 30).name` is "nvls simple".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from textwrap import shorten
from typing import Any

from antiphon.core.collective import Collective
from antiphon.core.interpret import busbw_factor
from antiphon.core.reshape import keep
from antiphon.core.topology import Topology
from antiphon.cost.bound_evaluator import BoundEvaluator
from antiphon.cost.nccl import accuracy
from antiphon.cost.nccl.calls import CallFigures, shipped_calls
from antiphon.cost.nccl.choice import (
    ALGORITHMS,
    CHOSEN,
    COLLNET,
    COPIES,
    KINDS,
    NVLS,
    NVLS_TREE,
    PAT,
    RING,
    SENDS,
    SYMMETRIC,
    Costs,
    OptionPrice,
    copied_by_engines,
    has_symmetric_kernels,
    occupied_multiprocessors,
    price_options,
)
from antiphon.cost.nccl.gpus import generation_named, generation_of
from antiphon.cost.nccl.layout import NcclLayout, by_name, layout_of, network_of
from antiphon.cost.nccl.msccl import Algorithm, msccl_algorithms, priced_by
from antiphon.cost.nccl.proven import ROUNDING, ProvedFigures, bound_evaluator
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.options import parse_options, parse_yes
from antiphon.units import format_seconds, format_size

NCCL, MSCCL = "nccl", "msccl"
LIBRARIES = (NCCL, "rccl", MSCCL)
OPTIONS = ("gpu", "network", "processes", "algorithm", "registered")
_VERSION = re.compile(r"2\.([0-9]{1,2})(?:\.[0-9]{1,2})?", re.ASCII)
OLDEST, NEWEST = 8, 32  # minor versions of NCCL 2 that are known; later ones count as the newest
SINCE = {NVLS: 17, NVLS_TREE: 18, PAT: 23, SYMMETRIC: 27, COPIES: 28}  # the minor version that an algorithm came with
# On these GPUs NCCL by default lets copy engines do allgathers of registered buffers of more than MIN_COPIED bytes.
COPYING_GPUS, MIN_COPIED = ("b200",), 8 * 2**20
PROCESSES = PROCESS_PER_GPU, ONE_PROCESS = "each", "one"  # a process for each GPU, or one for all of a node
NO_TABLE = (COLLNET, PAT, COPIES)  # algorithms that occur in no table of measurements
EXAMPLE = "nccl:gpu=h100,network=ib"
MAX_WITNESS = 120  # characters of a witness in an error
ATTAINED = 1.005  # a prediction of at most this multiple of the bound attains it


@dataclass(frozen=True)
class LibraryModel:
    """The model of a library (NCCL, RCCL, MSCCL) on a machine; `at` returns the library's choice at a size.

    `algorithms`: those that NCCL or RCCL chooses from. `msccl`: MSCCL's own, which precede the choice at sizes within
    their ranges. `copies_by_default`: copy engines precede it for large allgathers. `root`: of rooted collectives.
    `lower_bounds`: by collective the bound below which no prediction may be; None: none is known, and none is computed.
    """

    name: str
    layout: NcclLayout
    costs: Costs
    machine: Topology
    algorithms: Sequence[str] = CHOSEN
    msccl: Sequence[Algorithm] = ()
    copies_by_default: bool = False
    root: int = 0
    lower_bounds: dict[str, ProvedFigures | None] = field(default_factory=dict)

    def at(self, collective: str, nbytes: int) -> list[OptionPrice]:
        """Return all options, the chosen one first, without those below the bound proved from the same link figures.

        If the chosen one is below the bound, the model does not describe this machine: Unsupported. (ROUNDING is a
        factor just below 1.)
        """
        options = self._price_options(collective, nbytes)
        min_times = [self._least_seconds(option, collective, nbytes) for option in options]
        algorithm = self._find_msccl_algorithm(collective, nbytes)
        if algorithm is not None:
            # the first option is MSCCL's; its time is that of NCCL's choice, the second, if it is priced `as_library`
            priced_as = options[1 if algorithm.as_library else 0]
            min_times[0] = self._least_seconds(priced_as, collective, nbytes, algorithm)
        chosen, chosen_min_time = options[0], min_times[0]
        if chosen.seconds < chosen_min_time * ROUNDING:
            raise self._below_bound(chosen, collective, nbytes, chosen_min_time)
        return [option for option, least in zip(options, min_times, strict=True) if option.seconds >= least * ROUNDING]

    def _price_options(self, collective: str, nbytes: int) -> list[OptionPrice]:
        """Return all options: first that which precedes NCCL's own choice at this size, if any (copy engines, or an
        algorithm of MSCCL), then the fastest first."""
        if self.copies_by_default and collective == "allgather" and nbytes > MIN_COPIED:
            options = price_options(self.layout, self.costs, collective, nbytes, (*self.algorithms, COPIES))
            options.sort(key=lambda option: option.algorithm != COPIES)  # copies first; else in the same order
        else:
            options = price_options(self.layout, self.costs, collective, nbytes, self.algorithms)
        algorithm = self._find_msccl_algorithm(collective, nbytes)
        if algorithm is None:
            return options
        return [priced_by(algorithm, self.layout, self.costs, nbytes, options), *options]

    def _below_bound(self, chosen: OptionPrice, collective: str, nbytes: int, min_seconds: float) -> Unsupported:
        """Return the error for a choice that would take less than `min_seconds`, which are proved."""
        bound = self.bound_of(collective)
        because = shorten(bound.because, MAX_WITNESS, placeholder=" ...") if bound is not None else ""
        return Unsupported(
            f"library {self.name}: its model does not describe {self.machine.name}: {chosen.name} would take "
            f"{format_seconds(chosen.seconds)} for {collective} of {format_size(nbytes)}, but no schedule takes "
            f"less than {format_seconds(min_seconds)} by the same figures" + (f" ({because})" if because else "")
        )

    def choice(self, collective: str, nbytes: int) -> OptionPrice:
        """Return the option that the library chooses."""
        chosen, *_ = self.at(collective, nbytes)
        return chosen

    def prove(self, collective: str, proofs: BoundEvaluator) -> None:
        """From now on use this bound of a collective, instead of computing one."""
        self.lower_bounds[collective] = ProvedFigures(proofs, self.layout, self.costs)

    def gap(self, collective: str, nbytes: int) -> float | None:
        """Return the time of the choice over the lower bound; None if no bound is known.

        Each option (protocol) has its own latency and bandwidth, so its own bound: the least of these counts. Like the
        library's model, it has no barriers between steps.
        """
        options = self.at(collective, nbytes)
        min_seconds = min(self._least_seconds(option, collective, nbytes) for option in options)
        return options[0].seconds / min_seconds if min_seconds else None

    def bound_of(self, collective: str) -> ProvedFigures | None:
        """Return the proved bound of a collective, computed once; None if it is not known."""
        if collective not in self.lower_bounds:
            self.lower_bounds[collective] = None  # stays so if there is no bound
            if (proofs := bound_evaluator(self.machine, collective, self.root)) is not None:
                self.prove(collective, proofs)
        return self.lower_bounds[collective]

    def _attained_witness(self, collective: str, best: OptionPrice, nbytes: int) -> str | None:
        """Return the witness of the bound in words, if a prediction attains the bound."""
        min_seconds = self._least_seconds(best, collective, nbytes, self._find_msccl_algorithm(collective, nbytes))
        bound = self.bound_of(collective)
        return bound.because if bound is not None and best.seconds <= min_seconds * ATTAINED else None

    def _least_seconds(
        self, option: OptionPrice, collective: str, nbytes: int, algorithm: Algorithm | None = None
    ) -> float:
        """Return the least time that is proved for an option, launch included.

        `algorithm`: the one of MSCCL that this option prices, which may have its own share of the links' bandwidth.
        """
        bound = self.bound_of(collective)
        if bound is None or self.layout.only_pcie:  # the machine's description, which is bounded, lacks PCIe
            return 0.0
        share = algorithm.share if algorithm is not None else None
        return option.terms.get("launch", 0.0) + bound.least_seconds(option, nbytes, share)

    def _find_msccl_algorithm(self, collective: str, nbytes: int) -> Algorithm | None:
        """Return the algorithm of MSCCL whose range has this size, if any."""
        return next((algorithm for algorithm in self.msccl if algorithm.has(collective, nbytes)), None)

    def _chosen_by(self, collective: str, nbytes: int) -> str:
        """Return why MSCCL chooses this: an algorithm's range, or that it has none here; "" for other libraries."""
        algorithm = self._find_msccl_algorithm(collective, nbytes)
        if algorithm is not None:
            return algorithm.why()
        return "no algorithm of MSCCL's here" if self.name == MSCCL else ""

    def _choice_reason(self, collective: str, nbytes: int, best: OptionPrice, rest: Sequence[OptionPrice]) -> str:
        """Return the size range of MSCCL that decides, or the time of the next best option and the bottleneck."""
        chosen_by = self._chosen_by(collective, nbytes)
        if self._find_msccl_algorithm(collective, nbytes) is not None:
            return f"{chosen_by}; {rest[0].name} would take {format_seconds(rest[0].seconds)}"
        return f"{chosen_by}; {why(best, rest)}" if chosen_by else why(best, rest)

    def error_at(self, collective: str, nbytes: int) -> float | None:
        """Return the relative error of a prediction on a machine that is not in the fit; None if unknown."""
        unmeasured = {COPIES, SYMMETRIC}  # the errors of other algorithms say nothing of these
        if unmeasured.intersection(self.algorithms) and self.choice(collective, nbytes).algorithm in unmeasured:
            return None
        calibrated = bool(self.costs.gpu.calibrated_by)
        return accuracy.error_at(collective, nbytes, self.layout.nodes, calibrated=calibrated)

    def multiprocessors_used(self, collective: str, nbytes: int) -> int | None:
        """Return the maximum number of multiprocessors of each GPU that the choice occupies; None if unknown."""
        algorithm = self._find_msccl_algorithm(collective, nbytes)
        if algorithm is not None:
            return algorithm.blocks
        return occupied_multiprocessors(self.costs, self.choice(collective, nbytes).algorithm)

    def basis(self, collective: str, nbytes: int) -> str:
        """Return whether the figure of the choice is calibrated, and by which tables."""
        algorithm = self._find_msccl_algorithm(collective, nbytes)
        if algorithm is not None:
            return algorithm.basis(self.costs)
        return self.costs.basis() + self._remark_missing(collective, self.choice(collective, nbytes))

    def brief(self, collective: str, nbytes: int) -> str:
        """Return the basis of the choice at a size, without the names of the tables."""
        algorithm = self._find_msccl_algorithm(collective, nbytes)
        if algorithm is not None:
            return algorithm.basis(self.costs)
        return self.costs.brief() + self._remark_missing(collective, self.choice(collective, nbytes))

    def _remark_missing(self, collective: str, option: OptionPrice) -> str:
        """Return remarks, each after "; ", on figures that no table of measurements of this collective covers."""
        remark = self.costs.uncalibrated_remark(option.protocol, in_switches=option.algorithm in (NVLS, NVLS_TREE))
        if self.layout.over_pcie and option.algorithm == RING:
            # layout.py then assumes half the bandwidth of a unit link for the rings
            remark += "; the links hold no ring: PCIe at half a link, not calibrated"
        is_measured = self.layout.nodes == 1 and collective in self.costs.gpu.collectives
        if option.algorithm == SYMMETRIC:
            return f"; {option.algorithm}: model, not fitted to a measurement{remark}"
        if option.algorithm in NO_TABLE or (option.algorithm == SENDS and not is_measured):
            return f"; {option.algorithm} not calibrated{remark}"
        is_measured |= collective == "allreduce"  # the figures are fitted to allreduces at least
        return remark if is_measured else f"; {collective} by the figures of allreduce{remark}"

    def rows(self, collective: str, sizes: Sequence[int]) -> list[dict[str, Any]]:
        """Return a row per size, with the keys below.

        `error`: the median error on machines held out of the fit; None if unknown. `error_above_aim`: the aim of
        accuracy.py, if the error is greater. `limit`: the bottleneck. `limited_by`: the witness of the bound in words,
        if the prediction attains the bound. `sms`: multiprocessors occupied at most; `sms_of`: available;
        `without_sms`: seconds by copy engines. `terms`: seconds by term; `mostly`: the greatest of them in words.
        `why`, `chosen_by`: the reason for the choice. `calibrated`: the basis. `others`: seconds of the other options.
        """
        factor = busbw_factor(Collective(collective, self.layout.ranks))
        gpu_units = self.costs.gpu.units  # None if the number of multiprocessors of a GPU is unknown
        rows = []
        for nbytes in sizes:
            best, *rest = self.at(collective, nbytes)
            algbw = nbytes / best.seconds if best.seconds else 0.0
            copied = copied_by_engines(self.layout, self.costs, collective, nbytes)
            if copied is not None and copied.seconds < self._least_seconds(copied, collective, nbytes) * ROUNDING:
                copied = None  # below the proved bound: the figures do not hold on this machine
            rows.append(
                {
                    "nbytes": nbytes,
                    "seconds": best.seconds,
                    "algbw": algbw,
                    "busbw": algbw * factor,  # as nccl-tests reports it
                    "algorithm": best.algorithm,
                    "protocol": best.protocol,
                    "error": (error := self.error_at(collective, nbytes)),
                    "error_above_aim": accuracy.missed_aim(error, self.layout.nodes),
                    "terms": dict(best.terms),
                    "limit": best.limit,
                    "limited_by": self._attained_witness(collective, best, nbytes),
                    "why": self._choice_reason(collective, nbytes, best, rest),
                    "chosen_by": self._chosen_by(collective, nbytes),
                    "mostly": dominant_term(best),
                    "sms": self.multiprocessors_used(collective, nbytes),
                    "sms_of": gpu_units.of if gpu_units is not None else None,
                    "without_sms": copied.seconds if copied is not None else None,
                    "calibrated": self.basis(collective, nbytes),
                    "others": {option.name: option.seconds for option in rest},
                }
            )
        return rows


def dominant_term(best: OptionPrice) -> str:
    """Return the term that takes most of the time."""
    term = max(best.terms, key=lambda name: best.terms[name])
    return f"its {best.limit}" if term == "bytes" else {"network": "network hops"}.get(term, term)


def why(best: OptionPrice, rest: Sequence[OptionPrice]) -> str:
    """Return the time of the next best option and the bottleneck, in words."""
    if not rest:
        return f"the only way; mostly {dominant_term(best)}"
    # Compare with another algorithm if there is one, not merely with another protocol.
    other = next((option for option in rest if option.algorithm != best.algorithm), rest[0])
    return f"{other.name} would take {format_seconds(other.seconds)}; mostly {dominant_term(best)}"


def library(request: str, machine: Topology) -> LibraryModel:
    """Return the library that `request` names on this topology: nccl, a version of it (nccl-2.32), rccl or msccl.

    Options after a colon: gpu=, network=, processes=, algorithm=, registered=. Raises Unsupported if its GPUs or its
    network have no figures and none are named.
    """
    full_name, _, options_text = request.partition(":")
    name, dash, number = full_name.partition("-")
    version = _VERSION.fullmatch(number)
    if name not in LIBRARIES or (dash and (name != NCCL or version is None or int(version[1]) < OLDEST)):
        raise Invalid(
            f"library {quote(full_name)}: expected {', '.join(LIBRARIES)}, such as {EXAMPLE}, or a version of NCCL, "
            f"nccl-2.{OLDEST} to nccl-2.{NEWEST}"
        )
    options = parse_options(options_text.split(",") if options_text else (), f"library {quote(request)}", EXAMPLE)
    for key in options:
        if key not in OPTIONS:
            raise Invalid(f"library {name}: has no option {quote(key)}; it has {', '.join(OPTIONS)}")
    if name != NCCL and "registered" in options:
        raise Invalid(f"library {name}: registered= is an option of nccl")
    chosen = library_here(machine, **options, version=number)
    if name == MSCCL:
        # a requested algorithm is one of NCCL's, so no algorithm of MSCCL may precede it
        algorithms = [] if "algorithm" in options else msccl_algorithms(chosen.costs.gpu.name, chosen.layout)
        return replace(chosen, name=name, msccl=algorithms)
    if chosen.name != name:
        figures = chosen.costs.gpu.name
        raise Unsupported(
            f"library {name}: the figures of {figures} are of {chosen.name.upper()}; ask for {chosen.name}"
        )
    return chosen


def doubt_gpus(logged: str, model: LibraryModel | None) -> str:
    """Return a remark if the GPUs that a log names are not those of the machine's figures, else "".

    `logged`: the name in the log; "": none.
    """
    generation = generation_named(logged, shipped_calls()) if logged else None
    if model is None or generation in (None, model.costs.gpu.name):
        return ""
    return f"the log's GPUs are {logged}, the figures are of {model.costs.gpu.name}: is it this machine?"


def library_here(
    machine: Topology,
    *,
    gpu: str = "",
    network: str = "",
    processes: str = PROCESS_PER_GPU,
    algorithm: str = "",
    registered: str = "no",
    version: str = "",
) -> LibraryModel:
    """Return the library whose figures this topology has; Unsupported if there are none.

    `gpu`, `network`: names of figures, by default the machine's own. `processes`: one of PROCESSES. `algorithm`: the
    only one, by default all. `registered`: whether all buffers are symmetric windows; `version`: of NCCL, such as
    2.28.4; by default the newest.
    """
    layout = layout_of(machine)
    if layout.local > 1 and not layout.wire:
        raise Unsupported(
            f"topology {machine.name}: a rank has no link to others of its node; no model of NCCL is calibrated there"
        )
    figures, gpu_note = _gpu_figures(machine, layout, gpu)
    network_figures, network_note = _network_figures(machine, layout, figures, network)
    if processes not in PROCESSES:
        raise Invalid(f"processes={quote(processes)}: expected {' or '.join(PROCESSES)}")
    if algorithm and algorithm not in ALGORITHMS:
        raise Invalid(f"algorithm={quote(algorithm)}: expected one of {', '.join(ALGORITHMS)}")
    # `version` may come from a log: an older version counts as OLDEST, an unreadable one as NEWEST.
    numbers = _VERSION.fullmatch(version)
    minor = max(int(numbers[1]), OLDEST) if numbers is not None else NEWEST
    if algorithm and minor < SINCE.get(algorithm, OLDEST):
        raise Unsupported(f"NCCL 2.{minor} has no {algorithm}, which came with 2.{SINCE[algorithm]}")
    notes = [gpu_note, network_note, f"NCCL 2.{minor} taken for 2.{NEWEST}" if minor > NEWEST else ""]
    is_registered = parse_yes(registered, "option registered")
    candidates = (*CHOSEN, SYMMETRIC) if is_registered else CHOSEN
    algorithms = tuple(name for name in candidates if minor >= SINCE.get(name, OLDEST))
    if is_registered and SYMMETRIC not in algorithms:
        notes.append(f"NCCL 2.{minor} has no symmetric kernels")
    elif is_registered and not has_symmetric_kernels(layout):
        notes.append("no symmetric kernels: the ranks are not in one NVLink domain")
    one_process = processes == ONE_PROCESS
    costs = Costs(figures, network_figures, one_process, origin="; ".join(filter(None, notes)))
    return LibraryModel(
        figures.library.lower(), layout, costs, machine, (algorithm,) if algorithm else algorithms,
        copies_by_default=is_registered and not algorithm and minor >= SINCE[COPIES] and figures.name in COPYING_GPUS,
    )  # fmt: skip


def library_of(machine: Topology, members: Collection[int], **options: str) -> LibraryModel:
    """Return the library on the topology that these ranks form; Unsupported as `library_here`, or without a ring."""
    if len(members) == machine.ranks:
        return library_here(machine, **options)
    group_library = library_here(keep(machine, members, name=machine.name).topology, **options)
    # In one node layout.py looks for rings. In several it does not; there ranks surely form one only if any two of them
    # in a node have a link or switch (`all_meet`).
    if not group_library.layout.all_meet and group_library.layout.nodes > 1:
        raise Unsupported(f"topology {machine.name}: the links among {len(members)} of its ranks may make no ring")
    return group_library


def find_library_model(machine: Topology, collectives: Iterable[Collective], **options: str) -> LibraryModel | None:
    """Return the model of the library for these collectives; among a subset of ranks, on the topology that it forms.

    None for custom collectives, for several groups of ranks, and if no figures of a subset's links are known. On the
    whole machine an error of `library_here` is the user's to see.
    """
    collectives = tuple(collectives)
    groups = {tuple(sorted(collective.members)) for collective in collectives}
    if len(groups) != 1 or any(collective.kind not in KINDS for collective in collectives):
        return None
    (members,) = groups
    if len(members) == machine.ranks:
        return library_here(machine, **options)
    try:
        return library_of(machine, members, **options)
    except (Invalid, Unsupported):
        return None


def _gpu_figures(machine: Topology, layout: NcclLayout, requested: str) -> tuple[CallFigures, str]:
    """Return the figures of the machine's GPUs, and a remark if they are not known to be its own."""
    catalogue = shipped_calls()  # of GPUs (these list `boxes`, machines that have them) and of networks
    detected = generation_of(machine, layout, catalogue)
    if requested:
        chosen = by_name(requested, catalogue, "gpu", boxes=True)
        is_own = detected is not None and chosen is detected.figures and not detected.remark
        return chosen, "" if is_own else f"GPUs taken for {chosen.name} as asked"
    if detected is None:
        named = ", ".join(name for name, calls in catalogue.items() if calls.boxes)
        raise Unsupported(
            f"topology {machine.name}: no figures are known of its GPUs; name a generation, as in nccl:gpu=h100 "
            f"(figures of {named})"
        )
    return detected.figures, detected.remark


def _network_figures(
    machine: Topology, layout: NcclLayout, gpu: CallFigures, requested: str
) -> tuple[CallFigures | None, str]:
    """Return the figures of the machine's network or None, and a remark unless they are known to be its own."""
    catalogue = shipped_calls()
    chosen = by_name(requested, catalogue, "network", boxes=False) if requested else None
    if layout.nodes == 1:
        return None, ""
    detected = network_of(layout, gpu.name, catalogue)
    if chosen is not None:
        return chosen, "" if chosen is detected else f"network taken for {chosen.name} as asked"
    if detected is None:
        named = ", ".join(name for name, calls in catalogue.items() if not calls.boxes)
        raise Unsupported(
            f"topology {machine.name}: no figures are known of a network of {' and '.join(layout.kinds)} links; name "
            f"one by network= (figures of {named})"
        )
    return detected, ""
