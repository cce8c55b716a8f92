"""What a runtime of thread blocks holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The defaults are those of MSCCL's executor, per rank unless it says otherwise."""

    steps: int = 64  # of a block
    channels: int = 32
    blocks: int = 1024
    per_channel: int = 32  # blocks with sends on one channel, and blocks with receives
    waited: int = 128  # blocks that others wait for: their number is an int8
    count: int = 71  # chunks of a step
    chunks: int = 2**15 - 1  # of a buffer: offsets are int16
    slots: int = 2  # messages under way in a queue
    fused: bool = True  # steps that receive and at once add, or send on
    together: int = 32  # what a step waits for itself; for more, steps that do nothing else gather them
