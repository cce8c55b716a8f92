"""`antiphon reproduce`: what there is, the form of the rows, what counts as reproduced, and the command."""

import json
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from reproduced import KEYS, by_name

import antiphon
from antiphon.cli import run
from antiphon.errors import Infeasible, Invalid
from antiphon.reproduce import names, reproduce, sccl, sccl_plans
from antiphon.reproduce.sccl_optimality import standings_of
from antiphon.reproduce.sccl_plans import PointFamily, Synthesized, make_family
from antiphon.reproduce.sccl_tables import DGX1, DUALS, Z52, Published, rows_of_kind
from antiphon.reproduce.table import TABLE
from antiphon.topologies import topology


def test_what_there_is() -> None:
    assert [one["name"] for one in names()] == [
        "sccl-table3", "sccl-table4", "sccl-table5", "sccl-figures4-6", "sccl-frontiers",
        "blink-counts", "blink-micro", "blink-figure14", "blink-figures15-18", "blink-figures19-21", "blink-trees",
        "blink-figure22b",
        "gentree-table3", "gentree-table4", "gentree-table6", "gentree-table7", "genmodel-figure8", "genmodel-figure9",
        "genmodel-figure10", "piccl-figure4", "piccl-figure7", "piccl-figure8", "piccl-figures5-6", "piccl-selection",
    ]  # fmt: skip
    papers = {"sccl": "SCCL", "blink": "Blink", "gentree": "GenTree", "genmodel": "GenModel", "piccl": "PICCL"}
    for one in names():
        paper = papers[one["name"].partition("-")[0]]
        assert one["about"], one
        assert paper in one["source"], one
    for entry in TABLE.values():
        assert callable(entry.load())
    with pytest.raises(Invalid, match="did you mean 'sccl-table4'"):
        list(reproduce("sccl-tabel4"))


def test_what_was_published() -> None:
    assert [len(rows) for rows in DGX1.values()] == [8, 8, 5, 8, 4]
    assert [len(rows) for rows in Z52.values()] == [3, 3, 5, 2, 1]
    for table in (DGX1, Z52):
        for kind, rows in table.items():
            assert all(row.rounds >= row.steps for row in rows), kind
            assert len({row.point for row in rows}) == len(rows)
        # an allreduce is a reducescatter and an allgather (3.5): each allgather row twice, over eight times the chunks
        halves = {(8 * r.chunks, 2 * r.steps, 2 * r.rounds) for r in table["allgather"]}
        assert {row.point for row in table["allreduce"]} == halves
    assert max(row.seconds for rows in DGX1.values() for row in rows) == 133.7  # "just over 2 minutes" (5.4.3)
    assert rows_of_kind(DGX1, "scatter", 8)[0] == Published(8, 2, 2, 0.3, "latency")
    assert rows_of_kind(DGX1, "reduce", 8) == DGX1["broadcast"]
    assert set(DUALS) | set(DUALS.values()) | {"allreduce", "alltoall"} == set(sccl.KINDS)


def test_table_3() -> None:
    rows = antiphon.papers.reproduce("sccl-table3")
    assert all(row["ok"] and set(row) == KEYS for row in rows)
    points = {row["name"]: tuple(row["ours"][key] for key in ("chunks", "steps", "rounds")) for row in rows}
    assert points["allgather"] == (6, 7, 7)
    assert points["reducescatter"] == (48, 7, 7)
    assert points["allreduce"] == (48, 14, 14)
    for kind in ("broadcast", "reduce"):
        for m in (1, 2, 4, 8, 16):
            assert points[f"{kind}, m = {m}"] == (6 * m, 6 + m, 6 + m)
    gaps = [Fraction(points[f"broadcast, m = {m}"][2], points[f"broadcast, m = {m}"][0]) for m in (1, 2, 4, 8, 16)]
    assert all(a > b > Fraction(1, 6) for a, b in pairwise(gaps))


