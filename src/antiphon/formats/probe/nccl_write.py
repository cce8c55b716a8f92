"""Write a box as NCCL's topology XML (NCCL_TOPO_FILE), for virtual machines that hide their PCIe tree and NVLinks.

NCCL reads the file first, finds each GPU and network card in it by its PCIe address, and detects only what the file
leaves out. So the addresses must be those of the virtual machine (`gpus`, `nics`); the rest follows from the machine:

    <system version="1">                                            one per host (RCCL: version 2)
      <cpu numaid="0" arch="x86_64" ...>                            a socket
        <pci class="0x060400" busid="..." link_speed="32.0 GT/s PCIe" link_width="16">   a PCIe switch
          <pci class="0x030200" busid="0000:10:00.0" ...>
            <gpu dev="0" sm="90" gdr="1"><nvlink target="0000:f0:00.0" count="18" tclass="0x068000"/></gpu>
          <pci class="0x020700" busid="0000:11:00.0" ...>
            <nic><net name="mlx5_0" dev="0" speed="400000" port="1" gdr="1"/></nic>      speed: Mbit/s

PCIe is written as the machine has it. A machine without PCIe gets a switch for each group of GPUs that share network
cards, with half of these groups on each of two sockets. `rank` is left out: NCCL sets it for each job. CPU attributes
are written, because NCCL fails without them if a job uses no GPU of a socket. Linear in links.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import islice
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from antiphon.core.topology import NetworkCard, Topology, hosts
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.formats.files import Files
from antiphon.formats.probe.box import find_group, join_groups
from antiphon.formats.probe.joining import cards_with_speeds
from antiphon.formats.probe.probed import Probed
from antiphon.formats.probe.speeds import LANE, generation_attribute, gpu_type_by_name
from antiphon.options import parse_yes
from antiphon.topologies.links import PCIE
from antiphon.units import format_bandwidth

MAX_ELEMENTS = 256  # XML elements that NCCL reads (NCCL_TOPO_XML_MAX_NODES)
NVSWITCH, PCIE_SWITCH, CARD = "0x068000", "0x060400", "0x020700"  # PCIe classes
CPUS: Mapping[str, Mapping[str, object]] = {
    "intel": {"arch": "x86_64", "vendor": "GenuineIntel", "familyid": 6, "modelid": 143},  # Sapphire Rapids
    "amd": {"arch": "x86_64", "vendor": "AuthenticAMD", "familyid": 25, "modelid": 17},  # Genoa
    "arm": {"arch": "arm64"},
}
# a PCIe address; the domain has 4 digits, or 8 that begin with 0000
_BUS = re.compile(r"(?:0000)?[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
# characters that are not printable ASCII, or that XML would escape
_UNSAFE = re.compile("[^ -~]|[&<>'\"]")
_GPU_OF_BOX = {"dgx1p": "P100", "dgx1v": "V100", "dgx2": "V100"}  # boxes not named after their GPUs


def nccl_xml(
    box: Probed, *, gpus: str = "", nics: str = "", nic: str | None = None, gdr: object = True, cpu: str = "intel"
) -> Files[str]:
    """Return the file, and notes on what it assumes. `box`: a machine, and what a tool such as lspci reported of it.

    `gpus`, `nics`: PCIe addresses of the GPUs (by rank) and network cards, separated by commas or spaces; by default
    made up. `nic`: bandwidth of each card. `gdr`: whether cards access GPU memory. `cpu`: intel, amd or arm.
    """
    machine, notes = box.machine, list[str]()
    if hosts(machine):
        raise Unsupported(f"{machine.name}: has several hosts; NCCL's file describes one, so name the box alone")
    if 2 * machine.ranks > MAX_ELEMENTS:  # a GPU takes two at least, <pci> and <gpu>
        raise Unsupported(f"{machine.name}: has {machine.ranks} GPUs; NCCL reads at most {MAX_ELEMENTS} XML elements")
    if cpu not in CPUS:
        raise Invalid(f"cpu={quote(cpu)}: expected {', '.join(CPUS)}")
    direct = int(parse_yes(gdr, "gdr"))
    cards, card_notes = cards_with_speeds(box, nic)
    if card_notes and not machine.cards and nic is None:  # these cards were assumed
        cards, card_notes = ((), [f"no network cards are written, because {machine.name} lists none (nic=400Gbit/s)"])
    # invented addresses, in a PCIe domain that no device has
    spare_addresses = (f"ffff:{0xFF - number // 32:02x}:{number % 32:02x}.0" for number in range(1, 2**13))
    gpu_addresses = _parse_addresses(gpus, machine.ranks, "gpus", spare_addresses)
    card_addresses = _parse_addresses(nics, len(cards), "nics", spare_addresses)
    if repeated := [address for address, count in Counter([*gpu_addresses, *card_addresses]).items() if count > 1]:
        raise Invalid(f"gpus, nics: {quote(repeated[0])} stands twice")
    writer = _Writer(machine, cards, gpu_addresses, card_addresses, spare_addresses, direct)
    root = writer.system(CPUS[cpu])
    count = sum(1 for _ in root.iter())
    if count > MAX_ELEMENTS:
        raise Unsupported(f"{machine.name}: needs {count} XML elements; NCCL reads at most {MAX_ELEMENTS}")
    if not gpus or (cards and not nics):
        notes.append(
            "PCIe addresses are made up, so NCCL will not find these devices in the file: pass option "
            "gpus=ADDRESS,... (nvidia-smi --query-gpu=pci.bus_id --format=csv,noheader) and nics=ADDRESS,... (lspci)"
        )
    if cards and not writer.has_pcie:
        notes.append("assumed: GPUs share a PCIe switch with their network cards, half of them on each of two sockets")
    rdma = "network cards access GPU memory (else option gdr=no)" if direct else "no GPUDirect RDMA"
    notes.append(f"assumed: {cpu} processors (option cpu={', '.join(CPUS)}), {rdma}")
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode").replace(" />", "/>") + "\n"
    # notes on cards name `nic=`, which is an option of `probe` and of this format
    return Files({"topo.xml": text}, [*card_notes, *notes])


def _parse_addresses(text: str, count: int, option: str, spare_addresses: Iterator[str]) -> list[str]:
    """Return the PCIe addresses in an option; if it is empty, the next `count` spare ones."""
    words = re.split(r"[,\s]+", text.strip().lower()) if text else []
    if strange := [word for word in words if not _BUS.fullmatch(word)]:
        raise Invalid(f"{option}: {quote(strange[0])} is no PCIe address; expected such as 0000:1b:00.0")
    if words and len(words) != count:
        raise Invalid(f"{option}: expected {count} PCIe addresses, got {len(words)}")
    # NCCL writes the domain with 4 digits, nvidia-smi with 8
    return [word[-12:] for word in words] or list(islice(spare_addresses, count))


class _Writer:
    """Collects the elements of a machine, then writes them as XML.

    `children`: by PCIe switch the nodes below it. Invented switches have numbers from `machine.nodes`.
    `tops`: for each socket the nodes directly below it.
    `cards_at`: by PCIe switch the numbers of its network cards; those of switch -1 are on the first socket.
    `pcie_links`: the attributes of a node's PCIe link to the one above, if it is not `default_pcie_link`.
    """

    def __init__(
        self, machine: Topology, cards: Sequence[NetworkCard], gpu_addresses: Sequence[str],
        card_addresses: Sequence[str], spare_addresses: Iterator[str], gdr: int,
    ) -> None:  # fmt: skip
        self.machine, self.cards, self.gdr = machine, cards, gdr
        self.gpu_addresses, self.card_addresses, self.spare_addresses = gpu_addresses, card_addresses, spare_addresses
        ends = zip(machine.link_src.tolist(), machine.link_dst.tolist(), machine.link_type.tolist(), strict=True)
        self.links = [(a, b, machine.types[kind]) for a, b, kind in ends]
        kinds = {link_type.kind for _, _, link_type in self.links}
        if strange := kinds - {"nvlink", "xgmi", "pcie", "socket"}:
            raise Unsupported(
                f"{machine.name}: has links of kind {', '.join(sorted(strange))}; NCCL's file has NVLink, xGMI and PCIe"
            )
        self.has_pcie, self.amd = "pcie" in kinds, "xgmi" in kinds
        name = next((gpu for box, gpu in _GPU_OF_BOX.items() if machine.name.startswith(box)), machine.name)
        self.gpu_model = gpu_type_by_name(name)
        generation = self.gpu_model.pcie_generation if self.gpu_model else 4  # that of most boxes since 2020
        self.default_pcie_link = _pcie_attributes(PCIE[generation], machine.name)
        self.gpu_class = "0x120000" if self.amd else "0x030200"
        self.hubs: dict[int, str] = {}  # addresses of NVSwitches
        self.children: dict[int, list[int]] = {}
        self.pcie_links: dict[int, Mapping[str, object]] = {}
        self.tops = self._own_tree() if self.has_pcie else self._assumed_tree()
        self.cards_at: dict[int, list[int]] = {}
        above = {child: node for node, below in self.children.items() for child in below}
        for number, card in enumerate(cards):
            first = card.nodes[0]
            switch = first if first in self.children else above.get(first, -1)  # -1: the first socket
            self.cards_at.setdefault(switch, []).append(number)

    def system(self, cpu: Mapping[str, object]) -> Element:
        """Return the root element with all others below it; `cpu`: the attributes of each socket."""
        root = _add(None, "system", version=2 if self.amd else 1)
        for number, nodes in enumerate(self.tops):
            socket = _add(root, "cpu", numaid=number, **cpu)
            for node in nodes:
                add = self._add_below if self._is_bridge(node) else self._add_pci  # a bridge is the socket itself
                add(socket, node)
            if not number:
                self._add_cards(socket, node=-1)
        return root

    def _is_bridge(self, node: int) -> bool:
        """Return whether a node is the host bridge of a socket, by its place (host0/socket0/bridge0)."""
        return node < self.machine.nodes and self.machine.places[node].rpartition("/")[2].startswith("bridge")

    # ---- the tree of PCIe ----

    def _own_tree(self) -> list[list[int]]:
        """Return the machine's PCIe tree from its host bridges down, or from its first switch if it has no bridge."""
        near: dict[int, dict[int, Fraction]] = {}  # by node its neighbours, each with the link's bytes/s
        for a, b, kind in self.links:
            if kind.kind == "pcie":
                near.setdefault(a, {})[b] = kind.bandwidth
                near.setdefault(b, {}).setdefault(a, kind.bandwidth)
                if max(a, b) < self.machine.ranks:
                    raise Unsupported(f"{self.machine.name}: joins GPUs {a} and {b} by PCIe without a switch")
        switches = [node for node in sorted(near) if node >= self.machine.ranks]
        roots = [node for node in switches if self._is_bridge(node)] or switches[:1]
        reached, pending = set(roots), list(roots)
        for node in pending:  # grows while it is walked: breadth first
            self.children[node] = sorted(near[node].keys() - reached)
            reached |= near[node].keys()
            pending += [child for child in self.children[node] if child >= self.machine.ranks]
            for child in self.children[node]:
                self.pcie_links[child] = _pcie_attributes(near[node][child], self.machine.name)
        detached = [rank for rank in range(self.machine.ranks) if rank not in reached]  # GPUs without PCIe
        return [[root, *(detached if not number else ())] for number, root in enumerate(roots)]

    def _assumed_tree(self) -> list[list[int]]:
        """Invent a tree: GPUs that share cards get a switch, with them and the cards below it; GPUs without cards are
        directly on a socket. Each of two sockets has half of the groups."""
        group = list(range(self.machine.ranks))  # a union-find forest over ranks
        gpus_of_card = [[node for node in card.nodes if node < self.machine.ranks] for card in self.cards]
        for ranks in gpus_of_card:
            for rank in ranks[1:]:
                join_groups(group, ranks[0], rank)
        groups: dict[int, list[int]] = {}
        for rank in range(self.machine.ranks):
            groups.setdefault(find_group(group, rank), []).append(rank)
        with_cards = {find_group(group, ranks[0]) for ranks in gpus_of_card if ranks}
        tops: list[list[int]] = [[], []] if len(groups) > 1 else [[]]
        for position, (first, ranks) in enumerate(groups.items()):
            switch = self.machine.nodes + first
            if first in with_cards:
                self.children[switch] = ranks
            tops[position * len(tops) // len(groups)] += [switch] if first in with_cards else ranks
        return tops

    # ---- elements ----

    def _add_pci(self, parent: Element, node: int) -> None:
        """Add a PCIe switch with all below it, or a GPU with its NVLinks."""
        pcie_link = self.pcie_links.get(node, self.default_pcie_link)
        if node >= self.machine.ranks:
            switch = _add(parent, "pci", **{"busid": next(self.spare_addresses), "class": PCIE_SWITCH, **pcie_link})
            self._add_below(switch, node)
            return
        device = _add(parent, "pci", **{"busid": self.gpu_addresses[node], "class": self.gpu_class, **pcie_link})
        gpu = _add(
            device, "gpu", dev=node, **(generation_attribute(self.gpu_model) if self.gpu_model else {}), gdr=self.gdr
        )
        for (target, pcie_class), count in self._fast_links(node).items():
            _add(gpu, "xgmi" if self.amd else "nvlink", target=target, count=count, tclass=pcie_class)

    def _add_below(self, parent: Element, node: int) -> None:
        for child in self.children.get(node, []):
            self._add_pci(parent, child)
        self._add_cards(parent, node)

    def _add_cards(self, parent: Element, node: int) -> None:
        for number in self.cards_at.get(node, []):
            card = self.cards[number]
            device = _add(
                parent, "pci", **{"busid": self.card_addresses[number], "class": CARD, **self.default_pcie_link}
            )
            speed = int((card.bandwidth or 0) * 8 / 10**6)  # Mbit/s
            _add(_add(device, "nic"), "net", name=card.name, dev=number, speed=speed, port=1, gdr=self.gdr)

    def _fast_links(self, rank: int) -> dict[tuple[str, str], int]:
        """Return the number of NVLinks or xGMI links of a GPU, by address and PCIe class of what they lead to."""
        counts: dict[tuple[str, str], int] = {}
        for a, b, kind in self.links:
            if a != rank or kind.kind not in ("nvlink", "xgmi"):
                continue
            count = kind.bandwidth / self.machine.unit
            if count.denominator > 1:
                speed, unit_bandwidth = format_bandwidth(kind.bandwidth), format_bandwidth(self.machine.unit)
                ends = f"from GPU {rank} to {self.machine.node_name(b)}"
                raise Unsupported(
                    f"{self.machine.name}: the link {ends}, {speed}, is no whole number of links of {unit_bandwidth}"
                )
            if b < self.machine.ranks:
                key = self.gpu_addresses[b], self.gpu_class
            elif "nvswitch" in self.machine.places[b]:
                if b not in self.hubs:
                    self.hubs[b] = next(self.spare_addresses)
                key = self.hubs[b], NVSWITCH
            else:
                raise Unsupported(f"{self.machine.name}: has NVLinks to processors, which are not written")
            counts[key] = counts.get(key, 0) + int(count)
        return counts


def _add(parent: Element | None, tag: str, /, **attributes: object) -> Element:
    """Append a new element to another (None: it is the root).

    NCCL knows no escapes, so characters that need one are replaced.
    """
    texts = {key: _UNSAFE.sub("_", str(value)) for key, value in attributes.items()}
    return Element(tag, texts) if parent is None else SubElement(parent, tag, texts)


def _pcie_attributes(bandwidth: Fraction, machine: str) -> dict[str, object]:
    """Return speed and width of a PCIe link, as Linux writes them."""
    fits = ((rate, width) for width in (16, 8, 4, 2, 1) for rate, lane in LANE.items() if lane * width == bandwidth)
    rate, width = next(fits, (None, 0))
    if rate is None:
        raise Unsupported(
            f"{machine}: a PCIe link of {format_bandwidth(bandwidth)} has no whole number of lanes of any generation"
        )
    return {"link_speed": f"{float(rate):.1f} GT/s PCIe", "link_width": width}
