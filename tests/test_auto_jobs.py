"""Jobs with ANTIPHON_TABLE=auto: real processes under Open MPI, MPICH, PyTorch and alone, in a lab too, and what may go
wrong with them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from lab_env import why_no_lab
from mpi_env import Mpi

from antiphon.runtimes.engine.build import library as engine

HERE = Path(__file__).parent
TREES = {"ANTIPHON_TABLE": "auto", "ANTIPHON_TOPOLOGY": "dgx1v", "ANTIPHON_RANKS": "1,4,5,6"}
# Plans come in the midst of a job, however busy this machine is.
MIDST = {"ANTIPHON_AUTO_WAIT": "0", "ANTIPHON_AUTO_PRIORITY": "0"}
ADDRESS = {"MASTER_ADDR": "127.0.0.1"}
UNTIL = "AUTO_UNTIL"  # plans are in this folder


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Where this test keeps its plans, with the engine that is compiled already."""
    made = tmp_path / "cache"
    made.mkdir(mode=0o700)
    if shutil.which("cc") is not None:
        folder = engine("sockets").parent
        shutil.copytree(folder, made / "native" / folder.name)
    return made


@cache
def library(python: str, mpicc: str) -> str:
    command = [python, "-m", "antiphon", "build", "mpi", "--compiler", mpicc]
    return subprocess.run(command, capture_output=True, text=True, timeout=1000, check=True).stdout.strip()


@cache
def compiled(folder: Path, name: str, mpicc: str) -> str:
    path = folder / f"auto-{name}"
    source = HERE / "preload" / "auto.c"
    command = [*shlex.split(mpicc), "-O0", "-Wall", "-Wextra", "-Werror", "-pthread", str(source), "-o", str(path)]
    subprocess.run(command, check=True, timeout=1000)
    return str(path)


class Job:
    """One of four processes by the trees of a DGX-1V."""

    def __init__(self, mpi: Mpi, folder: Path, kept: Path | str, *words: object, **settings: str) -> None:
        self.report_path = folder / f"report{len(list(folder.glob('report*')))}.json"
        env = {**mpi.env, **TREES, **MIDST, "ANTIPHON_AFTER": "0", "ANTIPHON_REPORT": str(self.report_path), **settings}
        env |= {"LD_PRELOAD": library(mpi.python, mpi.mpicc), "ANTIPHON_CACHE": str(kept)}
        if not words:
            env[UNTIL], words = str(Path(kept, "auto")), (0, 50_000)
        program = compiled(folder, mpi.name, mpi.mpicc)
        command = [*mpi.mpiexec(4), program, *map(str, words)]
        self.process = subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def end(self) -> Job:
        try:
            self.out, self.said = self.process.communicate(timeout=1000)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
        return self

    def right(self) -> Job:
        self.end()
        assert (self.process.returncode, self.out) == (0, "right\n"), self.said
        return self

    @property
    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.report_path.read_text())
        return found

    @property
    def auto(self) -> dict[str, Any]:
        found: dict[str, Any] = self.report["auto"]
        return found

    def by_trees(self) -> dict[str, int]:
        rows = [row for row in self.report["served"] if row["planner"].startswith("trees")]
        found: dict[str, int] = {}
        for row in rows:
            found[row["collective"]] = found.get(row["collective"], 0) + row["calls"]
        return found

    def waiting(self) -> int:
        return sum(row["calls"] for row in self.report["left"] if "not there yet" in row["reason"])


