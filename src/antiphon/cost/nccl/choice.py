"""Price NCCL's options, each an algorithm with a protocol; NCCL chooses the fastest. library.py calls `price_options`.

The algorithms, from NCCL's documentation and logs: rings, double binary trees, NVLS and NVLS trees (the switches of a
node reduce and multicast), CollNet (the network reduces), PAT (parallel aggregated trees; one rank per node). Each has
the protocols LL (four bytes of data for each flag of four), LL128 (120 of 128 bytes are data) and Simple. NCCL takes
what its own model says is fastest. The formulas here are ours; their parameters come from published measurements
(`calls`).

For N nodes of g ranks, n = N g, S bytes, latency h per hop within a node and H between nodes (*wire*: a rank's links
within its node; *cards*: a node's network cards):

    ring       allreduce 2(n-1) hops, 2(N-1) of them between nodes; 2(n-1)/n S over a rank's wire, and over the cards
    tree       2(g-1) h + 2 log2(N) H; 2 S over a rank's wire; S over a node's cards between two nodes, else 2 S
    nvls       the latency of the switches; (1 + 1/g) S over a rank's wire, as a rank's own share crosses it, too
    nvls-tree  that and 2 log2(N) H; the same over the wire; over the cards as a tree
    collnet    within a node as nvls, else as a ring; S over the cards, H up and down
    pat        log2(n) H; (n-1)/n S over the cards
    sends      to each rank separately: data within a node over the wire, the rest over the cards, one after another
               (within a node where some pairs have no link: through other ranks, over shortest paths)
    copies     by copy engines, within a node: a copy to each other rank, one after another; no multiprocessor is
               occupied. NCCL does so only if requested (NCCL_CTA_POLICY_ZERO, registered buffers)
    symmetric  kernels that reach the registered buffers of all ranks of an NVLink domain. LL: each rank sends its
               input to all others, 1 h; simple: a barrier, loads (of sums), stores, a barrier, 2 or 3 h; or as nvls

A call takes launch + hops + max(b + min(slowdown * b, ramp), c). Its bytes need b seconds over the wire and c over the
cards at full speed. The first of them are slower over the wire, as few channels are in use and buffers are short. So a
call gains bandwidth with its size, and loses `ramp` at most.

From `CallFigures` (calls.py), by protocol: `hop`, seconds from one rank to the next; `share`, the fraction of a link's
bandwidth that data get. From `NcclLayout` (layout.py), in bytes per second: `wire`, with which a rank sends within its
node; `card`, a node's, over all its cards; `to_all`, a rank's while all of its node send to all; `cuts`, out of groups
of nodes. `local` is g; `hops` the greatest distance within a node, in links; `all_meet`: any two ranks of a node have a
link or a switch; `in_switches`, `in_network`: the switches of a node, or those between nodes, multicast and reduce.

Example: a ring allreduce of S = 1 GB on 8 GPUs of one node at 300 GB/s usable: 14 h + 1.75 GB / 300 GB/s + ramp.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import ceil, log2

from antiphon.core.collective import ROOTED
from antiphon.cost.nccl.calls import LL, LL128, SIMPLE, CallFigures
from antiphon.cost.nccl.layout import NcclLayout
from antiphon.errors import Unsupported

RING, TREE, NVLS, NVLS_TREE, COLLNET, PAT, SENDS = CHOSEN = (
    "ring", "tree", "nvls", "nvls-tree", "collnet", "pat", "sends",
)  # fmt: skip
COPIES, ENGINE = "copies", "engine"  # "algorithm" and "protocol" of copy engines
SYMMETRIC = "symmetric"  # kernels for buffers that all ranks registered as symmetric windows
ALGORITHMS = (*CHOSEN, COPIES, SYMMETRIC)  # the last two only if requested, or for registered buffers
COPIED = ("allgather", "alltoall", "gather", "scatter")  # collectives that copy engines can do
HALVES = ("allgather", "reducescatter")  # the two halves of an allreduce
CHAINS = ("broadcast", "reduce")  # a ring does them as a chain, and no switch helps
TO_EACH = ("alltoall", "gather", "scatter")  # different data for each rank: done by sends
# names of costs in remarks
AT_ONCE = "several messages at once"
ONE_AFTER_ANOTHER = "launches of one process"
# Bytes of a call for each channel, NCCL's threads times its threshold per thread; by LL for each rank.
CHANNEL_BYTES = {LL: 512 * 8, LL128: 640 * 8, SIMPLE: 512 * 64}
SEND_BY_LL = 16384  # bytes of a send up to which NCCL takes LL (NCCL_P2P_LL_THRESHOLD), otherwise Simple
KINDS = ("allreduce", *HALVES, *CHAINS, *TO_EACH)  # all collectives that are priced


@dataclass(frozen=True)
class OptionPrice:
    """The price of one option: seconds, and the terms that sum to them (launch, hops, network, bytes, ramp).

    `limit`: the bottleneck of its bytes, "wire" or "cards"."""

    algorithm: str
    protocol: str
    seconds: float
    terms: Mapping[str, float]
    limit: str

    @property
    def name(self) -> str:
        return f"{self.algorithm} {self.protocol}"


@dataclass(frozen=True)
class Costs:
    """The figures of a machine: of its GPUs, of its network, and whether one process drives all GPUs of a node.

    `origin`: why these figures apply, if the topology does not name them ("GPUs taken for h100 by their name").
    """

    gpu: CallFigures
    network: CallFigures | None = None
    one_process: bool = False
    origin: str = ""

    def launch(self, local: int, rest: float, channels: int = 1) -> float:
        """Return the seconds until a call's kernel runs on the `channels` of all `local` GPUs of a node.

        One process launches on one GPU after another while earlier kernels run: if all launches take longer than one
        launch and the `rest` seconds of a call, the GPUs wait for the process.
        """
        gpu = self.gpu
        all_launches = gpu.launch + gpu.launch_more * (local - 1) + gpu.launch_channel * local * (channels - 1)
        return max(gpu.launch, all_launches - rest if self.one_process else 0.0)

    def channels(self, layout: NcclLayout, algorithm: str, protocol: str, nbytes: int) -> int:
        """Return the channels that NCCL opens for a call of this size, by its rule; sends: one for each rank."""
        if algorithm == SENDS:
            return layout.local
        if protocol not in CHANNEL_BYTES:
            return 1
        # As many as the bytes need, up to those of the largest calls, a multiprocessor for each.
        needed = ceil(nbytes / (CHANNEL_BYTES[protocol] * (layout.ranks if protocol == LL else 1)))
        return max(1, min(needed, occupied_multiprocessors(self, RING) or 1))

    def basis(self) -> str:
        """Return the basis of a figure, with the names of the tables."""
        return "; ".join([*(calls.basis() for calls in self._tables), *self._origins])

    def brief(self) -> str:
        """Return the basis of a figure without the names of the tables."""
        calibrated = [calls.name for calls in self._tables if calls.calibrated_by]
        uncalibrated = [f"{calls.name} not calibrated" for calls in self._tables if not calls.calibrated_by]
        return "; ".join(
            [*([f"calibrated by {', '.join(calibrated)}"] if calibrated else []), *uncalibrated, *self._origins]
        )

    def uncalibrated_remark(self, protocol: str, *, in_switches: bool = False) -> str:
        """Return remarks on figures of this protocol that no table covers. `in_switches`: the node's switches do the
        GPUs' work."""
        figures = [f"hop {protocol}", f"share {protocol}"]
        remarks = []
        for calls in self._tables:
            if calls.calibrated_by and not (in_switches and calls is self.gpu):
                assumed = ", ".join(figure for figure in figures if calls.assumes(figure))
                remarks += [f"; {assumed} of {calls.name} not calibrated"] if assumed else []
        if self.one_process and self.gpu.assumes("more"):  # the figure `launch_more`
            remarks.append(f"; {ONE_AFTER_ANOTHER} not calibrated")
        return "".join(remarks)

    def simultaneity_remark(self, terms: Mapping[str, float]) -> str:
        """Return a remark if simultaneous messages take part of the time and no table covers them.

        `terms`: of model.py. fan: messages with the same chunk within a node; messages: those to other nodes.
        """
        within_node = bool(terms.get("fan")) and self.gpu.assumes("message")
        between_nodes = bool(terms.get("messages")) and (self.network is None or self.network.assumes("message"))
        return f"; {AT_ONCE} not calibrated" if within_node or between_nodes else ""

    @property
    def _origins(self) -> list[str]:
        return [self.origin] if self.origin else []

    @property
    def _tables(self) -> list[CallFigures]:
        return [calls for calls in (self.gpu, self.network) if calls is not None]


