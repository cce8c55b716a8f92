"""Model a server as tools describe it (a PCIe tree with GPUs, faster links, network cards), and convert it to a
machine.

The conversion follows the catalogue: NVLinks between two GPUs become one link, all NVSwitches one switch, PCIe
becomes switches below the host bridges of the sockets, with the bandwidth limit of each bridge. Where the faster
links connect all GPUs, PCIe is omitted, because no plan would use it.

Example: four GPUs without NVLink, two below each of two PCIe switches, which are below one host bridge. The machine has
ranks 0 to 3, a switch for each PCIe switch and one for the bridge. Had each PCIe switch one GPU, only the bridge would
be a switch: its links to the GPUs are as fast as the slowest link on the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations

from antiphon.core.topology import (
    FORWARD_ONLY,
    Ability,
    Link,
    LinkType,
    NetworkCard,
    SharedLimit,
    Topology,
    both_ways,
    build,
)
from antiphon.errors import Invalid, quote
from antiphon.formats.probe.probed import Probed
from antiphon.options import parse_yes
from antiphon.topologies.links import NVLINK, NVLINK_LATENCY, NVSWITCH_HOP, PCIE, PCIE_HOP, XGMI_LATENCY
from antiphon.topologies.nvswitch import NVLS, dgx2
from antiphon.topologies.pcie import BETWEEN_SOCKETS, bridge_limits
from antiphon.units import format_bandwidth

MAX_DEVICES, MAX_GPUS = 2**13, 2**10  # of a box; more is a damaged or hostile file
MAX_DEPTH = 32  # devices between a device and the root
MAX_PAIRED = 32  # host bridges that are joined in pairs; more are joined by a switch
UNKNOWN_GPU_NOTE = (
    "the model of these GPUs is unknown, so measured figures are left out: to predict and tune with them, pass "
    "--model calls:gpu=h100 (or a100, v100, b200, mi300x)"
)
BRIDGE, SWITCH, GPU, NIC = "bridge", "switch", "gpu", "nic"  # kinds of PcieDevice; a bridge is a host bridge


@dataclass
class PcieDevice:
    """A device of the PCIe tree."""

    kind: str  # BRIDGE, SWITCH, GPU or NIC
    parent: int = -1  # the device above; -1 for a host bridge, or if unknown
    speed: Fraction | None = None  # bytes per second of the link to the parent, None if unknown
    name: str = ""  # PCI address, or name of a card
    depth: int = 0  # devices between it and the root


@dataclass
class Box:
    """A server with its GPUs (one rank each), as a tool describes it. Bandwidths are in bytes per second."""

    name: str
    model: str = ""  # product name of its GPUs; "" if unknown
    devices: list[PcieDevice] = field(default_factory=list)  # of the PCIe tree; others refer to them by index
    gpus: list[int] = field(default_factory=list)  # rank -> its device
    # (source rank, destination rank) -> bandwidth of all NVLinks or xGMI links of the pair together, in this direction
    bonds: dict[tuple[int, int], Fraction] = field(default_factory=dict)
    # rank -> bandwidth of all its NVLinks to the NVSwitches together
    switch_bandwidth: dict[int, Fraction] = field(default_factory=dict)
    # rank -> bandwidth of all its NVLinks to the processor together (POWER systems)
    hosts: dict[int, Fraction] = field(default_factory=dict)
    link_bandwidth: Fraction = NVLINK  # of one NVLink or xGMI link
    fast_kind: str = "nvlink"  # or "xgmi"
    has_nvls: bool = False  # whether the NVSwitches multicast and reduce
    pcie_generation: int = 4  # assumed for links without a known speed
    nic_speeds: dict[int, Fraction | None] = field(default_factory=dict)  # device of a network card -> its bandwidth
    addresses: dict[int, str] = field(default_factory=dict)  # rank -> its PCI address, if known
    notes: list[str] = field(default_factory=list)  # assumptions and omissions, for the user

    def add(self, device: PcieDevice) -> int:
        """Add a device below its parent, which is in the box; return its number."""
        if len(self.devices) >= MAX_DEVICES:
            raise Invalid(f"has more than {MAX_DEVICES} devices; a box has some hundred at most")
        device.depth = self.devices[device.parent].depth + 1 if device.parent >= 0 else 0
        if device.depth > MAX_DEPTH:
            raise Invalid(f"has devices behind more than {MAX_DEPTH} bridges")
        self.devices.append(device)
        return len(self.devices) - 1

    def drop_slow_cards(self) -> None:
        """Leave out cards of at most a tenth of the fastest one's speed: they manage the host."""
        known_speeds = [speed for speed in self.nic_speeds.values() if speed]
        slow_cards = [device for device, speed in self.nic_speeds.items() if speed and speed * 10 <= max(known_speeds)]
        for device in slow_cards:
            del self.nic_speeds[device]
        if slow_cards:
            names = ", ".join(self.devices[device].name for device in slow_cards[:8])
            self.notes.append(f"slow network cards are left out: {names}")


