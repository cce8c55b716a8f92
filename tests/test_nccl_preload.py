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
from nccl_env import Done

pytestmark = pytest.mark.skipif(
    shutil.which("c++") is None or not sys.platform.startswith("linux"), reason="needs Linux and a C++ compiler"
)
PLANNERS = {
    "allreduce": "ring", "allgather": "ring", "reducescatter": "ring", "broadcast": "binomial-tree",
    "reduce": "binomial-tree", "gather": "direct", "scatter": "direct", "alltoall": "pairwise",
}  # fmt: skip
OTHERS = {**PLANNERS, "allreduce": "direct", "allgather": "bruck", "reducescatter": "direct", "alltoall": "bruck"}
OFFERED = {
    "antiphon_engine", "ncclAllGather", "ncclAllReduce", "ncclAlltoAll", "ncclBcast", "ncclBroadcast", "ncclCommAbort",
    "ncclCommDestroy", "ncclCommGetAsyncError", "ncclCommInitAll", "ncclCommInitRank", "ncclCommInitRankConfig",
    "ncclCommInitRankScalable", "ncclCommSplit", "ncclGather", "ncclGroupEnd", "ncclGroupSimulateEnd", "ncclGroupStart",
    "ncclRecv", "ncclReduce", "ncclReduceScatter", "ncclScatter", "ncclSend",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("nccl")
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


@pytest.mark.parametrize(("ranks", "words"), [(3, ()), (2, ("graphs",))])
def test_random_calls_go_by_plans(folder: Path, ranks: int, words: tuple[str, ...]) -> None:
    tables = nccl_env.tables(folder, (2, 3), OTHERS)
    done, report = run(folder, ranks, tables, 11, 60, *words, env={"STANDIN_ROOM": "200"})
    assert done.right, done.complained
    served = {row["collective"]: row["planner"] for row in report["served"] if row["ranks"] == ranks}
    assert {kind: name.split(",")[0].split(" ")[0] for kind, name in served.items()} == OTHERS
    reasons = {row["reason"] for row in report["left"]}
    assert {"there is no data", "its operator is not sum, prod, max or min"} <= reasons


@pytest.mark.slow
@pytest.mark.parametrize("planners", [PLANNERS, OTHERS], ids=["rings", "direct"])
@pytest.mark.parametrize("ranks", range(2, 9))
def test_ten_thousand_sequences(folder: Path, ranks: int, planners: dict[str, str]) -> None:
    """500 with and 215 without graphs, for each of these."""
    tables = nccl_env.tables(folder, range(2, 9), planners)
    for number, words in ((500, ()), (215, ("graphs",))):
        env = {"STANDIN_ROOM": str((64, 300, 4096)[ranks % 3]), "STANDIN_SEED": str(ranks)}
        done, _ = run(folder, ranks, tables, 1000 + ranks, number, *words, env=env, timeout=250)
        assert done.right, done.complained
