"""Connect the processes of a group without MPI: by shared memory if all are on one host, else by sockets.

`Connecting` does so in three stages, between which all processes exchange a string: `offer` (the name of the memory and
of the pipe), `answer` (whether this process could open those of the others), `connect` (memory if all could, else
sockets). The result is a wire: the transport of the native engine, over which messages go.
"""

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
from antiphon.runtimes.serve.admission import derive_key
from antiphon.runtimes.serve.mesh import Exchange, connect_mesh, detach_all, interface_addresses
from antiphon.runtimes.serve.secret import Secret, secret_hint
from antiphon.runtimes.serve.texts import fields_of, hex_of, no_message

_YES, _NO = "yes", "no"
MAX_RAILS = 8  # networks that a pair of processes uses side by side


class Connecting:
    """Set up a wire (group_start.WireSetup).

    If all processes are on one host, messages go through shared memory (not if ANTIPHON_SHARED=0), and pipes show when
    a process ends. Else they go over sockets. Processes that share memory prove that they know the secret by an HMAC
    of all offers; those that connect prove it to each other.

    `offer` is called once. `answer` is called again if some offers were texts of an earlier start of the job, which the
    store that exchanges them still had (torch_store.py). `exchange`, `secret`: as of `connect_mesh`.
    """

    def __init__(self, rank: int, ranks: int, exchange: Exchange, timeout: float, secret: Secret | None) -> None:
        self._rank, self._ranks, self._exchange, self._timeout = rank, ranks, exchange, timeout
        # of the interfaces that the user names, one per rail; [""] if none is named: the system chooses
        self._addresses = interface_addresses()[:MAX_RAILS] or [""]
        self._secret, self._rails = secret, 1
        self._engine: Engine | None = None
        self._memory = 0  # handle of the shared memory; 0: none, which `unshare` ignores
        self._key = b""
        self._alive: AlivePipes | None = None
        # Messages go over an interface that the user names. If none is named, shared memory may serve.
        if self._addresses == [""] and os.environ.get("ANTIPHON_SHARED") != "0":
            with suppress(OSError):
                self._alive = AlivePipes(rank, ranks)
        self._sockets: list[int] = []  # descriptors per rank and rail, owned by the wire; -1 for this rank

    def offer(self, engine: Engine | None) -> str:
        """Return, as JSON, where this process's pipe is ("life"; null without shared memory), the name of the
        shared memory, and the number of networks ("rails"). `engine`: at process 0 only, which makes the memory."""
        name = b""
        if engine is not None and self._alive is not None:
            self._engine = engine
            self._memory, name = engine.share(self._ranks)
        fields = {
            "once": secrets.token_hex(32),  # a nonce
            "life": self._alive and self._alive.address,
            "memory": name.hex() if self._memory else "",
            "rails": len(self._addresses),
        }
        return json.dumps(fields)

    def answer(self, engine: Engine, offers: Sequence[str]) -> str:
        """Return whether this process can open the memory and all pipes, with a proof that it knows the secret."""
        self._engine = engine
        pipes_and_memories = [_read_offer(text, f"rank {rank}") for rank, text in enumerate(offers)]
        # all must use the same number of networks
        self._rails = min(_read_rails(text, f"rank {rank}") for rank, text in enumerate(offers))
        # The key covers all offers, which contain random numbers: an old proof is worthless. "group" separates this use
        # of the secret from others (mesh.py).
        digest = hashlib.sha256(json.dumps([*offers]).encode()).digest()
        self._key = derive_key(self._secret.data if self._secret else b"", b"group " + digest)
        return self._append_proof(self._rank, _YES if self._opens_all(engine, pipes_and_memories) else _NO)

    def _opens_all(self, engine: Engine, offers: Sequence[tuple[PipeAddress | None, bytes]]) -> bool:
        """Open the shared memory and all pipes. Closes those of an earlier call: they may be of other processes."""
        if self._alive is None:
            return False
        self._alive.forget()
        if self._rank:
            engine.unshare(self._memory)
            self._memory = engine.join(offers[0][1], self._rank)
        if not self._memory:
            return False
        pipes = [(rank, address) for rank, (address, _) in enumerate(offers) if rank != self._rank]
        return all(address is not None and self._alive.open_other(rank, address) for rank, address in pipes)

    def _append_proof(self, rank: int, text: str) -> str:
        """Append the proof to an answer. It is valid for this rank and group only."""
        return f"{text} {hmac.digest(self._key, f'{rank} of {self._ranks}: {text}'.encode(), 'sha256').hex()}"

    def connect(self, engine: Engine, answers: Sequence[str]) -> Wire:
        """Return the wire: shared memory if every process can open everything, else sockets."""
        if self._alive is not None and all(text.startswith(_YES) for text in answers):
            for rank, text in enumerate(answers):
                if not hmac.compare_digest(text.encode(), self._append_proof(rank, _YES).encode()):
                    hint = secret_hint(self._secret)
                    raise Invalid(f"rank {rank} does not know the secret of rank {self._rank}; {hint}")
            # the wire owns it from here on
            memory, self._memory = self._memory, 0
            return engine.shared(memory, self._alive.release())
        with ExitStack() as stack:
            meshes = [self._connect_mesh(address, stack) for address in self._addresses[: self._rails]]
            # all rails are connected: keep the sockets open
            stack.pop_all()
        self._sockets = [fd for fds_of_rank in zip(*map(detach_all, meshes), strict=True) for fd in fds_of_rank]
        return engine.sockets(self._rank, self._sockets, self._rails)

    def _connect_mesh(self, address: str, stack: ExitStack) -> list[socket.socket | None]:
        """Connect to all other processes, by this address of this process."""
        timeout, secret = self._timeout, self._secret
        connections = connect_mesh(
            self._rank, self._ranks, self._exchange, address=address, timeout=timeout, secret=secret
        )
        for connection in connections:
            if connection is not None:
                stack.enter_context(connection)
        return connections

    def close(self) -> None:
        """Free what no wire owns."""
        if self._engine is not None:
            self._engine.unshare(self._memory)
            self._memory = 0
        if self._alive is not None:
            self._alive.close()

    def cut(self) -> None:
        """Make calls under way over the wire fail at once, here and at the others. The wire stays open."""
        if not self._sockets and self._alive is not None:
            self._alive.cut()
        for fd in self._sockets:
            if fd >= 0:
                connection = socket.socket(fileno=fd)
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                connection.detach()  # the wire owns it


