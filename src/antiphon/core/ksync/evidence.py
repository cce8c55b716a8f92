"""Express proofs about k-synchronous algorithms in links, blocks and ranks, for programs other than this one.

A certificate (certificate.py) numbers bonds, kinds and variables as this package does. Here the same proofs name what
exists in the machine and the collective, so that a checker needs no code of ours (certificates/check_certificate.py):

    explicit_dual         prices of links and limits per step, and how the blocks with several destinations share them
    bandwidth_evidence    the witness of a bandwidth bound, a cut, a partition or a dual, in the same form
    refutation_files      what a certificate refutes by resolution
    lrat_files            such a proof as DIMACS, with the meaning of each variable, and LRAT

Example: on the machine of `core.example` where bond 3 stands for links 4 and 5, the price [3, 0, 1] of bond 3 in step 0
becomes [4, 0, 1], [5, 0, 1]: prices and lengths of a bond hold for each of its links, and their capacities add up.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from antiphon.core.bounds import Cut, JointDual, LpDual, Partition, Witness
from antiphon.core.collective import Collective
from antiphon.core.ksync.cnf import Formula, build_formula
from antiphon.core.ksync.dual import StepDual
from antiphon.core.ksync.instance import Instance
from antiphon.core.ksync.proof import Refutation, resolve_chain, unpack_chains
from antiphon.core.ksync.renaming import Naming, rename_instance
from antiphon.core.ksync.trees import TreeDual
from antiphon.core.topology import Topology
from antiphon.errors import Unsupported

Rows = list[list[int]]


def explicit_dual(instance: Instance, value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dual, as JSON, by links and blocks: `prices` as (link, step, price), and `shares` for blocks with
    several destinations or trees, each with lengths of its own; `trees` are (root, whether the tree leads to it).

    A share divides the price of each link among the destinations of its blocks: `families` has per destination the
    lengths (link, step, length), `potentials` the rows (switch, step, value). A block with one destination has no
    share: its length is the cost of its cheapest path at the prices. A destination without rows has lengths 0, which
    prove nothing about it; so have all destinations of a kind for which the dual has no price split.
    """
    bonds, links = instance.bonds, instance.topology.links
    # per resource of the instance, the links or the limit that it stands for
    members = [*bonds, *((limit,) for limit in range(links, links + len(instance.topology.limits)))]

    def by_link(rows: Iterable[Sequence[int]]) -> Rows:
        """Return rows (resource, step, amount) with links for bonds."""
        return [[member, step, amount] for resource, step, amount in rows for member in members[resource]]

    if "trees" in value:
        tree_dual = TreeDual.of_json(value)
        lengths = [by_link(rows) for _, _, rows in tree_dual.trees]
        roots = [[root, toward] for root, toward, _ in tree_dual.trees]
        # an allreduce has one block
        share = {"blocks": [0], "families": lengths, "potentials": [], "trees": roots}
        return {"prices": by_link(tree_dual.prices), "shares": [share] if roots else []}
    dual, shares = StepDual.of_json(value), list[dict[str, Any]]()
    for number, kind in enumerate(instance.kinds):
        # A kind without a price split of its own has that of a symmetric kind, renumbered (StepDual.like).
        representative, bond_names, node_names = dual.like.get(number, (number, (), ()))
        if len(kind.dests) == 1:
            continue
        families: dict[int, Rows] = {dest: [] for dest in kind.dests}
        potentials: Rows = []
        if representative in dual.price_splits:
            for dest, bond, step, length in dual.price_splits[representative].rows.tolist():
                member = bond_names[bond] if bond_names else bond
                families[node_names[dest] if node_names else dest] += by_link([(member, step, length)])
            for switch, step, height in dual.price_splits[representative].potentials.tolist():
                potentials.append([node_names[switch] if node_names else switch, step, height])
        shares.append({"blocks": list(kind.blocks), "families": list(families.values()), "potentials": potentials})
    return {"prices": by_link(dual.prices.tolist()), "shares": shares}


