"""The planner `trees`: trees packed at the greatest possible rate, with a proof (docs/planners/trees.md).

Input: a broadcast, reduce, allgather, reducescatter or allreduce on a machine. Output: schedules that send each share
of the data along a spanning tree of its own, pipelined for each message size, with the lower bound and its witness.

A broadcast can be pipelined down a spanning tree: with fine slices it runs at the bandwidth of the tree's slowest link.
Several trees that share the links run faster. A packing gives each tree a rate such that no link carries more than its
bandwidth; by Edmonds (1973) the best total rate is the capacity of the tightest cut between the root and any receiver.
So a packing at that rate is optimal, and the cut proves it.

Example: root 0 and ranks 1, 2, all pairs joined by links of 1 GB/s both ways. Each receiver has 2 GB/s coming in, so no
broadcast is faster. The trees 0 > 1 > 2 and 0 > 2 > 1, each at 1 GB/s, reach that.

A request passes three stages, which stand in reverse order below:

    1. `pack_trees`        packs a forest (trees out of every root) with the engine that suits the machine
    2. `_best_plan`        makes an unpipelined schedule. Broadcast and allgather send down the trees. Reduce and
                           reducescatter are those of the reversed machine, run backwards. An allreduce is the fastest
                           of: undirected trees, up to a root and down the same links (spanning.py); two forests, a
                           reducescatter and then an allgather; trees in to common roots and out of them
    3. `_pipeline_plan`    divides the schedule into equal or uneven slices for the message size
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, lru_cache
from typing import Annotated, Any, NamedTuple

from antiphon.core.bounds import Bound, bound
from antiphon.core.collective import Collective
from antiphon.core.loads import throughput
from antiphon.core.request import Request
from antiphon.core.reshape import reverse
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import compose, dual, invert
from antiphon.cost.barriers.alpha_beta import alpha_beta
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.options import Option
from antiphon.planners.shared.orbits import Symmetries
from antiphon.planners.shared.pipelining import (
    PipelinedSchedule,
    PipelineOptions,
    PipelinePlans,
    pipe_schedule,
    stage_plans,
)
from antiphon.planners.shared.reach import Reach, suggest_planners
from antiphon.planners.shared.rows import PiecesOrBest, UnevenSteps, machine_for_dual
from antiphon.planners.shared.tree_schedules import (
    Pair,
    SpanningTree,
    count_trees_per_root,
    reduce_and_spread,
    refine_shares,
    spread_trees,
    trees_by_root,
)
from antiphon.planners.trees.columns import QuotientView, check_reach, pack_allreduce_lp, pack_lp, pack_orbits
from antiphon.planners.trees.direct_links import Directed, Undirected, directed_machine, undirected_machine
from antiphon.planners.trees.fewest import Fewest, fewest_broadcast, fewest_spanning
from antiphon.planners.trees.forest import pack_forests
from antiphon.planners.trees.portions import at_full_rate, pack_by_cuts
from antiphon.planners.trees.rounding import (
    HIGHEST,
    Capacities,
    Portion,
    Rounding,
    round_shares,
    rounded_trees,
    tree_portions,
    with_shares,
)
from antiphon.planners.trees.spanning import pack_spanning
from antiphon.planners.trees.to_schedule import Forest, spread_images

SPREADING = ("broadcast", "allgather")  # collectives that send data down trees without reducing
MOST_RANKS = 2048
MOST_PAIRS = 2**18  # ranks times roots; above this, machines without enough symmetries are refused
MOST_ORBIT_PAIRS = 2**14  # ranks times orbits of roots, where there are more than MOST_PAIRS
FEWEST_TREES_MAX_RANKS = 16  # up to this many ranks, search the fewest trees
LP_FIRST_PAIRS = 2**9  # up to this many ranks times roots, pack by columns at once; above it, by cuts if possible
IN_AND_OUT_RANKS = 32  # up to this many, trees in and out are packed by columns (10 s on an irregular machine)
CUTS_RANKS = 256  # up to this many, trees in and out are packed by cuts
HALVES_RANKS = 128  # up to this many, option `halves` is tried by default ...
HALVES_FROM = 1.02  # ... if the predicted time is above this multiple of the lower bound
HALVES_TO = 2.0  # and below this one
_TOO_MANY = (
    "planner trees: {} ranks, {} of them roots, of which no symmetry that was found takes {} to each other: too many; "
    "use compose, greedy or hierarchical-ring"
)


Waits = Annotated[bool | None, Option("with steps: give every hop a start time of its own (yes or no)")]
Halves = Annotated[bool | None, Option("allreduce: trees to reduce, then to gather (default: where that is faster)")]
Loss = Annotated[
    float | str | Fraction,
    Option("share of the rate to give up for fewer trees, where all roots use one set of trees; below 1", minimum=0),
]
Denominator = Annotated[
    int | None,
    Option(
        "maximum denominator of the trees' shares (default: 1024, more where that loses over 0.5 % of the rate)",
        minimum=1, maximum=HIGHEST,
    ),
]  # fmt: skip


def trees(
    request: Request, *, pieces: PiecesOrBest = None, steps: UnevenSteps = None, waits: Waits = None,
    halves: Halves = None, loss: Loss = 0, denominator: Denominator = None,
) -> Iterator[Schedule]:  # fmt: skip
    """Plan the fastest packing of trees, pipelined for the message sizes of the request."""
    topology, collective = request.topology, request.collective
    task = PackingTask(topology, collective, _parse_loss(loss), request.seed, denominator)
    pipelining = PipelineOptions("trees", pieces, steps, request.sizes, request.profile, waits=waits)
    if len(collective.members) > MOST_RANKS:
        raise Unsupported(
            f"planner trees: {len(collective.members)} ranks; it takes up to {MOST_RANKS}; "
            + suggest_planners(topology, collective, "compose", "ring", "greedy")
        )
    bounds = bound(topology, collective)
    lower_bound = bounds.without_help  # without switches that reduce or multicast, which trees do not use
    stated_options: dict[str, Any] = {"loss": str(task.max_loss)} if task.max_loss else {}
    stated_options |= {} if task.max_denominator is None else {"denominator": task.max_denominator}
    # stages 1 and 2, then 3
    best = _best_plan(task, lower_bound.bytes_per_second)
    for plan, candidate in _pipeline_plan(best, task, pipelining, halves, lower_bound):
        findings = _describe_plan(plan, topology, bounds)
        proof = {"bound": (bounds if findings["optimal"] else lower_bound).plan_json()}
        origin = {"planner": "trees", "options": {**stated_options, **candidate.options}, "seed": request.seed}
        yield replace(candidate.schedule, provenance={**origin, "found": findings, **proof})


@dataclass(frozen=True)
class PackingTask:
    """A machine and a collective to pack trees for.

    `max_loss`: fraction of the rate that may be given up to have fewer trees. `max_denominator`: the largest
    denominator of the trees' shares of the data; None: 1024, or more if that loses over 0.5 % of the rate.
    """

    topology: Topology
    collective: Collective
    max_loss: Fraction = Fraction(0)
    seed: int = 0
    max_denominator: int | None = None

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that take part."""
        return self.collective.members


