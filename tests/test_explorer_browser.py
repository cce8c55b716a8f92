"""The explorer in a real Chromium: played, followed, narrow, dark, on paper and in a notebook; it loads nothing."""

import re
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tables import listed

import antiphon
from antiphon.core.plan import Plan
from antiphon.cost import prepare

FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]


@pytest.fixture(scope="module")
def ring() -> Plan:
    return antiphon.plan("allreduce", "dgx1v", planner="multi-ring")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium is installed")
    with api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield running
        running.close()


def visit(
    browser: Any, file: Path, width: int = 1280, scheme: str = "light", fragment: str = ""
) -> tuple[Any, list[str]]:
    """Open a page; return it and a list that gets every error and every request."""
    page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("request", lambda r: problems.append(r.url) if not r.url.startswith(("file:", "blob:", "about:")) else None)
    page.goto(f"file://{file}{fragment}")
    page.wait_for_selector("html[data-ready]")
    return page, problems


def wait_until(page: Any, condition: str) -> None:
    """Wait until a script returns true; the page's policy keeps playwright's own way from working."""
    for _ in range(200):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"not true within 10 s: {condition}")


THOUSAND = "cluster:box=hgx-h100,boxes=128"
MACHINES = ["dgx1v", "cluster:box=hgx-h100,boxes=4", "sym384", "torus:dims=8x8x8", THOUSAND]


@cache
def page_of(spec: str) -> str:
    """A page of an allreduce; of a thousand ranks in one direction, so that it can be played."""
    how: dict[str, Any] = {"planner": "ring", "options": {"directions": 1}} if spec == THOUSAND else {}
    return antiphon.pages.explore(antiphon.plan("allreduce", spec, **how))


@pytest.mark.parametrize(
    "spec", [pytest.param(spec, marks=[pytest.mark.slow] if i else []) for i, spec in enumerate(MACHINES)]
)
def test_a_browser_plays_follows_zooms_pins_and_compares(browser: Any, spec: str, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(page_of(spec))
    page, problems = visit(browser, file)
    page.get_by_role("button", name="play").click()
    wait_until(page, "explorer.state.time > 0.01")
    page.get_by_role("button", name="pause").click()
    page.get_by_role("button", name="one step on").click()
    before = page.evaluate("explorer.state.time")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("explorer.state.time") > before
    # follow a rank by a click on the machine, then a link by the list
    page.locator(".machine canvas").click(position=page.evaluate(WHERE_IS_RANK, 0))
    if page.evaluate("explorer.state.pick").startswith("node:"):  # ranks are folded
        page.locator(".pick .chip").first.click()
    assert page.evaluate("explorer.state.pick") == "rank:0"
    assert "rank 0" in page.locator(".pick").inner_text()
    page.locator(".bars button").first.click()
    assert page.evaluate("explorer.state.pick").startswith("link:")
    page.locator(".timeline canvas").focus()
    page.keyboard.press("+")
    assert page.evaluate("explorer.state.to - explorer.state.from") < 1
    page.get_by_label("rows of the timeline").select_option("links")
    page.get_by_role("checkbox").first.check()
    assert page.get_by_label("comparison").is_visible()
    page.keyboard.press("Escape")
    # the address shows the same again
    wait_until(page, "location.hash.includes('pins')")
    again, more = visit(browser, file, fragment=page.evaluate("location.hash"))
    assert again.evaluate("explorer.state") == pytest.approx(page.evaluate("explorer.state"), abs=1e-8)
    assert problems + more == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "scheme"),
    [("dgx1v", "dark"), *((spec, "light") for spec in MACHINES)],
)
def test_narrow_pages_and_paper_show_it_all(browser: Any, spec: str, scheme: str, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(page_of(spec))
    page, problems = visit(browser, file, 420, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    drawn = (
        "[...document.querySelectorAll('canvas')].every((c) =>"
        " c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(Boolean))"
    )
    assert page.evaluate(drawn)
    assert len(page.pdf()) > 10_000
    for kind in ("svg", "png"):
        with page.expect_download() as download:
            page.evaluate(f"explorer.parts.machine.surface.save('{kind}')")
        assert download.value.suggested_filename == f"machine.{kind}"
    assert problems == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "scheme"), [(420, "dark"), (1280, "light")]
)  # fmt: skip
def test_nothing_serious_keeps_anyone_from_reading_it(
    browser: Any, ring: Plan, width: int, scheme: str, tmp_path: Path
) -> None:
    rules = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    script = (Path(rules.__file__).parent / "axe.min.js").read_text()
    file = tmp_path / "page.html"
    file.write_text(antiphon.pages.explore(ring))
    page = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True
    ).new_page()  # fmt: skip
    page.goto(f"file://{file}#pins=0&pick=rank:1&time=0.5&cut=1")
    page.wait_for_selector("html[data-ready]")
    page.evaluate(script)
    assert [(v["id"], v["impact"]) for v in page.evaluate("axe.run(document)")["violations"]] == []


