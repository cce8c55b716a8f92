"""Bounds by linear programming against one written apart (fuzz/): rates of paths and trees, not flows on links."""

import random
from fractions import Fraction

import numpy as np
import pytest
from _forest import least_time
from numpy.typing import NDArray
from quick import examples, in_turn

from antiphon.core.bounds import Bound, LpDual, bound, recheck
from antiphon.core.collective import KINDS, ROOTED, Collective, custom_relation
from antiphon.core.topology import LinkType, SharedLimit, Topology, build

CLOSE = 1e-6  # of two programs, of which one is solved in doubles


def machine(rng: random.Random, ranks: int, switches: int = 0, limits: int = 0) -> Topology:
    """A random strongly connected machine with shared limits that may overlap."""
    nodes = list(range(ranks + switches))
    rng.shuffle(nodes)
    pairs = list(zip(nodes, nodes[1:] + nodes[:1], strict=True))
    pairs += [tuple(rng.sample(nodes, 2)) for _ in range(rng.randint(0, 4))]  # type: ignore[misc]
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


def judged(t: Topology, c: Collective, fetched: NDArray[np.int64] | None = None) -> tuple[Bound, bool]:
    """The bound, and whether trees and paths attain it: they never take less, and just that where it says so.
    `fetched`: so much by each rank (row) from each other does what is asked.
    """
    found = bound(t, c)
    recheck(t, c, found)
    assert found.bytes_per_second is not None
    proved = float(c.buffer_weight / found.bytes_per_second)
    best = least_time(t, c, proved) if fetched is None else exchanged(t, fetched)
    assert best is not None
    assert proved <= best * (1 + CLOSE), (t, c)
    met = best <= proved * (1 + CLOSE)
    assert met or found.tight is not True or fetched is not None, (t, c)
    return found, met


def exchanged(t: Topology, fetched: NDArray[np.int64]) -> float:
    each = Collective("alltoall", t.ranks, weights=fetched.ravel())
    best = least_time(t, each)
    return float(best * fetched.sum() / each.weights.sum())


def weighted(rng: random.Random, kind: str, t: Topology) -> Collective:
    """With several roots, and uneven weights."""
    members = tuple(rng.sample(range(t.ranks), rng.randint(2, t.ranks))) if kind == "alltoall" else ()
    roots = tuple(rng.sample(range(t.ranks), rng.randint(1, t.ranks))) if kind in ROOTED else ()
    plain = Collective(kind, t.ranks, members, roots)
    return Collective(kind, t.ranks, members, roots, np.array(rng.choices([1, 1, 2, 5, 10**4], k=plain.blocks)))


@pytest.mark.parametrize("kind", in_turn(KINDS, 4))
def test_bounds_are_what_trees_and_paths_attain(kind: str) -> None:
    """With unbalanced switches and shared limits: what no cut sees. Of an allreduce often, and never more."""
    rng = random.Random(kind)
    duals = attained = 0
    for _ in range(examples(60)):
        t = machine(rng, rng.randint(2, 3), rng.choice([0, 1, 2]), rng.choice([0, 1, 2]))
        found, met = judged(t, weighted(rng, kind, t))
        assert found.tight or kind == "allreduce"
        attained += met
        duals += isinstance(found.witness, LpDual)
    assert duals or kind in ("gather", "scatter", "allreduce")
    assert attained > examples(60) // 3


def test_custom_collectives_never_exceed_what_is_attained() -> None:
    """Replicas, subsets of wants and relays: compared with every rank fetching what it wants from the first
    holder.
    """
    rng = random.Random("custom")
    for _ in range(examples(60)):
        t = machine(rng, rng.randint(2, 4), rng.choice([0, 1]), rng.choice([0, 1]))
        pre, post, fetched = set(), {}, np.zeros((t.ranks, t.ranks), np.int64)
        for block in range(rng.randint(1, 4)):
            holders = rng.sample(range(t.ranks), rng.randint(1, 2))
            pre |= {(block, h, 0) for h in holders}
            for dst in rng.sample(range(t.ranks), rng.randint(1, 2)):
                post[block, dst] = (0,)
                fetched[dst, holders[0]] += dst not in holders
        relation = custom_relation(sorted(pre), [(b, r, ids) for (b, r), ids in post.items()], t.ranks)
        c = Collective("custom", t.ranks, custom=relation)
        if fetched.any():
            judged(t, c, fetched)
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
        patch.setattr("antiphon.core.bounds.bandwidth.even_routings", lambda *_: [])
        assert "too large" in bound(t, c).note
    monkeypatch.setattr("antiphon.core.bounds.lp.BoundProgram.solve", lambda *_: None)
    monkeypatch.setattr("antiphon.core.bounds.bandwidth.even_routings", lambda *_: [])
    assert "not solved exactly" in bound(t, c).note
