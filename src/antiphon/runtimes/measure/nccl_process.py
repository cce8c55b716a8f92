"""A process of `tune --on nccl`: it measures NCCL, MSCCL++ and our plans on one GPU, and checks every element.

The processes are those of mpiexec or srun (mpi4py), or of torchrun (PyTorch's gloo); or a launcher starts `python -m
antiphon.runtimes.measure.nccl_process FOLDER`. Messages between hosts only arrange the measuring.

A job is that of `mpi_process`. A case with `library` is a setting of NCCL (`nccl_calls`), or MSCCL++'s library with
NCCL's interface. A case without `library` is a plan, exported for MSCCL++'s executor. Contestants take turns with
NCCL's own choice. A time is measured by the GPU's clock over calls in a row; the slowest rank's counts.
"""

from __future__ import annotations

import importlib
import os
import runpy
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from ctypes import byref, c_float, c_int, c_size_t, c_void_p
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from antiphon.core.collective import Collective
from antiphon.errors import Unsupported
from antiphon.runtimes.measure.case import Case, Row
from antiphon.runtimes.measure.loop import Measurement, RankBuffers, TimedCall
from antiphon.runtimes.measure.mpi_process import CommPeers, MpiJob, MpiProcess, main
from antiphon.runtimes.measure.nccl_calls import FROM_GPU, SYMMETRIC, TO_GPU, GpuRuntime, Nccl, Refused

CALLS, LARGE = 20, 2**22  # CALLS are timed together below LARGE bytes, a quarter of them from there on
MAX_COMMUNICATORS = 24  # that are kept: each has hundreds of megabytes of a GPU's memory
Call = Callable[[], None]


@dataclass
class NcclJob(MpiJob):
    """A job on GPUs. `nccl`, `mscclpp`: paths of the libraries (`mscclpp` "": none). `plugin`: the tuner plugin that
    sets chunk sizes, "" for none. `plans`: by program the files of its export for MSCCL++."""

    vendor: str = "cuda"
    nccl: str = ""
    mscclpp: str = ""
    plugin: str = ""
    plans: dict[int, dict[str, bytes]] = field(default_factory=dict)

    def open(self, mpi: Any, world: Any) -> NcclProcess:
        return NcclProcess(self, world)


class GpuBuffers(RankBuffers):
    """Buffers of a rank on the host, with copies on its GPU. `pointers`: addresses of input and output on the GPU."""

    def __init__(self, collective: Collective, rank: int, case: Case, gpu: GpuRuntime, pointers: Sequence[int]) -> None:
        super().__init__(collective, rank, case)
        self.gpu, self.pointers = gpu, pointers
        gpu.copy(pointers[0], self.source.ctypes.data, self.source.nbytes, TO_GPU)

    def spoil(self) -> None:
        super().spoil()
        self.gpu.copy(self.pointers[1], self.target.ctypes.data, self.target.nbytes, TO_GPU)

    def wrong(self) -> int:
        for array, pointer in zip((self.source, self.target), self.pointers, strict=True):
            self.gpu.copy(array.ctypes.data, pointer, array.nbytes, FROM_GPU)
        return super().wrong()


class GpuCall(TimedCall):
    """`count` calls in a row, timed by the GPU, after one call that synchronizes the ranks."""

    def __init__(self, gpu: GpuRuntime, call: Call, count: int) -> None:
        self.gpu, self.call, self.count = gpu, call, count

    def measure(self, count: int) -> float:
        """Return the mean seconds of a call; the argument `count` is not used."""
        (begin, end), milliseconds = self.gpu.events, c_float()
        self.call()
        self.gpu.call("EventRecord", begin, self.gpu.stream)
        for _ in range(self.count):
            self.call()
        self.gpu.call("EventRecord", end, self.gpu.stream)
        self.gpu.call("EventSynchronize", end)
        self.gpu.call("EventElapsedTime", byref(milliseconds), begin, end)
        return milliseconds.value * 1e-3 / self.count


