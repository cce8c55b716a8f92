"""Schedules made from schedules: inverted, composed, split, merged, relabelled. The functions do not check the result;
`verify` does.

invert     run it backwards: a broadcast becomes a reduce, an allgather a reducescatter
compose    one schedule after another: reducescatter then allgather is an allreduce
split      cut every chunk into k equal parts; pipeline: set the number of pieces; expand: write pieces out as chunks
apart      like expand, but pieces of different messages that meet in a step stay different messages
as_cut     with explicit pieces, for runtimes that cut messages on their own
merge      several schedules side by side, each for its share of the data
assemble_parts  several small schedules as one, each on its ranks and its stretch of the data, from its step on
relabel    renumber the ranks; restrict: only some ranks take part, the others relay
unjoined   without joints, for runtimes that cannot use switches to multicast or reduce
clean      without redundant and dead transfers; waste: which these are
"""

from antiphon.core.transform.cutting import apart, expand, pipeline, split
from antiphon.core.transform.joining import compose, merge
from antiphon.core.transform.pieces import WHOLE, Cuts, Cutting, as_cut
from antiphon.core.transform.renaming import relabel, relabel_collective, restrict
from antiphon.core.transform.reversing import dual, invert
from antiphon.core.transform.staging import Part, Spans, assemble_parts
from antiphon.core.transform.tidying import Waste, clean, plain_copies, unjoined, waste

__all__ = [
    "WHOLE", "Cuts", "Cutting", "Part", "Spans", "Waste", "apart", "as_cut", "assemble_parts", "clean", "compose",
    "dual", "expand", "invert", "merge", "pipeline", "plain_copies", "relabel", "relabel_collective", "restrict",
    "split", "unjoined", "waste",
]  # fmt: skip
