"""The built-in runtimes by name. To add one: a file with a class of `_case.Runtime`, and a line here.

can["library"]: beside whose own collectives it measures; "" where there are none. can["modules"],
can["programs"]: what must be installed. can["options"]: those of `How` that mean something to it. can["in_place"]: the
collectives it has in place (left out: all). can["use"]: how programs come to run by a table that was measured there,
with {table} and {ranks}. can["cuts"]: how it cuts messages of which a schedule does not say the pieces, as the fields
of `core.transform.Cuts`, so that models price what really runs; left out: not at all.
can["algorithms"]: whether the library can be told which of its own algorithms to take (tune --library-only).
can["trace"]: whether a run can tell when everything happened (--trace).
can["in_switches"]: whether it lets switches multicast and combine (joints); left out: it cannot, and tune for it leaves
out what would.
"""

from __future__ import annotations

from typing import Any

from antiphon.registry import Entry

_ENGINE: dict[str, Any] = {  # engine/native/layout.c, plan.c
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
