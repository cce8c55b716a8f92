"""Calls of a running job as another program sees them: `antiphon watch`, and the file that the engine writes."""

import contextlib
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi_env import Mpi
from test_comm import over_sockets
from test_preload import compiled, folder, preloaded, table
from test_torch import launch

import antiphon
from antiphon.cli import run as cli
from antiphon.errors import Invalid
from antiphon.runtimes.engine.build import library
from antiphon.runtimes.engine.functions import Functions
from antiphon.runtimes.engine.native import Engine
from antiphon.runtimes.engine.watched import count_calls, read_watched
from antiphon.runtimes.serve.ledger import CallLedger, watch_calls

__all__ = ["folder"]
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("ANTIPHON_WATCH", str(tmp_path / "watched"))
    monkeypatch.delenv("ANTIPHON_TABLE", raising=False)
    yield tmp_path / "watched"
    Functions(library("threads")).ap_watch_close()


def ledgers(ranks: int) -> list[CallLedger]:
    """Of processes of a group, all in this one."""
    engine, made = Engine(library("threads")), [CallLedger() for _ in range(ranks)]
    for rank, ledger in enumerate(made):
        watch_calls(engine, ledger, range(ranks), rank)
    return made


def count(ledger: CallLedger, nbytes: int, seconds: float, schedule: str = "ring", kind: str = "allreduce") -> None:
    ledger.count(ledger.row(kind, schedule, "antiphon"), nbytes, seconds)


def test_the_process_that_is_ahead_counts(place: Path, tmp_path: Path) -> None:
    began = time.monotonic()
    assert count_calls(tmp_path / "none", began) == 0
    (only,) = ledgers(1)
    (place / "other").write_text("no file of calls")
    assert count_calls(place, began) == 0
    for nbytes in (8, 8000, 8):
        count(only, nbytes, 0.1)
    assert count_calls(place, began) == 3
    assert count_calls(place, time.monotonic()) == 0  # of an earlier job


def test_times_and_waits_for_the_last_process(place: Path) -> None:
    """Three processes make two calls that end together: the shortest time is that of the last to begin."""
    three = ledgers(3)
    for _ in range(2):
        for ledger, seconds in zip(three, (0.5, 0.1, 0.3), strict=True):
            count(ledger, 1000, seconds)
    count(three[0], 1030, 0.25)  # the others have not made it yet
    count(three[0], 0, 0.01, kind="broadcast")
    calls = antiphon.measure.watch(place)
    assert (calls["processes"], calls["ranks"], calls["missed"]) == (1, [0], 0)
    assert [row["collective"] for row in calls["rows"]] == ["allreduce", "allreduce", "broadcast"]
    whole, late, empty = calls["rows"]
    assert (whole["nbytes"], whole["least"], whole["calls"], whole["ranks"], whole["last"]) == (1000, 512, 2, 3, 1)
    assert whole["seconds"] == pytest.approx(0.1, abs=0.02)
    assert [each["wait"] for each in whole["processes"]] == pytest.approx([0.4, 0.0, 0.2], abs=0.02)
    assert whole["wait"] == pytest.approx(0.2, abs=0.02)
    assert [each["seconds"] for each in whole["processes"]] == pytest.approx([1.0, 0.2, 0.6])
    assert whole["total"] == pytest.approx(0.6)
    assert whole["last_share"] == 1
    assert (late["least"], late["calls"], empty["calls"]) == (1024, 1, 1)


