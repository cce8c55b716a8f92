"""A stock MPI that runs by our rules, against the best of its own algorithms.

Run: python bench/bench_stock_mpi.py [KIND ...] (default allreduce). For Open MPI and MPICH each, as far as they are
here: `tune --library-only` on four processes at six sizes, `export`, and then a start of the MPI by those rules, in
which every algorithm of the library is raced against what the rules make it take. The figure is the time by the rules
over that of the best algorithm, medians of pairs that took turns. Five minutes at most.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import _common

import antiphon
from antiphon.core.program import encode
from antiphon.formats.program import lower
from antiphon.runtimes.measure.case import Case, How, inner_of
from antiphon.runtimes.measure.library import MPICH, candidates
from antiphon.runtimes.measure.library_choose import library_used
from antiphon.runtimes.measure.mpi import run_cases

RANKS = 4
SIZES = (1000, 8000, 64_000, 256_000, 1_000_000, 4_000_000)
ROUNDS = 20
TUNING, RACING = 80.0, 45.0  # seconds for all measurements of one MPI
FILES = {
    "openmpi-rules": {"OMPI_MCA_coll_tuned_dynamic_rules_filename": "openmpi-rules.conf"},
    "mpich-rules": {
        "MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE": "mpich-mpir.json",
        "MPIR_CVAR_CH4_COLL_SELECTION_TUNING_JSON_FILE": "mpich-ch4.json",
    },
}


def by_rules(kind: str, folder: Path) -> list[dict[str, Any]]:
    """For the MPI of this Python: a row for each size."""
    library = library_used(How())
    found = antiphon.measure.tune(
        kind, f"full:ranks={RANKS}", on="mpi", library_only=True, nbytes=list(SIZES), iterations=ROUNDS, limit=TUNING
    )
    assert found is not None
    name = "mpich-rules" if library.name == MPICH else "openmpi-rules"
    antiphon.export(found.plan, name, folder)
    os.environ |= {variable: str(folder / file) for variable, file in FILES[name].items()}
    os.environ |= {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1"}
    schedule = found.plan.entries[0].schedule
    weight = schedule.collective.buffer_weight * 4
    cases, names = [], []
    for race, nbytes in enumerate(SIZES):
        unit = nbytes // weight
        one = Case(0, [*range(RANKS)], unit, unit * weight, repeat=ROUNDS, warmup=3, inner=inner_of(nbytes), race=race,
                   seconds=RACING / len(SIZES))  # fmt: skip
        for candidate in candidates(library, kind, RANKS, nbytes):
            cases.append(replace(one, library=dict(candidate.settings)))
            names.append(candidate)
    rows: dict[int, list[tuple[float, Any, Any]]] = {}
    for name_, case, row in zip(names, cases, run_cases([encode([lower(schedule)])], cases), strict=True):
        if "refused" not in row and not row["wrong"]:
            rows.setdefault(case.nbytes, []).append((row["over_library"], name_, row))
    out = []
    for nbytes, mine in rows.items():
        over, best, row = min(mine, key=lambda one: one[2]["over_best"])
        told = found.plan.at(nbytes).claims.get("library", {})
        out.append({
            "library": f"{library.name} {library.version}", "collective": kind, "nbytes": nbytes,
            "rule": " ".join([told.get("algorithm", "none"), *map(str, told.get("parameters", {}).values())]),
            "best": " ".join([best.name, *map(str, best.parameters.values())]), "best_seconds": row["seconds"],
            "by_rules_seconds": row["reference_seconds"], "over_best": 1 / over,
        })  # fmt: skip
    return out


def pythons() -> dict[str, tuple[str, dict[str, str]]]:
    """The Python of each MPI that is here, and what it wants to be told where there are more processes than cores."""
    found = {"openmpi": (sys.executable, {"OMPI_MCA_btl": "^ofi"})}
    mpich = Path(os.environ.get("ANTIPHON_TEST_MPICH") or Path(sys.prefix) / "mpich") / "bin"
    if (mpich / "python").exists():
        more = {"MPIR_CVAR_DEVICE_COLLECTIVES": "none", "POSIX_POLL_FREQUENCY": "1"}
        found["mpich"] = str(mpich / "python"), {**more, "PATH": f"{mpich}{os.pathsep}{os.environ.get('PATH', '')}"}
    return found


def main() -> None:
    if sys.argv[1:2] == ["--inside"]:
        with tempfile.TemporaryDirectory() as folder:
            print("\n" + json.dumps([row for kind in sys.argv[2:] for row in by_rules(kind, Path(folder))]))
        return
    _common.print_machine()
    found: list[dict[str, Any]] = []
    for python, more in pythons().values():
        source = str(Path(antiphon.__file__).parents[1])
        done = subprocess.run(
            [python, __file__, "--inside", *(sys.argv[1:] or ["allreduce"])],
            env={**os.environ, **more, "PYTHONPATH": source}, stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
        found += json.loads(done.stdout.splitlines()[-1])
    _common.print_table(
        ["library", "collective", "nbytes", "rule", "by rules us", "best of theirs", "us", "over best"],
        [
            [r["library"], r["collective"], r["nbytes"], r["rule"], r["by_rules_seconds"] * 1e6, r["best"],
             r["best_seconds"] * 1e6, r["over_best"]]
            for r in found
        ],
    )  # fmt: skip
    print(f"worst: {max(r['over_best'] for r in found):.2f}")
    _common.save("stock_mpi", {"rows": found})


if __name__ == "__main__":
    main()
