"""Programs that know NCCL alone, our library before them and the stand-in behind it: the same results, by plans."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nccl_env
import pytest
from nccl_env import Done, cuda_names, header
from quick import in_turn

from antiphon.runtimes.engine.build import NATIVE, NCCL, library

pytestmark = pytest.mark.skipif(
    shutil.which("c++") is None or not sys.platform.startswith("linux"), reason="needs Linux and a C++ compiler"
)
PLANNERS = {
    "allreduce": "ring", "allgather": "ring", "reducescatter": "ring", "broadcast": "binomial-tree",
    "reduce": "binomial-tree", "gather": "direct", "scatter": "direct", "alltoall": "pairwise",
}  # fmt: skip
OTHERS = {
    "allreduce": "bruck", "allgather": "bruck", "reducescatter": "halving-doubling", "broadcast": "binomial-tree",
    "reduce": "binomial-tree", "gather": "direct", "scatter": "binomial-tree", "alltoall": "ring",
}  # fmt: skip
OFFERED = {
    "antiphon_engine", "antiphon_nccl_became", "antiphon_nccl_behind", "antiphon_nccl_book",
    "antiphon_nccl_relax",
    "ncclAllGather", "ncclAllReduce", "ncclAlltoAll", "ncclBcast", "ncclBroadcast", "ncclCommAbort",
    "ncclCommDestroy", "ncclCommGetAsyncError", "ncclCommInitAll", "ncclCommInitRank", "ncclCommInitRankConfig",
    "ncclCommInitRankScalable", "ncclCommSplit", "ncclGather", "ncclGroupEnd", "ncclGroupSimulateEnd", "ncclGroupStart",
    "ncclRecv", "ncclReduce", "ncclReduceScatter", "ncclScatter", "ncclSend",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.getbasetemp() / "nccl"
    nccl_env.compiled(made)
    return made


def run(folder: Path, ranks: int, tables: str, *words: object, **more: Any) -> tuple[Done, dict[str, Any]]:
    """With the library before it; and what rank 0 reports."""
    report = folder / f"report-{os.urandom(4).hex()}.json"
    env = {
        "LD_PRELOAD": str(nccl_env.preload()), "ANTIPHON_TABLE": tables, "ANTIPHON_LEAST": "0",
        "ANTIPHON_REPORT": str(report), **more.pop("env", {}),
    }  # fmt: skip
    done = nccl_env.run(folder, ranks, *words, env=env, **more)
    return done, json.loads(report.read_text()) if report.exists() else {}


def symbols(path: Path) -> set[str]:
    listed = subprocess.run(["nm", "-D", "--defined-only", str(path)], capture_output=True, text=True, check=True)
    return {line.split()[2].partition("@")[0] for line in listed.stdout.splitlines()}


def test_it_offers_these_names_and_no_others() -> None:
    assert symbols(nccl_env.preload()) == OFFERED


def test_nccls_own_header_agrees(tmp_path: Path) -> None:
    """What we offer has the types that NCCL's header says, and NCCL has all that we call."""
    include = header()
    if include is None:
        pytest.skip("needs nccl.h: the wheel nvidia-nccl-cu13, or the folder with it in $ANTIPHON_TEST_NCCL")
    told = ["-DAP_NCCL_H", "-isystem", str(include), "-isystem", str(cuda_names(tmp_path))]
    for name in NCCL:
        if name.startswith("nccl_"):
            flags = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
            subprocess.run(["cc", *flags, *told, str(NATIVE / name)], check=True)
    theirs = symbols(include.parent / "lib" / "libnccl.so.2")
    assert {name for name in OFFERED if not name.startswith("antiphon_")} <= theirs


@pytest.mark.slow
def test_before_nccl_itself_without_a_gpu(folder: Path, tmp_path: Path) -> None:
    """Compiled by nvcc, before a program that is linked with NCCL's wheel: NCCL says what it says without it."""
    include = header()
    if include is None or shutil.which("nvcc") is None:
        pytest.skip("needs nvcc and the wheel nvidia-nccl-cu13")
    ours, theirs = library("nccl"), include.parent / "lib"
    assert symbols(ours) == OFFERED
    flags = ["-isystem", str(include), "-isystem", str(cuda_names(tmp_path)), f"-L{theirs}", f"-Wl,-rpath,{theirs}"]
    source = nccl_env.FOLDER / "ask.c"
    subprocess.run(["cc", str(source), *flags, "-l:libnccl.so.2", "-o", str(tmp_path / "ask")], check=True)
    said = [
        subprocess.run(
            [str(tmp_path / "ask")], env={**os.environ, **more}, stdout=subprocess.PIPE, timeout=1000, check=True
        ).stdout
        for more in ({}, {"LD_PRELOAD": str(ours)})
    ]
    assert said[0] == said[1]


