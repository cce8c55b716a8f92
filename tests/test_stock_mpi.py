"""Open MPI and MPICH really run by the rules that we write: told apart by what Open MPI carries out, and by the order
in which MPICH adds; and their own algorithms raced."""

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from mpi_env import Mpi
from stock_cases import MpichTree, OpenMpiRules, Span, mpich, openmpi, table

import antiphon
from antiphon.cli import run
from antiphon.runtimes.engine.launch import MARK
from antiphon.runtimes.measure.library import candidates, read_library

ROOT = Path(__file__).parent.parent
RANKS = 4
KINDS = ("allreduce", "reduce", "reducescatter", "broadcast", "allgather", "alltoall", "gather", "scatter")
Seen = dict[tuple[str, int], str]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs/stock.md").read_text(), re.DOTALL)


def exports(name: str, folder: Path) -> dict[str, str]:
    """The variables that docs/stock.md tells to set for this library, as a shell in this folder sets them."""
    found = [block for block in blocks("sh") if f"export {name}" in block]
    assert len(found) == 1
    lines = [line for line in found[0].splitlines() if line.startswith("export ")]
    told = subprocess.run(
        ["bash", "-c", "\n".join([*lines, "env -0"])], cwd=folder, capture_output=True, text=True, check=True, env={}
    )
    variables = dict(one.split("=", 1) for one in told.stdout.split("\0") if one)
    return {key: value for key, value in variables.items() if key.startswith(("OMPI_", "MPIR_"))}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Mpi], Path]:
    """The program of tests/stock/calls.c for an MPI."""
    made: dict[str, Path] = {}

    def get(mpi: Mpi) -> Path:
        if mpi.name not in made:
            made[mpi.name] = tmp_path_factory.mktemp("calls") / mpi.name
            source = Path(__file__).parent / "stock" / "calls.c"
            subprocess.run([*mpi.compiler, "-O1", source, "-o", made[mpi.name], "-lm"], check=True, env=mpi.env)
        return made[mpi.name]

    return get


def calls(
    mpi: Mpi, program: Path, which: Sequence[tuple[str, int]], more: Mapping[str, str] = {}, options: Sequence[str] = ()
) -> tuple[Seen, str]:
    """What every call ends with, as a mark; and what was said."""
    command = [*mpi.mpiexec(RANKS), *options, str(program), *(f"{kind}:{nbytes}" for kind, nbytes in which)]
    done = subprocess.run(
        command, env={**mpi.env, **more}, capture_output=True, text=True, timeout=1000, check=False, cwd=program.parent
    )
    assert done.returncode == 0, done.stderr
    found = (line.split() for line in done.stdout.splitlines() if len(line.split()) == 3)
    return {(kind, int(n)): mark for kind, n, mark in found}, done.stderr


# ---- Open MPI ----

NAMES = {"broadcast": "bcast", "reducescatter": "reduce_scatter_block"}
NUMBERS = {"allgather": 0, "allreduce": 2, "alltoall": 3, "broadcast": 7, "gather": 9, "reduce": 11,
           "reducescatter": 13, "scatter": 15}  # fmt: skip
FIRST, SECOND = openmpi("first", 1), openmpi("second", 2, 8192, 3)