RECORDED = json.loads(Path(__file__).with_name("tables").joinpath("reproduced.json").read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDED)
def test_every_row_is_as_recorded(name: str) -> None:
    """What holds, our figures, what dominates them, whether a deviation is explained and figures are calibrated.

    A change of plans or prices shows here.
    """
    rows = by_name(reproduce(name))
    assert {key: summarize_row(row) for key, row in rows.items()} == RECORDED[name]


def summarize_row(row: dict[str, Any]) -> list[Any]:
    ours = json.loads(json.dumps(row["ours"]), parse_float=lambda text: float(f"{float(text):.6g}"))
    note = row["note"] if "dominated" in row["note"] else "calibrated by" in row["note"]
    return [row["ok"], ours, row["deviation"] is not None, note]


def test_undominated() -> None:
    points = [(1, 2, 2), (2, 3, 3), (6, 7, 7), (6, 3, 7), (2, 2, 3), (4, 2, 6)]
    assert sccl.undominated(points) == [(2, 2, 3), (6, 3, 7)]


# ---- what counts as reproduced; on a square, whose allgather is quick ----


def published(*rows: tuple[int, int, int, str]) -> tuple[Published, ...]:
    return tuple(Published(c, s, r, 1.0, label) for c, s, r, label in rows)


def square() -> PointFamily:
    return make_family(topology("ring:ranks=4"), "allgather")


def rows_of(group: PointFamily, *rows: tuple[int, int, int, str]) -> list[dict[str, Any]]:
    return list(sccl.family_rows(group, published(*rows)))


def test_rows_that_hold() -> None:
    rows = rows_of(square(), (1, 2, 2, "latency"), (2, 2, 3, "both"), (2, 3, 3, "bandwidth"))
    assert all(row["ok"] and row["deviation"] is None and set(row) == KEYS for row in rows)
    assert [row["note"] for row in rows] == ["dominated by (2, 2, 3)", "Pareto-optimal", "dominated by (2, 2, 3)"]
    assert rows[1]["proof"] == [
        "S >= 2: a distance", "R/C >= 3/2: a cut", "2 steps have R/C >= 3/2: prices of links",
        "(3, 2, 3): R/C >= 3/2 in 2 steps", "(2, 2, 2): R/C >= 3/2 in 2 steps", "(2, 1, 3): S >= 2",
    ]  # fmt: skip
    json.dumps(rows)


def test_a_row_that_does_not_exist_is_not_reproduced() -> None:
    rows = rows_of(square(), (2, 2, 2, "both"), (2, 2, 3, "both"))
    assert [row["ok"] for row in rows] == [False, True]
    assert rows[0]["ours"] is None
    assert "R/C below 3/2 exists for allgather" in rows[0]["deviation"]


def test_a_label_that_does_not_hold() -> None:
    """A false bandwidth label is not refuted by an algorithm: it stays open, and the row is not reproduced."""
    (row,) = rows_of(square(), (1, 2, 2, "bandwidth"))
    assert not row["ok"]
    assert "whether one reaches 3/2 is not shown" in row["note"]
    (row,) = rows_of(square(), (2, 3, 3, "latency"))  # a false latency label is: two steps do
    assert row["ok"]
    assert row["deviation"].startswith("not latency-optimal: (1, 2, 2)")


def test_better_ones_are_looked_for() -> None:
    """Alone in its table, a row is compared with the frontier."""
    (row,) = rows_of(square(), (1, 2, 2, "latency"))
    assert row["note"] == "dominated by (2, 2, 3)"
    (row,) = rows_of(make_family(topology("dgx1v_sccl"), "gather", 0), (6, 3, 7, "bandwidth"))
    assert row["note"] == "dominated by (6, 2, 7)"  # beyond k = 4: as many chunks in a step less


