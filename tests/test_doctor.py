"""doctor: what is found on made-up machines, and which routes it offers there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from antiphon.cli import application, run
from antiphon.runtimes import inventory
from antiphon.runtimes.inventory import list_workflows, look_here

NVIDIA, AMD = ("0x10de", "0x2330", "0x030200"), ("0x1002", "0x74a1", "0x120000")
NCCL, RACE = "NCCL's algorithms, by runs of nccl-tests here", "NCCL's settings, timed by Antiphon"


def files(root: Path, contents: dict[str, str]) -> None:
    for name, content in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def machine(root: Path, gpus: list[tuple[str, str, str]], programs: dict[str, str]) -> dict[str, str]:
    """Files below `root` as Linux shows them, programs on a PATH of its own; the environment."""
    for i, (vendor, device, kind) in enumerate(gpus):
        names = {"vendor": vendor, "device": device, "class": kind}
        files(root / f"sys/bus/pci/devices/0000:{i:02x}:00.0", {key: f"{text}\n" for key, text in names.items()})
    files(root, {
        "proc/meminfo": "MemTotal:  2097152 kB\n", "sys/fs/cgroup/memory.max": "1073741824\n",
        "proc/cpuinfo": "processor : 0\nmodel name\t: Test CPU\n",
        "sys/class/infiniband/mlx5_0/device/vendor": "0x15b3", "sys/class/infiniband/mlx5_0/ports/1/rate":
        "400 Gb/sec (4X NDR)\n", "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
        "sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n",
    })  # fmt: skip
    folder = root / "bin"
    for name, script in programs.items():
        files(folder, {name: f"#!/bin/sh\n{script}\n"})
        (folder / name).chmod(0o755)
    return {"PATH": str(folder), "LD_LIBRARY_PATH": f"{root}/lib:"}


@pytest.mark.parametrize(
    ("gpus", "programs", "libraries", "first", "missing"),
    [
        ([NVIDIA] * 8, {"nvidia-smi": "yes 'NVIDIA H100 80GB HBM3, 550.90' | /usr/bin/head -8", "cc": "echo cc 12.1"},
         ["libnccl.so.2.28.9"], "describe this machine",
         {RACE: "mpi4py with mpiexec, or torch", "plans run by MSCCL++": "MSCCL++",
          "Antiphon's kernel in CUDA": "nvcc"}),
        ([NVIDIA], {}, [], "describe this machine", {NCCL: "NCCL"}),
        ([NVIDIA], {}, ["libnccl.so.2.28.9"], "describe this machine", {RACE: "a second GPU"}),
        ([AMD] * 2, {"hipcc": "exit 3"}, ["librccl.so.1.0"], "describe this machine",
         {"Antiphon's kernel in CUDA": "NVIDIA GPUs", "plans run by MSCCL++": "MSCCL++"}),
        ([], {"mpiexec": "echo 'mpiexec (Open MPI) 5.0.3'", "gcc": "echo gcc 13"}, [],
         "plans under an unchanged MPI program", {NCCL: "NVIDIA GPUs"}),
        ([], {}, [], None, {"plans under an unchanged MPI program": "mpiexec"}),
    ],
)  # fmt: skip
def test_routes(
    gpus: list[Any], programs: dict[str, str], libraries: list[str], first: str | None, missing: dict[str, str],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(inventory, "package_version", lambda name: "1.0" if name in ("numpy", "mpi4py") else "")
    monkeypatch.setattr(inventory.sysconfig, "get_paths", lambda: {"purelib": str(tmp_path)})  # no wheel of NCCL
    environment = machine(tmp_path, gpus, programs)
    files(tmp_path / "lib", dict.fromkeys(libraries, ""))
    found = look_here(str(tmp_path), environment)
    assert (len(found["gpus"]), found["memory"]) == (len(gpus), 2**30)
    assert found["cards"] == [{"name": "mlx5_0", "kind": "InfiniBand", "bandwidth": 50e9}]
    assert [row["version"] for row in found["libraries"]] == [name.partition(".so.")[2] for name in libraries]
    workflows = list_workflows(found)
    working = [row["works"] for row in workflows]
    assert working == sorted(working, reverse=True)
    assert working[0]
    assert first is None or workflows[0]["route"] == first
    assert missing.items() <= {row["route"]: row["missing"] for row in workflows if not row["works"]}.items()


def test_the_race_is_tried_before_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On GPUs with NCCL; by mpiexec where mpi4py is installed, else by torchrun."""
    installed = {"mpi4py": "4.0", "torch": "2.11"}
    monkeypatch.setattr(inventory, "package_version", lambda name: installed.get(name, ""))
    environment = machine(tmp_path, [NVIDIA] * 8, {"mpiexec": "echo 'mpiexec (Open MPI) 5.0.3'", "cc": "echo cc 12.1"})
    files(tmp_path / "lib", {"libnccl.so.2.32.3": ""})
    for start in ("mpiexec -n 8 antiphon", "torchrun --nproc-per-node 8 -m antiphon"):
        workflows = list_workflows(look_here(str(tmp_path), environment))
        names = [row["route"] for row in workflows if row["works"]]
        assert names.index("describe this machine") < names.index(RACE) < names.index(NCCL)
        race = next(row for row in workflows if row["route"] == RACE)
        assert race["commands"][0] == f"{start} tune allreduce here.json --on nccl -o settings.json"
        assert race["status"] == "not yet run on a GPU"
        installed.pop("mpi4py", None)


