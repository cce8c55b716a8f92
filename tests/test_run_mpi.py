"""Plans under a real MPI: every element against what the collective defines, the library's own collective too."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import mpi_env
import numpy as np
import pytest
from mpi_cases import check_cases, sample, schedules
from quick import crossed

import antiphon
from antiphon.cli import run
from antiphon.cli.run_text import rows_text
from antiphon.core.collective import Collective
from antiphon.core.interpret import interpret
from antiphon.core.program import encode
from antiphon.core.schedule import Schedule
from antiphon.errors import Invalid, Missing, TimedOut, Unsupported
from antiphon.formats.program import both, lower
from antiphon.runtimes.engine.launch import Failed, open_mpi_options, watch
from antiphon.runtimes.engine.native import OPERATORS
from antiphon.runtimes.measure import mpi as mpi_runtime
from antiphon.runtimes.measure.case import Case, Runnable, active_ranks
from antiphon.runtimes.measure.mpi import run_cases
from antiphon.runtimes.measure.random_data import RandomData
from antiphon.runtimes.measure.rows import run_schedule

MPIEXEC = Path(sys.executable).with_name("mpiexec")
HAS_MPI = find_spec("mpi4py") is not None and MPIEXEC.exists() and shutil.which("cc") is not None
needs_mpi = pytest.mark.skipif(not HAS_MPI, reason="needs mpi4py, mpiexec and a compiler: pip install 'antiphon[mpi]'")
CASES = Path(__file__).with_name("mpi_cases.py")


@pytest.mark.slow
@needs_mpi
@pytest.mark.parametrize(("more", "most", "each"), [(3, 5, 1), (5, 5, 2), (5, 16, 2)])
def test_a_sample_of_everything(more: int, most: int, each: int) -> None:
    cases = sample(11, more, most, each)
    rows = check_cases(cases)
    assert sum(row["reference_seconds"] is not None for row in rows) > len(rows) // 2
    assert sum("digests" in row for row in rows) > len(rows) // 2
    for case, row in zip(cases, rows, strict=True):  # MPI has none; such are held against float64 and the interpreter
        if case.dtype in ("float16", "bfloat16") and schedules()[case.program].collective.combining:
            assert row["reference_seconds"] is None


FEW = [(4, 1), pytest.param(16, 2, marks=pytest.mark.slow)]  # to start processes takes longer than what they do


@pytest.mark.slow
@needs_mpi
@pytest.mark.parametrize(("most", "each"), FEW)
@pytest.mark.parametrize("near", [pytest.param(0, marks=pytest.mark.slow), 3])
def test_messages_by_mpi_alone_and_by_both_ways(
    near: int, most: int, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 0, as between hosts; with 3, as on several hosts of three."""
    monkeypatch.setenv("ANTIPHON_SHARED", str(near))
    check_cases(sample(13 + near, 0, most, each))


