"""Choosing a parameter: sweeps of options, what they are worth, the heat map, and machines of several sizes."""

import json
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import slow_model
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples

import antiphon
from antiphon import registry
from antiphon.cli import run
from antiphon.core.verify import verify
from antiphon.errors import Invalid
from antiphon.registry import Entry, ModelCapabilities, PlannerCapabilities
from antiphon.select import Gain, Tuning, Tunings, load_plans, pool, read_sweep, tune, tune_family
from antiphon.select import settings as settings_of
from antiphon.select.sweep import MAX_VALUES, list_combinations, resolve_sweep, values_of
from antiphon.show.pictures import heatmap
from antiphon.show.pictures.heatmap import heatmap_svg

Capture = pytest.CaptureFixture[str]
SVG = "{http://www.w3.org/2000/svg}"


def quick(sweep: Any = None, kind: str = "broadcast", spec: str = "ring:ranks=6", **options: Any) -> Tuning:
    given = {"nbytes": "1KB:16MB", "workers": "none", "nccl": False, "planners": ["ring"], **options}
    return tune(kind, spec, sweep=sweep, **given)


@pytest.fixture(scope="module")
def swept() -> Tuning:
    return quick({"pieces": "1,2,4,16"}, planners=["ring", "binomial-tree", "relay"], spec="full:ranks=6")


# ---- values ----


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ("2:5", (2, 3, 4, 5)), ("7", (7,)), ("2,4,8", (2, 4, 8)), ("4,2:5,4", (4, 2, 3, 5)),
        ("true,false", ("true", "false")),
        ("factors", (2, 3, 4, 6, 8, 12, 24)), ("1,factors", (1, 2, 3, 4, 6, 8, 12, 24)),
        (range(2, 5), (2, 3, 4)), ([True, 1], (True, 1)), (np.arange(2, 4), (2, 3)), (3, (3,)), (["2:3", 9], (2, 3, 9)),
    ],
)  # fmt: skip
def test_values_as_people_write_them(given: Any, values: tuple[Any, ...]) -> None:
    found = values_of(given, "sweep of k", 24)
    assert found == values
    assert [type(v) for v in found] == [type(v) for v in values]


@pytest.mark.parametrize(
    "wrong",
    ["5:2", "2:", ":2", "2:4:6", "a:b", "", "2,,4", ",", (), [], None, {"a": 1}, [None], [1.5, float("nan")], "1:5000"],
)
def test_values_that_are_none(wrong: Any) -> None:
    with pytest.raises(Invalid) as caught:
        values_of(wrong, "sweep of k", 24)
    assert str(caught.value).startswith("sweep of k: ")
    assert "\n" not in str(caught.value)


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True), max_size=4), st.integers(0, 15))
def test_combinations_are_the_product_of_what_a_planner_has(values: list[list[int]], mask: int) -> None:
    sweep = {f"o{i}": tuple(v) for i, v in enumerate(values)}
    options = [f"o{i}" for i in range(4) if mask >> i & 1]
    can = PlannerCapabilities((), sweep=({}, {"declared": 1}))
    found = list_combinations(sweep, types.SimpleNamespace(options=options, can=can))  # type: ignore[arg-type]
    mine = [key for key in sweep if key in options]
    if not mine:
        assert found == [{}, {"declared": 1}]
        return
    assert all(list(one) == mine for one in found)
    assert len({tuple(one.values()) for one in found}) == len(found) == int(np.prod([len(sweep[k]) for k in mine]))
    assert found[0] == {key: sweep[key][0] for key in mine}


def test_a_sweep_that_nobody_can_do_is_told_before_any_work() -> None:
    with pytest.raises(Invalid, match=r"planner ring has no option 'k'; to sweep there are: directions, order, pieces"):
        quick({"k": 2})
    with pytest.raises(Invalid, match=r"none of the planners direct, ring has the option 'k'"):
        quick({"k": 2}, planners=["direct", "ring"])
    with pytest.raises(Invalid, match=r"planner direct has no option 'pieces'; there is none to sweep"):
        quick({"pieces": 2}, planners="direct")
    with pytest.raises(Invalid, match=rf"6400 combinations of values for planner ring \(at most {MAX_VALUES}\)"):
        quick({"pieces": "1:3200", "directions": [1, 2]})
    with pytest.raises(Invalid, match="sweep: expected options and their values"):
        quick(["k=2"])
    for wrong in (["k"], ["=2"], ["k="], ["k=2", "k=3"]):
        with pytest.raises(Invalid, match="--sweep: "):
            read_sweep(wrong)
    assert resolve_sweep(None, ["ring"], 8) == {}


# ---- sweeps ----


