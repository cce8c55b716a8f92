"""The library's own collectives beside ours, in one run: a library made up, with the names of NCCL's, on threads."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import antiphon
from antiphon.cli import run
from antiphon.runtimes.device import nccl_library
from antiphon.runtimes.measure.device import Cuda, Hip, Threads

pytestmark = pytest.mark.skipif(shutil.which("cc") is None or shutil.which("c++") is None, reason="needs compilers")
Made = Callable[..., None]
SOURCE = Path(__file__).with_name("device") / "library.c"
KINDS = [("allreduce", "ring"), ("broadcast", "direct"), ("reduce", "direct"), ("allgather", "ring"),
         ("reducescatter", "direct"), ("alltoall", "direct"), ("gather", "direct"), ("scatter", "direct")]  # fmt: skip


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    def compiled(*flags: str) -> None:
        path = tmp_path / "libmade.so"
        command = ["cc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", *flags, str(SOURCE), "-o", str(path)]
        subprocess.run(command, check=True)
        monkeypatch.setattr(Threads, "library", str(path))

    return compiled


@pytest.mark.parametrize("in_place", [pytest.param(False, marks=pytest.mark.slow), True])
def test_all_that_it_can_is_measured_beside_ours(made: Made, in_place: bool) -> None:
    made()
    for kind, planner in KINDS:
        root = {"root": 2} if kind in ("broadcast", "reduce", "gather", "scatter") else {}
        plan = antiphon.plan(kind, "full:ranks=4", planner=planner, **root)
        (row,) = antiphon.run(plan, "4KB", on="threads", dtype="float32", in_place=in_place)
        assert (row["correct"], row["agree"]) == (True, True), kind
        theirs = row["reference_seconds"] is not None
        assert theirs == (not in_place or kind not in nccl_library.POINT_TO_POINT), kind
        assert row["reference_wrong"] == (0 if theirs else None), kind


def test_what_it_computes_is_checked_too(made: Made) -> None:
    made("-DSPOILED")
    plan = antiphon.plan("allreduce", "full:ranks=4", planner="ring")
    (row,) = antiphon.run(plan, "4KB", on="threads", dtype="float32")
    assert row["correct"]
    assert row["reference_wrong"] > 0


def test_what_it_has_not_is_left_out(made: Made) -> None:
    made()
    for options in ({"dtype": "int16"}, {"ranks": [0, 2, 3]}):
        plan = antiphon.plan("allreduce", "full:ranks=4", planner="ring", ranks=options.pop("ranks", None))
        (row,) = antiphon.run(plan, "4KB", on="threads", **options)
        assert (row["correct"], row["reference_seconds"]) == (True, None)


def test_without_the_library_only_ours_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Threads, "library", "libnosuchlibrary.so.9")
    (row,) = antiphon.run(antiphon.plan("allreduce", "full:ranks=4", planner="ring"), "4KB", on="threads")
    assert (row["correct"], row["reference_seconds"]) == (True, None)


def test_the_table_has_both(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made()
    monkeypatch.chdir(tmp_path)
    assert run(["plan", "allreduce", "full:ranks=4", "--planner", "ring", "-o", "plan.json"]) == 0
    capsys.readouterr()
    assert run(["bench", "plan.json", "--on", "threads", "-b", "1KB", "-e", "4KB", "-n", "3", "-w", "1"]) == 0
    said = capsys.readouterr().out
    rows = [line.split() for line in said.splitlines() if line.strip() and line.strip()[0].isdigit()]
    assert len(rows) >= 2
    assert "library" in said
    assert "# -: there is no such collective" not in said


def test_where_wheels_have_it() -> None:
    assert (Cuda.library, Hip.library) == ("libnccl.so.2", "librccl.so.1")
    assert nccl_library.path_of("libnosuchlibrary.so.9") == "libnosuchlibrary.so.9"
