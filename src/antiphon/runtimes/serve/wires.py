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

from antiphon.errors import AntiphonError, Invalid
from antiphon.runtimes.engine.build import library
from antiphon.runtimes.engine.fabric import RAILS, Fabric, is_name
from antiphon.runtimes.engine.mail import Mail
from antiphon.runtimes.engine.native import Engine, Wire
from antiphon.runtimes.serve.handshake import derived
from antiphon.runtimes.serve.interface import interface_addresses
from antiphon.runtimes.serve.life import Life, Place
from antiphon.runtimes.serve.mesh import Exchange, handed_over, mesh
from antiphon.runtimes.serve.secret import Secret, hint_of
from antiphon.runtimes.serve.texts import fields_of, hex_of, no_message
from antiphon.runtimes.serve.wish import agreed, wish

_YES, _NO = "yes", "no"


class Connecting:
    """A way for a group to its wire (group_start).

    Where all are on one host, messages go through memory that they share (not if ANTIPHON_SHARED=0), and pipes tell
    when one is gone; else by cards that libfabric knows, where all have fast ones, and over sockets. What the
    environment wants instead says wish. Who shares memory proves that it knows the secret by what it makes of all that
    was told; of two that are connected each proves it to the other. `exchange`, `secret`: as of `mesh`. `mail`:
    messages from one to another may go beside calls; what carries them is there from the beginning where they go by
    sockets.
    """

    def __init__(
        self, rank: int, ranks: int, exchange: Exchange, timeout: float, secret: Secret | None, mail: bool = False
    ) -> None:
        self._rank, self._ranks, self._exchange, self._timeout = rank, ranks, exchange, timeout
        self._addresses = interface_addresses()[:RAILS] or [""]
        self._secret, self._wish, self._rails = secret, wish(), 1
        self._agreed = self._wish
        self._engine: Engine | None = None
        self._memory = 0
        self._key = b""
        self._life: Life | None = None
        if self._addresses == [""] and self._wish.near and os.environ.get("ANTIPHON_SHARED") != "0":
            with suppress(OSError):
                self._life = Life(rank, ranks)
        self._sockets: list[int] = []  # for each rank, -1 for this one
        self._with_mail = mail
        self.mail: Mail | None = None

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
            "wire": self._wish.told,
            "rails": len(self._addresses),
        }
        return json.dumps({"once": secrets.token_hex(32), **own})

    def answers(self, engine: Engine, told: Sequence[str]) -> str:
        """Whether this process can see the memory and the pipes of all others, and a proof that it knows the secret."""
        self._engine = engine
        said = [_said(text, f"rank {rank}") for rank, text in enumerate(told)]
        wanted = [_wanted(text, f"rank {rank}") for rank, text in enumerate(told)]
        self._agreed, self._rails = agreed([one for one, _ in wanted]), min(rails for _, rails in wanted)
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
        cards = self._cards(engine) if self._agreed.fabric else None
        rails = self._rails if cards is None else 1
        with ExitStack() as stack:
            if cards is not None:
                stack.callback(cards[0].close)
            found = [self._mesh(address, stack) for address in self._addresses[:rails]]
            stack.pop_all()
        self._sockets = [number for row in zip(*map(handed_over, found), strict=True) for number in row]
        if cards is not None:
            wire = cards[0].wire(self._rank, cards[1], self._sockets, self._timeout)
        else:
            wire = engine.sockets(self._rank, self._sockets, rails)
        try:
            self.mail = Mail(wire, self._rank) if self._with_mail else None
        except BaseException:
            wire.close()
            raise
        return wire

    def _mesh(self, address: str, stack: ExitStack) -> list[socket.socket | None]:
        """To all others, by this address of ours."""
        timeout, secret = self._timeout, self._secret
        found = mesh(self._rank, self._ranks, self._exchange, address=address, timeout=timeout, secret=secret)
        for one in found:
            if one is not None:
                stack.enter_context(one)
        return found

    def _cards(self, engine: Engine) -> tuple[Fabric, list[bytes]]:
        """Those of this process, and what all told of theirs."""
        fabric = None
        try:
            fabric = Fabric(engine, self._wish.provider, self._wish.places)
            mine = {"card": fabric.name.hex()}
        except AntiphonError as error:
            mine = {"fault": str(error)}
        try:
            told = [fields_of(text, f"rank {rank}") for rank, text in enumerate(self._exchange(json.dumps(mine)))]
            names = [hex_of(str(one.get("card", "")), f"rank {rank}") for rank, one in enumerate(told)]
            if fabric is not None and all(map(is_name, names)):
                return fabric, names
            rank, why = next((rank, one.get("fault")) for rank, one in enumerate(told) if not is_name(names[rank]))
            raise Invalid(f"rank {rank}: {why or 'told what is no card'}; set ANTIPHON_WIRE to what all hosts have")
        except BaseException:
            if fabric is not None:
                fabric.close()
            raise

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


def _wanted(text: str, who: str) -> tuple[str, int]:
    """By which wire it is to go, and by how many networks it can."""
    match fields_of(text, who):
        case {"wire": str(wire), "rails": int(rails)} if 0 < rails <= RAILS:
            return wire, rails
    raise no_message(who, "expected by which wire it goes")


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
