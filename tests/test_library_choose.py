"""Choosing among a library's own algorithms, by times that are made up: who races, who wins, and what is claimed."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from quick import in_turn

import antiphon
from antiphon.cli.measured_text import library_text, library_use
from antiphon.errors import Unsupported
from antiphon.registry import Entry, RuntimeCapabilities, table
from antiphon.runtimes.measure import library_choose
from antiphon.runtimes.measure.case import Case, How, Row, RowCallback, Runnable, Runtime, group_cases
from antiphon.runtimes.measure.choose import MeasuredTuning
from antiphon.runtimes.measure.library import MPICH, OPEN_MPI, Library, LibraryCandidate, candidates
from antiphon.runtimes.measure.library_choose import tune_library
from antiphon.runtimes.measure.loop import measured_row
from antiphon.runtimes.measure.race import Race

FULL4 = antiphon.topology("full:ranks=4")
NAMES = {"ignore": 0, "basic_linear": 1, "ring": 4, "segmented_ring": 5, "two_proc": 6}
HERE = Library(
    OPEN_MPI, "5.0.11", "libmpi.so", {"allreduce": NAMES, "gather": {"ignore": 0, "linear": 1}},
    {"coll_tuned_use_dynamic_rules": 1},
)  # fmt: skip
_MPICH = {
    "allreduce": {"auto": 0, "new": 1, "recexch": 7, "ring": 8, "tree": 6},
    "broadcast": {"auto": 0, "nb": 1, "smp": 2, "pipelined_tree": 7},
    "allgather": {"auto": 0, "recursive_doubling": 4, "ring": 5},
}
MPICH_HERE = Library(
    MPICH, "5.0.2", "libmpi.so", _MPICH, {"MPIR_CVAR_DEVICE_COLLECTIVES": 1, "MPIR_CVAR_COLLECTIVE_FALLBACK": 0}
)
VARIABLE = "coll_tuned_allreduce_algorithm"
Speed = Callable[[Case], float]  # of the library's algorithm; of ours where there is none


class Fake(Runtime):
    """Times by what is set of the library; its own choice takes 1 ns for each byte."""

    speed: Speed = staticmethod(lambda case: 0.0)
    refused: tuple[int, ...] = ()
    wrong: tuple[int, ...] = ()
    launches: list[Sequence[Case]] = []  # noqa: RUF012
    most: int | None = None

    def run(
        self, programs: Sequence[Runnable], cases: Sequence[Case], how: How, heard: RowCallback,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self.launches.append(list(cases))
        for count, heat in enumerate(group_cases(cases)):
            if Fake.most is not None and count >= Fake.most:
                return
            some = [cases[number] for number in heat]
            assert len({one.library is None for one in some}) == 1
            race, theirs = Race(len(heat), some[0].repeat), []
            for _ in range(race.max_rounds):
                theirs.append(some[0].nbytes * 1e-9)
                race.add([Fake.speed(some[number]) for number in race.going])
                if race.decide():
                    break
            for place, number in enumerate(heat):
                of = (some[place].library or {}).get(VARIABLE, 0)
                if of in self.refused:
                    heard(number, {"refused": "no"})
                    continue
                times = np.array([times[place] for times in race.times])
                row: Row = measured_row(times, np.array(theirs), int(of in self.wrong and of > 0))
                one = race.standings()[place]
                heard(
                    number, {**row, "over_best": one.ratio, "over_best_interval": [one.low, one.high], "tied": one.tied}
                )


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    can = RuntimeCapabilities(algorithms=True, options=("mpiexec",))
    monkeypatch.setitem(table("runtime"), "mpi", Entry(f"{__name__}:Fake", "", can))  # type: ignore[arg-type]
    monkeypatch.setattr(library_choose, "library_used", lambda how: HERE)
    monkeypatch.setattr(Fake, "launches", [])
    monkeypatch.setattr(Fake, "speed", staticmethod(speeds({})))


def speeds(of: dict[int, float], ours: float = 3.0) -> Speed:
    """Nanoseconds for each byte by the number of the algorithm; 0 is the library's own choice."""

    def speed(case: Case) -> float:
        if case.library is None:
            return ours * case.nbytes * 1e-9
        number = case.library.get(VARIABLE, 0)
        slow = case.library.get(f"{VARIABLE}_segmentsize", 0) * 1e-6
        return ({0: 1.0, **of}.get(number, 2.0) + slow) * case.nbytes * 1e-9

    return speed


