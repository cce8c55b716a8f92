"""The part of the ranks that is a power of two, how the others hang on, and allgather on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import Longs, ranges
from antiphon.core.schedule import Schedule
from antiphon.planners.shared.digits import gather_digits
from antiphon.planners.shared.rows import Order, Seats, lay


@dataclass(frozen=True, eq=False)
class Core:
    """Core number c sits at `seat[c]` and speaks for the seats from `first[c]` on, `count[c]` of them (1 or 2).

    Seat `extra[i]` is spoken for by seat `partner[i]`, its neighbour.
    """

    seat: Longs
    first: Longs
    count: Longs
    extra: Longs
    partner: Longs


def core_of(ranks: int) -> Core:
    """The greatest power of two of seats; the first 2 (ranks - 2^k) seats form pairs."""
    size = 1 << (ranks.bit_length() - 1)
    pairs = ranks - size
    number = np.arange(size)
    first = np.where(number < pairs, 2 * number, number + pairs)
    count = np.where(number < pairs, 2, 1)
    extra = 2 * np.arange(pairs)
    return Core(first + count - 1, first, count, extra, extra + 1)


def allgather(collective: Collective, order: Order, bits: Sequence[int] | None = None) -> Schedule:
    """Partners exchange all they have, at distances 2^bits[0], 2^bits[1], ..., by default 1, 2, 4, ...

    With seats that are spoken for: these hand in their part first and are told all the rest last.
    """
    seats = Seats.of(collective, order)
    core = core_of(len(seats))
    levels = len(core.seat).bit_length() - 1
    moves = gather_digits([2] * levels, list(range(levels)) if bits is None else bits)
    count = core.count[moves.origin]
    early = 1 if len(core.extra) else 0
    others = np.arange(len(seats) - 1)[None, :]
    rest = (others + (others >= core.extra[:, None])).ravel()  # every seat's part but one's own
    times = len(seats) - 1
    step = [0 * core.extra, np.repeat(moves.step, count) + early, np.full(len(rest), levels + early)]
    origin = [core.extra, ranges(core.first[moves.origin], count), rest]
    src = [core.extra, np.repeat(core.seat[moves.src], count), np.repeat(core.partner, times)]
    dst = [core.partner, np.repeat(core.seat[moves.dst], count), np.repeat(core.extra, times)]
    block = seats.member[np.concatenate(origin)]
    return lay(collective, seats, np.concatenate(step), block, np.concatenate(src), np.concatenate(dst))
