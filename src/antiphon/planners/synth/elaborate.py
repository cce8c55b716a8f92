"""Turn a SAT solver's proof of unsatisfiability (in the format DRUP) into resolution chains that are simple to check.

A clause is a list of literals (x, or -x for "not x") where one must be true. A DRUP proof lists the clauses that the
solver learned (lemmas); each must follow by unit propagation from the clauses before it: assume its negation, derive
every literal that a clause then forces, and reach a conflict. Checking that needs an efficient propagator. A resolution
chain needs none: it names the clauses to combine, in order, where (A or x) and (B or -x) give (A or B). Three passes:

    read_proof        forwards: add lemmas (and deletions) until propagation alone gives the contradiction
    prove_backwards   from the contradiction back: remove each lemma and, if something needs it, derive it by
                      propagation; the clauses that took part are its chain. Clauses that some chain uses already are
                      propagated first ("core first", Heule, Hunt and Wetzler 2013), so fewer lemmas are needed
    _trim_chains      forwards again: resolve each chain; it may prove a stronger clause than the lemma, so later
                      chains drop clauses that no longer have a literal to resolve on, and unneeded lemmas disappear

Example: from (x or y), (x or -y), the lemma (x): assume -x, the first clause gives y, the second is false. Its chain is
[second, first]: resolving them on y yields (x).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

Chain = list[int]  # numbers of the clauses to resolve, in order
Record = list[int]  # [number, literal, literal, ...]: the first two literals are watched


class Propagation:
    """Unit propagation with two watched literals per clause.

    A clause can only force a literal or fail once one of its two watched literals is false, so only then is it visited.
    The trail lists the assigned literals in order; `heads` are the positions up to which it was propagated, for clauses
    in use (that some chain needs) and for other clauses. Literals index lists directly: -x is the x-th entry from the
    end.
    """

    def __init__(self, variables: int) -> None:
        size = 2 * variables + 1
        self.value = [0] * size  # 1 true, -1 false
        self.reason: list[Record | None] = [None] * (variables + 1)  # the clause that forced a variable
        self.trail: list[int] = []
        self.heads = [0, 0]
        # [0 for clauses in use, 1 for others][literal]: the clauses that watch it
        self.watch: list[list[list[Record]]] = [[[] for _ in range(size)] for _ in range(2)]  # size: x and -x

    def assign(self, literal: int, reason: Record | None) -> None:
        """Make a literal true. `reason`: the clause that forces it; None: it is assumed."""
        self.value[literal], self.value[-literal] = 1, -1
        self.reason[abs(literal)] = reason
        self.trail.append(literal)

    def undo(self, length: int, heads: int) -> None:
        """Unassign everything after the first `length` literals of the trail, and propagate again from position
        `heads` of it.
        """
        for literal in self.trail[length:]:
            self.value[literal] = self.value[-literal] = 0
        del self.trail[length:]
        self.heads = [heads, heads]

    def attach(self, record: Record, used: bool) -> Record | None:
        """Watch two literals that are not false. If there is only one, assign it; if none, return the clause
        (conflict). A clause of one literal is not watched: it forces the literal now.

        `used`: whether some chain needs the clause.
        """
        # true literals first, then unassigned ones, then false ones
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
        """Propagate everything, clauses in use first. Returns a false clause if one occurs."""
        trail, heads = self.trail, self.heads
        while True:
            # level 0: clauses in use; level 1 only once nothing more follows from those
            level = 0 if heads[0] < len(trail) else 1
            if heads[level] >= len(trail):
                return None
            conflict = self._visit_watches(self.watch[level], -trail[heads[level]])
            if conflict is not None:
                return conflict
            heads[level] += 1

    def _visit_watches(self, watch: list[list[Record]], false_literal: int) -> Record | None:
        """Visit the clauses that watch a literal that became false; return one that is violated, or None."""
        value, still_watching = self.value, list[Record]()
        watching = watch[false_literal]
        for place, record in enumerate(watching):
            other = record[1]
            if other == false_literal:  # let the false one be the second of the two watched
                other = record[1] = record[2]
                record[2] = false_literal
            if value[other] > 0:
                still_watching.append(record)
                continue
            for k in range(3, len(record)):
                literal = record[k]
                # a replacement that is not false takes over the watch
                if value[literal] >= 0:
                    record[2], record[k] = literal, false_literal
                    watch[literal].append(record)
                    break
            else:
                still_watching.append(record)
                # no replacement: the other watched literal is implied, or the clause is violated
                if value[other] < 0:
                    watch[false_literal] = still_watching + watching[place + 1 :]
                    return record
                self.assign(other, record)
        watch[false_literal] = still_watching
        return None

    def collect_chain(self, conflict: Record) -> Chain:
        """Return the clauses that led to this conflict, the last first: each resolves with the result so far."""
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
    """The three passes over one proof.

    `records`: clauses by number, first those of the formula (`formula_clauses` of them), then lemmas. `steps`: the
    proof in order: n adds lemma n, ~n deletes clause n. `used`: whether a chain needs the clause. `alive`: numbers of
    the clauses with these literals that are not deleted.
    """

    def __init__(self, clauses: Sequence[Sequence[int]], variables: int) -> None:
        self.state = Propagation(variables)
        self.records: list[Record] = []
        self.steps: list[int] = []
        self.formula_clauses = len(clauses)
        self.used: list[bool] = []
        self.alive: dict[tuple[int, ...], list[int]] = defaultdict(list)
        self.conflict: Record | None = None
        for clause in clauses:
            self._add_clause(dict.fromkeys(clause))

    def _add_clause(self, literals: Iterable[int]) -> None:
        """Add a clause and propagate; after a conflict only record it, so that clauses keep their numbers."""
        record = [len(self.records), *literals]
        self.records.append(record)
        self.used.append(False)
        if self.conflict is None:
            self.alive[tuple(sorted(record[1:]))].append(record[0])
            self.conflict = self.state.attach(record, used=False) or self.state.propagate()

    def read_proof(self, lines: Iterable[str]) -> bool:
        """Add the lines of a DRUP proof until propagation alone gives a contradiction; return whether it does."""
        for line in lines:
            if self.conflict is not None:
                return True
            words = line.split()
            is_deletion = words[0] == "d"
            literals = [int(word) for word in words[1 if is_deletion else 0 : -1]]  # lines end in 0
            if not is_deletion:
                self.steps.append(len(self.records))
                self._add_clause(literals)
            else:
                self._delete_clause(literals)
        return self.conflict is not None

    def _delete_clause(self, literals: list[int]) -> None:
        """Delete a clause, unless an assignment depends on it."""
        numbers = self.alive.get(tuple(sorted(literals)))
        if not numbers:
            return
        record = self.records[numbers[-1]]
        if len(record) == 2 or any(self.state.reason[abs(x)] is record and self.state.value[x] for x in record[1:]):
            return  # it is the reason of an assignment, which the solver keeps as a unit clause
        numbers.pop()
        self.state.detach(record, used=False)
        self.steps.append(~record[0])

    def build_chains(self) -> list[Chain]:
        """Return the chains. Their numbers count the clauses first, then one lemma per chain; the last is the
        contradiction.
        """
        return _trim_chains(self, self.prove_backwards())

    def prove_backwards(self) -> list[tuple[int, Chain]]:
        """Return (number, chain) of every needed lemma in order; the last is the contradiction."""
        if self.conflict is None:
            raise RuntimeError("the proof does not reach a contradiction")
        lemmas = [(len(self.records), self._mark_used(self.state.collect_chain(self.conflict)))]
        for step in reversed(self.steps):
            if step < 0:  # backwards, a deleted clause comes back
                # No conflict, and nothing new is forced: all that is true now was true before the deletion, too.
                self.state.attach(self.records[~step], self.used[~step])
                continue
            self._remove_lemma(self.records[step])
            if self.used[step]:
                lemmas.append((step, self._mark_used(self._derive_lemma(self.records[step]))))
        return lemmas[::-1]

    def _remove_lemma(self, record: Record) -> None:
        """Remove a lemma, undo the assignments that it forced, and derive those again that other clauses force."""
        state = self.state
        state.detach(record, self.used[record[0]])
        forced = [x for x in record[1:] if state.value[x] > 0 and state.reason[abs(x)] is record]
        if forced:
            state.undo(state.trail.index(forced[0]), heads=0)  # watches may rely on what is undone: visit all again
        if state.propagate() is not None:
            raise RuntimeError("the proof contradicts itself before its end")

    def _derive_lemma(self, record: Record) -> Chain:
        """Assume the negation of a lemma, propagate, and return the chain of the conflict."""
        state = self.state
        root = len(state.trail)
        conflict: Record | None = None
        for literal in record[1:]:
            if state.value[literal] > 0:
                # Other clauses force the literal, against the assumption: its reason is the conflict. The chain lists
                # it twice, as the reason of a literal on the trail, too; `_resolve_hints` ends at the first.
                conflict = state.reason[abs(literal)]
                break
            if state.value[literal] == 0:
                state.assign(-literal, None)
        if conflict is None:
            conflict = state.propagate()
        if conflict is None:
            raise RuntimeError(f"a lemma of the proof does not follow by unit propagation: {record[1:]}")
        chain = state.collect_chain(conflict)
        state.undo(root, root)
        return chain

    def _mark_used(self, chain: Chain) -> Chain:
        """Move a chain's clauses to the watches that are propagated first."""
        for number in chain:
            if not self.used[number]:
                record = self.records[number]
                self.state.detach(record, used=False)
                self.used[number] = True
                if len(record) > 2:
                    for literal in record[1:3]:
                        self.state.watch[0][literal].append(record)
        return chain


