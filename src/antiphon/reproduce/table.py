"""What can be reproduced, by name. To add one: a file with a function that yields rows, and a line here."""

from __future__ import annotations

from antiphon.registry import Entry

SCCL = "Cai et al., Synthesizing Optimal Collective Algorithms, PPoPP 2021 (SCCL)"
BLINK = "Wang et al., Blink: Fast and Generic Collectives for Distributed ML, MLSys 2020"


def _entry(module: str, function: str, about: str, where: str) -> Entry:
    return Entry(f"antiphon.reproduce.{module}:{function}", about, {"source": where})


TABLE = {
    "sccl-table3": _entry("sccl", "table3", "what NCCL does on a DGX-1, as (C, S, R)", f"{SCCL}, Table 3"),
    "sccl-table4": _entry("sccl", "table4", "algorithms synthesized for a DGX-1", f"{SCCL}, Table 4"),
    "sccl-table5": _entry("sccl", "table5", "algorithms synthesized for a Gigabyte Z52", f"{SCCL}, Table 5"),
    "sccl-frontiers": _entry(
        "sccl", "frontiers", "the frontiers of both machines for k = 4, with proofs", f"{SCCL}, Algorithm 1"
    ),
    "blink-counts": _entry("blink", "counts", "allocations, rings and trees of a DGX-1", f"{BLINK}, 2 to 5"),
    "blink-figure14": _entry("blink", "figure14", "speedups of trees over rings in theory", f"{BLINK}, Figure 14"),
    "blink-trees": _entry("blink", "trees", "trees and rates, with proofs, of all allocations", f"{BLINK}, 3"),
    "blink-figure22b": _entry("blink", "figure22b", "two servers on networks of any speed", f"{BLINK}, Figure 22(b)"),
}