class NcclProcess(MpiProcess):
    """One of the processes of a job: its GPU, the libraries, and communicators by their settings."""

    def __init__(self, job: NcclJob, world: Any) -> None:
        self.job: NcclJob = job
        self.world, self.peers = world, CommPeers(world)
        hosts = world.allgather(socket.gethostname())
        # the GPU's number: how many earlier processes are on this host
        self.gpu = GpuRuntime(job.vendor, hosts[: world.rank].count(hosts[world.rank]))
        self.folder = tempfile.TemporaryDirectory(prefix="antiphon-")
        table = Path(self.folder.name) / "chunks.txt"
        if job.plugin:  # NCCL looks for it once, when the first communicator is made
            os.environ.update({"NCCL_TUNER_PLUGIN": job.plugin, "ANTIPHON_NCCL_TUNER": str(table)})
        self.libraries = [Nccl(job.nccl, table if job.plugin else None)]
        self.libraries += [Nccl(job.mscclpp)] if job.mscclpp else []
        self.communicators: dict[tuple[tuple[str, int], ...], c_void_p] = {}
        # Input and output for all cases, in memory that can be registered and that NVLS switches can reach.
        self.size = max(case.nbytes for case in job.cases)
        nccl, size = self.libraries[0], c_size_t(self.size)
        self.pointers = [nccl.get(c_void_p, "MemAlloc", size) for _ in range(2)]

    def run(self, cases: Sequence[Case]) -> list[Row]:
        """Measure cases of one collective and group together; a setting that some rank cannot follow gets a row
        {"refused": reason}."""
        collective = self.job.collectives[cases[0].program]
        buffers = GpuBuffers(collective, cases[0].ranks[self.world.rank], cases[0], self.gpu, self.pointers)
        default, (fault,) = self._open_calls([replace(cases[0], library={})], collective, buffers)
        if fault:
            raise Unsupported(f"--on nccl: {collective.kind} by the library's own choice: {fault}")
        calls, faults = self._open_calls(cases, collective, buffers)
        measured = [case for case, fault in zip(cases, faults, strict=True) if not fault]
        rows = iter(Measurement(measured, buffers, calls, default[0], self.peers).run() if measured else ())
        while len(self.communicators) > MAX_COMMUNICATORS:
            self._close_communicator(next(iter(self.communicators)))
        return [{"refused": fault} if fault else next(rows) for fault in faults]

    def _open_calls(
        self, cases: Sequence[Case], collective: Collective, buffers: GpuBuffers
    ) -> tuple[list[GpuCall], list[str]]:
        """Try each case once. Return the calls of those that work at all ranks, and the fault of every case."""
        calls, faults = list[GpuCall](), list[str]()
        for case in cases:
            call, fault = None, ""
            try:
                call = self._open_call(case, collective, buffers)
                call()
                self.gpu.call("StreamSynchronize", self.gpu.stream)
            except Exception as error:  # MSCCL++ has classes of its own
                fault = str(error) or type(error).__name__
            faults.append(next(filter(None, self.peers.all(fault)), ""))
            if call is not None and not faults[-1]:
                # large calls take long, and vary less
                calls.append(GpuCall(self.gpu, call, CALLS if case.nbytes < LARGE else CALLS // 4))
        return calls, faults

    def _open_call(self, case: Case, collective: Collective, buffers: GpuBuffers) -> Call:
        if case.library is None:
            return self._open_plan(case, collective, buffers)
        library = self.libraries[case.library.get("library", 0)]  # 0: NCCL; 1: MSCCL++'s library of the same interface
        key = library.key(case.library)
        if key not in self.communicators:
            identity = self.world.bcast(library.unique_id() if self.world.rank == 0 else None)
            new = library.open(dict(key), identity, self.world.rank, self.world.size)
            for pointer in self.pointers if case.library.get("registered") else ():  # until the communicator ends
                window = c_size_t(self.size), byref(c_void_p()), c_int(SYMMETRIC)
                library.call("CommWindowRegister", new, c_void_p(pointer), *window)
            self.communicators[key] = new
        self.communicators[key] = self.communicators.pop(key)  # move it to the end: the least recently used is first
        return library.collective(collective, case, self.communicators[key], self.gpu.stream, self.pointers)

    def _choose_file(self, case: Case, collective: Collective, nbytes: int) -> str:
        """Return the file of a plan that register.py chooses for a call out of place."""
        files = self.job.plans[case.program]
        if files and case.op == "sum":
            folder = Path(self.folder.name) / f"plan{case.program}"
            folder.mkdir(exist_ok=True)
            for name, content in files.items():
                (folder / name).write_bytes(content)
            module, root = runpy.run_path(str(folder / "register.py")), (*collective.roots, None)[0]
            label = module["fitting"](
                collective.kind, nbytes, in_place=False, root=root, bindable=True, dtype=case.dtype
            )
            for file, name, *_ in module["PLANS"]:
                if name == label:
                    return str(folder / file)
        raise Refused(f"no plan for MSCCL++ fits {case.nbytes} bytes of {case.dtype} {case.op}")

    @cached_property
    def _executor(self) -> tuple[Any, Any]:
        """MSCCL++'s package, and its executor among these processes."""
        mscclpp = importlib.import_module("mscclpp")
        bootstrap = mscclpp.TcpBootstrap.create(self.world.rank, self.world.size)
        bootstrap.initialize(self.world.bcast(bootstrap.create_unique_id() if self.world.rank == 0 else None))
        return mscclpp, mscclpp.Executor(mscclpp.Communicator(bootstrap))

    def _open_plan(self, case: Case, collective: Collective, buffers: GpuBuffers) -> Call:
        """Return the call of a plan by MSCCL++'s executor."""
        sizes = buffers.source.nbytes, buffers.target.nbytes
        path = self._choose_file(case, collective, max(sizes))
        mscclpp, executor = self._executor
        plan = mscclpp.ExecutionPlan(path, self.world.rank)
        type_ = getattr(mscclpp.DataType, case.dtype)
        call = partial(executor.execute, self.world.rank, *self.pointers, *sizes)
        return partial(call, type_, plan, self.gpu.stream.value, mscclpp.PacketType.LL16)

    def _close_communicator(self, key: tuple[tuple[str, int], ...]) -> None:
        self.libraries[dict(key).get("library", 0)].call("CommDestroy", self.communicators.pop(key))

    def close(self) -> None:
        for key in list(self.communicators):
            self._close_communicator(key)
        for pointer in self.pointers:
            self.libraries[0].call("MemFree", c_void_p(pointer))
        self.folder.cleanup()


if __name__ == "__main__":
    main(sys.argv[1])
