"""What both sides of MSCCL XML call things, and what the executor holds."""

from __future__ import annotations

KINDS = {
    kind: kind
    for kind in ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "gather", "scatter")
}
SLOTS = {
    "Simple": 2,
    "LL": 8,
    "LL128": 8,
}  # messages under way from one block to another: a Simple one takes 4 of 8 steps
ROOM = {"Simple": 2**21, "LL": 2**14, "LL128": 50176}  # bytes of a message, the least of the known executors by default
NODES = 4095  # elements of a file that one rank keeps
VERBS = {verb: verb for verb in ("s", "r", "rcs", "rrs", "rrc", "rrcs", "cpy", "re", "nop")}
SENDS = ("s", "rcs", "rrs", "rrcs")
RECEIVES = ("r", "rcs", "rrs", "rrc", "rrcs")
READS = ("s", "rrs", "rrc", "rrcs", "cpy", "re")  # at src
WRITES = ("r", "rcs", "rrc", "rrcs", "cpy", "re")  # at dst
