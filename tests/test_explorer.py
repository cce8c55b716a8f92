"""The explorer: its data are those of the plan, of one model and of traces (in a browser: test_explorer_browser.py)."""

import base64
import json
import re
import zlib
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Capture, complaint
from pages import Page

import antiphon
from antiphon.cli import run
from antiphon.core.plan import Plan
from antiphon.show.explorer.figures import price_plan
from antiphon.show.explorer.packing import TICKS, Pack, ticks

HOSTILE = "</script ><script>alert(1)</script><img src=x onerror=alert(2)> \"'&"


def unpack(pack: dict[str, Any]) -> dict[str, Any]:
    """The columns of a pack, as the page reads them."""
    raw, at, columns = zlib.decompress(base64.b64decode(pack["data"])), 0, {}
    for name, kind, count, delta in pack["fields"]:
        column = np.frombuffer(raw, "<" + kind, count, at)
        at += -(-column.nbytes // 4) * 4
        columns[name] = np.cumsum(column) if delta else column
    assert at == len(raw)
    return columns


@pytest.fixture(scope="module")
def ring() -> Plan:
    return antiphon.plan("allreduce", "dgx1v", planner="multi-ring")


def test_columns_come_back_as_they_were() -> None:
    pack = Pack()
    columns: dict[str, list[Any]] = {
        "small": [0, 255],
        "wide": [70000, 3],
        "signed": [-5, 7],
        "real": [0.5, 0.25],
        "none": [],
        "one": [9],
    }
    for name, values in columns.items():
        pack.add(name, values)
    pack.add("rising", [5, 5, 2**30, 3], delta=True)
    got = unpack(pack.as_json())
    assert {name: column.tolist() for name, column in got.items()} == {**columns, "rising": [5, 5, 2**30, 3]}
    assert ticks(np.array([0.0, 1.0, 2.0]), 2.0).tolist() == [0, TICKS // 2, TICKS]
    assert ticks(np.array([0.0]), 0.0).tolist() == [0]


def test_a_page_loads_nothing_and_hostile_names_stay_names(ring: Plan) -> None:
    machine = replace(antiphon.topology("full:ranks=3"), name=HOSTILE, places=tuple(f"{HOSTILE}/{i}" for i in range(3)))
    machine = replace(machine, types=tuple(replace(t, kind=HOSTILE) for t in machine.types))
    for plan in (ring, antiphon.plan("broadcast", machine)):
        text = antiphon.pages.explore(plan, origin=HOSTILE)
        page = Page(text)
        assert [tag for tag, _ in page.tags].count("script") == 2
        for tag, attributes in page.tags:
            assert tag not in ("link", "img", "iframe", "object", "embed", "base")
            assert not {"src", "href", "srcset"} & attributes.keys()
            assert not any(key.startswith("on") for key in attributes)
        assert "default-src 'none'" in text
        assert set(re.findall(r"https?://[^\s\"'<)]+", text)) <= {"http://www.w3.org/2000/svg"}
        assert page.data["machine"]["name"] == plan.topology.name


def test_measurements_stand_beside_the_prediction_and_odd_claims_do_no_harm(ring: Plan) -> None:
    (entry,) = ring.entries
    rows = [{"nbytes": 65536, "seconds": 5e-05, "over_library": 0.9}, {"nbytes": "x", "seconds": 1}, None, 7]
    claims = {**entry.claims, "measured": True, "at": 65536, "measurements": rows}
    (group,) = Page(antiphon.pages.explore(Plan.of(ring.topology, entry.schedule, claims))).data["groups"]
    assert group["plans"][0]["measured"] == [{"nbytes": 65536, "seconds": 5e-05}]
    assert (group["ranges"][0]["at"], 65536 in group["sizes"]) == (65536, True)
    odd = {
        "planner": [1],
        "options": 3,
        "at": -1,
        "speedup": "fast",
        "model": "",
        "chunks": {},
        "measurements": {"a": 1},
    }
    (group,) = Page(antiphon.pages.explore(Plan.of(ring.topology, entry.schedule, odd))).data["groups"]
    assert (group["ranges"][0]["speedup"], group["plans"][0]["measured"]) == (None, [])


def test_folded_drawings_stand_for_all_links() -> None:
    plan = antiphon.plan("broadcast", "cluster:box=hgx-h100,boxes=32", planner="binomial-tree")
    machine = Page(antiphon.pages.explore(plan)).data["machine"]
    counts = [len(level["nodes"]) for level in machine["levels"]]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] < 64 < counts[0]
    for level in machine["levels"]:
        members = sorted(member for node in level["nodes"] for member in node[8])
        assert members == list(range(plan.topology.nodes))
        inside = {member: number for number, node in enumerate(level["nodes"]) for member in node[8]}
        ends = zip(plan.topology.link_src.tolist(), plan.topology.link_dst.tolist(), strict=True)
        outer = [link for link, (a, b) in enumerate(ends) if inside[a] != inside[b]]
        assert sorted(link for edge in level["edges"] for way in edge[6:8] for link in way) == outer


@pytest.mark.usefixtures("own_folder")
def test_the_command_writes_a_page_and_says_what_is_wrong(capsys: Capture) -> None:
    assert run(["plan", "allreduce", "ring:ranks=4", "-o", "plan.json"]) == 0
    assert run(["explore", "plan.json", "-o", "page.html", "--nbytes", "64KiB"]) == 0
    assert "page.html" in capsys.readouterr().out
    assert Page(Path("page.html").read_text()).data["groups"][0]["plans"][0]["at"] == 65536
    assert "no such file" in complaint(capsys, "explore", "none.json").lower()
    assert "cannot write .txt; this command writes .html" in complaint(capsys, "explore", "plan.json", "-o", "page.txt")
    assert "from 1 byte" in complaint(capsys, "explore", "plan.json", "--nbytes", "0")
    assert "unknown collective" in complaint(capsys, "explore", "plan.json:broadcast")
    assert run(["export", "plan.json", "--to", "msccl-xml", "-o", "xml"]) == 0
    xml = min(Path("xml").glob("*.xml"))
    assert "names no machine" in complaint(capsys, "explore", str(xml))
    Path("bad.json").write_text('{"format": "antiphon-plan", "version": 1}')
    assert "bad.json" in complaint(capsys, "explore", "bad.json")


@pytest.mark.usefixtures("own_folder")
def test_frontiers_and_sweeps_come_from_their_files(capsys: Capture) -> None:
    arguments = ["frontier", "allgather", "ring:ranks=4", "-o", "plan.json", "--certificate", "frontier.json"]
    assert run(arguments) == 0
    found = antiphon.frontier.find("allgather", "ring:ranks=4")
    page = Page(antiphon.pages.explore("frontier.json")).data
    assert page["points"] == Page(antiphon.pages.explore(found)).data["points"]
    assert [point["at"] for point in page["points"]["points"]] == [[p.steps, float(p.ratio)] for p in found.points]
    assert all("pack" in plan["timed"] for plan in page["groups"][0]["plans"])
    Path("study.toml").write_text(
        'collectives = "allgather"\nnbytes = "1KB:1MB:1000"\nplanners = ["ring"]\n'
        '[[machines]]\ntopology = "ring"\nvary = { ranks = [4, 8], nonsense = [1] }\n'
        '[[machines]]\ntopology = "ring"\nvary = { ranks = [4, 8] }\n[[prices]]\nname = "list"\nrank = 2.5\n'
    )
    result = antiphon.sweep.run("study.toml", engine="processes:1")
    result.save("study.csv")
    page = Page(antiphon.pages.explore("study.csv")).data
    assert page == Page(antiphon.pages.explore(result)).data
    assert [point["at"][0] for point in page["points"]["points"]] == [10.0, 20.0]
    assert len(page["notes"]) == 2  # machines that were refused, and why
    lines = Path("study.csv").read_text().splitlines()
    for wrong, says in (
        (["a,b", "1,2"], "is no result of"), (lines[:1], "holds no rows"),
        ([*lines[:3], lines[3].replace("1000", "many")], "line 4"),
    ):  # fmt: skip
        Path("wrong.csv").write_text("\n".join(wrong))
        assert says in complaint(capsys, "explore", "wrong.csv")
    damaged = Path("frontier.json").read_text().replace('"steps": 2', '"steps": 1')
    Path("wrong.json").write_text(damaged)
    assert "wrong.json" in complaint(capsys, "explore", "wrong.json")


# ---- traces ----


def unpacked_run(timed: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[int, ...]], Any]:
    """The columns of a plan's transfers, (step, src, dst) of each, and when they start and land, in seconds."""
    columns = unpack(timed["pack"])
    hops = list(zip(*(columns[name].tolist() for name in ("step", "src", "dst")), strict=True))
    start = columns["start"] * (timed["total"] / TICKS)
    return columns, hops, (start, start + columns["lasts"] * (timed["total"] / TICKS))


