"""The built-in runtimes by name. To add one: a file with a subclass of `measure.case.Runtime`, and an entry here.

Keys of `can`:
    library      the library whose own collectives are measured beside ours; "" for none
    modules      modules that must be installed
    programs     programs that must be installed
    options      the options of `How` that it supports
    in_place     the collectives that it supports in place; default: all
    use          how programs use a table that was measured there, with {table} and {ranks}
    cuts         how it cuts messages for which a schedule does not set the pieces, as fields of `core.transform.Cuts`,
                 so that models price the real messages; default: not at all
    algorithms   whether the library's own algorithm can be selected (tune --library-only)
    trace        whether it can record a run (--trace)
    in_switches  whether switches can multicast and combine (joints); default: no, and `tune` leaves out such schedules
"""

from __future__ import annotations

from typing import Any

from antiphon.registry import Entry

_ENGINE: dict[str, Any] = {  # as in engine/native/layout.c and plan.c
    "trace": True,
    "cuts": {"collectives": ("broadcast", "reduce", "allreduce", "reducescatter", "custom"), "piece": 2**17, "most": 4},
}

TABLE: dict[str, Entry] = {
    "local": Entry(
        "antiphon.runtimes.measure.local:Local",
        "all ranks in this process, by the interpreter, with NumPy",
        {"library": "NumPy", "modules": (), "programs": (), "options": (), "trace": True},
    ),
    "threads": Entry(
        "antiphon.runtimes.measure.device:Threads",
        "the kernel of GPUs on threads of this process, all ranks",
        {"library": "NumPy", "modules": (), "programs": ("c++",), "options": ("hybrid",)},
    ),
    "cuda": Entry(
        "antiphon.runtimes.measure.device:Cuda",
        "the same on the GPUs of this machine by CUDA; never run yet",
        {"library": "NumPy", "modules": (), "programs": (), "options": ("hybrid",)},
    ),
    "hip": Entry(
        "antiphon.runtimes.measure.device:Hip",
        "the same on AMD's by HIP; never run yet",
        {"library": "NumPy", "modules": (), "programs": (), "options": ("hybrid",)},
    ),
    "mpi": Entry(
        "antiphon.runtimes.measure.mpi:Mpi",
        "a process for each rank under MPI, by the engine",
        {
            **_ENGINE,
            "library": "the MPI library",
            "algorithms": True,
            "modules": ("mpi4py",),
            "programs": (),
            "options": ("mpiexec",),
            "use": "ANTIPHON_TABLE={table} LD_PRELOAD=$(antiphon build mpi) mpiexec -n {ranks} ./program",
        },
    ),
    "torch": Entry(
        "antiphon.runtimes.measure.torch:Torch",
        "a process for each rank on this machine under PyTorch, by the engine",
        {
            **_ENGINE,
            "library": "gloo",
            "modules": ("torch",),
            "programs": ("cc",),
            "options": (),
            "in_place": ("allreduce", "allgather", "broadcast", "reduce"),
            "use": 'ANTIPHON_TABLE={table} and dist.init_process_group("antiphon")',
        },
    ),
    "lab": Entry(
        "antiphon.runtimes.lab.runtime:LabRuntime",
        "a process for each rank in the emulated cluster, by the engine; needs root",
        {
            **_ENGINE,
            "library": "",
            "modules": (),
            "programs": ("ip", "tc", "bridge", "cc"),
            "options": ("scale", "name"),
        },
    ),
}
