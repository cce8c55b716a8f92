"""Whether sums of inputs (an allreduce, a scan) exist, from the definition of a step: all choices, for tiny machines.

A rank holds sums, each a set of contributions, at first its own input alone. In a step it may send each over any links,
keep all, and form new sums: each of sums that it held before, as often as it likes, and of sums that arrive, each of
which goes into one new sum only. What is added up has nothing in common. A solver goes through all choices. Nothing is
shared with the planner: neither slots nor symmetries nor arcs nor bounds.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction

from pysat.card import CardEnc, EncType
from pysat.formula import IDPool
from pysat.solvers import Solver
from sccl_cases import ways_through_switches

from antiphon.core.topology import Topology

Resource = tuple[str, int]  # "link" or "limit" and its number
Wanted = dict[int, int]  # per rank the set of contributions that it wants, as bits


def exists(topology: Topology, wanted: Wanted, chunks: int, steps: int, rounds: int) -> bool:
    """Whether there is one with so many rounds, whatever the rounds of each step."""
    per_step = itertools.product(range(1, rounds - steps + 2), repeat=steps)
    return any(_exists(topology, wanted, chunks, each) for each in per_step if sum(each) == rounds)


def least_ratio(topology: Topology, wanted: Wanted, steps: int, most_chunks: int, spare: int) -> tuple[int, int] | None:
    """Chunks and rounds of the least R / C in so many steps, R <= S + spare; None if there is none."""
    pairs = itertools.product(range(1, most_chunks + 1), range(steps, steps + spare + 1))
    refuted: list[tuple[int, int]] = []
    for chunks, rounds in sorted(pairs, key=lambda pair: (Fraction(pair[1], pair[0]), pair)):
        if any(chunks >= c and rounds <= r for c, r in refuted):  # more data in less time
            continue
        if exists(topology, wanted, chunks, steps, rounds):
            return chunks, rounds
        refuted.append((chunks, rounds))
    return None


def _exists(topology: Topology, wanted: Wanted, chunks: int, rounds: tuple[int, ...]) -> bool:
    ranks, sums = range(topology.ranks), range(1, 2**topology.ranks)
    pool, clauses = IDPool(), list[list[int]]()
    loads: dict[tuple[Resource, int], list[int]] = defaultdict(list)
    ways = [(a, b, way) for (a, b), some in ways_through_switches(topology).items() for way in some]
    for chunk, step in itertools.product(range(chunks), range(len(rounds))):
        arriving: dict[tuple[int, int], list[int]] = defaultdict(list)  # rank and content: sends
        for number, (a, b, way) in enumerate(ways):
            for content in sums:
                sends = pool.id(("sends", chunk, step, number, content))
                clauses.append([-sends, pool.id(("holds", chunk, step, a, content))])
                arriving[b, content].append(sends)
                for resource in _loaded(topology, way):
                    loads[resource, step].append(sends)
        for rank, content in itertools.product(ranks, sums):
            uses: dict[int, list[int]] = defaultdict(list)  # a sum that arrives goes into one new sum only
            for total in (x for x in sums if x & content == content):
                forms = pool.id(("forms", chunk, step, rank, total, content))  # of it, for the new sum `total`
                reasons = [pool.id(("holds", chunk, step, rank, content))]
                for sends in arriving[rank, content]:
                    use = pool.id(("uses", sends, total))
                    clauses.append([-use, sends])
                    uses[sends].append(use)
                    reasons.append(use)
                for first, second in _splits(content):
                    both = pool.id(("both", chunk, step, rank, total, first, second))
                    clauses += [[-both, pool.id(("forms", chunk, step, rank, total, x))] for x in (first, second)]
                    reasons.append(both)
                clauses.append([-forms, *reasons])
            clauses += [[-a, -b] for each in uses.values() for a, b in itertools.combinations(each, 2)]
            holds = pool.id(("holds", chunk, step + 1, rank, content))
            clauses.append([-holds, pool.id(("forms", chunk, step, rank, content, content))])
    for chunk, rank, content in itertools.product(range(chunks), ranks, sums):
        if content != 1 << rank:
            clauses.append([-pool.id(("holds", chunk, 0, rank, content))])
    clauses += [[pool.id(("holds", chunk, len(rounds), *goal))] for chunk in range(chunks) for goal in wanted.items()]
    for (resource, step), literals in loads.items():
        room = int(_capacity(topology, resource) * rounds[step])  # whole chunks
        if room < len(literals):
            clauses += CardEnc.atmost(literals, room, vpool=pool, encoding=EncType.seqcounter).clauses
    with Solver(name="cadical153", bootstrap_with=clauses) as engine:
        return bool(engine.solve())


def _splits(content: int) -> Iterator[tuple[int, int]]:
    """Every two sets without anything in common that make up this one, once."""
    first = (content - 1) & content
    while first:
        if first > content - first:
            yield first, content - first
        first = (first - 1) & content


def _loaded(topology: Topology, way: tuple[int, ...]) -> Iterator[Resource]:
    for link in way:
        yield "link", link
        yield from (("limit", number) for number, limit in enumerate(topology.limits) if link in limit.links)


def _capacity(topology: Topology, resource: Resource) -> Fraction:
    kind, number = resource
    bandwidth = topology.bandwidth(number) if kind == "link" else topology.limits[number].bandwidth
    return Fraction(bandwidth) / topology.unit
