"""Engine `sums`: find allreduces of every form with a SAT solver, from which contributions each cell holds.

A cell is one of a rank's copies (slots) of a chunk. It holds a sum of ranks' inputs (contributions); at first slot 0 of
every member holds its own, all other cells are empty. In a step cells are sent over arcs (paths from rank to rank) or
copied within a rank; what arrives replaces the cell or is added to it. In the end slot 0 of every member holds all
contributions (in a reduce or reducescatter: those that the rank wants). Two halves, trees, rings, recursive doubling,
exchanges in another order per chunk and mixtures of these are such algorithms with one slot; sending every input
everywhere takes more.

Variables per chunk:

    holds[cell, i, t]   after t steps the cell includes the input of rank i
    goes[a, p, q, s]    slot p of arc a's tail is sent to slot q of its head in step s
    fresh[cell, s]      what arrives in step s replaces the cell (else it is added)

A cell includes an input at most once: terms of a sum have no input in common. Loads and rounds are as in sat.py.

Symmetry shrinks this. Under a group H of symmetries of the machine, with a subgroup K, chunks form orbits of size |H| /
|K|. The first chunk of an orbit is sent alike under every element of K; its images under H are the others. So only arcs
and cells up to K have variables, and only loads of resources up to H are limited. That finds algorithms; it proves
nothing where there is none.

Example: recursive doubling among 4 ranks is one chunk alike under all exchanges 0-1, 2-3 and 0-2, 1-3 (|H| = |K| = 4):
one variable says that a link of the first kind is used in step 0, another that one of the second kind is in step 1.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import as_int32
from antiphon.core.ksync.instance import Instance
from antiphon.core.ksync.renaming import Naming
from antiphon.core.routes import Routes
from antiphon.core.schedule import COPY, REDUCE, Schedule, cut
from antiphon.core.transform import clean
from antiphon.planners.synth.cnf import Clauses
from antiphon.planners.synth.group import SymmetryGroup
from antiphon.planners.synth.sat import free_rounds, load_within, run_solver_in_slices
from antiphon.planners.synth.task import Effort, link_of, rounds_of

Cell = tuple[int, int]  # rank, slot
Send = tuple[int, int, tuple[int, ...], Cell, Cell, bool]  # step, chunk, bonds (none: local), from, to, whether fresh


@dataclass(frozen=True, eq=False)
class Shape:
    """The symmetry of the algorithms that are searched.

    `group`: H. `fixing`: numbers of its elements that form K. `orbits`: number of orbits of chunks. `slots`: per rank.
    """

    group: SymmetryGroup
    fixing: tuple[int, ...]
    orbits: int
    slots: int = 1

    @property
    def cosets(self) -> list[int]:
        """One element of H per chunk of an orbit: the one that maps the orbit's first chunk to it."""
        # Elements e and e * k (k in K) map the first chunk to the same one: the least of their permutations names it.
        nodes = self.group.nodes
        images = [min(nodes[element][nodes[k]].tobytes() for k in self.fixing) for element in range(len(nodes))]
        # reversed: of the elements with one image, the first is written last and stays
        return list({image: element for element, image in reversed(list(enumerate(images)))}.values())[::-1]


@dataclass(frozen=True)
class SumTarget:
    """The sums that are wanted. `inputs`: the ranks that have an input; `sources`: per rank that wants a sum, the ranks
    whose inputs it includes; `order`: the inputs in the order in which they are combined, empty if any will do."""

    inputs: tuple[int, ...]
    sources: Mapping[int, frozenset[int]]
    order: tuple[int, ...] = ()

    def is_kept_by(self, images: Sequence[int]) -> bool:
        """Return whether renumbering every node v to images[v] leaves the target as it is."""
        renumbered = {images[v]: frozenset(images[i] for i in ranks) for v, ranks in self.sources.items()}
        return renumbered == self.sources and {images[i] for i in self.inputs} == set(self.inputs)


@dataclass(frozen=True)
class Sums:
    """The result of a search: the sends, or None.

    `refuted`: none exist with this symmetry and these slots. `price`: the effort spent. `solver`: the last one tried.
    """

    sends: tuple[Send, ...] | None
    refuted: bool
    price: int
    solver: str


