"""Explain measured times of NCCL or RCCL: are they what this machine should give, and if not, which fault fits best?

Input: the library's model of the healthy machine, and measured seconds by size. A fault is the same model of a degraded
machine: NVLS off, only one protocol or algorithm in use, slower links within nodes, PCIe in their place, some network
cards missing, a slow network, a slow launch. Each predicts the time of every size, and its misfit is

    mean over sizes of  |ln(measured / predicted)| / ln(1 + error)    (error of the model, on machines not in its fit)

so 1 means "wrong by as much as the model usually is". Faults with a degree (a link at 40 %, 3 of 8 cards) are tried at
every degree, and a constant is added to their misfit for that choice. A fault counts as more likely if the log has a
*sign* of it, a variable or a line that names it.

The verdict follows from the healthy model alone, by *bands* of sizes (up to 64 KB, between, from 64 MB on): a band is
slow if its median of measured / predicted exceeds the model's error. Only then faults are ranked. A likely cause has a
small misfit, much smaller than that of the healthy machine; faults that fit about as well as the best are reported with
it, as the measurements cannot distinguish them. Without a likely cause the report is "cannot tell why".

    2 boxes of 8 H100, an allreduce of 8 GB at 95 instead of 448 GB/s busbw: "2 of 8 network cards" predicts 103 and the
    small sizes as measured; "NVLS off" predicts 360, "PCIe in place of NVLink" 40: only the first is reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from statistics import mean, median
from typing import NamedTuple

import msgspec

from antiphon.cost.nccl.accuracy import LARGE, SMALL, range_index
from antiphon.cost.nccl.calls import PROTOCOLS
from antiphon.cost.nccl.choice import CHOSEN, NVLS, NVLS_TREE, RING, TREE, Costs, OptionPrice, price_options
from antiphon.cost.nccl.layout import NcclLayout
from antiphon.cost.nccl.library import LibraryModel
from antiphon.errors import Unsupported
from antiphon.units import format_bandwidth, format_seconds

Points = Sequence[tuple[int, float]]  # (nbytes, measured seconds)


@dataclass(frozen=True)
class DiagnosisLimits:
    """Thresholds, chosen on published tables of healthy machines (bench/data/published.json)."""

    # the model's error where no held-out rows exist (gather, scatter; alltoall between nodes; symmetric kernels)
    unknown_error: float = 0.8
    # A band is slow if measured / predicted - 1 exceeds this many errors, and also `min_slowdown` of the band (but for
    # large sizes within a node, whose links are best known)
    tolerance: float = 2.0
    min_slowdown: tuple[float, ...] = (0.3, 0.7, 0.25)  # by BANDS
    named_slowdown: float = 0.1  # enough for a fault that the log names
    max_misfit: float = 1.6  # of a likely cause
    max_misfit_ratio: float = 0.7  # of a likely cause's misfit to that of the healthy machine
    misfit_margin: float = 0.35  # faults whose misfit exceeds the best by at most this are reported, too
    per_degree: float = 0.15  # added to the misfit for each number that is chosen to fit
    min_points: int = 3  # sizes; fewer do not distinguish faults
    max_points: int = 32  # sizes used, evenly spread
    pcie: float = 0.145  # greatest ratio of PCIe's bandwidth to that of a GPU's links (H100: 64 of 450 GB/s)


LIMITS = DiagnosisLimits()
DEGREES = tuple(0.96 * 0.93**i for i in range(56))  # fractions of the bandwidth that are tried: 96 % down to 1.7 %
HOPS = (2.0, 4.0, 8.0, 16.0)  # factors on the latency of network hops that are tried
LAUNCHES = tuple(2e-6 * 1.15**i for i in range(45))  # seconds per call that are tried: 2 us to 0.9 ms
BANDS = ("small sizes", "medium sizes", "large sizes")  # the ranges of accuracy.py, by `range_index`


class FaultCheck(NamedTuple):
    """What the user should check for a kind of fault, and its signs in a log.

    A sign is a variable with its value (*: any), or words that the reader of the log (formats) uses for a line.
    """

    advice: str
    signs: tuple[str, ...] = ()


CHECKS: Mapping[str, FaultCheck] = {
    "nvls-off": FaultCheck(
        "NCCL_NVLS_ENABLE, nvidia-fabricmanager; NCCL_DEBUG=INFO logs NVLS", ("no NVLS", "NCCL_NVLS_ENABLE=0"),
    ),
    "protocol": FaultCheck("unset NCCL_PROTO"),
    "algorithm": FaultCheck("unset NCCL_ALGO"),
    "launch": FaultCheck("CPU affinity and frequency, one process per GPU, NCCL_DEBUG off"),
    "links": FaultCheck(
        "nvidia-smi nvlink -s (rocm-smi --shownodesbw), NCCL_MAX_NCHANNELS, clocks",
        ("NCCL_MAX_NCHANNELS=*", "NCCL_MAX_CTAS=*"),
    ),
    "pcie": FaultCheck(
        "NCCL_P2P_DISABLE, ACS and IOMMU, nvidia-fabricmanager; NCCL_DEBUG=INFO logs 'via SHM'",
        ("host memory", "NCCL_P2P_DISABLE=1", "NCCL_P2P_LEVEL=LOC"),
    ),
    "cards": FaultCheck(
        "NCCL_IB_HCA, ibstat (links up, at full rate); NCCL_DEBUG=INFO logs the cards", ("NCCL_IB_HCA=*",),
    ),
    "network": FaultCheck(
        "TCP sockets in place of RDMA (NCCL_IB_DISABLE), GPUDirect (nvidia-peermem), ACS, congestion",
        ("sockets", "no direct memory access", "NCCL_IB_DISABLE=1", "NCCL_NET_GDR_LEVEL=0", "NCCL_NET=Socket"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class MachineFault:
    """A degraded machine.

    `degrees`: number of values chosen to fit; `call_seconds`: further seconds of each call; `min_seconds`: of a call;
    `setting`: the variable with the value that causes it.
    """

    name: str
    text: str
    layout: NcclLayout
    costs: Costs
    algorithms: Sequence[str]
    protocols: Sequence[str] = PROTOCOLS
    degrees: int = 0
    call_seconds: float = 0.0
    min_seconds: float = 0.0
    setting: str = ""

    @property
    def check(self) -> str:
        """What the user should check. With a `setting` the name is the kind of fault, "-" and the setting's value."""
        kind = self.name.partition("-")[0] if self.setting else self.name
        return CHECKS[kind].advice

    def at(self, collective: str, nbytes: int) -> OptionPrice:
        """Return the library's choice on the degraded machine; Unsupported if no option is left."""
        for option in price_options(self.layout, self.costs, collective, nbytes, self.algorithms):
            if option.protocol in self.protocols:
                return replace(option, seconds=max(option.seconds + self.call_seconds, self.min_seconds))
        raise Unsupported(f"{collective}: no option is left")

    def is_named(self, sign: str) -> bool:
        """Return whether this sign of a log names the fault."""
        signs = (self.setting,) if self.setting else CHECKS[self.name].signs
        name, _, value = sign.rstrip(".").lower().partition("=")  # NCCL ends lines that report a variable with "."
        return any(pattern.lower() in (f"{name}={value}" if value else name, f"{name}=*") for pattern in signs)


