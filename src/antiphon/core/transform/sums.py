"""Collectives of sums: every rank has an input, and wants the sum of certain ranks' inputs (allreduce, scan, exscan).

Every schedule of such a collective contains, for each input, a broadcast to the ranks whose sums include it, and for
each rank a reduce of the inputs of its sum. Synthesis (planners/synth) and its certificates use these: this file states
each as a collective that only copies. A reduce becomes its inverse: a broadcast on the reversed machine.

Example: a scan among 3 ranks. Rank 1 wants inputs 0 and 1: `sources[1]` is {0, 1}. Input 1 must get to rank 2, so
`broadcasts()[1]` copies a block from rank 1 to ranks 1 and 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from antiphon.core.collective import Collective, custom_relation


@dataclass(frozen=True)
class SumRelation:
    """`sources`: per rank that wants a sum the ranks whose inputs it consists of. `inputs`: the ranks with an input;
    `order`: these in the order in which their inputs are combined, empty if any order will do."""

    collective: Collective
    inputs: tuple[int, ...]
    sources: Mapping[int, frozenset[int]]
    order: tuple[int, ...] = ()

    def spread(self) -> Collective:
        """Return the collective that copies every input, as a block of its own, to the ranks that want it."""
        if self.collective.kind == "allreduce":
            return Collective("allgather", self.collective.ranks, self.collective.members)
        return self._copies({source: self._receivers_of(source) for source in self.inputs})

    def broadcasts(self) -> dict[int, Collective]:
        """Return per rank the broadcast of its input to all ranks that want it; without those that need no transfer."""
        return self._without_idle({source: self._receivers_of(source) for source in self.inputs})

    def reduces(self) -> dict[int, Collective]:
        """Return per rank the inverse of the reduce to it; without those that need no transfer."""
        return self._without_idle(self.sources)

    def _without_idle(self, receivers: Mapping[int, Iterable[int]]) -> dict[int, Collective]:
        """Return per root the broadcast to its receivers; without roots that are their only receiver."""
        if self.collective.kind == "allreduce":
            ranks, members = self.collective.ranks, self.collective.members
            return {root: Collective("broadcast", ranks, members, (root,)) for root in receivers}
        return {root: self._copies({root: dests}) for root, dests in receivers.items() if set(dests) - {root}}

    def _receivers_of(self, source: int) -> list[int]:
        """Return the ranks whose sums include the input of `source`."""
        return [rank for rank, ranks in self.sources.items() if source in ranks]

    def _copies(self, receivers: Mapping[int, Iterable[int]]) -> Collective:
        """Return the collective that copies a block from every source to its receivers."""
        blocks = [(source, sorted(ranks)) for source, ranks in receivers.items() if set(ranks) - {source}]
        # rows of a relation: (block, rank, contribution), and (block, rank, contributions that it wants; None: all)
        pre = [(block, source, 0) for block, (source, _) in enumerate(blocks)]
        post = [(block, rank, None) for block, (_, ranks) in enumerate(blocks) for rank in ranks]
        return Collective("custom", self.collective.ranks, custom=custom_relation(pre, post, self.collective.ranks))


def sums_of(collective: Collective) -> SumRelation | None:
    """Return the collective as sums of ranks' inputs; None if it has several blocks, a block of weight 0, or inputs
    that begin joined or at several ranks.
    """
    relation = collective.relation
    is_sum = collective.kind in ("allreduce", "reduce", "custom")
    if not is_sum or collective.blocks != 1 or not collective.weights.all():
        return None
    names, ranks = relation.pre_id.tolist(), relation.pre_rank.tolist()
    if len(set(names)) < len(names) or len(set(ranks)) < len(ranks):
        return None
    rank_of = dict(zip(names, ranks, strict=True))
    sources = {
        rank: frozenset(ranks if want < 0 else (rank_of[name] for name in relation.wants[want]))
        for rank, want in zip(relation.post_rank.tolist(), relation.post_want.tolist(), strict=True)
    }
    order = tuple(rank_of[name] for name in sorted(names)) if collective.ordered else ()
    return SumRelation(collective, tuple(sorted(ranks)), sources, order)
