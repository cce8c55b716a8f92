"""Instances written for anybody's solver: CaDiCaL reading the DIMACS and z3 reading the SMT-LIB say what we say."""

import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from later import Later
from pysat.formula import CNF
from pysat.solvers import Solver
from quick import examples, in_turn, ordinary
from sccl_cases import case

import antiphon
from antiphon.cli import run
from antiphon.core.collective import Collective
from antiphon.core.plan import Plan
from antiphon.errors import Infeasible, Invalid, NotFound, Unsupported

Point = tuple[int, int, int]  # chunks, steps, rounds
SHAPES = ("dimacs", "smtlib")
Z3_SECONDS = 60
z3 = Later("z3")


def by_sat(path: Path) -> list[int] | None:
    """What CaDiCaL makes true, or None where it finds that there is nothing."""
    with Solver(name="cadical195", bootstrap_with=CNF(from_file=str(path))) as solver:
        found = solver.solve()
        assert found is not None
        return [x for x in solver.get_model() if x > 0] if found else None


def by_z3(path: Path) -> bool:
    solver = z3.Solver(ctx=z3.Context())
    solver.set("timeout", Z3_SECONDS * 1000)
    solver.from_file(str(path))
    found = str(solver.check())
    assert found in ("sat", "unsat")
    return found == "sat"


def written(plan: Plan, into: Path, shape: str, point: Point | None = None) -> list[Path]:
    asked: dict[str, Any] = dict(zip(("chunks", "steps", "rounds"), point, strict=True)) if point else {}
    return [path for path, _ in antiphon.export(plan, shape, into, options=asked)]


def any_plan(wanted: Any, machine: Any) -> Plan:
    """Of a machine and a collective, by a planner that knows nothing of instances."""
    found: Plan = antiphon.plan(wanted, machine, planner="relay")
    return found


def ours(wanted: Any, machine: Any, point: Point) -> bool:
    """Whether we find an algorithm. (Where we find none, and cannot prove it, nobody shall find one.)"""
    options = dict(zip(("chunks", "steps", "rounds"), point, strict=True))
    try:
        antiphon.plan(wanted, machine, planner="sccl", options=options)
    except (Infeasible, NotFound):
        return False
    return True


def agreed(wanted: Any, machine: Any, point: Point, into: Path, says: bool) -> None:
    plan = any_plan(wanted, machine)
    (clauses,) = written(plan, into, "dimacs", point)
    (terms,) = written(plan, into, "smtlib", point)
    model = by_sat(clauses)
    assert (model is not None, by_z3(terms)) == (says, says), point
    if model is not None:
        delivers(clauses, model)


def delivers(clauses: Path, model: list[int]) -> None:
    """What is true, by the file's own words, brings every chunk from who has it to who wants it, step by step."""
    text = clauses.read_text()
    true = set(model)
    wants = {
        int(c): (set(map(int, a.split())), set(map(int, b.split())))
        for c, a, b in re.findall(
            r"^c chunk (\d+): part \d+ of block \d+, from rank ([\d ]+), to ([\d ]+)$", text, re.M
        )
    }
    ends = {int(arc): (int(a), int(b)) for arc, a, b in re.findall(r"^c arc (\d+): (\d+) ->.* (\d+)$", text, re.M)}
    sends: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for found in re.findall(r"^c variable (\d+): chunk (\d+) goes over arc (\d+) in step (\d+)$", text, re.M):
        variable, chunk, arc, step = map(int, found)
        if variable in true:
            sends[chunk].append((step, arc))
    assert wants
    for chunk, (holders, dests) in wants.items():
        have = dict.fromkeys(holders, -1)
        for step, arc in sorted(sends[chunk]):
            a, b = ends[arc]
            assert have[a] < step
            have.setdefault(b, step)
        assert dests <= set(have)


@pytest.mark.parametrize(
    ("wanted", "machine", "point", "says"),
    in_turn(
        [
            ("allgather", "dgx1v_sccl", (1, 2, 2), True),
            ("allgather", "dgx1v_sccl", (2, 2, 2), False),
            ("allgather", "dgx1v_sccl", (2, 2, 3), True),
            ("broadcast", "dgx1v_sccl", (6, 3, 3), True),
            ("broadcast", "dgx1v_sccl", (7, 2, 3), False),
            ("alltoall", "ring:ranks=4", (4, 2, 2), True),
            ("alltoall", "ring:ranks=4", (4, 2, 1), False),
            ("allgather", "star:ranks=4", (1, 1, 3), True),
            ("allgather", "star:ranks=4", (1, 2, 2), False),
        ],
        3,
    ),
)
def test_points_known_by_hand(wanted: str, machine: str, point: Point, says: bool, tmp_path: Path) -> None:
    assert ours(wanted, machine, point) is says
    agreed(wanted, machine, point, tmp_path, says)


@pytest.mark.slow
@example(307, 1, 0, 1)  # capacities 9/8 and 3/2: possible in one step of two rounds, but not in two steps of one
@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6), st.integers(-1, 1), st.integers(-1, 2), st.integers(1, 2))
def test_random_machines_and_collectives(tmp_path: Path, seed: int, steps: int, rounds: int, parts: int) -> None:
    """With links of several widths, shared limits, switches, groups, uneven blocks, custom relations."""
    instance = case(seed, most_ranks=4, most_chunks=6)
    if not instance.arcs.exhaustive:
        return
    few = max(1, instance.least_steps + steps)
    point = (parts * instance.input_weight, few, max(1, few + rounds))
    wanted, machine = instance.collective, instance.topology
    agreed(wanted, machine, point, tmp_path, ours(wanted, machine, point))


