"""Bounds by linear programming against an exact one written apart: paths and trees, not flows on links."""

import itertools
import random
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np
import pytest
from quick import examples, in_turn

from antiphon.core.bounds import LpDual, bound, recheck
from antiphon.core.collective import Collective, custom_relation
from antiphon.core.topology import LinkType, SharedLimit, Topology, build

Route = tuple[int, ...]


def greatest(columns: Sequence[dict[int, Fraction]], gain: Sequence[int], right: Sequence[Fraction]) -> Fraction:
    """max gain.x, columns x <= right, x >= 0 with right >= 0: the simplex method in fractions, by Bland's
    rule.
    """
    rows, width = len(right), len(columns)
    table = [[column.get(r, Fraction(0)) for column in columns] for r in range(rows)]
    for r in range(rows):
        table[r] += [Fraction(int(i == r)) for i in range(rows)] + [right[r]]
    last = [Fraction(-g) for g in gain] + [Fraction(0)] * (rows + 1)
    basis = [width + r for r in range(rows)]
    while True:
        enter = next((j for j in range(width + rows) if last[j] < 0), None)
        if enter is None:
            return last[-1]
        ratios = [(table[r][-1] / table[r][enter], basis[r], r) for r in range(rows) if table[r][enter] > 0]
        assert ratios, "unbounded"
        _, _, leave = min(ratios)
        basis[leave] = enter
        pivot = table[leave][enter]
        table[leave] = [x / pivot for x in table[leave]]
        hot = [(j, x) for j, x in enumerate(table[leave]) if x]
        for row in [*(table[r] for r in range(rows) if r != leave), last]:
            if times := row[enter]:
                for j, x in hot:
                    row[j] -= times * x


def test_the_simplex_method_itself() -> None:
    one, two = Fraction(1), Fraction(2)
    assert greatest([{0: one, 1: one}, {0: one, 1: 3 * one}], [1, 1], [4 * one, 6 * one]) == 4
    assert greatest([{0: two}, {0: one, 1: one}], [3, 2], [5 * one, one]) == 8


def machine(
    rng: random.Random, ranks: int, switches: int = 0, limits: int = 0, extra: int = 4, chords: bool = True
) -> Topology:
    """A random strongly connected machine with shared limits that may overlap."""
    nodes = list(range(ranks + switches))
    rng.shuffle(nodes)
    pairs = list(zip(nodes, nodes[1:] + nodes[:1], strict=True))
    if chords:
        pairs += [tuple(rng.sample(nodes, 2)) for _ in range(rng.randint(0, extra))]  # type: ignore[misc]
    high = rng.choice([1, 4, 10**6])
    links = [(a, b, LinkType("link", Fraction(rng.randint(1, high)))) for a, b in pairs]
    bounds = [
        SharedLimit(
            f"limit{i}",
            tuple(rng.sample(range(len(links)), rng.randint(1, len(links)))),
            Fraction(rng.randint(1, 2 * high)),
        )
        for i in range(limits)
    ]
    return build("random", ranks, links, switches=switches, limits=bounds)


def routes(t: Topology, src: int, dst: int, relays: bool) -> list[Route]:
    """All simple paths, as links; through switches only unless relays may help."""
    ends = list(zip(t.link_src.tolist(), t.link_dst.tolist(), strict=True))
    found: list[Route] = []

    def extend(node: int, path: Route, seen: frozenset[int]) -> None:
        for link, (a, b) in enumerate(ends):
            if a == node and b == dst:
                found.append((*path, link))
            elif a == node and b not in seen and (relays or b >= t.ranks):
                extend(b, (*path, link), seen | {b})

    extend(src, (), frozenset([src, dst]))
    return found


def loads(t: Topology, links: Iterable[int]) -> dict[int, Fraction]:
    """What one unit over these links loads: links, then limits."""
    load: dict[int, Fraction] = {}
    for link in links:
        for r in [link, *(t.links + i for i, limit in enumerate(t.limits) if link in limit.links)]:
            load[r] = load.get(r, Fraction(0)) + 1
    return load


def capacities(t: Topology) -> list[Fraction]:
    return [*(t.bandwidth(k) for k in range(t.links)), *(limit.bandwidth for limit in t.limits)]


def best_unicast_time(t: Topology, demands: dict[tuple[int, int], int]) -> Fraction:
    """The exact concurrent flow over all simple paths."""
    right = capacities(t)
    columns: list[dict[int, Fraction]] = [{}]
    for (src, dst), weight in demands.items():
        row = len(right)
        right.append(Fraction(0))
        columns[0][row] = Fraction(weight)
        for route in routes(t, src, dst, relays=True):
            columns.append({**loads(t, route), row: Fraction(-1)})
    return 1 / greatest(columns, [1] + [0] * (len(columns) - 1), right)


