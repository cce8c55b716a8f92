"""Blink's micro-benchmarks: right as schedules, measured on runtimes, and what they are predicted to reach."""

import json
import shutil
from fractions import Fraction
from pathlib import Path

import fake_ground
import numpy as np
import pytest

import antiphon
from antiphon.cli import run
from antiphon.core.topology import LinkType, Topology
from antiphon.errors import Invalid, Missing, Unsupported
from antiphon.registry import table
from antiphon.reproduce.blink_micro import micro
from antiphon.runtimes.engine.launch import LAUNCHED
from antiphon.runtimes.measure import bench_micro as module
from antiphon.runtimes.measure import device
from antiphon.runtimes.measure.bench_micro import PATTERNS, bench_micro, places_on, plan_on, select_patterns
from antiphon.topologies import topology

KINDS = {"chain-forward": 6, "chain-reduce": 6, "chain-reduce-broadcast": 6, "fan-in-forward": 3, "fan-in-reduce": 3,
         "fan-out-forward": 3, "mimo": 1, "mca": 1}  # fmt: skip


def test_places_are_looked_for_among_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a large ring nothing is tried that no link leads to; ranks behind a switch are neighbours, also one way."""
    beside, asked = module.reachable_ranks, list[int]()

    def counted(machine: Topology, rank: int, back: bool) -> set[int]:
        found = beside(machine, rank, back)
        asked.append(len(found))
        return found

    monkeypatch.setattr(module, "reachable_ranks", counted)
    (mimo,), (chain, *_) = select_patterns(["mimo"]), select_patterns(["chain-forward"])
    with pytest.raises(Unsupported, match="no ranks that are linked like this"):
        places_on(mimo, topology("ring:ranks=1000"))
    assert (len(asked), max(asked)) == (2000, 2)
    src, dst = np.array([(0, 3), (2, 3), (3, 1), (1, 2)], np.int32).T  # node 3 is a switch
    through = Topology("one way", 3, 1, src, dst, np.zeros(4, np.int32), (LinkType("fast", Fraction(10**9)),))
    assert places_on(chain, through) == [0, 1, 2]
    with pytest.raises(Unsupported):
        places_on(mimo, through)


def test_what_comes_out_is_what_the_figures_say() -> None:
    """By the interpreter, on numbers that tell who gave what: each rank gives 10 to the power of its number."""
    wanted = {
        "chain-forward 3": {1: [1], 2: [1]}, "chain-reduce 4": {3: [111]},
        "chain-reduce-broadcast 3": {0: [11], 1: [11], 2: [11]}, "fan-in-forward 2": {3: [1, 10]},
        "fan-in-reduce 2": {3: [111]}, "fan-out-forward 2": {2: [1], 3: [1]}, "mimo": {3: [101], 4: [110]},
        "mca": {4: [11111]},
    }  # fmt: skip
    from antiphon.core.interpret import analyse
    from antiphon.core.interpret import run as interpreted

    seen = 0
    for pattern in select_patterns():
        if pattern.title not in wanted:
            continue
        machine, seen = topology(f"full:ranks={pattern.places}"), seen + 1
        plan = plan_on(pattern, machine, pieces=1)
        rank = {at: place for place, at in enumerate(places_on(pattern, machine))}
        blocks = {at: sum(place == at for _, place in pattern.have) for at in range(pattern.places)}
        inputs = [np.full(blocks[rank[r]], 10.0 ** rank[r]) for r in range(machine.ranks)]
        ends = interpreted(analyse(plan.entries[0].schedule), inputs, op="sum", dtype=np.dtype(float))
        for place, values in wanted[pattern.title].items():
            where = next(r for r in range(machine.ranks) if rank[r] == place)
            assert ends[where].tolist() == values, pattern.title
    assert seen == len(wanted)


def test_throughput_is_that_of_the_busiest_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table("runtime"), "fake", fake_ground.ENTRY)  # type: ignore[arg-type]
    monkeypatch.setattr(fake_ground, "speed", lambda one: (1e-3, None))
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    rows = bench_micro("full:ranks=8", 1_200_000_000, on="fake", iterations=2, warmup=0)
    assert rows is not None
    assert [row["in_place"] for row in rows] == [False] * 29
    told = {row["pattern"]: row for row in rows}
    for name, carried in (("chain-forward 3", 1.2e12), ("fan-in-forward 3", 1.2e12), ("mimo", 6e11)):
        assert told[name]["throughput"] == pytest.approx(carried, rel=1e-6), name
    assert {name: row["published"] for name, row in told.items() if row["published"]} == {
        "chain-forward 3": 22e9, "chain-forward 8": 20e9, "chain-reduce 3": 21e9, "chain-reduce 8": 19e9,
        "chain-reduce-broadcast 3": 19e9, "chain-reduce-broadcast 8": 16e9, "mimo": 18e9, "mca": 18e9,
    }  # fmt: skip
    small = bench_micro("full:ranks=8", "1MB", on="fake", patterns=["mca", "chain-forward"], iterations=1)
    assert small is not None
    assert [row["published"] for row in small] == [None] * 7


def test_the_command_on_a_real_runtime(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "micro.csv"
    line = f"bench micro --on local --nbytes 3KB --iterations 1 --warmup 0 -o {path}"
    assert run([*line.split(), "--pattern", "mimo", "--pattern", "fan-in-forward", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["pattern"] for row in rows] == ["mimo", "fan-in-forward 1", "fan-in-forward 2", "fan-in-forward 3"]
    assert all(row["correct"] for row in rows)
    assert path.read_text().count("\n") == 5
    assert run(["bench", "micro", "--on", "local", "--nbytes", "1KB", "-n", "3", "--iterations", "1"]) == 0
    assert "Blink, V100" in capsys.readouterr().out
    found = antiphon.measure.micro("dgx1v", "1KB", on="local", patterns=["mca"], iterations=1)
    assert found is not None
    assert found[0]["topology"] == topology("dgx1v").name


def test_impossible_wishes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for wish, complaint in (
        ({"ranks": 2}, "every pattern needs 3 at least"),
        ({"ranks": 4, "patterns": ["mimo"]}, "mimo: needs 5 ranks at least, and there are 4"),
        ({"patterns": ["star"]}, "unknown pattern 'star'"),
        ({"pieces": 0}, "pieces: expected"),
        ({"machine": "dgx1v", "ranks": 3}, "the machine has its own"),
    ):
        with pytest.raises(Invalid, match=complaint):
            bench_micro(**{"on": "local", **wish})  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="unknown pattern 'star'"):
        antiphon.measure.micro(on="local", patterns=["star"])
    with pytest.raises(Invalid, match="unknown option of micro 'chosen'"):
        antiphon.measure.micro(on="local", chosen=["mimo"])  # type: ignore[call-arg]
    assert run(["bench", "micro", "--on", "nowhere"]) == 2


def test_without_a_gpu_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(device.Cuda, "driver", "libnosuchdriver.so.1")
    for line in ("bench micro", "bench loggp", "bench genmodel", "fit memory"):
        assert run([*line.split(), "--on", "cuda"]) == 2
        assert "this machine has no driver for it (libnosuchdriver.so.1" in capsys.readouterr().err
    with pytest.raises(Missing, match="--on threads runs the same kernel"):
        bench_micro(on="cuda")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_on_the_engine_for_gpus(tmp_path: Path) -> None:
    short = "--iterations 2 --warmup 1"
    assert run(f"bench micro --on threads --nbytes 4KB {short}".split()) == 0
    assert run(f"bench genmodel --on threads -n 3 --nbytes 4KB {short} -o {tmp_path / 'times.csv'}".split()) == 0
    trips = tmp_path / "trips.csv"
    line = f"bench loggp --on threads -n 4 --nbytes 1:4KiB:8 --messages 4 --repeat 2 {short} -o {trips}"
    assert run(line.split()) == 0
    assert run(["fit", "loggp", str(trips)]) == 0


@pytest.mark.slow
def test_what_the_paper_measured_is_predicted() -> None:
    rows = list(micro())
    assert [row["ok"] for row in rows].count(False) == 0
    assert {row["name"]: row["ours"]["GB_per_second"] for row in rows if "GB_per_second" in row["ours"]} == {
        "dgx1v, chain-forward 3": 20.76, "dgx1v, chain-forward 8": 18.27, "dgx1v, chain-reduce 3": 20.76,
        "dgx1v, chain-reduce 8": 18.27, "dgx1v, chain-reduce-broadcast 3": 19.58,
        "dgx1v, chain-reduce-broadcast 8": 15.23, "dgx1v, mimo": 21.08, "dgx1v, mca": 20.76,
    }  # fmt: skip
    assert set(PATTERNS) == set(KINDS)
