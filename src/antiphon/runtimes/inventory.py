"""List the hardware and software here that matters for collectives, and the uses of Antiphon that work with it.

`look_here` reads Linux's files (processors, memory, GPUs, network cards), asks programs on PATH for their versions, and
finds libraries by their file names and Python packages by their metadata. Nothing is imported or loaded, so a broken
installation cannot crash the search. Programs run at the same time, each with a timeout; one that hangs has no version,
and one that fails without a word has a `fault` and serves no workflow.

`list_workflows` turns that into workflows: uses of Antiphon with their commands (such as plans under
PyTorch), "route" in JSON. Those that work come first, in the order in which to try them. `missing` names the first
requirement that is not met; `status` states on what hardware the workflow was tested.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sysconfig
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from antiphon.formats import lacks
from antiphon.formats.probe.here import TOO_LONG, ethernet_speed, rdma_speed, read_text, run_program
from antiphon.formats.probe.speeds import device_name
from antiphon.registry import table

TIMEOUT = 5.0  # seconds for each program
VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD"}
# PCI classes: VGA, 3D and other display controllers, processing accelerators
GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
MAX_RANKS = 8  # of the example commands
PROGRAMS = {
    "mpi": ("mpiexec", "mpirun", "mpicc"),
    "launchers": ("srun", "torchrun"),
    "compilers": ("cc", "gcc", "clang", "nvcc", "hipcc"),
}
# Options that print a version, tried until one names an MPI. For --version, mpicc prints the version of its compiler:
# that of the MPI is printed for the first of these by Open MPI, for the second by MPICH.
VERSION_OPTIONS = {"mpicc": ("-showme:version", "-v")}
# A line of nvidia-smi: name and version of the driver
_GPU_LINE = re.compile(r"(?m)^([A-Za-z][\w ()/.+-]{0,80}), *([0-9]+(?:\.[0-9]+)+)[ \r]*$", re.ASCII)
# A version follows the name of a program or maker, a closing bracket, or a word for it: "cc 12.1", "mpirun (Open MPI)
# 5.0.3", "slurm-wlm 22.05.8", "release 12.4". Numbers elsewhere, such as addresses in an error, are no version.
VERSION = re.compile(
    r"(?i)(?:\b(?:version|release|g?cc|clang|slurm(?:-wlm)?|MPI)|\))[ :v]*([0-9]{1,4}(?:\.[0-9]{1,6}){1,3})(?![\w.])"
)
MPIS = {"Open MPI": "Open MPI|open-mpi|OpenRTE", "MPICH": "MPICH|HYDRA", "Intel MPI": r"Intel\(R\) MPI"}
PACKAGES = (
    "numpy", "mpi4py", "torch", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "mscclpp", "cupy-cuda12x", "cupy-cuda13x",
)  # fmt: skip
LIBRARIES = {"NCCL": "libnccl.so*", "RCCL": "librccl.so*", "MSCCL++": "libmscclpp.so*", "UCC": "libucc.so*"}
FOLDERS = (
    "usr/lib", "usr/lib64", "usr/lib/*-linux-gnu", "usr/local/lib", "usr/local/cuda*/lib64", "opt/rocm*/lib",
)  # fmt: skip
# Values of a workflow's `status`.
TESTED = "tested by the authors on CPUs"
ON_MPI = f"{TESTED}, with Open MPI 5.0 and MPICH 5.0"
MEASURES = "tune measures for up to 10 minutes"
NO_GPU, LOGS = "not yet run on a GPU", "tested on published logs"
# Variables by which an MPI uses rules
OPENMPI_RULES = (
    "OMPI_MCA_coll_tuned_use_dynamic_rules=1", "OMPI_MCA_coll_tuned_dynamic_rules_filename=rules/openmpi-rules.conf",
)  # fmt: skip
MPICH_RULES = (
    "MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE=rules/mpich-mpir.json",
    "MPIR_CVAR_CH4_COLL_SELECTION_TUNING_JSON_FILE=rules/mpich-ch4.json",
)
SWEEP = "./all_reduce_perf -b 1K -e 1G -f 2 -g"  # and the number of GPUs


def look_here(root: str = "/", environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return hardware and software by kind. `root`: of Linux's files; `environment`: has PATH and LD_LIBRARY_PATH."""
    variables = os.environ if environment is None else environment
    sys = Path(root, "sys")
    inventory: dict[str, Any] = {
        "processors": _read_processors(Path(root)), "memory": _read_memory(Path(root)),
        "gpus": _read_gpus(sys / "bus/pci/devices"), "cards": _read_cards(sys / "class"),
    }  # fmt: skip
    path = variables.get("PATH", "")
    programs = [(kind, name) for kind, names in PROGRAMS.items() for name in names if shutil.which(name, path=path)]
    with ThreadPoolExecutor(8) as pool:
        smi = shutil.which("nvidia-smi", path=path)
        command = (smi or "", "--query-gpu=name,driver_version", "--format=csv,noheader")
        query = pool.submit(run_program, command, TIMEOUT) if smi else None
        queries = [pool.submit(_ask_version, kind, name, path) for kind, name in programs]
        rows = [program_query.result() for program_query in queries]
        smi_output, _ = query.result() if query else (b"", "")
    for kind in PROGRAMS:
        inventory[kind] = [row for (program_kind, _), row in zip(programs, rows, strict=True) if program_kind == kind]
    if gpu_lines := _GPU_LINE.findall(smi_output.decode("utf-8", "replace")):
        amd_gpus = [gpu for gpu in inventory["gpus"] if gpu["vendor"] != "NVIDIA"]
        inventory["gpus"] = [
            {"vendor": "NVIDIA", "name": name.strip(), "driver": driver} for name, driver in gpu_lines
        ] + amd_gpus
    inventory["packages"] = {"python": platform.python_version()}
    inventory["packages"] |= {name: version for name in PACKAGES if (version := package_version(name))}
    inventory["libraries"] = _find_libraries(Path(root), variables.get("LD_LIBRARY_PATH", ""))
    return inventory


