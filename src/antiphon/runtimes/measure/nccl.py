"""The runtime `nccl`: a process per GPU under mpiexec, srun or torchrun, in which NCCL or RCCL runs with its settings.

Only `tune` uses it, to race NCCL's settings (`nccl_choose`). MSCCL++ races too where its library with NCCL's interface
is installed, and so do our plans where its Python package is, whose executor runs them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from antiphon.core.plan import Plan
from antiphon.errors import AntiphonError, Invalid, Missing, Unsupported
from antiphon.formats.mscclpp.write import mscclpp_json
from antiphon.runtimes.engine.build import library
from antiphon.runtimes.engine.launch import is_launched
from antiphon.runtimes.measure import nccl_process
from antiphon.runtimes.measure.case import Case, How, RowCallback, Runnable, Runtime, Stop, never
from antiphon.runtimes.measure.library import Library
from antiphon.runtimes.measure.mpi import first_process, run_job, split_row, world_of_mpi
from antiphon.runtimes.measure.nccl_calls import CHUNKS, GPU_RUNTIMES, VARIABLES, Nccl, load_library
from antiphon.runtimes.measure.nccl_process import NcclJob

# file names for the dynamic loader
FILES = {"cuda": "libnccl.so.2", "hip": "librccl.so.1"}
TUNERS = ("libnccl-tuner.so", "libnccl-net.so")  # in which NCCL looks for a tuner unless a variable names another
MSCCLPP = "libmscclpp_nccl.so"


@cache
def launched_world() -> tuple[Any, Any] | None:
    """Return the processes that a launcher started, as mpi4py's MPI (under torchrun None) and a communicator.

    None without a launcher.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun, which srun may have started
        return None, import_module("antiphon.runtimes.measure.torch_process").TorchWorld()
    if find_spec("mpi4py") is None:
        raise Missing(
            "--on nccl: processes of mpiexec and srun meet by mpi4py, which is not installed: pip install "
            "'antiphon[mpi]'; or with PyTorch: torchrun --nproc-per-node 8 -m antiphon tune ..."
        )
    if not is_launched() and os.environ.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        raise Missing(
            f"--on nccl: srun started {os.environ['SLURM_STEP_NUM_TASKS']} processes without a connection for MPI: "
            "add --mpi=pmix (srun --mpi=list shows what your Slurm has), or use torchrun"
        )
    return world_of_mpi()


def find_nccl(how: How) -> tuple[str, str]:
    """Return the maker of the GPUs ("cuda" or "hip") and the path of the library."""
    for vendor, file in FILES.items():
        with suppress(Missing):
            # a library that the user names belongs to AMD's GPUs if it is called so
            if not how.library or ("rccl" in Path(how.library).name) == (vendor == "hip"):
                load_library(vendor, GPU_RUNTIMES[vendor])
                return vendor, load_library(vendor, (how.library or file,))._name  # as it was loaded
    raise Missing(
        f"--on nccl: found neither CUDA's libcudart with {how.library or FILES['cuda']} nor ROCm's libamdhip64 with "
        f"{how.library or FILES['hip']}; run where the GPUs are, with the folders of both in LD_LIBRARY_PATH, or name "
        "the NCCL of your program by --on nccl:library=FILE"
    )


def nccl_here(how: How) -> Library:
    """Return NCCL or RCCL as found here. `algorithms` is empty: `nccl_choose` lists the settings of each version.

    `always` has the version code alone (22703: 2.27.3), which is no setting.
    """
    for name in VARIABLES:
        if name in os.environ:
            raise Invalid(f"--on nccl: {name} is set, so NCCL does not choose by itself; unset it to measure")
    vendor, path = find_nccl(how)
    version = Nccl(path).version
    text = f"{version // 10_000}.{version % 10_000 // 100}.{version % 100}"  # 22703 is 2.27.3
    return Library("NCCL" if vendor == "cuda" else "RCCL", text, path, algorithms={}, always={"version": version})


def runs_plans() -> bool:
    """Return whether MSCCL++'s executor is installed, which runs plans of ours."""
    return find_spec("mscclpp") is not None


def _export_plan(runnable: Runnable) -> dict[str, bytes]:
    """Return the files of a plan for MSCCL++; {} where it cannot be written."""
    with suppress(AntiphonError):
        plan = Plan.of(runnable.topology, runnable.schedule)
        return dict(mscclpp_json({plan.collective.kind: plan}))
    return {}


def find_mscclpp() -> str:
    """Return MSCCL++'s library with NCCL's interface, "" where it is not installed."""
    spec = find_spec("mscclpp")
    folders = [Path(place) / "lib" for place in (spec.submodule_search_locations or ())] if spec else []
    folders += [Path(place) for place in os.environ.get("LD_LIBRARY_PATH", "").split(":") if place]
    return next((str(folder / MSCCLPP) for folder in folders if (folder / MSCCLPP).exists()), "")


@cache  # the answer from before a job sets NCCL_TUNER_PLUGIN to this very plugin
def chunk_plugin(name: str, version: int, compiler: str) -> str:
    """Return our tuner plugin, by which chunk sizes are set; "" where another tuner is in use, or it cannot be used."""
    # CHUNKS: the first version in which tuner plugins set chunk sizes
    if name != "NCCL" or version < CHUNKS or "NCCL_TUNER_PLUGIN" in os.environ:
        return ""
    for file in TUNERS:
        with suppress(Missing):
            tuner = load_library(file, (file,))
            # a tuner exports a struct named after the version of NCCL's interface, 2 to 6 so far
            if any(hasattr(tuner, f"ncclTunerPlugin_v{number}") for number in range(2, 7)):
                return ""
    with suppress(Missing):
        return str(library("nccl_tuner", compiler))
    return ""


class NcclRuntime(Runtime):
    """Run settings of NCCL in one launch."""

    def ready(self, how: How) -> None:
        find_nccl(how)

    def first(self) -> AbstractContextManager[bool]:
        return first_process(launched_world)

    def run(
        self, programs: Sequence[Runnable], cases: Sequence[Case], how: How, on_row: RowCallback, enough: Stop = never
    ) -> None:
        # a case with a `library` measures settings of NCCL, a case without it a plan of ours
        if all(case.library is None for case in cases):
            raise Unsupported("--on nccl: measures settings of NCCL: use it with antiphon tune")
        ours = {case.program for case in cases if case.library is None}
        (vendor, path), nccl = find_nccl(how), nccl_here(how)
        plugin = chunk_plugin(nccl.name, nccl.always["version"], how.compiler)
        job = NcclJob(
            library="", processes=max(len(case.ranks) for case in cases),
            programs=[runnable.data for runnable in programs], cases=list(cases),
            vendor=vendor, nccl=path, mscclpp=find_mscclpp(), plugin=plugin,
            plans={number: _export_plan(programs[number]) for number in ours},
        )  # fmt: skip

        run_job(
            job, nccl_process.__name__, mpiexec=how.mpiexec, timeout=how.timeout, progress=split_row(on_row),
            enough=enough, world_of=launched_world,
        )  # fmt: skip