def listener(folder: Path, mpi: Mpi) -> Path:
    """A library that says what coll/tuned carries out, for all collectives, as that of docs/stock.md does for one. A
    call has as many words for arguments as its own form, the last ones being algorithm, fan, segment, ..."""
    given = {
        "allreduce": 7, "reduce": 8, "reducescatter": 7, "broadcast": 6, "allgather": 8, "alltoall": 8, "gather": 9,
        "scatter": 9,
    }  # fmt: skip
    told = "if (rank && rank[0] == '0') fprintf(stderr"
    lines = ["#define _GNU_SOURCE", "#include <dlfcn.h>", "#include <stdio.h>", "#include <stdlib.h>"]
    for kind, before in given.items():
        name = f"ompi_coll_tuned_{NAMES.get(kind, kind)}_intra_do_this"
        words = [f"a{i}" for i in range(before + 4)]
        form, types = ", ".join(f"long {word}" for word in words), ", ".join(["long"] * len(words))
        lines += [
            f"int {name}({form}) {{",
            f"    int (*theirs)({types}) = (int (*)({types}))dlsym(RTLD_NEXT, __func__);",
            '    const char *rank = getenv("OMPI_COMM_WORLD_RANK");',
            f'    {told}, "seen {kind} %d %d %d\\n", (int)a{before}, (int)a{before + 1}, (int)a{before + 2});',
            f"    return theirs({', '.join(words)});",
            "}",
        ]
    source, made = folder / "seen.c", folder / "seen.so"
    source.write_text("\n".join(lines) + "\n")
    subprocess.run([*mpi.compiler, "-shared", "-fPIC", source, "-o", made, "-ldl"], check=True, env=mpi.env)
    return made


@pytest.mark.slow
def test_open_mpi_runs_by_the_rules(openmpi: Mpi, compiled: Callable[[Mpi], Path], tmp_path: Path) -> None:
    spans: list[Span] = [(0, 1000, None), (1000, 5000, FIRST), (5000, 50000, SECOND), (50000, None, None)]
    plans = {kind: table(kind, RANKS, spans, 0 if kind in ("broadcast", "reduce", "gather", "scatter") else None)
             for kind in KINDS}  # fmt: skip
    antiphon.export(plans, "openmpi-rules", tmp_path / "rules")
    rules = OpenMpiRules((tmp_path / "rules/openmpi-rules.conf").read_text())
    which = [(kind, nbytes) for kind in KINDS for nbytes in (64, 1008, 4992, 5008, 40000)]
    more = exports("OMPI_MCA", tmp_path)
    assert set(more) == {"OMPI_MCA_coll_tuned_use_dynamic_rules", "OMPI_MCA_coll_tuned_dynamic_rules_filename"}
    load = ["-x", f"LD_PRELOAD={listener(tmp_path, openmpi)}"]
    _, said = calls(openmpi, compiled(openmpi), which, more, load)
    parts = said.split("calls ")[1:]
    assert len(parts) == len(which)
    for (kind, nbytes), part in zip(which, parts, strict=True):
        head, *lines = part.splitlines()
        assert head == f"{kind}:{nbytes}"
        seen = [line.split() for line in lines if line.startswith("seen ")]  # the call, then what it calls itself
        choice = rules.choice(NUMBERS[kind], RANKS, nbytes)
        assert (choice is None) == (nbytes == 64)
        if choice is not None:
            assert seen[0] == ["seen", kind, *map(str, choice)], (kind, nbytes)


@pytest.mark.slow
def test_the_listener_of_the_page(openmpi: Mpi, compiled: Callable[[Mpi], Path], tmp_path: Path) -> None:
    (text,) = blocks("c")
    (tmp_path / "openmpi_seen.c").write_text(text)
    (line,) = [line for block in blocks("sh") for line in block.splitlines() if "openmpi_seen.c" in line]
    command = line.split()
    subprocess.run([*openmpi.compiler, *command[1:]], check=True, env=openmpi.env, cwd=tmp_path)
    antiphon.export(table("allreduce", RANKS, [(0, None, FIRST)]), "openmpi-rules", tmp_path / "rules")
    load = ["-x", f"LD_PRELOAD={tmp_path / 'openmpi_seen.so'}"]
    _, said = calls(openmpi, compiled(openmpi), [("allreduce", 4000)], exports("OMPI_MCA", tmp_path), load)
    assert "allreduce of 1000 elements: algorithm 1, segment 0" in said


# ---- MPICH ----


def its_library(mpi: Mpi) -> dict[str, Any]:
    """What the MPI says of itself."""
    done = subprocess.run(
        [mpi.python, "-m", "antiphon.runtimes.measure.library"], env=mpi.env, capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.partition(MARK)[2])
    return found


