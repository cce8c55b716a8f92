"""Draw the picture of README, for light and dark pages, from what bench/bench_lab.py measured.

Run: PYTHONPATH=bench build/venv/bin/python release/readme_picture.py writes docs/gain-light.svg and docs/gain-dark.svg.
"""

from __future__ import annotations

import json
from pathlib import Path

from _bars import Bar, measured_svg

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "lab.json"
PICTURES = {"light": ROOT / "docs" / "gain-light.svg", "dark": ROOT / "docs" / "gain-dark.svg"}
TITLE = "Allreduce of 2 MB between some GPUs of a DGX-1V, on emulated links of 40 Mbit/s"
SHOWN = ("0,3,4,5,6,7", "0,1,2,4,5", "1,4,5,6")
DARK_COLOURS = {  # of a light page -> of a dark one
    "#ffffff": "#0d1117", "#ebe8e1": "#30363d", "#55524b": "#b9b5ac", "#77736a": "#b9b5ac", "#8d897f": "#8d897f",
    "#c9c6bf": "#77736a", "#2f6fab": "#4f9fe0", "#c2622d": "#f0883e", 'font-size="12"': 'font-size="12" fill="#e6edf3"',
}  # fmt: skip


def draw_pictures() -> dict[str, str]:
    """The picture as SVG, by the kind of page."""
    rows = {
        row["ranks"]: row for row in json.loads(RESULTS.read_text())["allocations"] if row["collective"] == "allreduce"
    }
    bars = []
    for ranks in SHOWN:
        for name, key in (("MPICH", "library"), ("Antiphon", "trees")):
            time = rows[ranks][key]
            bar = Bar(
                f"{name}, GPUs {ranks}", time["seconds"], time["least"], time["most"], time.get("predicted_seconds")
            )
            bars.append(bar)
    light = measured_svg(TITLE, bars)
    dark = light
    for colour, replacement in DARK_COLOURS.items():
        dark = dark.replace(colour, replacement)
    return {"light": light, "dark": dark}


if __name__ == "__main__":
    for kind, picture in draw_pictures().items():
        PICTURES[kind].write_text(picture, encoding="utf-8")
