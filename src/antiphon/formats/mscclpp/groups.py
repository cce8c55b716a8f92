"""Share the steps of a stream among a group of thread blocks: cut to equal operations, or divided by partners.

A stream is a sequence of steps of a rank: signal, wait, put data into a peer's memory, fold (add up) data, ...; see
lower/onesided/form.py. blocks.py and staging.py call these functions before they write the steps as text.

Every block of a group does its part of every operation (`tbg_info` in the file states which), so all operations of the
stream must have one size: a put of 8 chunks beside a fold of 4 is cut into two puts of 4 (`find_chunks_per_step`,
`cut_steps`).

A stream that leaves all data to switches, and has more partners (ranks that it signals or waits for) than a block has
channels, is divided: each block signals and waits for some of the partners, for the whole group, which meets where that
matters. Example: 71 partners and 32 blocks; blocks 0 to 22 take three each, block 23 two, and every block does

    signal and wait for its partners, barrier, its part of the sum, barrier, signal and wait for its partners
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from antiphon.formats.mscclpp.shape import MOST_CHANNELS, MOST_OF_ONE
from antiphon.lower.onesided.form import (
    ADD,
    FOLD,
    PACK,
    PUT,
    SIGNAL,
    SPREAD,
    SYNC,
    UNPACK,
    WAIT,
    Place,
    StreamMove,
    StreamStep,
)
from antiphon.lower.onesided.form import SWITCH as SWITCH_STEP

MEET = -1  # a step of these files: the group meets at its barrier
DATA = frozenset((PUT, PACK, FOLD, ADD, UNPACK, SWITCH_STEP, SPREAD))  # steps that move data


def _find_peers(steps: list[StreamStep]) -> list[int]:
    """Return the ranks that a stream signals or waits for, ascending."""
    return sorted({peer for step in steps if step.kind in (SIGNAL, WAIT) for peer in step.peers})


def can_be_divided(steps_of_rank: list[list[StreamStep]]) -> bool:
    """Return whether the blocks of a stream's group should share its signals: no rank puts, and some rank has more
    partners than a block has channels. `steps_of_rank`: the stream at every rank."""
    # `moves`: data put into a peer's memory, by a put, a pack, a fold, an add, or a port's signal
    has_puts = any(step.moves for steps in steps_of_rank for step in steps)
    return not has_puts and max(len(_find_peers(steps)) for steps in steps_of_rank) > MOST_CHANNELS


def divide_steps(steps: list[StreamStep], member: int, group: int) -> list[StreamStep]:
    """Return the steps of one block (`member`) of a `group` of blocks: it signals and waits for its own partners alone.

    All blocks meet between a wait and the steps that need it, and between steps that move data and their signal."""
    peers = _find_peers(steps)
    share = -(-len(peers) // group)
    member_peers, divided, previous_kind = {*peers[member * share : (member + 1) * share]}, list[StreamStep](), SIGNAL
    for step in steps:
        if step.kind != SYNC:
            # after the waits of all blocks, and before their signals; initially SIGNAL: nothing precedes the first ones
            if previous_kind != step.kind and (previous_kind == WAIT or step.kind == SIGNAL):
                divided.append(StreamStep(MEET))
            previous_kind = step.kind
        if step.kind not in (SIGNAL, WAIT):
            divided.append(step)
        elif own_peers := tuple(peer for peer in step.peers if peer in member_peers):
            divided.append(step._replace(peers=own_peers))
    return divided


def find_chunks_per_step(streams: Iterable[list[StreamStep]]) -> int:
    """Return the largest size, in chunks, of which the sizes of all operations of blocks, and the positions where their
    data begins, are multiples. `streams`: one stream at every rank. Moves of a signal (see blocks.py: a port performs
    them) are whole for member 0, so they do not count."""
    numbers = [0]
    for steps in streams:
        for step in steps:
            if step.kind in (FOLD, ADD, UNPACK, SWITCH_STEP, SPREAD):
                numbers += [step.size, *(place[1] for place in (step.into, *step.operands))]
            for move in step.moves if step.kind != SIGNAL else ():
                numbers += [move.size, move.source[1], move.target[1]]
    return math.gcd(*numbers) or 1


def cut_steps(steps: list[StreamStep], unit: int) -> list[StreamStep]:
    """Return the same steps, cut so that each operation is on `unit` chunks and has at most MOST_OF_ONE moves.

    An operation may use that many channels, one for each move."""
    cut: list[StreamStep] = []
    for step in steps:
        if step.kind in (PUT, PACK):
            moves = [_shift_move(move, at, unit) for move in step.moves for at in range(0, move.size, unit)]
            cut += [step._replace(moves=tuple(moves[low : low + MOST_OF_ONE]))
                    for low in range(0, len(moves), MOST_OF_ONE)]  # fmt: skip
        elif step.kind in DATA:
            # a fold or an add may put its result into peers' memory, too: then it has moves beside `into`
            cut += [
                step._replace(
                    into=_shift(step.into, at), operands=tuple(_shift(place, at) for place in step.operands), size=unit,
                    moves=tuple(_shift_move(move, at, unit) for move in step.moves),
                )
                for at in range(0, step.size, unit)
            ]  # fmt: skip
        else:
            cut.append(step)
    return cut


def _shift(place: Place, at: int) -> Place:
    """Return the place `at` chunks behind this one."""
    buffer, first = place
    return buffer, first + at


def _shift_move(move: StreamMove, at: int, unit: int) -> StreamMove:
    return StreamMove(move.peer, _shift(move.source, at), _shift(move.target, at), unit)