@dataclass(frozen=True)
class TreePlan:
    """An unpipelined schedule and the trees it uses.

    `count`: number of trees of one root, or of the allreduce.
    `method`: how they were packed, in words.
    `best`: whether no packing of such trees is faster, before shares are rounded.
    `fewest`: a sentence on the minimum number of trees, for the provenance.
    `rounding`: how the trees' shares were rounded; None: not at all.
    `halves`: for an allreduce by two forests, the allgather on the machine and the one on the reversed machine.
    """

    schedule: Schedule
    trees: tuple[SpanningTree, ...]
    count: int
    method: str
    best: bool
    fewest: str | None = None
    rounding: Rounding | None = None
    halves: tuple[Schedule, Schedule] | None = None

    def exact_rate(self, topology: Topology) -> Fraction | None:
        """Return the rate before shares were rounded, in bytes of nbytes per second; None if nothing moves."""
        rate = throughput(self.schedule, topology)
        return rate / (1 - self.rounding.loss) if rate is not None and self.rounding is not None else rate


class PipelinedPlan(NamedTuple):
    """A plan, and one of its pipelined schedules."""

    plan: TreePlan
    pipelined: PipelinedSchedule


# ---- stage 3: pipelining ----


def _pipeline_plan(
    plan: TreePlan, task: PackingTask, pipelining: PipelineOptions, use_halves: bool | None, lower_bound: Bound
) -> Iterator[PipelinedPlan]:
    """Yield the schedule in equal slices, uneven slices or as two halves, for every size.

    Halves: a reducescatter and then an allgather, each pipelined on its own. `use_halves`: None tries them where they
    may be faster. `lower_bound`: the lower bound on time.
    """
    topology, collective = task.topology, task.collective
    if use_halves and collective.kind != "allreduce":
        raise Unsupported(f"planner trees: a {collective.kind} has no halves; leave the option out")

    @cache
    def split_in_halves() -> tuple[TreePlan, PipelinePlans, PipelinePlans]:
        """Return the plan by two forests, and its halves prepared for pipelining."""
        # pack two forests if the best packing is of another kind
        split = plan if plan.halves else _two_forests(task)
        assert split.halves is not None
        gather, reversed_gather = split.halves
        return split, PipelinePlans([gather], topology), PipelinePlans([reversed_gather], reverse(topology))

    def pipeline_halves(pipelining: PipelineOptions) -> list[PipelinedPlan]:
        """Return the pipelined plans in two halves."""
        split, gather, reversed_gather = split_in_halves()
        schedules = _one_after_the_other(gather, reversed_gather, collective, pipelining)
        return [PipelinedPlan(split, pipelined) for pipelined in schedules]

    if use_halves:
        yield from pipeline_halves(pipelining)
        return
    # one schedule for all sizes; only the slicing depends on the size
    prepared = PipelinePlans([plan.schedule], topology)
    is_rooted = collective.kind in ("broadcast", "reduce")  # uneven slices of these are left to the planner `shallow`
    is_free = pipelining.pieces is None and pipelining.steps is None  # no option fixes the slicing
    # with a number of pieces from the user the schedule is the same for all sizes, so it is yielded once
    for nbytes in pipelining.sizes if pipelining.pieces is None else pipelining.sizes[:1]:
        for_size = replace(pipelining, sizes=(nbytes,))
        if pipelining.steps is None and (nbytes is None or is_rooted or pipelining.pieces is not None):  # equal slices
            schedules = pipe_schedule(plan.schedule, topology, pipelining.pieces, for_size.sizes, pipelining.profile)
            pipelined = [PipelinedSchedule(schedule, {"pieces": int(schedule.pieces)}) for schedule in schedules]
        else:
            if is_free and collective.kind == "allreduce":  # start times per hop gain more with halves, tried below
                for_size = replace(for_size, waits=False)
            pipelined = list(stage_plans(prepared, for_size))
        candidates = [PipelinedPlan(plan, candidate) for candidate in pipelined]
        if nbytes is not None and collective.kind == "allreduce" and is_free:
            for_size = replace(for_size, waits=pipelining.waits)
            first, *_ = candidates
            candidates = [_faster_with_halves(first, pipeline_halves, for_size, nbytes, topology, lower_bound)]
        yield from candidates


