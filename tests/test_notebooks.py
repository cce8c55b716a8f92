"""Notebooks: how results look in them, and those of examples/, which run and show nothing of the machine."""

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import notebooks
import pytest

import antiphon
from antiphon.core.topology import LinkType, build
from antiphon.topologies import topology

MAX_REPR, MAX_HTML = 200, 200  # characters, lines
QUICK = ("own_algorithm",)  # of the notebooks, those that run in the ordinary set
SWEEP = """
collectives = ["allgather", "scan"]
nbytes = "1MB"
planners = ["ring"]
[[machines]]
topology = "ring:ranks=4"
vary = { latency = ["1us", "2us"] }
[[prices]]
name = "list"
links = { link = 10 }
"""


def tuned(kinds: str = "allreduce", **more: Any) -> Any:
    return antiphon.tune(kinds, "ring:ranks=4", nbytes="1KB:1MB", planners=["ring", "multi-ring"], **more)


def swept(folder: Path) -> Any:
    (folder / "study.toml").write_text(SWEEP.replace('"scan"', '"allreduce"'))
    return antiphon.sweep.run(folder / "study.toml", store=folder / "store", engine="processes:1")


def recorded(folder: Path) -> Any:
    plan = antiphon.plan("allgather", "ring:ranks=4", planner="ring")
    for name, content in antiphon.export(plan, "chakra", nbytes="1MB").items():
        (folder / name).write_bytes(content)
    recording = antiphon.traces.read(folder)
    call = {"rank": 0, "collective": "allreduce", "nbytes": 10**6, "duration_us": 12.5}
    return replace(recording, collectives=(call, {**call, "rank": 1, "duration_us": None}))


RESULTS: dict[str, tuple[Callable[[Path], Any], str]] = {  # a result, and what its conclusion says
    "machine": (lambda _: topology("dgx1v"), "dgx1v: 8 ranks"),
    "machine too large to draw": (lambda _: topology("torus:dims=8x8x8"), "512 ranks"),
    "bound": (lambda _: antiphon.bound("allreduce", "dgx1v"), "No schedule takes fewer than 2 steps, or moves more"),
    "plan": (lambda _: tuned().plan, "allreduce on ring:ranks=4"),
    "tuning": (lambda _: tuned(), "allreduce on ring:ranks=4: use Antiphon's plans"),
    "tuning of several": (lambda _: tuned("all"), "on ring:ranks=4: "),
    "frontier": (lambda _: antiphon.frontier.find("allgather", "ring:ranks=4", budget=60), "1 point of the latency"),
    "sweep": (swept, "latency=1us is the fastest of 2 machines"),
    "trace": (recorded, "2 calls of collectives at 2 ranks, 12.5 us in all"),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_begins_with_its_conclusion_and_is_short(name: str, tmp_path: Path) -> None:
    make, conclusion = RESULTS[name]
    result = make(tmp_path)
    html = notebooks.html_of(result)
    root = ElementTree.fromstring(html)  # well-formed, so that no page around it breaks
    first = root.find("p/b")
    assert first is not None
    assert conclusion in (first.text or "")
    assert html.count("\n") < MAX_HTML
    assert "<script" not in html
    assert root.find("table") is not None
    assert len(repr(result)) <= MAX_REPR
    assert ("<svg" in html) == (name in ("machine", "tuning", "sweep"))


def test_names_cannot_break_a_page() -> None:
    name = "<b>&'\"<script>" * 10
    machine = build(
        name, 2, [(0, 1, LinkType("<i>", Fraction(10**9), 1e-6)), (1, 0, LinkType("<i>", Fraction(10**9), 1e-6))]
    )
    plan = antiphon.plan("allgather", machine, planner="ring")
    for result in (machine, plan, antiphon.tune("allgather", machine, nbytes="1MB", planners=["ring"])):
        html = notebooks.html_of(result)
        ElementTree.fromstring(html)
        assert "<script" not in html
        assert len(repr(plan)) <= MAX_REPR


@pytest.mark.parametrize(
    "path", [pytest.param(p, id=p.stem, marks=[] if p.stem in QUICK else [pytest.mark.slow])
             for p in notebooks.list_notebooks()],
)  # fmt: skip
def test_a_notebook_runs_and_shows_what_it_shows_here(path: Path) -> None:
    outputs = notebooks.run_notebook(path)
    stored = notebooks.stored_outputs(path)
    for fresh, shown in zip(outputs, stored, strict=True):  # `release/notebooks.py --write` stores them
        assert [kind_of(output) for output in fresh] == [kind_of(output) for output in shown]


def kind_of(output: dict[str, Any]) -> tuple[str, list[str]]:
    return output["output_type"], sorted(output.get("data", ()))


def test_notebooks_show_nothing_of_the_machine_they_ran_on() -> None:
    paths = notebooks.list_notebooks()
    assert len(paths) == 4
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert re.search(r"/(tmp|home|root|work|Users|var)/|Error|Traceback", text.replace("AntiphonError", "")) is None
        assert all(outputs for outputs in notebooks.stored_outputs(path)), path.name
