"""From the lemmas a SAT solver leaves behind (DRUP) to chains of resolutions that a plain checker can follow.

Backwards from the contradiction, every lemma that is needed is shown by unit propagation, with clauses already in
use first (core first, Heule, Hunt and Wetzler 2013), so that few are needed; the clauses that took part, resolved
in turn, are its chain. Two watched literals per clause. A chain may give less than the lemma, which is stronger: a last
pass forwards resolves them anew, drops what no longer clashes, and then the lemmas that nothing needs any more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

Chain = list[int]
Record = list[int]  # [number, literal, literal, ...]: the first two literals are watched


class Propagation:
    """Clauses under unit propagation. Literals index lists directly: -x is x-th from the end."""

    def __init__(self, variables: int) -> None:
        size = 2 * variables + 1
        self.value = [0] * size  # 1 true, -1 false
        self.reason: list[Record | None] = [None] * (variables + 1)
        self.trail: list[int] = []
        self.heads = [0, 0]
        self.watch: list[list[list[Record]]] = [[[] for _ in range(size)] for _ in range(2)]  # in use, others

    def assign(self, literal: int, reason: Record | None) -> None:
        self.value[literal], self.value[-literal] = 1, -1
        self.reason[abs(literal)] = reason
        self.trail.append(literal)

    def undo(self, length: int, heads: int) -> None:
        for literal in self.trail[length:]:
            self.value[literal] = self.value[-literal] = 0
        del self.trail[length:]
        self.heads = [heads, heads]

    def attach(self, record: Record, used: bool) -> Record | None:
        """Watch two literals that are not false, if there are two; assign one that is alone; a conflict if none."""
        value = self.value
        record[1:] = sorted(record[1:], key=lambda x: -value[x])
        if len(record) > 2:
            for literal in record[1:3]:
                self.watch[0 if used else 1][literal].append(record)
        if len(record) == 1 or value[record[1]] < 0:
            return record
        if value[record[1]] == 0 and (len(record) == 2 or value[record[2]] < 0):
            self.assign(record[1], record)
        return None

    def detach(self, record: Record, used: bool) -> None:
        if len(record) > 2:
            for literal in record[1:3]:
                self.watch[0 if used else 1][literal].remove(record)

    def propagate(self) -> Record | None:
        """All that follows, clauses in use first. Returns a clause that is false, if one turns up."""
        trail, heads = self.trail, self.heads
        while True:
            level = 0 if heads[0] < len(trail) else 1
            if heads[level] >= len(trail):
                return None
            conflict = self._visit(self.watch[level], -trail[heads[level]])
            if conflict is not None:
                return conflict
            heads[level] += 1

    def _visit(self, watch: list[list[Record]], false: int) -> Record | None:
        value, still_watching = self.value, list[Record]()
        watching = watch[false]
        for place, record in enumerate(watching):
            other = record[1]
            if other == false:
                other = record[1] = record[2]
                record[2] = false
            if value[other] > 0:
                still_watching.append(record)
                continue
            for k in range(3, len(record)):
                literal = record[k]
                if value[literal] >= 0:
                    record[2], record[k] = literal, false
                    watch[literal].append(record)
                    break
            else:
                still_watching.append(record)
                if value[other] < 0:
                    watch[false] = still_watching + watching[place + 1 :]
                    return record
                self.assign(other, record)
        watch[false] = still_watching
        return None

    def chain(self, conflict: Record) -> Chain:
        """The clauses that led to this conflict, from the last back: resolved in turn, they clash once each."""
        chain = [conflict[0]]
        waiting = {abs(x) for x in conflict[1:]}
        for literal in reversed(self.trail):
            if not waiting:
                break
            variable = abs(literal)
            if variable in waiting:
                waiting.discard(variable)
                reason = self.reason[variable]
                if reason is not None:
                    chain.append(reason[0])
                    waiting.update(abs(x) for x in reason[1:] if x != literal)
        return chain


class Elaboration:
    """Clauses by number, the formula's first; `steps` of the proof in order: a number, ~number where it is deleted."""

    def __init__(self, clauses: Sequence[Sequence[int]], variables: int) -> None:
        self.state = Propagation(variables)
        self.records: list[Record] = []
        self.steps: list[int] = []
        self.given = len(clauses)
        self.used: list[bool] = []
        self.alive: dict[tuple[int, ...], list[int]] = defaultdict(list)
        self.conflict: Record | None = None
        for clause in clauses:
            self._add(dict.fromkeys(clause))

    def _add(self, literals: Iterable[int]) -> None:
        record = [len(self.records), *literals]
        self.records.append(record)
        self.used.append(False)
        if self.conflict is None:
            self.alive[tuple(sorted(record[1:]))].append(record[0])
            self.conflict = self.state.attach(record, False) or self.state.propagate()

    def forward(self, lines: Iterable[str]) -> bool:
        """Take the proof in, up to where propagation alone gives the contradiction; False where it never does."""
        for line in lines:
            if self.conflict is not None:
                return True
            words = line.split()
            deleting = words[0] == "d"
            literals = [int(word) for word in words[deleting:-1]]
            if not deleting:
                self.steps.append(len(self.records))
                self._add(literals)
            else:
                self._delete(literals)
        return self.conflict is not None

    def _delete(self, literals: list[int]) -> None:
        numbers = self.alive.get(tuple(sorted(literals)))
        if not numbers:
            return
        record = self.records[numbers[-1]]
        if len(record) == 2 or any(self.state.reason[abs(x)] is record and self.state.value[x] for x in record[1:]):
            return  # it holds up what is assigned: the solver has that as a unit, so it costs nothing to keep it
        numbers.pop()
        self.state.detach(record, False)
        self.steps.append(~record[0])

    def chains(self) -> list[Chain]:
        """Chains of numbers: the clauses come first, every chain adds one; the last gives the contradiction."""
        return _trimmed(self, self.backward())

    def backward(self) -> list[tuple[int, Chain]]:
        """(number, chain) of every lemma needed, in order; the last is the contradiction."""
        if self.conflict is None:
            raise RuntimeError("the proof does not reach a contradiction")
        lemmas = [(len(self.records), self._use(self.state.chain(self.conflict)))]
        for step in reversed(self.steps):
            if step < 0:
                self.state.attach(self.records[~step], self.used[~step])
                continue
            self._remove(self.records[step])
            if self.used[step]:
                lemmas.append((step, self._use(self._show(self.records[step]))))
        return lemmas[::-1]

    def _remove(self, record: Record) -> None:
        state = self.state
        state.detach(record, self.used[record[0]])
        holds = [x for x in record[1:] if state.value[x] > 0 and state.reason[abs(x)] is record]
        if holds:
            state.undo(state.trail.index(holds[0]), 0)  # watches may have relied on what is undone: visit all again
        if state.propagate() is not None:
            raise RuntimeError("the proof contradicts itself before its end")

    def _show(self, record: Record) -> Chain:
        """Assume that a lemma is false, and propagate."""
        state = self.state
        root = len(state.trail)
        conflict: Record | None = None
        for literal in record[1:]:
            if state.value[literal] > 0:
                conflict = state.reason[abs(literal)]
                break
            if state.value[literal] == 0:
                state.assign(-literal, None)
        if conflict is None:
            conflict = state.propagate()
        if conflict is None:
            raise RuntimeError(f"a lemma of the proof does not follow by unit propagation: {record[1:]}")
        chain = state.chain(conflict)
        state.undo(root, root)
        return chain

    def _use(self, chain: Chain) -> Chain:
        for number in chain:
            if not self.used[number]:
                record = self.records[number]
                self.state.detach(record, False)
                self.used[number] = True
                if len(record) > 2:
                    for literal in record[1:3]:
                        self.state.watch[0][literal].append(record)
        return chain


