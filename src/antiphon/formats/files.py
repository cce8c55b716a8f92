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

Contents = str | bytes | Iterable[bytes]
Text = TypeVar("Text")


class Files(dict[str, Text]):
    """The content of each file by name, with `notes`: a line for each omission with its reason."""

    def __init__(self, files: Mapping[str, Text], notes: Iterable[str] = ()) -> None:
        super().__init__(files)
        self.notes = tuple(notes)


class Written(list[tuple[Path, int]]):
    """The files written, each with its size, and the `notes` on omissions."""

    def __init__(self, files: Iterable[tuple[Path, int]], notes: Iterable[str] = ()) -> None:
        super().__init__(files)
        self.notes = tuple(notes)


def write_files(folder: str | os.PathLike[str], files: Mapping[str, Contents]) -> list[tuple[Path, int]]:
    """Write files into a folder, which is created if missing; return each with its size in bytes.

    Each is written beside its target, synced, then renamed; on any failure, and on Ctrl-C, existing files are intact.
    """
    for name in files:
        if name != os.path.basename(name) or name in ("", ".", ".."):
            raise Invalid(f"the back end names a file {quote(name)}; expected a plain name")
    into = Path(folder)
    passing: dict[str, Path] = {}
    written = []
    try:
        into.mkdir(parents=True, exist_ok=True)
        for name, contents in files.items():
            target = into / name
            if target.is_dir():
                raise IsADirectoryError(None, "is a directory", os.fspath(target))
            passing[name] = into / f".antiphon-{secrets.token_hex(8)}.tmp"
            written.append((target, _write_file(passing[name], contents)))
        for name, path in passing.items():
            os.replace(path, into / name)
    except OSError as error:
        where = os.fspath(error.filename) if error.filename else name_of(folder)
        raise Invalid(one_line(f"{where}: cannot be written: {error.strerror or error}")) from None
    finally:
        for path in passing.values():
            with contextlib.suppress(OSError):
                path.unlink()
    return written


def _write_file(path: Path, contents: Contents) -> int:
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
