"""The same answers on every processor: fits under several BLAS kernels and after changes of a few last bits."""

import ast
import math
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import nnls

from antiphon.core.portable import convolve, exp, matmul, row_dot
from antiphon.cost.fit import PlanTime, RoundTrip, fit_genmodel, fit_loggp, plan_of
from antiphon.cost.fit.least_squares import decompose_matrix, pseudo_inverse, solve_nonnegative

ROOT = Path(__file__).resolve().parent.parent
DECIDING = ("core", "topologies", "cost", "planners", "lower", "select")  # layers whose answers must be the same
# Their products are of sparse matrices (no BLAS), or of whole numbers, which are exact in any order.
HARMLESS = {
    "core/symmetry.py", "planners/flows/linear_program.py", "planners/greedy/hops.py",
    "planners/greedy/tasks.py", "planners/synth/linear.py",
    "core/bounds/exact_solve.py", "planners/trees/rounding.py",
}  # fmt: skip
CALLS = "dot inner vdot matmul tensordot convolve correlate polyfit linalg exp log power"  # differ between processors
VARYING = set(CALLS.split())


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    monkeypatch.delitem(sys.modules, "bench_kernels", raising=False)
    return import_module("bench_kernels")


@pytest.mark.parametrize("fits", [10, pytest.param(20, marks=pytest.mark.slow)])
def test_fits_do_not_depend_on_the_kernel_of_blas(bench: Any, fits: int) -> None:
    try:
        kernels = bench.usable(("Haswell", "Prescott") if fits < 20 else ("Haswell", "SkylakeX", "Prescott"))
    except SystemExit as reason:
        pytest.skip(str(reason))
    result = bench.compare(kernels, fits, 0)
    assert result["different"] == {what: [] for what in bench.COMPARED}
    assert result["changed by last bits"] == []


@pytest.mark.parametrize("plans", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_plan_does_not_depend_on_what_numpy_uses_of_the_processor(bench: Any, plans: int) -> None:
    try:
        kernels = bench.usable(("Haswell", bench.NO_AVX512))
    except SystemExit as reason:
        pytest.skip(str(reason))
    assert bench.compare(kernels, 0, plans)["different"]["plan file"] == []


def test_no_product_of_blas_where_answers_are_decided() -> None:
    faults = []
    for layer in DECIDING:
        for path in sorted((ROOT / "src" / "antiphon" / layer).rglob("*.py")):
            name = path.relative_to(ROOT / "src" / "antiphon").as_posix()
            text = path.read_text(encoding="utf-8")
            if not any(word in text for word in (" @ ", *(f"np.{name}" for name in VARYING))):
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult) and name not in HARMLESS:
                    faults.append(f"{name}:{node.lineno}: @")
                if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "np" and node.attr in VARYING:
                    faults.append(f"{name}:{node.lineno}: np.{node.attr}")
    assert faults == []


def test_a_latency_of_zero_is_determined() -> None:
    """Of exact round trips without latency what comes out is 0 or a rounding error of either sign."""
    rows = []
    for size in (1, 4, 16, 64, 256, 1024):
        o_s, o_r, g, per_byte = 1.1e-6, 1.3e-6, 1.7e-6, 3e-10
        one, gap = 2 * (o_s + o_r + (size - 1) * per_byte), g + (size - 1) * per_byte
        delay = 1.5 * gap
        rows += [
            RoundTrip("rtt", 1, 0.0, size, one),
            RoundTrip("rtt", 8, 0.0, size, one + 7 * gap),
            RoundTrip("rtt", 8, delay, size, one + 7 * (o_s + delay)),
            RoundTrip("server", 8, delay, size, 8 * (delay + o_r)),
        ]
    figures = fit_loggp(rows).regimes[0].figures
    assert {name: figure.state for name, figure in figures.items()} == dict.fromkeys(figures, "determined")
    assert figures["L"].value == 0


