"""The fuzzers themselves: each finds nothing in a few cases, and each finds what is put in for it to find."""

import ast
import random
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import Any

import _forest as forest
import _harness as harness
import _mangle as mangle
import _meaning as meaning
import bounds_by_size
import joints
import loaders
import machines
import msccl
import numpy as np
import pytest
import run_all
import runs
import schedules
from quick import examples, in_turn, ordinary

from antiphon.core import joints as core_joints
from antiphon.core.collective import Collective
from antiphon.core.schedule import Schedule, cut
from antiphon.core.topology import LinkType, build
from antiphon.core.verify import Fault, Report, branching, verify
from antiphon.core.verify import joined as verify_joined
from antiphon.errors import Invalid

ROOT = Path(__file__).resolve().parent.parent


def few(module: Any, count: int, seed: int = 1) -> Counter[str]:
    found: Counter[str] = harness.run(module.NAME, module.one, count, seed)[0]
    return found


# ---- nothing is found ----


def test_schedules() -> None:
    counts = few(schedules, count := 200 if ordinary else 400)
    assert min(counts["right"], counts["wrong"]) > count / 8


@pytest.mark.slow
def test_joints() -> None:
    counts = few(joints, 250)
    assert min(counts["right"], counts["wrong by a joint"], counts["run"]) > 20
    assert min(counts[f"with a {kind}"] for kind in joints.KINDS) > 10


@pytest.mark.slow
def test_machines() -> None:
    counts = few(machines, 40)
    assert counts["attained"] > 20


@pytest.mark.slow
def test_bounds_by_size() -> None:
    counts = few(bounds_by_size, *((6, 7) if ordinary else (144, 1)))
    assert counts["times equal to the bound"] > 20


def test_runs() -> None:
    counts = few(runs, examples(120))
    assert all(counts[what] for what in runs.RUNNERS if what != "by threads" or runs.engine())


def test_loaders() -> None:
    loaders.good_files_load()
    counts = few(loaders, count := examples(100))
    assert min(counts["refused"], counts["loaded"]) > count / 30


@pytest.mark.slow
def test_msccl() -> None:
    counts = few(msccl, count := examples(400))
    assert min(counts["changed and right"], counts["wrong"]) > count / 20


