"""The built-in cost models by name. To add one: a file with a function that prepares it, and a line here."""

from __future__ import annotations

from antiphon.registry import Entry

_ALL = {"collectives": "all", "topologies": "all", "trace": True}

TABLE: dict[str, Entry] = {
    "alpha-beta": Entry(
        "antiphon.cost.alpha_beta:alpha_beta", "steps as barriers: slowest latency and most loaded link", _ALL
    ),
    "critical-path": Entry(
        "antiphon.cost.critical_path:critical_path", "no barriers: what waits for what, links served in turn", _ALL
    ),
    "sccl": Entry(
        "antiphon.cost.sccl:sccl", "SCCL's S*alpha + R/C*L*beta, whole rounds", {**_ALL, "topologies": "one latency"}
    ),
}