FORCED: dict[str, tuple[str, str, dict[str, int]]] = {
    "allreduce": ("recursive_multiplying", "ALLREDUCE", {"k": 4}),
    "reducescatter": ("pairwise", "REDUCE_SCATTER_BLOCK", {}),
}


@pytest.mark.slow
def test_mpich_runs_by_the_rules(mpich: Mpi, compiled: Callable[[Mpi], Path], tmp_path: Path) -> None:
    file = its_library(mpich)["file"]
    plans = {kind: table(kind, RANKS, [(0, 2000, None), (2000, 9000, told(file, kind)), (9000, None, None)])
             for kind in FORCED}  # fmt: skip
    antiphon.export(plans, "mpich-rules", tmp_path / "rules")
    more = exports("MPIR_CVAR", tmp_path)
    assert len(more) == 2
    which = [(kind, nbytes) for kind in KINDS for nbytes in (1008, 8000, 40000)]
    program = compiled(mpich)
    own, _ = calls(mpich, program, which)
    by_name = {f"MPIR_CVAR_{name}_INTRA_ALGORITHM": algorithm for algorithm, name, _ in FORCED.values()}
    forced, _ = calls(mpich, program, which, {**by_name, "MPIR_CVAR_ALLREDUCE_RECURSIVE_MULTIPLYING_KVAL": "4"})
    ruled, _ = calls(mpich, program, which, more)
    for one in which:
        differs = one[0] in FORCED and one[1] == 8000
        assert ruled[one] == (forced if differs else own)[one], one
        if differs:
            assert forced[one] != own[one], one
    # with the device's own collectives: what has a rule is not theirs
    device, _ = calls(mpich, program, which, {**more, "MPIR_CVAR_DEVICE_COLLECTIVES": "percoll"})
    assert [device[kind, 8000] for kind in FORCED] == [forced[kind, 8000] for kind in FORCED]


def told(file: str, kind: str) -> dict[str, Any]:
    return mpich(FORCED[kind][0], file, **FORCED[kind][2])


