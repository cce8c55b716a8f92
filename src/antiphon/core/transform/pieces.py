"""Predict the pieces into which a runtime cuts messages on its own, so that models price the messages that it sends.

Some runtimes (our engine over MPI) send long messages in pieces even if the schedule asks for none. Input: a schedule,
the runtime's rule (`Cuts`) and a message size. Output: the same schedule with explicit `pieces` per chunk.

Example: allreduce through a star, pieces of 1024 bytes, at most 8: at 1024 bytes one piece, at 4000 four, at 1 MiB
eight.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from antiphon.core.columns import Bools, Longs, number_rows
from antiphon.core.loads import pieces_of
from antiphon.core.schedule import Schedule
from antiphon.core.transform.cutting import pipeline


@dataclass(frozen=True)
class Cuts:
    """A runtime's rule for cutting messages.

    Only messages without pieces in the schedule are cut. A piece of a message is forwarded alone only if every other
    message at that rank is the same stretch of data or disjoint from it. Otherwise ranks wait for the whole message,
    which then counts as one piece.
    """

    collectives: tuple[str, ...]  # kinds of collectives whose messages are cut
    piece: int  # bytes of a piece
    most: int  # pieces of a message at most


NO_CUTS = Cuts(collectives=(), piece=1, most=1)  # the rule of runtimes that cut nothing


class Cutting:
    """The pieces of one schedule as a function of the size; everything independent of the size is computed once.

    >>> from antiphon.core.example import star
    >>> cutting = Cutting(star(), Cuts(("allreduce",), 1024, 8))
    >>> [cutting.at(nbytes).pieces for nbytes in (1024, 4000, 1 << 20)]
    [1, 4, 8]
    """

    def __init__(self, schedule: Schedule, cuts: Cuts) -> None:
        self.schedule, self.cuts = schedule, cuts
        self.in_one_piece = pieces_of(schedule) == 1
        rows = np.flatnonzero(self.in_one_piece[schedule.chunk] & (schedule.src != schedule.dst))
        self.cuts_nothing = schedule.collective.kind not in cuts.collectives or not len(rows) or cuts.most == 1
        if self.cuts_nothing:
            return
        chunk = schedule.chunk[rows].astype(np.int64)
        route = schedule.route[rows] if schedule.route is not None else np.zeros(len(rows), np.int64)
        # Rows with the same step, ends and route are one message.
        self.message = number_rows(schedule.step[rows], schedule.src[rows], schedule.dst[rows], route)
        self.chunk, self.messages = chunk, int(self.message.max()) + 1
        weights, scale = schedule.chunks.weights(schedule.collective)
        self.share = np.zeros(self.messages)  # per message its fraction of nbytes
        np.add.at(self.share, self.message, weights[chunk].astype(float) / scale)
        self.is_uniform = self._find_uniform(rows)

    def _find_uniform(self, rows: Longs) -> Bools:
        """Return per message whether it is one stretch of data and, at both its ends, overlaps no different stretch.
        O(n log n).

        Messages 0, 1, 2: rank 0 sends both halves to rank 1, but only the first to rank 2, which has the other from 1.

        >>> from antiphon.core.example import of_rows
        >>> rows = [(0, 0, 0, 1, 0), (0, 1, 0, 1, 0), (0, 0, 0, 2, 0), (1, 1, 1, 2, 0)]
        >>> Cutting(of_rows("broadcast", 3, rows, roots=(0,), parts=2), Cuts(("broadcast",), 1, 4)).is_uniform
        array([False, False,  True])
        """
        schedule, chunks = self.schedule, self.schedule.chunks
        order = np.lexsort((chunks.offset, chunks.block))
        position = np.empty(len(chunks), np.int64)  # per chunk, on the line of all chunks
        position[order] = np.arange(len(chunks))
        chunk_position = position[self.chunk]
        low = np.full(self.messages, len(chunks), np.int64)
        high, count = np.zeros(self.messages, np.int64), np.bincount(self.message, minlength=self.messages)
        np.minimum.at(low, self.message, chunk_position)
        np.maximum.at(high, self.message, chunk_position)
        # A message is contiguous if its chunks have consecutive positions.
        is_contiguous = high - low + 1 == count
        # Contiguous messages of the same chunks are one stretch; each of the others is a stretch of its own.
        stretch = number_rows(low, high, np.where(is_contiguous, 0, np.arange(1, self.messages + 1)))
        is_uniform: Bools = is_contiguous.copy()
        # At each end every message that touches a chunk must be the same stretch; otherwise a piece cannot be
        # forwarded alone.
        for end in (schedule.src[rows], schedule.dst[rows]):
            cell = number_rows(end, self.chunk)
            example = np.full(int(cell.max()) + 1, -1, np.int64)  # per cell the stretch of one of its messages
            example[cell] = stretch[self.message]
            is_mixed = np.zeros(len(example), bool)
            np.logical_or.at(is_mixed, cell, example[cell] != stretch[self.message])
            np.logical_and.at(is_uniform, self.message, ~is_mixed[cell])
        return is_uniform

    def pieces(self, nbytes: int) -> tuple[int, ...] | None:
        """Return the pieces per chunk at this size; None if nothing is cut."""
        if self.cuts_nothing:
            return None
        piece_count = np.ceil(self.share * nbytes / self.cuts.piece)
        count = np.where(self.is_uniform, np.clip(piece_count, 1, self.cuts.most), 1).astype(np.int64)
        # A chunk gets the fewest pieces of the messages that carry it; chunks in no message stay whole.
        pieces = np.full(len(self.schedule.chunks), self.cuts.most, np.int64)
        np.minimum.at(pieces, self.chunk, count[self.message])
        pieces[np.bincount(self.chunk, minlength=len(pieces)) == 0] = 1
        pieces = np.where(self.in_one_piece, pieces, pieces_of(self.schedule))
        return None if bool((pieces == pieces_of(self.schedule)).all()) else tuple(pieces.tolist())

    def at(self, nbytes: int) -> Schedule:
        """Return the schedule as cut at this size."""
        pieces = self.pieces(nbytes)
        return self.schedule if pieces is None else pipeline(self.schedule, np.array(pieces))
