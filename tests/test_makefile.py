"""`make` works in an environment of its own: what the user made stays."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with the Makefile, in which a user made `.venv`."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for folder in (".venv", "bench", "examples", "fuzz", "release", "src", "tests"):
        (tmp_path / folder).mkdir()
    (tmp_path / ".venv" / "mpich").touch()
    return tmp_path


def make(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", *arguments], cwd=tree, capture_output=True, text=True, check=False)


def test_clean_removes_only_what_make_built(tree: Path) -> None:
    modules = [tree / "src" / "__pycache__", tree / ".venv" / "__pycache__"]
    for folder in [*modules, tree / "build" / "venv"]:
        folder.mkdir(parents=True)
    assert make(tree, "clean").returncode == 0
    assert [folder.exists() for folder in modules] == [False, True]
    assert (tree / ".venv" / "mpich").exists()
    assert not (tree / "build").exists()


def test_an_environment_of_the_user_is_refused(tree: Path) -> None:
    refused = make(tree, "VENV=.venv", ".venv/.created")
    assert refused.returncode == 2
    assert ".venv was not made by this Makefile" in refused.stderr
    assert (tree / ".venv" / "mpich").exists()


def test_only_all_tests_need_ray(tree: Path) -> None:
    """Its wheel is large; `dev`, which `make test` installs, has the others."""
    shutil.copy(ROOT / "pyproject.toml", tree)
    for target, needs_ray in (("test", False), ("test-all", True)):
        commands = make(tree, "--dry-run", target).stdout
        assert "--editable '.[dev]'" in commands
        assert ("--editable '.[ray,parquet]'" in commands) == needs_ray


@pytest.mark.slow
def test_an_environment_is_made_beside_that_of_the_user(tree: Path) -> None:
    stamp = tree / "build" / "venv" / ".created"
    for content in ("", "where the tree was before"):  # interrupted; moved
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(content)
        assert make(tree, "build/venv/.created", f"PYTHON={sys.executable}").returncode == 0
        assert stamp.read_text() == f"{tree}\n"
        assert (stamp.parent / "bin" / "pip").exists()
    assert (tree / ".venv" / "mpich").exists()