def bandwidth_evidence(topology: Topology, collective: Collective, witness: Witness | None) -> dict[str, Any]:
    """Return the witness of a bandwidth bound as a dual without steps (step 0 stands for all times).

    A cut becomes the dual with price 1 on every link that leaves it, a partition the dual that has only this partition.
    Raises Unsupported for partitions of groups that run at the same time: the format has none.
    """
    if isinstance(witness, JointDual):
        if any(dual.partitions for dual in witness.groups):
            raise Unsupported(
                "a certificate holds no partitions of several groups; verify --proof rechecks those of a plan"
            )
        group_shares = [
            bandwidth_evidence(topology, group, replace(dual, prices=witness.prices))["shares"][0]
            for group, dual in zip(collective.groups, witness.groups, strict=True)
        ]
        shares = [
            {**share, "blocks": list(range(b.stop))[b]}  # b: a slice of the joint collective's blocks
            for share, b in zip(group_shares, collective.group_blocks, strict=True)
        ]
        return {"prices": [[r, 0, p] for r, p in witness.prices], "shares": shares, "partitions": []}
    prices: Rows = []
    families: list[Rows] = []
    potentials: Rows = []
    partitions: list[list[Any]] = []
    links = topology.links
    if isinstance(witness, Cut | Partition):
        limit_counts = {(x, 1) for x in witness.limits} if isinstance(witness, Cut) else set(witness.limits)
        crossings = _crossings(topology, [witness.side] if isinstance(witness, Cut) else witness.parts, witness)
        # A shared limit that counts n times stands in for n crossings of each of its links.
        prices = [[links + limit, 0, count] for limit, count in sorted(limit_counts)]
        limited_links = [(set(topology.limits[limit].links), count) for limit, count in limit_counts]
        covered = [sum(count for under_limit, count in limited_links if link in under_limit) for link in range(links)]
        prices += [[link, 0, n - covered[link]] for link, n in enumerate(crossings) if n > covered[link]]
        if isinstance(witness, Cut):
            families = [[[link, 0, n] for link, n in enumerate(crossings) if n]]
        else:
            partitions = [_partition_item(witness, count=1)]
    elif isinstance(witness, LpDual):
        prices = [[resource, 0, price] for resource, price in witness.prices]
        potentials = [[switch, 0, value] for switch, value in witness.potentials]
        partitions = [_partition_item(partition, count) for partition, count in witness.partitions]
        costs = _link_costs(topology, witness)
        # a family of the witness without lengths of its own has the costs of links, which are written out here
        families = [
            [[link, 0, length] for link, length in (family.lengths or enumerate(costs)) if length]
            for family in witness.families
        ]
    shares = [{"blocks": list(range(collective.blocks)), "families": families, "potentials": potentials}]
    return {"prices": prices, "shares": shares, "partitions": partitions}


def _crossings(topology: Topology, node_sets: Sequence[Sequence[int]], witness: Cut | Partition) -> list[int]:
    """Count per link the parts that it leaves (or enters, for a partition of direction "in")."""
    entering = isinstance(witness, Partition) and witness.direction == "in"
    inside = [set(nodes) for nodes in node_sets]
    ends = zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True)
    pairs = ((b, a) if entering else (a, b) for a, b in ends)
    return [sum(a in nodes and b not in nodes for nodes in inside) for a, b in pairs]


def _partition_item(partition: Partition, count: int) -> list[Any]:
    """Return a partition as JSON: its parts, whether links into them count (1) or out of them (0), its multiplier."""
    return [[list(nodes) for nodes in partition.parts], int(partition.direction == "in"), count]


def _link_costs(topology: Topology, dual: LpDual) -> list[int]:
    """Return the cost of every link at these prices and potentials."""
    price, potential, resources = dict(dual.prices), dict(dual.potentials), topology.resources
    costs = []
    for link, (a, b) in enumerate(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True)):
        cost = price.get(link, 0) + sum(price.get(limit, 0) for limit in resources.limits_of(link))
        costs.append(cost + potential.get(b, 0) - potential.get(a, 0))
    return costs


# ---- proofs by resolution ----