@dataclass(frozen=True)
class Cause:
    """A fault that may explain the measured times: its misfit, the signs of it in the log, and its seconds by size."""

    fault: MachineFault
    misfit: float
    evidence: tuple[str, ...]
    seconds: Mapping[int, float]


@dataclass(frozen=True)
class Diagnosis:
    """The result. `verdict`: normal, slow or fast. `ratios`: by band the median of measured / predicted seconds.
    `slow`: the slow bands.

    `causes`: likely ones, the best first, if it is slow. `misfit`: of the healthy machine.
    """

    verdict: str
    ratios: Mapping[str, float]
    slow: tuple[str, ...]
    misfit: float
    causes: tuple[Cause, ...] = ()


def error_of(library: LibraryModel, collective: str, nbytes: int) -> float:
    """Return the relative error that the model usually has at this size."""
    error = library.error_at(collective, nbytes)
    return LIMITS.unknown_error if error is None else error


def most_normal(library: LibraryModel, collective: str, nbytes: int) -> float:
    """Return the greatest measured / predicted that is still within the error of the model.

    If the model chooses a tree between two nodes (above SMALL bytes), a ring is as normal: which one NCCL takes has
    changed by version.
    """
    choice, *alternatives = library.at(collective, nbytes)
    ring = min((o.seconds for o in alternatives if o.algorithm == RING), default=0.0)
    by_version = choice.algorithm == TREE and library.layout.nodes == 2 and nbytes > SMALL
    return _slack(library, collective, nbytes) * max(1.0, ring / choice.seconds if by_version else 1.0)


def _slack(library: LibraryModel, collective: str, nbytes: int) -> float:
    """Return the factor by which a time may be off the model in either direction."""
    slowdown = LIMITS.tolerance * error_of(library, collective, nbytes)
    min_slowdown = LIMITS.min_slowdown[range_index(nbytes)]
    return 1 + (slowdown if nbytes >= LARGE and library.layout.nodes == 1 else max(slowdown, min_slowdown))


