"""The best connection that the processes of a group can have without MPI."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

from antiphon.runtimes.engine.native import Engine, Wire
from antiphon.runtimes.serve.mesh import Exchange, handed_over, mesh
from antiphon.runtimes.serve.secret import Secret
from antiphon.runtimes.serve.texts import hex_of


def connect(
    engine: Engine, rank: int, ranks: int, exchange: Exchange, *, address: str = "", timeout: float = 60.0,
    secret: Secret | None = None,
) -> tuple[Wire, list[int]]:  # fmt: skip
    """A wire between all ranks, and the numbers of its sockets (for each rank, -1 for this one). Collective.

    Where all are on one host, messages go through memory that they share (not if ANTIPHON_SHARED=0), and the sockets
    only tell when one is gone; else over the sockets. `exchange`, `address`, `timeout`, `secret` as of `mesh`.
    """
    found = mesh(rank, ranks, exchange, address=address, timeout=timeout, secret=secret)
    near = all(one is None or one.family == socket.AF_UNIX for one in found)
    numbers = handed_over(found)
    memory = 0
    try:
        memory = _memory(engine, rank, ranks, exchange, near and os.environ.get("ANTIPHON_SHARED") != "0")
        everyone = all(text == "yes" for text in exchange("yes" if memory else "no"))
    except BaseException:
        engine.unshare(memory)
        for number in numbers:
            with suppress(OSError):
                os.close(number)
        raise
    if everyone:
        return engine.shared(memory, numbers), numbers
    engine.unshare(memory)
    return engine.sockets(rank, numbers), numbers


def _memory(engine: Engine, rank: int, ranks: int, exchange: Exchange, near: bool) -> int:
    memory, name = engine.share(ranks) if near and rank == 0 else (0, b"")
    try:
        name = hex_of(exchange(name.hex())[0], "rank 0")
    except BaseException:
        engine.unshare(memory)
        raise
    return engine.join(name, rank) if near and rank else memory
