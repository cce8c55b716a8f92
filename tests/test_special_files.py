"""What is no plain file: pipes, directories, devices, sockets, bombs; and streams that are closed or full."""

import gzip
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from antiphon.cli import run
from antiphon.core import files
from antiphon.core.files import read_bytes
from antiphon.errors import Invalid

ANTIPHON = f"{sys.executable} -m antiphon"


def shell(line: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-c", line.replace("antiphon", ANTIPHON, 1)]
    return subprocess.run(command, capture_output=True, text=True, timeout=1000, check=False)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# ---- what is read ----


def test_a_pipe_without_a_writer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(files, "PIPE_TIMEOUT", 0.1)
    os.mkfifo("pipe")
    for command in ("verify pipe", "topology show ./pipe", "simulate pipe --nbytes 1KB", "fit genmodel pipe"):
        assert run(command.split()) == 2, command
        assert "pipe to which nobody writes" in capsys.readouterr().err
    Path("pipe.xml").symlink_to("pipe")
    assert run(["verify", "pipe.xml"]) == 2
    assert "pipe to which nobody writes" in capsys.readouterr().err


def test_what_somebody_writes_into_a_pipe_is_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    parts = [b"x" * 100_000, b"y" * 100_000]

    def write() -> None:
        with open(pipe, "wb") as stream:
            for part in parts:
                stream.write(part)
                stream.flush()
                threading.Event().wait(0.05)  # the reader sees an empty pipe with a writer

    for packed in (False, True):
        if packed:
            parts = [gzip.compress(b"".join(parts))]
        writer = threading.Thread(target=write)
        writer.start()
        assert read_bytes(pipe) == b"x" * 100_000 + b"y" * 100_000
        writer.join()


@pytest.mark.slow
@pytest.mark.parametrize("line", [
    "antiphon verify <(cat plan.json)", "cat plan.json | antiphon verify /dev/stdin",
    "antiphon verify /dev/stdin < plan.json",
])  # fmt: skip
def test_plans_from_other_programs(line: str) -> None:
    assert run(["plan", "allreduce", "ring:ranks=3", "-o", "plan.json"]) == 0
    done = shell(line)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_has_no_end_is_no_file(tmp_path: Path) -> None:
    for path, what in ((tmp_path, "is a directory"), ("/dev/zero", "is a device"), ("/dev/full", "is a device")):
        with pytest.raises(Invalid, match=what):
            read_bytes(path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("door")
        with pytest.raises(Invalid, match="is a socket"):
            read_bytes("door")
    assert read_bytes(os.devnull) == b""


def test_files_beyond_the_limit_are_refused_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("sparse.json", "wb") as stream:
        stream.truncate(2**40)
    with pytest.raises(Invalid, match=r"is larger than 1073741824 bytes.*ANTIPHON_READ_LIMIT=4GiB"):
        read_bytes("sparse.json")
    monkeypatch.setattr(files, "MAX_UNPACKED", 2 * 10**6)
    Path("bomb.json.gz").write_bytes(gzip.compress(bytes(files.MAX_UNPACKED + 1), 1))
    with pytest.raises(Invalid, match=r"unpacks to more than 2000000 bytes.*ANTIPHON_READ_LIMIT"):
        read_bytes("bomb.json.gz")
    monkeypatch.setenv("ANTIPHON_READ_LIMIT", "1MB")
    with pytest.raises(Invalid, match="unpacks to more than 1000000 bytes"):
        read_bytes("bomb.json.gz")
    monkeypatch.setenv("ANTIPHON_READ_LIMIT", "200MB")
    assert len(read_bytes("bomb.json.gz")) == files.MAX_UNPACKED + 1


# ---- the three streams ----


CLOSED = "antiphon: stdout is closed: there is nowhere to write the result to; to drop it, redirect it to /dev/null\n"


@pytest.mark.parametrize(
    ("redirected", "code", "said"),
    [
        (">&-", 2, CLOSED), (">/dev/full", 2, "antiphon: stdout: No space left on device\n"),
        ("<&- >&- 2>&-", 2, ""), pytest.param(">/dev/null 2>&-", 0, "", marks=pytest.mark.slow),
        pytest.param(">/dev/null <&-", 0, "", marks=pytest.mark.slow),
        pytest.param("2>/dev/full >/dev/null", 0, "", marks=pytest.mark.slow),
    ],
)  # fmt: skip
# less and more than a buffer holds
@pytest.mark.parametrize("machine", ["full:ranks=300", pytest.param("ring:ranks=3", marks=pytest.mark.slow)])
def test_streams_that_are_closed_or_full(redirected: str, code: int, said: str, machine: str) -> None:
    done = shell(f"antiphon topology show {machine} --json {redirected}")
    assert (done.returncode, done.stderr) == (code, said)


@pytest.mark.slow
def test_errors_that_nobody_can_hear_have_their_exit_code() -> None:
    for redirected in ("2>&-", "2>/dev/full", "2>&1 >/dev/null | head -0; exit ${PIPESTATUS[0]}"):
        assert shell(f"antiphon topology show nothing {redirected}").returncode == 2


@pytest.mark.slow
def test_the_answer_counts_though_its_reader_has_gone() -> None:
    line = "antiphon {} | head -1 > /dev/null; exit ${{PIPESTATUS[0]}}"
    done = shell(line.format("topology show full:ranks=300 --json"))
    assert (done.returncode, done.stderr) == (0, "")
    done = shell(line.format("verify nothing.json"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


@pytest.mark.slow
def test_a_file_never_takes_the_number_of_a_closed_stream() -> None:
    """Else what is printed would land in the plan."""
    assert shell("antiphon plan allreduce ring:ranks=3 -o plan.json <&- 2>&- >/dev/null").returncode == 0
    assert run(["verify", "plan.json"]) == 0
