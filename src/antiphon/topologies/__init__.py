"""The catalogue of machines: one small file per family."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antiphon.deprecations import stay_callable

if TYPE_CHECKING:
    from antiphon.core.topology import Topology

__all__ = ["topology"]

stay_callable(__name__)


def topology(spec: str) -> Topology:
    """A machine as people name it: "dgx1v", "ring:ranks=8,bandwidth=10GB/s", or a JSON file."""
    from antiphon.topologies.spec import machine_of

    return machine_of(spec)