def test_parameters_that_are_zero_are_determined() -> None:
    rows = [
        PlanTime(plan_of(name, n), n, size, steps * 2e-2 + size * 8e-10 * moved)
        for n in range(2, 10)
        for name, steps, moved in (("cps", 2, 2 * (n - 1) / n), ("incast", 1, 1.0))
        for size in (10**6, 10**7, 10**8)
    ]
    found = fit_genmodel(rows).parameters
    assert {name: (found[name].state, found[name].value) for name in ("gamma", "delta")} == {
        "gamma": ("determined", 0.0), "delta": ("determined", 0.0),
    }  # fmt: skip
    assert found["beta"].value == 8e-10


# ---- arithmetic ----


def test_exp_is_that_of_the_library_of_c() -> None:
    x = np.random.default_rng(0).uniform(-60, 60, 2000)
    assert exp(x).tolist() == pytest.approx([math.exp(value) for value in x.tolist()], rel=1e-15)
    assert exp(np.array([0.0, -1e9])).tolist() == pytest.approx([1.0, 0.0])


def test_products_are_those_of_numpy() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(4, 7)), rng.normal(size=(7, 5))
    assert row_dot(a, b[:, 0]) == pytest.approx(a @ b[:, 0])
    assert matmul(a, b) == pytest.approx(a @ b)
    assert convolve(a, b[:, 0])[2] == pytest.approx(np.convolve(a[2], b[:, 0]))


@pytest.mark.parametrize("seed", range(30))
def test_small_problems_are_solved_as_by_scipy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = np.abs(rng.normal(size=(int(rng.integers(1, 30)), int(rng.integers(1, 6)))))
    if seed % 3 == 0 and matrix.shape[1] > 2:
        matrix[:, 1], matrix[:, 2] = 2 * matrix[:, 0], 0.0  # one that depends on another, and an empty one
    norms = np.sqrt((matrix**2).sum(axis=0))
    matrix = matrix / np.where(norms > 0, norms, 1.0)
    target = matrix @ rng.normal(size=matrix.shape[1]) + 0.1 * rng.normal(size=len(matrix))
    values, sizes = solve_nonnegative(matrix, target), np.linalg.svd(matrix, compute_uv=False)
    assert values.min() >= 0
    assert np.linalg.norm(matrix @ values - target) == pytest.approx(nnls(matrix, target)[1])
    left, ours, right = decompose_matrix(matrix)
    assert ours == pytest.approx(sizes[sizes > 1e-8 * sizes[0]])
    assert (left * ours) @ right == pytest.approx(matrix)
    assert matrix @ pseudo_inverse(matrix) == pytest.approx(left @ left.T)


# ---- other systems ----

PLANNING = """\
topology show dgx1v
bound allreduce dgx1v
plan allreduce ring:ranks=4 --planner trees --nbytes 1MB -o plan.json
plan allgather ring:ranks=4 --budget 5 -o other.json
tune allreduce ring:ranks=3 --nbytes 1KB -o table.json
verify plan.json
predict table.json --nbytes 1KB
export other.json --to msccl-xml -o xml
frontier allgather ring:ranks=4 --budget 5
run plan.json --nbytes 1KB
list runtimes
doctor"""
RUNNING = {
    "run plan.json --nbytes 1KB --on threads": "the native engine needs Linux",
    "bench plan.json --nbytes 1KB --on threads": "the native engine needs Linux",
    "build nccl-tuner": "the native engine needs Linux",
    "lab status": "only Linux has",
    "lab up dgx1v": "only Linux has: use a Linux machine",
    "run plan.json --nbytes 1KB --on lab": "only Linux has: use a Linux machine",
}


def test_planning_needs_nothing_that_only_posix_has(tmp_path: Path) -> None:
    """Everything but runs works without, in a process from which all of that was removed."""
    lines = [*PLANNING.splitlines(), *RUNNING]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("planning_only.py")), str(tmp_path)], input="\n".join(lines),
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    codes = {line.split(" ", 2)[2]: line.split(" ", 2)[1] for line in done.stdout.splitlines() if line[:3] == "== "}
    assert codes == {**dict.fromkeys(PLANNING.splitlines(), "0"), **dict.fromkeys(RUNNING, "2")}, done.stderr
    assert "budgets hold" in done.stdout
    complaints = [line for line in done.stderr.splitlines() if line.startswith("antiphon: ")]
    for line, (command, reason) in zip(complaints[-len(RUNNING) :], RUNNING.items(), strict=True):
        assert reason in line, command
