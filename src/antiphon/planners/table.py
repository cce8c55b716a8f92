"""The built-in planners by name. To add one: a file with a planning function, and a line here.

`sweep` lists options worth trying when tuning: few, and the defaults first. `tuned=False`: tune leaves it out unless it
is asked for by name, because another planner (for `blink`: `trees`) does the same, at the optimum where that is known;
or the collectives for which tune asks it.
`in_switches=True`: all that it makes lets switches multicast or reduce; tune asks it where some can. `composes=True`:
it puts plans of others together, and so is none of those itself; nor, unless named, are those that are `costly=True`.
`effort=2.0`: what it takes to plan and to check, on many ranks, against a planner with a transfer for every two ranks
(1.0): tune begins with those that take least. Measured on 256 and 512 ranks behind switches; less than 0.1 where
transfers grow as ranks do. `most`: by collective among how many ranks at most, of planners that others name where they
refuse; `joined`: those that need links or switches from every rank to every other.
"""

from __future__ import annotations

from typing import Any

from antiphon.registry import Entry

ROOTLESS = ("allgather", "reducescatter", "allreduce")
ALL_ROOTS = (*ROOTLESS, "alltoall")
CYCLES = "any with a cycle of direct links through all ranks, or with switches that join all ranks"
TREES = "any tree of switches with ranks as leaves, fat trees, and boxes on such a fabric"
HELPED = "any whose ranks are joined by switches that multicast and reduce (for what spreads: that multicast)"
JOINED = "any where every two ranks are linked directly or through switches"


def _entry(
    module: str, function: str, about: str, collectives: tuple[str, ...], options: tuple[str, ...],
    *sweep: dict[str, Any], topologies: str = JOINED,
    tuned: bool | tuple[str, ...] = True, in_switches: bool = False, effort: float = 1.0, **more: Any,
) -> Entry:  # fmt: skip
    can: dict[str, Any] = {"collectives": collectives, "topologies": topologies, "options": options, "effort": effort}
    can["sweep"] = ({}, *sweep)
    if tuned is not True:
        can["tuned"] = tuned
    if in_switches:
        can["in_switches"] = True
    if topologies == JOINED:
        can["joined"] = True
    can |= more
    return Entry(f"antiphon.planners.{module}:{function}", about, can)


def _pieces(*depths: int) -> list[dict[str, Any]]:
    return [{"pieces": depth} for depth in depths]


