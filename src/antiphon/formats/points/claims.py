"""Express the claims of a plan about points (C, S, R) as satisfiability questions for any solver.

A schedule of C chunks, S steps and R rounds claims "sat" for its own point. A proof that it is optimal claims "unsat"
for the better points of as many steps: those with more chunks per round. smtlib.py and dimacs.py write a file each.

Example: a certificate that (6, 3, 7) is optimal claims "sat-6-3-7" and "unsat-C-3-R" for the least C with C/R > 6/7.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from antiphon.core.ksync.certificate import AS_PLANNED, COMPOSED, FOR_K, OPTIMAL, REVERSED, SUMS, certified_instance
from antiphon.core.ksync.cnf import Question
from antiphon.core.ksync.instance import Instance
from antiphon.core.plan import Plan
from antiphon.errors import Invalid, Unsupported, quote

Point = tuple[int, int, int]  # chunks, steps, rounds


@dataclass(frozen=True)
class Claim:
    """A question with the answer that the plan claims. `name`: of its file, without the suffix of the format; `about`:
    lines of text that explain the question."""

    name: str
    instance: Instance
    question: Question
    about: tuple[str, ...]


def list_claims(
    plan: Plan, chunks: int | None, steps: int | None, rounds: int | None, *, sums_suffice: bool = False
) -> list[Claim]:
    """List the claims of a plan: an algorithm exists at the point of each certified schedule ("sat"), and none at
    better points if the certificate proves it optimal ("unsat"). If a point is passed, return that question ("asked").

    C, S and R are those of the collective that is synthesized: for a reduce or reducescatter its dual, for an allreduce
    its allgather. A certificate about sums (of every form of an allreduce or custom collective) claims no such point;
    with `sums_suffice` a plan may have only these.
    """
    point = [value for value in (chunks, steps, rounds) if value is not None]
    for value in point:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
            raise Invalid(f"chunks, steps, rounds: expected whole numbers from 1, got {quote(value)}")
    if chunks is not None and steps is not None and rounds is not None:
        return [
            _make_claim(
                certified_instance(plan.topology, plan.collective, _subject_name(plan)),
                "asked",
                (chunks, steps, rounds),
            )
        ]
    if point:
        raise Invalid("give chunks, steps and rounds together, or leave all out for the claims of the plan")
    certificates = [entry.schedule.provenance.get("certificate") for entry in plan.entries]
    of_points = [certificate for certificate in certificates if certificate and certificate.get("about") != SUMS]
    if not of_points and not (sums_suffice and any(certificates)):
        raise Unsupported(
            "the plan has no certificate of points, so it claims nothing of them (planner sccl makes such plans); "
            "ask about a point, e.g. options chunks=6,steps=3,rounds=7"
        )
    return [claim for certificate in of_points for claim in _claims_of(plan, certificate)]


def _subject_name(plan: Plan) -> str:
    """Return what is synthesized for the plan: its collective, the dual, or an allreduce's allgather."""
    if not plan.collective.combining:
        return AS_PLANNED
    return COMPOSED if plan.collective.kind == "allreduce" else REVERSED


def _claims_of(plan: Plan, certificate: Any) -> list[Claim]:
    """Return the claims of one certificate. Its `k` is SCCL's: rounds above one per step, so R <= S + k."""
    try:
        about, proof, k = str(certificate["about"]), str(certificate["proof"]), int(certificate["k"])
        chunks, steps, rounds = (int(certificate[key]) for key in ("chunks", "steps", "rounds"))
    except (KeyError, TypeError, ValueError) as error:
        raise Invalid(f"certificate: cannot be read ({error!r}); plan anew") from None
    instance = certified_instance(plan.topology, plan.collective, about)
    claims_made = [_make_claim(instance, "sat", (chunks, steps, rounds))]
    if proof in (OPTIMAL, FOR_K):  # proved: no R up to S + k (optimal: up to this R, too) has a smaller R/C
        max_rounds = max(steps + k, rounds) if proof == OPTIMAL else steps + k
        # better[C] = R: C is the least number of chunks (multiples of `input_weight`) with a smaller R/C in R rounds,
        # and R the greatest for which it is. One question does for fewer rounds, too, as its rounds are a maximum.
        better: dict[int, int] = {}
        for r in range(steps, max_rounds + 1):
            multiple = r * chunks // (rounds * instance.input_weight) + 1
            better[multiple * instance.input_weight] = r
        claims_made += [
            _make_claim(instance, "unsat", (better_chunks, steps, r)) for better_chunks, r in better.items()
        ]
    return claims_made


def _make_claim(instance: Instance, answer: str, point: Point) -> Claim:
    """Return the question about a point; `answer`: "sat", "unsat", or "asked" if the plan claims nothing of it."""
    chunks, steps, rounds = point
    machine, collective = instance.topology, instance.collective
    claimed = {
        "sat": "The plan has one, so it claims: satisfiable.",
        "unsat": "The plan claims that there is none: unsatisfiable.",
        "asked": "Nothing is claimed of it here.",
    }[answer]
    restriction = "" if instance.arcs.exhaustive else "; of the many paths through switches only the shortest are in it"
    about = (
        f"Is there a {collective.kind} on {machine.name}: {chunks} chunks per rank, {steps} steps, {rounds} rounds?",
        f"Satisfiable if there is, unsatisfiable if there is none{restriction}.",
        claimed,
    )
    name = "-".join([answer, *map(str, point)])
    # full: as in SCCL, every step takes a round at least
    return Claim(name, instance, Question(instance.parts_of(chunks), steps, rounds, full=True), about)


def legend_lines(instance: Instance, part_count: int) -> Iterator[str]:
    """Yield a line per chunk and per arc, in the order of their numbers."""
    chunks = ((kind, *chunk) for kind in instance.kinds for chunk in instance.chunks_of_kind(kind, part_count))
    for c, (kind, block, index) in enumerate(chunks):
        holders, dests = _join_ranks(kind.holders), _join_ranks(kind.dests)
        yield f"chunk {c}: part {index} of block {block}, from rank {holders}, to {dests}"
    head = instance.head.tolist()
    for arc, (path, a) in enumerate(zip(instance.arcs.paths, instance.arcs.tail.tolist(), strict=True)):
        yield f"arc {arc}: {' -> '.join(map(str, (a, *(head[bond] for bond in path))))}"


def _join_ranks(ranks: tuple[int, ...]) -> str:
    return " ".join(map(str, ranks))