@pytest.fixture
def traced(ring: Plan, tmp_path: Path) -> Path:
    """A trace of the plan's prediction."""
    antiphon.predict(ring, "64KiB", trace=tmp_path / "trace.json", model="critical-path")
    return tmp_path / "trace.json"


LATE = 1e-4  # seconds


def as_measured(trace: Path, factor: float) -> Path:
    """The trace as if a run of that plan had taken so much longer, with rank 0 sending late."""
    content = json.loads(trace.read_text())
    content["otherData"] |= {"runs": 5, "run": 3, "seconds": 1e-3}
    for event in content["traceEvents"]:
        for key in {"ts", "dur"} & event.keys():
            event[key] *= factor
        if event.get("args", {}).get("src") == 0:
            event["ts"] += LATE * 1e6
    measured = trace.with_name("measured.json")
    measured.write_text(json.dumps(content))
    return measured


def test_a_run_stands_beside_the_prediction_of_its_plan(ring: Plan, traced: Path) -> None:
    measured = as_measured(traced, 3)
    page = Page(antiphon.pages.explore(ring, trace=measured, model="critical-path")).data
    (group,) = page["groups"]
    (plan,) = group["plans"]
    assert plan["at"] == group["ranges"][0]["at"] == 65536  # the size of the run
    columns, hops, (start, landed) = unpacked_run(plan["timed"]["recorded"])
    _, predicted_hops, (first, last) = unpacked_run(plan["timed"])
    twin = columns["predicted"]
    assert [predicted_hops[number] for number in twin] == hops
    assert twin.tolist() != sorted(twin.tolist())
    late = LATE * (columns["src"] == 0)
    assert start == pytest.approx(3 * first[twin] + late, abs=9e-9)
    assert landed == pytest.approx(3 * last[twin] + late, abs=9e-9)
    assert plan["timed"]["recorded"]["label"] == "measured"
    assert plan["measured"] == [{"nbytes": 65536, "seconds": 1e-3}]
    over = 1e-3 / plan["seconds"]
    assert plan["facts"]["over predicted"] == f"{over:.3g}x"
    assert page["headline"].startswith(f"64KiB took 1 ms, {over:.3g}x the predicted ")