@pytest.mark.slow
def test_a_run_is_compared_with_its_prediction(browser: Any, ring: Plan, tmp_path: Path) -> None:
    antiphon.predict(ring, "64KiB", trace=tmp_path / "trace.json", model="critical-path")
    file, alone = tmp_path / "page.html", tmp_path / "alone.html"
    file.write_text(antiphon.pages.explore(ring, trace=tmp_path / "trace.json", model="alpha-beta"))
    alone.write_text(antiphon.pages.explore(tmp_path / "trace.json"))
    page, problems = visit(browser, file, fragment="#pick=message:9")
    assert "predicted: from" in page.locator(".pick").inner_text()
    traced = page.locator(".where").inner_text()
    page.get_by_label("times", exact=True).select_option("model")
    wait_until(page, f"document.querySelector('.where').textContent !== {traced!r}")
    page, more = visit(browser, alone)
    page.get_by_role("button", name="one step on").click()
    page.locator(".moment button").first.click()
    assert "carries" in page.locator(".pick").inner_text()
    assert page.locator("#the-times").count() == 0
    assert problems + more == []


@pytest.mark.slow
def test_what_is_followed_is_drawn_as_its_tree(browser: Any, tmp_path: Path) -> None:
    plan = antiphon.plan("broadcast", "dgx1v", planner="binomial-tree")
    file = tmp_path / "page.html"
    file.write_text(antiphon.pages.explore(plan))
    page, problems = visit(browser, file, fragment="#pick=chunk:0")
    lit = page.evaluate(
        "(() => { const { run } = explorer.parts.machine, lit = run.trafficOf(run.follow({ kind: 'chunk', id: 0 }));"
        " return [...lit.keys()].filter((link) => lit[link]); })()"
    )
    (entry,) = plan.entries
    predictor: Any = prepare("alpha-beta", entry.schedule, plan.topology)
    assert lit == sorted(set(predictor.events(1).paths.use_resource.tolist()))
    assert page.evaluate("explorer.parts.machine.showsTraffic")
    assert problems == []


