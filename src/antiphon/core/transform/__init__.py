"""Schedules made from schedules: inverted, composed, split, merged, relabelled. They do not check the result;
`verify` does.

invert     run it backwards: a broadcast becomes a reduce, an allgather a reducescatter
compose    one after the other: reducescatter then allgather is an allreduce
split      every chunk in k equal parts; pipeline: set the pieces; expand: every pipelined chunk in its pieces
apart      as expand, and pieces of different messages that meet in a step stay different messages
as_cut     with explicit pieces where a runtime cuts messages by itself
merge      several schedules side by side, each for its share of the data
laid       stages one after the other, each of copies of schedules at once, on their ranks and stretches of the data
relabel    other names for the ranks; restrict: only some ranks take part, the others relay
unjoined   every row alone: without the help of switches
clean      without redundant and dead transfers; waste: which these are
"""

from antiphon.core.transform.cutting import apart, expand, pipeline, split
from antiphon.core.transform.joining import compose, merge
from antiphon.core.transform.pieces import WHOLE, Cuts, Cutting, as_cut
from antiphon.core.transform.renaming import relabel, relabel_collective, restrict
from antiphon.core.transform.reversing import dual, invert
from antiphon.core.transform.staging import Part, Spans, laid
from antiphon.core.transform.tidying import Waste, clean, plain_copies, unjoined, waste

__all__ = [
    "WHOLE", "Cuts", "Cutting", "Part", "Spans", "Waste", "apart", "as_cut", "clean", "compose", "dual", "expand",
    "invert", "laid", "merge", "pipeline", "plain_copies", "relabel", "relabel_collective", "restrict",
    "split", "unjoined", "waste",
]  # fmt: skip
