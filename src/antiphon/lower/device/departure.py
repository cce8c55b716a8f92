"""A reducescatter whose blocks are put in another order first: so that what is sent is one run of memory on both sides.

It is the allgather in the order of arrival (arrival.py), run backwards: the permutation comes first, on a copy of the
input in scratch, as the input is not written. What comes for sums lies in that order, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from antiphon.core.columns import Longs
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
        self.block = int(program.collective.weights[0]) * known.count
        self.in_place = program.in_place
        if known.shared.any() or (known.origin % self.block).any():
            raise Unsupported("scratch that is used again, or holds parts of blocks, has no order of arrival")
        self.position = np.zeros(len(known.slot), np.int64)  # of each region, behind the copy of the input
        order = list[int]()
        come = self._come(made)
        for rank in range(self.ranks):
            rows = np.arange(known.region_ptr[rank], known.region_ptr[rank + 1])
            rows = rows[np.lexsort((places[rank, known.origin[rows] // self.block], come[rows]))]
            self.position[rows] = self.ranks + np.arange(len(rows))
            order += rows.tolist()
        self.program, self.known = self._laid_out(program, np.array(order, np.int64))

    def _come(self, made: Streams) -> Longs:
        """Of each region with which message it comes."""
        found, number = np.zeros(len(self.position), np.int64), 0
        for ranks in made:
            for steps in ranks:
                for step in steps:
                    number += 1
                    for move in step.moves:
                        if move.target[0] == SCRATCH:
                            found[self.given.region(move.peer, move.target[1])] = number * self.ranks + move.peer
        return found

    def _laid_out(self, program: Program, order: Longs) -> tuple[Program, Atoms]:
        """The same program with a slot for each block of the input, before all others, which stand in this order."""
        known, ranks = self.given, self.ranks
        whole = self.block // known.count
        same = np.flatnonzero((program.class_whole == whole) & (program.class_part == 0))
        if not len(same) or not np.isin(program.slot_class, same).all():
            raise Unsupported("scratch for data of several lengths has no order of arrival")
        ptr = known.region_ptr + ranks * np.arange(ranks + 1)
        origins, slots = list[Longs](), list[Longs]()
        for rank in range(ranks):
            own = order[known.region_ptr[rank] : known.region_ptr[rank + 1]]
            origins.append(np.concatenate([np.argsort(self.places[rank]) * self.block, known.origin[own]]))
            slots.append(np.arange(len(origins[-1])))
        slot = np.concatenate(slots).astype(np.int64)
        origin = np.concatenate(origins).astype(np.int64)
        laid = replace(
            known, region_ptr=ptr, slot=slot, origin=origin, first=slot * self.block, shared=np.zeros_like(slot)
        )  # fmt: skip
        slot_class = np.full(len(slot), same[0], program.slot_class.dtype)
        return replace(program, slot_ptr=ptr.astype(program.slot_ptr.dtype), slot_class=slot_class), laid

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
                places = [self._at(rank, place) for place in (step.into, *step.operands)]
                folds.append(Fold((), places[0], tuple(places[1:]), step.size))
                continue
            found += self._folded(folds)
            folds = []
            if step.kind == FOLD:
                into, *operands = (self._at(rank, place) for place in (step.into, *step.operands))
                step = step._replace(into=into, operands=tuple(operands))  # noqa: PLW2901
            moves = [self._moved(rank, move) for move in step.moves]
            found.append(step._replace(moves=tuple(joined(sorted(moves, key=lambda one: (one.peer, one.target))))))
        return found + self._folded(folds)

    def _folded(self, folds: Sequence[Fold]) -> list[Step]:
        """None of them needs another."""
        some = together(sorted(folds, key=lambda one: one.into))
        return [Step(FOLD, (), (), one.into, one.operands, one.size) for one in some]

    def _moved(self, rank: int, move: Move) -> Move:
        return Move(move.peer, self._at(rank, move.source), self._at(move.peer, move.target), move.size)

    def _at(self, rank: int, place: Place) -> Place:
        """Where a place within a block is now. What a rank has of its own block stays where it is."""
        buffer, at = place
        if buffer == SCRATCH:
            row = self.given.region(rank, at)
            return SCRATCH, int(self.position[row]) * self.block + at - int(self.given.first[row])
        block, within = divmod(at, self.block)
        if block == rank or (buffer == OUTPUT and not self.in_place):
            return place
        return SCRATCH, int(self.places[rank, block]) * self.block + within