@pytest.mark.slow
def test_a_notebook_shows_it_in_a_frame(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "notebook.html"
    file.write_text(f"<!DOCTYPE html><body>{antiphon.plan('allreduce', 'ring:ranks=4').explore()._repr_html_()}</body>")
    page = browser.new_context(viewport={"width": 900, "height": 900}).new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(f"file://{file}")
    frame = page.frame_locator("iframe")
    frame.get_by_role("button", name="one step on").click()
    frame.locator(".moment button").first.click()
    assert "rank" in frame.locator(".pick h3").inner_text()
    page.wait_for_timeout(300)  # by then the address would have been written
    assert problems == []


@pytest.mark.slow
def test_a_thousand_ranks_and_a_million_transfers_stay_usable(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(page_of(THOUSAND))
    assert file.stat().st_size < 2**22
    page, problems = visit(browser, file)
    assert page.evaluate("[explorer.parts.machine.run.count, explorer.parts.machine.level.nodes.length]") == [
        2095104,
        129,
    ]
    page.get_by_role("button", name="play").click()
    wait_until(page, "explorer.state.time > 0.02")
    page.get_by_label("detail").select_option("0")  # every rank
    page.get_by_label("rows of the timeline").select_option("links")
    page.locator(".bars button").first.click()
    assert page.evaluate("explorer.state.pick").startswith("link:")
    assert problems == []


def act(page: Any, step: str) -> None:
    """Do one click, choice or key of a task."""
    kind, _, rest = step.partition(" ")
    if kind == "button":
        page.get_by_role("button", name=rest).first.click()
    elif kind == "css":
        page.locator(rest).first.click()
    elif kind == "filter":
        page.get_by_label("filter candidates").fill(rest)
    elif kind == "select":
        label, _, value = rest.partition("=")
        page.get_by_label(label, exact=True).select_option(value)
    elif kind == "key":
        page.keyboard.press(rest)
    else:
        assert kind == "rank", step
        page.locator(".machine canvas").click(position=page.evaluate(WHERE_IS_RANK, int(rest)))


WHERE_IS_RANK = """(rank) => {
  const m = explorer.parts.machine, v = m.view || m.fit(m.surface.width, m.surface.height);
  const n = m.level.nodes.find((n) => n.ranks.includes(rank));
  return { x: n.x * v.scale + v.x, y: n.y * v.scale + v.y };
}"""


@pytest.fixture(scope="module")
def tuning_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with several candidates and ranges."""
    file = tmp_path_factory.mktemp("tuning") / "page.html"
    planners = ["ring", "multi-ring", "recursive-doubling", "direct", "nvls"]
    search = antiphon.Search(workers="none")
    tuning = antiphon.tune("allreduce", "dgx1v", planners=planners, nbytes="1KB:64MB", search=search)
    file.write_text(antiphon.pages.explore(tuning))
    return file


@pytest.fixture(scope="module")
def pages(tuning_page: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each sort."""
    folder = tmp_path_factory.mktemp("pages")
    how: dict[str, Any] = {"nbytes": "1KB:64MB", "search": antiphon.Search(workers="none")}
    (folder / "study.toml").write_text(
        'collectives = "allgather"\nnbytes = "1MB"\nplanners = ["ring"]\n[[machines]]\ntopology = "ring"\n'
        'vary = { ranks = [4, 8] }\n[[prices]]\nname = "list"\nrank = 2.5\n'
    )
    contents: dict[str, Any] = {
        "cluster": antiphon.plan("allreduce", "cluster:box=hgx-h100,boxes=4"),
        "table": antiphon.tune("all", "ring:ranks=4", planners=["ring", "direct"], **how).plans,
        "frontier": antiphon.frontier.find("allgather", "dgx1v", steps=3, effort=1),
        "sweep": antiphon.sweep.run(folder / "study.toml"),
    }
    antiphon.predict(contents["cluster"], "1MB", trace=folder / "trace.json")
    contents["trace"] = folder / "trace.json"
    (folder / "run.html").write_text(antiphon.pages.explore(contents["cluster"], trace=folder / "trace.json"))
    for name, content in contents.items():
        (folder / f"{name}.html").write_text(antiphon.pages.explore(content))
    return {"tuning": tuning_page, **{name: folder / f"{name}.html" for name in (*contents, "run")}}


@pytest.mark.slow
def test_forty_questions_take_at_most_three_clicks(browser: Any, pages: dict[str, Path]) -> None:
    unanswered = []
    open_pages = {name: visit(browser, file) for name, file in pages.items()}
    for question, name, clicks, where, shows in listed("explorer-tasks"):
        steps = [step for step in clicks.split("; ") if step]
        assert len(steps) <= 3, question
        page, problems = open_pages[name]
        page.goto("about:blank")
        page.goto(f"file://{pages[name]}")
        page.wait_for_selector("html[data-ready]")
        try:
            for step in steps:
                act(page, step)
            text = " ".join(page.locator(where).first.inner_text().split())
        except Exception as error:
            text = str(error)
        if not re.search(shows, text) or problems:
            unanswered.append((question, text[:300], problems))
    assert unanswered == []


@pytest.mark.slow
def test_an_address_that_makes_no_sense_shows_the_page(browser: Any, tuning_page: Path) -> None:
    for fragment in (
        "time=nan&from=1&to=0&group=7&plan=-4", "pick=link:-1", "pick=rank:999999", "pick=chunk:99999999&time=2",
        "pick=__proto__:1&theme=x&rows=%3Cb%3E&colour=y&level=z", "pins=0,999,x&sort=-nothing&relative=3&to=1e-9",
    ):  # fmt: skip
        page, problems = visit(browser, tuning_page, fragment="#" + fragment)
        page.keyboard.press("ArrowRight")
        page.keyboard.press("+")
        assert problems == [], fragment
        page.context.close()
