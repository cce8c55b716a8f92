"""How near `fit loggp` comes: to parameters that are known, and to round trips over real MPI that it has not seen.

Run: python bench/bench_loggp_fit.py [--quick]. First synthetic round trips with errors of 1 and 2 % in every one (two
regimes, 21 sizes, 7 repetitions, 100 draws; CPU seconds per fit); then, where mpi4py and mpiexec are, two processes on
this machine: measured, fitted, and sizes that were left out predicted.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

import numpy as np
from _common import medians, print_machine, print_table, save

from antiphon.cost.fit import RoundTrip, fit_loggp, loggp_level
from antiphon.cost.loggp.forms import Figures, message

TRUE = (Figures(4e-6, 1.2e-6, 1.5e-6, 2.5e-6, 2.5e-10), Figures(1.1e-5, 2.2e-6, 2.6e-6, 6e-6, 0.9e-10))
LAST, SIZES, MESSAGES, REPEAT = 8192, tuple(2**i for i in range(21)), 16, 7
NAMES = ("L", "o_s", "o_r", "g", "G")
UNSEEN = (3, 24, 48, 100, 700, 1500, 3000, 6000, 12000, 24000, 48000, 100000, 200000, 400000, 900000)


def synthetic(seed: int, noise: float) -> list[RoundTrip]:
    rng = np.random.default_rng(seed)
    rows = []
    for s in SIZES:
        f = TRUE[s > LAST]
        one, gap = 2 * message(f, s), f.g + (s - 1) * f.G
        several, delay = one + (MESSAGES - 1) * gap, 1.5 * gap
        delayed = one + (MESSAGES - 1) * max(f.o_s + delay, gap)
        for _ in range(REPEAT):
            spent = np.array([one, several, delayed, MESSAGES * f.o_r]) * (1 + noise * rng.standard_normal(4))
            kinds = (("rtt", 1, 0.0), ("rtt", MESSAGES, 0.0), ("rtt", MESSAGES, delay), ("server", MESSAGES, 0.0))
            rows += [RoundTrip(*kind, s, float(t)) for kind, t in zip(kinds, spent, strict=True)]
    return rows


def known(noise: float, draws: int) -> dict[str, Any]:
    errors: dict[str, list[float]] = {}
    held, wrong = [], 0
    for seed in range(draws):
        found = fit_loggp(synthetic(seed, noise))
        if [(one.after, one.before) for one in found.breaks] != [(LAST, 2 * LAST)]:
            wrong += 1
            continue
        for regime, truth, where in zip(found.regimes, TRUE, ("eager", "rendezvous"), strict=True):
            for name in NAMES:
                figure, true = regime.figures[name], getattr(truth, name)
                if figure.value is not None and figure.low is not None and figure.high is not None:
                    errors.setdefault(f"{name} {where}", []).append(abs(figure.value / true - 1))
                    held.append(figure.low <= true <= figure.high)
    rows = [[name, f"{np.median(e):.2%}", f"{np.quantile(e, 0.95):.2%}", f"{max(e):.2%}"] for name, e in errors.items()]
    print(
        f"\nsynthetic, errors of {noise:.0%}, {draws} draws: break wrong in {wrong}; intervals hold {np.mean(held):.1%}"
    )
    print_table(["figure", "median error", "95th of 100", "worst"], rows)
    return {"noise": noise, "draws": draws, "wrong_breaks": wrong, "held": float(np.mean(held)), "errors": rows}


def real(repetitions: int) -> list[list[Any]]:
    from antiphon.runtimes.measure.bench_loggp import bench_loggp

    rows = bench_loggp(sorted({*SIZES, *UNSEEN}), repetitions=repetitions)
    assert rows is not None
    found = fit_loggp([row for row in rows if row.nbytes not in UNSEEN])
    for regime in found.regimes:
        told = ", ".join(f"{name} {one.value or 0:.3g} ({one.state})" for name, one in regime.figures.items())
        print(f"regime {regime.low} to {regime.high}: {told}")
    print(f"the fit misses its own round trips by {found.relative_errors[0]:.1%} (rms)")
    level = loggp_level(found)
    table: list[list[Any]] = []
    for size in UNSEEN:
        seen = float(np.median([r.seconds for r in rows if r.nbytes == size and r.kind == "rtt" and r.n == 1]))
        told_seconds = 2 * message(level, size)
        table.append([size, seen * 1e6, told_seconds * 1e6, round(told_seconds / seen, 3)])
    print("\nping-pong over MPI of sizes that the fit has not seen")
    print_table(["bytes", "measured us", "predicted us", "ratio"], table)
    off = np.exp(np.abs(np.log([row[3] for row in table]))) - 1
    print(f"off by {np.median(off):.1%} (median), {off.max():.1%} at most")
    return table


def main() -> None:
    quick = "--quick" in sys.argv
    print_machine()
    draws = 20 if quick else 100
    results: dict[str, Any] = {"known": [known(noise, draws) for noise in (0.01, 0.02)]}
    rows = synthetic(0, 0.01)
    results["fit"] = medians(lambda: fit_loggp(rows), 5)
    print(f"\na fit of {len(rows)} rows: {results['fit']['cpu_seconds'] * 1e3:.1f} ms of CPU")
    if find_spec("mpi4py") is not None:
        results["unseen"] = real(3 if quick else REPEAT)
    if not quick:
        save("loggp_fit", results)


if __name__ == "__main__":
    main()