def planners(kept: Path) -> list[int]:
    """Processes that plan for this cache."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if b"antiphon.runtimes.auto" in words and any(word.startswith(os.fsencode(kept)) for word in words):
            found.append(int(entry.name))
    return found


def gone(kept: Path, seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while planners(kept):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def left_over(kept: Path) -> list[str]:
    """Files that are no kept answers."""
    return [p.name for p in (kept / "auto").rglob("*") if p.is_file() and p.suffix not in (".plan", ".alike")]


def nice(process: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, process)


@pytest.fixture
def mpi(request: pytest.FixtureRequest) -> Mpi:
    found: Mpi = request.getfixturevalue(request.param)
    return found


each = pytest.mark.parametrize("mpi", ["openmpi", "mpich"], indirect=True)


# ---- MPI ----


@each
@pytest.mark.slow
def test_a_program_goes_by_trees_after_a_while_and_at_once_when_it_starts_again(
    mpi: Mpi, tmp_path: Path, kept: Path
) -> None:
    first = Job(mpi, tmp_path, kept).right()
    assert first.auto["how"] == "planned", first.report
    assert first.auto["machine"] == "dgx1v only 1,4,5,6"
    assert first.auto["since"] > 1
    assert "allreduce of 256MB" in first.auto["predicted"]
    assert set(first.by_trees()) == {"allreduce", "broadcast", "allgather", "reduce"}
    assert first.waiting() > 0
    assert gone(kept, 0)
    assert left_over(kept) == []
    again = Job(mpi, tmp_path, kept, 2, 0).right()
    assert (again.auto["how"], again.auto["since"]) == ("kept", 1)
    assert again.waiting() == 0
    # of the world, of its copy, and of its reverse where blocks have no order; not of its halves
    assert again.by_trees() == {"allreduce": 6, "broadcast": 6, "allgather": 4, "reduce": 6}


@each
@pytest.mark.slow
@pytest.mark.parametrize("word", ["roots", "ahead", "freed", "threads"])
def test_whatever_a_program_calls(mpi: Mpi, tmp_path: Path, kept: Path, word: str) -> None:
    pause = {"roots": 50_000, "ahead": 1000, "freed": 30_000, "threads": 10_000}[word]
    job = Job(mpi, tmp_path, kept, 0, pause, word, **{UNTIL: str(kept / "auto")}).right()
    if word != "ahead":
        assert job.auto["since"] > 1
    assert gone(kept, 0)
    if word == "roots":
        assert job.by_trees()["broadcast"] > 0


@each
@pytest.mark.slow
def test_a_job_may_wait_for_its_plans_when_it_starts(mpi: Mpi, tmp_path: Path, kept: Path) -> None:
    job = Job(mpi, tmp_path, kept, 2, 0, ANTIPHON_AUTO_WAIT="15").right()
    assert (job.auto["how"], job.auto["since"], job.waiting()) == ("planned", 1, 0)
    assert job.by_trees() == {"allreduce": 6, "broadcast": 6, "allgather": 4, "reduce": 6}
    assert gone(kept, 0)


def test_a_wait_that_is_no_time(openmpi: Mpi, tmp_path: Path, kept: Path) -> None:
    job = Job(openmpi, tmp_path, kept, 2, 0, ANTIPHON_AUTO_WAIT="soon", ANTIPHON_AUTO_BUDGET="1ms").right()
    assert job.said.count("ANTIPHON_AUTO_WAIT=soon is no number of seconds; ") == 1


@each
@pytest.mark.slow
def test_without_a_place_to_keep_plans_the_bytes_are_handed_on(mpi: Mpi, tmp_path: Path) -> None:
    job = Job(mpi, tmp_path, "off", 200, 50_000).right()
    assert job.auto["how"] == "planned"
    assert job.auto["since"] > 1
    assert job.by_trees()["allreduce"] > 0


@each
@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"ANTIPHON_TOPOLOGY": "dgx9"}, "dgx9"),
        ({"ANTIPHON_TOPOLOGY": "", "ANTIPHON_RANKS": ""}, "no GPU is seen here"),
        ({"ANTIPHON_AUTO_BUDGET": "1ms"}, "planning was stopped after 1"),
    ],
)
def test_where_nothing_can_be_planned_all_is_as_before(
    mpi: Mpi, tmp_path: Path, kept: Path, settings: dict[str, str], says: str
) -> None:
    job = Job(mpi, tmp_path, kept, 100, 50_000, **settings).right()
    assert (job.auto["how"], job.auto["since"]) == ("nothing", 0)
    assert says in job.auto["notes"]
    assert job.report["served"] == []
    assert gone(kept, 0)


@pytest.mark.slow
def test_a_job_that_ends_first_leaves_nothing(openmpi: Mpi, tmp_path: Path, kept: Path) -> None:
    job = Job(openmpi, tmp_path, kept, 2, 0).right()
    assert (job.auto["how"], job.auto["notes"]) == ("nothing", "planning had not ended")
    assert gone(kept, 0)
    assert left_over(kept) == []


@each
@pytest.mark.slow
def test_a_job_that_is_killed_leaves_no_process(mpi: Mpi, tmp_path: Path, kept: Path) -> None:
    slow = {"ANTIPHON_TOPOLOGY": "cluster:box=dgx1v,boxes=8", "ANTIPHON_RANKS": "1,14,25,36"}
    job = Job(mpi, tmp_path, kept, 4, 100_000, "killed", **slow)
    seen: list[int] = []
    while job.process.poll() is None and not seen:
        seen = planners(kept)
    assert seen
    job.end()
    assert job.process.returncode != 0
    assert gone(kept)
    assert left_over(kept) == []


@each
@pytest.mark.slow
def test_it_plans_with_the_least_priority(mpi: Mpi, tmp_path: Path, kept: Path) -> None:
    job = Job(mpi, tmp_path, kept, 100, 50_000, ANTIPHON_AUTO_PRIORITY="19")
    values: list[int] = []
    while job.process.poll() is None:
        for process in planners(kept):
            try:
                values.append(nice(process))
            except OSError:
                continue
        time.sleep(0.01)
    job.right()
    assert 19 in values


@pytest.mark.slow
def test_broken_and_foreign_files_are_planned_anew(openmpi: Mpi, tmp_path: Path, kept: Path) -> None:
    Job(openmpi, tmp_path, kept).right()
    (plan,) = (kept / "auto").glob("*.plan")
    (other,) = (kept / "auto").glob("*.alike")
    good = plan.read_bytes()
    plan.write_bytes(good[:-5])
    other.write_bytes(b"nonsense")
    broken = Job(openmpi, tmp_path, kept, 200, 50_000).right()
    assert broken.auto["how"] == "planned"
    assert "what was kept is damaged" in broken.auto["notes"]
    assert plan.read_bytes().split(b"\n", 1)[1] == good.split(b"\n", 1)[1]
    plan.chmod(0o666)
    foreign = Job(openmpi, tmp_path, kept, 150, 50_000).right()
    assert foreign.auto["how"] == "alike"
    assert "others may write there" in foreign.auto["notes"]


@pytest.mark.slow
def test_a_cache_of_somebody_else_is_not_believed(openmpi: Mpi, tmp_path: Path, kept: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to make files of another")
    Job(openmpi, tmp_path, kept).right()
    os.chown(kept / "auto", 12345, -1)
    job = Job(openmpi, tmp_path, kept, 200, 50_000).right()
    assert job.auto["how"] == "planned"
    assert job.auto["since"] > 1  # handed on by the job itself


@each
@pytest.mark.slow
def test_two_jobs_at_once(mpi: Mpi, tmp_path: Path, kept: Path) -> None:
    jobs = [Job(mpi, tmp_path, kept) for _ in range(2)]
    for job in jobs:
        job.right()
        assert job.auto["since"] > 1
    assert len(list((kept / "auto").glob("*.plan"))) == 1
    assert gone(kept, 0)
    assert left_over(kept) == []


# ---- Python ----


def processes(how: str, count: int, pause: float, port: int, kept: Path, **settings: str) -> dict[str, Any]:
    """Four that were started one by one: what process 0 tells."""
    env = {**os.environ, **TREES, **MIDST, **ADDRESS, "MASTER_PORT": str(port), "WORLD_SIZE": "4", **settings}
    env["ANTIPHON_CACHE"] = str(kept)
    if not count:
        env[UNTIL] = str(kept / "auto")
    found: dict[str, Any] = json.loads(
        of_first([sys.executable, "-W", "ignore", str(HERE / "auto_process.py"), how, str(count), str(pause)], env)
    )
    return found


def of_first(command: list[str], env: dict[str, str]) -> str:
    """What rank 0 of four prints."""
    started = [
        subprocess.Popen(command, env={**env, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(4)
    ]
    try:
        out = [one.communicate(timeout=1000)[0] for one in started]
    finally:
        for one in started:
            one.kill()
    assert [one.returncode for one in started] == [0] * 4
    return out[0]


def row_of(found: dict[str, Any]) -> dict[str, Any]:
    (row,) = (row for row in found["report"] if row["collective"] == "auto")
    assert isinstance(row, dict)
    return row


def trees(found: dict[str, Any]) -> int:
    return sum(row["calls"] for row in found["report"] if row["schedule"].startswith("trees"))


@pytest.fixture
def port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        number: int = one.getsockname()[1]
        return number


needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch: pip install 'antiphon[torch]'")


@needs_cc
@pytest.mark.slow
@pytest.mark.parametrize("how", ["comm", pytest.param("torch", marks=needs_torch)])
def test_python_goes_by_trees_after_a_while_and_at_once_when_it_starts_again(how: str, port: int, kept: Path) -> None:
    found = processes(how, 0, 0.02, port, kept)
    row = row_of(found)
    assert row["served_by"] == "planned"
    assert row["schedule"] == "dgx1v only 1,4,5,6"
    since = int(row["why"].removeprefix("from call ").split()[0])
    assert since > 1
    assert trees(found) == sum(number >= since for number, _, _ in found["calls"])
    assert gone(kept, 0)
    again = processes(how, 2, 0.0, port + 1, kept)
    assert row_of(again)["served_by"] == "kept"
    assert row_of(again)["why"].startswith("from call 1 on")
    assert trees(again) == 4


@needs_cc
@pytest.mark.slow
def test_the_program_of_the_page_runs(port: int, kept: Path, tmp_path: Path) -> None:
    text = (HERE.parent / "docs" / "auto.md").read_text()
    (tmp_path / "job.py").write_text(text.split("```python\n")[1].split("```")[0])
    env = {**os.environ, **TREES, **ADDRESS, "MASTER_PORT": str(port), "WORLD_SIZE": "4", "ANTIPHON_CACHE": str(kept)}
    assert "'collective': 'auto'" in of_first([sys.executable, str(tmp_path / "job.py")], env)


@needs_cc
@pytest.mark.slow
def test_python_without_a_place_to_keep_plans(port: int) -> None:
    found = processes("comm", 400, 0.02, port, Path("off"))
    assert row_of(found)["served_by"] == "planned"
    assert trees(found) > 0


@needs_cc
@pytest.mark.slow
def test_python_says_why_there_are_no_plans(port: int, kept: Path) -> None:
    found = processes("comm", 60, 0.05, port, kept, ANTIPHON_TOPOLOGY="dgx9")
    assert (row_of(found)["served_by"], trees(found)) == ("nothing", 0)
    assert "dgx9" in row_of(found)["why"]


# ---- in a lab ----


@pytest.fixture
def in_lab() -> Any:
    """Runs a program on ranks 1, 4, 5 and 6 of a DGX-1V, as from the command line."""
    if why := why_no_lab():
        pytest.skip(why)

    def run(command: Sequence[str], **settings: str) -> str:
        env = {key: value for key, value in os.environ.items() if key not in TREES}
        env |= {**MIDST, "ANTIPHON_TABLE": "auto", **settings}
        name = f"auto-{os.getpid()}"
        words = ["lab", "run", "dgx1v:only=1,4,5,6", "--name", name, "--timeout", "120", "--", *command]
        command = [sys.executable, "-m", "antiphon", *words]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1000, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.slow
@needs_torch
def test_in_a_lab_torch_runs_by_trees_soon(in_lab: Any, kept: Path) -> None:
    words = [sys.executable, "-W", "ignore", str(HERE / "auto_process.py"), "torch", "2", "0"]
    until = {UNTIL: str(kept / "auto")}
    found = json.loads(in_lab(words, ANTIPHON_CACHE=str(kept), **until).splitlines()[-1])
    assert row_of(found)["served_by"] == "planned"
    assert trees(found) > 0
    again = json.loads(in_lab(words, ANTIPHON_CACHE=str(kept)).splitlines()[-1])
    assert row_of(again)["why"].startswith("from call 1 on")
    assert trees(again) == 4


@pytest.mark.slow
def test_in_a_lab_mpi_runs_by_trees_soon(in_lab: Any, mpich: Mpi, tmp_path: Path, kept: Path) -> None:
    report = tmp_path / "report.json"
    settings = {
        "ANTIPHON_CACHE": str(kept), "LD_PRELOAD": library(mpich.python, mpich.mpicc), "ANTIPHON_REPORT": str(report),
        "PATH": mpich.env["PATH"],
    }  # fmt: skip
    words = [*mpich.mpiexec(4), mpich.python, str(HERE / "auto_process.py"), "mpi4py", "2", "0"]
    found = json.loads(in_lab(words, **settings, **{UNTIL: str(kept / "auto")}).splitlines()[-1])
    told = json.loads(report.read_text())["auto"]
    assert told["how"] == "planned"
    assert told["since"] > 1
    again = json.loads(in_lab(words, **settings).splitlines()[-1])
    assert json.loads(report.read_text())["auto"]["since"] == 1
    (by_mpi, *_), (by_trees, *_) = ([took for _, _, took in one["calls"]] for one in (found, again))
    assert by_trees < by_mpi