def _read_processors(root: Path) -> dict[str, Any]:
    """Return the model, and the numbers of packages, cores, allowed hardware threads, and memories (NUMA nodes)."""
    cpus = root / "sys/devices/system/cpu"
    siblings = {read_text(path) for path in cpus.glob("cpu[0-9]*/topology/thread_siblings_list")}
    packages = {read_text(path) for path in cpus.glob("cpu[0-9]*/topology/physical_package_id")}
    model = re.search(r"(?m)^model name\s*:\s*(.+)$", read_text(root / "proc/cpuinfo"))
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {
        "model": model[1].strip() if model else "", "packages": len(packages), "cores": len(siblings),
        "allowed": allowed, "memories": len(list((root / "sys/devices/system/node").glob("node[0-9]*"))),
    }  # fmt: skip


def _read_memory(root: Path) -> int | None:
    """Return bytes of memory that this process may use: the machine's, or less by its control group."""
    total = re.search(r"(?m)^MemTotal:\s*([0-9]{1,15}) kB", read_text(root / "proc/meminfo"))
    limit = read_text(root / "sys/fs/cgroup/memory.max")  # "max" or bytes; 19 digits mean no limit
    sizes = [*([int(total[1]) * 1024] if total else []), *([int(limit)] if limit.isdigit() and len(limit) < 19 else [])]
    return min(sizes, default=None)


def _read_gpus(devices: Path) -> list[dict[str, str]]:
    """Return the GPUs among the PCI devices; `name`: the product, or the device number if it is unknown."""
    gpus = []
    for device in sorted(devices.glob("*")):
        vendor = VENDORS.get(read_text(device / "vendor"))
        if vendor and read_text(device / "class").startswith(GPU_CLASSES):
            board = device_name(read_text(device / "vendor"), read_text(device / "device"))
            driver = read_text(device / "driver/module/version")
            gpus.append({"vendor": vendor, "name": board or read_text(device / "device"), "driver": driver})
    return gpus


def _read_cards(classes: Path) -> list[dict[str, Any]]:
    """Return network cards with RDMA, then the others; bytes per second where the link is up."""
    cards = []
    for group, speed_of in (("infiniband", rdma_speed), ("net", ethernet_speed)):
        for path in sorted((classes / group).glob("*")):
            if (path / "device").exists():
                layers = [read_text(layer) for layer in path.glob("ports/*/link_layer")]
                kind = "Ethernet" if group == "net" else "InfiniBand" if "InfiniBand" in layers else "RDMA"
                speed = speed_of(path)
                cards.append({"name": path.name, "kind": kind, "bandwidth": float(speed) if speed else None})
    return cards


