"""The report: one page that loads nothing, says what was found, and cannot be made to say something else."""

import json
import re
import runpy
import shutil
import subprocess
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from entries import ring

import antiphon
from antiphon.core.collective import Collective
from antiphon.core.example import of_rows
from antiphon.core.loads import pieces_of, pipelined_steps, timeline
from antiphon.core.messages import messages
from antiphon.core.request import Request
from antiphon.core.reshape import only
from antiphon.core.schedule import Schedule
from antiphon.cost import step_times
from antiphon.select import Tuning, tune
from antiphon.show.pages import flow
from antiphon.show.pictures.chart import chart_svg, frame_of
from antiphon.topologies import topology

ROOT = Path(__file__).parent.parent
HOSTILE = "</script ><script>alert(1)</script><img src=x onerror=alert(2)> \"'&"


class Page(HTMLParser):
    """Tags with their attributes, the texts, and the scripts of a page; complains of tags that do not match."""

    VOID = ("meta", "input", "br", "img", "link")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        (self.scripts if self.open[-1:] == ["script"] else self.words).append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def tuned() -> Tuning:
    planners = ["ring", "multi-ring", "halving-doubling", "recursive-doubling", "direct", "nvls", "relay"]
    return tune("allreduce", topology("dgx1v"), nbytes="1KB:1GB", workers=0, planners=planners)


