"""Read and write files safely: atomic writes, size limits, and every fault as a one-line error.

    read_bytes, read_buffers       the contents of a file, decompressed if it is gzip; at most MAX_BYTES
    write_bytes                    put a file in place as a whole or not at all
    check_writable, check_folder   before long work: is the output path usable?
    is_ours                        whether a cached file can be trusted
    within, reading                context managers that add the position or the file name to an error

Pipes are read until their writer closes them; devices, sockets and directories are refused.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import os
import secrets
import select
import stat
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from antiphon.errors import AntiphonError, Invalid, Unsupported
from antiphon.units import parse_size

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_BYTES = 2**30  # size of a file: as text about 40 million transfers
# A compressed file may unpack to MAX_UNPACKED bytes, or to MAX_RATIO times its size if that is more, so that no small
# file fills the memory. Plans have ratios of 10 to 30.
MAX_UNPACKED = 2**27
MAX_RATIO = 64
LIMIT_VARIABLE = "ANTIPHON_READ_LIMIT"  # environment variable that overrides these limits
PIPE_TIMEOUT = 3.0  # seconds to wait for a pipe's writer to appear
_BUFFER = 2**20  # bytes per read
_READS_PIPES = hasattr(os, "readv")  # not on Windows
_READ_FLAGS = os.O_RDONLY
if _READS_PIPES:
    _READ_FLAGS |= os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MAGIC = b"\x1f\x8b"  # the first bytes of a gzip file


def read_bytes(path: str | os.PathLike[str], limit: int | None = None) -> bytes:
    """Return the contents of a file as `read_buffers` yields them; memory is at most twice that."""
    return b"".join(read_buffers(path, limit))


def read_buffers(path: str | os.PathLike[str], limit: int | None = None) -> Iterator[bytes]:
    """Yield the contents of a file in buffers of 1 MB, decompressed if it is gzip (by its first bytes, not its name).

    `limit`: the most bytes that are read, also after decompression; by default the limits above. Pipes and terminals
    are read, too; directories, sockets and devices are not. Every fault raises Invalid, which names the file.
    """
    max_bytes = limit if limit is not None else _read_limit(MAX_BYTES)
    total = 0
    try:
        with _open_stream(path, max_bytes) as stream:
            source: BinaryIO | gzip.GzipFile = stream
            if stream.peek(len(_MAGIC)).startswith(_MAGIC):
                unpacked = _read_limit(max(MAX_UNPACKED, MAX_RATIO * os.fstat(stream.fileno()).st_size))
                source, max_bytes = gzip.GzipFile(fileobj=stream), min(max_bytes, unpacked)
            while buffer := source.read(_BUFFER):
                total += len(buffer)
                if total > max_bytes:
                    raise _too_large(path, max_bytes, unpacked=source is not stream)
                yield buffer
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise Invalid(one_line(f"{name_of(path)}: is a damaged gzip file: {error}")) from None
    except (OSError, ValueError) as error:  # ValueError: the path holds a zero byte (Invalid is no ValueError)
        raise Invalid(one_line(f"{name_of(path)}: cannot be read: {_error_reason(error)}")) from None


def _read_limit(default: int) -> int:
    """Return the limit in bytes from the environment, or the default."""
    limit = os.environ.get(LIMIT_VARIABLE, "")
    return parse_size(limit, LIMIT_VARIABLE) if limit else default


def _too_large(path: str | os.PathLike[str], max_bytes: int, *, unpacked: bool) -> Invalid:
    """Return the error for a file above a limit; `unpacked`: it exceeds it only when it is decompressed."""
    problem = "unpacks to more than" if unpacked else "is larger than"
    return Invalid(
        one_line(
            f"{name_of(path)}: {problem} {max_bytes} bytes, the most that is read; set {LIMIT_VARIABLE}=4GiB for more"
        )
    )


def _open_stream(path: str | os.PathLike[str], max_bytes: int) -> io.BufferedReader:
    """Open a file that has an end, without blocking on a pipe whose writer is missing."""
    try:
        handle = os.open(path, _READ_FLAGS)
    except OSError as error:
        raise OSError(None, "is a socket, not a file") if error.errno == errno.ENXIO else error from None
    try:
        status = os.fstat(handle)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(None, "is a directory; name a file in it")
        if _READS_PIPES and (stat.S_ISFIFO(status.st_mode) or os.isatty(handle)):
            return io.BufferedReader(_Pipe(handle, waits=not os.isatty(handle)), _BUFFER)
        # The null device is read as an empty file.
        if not stat.S_ISREG(status.st_mode) and not os.path.samestat(status, os.stat(os.devnull)):
            raise OSError(None, "is a device, not a file")
        if status.st_size > max_bytes:
            raise _too_large(path, max_bytes, unpacked=False)
        if _READS_PIPES:
            os.set_blocking(handle, True)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


class _Pipe(io.RawIOBase):
    """A pipe or terminal, read until its writer closes it; `waits`: fail after PIPE_TIMEOUT without a writer."""

    def __init__(self, handle: int, waits: bool) -> None:
        self.handle = handle
        self.deadline = time.monotonic() + PIPE_TIMEOUT if waits else None
        self.poller = select.poll()
        self.poller.register(handle, select.POLLIN)

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.handle

    def readinto(self, buffer: Buffer) -> int:
        while True:
            try:
                count = os.readv(self.handle, [buffer])
            except BlockingIOError:  # there is a writer that has sent nothing yet
                self.deadline = None
                self.poller.poll()
                continue
            # No bytes mean the end, or, before `deadline` is cleared, that there has been no writer yet.
            if count or self.deadline is None:
                self.deadline = None
                return count
            if time.monotonic() > self.deadline:
                raise OSError(
                    None, f"is a pipe to which nobody writes (for {PIPE_TIMEOUT:g} s); start its writer first"
                )
            time.sleep(0.02)  # short beside PIPE_TIMEOUT

    def close(self) -> None:
        if not self.closed:
            os.close(self.handle)
        super().close()


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Put a file in place as a whole: on any failure the previous file is untouched, and no temporary file remains.

    A name ending in .gz is compressed (level 1, no time stamp). Symbolic links are followed; pipes and devices are
    written to directly.
    """
    with _explain_write_errors(path):
        if os.fspath(path).endswith(".gz"):
            data = gzip.compress(data, compresslevel=1, mtime=0)
        target = _resolve_target(path)
        if _is_special(target):
            target.write_bytes(data)
        else:
            _replace_file(target, data)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise Invalid unless `write_bytes` could put a file there now: for use before long work.

    An empty file is created beside the target and removed at once, as permissions alone do not decide; existing content
    is not touched.
    """
    with _explain_write_errors(path):
        target = _resolve_target(path)
        if not _is_special(target):
            _try_folder(target.parent)
        elif not os.access(target, os.W_OK):
            raise PermissionError(None, "it is write-protected")


def check_folder(path: str | os.PathLike[str], parents: bool = False) -> None:
    """Raise Invalid unless several files could be written into this directory now.

    The directory need not exist yet; with `parents`, the directories above it need not exist either.
    """
    with _explain_write_errors(path):
        folder = Path(os.path.realpath(path))
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(None, "is a file, but several files are written; name a directory")
        while parents and not folder.exists():
            folder = folder.parent
        _try_folder(folder if folder.exists() else folder.parent)


@contextlib.contextmanager
def _explain_write_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn errors of the operating system into Invalid, with the file's name."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise Invalid(one_line(f"{name_of(path)}: cannot be written: {_error_reason(error)}")) from None


def _resolve_target(path: str | os.PathLike[str]) -> Path:
    """Return the path after symbolic links; raise OSError if no file can be written there."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(None, "is a directory; name a file in it")
    if not target.parent.is_dir():
        raise FileNotFoundError(None, f"there is no directory {target.parent}; create it first")
    if target.is_file() and not os.access(target, os.W_OK):
        raise PermissionError(None, "the file there is write-protected")
    return target


