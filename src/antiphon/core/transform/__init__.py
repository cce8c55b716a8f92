"""Schedules from schedules. None of these judges the result: `verify` does.

invert     run it backwards: a broadcast becomes a reduce, an allgather a reducescatter
compose    one after the other: reducescatter then allgather is an allreduce
split      every chunk in k equal parts; expand: every pipelined chunk in its pieces; pipeline: set the pieces
merge      several schedules side by side, each for its share of the data; replicate: under symmetries
relabel    other names for the ranks; restrict: only some ranks take part, the others relay
clean      without redundant and dead transfers; waste: which these are
"""

from antiphon.core.transform.cutting import expand, pipeline, split
from antiphon.core.transform.joining import compose, merge
from antiphon.core.transform.renaming import relabel, relabel_collective, replicate, restrict
from antiphon.core.transform.reversing import dual, invert
from antiphon.core.transform.tidying import Waste, clean, plain_copies, waste

__all__ = [
    "Waste", "clean", "compose", "dual", "expand", "invert", "merge", "pipeline", "plain_copies", "relabel",
    "relabel_collective", "replicate", "restrict", "split", "waste",
]  # fmt: skip
