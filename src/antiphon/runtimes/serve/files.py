"""Makes the book of a table for the preloaded library: `python -m antiphon.runtimes.serve.files TABLE [KEPT]`.

Writes "book", a line feed and the bytes of the book to its output, or "error" and why in a line. KEPT: where the
library looks next time, a name that begins with the SHA-256 of the table; that it cannot be written there is no error.
Every program of the book has been proven to be the collective that it is listed under.
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

MOST_KEPT = 64


def main(table: str, kept: str = "") -> int:
    from antiphon.runtimes.serve.book import encode_book, read_table

    try:
        data = encode_book(read_table(table))
    except AntiphonError as error:
        sys.stdout.write(f"error {error}\n")
        return 1
    except Exception as error:  # nobody reads a traceback here
        sys.stdout.write(f"error {table}: {type(error).__name__}: {' '.join(str(error).split())}\n")
        return 1
    if kept:
        with suppress(OSError):
            if hashlib.sha256(Path(table).read_bytes()).hexdigest() == Path(kept).name.partition("-")[0]:
                keep(data, Path(kept))  # else the table is another by now
    sys.stdout.buffer.write(b"book\n" + data)
    sys.stdout.flush()
    return 0


def keep(data: bytes, path: Path, most: int = MOST_KEPT) -> None:
    """Writes it whole or not at all, and deletes the oldest where there are more. Nothing where others may write: there
    it would not be believed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not is_ours(path.parent, folder=True):
        if path.parent.stat().st_uid != os.geteuid():
            return
        for book in path.parent.glob(f"*{path.suffix}"):  # another may have given it this name
            book.unlink(missing_ok=True)
        path.parent.chmod(0o755)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix="new-", delete=False) as file:
        made = Path(file.name)
        try:
            file.write(data)
            file.close()
            made.chmod(0o644)
            made.replace(path)
        finally:
            made.unlink(missing_ok=True)
    books = sorted(path.parent.glob(f"*{path.suffix}"), key=lambda one: one.stat().st_mtime)
    for old in books[:-most]:
        old.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