TABLE = {
    "ring": _entry(
        "rings.ring", "ring",
        "around a Hamiltonian cycle of direct links, or over routes through switches, both ways at once",
        (*ROOTLESS, "broadcast", "reduce", "scatter", "gather", "alltoall"), ("order", "directions", "pieces"),
        {"directions": 1}, *_pieces(4, 16, 64), topologies=CYCLES,
        effort=6.0, most={"alltoall": 256},
    ),
    "multi-ring": _entry(
        "rings.multi_ring", "multi_ring",
        "as many edge-disjoint rings as the links hold, as NCCL does; over switches one ring per way out of a host",
        (*ROOTLESS, "broadcast", "reduce", "scatter", "gather", "alltoall"), ("rings", "pieces"),
        *_pieces(1, 8, 64, 256), topologies=CYCLES,
        effort=7.0, most={"alltoall": 256},
    ),
    "hierarchical-ring": _entry(
        "classic.hierarchical", "hierarchical_ring", "rings within groups and among them",
        (*ROOTLESS, "broadcast", "reduce"), ("fanins", "order", "directions", "pieces"),
        {"directions": 1}, *_pieces(4, 16),
        topologies="any where the rings of every level have links or paths through switches (clusters, tori)",
        effort=2.0,
    ),
    "binomial-tree": _entry(
        "classic.binomial_tree", "binomial_tree",
        "whoever has the data passes it on: those who have it double every step",
        ("broadcast", "reduce", "scatter", "gather", *ROOTLESS), ("order", "pieces"), *_pieces(4, 16, 64),
        effort=0.01,
    ),
    "double-binary-tree": _entry(
        "classic.double_binary_tree", "double_binary_tree",
        "two trees, each for half of the data, pipelined, as in NCCL",
        ("broadcast", "reduce", "allreduce"), ("order", "pieces"), *_pieces(1, 4, 64, 256),
        effort=0.02,
    ),
    "recursive-doubling": _entry(
        "classic.recursive_doubling", "recursive_doubling", "partners at distance 1, 2, 4, ... exchange all they have",
        ("allgather", "allreduce"), ("order",),
        effort=0.01,
    ),
    "halving-doubling": _entry(
        "classic.halving_doubling", "halving_doubling",
        "recursive halving, then doubling: the fewest bytes in 2 log2 P steps",
        (*ROOTLESS, "broadcast", "reduce"), ("order", "large", "pieces"), {"large": "far"}, {"pieces": 4},
    ),
    "bruck": _entry(
        "classic.bruck", "bruck", "ceil(log2 P) steps on any number of ranks", (*ROOTLESS, "alltoall"), ("order",),
    ),
    "pairwise": _entry(
        "classic.pairwise", "pairwise",
        "one partner a step, and just what it needs", (*ROOTLESS, "alltoall"), ("order",),
        effort=2.0, most={**dict.fromkeys(ALL_ROOTS, 2**14), "allreduce": 2**13},
    ),
    "direct": _entry(
        "classic.direct", "direct", "everything in one step, straight to whoever needs it",
        ("broadcast", "reduce", "scatter", "gather", *ROOTLESS, "alltoall"), (),
        most=dict.fromkeys(ALL_ROOTS, 2**14),
    ),
    "parameter-server": _entry(
        "classic.parameter_server", "parameter_server", "one rank collects, combines and spreads everything",
        ROOTLESS, ("server", "pieces"), *_pieces(4, 16),
        effort=0.01,
    ),
    "colocated-ps": _entry(
        "classic.parameter_server", "colocated_ps", "every rank is the server of a part: everyone to everyone, twice",
        ("allreduce", "broadcast", "reduce"), ("pieces",), *_pieces(4, 16),
    ),
    "hierarchical-ps": _entry(
        "classic.hierarchical", "hierarchical_ps", "co-located servers within groups and among them, for all fan-ins",
        ROOTLESS, ("fanins", "order", "pieces"),
        effort=45.0,
    ),
    "gentree": _entry(
        "switchtrees.gentree", "gentree",
        "a plan type at every switch of a tree, by GenModel: fan-in, incast and memory access",
        ROOTLESS, ("size", "rearrange", "profile", "pieces"), {"rearrange": "never"}, *_pieces(4), topologies=TREES,
    ),
    "kring": _entry(
        "radix.kring", "kring", "a ring among groups of k ranks (hosts) along every lane, then rings within them",
        (*ROOTLESS, "broadcast", "reduce"), ("k", "groups", "overlap", "order", "pieces"), {"overlap": True},
        effort=1.5,
    ),
    "recmult": _entry(
        "radix.recmult", "recmult", "k partners at a time exchange all they have, at distance 1, k, k^2, ...",
        (*ROOTLESS, "broadcast", "reduce"), ("k", "radices", "fold", "large", "order", "pieces"), {"k": 2}, {"k": 8},
        effort=0.02,
    ),
    "permrecmult": _entry(
        "radix.permrecmult", "permrecmult", "the same, the farthest partners first, and the buffer permuted at the end",
        ROOTLESS, ("k", "radices", "fold", "by", "large", "order", "pieces"), {"k": 2}, {"k": 8},
        effort=0.02,
    ),
    "relay": _entry(
        "relations.relay", "relay",
        "trees over the links there are, from rank to rank: of shortest paths, or several that share the data",
        ("broadcast", "reduce", "scatter", "gather", *ROOTLESS, "alltoall", "custom"), ("by", "trees", "pieces"),
        {"by": "tree", "trees": 1}, {"by": "tree", "trees": 1, "pieces": 16}, topologies="any connected one",
        effort=2.0, most=dict.fromkeys(ALL_ROOTS, 2**11),
    ),
    "flows": _entry(
        "flows.flows", "flows", "the paths of the fastest flow, pipelined: the greatest rate at which data move",
        ("scatter", "gather", "alltoall", "custom"), ("pieces", "steps"), topologies="any connected one",
        effort=200.0, most={"alltoall": 2**11},
    ),
    "greedy": _entry(
        "greedy.greedy", "greedy", "step by step, every link something that is missing: quick on thousands of ranks",
        ("broadcast", "reduce", "scatter", "gather", *ROOTLESS, "alltoall", "custom"), ("parts", "pace"),
        topologies="any connected one",
        tuned_from=65, effort=85.0, most=dict.fromkeys(ALL_ROOTS, 2**10),
    ),
    "trees": _entry(
        "trees.trees", "trees", "packed trees, pipelined: the greatest rate there is, with what proves it",
        ("broadcast", "reduce", *ROOTLESS), ("pieces", "steps", "waits", "halves", "loss", "denominator"),
        topologies="any connected one of up to 512 ranks, with one root or with symmetries 2048",
        sizes=True, effort=45.0,
    ),
    "shallow": _entry(
        "trees.shallow", "shallow", "packed trees of bounded depth, the shallow ones together with the fast ones",
        ("broadcast", "reduce", "allreduce"), ("depth", "pieces", "steps"), topologies="any connected one",
        tuned=("broadcast", "reduce"), costly=True, sizes=True,
        effort=100.0,
    ),
    "blink": _entry(
        "trees.blink", "blink", "spanning trees packed as in Blink: by multiplicative weights, then few",
        ("broadcast", "reduce", "scatter", "gather", *ROOTLESS),
        ("pieces", "epsilon", "threshold", "hybrid", "t_dpa"), topologies="any connected one of up to 64 ranks",
        tuned=False,
        effort=300.0,
    ),
    "compose": _entry(
        "compose.compose", "compose",
        "plans of others for groups of ranks, put together level by level, every level at work at once",
        ("broadcast", "reduce", *ROOTLESS, "alltoall"),
        ("groups", "order", "inside", "best", "turn", "pieces", "ends"),
        topologies="any whose places or links show groups that are joined among themselves (clusters, tori)",
        composes=True,
        effort=5.0, most={**dict.fromkeys(ROOTLESS, 2**12), "alltoall": 2**11},
    ),
    "nvls": _entry(
        "inswitch.nvls", "nvls",
        "every part reduced in the switch to its rank, and multicast back from there, as in NCCL",
        (*ROOTLESS, "broadcast", "reduce"), ("pieces", "beside"), topologies=HELPED, in_switches=True,
    ),
    "sharp": _entry(
        "inswitch.sharp", "sharp", "combined in the fabric and sent on from there, in one step",
        ("allreduce", "broadcast", "reduce"), (),
        topologies="any whose ranks are joined by switches that multicast, reduce and send on what they combined",
        in_switches=True,
        effort=0.01,
    ),
    "nvls-tree": _entry(
        "inswitch.nvls_tree", "nvls_tree",
        "parts reduced in the box to a rank each, combined among boxes by switches, trees or rings, and spread again",
        ("allreduce",), ("within", "between", "pieces"),
        topologies="boxes of equal size, where switches in the boxes or among them multicast and reduce",
        in_switches=True,
    ),
    "sccl": _entry(
        "synth.sccl", "sccl",
        "synthesis of the latency-bandwidth frontier, every point with the proof of its optimality",
        ("broadcast", "reduce", "scatter", "gather", *ROOTLESS, "alltoall", "custom"),
        ("chunks", "steps", "rounds", "k", "memory", "workers", "cache"),
        topologies="any connected one of up to 128 ranks", process=True,
        effort=1000.0,
    ),
}  # fmt: skip
