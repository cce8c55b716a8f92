"""Compile a table for the preloaded library: `python -m antiphon.runtimes.serve.files TABLE [CACHE_FILE]`.

Writes "book", a line feed and the bytes of the book to stdout (then a book per failed link or rank that the table has
plans for), or a line "error" with the reason. CACHE_FILE: where the library looks next time; its name begins with the
SHA-256 of the table. It is no error if it cannot be written. Every program of the book has been proven to be the
collective that it is listed under.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from antiphon.core.files import is_ours
from antiphon.errors import AntiphonError

MAX_FILES = 64  # of one suffix in a folder; the oldest are deleted


def main(table: str, cache_file: str = "") -> int:
    from antiphon.runtimes.serve.book import encode_book, read_books

    try:
        data = b"".join(map(encode_book, read_books(table)))
    except AntiphonError as error:
        sys.stdout.write(f"error {error}\n")
        return 1
    except Exception as error:  # no user reads tracebacks here
        sys.stdout.write(f"error {table}: {type(error).__name__}: {' '.join(str(error).split())}\n")
        return 1
    if cache_file:
        with suppress(OSError):
            if hashlib.sha256(Path(table).read_bytes()).hexdigest() == Path(cache_file).name.partition("-")[0]:
                write_cache_file(data, Path(cache_file))  # unless the table has changed meanwhile
    sys.stdout.buffer.write(b"book\n" + data)
    sys.stdout.flush()
    return 0


def write_cache_file(data: bytes, path: Path, limit: int = MAX_FILES) -> None:
    """Write a cache file atomically, and delete the oldest ones beyond `limit`.

    Nothing is written to a folder of another user: readers would not trust the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if not is_ours(path.parent, folder=True):
        if path.parent.stat().st_uid != os.geteuid():
            return
        for book in path.parent.glob(f"*{path.suffix}"):  # another user may have written it
            book.unlink(missing_ok=True)
        path.parent.chmod(0o755)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix="new-", delete=False) as file:
        temporary_path = Path(file.name)
        try:
            file.write(data)
            file.close()
            temporary_path.chmod(0o644)
            temporary_path.replace(path)
        finally:
            temporary_path.unlink(missing_ok=True)
    books = sorted(path.parent.glob(f"*{path.suffix}"), key=lambda file: file.stat().st_mtime)
    for old in books[:-limit]:
        old.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