@dataclass(frozen=True)
class Load:
    """The work of one option: hops within nodes and between, bytes over a rank's wire and over a node's cards.

    `fixed`: further seconds. `messages`: simultaneous messages of a rank to other nodes, beyond the first.
    `to_all_nodes`: each node sends to all others instead of only to the next.
    """

    inside: float
    between: float
    wire: float
    cards: float
    fixed: float = 0.0
    messages: int = 0
    to_all_nodes: bool = False

    def out_of(self, nodes: int, layout: NcclLayout) -> float:
        """Return the bytes that leave a group of this many nodes: as many as leave one node, as a ring leaves the group
        at one node; with `to_all_nodes` those of all its nodes to nodes outside (each sends other nodes equally much).
        """
        if not self.to_all_nodes:
            return self.cards
        return self.cards * nodes * (layout.nodes - nodes) / (layout.nodes - 1)


def price_options(
    layout: NcclLayout, costs: Costs, collective: str, nbytes: int, algorithms: Collection[str] = CHOSEN
) -> list[OptionPrice]:
    """Price all options of NCCL with these algorithms for this collective, fastest first."""
    if collective not in KINDS:
        raise Unsupported(f"nccl: prices {', '.join(KINDS)}, not {collective}")
    options = []
    for algorithm in CHOSEN:
        if algorithm in algorithms:
            load = _load_of(algorithm, layout, costs, collective, nbytes)
            if load is not None:
                options += [
                    price_option(load, algorithm, p, layout, costs, nbytes)
                    for p in _protocols_of(algorithm, layout, costs, nbytes)
                ]
    copied = copied_by_engines(layout, costs, collective, nbytes) if COPIES in algorithms else None
    options += [] if copied is None else [copied]
    if SYMMETRIC in algorithms:  # they go in front, as of equal prices the first is chosen
        options = [*_symmetric_kernels(layout, costs, collective, nbytes), *options]
    if not options:
        raise Unsupported(f"nccl: none of {', '.join(algorithms)} can do {collective} here")
    return sorted(options, key=lambda option: option.seconds)