@pytest.mark.parametrize(("what", "ranks"), in_turn([("aborted", 2), ("later", 3), ("crossed", 3)], 3))
def test_rare_programs(folder: Path, what: str, ranks: int) -> None:
    done, report = run(folder, ranks, nccl_env.tables(folder, (2, 3), PLANNERS), what, name="edges", timeout=30)
    assert done.right, done.complained
    assert report["served"]
    assert not report["left"]


def test_one_thread_for_all_ranks(folder: Path) -> None:
    report = folder / "together.json"
    env = {
        "LD_PRELOAD": str(nccl_env.preload()), "ANTIPHON_TABLE": nccl_env.tables(folder, (2, 3), PLANNERS),
        "ANTIPHON_LEAST": "0", "ANTIPHON_REPORT": str(report), "STANDIN_SEED": "5",
    }  # fmt: skip
    command = [str(folder / "edges"), "0", "3", "-", "together"]
    subprocess.run(command, env={**os.environ, **env}, check=True, timeout=1000)
    assert [row["calls"] for row in json.loads(report.read_text())["served"]] == [40]


@pytest.mark.slow
def test_scratch_is_limited(folder: Path) -> None:
    """What cannot be cut is left to NCCL, what can be is cut."""
    tables = nccl_env.tables(folder, (2, 3), OTHERS)
    words = ("large", "allreduce", "reducescatter")
    done, report = run(folder, 3, tables, 5, 8, *words, env={"ANTIPHON_SCRATCH": "8KiB"})
    assert done.right, done.complained
    left = {
        row["collective"] for row in report["left"] if row["reason"] == "it needs more scratch than ANTIPHON_SCRATCH"
    }
    assert left == {"reducescatter"}
    assert max(row["to"] for row in report["served"] if row["collective"] == "allreduce") > 8192


@pytest.mark.parametrize(
    ("tables", "why"), [("", "ANTIPHON_TABLE is not set"), ("nowhere.json", "No such file"), ("auto", "must be a file")]
)
def test_without_tables_nccl_does_it_all(folder: Path, tables: str, why: str) -> None:
    done, report = run(folder, 2, tables, 3, 5)
    assert done.right, done.complained
    assert why in done.complained[0]
    assert not report.get("served")


@pytest.mark.parametrize(
    ("ranks", "words"), [(2, ("graphs",)), *(pytest.param(n, (), marks=pytest.mark.slow) for n in (3, 4))]
)
def test_random_calls_go_by_plans(folder: Path, ranks: int, words: tuple[str, ...]) -> None:
    tables = nccl_env.tables(folder, range(2, ranks + 1), OTHERS)
    done, report = run(folder, ranks, tables, 11, 60, *words, env={"STANDIN_ROOM": "200"})
    assert done.right, done.complained
    served = {row["collective"]: row["planner"] for row in report["served"] if row["ranks"] == ranks}
    assert {kind: name.split(",")[0].split(" ")[0] for kind, name in served.items()} == OTHERS
    reasons = {row["reason"] for row in report["left"]}
    assert {"there is no data", "its operator is not for its type"} <= reasons


@pytest.mark.slow
@pytest.mark.parametrize("planners", [PLANNERS, OTHERS], ids=["rings", "others"])
@pytest.mark.parametrize("ranks", range(2, 9))
def test_ten_thousand_sequences(folder: Path, ranks: int, planners: dict[str, str]) -> None:
    """500 with and 215 without graphs, for each of these."""
    tables = nccl_env.tables(folder, range(2, 9), planners)
    for number, words in ((500, ()), (215, ("graphs",))):
        env = {"STANDIN_ROOM": str((64, 300, 4096)[ranks % 3]), "STANDIN_SEED": str(ranks)}
        done, _ = run(folder, ranks, tables, 1000 + ranks, number, *words, env=env, timeout=250)
        assert done.right, done.complained


# The fourth, in join_streams, keeps what NCCL does behind us in order, which NCCL does, too.
EVENTS = {
    "what came before": "ap_mark_await(t->mark, m->stream[i])",
    "fork": "ap_mark_await(t->fork, m->queue)",
    "join": "ap_mark_await(t->fork, m->stream[i])",
}


@pytest.mark.slow
@pytest.mark.parametrize("event", EVENTS)
def test_each_event_is_needed(folder: Path, event: str) -> None:
    """Without any one of them results come out wrong, or nothing goes on."""
    changed = nccl_env.preload_with(folder / event.replace(" ", "-"), "nccl_batch.c", EVENTS[event], "0")
    tables = nccl_env.tables(folder, (2, 3), OTHERS)
    env = {"LD_PRELOAD": str(changed)}
    runs = (run(folder, 3, tables, seed, 120, env=env, timeout=20)[0].right for seed in range(4))
    assert not all(runs)  # up to the first that is wrong
