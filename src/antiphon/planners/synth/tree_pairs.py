"""Engine `tree pairs`: find allreduces in which each chunk goes up one tree and down another, with a SAT solver.

On n ranks a chunk is sent 2 (n - 1) times at least. If it is sent no more often, n - 1 sends lead up a tree to some
rank, its root, and n - 1 down a tree from it. Every rank but the root sends up once, after everything that comes up to
it. It receives from above once, after its parent has the sum. In one step, though, the root may exchange what it has
with the last rank that sends to it. Where all links are full, every chunk is like this; two trees take far fewer
variables than the inputs in each partial sum (sums.py). Per chunk:

    up[a, s], down[a, s]   it crosses arc a in step s
    swap[a, s]             it goes down arc a in step s, while it comes up the opposite arc: an exchange
    root[v]                rank v is the root
    sent[v, s]             v has sent up by the end of step s
    has[v, s]              v has the sum by then: as the root, or received from above

Symmetry shrinks this. Images of a chunk under symmetries of the machine are chunks, too, and so are images that run
backwards: what came down goes up. A set of images need be no group: the loads of all of them are counted.

Example: on a ring of 3 in 3 steps, 0 sends to 2, then 1 and 2 exchange what they have, then 2 sends the sum to 0. The
image that runs backwards is the same algorithm; under the rotation by one, 1 sends to 0, 2 and 0 exchange.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from antiphon.core.ksync.instance import Instance
from antiphon.planners.synth.cnf import Clauses
from antiphon.planners.synth.group import SymmetryGroup
from antiphon.planners.synth.sat import free_rounds, load_within, run_solver_in_slices
from antiphon.planners.synth.sums import Send, Sums
from antiphon.planners.synth.task import Effort

Arrow = tuple[int, int]  # arc, step


@dataclass(frozen=True)
class Image:
    """A copy of a chunk's algorithm: over arc arcs[a] instead of arc a.

    `backwards`: in the opposite order of steps, up for down.
    """

    arcs: tuple[int, ...]
    backwards: bool


def list_images(
    instance: Instance, group: SymmetryGroup, subgroups: Sequence[Sequence[int]]
) -> list[tuple[Image, ...]]:
    """Return sets of images to try: the images by a subgroup; these and the same backwards; the identity and one
    backwards."""
    # by bond; capacities of limits follow those of bonds and are left out
    ends = list(zip(instance.tail.tolist(), instance.head.tolist(), instance.capacity, strict=False))
    bond_number = {end: bond for bond, end in enumerate(ends)}
    arc_number = {path: arc for arc, path in enumerate(instance.arcs.paths)}
    opposite_bond = [bond_number.get((head, tail, capacity), -1) for tail, head, capacity in ends]
    opposite_paths = [tuple(opposite_bond[bond] for bond in reversed(path)) for path in instance.arcs.paths]
    turned = [arc_number.get(path, -1) for path in opposite_paths]  # per arc the opposite one; -1: there is none
    sets: dict[tuple[Image, ...], None] = {}
    for subgroup in subgroups:
        rows = [group.arcs[element].tolist() for element in sorted(subgroup)]
        forwards = tuple(Image(tuple(row), backwards=False) for row in rows)
        sets.setdefault(forwards)
        if min(turned) >= 0:  # element 0 is the identity; a pair joins it with some element run backwards
            backwards = tuple(Image(tuple(turned[arc] for arc in row), backwards=True) for row in rows)
            sets.setdefault(forwards + backwards)
            sets.setdefault((forwards[0], backwards[-1]))
    return list(sets)


def solve_tree_pairs(
    instance: Instance, point: tuple[int, int, int], images: Sequence[Image], effort: Effort,
    effort_left: int | None = None,
) -> Sums:  # fmt: skip
    """Search an allreduce of all ranks with these chunks, steps and rounds.

    The chunks that do not fill a set of images have none but themselves. O(chunks / images * steps * arcs) variables.
    """
    encoding = TreePairEncoding(instance, point, images)
    satisfiable, price, true = run_solver_in_slices(encoding.clauses, effort, "cadical", effort_left)
    return Sums(tuple(encoding.read_sends(true)) if satisfiable else None, satisfiable is False, price, "cadical")


class TreePairEncoding:
    """The clauses; and for every chunk that has variables those of its sends (`up`, `down`, `swap`), and its images."""

    def __init__(self, instance: Instance, point: tuple[int, int, int], images: Sequence[Image]) -> None:
        chunks, self.steps, rounds = point
        self.instance, self.clauses = instance, Clauses()
        self.arcs = list(zip(instance.arcs.tail.tolist(), instance.arcs.head.tolist(), strict=True))
        self.chunks: list[tuple[dict[Arrow, int], dict[Arrow, int], dict[Arrow, int], Sequence[Image]]] = []
        # full sets of images, then single chunks, which have the first image alone (the identity)
        sets, single = divmod(chunks, len(images))
        for number in range(sets + single):
            self.chunks.append((*self._encode_chunk(), images if number < sets else images[:1]))
        self._limit_loads(rounds)

    def _encode_chunk(self) -> tuple[dict[Arrow, int], dict[Arrow, int], dict[Arrow, int]]:
        """Add a chunk; return the variables of its sends."""
        out, ranks, arrows = self.clauses, range(self.instance.ranks), range(len(self.arcs) * self.steps)
        keys = [divmod(x, self.steps) for x in arrows]
        up, down, swap = ({key: out.new_variable() for key in keys} for _ in range(3))
        root = [out.new_variable() for _ in ranks]
        sent, has = ({(v, s): out.new_variable() for v in ranks for s in range(self.steps)} for _ in range(2))
        self._require_one(root)
        for v in ranks:  # every rank is the root, or sends up once and receives from above once
            self._require_one([root[v], *(up[a, s] for a, s in keys if self.arcs[a][0] == v)])
            self._require_one([root[v], *(down[a, s] for a, s in keys if self.arcs[a][1] == v)])
        for v, s in sent:
            before = [sent[v, s - 1]] if s else []
            now = [up[a, s] for a, (tail, _) in enumerate(self.arcs) if tail == v]
            out.rows += [[-sent[v, s], *before, *now], *([-x, sent[v, s]] for x in before + now)]
            # the sum is complete once all but the root have sent; then the others get it
            before = [has[v, s - 1]] if s else []
            now = [down[a, s] for a, (_, head) in enumerate(self.arcs) if head == v]
            out.rows += [[-has[v, s], root[v], *before, *now]]
            out.rows += [[-has[v, s], sent[w, s], root[w]] for w in ranks]
        for (a, s), arrow in up.items():
            out.rows.append([-arrow, -sent[self.arcs[a][1], s]])  # what comes up later would be left behind
        for (a, s), arrow in down.items():
            tail, head = self.arcs[a]
            # down: the sender has the sum before, or the root swaps with the last rank that sends to it
            out.rows.append([-arrow, swap[a, s], *([has[tail, s - 1]] if s else [])])
            opposite = [up[b, s] for b, ends in enumerate(self.arcs) if ends == (head, tail)]
            out.rows += [[-swap[a, s], arrow], [-swap[a, s], root[tail]], [-swap[a, s], *opposite]]
            # all others have sent up before
            other_ranks = (v for v in ranks if v not in (tail, head))
            out.rows += [[-swap[a, s], *([sent[v, s - 1]] if s else [])] for v in other_ranks]
        return up, down, swap

    def _require_one(self, literals: list[int]) -> None:
        """Require that exactly one of these is true."""
        _, more_than_one = self.clauses.count_true(literals, max_count=1)  # more than 0 are true, more than 1
        self.clauses.rows += [literals, [-more_than_one]]

    def _limit_loads(self, rounds: int) -> None:
        """Limit what all chunks and their images load to what the rounds of each step carry, `rounds` in all."""
        max_rounds = rounds - self.steps + 1  # of a step, if each other step has one
        extra_rounds = free_rounds(self.clauses, [max_rounds] * self.steps, rounds)
        loads: dict[tuple[int, int], list[int]] = defaultdict(list)
        resources = defaultdict[int, list[int]](list)
        for arc, resource in zip(*(column.tolist() for column in self.instance.arcs.load), strict=True):
            resources[arc].append(resource)
        for up, down, _, images in self.chunks:
            for image, (key, arrow) in itertools.product(images, [*up.items(), *down.items()]):
                arc, step = self._map_arrow(image, key)
                for resource in resources[arc]:
                    loads[resource, step].append(arrow)
        for (resource, step), literals in sorted(loads.items()):
            load_within(self.clauses, literals, self.instance.capacity[resource], extra_rounds[step], max_rounds)

    def _map_arrow(self, image: Image, arrow: Arrow) -> Arrow:
        """Return where and when an image sends what the chunk sends over this arc in this step."""
        arc, step = arrow
        return image.arcs[arc], self.steps - 1 - step if image.backwards else step

    def read_sends(self, true: set[int]) -> list[Send]:
        """Return the sends of all chunks, sorted by step. `true`: the true variables."""
        sends: list[Send] = []
        number = 0
        for up, down, swap, images in self.chunks:
            # Both sends of an exchange are added at the receiver; other sends down replace what is there (`fresh`).
            swaps = {key for key, x in swap.items() if x in true}
            swaps |= {(b, s) for a, s in swaps for b, ends in enumerate(self.arcs) if ends == self.arcs[a][::-1]}
            for image in images:
                for arrows, leads_down in ((up, image.backwards), (down, not image.backwards)):
                    for key in (key for key, x in arrows.items() if x in true):
                        arc, step = self._map_arrow(image, key)
                        tail, head = self.arcs[arc]
                        fresh = leads_down and key not in swaps
                        sender, receiver = (tail, 0), (head, 0)  # rank and slot: here each rank has one slot
                        sends.append((step, number, self.instance.arcs.paths[arc], sender, receiver, fresh))
                number += 1
        return sorted(sends)
