"""Plans under a real MPI: every element against what the collective defines, the library's own collective too."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import antiphon
from antiphon.cli import run
from antiphon.cli._mpi_text import mpi_text
from antiphon.core.collective import Collective
from antiphon.core.interpret import interpret
from antiphon.core.program import encode
from antiphon.core.schedule import Schedule
from antiphon.core.transform import pipeline
from antiphon.errors import Invalid, Missing, TimedOut, Unsupported
from antiphon.lower.program import both, lower
from antiphon.run import mpi as on_mpi
from antiphon.run._launch import Failed, consent
from antiphon.run._mpi_data import RankData
from antiphon.run._mpi_process import Case
from antiphon.run._native import OPERATORS, TYPES
from antiphon.run.mpi import run_cases, run_mpi, taking_part

MPIEXEC = Path(sys.executable).with_name("mpiexec")
HAS_MPI = find_spec("mpi4py") is not None and MPIEXEC.exists() and shutil.which("cc") is not None
needs_mpi = pytest.mark.skipif(not HAS_MPI, reason="needs mpi4py, mpiexec and a compiler: pip install 'antiphon[mpi]'")

# The collective, the planner, and the machines it is asked for.
PLANS = [
    ("allreduce", "ring", "ring:ranks={}", (2, 3, 5, 8)),
    ("allreduce", "recursive-doubling", "full:ranks={}", (2, 4, 8)),
    ("allreduce", "halving-doubling", "full:ranks={}", (4, 8)),
    ("allreduce", "direct", "full:ranks={}", (3, 6)),
    ("allreduce", "double-binary-tree", "full:ranks={}", (5, 7)),
    ("allgather", "ring", "ring:ranks={}", (3, 8)),
    ("allgather", "bruck", "full:ranks={}", (5, 6)),
    ("allgather", "direct", "full:ranks={}", (4,)),
    ("reducescatter", "ring", "ring:ranks={}", (4, 7)),
    ("reducescatter", "halving-doubling", "full:ranks={}", (8,)),
    ("broadcast", "binomial-tree", "full:ranks={}", (2, 6)),
    ("reduce", "binomial-tree", "full:ranks={}", (3, 8)),
    ("gather", "direct", "full:ranks={}", (4,)),
    ("scatter", "direct", "full:ranks={}", (5,)),
    ("alltoall", "pairwise", "full:ranks={}", (4, 7)),
    ("alltoall", "bruck", "full:ranks={}", (5,)),
]
SIZES = (0, 1, 7, 1000, 4097, 65536, 2**20)  # bytes, and elements for the first three


@cache
def schedules() -> list[Schedule]:
    found = []
    for kind, planner, machine, counts in PLANS:
        for count in counts:
            plan = antiphon.plan(kind, antiphon.topology(machine.format(count)), planner=planner)
            found.append(plan.at(0).schedule)
    found.append(pipeline(found[2], 3))  # a ring of 5
    return found


def case_of(number: int, draw: random.Random) -> Case:
    schedule, dtype = schedules()[number], draw.choice([*TYPES])
    weight, size = schedule.collective.buffer_weight, draw.choice(SIZES)
    unit = size if size < 10 else size // (weight * 4)
    return Case(
        number, taking_part(schedule), unit, unit * weight, dtype, draw.choice([*OPERATORS]),
        in_place=draw.random() < 0.5, seed=draw.randrange(99), repeat=1, warmup=0,
        split=draw.choice([None, None, 256, 0]), timeout=draw.choice([0.0, 60.0]),
    )  # fmt: skip


def check_cases(cases: list[Case]) -> list[dict[str, Any]]:
    rows = run_cases([encode(both(schedule)) for schedule in schedules()], cases, timeout=500.0)
    for case, row in zip(cases, rows, strict=True):
        assert row["wrong"] == 0, case
        # Open MPI adds whole numbers of 8 and 16 bits with saturation; C and NCCL wrap around
        assert row["reference_wrong"] == 0 or "int8" in case.dtype or "int16" in case.dtype, case
        assert row["messages"] > 0 or case.unit == 0, case
    return rows


@needs_mpi
def test_a_sample_of_everything() -> None:
    draw = random.Random(11)
    numbers = [*range(len(schedules())), *draw.choices(range(len(schedules())), k=9)]
    rows = check_cases([case_of(number, draw) for number in numbers])
    assert sum(row["reference_seconds"] is not None for row in rows) > len(rows) // 2


@needs_mpi
@pytest.mark.slow
def test_the_product() -> None:
    cases = []
    for number, schedule in enumerate(schedules()):
        ranks, weight = taking_part(schedule), schedule.collective.buffer_weight
        for dtype in TYPES:
            for op in OPERATORS if schedule.collective.combining else ("sum",):
                for size in SIZES:
                    unit = size if size < 10 else size // (weight * 4)
                    for place in (False, True):
                        common = {"repeat": 1, "warmup": 0, "in_place": place}
                        cases.append(Case(number, ranks, unit, unit * weight, dtype, op, **common))
    draw = random.Random(2)
    check_cases(draw.sample(cases, 1500))


@needs_mpi
def test_ranks_outside_of_the_group_relay() -> None:
    machine = antiphon.topology("ring:ranks=4")
    plan = antiphon.plan(Collective("allgather", 4, members=(0, 2)), machine, planner="relay")
    schedule = plan.at(0).schedule
    assert len(taking_part(schedule)) > 2
    rows = run_mpi(schedule, ["1000", "1MB"], repeat=1)
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
    none = mpi_text([{**row, "reference_seconds": None, "correct": False}])  # as for bfloat16
    assert none.splitlines()[1].split()[-2:] == ["-", "NO"]
    own = [sys.executable, "-m", "antiphon", "run", str(path), "--nbytes", "1KB", "--on", "mpi"]
    for count, code in ((3, 0), (2, 2)):
        command = [str(MPIEXEC), *consent(str(MPIEXEC), 2**20), "-n", str(count), *own]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=dict(os.environ))
        assert done.returncode == code, done.stderr
        assert done.stdout.count("yes") == (code == 0)
        assert ("the launcher started 2 processes, this needs 3" in done.stderr) == (code == 2)


@needs_mpi
def test_what_a_process_meets_is_told() -> None:
    schedule = schedules()[1]
    case = Case(0, [0, 1, 2], 10, 40, in_place=True, repeat=1)
    with pytest.raises(Unsupported, match="no program in place"):
        run_cases([encode([lower(schedule)])], [case], timeout=100.0)
    with pytest.raises(TimedOut, match="not done within"):
        run_cases([encode(both(schedule))], [case], timeout=0.01)


@needs_mpi
def test_a_peer_that_does_not_come_ends_in_an_error_where_a_timeout_is_given(tmp_path: Path) -> None:
    program, script = tmp_path / "ring.bin", tmp_path / "late.py"
    program.write_bytes(encode([lower(schedules()[0])]))
    script.write_text(LATE)
    command = [str(MPIEXEC), *consent(str(MPIEXEC), 2**20), "-n", "2", sys.executable, str(script), str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=dict(os.environ))
    assert "TimedOut nothing came or went for 0.3 seconds" in done.stdout
    assert "again: an earlier run failed" in done.stdout


LATE = """
import sys, time
import numpy as np
from mpi4py import MPI
from antiphon.errors import AntiphonError
from antiphon.run._build import library
from antiphon.run._native import Engine

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


