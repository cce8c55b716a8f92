"""What is quoted of what a launcher or compiler says: its reason, not a row of dashes."""

import subprocess

import mpi_env
import pytest

from antiphon.runtimes.engine.launch import Failed, summarize_errors, watch

ROW = "-" * 74
SLOTS = f"""{ROW}
There are not enough slots available in the system to satisfy the 64
slots that were requested by the application:

  python

Either request fewer procs for your application, or make more slots
available for use.
{ROW}
"""
EXITED = f"""{ROW}
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-vm-1805@1,0]
   Exit code:    1
{ROW}
"""
BOX = f"""
{"=" * 83}
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   EXIT CODE: 11
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
{"=" * 83}
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Segmentation fault (signal 11)
This typically refers to a problem with your application.
"""
TRACE = 'Traceback (most recent call last):\n  File "<string>", line 1\nModuleNotFoundError: No module named "x"\n'
ROOT = f"prterun has detected an attempt to run as root.\n\nRunning as root is *strongly* discouraged\n{ROW}\n"


@pytest.mark.parametrize(
    ("said", "quoted"),
    [
        (SLOTS, "There are not enough slots available in the system to satisfy the 64 slots that were requested"),
        (EXITED, "prterun detected that one or more processes exited with non-zero status, thus causing the job"),
        (TRACE + EXITED, 'ModuleNotFoundError: No module named "x"'),
        (TRACE + TRACE + BOX, 'ModuleNotFoundError: No module named "x"'),
        (BOX, "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Segmentation fault (signal 11)"),
        (ROOT, "prterun has detected an attempt to run as root."),
        ("one\ntwo\nthree\nfour\n", "two / three / four"),
        (f"{ROW}\n{ROW}\n\n", ""), ("", ""),
        ("included from a.c:1:\na.c:2: fatal error: mpi.h: No such file or directory\ncompilation terminated.\n",
         "a.c:2: fatal error: mpi.h: No such file or directory"),
    ],
)  # fmt: skip
def test_the_line_that_tells_why(said: str, quoted: str) -> None:
    found = summarize_errors(said.splitlines())
    assert found.startswith(quoted)
    assert len(found) <= 400


def why(mpi: mpi_env.Mpi, program: str, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in mpi.env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Failed) as told:
        watch([*mpi.mpiexec(2), mpi.python, "-c", program], print, 60)
    return str(told.value)


@pytest.mark.parametrize("which", [pytest.param("openmpi", marks=pytest.mark.slow), "mpich"])
def test_what_the_launchers_themselves_say(
    which: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    mpi = request.getfixturevalue(which)
    assert "Segmentation fault" in why(mpi, "import os; os.kill(os.getpid(), 11)", monkeypatch)
    assert "No module named 'nothing_there'" in why(mpi, "import nothing_there", monkeypatch)


def test_open_mpi_without_slots(openmpi: mpi_env.Mpi) -> None:
    command = [openmpi.mpiexec(1)[0], "--allow-run-as-root", "-n", "4096", "true"]
    done = subprocess.run(command, env=openmpi.env, capture_output=True, text=True, timeout=1000, check=False)
    assert summarize_errors(done.stderr.splitlines()).startswith("There are not enough slots available in the system")
