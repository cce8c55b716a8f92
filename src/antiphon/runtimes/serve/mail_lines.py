"""Connections for mail between hosts: one for each two that have something for each other, made when they first do.

Who does listens at a door, and tells where it is by the store. Of two the higher rank knocks, where it sends to the
lower one or waits for it, or for anybody; the lower one needs to listen only, so no two connect with each other twice.
"""

from __future__ import annotations

import json
import os
import selectors
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from antiphon.errors import AntiphonError
from antiphon.runtimes.engine.mail import Mail
from antiphon.runtimes.serve.admission import Gathering, Party
from antiphon.runtimes.serve.handshake import derived
from antiphon.runtimes.serve.interface import interface_addresses
from antiphon.runtimes.serve.mesh import Door, card_of, knock_at, tuned
from antiphon.runtimes.serve.secret import Secret, hint_of

_SHORTEST, _LONGEST, _QUIET = 0.001, 0.05, 60.0  # seconds between looks into the store; where nobody is looked for
_PATIENCE = 1.0


class _Bell:
    """What a selector hears, and nobody hears of it."""

    call = None


def _of_its_own(store: Any) -> Any:
    """For a thread: while a program's thread waits in a store for a key, other threads wait for that store."""
    with suppress(RuntimeError):  # those that are written in Python may lack it
        return store.clone()
    return store


class Lines:
    """Those of one process of a group; a thread makes them, until it has one to each other."""

    def __init__(self, mail: Mail, rank: int, ranks: int, store: Any, secret: Secret | None, timeout: float) -> None:
        self._mail, self._rank, self._ranks, self._store, self._secret = mail, rank, ranks, store, secret
        self._timeout = timeout
        self._lock = threading.Lock()
        self._wanted: set[int] = set()  # lower ranks at whose doors one is to knock
        self._closed = False
        self._bell = -1
        self._thread: threading.Thread | None = None

    def need(self, peers: Collection[int]) -> None:
        """There is something for these, or from them; from all but one's own, if it may be any."""
        lower = {peer for peer in peers if peer < self._rank}
        if self._thread is not None and lower <= self._wanted:
            return
        with self._lock:
            self._wanted |= lower
            if self._thread is None:
                self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                self._thread = threading.Thread(target=self._run, name="antiphon-lines", daemon=True)
                self._thread.start()
            elif self._bell >= 0:
                os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._bell >= 0:
                os.eventfd_write(self._bell, 1)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_PATIENCE)  # it may hang in the store; what it finds then is closed

    def _run(self) -> None:
        try:
            with Door((interface_addresses() or [""])[0], self._ranks) as door:
                self._meet(door)
        except (AntiphonError, OSError, RuntimeError) as error:  # the store's are RuntimeErrors
            if not self._closed:
                self._mail.end(str(error))
        finally:
            with self._lock:
                os.close(self._bell)
                self._bell = -1

    def _meet(self, door: Door) -> None:
        known = self._secret.data if self._secret else b""
        party = Party(self._rank, self._ranks, f"rank {self._rank}", self._timeout, hint_of(self._secret))
        higher = range(self._rank + 1, self._ranks)
        absent: set[int] = set()  # who has been in the group, and has left it

        def missed(peer: int) -> None:
            absent.add(peer)
            self._mail.miss(peer)

        gathering = Gathering(party, derived(known, door.card.token), higher, 0.0, missed)
        called: set[int] = set()
        pause = _SHORTEST
        store: Any = _of_its_own(self._store)
        try:
            gathering.selector.register(self._bell, selectors.EVENT_READ, _Bell())
            for one in door.sockets:
                gathering.listen(one)
            store.set(str(self._rank), json.dumps(asdict(door.card)))
            while not self._closed and len(gathering.met) + len(absent) < self._ranks - 1:
                wanted = self._wanted - called
                store = (store or _of_its_own(self._store)) if wanted else None  # it is a descriptor
                there = [peer for peer in wanted if store.check([str(peer)])]
                for peer in there:
                    card = card_of(store.get(str(peer)).decode(), f"rank {peer}")
                    gathering.knock(knock_at(peer, card, door.card, known))
                    called.add(peer)
                pause = _SHORTEST if there else min(2 * pause, _LONGEST)
                gathering.end = time.monotonic() + (pause if wanted - called else _QUIET)
                gathering.turn()
                with suppress(BlockingIOError):
                    os.eventfd_read(self._bell)
                    pause = _SHORTEST
                self._hand_over(gathering)
        finally:
            gathering.close()

    def _hand_over(self, gathering: Gathering) -> None:
        for peer, one in gathering.met.items():
            if one.fileno() >= 0:
                self._mail.meet(peer, tuned(one).detach())