def solve_sums(
    instance: Instance, target: SumTarget, point: tuple[int, int], shape: Shape, effort: Effort,
    effort_left: int | None = None,
) -> Sums:  # fmt: skip
    """Search an allreduce in (steps, rounds), with as many chunks as the shape has, by one solver after the other.

    `instance`: any on the same machine, for its arcs and capacities. O(orbits * steps * arcs / |K| * inputs)
    variables with one slot.
    """
    steps, rounds = point
    encoding = SumEncoding(instance, target, steps, rounds, shape)
    spent = 0
    for solver in ("minisat", "cadical"):
        remaining = None if effort_left is None else effort_left - spent
        satisfiable, price, true_variables = run_solver_in_slices(encoding.clauses, effort, solver, remaining)
        spent += price
        if satisfiable is not None:
            break
    sends = tuple(encoding.read_sends(true_variables)) if satisfiable else None
    return Sums(sends, satisfiable is False, spent, solver)


class SumEncoding:
    """The clauses of one chunk per orbit, with the variables of its sends."""

    def __init__(self, instance: Instance, target: SumTarget, steps: int, rounds: int, shape: Shape) -> None:
        self.instance, self.target, self.steps, self.shape = instance, target, steps, shape
        self.clauses = Clauses()
        ends = zip(instance.arcs.tail.tolist(), instance.arcs.head.tolist(), strict=True)
        self.arcs: list[Cell] = list(ends)  # tail, head; after the arcs of the instance one per rank to itself
        local = [(rank, rank) for rank in range(instance.ranks)] if shape.slots > 1 else []
        group, fixing = shape.group, list(shape.fixing)
        # by element of H, the image of every arc; those from a rank to itself go where the rank goes
        images = np.hstack([group.arcs, len(self.arcs) + group.nodes[:, : len(local)]])
        self.arcs += local
        self.arc_images = images
        # of each arc, rank and pair of ranks the least image under K, which represents it
        self.first_arc = images[fixing].min(axis=0).tolist()
        ranks = group.nodes[fixing][:, : instance.ranks].astype(np.int64)
        self.first_rank = ranks.min(axis=0).tolist()
        pairs = ranks[:, :, None] * instance.ranks + ranks[:, None, :]  # (rank of the cell, contributor)
        self.first_pair = pairs.min(axis=0).tolist()
        # the variables: (orbit, arc, slot that is sent, slot that is written, step), and (orbit, rank, slot, step)
        self.goes: dict[tuple[int, int, int, int, int], int] = {}
        self.fresh: dict[tuple[int, int, int, int], int] = {}
        self.arriving: dict[int, list[int]] = defaultdict(list)  # rank -> arcs
        for arc, (_, head) in enumerate(self.arcs):
            self.arriving[head].append(arc)
        self.true = self.clauses.new_variable()  # a literal that is always true, to write constants with
        self.clauses.rows.append([self.true])
        for orbit in range(shape.orbits):
            self._encode_chunk(orbit)
        self._limit_loads(rounds)

    def _encode_chunk(self, orbit: int) -> None:
        """Add the chunk: its cells at first, then step by step, and what they hold in the end."""
        ranks, slots, out = self.instance.ranks, range(self.shape.slots), self.clauses
        holds = {
            (self.first_pair[v][i], q): self.true if v == i and not q else -self.true
            for v in range(ranks) for i in self.target.inputs for q in slots
        }  # fmt: skip
        spans = holds  # what a cell includes, and what lies between two of these in the order
        for step in range(self.steps):
            for arc in sorted(set(self.first_arc)):
                for p, q in itertools.product(slots, slots):
                    tail, head = self.arcs[arc]
                    if (tail, p) == (head, q):  # no cell is sent to itself
                        continue
                    self.goes[orbit, arc, p, q, step] = out.new_variable()
            after: dict[tuple[int, int], int] = {}
            for v in sorted(set(self.first_rank)):
                for q in slots:
                    self._encode_cell(orbit, v, q, step, holds, after)
                    self._keep_order(orbit, (v, q), step, holds, spans)
            holds, spans = after, self._encode_spans(after)
        for rank, included_ranks in sorted(self.target.sources.items()):
            for source in self.target.inputs:
                included = holds[self.first_pair[rank][source], 0]
                out.rows.append([included if source in included_ranks else -included])

    def _encode_cell(
        self, orbit: int, v: int, q: int, step: int, holds: dict[tuple[int, int], int],
        after: dict[tuple[int, int], int],
    ) -> None:  # fmt: skip
        """Add what the cell (v, q) includes after the step, by contribution.

        `holds`, `after`: (number of rank and contributor, as in `first_pair`; slot) -> the literal that the cell
        includes this input before, and after the step.
        """
        out = self.clauses
        arrivals = self._list_arrivals(orbit, (v, q), step)
        fresh = self.fresh[orbit, v, q, step] = out.new_variable()
        # A replacement comes from one sender at least, and from no two. Arcs alike under K share a variable and are
        # used together, so that two arcs with one variable rule out the replacement.
        out.rows.append([-fresh, *dict.fromkeys(goes for goes, _, _ in arrivals)])
        out.rows += [[-fresh, *{-a, -b}] for (a, _, _), (b, _, _) in itertools.combinations(arrivals, 2)]
        for i in self.target.inputs:
            pair = self.first_pair[v][i]
            if (pair, q) in after:  # K maps this input to one that was encoded already
                continue
            terms = [self._add_conjunction(goes, holds[self.first_pair[u][i], p]) for goes, u, p in arrivals]
            terms.append(self._add_conjunction(-fresh, holds[pair, q]))
            terms = [term for term in terms if term != -self.true]
            # no input may be added twice
            out.rows += [sorted({-a, -b}) for a, b in itertools.combinations(terms, 2)]
            if len(terms) < 2:
                after[pair, q] = terms[0] if terms else -self.true
                continue
            included = after[pair, q] = out.new_variable()
            out.rows.append([-included, *terms])
            out.rows += [[-term, included] for term in terms]
        for goes, u, p in arrivals:  # an empty cell cannot be sent; slot 0 of a rank with an input is never empty
            contents = {holds[self.first_pair[u][i], p] for i in self.target.inputs} - {-self.true}
            if self.true not in contents and (p or u not in self.target.inputs):
                out.rows.append([-goes, *sorted(contents)])

    def _list_arrivals(self, orbit: int, cell: Cell, step: int) -> list[tuple[int, int, int]]:
        """Return what may arrive at a cell: the variable that it does, the sender, and the sender's slot."""
        v, q = cell
        arrivals: list[tuple[int, int, int]] = []
        for arc, p in itertools.product(self.arriving[v], range(self.shape.slots)):
            goes = self.goes.get((orbit, self.first_arc[arc], p, q, step))
            if goes is not None:
                arrivals.append((goes, self.arcs[arc][0], p))
        return arrivals

    def _keep_order(
        self, orbit: int, cell: Cell, step: int, holds: Mapping[tuple[int, int], int],
        spans: Mapping[tuple[int, int], int],
    ) -> None:  # fmt: skip
        """Require of ordered inputs that of two operands of a cell none has an input within the span of the other."""
        operands = [(-self.fresh[orbit, *cell, step], *cell), *self._list_arrivals(orbit, cell, step)]
        for (a, u, p), (b, v, q) in itertools.permutations(operands, 2):
            for i in self.target.order:
                included, spanned = holds[self.first_pair[u][i], p], spans[self.first_pair[v][i], q]
                if -self.true not in (included, spanned):
                    self.clauses.rows.append([-a, -b, *sorted({-included, -spanned} - {-self.true})])

    def _encode_spans(self, holds: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], int]:
        """Return, like `holds`, literals that are true for inputs that a cell includes, and for those between two."""
        out, order, spans = self.clauses, self.target.order, dict[tuple[int, int], int]()
        for v, q in itertools.product(range(self.instance.ranks), range(self.shape.slots if order else 0)):
            keys = [(self.first_pair[v][i], q) for i in order]
            # per input, whether the cell includes it or an earlier one; it or a later one
            starts, ends = ([out.new_variable() for _ in keys] for _ in range(2))
            for key, start, end in zip(keys, starts, ends, strict=True):
                spans[key] = out.new_variable()
                out.rows += [[-holds[key], start], [-holds[key], end], [-start, -end, spans[key]]]
            out.rows += [[-a, b] for chain in (starts, ends[::-1]) for a, b in itertools.pairwise(chain)]
        return spans

    def _add_conjunction(self, a: int, b: int) -> int:
        """Return a literal equivalent to `a and b`."""
        if b == -self.true:
            return b
        if b == self.true:
            return a
        out = self.clauses
        conjunction = out.new_variable()
        out.rows += [[-conjunction, a], [-conjunction, b], [conjunction, -a, -b]]
        return conjunction

    def _limit_loads(self, rounds: int) -> None:
        """Limit what all chunks load, on one resource per orbit of H, to what its rounds carry."""
        instance, group, steps = self.instance, self.shape.group, self.steps
        max_rounds = rounds - steps + 1  # every step has one round; variables distribute the other rounds - steps
        # by step, the variables that say whether it has 2 rounds or more, 3 or more, ...
        extra_rounds = free_rounds(self.clauses, [max_rounds] * steps, rounds)
        arcs_of: dict[int, list[int]] = defaultdict(list)
        for arc, resource in zip(*(column.tolist() for column in instance.arcs.load), strict=True):
            arcs_of[resource].append(arc)
        slots, orbits = range(self.shape.slots), range(self.shape.orbits)
        # chunk e of an orbit uses an arc iff the first chunk uses the arc's preimage under e
        preimages = [np.argsort(self.arc_images[element]) for element in self.shape.cosets]
        for resource in sorted(set(group.resources.min(axis=0).tolist())):
            arcs = [self.first_arc[preimage[arc]] for preimage in preimages for arc in arcs_of[resource]]
            for step in range(steps):
                literals = [self.goes[o, arc, p, q, step] for o in orbits for arc in arcs for p in slots for q in slots]
                load_within(self.clauses, sorted(literals), instance.capacity[resource], extra_rounds[step], max_rounds)

    def read_sends(self, true_variables: set[int]) -> list[Send]:
        """Return the sends of all chunks, sorted by step."""
        cosets, paths, nodes = self.shape.cosets, self.instance.arcs.paths, self.shape.group.nodes
        sends: list[Send] = []
        for arc, (tail, head) in enumerate(self.arcs):
            for (orbit, first, p, q, step), goes in self.goes.items():
                if first != self.first_arc[arc] or goes not in true_variables:
                    continue
                fresh = self.fresh[orbit, self.first_rank[head], q, step] in true_variables
                for position, element in enumerate(cosets):
                    image = int(self.arc_images[element, arc])
                    path = paths[image] if image < len(paths) else ()
                    source, target = (int(nodes[element, tail]), p), (int(nodes[element, head]), q)
                    sends.append((step, orbit * len(cosets) + position, path, source, target, fresh))
        return sorted(sends)


