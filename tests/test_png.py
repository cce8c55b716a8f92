"""Pictures as PNG: on white, large enough for print, with their words; and a clear error where they cannot be made."""

import struct
import sys
import zlib
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from antiphon.cli import run
from antiphon.errors import Missing
from antiphon.select import tune
from antiphon.show.pictures import png
from antiphon.show.pictures.chart import chart_svg
from antiphon.show.pictures.svg import topology_svg
from antiphon.topologies import topology

Capture = pytest.CaptureFixture[str]
needs_plot = pytest.mark.skipif(not all(map(find_spec, ("resvg_py", "pymupdf_fonts"))), reason="needs antiphon[plot]")


def corner(data: bytes) -> list[int]:
    """RGBA of the first pixel of a PNG of 8 bits: it has no neighbour, so every filter leaves it as it is."""
    assert struct.unpack(">BB", data[24:26]) == (8, 6)
    begin = data.index(b"IDAT") + 4
    (size,) = struct.unpack(">I", data[begin - 8 : begin - 4])
    return list(zlib.decompressobj().decompress(data[begin : begin + size], 5)[1:])


@needs_plot
def test_a_machine_is_drawn_on_white_with_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(png, "ZOOM", 1)
    svg = topology_svg(topology("ring:ranks=3"))
    image = png.png_of(svg)
    assert corner(image) == [255] * 4
    assert png.png_of(svg) == image
    bare = svg.replace(">ring:ranks=3</text>", "></text>")
    assert bare != svg
    assert png.png_of(bare) != image  # the letters are drawn


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
    assert run(["topology", "show", "dgx1v", "-o", "m.png", "-o", "m.svg"]) == 0
    assert "written: m.png" in capsys.readouterr().out
    assert Path("m.png").read_bytes() == png.png_of(Path("m.svg").read_text())
    line = "tune all ring:ranks=3 --nbytes 1KB:4KB --planner ring -o t.png -o t.svg"
    assert run(line.split()) == 0
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
    for line in (
        "topology show dgx1v -o m.svg -o m.png",
        "tune allreduce dgx1v -o t.json -o t.png",
    ):
        assert run(line.split()) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert "pip install 'antiphon[plot]'" in err
    assert list(tmp_path.iterdir()) == []  # nothing half done, and no long tuning for nothing
