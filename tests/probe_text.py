"""Texts as tools print them, made from facts; and machines told in a line, to compare with what is read of them."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from antiphon.core.topology import Topology

Drawn = Counter[tuple[int, int, str, float]]


def rounded(bandwidth: object) -> float:
    """GB/s, to four digits."""
    return float(f"{float(bandwidth) / 1e9:.4g}")  # type: ignore[arg-type]


def links_of(machine: Topology) -> Drawn:
    """Every link, in its direction."""
    ends = zip(machine.link_src.tolist(), machine.link_dst.tolist(), machine.link_type.tolist(), strict=True)
    return Counter((a, b, machine.types[kind].kind, rounded(machine.types[kind].bandwidth)) for a, b, kind in ends)


def told(machine: Topology, text: str) -> Drawn:
    """Links as people write them: "nvlink 300: *-nvswitch; pcie 15.75: 0,1-pcie0 2-3". All lead both ways; with ">"
    one way; "~" where names have a "-". "*": every rank, "all": every two ranks; switches by the end of their place."""
    found: Drawn = Counter()
    for part in filter(None, (one.strip() for one in text.split(";"))):
        head, _, pairs = part.partition(":")
        kind, speed = head.split()
        for pair in pairs.split():
            for a, b in _pairs(machine, pair):
                found[a, b, kind, float(speed)] += 1
                if ">" not in pair:
                    found[b, a, kind, float(speed)] += 1
    return found


def _pairs(machine: Topology, pair: str) -> list[tuple[int, int]]:
    if pair == "all":
        return [(a, b) for a in range(machine.ranks) for b in range(a + 1, machine.ranks)]
    left, right = re.split("~" if "~" in pair else "[->]", pair, maxsplit=1)
    ends = [_nodes(machine, side) for side in (left, right)]
    return [(a, b) for a in ends[0] for b in ends[1]]


def _nodes(machine: Topology, side: str) -> list[int]:
    if side == "*":
        return list(range(machine.ranks))
    found = []
    for name in side.split(","):
        if low_high := re.fullmatch(r"([0-9]+)\.\.([0-9]+)", name):
            found += range(int(low_high[1]), int(low_high[2]) + 1)
        elif name.isdigit():
            found.append(int(name))
        else:
            places = machine.places
            inner = range(machine.ranks, machine.nodes)
            fits = [n for n in inner if places[n] == name]
            fits = fits or [n for n in inner if places[n].endswith(f"/{name}")]
            fits = fits or [n for n in inner if name in places[n]]
            assert len(fits) == 1, (name, places[machine.ranks :])
            found += fits
    return found


def limits_of(machine: Topology) -> dict[str, tuple[float, int]]:
    """Of every limit its GB/s and how many links it has."""
    return {limit.name: (rounded(limit.bandwidth), len(limit.links)) for limit in machine.limits}


# ---- nvidia-smi ----


def topo(
    gpus: int,
    cell: Callable[[str, str], str],
    cards: Sequence[str] = (),
    numa: Sequence[object] = (),
    tail: str = "",
    tabs: bool = False,
) -> str:
    """The matrix of nvidia-smi topo -m: `cell` tells what stands between two peers, whichever is asked first."""
    peers = [f"GPU{i}" for i in range(gpus)] + list(cards)
    gap = "\t" if tabs else "    "
    heads = ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"] if numa else ["CPU Affinity"]
    rows = ["        " + gap.join([*peers, *heads])]
    for i, me in enumerate(peers):
        cells = [" X " if me == other else cell(*sorted((me, other), key=peers.index)) for other in peers]
        if i < gpus:
            cells += [f"{8 * i}-{8 * i + 7}", *([str(numa[i]), "N/A"] if numa else [])]
        rows.append(gap.join([me, *cells]))
    return "\n".join(rows) + "\n\nLegend:\n\n  X    = Self\n  NV#  = bonded set of # NVLinks\n" + tail


def nvlink_status(models: Sequence[tuple[str, Sequence[str]]]) -> str:
    """nvidia-smi nvlink -s: every GPU by its name and the speeds of its links ("" for one that is down)."""
    lines = []
    for i, (model, speeds) in enumerate(models):
        lines.append(f"GPU {i}: {model} (UUID: GPU-{i:08d}-0000-0000-0000-000000000000)")
        lines += [f"\t Link {j}: {f'{speed} GB/s' if speed else '<inactive>'}" for j, speed in enumerate(speeds)]
    return "\n".join(lines) + "\n"


# ---- NCCL ----


def system(*parts: str, version: int = 1, head: str = "") -> str:
    return f'{head}<system version="{version}">\n' + "\n".join(parts) + "\n</system>\n"


def cpu(numa: int, *parts: str, vendor: str = "AuthenticAMD") -> str:
    return f'<cpu numaid="{numa}" affinity="ffff" arch="x86_64" vendor="{vendor}">\n' + "\n".join(parts) + "\n</cpu>"


def pci(bus: str, *parts: str, gts: str = "16.0 GT/s PCIe", width: object = 16, kind: str = "0x060400") -> str:
    inner = "\n".join(parts)
    return f'<pci busid="0000:{bus}:00.0" class="{kind}" link_speed="{gts}" link_width="{width}"' + (
        f">\n{inner}\n</pci>" if inner else "/>"
    )


def gpu(rank: int, links: str = "", sm: int = 80, gcn: str = "", word: str = "nvlink") -> str:
    """`links`: "07*2 s5*1": two to the GPU at bus 07, one to the NVSwitch at bus 5."""
    rows = []
    for link in links.split():
        target, _, count = link.partition("*")
        kind = "0x068000" if target.startswith("s") else "0x030200"
        rows.append(f'<{word} target="0000:{target.lstrip("s")}:00.0" count="{count}" tclass="{kind}"/>')
    said = f'sm="{sm}"' + (f' gcn="{gcn}"' if gcn else "")
    return f'<gpu dev="{rank}" {said} rank="{rank}" gdr="1">' + "".join(rows) + "</gpu>"


def nic(name: str, mbit: int) -> str:
    said = f'name="{name}" dev="0" speed="{mbit}" port="1" latency="0.0" guid="0x1"'
    return f'<nic><net {said} maxconn="131072" gdr="1"/></nic>'


# ---- hwloc ----


def lstopo(*parts: str, version: str = ' version="2.0"', dtd: str = "hwloc2.dtd", tail: str = "") -> str:
    inner = "\n".join(parts)
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE topology SYSTEM "{dtd}">\n<topology{version}>\n'
        f'<object type="Machine" os_index="0" nodeset="0xff">\n{inner}\n</object>\n{tail}</topology>\n'
    )


def thing(kind: str, *parts: str, **attributes: object) -> str:
    said = "".join(f' {key}="{value}"' for key, value in attributes.items())
    return f'<object type="{kind}"{said}>\n' + "\n".join(parts) + "\n</object>"


def core(number: int, nodeset: str, threads: int = 1) -> str:
    pus = [f'<object type="PU" os_index="{number * threads + i}" nodeset="{nodeset}"/>' for i in range(threads)]
    return thing("Core", *pus, os_index=number, nodeset=nodeset)


def slot(
    bus: str,
    kind: str,
    ids: str,
    *names: str,
    speed: object = "15.753846",
    model: str = "",
    key: int = 0,
    **more: object,
) -> str:
    """A device of PCIe with what the system calls it; `key`: the number of the first of these, one more for each."""
    info = f'<info name="GPUModel" value="{model}"/>' if model else ""
    inner = [thing("OSDev", info, name=name, osdev_type=12, gp_index=key + i) for i, name in enumerate(names)]
    return thing(
        "PCIDev",
        *inner,
        pci_busid=f"0000:{bus}:00.0",
        pci_type=f"{kind} [{ids}] [0000:0000] a1 00",
        pci_link_speed=speed,
        **more,
    )


def bridge(*parts: str, host: bool = False, speed: object = "15.753846") -> str:
    more = (
        {"bridge_type": "0-1"}
        if host
        else {"bridge_type": "1-1", "pci_link_speed": speed, "pci_type": "0604 [8086:2030]"}
    )
    return thing("Bridge", *parts, **more)


def bandwidths(name: str, keys: Sequence[str], rows: Sequence[Sequence[int]]) -> str:
    values = " ".join(str(value) for row in rows for value in row)
    return (
        f'<distances2hetero nbobjs="{len(keys)}" kind="25" name="{name}">\n<indexes length="9">{" ".join(keys)} '
        f"</indexes>\n"
        f'<u64values length="9">{values} </u64values>\n</distances2hetero>\n'
    )


# ---- ibnetdiscover ----


def fabric(switches: Mapping[str, str], cables: Sequence[str], adapters: bool = True) -> str:
    """`switches`: label by name; `cables`: "a1 5 - b2 7 4xEDR": from port 5 of a1 to port 7 of b2. What is no switch is
    an adapter, "node01 mlx5_0" written node01/mlx5_0."""
    names = list(dict.fromkeys([*switches, *(end for cable in cables for end in (cable.split()[0], cable.split()[3]))]))
    guid = {name: f"{0xA000 + i:016x}" for i, name in enumerate(names)}
    lines = {name: list[str]() for name in names}
    for cable in cables:
        a, p, _, b, q, speed = cable.split()
        for me, mine, other, its in ((a, p, b, q), (b, q, a, p)):
            kind = "S" if other in switches else "H"
            label = switches.get(other, other.replace("/", " "))
            if me in switches:
                lines[me].append(
                    f'[{mine}]\t"{kind}-{guid[other]}"[{its}]({guid[other]}) \t\t# "{label}" lid 7 {speed}'
                )
            else:
                lines[me].append(
                    f'[{mine}]({guid[me]}) \t"{kind}-{guid[other]}"[{its}]\t\t# lid 3 lmc 0 "{label}" lid 7 {speed}'
                )
    text = "#\n# Topology file: generated on a day\n#\n"
    for name in names:
        if name in switches:
            text += f"\nvendid=0x2c9\ndevid=0xcb20\nsysimgguid=0x1\nswitchguid=0x{guid[name]}({guid[name]})\n"
            text += f'Switch\t36 "S-{guid[name]}"\t\t# "{switches[name]}" base port 0 lid 1 lmc 0\n'
        elif adapters:
            text += f"\nvendid=0x2c9\ndevid=0x1017\nsysimgguid=0x1\ncaguid=0x{guid[name]}\n"
            text += f'Ca\t1 "H-{guid[name]}"\t\t# "{name.replace("/", " ")}"\n'
        else:
            continue
        text += "\n".join(lines[name]) + "\n"
    return text