def diagnose(
    library: LibraryModel, collective: str, points: Points, signs: Sequence[str] = (), cards: int = 0
) -> Diagnosis:
    """Compare measured seconds by size with the model, and return the verdict with its likely causes.

    `signs`: variables and words of the log that may name a fault (see CHECKS); `cards`: network cards of a node.
    """
    predicted = {nbytes: library.choice(collective, nbytes).seconds for nbytes, _ in points}
    ratios: dict[str, list[float]] = {}
    for nbytes, seconds in points:
        ratios.setdefault(BANDS[range_index(nbytes)], []).append(seconds / predicted[nbytes])
    medians = {band: median(values) for band, values in ratios.items()}
    slow, is_fast = tuple[str, ...](), False  # is_fast: in the band of the largest sizes, which is last
    for band in filter(ratios.__contains__, BANDS):
        sizes = [(n, seconds / predicted[n]) for n, seconds in points if BANDS[range_index(n)] == band]
        if median(ratio / most_normal(library, collective, n) for n, ratio in sizes) > 1:
            slow += (band,)
        is_fast = median(ratio * _slack(library, collective, n) for n, ratio in sizes) < 1
    misfit = _misfit(library, collective, points, predicted)
    causes = rank_causes(library, collective, points, signs, cards, misfit) if slow or signs else ()
    if not slow:
        # For a fault that the log names, and that fits much better than none, a small slowdown suffices.
        named = tuple(c for c in causes if c.evidence and c.misfit < LIMITS.max_misfit_ratio * misfit)
        slow = tuple(band for band, ratio in medians.items() if named and ratio > 1 + LIMITS.named_slowdown)
        if not slow:
            return Diagnosis("fast" if is_fast else "normal", medians, slow, misfit)
        causes = named
    return Diagnosis("slow", medians, slow, misfit, causes)


