"""The reference implementation: runs a schedule on NumPy buffers, all ranks in one process.

`interpret` goes step by step. A second interpreter in the tests performs every read and write in a random order that
the derived dependencies allow. Both give the same bits, which tests the dependencies.
"""

from antiphon.core.interpret.analysis import Analysis, analyse
from antiphon.core.interpret.buffers import block_elements, busbw_factor
from antiphon.core.interpret.orders import order_of_combining
from antiphon.core.interpret.stepwise import interpret, run

__all__ = ["Analysis", "analyse", "block_elements", "busbw_factor", "interpret", "order_of_combining", "run"]