def test_factors_are_of_the_ranks_that_take_part() -> None:
    found = tune("broadcast", "ring:ranks=8", ranks=[0, 1, 2, 3, 4, 5], planners="relay", sweep={"pieces": "factors"},
                 workers="none", nbytes="1KB", nccl=False)  # fmt: skip
    assert found.sweep == {"pieces": (2, 3, 6)}


def test_an_interrupted_sweep_keeps_what_it_has() -> None:
    def stop(done: int, total: int, what: str) -> None:
        if done == 3:
            raise KeyboardInterrupt

    found = quick({"pieces": "1:40"}, progress=stop)
    assert not found.complete
    assert [c.options["pieces"] for c in found.candidates] == [1, 2, 3]
    assert verify(found.plan.entries[0].schedule, found.topology).ok
    assert len(settings_of(found.of("broadcast"), found.sweep, found.sizes)["ring"]) == 3
    assert "interrupted" not in heatmap_svg(found)  # it is drawn of what there is


# ---- models with options ----


@pytest.mark.slow
def test_the_first_call_of_a_model_is_no_candidates_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes longer than a candidate may, here and in a worker."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    old = registry.table
    whole = {**old("model"), "slow": Entry("slow_model:slow", "slow at first", ModelCapabilities())}
    monkeypatch.setattr(registry, "table", lambda kind: whole if kind == "model" else old(kind))
    for workers, start in (("none", 2.0), (1, -1.0)):
        monkeypatch.setattr(pool, "HEAD_START", start)
        monkeypatch.setattr(slow_model, "calls", [] if workers == "none" else [0])
        found = quick(model="slow", nbytes="1KB", budget=0.1, workers=workers)
        assert [c.status for c in found.candidates] == ["ok"] * 5


# ---- the heat map ----


@pytest.mark.slow
def test_nothing_in_the_heat_map_is_outside_it(swept: Tuning) -> None:
    for found in (
        swept,
        quick({"pieces": "1:30", "directions": "1:2"}),
        quick({"pieces": "1:20"}, kind="all", spec="ring:ranks=3"),
    ):
        root = ElementTree.fromstring(heatmap_svg(found))
        width, height = float(root.attrib["width"]), float(root.attrib["height"])
        for group in root.iter(f"{SVG}g"):
            left, top = map(float, re.findall(r"[\d.]+", group.attrib["transform"]))
            for item in group:
                if "x" in item.attrib:
                    x, y = left + float(item.attrib["x"]), top + float(item.attrib["y"])
                    reach = 6.4 * len(item.text or "") if item.tag == f"{SVG}text" else float(item.attrib["width"])
                    back = {"end": reach, "middle": reach / 2}.get(item.attrib.get("text-anchor", ""), 0.0)
                    assert x - back >= 0, ElementTree.tostring(item)
                    assert x - back + reach <= width + 1, ElementTree.tostring(item)
                    assert 0 <= y <= height


@pytest.mark.slow
def test_large_heat_maps_stay_small() -> None:
    found = quick({"pieces": "1:400"}, spec="ring:ranks=2")
    drawn = heatmap_svg(found)
    assert len(drawn) < 250_000
    (panel,) = heatmap.panels(found, "broadcast")
    assert (panel.total_rows, len(panel.rows) <= heatmap.MAX_ROWS + len(found.sizes)) == (400, True)
    assert f"ring ({len(panel.rows)} of 400 values)" in drawn


def test_the_heat_map_follows_a_dark_screen_and_is_refused_without_a_sweep(swept: Tuning) -> None:
    assert "prefers-color-scheme: dark" in heatmap_svg(swept)
    page = antiphon.pages.report(swept)
    assert "Choosing pieces" in page
    plain = quick()
    assert "Choosing" not in antiphon.pages.report(plain)
    with pytest.raises(Invalid, match="no heat map without a sweep"):
        heatmap_svg(plain)


# ---- machines of several sizes ----


def over(**options: Any) -> Tunings:
    given = {"nbytes": "1KB:1MB", "planners": ["ring"], "workers": "none", "nccl": False, **options}
    return tune_family("allgather", given.pop("topology", "ring:ranks=4"), **given)


def test_what_cannot_be_varied_is_told_before_any_work(tmp_path: Path) -> None:
    for wrong in ("nodes", "=1", "ranks=", {}, {"a": 1, "b": 2}, None, 3):
        with pytest.raises(Invalid, match="vary: expected one option"):
            over(vary=wrong)
    with pytest.raises(Invalid, match="vary ranks=0: "):
        over(vary="ranks=4,0")
    with pytest.raises(Invalid, match="vary nodes=4: unknown option of topology ring"):
        over(vary="nodes=4")
    with pytest.raises(Invalid, match="is a file"):
        over(vary="nodes=4", topology="machine.json")
    with pytest.raises(Invalid, match="expected the name of a family"):
        over(vary="nodes=4", topology=3)
    with pytest.raises(Invalid, match="factors depend on the number of ranks"):
        over(vary="ranks=factors")
    with pytest.raises(Invalid, match="unknown planner"):
        over(vary="ranks=4,5", planners=["rings"])
    (tmp_path / "file").write_text("")
    with pytest.raises(Invalid, match="is not a directory"):
        over(vary="ranks=4").save(tmp_path / "file")


