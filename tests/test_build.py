"""Building the engine where things go wrong: a full disk, a build that was killed, a cache that others write into."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon.errors import Invalid, Missing
from antiphon.runtimes.engine import build

COMMAND = [sys.executable, "-c", "from antiphon.runtimes.engine.build import library; print(library('threads'))"]
MAIN = [sys.executable, "-m", "antiphon", "build", "mpi"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("ANTIPHON_CACHE", str(folder))
    return folder


def a_compiler(folder: Path, does: str) -> str:
    """Says what the real one says of itself; asked to compile it does this, with the file to make in $out."""
    script = folder / "cc"
    script.write_text(
        "#!/bin/sh\n"
        "case \"$*\" in *-dM*) echo '#define A 1'; exit 0;; esac\n"
        'while [ $# -gt 1 ]; do [ "$1" = -o ] && out=$2; shift; done\n'
        f"{does}\n"
    )
    script.chmod(0o755)
    return str(script)


# ---- a full disk ----


@pytest.mark.slow
@pytest.mark.parametrize("size", ["4k", "40k"])  # nothing fits, or not all
def test_a_disk_that_is_full(tmp_path: Path, size: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size={size} none {disk}"
    able = subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, check=False)
    if able.returncode:
        pytest.skip("needs root, to mount a small disk")
    line = f'{mount} && ANTIPHON_CACHE={disk} "$0" -c "$1" && ls -R {disk}'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", line, *COMMAND[::2]], capture_output=True, text=True, timeout=1000, check=False
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith("antiphon.errors.Invalid: ")
    assert os.strerror(28) in last
    assert "set ANTIPHON_CACHE to another disk" in last or "set ANTIPHON_CACHE to a folder" in last
    assert "install a C compiler" not in last


@pytest.mark.parametrize(
    "said", ["/tmp/cc1.s: fatal error: error writing to /tmp/cc1.s: No space left on device",
             "/usr/bin/ld: final link failed: No space left on device", "cc: Disk quota exceeded"],
)  # fmt: skip
def test_a_compiler_that_finds_no_room(cache: Path, tmp_path: Path, said: str) -> None:
    with pytest.raises(Invalid, match=r"the engine cannot be written.*free some space"):
        build.library("threads", a_compiler(tmp_path, f"echo '{said}' >&2; exit 1"))
    assert list(cache.rglob("*.so")) == []


# ---- a build that was ended ----


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_build_that_is_ended_leaves_nothing(cache: Path, tmp_path: Path, number: int) -> None:
    compiler = a_compiler(
        tmp_path, f"trap 'rm -f {tmp_path}/part; exit 1' TERM; touch {tmp_path}/part; sleep 60 & wait"
    )
    process = subprocess.Popen(MAIN, env={**os.environ, "MPICC": compiler}, stderr=subprocess.PIPE, text=True)
    wait_for((tmp_path / "part").exists)
    assert len(list(cache.rglob("tmp*.so"))) == 1
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert said == f"antiphon: {'interrupted' if number == signal.SIGINT else 'terminated'}\n"
    assert list(cache.rglob("*.so")) == []
    assert not (tmp_path / "part").exists()  # the compiler was asked, too


def test_what_a_killed_build_left_is_removed_by_the_next(cache: Path, tmp_path: Path) -> None:
    compiler = a_compiler(tmp_path, f"touch {tmp_path}/part; exec sleep 3")
    process = subprocess.Popen(MAIN, env={**os.environ, "MPICC": compiler})
    wait_for((tmp_path / "part").exists)
    process.kill()
    process.wait()
    (left,) = cache.rglob("tmp*.so")
    running = left.with_name(f"tmp-{socket.gethostname()}-{os.getpid()}-1234.so")
    elsewhere, old = left.with_name("tmp-another-host-77-1234.so"), left.with_name("tmpabc.so")
    for path in (running, elsewhere, old):
        path.touch()
    os.utime(old, (time.time() - 10**6,) * 2)
    theirs = left.with_name("tmp-theirs-1-1234.so")
    if os.geteuid() == 0:
        theirs.touch()
        os.utime(theirs, (0, 0))
        os.chown(theirs, 1234, 1234)
    with pytest.raises(Missing):
        build.library("threads", a_compiler(tmp_path, "exit 1"))
    assert set(cache.rglob("tmp*.so")) == {running, elsewhere, *([theirs] if theirs.exists() else [])}


def wait_for(there: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not there():
        assert time.monotonic() < end
        time.sleep(0.02)


# ---- a cache that others write into ----


def test_a_library_that_others_can_change_is_not_loaded(cache: Path, tmp_path: Path) -> None:
    compiler = a_compiler(tmp_path, "echo made > $out")
    first = build.library("threads", compiler)
    assert first.parent.parent == cache / "native"
    assert build.library("threads", compiler) == first
    for path in (first, first.parent, first.parent.parent):
        usual = path.stat().st_mode
        path.chmod(usual | 0o022)
        own = build.library("threads", compiler)
        assert own.parent.parent == cache / f"native-{os.geteuid()}"
        assert own.read_text() == "made\n"
        path.chmod(usual)
        assert build.library("threads", compiler) == first
    first.unlink()
    (tmp_path / "evil.so").write_text("evil")
    first.symlink_to(tmp_path / "evil.so")
    assert build.library("threads", compiler).read_text() == "made\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_a_library_of_another_user_is_not_loaded(cache: Path, tmp_path: Path) -> None:
    compiler = a_compiler(tmp_path, "echo made > $out")
    first = build.library("threads", compiler)
    for path in (first, first.parent, first.parent.parent):
        os.chown(path, 1234, 1234)
        assert build.library("threads", compiler).parent.parent == cache / "native-0"
        os.chown(path, 0, 0)
    os.chown(first, 1234, 1234)
    os.chown(cache / "native-0", 1234, 1234)
    with pytest.raises(Invalid, match=r"somebody else owns it.*set ANTIPHON_CACHE to a folder of your own"):
        build.library("threads", compiler)


def test_folders_that_are_made_are_ours_whatever_the_mask(cache: Path, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = build.library("threads", a_compiler(tmp_path, "echo made > $out"))
    finally:
        os.umask(before)
    assert made.parent.parent == cache / "native"
    assert build.library("threads", a_compiler(tmp_path, "echo made > $out")) == made


@pytest.mark.slow
def test_a_real_compiler() -> None:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    assert build.library("threads").exists()