def _trim_chains(elaboration: Elaboration, steps: Sequence[tuple[int, Chain]]) -> list[Chain]:
    """Resolve each needed lemma in order, which may prove a stronger clause than the lemma.

    Return the chains that the last one depends on, renumbered.
    """
    literals: dict[int, frozenset[int]] = {}
    chains: dict[int, Chain] = {}

    def clause(number: int) -> frozenset[int]:
        if number not in literals:
            literals[number] = frozenset(elaboration.records[number][1:])
        return literals[number]

    for number, chain in steps:
        # the contradiction has the number after all records, and no literals
        goal = elaboration.records[number][1:] if number < len(elaboration.records) else []
        chains[number], literals[number] = _resolve_hints(goal, [(n, clause(n)) for n in reversed(chain)])
        if not literals[number]:  # an earlier lemma turned out to be the contradiction
            break
    needed = {max(chains)}
    for number in sorted(chains, reverse=True):
        if number in needed:
            needed.update(chains[number])
    new_number = {number: elaboration.formula_clauses + i for i, number in enumerate(n for n in chains if n in needed)}
    return [[new_number.get(x, x) for x in chains[number]] for number in new_number]


def _resolve_hints(goal: Iterable[int], hints: Iterable[tuple[int, frozenset[int]]]) -> tuple[Chain, frozenset[int]]:
    """Propagate from the negated goal in the order of the hints (number, clause); return the chain that was needed and
    the clause that it proves, a subset of the goal.
    """
    true = {-x for x in goal}
    reasons: list[tuple[int, int, frozenset[int]]] = []  # literal that was forced, clause that forced it
    for number, literals in hints:
        # In this order all literals of a clause but one are false, as they were in `collect_chain`.
        open_literals = [x for x in literals if -x not in true]
        if not open_literals:  # the conflict: the chain starts from this clause
            break
        if open_literals[0] not in true:
            true.add(open_literals[0])
            reasons.append((open_literals[0], number, literals))
    else:
        raise RuntimeError("a chain of the proof leads to no contradiction")
    resolvent, used = set(literals), [number]
    for pivot, number, reason_literals in reversed(reasons):
        if -pivot in resolvent:
            resolvent.remove(-pivot)
            resolvent.update(x for x in reason_literals if x != pivot)
            used.append(number)
    return used, frozenset(resolvent)