def _is_special(target: Path) -> bool:
    """Return whether this is a pipe or a device, which is written to directly."""
    return target.exists() and not target.is_file()


def _try_folder(folder: Path) -> None:
    """Create and remove an empty file in a directory."""
    if not folder.is_dir():
        raise FileNotFoundError(None, f"there is no directory {folder}; create it first")
    temporary = _temporary_path(folder)
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    os.unlink(temporary)


def _temporary_path(folder: Path) -> Path:
    return folder / f".antiphon-{secrets.token_hex(8)}.tmp"


def _replace_file(target: Path, data: bytes) -> None:
    """Write to a temporary file in the same folder and rename it, so that readers see the old or the new data."""
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    temporary = _temporary_path(target.parent)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # less the umask
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(handle)
        if mode is not None:
            os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException:  # also Ctrl-C
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_directory(target.parent)


def _sync_directory(folder: Path) -> None:
    """Make the new name durable; the contents are safe without it, so file systems that cannot are ignored."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _error_reason(error: Exception) -> str:
    """Return the reason without the number and the path that OSError puts around it."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def is_ours(path: str | os.PathLike[str], folder: bool = False) -> bool:
    """Return whether a cached file (or folder) can be trusted: no symbolic link, owned by this user or root, and nobody
    else may write to it. On Windows, which has no such owners, any file of the right kind."""
    try:
        status = os.lstat(path)
    except (OSError, ValueError):
        return False
    is_right_kind = stat.S_ISDIR(status.st_mode) if folder else stat.S_ISREG(status.st_mode)
    if not hasattr(os, "geteuid"):
        return is_right_kind
    writable_by_others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return is_right_kind and status.st_uid in (0, os.geteuid()) and not writable_by_others


def name_of(path: str | os.PathLike[str]) -> str:
    """Return a path for messages; an empty one is shown as quotes."""
    return os.fspath(path) or "''"


def one_line(text: str, limit: int = 500) -> str:
    """Return the text fit for one line of a terminal, with control characters replaced and at most `limit`
    characters."""
    clean = "".join(c if c.isprintable() else " " for c in text[: limit + 1])
    return clean if len(clean) <= limit else clean[: limit - 3] + "..."


@contextlib.contextmanager
def within(position: str) -> Iterator[None]:
    """Prefix errors with the position in the input that they are about, unless they begin with that prefix already."""
    try:
        yield
    except (Invalid, Unsupported) as error:
        raise type(error)(_prefix_error(position, error)) from None


def _prefix_error(where: str, error: AntiphonError) -> str:
    """Return the message with this prefix, once: a file that cannot be read is already named where it is opened."""
    message = str(error)
    return message if message.startswith(f"{where}: ") else f"{where}: {message}"


@contextlib.contextmanager
def reading(name: str) -> Iterator[None]:
    """Prefix errors with the file's name, in one line; lack of memory or stack becomes such an error, too."""
    try:
        yield
    except (Invalid, Unsupported) as error:
        raise type(error)(one_line(_prefix_error(name, error))) from None
    except AntiphonError:
        raise
    except MemoryError:
        raise Invalid(one_line(f"{name}: is too large for the memory of this machine")) from None
    except RecursionError:
        raise Invalid(one_line(f"{name}: is nested too deeply")) from None