@pytest.mark.slow
@pytest.mark.parametrize(("most", "each"), FEW)
def test_a_sample_of_everything_under_mpich(mpich: mpi_env.Mpi, most: int, each: int) -> None:
    command = [mpich.python, str(CASES), "12", "0", str(most), str(each)]
    env = {**mpich.env, "ANTIPHON_SHARED": "4"}  # so that all have near ones, and in larger groups far ones as well
    done = subprocess.run(command, capture_output=True, text=True, timeout=1000, check=False, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith(f"{len(sample(12, 0, most, each))} right")


def test_the_samples_have_every_number_of_processes() -> None:
    assert {len(case.ranks) for case in [*sample(11, 5), *sample(12, 0)]} == set(range(2, 17))


@pytest.mark.slow
@needs_mpi
def test_ranks_outside_of_the_group_relay() -> None:
    machine = antiphon.topology("ring:ranks=4")
    plan = antiphon.plan(Collective("allgather", 4, members=(0, 2)), machine, planner="relay")
    schedule = plan.at(0).schedule
    assert len(active_ranks(schedule)) > 2
    rows = run_schedule("mpi", Runnable(schedule), ["1000", "1MB"], repeat=1)
    assert rows is not None
    assert [row["correct"] for row in rows] == [True, True]
    assert [row["reference_seconds"] for row in rows] == [None, None]


@needs_mpi
def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    assert run(f"plan allreduce full:ranks=3 --planner direct -o {path}".split()) == 0
    assert run(["build", "mpi", "--json"]) == 0
    out = capfd.readouterr().out
    library = json.loads(out[out.index("{\n") :])["library"]
    assert run(["build", "mpi"]) == 0
    assert capfd.readouterr().out.strip() == library
    assert Path(library).name == "libantiphon_mpi.so"
    assert run(f"run {path} --nbytes 10001 --on mpi --repeat 2 --dtype int16 --op avg --json".split()) == 0
    row = json.loads(capfd.readouterr().out)["rows"][0]
    assert row["correct"]
    assert row["nbytes"] == 10000
    assert row["algbw"] == pytest.approx(row["nbytes"] / row["seconds"])
    assert row["busbw"] == pytest.approx(row["algbw"] * 4 / 3)
    assert row["reference_seconds"] > 0
    none = rows_text([{**row, "reference_seconds": None, "correct": False}])  # as for bfloat16
    assert none.splitlines()[1].split()[-2:] == ["-", "NO"]


def launched(count: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """So many processes of Python with these arguments."""
    command = [str(MPIEXEC), *open_mpi_options(str(MPIEXEC), 2**20), "-n", str(count), sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=1000, check=False, env=dict(os.environ))


def scripted(folder: Path, text: str, schedule: Schedule) -> list[str]:
    """A script, and the program of a schedule as its argument."""
    script, program = folder / "script.py", folder / "program.bin"
    script.write_text(text)
    program.write_bytes(encode([lower(schedule)]))
    return [str(script), str(program)]


@pytest.mark.slow
@needs_mpi
@pytest.mark.parametrize(("count", "code"), [pytest.param(3, 0, marks=pytest.mark.slow), (2, 2)])
def test_a_launcher_may_start_the_command_itself(tmp_path: Path, count: int, code: int) -> None:
    path = tmp_path / "plan.json"
    assert run(f"plan allreduce full:ranks=3 --planner direct -o {path}".split()) == 0
    done = launched(count, "-m", "antiphon", "run", str(path), "--nbytes", "1KB", "--on", "mpi")
    assert done.returncode == code, done.stderr
    assert done.stdout.count("yes") == (code == 0)
    assert ("the launcher started 2 processes, this needs 3" in done.stderr) == (code == 2)


@pytest.mark.slow
@needs_mpi
def test_what_a_process_meets_is_told() -> None:
    schedule = schedules()[1]
    case = Case(0, [0, 1, 2], 10, 40, in_place=True, repeat=1)
    with pytest.raises(Unsupported, match="no program in place"):
        run_cases([encode([lower(schedule)])], [case], timeout=100.0)
    with pytest.raises(TimedOut, match="not done within"):
        run_cases([encode(both(schedule))], [case], timeout=0.01)


@pytest.mark.slow
@needs_mpi
def test_a_peer_that_does_not_come_ends_in_an_error_where_a_timeout_is_given(tmp_path: Path) -> None:
    done = launched(2, *scripted(tmp_path, LATE, schedules()[0]))
    assert "TimedOut nothing came or went for 0.3 seconds" in done.stdout
    assert "again: an earlier run failed" in done.stdout


LATE = """
import sys, time
import numpy as np
from mpi4py import MPI
from antiphon.errors import AntiphonError
from antiphon.runtimes.engine.build import library
from antiphon.runtimes.engine.native import Engine

engine = Engine(library("mpi"))
wire = engine.mpi(MPI.COMM_WORLD, [0, 1], 2)
plan = engine.program(open(sys.argv[1], "rb").read()).plan(MPI.COMM_WORLD.rank, 1000)
if MPI.COMM_WORLD.rank:
    time.sleep(5)
    MPI.COMM_WORLD.Abort(3)
data = np.ones(1000, np.float32)
for word in ("", "again: "):
    try:
        plan.run(data, data.copy(), wire, timeout=0.3)
    except AntiphonError as error:
        print(word + (word or type(error).__name__ + " ")[len(word):] + str(error), flush=True)
MPI.COMM_WORLD.Abort(4)
"""


@needs_mpi
@pytest.mark.parametrize(("wanted", "level"), [(None, "THREAD_SINGLE"), ("multiple", "THREAD_MULTIPLE")])
def test_mpi_is_measured_without_threads_unless_the_user_wants_them(wanted: str | None, level: str) -> None:
    """Locks of MPI_THREAD_MULTIPLE slow down the library's small calls, which a plan would then replace."""
    script = (
        "import os; before = dict(os.environ)\n"
        "from antiphon.runtimes.engine.launch import import_mpi_to_measure\n"
        f"MPI = import_mpi_to_measure(); assert MPI.Query_thread() == MPI.{level}; assert dict(os.environ) == before\n"
    )
    variables = {**os.environ, **({"MPI4PY_RC_THREAD_LEVEL": wanted} if wanted else {})}
    done = subprocess.run([sys.executable, "-c", script], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ---- without MPI ----


@pytest.mark.parametrize(("op", "in_place"), crossed(OPERATORS, [False, True]))
def test_right_results_count_as_right_and_wrong_ones_as_wrong(op: str, in_place: bool) -> None:
    for number in (0, 2, 8, 13, 20):
        schedule = schedules()[number]
        for dtype in ("int8", "uint64", "float16", "bfloat16", "float32", "float64"):
            ranks = range(schedule.collective.ranks)
            made = RandomData(schedule.collective, 9, _type(dtype), op, in_place, 5)
            data = [made.rank(r) for r in ranks]
            given = [np.zeros(one.sizes[0], _type(dtype)) for one in data]
            for one, buffer in zip(data, given, strict=True):
                one.fill(buffer)
            found = interpret(schedule, given, op=op, dtype=dtype, in_place=in_place)
            assert [one.count_wrong(buffer) for one, buffer in zip(data, found, strict=True)] == [0] * len(data)
            for one, buffer in zip(data, found, strict=True):
                for _, block in one.outputs(buffer):
                    with np.errstate(over="ignore"):
                        block[3] = block[3] + _type(dtype).type(1)
                    assert one.count_wrong(buffer) == 1
                    break


def _type(name: str) -> np.dtype[Any]:
    from antiphon.core.datatypes import data_type

    return data_type(name)


def test_calls_that_make_no_sense() -> None:
    schedule = schedules()[0]
    with pytest.raises(Invalid, match="unknown operator"):
        run_schedule("mpi", Runnable(schedule), 8, op="xor")
    with pytest.raises(Invalid, match="repeat"):
        run_schedule("mpi", Runnable(schedule), 8, repeat=0)
    with pytest.raises(Invalid, match="type of NCCL"):
        run_schedule("mpi", Runnable(schedule), 8, dtype=object)


def test_without_mpi4py_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi_runtime, "find_spec", lambda name: None)
    with pytest.raises(Missing, match=r"antiphon\[mpi\]"):
        run_schedule("mpi", Runnable(schedules()[0]), 8)


def test_faults_become_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever told them: processes started here, or by a launcher that started this one, too."""
    monkeypatch.setattr(mpi_runtime, "library", lambda *asked: "")
    monkeypatch.setattr(mpi_runtime, "launcher_command", lambda mpiexec, count: ["mpiexec"])
    monkeypatch.setattr(mpi_runtime, "find_spec", lambda name: True)
    monkeypatch.setitem(sys.modules, "mpi4py", mock.Mock())  # nothing is sent
    cases = [Case(0, [0, 1, 2, 3], 1, 16)]

    def told(**fault: Any) -> None:
        monkeypatch.setattr(mpi_runtime, "is_launched", lambda: False)
        monkeypatch.setattr(mpi_runtime, "watch", lambda command, heard, timeout: heard(fault))
        run_cases([], cases)

    with pytest.raises(Missing, match="do not fit together"):
        told(fault="alone", processes=1)
    with pytest.raises(Failed, match="oh"):
        told(fault="oh", kind="ValueError")
    with pytest.raises(Missing, match="oh"):
        told(fault="oh", kind="Missing")
    monkeypatch.setattr(mpi_runtime, "is_launched", lambda: True)
    alone = {"fault": "alone", "processes": 3}
    monkeypatch.setattr(mpi_runtime.process, "work", lambda job, mpi, world, heard, enough: heard(alone))
    with pytest.raises(Invalid, match="started 3 processes, this needs 4"):
        run_cases([], cases)


def test_the_command_knows_what_can_be_built(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["build", "mpj"]) == 2
    assert "did you mean 'mpi'" in capfd.readouterr().err


def test_rows_are_heard_through_what_is_added_to_them() -> None:
    said: list[dict[str, Any]] = []
    line = 'antiphon-row {"a": 1}\\0antiphon-row {"a"\\n\\0antiphon-row {"b": 2}\\0\\n'
    watch([sys.executable, "-c", f"import sys; sys.stdout.write('{line}')"], said.append, 60.0)
    assert said == [{"a": 1}, {"b": 2}]
    with pytest.raises(Failed, match="no row"):
        watch([sys.executable, "-c", "print('antiphon-row {')"], said.append, 60.0)
