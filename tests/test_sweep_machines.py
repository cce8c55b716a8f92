"""Sweeps: the file, the engines, which must not change the table, and what is shown."""

import csv
import os
import re
import signal
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bench_sweep import list_workers

import antiphon
from antiphon.cli import run
from antiphon.errors import Invalid, NotFound, UnlikelyInput
from antiphon.select.store import SizeFigures, Store, answer
from antiphon.show.machines import conclusions
from antiphon.show.pictures.pareto import pareto_svg
from antiphon.sweeps.request import Cell, SweepRequest, read_sweep_file
from antiphon.sweeps.results import SweepResult, run_sweep

STUDY = """\
collectives = ["allreduce", "broadcast:root=1"]
nbytes = "1KB:1MB:1000"
planners = ["ring", "direct"]
model = "alpha-beta"

[[machines]]
topology = "ring"
vary = { ranks = [4, 5], bandwidth = ["10GB/s", "20GB/s"] }

[[machines]]
topology = "full:ranks=4,bandwidth=10GB/s"

[[prices]]
name = "list"
rank = 100
links = { link = 10 }
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> SweepRequest:
    return read_sweep_file(write(tmp_path_factory.mktemp("study"), STUDY))


@pytest.fixture(scope="module")
def result(study: SweepRequest) -> SweepResult:
    return run_sweep(study, engine="processes:1")


def write(folder: Path, text: str) -> Path:
    file = folder / "study.toml"
    file.write_text(text)
    return file


def test_the_table_is_in_the_order_of_the_file(result: SweepResult, tmp_path: Path) -> None:
    rows = list(result.rows())
    assert len(rows) == 5 * 2 * 2
    assert result.planned == 10
    assert rows[0]["machine"] == "ring:ranks=4,bandwidth=10GB/s"
    assert rows[0]["list"] == 440
    assert [row["nbytes"] for row in rows[:4]] == [1000, 10**6] * 2
    assert all(row["gap"] >= 1 and row["refused"] is None for row in rows)
    result.save(tmp_path / "x.csv")
    with (tmp_path / "x.csv").open() as file:
        assert [float(row["seconds"]) for row in csv.DictReader(file)] == [row["seconds"] for row in rows]


def test_machines_on_the_front_are_best_for_their_price(result: SweepResult) -> None:
    machines = result.machines()
    assert [m.relative_time for m in machines] == sorted(m.relative_time or 0 for m in machines)
    for m in machines:
        beaten = any(
            other.price["list"] <= m.price["list"] and other.relative_time < m.relative_time  # type: ignore[operator]
            for other in machines
        )
        assert bool(m.on_front) == (not beaten)


@pytest.mark.slow
def test_a_sweep_goes_on_from_the_store_and_equal_machines_are_planned_once(tmp_path: Path) -> None:
    text = STUDY.replace("ranks = [4, 5]", "ranks = [4]").replace("full:ranks=4,", "full:ranks=3,")
    text += '\n[[machines]]\ntopology = "ring:ranks=3,bandwidth=10GB/s"\n'  # three ranks in a ring are a full mesh
    request = read_sweep_file(write(tmp_path, text))
    store = Store(tmp_path / "store")
    first = run_sweep(request, store=store, engine="processes:1")
    assert first.planned == 6
    assert len(first.answers) == 8
    again = run_sweep(request, store=store, engine="processes:1")
    assert again.planned == 0
    assert list(again.rows()) == list(first.rows())


def test_plans_of_a_sweep_serve_tune_with_a_store(study: SweepRequest, tmp_path: Path) -> None:
    run_sweep(replace(study, cells=study.cells[:1]), store=Store(tmp_path), engine="processes:1")
    options = {"nbytes": "1KB:1MB:1000", "model": "alpha-beta", "planners": ("ring", "direct")}
    assert antiphon.sweep.get("allreduce", "ring:ranks=4,bandwidth=10GB/s", store=tmp_path, **options) is not None


@pytest.mark.parametrize(
    ("change", "stopped", "complete"), [({"stopped": 2}, 1, True), ({"complete": False}, 0, False)]
)
def test_plans_that_were_cut_short_are_not_stored(
    change: dict[str, Any], stopped: int, complete: bool, study: SweepRequest, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """By the budget, or by Ctrl-C, which ends the sweep."""
    monkeypatch.setattr(
        "antiphon.sweeps.request.answer", lambda *words, **options: replace(answer(*words, **options), **change)
    )
    result = run_sweep(replace(study, cells=study.cells[:1]), store=Store(tmp_path), engine="processes:1")
    assert (result.stopped, result.complete) == (stopped, complete)
    assert list(Store(tmp_path).entries()) == []


@pytest.mark.slow
def test_machines_that_cannot_be_made_are_refused_and_the_others_go_on(tmp_path: Path) -> None:
    text = STUDY.replace("ranks = [4, 5]", "ranks = [1, 4]")
    result = run_sweep(read_sweep_file(write(tmp_path, text)), engine="processes:1")
    refused = [m for m in result.machines() if m.refused]
    assert {m.machine.split(",")[0] for m in refused} == {"ring:ranks=1"}
    assert "at least 2 ranks" in refused[0].refused
    assert all(m.relative_time is not None for m in result.machines()[:3])
    left_out = sum(m.relative_time is None for m in result.machines())
    planned = len(result.machines()) - left_out
    assert conclusions(result)[0].endswith(f"is the fastest of {planned} machines ({left_out} left out)")


@pytest.mark.parametrize(("change", "message"), [
    (("[[prices]]", "[[price]]"), r"study.toml: unknown field 'price'; did you mean 'prices'\? \(known: budget, "),
    (("links = ", "link = "), r"prices\[0\]: unknown field 'link'; did you mean 'links'\? \(known: bandwidth, links, "),
    (("collectives = ", "collectives = 3 #"), r"collectives: expected a text in double quotes or a list"),
    (('"ring", "direct"', '"rings"'), "unknown planner"),
    (('nbytes = "1KB:1MB:1000"', 'nbytes = "x"'), "nbytes|size"),
    (("broadcast:root=1", "broadcast:root=x"), "broadcast:root=2"),
    (("ranks = [4, 5]", "ranks = []"), "has no values"),
    (("[[machines]]\ntopology = \"full", "[[machines]\ntopology = \"full"), "is not TOML"),
    (('topology = "full:ranks=4,bandwidth=10GB/s"', 'topology = "ring:ranks=4,bandwidth=10GB/s"'), "listed twice"),
    # what is wrong for every machine is found before any is planned for
    (('"allreduce"', '"allredoce"'), "did you mean 'allreduce'"),
    (('"allreduce"', '"allreduce:root=1"'), "allreduce has no root"),
    (('"allreduce"', '"bcast:root=1"'), "listed twice"),
    (('"alpha-beta"', '"alpha-beto"'), "unknown model 'alpha-beto'"),
    (('model = "alpha-beta"', "effort = -1"), "effort: expected a number greater than 0"),
    (('model = "alpha-beta"', "budget = nan"), "budget: must be finite"),
    (('model = "alpha-beta"', "seed = -1"), "seed: expected a whole number >= 0"),
    (("rank = 100", "rank = nan"), r"prices\[0\].rank: expected a number >= 0"),
    (('name = "list"', 'name = "machine"'), "prices: machine is another column"),
])  # fmt: skip
def test_a_wrong_file_is_one_line(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=message) as caught:
        read_sweep_file(write(tmp_path, STUDY.replace(*change)))
    assert "\n" not in str(caught.value)
    assert "study.toml" in str(caught.value)


def test_prices_of_links_that_no_machine_has_are_unlikely(tmp_path: Path) -> None:
    with pytest.warns(UnlikelyInput, match="no machine has links of kind lnk, only link"):
        read_sweep_file(write(tmp_path, STUDY.replace("link = 10", "lnk = 10")))


def test_the_fastest_machine_takes_once_its_time() -> None:
    """Also if others are faster for some collective, or have no plan for another one."""
    seconds = {"a": (1.0, 8.0), "b": (4.0, 4.0), "c": (0.1, None)}  # two collectives each
    cells, answers = list[Cell](), list[tuple[SizeFigures, ...] | str]()
    for machine, times in seconds.items():
        for kind, value in zip(("allreduce", "alltoall"), times, strict=True):
            cells.append(Cell(machine, kind, question=None))
            answers.append("no plan" if value is None else (SizeFigures(1000, "ring", value),))
    machines = SweepResult(SweepRequest(tuple(cells), (1000,), {}, 1.0), tuple(answers), planned=0).machines()
    assert [m.machine for m in machines] == ["a", "b", "c"]
    assert [m.relative_time for m in machines] == [1.0, pytest.approx(2**0.5), None]


def test_a_machine_without_plans_has_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = read_sweep_file(write(tmp_path, STUDY.replace('"ring", "direct"', '"nvls"')))
    refused = run_sweep(replace(study, cells=study.cells[:1]), engine="processes:1").machines()[0].refused
    assert "planner nvls: the members are not all joined by switches" in refused
    words = ["tune", "allreduce", "ring:ranks=4", "--planner", "nvls", "--nbytes", "1KB"]
    assert run([*words, "--store", str(tmp_path / "kept")]) == 1, capsys.readouterr().err


def test_counts_are_for_one_machine_and_not_stored(tmp_path: Path) -> None:
    """An array of counts, which has no truth value."""
    search = antiphon.Search(counts=np.ones((4, 4)))
    with pytest.raises(Invalid, match="counts cannot be stored"):
        antiphon.sweep.tune("alltoall", "ring:ranks=4", store=tmp_path, search=search)
    with pytest.raises(Invalid, match="counts: is for one machine"):
        antiphon.machines.tune_family("alltoall", "ring", vary="ranks=4", search=search)


@pytest.mark.parametrize("engine", ["cluster", "processes:0", "processes:x"])
def test_an_unknown_engine_is_refused(engine: str, study: SweepRequest) -> None:
    with pytest.raises(Invalid, match="engine"):
        run_sweep(study, engine=engine)


def test_a_price_list_may_price_bandwidth(tmp_path: Path) -> None:
    """A ring of 4 has four cables, of 10 or 20 GB/s."""
    text = STUDY.replace("links = { link = 10 }", "links = { link = 10 }\nbandwidth = { link = 3, ib = 7 }")
    prices = read_sweep_file(write(tmp_path, text)).prices["list"]
    assert prices["ring:ranks=4,bandwidth=10GB/s"] == 4 * 100 + 4 * (10 + 30)
    assert prices["ring:ranks=4,bandwidth=20GB/s"] == 4 * 100 + 4 * (10 + 60)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nowhere"])
def test_a_cluster_that_is_not_there_is_one_line(
    address: str, study: SweepRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a Ray that refuses every address, as the true one refuses "nowhere"."""

    def refuse(**options: object) -> None:
        raise ValueError(f"Invalid address format: {options['address']}")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=refuse))
    with pytest.raises(NotFound, match=f"engine ray: {address}: (.*Connection refused|Invalid address format)"):
        run_sweep(study, engine=f"ray:{address}")


