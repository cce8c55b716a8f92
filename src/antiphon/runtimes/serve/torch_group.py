"""Base classes of our process group for PyTorch (CPU tensors): its start, its queue of calls, and its end.

    GroupFacts     the properties that PyTorch queries: rank, size, names, options, number of calls
      QueuedGroup  connects the processes, queues calls for its worker thread, closes
        AntiphonGroup (torch_backend)  the collectives

Point-to-point messages (send, recv) go to a group of gloo, PyTorch's own CPU backend, which is created when first
needed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import PrefixStore

from antiphon.runtimes.engine.native import TransportFailed
from antiphon.runtimes.serve import torch_arguments as arguments
from antiphon.runtimes.serve._torch_calls import Calls, call_text, compare_calls, compares_calls
from antiphon.runtimes.serve.group_start import Processes, start_serving
from antiphon.runtimes.serve.secret import given_secret
from antiphon.runtimes.serve.serving import Serving
from antiphon.runtimes.serve.torch_profiled import Profiled
from antiphon.runtimes.serve.torch_store import Exchanges, MonitoredBarrier
from antiphon.runtimes.serve.torch_work import CoalescedWork, CollectiveFailed, Worker
from antiphon.runtimes.serve.wires import Connecting, engine_over_sockets

if TYPE_CHECKING:  # PyTorch's own types fit neither all its versions nor what it passes

    class _Base:
        def __init__(self, rank: int, size: int) -> None: ...

else:
    _Base = dist.ProcessGroup

NAME = "antiphon"
DEVICES = ["cpu"]  # types of tensors that the group takes


class _Options(c10d.Backend.Options):
    """The options of a group. PyTorch deep-copies them, which is unnecessary: each request creates new ones."""

    def __deepcopy__(self, memo: Any) -> _Options:
        return self


class GroupFacts(_Base):
    """The interface by which PyTorch asks a process group for its ranks, names, options and number of calls."""

    _rank: int
    _size: int
    _world_ranks: list[int]  # ranks of the group's processes among all processes
    _call_count: int
    _names: list[str]  # its name, and a description
    _store: Any
    _timeout: timedelta
    _worker: Any

    # Different versions of PyTorch ask by different names.

    def name(self) -> str:
        return NAME

    getBackendName = _get_backend_name = name  # noqa: N815

    def rank(self) -> int:
        return self._rank

    getRank = rank  # noqa: N815

    def size(self) -> int:
        return self._size

    getSize = size  # noqa: N815

    def getGroupName(self) -> str:  # noqa: N802
        return self._names[0]

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._names[0] = name

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._names[1]

    def setGroupDesc(self, text: str) -> None:  # noqa: N802
        self._names[1] = text

    group_name, group_desc = property(getGroupName), property(getGroupDesc)
    _set_group_name, _set_group_desc = setGroupName, setGroupDesc

    def get_group_store(self) -> Any:
        return self._store

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    _set_default_timeout = set_timeout

    # ---- where PyTorch expects a backend object behind the group, it gets the group itself ----

    def _get_backend(self, _: Any) -> GroupFacts:
        return self

    @property
    def _device_types(self) -> list[Any]:
        return [torch.device(name) for name in DEVICES]

    @property
    def options(self) -> Any:
        options = _Options(NAME, self._timeout)
        options.global_ranks_in_group, options.group_name = self._world_ranks, self._names[0]
        return options

    @property
    def supports_splitting(self) -> bool:
        return False

    @property
    def supports_coalescing(self) -> bool:
        return True

    def _set_sequence_number_for_group(self) -> None:
        self._call_count = 0

    def _get_sequence_number_for_group(self) -> int:
        """Return the number of collectives called, the same at all processes that made the same calls."""
        return self._call_count

    def _wait_for_pending_works(self) -> None:
        self._worker.submit([], lambda: None).wait()


class LazyGloo:
    """Create a group of gloo at the first call, without waiting for other processes.

    Each pair of its processes connects at its first message. Most groups never need it, nor its threads and sockets."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        self._arguments, self._timeout = (store, rank, size), timeout
        self._lock = threading.Lock()
        self._group: Any = None

    def __call__(self) -> Any:
        with self._lock:  # the worker's thread and the program's may call at the same time
            if self._group is None:
                options = dist.ProcessGroupGloo._Options()
                options._devices = [dist.ProcessGroupGloo.create_default_device(lazy_init=True)]
                options._timeout = self._timeout
                self._group = dist.ProcessGroupGloo(*self._arguments, options)
            return self._group


_MAX_SETUP = 300.0  # seconds in which all processes of a group must have connected
_settings: dict[str, Any] = {"table": None}  # of this process, set by `use`


def use(table: Any) -> None:
    """Use this table for groups that are created from now on, instead of $ANTIPHON_TABLE.

    A file, a plan, plans, a tuning or a book; None for $ANTIPHON_TABLE. Only process 0 of a group reads it."""
    _settings["table"] = table


