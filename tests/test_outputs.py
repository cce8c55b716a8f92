"""What is asked for is looked at before any work: files that cannot be written, what is not installed."""

import importlib
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon.cli import application, run
from antiphon.cli.output import OUTPUTS
from antiphon.core.files import check_folder, check_writable, write_bytes
from antiphon.core.request import Request
from antiphon.core.serialize import load_plan
from antiphon.errors import Invalid
from antiphon.registry import Entry, PlannerCapabilities

Capture = pytest.CaptureFixture[str]
NOTES = "ANTIPHON_TEST_NOTES"


def noting(request: Request) -> Any:
    """Planner ring, which notes in a file that it was asked: it may be in another process."""
    from antiphon.planners.rings.ring import ring

    Path(os.environ[NOTES]).write_text(request.collective.kind)
    yield from ring(request)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
    added: Callable[..., None],
) -> None:
    monkeypatch.setenv(NOTES, str(tmp_path_factory.mktemp("notes") / "planned"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "adir").mkdir()
    (tmp_path / "afile").write_text("kept")
    can = PlannerCapabilities(("allreduce", "allgather", "broadcast"), "")
    added(noting=Entry("test_outputs:noting", "", can))


def planned() -> bool:
    return Path(os.environ[NOTES]).exists()


def refused(capsys: Capture, command: str) -> str:
    """One line, exit code 2, and no planner was asked."""
    capsys.readouterr()
    assert run(command.split()) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), planned()) == ("", 1, False)
    assert err.startswith("antiphon: ")
    return err


TUNE = "tune allreduce ring:ranks=3 --planner noting --no-nccl --nbytes 1KB:2KB"
PLAN = "plan allreduce ring:ranks=3 --planner noting"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (f"{TUNE} -o adir", "adir: cannot be written: is a directory"),
        (f"{TUNE} -o none/plan.json", "there is no directory"),
        (f"{TUNE} -o afile/plan.json", "there is no directory"),
        (f"{TUNE} -o none/x.svg", "none/x.svg: cannot be written"),
        (f"{TUNE} -o out.json -o out.json", "out.json: would be written twice; name two files"),
        (f"{TUNE} -o adir/../out.json -o out.json", "would be written twice"),
        (f"{TUNE} --sweep pieces=1,2 -o out.svg --heatmap out.svg", "would be written twice"),
        ("tune allreduce ring --vary ranks=2,3 --planner noting --no-nccl -o afile", "name a directory"),
        ("tune allreduce ring --vary ranks=2,3 --planner noting --no-nccl -o none/two", "there is no directory"),
        (f"{PLAN} -o adir", "is a directory"),
        (f"{PLAN} -o none/plan.json", "there is no directory"),
        (f"{PLAN} -o none/x.svg", "there is no directory"),
        ("frontier allgather ring:ranks=3 --planner noting -o adir", "is a directory"),
        ("topology show ring:ranks=3 -o adir", "is a directory"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_planning(capsys: Capture, command: str, said: str) -> None:
    assert said in refused(capsys, command)
    assert Path("afile").read_text() == "kept"
    assert sorted(path.name for path in Path().iterdir()) == ["adir", "afile"]
    assert not list(Path("adir").iterdir())


def test_the_planner_is_asked_where_all_is_well(capsys: Capture) -> None:
    assert run([*TUNE.split(), "-o", "plan.json", "-o", "report.html"]) == 0
    assert planned()
    assert antiphon.verify(load_plan("plan.json"))
    assert sorted(path.name for path in Path().iterdir()) == ["adir", "afile", "plan.json", "report.html"]


def test_the_ending_decides_in_any_case() -> None:
    assert run([*TUNE.split(), "-o", "times.SVG", "-o", "page.htm", "-o", "plan", "-o", "again.JSON.gz"]) == 0
    assert Path("times.SVG").read_text().startswith("<svg")
    assert Path("page.htm").read_text().lower().startswith("<!doctype html")
    assert load_plan("plan") == load_plan("again.JSON.gz")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(capsys: Capture) -> None:
    Path("adir").chmod(0o500)
    assert "Permission denied" in refused(capsys, f"{TUNE} -o adir/plan.json")


@pytest.mark.parametrize("option", ["-o", "-o x.svg -o", "-o x.json -o"])
def test_a_missing_package_is_told_before_planning(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    _without(monkeypatch, "resvg_py", "antiphon.show.pictures.png")
    assert "PNG needs the package resvg_py: pip install" in refused(capsys, f"{TUNE} {option} x.png")
    assert "PNG needs the package resvg_py: pip install" in refused(capsys, f"{PLAN} {option} x.png")


def _without(monkeypatch: pytest.MonkeyPatch, package: str, where: str) -> None:
    monkeypatch.setattr(
        importlib.import_module(where), "find_spec", lambda name: None if name == package else find_spec(name)
    )


def _no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPICC", "no-such-compiler")
    monkeypatch.setenv("CC", "no-such-compiler")


@pytest.mark.parametrize(
    ("ground", "more", "break_it", "said"),
    [
        ("mpi", "", lambda m: _without(m, "mpi4py", "antiphon.runtimes.measure.mpi"), "needs the package mpi4py"),
        ("mpi:mpiexec=no-such-launcher", "", lambda m: None, "'no-such-launcher': no such program"),
        ("mpi", "", _no_compiler, "'no-such-compiler': no such program"),
        ("torch", "", lambda m: _without(m, "torch", "antiphon.runtimes.measure.torch"), "needs the package torch"),
        ("torch", "", _no_compiler, "'no-such-compiler': no such program"),
        ("lab", "", lambda m: m.setattr("os.geteuid", lambda: 1000), "needs root"),
    ],
)
def test_a_ground_that_is_not_here_is_told_before_planning(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, ground: str, more: str,
    break_it: Callable[[pytest.MonkeyPatch], None], said: str,
) -> None:  # fmt: skip
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "MPI_LOCALRANKID"):
        monkeypatch.delenv(name, raising=False)
    break_it(monkeypatch)
    told = refused(capsys, f"tune allreduce full:ranks=3 --planner noting --on {ground} {more}".strip())
    assert said in told
    told = refused(capsys, f"bench allreduce full:ranks=3 --planner noting --on {ground} {more}".strip())
    assert said in told


def test_whatever_is_refused_cannot_be_written_and_what_is_not_can(tmp_path: Path) -> None:
    """The check and the writing agree on every kind of place."""
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "link").symlink_to("afile")
    (tmp_path / "dangling").symlink_to("new")
    (tmp_path / "astray").symlink_to("none/new")
    os.mkfifo(tmp_path / "adir" / "pipe")
    for name in ("afile", "adir", "link", "dangling", "astray", "loop", "none/x", "afile/x", "adir/x", "a\0b", "x.gz"):
        place = tmp_path / name
        told = _said(check_writable, place)
        assert told == _said(write_bytes, place, b"x"), name
    assert _said(check_writable, tmp_path / "adir" / "pipe") == ""
    assert _said(check_writable, "/dev/null") == ""
    assert _said(check_folder, tmp_path / "a" / "b", True) == ""
    assert "there is no directory" in _said(check_folder, tmp_path / "a" / "b")
    assert "name a directory" in _said(check_folder, tmp_path / "afile")


