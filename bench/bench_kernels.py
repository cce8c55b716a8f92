"""Whether plans and fits depend on the processor: the same requests under several BLAS kernels, compared bit by bit.

Run: python bench/bench_kernels.py [--fits N] [--plans N] [--kernels Haswell,SkylakeX]. Each kernel runs in processes of
its own: OpenBLAS reads OPENBLAS_CORETYPE when it is loaded. "no AVX-512" is the kernel Haswell with NumPy's own AVX-512
code disabled as well, as on a processor that lacks it. Compared are plan files, and of fits the states (of parameters,
combinations, breaks and radices), the JSON and the profile. Data sets are drawn from seeds: LogGP and GenModel, exact
ones (with parameters that are zero, and delays as long as the gap) and noisy ones. Each is fitted once more with its
times changed by a few units in the last place, after which states must be the same too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from _common import print_machine, print_table, save

import antiphon
from antiphon.cost.fit import (
    GenmodelFit,
    LogGPFit,
    PlanTime,
    RoundTrip,
    fit_genmodel,
    fit_loggp,
    genmodel_profile,
    loggp_profile,
    plan_of,
)
from antiphon.cost.genmodel import forms
from antiphon.cost.loggp.forms import Figures, message
from antiphon.errors import AntiphonError

NO_AVX512 = "no AVX-512"
KERNELS = ("Haswell", "SkylakeX", "Prescott", NO_AVX512)
DISABLED = "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR X86_V4"
FITS, PLANS = 1500, 60
COMPARED, CHANGED = ("plan file", "states", "JSON", "profile"), "states, changed"
REFUSED = "refused"  # a planner does not plan this collective on this machine
ULPS = 4  # how many units in the last place times are changed by
NOISE = (0.0, 0.0, 0.0, 1e-6, 1e-4, 1e-3, 1e-2)
MACHINES = (
    "dgx1v", "pcie8", "z52", "z52-pcie", "ring:ranks=6", "torus:dims=3x3", "mesh:dims=2x4", "star:ranks=6",
    "hypercube:ranks=8", "tree:fanouts=2x3", "full:ranks=5", "line:ranks=5", "ring:ranks=5", "mesh:dims=3x3",
)  # fmt: skip
PLANNERS = (
    ("trees", "allreduce"), ("compose", "allreduce"), ("greedy", "allreduce"), ("flows", "alltoall"),
    ("trees", "broadcast"), ("blink", "broadcast"), ("shallow", "broadcast"), ("multi-ring", "allgather"),
)  # fmt: skip


# ---- data sets ----


def loggp_rows(rng: np.random.Generator) -> list[RoundTrip]:
    """Round trips by the definitions, in one regime or two."""
    noise = float(rng.choice(NOISE))
    sizes = [2**i for i in range(0, int(rng.integers(6, 21)), int(rng.integers(1, 3)))]
    regimes = [_figures(rng) for _ in range(int(rng.integers(1, 3)))]
    repetitions, n = int(rng.choice([1, 2, 3])), int(rng.choice([2, 3, 8, 16]))
    cover = float(rng.choice([0.5, 1.0, 1.5, 1.5]))
    rows = []
    for place, size in enumerate(sizes):
        f = regimes[place * len(regimes) // len(sizes)]
        one, gap = 2 * message(f, size), f.g + (size - 1) * f.G
        delay = cover * gap
        for kind, count, wait, seconds in (
            ("rtt", 1, 0.0, one),
            ("rtt", n, 0.0, one + (n - 1) * gap),
            ("rtt", n, delay, one + (n - 1) * max(f.o_s + delay, gap)),
            ("server", n, delay, n * (f.o_r + delay)),
        ):
            for _ in range(repetitions):
                rows.append(RoundTrip(kind, count, wait, size, seconds * (1 + noise * float(rng.standard_normal()))))
    radix = int(rng.integers(0, 5))
    if radix:
        rows += [
            RoundTrip("burst", m, 0.0, size, -(-m // radix) * 2 * message(regimes[0], size))
            for size in (sizes[0], sizes[-1])
            for m in range(1, int(rng.integers(3, 9)))
        ]
    return rows


def _figures(rng: np.random.Generator) -> Figures:
    """Some of them zero, some equal."""
    o_s = float(rng.choice([0.0, 1e-6, rng.uniform(1e-7, 3e-6)]))
    o_r = float(rng.choice([0.0, o_s, rng.uniform(1e-7, 3e-6)]))
    latency = float(rng.choice([0.0 if o_s else 1e-7, 1e-6, rng.uniform(1e-6, 2e-5)]))
    g = float(rng.choice([0.0, o_s, rng.uniform(1e-6, 6e-6)]))
    return Figures(latency, o_s, o_r, g, float(rng.choice([1e-10, rng.uniform(5e-11, 1e-9)])))


def genmodel_rows(rng: np.random.Generator) -> tuple[list[PlanTime], dict[str, float]]:
    noise, scale = float(rng.choice(NOISE)), {"alpha": 2e-2, "beta": 8e-10, "gamma": 1.5e-10, "delta": 4.7e-11}
    truth = {name: value * float(rng.choice([0.0, 1.0, rng.uniform(0.2, 5)])) for name, value in scale.items()}
    truth["beta"] = truth["beta"] or scale["beta"]
    epsilon, w_t = float(rng.choice([0.0, 3e-11, 1e-10])), int(rng.integers(1, 10))
    plans = [("cps",), ("cps", "ring"), ("cps", "incast"), ("ring",), ("cps", "rhd")][int(rng.integers(0, 5))]
    sizes = [10**5, 10**6, 10**8][: int(rng.integers(1, 4))]
    ranks = [list(range(2, 14)), [2, 4, 8, 16], [12] * 3, [2, 3, 12]][int(rng.integers(0, 4))]
    rows = []
    for name in plans:
        for size in sizes:
            for n in ranks:
                seconds = _genmodel_seconds(name, n, size, truth, epsilon, w_t)
                rows.append(PlanTime(plan_of(name, n), n, size, seconds * (1 + noise * float(rng.standard_normal()))))
    known = {name: truth[name] for name in ("gamma", "delta") if rng.random() < 0.2}
    return rows, known


def _genmodel_seconds(name: str, ranks: int, nbytes: int, truth: dict[str, float], epsilon: float, w_t: int) -> float:
    if name == "incast":
        return truth["alpha"] + nbytes * (truth["beta"] + epsilon * max(ranks - 1 - w_t, 0))
    tier = forms.Tier(truth["alpha"], truth["beta"], epsilon, w_t)
    form = {"cps": forms.cps, "ring": forms.ring, "rhd": forms.rhd}[name]
    return form(ranks, nbytes, tier, forms.Server(truth["gamma"], truth["delta"])).total


# ---- what is compared ----


def fit(number: int, ulps: int = 0) -> GenmodelFit | LogGPFit | str:
    """A data set by its number, its times changed by up to `ulps` units in the last place; or why it is refused."""
    rng, jitter = np.random.default_rng(number), np.random.default_rng(number + 10**6)

    def changed(rows: Sequence[Any]) -> list[Any]:
        steps = jitter.integers(-ulps, ulps + 1, len(rows)).tolist()
        return [
            replace(row, seconds=row.seconds * (1 + step * 2.0**-52)) for row, step in zip(rows, steps, strict=True)
        ]

    try:
        if number % 2:
            return fit_loggp(changed(loggp_rows(rng)))
        rows, known = genmodel_rows(rng)
        return fit_genmodel(changed(rows), known)
    except AntiphonError as error:
        return str(error)


def states(found: GenmodelFit | LogGPFit | str) -> Any:
    if isinstance(found, str):
        return found
    if isinstance(found, GenmodelFit):
        parameters = {name: estimate.state for name, estimate in found.parameters.items()}
        return [parameters, found.w_t.state, found.w_t.value, [(c.name, c.state) for c in found.combinations]]
    regimes = [
        [{name: estimate.state for name, estimate in regime.figures.items()}, sorted(regime.growth)]
        for regime in found.regimes
    ]
    return [regimes, [b.as_json() for b in found.breaks], {name: r.as_json() for name, r in found.radices.items()}]


def profile(found: GenmodelFit | LogGPFit | str) -> Any:
    try:
        if isinstance(found, GenmodelFit):
            return genmodel_profile(found, "ethernet", bandwidth=1.25e9).as_json()
        return found if isinstance(found, str) else loggp_profile(found, within="host").as_json()
    except AntiphonError as error:
        return str(error)


def plan_files(limit: int) -> Iterator[tuple[str, bytes | None]]:
    """So many plan files, and None for what is refused on the way there."""
    cases = iter([(machine, *planner) for machine in MACHINES for planner in PLANNERS])
    while limit > 0 and (case := next(cases, None)):
        machine, planner, kind = case
        try:
            plan = antiphon.plan(kind, machine, planner=planner)
        except AntiphonError:
            yield " ".join(case), None
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "plan.json"
            antiphon.save(plan, path)
            yield " ".join(case), path.read_bytes()
        limit -= 1


def digest(what: Any) -> str:
    text = what if isinstance(what, bytes) else json.dumps(what).encode()
    return hashlib.sha256(text).hexdigest()[:16]


def answers(fits: int, plans: int) -> dict[str, dict[str, str]]:
    """Everything as this process has it, as digests."""
    out: dict[str, dict[str, str]] = {name: {} for name in ("plan file", "states", "JSON", "profile", CHANGED)}
    begin = time.process_time()
    for case, file in plan_files(plans):
        out["plan file"][case] = REFUSED if file is None else digest(file)
    for number in range(fits):
        found, kind = fit(number), f"{'LogGP' if number % 2 else 'GenModel'} {number}"
        out["states"][kind] = digest(states(found))
        out["JSON"][kind] = digest(found if isinstance(found, str) else found.as_json())
        out["profile"][kind] = digest(profile(found))
        out[CHANGED][kind] = digest(states(fit(number, ULPS)))
    print(f"{time.process_time() - begin:.0f} s of CPU", file=sys.stderr)
    return out


# ---- kernels ----


def has_avx512() -> bool:
    try:
        return "avx512f" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False


def usable(kernels: Sequence[str]) -> list[str]:
    """Those that this processor can run."""
    if platform.machine() not in ("x86_64", "AMD64"):
        sys.exit(f"kernels of OpenBLAS for x86-64 cannot run on {platform.machine()}: nothing compared")
    if "SkylakeX" in kernels and not has_avx512():
        print("this processor has no AVX-512: kernel SkylakeX is skipped")
        return [kernel for kernel in kernels if kernel != "SkylakeX"]
    return list(kernels)


def start(kernel: str, fits: int, plans: int) -> subprocess.Popen[str]:
    more = {"NPY_DISABLE_CPU_FEATURES": DISABLED} if kernel == NO_AVX512 else {}
    core = "Haswell" if kernel == NO_AVX512 else kernel
    command = [sys.executable, "-W", "ignore", __file__, "--child", "--fits", str(fits), "--plans", str(plans)]
    environment = {**os.environ, **more, "OPENBLAS_CORETYPE": core, "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def compare(kernels: Sequence[str], fits: int, plans: int) -> dict[str, Any]:
    """How many answers differ, by what is compared; `changed`: data sets whose states a few last bits change."""
    told: dict[str, dict[str, dict[str, str]]] = {}
    processes = {kernel: start(kernel, fits, plans) for kernel in kernels}
    for kernel, process in processes.items():
        text = process.communicate()[0]
        if process.returncode:
            sys.exit(f"kernel {kernel}: the process failed with code {process.returncode}")
        told[kernel] = json.loads(text)
    first = told[kernels[0]]
    different = {
        what: sorted(case for case in first[what] if len({told[kernel][what].get(case) for kernel in kernels}) > 1)
        for what in first
    }
    made = sum(value != REFUSED for value in first["plan file"].values())
    changed = sorted(
        {case for one in told.values() for case, value in one["states"].items() if one[CHANGED][case] != value}
    )
    return {
        "kernels": list(kernels), "fits": fits, "plans": made, "ulps": ULPS,
        "different": {what: cases for what, cases in different.items() if what != CHANGED},
        "changed by last bits": changed,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fits", type=int, default=FITS)
    parser.add_argument("--plans", type=int, default=PLANS)
    parser.add_argument("--kernels", default=",".join(KERNELS))
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(answers(given.fits, given.plans)))
        return
    print_machine()
    result = compare(usable(given.kernels.split(",")), given.fits, given.plans)
    print(f"{result['plans']} plans and {result['fits']} fits under {', '.join(result['kernels'])}")
    rows = [[what, len(cases), ", ".join(cases[:3])] for what, cases in result["different"].items()]
    changed = result["changed by last bits"]
    print_table(
        ["compared", "different", "e.g."],
        [*rows, [f"states after {ULPS} units in the last place", len(changed), ", ".join(changed[:3])]],
    )
    if (given.fits, given.plans, given.kernels) == (FITS, PLANS, ",".join(KERNELS)):
        save("kernels", result)
    sys.exit(any(result["different"].values()) or bool(changed))


if __name__ == "__main__":
    main()