def copied_by_engines(layout: NcclLayout, costs: Costs, collective: str, nbytes: int) -> OptionPrice | None:
    """Price copy engines; None if NCCL cannot use them or they have no figures."""
    copies = costs.gpu.copies
    if copies is None or collective not in COPIED or layout.nodes > 1 or layout.local < 2:
        return None
    peers = layout.local - 1
    wire = layout.wire if collective in ROOTED else layout.to_all or layout.wire  # to_all 0: the same as `wire`
    hops, transfer = peers * copies.latency, peers / layout.local * nbytes / (wire * copies.share)  # seconds
    return _sum_terms(COPIES, ENGINE, costs, layout, nbytes, {"hops": hops, "network": 0.0, "bytes": transfer}, "wire")


def has_symmetric_kernels(layout: NcclLayout) -> bool:
    """Return whether all ranks are in one NVLink domain, in which each reaches the memory of all others."""
    return (
        layout.nodes == 1 and layout.local > 1 and layout.all_meet and {kind for kind, _ in layout.inner} == {"nvlink"}
    )


def _symmetric_kernels(layout: NcclLayout, costs: Costs, collective: str, nbytes: int) -> list[OptionPrice]:
    """Price NCCL's symmetric kernels, by the figures of its other kernels; none if they cannot serve the collective.

    Their own speed is in no public table. By LL (AGxLL, RSxLL) flags travel with the data, and an allreduce is summed
    by every rank. By simple (AGxST, RSxLD) barriers stand before and after; with multicast they move what NVLS does.
    """
    if collective not in ("allreduce", *HALVES) or not has_symmetric_kernels(layout):
        return []
    received, is_allreduce = (layout.ranks - 1) / layout.ranks * nbytes, collective == "allreduce"
    hops = layout.hops * (2 if collective == "allgather" else 3)  # barriers and stores; loads of sums, too
    loads = {
        LL: Load(layout.hops, between=0, wire=layout.ranks * received if is_allreduce else received, cards=0),
        SIMPLE: Load(hops, between=0, wire=2 * received if is_allreduce else received, cards=0),
    }
    options = [price_option(loads[p], SYMMETRIC, p, layout, costs, nbytes) for p in loads if p in costs.gpu.hop]
    if (multicast := _load_of(NVLS, layout, costs, collective, nbytes)) is not None:
        option = price_option(multicast, NVLS, SIMPLE, layout, costs, nbytes)
        options.append(replace(option, algorithm=SYMMETRIC, protocol=NVLS))
    return options


