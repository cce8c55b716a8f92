"""mpi4py's own tests of collectives, by plans for every size: they end as without us."""

import json
import os
import subprocess
import sys
import tarfile
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from mpi_env import Mpi
from test_preload import Run, compiled, table

SUITE = Path(__file__).with_name("mpi4py_suite.py")
SAMPLE = ["test_cco_buf.TestCCOBufInplaceWorld.", "test_cco_vec.TestCCOVecInplaceWorld."]
YIELDS = {  # more processes than processors: who waits lets others work
    "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1", "MPIR_CVAR_POLLS_BEFORE_YIELD": "1", "OMPI_MCA_mpi_yield_when_idle": "1",
}  # fmt: skip
KINDS = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "gather", "scatter", "alltoall")


@cache
def suite_folder() -> Path | None:
    """Where the tests of the mpi4py that is installed lie: of its source archive, fetched once. None: not to be had."""
    try:
        name = f"mpi4py-{version('mpi4py')}"
    except PackageNotFoundError:
        return None
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "antiphon" / "tests"
    if not (kept / name / "test" / "main.py").exists():
        kept.mkdir(parents=True, exist_ok=True)
        fetch = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-build-isolation", "--no-binary", "mpi4py"]
        command = [*fetch, "--quiet", "--retries", "0", "--dest", str(kept), name.replace("-", "==")]
        try:
            done = subprocess.run(command, capture_output=True, timeout=60, check=False)
        except subprocess.TimeoutExpired:
            return None
        archive = kept / f"{name}.tar.gz"
        if done.returncode or not archive.exists():
            return None
        with tarfile.open(archive) as opened:
            wanted = [one for one in opened.getmembers() if one.name.startswith(f"{name}/test/")]
            opened.extraction_filter = getattr(tarfile, "data_filter", None)  # not there before Python 3.11.4
            opened.extractall(kept, wanted)
    return kept / name / "test"


def ended(mpi: Mpi, folder: Path, ranks: int, ours: bool, *parts: str) -> tuple[list[list[list[str]]], Run]:
    """How each test ended at each process."""
    suite = suite_folder()
    if suite is None:
        pytest.skip("needs the source archive of mpi4py, and pip cannot fetch it")
    out = folder / f"{mpi.name}-{ranks}-{ours}"
    tables = [table(folder, count) for count in range(ranks, 1, -1)] if ours else None
    command = [mpi.python, str(SUITE), str(suite), str(out), *parts]
    settings = dict(YIELDS)
    if ranks > (os.cpu_count() or 1):
        settings["FIRST" if ours else "LD_PRELOAD"] = compiled(folder, mpi, "nap", "-shared", "-fPIC")
    if ranks > 4:
        settings["MPI4PY_ARRAYS"] = "numpy"
    run = Run(mpi, folder, ranks, command, tables, seconds=1500, ANTIPHON_LEAST="0", **settings)
    assert run.done.returncode == 0, run.done.stderr[-2000:]
    return [json.loads(Path(f"{out}-{rank}.json").read_text()) for rank in range(ranks)], run


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.getbasetemp() / "preload"
    made.mkdir(exist_ok=True)
    return made


@pytest.mark.slow
def test_a_sample(openmpi: Mpi, folder: Path) -> None:
    rows, run = ended(openmpi, folder, 2, True, *SAMPLE)
    assert [len(of_rank) for of_rank in rows] == [12, 12]
    assert {how for of_rank in rows for _, how, _ in of_rank} == {"passed"}, rows
    assert run.warnings == []
    assert all(run.served(kind, 2) > 0 for kind in ("allreduce", "allgather", "reducescatter", "scatter"))


@pytest.mark.slow
@pytest.mark.timeout(3000)  # with more processes than processors most of it is MPI's own waiting
@pytest.mark.parametrize("ranks", range(2, 9))
def test_all_of_them(mpi: Mpi, folder: Path, ranks: int) -> None:
    theirs, _ = ended(mpi, folder, ranks, False)
    ours, run = ended(mpi, folder, ranks, True)
    assert ours == theirs
    assert len(theirs[0]) >= 500
    assert all(how != "failed" for of_rank in theirs for _, how, _ in of_rank)
    assert run.warnings == []
    assert all(run.served(kind, ranks) > 20 for kind in KINDS), run.report["served"]