def made_otherwise(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Whatever a family makes from now on is so."""
    make, frontier = PointFamily.make, PointFamily.frontier
    monkeypatch.setattr(PointFamily, "make", lambda *given, **named: replace(make(*given, **named), **changes))
    monkeypatch.setattr(
        PointFamily, "frontier", lambda *given, **named: [replace(one, **changes) for one in frontier(*given, **named)]
    )


def test_what_an_engine_alone_says_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    made_otherwise(monkeypatch, trusted=("its word",))
    assert not rows_of(square(), (2, 2, 3, "both"))[0]["ok"]


def test_without_duals_nothing_is_optimal(monkeypatch: pytest.MonkeyPatch) -> None:
    made_otherwise(monkeypatch, ratio_bound=None)
    group = square()
    (standing,) = standings_of(group, [group.make(2, 2, 3)])
    assert standing.pareto is None
    assert standing.text == "undecided"
    assert not rows_of(group, (2, 2, 3, "both"))[0]["ok"]


def test_a_point_more_costly_than_asked_is_not_it(monkeypatch: pytest.MonkeyPatch) -> None:
    make = PointFamily.make

    def slower(self: PointFamily, *point: int) -> Synthesized:
        return replace(make(self, *point), rounds=point[2] + 1)

    monkeypatch.setattr(PointFamily, "make", slower)
    (row,) = rows_of(square(), (2, 2, 3, ""))
    assert not row["ok"]
    assert row["deviation"] == "ours is (2, 2, 4)"


# ---- the command ----


def test_the_command_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reproduce", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == names()
    assert run(["reproduce"]) == 0
    assert "sccl-frontiers" in capsys.readouterr().out
    assert run(["reproduce", "sccl-table9"]) == 2
    assert "unknown table to reproduce 'sccl-table9'" in capsys.readouterr().err


def test_the_command_reproduces(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reproduce", "sccl-table3", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["name"] for row in rows][:3] == ["allgather", "reducescatter", "allreduce"]
    assert run(["reproduce", "sccl-table3"]) == 0
    assert "13 of 13 rows are reproduced" in capsys.readouterr().out


def _a_row(**changes: Any) -> dict[str, Any]:
    point = {"chunks": 2, "steps": 2, "rounds": 3}
    row = {
        "name": "allgather (2, 2, 3)", "published": {**point, "optimal": "both", "seconds": 1.7},
        "ours": {**point, "optimal": "both"}, "deviation": None, "ok": True, "note": "Pareto-optimal", "engine": "sat",
        "seconds": 0.02, "proof": [],
    }  # fmt: skip
    return {**row, **changes}


def test_the_command_says_what_is_not_reproduced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = _a_row(name="allgather (2, 2, 2)", ours=None, ok=False, seconds=None, engine=None, deviation="none exists")
    several = {"chunks": 6, "steps": 3, "rounds": 7, "proof": "proved-optimal-for-k"}
    frontier = _a_row(name="a frontier", published=[], ours=[several])
    monkeypatch.setattr(sccl, "table5", lambda each: iter([_a_row(), failed, frontier]))
    monkeypatch.setenv("COLUMNS", "100")
    assert run(["reproduce", "sccl-table5"]) == 1
    said = capsys.readouterr().out
    assert "allgather (2, 2, 3) both 1.7 s both 0.02 s sat Pareto-optimal" in " ".join(said.split())
    assert "allgather (2, 2, 2): none exists" in said
    assert said.startswith("algorithms synthesized for a Gigabyte Z52: Cai et al.")
    assert "(6, 3, 7)k" in said
    assert "2 of 3 rows are reproduced; not allgather (2, 2, 2)" in said


def test_what_was_made_before_ctrl_c_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(each: Any) -> Any:
        yield _a_row()
        raise KeyboardInterrupt

    monkeypatch.setattr(sccl, "table5", interrupted)
    assert run(["reproduce", "sccl-table5", "--json"]) == 130
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["allgather (2, 2, 3)"]


def test_an_answer_for_one_point_is_one_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sccl_plans, "sccl", lambda *a, **k: iter([]))
    with pytest.raises(Infeasible, match="0 schedules for one point"):
        square().make(2, 2, 3)
