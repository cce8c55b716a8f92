"""How two processes that have just been connected prove to each other that both know a secret.

Four frames of fixed lengths: the guest's hello (its rank, how many ranks there are, whom it wants, a number used once),
the host's answer (a number used once, and its proof), the guest's proof, the host's verdict. A proof is the HMAC-SHA256
of all that was said before it, so it is worth nothing on another connection, for another rank or the other way round.
Until the guest has proved that it knows the secret, nothing is read from it but hello and proof: 88 bytes.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from collections.abc import Callable, Generator

_HELLO = struct.Struct("<8sIIII32s")  # mark, version, rank, ranks, the rank that is wanted, once
_ANSWER = struct.Struct("<8sI32s32s")  # mark, version, once, proof
_VERDICT = struct.Struct("<II32s")  # fault or 0, a number that belongs to it, proof
_MARK, _VERSION, _ONCE, _PROOF = b"antiphon", 2, 32, 32

OTHER_COUNT, TAKEN, UNWANTED = 1, 2, 3  # faults of one that knows the secret
Judge = Callable[[int, int], tuple[int, int]]  # of a rank and its count of ranks: fault or 0, and a number
Talk = Generator[tuple[bytes, int], bytes, tuple[int, str]]
"""Yields what is to be sent and how many bytes are wanted then, and ends with the other's rank and what is wrong."""


class Stranger(Exception):
    """Whoever speaks there does not belong to this job. `secret`: it speaks as we do, but does not know our secret."""

    def __init__(self, why: str, secret: bool = False) -> None:
        super().__init__(why)
        self.secret = secret


def derived(secret: bytes, use: bytes) -> bytes:
    """The key for one use of a secret."""
    return hmac.digest(secret, b"antiphon: " + use, "sha256")


def guest(rank: int, ranks: int, to: int, key: bytes) -> Talk:
    hello = _HELLO.pack(_MARK, _VERSION, rank, ranks, to, secrets.token_bytes(_ONCE))
    mark, version, once, proof = _ANSWER.unpack((yield hello, _ANSWER.size))
    if mark != _MARK:
        raise Stranger("what answers there is not this program")
    if version != _VERSION:
        raise Stranger("what answers there is another version of this program")
    if not hmac.compare_digest(proof, _proof(key, b"host", hello, once)):
        raise Stranger("what answers there does not know the secret of this process", secret=True)
    mine = _proof(key, b"guest", hello, once)
    fault, number, proof = _VERDICT.unpack((yield mine, _VERDICT.size))
    if not hmac.compare_digest(proof, _proof(key, b"verdict", hello, once, struct.pack("<II", fault, number))):
        raise Stranger("what answers there does not know the secret of this process", secret=True)
    return to, _fault(fault, number, rank, ranks, to)


def host(rank: int, ranks: int, key: bytes, judge: Judge, says: Callable[[int], None]) -> Talk:
    """`says` is told as whom one speaks that is still to prove it."""
    hello = yield b"", _HELLO.size
    mark, version, who, count, to, _ = _HELLO.unpack(hello)
    if mark != _MARK or version != _VERSION or to != rank:
        raise Stranger("it does not speak as this program does")
    says(who)
    once = secrets.token_bytes(_ONCE)
    answer = _ANSWER.pack(_MARK, _VERSION, once, _proof(key, b"host", hello, once))
    proof = yield answer, _PROOF
    if not hmac.compare_digest(proof, _proof(key, b"guest", hello, once)):
        raise Stranger("it does not know the secret", secret=True)
    fault, number = judge(who, count)
    verdict = struct.pack("<II", fault, number)
    yield verdict + _proof(key, b"verdict", hello, once, verdict), 0
    return who, _fault(fault, number, who, count, rank)


def _proof(key: bytes, *said: bytes) -> bytes:
    return hmac.digest(key, b"".join(said), "sha256")


def _fault(fault: int, number: int, who: int, count: int, to: int) -> str:
    """What both are told."""
    if fault == OTHER_COUNT:
        return f"rank {who} expects {count} processes, rank {to} expects {number}"
    if fault == TAKEN:
        return f"two processes say that they are rank {who}"
    return f"rank {to} does not expect rank {who}" if fault else ""