def build_box(box: Box, pcie: object = None) -> Probed:
    """Return the machine of a box.

    `pcie`: whether to include PCIe (yes or no); None: only if the faster links do not join all GPUs.
    """
    count = len(box.gpus)
    if not count:
        raise Invalid("lists no GPU; nothing can communicate")
    if count > MAX_GPUS:
        raise Invalid(f"shows {count} GPUs; at most {MAX_GPUS} of one box are read")
    builder = _MachineBuilder(box)
    # 1. NVLink, xGMI and NVSwitches
    builder.add_fast_links()
    is_joined = builder.connects_all_ranks()
    # 2. PCIe, unless the faster links connect everything
    with_pcie = not is_joined if pcie is None else parse_yes(pcie, "pcie")
    if with_pcie:
        builder.add_pcie()
    elif box.devices and count > 1 and pcie is None:
        box.notes.append(f"PCIe is left out: {box.fast_kind} joins all GPUs (--option pcie=true draws it)")
    if not box.model:
        box.notes.append(UNKNOWN_GPU_NOTE)
    if not builder.connects_all_ranks():
        box.notes.append("some GPUs are joined by nothing that is shown here")
    machine = builder.machine()
    names = tuple(f"GPU {rank}" for rank in range(count))
    return Probed(machine, tuple(dict.fromkeys(box.notes)), names)