@pytest.mark.parametrize(
    ("printed", "runs_mpiexec"), [("HYDRA build details: Version: 5.0.0", True), ("Open MPI 5.0.3", False)]
)
def test_a_lab_runs_mpiexec_of_mpich_only(printed: str, runs_mpiexec: bool, tmp_path: Path) -> None:
    workflows = list_workflows(look_here(str(tmp_path), machine(tmp_path, [], {"mpiexec": f"echo '{printed}'"})))
    commands = next(row for row in workflows if row["route"] == "an emulated cluster")["commands"]
    assert any("mpiexec" in command for command in commands) == runs_mpiexec


@pytest.mark.parametrize(
    ("script", "by", "version"),
    [
        ('[ "$1" = -showme:version ] && echo "mpicc: Open MPI 5.0.11 (Language: C)"', "Open MPI", "5.0.11"),
        ('[ "$1" = -v ] && echo "mpicc for MPICH version 4.3.0" || exit 1', "MPICH", "4.3.0"),
        ("echo 'gcc (Debian 12.2.0-14) 12.2.0'", "", ""),  # whose MPI is not known
    ],
)
def test_the_version_of_mpicc_is_that_of_the_mpi(script: str, by: str, version: str, tmp_path: Path) -> None:
    (row,) = look_here(str(tmp_path), machine(tmp_path, [], {"mpicc": script}))["mpi"]
    assert (row["by"], row["version"]) == (by, version)


def test_no_two_workflows_write_the_same_file_with_other_contents(tmp_path: Path) -> None:
    """So that one can be tried after another; and rules of an MPI are used in the last command."""
    found = look_here(str(tmp_path), machine(tmp_path, [], {"mpiexec": "echo 'mpiexec (Open MPI) 5.0.3'"}))
    rows = {row["route"]: row["commands"] for row in list_workflows(found)}
    makers: dict[str, set[str]] = {}
    for commands in rows.values():
        for command in commands:
            for file in re.findall(r" -o (\S+)", command):
                makers.setdefault(file, set()).add(command.partition(" antiphon ")[2] or command)
    alike = {"settings", "by-logs"}  # of NCCL and of RCCL: no machine has both
    assert {file for file, commands in makers.items() if len(commands) > 1} <= {*alike, *(f"{x}.json" for x in alike)}
    commands = rows["your MPI's own algorithms, timed by Antiphon"]
    assert commands[-1].startswith("mpiexec -n ")
    assert any("dynamic_rules_filename=rules/openmpi-rules.conf" in command for command in commands)


def test_programs_that_hang_or_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "TIMEOUT", 0.3)
    programs = dict.fromkeys(("nvidia-smi", "mpiexec", "gcc", "nvcc", "srun"), "exec /bin/sleep 60")
    programs |= {"cc": "kill -SEGV $$", "clang": "printf '\\377clang \\376 1.2.3'", "torchrun": "exit 0", "mpicc": "\0"}
    found = look_here(str(tmp_path), machine(tmp_path, [NVIDIA], programs))
    assert {row["name"]: row["version"] for row in found["compilers"]} == {
        "cc": "", "gcc": "", "clang": "", "nvcc": "",
    }  # fmt: skip
    assert [row["name"] for row in found["mpi"]] == ["mpiexec", "mpicc"]
    assert {row["name"]: row["fault"] for row in found["mpi"]}["mpiexec"] == ""  # it hangs: no version, but there
    assert {row["name"]: row["fault"] for row in found["compilers"]}["cc"] == "ends with -11"
    assert found["gpus"] == [{"vendor": "NVIDIA", "name": "NVIDIA H100 80GB HBM3", "driver": ""}]


