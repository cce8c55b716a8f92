"""The shared secret of the processes of a job.

It comes from the argument, else $ANTIPHON_SECRET, else the file $ANTIPHON_SECRET_FILE. Without any of them, processes
that meet at a loopback address use a file that only their user can read. The variables that launchers
set (job number, address) are no substitute: others can read them.
"""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from antiphon.errors import Invalid, quote

TEXT, FILE = "ANTIPHON_SECRET", "ANTIPHON_SECRET_FILE"
_MIN_BYTES, _MAX_BYTES = 16, 4096  # 128 bits cannot be guessed; one page
_NAME = "antiphon-secret"


@dataclass(frozen=True)
class Secret:
    """A secret, which is never shown, and where it is from (`source`), for messages."""

    data: bytes = field(repr=False)
    source: str


def secret_hint(secret: Secret | None) -> str:
    """Return, for errors of handshakes, how to fix that another process has a different secret."""
    source = f"here: {secret.source}" if secret else f"here: none, ${TEXT} is not set"
    return f"give every process the same secret ({source})"


def given_secret(argument: str | None = None) -> Secret | None:
    """Return the secret that the user gave, if any."""
    if argument is not None:
        if not isinstance(argument, str):
            raise Invalid(f"secret: expected a text, got {quote(type(argument).__name__)}")
        return _check_length(argument.encode(), "the argument secret=")
    if TEXT in os.environ:
        return _check_length(os.fsencode(os.environ[TEXT]), f"${TEXT}")
    if FILE in os.environ:
        return _check_length(_read_private(Path(os.environ[FILE]), f"${FILE}: "), f"${FILE}")
    return None


def job_secret(argument: str | None, local: bool, address: str) -> Secret:
    """Return the secret of a job that meets at this address. `local`: only this host can reach it."""
    secret = given_secret(argument)
    if secret is None and not local:
        raise Invalid(
            f"address: {address} can be reached from elsewhere, so the processes need a secret: set ${TEXT} to the "
            f"same random text of {_MIN_BYTES} bytes or more for all of them, or ${FILE} to a file with it"
        )
    return secret or _user_secret()


def _check_length(data: bytes, source: str) -> Secret:
    """Return a secret without blanks and line feeds around it. Invalid if it is too short or too long."""
    data = data.strip()
    if not _MIN_BYTES <= len(data) <= _MAX_BYTES:
        raise Invalid(
            f"{source}: a secret has {_MIN_BYTES} to {_MAX_BYTES} bytes, this one {len(data)}; make one: openssl rand "
            "-hex 32"
        )
    return Secret(data, source)


def _read_private(path: Path, prefix: str = "") -> bytes:
    """Read a file that must belong to this user and be readable by no other."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a named pipe must not block
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise Invalid(f"{prefix}{path}: is no file")
            if status.st_uid != os.geteuid():
                raise Invalid(f"{prefix}{path}: belongs to another user, who can change it; use a file of your own")
            if status.st_mode & 0o077:
                raise Invalid(f"{prefix}{path}: others can read or write it; chmod 600 it, and use another secret")
            return os.read(descriptor, _MAX_BYTES + 1)  # a byte more shows that it is too long
        finally:
            os.close(descriptor)
    except OSError as error:
        raise Invalid(
            f"{prefix}{path}: cannot be read ({error.strerror}); it must hold the secret of the job"
        ) from None


def _user_secret() -> Secret:
    """Return the secret of all jobs of this user on this host. Who can read it can also run a debugger on the jobs."""
    path = _secret_folder() / _NAME
    if not path.exists():
        _create_secret(path)
    return _check_length(_read_private(path), str(path))


def _secret_folder() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isabs(runtime) and _is_private(Path(runtime)):
        return Path(runtime)
    folder = Path(tempfile.gettempdir(), f"antiphon-{os.geteuid()}")
    with suppress(OSError):
        folder.mkdir(0o700)
    if not _is_private(folder):
        raise Invalid(f"{folder}: is no folder that only this user can enter; remove it, or set ${TEXT}")
    return folder


def _is_private(folder: Path) -> bool:
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _create_secret(path: Path) -> None:
    """Create the file of a secret atomically. If several processes do so, the first one wins."""
    try:
        descriptor, temporary_path = tempfile.mkstemp(prefix=f"{_NAME}-", dir=path.parent)
        try:
            with open(descriptor, "w", encoding="ascii") as file:
                file.write(secrets.token_hex(32) + "\n")
            with suppress(FileExistsError):
                os.link(temporary_path, path)
        finally:
            os.unlink(temporary_path)
    except OSError as error:
        raise Invalid(f"{path}: cannot be made ({error.strerror}); set ${TEXT} for all processes") from None