def _read_rails(text: str, sender: str) -> int:
    """Return the number of networks that a process can use side by side."""
    match fields_of(text, sender):
        case {"rails": int(rails)} if 0 < rails <= MAX_RAILS:
            return rails
    raise no_message(sender, f"expected the number of networks that it uses, 1 to {MAX_RAILS}")


def _read_offer(text: str, sender: str) -> tuple[PipeAddress | None, bytes]:
    """Return where the pipe of a process is, and the name of its memory."""
    match fields_of(text, sender):
        case {"once": str(), "life": [int(process), int(fd), int(inode)], "memory": str(memory)}:
            return (process, fd, inode), hex_of(memory, sender)
        case {"once": str(), "life": None, "memory": str(memory)}:
            return None, hex_of(memory, sender)
    raise no_message(sender, "expected its pipe (process, descriptor, inode) and its memory")


def engine_over_sockets(compiler: str = "") -> Engine:
    """Return the engine built without MPI, whose wires are sockets or shared memory: compiled if necessary, and loaded
    once for each environment."""
    return _load_engine(compiler, *(os.environ.get(name) for name in ("CC", "ANTIPHON_CACHE", "XDG_CACHE_HOME")))


@lru_cache(maxsize=8)
def _load_engine(compiler: str, *_: str | None) -> Engine:
    return Engine(library("sockets", compiler))


# ---- noticing that a process of the same host has ended ----

PipeAddress = tuple[int, int, int]  # process number, descriptor of its pipe in it, and the inode of the pipe


class AlivePipes:
    """A pipe of each process. The others open its reading end, and see it close when the process ends.

    A process has both ends of its own pipe as one descriptor. Nothing is written until `cut`. OSError if the system
    cannot open pipes by /proc.
    """

    def __init__(self, rank: int, ranks: int) -> None:
        self._rank, self._ends, self._owned = rank, [-1] * ranks, True
        ends = os.pipe()
        try:
            self._ends[rank] = _open_descriptor(os.getpid(), ends[0], os.O_RDWR)
        finally:
            for end in ends:
                os.close(end)
        # device and inode identify a pipe, so a reused process number is noticed
        self._device, inode = _identify_end(self._ends[rank])
        self.address: PipeAddress = (os.getpid(), self._ends[rank], inode)

    def open_other(self, other: int, address: PipeAddress) -> bool:
        """Open the pipe of another rank. In another process namespace the descriptor belongs to something else."""
        try:
            self._ends[other] = _open_descriptor(address[0], address[1], os.O_RDONLY)
        except (OSError, OverflowError):
            return False
        return _identify_end(self._ends[other]) == (self._device, address[2])

    def forget(self) -> None:
        """Close the pipes of all others."""
        for rank, end in enumerate(self._ends):
            if end >= 0 and rank != self._rank:
                os.close(end)
                self._ends[rank] = -1

    def release(self) -> list[int]:
        """Return all descriptors; the caller owns them."""
        self._owned = False
        return [*self._ends]

    def cut(self) -> None:
        """Write to the pipe, so that the others notice even if a child of this process holds its end, too."""
        with suppress(OSError):
            os.write(self._ends[self._rank], b".")

    def close(self) -> None:
        for end in self._ends if self._owned else ():
            if end >= 0:
                os.close(end)
        self._owned = False


def _open_descriptor(process: int, fd: int, flags: int) -> int:
    return os.open(f"/proc/{process}/fd/{fd}", flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)


def _identify_end(end: int) -> tuple[int, int]:
    status = os.fstat(end)
    return status.st_dev, status.st_ino
