"""The explorer: its data are those of the plan and of one model, and it works in a browser without loading anything."""

import base64
import re
import shutil
import subprocess
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Capture, complaint
from pages import Page
from tables import listed

import antiphon
from antiphon.cli import run
from antiphon.core.plan import Plan
from antiphon.cost import prepare
from antiphon.show.explorer.packing import TICKS, Pack, ticks
from antiphon.show.explorer.page import SCRIPTS

FOLDER = Path(antiphon.__file__).parent / "show" / "explorer"
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


@pytest.mark.parametrize("model", ["alpha-beta", "critical-path", "calls", "flows", "loggp"])
def test_the_transfers_are_those_of_the_one_model_of_the_page(ring: Plan, model: str) -> None:
    profile = "loggp-delta" if model == "loggp" else None
    page = Page(antiphon.pages.explore(ring, nbytes="64KiB", model=model, profile=profile)).data
    (group,) = page["groups"]
    (timed,) = (plan["timed"] for plan in group["plans"])
    predictor: Any = prepare(model, ring.entries[0].schedule, ring.topology, profile=profile)
    assert page["model"].startswith(f"times by model {model}")
    at = group["sizes"].index(65536)
    assert group["candidates"][0]["seconds"][at] == pytest.approx(predictor(65536).seconds, rel=1e-4)
    assert timed["total"] == pytest.approx(predictor(65536).seconds, rel=1e-6)
    columns, events = unpack(timed["pack"]), predictor.events(65536)
    table = events.paths.messages
    order = np.argsort(events.start, kind="stable")
    scale = timed["total"] / TICKS
    assert columns["start"] * scale == pytest.approx(events.start[order], abs=4 * scale)
    assert sorted(
        zip(columns["step"].tolist(), columns["src"].tolist(), columns["dst"].tolist(), strict=True)
    ) == sorted(zip(table.step.tolist(), table.src.tolist(), table.dst.tolist(), strict=True))
    assert (columns["start"] + columns["lasts"]).max() == pytest.approx(TICKS, rel=1e-3)
    assert columns["chunks"].sum() == len(columns["chunk"]) == table.schedule.transfers
    assert columns["shares"][columns["share"]].sum() == pytest.approx(table.share.sum(), rel=1e-4)
    assert columns["use_count"].sum() == len(columns["use_message"]) == len(events.paths.use_message)
    # every hop of a message is a link from where it is to where it goes
    links = unpack(page["machine"]["links"])
    owner = np.repeat(np.arange(len(columns["use_count"])), columns["use_count"])
    direct = owner < len(links["src"])
    assert (links["src"][owner[direct]] == columns["src"][columns["use_message"][direct]]).all()


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
    assert "name it page.html" in complaint(capsys, "explore", "plan.json", "-o", "page.txt")
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
    result = antiphon.sweep.run("study.toml")
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


def test_scripts_parse_alone_and_together(ring: Plan, tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    texts = {name: (FOLDER / f"{name}.js").read_text() for name in SCRIPTS}
    for name, text in {**texts, "page": Page(antiphon.pages.explore(ring)).scripts[1]}.items():
        script = tmp_path / f"{name}.mjs"
        script.write_text(text)
        done = subprocess.run([node, "--check", str(script)], check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


# ---- in a browser ----


FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]


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


SPECS = ["dgx1v", "cluster:box=hgx-h100,boxes=4", "torus:dims=4x4x4"]


@pytest.mark.parametrize("spec", SPECS)
def test_a_browser_plays_follows_zooms_pins_and_compares(browser: Any, spec: str, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(antiphon.pages.explore(antiphon.plan("allreduce", spec)))
    page, problems = visit(browser, file)
    page.get_by_role("button", name="play").click()
    wait_until(page, "explorer.state.time > 0.01")
    page.get_by_role("button", name="pause").click()
    page.get_by_role("button", name="one step on").click()
    before = page.evaluate("explorer.state.time")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("explorer.state.time") > before
    # follow a rank by a click on the machine, then a link by the list
    x, y = page.evaluate(
        "(() => { const m = explorer.parts.machine, v = m.view || m.fit(m.surface.width, m.surface.height);"
        " const n = m.level.nodes.find((n) => n.shape === 'rank');"
        " return [n.x * v.scale + v.x, n.y * v.scale + v.y]; })()"
    )
    page.locator(".machine canvas").click(position={"x": x, "y": y})
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_narrow_pages_and_paper_show_it_all(browser: Any, ring: Plan, scheme: str, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(antiphon.pages.explore(ring))
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


def test_nothing_serious_keeps_anyone_from_reading_it(browser: Any, ring: Plan, tmp_path: Path) -> None:
    rules = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    script = (Path(rules.__file__).parent / "axe.min.js").read_text()
    file = tmp_path / "page.html"
    file.write_text(antiphon.pages.explore(ring))
    for width, scheme in ((1280, "light"), (420, "dark")):
        page = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True
        ).new_page()
        page.goto(f"file://{file}#pins=0&pick=rank:1&time=0.5&cut=1")
        page.wait_for_selector("html[data-ready]")
        page.evaluate(script)
        assert [(v["id"], v["impact"]) for v in page.evaluate("axe.run(document)")["violations"]] == []


@pytest.mark.slow
def test_a_thousand_ranks_and_a_million_transfers_stay_usable(browser: Any, tmp_path: Path) -> None:
    plan = antiphon.plan("allreduce", "cluster:box=hgx-h100,boxes=128", planner="ring", options={"directions": 1})
    file = tmp_path / "page.html"
    file.write_text(antiphon.pages.explore(plan))
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
        page.get_by_label(label).select_option(value)
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
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each sort."""
    folder = tmp_path_factory.mktemp("pages")
    how: dict[str, Any] = {"nbytes": "1KB:64MB", "search": antiphon.Search(workers="none")}
    planners = ["ring", "multi-ring", "recursive-doubling", "direct", "nvls"]
    (folder / "study.toml").write_text(
        'collectives = "allgather"\nnbytes = "1MB"\nplanners = ["ring"]\n[[machines]]\ntopology = "ring"\n'
        'vary = { ranks = [4, 8] }\n[[prices]]\nname = "list"\nrank = 2.5\n'
    )
    contents: dict[str, Any] = {
        "tuning": antiphon.tune("allreduce", "dgx1v", planners=planners, **how),
        "cluster": antiphon.plan("allreduce", "cluster:box=hgx-h100,boxes=4"),
        "table": antiphon.tune("all", "ring:ranks=4", planners=["ring", "direct"], **how).plans,
        "frontier": antiphon.frontier.find("allgather", "dgx1v", steps=3, effort=1),
        "sweep": antiphon.sweep.run(folder / "study.toml"),
    }
    for name, content in contents.items():
        (folder / f"{name}.html").write_text(antiphon.pages.explore(content))
    return {name: folder / f"{name}.html" for name in contents}


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


def test_an_address_that_makes_no_sense_shows_the_page(browser: Any, pages: dict[str, Path]) -> None:
    for fragment in (
        "time=nan&from=1&to=0&group=7&plan=-4", "pick=link:-1", "pick=rank:999999", "pick=chunk:99999999&time=2",
        "pick=__proto__:1&theme=x&rows=%3Cb%3E&colour=y&level=z", "pins=0,999,x&sort=-nothing&relative=3&to=1e-9",
    ):  # fmt: skip
        page, problems = visit(browser, pages["tuning"], fragment="#" + fragment)
        page.keyboard.press("ArrowRight")
        page.keyboard.press("+")
        assert problems == [], fragment
        page.context.close()