def _ask_version(kind: str, name: str, path: str) -> dict[str, str]:
    """Return a program with the version that it prints; torchrun is not run, as it loads all of PyTorch.

    `fault`: why it cannot be used: it failed without output, or is an MPI of unknown version. Taking too long is none.
    """
    executable = shutil.which(name, path=path) or name
    output, why, makers = b"", "", list[str]()
    for option in VERSION_OPTIONS.get(name, ("--version",)) if name != "torchrun" else ():
        output, why = run_program((executable, option), TIMEOUT)
        printed = output.decode("utf-8", "replace")
        makers = [maker for maker, pattern in MPIS.items() if re.search(pattern, printed)] if kind == "mpi" else []
        if makers or why == TOO_LONG:
            break
    printed, fault = output.decode("utf-8", "replace"), "" if output or why == TOO_LONG else why
    # where mpicc does not name its MPI, the version that it prints may be that of its compiler
    version = VERSION.search(printed) if makers or name not in VERSION_OPTIONS else None
    if kind == "mpi" and output and version is None:
        fault = "unknown version"  # it may be anything
    return {
        "name": name, "by": makers[0] if makers else "", "version": version[1] if version else "", "path": executable,
        "fault": fault,
    }  # fmt: skip


def package_version(name: str) -> str:
    """Return the version of a Python package; empty where it is missing."""
    try:
        return metadata.version(name)
    except Exception:  # missing, or its metadata is broken
        return ""


def _find_libraries(root: Path, search_path: str) -> list[dict[str, str]]:
    """Return libraries, with their versions from the file names; of several files of one version, the first."""
    wheel = f"{sysconfig.get_paths()['purelib']}/nvidia/nccl/lib"
    folders = [*filter(None, search_path.split(":")), wheel, *(f"{root}/{folder}" for folder in FOLDERS)]
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for folder in folders:
        for name, pattern in LIBRARIES.items():
            for path in filter(os.path.isfile, sorted(glob(f"{folder}/{pattern}"))):
                real = os.path.realpath(path)
                version = real.partition(".so.")[2]
                if name == "NCCL" and "/nvidia/nccl/" in real:
                    version = package_version("nvidia-nccl-cu13") or package_version("nvidia-nccl-cu12") or version
                rows.setdefault((name, version), {"name": name, "version": version, "path": path})
    return list(rows.values())


class Workflow(NamedTuple):
    """A way to use Antiphon. `needs`: its requirements by name, and whether each is met here."""

    name: str
    status: str
    needs: Mapping[str, bool]
    commands: tuple[str, ...]


def _runtime_needs(name: str) -> dict[str, bool]:
    """Return the needs of a runtime: what it lacks, as not met; or, if it lacks nothing, its name, as met."""
    missing = lacks(table("runtime")[name])
    return {missing or name: not missing}


