"""Readers that turn the output of tools (nvidia-smi, lstopo, ...) into a machine, by name.

A reader is a function from paths of files to a `Probed`: the machine, with notes on what the reader assumed. To add
one, write the function and a line of `SOURCES`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon.core.files import name_of, reading
from antiphon.errors import Invalid, quote, unknown
from antiphon.formats.probe.lines import read_sample
from antiphon.formats.probe.probed import Probed
from antiphon.registry import call


@dataclass(frozen=True)
class Source:
    """A tool whose output describes machines (or a file format of machines), and its reader."""

    where: str  # the reader, as "module:function"
    about: str  # description, for `antiphon list`
    signs: tuple[str, ...]  # regular expressions: one that matches the beginning of a file recognizes it
    programs: tuple[tuple[str, ...], ...] = ()  # command lines that print such a text on this machine
    several: bool = False  # whether the reader takes several files together

    def load(self) -> Callable[..., Probed]:
        module, _, function = self.where.partition(":")
        reader: Callable[..., Probed] = getattr(importlib.import_module(f"antiphon.formats.probe.{module}"), function)
        return reader


_SMI = "nvidia-smi"
SOURCES: Mapping[str, Source] = {
    "nccl-xml": Source(
        "nccl:read", "NCCL_TOPO_DUMP_FILE and NCCL_GRAPH_DUMP_FILE, of NCCL and RCCL",
        (r"<system[\s>]", r"<graphs[\s>]"), programs=(), several=True,
    ),
    "rocm-smi": Source(
        "rocm:read", "rocm-smi --showtopo, amd-smi topology, as tables or JSON",
        # rocm-smi's tables and its lines "(Topology) ..."; amd-smi's tables, and its JSON
        (r"(?i)(?:weight|link type|hops) between two gpus", r"\(Topology\) ", r"(?m)^(?:LINK TYPE|WEIGHT|HOPS) TABLE:",
         r'\A\s*(?:\{\s*"gpu_data"\s*:\s*)?\[\s*\{\s*"gpu"'),
        (("rocm-smi", "--showtopo"), ("rocm-smi", "--shownodesbw"), ("rocm-smi", "--showproductname")), several=True,
    ),
    "nvidia-smi": Source(
        "nvidia:read", "nvidia-smi topo -m, nvlink -s, -c, -R, -L",
        # a matrix (topo -m, nvlink -c), the lines of -s, -R and -L, the CSV header of --query-gpu: index and name in it
        (r"(?m)^\W{0,9}GPU0[ \t]+(?:X|NV[0-9]|OK|GPU1|NIC0|mlx|CPU Aff)", r"(?m)^GPU [0-9]+: ",
         r"(?m)^(?=(?:[a-z_.]+, )*index\b)(?:[a-z_.]+, )*name\b"),
        ((_SMI, "topo", "-m"), (_SMI, "nvlink", "-s"), (_SMI, "nvlink", "-R"),
         (_SMI, "--query-gpu=index,name,uuid,pci.bus_id,pcie.link.gen.max,pcie.link.width.max", "--format=csv")),
        several=True,
    ),
    "hwloc": Source(
        "hwloc:read", "lstopo's XML, versions 1 to 3",
        (r"<!DOCTYPE topology\b", r"<topology[\s>]"), (("lstopo", "--of", "xml", "-"),),
    ),
    "ibnetdiscover": Source(
        "fabric:read", "the switches and adapters of an InfiniBand network",
        (r"(?m)^switchguid=", r'(?m)^(?:Switch|Ca)\s+[0-9]+\s+"[SH]-'), (("ibnetdiscover",),), several=True,
    ),
    "slurm": Source(
        "slurm:read", "topology.conf, or scontrol show topology",
        (r"(?im)^\s*(?:switch|block|ring)name=",), (("scontrol", "show", "topology"),), several=True,
    ),
    "netfiles": Source(
        "netfiles:read", "networks of ASTRA-sim (YAML, JSON), ns-3 and TACOS",
        # ASTRA-sim's YAML and JSON, TACOS' CSV; ns-3: a line of counts, then a link (two nodes and a rate)
        (r"(?m)^\s*npus_count\s*:", r'"(?:units-count|nodes-per-dim|topologies-per-dim)"', r"(?m)^NPUs Count,",
         r"\A\s*[0-9]+(?:[ \t]+[0-9]+){2,5}(?:[ \t]+\S+){0,2}\s*\n(?:.*\n){1,40}?\s*[0-9]+\s+[0-9]+\s+[0-9.]+[A-Za-z]"),
    ),
    "piccl-xml": Source("table:read_piccl", "PICCL's topology, with the LogGP figures that it names", (r"<topo\b",)),
}  # fmt: skip


def read(paths: Sequence[str], source: str = "", options: Mapping[str, Any] | None = None) -> Probed:
    """Read the machine in these files; without `source`, the first file is recognised by its contents. Every fault is
    one line that names the file."""
    if not paths:
        raise Invalid("no file; name one to read")
    label = name_of(paths[0])
    name = source or recognise_source(paths[0])
    if name not in SOURCES:
        raise unknown("source of machines", name, SOURCES)
    if len(paths) > 1 and not SOURCES[name].several:
        raise Invalid(f"{name} reads one file, got {len(paths)}")
    with reading(label if len(paths) == 1 else ", ".join(map(str, paths))[:200]):
        probed: Probed = call(
            "reader", name, SOURCES[name].load(), dict(options or {}), list(paths), _title_of(paths[0])
        )
        return probed


def recognise_source(path: str) -> str:
    """Return the name of the source whose reader reads this file."""
    text = read_sample(path)
    # The first source with a matching sign, in the order of the table.
    for name, source in SOURCES.items():
        if any(re.search(sign, text) for sign in source.signs):
            return name
    if '"antiphon-topology"' in text:
        raise Invalid(
            f"{name_of(path)}: is a machine of Antiphon already, no output of a tool; commands take it as TOPO, as in "
            f"topology show {name_of(path)}"
        )
    raise Invalid(f"{name_of(path)}: unrecognised file; pass --from {'|'.join(SOURCES)}")


def _title_of(path: str) -> str:
    """Return a name for the machine: that of the file, without its suffixes."""
    stem = Path(path).name.split(".")[0][:80]
    return stem if stem and stem.isprintable() else "machine"


def read_piccl(paths: Sequence[str], name: str, *, radix: int | None = None) -> Probed:
    """Read PICCL's topology and its LogGP figures; `radix`: messages that a rank sends, or receives, at once (default:
    1)."""
    if radix is not None and (not isinstance(radix, int) or radix < 1):
        raise Invalid(f"option radix: expected a whole number of 1 or more, got {quote(radix)}")
    from antiphon.formats.piccl.readers import read_topology

    del name  # passed to every reader; PICCL's file names its machine itself
    notes: list[str] = []
    machine, profile = read_topology(paths[0], radix, notes)
    names = tuple(f"rank {rank}" for rank in range(machine.ranks))
    return Probed(machine, notes=tuple(notes), names=names, profile=profile)
