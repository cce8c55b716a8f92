"""Write the claims of a plan as DIMACS files, so that any SAT solver can check them (`antiphon export --to dimacs`).

Each file asks: is there a k-synchronous algorithm with C chunks, S steps and R rounds (R at most S + k)? The clauses
are those that resolution proofs refer to (core/ksync/cnf.py), generated from the machine alone. A certificate
may refute by resolution that a point is possible, or that the inputs of a chunk of a sum get everywhere over N links
(core/ksync/evidence.py). Each refutation comes with its proof in LRAT, a format that small checkers verify.
"""

from __future__ import annotations

from collections.abc import Iterator

from antiphon.core.ksync.certificate import certified_instance
from antiphon.core.ksync.cnf import Formula, build_formula
from antiphon.core.ksync.evidence import lrat_files, refutation_files
from antiphon.core.plan import Plan
from antiphon.formats.points.claims import Claim, legend_lines, list_claims


def dimacs(
    plan: Plan, *, chunks: int | None = None, steps: int | None = None, rounds: int | None = None
) -> dict[str, Iterator[bytes]]:
    """Write DIMACS files for the points (C, S, R) that the plan claims, or for one point.

    A file has O(chunks * arcs * steps) variables, and those that count the load of each arc.

    Parameters
    ----------
    chunks, steps, rounds
        The only point to write.
    """
    # sums_suffice: a plan whose certificates only bound the links of sums has no claims, only refutations
    files = {
        f"{claim.name}.cnf": _write_file(claim, build_formula(claim.instance, claim.question))
        for claim in list_claims(plan, chunks, steps, rounds, sums_suffice=True)
    }
    return files | (_refutation_files(plan) if chunks is None else {})


def _refutation_files(plan: Plan) -> dict[str, Iterator[bytes]]:
    """Return for each question that a certificate refutes by resolution its clauses (.cnf) and the proof (.lrat)."""
    files: dict[str, Iterator[bytes]] = {}
    for entry in plan.entries:
        certificate = entry.schedule.provenance.get("certificate")
        if certificate is None:
            continue
        for name, proof in refutation_files(certificate):
            instance = certified_instance(plan.topology, plan.collective, certificate["about"])
            files[f"{name}.cnf"], files[f"{name}.lrat"] = lrat_files(instance, proof)
    return files


def _write_file(claim: Claim, encoding: Formula) -> Iterator[bytes]:
    """Yield the lines of a file: comments (c) with the question and the names of variables, then the clauses."""
    for line in (*claim.about, *legend_lines(claim.instance, claim.question.parts)):
        yield f"c {line}\n".encode()
    for chunk, sends in enumerate(encoding.sends):
        for (arc, step), variable in sends.items():
            yield f"c variable {variable}: chunk {chunk} goes over arc {arc} in step {step}\n".encode()
    yield f"p cnf {encoding.variables} {len(encoding.clauses)}\n".encode()
    for clause in encoding.clauses:
        yield f"{' '.join(map(str, (*clause, 0)))}\n".encode()
