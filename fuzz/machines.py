"""Machines against a linear program over all branchings: no bound may be beaten by what trees and paths attain, and
where a bound is said to be attained (`tight`), they must be equal.

Machines of two to five ranks: one-way links, unequal both ways, parallel, switches, shared limits that overlap, groups
with relays, several roots, uneven and zero weights.
"""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction

import numpy as np
from _forest import TooLargeError, least_time
from _harness import CASES, Found, main
from generate import topology as any_machine

from antiphon.core import bounds
from antiphon.core.collective import KINDS, ROOTED, Collective
from antiphon.core.serialize import dumps
from antiphon.core.topology import LinkType, SharedLimit, Topology, build
from antiphon.errors import Infeasible, Invalid

NAME = "machines"
CLOSE = 1e-6  # of two programs solved in doubles


def machine(rng: random.Random, most_ranks: int = 5) -> Topology:
    """A random machine; mostly strongly connected, because others are only refused."""
    ranks, switches = rng.randint(2, most_ranks), rng.choice([0, 0, 0, 1, 1, 2])
    nodes = list(range(ranks + switches))
    rng.shuffle(nodes)
    shape = rng.choice(["circle", "circle", "tree", "full", "star"])
    if shape == "full":
        pairs = [(a, b) for a in nodes for b in nodes if a != b and max(a, b) < ranks]
        pairs += [(a, rng.randrange(ranks)) for a in nodes if a >= ranks] * 2
        pairs += [(b, a) for a, b in pairs if a >= ranks]
    elif shape == "star" and switches:
        pairs = [(r, ranks + rng.randrange(switches)) for r in range(ranks)] + [(ranks, n) for n in nodes if n > ranks]
        pairs += [(b, a) for a, b in pairs]
    elif shape == "tree":
        pairs = [(nodes[rng.randrange(at)], nodes[at]) for at in range(1, len(nodes))]
        pairs += [(b, a) for a, b in pairs]
    else:
        pairs = list(zip(nodes, nodes[1:] + nodes[:1], strict=True))
    pairs += [(a, b) for a, b in (rng.sample(nodes, 2) for _ in range(rng.randint(0, 2 * ranks)))]
    if rng.random() < 0.15 and len(pairs) > 2:
        pairs.pop(rng.randrange(len(pairs)))
    top = rng.choice([1, 2, 4, 100, 10**6])
    speeds = {pair: Fraction(rng.randint(1, top), rng.choice([1, 1, 7])) for pair in pairs}
    if rng.random() < 0.4:  # alike both ways
        speeds |= {(b, a): speed for (a, b), speed in speeds.items()}
    links = [(a, b, LinkType("link", speeds[a, b])) for a, b in pairs]
    limits = [
        SharedLimit(f"limit{i}", tuple(rng.sample(range(len(links)), rng.randint(1, min(4, len(links))))),
                    Fraction(rng.randint(1, 2 * top)))
        for i in range(rng.choice([0, 0, 0, 1, 2]))
    ]  # fmt: skip
    return build("random", ranks, links, switches=switches, limits=limits)


def collective(rng: random.Random, ranks: int) -> Collective:
    kind = rng.choice([*KINDS, "allreduce", "allgather", "reduce"])
    members = tuple(range(ranks)) if rng.random() < 0.5 else tuple(rng.sample(range(ranks), rng.randint(2, ranks)))
    roots = tuple(rng.sample(members, rng.choice([1, 1, 1, min(2, len(members))]))) if kind in ROOTED else ()
    plain = Collective(kind, ranks, members, roots)
    if rng.random() < 0.6:
        return plain
    return Collective(kind, ranks, members, roots, np.array([rng.randint(0, 5) for _ in range(plain.blocks)]))


def one(seed: int, counts: Counter[str]) -> None:
    rng = random.Random(f"{NAME} {seed}")
    where = machine(rng) if rng.random() < 0.7 else any_machine(rng, rng.randint(2, 5))
    what = collective(rng, where.ranks)
    files = {"topology.json": dumps(where), "collective.json": dumps(what)}
    found = None
    try:
        found = bounds.bound(where, what)
    except (Invalid, Infeasible) as error:
        said = f"{what.kind}: bound says {error}"
    rate = found.bytes_per_second if found is not None else None
    least = float(what.buffer_weight / rate) if rate is not None else 0.0
    try:
        attained = least_time(where, what, least or None)
    except TooLargeError:
        counts["too large for the judge"] += 1
        return
    if found is None:
        counts[CASES] += 1
        counts["out of reach"] += 1
        if attained is not None:
            raise Found(f"{said}; trees attain {attained}", files)
        return
    counts[CASES] += 1
    if attained is None:
        raise Found(f"{what.kind}: bound says {found.bytes_per_second}; no tree reaches all", files)
    word = {True: "attained", False: "not attained", None: "not known"}[found.tight]
    counts[word] += 1
    if found.packing is not None:
        counts["by listed trees"] += 1
    said = f"{what.kind}: bound says {least} ({found.note}); trees attain {attained}"
    if least > attained * (1 + CLOSE):
        raise Found(f"{said}, which is less", files)
    if found.tight and attained > least * (1 + CLOSE):
        raise Found(f"{said}, which is more than what is said to be attained", files)
    if found.tight is False and attained <= least * (1 + CLOSE):
        raise Found(f"{said}, as much as what is said to be out of reach", files)
    if found.tight is None:
        counts["not known, of which the program attains it"] += attained <= least * (1 + CLOSE)


if __name__ == "__main__":
    main(NAME, one, 1_000, __doc__)