def trees(t: Topology, root: int) -> list[dict[int, Fraction]]:
    """Loads of every way to broadcast from a root: arborescences of ranks, with every choice of routes."""
    between = {(a, b): routes(t, a, b, relays=False) for a, b in itertools.permutations(range(t.ranks), 2)}
    others = [r for r in range(t.ranks) if r != root]
    found = []
    for parents in itertools.product(range(t.ranks), repeat=len(others)):
        parent = dict(zip(others, parents, strict=True))
        if any(a == b for a, b in parent.items()) or not all(_leads(parent, r, root) for r in others):
            continue
        for chosen in itertools.product(*(between[parent[r], r] for r in others)):
            found.append(loads(t, itertools.chain(*chosen)))
    return found


def _leads(parent: dict[int, int], node: int, root: int) -> bool:
    for _ in range(len(parent)):
        if node == root:
            return True
        node = parent[node]
    return node == root


def best_spread_time(t: Topology, weights: dict[int, int]) -> Fraction:
    """The exact packing of broadcast trees, so much weight from each root."""
    right = capacities(t)
    columns: list[dict[int, Fraction]] = [{}]
    for root, weight in weights.items():
        row = len(right)
        right.append(Fraction(0))
        columns[0][row] = Fraction(weight)
        columns += [{**tree, row: Fraction(-1)} for tree in trees(t, root)]
    return 1 / greatest(columns, [1] + [0] * (len(columns) - 1), right)


def reverse(t: Topology) -> Topology:
    return Topology(
        t.name, t.ranks, t.switches, t.link_dst, t.link_src, t.link_type, t.types, t.limits, t.places, t.unit
    )


def time_of(t: Topology, c: Collective) -> Fraction:
    found = bound(t, c)
    recheck(t, c, found)
    return found.inverse * c.input_weight / t.unit


def test_alltoall_is_the_exact_concurrent_flow() -> None:
    rng = random.Random("alltoall")
    duals = 0
    for _ in range(examples(60)):
        t = machine(rng, rng.randint(2, 4), rng.choice([0, 0, 1]), rng.choice([0, 0, 1, 2]))
        members = tuple(sorted(rng.sample(range(t.ranks), rng.randint(2, t.ranks))))
        weights = np.array([rng.choice([0, 1, 1, 5, 10**4]) for _ in range(len(members) ** 2)])
        c = Collective("alltoall", t.ranks, members, weights=weights if rng.random() < 0.6 else weights * 0 + 1)
        assert c.weights is not None
        rows = zip(c.relation.pre_rank.tolist(), c.relation.post_rank.tolist(), c.weights.tolist(), strict=True)
        demands = {(a, b): w for a, b, w in rows if a != b and w}
        if not demands:
            assert bound(t, c).witness is None
            continue
        found = bound(t, c)
        assert time_of(t, c) == best_unicast_time(t, demands)
        assert found.tight
        duals += isinstance(found.witness, LpDual)
    assert duals > 2


@pytest.mark.parametrize("kind", ["gather", "scatter"])
def test_gather_and_scatter_with_limits_and_many_roots(kind: str) -> None:
    rng = random.Random(kind)
    for _ in range(examples(40)):
        t = machine(rng, rng.randint(2, 4), rng.choice([0, 1]), rng.choice([0, 1, 2]))
        roots = tuple(rng.sample(range(t.ranks), rng.randint(1, t.ranks)))
        c = Collective(kind, t.ranks, roots=roots)
        pairs = [(m, r) if kind == "gather" else (r, m) for m in range(t.ranks) for r in roots if m != r]
        assert time_of(t, c) == best_unicast_time(t, dict.fromkeys(pairs, 1))


@pytest.mark.parametrize("kind", in_turn(["broadcast", "reduce", "allgather", "reducescatter"], 2))
def test_spreading_is_the_exact_packing_of_trees(kind: str) -> None:
    """With unbalanced switches and shared limits: what no cut sees."""
    rng = random.Random(f"trees {kind}")
    duals = 0
    for _ in range(examples(25)):
        t = machine(rng, rng.randint(2, 3), rng.choice([0, 1, 1]), rng.choice([0, 1, 2]), extra=3)
        roots = tuple(rng.sample(range(t.ranks), rng.randint(1, t.ranks))) if kind in ("broadcast", "reduce") else ()
        plain = Collective(kind, t.ranks, roots=roots)
        c = Collective(kind, t.ranks, roots=roots, weights=np.array([rng.randint(1, 9) for _ in range(plain.blocks)]))
        assert c.weights is not None
        weights = dict(zip(roots or range(t.ranks), c.weights.tolist(), strict=True))
        other = reverse(t) if kind in ("reduce", "reducescatter") else t
        found = bound(t, c)
        assert time_of(t, c) == best_spread_time(other, weights)
        assert found.tight
        duals += isinstance(found.witness, LpDual)
    assert duals


