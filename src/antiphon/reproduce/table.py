"""What can be reproduced, by name. To add one: a file with a function that yields rows, and a line here."""

from __future__ import annotations

from antiphon.registry import Entry

SCCL = "Cai et al., Synthesizing Optimal Collective Algorithms, PPoPP 2021 (SCCL)"


def _entry(module: str, function: str, about: str, where: str) -> Entry:
    return Entry(f"antiphon.reproduce.{module}:{function}", about, {"source": where})


TABLE = {
    "sccl-table3": _entry("sccl", "table3", "what NCCL does on a DGX-1, as (C, S, R)", f"{SCCL}, Table 3"),
    "sccl-table4": _entry("sccl", "table4", "algorithms synthesized for a DGX-1", f"{SCCL}, Table 4"),
    "sccl-table5": _entry("sccl", "table5", "algorithms synthesized for a Gigabyte Z52", f"{SCCL}, Table 5"),
    "sccl-frontiers": _entry(
        "sccl", "frontiers", "the frontiers of both machines for k = 4, with proofs", f"{SCCL}, Algorithm 1"
    ),
}