class QueuedGroup(GroupFacts):
    """Execute collectives on one worker thread, in the order of the calls. Point-to-point messages go to gloo."""

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta,
        world_ranks: Sequence[int],
        world_size: int,
        is_world: bool,
    ) -> None:
        super().__init__(rank, size)
        self._rank, self._size, self._world_ranks, self._call_count = rank, size, list(world_ranks), 0
        self._timeout = timeout
        self._names = ["", "undefined"]  # until PyTorch sets them
        self._coalesced: list[Any] | None = None  # works while PyTorch coalesces calls
        self._connecting: Connecting | None = None
        seconds = timeout.total_seconds()
        self._exchange = Exchanges(store, rank, size, min(seconds, _MAX_SETUP))
        # strict: a table must have plans for the group of all processes; smaller groups may get default plans.
        # places: by process of the group, its rank among all processes of the job
        group = Processes(
            rank, size, self._exchange, places=world_ranks, job_size=world_size, strict=is_world, timeout=seconds
        )
        serving = self._start_serving(group) if size > 1 else None
        # with a prefix of its own, so that texts left by a restarted job's earlier processes are not read (torch_store)
        self._store = PrefixStore(self._exchange.generation, store)
        self._monitored = MonitoredBarrier(PrefixStore("monitored", self._store), rank, size)
        self._gloo = LazyGloo(PrefixStore("gloo", self._store), rank, size, timeout)
        self.calls = Calls(serving, self._gloo, rank, size)
        self._worker = Worker()
        self._profiled = Profiled(size, world_ranks)
        self._compares_calls = compares_calls()  # true if TORCH_DISTRIBUTED_DEBUG is DETAIL

    # ---- setting up and closing ----

    def _start_serving(self, group: Processes) -> Serving:
        table = _settings["table"] or os.environ.get("ANTIPHON_TABLE") or None
        # fill: calls without a page get a plan at once
        return start_serving(group, table, engine_over_sockets, self._wire_setup, fill=True)

    def _wire_setup(self) -> Connecting:
        seconds = min(self._timeout.total_seconds(), _MAX_SETUP)
        self._connecting = Connecting(self._rank, self._size, self._exchange, seconds, given_secret())
        return self._connecting

    def shutdown(self, check: bool = True) -> None:
        """Wait for calls under way, then close. `check`: raise if a message has arrived that no call received."""
        serving = self.calls.serving
        # In a broken group all calls fail at once: a second is enough. A call that has not ended by then may still use
        # the wire, so nothing is closed.
        all_ended = self._worker.close(self._timeout.total_seconds() if not (serving and serving.broken) else 1.0)
        try:
            if all_ended and serving and check:
                serving.finish()
        except TransportFailed as error:
            raise CollectiveFailed(str(error)) from None
        finally:
            if all_ended and serving:
                serving.close()

    def abort(self) -> None:
        """Make calls in progress fail at once, here and at all other processes."""
        serving = self.calls.serving
        if serving is not None and not serving.broken and self._connecting is not None:
            self._connecting.cut()
        self.shutdown(check=False)

    # ---- making calls ----

    def _submit_call(
        self, kind: str, inputs: Sequence[Any], results: list[Any], do: Callable[[], None], seconds: float,
        opts: Any, detail: str = "", compared: Sequence[Any] | None = None,
    ) -> Any:  # fmt: skip
        """Queue the call that `do` executes, and return its work object. `kind` and `inputs` are shown to a profiler.

        `seconds`: the timeout without progress. `opts`: PyTorch's options of the call, such as asyncOp.
        If calls are compared between processes: `detail` is text about this call, and `compared` are the tensors that
        must have the same shapes at all processes (default: the results).
        """
        arguments.require_cpu(kind, [*inputs, *results])
        self._call_count += 1
        serving = self.calls.serving
        if self._compares_calls and serving is not None:
            text, execute = call_text(kind + detail, results if compared is None else compared), do

            def do() -> None:
                compare_calls(serving, text, seconds)
                execute()

        # None unless a profiler records this thread; else the call's executor notes in it when the call begins and ends
        times = self._profiled.record_call(kind, self._call_count, self._names[0], inputs, results)
        profiled = self._profiled if times is not None else None
        # a call that the caller waits for may run in the caller's own thread
        caller_waits = self._coalesced is None and arguments.runs_in_caller(opts, inputs, results)
        return self._add_to_coalesced(self._worker.submit(results, do, profiled, times, caller_waits))

    def _root_rank(self, kind: str, opts: Any) -> int:
        root = arguments.root_of(opts)
        arguments.require_root(kind, root, self._size)
        return root

    def _timeout_seconds(self, options: Any) -> float:
        """Return the timeout of a call: seconds without any progress."""
        timeout = getattr(options, "timeout", None)
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else 0.0
        return seconds if seconds > 0 else self._timeout.total_seconds()

    def _start_coalescing(self, device: Any) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: Any) -> Any:
        works, self._coalesced = self._coalesced or [], None
        # the pool: threads for the callbacks of futures, beside the one that executes calls
        return CoalescedWork(works, self._worker.pool)

    # ---- point to point: by gloo ----

    def _add_to_coalesced(self, work: Any) -> Any:
        """Return the work, added to the list of coalesced works if PyTorch is coalescing calls."""
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def send(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        arguments.require_cpu("send", tensors)
        return self._add_to_coalesced(self._gloo().send(tensors, peer, tag))

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        arguments.require_cpu("recv", tensors)
        return self._add_to_coalesced(self._gloo().recv(tensors, peer, tag))

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        arguments.require_cpu("recv", tensors)
        return self._add_to_coalesced(self._gloo().recv_anysource(tensors, tag))
