"""`tune --failures`: one table for the intact machine and each single failure, and what chooses from it."""

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import antiphon
from antiphon.cli import run
from antiphon.core.topology import Topology
from antiphon.errors import Invalid, Unsupported
from antiphon.runtimes.serve.book import Book, decode_book, encode_book, make_book, read_books, read_table
from antiphon.runtimes.serve.group_book import group_book
from antiphon.select.failures import classify_failures
from antiphon.select.plan_files import choose_plan, load_plans
from antiphon.topologies import topology
from antiphon.topologies.degraded import drop_items, failure_name, name_failures

QUICK: dict[str, Any] = {"nbytes": "64KB", "planners": ["trees", "relay"], "nccl": False}


def kite() -> Topology:
    """A ring of four ranks with one of its two diagonals."""
    return antiphon.machines.degrade("full:ranks=4", drop_links="1-3")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of allreduces for the kite and its five failures."""
    file = tmp_path_factory.mktemp("tables") / "table.json"
    antiphon.tune("allreduce", kite(), search=antiphon.Search(workers="none", failures="links"), **QUICK).save(file)
    return file


@pytest.mark.parametrize(
    ("machine", "of", "count", "classes"),
    [
        ("dgx1v", "links", 16, 6),
        ("dgx1v", "wires", 16, 6),
        ("ring:ranks=6", "links", 6, 1),
        ("cluster:box=dgx1v,boxes=2", "nics", 8, 2),
        ("hgx-h100", "links", 8, 1),
        ("full:ranks=4", "ranks", 4, 1),
        ("line:ranks=5", "ranks", 5, 3),
    ],
)
def test_failures_that_are_alike_are_one_class(machine: str, of: str, count: int, classes: int) -> None:
    whole = topology(machine)
    failures = name_failures(whole, of)
    found = classify_failures(whole, of, [antiphon.collective("allreduce", whole)])
    assert (len(failures), len(found)) == (count, classes)
    assert sorted(name for names, _ in found for name in names) == sorted(failures)
    assert [failure_name(whole, name) for name in failures] == failures


def test_a_root_tells_failures_apart() -> None:
    ring = topology("ring:ranks=6")
    found = classify_failures(ring, "links", [antiphon.collective("broadcast", ring)])
    assert [names for names, _ in found] == [("0-1", "0-5"), ("1-2", "4-5"), ("2-3", "3-4")]


def test_uneven_counts_tell_failures_apart(tmp_path: Path) -> None:
    ring, counts = topology("ring:ranks=4"), [[0, 9, 1, 1], [9, 0, 1, 1], [9, 1, 0, 1], [9, 1, 1, 0]]
    search = antiphon.Search(failures="links", counts=counts)
    tuning = antiphon.tune("alltoall", ring, nbytes="1MB", planners="relay", nccl=False, search=search)
    tuning.save(tmp_path / "table.json")
    for name in ("0-1", "2-3"):
        plan = load_plans(tmp_path / "table.json", dead=[name])["alltoall"]
        assert plan.collective == tuning.plan.collective  # the same counts, not those of other ranks
        assert len(plan.topology.link_src) == 6


def test_plans_without_what_is_dead(table: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every failure has right plans on the machine without it, whether planned or renumbered."""
    names = [name for row in json.loads(table.read_bytes())["failures"] for name in row["dead"]]
    assert sorted(names) == ["0-1", "0-2", "0-3", "1-2", "2-3"]
    for name in names:
        plans = load_plans(table, dead=[name])
        assert {plan.topology for plan in plans.values()} == {drop_items(kite(), [name])}
        assert all(antiphon.verify(plan) for plan in plans.values())
    monkeypatch.setenv("ANTIPHON_DEAD", "1-0")
    assert load_plans(table)["allreduce"].topology == drop_items(kite(), ["0-1"])
    dead = tmp_path / "dead"
    monkeypatch.setenv("ANTIPHON_DEAD", f"@{dead}")
    assert load_plans(table)["allreduce"].topology == kite()  # no file: nothing is dead
    dead.write_text("0-2\n")
    assert read_table(table).machine == "full:ranks=4 degraded"
    assert load_plans(table)["allreduce"].topology == drop_items(kite(), ["0-2"])
    dead.write_text("")
    assert load_plans(table)["allreduce"].topology == kite()


