"""Check a plan's certificate of optimality from the certificate alone, without any solver.

A k-synchronous schedule has a point (C, S, R): C chunks per rank, S steps, R rounds (SCCL, section 3); k is the number
of rounds allowed beyond the steps, R <= S + k. It takes S latencies and R / C of the time that one unit link needs for
a rank's input. A planner that claims "no better point exists" attaches a certificate about its point, and this module
checks it in three stages:

1. Prices of links per step (`StepDual`) bound R / C from below for every schedule of S steps (dual.py). If the point
   meets that bound, it is optimal for S.
2. Otherwise every better point (C', S, R') with S <= R' <= S + k must be refuted. They are finitely many: for each R',
   R' / C' is below the R / C of the certificate's point and not below the bound of stage 1.
3. A refutation has one of three forms. "duals": one or more sets of prices that together forbid every split of R'
   rounds over the S steps. "resolution": a proof that the point's clauses contradict each other (cnf.py, proof.py).
   "search": a solver reported that there is no solution; this is not checked but listed as trusted.

Refuting (C', S, R') also refutes all (C'', S, R'') with C'' >= C' and R'' <= R': more chunks in fewer rounds is harder.

Example: an allgather on a ring of 4 with 2 chunks, 2 steps and 3 rounds has R / C = 3/2. Each rank has two links in and
must receive 3 ranks' data, so R / C >= 3/2: price 1 on every link proves it, and no better point is left.

The field `about` states which problem the certificate is about:

    plan     the collective itself
    dual     for reduce and reducescatter: the reversed collective on the machine with all links reversed
    halves   for an allreduce made of a reducescatter and an allgather: the allgather, on the machine as it is. It holds
             for the reducescatter, too, where reversing all links gives the same machine; otherwise nothing is checked
             of that half
    broadcast from 3, reduce to 3    for an allreduce of any form: it brings the input of rank 3 to all ranks, and all
             inputs to rank 3 (a broadcast from 3 on the machine with all links reversed), in as many chunks. Likewise
             for a custom relation of sums (transform/sums.py): to the ranks whose sums include it, and from those that
             the sum of rank 3 includes
    sums     for the same collectives: in S steps, the inputs of a chunk get everywhere only if it crosses some
             number of links. `least` states this number, `sends`, and refutes that one fewer suffices. All links carry
             C times that in R rounds, so their capacity bounds R / C. Or, for an allreduce of few ranks, `least` and
             refutations are duals of trees (trees.py)

A block of weight w is cut into w * `parts_per_unit` chunks. The blocks that a rank starts with weigh `input_weight`
together, so C = parts_per_unit * input_weight.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from antiphon.core.collective import Collective
from antiphon.core.ksync.dual import StepDual, StepInequality, evaluate_dual
from antiphon.core.ksync.instance import Instance, instance_of
from antiphon.core.ksync.proof import Refutation, check_refutation
from antiphon.core.ksync.renaming import Naming, rename_instance
from antiphon.core.ksync.trees import TreeDual, evaluate_tree_dual, is_bounded_by_trees
from antiphon.core.reshape import reverse
from antiphon.core.topology import Topology
from antiphon.core.transform.reversing import dual as dual_of
from antiphon.core.transform.sums import sums_of
from antiphon.errors import Invalid, quote, unknown

# What a certificate proves
OPTIMAL, FOR_K, BEST_FOUND = "proved-optimal", "proved-optimal-for-k", "best-found-in-budget"
# What it is about (`about`, see above): the collective itself, the reversed one, the allgather half of an allreduce
AS_PLANNED, REVERSED, COMPOSED = "plan", "dual", "halves"
# ... or a broadcast or reduce that every allreduce contains, followed by its root
BROADCAST_FROM, REDUCE_TO = "broadcast from ", "reduce to "
# ... or the links that every chunk of a sum crosses
SUMS = "sums"
FORMAT = 1  # the version of certificates
# chunks, steps, rounds: the point. least: the prices of stage 1. refuted: the refutations of stage 3. open: [C', R'] of
# better points that the search left undecided; neither stage 1 nor 3 may exclude them.
FIELDS = {"format", "about", "proof", "k", "chunks", "steps", "rounds", "least", "refuted", "open"}
MAX_SPLITS = 10**6  # distributions of rounds over steps that are enumerated for one refutation


@dataclass(frozen=True)
class Checked:
    """Claims that have been rechecked, in words, and claims that only a solver reported."""

    proved: tuple[str, ...]
    trusted: tuple[str, ...] = ()


def certified_instance(topology: Topology, collective: Collective, about: str) -> Instance:
    """Return the problem that a certificate is about."""
    if about == AS_PLANNED:
        return instance_of(topology, collective)
    if about == REVERSED:
        return instance_of(reverse(topology), dual_of(collective).collective)
    if about == COMPOSED and collective.kind == "allreduce":
        allgather = Collective("allgather", collective.ranks, collective.members)
        return instance_of(topology, allgather)
    sums = sums_of(collective)
    if about == SUMS and sums is not None:
        return instance_of(topology, sums.spread())
    # "broadcast from 3" -> ("broadcast from ", "3")
    contained, root = next(
        (about.partition(p)[1:] for p in (BROADCAST_FROM, REDUCE_TO) if about.startswith(p)), ("", "")
    )
    broadcasts = {}
    if sums is not None and root.isdigit():
        broadcasts = sums.broadcasts() if contained == BROADCAST_FROM else sums.reduces()
    if root in map(str, broadcasts):
        return instance_of(topology if contained == BROADCAST_FROM else reverse(topology), broadcasts[int(root)])
    raise Invalid(
        f"certificate: it is about {quote(about)}, expected plan, dual, halves, sums, or broadcast from or reduce to "
        "a rank; plan anew"
    )


def check_certificate(topology: Topology, collective: Collective, certificate: Mapping[str, Any]) -> Checked:
    """Recheck every claim without a solver; raise Invalid for the first claim that does not hold.

    Costs one `evaluate_dual` per set of prices, plus the enumerated splits of rounds.
    """
    if type(certificate.get("format")) is not int or certificate["format"] != FORMAT:
        raise Invalid(f"certificate: its format is {quote(certificate.get('format'))}, expected {FORMAT}; plan anew")
    if not certificate.keys() <= FIELDS:
        raise unknown("field of a certificate", min(certificate.keys() - FIELDS), FIELDS)
    try:
        about, proof = str(certificate["about"]), str(certificate["proof"])
        chunks, steps, rounds = (_parse_int(certificate[key]) for key in ("chunks", "steps", "rounds"))
        k = certificate["k"]
        evidence: Mapping[str, Any] = certificate["least"]
        refuted: Sequence[Mapping[str, Any]] = certificate["refuted"]
        undecided = [(_parse_int(c), _parse_int(r)) for c, r in certificate.get("open", ())]
        refuted_figures = [(_parse_int(entry["chunks"]), _parse_int(entry["rounds"])) for entry in refuted]
    except (KeyError, TypeError, ValueError) as error:
        raise Invalid(f"certificate: cannot be read ({error!r}); plan anew") from None
    instance = certified_instance(topology, collective, about)
    parts_per_unit = instance.parts_of(chunks)
    bound = least_rounds_per_part(instance, about, steps, evidence)  # of R / parts_per_unit, like `ratio`
    if about == SUMS and "sends" in evidence:
        # It must refute that one link fewer suffices. With `shared`, the rounds of a question are the links that a
        # chunk's inputs cross (cnf.py).
        _check_by_resolution(instance, (1, steps, evidence["sends"] - 1), evidence, shared=True)
    if about == SUMS and ("prices" in evidence or refuted):
        _require(is_bounded_by_trees(instance, collective), "only an allreduce of few ranks is bounded by trees")
        sends = bound * sum(instance.capacity[: len(instance.bonds)])  # per part, that all bonds carry in these rounds
        # Without trees the dual bounds pairs of trees. Frontier files state its bound as a number of sends per chunk
        # (select/frontier_file.py), so that must be whole.
        is_by_pairs = not ("sends" in evidence or evidence.get("trees"))
        _require(not is_by_pairs or sends.denominator == 1, "its pairs of trees state no number of sends")
    ratio = Fraction(rounds, parts_per_unit)  # R / C is this over `weight`
    # Stage 1: the point cannot have a ratio below what its own prices prove.
    _require(ratio >= bound, f"it claims R/C = {Fraction(rounds, chunks)}, below its own bound")
    kind = collective.kind if about == SUMS else instance.collective.kind
    weight = instance.input_weight
    _require(type(k) is int and k >= 0, f"its k is {quote(k)}, expected a whole number from 0")
    for c, r in undecided:
        is_better = c > 0 and bound / weight <= Fraction(r, c) < ratio / weight
        is_refuted = any(c >= refuted_c and r <= refuted_r for refuted_c, refuted_r in refuted_figures)
        _require(is_better and not is_refuted, f"({c}, {steps}, {r}) is no undecided better point, as `open` says")
    reason = f"as every chunk crosses {evidence['sends']} links" if "sends" in evidence else "by prices of links"
    proved = [f"{kind} in {steps} steps has R/C >= {bound / weight}, {reason}"]
    # The ratio equals the bound: no point with S steps can be better, so no refutations are needed.
    if proof == OPTIMAL:
        _require(
            ratio == bound, f"it claims that R/C = {ratio / weight} is the least, but proves only {bound / weight}"
        )
        return Checked(
            (*proved, f"(C, S, R) = ({chunks}, {steps}, {rounds}) attains it: none in {steps} steps is better")
        )
    if proof == BEST_FOUND:
        return Checked(tuple(proved))
    _require(proof == FOR_K, f"it claims {proof!r}, which is not a known label")
    # Stages 2 and 3. A refutation that only a solver reported is accepted, but as trusted, not as proved.
    trusted = _check_refuted(instance, about, steps, ratio, bound, k, refuted)
    claim = f"no algorithm with S = {steps}, R <= {steps + k} has R/C below {ratio / weight}"
    return Checked((*proved, *([] if trusted else [claim])), tuple(trusted))


def least_rounds_per_part(instance: Instance, about: str, steps: int, evidence: Mapping[str, Any]) -> Fraction:
    """Return the least R / parts_per_unit by `evidence`, the field `least` of a certificate; a refutation in it is not
    checked here."""
    if about == SUMS and not (isinstance(evidence, Mapping) and "prices" in evidence):
        sends = evidence.get("sends") if isinstance(evidence, Mapping) else None
        if type(sends) is not int or sends < 1:
            raise Invalid("certificate: it states no number of sends; plan anew")
        return Fraction(sends) / sum(instance.capacity[: len(instance.bonds)])
    return _evaluate_dual(instance, about, steps, evidence).rounds_per_part


def _evaluate_dual(instance: Instance, about: str, steps: int, value: Mapping[str, Any]) -> StepInequality:
    """Return what a dual, as JSON, proves about these steps."""
    dual = TreeDual.of_json(value) if about == SUMS else StepDual.of_json(value)
    _require(dual.steps == steps, "a dual is for another number of steps")
    return evaluate_tree_dual(instance, dual) if isinstance(dual, TreeDual) else evaluate_dual(instance, dual)


def _parse_int(value: object) -> int:
    """Return an int; raise TypeError for anything else."""
    if type(value) is not int:
        raise TypeError(f"{quote(value)} is no whole number")
    return value


def _check_refuted(
    instance: Instance, about: str, steps: int, ratio: Fraction, bound: Fraction, k: int,
    refuted: Sequence[Mapping[str, Any]],
) -> list[str]:  # fmt: skip
    """Check that every better point is refuted; return the refutations that only a solver reported, in words.

    `ratio`: R / parts_per_unit of the certificate's point. `bound`: the least that its prices prove.
    """
    refuted_points: list[tuple[int, int]] = []
    trusted = []
    # Check each refutation by its own kind, and collect the points (parts_per_unit, rounds) that they rule out.
    for entry in refuted:
        try:
            chunks, rounds, how = int(entry["chunks"]), int(entry["rounds"]), str(entry["how"])
        except (KeyError, TypeError, ValueError):
            raise Invalid("certificate: one of its refutations cannot be read; plan anew") from None
        parts_per_unit = instance.parts_of(chunks)
        _require(about != SUMS or how == "duals", "of sums only duals refute a point")
        if how == "duals":
            values = [_evaluate_dual(instance, about, steps, dual) for dual in entry["duals"]]
            _check_by_duals(instance, steps, parts_per_unit, rounds, values)
        elif how == "resolution":
            _check_by_resolution(instance, (parts_per_unit, steps, rounds), entry)
        elif how == "search":
            trusted.append(f"(C, S, R) = ({chunks}, {steps}, {rounds}) does not exist: a solver reported it")
        else:
            raise Invalid(f"certificate: a refutation by {how!r} is not known; plan anew")
        refuted_points.append((parts_per_unit, rounds))
    # Every better point must be covered. Better means parts_per_unit > rounds / ratio; above rounds / bound the prices
    # of stage 1 forbid it.
    for rounds in range(steps, steps + k + 1):
        first = math.floor(rounds / ratio) + 1  # the least parts_per_unit that would be better
        last = math.floor(rounds / bound)
        for parts_per_unit in range(first, last + 1):
            covered = any(p <= parts_per_unit and r >= rounds for p, r in refuted_points)
            better = f"({parts_per_unit * instance.input_weight}, {steps}, {rounds})"
            _require(covered, f"{better} would be better, and nothing refutes it")
    return trusted


def _check_by_resolution(
    instance: Instance, claimed: tuple[int, int, int], entry: Mapping[str, Any], shared: bool = False
) -> None:
    """Check a proof by resolution that there is no algorithm of `claimed` = (parts per unit, steps, rounds).

    `entry`: has the proof as `refutation`, and perhaps a `naming`. `shared`: as in `Question`.
    """
    value = entry.get("refutation")
    _require(isinstance(value, Mapping), "a proof by resolution is missing")
    assert isinstance(value, Mapping)
    refutation = Refutation.of_json(value)
    # A proof may be of one split of the rounds over the steps only (`split`); here it must be of all of them.
    proves = (refutation.parts, refutation.steps, refutation.rounds)
    is_same = proves == claimed and refutation.split is None and refutation.question.shared == shared
    _require(is_same, "a proof is of something else")
    if "naming" in value:
        # The solver may have worked on a relabelled copy of the problem; a bijection keeps satisfiability.
        instance = rename_instance(instance, Naming.of_json(value["naming"], instance))
    check_refutation(instance, refutation)


def _check_by_duals(
    instance: Instance, steps: int, parts_per_unit: int, rounds: int, values: Sequence[StepInequality]
) -> None:
    """Check that these inequalities forbid every split of `rounds` rounds over the steps."""
    point = f"({parts_per_unit * instance.input_weight}, {steps}, {rounds})"
    # One set of prices may forbid the point for every split: R / parts_per_unit is below the bound of these prices.
    if any(rounds < parts_per_unit * value.rounds_per_part for value in values):
        return
    _require(math.comb(rounds - 1, steps - 1) <= MAX_SPLITS, f"{point} has too many ways of dealing out its rounds")
    # Otherwise try all compositions of `rounds` into `steps` positive terms ("stars and bars": rounds - 1 choose
    # steps - 1).
    for marks in itertools.combinations(range(1, rounds), steps - 1):
        split = tuple(b - a for a, b in itertools.pairwise((0, *marks, rounds)))
        forbidden = any(value.forbids(split, parts_per_unit) for value in values)
        _require(forbidden, f"no dual forbids {point} with rounds {'+'.join(map(str, split))}")


def _require(holds: bool, failure: str) -> None:
    """Raise Invalid, with `failure` as the reason, unless a claim holds."""
    if not holds:
        raise Invalid(f"certificate: does not hold: {failure}; plan anew")
