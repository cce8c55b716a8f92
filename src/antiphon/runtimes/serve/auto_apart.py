"""The process apart that plans while a job runs: started, looked at without waiting, ended."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import antiphon.errors
from antiphon.errors import AntiphonError, Unsupported
from antiphon.runtimes.serve.auto_kept import Answer, decode_answer

PIPE = 2**20  # bytes that it can say before anybody listens
_SET_SIZE = 1031
_GRACE = 3.0
_LIBRARIES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # one thread is enough


class Apart:
    """Plans for a question. It ends with this process, however this one ends."""

    def __init__(self, question: str, kept: Path | None) -> None:
        package = str(Path(str(antiphon.errors.__file__)).parents[1])
        environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
        environment |= dict.fromkeys(_LIBRARIES, "1")
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH", ""))))
        command = [sys.executable, "-P", "-m", "antiphon.runtimes.auto", "" if kept is None else str(kept)]
        try:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except OSError as error:
            raise Unsupported(f"the process that plans does not start: {error.strerror}") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._from = self._process.stdout.fileno()
        self._said = bytearray()
        with suppress(OSError):
            import fcntl

            fcntl.fcntl(self._from, _SET_SIZE, PIPE)
        os.set_blocking(self._from, False)
        with suppress(OSError):  # it has ended already: its answer is missing
            self._process.stdin.write(f"{question}end\n".encode())
            self._process.stdin.flush()

    def lower(self) -> None:
        """From now on it has only what nobody else wants."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(b"lower\n")
            self._process.stdin.flush()

    def look(self) -> Answer | None:
        """The answer, if it is there. Unsupported, with the reason, where there will be none."""
        while True:
            try:
                more = os.read(self._from, PIPE)
            except BlockingIOError:
                return None
            if not more:
                break
            self._said += more
        said = bytes(self._said)
        if said.startswith(b"failed\t"):
            raise Unsupported(said[7:].decode("utf-8", "replace").strip())
        try:
            return decode_answer(said)
        except AntiphonError:
            raise Unsupported("the process that plans ended without an answer") from None

    def end(self) -> None:
        """It is gone afterwards, and what it was writing."""
        process = self._process
        if process.stdin is not None and not process.stdin.closed:
            with suppress(OSError):
                process.stdin.close()
        with suppress(OSError):
            process.terminate()
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None and not process.stdout.closed:
            process.stdout.close()