@pytest.mark.usefixtures("own_folder")
def test_the_command_opens_traces_and_says_what_is_wrong(traced: Path, ring: Plan, capsys: Capture) -> None:
    antiphon.save(ring, "plan.json")
    for files in ([str(traced)], ["plan.json", str(traced)]):
        assert run(["explore", *files, "-o", "page.html"]) == 0
    capsys.readouterr()
    content = json.loads(traced.read_text())
    messages = [event for event in content["traceEvents"] if event.get("cat") in ("send", "receive")]
    others = [event for event in content["traceEvents"] if event not in messages]
    hop = {**messages[0], "args": {**messages[0]["args"]}}

    def with_argument(**change: Any) -> list[dict[str, Any]]:
        return [{**hop, "args": {**hop["args"], **change}}, *messages[1:]]

    for events, about, says in (
        (others, {}, "antiphon replay"), (messages[1:], {}, "messages to rank"),
        ([each for each in messages if each["cat"] == "send"], {}, "receives 0"),
        ([*messages, {**hop, "pid": 9}], {}, "several traces"), (with_argument(src=-1), {}, "ranks from 0"),
        (with_argument(step="x"), {}, "needs its step"), (with_argument(bytes=None), {}, "number of bytes"),
        (messages, {"nbytes": True}, "nbytes: expected"), (messages, {"nbytes": 0}, "nbytes: expected"),
    ):  # fmt: skip
        wrong = {"otherData": {"nbytes": 64, **about}, "traceEvents": events}
        Path("wrong.json").write_text(json.dumps(wrong))
        assert says in complaint(capsys, "explore", "wrong.json"), says
    other = antiphon.plan("allreduce", "dgx1v", planner="recursive-doubling")
    antiphon.save(other, "other.json")
    assert "not those of the plan" in complaint(capsys, "explore", "other.json", str(traced))
    assert "expected one file" in complaint(capsys, "explore", "plan.json", str(traced), "more.json")
    assert "leave nbytes out" in complaint(capsys, "explore", "plan.json", str(traced), "--nbytes", "1KB")
    assert "leave nbytes, model" in complaint(capsys, "explore", str(traced), "--model", "flows")


def test_results_open_in_a_frame_of_a_notebook() -> None:
    plan = antiphon.plan("allreduce", "ring:ranks=4")
    page = plan.explore(nbytes="64KiB")
    assert page == antiphon.pages.explore(plan, nbytes="64KiB")
    assert repr(page) == f"<page of {len(page):,} characters>"
    frame = re.fullmatch(
        r'<iframe [^>]* sandbox="allow-scripts allow-downloads" [^>]*srcdoc="([^"]*)"></iframe>', page._repr_html_()
    )
    assert frame is not None
    assert unescape(frame[1]) == page
    tuning = antiphon.tune("allreduce", "ring:ranks=4", nbytes="1MB", planners=["ring"])
    assert "iframe" in tuning.explore()._repr_html_()


def test_the_largest_gap_is_of_the_model_that_is_shown() -> None:
    """The plan claims one of the model that it was tuned by."""
    found = antiphon.tune(
        "allreduce", "full:ranks=4", planners=["direct", "ring"], model="alpha-beta", nbytes="1KB:1MB",
        search=antiphon.Search(workers="none"),
    )  # fmt: skip
    for model in ("alpha-beta", "critical-path"):
        figures = price_plan(found.plan, found.sizes, None, model, None)
        assert figures.limit is not None
        for r in figures.ranges:
            gaps = [figures.limit.gap(n, r.candidate.seconds[n]) or 0 for n in found.sizes if r.start <= n < r.stop]
            assert r.largest_gap == pytest.approx(max([r.gap or 0, *gaps]))
