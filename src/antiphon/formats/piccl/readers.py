"""Read PICCL's files (https://github.com/PICCL-Project/PICCL): schedules, topologies, and LogGP parameters by size.

A PICCL schedule contains sizes, endpoints and dependencies, but not the data that moves: it is a graph of messages.
Schedules that Antiphon writes (`antiphon export --to piccl-xml`) contain that, too, and can be verified. Examples are
in docs/formats.md.
"""

from __future__ import annotations

from antiphon.formats.piccl._schedule import PicclSchedule, read_schedule
from antiphon.formats.piccl._topology import read_topology
from antiphon.formats.piccl.figures import figures_text, read_figures

__all__ = ["PicclSchedule", "figures_text", "read_figures", "read_schedule", "read_topology"]