def _sum_terms(
    algorithm: str, protocol: str, costs: Costs, layout: NcclLayout, nbytes: int, rest: Mapping[str, float], limit: str
) -> OptionPrice:
    """Add the launch to the other terms."""
    channels = costs.channels(layout, algorithm, protocol, nbytes)
    terms = {"launch": costs.launch(layout.local, sum(rest.values()), channels), **rest}
    return OptionPrice(algorithm, protocol, sum(terms.values()), terms, limit)


def occupied_multiprocessors(costs: Costs, algorithm: str) -> int | None:
    """Return the maximum number of a GPU's multiprocessors that an algorithm occupies; None if unknown."""
    if algorithm == COPIES:
        return 0
    counts = costs.gpu.units.taken if costs.gpu.units is not None and algorithm != SYMMETRIC else {}
    # figures exist for these three; all other algorithms count as rings
    return counts.get({NVLS: NVLS, NVLS_TREE: NVLS, SENDS: SENDS}.get(algorithm, RING))


def price_option(
    load: Load, algorithm: str, protocol: str, layout: NcclLayout, costs: Costs, nbytes: int
) -> OptionPrice:
    """Price launch, hops, and the bytes over their bottleneck, by the formula at the top of this file."""
    share, switched = costs.gpu.share[protocol], algorithm in (NVLS, NVLS_TREE)
    if switched and costs.gpu.nvls is not None:
        share = costs.gpu.nvls.share
    # Bytes flow through wire and cards at the same time: the slower one is the bottleneck.
    wire_seconds = load.wire / (layout.wire * share) if layout.wire else 0.0
    ramp = costs.gpu.ramp_seconds(wire_seconds, in_switches=switched)
    seconds, between = {"wire": wire_seconds + ramp}, 0.0
    if layout.nodes > 1 and costs.network is not None:
        # a single node, and each group of nodes below common switches, sends over the bandwidth that leaves it
        slowest = max(load.out_of(nodes, layout) / bandwidth for nodes, bandwidth in ((1, layout.card), *layout.cuts))
        seconds["cards"] = slowest / costs.network.share[protocol]
        between = load.between * costs.network.hop[protocol] + load.messages * costs.network.message
    limit = max(seconds, key=lambda name: seconds[name])
    inside = load.inside * costs.gpu.hop[protocol] + load.fixed
    # The ramp counts only as far as it lengthens the call: wire bytes that wait for the cards anyway hide it.
    moving = max(wire_seconds, seconds.get("cards", 0.0))
    rest = {"hops": inside, "network": between, "bytes": moving, "ramp": seconds[limit] - moving}
    return _sum_terms(algorithm, protocol, costs, layout, nbytes, rest, limit)


def _protocols_of(algorithm: str, layout: NcclLayout, costs: Costs, nbytes: int) -> tuple[str, ...]:
    """Return the protocols that this algorithm can use on this machine."""
    if algorithm in (NVLS, NVLS_TREE, COLLNET, PAT):
        return (SIMPLE,)
    if algorithm == SENDS:  # NCCL's rule; to other nodes it has no buffers for LL
        is_small = layout.nodes == 1 and nbytes <= layout.ranks * SEND_BY_LL and LL in costs.gpu.hop
        return (LL,) if is_small else (SIMPLE,)
    # A protocol needs figures for the GPUs and, between nodes, for the network.
    protocols = [p for p in (LL, LL128, SIMPLE) if p in costs.gpu.hop]
    if layout.nodes > 1 and costs.network is not None:
        protocols = [p for p in protocols if p in costs.network.hop]
    return tuple(protocols)


