"""Programs: operations on addresses per rank, for any message size, datatype and operator (docs/program.md).

`lower.lowering` makes programs from schedules. This folder has their type and addresses (kinds.py), the check that a
program computes its collective (check.py: a proof for all sizes, and runs of all ranks in one process in random legal
orders), and their files and text (codec.py).
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
    collective_among,
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
    "collective_among",
    "decode",
    "dump",
    "encode",
    "job_of",
    "prove",
    "run_program",
    "usage",
]
