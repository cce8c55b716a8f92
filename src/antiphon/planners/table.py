"""The built-in planners by name. To add one: a file with a planning function, and a line here."""

from __future__ import annotations

from typing import Any

from antiphon.registry import Entry
from antiphon.registry import PlannerCapabilities as Can

ROOTLESS = ("allgather", "reducescatter", "allreduce")  # every rank gets a result: they have no root
ROOTED = ("broadcast", "reduce", "scatter", "gather")
ALL_ROOTS = (*ROOTLESS, "alltoall")  # every rank is a root: plans have about ranks^2 rows, so `most` limits them
# The machines on which planners work, as phrases for listings:
CYCLES = "any with a cycle of direct links through all ranks, or with switches that join all ranks"
TREES = "any tree of switches with ranks as leaves, fat trees, and boxes on such a fabric"
IN_SWITCHES = "any whose ranks are joined by switches that multicast and reduce (for broadcast, allgather: multicast)"
CONNECTED = "any connected one; data may pass through other ranks"
JOINED = "any where partners reach each other by a link or through switches, not through other ranks"


def _entry(function: str, description: str, capabilities: Can) -> Entry[Can]:
    """Return an entry. `function`: where the planner is, as module:function in this package."""
    return Entry(f"antiphon.planners.{function}", description, capabilities)


def _pieces(*depths: int) -> list[dict[str, Any]]:
    """Return option sets for `sweep`: these pipelining depths."""
    return [{"pieces": depth} for depth in depths]