def rename_sends(sends: Iterable[Send], naming: Naming) -> list[Send]:
    """Return the sends in other numbers of nodes and bonds."""
    nodes = naming.nodes.tolist()
    return sorted(
        (step, chunk, naming.path(path), (nodes[sender], sender_slot), (nodes[receiver], receiver_slot), fresh)
        for step, chunk, path, (sender, sender_slot), (receiver, receiver_slot), fresh in sends
    )


def schedule_of_sends(instance: Instance, collective: Collective, chunks: int, sends: list[Send]) -> Schedule:
    """Build the schedule with parallel links filled in turn; `clean` drops transfers that nothing depends on."""
    used: dict[tuple[int, int], int] = defaultdict(int)  # (step, bond): chunks of it that have a link
    route_numbers: dict[tuple[int, ...], int] = {}
    rounds = rounds_of(instance, [(0, chunk, path, step) for step, chunk, path, *_ in sends])  # it reads no kind: 0
    rows = []
    for step, chunk, path, (sender, sender_slot), (receiver, receiver_slot), fresh in sends:
        links = []
        for bond in path:
            links.append(link_of(instance, bond, used[step, bond], rounds[step]))
            used[step, bond] += 1
        route = route_numbers.setdefault(tuple(links), len(route_numbers)) if links else -1
        op = COPY if fresh else REDUCE
        rows.append((step, chunk, sender, receiver, op, route, sender_slot, receiver_slot))
    table = np.array(rows, np.int64).reshape(-1, 8)
    steps, numbers, senders, receivers, ops, routes, *slots = (as_int32(table[:, i]) for i in range(8))
    src_slot, dst_slot = slots if any(column.any() for column in slots) else (None, None)
    return clean(Schedule(
        collective, cut(collective, chunks), steps, numbers, senders, receivers, ops.astype(np.uint8), route=routes,
        routes=Routes.of(route_numbers), src_slot=src_slot, dst_slot=dst_slot,
    ))  # fmt: skip
