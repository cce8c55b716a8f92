"""Convert our SVG pictures to PNG, with the optional packages of the extra [plot] (a renderer and fonts)."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

from antiphon.errors import Missing

ZOOM = 3  # 288 pixels per inch
LONGEST = 12_000  # pixels of the longer side, however large the picture
_NEEDS = ("resvg_py", "pymupdf_fonts")
_FONTS = {"regular.ttf": "notos", "bold.ttf": "notosbo"}


def check_png() -> None:
    """Raise Missing unless PNG can be made here. Called before long work, so that it is not in vain."""
    for module in _NEEDS:
        if find_spec(module) is None:
            raise Missing(f"PNG needs the package {module}: pip install 'antiphon[plot]'; SVG needs nothing")


def png_of(svg: str) -> bytes:
    """Return the picture on white, three times as large in pixels, the same on every machine: fonts come with [plot].

    Fonts of the machine are only used for letters that its Noto Sans lacks (it has Latin, Greek and Cyrillic).
    """
    check_png()
    import resvg_py
    from pymupdf_fonts import myfont

    root = ElementTree.fromstring(svg)
    side = max(float(root.attrib["width"]), float(root.attrib["height"]))
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in _FONTS]
        for file, code in zip(files, _FONTS.values(), strict=True):
            file.write_bytes(myfont(code))
        return bytes(
            resvg_py.svg_to_bytes(
                svg_string=svg,
                background="#ffffff",
                zoom=min(ZOOM, LONGEST / side),
                style_sheet='svg { font-family: "Noto Sans" }',
                sans_serif_family="Noto Sans",
                font_files=[str(file) for file in files],
                skip_system_fonts=all(ord(letter) < 0x530 or 0x2010 <= ord(letter) <= 0x2027 for letter in svg),
            )
        )