def _load_of(algorithm: str, layout: NcclLayout, costs: Costs, collective: str, nbytes: int) -> Load | None:
    """Return the load of this algorithm for the collective; None if it does not support it."""
    if (algorithm == SENDS) != (collective in TO_EACH):
        return None
    if algorithm == SENDS:
        return _sends_load(layout, collective, nbytes)
    if algorithm == RING:
        return _ring_load(layout, collective, nbytes)
    if algorithm == PAT:
        return _pat_load(layout, collective, nbytes)
    if algorithm == TREE:
        if collective != "allreduce" or layout.nodes == 1:
            return None
        cards = _tree_load(layout, nbytes)
        # within a node a chain, up and down again
        return Load(inside=2 * (layout.local - 1), between=_up_and_down(layout), wire=2 * nbytes, cards=cards)
    return _by_switches(algorithm, layout, costs, collective, nbytes)


def _by_switches(algorithm: str, layout: NcclLayout, costs: Costs, collective: str, nbytes: int) -> Load | None:
    """Return the load if switches multicast and reduce: those of a node (and trees between nodes), or those of the
    network."""
    if collective in CHAINS:
        return None
    nvls = costs.gpu.nvls if layout.in_switches else None
    # An allreduce loads a wire by 1 + 1/local of the data; each of its halves by the data alone, at half the latency.
    latency_factor, own_share = (0.5, 0.0) if collective in HALVES else (1.0, 1 / layout.local)
    wire = (1 + own_share) * nbytes
    if algorithm == NVLS:
        if nvls is None or layout.nodes > 1:
            return None
        return Load(inside=0, between=0, wire=wire, cards=0, fixed=nvls.latency * latency_factor)
    if algorithm == NVLS_TREE:
        if nvls is None or layout.nodes == 1 or collective != "allreduce":
            return None
        return Load(
            inside=0, between=_up_and_down(layout), wire=wire, cards=_tree_load(layout, nbytes), fixed=nvls.latency
        )
    if not layout.in_network or layout.nodes == 1:
        return None
    # to the switch of the network and back; within nodes by NVLS, else along a chain and back
    if nvls is not None:
        return Load(inside=0, between=2, wire=wire, cards=nbytes, fixed=nvls.latency)
    return Load(inside=2 * (layout.local - 1), between=2, wire=2 * nbytes, cards=nbytes)


def _ring_load(layout: NcclLayout, collective: str, nbytes: int) -> Load:
    """Return the load of a ring: an allreduce goes around twice, a broadcast or reduce is a chain of all data."""
    n, rounds = layout.ranks, 2 if collective == "allreduce" else 1
    # Of the n - 1 hops per round of a ring, nodes - 1 cross the network; the others stay within nodes.
    between = rounds * (layout.nodes - 1)
    share = 1.0 if collective in CHAINS else rounds * (n - 1) / n
    wire = share * nbytes
    return Load(inside=rounds * (n - 1) - between, between=between, wire=wire, cards=wire if layout.nodes > 1 else 0)


def _up_and_down(layout: NcclLayout) -> int:
    """Return the hops between nodes up a binary tree and down again."""
    return 2 * ceil(log2(layout.nodes))


def _tree_load(layout: NcclLayout, nbytes: int) -> float:
    """Return the bytes that a node sends in two binary trees: it is a leaf of one, and forwards to two nodes in the
    other."""
    return nbytes if layout.nodes == 2 else 2 * nbytes


def _pat_load(layout: NcclLayout, collective: str, nbytes: int) -> Load | None:
    """Return the load of PAT, which needs one rank per node."""
    if collective not in HALVES or layout.local > 1 or layout.nodes == 1:
        return None
    cards = (layout.ranks - 1) / layout.ranks * nbytes
    return Load(inside=0, between=ceil(log2(layout.nodes)), wire=0, cards=cards)


def _sends_load(layout: NcclLayout, collective: str, nbytes: int) -> Load:
    """Return the load of sending each rank its share: one stays, some go within the node, the rest to other nodes.

    If pairs of a node have no link, relayed data count as more bytes over the wire.
    """
    share, outside_ranks = nbytes / layout.ranks, layout.ranks - layout.local
    messages = max(outside_ranks - 1, 0)
    relayed = layout.wire / layout.to_all if collective not in ROOTED and layout.to_all else 1.0
    return Load(
        inside=layout.hops, between=1 if outside_ranks else 0, wire=share * (layout.local - 1) * relayed,
        cards=share * layout.local * outside_ranks, messages=messages, to_all_nodes=True,
    )  # fmt: skip