def list_workflows(inventory: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the workflows with what is missing, those that work here first, for GPUs before others."""
    packages = inventory["packages"]
    compilers, mpi_programs = (
        {row["name"] for row in inventory[kind] if not row["fault"]} for kind in ("compilers", "mpi")
    )
    libraries = {row["name"] for row in inventory["libraries"]}
    nvidia, amd = (
        {f"{vendor} GPUs": any(gpu["vendor"] == vendor for gpu in inventory["gpus"])} for vendor in VENDORS.values()
    )
    compiler = {"a C compiler": bool(compilers & {"cc", "gcc", "clang"})}
    mpi = {"mpiexec": bool(mpi_programs & {"mpiexec", "mpirun"}), "mpi4py": "mpi4py" in packages, **compiler}
    nccl = {"NCCL": "NCCL" in libraries or any(name.startswith("nvidia-nccl") for name in packages)}
    rccl = {"RCCL": "RCCL" in libraries}
    mscclpp = {"MSCCL++": "MSCCL++" in libraries or "mscclpp" in packages}
    torch, lab = _runtime_needs("torch"), _runtime_needs("lab")
    count = len(inventory["gpus"])
    box = "here.json" if count else "hgx-h100"
    ranks = max(2, min(count or inventory["processors"]["allowed"], MAX_RANKS))
    tune = f"antiphon tune allreduce full:ranks={ranks}"
    # every workflow writes files of its own, so that one does not change what another uses
    tune_by_logs = f'antiphon tune allreduce {box} --from-logs logs --run "{SWEEP} {count}" -o by-logs.json'
    plan, run = f"antiphon plan allreduce {box} -o box.json", "antiphon run box.json --nbytes 1MiB --on"
    has_mpi = mpi["mpiexec"] and mpi["mpi4py"]
    has_mpich = any(row["by"] == "MPICH" for row in inventory["mpi"])  # Open MPI does not start in a lab
    launch_needs = {"a second GPU": count > 1, "mpi4py with mpiexec, or torch": has_mpi or "torch" in packages}
    start = f"mpiexec -n {count}" if has_mpi else f"torchrun --nproc-per-node {count} -m"
    race = f"{start} antiphon tune allreduce {box} --on nccl -o settings.json"
    export, setting = (
        "antiphon export {0}.json --to {1} -o {0}".format,
        "export ANTIPHON_NCCL_TUNER={}/nccl-tuner.txt".format,
    )
    tuned = "NCCL_TUNER_PLUGIN=$(antiphon build nccl-tuner) ./program"
    small_plan = f"antiphon plan allreduce full:ranks={ranks} -o plan.json"
    run_small = "antiphon run plan.json --nbytes 1MiB"
    under_mpi = f"antiphon lab run full:ranks={ranks} -- mpiexec -n {ranks} ./program"
    check_logs = Workflow(
        "check logs of nccl-tests, of any machine", LOGS, needs={},
        commands=(f"antiphon check-log nccl.log --topology {box}  # the machine of nccl.log",),
    )  # fmt: skip
    workflows = [
        *([Workflow("describe this machine", NO_GPU, needs={}, commands=("antiphon topology probe -o here.json",)),
           check_logs] if inventory["gpus"] else []),
        Workflow("NCCL's settings, timed by Antiphon", NO_GPU, {**nvidia, **nccl, **launch_needs},
              (race, export("settings", "nccl-tuner"), setting("settings"), tuned)),
        Workflow("NCCL's algorithms, by runs of nccl-tests here", NO_GPU, {**nvidia, **nccl, **compiler},
              (tune_by_logs, export("by-logs", "nccl-tuner"), setting("by-logs"), tuned)),
        Workflow("RCCL's settings, timed by Antiphon", NO_GPU, {**amd, **rccl, **launch_needs},
              (race, export("settings", "nccl-csv"))),
        Workflow("RCCL's algorithms, by runs of rccl-tests here", NO_GPU, {**amd, **rccl},
              (tune_by_logs, export("by-logs", "nccl-csv"))),
        Workflow("plans run by MSCCL++", NO_GPU, {"GPUs": count > 0, **mscclpp},
              (f"antiphon tune allreduce {box} -o plans.json", export("plans", "mscclpp-json"))),
        Workflow("Antiphon's kernel in CUDA", NO_GPU, {**nvidia, "nvcc": "nvcc" in compilers}, (plan, f"{run} cuda")),
        Workflow("Antiphon's kernel in HIP", NO_GPU, {**amd, "hipcc": "hipcc" in compilers}, (plan, f"{run} hip")),
        Workflow("plans under an unchanged MPI program", f"{ON_MPI}; {MEASURES}", mpi, (
            f"{tune} --on mpi -o mpi.json", "export ANTIPHON_TABLE=mpi.json",
            f"LD_PRELOAD=$(antiphon build mpi) mpiexec -n {ranks} ./program")),
        Workflow("your MPI's own algorithms, timed by Antiphon", f"{ON_MPI}; {MEASURES}", mpi, (
            f"{tune} --on mpi --library-only -o library.json",
            f"antiphon export library.json --to {'mpich' if has_mpich else 'openmpi'}-rules -o rules",
            *(f"export {variable}" for variable in (MPICH_RULES if has_mpich else OPENMPI_RULES)),
            f"mpiexec -n {ranks} ./program")),
        Workflow("plans under PyTorch", f"{TESTED}; PyTorch loads the backend by itself; {MEASURES}", torch, (
            f"{tune} --on torch -o torch.json", "export ANTIPHON_TABLE=torch.json",
            f"torchrun --nproc-per-node {ranks} program.py  # with init_process_group(\"antiphon\")")),
        Workflow("an emulated cluster", TESTED, {"root": hasattr(os, "geteuid") and os.geteuid() == 0, **lab},
              (under_mpi,) if has_mpich else (small_plan, f"{run_small} --on lab")),
        Workflow("plans in one process", TESTED, needs={}, commands=(small_plan, run_small)),
        *([] if inventory["gpus"] else [check_logs]),
    ]  # fmt: skip
    rows = [
        {
            "route": workflow.name, "works": all(workflow.needs.values()), "status": workflow.status,
            "missing": next((need for need, is_here in workflow.needs.items() if not is_here), ""),
            "commands": list(workflow.commands),
        }
        for workflow in workflows
    ]  # fmt: skip
    return sorted(rows, key=lambda row: not row["works"])
