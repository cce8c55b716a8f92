"""Record what `tune` computes for the usual boxes, so that a release answers at once: `record_tunings.py FOLDER`.

One file per machine and collective, with the default options and sizes. A wheel has them as
antiphon/select/recordings (build_hook.py); `tune` ignores them where the sources or the solvers' versions differ.
"""

from __future__ import annotations

import sys
from pathlib import Path

from antiphon.core.collective import KINDS
from antiphon.select import tune

MACHINES = ("dgx1v", "dgx1p", "dgx-a100", "hgx-h100", "mi300x")  # boxes that a user is likely to have
MAX_BYTES = 2 * 2**20  # of all files: a wheel should stay small


def record_all(folder: Path, machines: tuple[str, ...] = MACHINES, kinds: tuple[str, ...] = tuple(KINDS)) -> int:
    """Record every collective on every machine; return the bytes of all files."""
    for machine in machines:
        for kind in kinds:
            tune(kind, machine, model="", recordings=folder, record=True)
    return sum(file.stat().st_size for file in folder.iterdir())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: record_tunings.py FOLDER")
    total = record_all(Path(sys.argv[1]))
    if total > MAX_BYTES:
        sys.exit(f"{sys.argv[1]}: {total} bytes of recordings, but at most {MAX_BYTES} ship; record fewer machines")
    print(f"{total} bytes")
