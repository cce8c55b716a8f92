# mypy: ignore-errors
"""Check that DIMACS and LRAT files of ours prove what a frontier file says of a point, from the machine alone.

Each lemma is derived again by unit propagation, as by any checker of LRAT. What these checkers take on trust is
checked, too: each clause that the proof uses is compared with four rules, which every algorithm without useless
transfers obeys:

    is_move      who sends a chunk has it; who receives it lacks it, receives it once, and has it from then on; what is
                 sent over links uses them
    is_arrival   what a rank has it had before, or it has just arrived; in the end destinations have their chunks
    is_count     counts add up; what a resource carries in a step needs rounds; the rounds of all steps are limited
    is_order     chunks that are alike can be numbered such that their sends are sorted

Example: of "chunk c crosses link 0 -> 1 in step 0" and "rank 1 has c after 1 step", the clause (not the first, or the
second) is true by `is_move`. Transfers are useless if the receiver has the chunk, or if they cannot help in time.
"""

import itertools
import json
import sys
from collections import Counter, defaultdict
from fractions import Fraction
from pathlib import Path

import antiphon

sys.path.insert(0, str(Path(antiphon.__file__).parent / "certificates"))

from check_certificate import FAR, Machine, problem_of, require


def check_refutation(file, entry, clauses, proof):
    """Check an entry of a frontier file by the files that its `refutation` names: lines of the .cnf and the .lrat."""
    topology = file["topology"]
    blocks = [(w, *({rank: Counter(ids) for rank, ids in side} for side in sides)) for w, *sides in file["blocks"]]
    if entry["about"] != "sums":
        problem, weight, direction = problem_of(blocks, entry["about"])
        kinds = [(w, [{h for hs, _ in needs for h in hs}, {rank for _, rank in needs}]) for w, needs in problem]
        if direction < 0:  # the collective backwards, on the machine with all links reversed
            topology = {**topology, "links": [[head, tail, kind] for tail, head, kind in topology["links"]]}
        kinds = [(w, *map(frozenset, sides[::direction])) for w, sides in kinds]
        parts = Fraction(entry["chunks"], weight)
        return Refutation(Machine(topology), kinds, parts, entry["steps"], entry["rounds"], clauses, proof)
    # Each input gets from its holders to the ranks that want it.
    _, pre, post = blocks[0]
    spreads = []
    for name in sorted({name for ids in post.values() for name in ids}):
        holders, goals = (frozenset(rank for rank, ids in side.items() if ids[name]) for side in (pre, post))
        spreads.append((1, holders, goals - holders))
    machine, rounds = Machine(topology), entry["sends"] - 1
    return Refutation(machine, spreads, 1, entry["steps"], rounds, clauses, proof, shared=True)