def _faster_with_halves(
    candidate: PipelinedPlan, pipeline_halves: Callable[[PipelineOptions], list[PipelinedPlan]],
    pipelining: PipelineOptions, nbytes: int, topology: Topology, lower_bound: Bound,
) -> PipelinedPlan:  # fmt: skip
    """Return the faster of the candidate and halves. Halves are only tried between HALVES_FROM and HALVES_TO."""

    def seconds(option: PipelinedPlan) -> float:
        """Return the predicted time."""
        return alpha_beta(option.pipelined.schedule, topology, profile=pipelining.profile)(nbytes).seconds

    bound_seconds = float(lower_bound.seconds(nbytes))
    # near the bound nothing is left to gain; far above it latency decides, and halves have more of it
    halves_may_gain = HALVES_FROM * bound_seconds < seconds(candidate) < HALVES_TO * bound_seconds
    if not halves_may_gain or candidate.plan.schedule.collective.ranks > HALVES_RANKS:
        return candidate
    return min([candidate, *pipeline_halves(pipelining)], key=seconds)


def _one_after_the_other(
    gather: PipelinePlans, reversed_gather: PipelinePlans, collective: Collective, pipelining: PipelineOptions
) -> Iterator[PipelinedSchedule]:
    """Yield allreduces: a reducescatter, then an allgather, each pipelined on its own with the same options.

    In the limit of many slices one pipeline of both is as fast; but each alone is half as deep, so it fills sooner.
    """
    for second in stage_plans(gather, pipelining):
        pieces, steps, waits = (second.options.get(name) for name in ("pieces", "steps", "waits"))
        # with pieces or steps fixed, a size decides little (which steps are quiet, pipelining.py): the first will do
        same_options = replace(pipelining, pieces=pieces, steps=steps, waits=bool(waits), sizes=pipelining.sizes[:1])
        try:
            # the reducescatter is the allgather of the reversed machine, run backwards
            first = invert(next(iter(stage_plans(reversed_gather, same_options))).schedule)
        except Unsupported:  # the reducescatter takes more steps than the allgather
            continue
        schedule = replace(compose(first, second.schedule), collective=collective)
        yield PipelinedSchedule(schedule, {**second.options, "halves": True})


