"""Lower bound on the time as a function of the message size, for schedules with barriers between their steps.

In the alpha-beta model a schedule of N steps takes its latency plus nbytes times the sum of its steps' wire times per
byte (the wire time of a step is the time of its most loaded link). Four numbers bound the two terms from below:

    L       latency in seconds of the quickest path from a holder of data to the farthest rank that needs them
    alpha   the least latency of any message, so N steps cost at least N * alpha
    B       the bandwidth bound, in seconds per byte
    f(N)    seconds per byte of a schedule of N steps: data that travel over several links need several steps, and
            with few steps links stand idle at the beginning and the end. `steps.py` proves f from *evidence*.

The schedule may choose N, so the bound is a minimum:

    seconds(n) = min over N of  max(L, N * alpha) + max(B, f(N)) * n

It is computed for two *views*: the machine itself, and the machine of its hosts (each host contracted to one rank),
where every message crosses the network and alpha is therefore greater. Of N steps let data pass between hosts in M.
Then both views hold together:

    seconds(n) = min over N >= M of  max(L, M * alpha_hosts + (N - M) * alpha) + max(B, f(N), f_hosts(M)) * n

Example: a broadcast of n bytes along a line of 3 ranks, unit links, alpha = 1. Two steps move n bytes over one link
after the other: f(2) = 2. Three steps move halves: f(3) = 3/2. So seconds(n) = min(2 + 2 n, 3 + 1.5 n, ...): small
messages prefer few steps. `find_evidence` searches once per machine (effort is counted, so that every computer finds
the same), and `bound_by_size` evaluates the evidence, also for other bandwidths and latencies.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from antiphon.core.bounds.abilities import abilities_of
from antiphon.core.bounds.latency_seconds import Quickest
from antiphon.core.bounds.maxflow import MaxFlows
from antiphon.core.bounds.needs import Needs, needs_of
from antiphon.core.bounds.network import link_capacities
from antiphon.core.bounds.routed_search import RoutedSearch
from antiphon.core.bounds.step_search import StepSearch, find_switch_cut, list_deliveries, steps_from
from antiphon.core.bounds.steps import Chain, Evidence, Exchange, Fan, OneStep, StepTimes, proved_times
from antiphon.core.bounds.witness import Record
from antiphon.core.collective import Collective
from antiphon.core.columns import Bools, Floats, Longs
from antiphon.core.reshape import contract
from antiphon.core.topology import Topology, hosts
from antiphon.errors import Invalid


@dataclass(frozen=True)
class SizeLimits:
    """Limits of the search for evidence: counts instead of seconds, so that every computer finds the same evidence.

    steps.py explains the kinds of evidence: chain, fan, exchange, one step, cut over time.
    """

    max_steps: int = 2**14  # f(N) is evaluated up to this N; beyond it only the bandwidth bound B counts
    max_centers: int = 32  # ranks tried as the first end of chains; the one farthest from some receiver is used
    max_pairs: int = 6  # far ends of chains from that rank
    max_nodes: int = 4096  # no chains on larger machines: each takes several maximum flows
    all_runs: int = 12  # up to this many levels every run of cuts becomes a chain; above, the longest runs per width
    max_widths: int = 6  # capacities of cuts for which the longest run is sought
    one_step_ranks: int = 256  # evidence "one step" is sought on machines of at most this many ranks
    one_step_sets: int = 64  # pairs of sets (near, far) tried for it
    one_step_ends: int = 2  # holders, and as many receivers, tried as one of the two sets
    one_step_reach: int = 4  # sets around a node grow up to this many links
    combined_steps: int = 256  # numbers of steps for which both views are combined
    cut_ranks: int = 16  # cuts over time are searched on machines of at most this many ranks ...
    cut_links: int = 256  # ... and links
    cut_steps: int = 5  # N is tried for this many consecutive values from the least, then grows by `cut_growth`
    cut_growth: float = 1.25
    last_cut_steps: int = 16  # no N is tried after the first that is at least this
    min_gain: float = 1.01  # cuts over time must beat the other evidence by this factor, or the search ends


LIMITS = SizeLimits()
MAX_PATH_STEPS = 64  # steps of the quickest path that are distinguished


@dataclass(frozen=True)
class ViewEvidence(Record):
    """Evidence about one view of the machine: the machine itself (`hosts_of` is empty) or its hosts (host of every
    rank).
    """

    hosts_of: tuple[int, ...]
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True)
class SizeEvidence(Record):
    """Everything that `bound_by_size` needs besides the bounds on latency and bandwidth."""

    views: tuple[ViewEvidence, ...]


@dataclass(frozen=True, eq=False)
class SizeBound:
    """Minimum seconds as a function of the message size on one machine; L, B, alpha and f are explained above.

    `latency`
        Seconds of the quickest path (L).
    `seconds_per_byte`
        The bandwidth bound (B).
    `views`
        For the machine, then for its hosts if there are several: the least latency of a message (alpha), and the least
        seconds per byte for N = 1, 2, 3, ... steps, max(B, f(N)).
    `excess_latencies`
        Seconds by which a schedule of 1, 2, 3, ... steps takes longer than alpha per step, at least, as some data must
        take slow links. The last entry counts for all greater numbers of steps.
    """

    latency: float
    seconds_per_byte: float
    views: tuple[tuple[float, Floats], ...]
    excess_latencies: tuple[float, ...] = ()

    def seconds(self, nbytes: int) -> float:
        """Return the least time of any schedule for this size."""
        transfers = [_transfer_seconds(per_byte, nbytes) for _, per_byte in self.views]
        latencies = [self._latencies(i) for i in range(len(self.views))]
        min_seconds = self.latency + self.seconds_per_byte * nbytes
        for latency, transfer in zip(latencies, transfers, strict=True):
            min_seconds = max(min_seconds, float(self._times(latency, transfer, nbytes).min()))
        if len(self.views) < 2:
            return min_seconds
        # Both views together, for up to `combined` steps; for more steps the machine's own bound.
        (alpha, _), (host_alpha, _) = self.views
        (own_latency, _), (own_transfer, host_transfer) = latencies, transfers
        combined = LIMITS.combined_steps
        # below: a row per number M of steps between hosts, a column per number N of all steps
        beyond = float(self._times(own_latency, own_transfer, nbytes)[combined:].min(initial=np.inf))
        steps = np.arange(1, len(own_transfer[:combined]) + 1)
        between = steps[:, None]  # M: of all steps, those in which data pass between hosts
        latency = np.maximum(own_latency[:combined], steps * alpha + between * (host_alpha - alpha))
        total = latency + np.maximum(own_transfer[:combined], host_transfer[:combined, None])
        return max(min_seconds, min(beyond, float(np.where(between <= steps, total, np.inf).min())))

    def _latencies(self, view: int) -> Floats:
        """Return the least latency of a schedule of 1, 2, 3, ... steps of a view."""
        alpha, per_byte = self.views[view]
        step_latencies = np.arange(1, len(per_byte) + 1) * alpha
        latency: Floats = np.maximum(self.latency, step_latencies)
        if view or not self.excess_latencies:  # `excess_latencies` are of view 0, the machine itself
            return latency
        excess = np.array(self.excess_latencies)
        excess = np.pad(excess, (0, len(per_byte) - len(excess)), mode="edge")
        latency = np.maximum(latency, step_latencies + excess)
        return latency

    def _times(self, latency: Floats, transfer: Floats, nbytes: int) -> Floats:
        """Return the least seconds of schedules of 1, 2, 3, ... steps of one view, and last of any more steps."""
        return np.append(latency + transfer, latency[-1] + self.seconds_per_byte * nbytes)


def _transfer_seconds(per_byte: Floats, nbytes: int) -> Floats:
    """Return per_byte * nbytes; infinite where per_byte is, even for 0 bytes (inf * 0 would be NaN)."""
    return per_byte * nbytes if nbytes else np.where(np.isinf(per_byte), np.inf, 0.0)


@dataclass(frozen=True, eq=False)
class _View:
    """The machine, or the machine of its hosts, with the needs between its ranks."""

    topology: Topology
    needs: Needs
    collective: Collective

    @cached_property
    def switches_help(self) -> bool:
        # In the view of the hosts the collective still counts ranks: then a switch may seem to help that does not. That
        # only excludes evidence.
        return bool(abilities_of(self.topology, self.collective))

    @cached_property
    def holders(self) -> list[int]:
        """Ranks that are the only holder of something that others need."""
        sets = [self.needs.sets[i] for i in np.unique(self.needs.holders).tolist()]  # a need names its set by number
        return sorted({holders[0] for holders in sets if len(holders) == 1})

    @cached_property
    def receivers(self) -> list[int]:
        """Ranks that need something."""
        return [int(rank) for rank in np.unique(self.needs.dst)]

    @cached_property
    def any_through(self) -> bool:
        """Whether a switch can combine data on the way to other switches (the ability `through`).

        Then a joint (transfers that switches turn into one multicast or reduction) may have several sources and several
        destinations. Switches that do not help this collective count, too (`topology.abilities` has all): such a switch
        may pass on what one switch reduced and another multicasts.
        """
        return any(ability.through for ability in self.topology.abilities)

    def prove(self, evidence: Evidence) -> StepTimes:
        """Return what the evidence proves about this view; raise Invalid if it proves nothing."""
        if isinstance(evidence, Exchange) and self.any_through:
            raise Invalid("this bound's evidence does not hold: a switch reduces and multicasts at once")
        return proved_times(self.topology, self.needs, evidence, self.switches_help)


def find_evidence(topology: Topology, collective: Collective, seconds_per_byte: float = 0.0) -> SizeEvidence:
    """Search for evidence about f(N) on the machine and on the machine of its hosts.

    `seconds_per_byte`: the bandwidth bound; evidence that hardly exceeds it is not sought.
    """
    per_weight = seconds_per_byte * collective.buffer_weight
    views = [
        ViewEvidence(hosts_of=(), evidence=tuple(_search(_view_of(topology, collective, hosts_of=()), per_weight)))
    ]
    if hosts_of := hosts(topology):
        views.append(ViewEvidence(hosts_of, tuple(_search(_view_of(topology, collective, hosts_of), per_weight))))
    return SizeEvidence(tuple(views))


def bound_by_size(
    topology: Topology, collective: Collective, quickest: Quickest | None, seconds_per_byte: float,
    evidence: SizeEvidence,
) -> SizeBound:  # fmt: skip
    """Evaluate evidence on a machine, whose latencies and bandwidths may differ from those of the machine it was found
    on.

    `quickest`: the quickest path of the data that take longest on this machine. `seconds_per_byte`: its bandwidth
    bound. Raises Invalid if the evidence proves nothing.
    """
    steps = np.arange(1, LIMITS.max_steps + 1, dtype=np.float64)
    views = []
    for view_evidence in evidence.views:
        if view_evidence.hosts_of and view_evidence.hosts_of != hosts(topology):
            raise Invalid("this bound's evidence does not hold: its hosts are not those of the machine")
        view = _view_of(topology, collective, view_evidence.hosts_of)
        if not len(view.needs):  # a group within one host sends nothing between hosts
            continue
        per_byte = np.full(len(steps), seconds_per_byte)
        for item in view_evidence.evidence:
            per_weight = view.prove(item).per_weight(steps)
            per_byte = np.maximum(per_byte, per_weight / collective.buffer_weight)
        views.append((least_message_latency(view.topology), per_byte))
    latency = 0.0 if quickest is None else quickest.seconds
    excess = _excess_latencies(topology, needs_of(collective), quickest)
    return SizeBound(latency, seconds_per_byte, tuple(views), excess)


def _excess_latencies(topology: Topology, needs: Needs, quickest: Quickest | None) -> tuple[float, ...]:
    """Return how much longer than alpha per step the latency of a schedule of 1, 2, 3, ... steps is, at least.

    In each step the data that take longest move along a route, which takes its latency, or stay, which takes alpha: so
    this is the quickest path in at most so many steps where every route costs its latency less alpha. Bellman-Ford, one
    round per step, until more steps change nothing; after MAX_PATH_STEPS the last entry is 0. Empty where several ranks
    hold the same data, as a path from another of them might be quicker.
    """
    if quickest is None or any(len(holders) > 1 for holders in needs.sets):
        return ()
    alpha = least_message_latency(topology)
    latency = np.array([kind.latency for kind in topology.types])[topology.link_type]
    tail, head, excess = topology.link_src, topology.link_dst, np.full(topology.nodes, np.inf)
    excess[quickest.src] = 0.0
    into_switch = topology.link_dst >= topology.ranks
    paths: list[float] = []
    while len(paths) < MAX_PATH_STEPS:
        excess[topology.ranks :] = np.inf  # a switch holds no data from one step to the next
        for _ in range(topology.switches):  # through switches, which belong to the same step
            previous = excess.copy()
            np.minimum.at(excess, head[into_switch], excess[tail[into_switch]] + latency[into_switch])
            if np.array_equal(previous, excess):
                break
        arrived = excess.copy()
        np.minimum.at(arrived, head[~into_switch], excess[tail[~into_switch]] + latency[~into_switch] - alpha)
        # alpha is of routes between two ranks; a way through a switch back to the same rank may take less
        arrived = np.maximum(arrived, 0.0)
        paths.append(float(arrived[quickest.dst]))
        if np.array_equal(arrived[: topology.ranks], excess[: topology.ranks]):
            return tuple(paths)
        excess = arrived
    return (*paths, 0.0)


def least_message_latency(topology: Topology) -> float:
    """Return the least latency in seconds of a route from one rank to another; 0 if there is no route.

    Every switch keeps its quickest route from any rank and its quickest route from a second rank, because a route must
    not end where it began. If rank A hangs on a switch, the quickest route at that switch comes from A itself and
    cannot be used to reach A. Bellman-Ford: routes grow by one link in each round.
    """
    if not topology.links:
        return 0.0
    latency = np.array([kind.latency for kind in topology.types])[topology.link_type]
    into_switch = np.flatnonzero(topology.link_dst >= topology.ranks)
    node = np.arange(topology.nodes)
    is_rank = node < topology.ranks
    # Both arrays: row 0 of the quickest route, row 1 of the quickest from a second rank; a column per node.
    seconds = np.stack([np.where(is_rank, 0.0, np.inf), np.full(topology.nodes, np.inf)])
    begin = np.stack([np.where(is_rank, node, -1), np.full(topology.nodes, -1)])  # the rank that a route comes from
    # A route passes a switch at most once, so `switches` rounds suffice; twice as many leave no doubt. The loop ends as
    # soon as a round changes nothing.
    for _ in range(2 * topology.switches):
        tail, head = topology.link_src[into_switch], topology.link_dst[into_switch]
        arrivals = np.concatenate([*(seconds[:, tail] + latency[into_switch]), *seconds])
        # Candidates of every switch: both routes of each predecessor, extended by the link, and its own two.
        origins, heads = np.concatenate([*begin[:, tail], *begin]), np.concatenate([head, head, node, node])
        previous = seconds
        seconds, begin = np.full_like(seconds, np.inf), np.full_like(begin, -1)
        for i in range(2):  # the quickest route to each node; then the quickest from any rank but that route's
            usable = np.isfinite(arrivals) & ((i == 0) | (origins != begin[0][heads]))
            order = np.flatnonzero(usable)
            order = order[np.lexsort((origins[order], arrivals[order], heads[order]))]
            reached, at = np.unique(heads[order], return_index=True)
            seconds[i, reached], begin[i, reached] = arrivals[order[at]], origins[order[at]]
        if np.array_equal(seconds, previous):
            break
    tail, head = topology.link_src, topology.link_dst
    ends = is_rank[head][None] & (begin[:, tail] != head)
    shortest = (seconds[:, tail] + latency)[ends].min(initial=np.inf)
    return float(shortest) if np.isfinite(shortest) else 0.0


# ---- views ----


def _view_of(topology: Topology, collective: Collective, hosts_of: Sequence[int]) -> _View:
    """Return a view: the machine itself, or with `hosts_of` the machine and the needs of its hosts."""
    needs = needs_of(collective)
    if not hosts_of:
        return _View(topology, needs, collective)
    host = np.array(hosts_of, np.int64)
    sets = tuple(tuple(sorted({int(host[holder]) for holder in holders})) for holders in needs.sets)
    dst = host[needs.dst]
    has_holders = np.array([len(holders) for holders in sets]) > 0
    holds = np.zeros((len(sets), int(host.max()) + 1), bool)
    for i, holders in enumerate(sets):
        holds[i, list(holders)] = True
    inside = holds[needs.holders, dst]  # a host that holds the data itself needs nothing
    keep = has_holders[needs.holders] & ~inside
    # Merge sets of ranks that are equal as sets of hosts; otherwise an exchange between hosts would not be recognised.
    distinct = sorted(set(sets))
    number_of_set = {holders: i for i, holders in enumerate(distinct)}
    number = np.array([number_of_set[holders] for holders in sets], np.int64)
    block, holders_number, dst = np.unique(
        np.stack([needs.block[keep], number[needs.holders[keep]], dst[keep]]), axis=1
    )
    merged = replace(needs, block=block, holders=holders_number, dst=dst, sets=tuple(distinct))
    return _View(contract(topology, host), merged, collective)


# ---- search ----


def _search(view: _View, bandwidth_bound: float) -> Iterator[Evidence]:
    """Yield each piece of evidence that proves most for some number of steps, then cuts over time.

    `bandwidth_bound`: the least seconds per unit of weight for any number of steps.
    """
    kind, topology = view.collective.kind, view.topology
    if view.collective.custom is not None or not len(view.needs) or not topology.links:
        return
    candidates: list[Evidence] = []
    if kind in ("broadcast", "reduce", "allreduce") and topology.nodes <= LIMITS.max_nodes:
        for src, dst in _far_pairs(view):
            candidates += _chains(view, src, dst)
        if not view.switches_help:
            candidates += _fans(view)
        # A fan proves more than an exchange, but not where switches help (`proved_times`).
        elif kind == "allreduce" and not view.any_through:
            candidates.append(Exchange(tuple(view.receivers)))
    if not view.switches_help and topology.ranks <= LIMITS.one_step_ranks:
        candidates += _one_steps(view)
    proofs = {evidence: view.prove(evidence) for evidence in dict.fromkeys(candidates)}
    useful = _find_strongest(proofs)
    yield from useful
    if topology.ranks <= LIMITS.cut_ranks and topology.links <= LIMITS.cut_links:
        yield from _step_cuts(view, bandwidth_bound, [proofs[evidence] for evidence in useful])


def _find_strongest(proofs: Mapping[Evidence, StepTimes]) -> list[Evidence]:
    """Return the evidence that proves the most for at least one number of steps."""
    # some 200 numbers of steps, ever sparser: curves that cross between two neighbours hardly differ there
    steps = np.unique(np.geomspace(1, LIMITS.max_steps, 256).astype(np.int64)).astype(np.float64)
    if not proofs:
        return []
    table = np.array([times.per_weight(steps) for times in proofs.values()])
    winners = set(table.argmax(axis=0).tolist())
    return [evidence for i, evidence in enumerate(proofs) if i in winners]


def _far_pairs(view: _View) -> list[tuple[int, int]]:
    """Return pairs (src, dst) for chains: from one holder to distant ranks that little capacity leads to."""
    topology, receivers = view.topology, view.receivers
    if not view.holders:
        return []
    if view.collective.kind == "reduce":
        dst = receivers[0]
        return [(src, dst) for src in _spread_out(topology, dst, {*view.holders} - {dst}, backwards=True)]
    src = min(
        view.holders[: LIMITS.max_centers], key=lambda rank: (-int(steps_from(topology, rank)[receivers].max()), rank)
    )
    return [(src, dst) for dst in _spread_out(topology, src, {*receivers} - {src})]


def _spread_out(topology: Topology, center: int, ranks: set[int], backwards: bool = False) -> list[int]:
    """Return the ranks farthest from `center` (`backwards`: to it), one for each distance and capacity."""
    steps = steps_from(topology, center, backwards=backwards)
    ends = topology.link_src if backwards else topology.link_dst
    capacity = np.zeros(topology.nodes)
    np.add.at(capacity, ends, np.array([float(kind.bandwidth) for kind in topology.types])[topology.link_type])
    representatives: dict[tuple[int, float], int] = {}
    for rank in sorted(ranks):
        representatives.setdefault((-int(steps[rank]), float(capacity[rank])), rank)
    return [representatives[key] for key in sorted(representatives)[: LIMITS.max_pairs]]


def _chains(view: _View, src: int, dst: int) -> Iterator[Chain]:
    """Yield chains between two ranks, for five assignments of the ranks between them to levels.

    1. Steps from the source.
    2. Steps to the destination, counted down.
    3. The mean of these two, which puts a rank beside a path on the level of the rank that joins it to the path.
    4. All other ranks on one level between the two.
    5. Steps from the narrowest cut around the source to the narrowest cut around the destination.

    Where a step raises the level by more than one, `Chain.jumps` accounts for it.
    """
    topology = view.topology
    from_src, to_dst = steps_from(topology, src), steps_from(topology, dst, backwards=True)
    top = int(from_src[dst])
    three_levels = np.ones(topology.ranks, np.int64)
    three_levels[src], three_levels[dst] = 0, 2
    assignments = [np.clip(levels, 0, top) for levels in (from_src, top - to_dst, (from_src + top - to_dst) // 2)]
    assignments += [three_levels, *_levels_between_cuts(topology, src, dst)]
    for levels in {tuple(levels.tolist()): levels for levels in assignments}.values():
        yield from _chains_of(topology, levels, int(levels[dst]))


def _levels_between_cuts(topology: Topology, src: int, dst: int) -> Iterator[Longs]:
    """Yield levels between the narrowest cut around the source and that around the destination, if the two are apart.

    Ranks within the first are on level 0, ranks within the second on the last level, others on their number of steps
    from the first.
    """
    ends = topology.link_src.tolist(), topology.link_dst.tolist()
    capacity = link_capacities(topology).tolist()
    # `near`: of all narrowest cuts, the one nearest to the source; `far`: the one nearest to the destination
    near, far = (
        MaxFlows(topology.nodes, tail, head).smallest_cut(capacity, begin, end)[: topology.ranks]
        for (tail, head), begin, end in ((ends, src, dst), (ends[::-1], dst, src))
    )
    levels = steps_from(topology, np.flatnonzero(near).tolist())
    top = int(levels[far].min(initial=topology.nodes))
    if 0 < top < topology.nodes:  # 0: the two sets overlap; `nodes`: no step leads from one to the other
        yield np.where(far, top, np.minimum(levels, top - 1))


def _chains_of(topology: Topology, levels: Longs, top: int) -> Iterator[Chain]:
    """Yield the chains of one assignment to levels: for each run of consecutive cuts, once with all cuts, and once with
    windows (`Chain.windows`: only the first and the last cut count). `top`: the last level.
    """
    cuts = [find_switch_cut(topology, levels <= i, levels > i) for i in range(top)]
    jumps = [find_switch_cut(topology, levels < i, levels > i) for i in range(1, top)]  # cuts of links over level i
    cut_widths, jump_widths = [width for width, _ in cuts], [width for width, _ in jumps]
    for windows in (False, True):
        for first, last in _runs(cut_widths, jump_widths, windows=windows):
            # a window of one level says no more than the chain itself, and none may be jumped over (steps.py)
            if windows and (last - first < 2 or any(jump_widths[first:last])):
                continue
            cut_switches = tuple(switches for _, switches in cuts[first : last + 1])
            jump_switches = tuple(switches for _, switches in jumps[first:last])
            yield Chain(tuple(levels.tolist()), first, cut_switches, jump_switches, windows)


def _runs(widths: list[int], jumps: list[int], windows: bool = False) -> list[tuple[int, int]]:
    """Return runs (first, last) of consecutive cuts: all if there are few levels, else for several capacities the
    longest runs of cuts that are no wider.

    `jumps[i]`: capacity of the links that skip the level between cuts i and i + 1. `windows`: only the first and last
    cut must be within the capacity, and no link may skip a level.
    """
    top = len(widths)
    if top <= LIMITS.all_runs:
        return [(first, last) for first in range(top) for last in range(first, top)]
    runs = dict[tuple[int, int], None]()
    for widest, widest_jump in itertools.product(_sample_values(widths), [0] if windows else _sample_values(jumps)):
        first = last = -1  # the first and last cut of the run that is open; -1: none is
        for i, width in enumerate(widths):
            broken = first >= 0 and jumps[i - 1] > widest_jump
            if first >= 0 and (broken or (width > widest and not windows)):
                runs[first, last] = None
                first = -1
            if width <= widest:
                first, last = (i if first < 0 else first), i
        if first >= 0:
            runs[first, last] = None
    return list(runs)


def _sample_values(values: Sequence[int]) -> list[int]:
    """Return up to `max_widths` of the distinct values, evenly chosen in order, the least and the greatest included."""
    distinct = sorted(set(values))
    chosen = np.unique(np.linspace(0, len(distinct) - 1, min(len(distinct), LIMITS.max_widths)).astype(np.int64))
    return [distinct[i] for i in chosen.tolist()]


def _fans(view: _View) -> Iterator[Fan]:
    """Yield fans from (or into) the rank with least capacity: to the few ranks with the least capacity, and to more of
    them.
    """
    topology = view.topology
    if not view.holders:
        return
    capacity = np.array([float(kind.bandwidth) for kind in topology.types])[topology.link_type]
    for inward in (False, True):
        if view.collective.kind == ("broadcast" if inward else "reduce"):
            continue  # in a broadcast no rank needs data of many, in a reduce no rank's data are needed by many
        center_end, other_end = (
            (topology.link_dst, topology.link_src) if inward else (topology.link_src, topology.link_dst)
        )
        centers, far_ends = (view.receivers, view.holders) if inward else (view.holders, view.receivers)
        as_center, as_end = np.zeros(topology.nodes), np.zeros(topology.nodes)  # capacity of a node in either role
        np.add.at(as_center, center_end, capacity)
        np.add.at(as_end, other_end, capacity)
        center = min(centers, key=lambda rank: (as_center[rank], rank))
        ranked = sorted((rank for rank in far_ends if rank != center), key=lambda rank: (as_end[rank], rank))
        # Take the first `count` ranks for every count at which the next rank has more capacity.
        counts = [i for i in range(1, len(ranked) + 1) if i == len(ranked) or as_end[ranked[i - 1]] < as_end[ranked[i]]]
        yield from (Fan(center, tuple(ranked[:count]), inward) for count in counts)


def _one_steps(view: _View) -> Iterator[OneStep]:
    """Yield evidence "one step" for pairs of sets, each in both directions.

    The pairs: a rank and all ranks of other hosts; a rank and all ranks beyond some distance; the ranks within some
    distance of a node and all others.
    """
    topology, ranks = view.topology, view.topology.ranks
    tail = np.concatenate([topology.link_src, topology.link_dst])  # links both ways
    head = np.concatenate([topology.link_dst, topology.link_src])
    # Row i of `within_reach`: the nodes within the distance so far of node i. Keys of `pairs` only drop repeated pairs.
    within_reach, pairs = np.eye(topology.nodes, dtype=bool), dict[bytes, tuple[Bools, Bools]]()
    ends = [*view.holders[: LIMITS.one_step_ends], *view.receivers[: LIMITS.one_step_ends]]
    host = np.array(hosts(topology) or [0] * ranks)
    other_hosts = [(np.arange(ranks) == rank, host != host[rank]) for rank in ends]  # pairs (near, far), as below
    for _ in range(LIMITS.one_step_reach):
        of_ranks = [*other_hosts, *((np.arange(ranks) == rank, ~within_reach[rank, :ranks]) for rank in ends)]
        for near, far in (*of_ranks, *((inside[:ranks], ~inside[:ranks]) for inside in within_reach)):
            for pair in ((near, far), (far, near)):
                if near.any() and far.any() and len(pairs) < LIMITS.one_step_sets:
                    pairs.setdefault(b"".join(side.tobytes() for side in pair), pair)
        wider = within_reach.copy()
        np.logical_or.at(wider, head, within_reach[tail])
        within_reach = wider
    for near, far in pairs.values():
        width, switches = find_switch_cut(topology, near, far)
        if width:
            yield OneStep(tuple(np.flatnonzero(near).tolist()), tuple(np.flatnonzero(far).tolist()), switches)


def _step_cuts(view: _View, bandwidth_bound: float, proofs: Sequence[StepTimes]) -> Iterator[Evidence]:
    """Yield cuts over time for growing numbers of steps, until they prove hardly more than the bandwidth bound and the
    other evidence (`proofs`).
    """
    members = sorted({*view.receivers, *view.holders})
    deliveries = list(list_deliveries(view.topology, view.collective.kind, view.needs, members))
    if not deliveries:
        return
    # Routes count every copy that a forwarding switch sends on, and shared limits. Where switches help they prove
    # nothing; without switches and limits a route is a link, and they prove no more.
    routed = not view.switches_help and (view.topology.switches or view.topology.limits)
    searches = [(RoutedSearch if routed else StepSearch)(delivery) for delivery in deliveries]
    first = max(delivery.least_steps() for delivery in deliveries)
    for steps in _step_counts(first):
        evidence = [cuts for search in searches if (cuts := search.find_cuts(steps)) is not None]
        # `base_time` of cuts over time: seconds per unit of weight that `steps` steps take at least
        proved = {cuts: float(view.prove(cuts).base_time) for cuts in evidence}
        if not proved:
            return
        strongest = max(proved, key=proved.__getitem__)
        otherwise_proved = [float(times.per_weight(np.array([float(steps)])).item()) for times in proofs]
        if proved[strongest] > max([bandwidth_bound, *otherwise_proved]) * LIMITS.min_gain:
            yield strongest
        elif steps > first:
            return


def _step_counts(first: int) -> list[int]:
    """Return the numbers of steps for which cuts are searched: `cut_steps` consecutive ones, then ever sparser.

    >>> _step_counts(2)
    [2, 3, 4, 5, 6, 8, 10, 13, 17]
    """
    counts = list(range(first, first + LIMITS.cut_steps))
    while counts[-1] < LIMITS.last_cut_steps:
        counts.append(max(counts[-1] + 1, math.ceil(counts[-1] * LIMITS.cut_growth)))
    return counts