def test_two_jobs_in_a_folder_are_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their groups look alike, so that calls of one would be paired with those of the other."""
    ledgers(1)
    (process,) = read_watched(place)
    unknown = process._replace(rank=-1)
    monkeypatch.setattr("antiphon.runtimes.engine.watched.read_watched", lambda _: [unknown, unknown, process])
    assert antiphon.measure.watch(place)["processes"] == 3
    monkeypatch.setattr("antiphon.runtimes.engine.watched.read_watched", lambda _: [process, process])
    with pytest.raises(Invalid, match="several jobs write there; start each with a folder of its own"):
        antiphon.measure.watch(place)


def test_a_broadcast_may_be_over_before_the_last_process_begins(place: Path) -> None:
    first, second = ledgers(2)
    count(first, 1000, 0.001, kind="broadcast")
    time.sleep(0.05)
    count(second, 1000, 0.002, kind="broadcast")
    (row,) = antiphon.measure.watch(place)["rows"]
    assert [each["wait"] for each in row["processes"]] == pytest.approx([0.001, 0.0], abs=1e-9)
    assert row["seconds"] == pytest.approx(0.002)


def test_threads_write_while_it_is_read(place: Path) -> None:
    """No call is lost, and no entry of the ring mixes two calls: each kind of calls has a time of its own."""
    calls, threads = 5_000, 4
    (ledger,) = ledgers(1)
    assert ledger.enter_call is not None
    rows = [ledger.row("allreduce", f"plan {number}", "antiphon") for number in range(6)]

    def write(seed: int) -> None:
        assert ledger.enter_call is not None
        for call in range(calls):
            number = (call + seed) % len(rows)
            ledger.enter_call(rows[number], 8, 0.5 + number)

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(threads)]
    for writer in writers:
        writer.start()
    looks = 0
    while any(writer.is_alive() for writer in writers) or not looks:
        (process,) = read_watched(place)
        names = [name.decode() for name in process.rows["schedule"]]
        expected = [0.5 + int(names[row].removeprefix("plan ")) for row in process.moments["row"]]
        assert np.allclose(process.moments["ended"] - process.moments["began"], expected)
        looks += 1
    (process,) = read_watched(place)
    assert process.rows["calls"].sum() == calls * threads
    assert len(process.moments) == 1024
    assert len({*process.moments["number"].tolist()}) == 1024


def test_more_kinds_of_calls_than_rows(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (ledger,) = ledgers(1)
    for number in range(260):
        count(ledger, 8, 1e-3, f"a schedule with a name that is longer than those that the file has room for {number}")
        count(ledger, 8, 1e-3, f"plan {number}")
    calls = antiphon.measure.watch(place)
    assert len(calls["rows"]) == 256
    assert calls["rows"][0]["calls"] == 260  # names are alike in what there is room for
    assert calls["missed"] == 260 - 255
    assert cli(["watch", str(place)]) == 0
    assert "5 calls of further kinds not shown" in capsys.readouterr().out


def test_metrics_for_prometheus(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for ledger in ledgers(2):
        for _ in range(3):
            count(ledger, 1000, 0.25, 'odd "name" \\')
    assert cli(["watch", str(place), "--prometheus"]) == 0
    lines = capsys.readouterr().out.splitlines()
    sample = re.compile(r'antiphon_\w+\{(\w+="(\\.|[^"\\])*",?)+\} [-+.e\d]+')
    assert all(line.startswith("# ") or sample.fullmatch(line) for line in lines)
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}
    group = read_watched(place)[0].rows[0]["group"]
    labels = f'collective="allreduce",group="{group}",ranks="2",schedule="odd \\"name\\" \\\\",least_bytes="512"'
    for rank in range(2):
        assert values[f'antiphon_calls_total{{{labels},rank="{rank}"}}'] == 3
        assert values[f'antiphon_call_seconds_total{{{labels},rank="{rank}"}}'] == 0.75
    assert values[f"antiphon_call_seconds{{{labels}}}"] == pytest.approx(0.25, abs=0.02)


def test_no_job_and_no_folder(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Invalid, match="start the job with ANTIPHON_WATCH="):
        antiphon.measure.watch(place)
    place.mkdir()
    (place / "1.0").write_text("no such file")  # of a process that is alive
    (place / f"{2**22 + 1}.0").write_bytes(b"antiphon-watch1")  # of one that is not
    (place / "note").touch()
    assert antiphon.measure.watch(place)["processes"] == 0
    assert cli(["watch", str(place)]) == 0
    assert "no process" in capsys.readouterr().out
    (tmp_path / "file").touch()
    assert Functions(library("threads")).ap_watch_open(os.fsencode(tmp_path / "file" / "x"), 0) != 0


def start_job(mpi: Mpi, folder: Path, place: Path, calls: int, delay: int, least: str) -> subprocess.Popen[str]:
    settings = {"ANTIPHON_WATCH": str(place), "ANTIPHON_LEAST": least, "ANTIPHON_TABLE": str(table(folder, 4))}
    env = {**mpi.env, **settings, "LD_PRELOAD": preloaded(mpi.python, mpi.mpicc)}
    command = [*mpi.mpiexec(4), compiled(folder, mpi, "drawn"), str(calls), str(delay)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)


def wait_for_calls(job: subprocess.Popen[str], place: Path, calls: int) -> dict[str, Any]:
    """Return the first view with so many calls; if the job ends before, the last one with any."""
    seen: dict[str, Any] = {"rows": []}
    while job.poll() is None and sum(row["calls"] for row in seen["rows"]) < calls:
        time.sleep(0.02)
        latest = antiphon.measure.watch(place) if place.exists() else seen
        seen = latest if latest["rows"] else seen  # the job may have ended meanwhile
    return seen


@pytest.mark.slow
def test_a_running_mpi_job(mpich: Mpi, folder: Path, place: Path) -> None:
    """Its calls are seen from outside; nothing remains when the job ends."""
    with start_job(mpich, folder, place, 2000, 255, "2KB") as job:
        calls, later = wait_for_calls(job, place, 100), wait_for_calls(job, place, 200)
        assert job.communicate(timeout=300)[0].startswith("right")
    assert (calls["processes"], calls["ranks"]) == (4, [0, 1, 2, 3])
    rows = {(row["collective"], row["nbytes"]): row for row in calls["rows"]}
    ring = rows["allreduce", 64_000]
    assert (ring["schedule"], ring["ranks"], len(ring["processes"])) == ("ring", 4, 4)
    assert 0 < ring["predicted"] < 1e-3  # of a machine with fast links
    assert all(row["seconds"] > 0 and row["wait"] >= 0 for row in rows.values())
    assert all(0 < row["share"] < 1 for row in rows.values())
    if later["rows"]:  # else the job ended between two looks
        assert sum(row["calls"] for row in later["rows"]) > sum(row["calls"] for row in calls["rows"])
    assert [*place.iterdir()] == []


@pytest.mark.slow
def test_the_view_in_a_terminal_ends_with_the_job(mpich: Mpi, folder: Path, place: Path) -> None:
    """Here the job is ended, so its files stay, of processes that are not alive."""
    ours, theirs = pty.openpty()
    settings, text, ended = {"TERM": "xterm", "COLUMNS": "120"}, "", False
    with start_job(mpich, folder, place, 10**6, 255, "2KB") as job:
        wait_for_calls(job, place, 1)
        command = [sys.executable, "-m", "antiphon", "watch", str(place)]
        view = subprocess.Popen(command, stdout=theirs, stdin=theirs, env={**os.environ, **settings})
        os.close(theirs)
        with contextlib.suppress(OSError):  # the terminal is closed
            while True:
                text += os.read(ours, 4096).decode()
                if not ended and len({*re.findall(r"4 processes \(ranks 0-3\), (\d+) calls", text)}) > 2:
                    ended = True
                    job.terminate()
        os.close(ours)
        assert view.wait(60) == 0
    assert ended
    assert re.search(r"allreduce.*64KB.*ring.*takes: ", text, re.DOTALL)
    assert [*place.iterdir()]


@pytest.mark.slow
def test_calls_of_the_library_are_seen(mpich: Mpi, folder: Path, place: Path) -> None:
    with start_job(mpich, folder, place, 300, 0, "10KB") as job:
        seen: dict[tuple[str, int], str] = {}
        while job.poll() is None:
            if place.exists():
                rows = antiphon.measure.watch(place)["rows"]
                seen |= {(row["collective"], row["nbytes"]): row["schedule"] for row in rows}
    assert seen == {
        ("allreduce", 4000): "the library", ("allreduce", 64_000): "ring",
        ("broadcast", 4000): "the library", ("broadcast", 64_000): "binomial-tree",
    }  # fmt: skip


GROUPS = """
import json, os
import numpy as np
from mpi4py import MPI
import antiphon
world, values = MPI.COMM_WORLD, np.zeros(16_000, np.int32)
half = world.Split(world.rank % 2)
between = half.Create_intercomm(0, world, 1 - world.rank % 2, 3)
for comm in (MPI.COMM_SELF, between, half):
    comm.Allreduce(MPI.IN_PLACE if comm != between else values.copy(), values)