def _describe_plan(plan: TreePlan, topology: Topology, bounds: Bound) -> dict[str, Any]:
    """Return what the provenance of a plan states about its trees (docs/planners/trees.md, "What is proved")."""
    lower_bound, rate = bounds.without_help, throughput(plan.schedule, topology)
    is_lossy = plan.rounding is not None and plan.rounding.loss > 0
    findings: dict[str, Any] = {
        "rate": str(rate / topology.unit) if rate is not None else None,
        "optimal": rate == bounds.bytes_per_second,
        **({"optimal_without_switches": rate == lower_bound.bytes_per_second} if bounds.unaided else {}),
        "best_of_its_kind": (plan.best and not is_lossy) or rate == lower_bound.bytes_per_second,
        "trees": plan.count,
        "deepest": max((tree.depth for tree in plan.trees), default=0),
        "how": plan.method,
    }
    if plan.fewest is not None:
        findings["few"] = plan.fewest
    # state the rate before rounding, too
    if plan.rounding is not None:
        exact = plan.exact_rate(topology)
        findings["how"] = f"{plan.method}; {plan.rounding.describe()}"
        findings["rounding"] = {
            "denominator": plan.rounding.denominator,
            "loss": float(plan.rounding.loss),
            "exact_rate": None if exact is None else str(exact / topology.unit),
        }
    return findings


def _parse_loss(loss: float | str | Fraction) -> Fraction:
    """Return the option `loss` as an exact fraction; raises Invalid."""
    try:
        value = Fraction(str(loss))
    except (ValueError, ZeroDivisionError):
        value = Fraction(-1)
    if not 0 <= value < 1:
        raise Invalid(f"option loss: expected a share of the rate from 0 to below 1, such as 0.05, got {quote(loss)}")
    return value


# ---- stage 2: from packings to the schedule of a collective ----


def _best_plan(task: PackingTask, max_rate: Fraction | None) -> TreePlan:
    """Return the fastest plan of the collective. `max_rate`: bytes/s that no plan exceeds.

    With a loss, the plan with the fewest trees among those fast enough.
    """
    if len(task.members) < 2:
        return TreePlan(spread_trees(task.collective, trees=()), trees=(), count=0, method="nothing to move", best=True)
    if task.collective.kind == "allreduce":
        plans = list(pack_allreduce(task, max_rate))
        rates = [plan.exact_rate(task.topology) or Fraction(0) for plan in plans]
        # of those fast enough: with a loss the one of the fewest trees, without one that of the fewest steps
        max_packed_rate = max(rates)
        fast_enough = [number for number, rate in enumerate(rates) if rate >= (1 - task.max_loss) * max_packed_rate]
        chosen = min(fast_enough, key=lambda n: (plans[n].count if task.max_loss else 0, plans[n].schedule.steps))
        proved_rates = [rate for plan, rate in zip(plans, rates, strict=True) if plan.best]
        # `best` of a plan compares it with trees of its own kind; the chosen one must be as fast as one so proved
        return replace(plans[chosen], best=rates[chosen] == max_packed_rate and max_packed_rate in proved_rates)
    if task.collective.kind in SPREADING:
        return _plan_spreading(task)
    machine, opposite_links = machine_for_dual(task.topology)  # None: directions differ, `machine` is the reversed one
    plan = _plan_spreading(replace(task, topology=machine, collective=dual(task.collective).collective), back=True)
    return replace(plan, schedule=replace(invert(plan.schedule, opposite_links), collective=task.collective))


