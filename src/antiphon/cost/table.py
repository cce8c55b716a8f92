"""The built-in cost models by name. To add one: a file with a function that prepares it, and an entry here.

An entry has the function, a line for `antiphon list models`, and its `ModelCapabilities` (explained in registry.py).
"""

from __future__ import annotations

from dataclasses import replace

from antiphon.registry import Entry, ModelCapabilities

# _JOINTS: also prices switches that multicast and reduce
_NO_TRACE = ModelCapabilities()
_TRACE = ModelCapabilities(trace=True)
_JOINTS = ModelCapabilities(trace=True, in_switches=True)
_NO_BARRIERS = replace(_JOINTS, barriers=False)

TABLE: dict[str, Entry[ModelCapabilities]] = {
    "alpha-beta": Entry(
        "antiphon.cost.barriers.alpha_beta:alpha_beta",
        "steps as barriers: slowest latency and most loaded link",
        _JOINTS,
    ),
    "calls": Entry(
        "antiphon.cost.nccl.model:calls",
        "NCCL's launch and protocols as measured on GPUs, beside alpha-beta",
        replace(_JOINTS, topologies="known GPUs"),
    ),
    "lowering": Entry(
        "antiphon.cost.lowering:lowering",
        "one kernel, a kernel per step or copy engines, by --profile or as on known GPUs",
        replace(_NO_TRACE, topologies="one node"),
    ),
    "critical-path": Entry(
        "antiphon.cost.barriers.critical_path:critical_path",
        "no barriers: what waits for what, links served in turn",
        _NO_BARRIERS,
    ),
    "genmodel": Entry(
        "antiphon.cost.genmodel.genmodel:genmodel",
        "barriers with incast and memory access, by --profile (GenModel)",
        _NO_TRACE,
    ),
    "alpha-beta-gamma": Entry(
        "antiphon.cost.genmodel.genmodel:alpha_beta_gamma", "genmodel without incast and memory access", _NO_TRACE
    ),
    "sccl": Entry(
        "antiphon.cost.barriers.sccl:sccl",
        "SCCL's S*alpha + R/C*L*beta, whole rounds",
        replace(_JOINTS, topologies="one latency"),
    ),
    "flows": Entry(
        "antiphon.cost.flows.flows:flows",
        "simulated: flows share links max-min fairly, with incast by --profile",
        replace(_NO_BARRIERS, limits_pieces=True),
    ),
    "loggp": Entry(
        "antiphon.cost.loggp.loggp:loggp",
        "simulated: LogGP with ports and NICs, by --profile; :fidelity=packet for packets",
        replace(_TRACE, barriers=False, limits_pieces=True),
    ),
}
