"""Convert our SVG pictures to PNG, with the optional packages of the extra [plot] (a renderer and fonts).

The command line calls `check_png` before a long computation and `png_of` after it.
"""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

from antiphon.errors import Missing

ZOOM = 3  # 288 pixels per inch
LONGEST = 12_000  # pixels of the longer side: larger pictures are zoomed less
_NEEDS = ("resvg_py", "pymupdf_fonts")
_FONTS = {"regular.ttf": "notos", "bold.ttf": "notosbo"}  # file to write -> code of the font in pymupdf_fonts


def check_png() -> None:
    """Raise Missing unless PNG can be made here. Called before long work, so that it is not in vain."""
    for module in _NEEDS:
        if find_spec(module) is None:
            raise Missing(f"PNG needs the package {module}: pip install 'antiphon[plot]'; SVG needs nothing")


def png_of(svg: str) -> bytes:
    """Return the picture as a PNG on white, ZOOM times as large in pixels, the same on every machine.

    The font is Noto Sans, which comes with [plot] and has Latin, Greek and Cyrillic. Fonts of the machine are used only
    if the picture has other characters.
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
                # below U+0530: Latin, Greek and Cyrillic; U+2010 to U+2027: dashes, quotes, ellipsis
                skip_system_fonts=all(ord(char) < 0x530 or 0x2010 <= ord(char) <= 0x2027 for char in svg),
            )
        )
