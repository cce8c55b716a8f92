"""The built-in planners by name. To add one: a file with a planning function, and a line here."""

from __future__ import annotations

from antiphon.registry import Entry

TABLE = {
    "ring": Entry(
        "antiphon.planners.ring:ring",
        "around a Hamiltonian cycle of direct links, or over routes through switches, both ways at once",
        {
            "collectives": ("allgather", "reducescatter", "allreduce", "broadcast"),
            "topologies": "any with such a cycle, or with switches that join all ranks",
            "options": ("order", "directions", "pieces"),
        },
    ),
}
