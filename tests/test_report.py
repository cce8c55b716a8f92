"""The report of a tuning and its chart; the examples run. The page itself: test_explorer.py."""

import runpy
from dataclasses import replace
from html import escape
from pathlib import Path
from xml.etree import ElementTree

import pytest
from pages import Page

import antiphon
from antiphon.select import Tuning, tune
from antiphon.show.pictures.chart import chart_svg, frame_of
from antiphon.topologies import topology

ROOT = Path(__file__).parent.parent
HOSTILE = "</script ><script>alert(1)</script><img src=x onerror=alert(2)> \"'&"


@pytest.fixture(scope="module")
def tuned() -> Tuning:
    planners = ["ring", "multi-ring", "halving-doubling", "recursive-doubling", "direct", "nvls", "relay"]
    return tune("allreduce", topology("dgx1v"), nbytes="1KB:1GB", workers=0, planners=planners)


def test_the_page_has_every_candidate_and_the_verdict(tuned: Tuning) -> None:
    text = antiphon.pages.report(tuned, origin="2026-01-02: antiphon tune <x>")
    page = Page(text)
    assert f'<p id="headline">{escape(tuned.verdicts["allreduce"])}</p>' in text
    assert "2026-01-02: antiphon tune &lt;x&gt;</p></footer>" in text
    (group,) = page.data["groups"]
    assert group["sizes"] == list(tuned.sizes)
    for shown, c in zip(group["candidates"], tuned.candidates, strict=True):
        assert shown["planner"] == c.planner
        if not c.seconds:
            assert (shown["status"], shown["reason"]) == (c.status, c.reason)
            continue
        assert shown["seconds"] == pytest.approx(list(c.seconds.values()), rel=1e-4)
        assert [shown["names"][n] for n in shown["limited"]] == [bottleneck for bottleneck, _ in c.why.values()]
    for shown, plan, r in zip(group["ranges"], group["plans"], tuned.ranges, strict=True):
        assert (shown["seconds"], shown["gap"], shown["speedup"]) == (r.seconds, r.gap, r.speedup)
        assert plan["timed"]["total"] == pytest.approx(r.seconds, rel=1e-6)  # one model on the page
    assert text == antiphon.pages.report(tuned, origin="2026-01-02: antiphon tune <x>")


def test_the_chart_is_a_picture_by_itself(tuned: Tuning) -> None:
    root = ElementTree.fromstring(chart_svg(tuned))
    texts = [node.text for node in root.iter() if node.tag.endswith("text")]
    assert any("allreduce on dgx1v" in (t or "") for t in texts)
    assert any("the bound" in (t or "") for t in texts)
    lines = [node for node in root.iter() if node.get("data-c") is not None]
    assert len(lines) == sum(bool(c.seconds) for c in tuned.candidates)
    frame = frame_of(tuned, "allreduce", 900, 460)
    assert frame.x(tuned.sizes[0]) == pytest.approx(frame.left)
    assert frame.y(1e9) == frame.top
    single = tune("allgather", topology("ring:ranks=3"), nbytes="1MB", workers=0, planners=["ring"])
    ElementTree.fromstring(chart_svg(single))
    assert Page(antiphon.pages.report(single)).data["groups"]


@pytest.mark.slow
def test_several_collectives_and_none_at_all() -> None:
    found = tune("all", topology("ring:ranks=3"), nbytes="1KB:64KB", workers=0, planners=["ring"])
    assert [group["kind"] for group in Page(antiphon.pages.report(found)).data["groups"]] == list(found.collectives)
    assert ElementTree.fromstring(chart_svg(found)) is not None
    nothing = replace(found, ranges=(), plans={}, candidates=tuple(c for c in found.candidates if not c.seconds))
    assert not any(group["plans"] for group in Page(antiphon.pages.report(nothing)).data["groups"])


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