def _plan_spreading(task: PackingTask, back: bool = False) -> TreePlan:
    """Plan a broadcast or allgather.

    `back`: the machine is a reversed one and the plan will be run backwards, so errors name links the other way round.
    """
    topology, collective = task.topology, task.collective
    relation = collective.relation
    # a root's demand is the weight of all blocks it holds initially
    weight_of: Counter[int] = Counter()
    for block, rank in zip(relation.pre_block.tolist(), relation.pre_rank.tolist(), strict=True):
        weight_of[rank] += int(collective.weights[block])
    demand = {root: weight for root, weight in weight_of.items() if weight}
    # empty blocks are sent, too: receivers wait for them
    weightless = [root for root in weight_of if root not in demand]
    check_reach(topology, weightless, task.members, back)
    packed = pack_trees(topology, demand, task.members, task.max_loss, task.seed)
    # one block per root and symmetric roots: build the rows from one tree per orbit
    if packed.forest is not None and collective.blocks == len(demand):
        forest = packed.forest
        trees, rounding = rounded_trees(
            forest.representatives, weight=demand, ends=task.members, topology=topology,
            max_denominator=task.max_denominator, group=forest.group,
        )  # fmt: skip
        schedule = spread_images(collective, replace(forest, representatives=trees))
    else:
        reach = Reach(topology)
        hops_from = {root: reach.tree_from(root).items() for root in weightless}
        idle_trees = [
            SpanningTree(root, Fraction(1), tuple((rank, hop) for rank, hop in hops if rank != root))
            for root, hops in hops_from.items()
        ]
        trees, rounding = rounded_trees(
            packed.trees, weight=demand, ends=task.members, topology=topology, max_denominator=task.max_denominator
        )
        schedule = spread_trees(collective, [*trees, *idle_trees])
    count = count_trees_per_root(trees)
    return TreePlan(schedule, trees, count, packed.method, best=packed.optimal, fewest=packed.fewest, rounding=rounding)


def pack_allreduce(task: PackingTask, max_rate: Fraction | None = None) -> Iterator[TreePlan]:
    """Yield allreduces, the most promising method first; stop once one is within the loss of `max_rate` (bytes/s)."""
    many_pairs = len(task.members) ** 2 > MOST_PAIRS
    # cheap and usually optimal methods first; the next one runs only if the bound is not reached
    for pack in (_two_forests,) if many_pairs else (_undirected_trees, _two_forests, _trees_in_and_out):
        plan = pack(task)
        if plan is not None:
            yield plan
            rate = plan.exact_rate(task.topology)
            if max_rate is not None and rate is not None and rate >= (1 - task.max_loss) * max_rate:
                return


def _undirected_trees(task: PackingTask) -> TreePlan | None:
    """Plan an allreduce on undirected trees, up to a root and down the same links (Blink, 3.3), at the greatest rate.

    None with switches or narrow shared limits, or where non-members must relay.
    """
    try:
        machine = undirected_machine(task.topology, task.members)
    except Unsupported:
        return None
    except Invalid:
        if len(task.members) == task.topology.ranks:
            raise
        return None  # non-members may have to relay
    best, description = True, None
    if machine.vertices <= FEWEST_TREES_MAX_RANKS:
        fewest = _fewest_cached(machine, task.max_loss)
        packed, best, description = fewest.trees, fewest.rate == fewest.optimum, fewest.describe()
    else:
        packed = pack_spanning(machine)
    trees, rounding = rounded_trees(
        packed, weight={}, ends=task.members, topology=task.topology, max_denominator=task.max_denominator
    )
    schedule = reduce_and_spread(task.collective, [Pair.of_tree(tree) for tree in trees])
    method = "undirected spanning trees"
    return TreePlan(schedule, trees, len(trees), method, best=best, fewest=description, rounding=rounding)


@lru_cache(maxsize=64)
def _fewest_cached(machine: Undirected, loss: Fraction) -> Fewest:
    """Return the fewest trees. Cached: the same machine recurs with other slices and sizes."""
    return fewest_spanning(machine, loss=loss)


