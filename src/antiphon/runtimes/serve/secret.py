"""What the processes of a job know and strangers do not.

From the argument, else $ANTIPHON_SECRET, else the file $ANTIPHON_SECRET_FILE. Without any of them, processes that meet
at an address of the loopback take a file that only their user can read; nothing that launchers hand out is secret.
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
_LEAST, _MOST = 16, 4096  # bytes
_NAME = "antiphon-secret"


@dataclass(frozen=True)
class Secret:
    """`source`: where it is from, for messages. It is not shown itself."""

    data: bytes = field(repr=False)
    source: str


def hint_of(secret: Secret | None) -> str:
    """How it is mended that another has a different one."""
    source = f"here: {secret.source}" if secret else f"here: none, ${TEXT} is not set"
    return f"give every process the same secret ({source})"


def given_secret(argument: str | None = None) -> Secret | None:
    """What the user gave; None where nothing is given."""
    if argument is not None:
        if not isinstance(argument, str):
            raise Invalid(f"secret: expected a text, got {quote(type(argument).__name__)}")
        return _checked(argument.encode(), "the argument secret=")
    if TEXT in os.environ:
        return _checked(os.fsencode(os.environ[TEXT]), f"${TEXT}")
    if FILE in os.environ:
        return _checked(_private(Path(os.environ[FILE]), f"${FILE}: "), f"${FILE}")
    return None


def job_secret(argument: str | None, near: bool, address: str) -> Secret:
    """`near`: nobody but this host can reach the address."""
    found = given_secret(argument)
    if found is None and not near:
        raise Invalid(
            f"address: {address} can be reached from elsewhere, so the processes need a secret: set ${TEXT} to the "
            f"same random text of {_LEAST} bytes or more for all of them, or ${FILE} to a file with it"
        )
    return found or _of_user()


def _checked(data: bytes, source: str) -> Secret:
    data = data.strip()
    if not _LEAST <= len(data) <= _MOST:
        raise Invalid(
            f"{source}: a secret has {_LEAST} to {_MOST} bytes, this one {len(data)}; make one: openssl rand -hex 32"
        )
    return Secret(data, source)


def _private(path: Path, what: str = "") -> bytes:
    """What is in a file that belongs to this user and that no other can read."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            about = os.fstat(number)
            if not stat.S_ISREG(about.st_mode):
                raise Invalid(f"{what}{path}: is no file")
            if about.st_uid != os.geteuid():
                raise Invalid(f"{what}{path}: belongs to another user, who can change it; use a file of your own")
            if about.st_mode & 0o077:
                raise Invalid(f"{what}{path}: others can read or write it; chmod 600 it, and use another secret")
            return os.read(number, _MOST + 1)
        finally:
            os.close(number)
    except OSError as error:
        raise Invalid(f"{what}{path}: cannot be read ({error.strerror}); it must hold the secret of the job") from None


def _of_user() -> Secret:
    """One for all jobs of this user on this host: who can read it could as well trace their processes."""
    path = _folder() / _NAME
    if not path.exists():
        _make(path)
    return _checked(_private(path), str(path))


def _folder() -> Path:
    given = os.environ.get("XDG_RUNTIME_DIR")
    if given and os.path.isabs(given) and _is_private(Path(given)):
        return Path(given)
    own = Path(tempfile.gettempdir(), f"antiphon-{os.geteuid()}")
    with suppress(OSError):
        own.mkdir(0o700)
    if not _is_private(own):
        raise Invalid(f"{own}: is no folder that only this user can enter; remove it, or set ${TEXT}")
    return own


def _is_private(folder: Path) -> bool:
    try:
        about = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o077


def _make(path: Path) -> None:
    """It appears as a whole, and the first of several that make it wins."""
    try:
        number, draft = tempfile.mkstemp(prefix=f"{_NAME}-", dir=path.parent)
        try:
            with open(number, "w", encoding="ascii") as file:
                file.write(secrets.token_hex(32) + "\n")
            with suppress(FileExistsError):
                os.link(draft, path)
        finally:
            os.unlink(draft)
    except OSError as error:
        raise Invalid(f"{path}: cannot be made ({error.strerror}); set ${TEXT} for all processes") from None