@pytest.mark.slow
def test_mpich_says_which_files_it_reads(mpich: Mpi, compiled: Callable[[Mpi], Path], tmp_path: Path) -> None:
    told = {
        "name": "MPICH",
        "version": "",
        "file": its_library(mpich)["file"],
        "algorithm": "default",
        "parameters": {},
    }
    antiphon.export(table("allreduce", RANKS, [(0, None, told)]), "mpich-rules", tmp_path / "rules")
    more = {**exports("MPIR_CVAR", tmp_path), "MPIR_CVAR_DEBUG_SUMMARY": "1"}
    done = subprocess.run(
        [*mpich.mpiexec(2), str(compiled(mpich)), "allreduce:8"], env={**mpich.env, **more}, capture_output=True,
        text=True, check=True, timeout=1000,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert f"MPIR: {tmp_path / 'rules/mpich-mpir.json'}" in said
    assert f"MPID: {tmp_path / 'rules/mpich-ch4.json'}" in said
    tree = MpichTree((tmp_path / "rules/mpich-mpir.json").read_text())
    assert (tree.leaf("allreduce", 4, average=10**6) or "").startswith("MPIR_Allreduce_intra_")


@pytest.mark.slow
def test_every_rule_that_can_be_for_mpich(mpich: Mpi, compiled: Callable[[Mpi], Path], tmp_path: Path) -> None:
    """All that is tried works as a rule, too, and adds in the order in which it was measured."""
    here = read_library(its_library(mpich))
    some = {kind: candidates(here, kind, RANKS, 8000) for kind in KINDS}
    some = {kind: found for kind, found in some.items() if found}
    assert len(some) == 6
    which = [(kind, 8000) for kind in KINDS]
    for number in range(max(map(len, some.values()))):
        mine = {kind: found[number % len(found)] for kind, found in some.items()}
        plans, forced = {}, {"MPIR_CVAR_DEVICE_COLLECTIVES": "none"}
        for kind, one in mine.items():
            told = {**here.description, "algorithm": one.name, "parameters": dict(one.parameters)}
            plans[kind] = table(kind, RANKS, [(0, None, told)], 0 if kind in ("broadcast", "reduce") else None)
            own = {key: value for key, value in one.settings.items() if key not in here.always}
            forced |= {key: one.name if key.endswith("_ALGORITHM") else str(value) for key, value in own.items()}
        antiphon.export(plans, "mpich-rules", tmp_path / "rules")
        ruled, _ = calls(mpich, compiled(mpich), which, exports("MPIR_CVAR", tmp_path))
        made, _ = calls(mpich, compiled(mpich), which, forced)
        assert ruled == made, {kind: one.name for kind, one in mine.items()}


# ---- what they have, raced ----


@pytest.mark.parametrize("which", ["openmpi", "mpich"])
def test_what_an_mpi_says_of_itself(which: str, request: pytest.FixtureRequest) -> None:
    mpi: Mpi = request.getfixturevalue(which)
    told = its_library(mpi)
    assert (told["name"], os.path.basename(told["file"])[:9]) == (
        {"openmpi": "Open MPI", "mpich": "MPICH"}[which], "libmpi.so"
    )  # fmt: skip
    assert re.fullmatch(r"\d+\.\d+.*", told["version"])
    names = told["algorithms"]["allreduce"]
    assert {"ring", "recursive_doubling"} <= set(names)
    if which == "mpich":  # by its own reading of the name
        ask = (
            "from mpi4py import MPI; from antiphon.runtimes.measure.library import Control; print(Control(MPI).get(%r))"
        )
        variable = "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM"
        for name in ("ring", "recexch", "k_reduce_scatter_allgather"):
            done = subprocess.run(
                [mpi.python, "-c", ask % variable], env={**mpi.env, variable: name}, capture_output=True, text=True,
                check=True,
            )  # fmt: skip
            assert int(done.stdout) == names[name]


@pytest.mark.slow
@pytest.mark.parametrize("which", ["openmpi", "mpich"])
@pytest.mark.parametrize("kind", ["allreduce", "broadcast", "alltoall", "gather"])
def test_tuning(which: str, kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Every algorithm that the library can do is tried; what is chosen is one of them, and rules say so."""
    mpi: Mpi = request.getfixturevalue(which)
    line = f"tune {kind} full:ranks={RANKS} --on mpi --library-only --nbytes 4KB:64KB --factor 16 --iterations 3 --json"
    command = [mpi.python, "-m", "antiphon", *line.split(), "--mpiexec", mpi.launcher, "-o", str(tmp_path / "t.json")]
    done = subprocess.run(command, env=mpi.env, capture_output=True, text=True, check=False, timeout=1000)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    told = its_library(mpi)["algorithms"].get(kind, {})
    measured = [one for one in found["ranges"] if one["measured"]]
    assert measured
    for one in measured:
        assert one["served_by"] == "library"
        assert one["library"]["algorithm"] in {"default", *told}
        assert one["library_seconds"] > 0
        assert one["library_over_default"] > 0
        assert [size["nbytes"] for size in one["measurements"]] in ([4000], [64000], [4000, 64000])
    raced = {row["algorithm"] for row in found["rows"] if "algorithm" in row}
    assert ("default" in raced) == bool(raced)
    raced -= {"default"}
    if which == "openmpi":
        assert raced == set(told) - {"ignore", "two_proc"}
    elif kind == "gather":
        assert not raced
    else:
        assert len(raced) > 2
        assert raced <= set(told)
    rules = antiphon.export(str(tmp_path / "t.json"), f"{which}-rules")
    if which == "openmpi":
        OpenMpiRules(rules["openmpi-rules.conf"].decode())
    else:
        MpichTree(rules["mpich-mpir.json"].decode())


def test_only_under_an_mpi(capsys: pytest.CaptureFixture[str]) -> None:
    for line in (
        "--on lab --library-only",
        "--on torch --library-only",
        "--library-only",
        "--on mpi --library-only --vary x=1",
    ):
        assert run(["tune", "allreduce", "full:ranks=2", *line.split()]) == 2
        assert capsys.readouterr().err.startswith("antiphon: --")
