"""A reducescatter whose blocks are put in another order first: so that what is sent is one run of memory on both sides.

It is the allgather in the order of arrival (arrival.py), run backwards: the permutation comes first, on a copy of the
input in scratch, as the input is not written. What comes for sums lies in that order, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from antiphon.core.columns import Longs, ranges
from antiphon.core.program import Program
from antiphon.core.program.kinds import INPUT, OUTPUT, SCRATCH
from antiphon.errors import Unsupported
from antiphon.lower.device.atoms import Atoms
from antiphon.lower.onesided.form import FOLD, SYNC, Move, Place, Step, Streams
from antiphon.lower.onesided.line import Fold, together
from antiphon.lower.onesided.messages import joined


class Departing:
    """`places`: of each rank and block where it stands in the order of arrival. `block`: atoms of one."""

    def __init__(self, program: Program, known: Atoms, places: Longs, made: Streams) -> None:
        self.given, self.places, self.ranks = known, places, program.ranks
        self.whole = int(program.collective.weights[0])
        self.block = self.whole * known.count
        self.in_place = program.in_place
        ends = np.append(known.first[1:] - 1, 0)
        ends[known.region_ptr[1:][np.diff(known.region_ptr) > 0] - 1] = known.bound.sizes[
            np.diff(known.region_ptr) > 0, SCRATCH
        ]
        size = ends - known.first
        if known.shared.any() or (known.origin % self.block).any() or (size % self.block).any():
            raise Unsupported("scratch that is used again, or holds parts of blocks, has no order of arrival")
        self.blocks = size // self.block  # of each region
        self.position: list[Longs] = [np.zeros(0, np.int64)] * len(size)  # of each block of a region: its slot
        come = self._come(made)
        origins = [self._ordered(rank, come) for rank in range(self.ranks)]
        self.program, self.known = self._laid_out(program, origins)

    def _come(self, made: Streams) -> Longs:
        """Of each region with which message it comes."""
        found, number = np.zeros(len(self.blocks), np.int64), 0
        for ranks in made:
            for steps in ranks:
                for step in steps:
                    number += 1
                    for move in step.moves:
                        if move.target[0] == SCRATCH:
                            found[self.given.region(move.peer, move.target[1])] = number * self.ranks + move.peer
        return found

    def _ordered(self, rank: int, come: Longs) -> Longs:
        """The origins of the slots of a rank: a copy of its input, then what comes, message after message."""
        known = self.given
        rows = np.arange(known.region_ptr[rank], known.region_ptr[rank + 1])
        many = self.blocks[rows]
        block, order = _in_order(known.origin[rows] // self.block, many, come[rows], self.places[rank])
        slot = np.empty(len(order), np.int64)
        slot[order] = self.ranks + np.arange(len(order))
        for row, some in zip(rows.tolist(), np.split(slot, np.cumsum(many)[:-1]), strict=True) if len(rows) else ():
            self.position[row] = some
        found: Longs = np.concatenate([np.argsort(self.places[rank]), block[order]]) * self.block
        return found

    def _laid_out(self, program: Program, origins: Sequence[Longs]) -> tuple[Program, Atoms]:
        """The same program with slots of a block each, for data of these origins."""
        known = self.given
        ptr = np.concatenate([[0], np.cumsum([len(one) for one in origins])]).astype(np.int64)
        slot = np.concatenate([np.arange(len(one)) for one in origins]).astype(np.int64)
        laid = replace(
            known, region_ptr=ptr, slot=slot, origin=np.concatenate(origins), first=slot * self.block,
            shared=np.zeros_like(slot),
        )  # fmt: skip
        kind = len(program.class_whole)  # one more class, of a block
        slot_class = np.full(len(slot), kind, program.slot_class.dtype)
        changed = replace(
            program, slot_ptr=ptr.astype(program.slot_ptr.dtype), slot_class=slot_class,
            class_whole=np.append(program.class_whole, self.whole), class_part=np.append(program.class_part, 0),
            class_pieces=np.append(program.class_pieces, 1),
        )  # fmt: skip
        return changed, laid

    def steps(self, rank: int, steps: Sequence[Step]) -> list[Step]:
        source = OUTPUT if self.in_place else INPUT
        copied = [
            Step(FOLD, (), (), (SCRATCH, int(self.places[rank, block]) * self.block), ((source, block * self.block),),
                 self.block)
            for block in range(self.ranks) if block != rank
        ]  # fmt: skip
        found, folds = [*copied, Step(SYNC)], list[Fold]()
        for step in steps:
            if step.kind == FOLD and not step.moves:
                for size, (into, *operands) in self._cut(step.size, (rank, step.into), *self._own(rank, step)):
                    folds.append(Fold((), into, tuple(operands), size))
                continue
            found += self._folded(folds)
            folds = []
            if step.kind == FOLD:
                found += self._sent_on(rank, step)
                continue
            moves = [
                Move(move.peer, source, target, size)
                for move in step.moves
                for size, (source, target) in self._cut(move.size, (rank, move.source), (move.peer, move.target))
            ]
            found.append(step._replace(moves=tuple(joined(sorted(moves, key=lambda one: (one.peer, one.target))))))
        return found + self._folded(folds)

    def _own(self, rank: int, step: Step) -> list[tuple[int, Place]]:
        return [(rank, place) for place in step.operands]

    def _sent_on(self, rank: int, step: Step) -> list[Step]:
        """A fold whose results others get, too, each block of it."""
        own, peers = self._own(rank, step), [(move.peer, move.target) for move in step.moves]
        return [
            step._replace(
                into=into, operands=tuple(places[: len(own)]), size=size,
                moves=tuple(
                    Move(move.peer, into, target, size)
                    for move, target in zip(step.moves, places[len(own) :], strict=True)
                ),
            )
            for size, (into, *places) in self._cut(step.size, (rank, step.into), *own, *peers)
        ]  # fmt: skip

    def _folded(self, folds: Sequence[Fold]) -> list[Step]:
        """None of them needs another."""
        some = together(sorted(folds, key=lambda one: one.into))
        return [Step(FOLD, (), (), one.into, one.operands, one.size) for one in some]

    def _cut(self, size: int, *places: tuple[int, Place]) -> list[tuple[int, list[Place]]]:
        """Within blocks: how much, and where each place, of a rank, is now."""
        found, done = [], 0
        while done < size:
            count = min(size - done, *(self.block - self._within(rank, place, done) for rank, place in places))
            found.append((count, [self._at(rank, place, done) for rank, place in places]))
            done += count
        return found

    def _within(self, rank: int, place: Place, done: int) -> int:
        """How far from the beginning of a block."""
        buffer, at = place
        first = int(self.given.first[self.given.region(rank, at)]) if buffer == SCRATCH else 0
        return (at + done - first) % self.block

    def _at(self, rank: int, place: Place, done: int) -> Place:
        """Where a place is now. What a rank has of its own block stays where it is."""
        buffer, at = place
        if buffer == SCRATCH:
            row = self.given.region(rank, at)
            block, within = divmod(at + done - int(self.given.first[row]), self.block)
            return SCRATCH, int(self.position[row][block]) * self.block + within
        block, within = divmod(at + done, self.block)
        if block == rank or (buffer == OUTPUT and not self.in_place):
            return buffer, at + done
        return SCRATCH, int(self.places[rank, block]) * self.block + within


def _in_order(first: Longs, many: Longs, come: Longs, place: Longs) -> tuple[Longs, Longs]:
    """The blocks of all regions, each of so many from its first on, and the order in which they stand: as they come,
    those of one message by their places.

    Blocks 0 and 1 come with message 5, block 2 with message 4; in the order of arrival block 1 is before block 0:

    >>> _in_order(np.array([0, 2]), np.array([2, 1]), np.array([5, 4]), np.array([1, 0, 2]))
    (array([0, 1, 2]), array([2, 1, 0]))
    """
    block = ranges(first, many)
    return block, np.lexsort((place[block], np.repeat(come, many)))