# ---- without MPI ----


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("op", [*OPERATORS])
def test_right_results_count_as_right_and_wrong_ones_as_wrong(op: str, in_place: bool) -> None:
    for number in (0, 2, 8, 13, 20):
        schedule = schedules()[number]
        for dtype in ("int8", "uint64", "float16", "bfloat16", "float32", "float64"):
            ranks = range(schedule.collective.ranks)
            data = [RankData(schedule.collective, r, 9, _type(dtype), op, in_place, 5) for r in ranks]
            given = [np.zeros(one.sizes[0], _type(dtype)) for one in data]
            for one, buffer in zip(data, given, strict=True):
                one.fill(buffer)
            found = interpret(schedule, given, op=op, dtype=dtype, in_place=in_place)
            assert [one.count_wrong(buffer) for one, buffer in zip(data, found, strict=True)] == [0] * len(data)
            for one, buffer in zip(data, found, strict=True):
                for _, block in one.blocks_out(buffer):
                    block[3] = block[3] + _type(dtype).type(1)
                    assert one.count_wrong(buffer) == 1
                    break


def _type(name: str) -> np.dtype[Any]:
    from antiphon.core.datatypes import data_type

    return data_type(name)


def test_calls_that_make_no_sense() -> None:
    schedule = schedules()[0]
    with pytest.raises(Invalid, match="unknown operator"):
        run_mpi(schedule, 8, op="xor")
    with pytest.raises(Invalid, match="repeat"):
        run_mpi(schedule, 8, repeat=0)
    with pytest.raises(Invalid, match="type of NCCL"):
        run_mpi(schedule, 8, dtype=object)


def test_without_mpi4py_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_mpi, "find_spec", lambda name: None)
    with pytest.raises(Missing, match=r"antiphon\[mpi\]"):
        run_mpi(schedules()[0], 8)


def test_faults_become_errors() -> None:
    found = on_mpi._found
    with pytest.raises(Invalid, match="started 3 processes, this needs 4"):
        found([{"fault": "alone", "processes": 3}], 4, "the launcher")
    with pytest.raises(Missing, match="do not fit together"):
        found([{"fault": "alone", "processes": 1}], 4, "mpiexec")
    with pytest.raises(Failed, match="oh"):
        found([{"fault": "oh", "kind": "ValueError"}], 4, "mpiexec")
    with pytest.raises(Missing, match="oh"):
        found([{"fault": "oh", "kind": "Missing"}], 4, "mpiexec")


def test_the_command_knows_what_can_be_built(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["build", "mpj"]) == 2
    assert "did you mean 'mpi'" in capfd.readouterr().err
    assert run(["build", "nccl"]) == 2
    assert "not there yet" in capfd.readouterr().err