def test_a_file_of_a_collective_is_one_and_unknown_links_with_a_price_are_named(tmp_path: Path) -> None:
    antiphon.save(antiphon.collective("allgather", "ring:ranks=4"), tmp_path / "gather.json")
    text = STUDY.replace("links = { link = 10 }", "bandwidth = { nosuch = 3 }")
    text = re.sub(r"collectives = .*", f'collectives = ["{tmp_path}/gather.json", "allreduce@rows"]', text)
    with pytest.warns(UnlikelyInput, match="links of kind nosuch"):
        cells = read_sweep_file(write(tmp_path, text)).cells
    assert any(cell.question is not None for cell in cells if cell.collective.endswith("gather.json"))
    assert all(cell.refused for cell in cells if "@" in cell.collective)


def test_the_picture_needs_prices(result: SweepResult) -> None:
    assert "full:ranks=4" in pareto_svg(result)
    free = replace(result, request=replace(result.request, prices={}))
    with pytest.raises(Invalid, match="add \\[\\[prices\\]\\]"):
        pareto_svg(free)


def test_the_command_writes_csv_and_parquet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    short = STUDY.replace("ranks = [4, 5]", "ranks = [4]").replace(', "broadcast:root=1"', "")
    write(tmp_path, short.replace('"ring", "direct"', '"ring"'))
    words = ["sweep", "study.toml", "--engine", "processes:1", "--store", "kept", "-o"]
    assert run([*words, "x.csv"]) == 0
    assert len(Path("x.csv").read_text().splitlines()) == 1 + 3 * 2
    if find_spec("pyarrow") is None:
        monkeypatch.setattr(
            "antiphon.api.sweeping.run", lambda *_, **__: pytest.fail("planned before the format was checked")
        )
        assert run([*words, "x.parquet"]) == 2
        assert "pip install 'antiphon[parquet]'" in capsys.readouterr().err
    else:
        assert run([*words, "x.parquet"]) == 0
        assert Path("x.parquet").read_bytes()[:4] == b"PAR1"
    assert run([*words, "x.txt"]) == 2