def _said(act: Callable[..., Any], *given: Any) -> str:
    try:
        act(*given)
    except Invalid as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (f"{PLAN} -o plan.yaml", "-o plan.yaml: cannot write .yaml; this command writes .json, .svg, .png"),
        (f"{TUNE} -o plan.yaml.gz", "this command writes .json, .html, .svg, .png"),
        (f"{TUNE} --sweep pieces=1,2 --heatmap x.png", "--heatmap x.png: cannot write .png; this option writes .svg"),
        ("frontier allgather ring:ranks=3 --planner noting -o points.csv", "writes .json"),
        ("bench genmodel --on mpi -o rows.json", "cannot write .json; this command writes .csv"),
    ],
)
def test_a_file_is_what_its_name_says(capsys: Capture, command: str, said: str) -> None:
    assert said in refused(capsys, command)


def test_each_command_with_an_output_says_what_it_writes() -> None:
    names = {
        f"{command.name} {inner.name}" if inner is not command and not inner.hidden else command.name
        for command in application().commands.values()
        for inner in getattr(command, "commands", {"": command}).values()
        if any("-o" in option.opts for option in inner.params)
    }
    assert names - {"export", "topology export", "table merge"} == OUTPUTS.keys()  # those write any name


@pytest.mark.parametrize("name", ["plan", "plan.JSON", "plan.json.gz", ".plan", "2024.11", "plan.gz"])
def test_names_that_promise_nothing_else(name: str) -> None:
    assert run([*PLAN.split(), "-o", name]) == 0
    assert load_plan(name).collective.kind
