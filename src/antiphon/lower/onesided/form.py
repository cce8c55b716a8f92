"""Steps of one rank in one stream, one after another, by many threads together.

Between any two ranks a stream has one **channel**: either side can signal the other, and wait for as many signals.
Threads run ahead of each other from `SYNC` to `SYNC`: what one step writes or has waited for, a later one may use only
behind a sync.
"""

from __future__ import annotations

from typing import NamedTuple

SIGNAL, WAIT, PUT, FOLD, SYNC, SWITCH, SPREAD = range(7)
NAMES = ("signal", "wait", "put", "fold", "sync", "switch", "spread")
PACK, UNPACK, ADD = range(16, 19)  # by packets alone, of which tables of devices know nothing
GET = 19  # known to devices alone
PACKETS = 3  # a buffer beside those of core.program.kinds: scratch of data with flags, which tell when it is there

MOST_PEERS = 8  # of a signal, a wait, a put; a fold puts what it makes to so many
MOST_OPERANDS = 9

Place = tuple[int, int]  # a buffer of core.program.kinds, and a chunk of it


class Move(NamedTuple):
    """What a put writes: `size` chunks from a place of this rank to one of `peer`. A get reads: from a place of `peer`
    to one of this rank."""

    peer: int
    source: Place
    target: Place
    size: int


class Step(NamedTuple):
    """`peers`: who is signalled, or waited for. `moves`: of a put, or what a fold puts besides. A fold combines `size`
    chunks at each of `operands` and writes them at `into`; of one operand it is a copy. A switch combines what all
    `peers`, its own rank among them, have at its operand, a spread takes what its own rank has there; both write it at
    `into` of all. A pack is a put of packets, an unpack waits for those of its operand and writes them at `into`; an
    add is a fold whose first operand is data and all behind it packets, and whose moves are of packets."""

    kind: int
    peers: tuple[int, ...] = ()
    moves: tuple[Move, ...] = ()
    into: Place = (0, 0)
    operands: tuple[Place, ...] = ()
    size: int = 0


Streams = list[list[list[Step]]]  # by stream, then by rank
