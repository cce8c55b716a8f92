"""What MSCCL's allreduces on NDv4 cost: writes `seconds` and `share` into `src/antiphon/cost/nccl/msccl.json`.

Run: python bench/fit_msccl.py [--write]. Of each range the rows of the published table that are in it, in place, as
these algorithms are for such calls; a straight line by least squares of relative errors. A range has 2 to 8 rows.
"""

from __future__ import annotations

import json
import sys

import numpy as np
from _common import print_table
from published import published

from antiphon.cost.nccl.layout import layout_of
from antiphon.cost.nccl.msccl import SHIPPED, moved_by, shipped_algorithms
from antiphon.topologies import topology


def main() -> None:
    tables = {table.name: table for table in published()}
    whole = json.loads(SHIPPED.read_text(encoding="utf-8"))
    rows = []
    for number, one in enumerate(shipped_algorithms()):
        if not one.calibrated_by:
            continue
        (table,) = (tables[name] for name in one.calibrated_by)
        layout = layout_of(topology(table.topology))
        mine = [(row[0], row[3] * 1e-6) for row in table.rows if one.has(table.collective, row[0])]
        nbytes, seconds = (np.array(column, float) for column in zip(*mine, strict=True))
        moved = moved_by(table.collective, table.ranks) * nbytes / layout.wire
        (start, slope), *_ = np.linalg.lstsq(
            np.stack([1 / seconds, moved / seconds], axis=1), np.ones(len(mine)), rcond=None
        )
        off = np.abs((start + slope * moved) / seconds - 1)
        whole["algorithms"][number] |= {"seconds": float(f"{start:.3g}"), "share": float(f"{1 / slope:.3g}")}
        least, most = int(nbytes.min()), int(nbytes.max())
        rows.append(
            [one.name, str(least), str(most), str(len(mine)), f"{start:.3g}", f"{1 / slope:.3g}", f"{off.max():.1%}"]
        )
    print_table(["algorithm", "from", "to", "rows", "seconds", "share", "most off"], rows)
    if "--write" in sys.argv:
        lines = ",\n".join("  " + json.dumps(one) for one in whole["algorithms"])
        head = json.dumps({key: whole[key] for key in ("format", "version")})[:-1]
        SHIPPED.write_text(f'{head}, "algorithms": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
