"""The fuzzer of the engine in C: it finds nothing, and finds what is planted."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.runtimes.engine.build import NATIVE

RUN = Path(__file__).parent.parent / "fuzz" / "native" / "build_and_run.py"
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
PLANTED = {
    "lengths": ("engine.c", "if (needed <= (buffer_address ? bytes : 0)) return AP_OK;", "return AP_OK;"),
    "slots": ("plan.c", "if (inside < 0 || inside + piece > capacity) return 0;", "(void)capacity;"),
    "buffers": ("plan.c", "if (begin < 0 || begin + length > (wide)plan->sizes[b->buffer]) return 0;", ""),
    "indices": ("program.c", "begin >= s->points || end >= s->points || base >= s->bases ||", ""),
    "scratch": (
        "program.c",
        "if ((at = idle_slot(s, filled)) < s->slots)",
        "if ((at = idle_slot(s, filled)) > s->slots)",
    ),
}


def fuzz(tmp_path: Path, executions: int, native: Path = NATIVE) -> subprocess.CompletedProcess[str]:
    """With the compiler that is there for certain; clang's own fuzzer is taken where it is asked for."""
    command = [sys.executable, str(RUN), "--executions", str(executions), "--compiler", "cc", "--native", str(native)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command += ["--keep", str(tmp_path / "kept")]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=1000, check=False)


@pytest.fixture(scope="module", autouse=True)
def _sanitizers(tmp_path_factory: pytest.TempPathFactory) -> None:
    source = tmp_path_factory.mktemp("sanitizers") / "a.c"
    source.write_text("int main(void) { return 0; }\n")
    command = ["cc", "-fsanitize=address,undefined", str(source), "-o", str(source.with_suffix(""))]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("cc has no sanitizers")


@pytest.mark.slow  # fuzz/run_all.py --short does the same in CI
def test_it_finds_nothing(tmp_path: Path) -> None:
    done = fuzz(tmp_path, 150)
    assert done.returncode == 0, done.stderr
    assert "150 executions from" in done.stdout
    assert "0 crashes" in done.stdout
    assert not (tmp_path / "kept").exists()


@pytest.mark.slow
@pytest.mark.parametrize("which", PLANTED)
def test_it_finds_what_is_planted(tmp_path: Path, which: str) -> None:
    """A check that is taken out is missed within some thousand executions, and the input that misses it is kept."""
    name, good, bad = PLANTED[which]
    native = tmp_path / "native"
    shutil.copytree(NATIVE, native)
    text = (native / name).read_text()
    assert text.count(good) == 1
    (native / name).write_text(text.replace(good, bad))
    done = fuzz(tmp_path, 20_000, native)
    assert done.returncode == 1, done.stdout
    assert [*(tmp_path / "kept").iterdir()]
