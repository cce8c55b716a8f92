"""A process of `tune --on nccl`: it measures NCCL, MSCCL++ and our plans on one GPU, and checks every element.

The processes are those of mpiexec or srun (mpi4py), or of torchrun (PyTorch's gloo); or a launcher starts `python -m
antiphon.runtimes.measure.nccl_process FOLDER`. Messages between hosts only arrange the measuring.

A job is that of `mpi_process`. A case with `library` is a setting of NCCL (`nccl_calls`), or MSCCL++'s library with
NCCL's interface. A case without `library` is a plan, exported for MSCCL++'s executor. Cases take turns with
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

CALLS = 20  # calls of less than LARGE bytes that are timed together, for less noise
LARGE_CALLS = 5  # the same from LARGE bytes on: such calls take long, and vary less
LARGE = 2**22  # bytes
MAX_COMMUNICATORS = 24  # that are kept: each has hundreds of megabytes of a GPU's memory
Call = Callable[[], None]
Key = tuple[tuple[str, int], ...]  # of a communicator: its settings (`Nccl.key`)


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
    """Buffers of a rank on the host, with copies on its GPU. `pointers`: addresses of input and output on the GPU.

    Cases are out of place. `source` and `target` on the host are read from the GPU only in `wrong`.
    """

    def __init__(self, collective: Collective, rank: int, case: Case, gpu: GpuRuntime, pointers: Sequence[int]) -> None:
        super().__init__(collective, rank, case)
        self.gpu = gpu
        self.input_pointer, self.output_pointer = pointers
        gpu.copy(self.input_pointer, self.source.ctypes.data, self.source.nbytes, TO_GPU)

    def spoil(self) -> None:
        super().spoil()
        self.gpu.copy(self.output_pointer, self.target.ctypes.data, self.target.nbytes, TO_GPU)

    def wrong(self) -> int:
        self.gpu.copy(self.source.ctypes.data, self.input_pointer, self.source.nbytes, FROM_GPU)
        self.gpu.copy(self.target.ctypes.data, self.output_pointer, self.target.nbytes, FROM_GPU)
        return super().wrong()


class GpuCall(TimedCall):
    """Calls in a row (`row_length`), timed by the GPU, after one call that synchronizes the ranks."""

    def __init__(self, gpu: GpuRuntime, call: Call, row_length: int) -> None:
        self.gpu, self.call, self.row_length = gpu, call, row_length

    def measure(self, count: int) -> float:
        """Return the mean seconds of a call; `count` is not used: the row is always as long."""
        (begin, end), milliseconds = self.gpu.events, c_float()
        self.call()
        self.gpu.call("EventRecord", begin, self.gpu.stream)
        for _ in range(self.row_length):
            self.call()
        self.gpu.call("EventRecord", end, self.gpu.stream)
        self.gpu.call("EventSynchronize", end)
        self.gpu.call("EventElapsedTime", byref(milliseconds), begin, end)
        return milliseconds.value * 1e-3 / self.row_length


class NcclProcess(MpiProcess):
    """One of the processes of a job: its GPU, the libraries, and communicators by their settings."""

    def __init__(self, job: NcclJob, world: Any) -> None:
        self.job: NcclJob = job
        self.world, self.peers = world, CommPeers(world)
        hosts = world.allgather(socket.gethostname())
        # the GPU's number: the number of earlier processes on this host
        self.gpu = GpuRuntime(job.vendor, hosts[: world.rank].count(hosts[world.rank]))
        self.folder = tempfile.TemporaryDirectory(prefix="antiphon-")
        chunk_rules = Path(self.folder.name) / "chunks.txt"
        if job.plugin:  # NCCL looks for it once, when the first communicator is made
            os.environ.update({"NCCL_TUNER_PLUGIN": job.plugin, "ANTIPHON_NCCL_TUNER": str(chunk_rules)})
        # Setting "library" of a case is an index into this list: 0, NCCL; 1, MSCCL++'s library of the same interface.
        self.libraries = [Nccl(job.nccl, chunk_rules if job.plugin else None)]
        self.libraries += [Nccl(job.mscclpp)] if job.mscclpp else []
        self.communicators: dict[Key, c_void_p] = {}  # the one that was used last is last
        # Input and output for all cases, in memory that can be registered and that NVLS switches can reach.
        self.size = max(case.nbytes for case in job.cases)
        nccl, size = self.libraries[0], c_size_t(self.size)
        self.pointers = [nccl.get(c_void_p, "MemAlloc", size) for _ in range(2)]

    def run(self, cases: Sequence[Case]) -> list[Row]:
        """Measure cases of one collective and group together; a setting that some rank cannot follow gets a row
        {"refused": reason}."""
        collective = self.job.collectives[cases[0].program]
        buffers = GpuBuffers(collective, cases[0].ranks[self.world.rank], cases[0], self.gpu, self.pointers)
        # library={}: NCCL's own choice, which all cases take turns with
        default_calls, (fault,) = self._open_calls([replace(cases[0], library={})], collective, buffers)
        if fault:
            raise Unsupported(f"--on nccl: {collective.kind} by the library's own choice: {fault}")
        calls, faults = self._open_calls(cases, collective, buffers)
        measured = [case for case, fault in zip(cases, faults, strict=True) if not fault]
        rows = iter(Measurement(measured, buffers, calls, default_calls[0], self.peers).run() if measured else ())
        while len(self.communicators) > MAX_COMMUNICATORS:
            self._close_communicator(next(iter(self.communicators)))
        return [{"refused": fault} if fault else next(rows) for fault in faults]

    def _open_calls(
        self, cases: Sequence[Case], collective: Collective, buffers: GpuBuffers
    ) -> tuple[list[GpuCall], list[str]]:
        """Try each case once. Return the calls of those that work at all ranks, and the fault of every case ("": none).

        Collective: a case that fails at some rank fails at all.
        """
        calls, faults = list[GpuCall](), list[str]()
        for case in cases:
            call, fault = None, ""
            try:
                call = self._open_call(case, collective, buffers)
                call()
                self.gpu.call("StreamSynchronize", self.gpu.stream)
            except Exception as error:  # MSCCL++ has classes of its own
                fault = str(error) or type(error).__name__
            first_fault = next(filter(None, self.peers.all(fault)), "")
            faults.append(first_fault)
            if call is not None and not first_fault:
                calls.append(GpuCall(self.gpu, call, CALLS if case.nbytes < LARGE else LARGE_CALLS))
        return calls, faults

    def _open_call(self, case: Case, collective: Collective, buffers: GpuBuffers) -> Call:
        """Return the call of a case, on the communicator of its settings, which is opened if it is new. Collective."""
        if case.library is None:
            return self._open_plan(case, collective, buffers)
        library = self.libraries[case.library.get("library", 0)]
        key = library.key(case.library)
        if key not in self.communicators:
            identity = self.world.bcast(library.unique_id() if self.world.rank == 0 else None)
            new = library.open(dict(key), identity, self.world.rank, self.world.size)
            for pointer in self.pointers if case.library.get("registered") else ():
                handle = c_void_p()  # not kept: the registration ends with the communicator
                library.call(
                    "CommWindowRegister", new, c_void_p(pointer), c_size_t(self.size), byref(handle), c_int(SYMMETRIC)
                )
            self.communicators[key] = new
        self.communicators[key] = self.communicators.pop(key)  # move it to the end
        return library.collective(collective, case, self.communicators[key], self.gpu.stream, self.pointers)

    def _choose_file(self, case: Case, collective: Collective, nbytes: int) -> str:
        """Return the file of a plan that register.py, a file of the export, chooses for a call out of place."""
        files = self.job.plans[case.program]
        if files and case.op == "sum":
            folder = Path(self.folder.name) / f"plan{case.program}"
            folder.mkdir(exist_ok=True)
            for file_name, content in files.items():
                (folder / file_name).write_bytes(content)
            register = runpy.run_path(str(folder / "register.py"))
            chosen_label = register["fitting"](
                collective.kind, nbytes, in_place=False, root=collective.roots[0] if collective.roots else None,
                bindable=True,  # ncclMemAlloc has allocated the buffers so that switches can reach them
                dtype=case.dtype,
            )  # fmt: skip
            for file_name, label, *_ in register["PLANS"]:
                if label == chosen_label:
                    return str(folder / file_name)
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
        return partial(
            executor.execute,
            self.world.rank,
            *self.pointers,
            *sizes,
            getattr(mscclpp.DataType, case.dtype),
            mscclpp.ExecutionPlan(path, self.world.rank),
            self.gpu.stream.value,
            mscclpp.PacketType.LL16,  # the executor's default
        )

    def _close_communicator(self, key: Key) -> None:
        self.libraries[dict(key).get("library", 0)].call("CommDestroy", self.communicators.pop(key))

    def close(self) -> None:
        for key in list(self.communicators):
            self._close_communicator(key)
        for pointer in self.pointers:
            self.libraries[0].call("MemFree", c_void_p(pointer))
        self.folder.cleanup()


if __name__ == "__main__":
    main(sys.argv[1])
