"""The files of PICCL (https://github.com/PICCL-Project/PICCL): schedules, topologies, and LogGP figures by size.

A schedule of theirs says how many bytes go where and what waits for what, not which data: a graph of messages. Those
that Antiphon writes (`antiphon export --to piccl-xml`) say that too, and can be verified. docs/formats.md has examples.
"""

from __future__ import annotations

from antiphon.formats.piccl._schedule import PicclSchedule, read_schedule
from antiphon.formats.piccl._topology import read_topology
from antiphon.formats.piccl.figures import figures_text, read_figures

__all__ = [
    "PicclSchedule",
    "figures_text",
    "read_figures",
    "read_schedule",
    "read_topology",
]