def _two_forests(task: PackingTask) -> TreePlan:
    """Plan an allreduce as a reducescatter and an allgather, each by a forest with trees of every rank.

    Not proved to be the best: both run at once and share the links, and roots with unequal amounts might be faster.
    """
    topology, members = task.topology, task.members
    gather = Collective("allgather", task.collective.ranks, members)
    demand = dict.fromkeys(members, 1)
    out = pack_trees(topology, demand, members, seed=task.seed)
    # links keep their numbers on the reversed machine, so that its symmetries are the same
    group = None if out.forest is None else out.forest.group
    into = pack_trees(reverse(topology), demand, members, seed=task.seed, group=group)
    # with symmetries of both machines, only the trees of one root per orbit are kept
    if out.forest is None or into.forest is None:
        out_trees, in_trees, group = out.trees, into.trees, None
    else:
        out_trees, in_trees = out.representatives, into.representatives
    # both forests share the links, so their shares are rounded together
    portions = [*tree_portions(out_trees, demand, members, "out"), *tree_portions(in_trees, demand, members, "into")]
    rounding = round_shares(portions, Capacities.of_topology(topology, group), task.max_denominator)
    in_trees = with_shares(in_trees, rounding, first=len(out_trees))
    out_trees = with_shares(out_trees, rounding)
    spread, reversed_spread = (
        spread_trees(gather, trees) if group is None else spread_images(gather, Forest(topology, group, trees))
        for trees in (out_trees, in_trees)
    )
    return TreePlan(
        compose(invert(reversed_spread), spread), (*in_trees, *out_trees), count_trees_per_root(out_trees),
        f"reducescatter and allgather by {out.method}", best=False, rounding=rounding, halves=(spread, reversed_spread),
    )  # fmt: skip


def _trees_in_and_out(task: PackingTask) -> TreePlan | None:
    """Plan an allreduce on trees in to common roots and out of them; None if the machine is too large.

    This suits machines whose links differ by direction or have shared limits.
    """
    topology, ranks = task.topology, len(task.members)
    method, proved = "trees in and out with common roots", False
    if ranks <= IN_AND_OUT_RANKS:
        packing = pack_allreduce_lp(topology, task.members)
        proved, into, out = packing.proved, packing.trees_in, packing.trees_out
    else:
        if ranks < topology.ranks or ranks > CUTS_RANKS:
            return None
        by_cuts = pack_by_cuts(topology, demand=None, directions=(False, True))  # out of roots, and in to them
        if by_cuts is None:
            return None
        into, out = by_cuts.trees[True], by_cuts.trees[False]
        method += ", parts of the links by cuts"
    # pair the trees by root, and round the pairs' shares
    pairs = pairs_of(into, out)
    total = sum((pair.rate for pair in pairs), Fraction(0))
    # by pair, the links of all its legs (rank, parent, links, depth)
    links_of = [tuple(link for _, _, path, _ in (*pair.up, *pair.down) for link in path) for pair in pairs]
    portions = [
        Portion(group=None, share=pair.rate / total, weight=1, links=links)
        for pair, links in zip(pairs, links_of, strict=True)
    ]
    rounding = round_shares(portions, Capacities.of_topology(topology), task.max_denominator)
    if rounding is not None:
        pairs = [replace(p, rate=Fraction(n)) for p, n in zip(pairs, rounding.counts, strict=True) if n]
    schedule = reduce_and_spread(task.collective, pairs)
    return TreePlan(schedule, (*into, *out), len(pairs), method, proved, rounding=rounding)


def pairs_of(trees_in: tuple[SpanningTree, ...], trees_out: tuple[SpanningTree, ...]) -> list[Pair]:
    """Return, for every root, pairs of a tree in to it and a tree out of it, each pair with a rate.

    Trees of a root with rates 2, 1 in and 1, 2 out, say, are divided at 1 and at 2: three pairs of rate 1.
    """
    up, down = trees_by_root(trees_in), trees_by_root(trees_out)
    pairs = []
    for root in sorted(up):
        total = sum((tree.rate for tree in up[root]), Fraction(0))
        pairs += [
            Pair.of_two_trees(share * total, *matched) for share, matched in refine_shares([up[root], down[root]])
        ]
    return pairs


