"""A process group as such: how it gets what serves it, how its calls are made, and how it ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore

from antiphon.runtimes.engine.native import TransportFailed
from antiphon.runtimes.serve import torch_arguments as asked
from antiphon.runtimes.serve import torch_detail
from antiphon.runtimes.serve._torch_calls import Calls
from antiphon.runtimes.serve.group_start import Processes, serve
from antiphon.runtimes.serve.secret import given_secret
from antiphon.runtimes.serve.serving import Serving
from antiphon.runtimes.serve.torch_about import About
from antiphon.runtimes.serve.torch_gloo import Late
from antiphon.runtimes.serve.torch_monitored import Monitored
from antiphon.runtimes.serve.torch_profiled import Profiled
from antiphon.runtimes.serve.torch_store import Exchanges
from antiphon.runtimes.serve.torch_work import CollectiveFailed, Together, Worker
from antiphon.runtimes.serve.wires import Connecting, engine_over_sockets

_SETUP = 300.0  # seconds in which all processes of a group must have come together
_chosen: dict[str, Any] = {"table": None}


def use(table: Any) -> None:
    """The table for groups that are made from now on, instead of $ANTIPHON_TABLE: a file, a plan, plans, a tuning or a
    book; None for what the environment says. Only process 0 of a group looks at it."""
    _chosen["table"] = table


class QueuedGroup(About):
    """Executes collectives on one worker thread, in the order of the calls; point-to-point messages go to gloo."""

    def __init__(
        self, store: Any, rank: int, size: int, timeout: timedelta, places: Sequence[int], everyone: int, whole: bool
    ) -> None:
        super().__init__(rank, size)
        self._own, self._places, self._made = (rank, size), list(places), 0
        self._timeout = timeout
        self._names = ["", "undefined"]
        self._together: list[Any] | None = None
        self._connecting: Connecting | None = None
        patience = timeout.total_seconds()
        self._exchange = Exchanges(store, rank, size, min(patience, _SETUP))
        group = Processes(rank, size, self._exchange, places, everyone, whole, patience)
        serving = self._serving(group) if size > 1 else None
        self._store = PrefixStore(self._exchange.generation, store)  # where nothing of earlier processes lies
        self._monitored = Monitored(PrefixStore("monitored", self._store), rank, size)
        self._gloo = Late(PrefixStore("gloo", self._store), rank, size, timeout)
        self.calls = Calls(serving, self._gloo, rank, size)
        self._worker = Worker()
        self._profiled = Profiled(size, places)
        self._detail = torch_detail.wanted()

    # ---- setting up and closing ----

    def _serving(self, group: Processes) -> Serving:
        table = _chosen["table"] or os.environ.get("ANTIPHON_TABLE") or None
        return serve(group, table, engine_over_sockets, self._way, fill=True)

    def _way(self) -> Connecting:
        patience = min(self._timeout.total_seconds(), _SETUP)
        self._connecting = Connecting(*self._own, self._exchange, patience, given_secret())
        return self._connecting

    def shutdown(self, check: bool = True) -> None:
        serving = self.calls.serving
        done = self._worker.close(self._timeout.total_seconds() if not (serving and serving.broken) else 1.0)
        try:
            if done and serving and check:
                serving.finish()
        except TransportFailed as error:
            raise CollectiveFailed(str(error)) from None
        finally:
            if done and serving:
                serving.close()

    def abort(self) -> None:
        """What is under way fails at once, here and at the others."""
        serving = self.calls.serving
        if serving is not None and not serving.broken and self._connecting is not None:
            self._connecting.cut()
        self.shutdown(check=False)

    # ---- making calls ----

    def _submit(
        self, kind: str, given: Sequence[Any], results: list[Any], do: Callable[[], None], seconds: float,
        opts: Any, more: str = "", alike: Sequence[Any] | None = None,
    ) -> Any:  # fmt: skip
        """`kind` and `given` are for a profiler, if one listens; with `more` and `alike`, tensors of which all have as
        many of the same shapes (left out: the results), for who compares calls."""
        asked.need_cpu(kind, [*given, *results])
        self._made += 1
        serving = self.calls.serving
        if self._detail and serving is not None:
            text, then = torch_detail.call_text(kind + more, results if alike is None else alike), do

            def do() -> None:
                torch_detail.compare(serving, text, seconds)
                then()

        moments = self._profiled.called(kind, self._made, self._names[0], given, results)
        at_once = self._together is None and asked.at_once(opts, given, results)
        return self._begun(self._worker.submit(results, do, moments and self._profiled, moments, at_once))

    def _root(self, kind: str, opts: Any) -> int:
        root = asked.root_of(opts)
        asked.need_root(kind, root, self._own[1])
        return root

    def _seconds(self, options: Any) -> float:
        """Without any progress."""
        given = getattr(options, "timeout", None)
        own = given.total_seconds() if isinstance(given, timedelta) else 0.0
        return own if own > 0 else self._timeout.total_seconds()

    def _start_coalescing(self, device: Any) -> None:
        self._together = []

    def _end_coalescing(self, device: Any) -> Any:
        works, self._together = self._together or [], None
        return Together(works, self._worker.pool)

    # ---- point to point: by gloo ----

    def _begun(self, work: Any) -> Any:
        if self._together is not None:
            self._together.append(work)
        return work

    def send(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        asked.need_cpu("send", tensors)
        return self._begun(self._gloo().send(tensors, peer, tag))

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        asked.need_cpu("recv", tensors)
        return self._begun(self._gloo().recv(tensors, peer, tag))

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        asked.need_cpu("recv", tensors)
        return self._begun(self._gloo().recv_anysource(tensors, tag))