class _MachineBuilder:
    """The links and switches of the machine of a box, added step by step."""

    def __init__(self, box: Box) -> None:
        self.box, self.ranks = box, len(box.gpus)
        self.links: list[Link] = []
        self.places = [f"host0/gpu{rank}" for rank in range(self.ranks)]
        self.abilities: list[Ability] = []
        self.bridges: list[int] = []
        self.node = {device: rank for rank, device in enumerate(box.gpus)}  # device -> its node of the machine

    def add_switch(self, place: str, ability: Ability = FORWARD_ONLY) -> int:
        self.places.append(place)
        self.abilities.append(ability)
        return len(self.places) - 1

    def add_fast_links(self) -> None:
        """Add NVLinks or xGMI links, and a switch for all NVSwitches."""
        box = self.box
        latency = NVLINK_LATENCY if box.fast_kind == "nvlink" else XGMI_LATENCY
        for (a, b), speed in box.bonds.items():
            self.links.append((a, b, LinkType(box.fast_kind, speed, latency)))
        if not box.switch_bandwidth:
            return
        # nvidia-smi does not show the two boards of a DGX-2, whose bisection matters
        to_switches = [*box.switch_bandwidth.values()]
        dgx2_ranks, dgx2_speed = 16, 6 * NVLINK
        if not box.bonds and to_switches == [dgx2_speed] * dgx2_ranks and self.ranks == dgx2_ranks:
            box.notes.append("sixteen GPUs with six NVLinks each: drawn as the two boards of DGX-2")
            self._add_two_boards()
            return
        hub = self.add_switch("host0/nvswitch", NVLS if box.has_nvls else FORWARD_ONLY)
        for rank, speed in box.switch_bandwidth.items():
            self.links += both_ways([(rank, hub)], LinkType(box.fast_kind, speed, NVSWITCH_HOP))

    def _add_two_boards(self) -> None:
        """Add the switches and links of the catalogue's DGX-2."""
        boards = dgx2()
        for place in boards.places[boards.ranks :]:
            self.add_switch(place)
        links = zip(boards.link_src.tolist(), boards.link_dst.tolist(), boards.link_type.tolist(), strict=True)
        self.links += [(a, b, boards.types[type_index]) for a, b, type_index in links]

    def connects_all_ranks(self) -> bool:
        """Return whether the links so far join all ranks."""
        group = list(range(len(self.places)))
        for a, b, _ in self.links:
            join_groups(group, a, b)
        return len({find_group(group, rank) for rank in range(self.ranks)}) <= 1

    def add_pcie(self) -> None:
        """Add PCIe: the bridges of the sockets, and the switches below at which several branches with GPUs meet."""
        devices = self.box.devices
        # 1. Walk up from every GPU; stop at a device where this branch was counted before.
        branches: dict[int, set[int]] = {}  # device above a GPU -> those directly below it that lead to a GPU
        for device in self.box.gpus:
            child, parent = device, devices[device].parent
            while parent >= 0:
                children = branches.setdefault(parent, set())
                is_new = child not in children
                children.add(child)
                if not is_new:
                    break
                child, parent = parent, devices[parent].parent
        # 2. Keep only devices where branches meet: a switch with one GPU below adds nothing. If there are several host
        #    bridges (`tops`), the GPUs below them meet through all of these.
        tops = sorted(device for device in branches if devices[device].parent < 0)
        sockets = {top: number for number, top in enumerate(tops)}
        roots = [top for top in tops if len(branches[top]) > 1 or len(tops) > 1]
        switch_devices = sorted(
            device for device in branches if devices[device].parent >= 0 and len(branches[device]) > 1
        )
        for number, device in enumerate(switch_devices):
            self.node[device] = self.add_switch(f"host0/socket{sockets[self._top_of(device)]}/pcie{number}")
        for top in roots:
            self.node[top] = self.add_switch(f"host0/socket{sockets[top]}/bridge{sockets[top]}")
        self.bridges = [self.node[top] for top in roots]
        # without faster links the sockets are the structure worth showing
        if not self.box.bonds and not self.box.switch_bandwidth:
            for rank, device in enumerate(self.box.gpus):
                if (top := self._top_of(device)) in sockets:
                    self.places[rank] = f"host0/socket{sockets[top]}/gpu{rank}"
        self._add_pcie_links([*self.box.gpus, *switch_devices])
        if len(self.bridges) > 1:
            if len(self.bridges) > MAX_PAIRED:
                hub = self.add_switch("host0/sockets")
                pairs = [(bridge, hub) for bridge in self.bridges]
            else:
                pairs = list(combinations(self.bridges, 2))
            self.links += both_ways(pairs, LinkType("socket", BETWEEN_SOCKETS, PCIE_HOP))
            self.box.notes.append(
                f"between sockets {format_bandwidth(BETWEEN_SOCKETS)} each way are assumed (NCCL's figure)"
            )

    def _add_pcie_links(self, devices: Sequence[int]) -> None:
        """Add a link from each of these devices to the next device above it that is a node of the machine."""
        has_assumed_speed = False
        host_links = {self.box.gpus[rank]: speed for rank, speed in self.box.hosts.items()}
        for device in devices:
            speeds, parent = [self.box.devices[device].speed], self.box.devices[device].parent
            # the slowest link on the way to the next device that is a node limits the merged link
            while parent >= 0 and parent not in self.node:
                speeds.append(self.box.devices[parent].speed)
                parent = self.box.devices[parent].parent
            if parent < 0:
                continue
            known_speeds = [speed for speed in speeds if speed is not None]
            has_assumed_speed = has_assumed_speed or not (known_speeds or device in host_links)
            assumed_speed = PCIE.get(self.box.pcie_generation, PCIE[4])
            link_type = LinkType("pcie", min(known_speeds, default=assumed_speed), PCIE_HOP)
            # POWER systems: NVLink to the processor takes the place of PCIe
            if device in host_links and self._top_of(device) in self.node:
                parent = self._top_of(device)
                link_type = LinkType(self.box.fast_kind, host_links[device], NVLINK_LATENCY)
            self.links += both_ways([(self.node[device], self.node[parent])], link_type)
        if has_assumed_speed:
            generation = self.box.pcie_generation
            self.box.notes.append(f"PCIe: 16 lanes of generation {generation} are assumed (--option pcie_gen=5)")

    def _top_of(self, device: int) -> int:
        """Return the host bridge above a device."""
        while self.box.devices[device].parent >= 0:
            device = self.box.devices[device].parent
        return device

    def machine(self) -> Topology:
        """Return the machine of all links and switches that were added; `bridge_limits` bounds the traffic of sockets.

        The unit link is one NVLink or xGMI link or, without such links, the slowest PCIe slot.
        """
        limits: list[SharedLimit] = []
        if self.bridges and any(link_type.kind == "pcie" for *_, link_type in self.links):
            widest = max(link_type.bandwidth for *_, link_type in self.links if link_type.kind == "pcie")
            limits = [limit for limit in bridge_limits(self.links, self.bridges, widest) if self._is_binding(limit)]
            if limits:
                self.box.notes.append("the traffic into a host bridge is limited to two such links (assumed)")
        fast = self.box.bonds or self.box.switch_bandwidth
        slots = [link_type.bandwidth for *_, link_type in self.links if link_type.kind == "pcie"]
        unit = self.box.link_bandwidth if fast else min(slots, default=Fraction(0))
        return build(
            self.box.name[:100], self.ranks, self.links, switches=len(self.places) - self.ranks, limits=limits,
            places=self.places, unit=unit, abilities=self.abilities, cards=tuple(self.cards()),
        )  # fmt: skip

    def _is_binding(self, limit: SharedLimit) -> bool:
        """Return whether several slots lead into a host bridge that together exceed its limit."""
        link_types = [link_type for *_, link_type in (self.links[link] for link in limit.links)]
        has_slots = sum(link_type.kind == "pcie" for link_type in link_types) > 1
        # a limit that a bridge's slots cannot exceed together is not drawn
        return has_slots and sum((link_type.bandwidth for link_type in link_types), Fraction(0)) > limit.bandwidth

    def cards(self) -> Iterable[NetworkCard]:
        """Yield the network cards that GPUs use, each with the nodes that it serves.

        A card is near the GPUs of the lowest device above it that has any. If some cards are on a PCIe switch with a
        GPU, the other cards serve other purposes. Cards near the same GPUs share them evenly, in order.
        """
        # (lowest device above the cards that has GPUs below it, ranks of these GPUs) -> the cards
        cards_by_gpus: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        # 1. Group cards by the GPUs that are nearest to them.
        some_on_switch, ranks_below = False, self._ranks_below()
        for device in self.box.nic_speeds:
            ancestor, ranks = self._nearest_gpus(device, ranks_below)
            some_on_switch = some_on_switch or (
                bool(ranks) and ancestor >= 0 and self.box.devices[ancestor].kind == SWITCH
            )
            cards_by_gpus.setdefault((ancestor, ranks), []).append(device)
        # 2. If some cards share a PCIe switch with GPUs, the others (management, storage) are left out.
        omitted_cards: list[str] = []
        for (ancestor, ranks), devices in cards_by_gpus.items():
            on_switch = ancestor >= 0 and self.box.devices[ancestor].kind == SWITCH
            if some_on_switch and not on_switch:
                omitted_cards += [self.box.devices[device].name for device in devices]
                continue
            # the nodes that these cards share: their switch if it is drawn, else the GPUs near them, else all GPUs
            ports = (self.node[ancestor],) if on_switch and ancestor in self.node else ranks or tuple(range(self.ranks))
            for number, device in enumerate(devices):
                nodes = ports_of_card(ports, number, len(devices))
                yield NetworkCard(self.box.devices[device].name, self.box.nic_speeds[device], nodes)
        if omitted_cards:
            self.box.notes.append(f"network cards on no switch with a GPU are left out: {', '.join(omitted_cards[:8])}")

    def _ranks_below(self) -> dict[int, list[int]]:
        """Return the ranks below every device of the PCIe tree that has any."""
        ranks_below: dict[int, list[int]] = {}
        for rank, device in enumerate(self.box.gpus):
            parent = self.box.devices[device].parent
            while parent >= 0:
                ranks_below.setdefault(parent, []).append(rank)
                parent = self.box.devices[parent].parent
        return ranks_below

    def _nearest_gpus(self, device: int, ranks_below: dict[int, list[int]]) -> tuple[int, tuple[int, ...]]:
        """Return the lowest device above this one that has GPUs below it, and their ranks."""
        parent = self.box.devices[device].parent
        while parent >= 0 and parent not in ranks_below:
            parent = self.box.devices[parent].parent
        return parent, tuple(ranks_below.get(parent, ()))


def pcie_generation(value: object, default: int) -> int:
    """Return the requested generation of PCIe, or the default."""
    if value is None:
        return default
    if isinstance(value, bool) or value not in PCIE:
        raise Invalid(f"pcie_gen={quote(value)}: expected a generation of PCIe: 3, 4 or 5")
    return int(value)


def ports_of_card(ports: Sequence[int], number: int, cards: int) -> tuple[int, ...]:
    """Return the ports (nodes of the machine) that card `number` of `cards` serves: consecutive groups of equal size,
    or one port where there are as many cards or more, as in the catalogue."""
    if cards >= len(ports):
        return (ports[number * len(ports) // cards],)
    return tuple(port for i, port in enumerate(ports) if i * cards // len(ports) == number)


def find_group(group: list[int], member: int) -> int:
    """Return the representative of a member's group (union-find with path halving)."""
    while group[member] != member:
        group[member] = group[group[member]]
        member = group[member]
    return member


def join_groups(group: list[int], a: int, b: int) -> None:
    """Merge the groups of both; the lower number represents the result."""
    low, high = sorted((find_group(group, a), find_group(group, b)))
    group[high] = low