def _trimmed(work: Elaboration, steps: Sequence[tuple[int, Chain]]) -> list[Chain]:
    """Resolve forwards what is needed, each lemma as strong as it comes; keep what the last needs, numbered anew."""
    literals: dict[int, frozenset[int]] = {}
    chains: dict[int, Chain] = {}

    def clause(number: int) -> frozenset[int]:
        if number not in literals:
            literals[number] = frozenset(work.records[number][1:])
        return literals[number]

    for number, chain in steps:
        goal = work.records[number][1:] if number < len(work.records) else []
        chains[number], literals[number] = _resolved(goal, [(n, clause(n)) for n in reversed(chain)])
        if not literals[number]:
            break
    needed = {max(chains)}
    for number in sorted(chains, reverse=True):
        if number in needed:
            needed.update(chains[number])
    new = {number: work.given + i for i, number in enumerate(n for n in chains if n in needed)}
    return [[new.get(x, x) for x in chains[number]] for number in new]


def _resolved(goal: Iterable[int], hints: Iterable[tuple[int, frozenset[int]]]) -> tuple[Chain, frozenset[int]]:
    """Propagate from the negated goal, in the order of the hints; the chain that this takes, and what it proves."""
    true = {-x for x in goal}
    reasons: list[tuple[int, int, frozenset[int]]] = []
    for number, literals in hints:
        open_literals = [x for x in literals if -x not in true]
        if not open_literals:
            break
        if open_literals[0] not in true:
            true.add(open_literals[0])
            reasons.append((open_literals[0], number, literals))
    else:
        raise RuntimeError("a chain of the proof leads to no contradiction")
    now, used = set(literals), [number]
    for pivot, number, reason_literals in reversed(reasons):
        if -pivot in now:
            now.remove(-pivot)
            now.update(x for x in reason_literals if x != pivot)
            used.append(number)
    return used, frozenset(now)
