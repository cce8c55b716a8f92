"""The built-in runtimes by name. To add one: a file with a subclass of `measure.case.Runtime`, and an entry here."""

from __future__ import annotations

from pathlib import Path

from antiphon.core.transform import Cuts
from antiphon.registry import Entry, RuntimeCapabilities

# The engine cuts messages of these collectives into one slice per 128 KiB, at most 4 (engine/native/layout.c, plan.c)
_CUTS = Cuts(("broadcast", "reduce", "allreduce", "reducescatter", "custom"), 2**17, most=4)

# Wheels for a platform contain the compiled engine (engine/build.py). Elsewhere a compiler is needed.
_IS_PREBUILT = Path(__file__).with_name("engine").joinpath("prebuilt").is_dir()
_CC, _CXX = ((), ()) if _IS_PREBUILT else (("cc",), ("c++",))

# What each field states is explained at `RuntimeCapabilities`, and what its `options` mean at `measure.case.How`.
# `programs` are executables that must be installed.
TABLE: dict[str, Entry[RuntimeCapabilities]] = {
    "local": Entry(
        "antiphon.runtimes.measure.local:Local",
        "all ranks in this process, by the interpreter, with NumPy",
        RuntimeCapabilities(library="NumPy", trace=True),
    ),
    "threads": Entry(
        "antiphon.runtimes.measure.device:Threads",
        "all ranks in this process: the GPU kernel, compiled for CPU threads",
        RuntimeCapabilities(library="NumPy", programs=_CXX, options=("hybrid", "lowering")),
    ),
    "cuda": Entry(
        "antiphon.runtimes.measure.device:Cuda",
        "the GPU kernel on the NVIDIA GPUs of this machine, by CUDA; not yet run on a GPU",
        RuntimeCapabilities(library="NumPy", options=("hybrid", "lowering")),
    ),
    "hip": Entry(
        "antiphon.runtimes.measure.device:Hip",
        "the GPU kernel on the AMD GPUs of this machine, by HIP; not yet run on a GPU",
        RuntimeCapabilities(library="NumPy", options=("hybrid", "lowering")),
    ),
    "mpi": Entry(
        "antiphon.runtimes.measure.mpi:Mpi",
        "a process for each rank under MPI, by the engine",
        RuntimeCapabilities(
            trace=True,
            cuts=_CUTS,
            library="the MPI library",
            algorithms=True,
            modules=("mpi4py",),
            options=("mpiexec",),
            use="ANTIPHON_TABLE={table} LD_PRELOAD=$(antiphon build mpi) mpiexec -n {ranks} ./program",
        ),
    ),
    "nccl": Entry(
        "antiphon.runtimes.measure.nccl:NcclRuntime",
        "a process for each GPU: NCCL or RCCL with chosen settings, used by tune only; not yet run on a GPU",
        RuntimeCapabilities(library="NCCL", algorithms=True, options=("mpiexec", "library")),
    ),
    "torch": Entry(
        "antiphon.runtimes.measure.torch:Torch",
        "a process for each rank on this machine under PyTorch, by the engine",
        RuntimeCapabilities(
            trace=True,
            cuts=_CUTS,
            library="gloo",
            modules=("torch",),
            programs=_CC,
            in_place=("allreduce", "allgather", "broadcast", "reduce"),
            use='ANTIPHON_TABLE={table} and dist.init_process_group("antiphon")',
        ),
    ),
    "lab": Entry(
        "antiphon.runtimes.lab.runtime:LabRuntime",
        "a process for each rank in the emulated cluster, by the engine; needs root",
        RuntimeCapabilities(trace=True, cuts=_CUTS, programs=("ip", "tc", "bridge", *_CC), options=("scale", "name")),
    ),
}