def tuned(monkeypatch: pytest.MonkeyPatch, speed: Speed, **more: Any) -> MeasuredTuning:
    monkeypatch.setattr(Fake, "speed", staticmethod(speed))
    usual = {"nbytes": "1KB:64KB", "factor": 4, "planners": ("ring", "direct"), "workers": "none", "iterations": 3}
    found = tune_library("allreduce", FULL4, on="mpi", **{**usual, **more})
    assert found is not None
    return found


def chosen(found: MeasuredTuning) -> list[tuple[int, int | None, str | None]]:
    return [(one["from"], one["to"], one["library"]["algorithm"] if "library" in one else None) for one in found.ranges]


def test_the_fastest_of_its_algorithms(monkeypatch: pytest.MonkeyPatch) -> None:
    def speed(case: Case) -> float:
        return speeds({1: 0.5} if case.nbytes < 10_000 else {4: 0.8})(case)

    found = tuned(monkeypatch, speed)
    assert chosen(found) == [(0, 1000, None), (1000, 8000, "basic_linear"), (8000, 64001, "ring"), (64001, None, None)]
    _, small, large, _ = found.plan.entries
    assert small.claims["library"] == {
        "name": "Open MPI", "version": "5.0.11", "file": "libmpi.so", "algorithm": "basic_linear",
        "parameters": {"number": 1, "segment": 0, "fan": 0},
    }  # fmt: skip
    assert small.claims["library_over_default"] == pytest.approx(0.5)
    assert small.claims["library_seconds"] == pytest.approx(0.5 * 4000e-9)
    assert small.claims["reference_seconds"] == pytest.approx(4000e-9)
    assert small.claims["over_library"] == pytest.approx(3.0)  # ours
    assert [one["nbytes"] for one in small.claims["measurements"]] == [1000, 4000]
    assert large.claims["at"] == 64000
    assert {entry.claims["served_by"] for entry in found.plan.entries} == {"library"}
    assert antiphon.verify(found.plan)
    assert len(Fake.launches) == 1
    (cases,) = Fake.launches
    for nbytes in (1000, 4000, 16000, 64000):  # four sizes share the time, ours having a fifth of each share
        shares = {one.seconds for one in cases if one.nbytes == nbytes}
        assert sorted(shares) == pytest.approx([600 / 4 * 0.2, 600 / 4 * 0.8])
    # at every size its own choice, each algorithm, the segmented one with segments below the size, none for two alone
    at = [one.library for one in cases if one.library is not None and one.nbytes == 64000]
    numbers = [(one.get(VARIABLE), one.get(f"{VARIABLE}_segmentsize")) for one in at]
    assert numbers == [(None, None), (1, 0), (4, 0), (5, 0), (5, 8192)]
    assert [one["algorithm"] for one in found.rows if one["nbytes"] == 1000 and "algorithm" in one] == [
        "default", "basic_linear", "ring", "segmented_ring",
    ]  # fmt: skip
    text = library_text(found)
    assert "set the library's algorithm from 1KB to 64KB (1.25x to 2x over its own choice)" in " ".join(text.split())
    assert "algorithm: of Open MPI 5.0.11" in text
    assert "basic_linear" in text
    assert library_use(found, "t.json") == ["  use: antiphon export t.json --to openmpi-rules -o rules"]


@pytest.mark.parametrize(
    ("ratio", "name"), in_turn([(0.99, "default"), (1.0, "default"), (1.5, "default"), (0.9, "ring")], 3)
)
def test_its_own_choice_where_none_is_faster_by_two_percent(
    monkeypatch: pytest.MonkeyPatch, ratio: float, name: str
) -> None:  # fmt: skip
    found = tuned(monkeypatch, speeds({4: ratio}))
    assert chosen(found)[1:-1] == [(1000, 64001, name)]
    one = found.ranges[1]
    assert one["library_over_default"] == pytest.approx(min(ratio, 1.0) if name != "default" else 1.0)
    assert one["library"]["parameters"] == ({"number": 4, "segment": 0, "fan": 0} if name == "ring" else {})


def test_what_it_cannot_do_or_does_wrong_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fake, "refused", (1,))
    monkeypatch.setattr(Fake, "wrong", (4,))
    found = tuned(monkeypatch, speeds({1: 0.1, 4: 0.2, 5: 0.5}))
    assert {name for _, _, name in chosen(found)} == {None, "segmented_ring"}
    assert not {"basic_linear", "ring"} & {one["algorithm"] for one in found.rows if "algorithm" in one}


