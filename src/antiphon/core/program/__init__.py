"""Programs: operations on addresses per rank, for any message size, datatype and operator (docs/program.md).

`lower.lowering` makes programs from schedules. This folder has their type and addresses (kinds.py), the proof that
a program computes its collective at all sizes (prove.py), and their files and text (codec.py).
"""

from antiphon.core.program.codec import collective_of, decode, dump, encode
from antiphon.core.program.kinds import (
    FOLD,
    JOIN,
    RECEIVE,
    SEND,
    BufferLayout,
    Program,
    among,
    collective_among,
    job_of,
    layout_of,
)
from antiphon.core.program.prove import prove