@pytest.mark.parametrize(
    "kind", [*(pytest.param(kind, marks=pytest.mark.slow) for kind in ("race", "hang")), "wrong"]
)  # hangs are rare
def test_a_machine_that_lets_a_fault_pass_is_caught(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = msccl.judge

    def lax(code: Any, seed: int) -> Any:
        found = right(code, seed=seed)
        return None if found is not None and found.kind == kind else found

    monkeypatch.setattr(msccl, "judge", lax)
    assert "we say right" in fault_of(msccl, 2000)


def test_every_kind_of_file_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Counter[str]()

    def watched(use: Any, path: Path) -> tuple[str, str | None]:
        seen[use.__name__] += 1
        return "seen", None

    monkeypatch.setattr(loaders, "judged", watched)
    monkeypatch.setattr(loaders, "PER_SEED", 1)
    few(loaders, 200)
    assert seen.keys() == {target.use.__name__ for target in loaders.TARGETS.values()}


# ---- and each can fail ----


def fault_of(module: Any, count: int, seed: int = 1) -> str:
    with pytest.raises(harness.Found) as caught:
        few(module, count, seed)
    assert caught.value.files
    assert f"fuzz/{module.NAME}.py --count 1 --seed" in caught.value.__notes__[-1]
    return str(caught.value)


@pytest.mark.parametrize("kind", ["route", "share", "race", "empty", "self", "post"])
def test_a_verifier_that_lets_a_fault_pass_is_caught(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def lax(schedule: Schedule, topology: Any) -> Report:
        found = verify(schedule, topology)
        return Report(None) if found.fault is not None and found.fault.kind == kind else found

    monkeypatch.setattr(schedules.verifier, "verify", lax)
    assert "verify says: right" in fault_of(schedules, 4000)


def test_a_verifier_that_refuses_what_is_right_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def strict(schedule: Schedule, topology: Any) -> Report:
        return Report(Fault("race", "slots")) if schedule.slots > 2 else verify(schedule, topology)

    monkeypatch.setattr(schedules.verifier, "verify", strict)
    assert "the documents say: right" in fault_of(schedules, 3000)


def _always_none(*_: Any) -> None:
    return None


@pytest.mark.parametrize(
    ("where", "name", "lax", "seed"),
    in_turn(
        [
            (verify_joined, "find_joint_fault", _always_none, 1),
            (branching.JointRows, "lacking", property(lambda rows: np.zeros(len(rows), np.int64)), 84),
            (verify_joined, "_find_overloads", lambda *_: {}, 14),
            (branching, "_no_hub", lambda *_: np.zeros(0, np.int64), 1),
            (core_joints, "_own_crossings", lambda *_: np.zeros(0, np.int64), 1),
            (core_joints, "joints_of", _always_none, 1),
        ]
    ),
)
def test_what_passes_over_a_part_of_the_meaning_of_joints_is_caught(
    where: Any, name: str, lax: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begun shortly before a seed that shows it: the search alone would take seconds."""
    monkeypatch.setattr(where, name, lax)
    assert "the documents say" in fault_of(joints, 4000, seed)


def _off_by(factor: str) -> Callable[[Any], Any]:
    return lambda found: replace(found, bytes_per_second=(found.bytes_per_second or 0) / Fraction(factor))


def _refused(found: Any) -> Any:
    raise machines.Invalid("out of reach")


@pytest.mark.parametrize(
    ("change", "word", "seed"),
    [
        (_off_by("101/100"), "which is less", 1),
        (_off_by("99/100"), "which is more", 1),
        (_refused, "trees attain", 1),
        (lambda found: replace(found, tight=True), "said to be attained", 88),  # a seed shortly after it shows it
    ],
)
def test_a_wrong_bound_is_caught(
    change: Callable[[Any], Any], word: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = machines.bounds.bound
    monkeypatch.setattr(machines.bounds, "bound", lambda *given: change(honest(*given)))
    assert word in fault_of(machines, 600, seed)


def off_by_one(found: list[Any]) -> list[Any]:
    at = next((i for i, mine in enumerate(found) if len(mine)), None)
    if at is not None:
        found[at] = found[at].copy()
        found[at][-1] += found[at].dtype.type(1)
    return found


@pytest.mark.parametrize("what", ["step by step", "in any order", "as a program", "by threads"])
def test_one_wrong_element_of_a_run_is_caught(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if what == "by threads" and not runs.engine():
        pytest.skip("needs a C compiler")
    honest = runs.RUNNERS[what]
    monkeypatch.setitem(runs.RUNNERS, what, lambda *given: off_by_one(honest(*given)))
    assert what in fault_of(runs, 100)


def test_a_run_that_writes_into_its_input_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = runs.RUNNERS["step by step"]

    def rude(schedule: Any, given: list[Any], *more: Any) -> Any:
        found = [mine.copy() for mine in honest(schedule, given, *more)]
        for mine in given:
            mine[:] = 0
        return found

    monkeypatch.setitem(runs.RUNNERS, "step by step", rude)
    assert "an input was written to" in fault_of(runs, 200)


def crash(path: Path) -> None:
    if b"1e999" in path.read_bytes():
        raise KeyError("no such key")


def hungry(path: Path) -> None:
    np.ones(2**28)


def slow(path: Path) -> None:
    end = time.process_time() + 60
    while time.process_time() < end:
        pass


def chatty(path: Path) -> None:
    raise loaders.AntiphonError("two\nlines")


def shy(path: Path) -> None:
    raise loaders.AntiphonError("file: is too large for the memory of this machine")


def unlike(path: Path) -> None:
    loaders.same(1, 2)


@pytest.mark.parametrize(
    ("use", "word"),
    [
        (crash, "KeyError"), (hungry, "bytes of memory"),
        pytest.param(slow, "CPU time", marks=pytest.mark.slow),
        (chatty, "one short line"),
        (shy, "bytes ask for more"), (unlike, "does not read as the same"),
    ],
)  # fmt: skip
def test_a_loader_that_misbehaves_is_caught(
    use: Callable[[Path], None], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaders, "SECONDS", 0.2)
    monkeypatch.setattr(loaders, "TARGETS", {"plan": replace(loaders.TARGETS["plan"], use=use)})
    assert word in fault_of(loaders, 4000)


# ---- what they found ----


def test_a_number_of_levels_costs_no_memory(tmp_path: Path) -> None:
    """300 bytes of PICCL's XML with num_levels="33554433" took 4 GB before they were refused."""
    path = tmp_path / "topology.xml"
    path.with_name("figures.csv").write_bytes(loaders.FIGURES)
    path.write_bytes(loaders.MACHINE.replace(b'num_levels="2"', b'num_levels="2000001"'))
    tracemalloc.start()
    try:
        with pytest.raises(Invalid, match="has no group of level 2"):
            loaders.use_piccl_topology(path)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


# ---- the judges, on what can be counted by hand ----


def test_the_judge_of_schedules_on_a_few_by_hand() -> None:
    link = LinkType("link", Fraction(1))
    fan = build("fan", 2, [(0, 2, link), (2, 1, link), (1, 0, link), (1, 0, link)], switches=1)
    judge = meaning.Judge(fan)

    def judged(rows: list[tuple[int, ...]], kind: str = "broadcast") -> str | None:
        columns = [np.array(column) for column in zip(*rows, strict=True)]
        wanted = Collective(kind, 2)
        said: str | None = judge.judge(Schedule(wanted, cut(wanted, 1), *columns))
        return said

    assert judged([(0, 0, 0, 1, 0)]) is None
    assert "no single way" in str(judged([(0, 0, 0, 1, 0), (1, 0, 1, 0, 0)]))  # two links side by side
    assert "is empty" in str(judged([(0, 1, 0, 1, 0)], "gather"))  # what only rank 1 has
    assert "a race" in str(judged([(0, 0, 0, 1, 0), (0, 0, 0, 1, 0)]))
    assert "does not end" in str(judged([(0, 0, 0, 1, 1), (1, 0, 0, 1, 1)]))  # counted twice


def test_the_judge_of_machines_counts_branchings() -> None:
    hops = {(a, b) for a in range(4) for b in range(4) if a != b}
    assert len(list(forest.branchings(4, hops, 0, {1, 2, 3}))) == 4**2  # Cayley
    assert len(list(forest.branchings(3, {(0, 1), (1, 2), (0, 2)}, 0, {2}))) == 2


def test_damage_by_seed_is_the_same_again() -> None:
    data = loaders.TARGETS["book"].good()
    for kind in (mangle.as_bytes, mangle.as_book):
        first, again = (kind(random.Random(5), data[0], data) for _ in range(2))
        assert first == again
        assert first != data[0]


def test_mended_checksums_hold() -> None:
    for name, kind in (("program", mangle.program_entries), ("book", mangle.book_entries)):
        for data in loaders.TARGETS[name].good():
            torn = bytearray(data)
            torn[12:16] = bytes(4)
            assert mangle.mended(torn, kind) == data


# ---- the harness ----


def test_a_fault_is_kept_and_can_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def one(seed: int, counts: Counter[str]) -> None:
        counts[harness.CASES] += 1
        if seed == 7:
            raise harness.Found("seven", {"case.txt": "7"})

    monkeypatch.setattr(sys, "argv", ["x", "--count", "99", "--seed", "5", "--faults", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        harness.main("toy", one, 10, None)
    assert end.value.code == 1
    assert (tmp_path / "toy-7" / "case.txt").read_text() == "7"
    assert "python fuzz/toy.py --count 1 --seed 7" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["x", "--count", "2", "--seed", "5", "--json"])
    harness.main("toy", one, 10, None)
    assert '"counts": {"cases": 2}' in capsys.readouterr().out


def test_all_of_them_are_run_and_a_fault_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fuzz").mkdir()
    (tmp_path / "fuzz" / "good.py").write_text("""print('{"counts": {"cases": 3}}')""")
    (tmp_path / "fuzz" / "bad.py").write_text("raise SystemExit(1)")
    monkeypatch.setattr(run_all, "ROOT", tmp_path)
    good, bad, gone = (run_all.Fuzzer(name, "a judge", (1, 2, 3)) for name in ("good", "bad", "gone"))

    def ended(*fuzzers: Any) -> Any:
        monkeypatch.setattr(run_all, "FUZZERS", fuzzers)
        monkeypatch.setattr(sys, "argv", ["x", "--short", "--save", str(tmp_path / "found.json")])
        return run_all.main()

    assert ended(good) == 0
    assert '"cases": 3' in (tmp_path / "found.json").read_text()
    assert ended(good, bad) == 1
    assert ended(good, gone) == 2
    assert "there is no fuzz/gone.py" in capfd.readouterr().err


def test_every_fuzzer_of_the_table_is_documented() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for fuzzer in run_all.FUZZERS:
        assert f"fuzz/{fuzzer.name}.py" in page


@pytest.mark.parametrize(
    "path",
    in_turn(sorted([*(ROOT / "fuzz").rglob("*.py"), *(ROOT / "bench").glob("*.py")]), 3),
    ids=lambda path: path.name,
)
def test_what_is_not_run_here_takes_names_that_are_there(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("antiphon"):
            module = import_module(str(node.module))
            for name in node.names:
                assert hasattr(module, name.name) or import_module(f"{node.module}.{name.name}"), name.name
