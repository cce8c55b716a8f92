"""The verifier against random damage: it accepts exactly what an exact run finds right, and names true faults.

The judge is tests/oracle.py: plain Python, exact integers.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from generate import KINDS_AND_CUSTOM, case

from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.verify import Fault, layout, sets, verify

sys.path.append(str(Path(__file__).resolve().parent.parent / "fuzz"))
damage = import_module("_damage").damage

PER_CASE = 25
MOST_RANKS = {"alltoall": 3, "scatter": 4, "gather": 4}  # the others: 5

# How the verifier cuts its work: as it is, and so small that every cut is exercised.
LIMITS: tuple[dict[str, tuple[Any, int]], ...] = (
    {},
    {},
    {"MAX_CELLS": (layout, 64), "MAX_ROWS": (layout, 64)},
    {"MAX_CELLS": (layout, 16), "MAX_ROWS": (layout, 4), "MAX_STATE_BYTES": (sets, 64)},
    {"MAX_STATE_BYTES": (sets, 1), "ROWS_PER_GROUP": (sets, 2)},
)


@contextmanager
def limited(limits: dict[str, tuple[Any, int]]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, (module, value) in limits.items():
            patch.setattr(module, name, value)
        yield


# ---- the judge ----


def true_fault(fault: Fault, schedule: Schedule, verdict: oracle.Verdict) -> bool:
    """Whether the fault is there indeed, and no other comes before it."""
    if not verdict.share_ok:
        if fault.kind != "share":
            return False
        if fault.chunk is None:
            named = int(fault.message.split("block ")[1].split()[0])
            return named in verdict.bad_blocks and named not in schedule.chunks.block
        return int(schedule.chunks.block[fault.chunk]) in verdict.bad_blocks
    at_rows = verdict.illegal | verdict.bad_routes
    if at_rows:
        if fault.step is None or fault.chunk is None or fault.src is None or fault.dst is None:
            return False
        named_row = oracle.Bad(fault.kind, fault.step, fault.chunk, fault.src, fault.dst)
        return named_row in at_rows and (fault.step, fault.chunk) == min((bad.step, bad.chunk) for bad in at_rows)
    return fault.kind == "post" and fault.step is None and _true_end(fault, schedule, verdict)


def _true_end(fault: Fault, schedule: Schedule, verdict: oracle.Verdict) -> bool:
    """The rank does end wrong, and the contributions named are those that are wrong."""
    assert fault.chunk is not None
    assert fault.dst is not None
    if (fault.chunk, fault.dst) not in verdict.wrong:
        return False
    _, need = oracle.relation_of(schedule)
    block = int(schedule.chunks.block[fault.chunk])
    want = Counter(next(ids for rank, ids in need[block] if rank == fault.dst))
    held = oracle.contents(schedule, fault.chunk).get(fault.dst, Counter())
    lacking, over = sorted((want - held).keys()), sorted((held - want).keys())
    return ("without" in fault.message) == bool(lacking) and ("more often" in fault.message) == bool(over)


def check(schedule: Schedule, topology: Topology, told: str) -> oracle.Verdict:
    """The verifier beside the oracle; `told` names seed and change, so that a failure can be had again."""
    verdict = oracle.judge(schedule, topology)
    fault = verify(schedule, topology).fault
    assert (fault is None) == verdict.ok, f"{told}: the verifier says {fault}, but it is {verdict}"
    if fault is not None:
        assert true_fault(fault, schedule, verdict), f"{told}: {fault} is not the first fault of {verdict}"
    return verdict


def damaged(rng: random.Random, schedule: Schedule, topology: Topology) -> tuple[Schedule, list[str]]:
    """One to three random changes, joints left out, and what they are called; at times of the pieces, too."""
    changed, names = damage(rng, schedule, topology)
    if rng.random() < 0.1:  # harmless for the data; the figures change
        pieces = np.broadcast_to(np.asarray(changed.pieces, np.int64), len(changed.chunks)).copy()
        pieces[rng.randrange(len(pieces))] = rng.randint(1, 7)
        changed, names = replace(changed, pieces=pieces), [*names, "pieces"]
    return replace(changed, joint=None), names


def campaign(seeds: range, per_case: int) -> Counter[str]:
    """Damage one valid schedule per seed in many ways; returns what happened how often."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        kind = KINDS_AND_CUSTOM[seed % len(KINDS_AND_CUSTOM)]
        origin = case(seed, kind, most_ranks=MOST_RANKS.get(kind, 5))
        with limited(LIMITS[seed // len(KINDS_AND_CUSTOM) % len(LIMITS)]):
            assert check(origin.schedule, origin.topology, f"seed {seed} unchanged").ok
            figures = oracle.figures(origin.schedule, origin.topology)
            assert verify(origin.schedule, origin.topology, figures).ok, f"seed {seed}: {figures}"
            for number in range(per_case):
                rng = random.Random(origin.seed * 1000 + number)
                broken, what = damaged(rng, origin.schedule, origin.topology)
                verdict = check(broken, origin.topology, f"seed {seed} {kind}, change {number} ({what})")
                if verdict.ok and "pieces" in what:
                    same = oracle.figures(broken, origin.topology) == figures
                    assert verify(broken, origin.topology, figures).ok == same, f"seed {seed}, change {number}"
                    seen["claims"] += not same
                seen["mutations"] += 1
                seen["accepted"] += verdict.ok
                seen["illegal"] += not verdict.legal
                seen["wrong"] += verdict.legal and not verdict.outcome_right
                seen["routes"] += not verdict.route_ok
                seen["only routes"] += verdict.legal and verdict.outcome_right and not verdict.route_ok
                seen["shares"] += not verdict.share_ok
                for bad in verdict.illegal:
                    seen[bad.kind] += 1
    return seen


# ---- the tests ----


@pytest.mark.parametrize(
    ("first", "cases"), [(12, 12), *(pytest.param(n, 100, marks=pytest.mark.slow) for n in (0, 100, 200, 300))]
)
def test_ten_thousand_mutations(first: int, cases: int) -> None:
    seen = campaign(range(first, first + cases), PER_CASE)
    assert seen["mutations"] == 25 * cases
    for what in ("accepted", "illegal", "wrong", "routes", "only routes", "shares", "claims", "empty", "race", "self"):
        assert seen[what] >= cases // 4, (what, seen)