class Refutation:
    """A resolution proof that no algorithm takes these steps and rounds with this number of parts of every block.

    In the methods, `false` and `true` are the meanings of a clause's negative and positive literals: the clause claims
    that one of `false` does not hold or one of `true` does. A meaning `m` is one of

    ("have", chunk, rank, t)       the rank has the chunk, which is (block, number), after t steps
    ("send", chunk, path, step)    the chunk crosses this path of links in this step
    ("excess", n, steps)           these steps have, in all, at least n rounds beyond `min_rounds` for each
    ("load", n, variables)         at least n of these variables are true
    ("order", above, below)        no variable of `above` is true while the one beside it in `below` is false
    ("use", path, step)            some chunk crosses this path in this step

    `blocks`: per block its weight, the ranks that hold it, and those that it must reach. If `shared`, the chunks are
    inputs of a sum and cross links together, and `rounds` limits the links that are used in all steps.
    """

    def __init__(self, machine, blocks, cuts, steps, rounds, cnf, lrat, shared=False):
        as_tuple = lambda x: tuple(map(as_tuple, x)) if isinstance(x, list) else x  # noqa: E731
        named = [line.removeprefix("c variable ").split(": ", 1) for line in cnf if line.startswith("c variable ")]
        self.meanings = {int(number): as_tuple(json.loads(meaning)) for number, meaning in named}
        rows = [[int(x) for x in line.split()[:-1]] for line in cnf if line[0] not in "cp"]
        lemmas = [[int(x) for x in line.split()] for line in lrat]
        used = {hint for row in lemmas for hint in row[row.index(0) :]}
        self.machine, self.blocks, self.cuts, self.steps, self.sorted_sends = machine, blocks, cuts, steps, {}
        self.kinds = [tuple(sides) for _, *sides in blocks]
        # Per block, the least steps from its holders to every rank, and from every rank to a destination.
        into_ranks = {(x, 0): int(head in machine.ranks) for x, (_, head) in enumerate(machine.links)}
        hops = machine.sends([0] * len(machine.ranks), into_ranks)
        back = [{(head, tail): cost for (tail, head), cost in step.items()} for step in hops]
        self.steps_to = [machine.cheapest_paths(holders, hops) for holders, _ in self.kinds]
        self.steps_from = [machine.cheapest_paths(dests, back) for _, dests in self.kinds]
        distance = max(to[rank] for to, (_, dests) in zip(self.steps_to, self.kinds, strict=True) for rank in dests)
        self.min_rounds = int(distance == steps > 0)  # of a step: if that many steps are needed, none is empty
        self.spare_rounds = rounds - self.min_rounds * steps
        self.counted, self.shared, self.max_uses = "use" if shared else "send", shared, rounds
        is_whole = [x.denominator == 1 for x in machine.capacity]  # parallel links carry whole chunks as one
        alike = [(ends, machine.used_by[x][1:], is_whole[x] or -x) for x, ends in enumerate(machine.links)]
        self.capacity = list(machine.capacity)  # in chunks per round; links that are alike count as one
        self.paths_into = defaultdict(list)  # node -> the paths that lead there in one step
        for x in range(len(alike)):
            self.capacity[x] = sum(machine.capacity[y] for y, kind in enumerate(alike) if kind == alike[x])
        self.links = [(x, *ends) for x, ends in enumerate(machine.links) if alike.index(alike[x]) == x]
        for rank in machine.ranks:
            self.extend((), (rank,))
        clauses, lemma = {number: row for number, row in enumerate(rows, 1) if number in used}, None
        for clause in clauses.values():
            sides = [{self.meanings[abs(x)] for x in clause if (x > 0) == sign} for sign in (False, True)]
            rules = (self.is_move, self.is_arrival, self.is_count, self.is_order)
            require(any(rule(*sides) for rule in rules), f"the clause {clause} of a proof may be false")
        for number, *row in lemmas:  # unit propagation from the lemma's opposite must fail
            lemma, hints = row[: row.index(0)], row[row.index(0) + 1 : -1]
            true, unknown = {-x for x in lemma}, [0]
            for unknown in ([x for x in clauses[hint] if -x not in true] for hint in hints):
                require(len(unknown) < 2, f"lemma {number} of a proof does not follow")
                true.update(unknown)
            require(not unknown, f"lemma {number} of a proof does not follow")
            clauses[number] = lemma
        require(lemma == [], "a proof does not end with a contradiction")

    def extend(self, path, nodes):
        """Add to `paths_into` the paths that continue this one by a link into a rank, or through switches."""
        for x, tail, head in self.links:
            if tail == nodes[-1] and head not in nodes:
                self.paths_into[head].append((*path, x))
                if head in self.machine.switches:
                    self.extend((*path, x), (*nodes, head))

    def ends(self, path):
        return self.machine.links[path[0]][0], self.machine.links[path[-1]][1]

    def is_move(self, false, true):
        """Who sends has the chunk; who receives lacks it, receives it once, and has it from then on."""
        for kind, chunk, place, at in (m for m in false if m[0] in ("send", "have")):
            tail, head = self.ends(place) if kind == "send" else (place, place)
            same = [
                m for m in false if m[0] == "send" == kind and (m[1], self.ends(m[2])[1], m[3]) == (chunk, head, at)
            ]
            if ("have", chunk, head, at + 1) in true or (kind == "send" and ("have", chunk, tail, at) in true):
                return True
            if kind == "send" and ("use", place, at) in true:
                return True
            if len(same) > 1 or (same and ("have", chunk, head, at) in false):
                return True
        return False

    def is_arrival(self, false, true):
        """What a rank has (at the end: what it must have) it had one step before, or it has just arrived."""
        chunks = {m[1] for m in true if m[0] in ("send", "have")} or {(block, 0) for block in range(len(self.blocks))}
        ends = (
            [] if false else [("have", chunk, rank, self.steps) for chunk in chunks for rank in self.kinds[chunk[0]][1]]
        )
        for _, chunk, rank, t in [*ends, *(m for m in false if m[0] == "have")]:
            (block, number), steps_to = chunk, self.steps_to[chunk[0]]
            paths = self.paths_into[rank] if t + self.steps_from[block][rank] <= self.steps else ()
            origins = {("send", chunk, path, t - 1) for path in paths if steps_to[self.ends(path)[0]] < t}
            origins |= {("have", chunk, rank, t - 1)} if steps_to[rank] < t else set()
            if number < self.cuts * self.blocks[block][0] and rank not in self.kinds[block][0] and origins <= true:
                return True
        return False

    def is_count(self, false, true):
        """Counts add up; more chunks than a resource carries in n rounds need n + 1 rounds; all rounds are limited."""
        # `total`, `loads` and `steps` add up what is in `false`; `goal` is the only meaning in `true`, if there is one.
        total, loads, steps, goal = 0, Counter(), Counter(), next(iter(true), ("none", 0, ()))
        for m in false:
            total += {self.counted: 1, "load": m[1], "excess": m[1]}.get(m[0], -FAR)
            loads.update([m] if m[0] == self.counted else [self.meanings[x] for x in m[2]] if m[0] == "load" else [])
            steps.update(m[2] if m[0] == "excess" else [])
        if len(true) > 1 or (loads and steps) or max(steps.values(), default=0) > 1:
            return False
        if any(m[0] != self.counted for m in loads) or (self.shared and (steps or goal[0] == "excess")):
            return False
        if goal[0] == "load":
            return goal[1] <= total and loads <= Counter(self.meanings[x] for x in goal[2])
        if self.shared:  # a path of n links uses n
            return total > self.max_uses and goal[0] == "none" and all(n <= len(m[1]) for m, n in loads.items())
        if steps:
            return total > self.spare_rounds if goal[0] == "none" else goal[1] <= total and set(steps) <= set(goal[2])
        extra = goal[1] - 1 if goal[0] == "excess" else self.spare_rounds  # rounds beyond `min_rounds`
        send_steps = {send[3] for send in loads}
        uses = [Counter(x for link in send[2] for x in self.machine.used_by[link]) for send in loads]
        fits = [x for x in (uses or [()])[0] if all(n <= use[x] for n, use in zip(loads.values(), uses, strict=True))]
        in_step = len(send_steps) == 1 and goal[0] in ("none", "excess") and set(goal[2]) in (set(), send_steps)
        return in_step and any(total > (extra + self.min_rounds) * self.capacity[x] for x in fits)

    def is_order(self, false, true):
        """Chunks of blocks that are alike are sorted by their sends; "order": so far no send of the first only."""
        if self.shared:
            return False
        # The definition: an order still holds with one more pair of sends, unless only the first of these is true.
        for _, above, below in (m for m in true if m[0] == "order"):
            before = len(above) == 1 or ("order", above[:-1], below[:-1]) in false
            if before and (self.meanings[above[-1]] in true or self.meanings[below[-1]] in false):
                return True
        # The sorting: where an order holds so far, the second chunk makes the next send only if the first does, too.
        sends = [[m for m in side if m[0] == "send"] for side in (true, false)]
        for _, above, below in [m for m in false if m[0] == "order"] or [(0, (), ())]:
            for last in itertools.product(*sends):
                pairs = zip((above, below), last, strict=True)
                rows = [[*(self.meanings[x] for x in row), send] for row, send in pairs]
                (first, *first_rest), (second, *second_rest) = [sorted({m[1] for m in row}) for row in rows]
                places, kind = [[m[2:] for m in row] for row in rows], self.kinds[first[0]]
                sequence = self.sorted_sends.setdefault(kind, [])  # by which the chunks of this kind are sorted
                sequence += places[0][len(sequence) :]
                exist = second[1] < self.cuts * self.blocks[second[0]][0] and self.kinds[second[0]] == kind
                if (
                    exist
                    and first < second
                    and not first_rest + second_rest
                    and sequence[: len(places[0])] == places[0] == places[1]
                ):
                    return True
        return False
