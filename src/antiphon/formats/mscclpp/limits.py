"""What the executor of MSCCL++ has room for, and does not check (execution_common.hpp, as of 2026)."""

from __future__ import annotations

MOST_OPERATIONS = 64  # of a thread block, those within a pipeline counted with it
MOST_CHANNELS = 16  # of each type in a thread block, and so many remote buffers
MOST_OF_ONE = 8  # channels of an operation
MOST_PLACES = 10  # sources of an operation, and destinations
MOST_SEMAPHORES = 16  # of a GPU, and in an operation
MOST_BARRIERS = 16  # of a GPU
MOST_BLOCKS = 108  # of a GPU: all must be there at once, and an A100 has so many multiprocessors
MOST_OFFSET = 2**32  # bytes: offsets are numbers of 32 bits
SCRATCH = 2**26  # bytes that plans with reuse_resources share
FEW_CELLS = 2**21  # chunks of all buffers of a plan, of which a short file may speak: ours
LL = "LL"  # the protocol of packets

MEMORY, PORT, SWITCH = "memory", "port", "switch"
KINDS = ("i", "o", "s")  # input, output, scratch, in the order of core.program.kinds