class _Replay:
    """A resolution proof replayed on its clauses: the formula, and per lemma its literals and the clauses it needs.

    `instance` is the problem as the certificate poses it, `value` the JSON object of its refutation. The solver may
    have worked on a renumbered copy, `solved`; `to_original` renumbers back (None: there is no copy).
    """

    def __init__(self, instance: Instance, value: Mapping[str, Any]) -> None:
        refutation = Refutation.of_json(value)
        naming = Naming.of_json(value["naming"], instance) if "naming" in value else None
        solved = instance if naming is None else rename_instance(instance, naming)
        self.formula: Formula = build_formula(solved, refutation.question, with_meanings=True)
        self.instance, self.solved, self.parts, self.question = instance, solved, refutation.parts, refutation.question
        self.to_original = None if naming is None else naming.inverse()
        derived: list[Sequence[int]] = list(self.formula.clauses)
        self.lemmas: list[tuple[int, Sequence[int], list[int]]] = []  # number (from 1), literals, hints
        for chain in unpack_chains(refutation.proof, len(derived)):
            lemma = resolve_chain(derived, chain)
            derived.append(lemma)
            # Unit propagation from the lemma's negation meets the clauses of a resolution chain last to first.
            self.lemmas.append((len(derived), lemma, [number + 1 for number in reversed(chain)]))

    def meaning(self, variable: int) -> list[Any]:
        """Return the meaning of a variable, in links, blocks and ranks of the original machine.

        "have", [block, chunk], rank, t       as in `Formula.new_variable`
        "send", [block, chunk], links, step   likewise
        "use", links, step                    likewise (a proof with these has no `naming`)
        "excess", n, steps                    these steps have at least n rounds more in all than the least of each
        "load", n, variables                  at least n of these variables are true
        "order", above, below                 no variable of `above` is true while the one beside it in `below` is false
        """
        assert self.formula.meanings is not None
        kind, *rest = self.formula.meanings[variable - 1]
        if kind == "have":
            chunk, rank, time = rest
            return [kind, self.chunks[chunk], self._node(rank), time]
        if kind == "send":
            chunk, arc, step = rest
            path = self.solved.arcs.paths[arc]
            # the first link of a bond stands for all of its parallel links
            bonds = path if self.to_original is None else self.to_original.path(path)
            return [kind, self.chunks[chunk], [self.instance.bonds[bond][0] for bond in bonds], step]
        if kind == "use":
            arc, step = rest
            return [kind, [self.instance.bonds[bond][0] for bond in self.solved.arcs.paths[arc]], step]
        if kind == "count":
            # A row is a count itself: one literal, the "rounds" of a step, or the outputs of another counter.
            count, rows = rest
            meanings = [self.formula.meanings[row[0] - 1] for row in rows if row]
            if meanings and meanings[0][0] == "rounds":
                return ["excess", count, [step for _, step, _ in meanings]]
            return ["load", count, [x for row in rows for x in self._counted(row)]]
        if kind == "rounds":
            step, rounds = rest
            return ["excess", rounds - self.min_rounds, [step]]
        return [kind, *rest]

    def _counted(self, row: Sequence[int]) -> list[int]:
        """Return the literals that a row of a counter counts; of another counter's outputs, those that it counts."""
        assert self.formula.meanings is not None
        kind, *rest = self.formula.meanings[row[0] - 1]
        return [x for inner in rest[1] for x in self._counted(inner)] if kind == "count" else list(row)

    @property
    def min_rounds(self) -> int:
        """The least rounds of a step: 1 if the steps are as few as distances allow (then none is empty), else 0."""
        return int(self.solved.least_steps > 0 and self.question.steps == self.solved.least_steps)

    def _node(self, node: int) -> int:
        return node if self.to_original is None else int(self.to_original.nodes[node])

    @property
    def chunks(self) -> list[list[int]]:
        """Per chunk, in the order of the formula, its block and its number in the block."""
        if not hasattr(self, "_chunks"):
            order = range(len(self.solved.kinds)) if self.to_original is None else self.to_original.kinds.tolist()
            kinds = [self.instance.kinds[number] for number in order]
            self._chunks = [list(c) for kind in kinds for c in self.instance.chunks_of_kind(kind, self.parts)]
        return self._chunks


def refutation_files(certificate: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield what a certificate refutes by resolution: the name of its DIMACS and LRAT files, and the proof.

    refuted-C-S-R      there is no such algorithm
    refuted-N-links-S  in S steps the inputs of a chunk of a sum do not get everywhere over N links
    """
    bound = certificate["least"]  # the proof of the least R/C
    if "sends" in bound:  # it rests on the least number of links that a chunk crosses: one fewer is refuted
        yield f"refuted-{bound['sends'] - 1}-links-{certificate['steps']}", bound["refutation"]
    for entry in certificate["refuted"]:
        if entry["how"] == "resolution":
            yield f"refuted-{entry['chunks']}-{certificate['steps']}-{entry['rounds']}", entry["refutation"]


def lrat_files(instance: Instance, value: Mapping[str, Any]) -> tuple[Iterator[bytes], Iterator[bytes]]:
    """Return the lines of a refutation's formula (DIMACS, with the meaning of variables) and of its proof (LRAT)."""
    replay = _Replay(instance, value)
    formula = replay.formula

    def cnf() -> Iterator[bytes]:
        for variable in range(1, formula.variables + 1):
            yield f"c variable {variable}: {json.dumps(replay.meaning(variable))}\n".encode()
        yield f"p cnf {formula.variables} {len(formula.clauses)}\n".encode()
        for clause in formula.clauses:
            yield f"{' '.join(map(str, (*clause, 0)))}\n".encode()

    def lrat() -> Iterator[bytes]:
        for number, lemma, hints in replay.lemmas:
            yield f"{' '.join(map(str, (number, *lemma, 0, *hints, 0)))}\n".encode()

    return cnf(), lrat()