@pytest.mark.parametrize(
    ("dead", "message"),
    [
        ("0-1,0-2", r"0-1 and 0-2 dead \(ANTIPHON_DEAD\), but the file has plans for one failure at a time: 0-1, 0-3"),
        ("0-9", "ANTIPHON_DEAD: unknown node of full:ranks=4 degraded '9'"),
        ("1", "1 dead"),
        ("@.", "ANTIPHON_DEAD=@.: cannot be read"),
    ],
)  # fmt: skip
def test_what_the_table_does_not_have(
    table: Path, dead: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setenv("ANTIPHON_DEAD", dead)
    with pytest.raises(Invalid, match=message):
        load_plans(table)


@pytest.mark.slow
def test_run_names_the_plan_that_ran(
    table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", str(table), "--nbytes", "1KB", "--repeat", "1"]
    assert run(arguments) == 0
    assert capsys.readouterr().out.startswith("  nbytes ")
    monkeypatch.setenv("ANTIPHON_DEAD", "0-1")
    assert run(arguments) == run([*arguments, "--json"]) == 0
    first, _, rest = capsys.readouterr().out.partition("\n")
    (row,) = json.loads(rest[rest.index("{") :])["rows"]
    assert row["topology"] == drop_items(kite(), ["0-1"]).name
    assert f"ANTIPHON_DEAD leaves: allreduce on {row['topology']}, planner {row['planner']}" in first


@pytest.mark.slow
def test_plans_for_the_ranks_that_remain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its root a collective has no plan."""
    file, search = tmp_path / "table.json", antiphon.Search(workers="none", failures="ranks")
    antiphon.tune("all", "ring:ranks=4", root=1, search=search, **QUICK).save(file)
    assert antiphon.verify(file)
    for lost in range(4):
        plans = load_plans(file, dead=[str(lost)])
        rest = tuple(rank for rank in range(4) if rank != lost)
        assert {plan.collective.members for plan in plans.values()} == {rest}
        assert {plan.topology for plan in plans.values()} == {drop_items(topology("ring:ranks=4"), [str(lost)])}
        assert ("broadcast" in plans) == ("reduce" in plans) == (lost != 1)
        assert all(antiphon.verify(plan) for plan in plans.values())
    monkeypatch.setenv("ANTIPHON_DEAD", "2")
    pages = group_book(read_table(file), 3, range(3), 3).pages
    assert {page.kind for page in pages} == {*load_plans(file)}


def test_the_loss_of_a_rank_in_between_leaves_no_plan() -> None:
    search = antiphon.Search(workers="none", failures="ranks")
    line = antiphon.tune("broadcast", "line:ranks=4", search=search, **QUICK)
    assert {failure.names: failure.tuning is not None for failure in line.failures} == {
        ("0", "1"): False, ("2",): False, ("3",): True,
    }  # fmt: skip


def test_plans_that_do_not_use_what_is_dead_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "plan.json"
    antiphon.save(antiphon.plan("allreduce", drop_items(kite(), ["0-1"]), planner="trees"), file)
    monkeypatch.setenv("ANTIPHON_DEAD", "0-1")
    assert load_plans(file)
    monkeypatch.setenv("ANTIPHON_DEAD", "0-2")
    with pytest.raises(Invalid, match=r"plan.json: 0-2 dead \(ANTIPHON_DEAD\), but the file has no plans for failures"):
        load_plans(file)


def test_a_failure_that_cuts_ranks_off_has_no_plan(tmp_path: Path) -> None:
    tuning = antiphon.tune(
        "allreduce", "line:ranks=3", search=antiphon.Search(workers="none", failures="links"), **QUICK
    )
    assert [(failure.names, failure.tuning) for failure in tuning.failures] == [(("0-1", "1-2"), None)]
    tuning.save(tmp_path / "table.json")
    with pytest.raises(Invalid, match=r"1-2 is dead .*: not all ranks reach each other without it"):
        load_plans(tmp_path / "table.json", dead=["1-2"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table["failures"][0].pop("plans"), "failures.*plans"),
        (lambda table: table["failures"][0].update(dead=[]), r"failures\[0\].dead: is empty"),
        (lambda table: table["failures"][0].update(dead="0-1"), r"failures\[0\].dead"),
        (lambda table: table["failures"][0].update(odd=1), "odd"),
        (lambda table: table["failures"][0].update(plans=table["plans"]), "another machine"),
        (lambda table: table["failures"][0]["plans"].update(allreduce={}), "allreduce"),
    ],
)
def test_damaged_tables(table: Path, tmp_path: Path, change: Any, message: str) -> None:
    content = json.loads(table.read_bytes())
    name = content["failures"][0]["dead"][0]
    change(content)
    file = tmp_path / "table.json"
    file.write_text(json.dumps(content))
    with pytest.raises(Invalid, match=message):
        load_plans(file, dead=[name])


def test_verify_checks_the_plans_for_all_failures(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each on its machine, however ANTIPHON_DEAD is set; the first wrong one is named."""
    monkeypatch.setenv("ANTIPHON_DEAD", "0-9")
    assert run(["verify", str(table), "--json", "--proof"]) == 0
    assert json.loads(capsys.readouterr().out)["failures"] == 5
    assert antiphon.verify(table)
    content = json.loads(table.read_bytes())
    row = content["failures"][-1]
    entry = row["plans"]["allreduce"]["entries"][0]
    entry["claims"]["steps"] += 1
    file = tmp_path / "table.json"
    file.write_text(json.dumps(content))
    assert run(["verify", str(file)]) == 1
    assert f"WRONG: without {row['dead'][0]}: the plan claims steps" in capsys.readouterr().out
    assert not antiphon.verify(file)
    row["plans"] = content["plans"]
    file.write_text(json.dumps(content))
    assert run(["verify", str(file)]) == 2
    assert f"are for another machine than the table's without {row['dead'][0]}" in capsys.readouterr().err
    row["plans"] = json.loads(table.read_bytes())["failures"][-1]["plans"]
    row["dead"] += content["failures"].pop(0)["dead"]  # not alike
    file.write_text(json.dumps(content))
    with pytest.raises(Invalid, match="its plans are for another machine"):
        antiphon.verify(file)


def test_the_books_of_a_table(table: Path) -> None:
    """One for the intact machine, one per failure, which say what they are for and are decoded alike."""
    books = read_books(table)
    assert books[0].dead == ""
    assert len(books) == 1 + sum(len(row["dead"]) for row in json.loads(table.read_bytes())["failures"])
    for book in books:
        assert decode_book(encode_book(book)) == book
        assert {page.kind for page in book.pages} == {"allreduce"}


@cache
def small_book() -> Book:
    return make_book([antiphon.plan("allreduce", "ring:ranks=3")])


@given(st.text(max_size=20))
@settings(max_examples=20)
def test_a_book_says_what_is_dead(name: str) -> None:
    book = replace(small_book(), dead=name.encode("utf-8", "replace").decode())
    assert decode_book(encode_book(book)).dead == book.dead


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    line = "tune allreduce ring:ranks=4 --nbytes 64KB --planner trees --workers 1 --failures links"
    assert run([*line.split(), "-o", "table.json"]) == 0
    text = capsys.readouterr().out
    assert "4 single failures, all alike:" in text
    assert "0-1, 0-3, 1-2, ..." in text
    star = "tune allreduce star:ranks=3 --nbytes 64KB --planner direct --workers 1 --failures links"
    assert run(star.split()) == 0
    text = capsys.readouterr().out
    assert re.search(r"\n  \S+-\S*switch\S*, .*  3  impossible: cuts off a rank\n", text)
    assert "over that of the intact machine" not in text
    assert "--failures wires" not in text  # each link is one wire
    assert run([*line.split(), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["failures"]
    assert [(row["dead"], row["connected"]) for row in rows] == [(["0-1", "0-3", "1-2", "2-3"], True)]
    assert rows[0]["ranges"][0]["planner"] == "trees"
    monkeypatch.setenv("ANTIPHON_DEAD", "2-3")
    assert run(["run", "table.json", "--nbytes", "64KB", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["correct"]
    monkeypatch.delenv("ANTIPHON_DEAD")
    for words, message in {
        "--failures disks": "unknown kind of single failures 'disks'",
        "--failures nics": "ring:ranks=4 has no nics",
        "--failures links --on mpi": "--failures: tunes by a model",
        "--failures links --groups 0-1;2-3": "--failures: takes no groups",
    }.items():
        assert run(["tune", "allreduce", "ring:ranks=4", *words.split()]) == 2
        assert message in capsys.readouterr().err
    machine = topology("ring:ranks=4")
    monkeypatch.setattr(antiphon.select, "tune", None)  # both are refused before anything is tuned
    with pytest.raises(Invalid, match="has no nics"):
        antiphon.tune("allreduce", machine, search=antiphon.Search(failures="nics"))
    groups = antiphon.collective("allreduce@0-1;2-3", machine)
    with pytest.raises(Unsupported, match="custom collectives and groups"):
        antiphon.tune(groups, machine, nbytes="64KB", planners=["groups"], search=antiphon.Search(failures="links"))


def test_a_collective_whose_root_is_dead_has_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = {"allreduce": antiphon.plan("allreduce", "ring:ranks=4", planner="ring")}
    monkeypatch.setenv("ANTIPHON_DEAD", "0")
    with pytest.raises(Invalid, match=r"has no plan for broadcast without 0 .*: its root is dead"):
        choose_plan(plans, "broadcast", "t.json")
    with pytest.raises(Invalid, match="did you mean 'allreduce'"):
        choose_plan(plans, "alreduce", "t.json")