def test_the_page_says_what_was_found_and_loads_nothing(tuned: Tuning) -> None:
    text = antiphon.pages.report(tuned)
    page = Page(text)
    for r in tuned.ranges:
        assert r.candidate.planner in page.text
    for c in tuned.candidates:
        assert c.planner in page.text
        assert " ".join(c.reason.split()) in page.text
    for tag, attributes in page.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "use", "image")
        assert not {"src", "href", "xlink:href", "srcset", "data"} & attributes.keys()
        assert not any(key.startswith("on") for key in attributes)
    assert "default-src 'none'" in text
    addresses = set(re.findall(r"https?://[^\s\"'<)]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a name, not an address that is loaded
    assert "url(" not in re.sub(r"url\(#", "", text)
    assert text == antiphon.pages.report(tuned)


def test_the_page_begins_with_the_verdict_and_ends_with_its_origin(tuned: Tuning) -> None:
    page = antiphon.pages.report(tuned, origin="2026-01-02: antiphon tune <x>")
    for kind, verdict in tuned.verdicts.items():
        assert f"<p class='verdict'>{escape(verdict)}</p>" in page, kind
    assert "2026-01-02: antiphon tune &lt;x&gt;</p></footer>" in page
    # on narrow pages each cell of the ranges says what it is, so that nothing is beyond the edge
    row = re.search(r'<tr data-plan="p0-0".*?</tr>', page)
    assert row is not None
    assert re.findall(r'data-head="([^"]*)"', row[0])[-3:] == ["gap", "over NCCL", "calibration"]
    assert row[0].count("<td") == len(re.findall("<th[ >]", page.split('class="ranges')[1].split("</thead>")[0]))


def test_the_colours_of_pictures_have_a_dark_counterpart(tuned: Tuning) -> None:
    page = antiphon.pages.report(tuned)
    style, pictures = page.split("</style>")
    dark = style.split("prefers-color-scheme: dark")[1]
    named = set(re.findall(r'(?:fill|stroke)="(#[0-9a-f]{3,6})"', pictures))
    for colour in named:
        shades = [
            int(colour[1:][i : i + 2], 16) if len(colour) == 7 else int(colour[1 + i // 2] * 2, 16) for i in (0, 2, 4)
        ]
        if max(shades) - min(shades) < 20 and not 0x80 < max(shades) < 0x95:  # greys, but those in the middle
            assert f'"{colour}"' in dark, colour


def test_the_data_of_the_page_are_those_of_the_tuning(tuned: Tuning) -> None:
    page = Page(antiphon.pages.report(tuned))
    data = [json.loads(s) for s in page.scripts if s.startswith("{")]
    (chart,) = [d for d in data if "frames" in d]
    assert chart["bytes"] == list(tuned.sizes)
    for i, c in enumerate(tuned.candidates):
        assert (str(i) in chart["candidates"]) == bool(c.seconds)
        if c.seconds:
            told = chart["candidates"][str(i)]
            assert (told["who"], told["seconds"]) == (c.planner, pytest.approx(list(c.seconds.values()), rel=1e-4))
            named = [told["names"][n] for n in told["held"]]
            assert named == [bottleneck for bottleneck, _ in c.why.values()]
    plans = [d for d in data if "rows" in d]
    assert len(plans) == len(tuned.ranges)
    for told, entry in zip(plans, tuned.plan.entries, strict=True):
        assert told["steps"] == entry.claims["steps"]
        assert sum(row[1] * row[5] for row in told["rows"]) == entry.claims["transfers"]


def test_hostile_names_stay_names(tuned: Tuning) -> None:
    machine = topology("full:ranks=3")
    machine = replace(
        machine,
        name=HOSTILE,
        types=tuple(replace(t, kind=HOSTILE) for t in machine.types),
        places=tuple(f"{HOSTILE}/{i}" for i in range(3)),
    )
    found = tune("broadcast", machine, nbytes="1KB:4KB", workers=0, planners=["ring"])
    found = replace(
        found, model=HOSTILE, candidates=tuple(replace(c, reason=HOSTILE) if c.reason else c for c in found.candidates)
    )
    calm, wild = Page(antiphon.pages.report(tuned)), Page(antiphon.pages.report(found))
    assert HOSTILE.replace(" ", "") in wild.text.replace(" ", "")
    assert {tag for tag, _ in wild.tags} <= {tag for tag, _ in calm.tags} | {"polygon", "text", "rect", "g", "li", "ul"}
    assert sum(tag == "script" for tag, _ in wild.tags) == 1 + 1 + len(found.ranges)
    ElementTree.fromstring(chart_svg(found))
    *given, _ = wild.scripts  # the last is the page's own
    assert not any(set("<>&") & set(script) for script in given)
    told = [json.loads(script) for script in given]
    assert [len(one["places"]) for one in told if "rows" in one] == [3] * len(found.ranges)
    assert all(HOSTILE in place for one in told for place in one.get("places", ()))


def test_the_chart_is_a_picture_by_itself(tuned: Tuning) -> None:
    root = ElementTree.fromstring(chart_svg(tuned))
    texts = [node.text for node in root.iter() if node.tag.endswith("text")]
    assert any("allreduce on dgx1v" in (t or "") for t in texts)
    assert any("the bound" in (t or "") for t in texts)
    lines = [node for node in root.iter() if node.get("data-c") is not None]
    assert len(lines) == sum(bool(c.seconds) for c in tuned.candidates)
    frame = frame_of(tuned, "allreduce", 900, 460, False)
    assert frame.x(tuned.sizes[0]) == pytest.approx(frame.left)
    assert frame.y(1e9) == frame.top
    single = tune("allgather", topology("ring:ranks=3"), nbytes="1MB", workers=0, planners=["ring"])
    ElementTree.fromstring(chart_svg(single))
    assert Page(antiphon.pages.report(single)).tags


def test_an_allocation_without_a_ring_says_what_nccl_would_do() -> None:
    left = only(topology("dgx1v"), [1, 4, 5, 6])
    whole = topology("dgx1v")
    found = tune("broadcast", left, ranks=[1, 4, 5, 6], nbytes="1MB", workers=0, planners=["relay"], against=whole)
    page = Page(antiphon.pages.report(found))
    assert "NCCL falls back to PCIe" in page.text
    assert "What NCCL would do" not in page.text
    assert all(note in page.text for note in found.notes)


@pytest.mark.slow
def test_a_large_machine_has_the_whole_width() -> None:
    for spec, wide in (("dgx1v", False), ("cluster:box=dgx1v,boxes=4", True)):
        found = tune("broadcast", topology(spec), nbytes="1MB", workers=0, planners=["binomial-tree"])
        assert ('class="split machine wide"' in antiphon.pages.report(found)) is wide


@pytest.mark.slow
def test_several_collectives_and_none_at_all() -> None:
    found = tune("all", topology("ring:ranks=3"), nbytes="1KB:64KB", workers=0, planners=["ring", "relay"][:1])
    page = Page(antiphon.pages.report(found))
    assert sum(dict(a).get("role") == "tab" for _, a in page.tags) == 8
    assert ElementTree.fromstring(chart_svg(found)) is not None
    nothing = replace(found, ranges=(), plans={}, candidates=tuple(c for c in found.candidates if not c.seconds))
    assert Page(antiphon.pages.report(nothing)).tags


def one(kind: str, spec: str, **options: Any) -> Schedule:
    machine = topology(spec)
    (made,) = ring(Request(machine, Collective(kind, machine.ranks)), **options)
    return made


def test_a_large_schedule_is_cut_short_at_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    made = one("allreduce", "ring:ranks=8")
    whole = flow.message_rows(made)
    assert (whole["shown"], whole["messages"], len(whole["rows"])) == (14, 14 * 16, 14 * 16)
    monkeypatch.setattr(flow, "MAX_MESSAGES", 40)
    part = flow.message_rows(made)
    assert (part["shown"], part["steps"], part["messages"]) == (2, 14, 14 * 16)
    assert part["rows"] == whole["rows"][:32]
    monkeypatch.setattr(flow, "MAX_MESSAGES", 5)
    assert len(flow.message_rows(made)["rows"]) == 5


def test_messages_are_those_of_the_core_and_say_what_their_rows_do() -> None:
    made = one("allreduce", "ring:ranks=4", pieces=2)
    table = messages(made)
    rows = flow.message_rows(made)["rows"]
    columns = (table.step, table.pieces, table.src, table.dst)
    assert [row[:4] for row in rows] == np.stack(columns, axis=1).tolist()
    assert [row[4] for row in rows] == [int(made.op[row]) for row in table.row.tolist()]
    assert [row[6] for row in rows] == pytest.approx((table.share * table.pieces).tolist())
    for ops, says in (((0, 0), 0), ((1, 1), 1), ((1, 0), 2)):
        two = of_rows("allreduce", 2, [(0, chunk, 0, 1, op) for chunk, op in zip((1, 0), ops, strict=True)], parts=2)
        assert flow.message_rows(two)["rows"] == [[0, 1, 0, 1, says, 2, 1.0, "0, 1"]]
    assert flow.message_rows(made.take([]))["rows"] == []


def test_figures_of_links_and_lanes_agree_with_the_schedule() -> None:
    for made, spec in ((one("allreduce", "ring:ranks=5"), "ring:ranks=5"), (one("broadcast", "dgx1v"), "dgx1v")):
        machine = topology(spec)
        amounts = flow.traffic_matrix(made)
        weights, scale = made.chunks.weights(made.collective)
        assert sum(amounts.values()) == pytest.approx(float(np.sum(weights[made.chunk])) / scale)
        busy = flow.busiest_links(made, machine)
        assert busy["used"] == len({(int(a), int(b)) for a, b in zip(made.src, made.dst, strict=True)})
        assert max(b for _, b, _ in busy["bars"]) <= 1 + 1e-9
        marks, times = step_times(made, machine, 10**6)
        assert marks[-1] == pipelined_steps(made)
        line = float(timeline(made, machine).total) * 10**6
        latency = max(t.latency for t in machine.types) * pipelined_steps(made)
        assert times[-1] == pytest.approx(line + latency)
        deep = pieces_of(made)[made.chunk]
        for rank, op, spans in flow.send_lanes(made):
            mine = (made.src == rank) & (made.op == op)
            steps = {
                s + k for s, d in zip(made.step[mine].tolist(), deep[mine].tolist(), strict=True) for k in range(d)
            }
            assert {s for begin, end in spans for s in range(begin, end)} == steps


EXAMPLES = sorted(p.name for p in (ROOT / "examples").glob("*.py") if "torch" not in p.name)
LONG = {"a_broken_link.py", "tune_a_machine.py"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in EXAMPLES]
)
def test_examples_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    out, err = capsys.readouterr()
    assert out
    assert err == ""


def test_the_script_of_the_page_is_javascript(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    script = ROOT / "src" / "antiphon" / "show" / "pages" / "page.js"
    assert subprocess.run([node, "--check", str(script)], check=False, capture_output=True).returncode == 0