def rank_causes(
    library: LibraryModel, collective: str, points: Points, signs: Sequence[str], cards: int, healthy: float
) -> tuple[Cause, ...]:  # fmt: skip
    """Return the likely causes: those that the log names first, then by misfit. `healthy`: misfit without a fault."""
    points = points[:: -(-len(points) // LIMITS.max_points)]  # every k-th, k rounded up
    best: dict[str, Cause] = {}
    for fault in list_faults(library, cards):
        try:
            seconds = {nbytes: fault.at(collective, nbytes).seconds for nbytes, _ in points}
        except Unsupported:
            continue
        misfit = _misfit(library, collective, points, seconds) + LIMITS.per_degree * fault.degrees
        if fault.name not in best or misfit < best[fault.name].misfit:
            evidence = tuple(sign for sign in signs if fault.is_named(sign) and not _lists_all_cards(sign, cards))
            best[fault.name] = Cause(fault, misfit, evidence, seconds)
    causes = sorted(best.values(), key=lambda cause: (not cause.evidence, cause.misfit))
    # A fault that the log names must only fit better than none; others must fit well, and about as well as the best.
    named = [c for c in causes if c.evidence and c.misfit < healthy]
    min_misfit = min((c.misfit for c in causes), default=0.0)
    limit = min(LIMITS.max_misfit, LIMITS.max_misfit_ratio * healthy, min_misfit + LIMITS.misfit_margin)
    fitting = [c for c in causes if c not in named and c.misfit <= limit] if len(points) >= LIMITS.min_points else []
    return (*named, *fitting)


def _misfit(library: LibraryModel, collective: str, points: Points, predicted: Mapping[int, float]) -> float:
    """Return the mean of |ln(measured / predicted)|, in units of the model's error."""
    return mean(abs(log(seconds / predicted[n])) / log(1 + error_of(library, collective, n)) for n, seconds in points)


def _lists_all_cards(sign: str, cards: int) -> bool:
    """Return whether a variable lists as many cards as a node has, which is no sign of missing cards.

    A list of cards to leave out (^) is none either: it usually names cards that are not for NCCL, such as for storage.

    Example: NCCL_IB_HCA==mlx5_0,mlx5_1 on a node of 2 cards; the second = asks for exact names.
    """
    name, _, value = sign.partition("=")
    return name == "NCCL_IB_HCA" and (value.startswith("^") or len(value.strip("=,").split(",")) >= cards)


def list_faults(library: LibraryModel, cards: int) -> Iterator[MachineFault]:
    """Yield the degraded machines; faults with a degree once per degree."""
    layout, costs, algorithms = library.layout, library.costs, tuple(library.algorithms)
    healthy = MachineFault(name="", text="", layout=layout, costs=costs, algorithms=algorithms)
    # without the algorithms whose switches reduce
    unaided = tuple(a for a in algorithms if a not in (NVLS, NVLS_TREE))
    if layout.in_switches and costs.gpu.nvls is not None:
        yield replace(healthy, name="nvls-off", text="NVLS is off: the switches do not reduce", algorithms=unaided)
    in_choice = [a for a in algorithms if a in CHOSEN]  # those that NCCL chooses between by itself
    for kind, value in (*(("protocol", p) for p in costs.gpu.hop), *(("algorithm", a) for a in in_choice)):
        # NCCL writes nvls-tree as NVLSTREE.
        setting = f"NCCL_{'PROTO' if kind == 'protocol' else 'ALGO'}={value.replace('-', '')}"
        only = {"protocols": (value,)} if kind == "protocol" else {"algorithms": (value,)}
        text = f"only the {kind} {value} is in use"
        yield replace(healthy, name=f"{kind}-{value}", text=text, setting=setting, **only)  # type: ignore[arg-type]
    for seconds in LAUNCHES:
        text = f"each call, of any size, takes {format_seconds(seconds)} more"
        yield replace(healthy, name="launch", text=text, call_seconds=seconds, degrees=1)
        # Benchmarks launch the next call while one runs, so that a slow launch only shows where it takes longer.
        text = f"each call, of any size, takes at least {format_seconds(seconds)}"
        yield replace(healthy, name="launch", text=text, min_seconds=seconds, degrees=1)
    if layout.wire and layout.local > 1:
        yield from _list_faults_within(healthy, unaided)
    if layout.nodes > 1:
        yield from _list_faults_between(healthy, cards)


def _list_faults_within(healthy: MachineFault, unaided: Sequence[str]) -> Iterator[MachineFault]:
    """Yield slower links within nodes, and PCIe or the host's memory in their place.

    `wire`: a GPU's bandwidth within its node; `to_all`: the same while all send to all; `inner`: kinds of links there.
    `unaided`: the algorithms without reduction in switches, which PCIe cannot reach.
    """
    layout = healthy.layout
    links = "/".join(sorted({kind for kind, _ in layout.inner})) or "links"
    for degree in DEGREES:
        rate = f"{format_bandwidth(degree * layout.wire)} of {format_bandwidth(layout.wire)}"
        slower = replace(layout, wire=degree * layout.wire, to_all=degree * layout.to_all)
        if degree > LIMITS.pcie or links == "pcie":
            text = f"{links} of one GPU, or of all, at {degree:.0%}: {rate}"
            yield replace(healthy, name="links", text=text, layout=slower, degrees=1)
        else:
            text, slower = f"PCIe or host memory in place of {links}, at {rate}", replace(slower, in_switches=False)
            # The kind of link and its rate are chosen.
            yield replace(healthy, name="pcie", text=text, layout=slower, algorithms=unaided, degrees=2)


def _list_faults_between(healthy: MachineFault, cards: int) -> Iterator[MachineFault]:
    """Yield missing network cards, and a network that is slow in bandwidth and at every hop.

    `cards`: of a node, whose bandwidth over all of them is `layout.card`.
    """
    layout, network = healthy.layout, healthy.costs.network
    assert network is not None
    for cards_in_use in range(1, cards):
        # data go over all cards evenly, so that one card at half its speed halves the bandwidth of all
        qualifier = ", or one card at half its speed" if 2 * cards_in_use == cards else ""
        text = f"{cards_in_use} of {cards} network cards of a node in use{qualifier}"
        yield replace(
            healthy, name="cards", text=text, layout=replace(layout, card=layout.card * cards_in_use / cards), degrees=1
        )
    # With slow hops, which have a factor of their own to fit, every fifth degree is enough.
    for degree, factor in [*((d, 1.0) for d in DEGREES), *((d, factor) for d in DEGREES[::5] for factor in HOPS)]:
        rate = f"{format_bandwidth(degree * layout.card)} of {format_bandwidth(layout.card)}"
        slow_network = msgspec.structs.replace(network, hop={p: factor * seconds for p, seconds in network.hop.items()})
        qualifier = f" and hops that take {factor:.0f} times as long" if factor > 1 else ""
        yield replace(
            healthy, name="network", text=f"a network with {rate} from each node{qualifier}",
            layout=replace(layout, card=degree * layout.card), costs=replace(healthy.costs, network=slow_network),
            degrees=1 + (factor > 1),
        )  # fmt: skip
