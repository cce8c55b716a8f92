"""The best connection that the processes of a group can have without MPI."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import socket
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import lru_cache

from antiphon.errors import Invalid
from antiphon.runtimes.engine.build import library
from antiphon.runtimes.engine.native import Engine, Wire
from antiphon.runtimes.serve.handshake import derived
from antiphon.runtimes.serve.interface import interface_addresses
from antiphon.runtimes.serve.life import Life, Place
from antiphon.runtimes.serve.mesh import Exchange, handed_over, mesh
from antiphon.runtimes.serve.secret import Secret, hint_of
from antiphon.runtimes.serve.texts import fields_of, hex_of, no_message

_YES, _NO = "yes", "no"
MAX_RAILS = 8  # networks that a pair of processes uses side by side


class Connecting:
    """A way for a group to its wire (group_start).

    Where all are on one host, messages go through memory that they share (not if ANTIPHON_SHARED=0), and pipes tell
    when one is gone; else over sockets. Who shares memory proves that it knows the secret by what it makes of all that
    was told; of two that are connected each proves it to the other. `exchange`, `secret`: as of `mesh`.
    """

    def __init__(self, rank: int, ranks: int, exchange: Exchange, timeout: float, secret: Secret | None) -> None:
        self._rank, self._ranks, self._exchange, self._timeout = rank, ranks, exchange, timeout
        self._addresses = interface_addresses()[:MAX_RAILS] or [""]
        self._secret, self._rails = secret, 1
        self._engine: Engine | None = None
        self._memory = 0
        self._key = b""
        self._life: Life | None = None
        if self._addresses == [""] and os.environ.get("ANTIPHON_SHARED") != "0":
            with suppress(OSError):
                self._life = Life(rank, ranks)
        self._sockets: list[int] = []  # for each rank, -1 for this one

    def tells(self, engine: Engine | None) -> str:
        """Where the own pipe is, and the name of the memory that process 0 makes."""
        name = b""
        if engine is not None and self._life is not None:
            self._engine = engine
            self._memory, name = engine.share(self._ranks)
        memory = name.hex() if self._memory else ""
        own = {
            "life": self._life and self._life.place,
            "memory": memory,
            "rails": len(self._addresses),
        }
        return json.dumps({"once": secrets.token_hex(32), **own})

    def answers(self, engine: Engine, told: Sequence[str]) -> str:
        """Whether this process can see the memory and the pipes of all others, and a proof that it knows the secret."""
        self._engine = engine
        said = [_said(text, f"rank {rank}") for rank, text in enumerate(told)]
        self._rails = min(_read_rails(text, f"rank {rank}") for rank, text in enumerate(told))
        about = hashlib.sha256(json.dumps([*told]).encode()).digest()
        self._key = derived(self._secret.data if self._secret else b"", b"group " + about)
        return self._answer(self._rank, _YES if self._near(engine, said) else _NO)

    def _near(self, engine: Engine, said: Sequence[tuple[Place | None, bytes]]) -> bool:
        """All that was seen before is let go of: it may have been of others."""
        if self._life is None:
            return False
        self._life.forget()
        if self._rank:
            engine.unshare(self._memory)
            self._memory = engine.join(said[0][1], self._rank)
        if not self._memory:
            return False
        others = [(rank, place) for rank, (place, _) in enumerate(said) if rank != self._rank]
        return all(place is not None and self._life.sees(rank, place) for rank, place in others)

    def _answer(self, rank: int, text: str) -> str:
        """With its proof, which is for this rank and this group alone."""
        return f"{text} {hmac.digest(self._key, f'{rank} of {self._ranks}: {text}'.encode(), 'sha256').hex()}"

    def wire(self, engine: Engine, answers: Sequence[str]) -> Wire:
        if self._life is not None and all(text.startswith(_YES) for text in answers):
            for rank, text in enumerate(answers):
                if not hmac.compare_digest(text.encode(), self._answer(rank, _YES).encode()):
                    raise Invalid(f"rank {rank} does not know the secret of rank {self._rank}; {hint_of(self._secret)}")
            memory, self._memory = self._memory, 0
            return engine.shared(memory, self._life.handed_over())
        with ExitStack() as stack:
            meshes = [self._mesh(address, stack) for address in self._addresses[: self._rails]]
            stack.pop_all()
        self._sockets = [number for row in zip(*map(handed_over, meshes), strict=True) for number in row]
        return engine.sockets(self._rank, self._sockets, self._rails)

    def _mesh(self, address: str, stack: ExitStack) -> list[socket.socket | None]:
        """To all others, by this address of ours."""
        timeout, secret = self._timeout, self._secret
        found = mesh(self._rank, self._ranks, self._exchange, address=address, timeout=timeout, secret=secret)
        for one in found:
            if one is not None:
                stack.enter_context(one)
        return found

    def close(self) -> None:
        """What no wire has taken over."""
        if self._engine is not None:
            self._engine.unshare(self._memory)
            self._memory = 0
        if self._life is not None:
            self._life.close()

    def cut(self) -> None:
        """What is under way over the wire, which is not closed, fails at once, here and at the others."""
        if not self._sockets and self._life is not None:
            self._life.cut()
        for number in self._sockets:
            if number >= 0:
                one = socket.socket(fileno=number)
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.detach()  # it is the wire's


def _read_rails(text: str, who: str) -> int:
    """Return how many networks that process can use side by side."""
    match fields_of(text, who):
        case {"rails": int(rails)} if 0 < rails <= MAX_RAILS:
            return rails
    raise no_message(who, f"expected how many networks it uses, 1 to {MAX_RAILS}")


def _said(text: str, who: str) -> tuple[Place | None, bytes]:
    """Where its pipe is, and the name of its memory."""
    match fields_of(text, who):
        case {"once": str(), "life": [int(process), int(number), int(pipe)], "memory": str(memory)}:
            return (process, number, pipe), hex_of(memory, who)
        case {"once": str(), "life": None, "memory": str(memory)}:
            return None, hex_of(memory, who)
    raise no_message(who, "expected how it is to be noticed")


def engine_over_sockets(compiler: str = "") -> Engine:
    """Compiled where it is still to be done; loaded once in a process for what the environment says."""
    return _loaded(compiler, *(os.environ.get(name) for name in ("CC", "ANTIPHON_CACHE", "XDG_CACHE_HOME")))


@lru_cache(maxsize=8)
def _loaded(compiler: str, *_: str | None) -> Engine:
    return Engine(library("sockets", compiler))
