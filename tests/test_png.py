"""Pictures as PNG: on white, large enough for print, with their words; and a clear error where they cannot be made."""

from __future__ import annotations

import struct
import sys
import zlib
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from antiphon.cli import run
from antiphon.errors import Missing
from antiphon.select import tune
from antiphon.show.pictures import png
from antiphon.show.pictures.chart import chart_svg
from antiphon.show.pictures.svg import topology_svg
from antiphon.topologies import topology

Capture = pytest.CaptureFixture[str]
needs_plot = pytest.mark.skipif(not all(map(find_spec, ("resvg_py", "pymupdf_fonts"))), reason="needs antiphon[plot]")


def pixels(data: bytes) -> NDArray[np.int64]:
    """A PNG of 8 bits RGBA as rows x columns x 4 (PNG, sections 5 and 9: chunks and filters)."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, body = 8, b""
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        name, part = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        if name == b"IHDR":
            width, height, depth, colours = struct.unpack(">IIBB", part[:10])
            assert (depth, colours) == (8, 6)
        body += part if name == b"IDAT" else b""
        at += size + 12
    rows = np.frombuffer(zlib.decompress(body), np.uint8).reshape(height, 1 + 4 * width)
    image = np.zeros((height, width, 4), np.int64)
    above = np.zeros((width, 4), np.int64)
    for y in range(height):
        kind, line = int(rows[y, 0]), rows[y, 1:].reshape(width, 4).astype(np.int64)
        if kind == 1:
            line = np.cumsum(line, axis=0) % 256
        elif kind == 2:
            line = (line + above) % 256
        elif kind:
            left, corner = np.zeros(4, np.int64), np.zeros(4, np.int64)
            for x in range(width):
                guess = (left + above[x]) // 2
                if kind == 4:
                    p = left + above[x] - corner
                    a, b, c = abs(p - left), abs(p - above[x]), abs(p - corner)
                    guess = np.where((a <= b) & (a <= c), left, np.where(b <= c, above[x], corner))
                left, corner = (line[x] + guess) % 256, above[x]
                line[x] = left
        image[y] = above = line
    return image


@needs_plot
def test_a_machine_is_drawn_with_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(png, "ZOOM", 1)
    svg = topology_svg(topology("ring:ranks=3"))
    image = pixels(png.png_of(svg))
    assert image[..., 3].min() == 255
    assert (image[0, 0, :3] == 255).all()
    title = image[10:28, 16:100, :3].min(axis=2)  # bold letters on white
    assert 0.03 < (title < 128).mean() < 0.4
    assert png.png_of(svg) == png.png_of(svg)
    bare = svg.replace(">ring:ranks=3</text>", "></text>")
    assert bare != svg
    gone = pixels(png.png_of(bare))
    assert (gone[10:28, 16:100] == 255).all()


@pytest.mark.slow
@needs_plot
def test_three_pixels_for_one_but_no_more_than_print_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    svg = chart_svg(tune("allreduce", topology("ring:ranks=4"), nbytes="1KB:1MB", workers=0, planners=["ring"]))
    width, height = struct.unpack(">II", png.png_of(svg)[16:24])
    assert f'width="{width // 3}" height="{height // 3}"' in svg
    assert width == 2700
    monkeypatch.setattr(png, "LONGEST", 600)
    assert max(struct.unpack(">II", png.png_of(svg)[16:24])) == 600


@needs_plot
def test_names_in_any_script_can_be_drawn() -> None:
    for name in ("\u8d85\u7b97", "\u03b1\u2013\u044f", "<&>"):
        assert png.png_of(topology_svg(replace(topology("ring:ranks=3"), name=name)))


@pytest.mark.slow
@needs_plot
def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["topology", "show", "dgx1v", "--png", "m.png", "--svg", "m.svg"]) == 0
    assert "written: m.png" in capsys.readouterr().out
    assert Path("m.png").read_bytes() == png.png_of(Path("m.svg").read_text())
    assert (
        run(
            [
                "tune",
                "all",
                "ring:ranks=3",
                "--nbytes",
                "1KB:4KB",
                "--planner",
                "ring",
                "--png",
                "t.png",
                "--svg",
                "t.svg",
            ]
        )
        == 0
    )
    assert "written: t.png" in capsys.readouterr().out
    assert Path("t.png").read_bytes() == png.png_of(Path("t.svg").read_text())


@pytest.mark.parametrize("module", ["resvg_py", "pymupdf_fonts"])
def test_without_the_extra_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, module: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(png, "find_spec", lambda name: None if name == module else sys)
    with pytest.raises(Missing, match=rf"{module}: pip install 'antiphon\[plot\]'"):
        png.check_png()
    for line in ("topology show dgx1v --svg m.svg --png m.png", "tune allreduce dgx1v -o t.json --png t.png"):
        assert run(line.split()) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert "pip install 'antiphon[plot]'" in err
    assert list(tmp_path.iterdir()) == []  # nothing half done, and no long tuning for nothing