def test_what_was_not_measured_has_no_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fake, "most", 5)  # ours and theirs of 1 and 4 KB, ours of 16
    found = tuned(monkeypatch, speeds({4: 0.5}))
    assert chosen(found) == [(0, 1000, None), (1000, 4001, "ring"), (4001, None, None)]
    assert not found.complete
    monkeypatch.setattr(Fake, "most", 0)
    found = tuned(monkeypatch, speeds({4: 0.5}))
    assert chosen(found) == [(0, None, None)]


def test_where_there_is_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fake, "speed", staticmethod(speeds({})))
    found = tune_library("gather", FULL4, nbytes="4KB", planners=("direct",), workers="none", iterations=3)
    assert found is not None
    assert chosen(found)[1:-1] == [(4000, 4001, "default")]
    found = tune_library("scatter", FULL4, nbytes="4KB", planners=("direct",), workers="none", iterations=3)
    assert found is not None
    assert chosen(found)[1:-1] == [(4000, 4001, "default")]


def test_only_an_mpi_and_in_any_order() -> None:
    with pytest.raises(Unsupported, match="is for --on mpi"):
        tune_library("allreduce", FULL4, on="torch")
    with pytest.raises(Unsupported, match="--deterministic"):
        tune_library("allreduce", FULL4, deterministic=True)


def test_candidates_of_open_mpi() -> None:
    here = Library(OPEN_MPI, "5.0.11", "", {"broadcast": {"ignore": 0, "basic_linear": 1, "chain": 2, "two_proc": 9}},
                   {"coll_tuned_use_dynamic_rules": 1})  # fmt: skip

    def told(ranks: int, nbytes: int) -> list[tuple[int, ...]]:
        return [tuple(one.parameters.values()) for one in candidates(here, "broadcast", ranks, nbytes)]

    assert told(8, 10_000) == [(1, 0, 0), (2, 0, 2), (2, 0, 4), (2, 8192, 2), (2, 8192, 4)]
    assert told(4, 1000) == [(1, 0, 0), (2, 0, 2)]
    assert told(2, 1000) == [(1, 0, 0), (9, 0, 0)]
    variable = "coll_tuned_bcast_algorithm"
    assert candidates(here, "broadcast", 8, 10_000)[3].settings == {
        "coll_tuned_use_dynamic_rules": 1, variable: 2, f"{variable}_segmentsize": 8192, f"{variable}_chain_fanout": 2,
    }  # fmt: skip


def test_candidates_of_mpich() -> None:
    def told(kind: str, ranks: int) -> list[tuple[str, dict[str, int]]]:
        return [(one.name, dict(one.parameters)) for one in candidates(MPICH_HERE, kind, ranks, 1000)]

    exchanges = [("recexch", {"k": k, "single_phase_recv": 0}) for k in (2, 4, 8)]
    trees = [("tree", {"k": k, "chunk_size": 0, "buffer_per_child": 0}) for k in (2, 4, 8)]
    assert told("allreduce", 4) == [*exchanges[:2], ("ring", {}), *trees[:2]]
    assert told("allreduce", 9) == [*exchanges, ("ring", {}), *trees]
    assert told("allreduce", 2) == [exchanges[0], ("ring", {}), trees[0]]
    pipelines = [
        ("pipelined_tree", {"k": k, "is_non_blocking": 1, "chunk_size": 8192, "recv_pre_posted": 0}) for k in (1, 2)
    ]
    assert told("broadcast", 4) == [("nb", {}), ("smp", {}), *pipelines]
    settings = {one.name: one.settings for one in candidates(MPICH_HERE, "broadcast", 4, 1000)}
    assert "MPIR_CVAR_COLLECTIVE_FALLBACK" in settings["nb"]
    assert "MPIR_CVAR_COLLECTIVE_FALLBACK" not in settings["smp"]  # it calls itself where it cannot be
    assert told("allgather", 4) == [("recursive_doubling", {}), ("ring", {})]
    assert told("allgather", 6) == []  # one is left, so there is no choice
    assert told("gather", 4) == []
    one = candidates(MPICH_HERE, "allreduce", 4, 1000)[1]
    assert one == LibraryCandidate(
        "recexch", {"k": 4, "single_phase_recv": 0},
        {**MPICH_HERE.always, "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": 7,
         "MPIR_CVAR_ALLREDUCE_RECEXCH_KVAL": 4, "MPIR_CVAR_ALLREDUCE_RECEXCH_SINGLE_PHASE_RECV": 0},
    )  # fmt: skip
