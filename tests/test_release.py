"""What a release brings: wheels with the compiled engine, tried in bare environments, and manual pages."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import manpages
import pytest
from reference import list_commands

from antiphon.errors import Missing
from antiphon.runtimes.engine import build

ROOT = Path(__file__).resolve().parent.parent


# ---- the compiled engine ----


def test_a_compiled_library_is_used_only_for_its_own_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "PREBUILT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))  # a compiler beside it would be used
    monkeypatch.delenv("CC", raising=False)
    path = tmp_path / build.prebuilt_name("threads", os.uname().machine)
    with pytest.raises(Missing, match="install a C compiler"):
        build.library("threads")
    path.touch()
    assert build.library("threads") == path
    with pytest.raises(Missing, match="no such program"):  # a compiler that is named is used
        build.library("threads", "their-cc")
    monkeypatch.setenv("CC", "their-cc")
    with pytest.raises(Missing, match="no such program"):
        build.library("threads")
    monkeypatch.delenv("CC")
    target = build.TARGETS["threads"]
    changed = tmp_path / "sources"
    shutil.copytree(target.folder, changed)
    (changed / "engine.c").write_text("int changed;\n")
    for other in (replace(target, folder=changed), replace(target, flags=(*target.flags, "-DX"))):
        monkeypatch.setitem(build.TARGETS, "threads", other)
        build.hash_sources.cache_clear()
        with pytest.raises(Missing, match="install a C compiler"):
            build.library("threads")
    build.hash_sources.cache_clear()
    assert not any(build.prebuilt_name(name, "x86_64") == path.name for name in build.PREBUILT_TARGETS[1:])
    assert build.MPI_PRELOAD not in build.PREBUILT_TARGETS  # it knows the path of this Python


def other_pythons() -> list[str]:
    """Other versions of Python on this machine, from 3.12 on: on the PATH, or of pyenv."""
    minors = [minor for minor in range(12, 16) if minor != sys.version_info.minor]
    paths = [shutil.which(f"python3.{minor}") for minor in minors]
    of_pyenv = [next(iter(Path.home().glob(f".pyenv/versions/3.{m}.*/bin/python3.{m}")), None) for m in minors]
    return [str(path or other) for path, other in zip(paths, of_pyenv, strict=True) if path or other]


@pytest.mark.slow
def test_wheels_work_in_bare_environments(tmp_path: Path) -> None:
    """`make dist`: sdist, wheel, and wheels with the engine, under this Python and another if there is one."""
    if subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(tmp_path), "build"],
                      check=False, capture_output=True).returncode:  # fmt: skip
        pytest.skip("needs a package index, for the tools that build wheels")
    tree = tmp_path / "tree"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", ".venv", "build", "dist", "*cache*"))
    pythons = other_pythons()
    environment = {**os.environ, "PYTHONPATH": f"{tree / 'src'}:{tree / 'release'}"}
    done = subprocess.run(
        ["sh", str(tree / "release" / "dist.sh"), sys.executable, *pythons], env=environment, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    wheels = sorted(path.name for path in (tree / "dist").glob("*.whl"))
    assert [re.sub(r".*-none-(.*)\.whl", r"\1", name) for name in wheels] == [
        "any", "manylinux_2_28_aarch64", "manylinux_2_28_x86_64",
    ]  # fmt: skip
    assert done.stdout.count("in a bare environment\n") == 1 + 2 * (1 + len(pythons))


# ---- manual pages ----


def test_every_command_and_option_has_its_place_in_a_manual_page() -> None:
    pages = manpages.build_manpages()
    assert pages.keys() == {"antiphon.1", *(f"antiphon-{name.split()[0]}.1" for name in list_commands())}
    for name in list_commands():
        first, _, inner = name.partition(" ")
        assert not inner or f'.SH "antiphon {first} {inner}'.replace("-", "\\-") in pages[f"antiphon-{first}.1"]
    assert ".B \\-\\-explain" in pages["antiphon-tune.1"]
    assert ".SH EXIT STATUS" in pages["antiphon.1"]


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_manual_pages_are_well_formed() -> None:
    for name, page in manpages.build_manpages().items():
        done = subprocess.run(
            ["groff", "-man", "-Tutf8", "-ww", "-Kutf8"], input=page, capture_output=True, text=True, check=True
        )
        warnings = [line for line in done.stderr.splitlines() if "can't break line" not in line]
        assert warnings == [], name
        assert "antiphon" in done.stdout