world.Barrier()
if world.rank == 0:
    rows = antiphon.measure.watch(os.environ["ANTIPHON_WATCH"])["rows"]
    print(json.dumps([[row["ranks"], row["nbytes"], row["calls"]] for row in rows]))
world.Barrier()
"""


@pytest.mark.slow
def test_communicators_without_a_table(mpich: Mpi, folder: Path, place: Path) -> None:
    """Halves of the job have the size of their calls; those of one process, or between halves, are not watched."""
    settings = {"ANTIPHON_WATCH": str(place), "ANTIPHON_TABLE": str(table(folder, 4))}
    env = {**mpich.env, **settings, "LD_PRELOAD": preloaded(mpich.python, mpich.mpicc)}
    command = [*mpich.mpiexec(4), mpich.python, "-c", GROUPS]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=True)
    assert json.loads(done.stdout) == [[2, 64_000, 1], [2, 64_000, 1]]


def test_numpy(place: Path) -> None:
    (calls, *_, ended), said = over_sockets(2, "", "watched")
    assert ended == {"codes": [0, 0]}, said
    assert (calls["processes"], calls["ranks"]) == (2, [0, 1])
    (row,) = [row for row in calls["rows"] if row["nbytes"] == 400_000]
    assert row["schedule"].endswith("(default)")
    assert row["calls"] == 7
    assert row["wait"] >= 0


@pytest.mark.slow
def test_pytorch(place: Path, tmp_path: Path) -> None:
    (first, _), codes, said = launch(tmp_path, 2, ["watched"], ANTIPHON_WATCH=str(place))
    assert codes == [0, 0], said
    (row,) = [row for row in first["watched"]["calls"]["rows"] if row["nbytes"] == 4000]
    assert (row["collective"], row["ranks"], row["calls"]) == ("allreduce", 2, 5)