def both_ways_times(t: Topology) -> Fraction:
    """What allreduce surely attains: reduce along trees into a root, broadcast along trees out of it."""
    right = capacities(t)
    columns = []
    turned = reverse(t)
    for root in range(t.ranks):
        for up, down in itertools.product(trees(turned, root), trees(t, root)):
            columns.append({r: up.get(r, Fraction(0)) + down.get(r, Fraction(0)) for r in {*up, *down}})
    return 1 / greatest(columns, [1] * len(columns), right)


def test_allreduce_never_exceeds_what_trees_attain() -> None:
    rng = random.Random("allreduce")
    met = 0
    for _ in range(examples(30)):
        t = machine(rng, 3, rng.choice([0, 0, 1]), rng.choice([0, 1, 2]), extra=2)
        attained = both_ways_times(t)
        proved = time_of(t, Collective("allreduce", 3))
        assert proved <= attained
        met += proved == attained
    assert met > examples(30) // 3


def test_custom_collectives_never_exceed_what_is_attained() -> None:
    """Replicas, subsets of wants and relays: compared with every rank fetching what it wants from the first
    holder.
    """
    rng = random.Random("custom")
    for _ in range(examples(60)):
        t = machine(rng, rng.randint(2, 4), rng.choice([0, 1]), rng.choice([0, 1]))
        blocks = rng.randint(1, 4)
        pre, post = set(), {}
        demands: dict[tuple[int, int], int] = {}
        for block in range(blocks):
            holders = rng.sample(range(t.ranks), rng.randint(1, 2))
            pre |= {(block, h, 0) for h in holders}
            for dst in rng.sample(range(t.ranks), rng.randint(1, 2)):
                post[block, dst] = (0,)
                if dst not in holders:
                    demands[holders[0], dst] = demands.get((holders[0], dst), 0) + 1
        relation = custom_relation(sorted(pre), [(b, r, ids) for (b, r), ids in post.items()], t.ranks)
        c = Collective("custom", t.ranks, custom=relation)
        if demands:
            assert time_of(t, c) <= best_unicast_time(t, demands)
        else:
            assert bound(t, c).witness is None


def test_capacities_that_lie_far_apart() -> None:
    """A program in units of the widest link does not see links 10^10 times narrower, and says less than is true."""
    wide, narrow = LinkType("wide", Fraction(5 * 10**10)), LinkType("narrow", Fraction(1))
    ends = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)]
    links = [(a, b, narrow if (a, b) in {(1, 2), (0, 2)} else wide) for a, b in ends]
    t = build("far apart", 4, links, limits=[SharedLimit("both", (1, 4), Fraction(3, 2))])
    for kind in ("alltoall", "allgather", "reducescatter", "scatter", "gather"):
        found = bound(t, Collective(kind, 4))
        assert found.tight is True, (kind, found.note)


def test_the_narrowest_of_limits_that_overlap_counts() -> None:
    """Whatever their order: what the wider one counts is not taken from the narrower."""
    a, b, c = (LinkType("link", Fraction(rate * 10**9)) for rate in (49, 35, 48))
    links = [(0, 2, a), (0, 2, b), (2, 0, b), (2, 0, b), (1, 0, c), (0, 2, c), (0, 1, c)]
    wide, narrow = (
        SharedLimit("wide", (4, 6, 5, 3, 2), Fraction(22 * 10**9)),
        SharedLimit("narrow", (*range(7),), Fraction(34, 37)),
    )
    for limits in ([wide, narrow], [narrow, wide]):
        found = bound(build("two and a switch", 2, links, switches=1, limits=limits), Collective("allreduce", 2))
        assert found.bytes_per_second == Fraction(17, 37)


def test_the_word_is_true_where_no_program_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = LinkType("link", Fraction(1))
    t = build("fan", 4, [(0, 1, kind), (1, 2, kind), (2, 3, kind), (3, 0, kind), (0, 2, kind), (2, 0, kind)])
    c = Collective("alltoall", 4)
    with monkeypatch.context() as patch:
        patch.setattr("antiphon.core.bounds.bandwidth.MOST_VARIABLES", 0)
        patch.setattr("antiphon.core.bounds.bandwidth.even_spreads", lambda *_: [])
        assert "too large" in bound(t, c).note
    monkeypatch.setattr("antiphon.core.bounds.lp.BoundProgram.solve", lambda *_: None)
    monkeypatch.setattr("antiphon.core.bounds.bandwidth.even_spreads", lambda *_: [])
    assert "not solved exactly" in bound(t, c).note
