"""Programs: operations on addresses per rank, for any message size, datatype and operator (docs/program.md).

`lower.lowering` makes them from schedules. Here: the type, its addresses, a run of all ranks in one process in
random legal orders, the check that a program is right, its file and its text.
"""

from antiphon.core.program.check import check
from antiphon.core.program.codec import decode, dump, encode
from antiphon.core.program.kinds import (
    FOLD,
    JOIN,
    RECEIVE,
    SEND,
    Bound,
    Pairs,
    Program,
    Usage,
    among,
    bind,
    counted_anew,
    job_of,
    usage,
)
from antiphon.core.program.prove import prove
from antiphon.core.program.run import run_program

__all__ = [
    "FOLD",
    "JOIN",
    "RECEIVE",
    "SEND",
    "Bound",
    "Pairs",
    "Program",
    "Usage",
    "among",
    "bind",
    "check",
    "counted_anew",
    "decode",
    "dump",
    "encode",
    "job_of",
    "prove",
    "run_program",
    "usage",
]
