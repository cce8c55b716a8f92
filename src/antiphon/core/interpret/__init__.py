"""The reference implementation: runs a schedule on NumPy buffers, all ranks in one process.

`interpret` goes step by step. In the tests another lets every read and write happen in a random order that the derived
dependencies allow, which tests them: both give the same bits.
"""

from antiphon.core.interpret.analysis import Analysis, analyse
from antiphon.core.interpret.buffers import block_elements, busbw_factor
from antiphon.core.interpret.orders import order_of_combining
from antiphon.core.interpret.stepwise import interpret, run

__all__ = [
    "Analysis",
    "analyse",
    "block_elements",
    "busbw_factor",
    "interpret",
    "order_of_combining",
    "run",
]
