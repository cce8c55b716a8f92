"""The catalogue of machines: one small file per family, one line each in table.py."""

from __future__ import annotations

from pathlib import Path

from antiphon.core.topology import Topology
from antiphon.topologies._spec import made

__all__ = ["topology"]


def topology(spec: str) -> Topology:
    """A machine as people name it: "dgx1v", "ring:ranks=8,bandwidth=10GB/s", or a JSON file."""
    if spec.endswith((".json", ".json.gz")) or "/" in spec.partition(":")[0]:
        from antiphon.core.serialize import load_topology

        return load_topology(Path(spec))
    return made(spec)
