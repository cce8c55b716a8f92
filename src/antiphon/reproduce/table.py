"""The registry of reproductions: figures and tables of four papers, by the name that `antiphon reproduce` takes.

To add one: a file with a function that yields rows (`rows.py`), and a line here. A module is imported when it is used.
A function with independent parts takes `each`, which computes them at the same time (`Each` in rows.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.registry import Entry

SCCL = "Cai et al., Synthesizing Optimal Collective Algorithms, PPoPP 2021 (SCCL)"
BLINK = "Wang et al., Blink: Fast and Generic Collectives for Distributed ML, MLSys 2020"
GENTREE = "Xiong et al., Revisiting the Time Cost Model of AllReduce, 2024 (GenModel, GenTree)"
PICCL = "Liu et al., Parameterized Algorithms and Parameter Selection for Fast GPU-GPU Collective Communication (PICCL)"


@dataclass(frozen=True)
class PaperSource:
    """The place in a paper that holds the numbers to reproduce, such as "..., Table 3"."""

    source: str


def _make_entry(module: str, function: str, about: str, where: str) -> Entry[PaperSource]:
    return Entry(f"antiphon.reproduce.{module}:{function}", about, PaperSource(where))


TABLE = {
    "sccl-table3": _make_entry("sccl", "table3", "what NCCL does on a DGX-1, as (C, S, R)", f"{SCCL}, Table 3"),
    "sccl-table4": _make_entry("sccl", "table4", "algorithms synthesized for a DGX-1", f"{SCCL}, Table 4"),
    "sccl-table5": _make_entry("sccl", "table5", "algorithms synthesized for a Gigabyte Z52", f"{SCCL}, Table 5"),
    "sccl-figures4-6": _make_entry(
        "hardware", "sccl_figures", "speedups over NCCL, predicted", f"{SCCL}, Figures 4 to 6"
    ),
    "sccl-frontiers": _make_entry(
        "sccl",
        "frontiers",
        "the frontiers of DGX-1 and Z52 with at most 4 rounds more than steps, with proofs",
        f"{SCCL}, Algorithm 1",
    ),
    "blink-counts": _make_entry(
        "blink", "counts", "allocations, rings and trees of a DGX-1", f"{BLINK}, sections 2 to 5"
    ),
    "blink-micro": _make_entry(
        "blink_micro",
        "micro",
        "chains, fans, multi-input-multi-output and multi-chain aggregation on a DGX-1, predicted",
        f"{BLINK}, sections 2.2 and A.1",
    ),
    "blink-figure14": _make_entry("blink", "figure14", "speedups of trees over rings in theory", f"{BLINK}, Figure 14"),
    "blink-figures15-18": _make_entry(
        "hardware", "blink_figures", "speedups over NCCL on a DGX-1, predicted", f"{BLINK}, Figures 15 to 18"
    ),
    "blink-figures19-21": _make_entry(
        "hardware", "dgx2_figures", "a DGX-2 against NCCL, predicted", f"{BLINK}, Figures 19 to 21"
    ),
    "blink-trees": _make_entry(
        "blink", "trees", "trees and rates, with proofs, of all allocations", f"{BLINK}, section 3"
    ),
    "blink-figure22b": _make_entry(
        "blink", "figure22b", "two servers on networks of any speed", f"{BLINK}, Figure 22(b)"
    ),
    "gentree-table3": _make_entry(
        "gentree", "table3", "plans and times on 8, 12 and 15 servers", f"{GENTREE}, Table 3"
    ),
    "gentree-table4": _make_entry(
        "gentree", "table4", "plans within, then between servers of 8 GPUs, against rings", f"{GENTREE}, Table 4"
    ),
    "gentree-table6": _make_entry(
        "gentree", "table6", "the plan at every switch of six networks", f"{GENTREE}, Table 6"
    ),
    "gentree-table7": _make_entry(
        "gentree_table7", "table7", "times in six networks, simulated", f"{GENTREE}, Table 7"
    ),
    "genmodel-figure8": _make_entry(
        "gentree_figures", "figure8", "how near the models' predictions come to measured times", f"{GENTREE}, Figure 8"
    ),
    "genmodel-figure9": _make_entry(
        "gentree_figures",
        "figure9",
        "times of calculation and of communication, each by itself",
        f"{GENTREE}, Figure 9",
    ),
    "genmodel-figure10": _make_entry(
        "gentree_figures",
        "figure10",
        "predicted times of plans on 12 servers, by term of the model",
        f"{GENTREE}, Figure 10",
    ),
    "piccl-figure4": _make_entry(
        "piccl", "figure4", "k-ring with and without contention, simulated", f"{PICCL}, Figure 4"
    ),
    "piccl-figure7": _make_entry(
        "piccl_permuting", "figure7", "ways of getting blocks in order, simulated", f"{PICCL}, Figure 7"
    ),
    "piccl-figure8": _make_entry(
        "piccl", "figure8", "the best k by size on 16 nodes, simulated", f"{PICCL}, Figures 8 and 5 (a)"
    ),
    "piccl-figures5-6": _make_entry(
        "piccl_scales", "scales", "speedups on 2 to 32 nodes, simulated", f"{PICCL}, Figures 5 and 6"
    ),
    "piccl-selection": _make_entry(
        "piccl_selection",
        "selection",
        "share of the best speedup that k reaches if cheaper models choose it",
        f"{PICCL}, section V.E",
    ),
}
