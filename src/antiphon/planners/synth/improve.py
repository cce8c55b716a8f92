"""Improve an algorithm that is too large to synthesize: large-neighbourhood search over steps and rounds.

Input is an algorithm (C, S, R) of a collective that only copies, found by any method; output are algorithms with the
same C and a smaller R, or fewer or more steps. A neighbourhood fixes new rounds for the steps and takes out the moves
that no longer fit; these are put back elsewhere. Three neighbourhoods:

    shave   one round less in one step: its fullest resources must give up moves
    merge   two consecutive steps become one: chunks that arrived in the first cannot be sent on in the second
    split   a new step of one round, which pays if two rounds can be shaved elsewhere

A move (chunk x enters rank v by arc a in step s) may be put into any arc into v and any step between the arrival of x
at the arc's tail and the first send of x by v. If a resource is full there, one of the moves that use it is relocated
first, and so on: an augmenting path as in bipartite matching, at most `depth` relocations long. The algorithm stays
correct throughout, and what fails is undone.

Effort is counted in places examined, so results do not depend on the machine.

Example: torus 8x16, allgather. Packed trees give (4, 12, 146), 1.15 times the bandwidth bound with the fewest steps;
shaving and splitting lead to fewer rounds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from antiphon.core.ksync.instance import Instance
from antiphon.planners.synth.effort_budget import EffortBudget
from antiphon.planners.synth.task import Move, rounds_of

PLACE = 1_500  # effort of examining a place, in billionths of a unit


@dataclass(frozen=True)
class ImproveLimits:
    """Thresholds of the search."""

    depths: tuple[int, ...] = (0, 1, 2, 3)  # relocations in a row that `shave` may need, tried in this order
    usual_depth: int = 1  # the same when steps are merged or split
    attempts: int = 3  # pairs of steps to merge, or steps to split, that are tried for each number of steps
    occupants: int = 12  # moves of a full resource that are tried for relocation


LIMITS = ImproveLimits()


@dataclass(frozen=True)
class _Arc:
    """A transfer into a rank: its tail, bonds, and the resources that it loads."""

    tail: int
    path: tuple[int, ...]
    resources: tuple[int, ...]


_Place = tuple[_Arc, int]  # arc and step
_Saved = tuple[list["_Place | None"], list[int]]  # the place of every move, the rounds of every step


class ChangingAlgorithm:
    """An algorithm that is changed in place: where every rank gets every chunk from, and when."""

    def __init__(self, instance: Instance, moves: Sequence[Move], budget: EffortBudget, seed: int = 0) -> None:
        self.instance = instance
        self.budget = budget
        self.work = 0  # places examined since the last payment
        self.random = Random(seed)
        # chunks per round, by resource (bonds, then shared limits)
        self.capacity = [(c.numerator, c.denominator) for c in instance.capacity]
        self.arcs_into: dict[int, list[_Arc]] = defaultdict(list)
        for tail, head, path in zip(
            instance.arcs.tail.tolist(), instance.arcs.head.tolist(), instance.arcs.paths, strict=True
        ):
            self.arcs_into[head].append(_Arc(tail, path, self._resources(path)))
        # chunks of all kinds are numbered together; move m brings chunk chunk_of[m] to rank rank_of[m]
        numbers: dict[tuple[int, int], int] = {}
        self.chunk_of, self.rank_of, self.place = [], [], list[_Place | None]()  # place None: the move is taken out
        self.names: list[tuple[int, int]] = []  # per chunk its kind, and its number in the kind
        self.holders: list[frozenset[int]] = []  # per chunk
        for kind, chunk, path, step in moves:
            number = numbers.setdefault((kind, chunk), len(numbers))
            if number == len(self.names):
                self.names.append((kind, chunk))
                self.holders.append(frozenset(instance.kinds[kind].holders))
            self.chunk_of.append(number)
            self.rank_of.append(int(instance.head[path[-1]]))
            self.place.append((_Arc(int(instance.tail[path[0]]), path, self._resources(path)), step))
        # (chunk, rank) -> the move that brings it there: a rank receives a chunk once
        self.entry = {(self.chunk_of[m], self.rank_of[m]): m for m in range(len(moves))}
        self.rounds = rounds_of(instance, moves)
        self._index()

    def _resources(self, path: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(r for bond in path for r in (bond, *self.instance.limits_of[bond]))

    def _index(self) -> None:
        """Rebuild the tables of occupants and of sends from the places."""
        self.occupants: list[dict[int, set[int]]] = [defaultdict(set) for _ in self.rounds]  # by step, resource: moves
        self.sends: dict[tuple[int, int], set[int]] = defaultdict(set)  # (chunk, rank) -> moves that send it from there
        places, self.place = self.place, [None] * len(self.place)
        for m, place in enumerate(places):
            if place is not None:
                self._put(m, place)

    # ---- the tables ----

    def _put(self, m: int, place: _Place) -> None:
        """Put a move that is taken out into a place, whether that has room or not."""
        arc, step = place
        self.place[m] = place
        for resource in arc.resources:
            self.occupants[step][resource].add(m)
        self.sends[self.chunk_of[m], arc.tail].add(m)

    def _take(self, m: int) -> _Place:
        """Take a move out and return its place."""
        place = self.place[m]
        assert place is not None
        arc, step = place
        for resource in arc.resources:
            self.occupants[step][resource].discard(m)
        self.sends[self.chunk_of[m], arc.tail].discard(m)
        self.place[m] = None
        return place

    def _room(self, step: int, resource: int) -> int:
        """Return the number of moves that the resource can add in the step; negative if it carries too many."""
        numerator, denominator = self.capacity[resource]
        return self.rounds[step] * numerator // denominator - len(self.occupants[step][resource])

    def _places(self, m: int) -> Iterator[_Place]:
        """Yield where a move that is taken out could go, full or not."""
        chunk, rank = self.chunk_of[m], self.rank_of[m]
        # before the rank sends the chunk on, and after the arc's tail has received it
        last = min((self.place[s][1] for s in self.sends[chunk, rank]), default=len(self.rounds)) - 1  # type: ignore[index]
        for arc in self.arcs_into[rank]:
            if arc.tail in self.holders[chunk]:
                first = 0
            else:
                entered = self.place[self.entry[chunk, arc.tail]] if (chunk, arc.tail) in self.entry else None
                if entered is None:  # the tail never receives the chunk, or the move that brings it is taken out
                    continue
                _, entered_in_step = entered
                first = entered_in_step + 1
            for step in range(first, last + 1):
                yield arc, step

    def _insert(self, m: int, depth: int, log: list[tuple[int, _Place]], visited: set[tuple[int, int]]) -> bool:
        """Put a move back, relocating at most `depth` others in a row; return whether that worked.

        `log` receives relocated moves and their old places. `visited`: (step, resource) pairs from which moves were
        relocated already; they are not tried again.
        """
        places = list(self._places(m))
        self.work += len(places)
        full: list[tuple[_Place, int]] = []  # places that lack room on one resource only
        for arc, step in places:
            lacking = [r for r in arc.resources if self._room(step, r) < 1]
            if not lacking:
                self._put(m, (arc, step))
                return True
            if len(lacking) == 1 and depth:
                full.append(((arc, step), lacking[0]))
        for place, resource in full:
            _, step = place
            # an overloaded resource has no room even if a move leaves it
            if (step, resource) in visited or self._room(step, resource) < 0:
                continue
            visited.add((step, resource))
            for other in self._sample(self.occupants[step][resource]):
                old = self._take(other)
                if not self._is_allowed(m, place):  # `other` brought the chunk to the tail
                    self._put(other, old)
                    continue
                self._put(m, place)
                mark = len(log)
                log.append((other, old))
                if self._insert(other, depth - 1, log, visited):
                    return True
                del log[mark:]
                self._take(m)
                self._put(other, old)
        return False

    def _is_allowed(self, m: int, place: _Place) -> bool:
        """Return whether the chunk still gets to the tail of this place's arc."""
        arc, _ = place
        chunk = self.chunk_of[m]
        return arc.tail in self.holders[chunk] or self.place[self.entry[chunk, arc.tail]] is not None

    def _sample(self, moves: set[int]) -> list[int]:
        """Return some of these moves, in an order that the seed determines."""
        ordered = sorted(moves)
        return self.random.sample(ordered, min(len(ordered), LIMITS.occupants))

    def _relocate(self, m: int, depth: int, log: list[tuple[int, _Place]]) -> bool:
        """Take out a move and put it elsewhere; changes are logged. If that fails, undo what was tried."""
        mark = len(log)
        log.append((m, self._take(m)))
        if self._insert(m, depth, log, visited=set()):
            return True
        self._undo(log[mark:])
        del log[mark:]
        return False

    def _undo(self, log: list[tuple[int, _Place]]) -> None:
        """Put the moves of a log back to their old places, the last first."""
        for m, place in reversed(log):
            if self.place[m] is not None:
                self._take(m)
            self._put(m, place)

    # ---- neighbourhoods ----

    def pay(self) -> None:
        """Charge the work since the last call. Raises TimedOut as `EffortBudget.pay` does."""
        work, self.work = self.work, 0
        self.budget.pay(work * PLACE)

    def _excess(self, step: int) -> int:
        """Return the number of moves by which the resources of a step are overloaded."""
        return sum(max(0, -self._room(step, r)) for r in self.occupants[step])

    def shave(self, depth: int) -> bool:
        """Take one round from a step where that works, the step with the fewest moves in the way first.

        `depth`: relocations in a row that a move may need (`_insert`).
        """
        candidates = []
        for step in range(len(self.rounds)):
            self.rounds[step] -= 1
            candidates.append((self._excess(step), step))
            self.rounds[step] += 1
        return any(self._shave_step(step, depth) for _, step in sorted(candidates))

    def _shave_step(self, step: int, depth: int) -> bool:
        """Take one round from a step, and the moves that no longer fit elsewhere; undo all if one fits nowhere."""
        self.rounds[step] -= 1
        log: list[tuple[int, _Place]] = []
        for resource in sorted(self.occupants[step]):
            # a relocation may bring other moves here, so look again after each
            while self._room(step, resource) < 0:
                if not any(self._relocate(m, depth, log) for m in self._sample(self.occupants[step][resource])):
                    self.rounds[step] += 1
                    self._undo(log)
                    self.pay()
                    return False
        if self.rounds[step] == 0:
            self._drop_step(step)
        self.pay()
        return True

    def _drop_step(self, step: int) -> None:
        """Remove an empty step."""
        del self.rounds[step]
        self._shift(step, by=-1)

    def save(self) -> _Saved:
        """Return the state, for `restore`."""
        return list(self.place), list(self.rounds)

    def restore(self, saved: _Saved) -> None:
        """Return to a saved state; it may be restored more than once."""
        place, rounds = saved
        self.place, self.rounds = list(place), list(rounds)
        self._index()

    def _shift(self, step: int, by: int) -> None:
        """Move all steps from `step` on by 1 or -1."""
        self.place = [p if p is None or p[1] < step else (p[0], p[1] + by) for p in self.place]
        self._index()
        self.work += 2 * len(self.place)

    def merge(self, extra: int) -> bool:
        """Join two consecutive steps, where few chunks are sent on in the second; it gets `extra` rounds more."""
        violators: dict[int, list[int]] = defaultdict(list)  # step -> moves of chunks that arrived in the step before
        for m, place in enumerate(self.place):
            arc, step = place  # type: ignore[misc]
            entered = self.entry.get((self.chunk_of[m], arc.tail))
            if step and entered is not None and self.place[entered][1] == step - 1:  # type: ignore[index]
                violators[step].append(m)
        self.work += len(self.place)
        steps = sorted(range(1, len(self.rounds)), key=lambda step: (len(violators[step]), step))
        # take the violators out, join the steps, and put them back elsewhere
        for step in steps[: LIMITS.attempts]:
            before = self.save()
            for m in violators[step]:
                self._take(m)
            self.rounds[step - 1] += self.rounds.pop(step) + extra
            self._shift(step, by=-1)
            if all(self._insert(m, LIMITS.usual_depth, log=[], visited=set()) for m in violators[step]):
                return True
            self.restore(before)
            self.pay()
        return False

    def split(self) -> bool:
        """Insert a step of one round before a long one, and shave two rounds or more elsewhere."""
        steps = sorted(range(len(self.rounds)), key=lambda step: (-self.rounds[step], step))
        for step in steps[: LIMITS.attempts]:
            before, total = self.save(), sum(self.rounds)
            self.rounds.insert(step, 1)
            self._shift(step, by=1)
            while sum(self.rounds) >= total and self.shave(LIMITS.usual_depth):
                pass
            if sum(self.rounds) < total:
                return True
            self.restore(before)
        return False

    def shave_all(self, min_rounds: int, depth: int) -> None:
        """Shave while that works. `min_rounds`: a lower bound on the rounds, at which to stop."""
        while sum(self.rounds) > min_rounds and self.shave(depth):
            pass

    def moves(self) -> tuple[Move, ...]:
        """Return the algorithm."""
        placed = zip(self.chunk_of, self.place, strict=True)
        return tuple(sorted((*self.names[chunk], arc.path, step) for chunk, (arc, step) in placed))  # type: ignore[misc]