# ---- stage 1: packing ----


@dataclass(frozen=True)
class ForestPacking:
    """Trees out of every root; root r's trees carry demand[r] * rate bytes/s in total.

    `optimal`: whether no trees are faster. `method`, `fewest`: as in `TreePlan`. If the machine's symmetries were used,
    `representatives` are the trees of one root per orbit, and `forest` has all trees; else `representatives` are all
    trees, and `forest` is None.
    """

    representatives: tuple[SpanningTree, ...]
    rate: Fraction
    method: str
    optimal: bool
    fewest: str | None = None
    forest: Forest | None = None

    @property
    def trees(self) -> tuple[SpanningTree, ...]:
        """All trees of all roots."""
        return self.representatives if self.forest is None else self.forest.trees


def pack_trees(
    topology: Topology, demand: Mapping[int, int], members: Sequence[int], loss: Fraction = Fraction(0), seed: int = 0,
    group: Symmetries | None = None,
) -> ForestPacking:  # fmt: skip
    """Return the fastest trees from every root to all members, as few and shallow as possible.

    The first engine that applies packs them:

        fewest.py     one root and a small machine of direct links: the fewest trees
        columns.py    several roots and a machine with symmetries: trees of one root per orbit
        forest.py     machines whose switches can be replaced by arcs between ranks without loss
        portions.py   many ranks times roots, no relaying ranks: a linear program over cuts
        columns.py    everything else: a linear program over trees

    `loss`: fraction of the rate that may be given up to have fewer trees; only the first engine uses it. `group`: the
    machine's symmetries, if known.
    """
    if len(demand) == 1:
        # one root: no symmetric roots to use, but on few ranks with direct links the fewest trees can be searched for
        linked = {*topology.link_src.tolist(), *topology.link_dst.tolist()}
        is_small = len(members) <= FEWEST_TREES_MAX_RANKS and linked <= set(members)  # no other node has links
        machine = _direct_links(topology, members) if is_small else None
        if machine is not None:
            (root,) = demand
            fewest = fewest_broadcast(machine, root, loss=loss)
            optimal = fewest.rate == fewest.optimum
            return ForestPacking(fewest.trees, fewest.rate / demand[root], "fewest trees", optimal, fewest.describe())
    else:
        view = QuotientView.of(topology, demand, members, seed, group)
        too_many_pairs = len(members) * len(demand) > MOST_PAIRS
        if too_many_pairs and len(view.roots) * len(members) > MOST_ORBIT_PAIRS:
            raise Unsupported(_TOO_MANY.format(len(members), len(demand), len(view.roots)))
        symmetric = pack_orbits(topology, demand, members, view)
        if symmetric is not None and (symmetric.proved or too_many_pairs):
            method = "columns, by the machine's symmetries"
            return ForestPacking(
                symmetric.representatives, symmetric.rate, method, symmetric.proved, forest=symmetric.forest
            )
    forests = pack_forests(topology, demand, members)
    if forests is not None:
        exact_rate, exact_trees = forests
        return ForestPacking(tuple(exact_trees), exact_rate, "Edmonds' forests, switches split off", optimal=True)
    # the size of the LP over trees grows with ranks times roots, that of the LP over cuts only with ranks and links
    if len(demand) * len(members) > LP_FIRST_PAIRS and len(members) == topology.ranks:
        by_cuts = pack_by_cuts(topology, demand, directions=(False,))  # False: out of the roots
        if by_cuts is not None:
            trees = at_full_rate(topology, by_cuts.trees[False])
            rate = sum((tree.rate for tree in trees), Fraction(0)) / sum(demand.values())
            return ForestPacking(trees, rate, "Edmonds' forests, parts of the links by cuts", optimal=False)
    packing = pack_lp(topology, demand, members)
    return ForestPacking(packing.trees, packing.rate, "columns over logical pairs of ranks", packing.proved)


def _direct_links(topology: Topology, members: Sequence[int]) -> Directed | None:
    """Return the members' direct links as a graph; None if the machine has switches or shared limits in between."""
    try:
        return directed_machine(topology, members)
    except Unsupported:
        return None