def needs(engine: str) -> None:
    module = {"ray": "ray", "dask": "distributed"}.get(engine.partition(":")[0])
    if module is not None:
        pytest.importorskip(module, reason=f"pip install 'antiphon[{engine}]'")


@pytest.mark.parametrize("engine", ["processes:2", "dask", pytest.param("ray", marks=pytest.mark.slow)])
def test_a_killed_worker_loses_nothing_and_changes_nothing(
    engine: str, study: SweepRequest, result: SweepResult
) -> None:  # fmt: skip
    needs(engine)
    killed, allowed = list[int](), os.sched_getaffinity(0)

    def kill_one(done: int, total: int, name: str) -> None:
        if done == 1 and not killed:
            # Ctrl-C is not for workers, which would print a traceback; Ray's handle it
            assert engine == "ray" or all(map(is_deaf_to_interrupts, list_workers()))
            killed.extend(kill_worker())

    few = replace(study, cells=study.cells[:4])
    os.sched_setaffinity(0, {min(allowed)})  # Dask starts a worker, which takes seconds, for each
    try:
        again = run_sweep(few, engine=engine, progress=kill_one)
    finally:
        os.sched_setaffinity(0, allowed)
    assert killed
    assert list(again.rows()) == list(result.rows())[:8]


def is_deaf_to_interrupts(process: int) -> bool:
    """Whether a process blocks or ignores Ctrl-C."""
    status = Path(f"/proc/{process}/status").read_text()
    masks = [int(mask, 16) for mask in re.findall(r"Sig(?:Blk|Ign):\s*(\w+)", status)]
    return any(mask >> (signal.SIGINT - 1) & 1 for mask in masks)


def kill_worker() -> list[int]:
    """Kill one process that plans cells, and return its number."""
    workers = list_workers()
    for pid in sorted(workers)[-1:]:
        os.kill(pid, signal.SIGKILL)
    return sorted(workers)[-1:]