@pytest.mark.parametrize(
    ("wanted", "machine", "k"),
    in_turn(
        [("allgather", "ring:ranks=4", 1), ("allgather", "hypercube:ranks=8", 0), ("broadcast", "mesh:dims=2x3", 1),
         ("reducescatter", "mesh:dims=2x3", 1), ("allreduce", "ring:ranks=4", 1), ("alltoall", "star:ranks=3", 1)], 2
    ),
)  # fmt: skip
def test_what_labels_claim_is_what_solvers_find(wanted: str, machine: str, k: int, tmp_path: Path) -> None:
    plan = antiphon.frontier.find(wanted, machine, k=k, steps=4).plan()
    labels = [entry.schedule.provenance.get("certificate") for entry in plan.entries]
    files = written(plan, tmp_path, "dimacs")
    names = {file.stem for file in files}
    for label in filter(None, labels):
        point = (label["chunks"], label["steps"], label["rounds"])
        assert "-".join(["sat", *map(str, point)]) in names
        assert label["proof"] == "best-found-in-budget" or any(
            re.fullmatch(rf"unsat-\d+-{label['steps']}-\d+", name) for name in names
        )
    for file in files:
        claim, chunks, steps, rounds = file.stem.split("-")
        assert (by_sat(file) is not None) is (claim == "sat"), file.name
        assert f"{chunks} chunks per rank, {steps} steps, {rounds} rounds?" in file.read_text()
    assert {file.stem for file in written(plan, tmp_path, "smtlib")} == names


def follows(clauses: Path, proof: Path) -> bool:
    """Whether an LRAT proof derives the empty clause, by the definition of the format; by lrat-check where it is."""
    rows = [[int(x) for x in line.split()] for line in clauses.read_text().splitlines() if line[0] not in "cp"]
    known: dict[int, list[int]] = {number: row[:-1] for number, row in enumerate(rows, 1)}
    lemma = [0]
    for line in proof.read_text().splitlines():
        number, *rest = map(int, line.split())
        lemma, hints = rest[: rest.index(0)], rest[rest.index(0) + 1 : -1]
        assert number not in known
        false, unknown = set(lemma), [0]
        for hint in hints:
            assert unknown
            unknown = [x for x in known[hint] if x not in false]
            if len(unknown) > 1:
                return False
            false.update(-x for x in unknown)
        if unknown:
            return False
        known[number] = lemma
    if tool := shutil.which("lrat-check"):
        said = subprocess.run([tool, clauses, proof], capture_output=True, text=True, check=False).stdout
        assert ("c VERIFIED" in said) == (not lemma)
    return not lemma


@pytest.mark.parametrize(
    ("wanted", "machine", "options"),
    in_turn(
        [
            ("broadcast", "star:ranks=3", {"steps": 2 if ordinary else 3}),
            # about sums alone: whether the inputs get everywhere over few links
            ("allreduce", "ring:ranks=5", {"chunks": 10, "steps": 3, "rounds": 11}),
        ],
        2,
    ),
)
def test_what_is_refuted_by_resolution_comes_with_its_proof(
    wanted: str, machine: str, options: dict[str, int], tmp_path: Path
) -> None:
    if "chunks" in options:
        plan = antiphon.plan(wanted, machine, planner="sccl", options=options)
    else:
        plan = antiphon.frontier.find(wanted, machine, options=options).plan()
    proofs = [file for file in written(plan, tmp_path, "dimacs") if file.suffix == ".lrat"]
    assert proofs
    for proof in proofs:
        clauses = proof.with_suffix(".cnf")
        assert follows(clauses, proof)
        assert by_sat(clauses) is None
        lines = proof.read_text().splitlines(keepends=True)
        proof.write_text("".join(lines[:-1]))
        assert not follows(clauses, proof)


def test_a_label_that_is_too_good_is_contradicted(tmp_path: Path) -> None:
    """A plan that calls a point optimal which is not: the file that says so is satisfiable."""
    plan = antiphon.plan("allgather", "ring:ranks=4", planner="sccl", options={"chunks": 1, "steps": 2, "rounds": 3})
    certificate = plan.entries[0].schedule.provenance["certificate"]
    certificate |= {"rounds": 3, "proof": "proved-optimal-for-k", "k": 1}
    better = next(file for file in written(plan, tmp_path, "dimacs") if file.stem.startswith("unsat"))
    assert by_sat(better) is not None


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_refused(shape: str) -> None:
    plan = any_plan(Collective("allgather", 4), "ring:ranks=4")
    with pytest.raises(Unsupported, match=r"no certificate.*options chunks=6"):
        antiphon.export(plan, shape)
    with pytest.raises(Invalid, match="together"):
        antiphon.export(plan, shape, options={"chunks": 2})
    for wrong in (0, -1, 1.5, "x", True):
        with pytest.raises(Invalid, match="whole numbers from 1"):
            antiphon.export(plan, shape, options={"chunks": wrong, "steps": 2, "rounds": 2})
    scatter = any_plan("alltoall", "ring:ranks=4")
    with pytest.raises(Invalid, match="multiple of 4"):
        antiphon.export(scatter, shape, options={"chunks": 3, "steps": 2, "rounds": 2})


@pytest.mark.slow
def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["frontier", "allgather", "ring:ranks=4", "--planner", "sccl:k=1", "-o", "plan.json"]) == 0
    assert run(["export", "plan.json", "--to", "smtlib", "-o", "claims"]) == 0
    assert run(["export", "plan.json", "--to", "dimacs:chunks=2,steps=2,rounds=2", "-o", "claims"]) == 0
    assert by_sat(Path("claims/asked-2-2-2.cnf")) is None
    assert all(by_z3(file) is file.name.startswith("sat") for file in Path("claims").glob("*.smt2"))
