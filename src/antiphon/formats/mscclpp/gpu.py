"""The text of one rank in an MSCCL++ file: thread blocks with their operations, channels and remote buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from antiphon.errors import Unsupported
from antiphon.formats.mscclpp.shape import MEMORY, MOST_BARRIERS, MOST_CHANNELS, PORT, SWITCH


@dataclass
class BlockText:
    """A thread block: operations as JSON, and the channels and remote buffers that they use."""

    operations: list[str] = field(default_factory=list)
    # by type of channel: the number of a channel, or remote buffer, at the rank -> its position in the block
    channels: dict[str, dict[int, int]] = field(default_factory=lambda: {MEMORY: {}, PORT: {}, SWITCH: {}})
    buffers: dict[str, dict[int, int]] = field(default_factory=lambda: {MEMORY: {}, PORT: {}, SWITCH: {}})

    def add_channels(self, channel_type: str, channels: Sequence[int], buffers: Sequence[int]) -> bool:
        """Add these channels and remote buffers if all of them fit; return whether the block has them."""
        own_channels, own_buffers = self.channels[channel_type], self.buffers[channel_type]
        new_channels = [number for number in channels if number not in own_channels]
        new_buffers = [number for number in buffers if number not in own_buffers]
        if not new_channels and not new_buffers:
            return True
        if (
            len(own_channels) + len(set(new_channels)) > MOST_CHANNELS
            or len(own_buffers) + len(set(new_buffers)) > MOST_CHANNELS  # the limit of remote buffers, too
        ):
            return False
        for number in new_channels:
            own_channels.setdefault(number, len(own_channels))
        for number in new_buffers:
            own_buffers.setdefault(number, len(own_buffers))
        return True


SwitchGroup = tuple[tuple[int, ...], str]  # ranks that a switch joins, and the name of the buffer that it accesses
BufferKey = tuple[int, str, str]  # a remote buffer: peer, name of the buffer, type of channel


@dataclass
class Chaining:
    """Semaphores and barriers that a rank has used so far.

    A thread block is full if it has no room for further operations, channels or remote buffers. Its operations then
    continue in a new thread block, which at run time waits for the full one by a semaphore or, once these are used up,
    by a barrier. Other barriers let groups of thread blocks meet. `max_crowd`: the most thread blocks that may share a
    barrier in such a chain.
    """

    max_crowd: int
    semaphores: int = 0
    barriers: int = 0

    def add_barrier(self) -> int:
        """Take one of the GPU's barriers; return its number."""
        if self.barriers == MOST_BARRIERS:
            raise Unsupported(f"more than {MOST_BARRIERS} barriers of a GPU")
        self.barriers += 1
        return self.barriers - 1


@dataclass
class GpuText:
    """A rank. `channels[type]`: the peer of each channel of this type, MEMORY or PORT; those of type SWITCH are
    `switch_groups`, one channel per group. `buffers`: the remote buffers, by the numbers that blocks have for them.
    `moving_streams`: number of streams that move data; `group`: number of thread blocks that share each stream."""

    blocks: list[BlockText]
    channels: dict[str, list[int]]
    buffers: list[BufferKey]
    chaining: Chaining
    switch_groups: list[SwitchGroup] = field(default_factory=list)
    moving_streams: int = 0
    group: int = 1
