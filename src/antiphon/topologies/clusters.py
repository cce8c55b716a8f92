"""Clusters: copies of any box of the catalogue on a fabric; Amazon EC2, NCSA Delta and Argonne Polaris.

`cluster` takes a box (one computer with its GPUs), chooses its network cards (`cards_of`), builds the switches of the
fabric level by level (`_rail_fabric`, `_tree_fabric`) and connects both (`joined.connect_boxes`). An uplink has the
bandwidth of all cards below it divided by `oversubscription` (as an exact number `taper` in the code).
"""

from __future__ import annotations

import re
from fractions import Fraction

from antiphon.core.topology import FORWARD_ONLY, MAX_NAME, Ability, Topology, both_ways, build
from antiphon.errors import Invalid, Unsupported
from antiphon.options import parse_yes
from antiphon.topologies.joined import Cards, Fabric, connect_boxes, one_switch, trunks_above
from antiphon.topologies.links import NVLINK, nvlink
from antiphon.topologies.options import Bandwidth, as_text, check_integer, one_of, parse_oversubscription
from antiphon.topologies.spec import is_file, machine_of
from antiphon.units import parse_bandwidth

# SHARP on InfiniBand: every switch sends its partial result to the switch above, and the top one multicasts the result
# (`through`: the result reaches no rank in between). Operators and types: NVIDIA's documentation of SHARP.
SHARP = Ability(
    multicast=True, reduce=True, through=True, operators=("sum", "min", "max"),
    types=("float16", "bfloat16", "float32", "float64", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
)  # fmt: skip
FABRICS = ("switch", "leaf-spine", "fat-tree", "rail")
_NEXT_BOX = re.compile(r"\+(?=[a-z./][^=+,]*(?::|\+|$))")  # a "+" between two boxes; before key= it separates options

# cards per box and Gbit/s each, from the vendors' data sheets: DGX-1 (four EDR), DGX-2 (eight EDR), DGX A100 (eight
# HDR), DGX H100 (eight NDR), DGX H200 and B200 (eight of 400), GB200 NVL72 (72 of 400); Gaudi 3 (three
# ports of 200 out of the box each, Intel's documentation); Frontier's user guide
# (one Slingshot 11 per MI250X); AMD's MI300X and MI350X reference platforms (eight of 400). Others: assumed.
_CARDS = {
    "dgx1p": (4, 100), "dgx1v": (4, 100), "dgx1v_sccl": (4, 100), "dgx2": (8, 100), "dgx-a100": (8, 200),
    "hgx-h100": (8, 400), "hgx-h200": (8, 400), "hgx-b200": (8, 400), "gb200-nvl72": (72, 400), "gaudi3": (24, 200),
    "mi250": (8, 200), "mi250:gcds=8": (4, 200), "mi300x": (8, 400), "mi350x": (8, 400), "z52": (1, 100),
    "z52-pcie": (1, 100), "pcie8": (4, 100),
}  # fmt: skip


def cluster(  # noqa: PLR0913 (an option of a machine each)
    *,
    box: str = "dgx-a100",
    boxes: int = 2,
    fabric: str = "switch",
    oversubscription: str | int = 1,
    nics: int | None = None,
    nic: Bandwidth | None = None,
    boxes_per_leaf: int | None = None,
    leaves_per_pod: int = 2,
    spines: int = 1,
    sharp: bool = False,
) -> Topology:
    """`boxes` boxes with network cards on a fabric. box= any topology; its options after a colon, separated by "+":
    box=torus:dims=2x4+bandwidth=50GB/s; or a file, box=./box.json, whose machine gives the name. Boxes of several kinds
    in turn: box=dgx1v+dgx-a100, on fabric=switch.

    fabric=switch: one switch for all. leaf-spine: boxes_per_leaf (2) boxes on each leaf, the leaves on a spine.
    fat-tree: boxes_per_leaf (1) boxes on each leaf, leaves_per_pod leaves on each pod's switch, pods on a core.
    rail: card i of every box on switch rail i, the rails on a spine; spines=0 leaves the spine out.
    A leaf's (rail's) uplink has the bandwidth of all cards below it divided by `oversubscription`; an uplink of a
    higher level has the bandwidth of all uplinks below it.

    One spine (pod switch, core) stands for all switches side by side there, with their summed bandwidth: traffic
    is spread evenly over them, and paths are unambiguous. spines=4 makes four of each instead, and planners choose.

    Cards: nics= per box, nic= bandwidth of each; by default those in the box's file, else what the box is sold with,
    else one of 200 Gbit/s per rank (assumed). Ranks that share a card have a link of its speed each, and a shared
    limit. Cards of pcie8 sit on its PCIe switches. InfiniBand latencies as links.py says.

    sharp=true: the fabric's switches multicast and reduce, as InfiniBand's do where SHARP is set up; they send
    results on without passing through a rank.
    """
    # within `box` options are separated by "+", as a comma would end it
    kinds = [machine_of(name, separator="+") for name in _NEXT_BOX.split(box)]
    box_machine = kinds[0]
    check_integer(boxes, "boxes", 1, 100_000)
    one_of(fabric, "fabric", FABRICS)
    if len(kinds) > 1 and (fabric != "switch" or boxes < len(kinds)):
        raise Invalid(f"box={box}: boxes of several kinds need fabric=switch and boxes={len(kinds)} or more")
    taper = parse_oversubscription(oversubscription)
    if fabric == "switch" and taper != 1:
        raise Invalid("fabric=switch has no uplinks to be oversubscribed; use fabric=leaf-spine, fat-tree or rail")
    check_integer(spines, "spines", 0 if fabric == "rail" else 1, 1024)
    if boxes * box_machine.ranks < 2:
        raise Invalid(f"boxes={boxes}: makes {boxes * box_machine.ranks} rank; a network needs at least 2 ranks")
    cards_by_kind = [
        _cards_in_file(kind, nic) if kind.cards and nics is None else cards_of(kind, nics, nic) for kind in kinds
    ]
    cards = cards_by_kind[0]
    per_leaf = 1 if fabric == "fat-tree" else 2
    if boxes_per_leaf is not None:
        per_leaf = check_integer(boxes_per_leaf, "boxes_per_leaf")
    check_integer(leaves_per_pod, "leaves_per_pod")
    cards.check(box_machine.name)
    switch_network = {
        "switch": lambda: one_switch(boxes, max(kind_cards.rails for kind_cards in cards_by_kind)),
        "rail": lambda: _rail_fabric(boxes, cards, spines, taper),
        # with room for all leaves in one pod there is one, whose switches are the spine
        "leaf-spine": lambda: _tree_fabric(boxes, cards, per_leaf, boxes, spines, taper),
        "fat-tree": lambda: _tree_fabric(boxes, cards, per_leaf, leaves_per_pod, spines, taper),
    }[fabric]()
    name_options = {
        "oversubscription": oversubscription if taper != 1 else None,
        "nics": nics,
        "nic": nic,
        "boxes_per_leaf": boxes_per_leaf,
        "leaves_per_pod": leaves_per_pod if leaves_per_pod != 2 else None,
        "spines": spines if spines != 1 else None,
        "sharp": "true" if parse_yes(sharp, "sharp") else None,
    }
    name = f"cluster:box={box},boxes={boxes},fabric={fabric}"
    name += "".join(f",{key}={as_text(key, value)}" for key, value in name_options.items() if value is not None)
    if len(kinds) == 1 and is_file(box):  # a path means nothing elsewhere; models find the GPUs by the box's name
        name = f"{boxes} x {box_machine.name} on {fabric}"
    ability = SHARP if parse_yes(sharp, "sharp") else FORWARD_ONLY
    boxes_with_cards = [*zip(kinds, cards_by_kind, strict=True)]
    all_boxes = [boxes_with_cards[b % len(kinds)] for b in range(boxes)]
    return connect_boxes(name[:MAX_NAME], all_boxes, switch_network, ability)


def sold_with_cards(name: str) -> bool:
    """Return whether the cards of a box of this name are those that it is sold with, rather than assumed."""
    return name in _CARDS or name.partition(":")[0] in _CARDS


def cards_of(box: Topology, nics: object = None, nic: Bandwidth | None = None, sold_as: str = "") -> Cards:
    """Return the network cards of a box: `nics` of bandwidth `nic`, by default those that a product is sold with.

    `sold_as`: the name of the product (default: that of the box). A box that is unknown by its name, with or without
    options, has a card of 200 Gbit/s per rank.
    """
    name = sold_as or box.name
    count, gigabits = _CARDS.get(name, _CARDS.get(name.partition(":")[0], (box.ranks, 200)))
    if nics is not None:
        count = check_integer(nics, "nics", 1, 10_000)
    speed = Fraction(gigabits * 10**9, 8) if nic is None else parse_bandwidth(nic, "nic")
    ports = tuple(range(box.ranks))  # the nodes next to the cards
    if box.name.startswith("pcie8"):
        ports = tuple(n for n in range(box.ranks, box.nodes) if "/pcie" in box.places[n])
    return Cards(count, speed, ports)


def _cards_in_file(box: Topology, nic: Bandwidth | None) -> Cards:
    """Return the network cards that a box's file lists; all must have one speed and serve equally many nodes."""
    speeds = {card.bandwidth for card in box.cards} if nic is None else {parse_bandwidth(nic, "nic")}
    speed = max((speed for speed in speeds if speed), default=None)
    if speed is None or len(speeds) > 1:
        fault = "have no speed" if speed is None else "differ in speed, or some have none"
        raise Invalid(
            f"{box.name}: its {len(box.cards)} network cards {fault}; give the speed of each, such as nic=400Gbit/s"
        )
    cards = Cards(len(box.cards), speed, tuple(sorted({node for card in box.cards for node in card.nodes})))
    if sorted(card.nodes for card in box.cards) != sorted(cards.served()):
        raise Unsupported(
            f"{box.name}: its {len(box.cards)} network cards do not serve equal groups of GPUs; join the boxes by "
            "antiphon topology join FILE switch:boxes=N, or give nics="
        )
    return cards


def _rail_fabric(boxes: int, cards: Cards, spines: int, taper: Fraction) -> Fabric:
    """Return a switch per rail (card i of every box), below `spines` spine switches."""
    rails = [f"rail{r}" for r in range(cards.rails)]
    # a single rail joins all cards by itself
    spine_switches = [f"spine{s}" for s in range(spines)] if cards.rails > 1 else []
    rail_bandwidth = boxes * cards.count * cards.bandwidth / cards.rails
    trunks = trunks_above([(rail, rail_bandwidth) for rail in rails], spine_switches, taper) if spine_switches else ()
    rail_of_card = {(b, r): rail for b in range(boxes) for r, rail in enumerate(rails)}
    return Fabric((*rails, *spine_switches), rail_of_card, trunks)


def _tree_fabric(boxes: int, cards: Cards, per_leaf: int, per_pod: int, spines: int, taper: Fraction) -> Fabric:
    """Return leaf switches below a spine; if they form several pods, below each pod's switches, and these below cores.

    `per_leaf`: boxes per leaf; `per_pod`: leaves per pod; `spines`: switches of the level above the leaves (per pod),
    and cores. With several spines the i-th switch of every pod is linked to the i-th core: planes, as in a fat tree.
    """
    leaf_of = [b // per_leaf for b in range(boxes)]
    leaves = [f"leaf{i}" for i in range(leaf_of[-1] + 1)]
    leaf_of_card = {(b, r): leaves[leaf_of[b]] for b in range(boxes) for r in range(cards.rails)}
    if len(leaves) == 1:
        return Fabric(tuple(leaves), leaf_of_card)
    box_bandwidth = cards.count * cards.bandwidth
    leaf_bandwidths = [(leaf, box_bandwidth * leaf_of.count(i)) for i, leaf in enumerate(leaves)]
    pods = [leaf_bandwidths[i : i + per_pod] for i in range(0, len(leaf_bandwidths), per_pod)]
    if len(pods) == 1:
        spine_switches = [f"spine{s}" for s in range(spines)]
        return Fabric((*leaves, *spine_switches), leaf_of_card, trunks_above(leaf_bandwidths, spine_switches, taper))
    trunks: list[tuple[str, str, Fraction]] = []
    all_pod_switches: list[str] = []
    cores = [f"core{s}" for s in range(spines)]
    for number, pod in enumerate(pods):
        pod_switches = [f"pod{number}.{s}" if spines > 1 else f"pod{number}" for s in range(spines)]
        all_pod_switches += pod_switches
        trunks += trunks_above(pod, pod_switches, taper)
        # as much as the pod's leaves send up: only a leaf's uplink is oversubscribed
        uplink = sum((speed for _, speed in pod), Fraction(0)) / taper / spines
        trunks += [(pod_switch, core, uplink) for pod_switch, core in zip(pod_switches, cores, strict=True)]
    return Fabric((*leaves, *all_pod_switches, *cores), leaf_of_card, tuple(trunks))


# ---- Amazon EC2 ----

# The box, its EFA cards and Gbit/s each: Amazon EC2 User Guide, "Network specifications" of accelerated computing
# instances (p4d.24xlarge, p5.48xlarge, p5en.48xlarge, p6-b200.48xlarge, trn2.48xlarge).
INSTANCES = {
    "p4d": ("dgx-a100", 4, 100), "p5": ("hgx-h100", 32, 100), "p5en": ("hgx-h200", 16, 200),
    "p6-b200": ("hgx-b200", 8, 400), "trn2": ("trn2", 16, 200),
}  # fmt: skip


def ec2(*, instance: str = "p5", instances: int = 2) -> Topology:
    """`instances` EC2 instances on EFA: instance=p4d (8 A100), p5 (8 H100), p5en (8 H200), p6-b200 (8 B200) or trn2 (16
    Trainium2).

    One switch stands for the network between them, as in a placement group: it carries everything that cards can send
    (assumed). It neither multicasts nor reduces. Cards are spread evenly over accelerators; latency as of InfiniBand
    (assumed).
    """
    box, cards, gigabits = INSTANCES[one_of(instance, "instance", tuple(INSTANCES))]
    check_integer(instances, "instances", 2, 100_000)
    machine = machine_of(box)
    adapters = Cards(cards, Fraction(gigabits * 10**9, 8), tuple(range(machine.ranks)), "efa")
    name = f"ec2:instance={instance},instances={instances}"
    return connect_boxes(name, [(machine, adapters)] * instances, one_switch(instances, adapters.rails, "efa"))


# ---- the clusters of the parameterized-collectives paper (section V): NCSA Delta and Argonne Polaris ----

# A node has four A100, each pair joined by four NVLinks, 100 GB/s each way (NVIDIA, HGX A100 4-GPU; ALCF's page on
# Polaris shows NV4 for every pair). The paper writes "600 Gbps" for NVLink: NVIDIA's 600 GB/s are meant, both ways, per
# GPU. A Slingshot 11 card carries 200 Gbit/s. The dragonfly between nodes is modelled as one switch: like the paper's
# simulator, this models contention at devices and at cards, not inside the fabric.
SLINGSHOT = Fraction(25 * 10**9)  # bytes per second of a card, each way


def delta(*, nodes: int = 16) -> Topology:
    """NCSA Delta: `nodes` nodes of four A100, one Slingshot card each, shared by all four."""
    return _paper_cluster("delta", nodes, cards=1)


def polaris(*, nodes: int = 16) -> Topology:
    """Argonne Polaris: `nodes` nodes of four A100, two Slingshot cards each; GPUs 0 and 1 share one, 2 and 3 the other
    (assumed)."""
    return _paper_cluster("polaris", nodes, cards=2)


def _paper_cluster(name: str, nodes: int, cards: int) -> Topology:
    """Return nodes of four A100 with Slingshot cards on one switch."""
    check_integer(nodes, "nodes", 1, 100_000)
    pairs = [(a, b) for a in range(4) for b in range(a + 1, 4)]
    box = build("quad", 4, both_ways(pairs, nvlink(4)), places=[f"gpu{i}" for i in range(4)], unit=NVLINK)
    adapters = Cards(cards, SLINGSHOT, (0, 1, 2, 3), "slingshot")
    return connect_boxes(f"{name}:nodes={nodes}", [(box, adapters)] * nodes, one_switch(nodes, cards, "slingshot"))