def test_programs_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They serve no route, and lines that are no GPUs count for none."""
    monkeypatch.setattr(inventory, "package_version", lambda name: "4.0" if name == "mpi4py" else "")
    programs = {"nvidia-smi": "echo 'No devices, were found'; echo 'a,b'; echo '\xff, 5.1'", "cc": "echo cc 12.1"}
    environment = machine(tmp_path, [], programs)
    for name in ("mpiexec", "gcc"):
        (tmp_path / "bin" / name).write_bytes(bytes(range(256)))
        (tmp_path / "bin" / name).chmod(0o755)
    found = look_here(str(tmp_path), environment)
    assert found["gpus"] == []
    assert {row["name"]: row["fault"] for row in (*found["mpi"], *found["compilers"])} == {
        "mpiexec": "Exec format error", "cc": "", "gcc": "Exec format error",
    }  # fmt: skip
    missing = {row["route"]: row["missing"] for row in list_workflows(found)}
    assert missing["plans under an unchanged MPI program"] == "mpiexec"


@pytest.mark.parametrize(
    ("name", "printed", "version"),
    [
        ("mpirun", "mpirun (Open MPI) 5.0.11", "5.0.11"),
        ("mpiexec", "HYDRA build details:\n    Version:                  5.0.2\n    Release Date: 2026", "5.0.2"),
        ("mpiexec", "Intel(R) MPI Library for Linux* OS, Version 2021.8 Build 20221129", "2021.8"),
        ("gcc", "gcc (Debian 12.2.0-14+deb12u1) 12.2.0", "12.2.0"),
        ("clang", "Debian clang version 14.0.6", "14.0.6"),
        ("nvcc", "Cuda compilation tools, release 12.4, V12.4.131", "12.4"),
        ("srun", "slurm-wlm 22.05.8", "22.05.8"),
        ("mpirun", "ssh: connect to host 10.0.0.1 port 22: refused 1.5", ""),
        ("mpirun", "\a 99.99 MPICH \t7.7.7.7.7.7", ""),
    ],
)
def test_versions(name: str, printed: str, version: str, tmp_path: Path) -> None:
    found = look_here(str(tmp_path), machine(tmp_path, [], {name: f"/bin/cat <<'EOF'\n{printed}\nEOF"}))
    rows = [row for kind in ("mpi", "launchers", "compilers") for row in found[kind]]
    assert [row["version"] for row in rows] == [version]
    if name in ("mpirun", "mpiexec"):
        workflow = next(r for r in list_workflows(found) if r["route"] == "plans under an unchanged MPI program")
        assert (workflow["missing"] == "mpiexec") == (not version)


def test_names_and_drivers_are_those_of_nvidia_smi(tmp_path: Path) -> None:
    programs = {"nvidia-smi": "echo 'NVIDIA H200, 570.1'", "mpirun": "echo 'HYDRA build details: Version: 4.2.0'"}
    found = look_here(str(tmp_path), machine(tmp_path, [NVIDIA, AMD], programs))
    assert [gpu["name"] for gpu in found["gpus"]] == ["NVIDIA H200", "AMD Instinct MI300X"]
    assert [(row["name"], row["by"], row["version"]) for row in found["mpi"]] == [("mpirun", "MPICH", "4.2.0")]


def test_the_commands_exist(tmp_path: Path) -> None:
    found = look_here(str(tmp_path), machine(tmp_path, [NVIDIA, AMD], {}))
    for gpus in (found["gpus"], []):
        for row in list_workflows({**found, "gpus": gpus}):
            for line in row["commands"]:
                for words in re.findall(r"\bantiphon ([^)]+)", line):
                    command: Any = application()
                    for word in re.sub('"[^"]*"', "", words).split(" -- ")[0].split():
                        if hasattr(command, "commands") and word in command.commands:
                            command = command.commands[word]
                        elif word.startswith("-"):
                            inner = getattr(command, "commands", {}).get("COLL|PLAN|TABLE", command)
                            assert any(word in option.opts for option in inner.params), (line, word)
                    assert command is not application(), line


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ". Try first: " in " ".join(lines[:2])
    assert all(len(line) <= 80 for line in lines)
    assert run(["doctor", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {
        "processors", "memory", "gpus", "cards", "mpi", "launchers", "compilers", "packages", "libraries", "routes",
    }  # fmt: skip
