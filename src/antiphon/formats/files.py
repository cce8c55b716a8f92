"""Write the files of a format: stream each to a temporary name, and rename all of them once all are complete."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from antiphon.core.files import name_of, one_line
from antiphon.errors import Invalid, quote

FileContent = str | bytes | Iterable[bytes]  # of one file; an iterable is streamed
ContentT = TypeVar("ContentT")  # of all files of one format: FileContent, or only str


class Files(dict[str, ContentT]):
    """A plan in a format: the content of each file by name.

    `notes`: a line for each thing of the plan that the format cannot express, with the reason. `purposes`: by name what
    a file is for, such as the sizes that it serves, where the format states it. `unserved`: the collective and tuned
    size of ranges whose files do not serve just that size, as it cannot be cut into their chunks.
    """

    def __init__(
        self, files: Mapping[str, ContentT], notes: Iterable[str] = (), purposes: Mapping[str, str] | None = None,
        unserved: Iterable[tuple[str, int]] = (),
    ) -> None:  # fmt: skip
        super().__init__(files)
        self.notes, self.purposes, self.unserved = tuple(notes), dict(purposes or {}), frozenset(unserved)


class Written(list[tuple[Path, int]]):
    """What an export returns: the files written, each with its size in bytes, and what its `Files` state of them."""

    def __init__(self, files: Iterable[tuple[Path, int]], notes: Iterable[str], purposes: Mapping[str, str]) -> None:
        super().__init__(files)
        self.notes, self.purposes = tuple(notes), purposes


def write_files(folder: str | os.PathLike[str], files: Mapping[str, FileContent]) -> list[tuple[Path, int]]:
    """Write files into a folder, which is created if missing; return each with its size in bytes.

    Each is written beside its target and synced; once all are complete, they are renamed. After any failure, and after
    Ctrl-C, every existing file is entirely the old one or entirely the new one.
    """
    for name in files:
        if name != os.path.basename(name) or name in ("", ".", ".."):
            raise Invalid(f"the format names a file {quote(name)}; expected a plain name")
    into = Path(folder)
    temporary: dict[str, Path] = {}
    written = []
    try:
        into.mkdir(parents=True, exist_ok=True)
        for name, contents in files.items():
            target = into / name
            if target.is_dir():
                raise IsADirectoryError(None, "is a directory", os.fspath(target))
            temporary[name] = into / f".antiphon-{secrets.token_hex(8)}.tmp"
            written.append((target, _write_file(temporary[name], contents)))
        for name, path in temporary.items():
            os.replace(path, into / name)
    except OSError as error:
        where = os.fspath(error.filename) if error.filename else name_of(folder)
        raise Invalid(one_line(f"{where}: cannot be written: {error.strerror or error}")) from None
    finally:
        for path in temporary.values():
            with contextlib.suppress(OSError):
                path.unlink()
    return written


def _write_file(path: Path, contents: FileContent) -> int:
    """Write and sync a new file; return its size in bytes."""
    blocks = (
        (contents.encode(),) if isinstance(contents, str) else (contents,) if isinstance(contents, bytes) else contents
    )
    total = 0
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # less the umask
    with os.fdopen(handle, "wb") as stream:
        for block in blocks:
            stream.write(block)
            total += len(block)
        stream.flush()
        os.fsync(handle)
    return total
