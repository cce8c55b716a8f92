"""How fast the explorer's page of 1,024 GPUs and two million transfers is seen and played, in headless Chromium.

    python bench/bench_explorer.py            # needs playwright and a Chromium

Prints the size of the page, the milliseconds until its machine is drawn and until every transfer is unpacked, and the
frames per second while it plays (software rendering).
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path

import antiphon

MACHINES = ("dgx1v", "cluster:box=hgx-h100,boxes=4", "sym384", "torus:dims=8x8x8", "cluster:box=hgx-h100,boxes=128")
FLAGS = ["--no-sandbox", "--disable-gpu"]
MARKS = "performance.getEntriesByType('mark').filter((m) => m.name === 'machine drawn').map((m) => m.startTime)[0]"
FRAMES = """async () => {
  document.querySelector(".play").click();
  const surface = explorer.parts.machine.surface, draw = surface.drawNow.bind(surface), begin = performance.now();
  let frames = 0;
  surface.drawNow = () => { frames++; draw(); };
  await new Promise((done) => setTimeout(done, 4000));
  return (frames * 1000) / (performance.now() - begin);
}"""


def measure_page(file: Path) -> dict[str, float]:
    """Return when the machine and the whole page are there, in milliseconds, and the frames per second."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(f"file://{file}")
        page.wait_for_selector("html[data-ready]")
        ready = page.evaluate("performance.now()")
        figures = {"machine drawn": page.evaluate(MARKS), "ready": ready, "frames": page.evaluate(FRAMES)}
        browser.close()
    return figures


def main() -> None:
    """Print a line per machine."""
    if importlib.util.find_spec("playwright") is None or shutil.which("chromium") is None:
        print("needs playwright (pip install playwright) and chromium")
        return
    for spec in MACHINES:
        plan = antiphon.plan("allreduce", spec, planner="ring", options={"directions": 1})
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "page.html"
            file.write_text(antiphon.pages.explore(plan))
            figures = measure_page(file)
            size = file.stat().st_size / 1e6
        times = f"machine drawn after {figures['machine drawn']:.0f} ms, all after {figures['ready']:.0f} ms"
        print(f"{spec}: {size:.1f} MB, {times}, {figures['frames']:.0f} frames/s")


if __name__ == "__main__":
    main()
