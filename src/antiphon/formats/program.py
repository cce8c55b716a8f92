"""Write programs for the native engine: the operations of every rank with addresses and dependencies
(docs/program.md).
"""

from __future__ import annotations

from collections.abc import Iterator

from antiphon.core.plan import Plan
from antiphon.core.program import Program, dump, encode
from antiphon.lower.lowering import MOST_CHANNELS, both, lower

__all__ = ["MOST_CHANNELS", "both", "lower", "program"]


def program(plan: Plan, *, channels: int = 1, lag: int = 1, text: bool = False) -> dict[str, Iterator[bytes] | bytes]:
    """Return a file per schedule of the plan, the first is program0.bin; with `text` also what every rank does, for
    people. `channels`: number of connections between two ranks. `lag`: steps before a slot of scratch is reused."""
    files: dict[str, Iterator[bytes] | bytes] = {}
    for number, entry in enumerate(plan.entries):
        variants = both(entry.schedule, channels=channels, lag=lag)
        files[f"program{number}.bin"] = encode(variants)
        if text:
            for variant in variants:
                files[f"program{number}{'-in-place' if variant.in_place else ''}.txt"] = _dump_ranks(variant)
    return files


def _dump_ranks(variant: Program) -> Iterator[bytes]:
    for rank in range(variant.ranks):
        yield dump(variant, rank).encode()
