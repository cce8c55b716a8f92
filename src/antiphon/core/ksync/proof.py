"""Proofs by resolution that the clauses of a question contradict each other, and their check.

A question is whether there is an algorithm for given parts, steps and rounds; cnf.py turns it into clauses. A proof is
a list of chains. A chain names clauses, of the formula or of earlier chains, and stands for the lemma that results from
resolving them one after the other. Each next clause must clash with the intermediate result in exactly one literal (x
in one, not x in the other), and both literals are removed. The last lemma must be empty.

Example. Clauses 0: (a b), 1: (-a b), 2: (-b). Chain [0, 1] resolves on a and gives lemma 3: (b); chain [3, 2] resolves
on b and gives the empty clause: contradiction.

>>> resolve_chain([(1, 2), (-1, 2), (-2,)], [0, 1])
(2,)

This is the proof format LRAT (Cruz-Filipe, Heule, Hunt, Kaufmann and Schneider-Kamp 2017) with its hints alone, in
reverse order. The literals of a lemma are not stored but derived from its chain, so they cannot be wrong.

The checker derives the clauses again from the instance (cnf.py) and shares no code with the solver. Proofs are stored
packed: lemmas are numbered relative to the current position (recent lemmas are used most), numbers are written in
groups of 7 bits, and the bytes are compressed.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from antiphon.core.ksync.cnf import Question, build_formula
from antiphon.core.ksync.instance import Instance
from antiphon.errors import Invalid

MOST_BYTES = 2**28  # bytes of an unpacked proof
MOST_DIGITS = 5  # 7-bit digits of one number


@dataclass(frozen=True)
class Refutation:
    """A proof that no algorithm exists for these parts within these steps and rounds.

    `split`: the maximum of rounds in each step; None: any, as long as they sum to `rounds`. `ordered` and `shared` of
    the question change its clauses; `Question` in cnf.py explains them.
    """

    question: Question
    proof: bytes  # packed

    @property
    def parts(self) -> int:
        return self.question.parts

    @property
    def steps(self) -> int:
        return self.question.steps

    @property
    def rounds(self) -> int:
        return self.question.rounds

    @property
    def split(self) -> tuple[int, ...] | None:
        return self.question.split

    def as_json(self) -> dict[str, Any]:
        return {
            "parts": self.parts,
            "steps": self.steps,
            "rounds": self.rounds,
            "split": None if self.split is None else list(self.split),
            "ordered": self.question.ordered,
            **({"shared": True} if self.question.shared else {}),  # left out if false: `of_json` then takes false
            "proof": base64.b64encode(self.proof).decode("ascii"),
        }

    @staticmethod
    def of_json(value: Mapping[str, Any]) -> Refutation:
        try:
            parts, steps, rounds, split = (value[key] for key in ("parts", "steps", "rounds", "split"))
            numbers = [parts, steps, rounds, *(split if split is not None else [])]
            flags = ordered, shared = value["ordered"], value.get("shared", False)
            if any(type(x) is not int for x in numbers) or any(type(flag) is not bool for flag in flags):
                raise TypeError("a number, or true or false, is expected")
            split = None if split is None else tuple(split)
            question = Question(parts, steps, rounds, split, ordered=ordered, shared=shared)
            return Refutation(question, base64.b64decode(value["proof"], validate=True))
        except (KeyError, TypeError, ValueError, binascii.Error) as error:
            raise Invalid(f"certificate: a refutation in it cannot be read ({error!r}); plan anew") from None


def check_refutation(instance: Instance, refutation: Refutation) -> None:
    """Raise Invalid if the proof does not show what the refutation states about this instance.

    O(clauses of the formula + literals of all clauses that the chains name).
    """
    clauses = build_formula(instance, refutation.question).clauses
    check_chains(clauses, unpack_chains(refutation.proof, len(clauses)))


def check_chains(clauses: Iterable[Sequence[int]], chains: Iterable[Sequence[int]]) -> None:
    """Raise Invalid unless each chain resolves, and the last one to the empty clause.

    Numbers in chains count the clauses of the formula, then the lemmas of earlier chains.
    """
    # Invariant: every clause in `proved` follows from the formula.
    proved: list[Sequence[int]] = list(clauses)
    lemma: Sequence[int] | None = None
    for chain in chains:
        lemma = resolve_chain(proved, chain)
        proved.append(lemma)
    _require(lemma is not None, "it is empty")
    _require(not lemma, "its last lemma is no contradiction")


def resolve_chain(proved: Sequence[Sequence[int]], chain: Sequence[int]) -> tuple[int, ...]:
    """Return the lemma that results from resolving these clauses in turn; it follows from them."""
    resolvent: set[int] | None = None
    for number in chain:
        _require(0 <= number < len(proved), f"it names clause {number} of {len(proved)}")
        clause = proved[number]
        if resolvent is None:
            resolvent = set(clause)
            continue
        # With two clashing literals the resolvent would be a tautology; with none, resolution derives nothing.
        clash = {x for x in clause if -x in resolvent}
        _require(len(clash) == 1, f"lemma {len(proved)} meets clause {number} in {len(clash)} literals, not in one")
        pivot = clash.pop()
        resolvent.remove(-pivot)
        # Resolution: the union of both clauses without the pivot.
        resolvent.update([x for x in clause if x != pivot])
    _require(resolvent is not None, f"lemma {len(proved)} has no chain")
    return tuple(resolvent or ())


def pack_chains(chains: Iterable[Sequence[int]], clause_count: int) -> bytes:
    """Pack chains into bytes: per chain its length and its numbers, then deflated.

    Clause n of the formula is written as 2n, a lemma that is d positions back as 2d - 1.
    """
    out = bytearray()
    for position, chain in enumerate(chains):
        _write_number(out, len(chain))
        for number in chain:
            _write_number(out, 2 * number if number < clause_count else 2 * (clause_count + position - number) - 1)
    return zlib.compress(bytes(out), 9)


def _write_number(out: bytearray, number: int) -> None:
    """Append a number as LEB128: in groups of 7 bits, the lowest first; the top bit marks that more follow."""
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def unpack_chains(packed: bytes, clause_count: int) -> Iterator[list[int]]:
    """Yield the chains one by one; raise Invalid if the bytes do not hold packed chains."""
    decompressor = zlib.decompressobj()
    try:
        # Bounded: a small packed proof must not expand without limit.
        data = decompressor.decompress(packed, MOST_BYTES)
    except zlib.error as error:
        raise Invalid(f"certificate: its refutation cannot be unpacked ({error}); plan anew") from None
    _require(not decompressor.unconsumed_tail, f"it has more than {MOST_BYTES} bytes")
    _require(decompressor.eof and not decompressor.unused_data, "its bytes end too early, or more follow")
    numbers = _read_numbers(data)
    # `numbers` is one iterator: the loop takes the length of each chain from it, and `islice` the numbers behind that
    for position, count in enumerate(numbers):
        chain = list(itertools.islice(numbers, count))
        _require(len(chain) == count, "its last chain is cut off")
        yield [number // 2 if number % 2 == 0 else clause_count + position - (number + 1) // 2 for number in chain]


def _read_numbers(data: bytes) -> Iterator[int]:
    """Yield the numbers written by `_write_number`."""
    number, shift = 0, 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        if byte & 0x80:
            shift += 7
            _require(shift < 7 * MOST_DIGITS, "a number in it is too great")
        else:
            yield number
            number, shift = 0, 0
    _require(shift == 0, "its last number is cut off")


def _require(holds: bool, failure: str) -> None:
    """Raise Invalid, with `failure` as the reason, unless a claim of the proof holds."""
    if not holds:
        raise Invalid(f"certificate: its refutation does not hold: {failure}; plan anew")