def test_a_size_for_which_the_rest_makes_no_sense_is_refused_alone() -> None:
    found = tune_family("broadcast", "ring", vary="ranks=4,8", root=6, planners="ring", workers="none", nbytes="1KB")
    assert list(found.tunings) == [8]
    assert "root 6 is out of range" in found.refused[4]
    assert {"value": 4, "refused": found.refused[4]} in found.as_json()["tunings"]


def test_interrupted_while_the_second_is_tuned() -> None:
    def stop(done: int, total: int, what: str) -> None:
        if what.startswith("ranks=5") and "ring" in what:
            raise KeyboardInterrupt

    found = over(vary="ranks=3,5,7", progress=stop)
    assert not found.complete
    assert [one.complete for one in found.tunings.values()] == [True, False]


# ---- the command line ----


@pytest.fixture
def told(capsys: Capture) -> Callable[..., tuple[int, str, str]]:
    def command(*arguments: str) -> tuple[int, str, str]:
        code = run(["tune", *arguments, "--workers", "1"])
        out = capsys.readouterr()
        return code, out.out, out.err

    return command


def test_the_command_sweeps_and_draws(told: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    picture, table = tmp_path / "map.svg", tmp_path / "plan.json"
    code, out, _ = told(
        "broadcast", "ring:ranks=4", "--planner", "ring", "--sweep", "pieces=1,8", "--sweep", "directions=1:2",
        "--nbytes", "1KB:1MB", "--no-nccl", "--heatmap", str(picture), "-o", str(table),
    )  # fmt: skip
    assert code == 0
    assert "Gain from choosing pieces, directions for each size" in out
    assert f"written: {picture}" in out
    ElementTree.parse(picture)
    assert antiphon.verify(load_plans(table)["broadcast"])


def test_the_command_varies_the_machine(told: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    line = "all ring --vary ranks=2:3 --planner ring --nbytes 1KB:2KB --no-nccl"
    code, out, _ = told(*line.split(), "--sweep", "pieces=1,2", "-o", str(folder))
    assert code == 0
    assert re.search(r"ranks +ranks +from +to +algorithm", out)
    assert sorted(path.name for path in folder.iterdir()) == ["ranks=2.json", "ranks=3.json"]
    assert set(load_plans(folder / "ranks=3.json")) >= {"allreduce", "alltoall"}
    code, out, _ = told("allreduce", *line.split()[1:], "--json")
    assert [one["value"] for one in json.loads(out)["tunings"]] == [2, 3]


def test_the_command_names_what_is_wrong(told: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    here = str(tmp_path / "x.svg")
    for arguments, said in (
        (("--heatmap", here), "--heatmap: draws the values of --sweep"),
        (("--sweep", "k"), "--sweep: expected an option and its values"),
        (("--sweep", "pieces=3:1"), "sweep of pieces: the range 3:1 is empty"),
        (("--vary", "ranks=4", "-o", here), "x.svg: is for one machine"),
        (("--vary", "ranks=4", "-o", __file__), "is a file, but several files are written; name a directory"),
        (("--model", "alpha-beta:x=1"), "option"),
    ):
        code, _, err = told("allgather", "ring:ranks=4", "--planner", "ring", *arguments)
        assert code == 2
        assert said in err
        assert err.count("\n") == 1


def test_values_that_end_alike_are_told_once(told: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = told("allgather", "ring:ranks=4", "--planner", "ring", "--planner", "relay", "--no-nccl",
                        "--sweep", "pieces=0,1", "--nbytes", "1KB", "--explain")  # fmt: skip
    assert code == 0
    assert re.search(r"not applicable: ring \(1 of 2\), relay \(1 of 2\)", out)


def test_gains_are_none_for_one_value() -> None:
    assert quick({"pieces": 4}).gains == ()
    assert isinstance(quick({"pieces": [1, 4]}).gains[0], Gain)


@pytest.mark.slow
@settings(max_examples=examples(8), deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=4, unique=True))
def test_the_best_of_a_sweep_is_the_best_of_its_values(values: list[int]) -> None:
    found = quick({"pieces": values}, nbytes="1KB:1MB")
    each = [quick({"pieces": value}, nbytes="1KB:1MB") for value in values]
    for size in found.sizes:
        best = min(min(c.seconds[size] for c in one.candidates) for one in each)
        assert min(c.seconds[size] for c in found.candidates) == pytest.approx(best)
