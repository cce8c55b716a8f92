"""Map places of user-written schedules to chunks, and back.

In this folder a *place* is a position in a rank's buffer: (rank, buffer, index). Every chunk that a rank starts with
lies at an index of its `input`, every chunk that it must end with at an index of its `output`; a chunk that a rank only
forwards gets an index of `scratch`. `Layout` answers both questions: which chunk belongs at a place, and where a chunk
lies at a rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import Longs
from antiphon.core.interpret.buffers import Side, sides
from antiphon.core.schedule import Chunks, cut
from antiphon.errors import Unsupported

INPUT, OUTPUT, SCRATCH = "input", "output", "scratch"
MAX_CHUNKS = 2**25  # as many as a file may have blocks; refuses a number far too large before it fills the memory


@dataclass(frozen=True, slots=True)
class Place:
    """A place as users write it: rank, buffer (input, output, or any other name for scratch) and index in it."""

    rank: int
    buffer: str
    index: int

    def __str__(self) -> str:
        return f"w[{self.rank}, {self.buffer!r}, {self.index}]"


class Layout:
    """The inputs and outputs of a collective, with each block cut into `chunks_per_block` chunks.

    Chunk number k * blocks + b is share k of block b (`schedule.cut`). Share k of the j-th block of a buffer is at
    index j * chunks_per_block + k. Blocks are in the order of their numbers, as in the buffers of a run.
    """

    def __init__(self, collective: Collective, chunks_per_block: int) -> None:
        if collective.blocks * chunks_per_block > MAX_CHUNKS:
            raise Unsupported(
                f"chunks: {collective.blocks} blocks in {chunks_per_block} parts are more than {MAX_CHUNKS} chunks; "
                "give fewer"
            )
        self.chunks_per_block, self.blocks = chunks_per_block, collective.blocks
        self.chunks: Chunks = cut(collective, chunks_per_block)
        sides_of = sides(collective)
        # A side has a row (rank, block) for each block of each rank's buffer, sorted: those of rank r are
        # _begin[name][r] : _begin[name][r + 1]
        self._sides: dict[str, Side] = dict(zip((INPUT, OUTPUT), sides_of, strict=True))
        ranks = np.arange(collective.ranks + 1)
        self._begin = {name: np.searchsorted(side.rank, ranks) for name, side in self._sides.items()}

    def _blocks_of(self, rank: int, buffer: str) -> Longs:
        """Return the blocks of a rank's input or output."""
        begin = self._begin[buffer]
        return self._sides[buffer].block[begin[rank] : begin[rank + 1]]

    def size(self, rank: int, buffer: str) -> int:
        """Return the number of places of a rank's input or output."""
        begin = self._begin[buffer]
        return int(begin[rank + 1] - begin[rank]) * self.chunks_per_block

    def chunk(self, place: Place) -> int:
        """Return the chunk that belongs at a place of an input or output.

        >>> layout = Layout(Collective("allgather", 3), 2)
        >>> [[layout.chunk(Place(1, side, i)) for i in range(n)] for side, n in (("input", 2), ("output", 6))]
        [[1, 4], [0, 3, 1, 4, 2, 5]]
        """
        position, share_index = divmod(place.index, self.chunks_per_block)  # position: of the block in the buffer
        return share_index * self.blocks + int(self._blocks_of(place.rank, place.buffer)[position])

    def buffer_place(self, rank: int, buffer: str, chunk: int) -> Place | None:
        """Return the place of a chunk in the input or output of a rank, or None if it has none there."""
        share_index, block = divmod(chunk, self.blocks)
        blocks = self._blocks_of(rank, buffer)
        position = int(np.searchsorted(blocks, block))
        if position == len(blocks) or blocks[position] != block:
            return None
        return Place(rank, buffer, position * self.chunks_per_block + share_index)

    def default_place(self, rank: int, chunk: int) -> Place | None:
        """Return the place of a chunk at a rank: in its output, else in its input, or None if it has neither.

        A chunk that a rank has in both lies in its output only, as in an in-place collective.
        """
        return self.buffer_place(rank, OUTPUT, chunk) or self.buffer_place(rank, INPUT, chunk)

    def scratch_place(self, rank: int, buffer: str, chunk: int) -> Place:
        """Return the default place of a chunk in scratch: share k of the collective's block j (not of the j-th block of
        a buffer, as in inputs and outputs) is at index j * chunks_per_block + k.
        """
        share_index, block = divmod(chunk, self.blocks)
        return Place(rank, buffer, block * self.chunks_per_block + share_index)
