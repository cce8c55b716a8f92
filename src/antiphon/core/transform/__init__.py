"""Schedules made from schedules: inverted, composed, split, merged, relabelled. The functions do not check the result;
`verify` does.

invert     run it backwards: a broadcast becomes a reduce, an allgather a reducescatter; dual: the collective of that
compose    one schedule after another: reducescatter then allgather is an allreduce
add_on_arrival  an allgather of whole inputs that are added where they arrive: an allreduce in as many steps
split      cut every chunk into k equal parts; pipeline: set the number of pieces; expand: write pieces out as chunks
round_borders  give chunks rounder shares
expand_separately  like expand, but pieces of different messages that meet in a step stay different messages
Cutting    give chunks the pieces into which a runtime cuts messages on its own, by its rule (Cuts)
merge      several schedules side by side, each for its share of the data
run_together  several collectives at the same time, each on data of its own; split_groups: each of them alone
assemble_parts  several small schedules as one; a Placement gives each its ranks, its stretch of the data (Spans) and
           its first step
relabel    renumber the ranks; relabel_collective: of a collective
unjoined   remove joints, for runtimes that cannot use switches to multicast or reduce
clean      remove redundant and dead transfers; find_unneeded: find them
plain_copies  replace reductions into empty cells by copies
"""

from antiphon.core.transform.arrival import add_on_arrival
from antiphon.core.transform.cutting import expand, expand_separately, pipeline, round_borders, split
from antiphon.core.transform.joining import compose, merge, run_together, split_groups
from antiphon.core.transform.pieces import NO_CUTS, Cuts, Cutting
from antiphon.core.transform.renaming import relabel, relabel_collective
from antiphon.core.transform.reversing import dual, invert
from antiphon.core.transform.staging import Placement, Spans, assemble_parts
from antiphon.core.transform.tidying import clean, find_unneeded, plain_copies, unjoined