# The fields of `PlannerCapabilities` used here; `tune` reads them. The first two have no names below: the collectives
# that the planner plans, and the machines on which it does.
#   effort       time to plan and verify on many ranks, relative to a schedule with one transfer per pair of ranks (1.0)
#   most         by collective, the greatest number of ranks; the planner is refused on more
#   sweep        option sets that `tune` tries, by default only the defaults ({})
#   tuned        the collectives for which `tune` uses the planner without its name; False: none
#   tuned_from   ranks: on smaller machines `tune` uses the planner only by name
#   tuned_joined False: where links or switches join every two ranks, `tune` uses the planner only by name, since it has
#                won on no such machine (`bench/bench_answers.py planners`)
#   joined       every two ranks must be linked directly or through switches; otherwise the planner is refused
#   sizes        the planner makes another schedule for each message size
#   timed        steps only order the sends: `tune` uses the planner under models without barriers between steps
#   in_switches  the planner needs switches that multicast or reduce
#   process      the planner always runs in a process of its own
#   composes     the planner combines plans of other planners; so it is not used to plan for a group
#   costly       too slow to plan for groups, unless named
#   ordered      plans collectives whose contributions are combined in order, for operators that do not commute
TABLE: dict[str, Entry[Can]] = {
    "ring": _entry(
        "rings.ring:ring",
        "around a Hamiltonian cycle of direct links, or over routes through switches, both ways at once",
        Can(
            (*ROOTLESS, "broadcast", "reduce", "scatter", "gather", "alltoall"), CYCLES,
            sweep=({}, {"directions": 1}, *_pieces(4, 16, 64)), effort=6.0, most={"alltoall": 256},
        ),
    ),
    "multi-ring": _entry(
        "rings.multi_ring:multi_ring",
        "as many edge-disjoint rings as the links hold, as NCCL does; over switches one per link or card of a host",
        Can(
            (*ROOTLESS, "broadcast", "reduce", "scatter", "gather", "alltoall"), CYCLES,
            sweep=({}, *_pieces(1, 8, 64, 256)), effort=7.0, most={"alltoall": 256},
        ),
    ),
    "hierarchical-ring": _entry(
        "classic.hierarchical:hierarchical_ring", "rings within groups and among them",
        Can(
            (*ROOTLESS, "broadcast", "reduce"),
            "any where the rings of every level have links or paths through switches (clusters, tori)",
            sweep=({}, {"directions": 1}, *_pieces(4, 16)), effort=2.0,
        ),
    ),
    "binomial-tree": _entry(
        "classic.binomial_tree:binomial_tree", "every holder passes the data on: holders double in every step",
        Can(
            ("broadcast", "reduce", "scatter", "gather", *ROOTLESS), JOINED, sweep=({}, *_pieces(4, 16, 64)),
            effort=0.01, joined=True,
        ),
    ),
    "double-binary-tree": _entry(
        "classic.double_binary_tree:double_binary_tree", "two trees, each for half of the data, pipelined, as in NCCL",
        Can(
            ("broadcast", "reduce", "allreduce"), JOINED, sweep=({}, *_pieces(1, 4, 64, 256)), effort=0.02,
            joined=True,
        ),
    ),
    "recursive-doubling": _entry(
        "classic.recursive_doubling:recursive_doubling",
        "partners at distance 1, 2, 4, ... exchange all they have; 2 steps more if P is no power of 2",
        Can(("allgather", "allreduce"), JOINED, effort=0.01, joined=True),
    ),
    "halving-doubling": _entry(
        "classic.halving_doubling:halving_doubling",
        "fewest bytes: recursive halving, doubling, or both (allreduce), log2 P steps each; more if P is no power of 2",
        Can(
            (*ROOTLESS, "broadcast", "reduce"), JOINED, sweep=({}, {"large": "far"}, {"pieces": 4}), effort=1.0,
            joined=True,
        ),
    ),
    "bruck": _entry(
        "classic.bruck:bruck", "ceil(log2 P) steps, twice that for allreduce, on any number of ranks",
        Can((*ROOTLESS, "alltoall"), JOINED, effort=1.0, joined=True),
    ),
    "pairwise": _entry(
        "classic.pairwise:pairwise",
        "in every step each rank sends one partner the blocks meant for it; any number of ranks",
        Can(
            (*ROOTLESS, "alltoall"), JOINED, effort=2.0, joined=True,
            most={**dict.fromkeys(ALL_ROOTS, 2**14), "allreduce": 2**13},
        ),
    ),
    "direct": _entry(
        "classic.direct:direct", "everything in one step, straight to each receiver",
        Can(
            ("broadcast", "reduce", "scatter", "gather", *ROOTLESS, "alltoall"), JOINED, effort=1.0, joined=True,
            most=dict.fromkeys(ALL_ROOTS, 2**14),
        ),
    ),
    "parameter-server": _entry(
        "classic.parameter_server:parameter_server", "one rank collects, combines and spreads everything",
        Can(ROOTLESS, JOINED, sweep=({}, *_pieces(4, 16)), effort=0.01, joined=True),
    ),
    "colocated-ps": _entry(
        "classic.parameter_server:colocated_ps", "every rank is the server of an equal share of the data, in two steps",
        Can(("allreduce", "broadcast", "reduce"), JOINED, sweep=({}, *_pieces(4, 16)), effort=1.0, joined=True),
    ),
    "hierarchical-ps": _entry(
        "classic.hierarchical:hierarchical_ps",
        "every rank is the server of a share within its group, then among groups; tries several group sizes",
        Can(ROOTLESS, JOINED, effort=45.0, joined=True),
    ),
    "gentree": _entry(
        "switchtrees.gentree:gentree",
        "at every switch of a tree the algorithm that is fastest by GenModel (fan-in, incast, memory access)",
        Can(ROOTLESS, TREES, sweep=({}, {"rearrange": "never"}, *_pieces(4)), effort=1.0),
    ),
    "kring": _entry(
        "radix.kring:kring", "rings among groups of k ranks, such as hosts, one per lane; then rings within them",
        Can((*ROOTLESS, "broadcast", "reduce"), JOINED, sweep=({}, {"overlap": True}), effort=1.5, joined=True),
    ),
    "recmult": _entry(
        "radix.recmult:recmult", "k partners at a time exchange all they have, at distance 1, k, k^2, ...",
        Can((*ROOTLESS, "broadcast", "reduce"), JOINED, sweep=({}, {"k": 2}, {"k": 8}), effort=0.02, joined=True),
    ),
    "permrecmult": _entry(
        "radix.permrecmult:permrecmult", "recmult with the farthest partners first and the buffer permuted at the end",
        Can(ROOTLESS, JOINED, sweep=({}, {"k": 2}, {"k": 8}), effort=0.02, joined=True),
    ),
    "relay": _entry(
        "relations.relay:relay",
        "one tree of shortest paths per root along existing links, or several per root that share the data",
        Can(
            ("broadcast", "reduce", "scatter", "gather", *ROOTLESS, "alltoall", "custom"), CONNECTED,
            sweep=({}, {"by": "tree", "trees": 1}, {"by": "tree", "trees": 1, "pieces": 16}), effort=2.0,
            most=dict.fromkeys(ALL_ROOTS, 2**11), ordered=True,
        ),
    ),
    "flows": _entry(
        "flows.flows:flows", "the paths of the fastest flow, pipelined: the greatest rate at which data move",
        Can(("scatter", "gather", "alltoall", "custom"), CONNECTED, effort=200.0, most={"alltoall": 2**11}),
    ),
    "greedy": _entry(
        "greedy.greedy:greedy", "in every step every link delivers a missing chunk: quick on thousands of ranks",
        Can(
            ("broadcast", "reduce", "scatter", "gather", *ROOTLESS, "alltoall", "custom"), CONNECTED,
            effort=85.0, tuned_from=65, most=dict.fromkeys(ALL_ROOTS, 2**10),
        ),
    ),
    "dispatch": _entry(
        "dispatch.dispatch:dispatch", "trees that grow by predicted times of arrival, not by steps, for small messages",
        Can(
            ("broadcast", "reduce", "scatter", "gather", *ROOTLESS, "alltoall"), CONNECTED, effort=500.0,
            sizes=True, timed=True, costly=True,
            most={**dict.fromkeys((*ROOTLESS, *ROOTED), 256), "alltoall": 64},
        ),
    ),
    "trees": _entry(
        "trees.trees:trees", "packed trees, pipelined, at the greatest possible rate, with a proof",
        Can(
            ("broadcast", "reduce", *ROOTLESS),
            "any connected one of up to 512 ranks; 2048 with one root or a symmetric machine", effort=60.0, sizes=True,
        ),
    ),
    "shallow": _entry(
        "trees.shallow:shallow", "packed trees of bounded depth, the shallow ones together with the fast ones",
        Can(
            ("broadcast", "reduce", "allreduce"), CONNECTED, effort=100.0, tuned=("broadcast", "reduce"),
            costly=True, sizes=True,
        ),
    ),
    "blink": _entry(
        "trees.blink:blink", "spanning trees packed as in Blink: by multiplicative weights, then reduced to a few",
        Can(
            ("broadcast", "reduce", "scatter", "gather", *ROOTLESS), "any connected one of up to 64 ranks",
            effort=300.0, tuned=False,
        ),
    ),
    "compose": _entry(
        "compose.compose:compose",
        "plans of other planners for nested groups of ranks; its levels work on different pieces at the same time",
        Can(
            ("broadcast", "reduce", *ROOTLESS, "alltoall"),
            "any with groups, by place or links, whose ranks reach each other within the group (clusters, tori)",
            effort=5.0, composes=True, most={**dict.fromkeys(ROOTLESS, 2**12), "alltoall": 2**11},
        ),
    ),
    "groups": _entry(
        "compose.groups:groups",
        "plans for several process groups at the same time, each on links of its own or a share of all",
        Can(("custom",), CONNECTED, effort=100.0, composes=True),
    ),
    "nvls": _entry(
        "inswitch.nvls:nvls", "the switch reduces each rank's share to that rank and multicasts it back, as in NCCL",
        Can((*ROOTLESS, "broadcast", "reduce"), IN_SWITCHES, effort=1.0, in_switches=True),
    ),
    "sharp": _entry(
        "inswitch.sharp:sharp", "the fabric reduces and forwards, in one step",
        Can(
            ("allreduce", "broadcast", "reduce"),
            "any whose ranks are joined by switches that multicast, reduce and forward what they reduced",
            effort=0.01, in_switches=True,
        ),
    ),
    "nvls-tree": _entry(
        "inswitch.nvls_tree:nvls_tree",
        "shares reduced within boxes, combined among boxes by switches, trees or rings, and multicast again",
        Can(
            ("allreduce",), "boxes, where switches in the boxes or among them multicast and reduce",
            effort=60.0, in_switches=True, sizes=True,
        ),
    ),
    "sccl": _entry(
        "synth.sccl:sccl", "synthesis of the latency-bandwidth frontier, each point with what is proved of it",
        Can(
            ("broadcast", "reduce", "scatter", "gather", *ROOTLESS, "alltoall", "custom"),
            "any connected one; above 128 ranks it takes plans of quick planners instead of searching", effort=1000.0,
            process=True, tuned_joined=False, ordered=True,
        ),
    ),
}  # fmt: skip
