"""The files of PICCL (https://github.com/PICCL-Project/PICCL): schedules, topologies, and LogGP figures by size.

A schedule of theirs says how many bytes go where and what waits for what, not which data: a graph of messages. Those
that Antiphon writes (`antiphon export --to piccl-xml`) say that too, and can be verified. docs/formats.md has examples.
"""

from __future__ import annotations

from antiphon.core.messages import MessageGraph, message_graph
from antiphon.cost._piccl_csv import figures_text, read_figures
from antiphon.cost._piccl_schedule import PicclSchedule, read_schedule
from antiphon.cost._piccl_topology import read_topology

__all__ = [
    "MessageGraph",
    "PicclSchedule",
    "figures_text",
    "message_graph",
    "read_figures",
    "read_schedule",
    "read_topology",
]
