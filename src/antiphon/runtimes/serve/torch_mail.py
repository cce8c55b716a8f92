"""send and recv of a process group, by the engine: any thread, any tag, beside the collectives (native/mail.h)."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta

import torch

from antiphon.errors import AntiphonError, Invalid
from antiphon.runtimes.engine.mail import ANYBODY, Mail
from antiphon.runtimes.serve._torch_data import plain, put_back
from antiphon.runtimes.serve.ledger import Ledger
from antiphon.runtimes.serve.torch_work import ByWaiting, CollectiveFailed, NotYet

_SLICE = 0.2  # seconds after which a wait looks whether the program is interrupted
_SWEPT = 4  # of those that nobody waits for, looked at by each new one


class Message(ByWaiting):
    """A send or a receive that is under way. `tensor` is the program's, `made` what the engine works in."""

    def __init__(self, mail: Mails, says: str, tensor: torch.Tensor, made: torch.Tensor, comes: bool) -> None:
        super().__init__()
        self._mail, self._says, self._tensor, self._made, self._comes = mail, says, tensor, made, comes
        self.nbytes = made.nbytes
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._source, self.number = -1, 0

    def begin(self, ask: Callable[[], tuple[int, int]]) -> None:
        try:
            self.number, self._source = ask()
        except AntiphonError as error:
            self._over(error)
        else:
            if not self.number:
                self._over(None)

    def _over(self, error: Exception | None) -> None:
        """Other threads take it for over only when all is in its place: that number, which they look at, goes last."""
        if isinstance(error, Invalid):
            self._error = ValueError(f"{self._says}: {error}")
        elif error is not None:
            self._error = CollectiveFailed(f"{error} ({self._says})")
        try:
            if error is None and self._comes:
                put_back(self._made, self._tensor)
        finally:
            self.number = 0  # which the engine knows no more

    def _looked(self, seconds: float) -> int | None:
        """Waits so long at most: None where it is over, else what has moved, as Mail.wait says."""
        if not self.number:
            return None
        with self._lock:
            if not self.number:
                return None
            try:
                over, source = self._mail.wait(self.number, seconds)
            except AntiphonError as error:
                self._over(error)
                return None
            if not over:
                return source
            self._source = source
            self._over(None)
        return None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """With a time of its own, which may pass without an end to the message; else as long as the group allows."""
        own = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
        limit = own if own > 0 else self._mail.patience()
        end, seen = time.monotonic() + limit if self.number else 0.0, -1
        while self.number:
            moved = self._looked(max(0.0, min(_SLICE, end - time.monotonic())))
            if moved is None:
                break
            if moved != seen and own <= 0:
                end, seen = time.monotonic() + limit, moved  # it is on its way
            elif time.monotonic() >= end:
                if own > 0:
                    raise NotYet(self._says, own)
                self._mail.give_up(f"nothing came or went for {limit:g} seconds, the timeout of the group")
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        return self._looked(0.0) is None

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return [self._tensor]

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank

    def _later(self, do: Callable[[], None]) -> None:
        self._mail.later(do)

    def __del__(self) -> None:
        if getattr(self, "number", 0):
            self._mail.left(self.number, self._made)


class Mails:
    """Those of a group. `mail`: what carries them, asked for when it is first needed."""

    def __init__(
        self, mail: Callable[[], Mail], rank: int, size: int, patience: Callable[[], float],
        ledger: Ledger, later: Callable[[Callable[[], None]], None],
    ) -> None:  # fmt: skip
        self._make, self._rank, self._size, self.patience, self.later = mail, rank, size, patience, later
        self._ledger = ledger
        self._lock = threading.Lock()
        self._mail: Mail | None = None
        self._left: deque[tuple[int, torch.Tensor]] = deque()  # under way, but nobody will wait: with their memory

    # ---- for messages ----

    def wait(self, number: int, seconds: float) -> tuple[bool, int]:
        assert self._mail is not None
        return self._mail.wait(number, seconds)

    def left(self, number: int, made: torch.Tensor) -> None:
        """Nobody will wait for this one."""
        self._left.append((number, made))

    def _sweep(self) -> None:
        """Some of these may be over."""
        for _ in range(min(_SWEPT, len(self._left))):
            try:
                number, made = self._left.popleft()
            except IndexError:  # other threads sweep, too
                return
            with suppress(AntiphonError):
                if not self.wait(number, 0.0)[0]:
                    self._left.append((number, made))

    def give_up(self, why: str) -> None:
        if self._mail is not None:
            self._mail.end(why)

    # ---- for the group ----

    def send(self, tensors: Sequence[torch.Tensor], peer: int, tag: int) -> Message:
        made = self._one("send", tensors, peer, tag)
        data, size = made.data_ptr(), made.nbytes
        message = Message(self, f"send to rank {peer}, tag {tag}", tensors[0], made, False)
        return self._begun("send", message, lambda mail: (mail.send(peer, tag, data, size), -1))

    def recv(self, tensors: Sequence[torch.Tensor], peer: int, tag: int) -> Message:
        made = self._one("recv", tensors, peer, tag)
        return self._received(f"recv from rank {peer}, tag {tag}", tensors[0], made, peer, tag)

    def recv_anysource(self, tensors: Sequence[torch.Tensor], tag: int) -> Message:
        made = self._one("recv", tensors, -1, tag)
        return self._received(f"recv from any rank, tag {tag}", tensors[0], made, ANYBODY, tag)

    def _received(self, says: str, tensor: torch.Tensor, made: torch.Tensor, peer: int, tag: int) -> Message:
        data, size = made.data_ptr(), made.nbytes
        message = Message(self, says, tensor, made, True)
        return self._begun("recv", message, lambda mail: mail.receive(peer, tag, data, size))

    def _one(self, kind: str, tensors: Sequence[torch.Tensor], peer: int, tag: int) -> torch.Tensor:
        """The only tensor, as memory to work in."""
        if len(tensors) != 1:
            raise ValueError(f"{kind}: requires a single-element tensor list, not {len(tensors)} tensors")
        if tag < 0:
            raise ValueError(f"{kind}: the tag is {tag}; tags are not negative")
        if peer >= self._size or peer == self._rank:
            raise ValueError(f"{kind}: no other process of the group is rank {peer}; there are {self._size}")
        if tensors[0].layout is not torch.strided:
            raise ValueError(f"{kind}: a sparse tensor; send its indices and its values")
        return plain(tensors[0])

    def _begun(self, kind: str, message: Message, ask: Callable[[Mail], tuple[int, int]]) -> Message:
        began = time.perf_counter()
        mail = self._mail or self._opened()
        self._sweep()
        message.begin(lambda: ask(mail))
        row = self._ledger.row(kind, "messages", "antiphon")
        self._ledger.count(row, message.nbytes, time.perf_counter() - began)
        return message

    def _opened(self) -> Mail:
        with self._lock:
            if self._mail is None:
                self._mail = self._make()
            return self._mail
