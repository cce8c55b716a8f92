"""Write the explorer's page: one HTML file with its style, scripts and data, which loads nothing else.

The scripts are JavaScript modules, so that they can be checked and tested one by one. In the page they are concatenated
to one module, without their imports and `export` keywords. Data are JSON in a script element (`as_script`), in which no
text of a name can end the element.
"""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path
from typing import Any

from antiphon import __version__

# Each after those that it imports.
SCRIPTS = ("basics", "state", "surface", "run", "machine", "timeline", "chart", "tables", "main")
# What is removed from the scripts: imports, and the word export before a declaration.
_IMPORT = re.compile(r"^import [^;]*;\n|^export (?=(?:async )?(?:function|const|let|class)\b)", re.MULTILINE)


def as_script(value: Any) -> str:
    """Return JSON that is safe inside a script element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def explorer_html(page: dict[str, Any], origin: str = "") -> str:
    """Return the page, with every name in it escaped.

    `page`: from payload.py. `origin`: the time and the command that made it, for the last line.
    """
    folder = Path(__file__).parent
    style = (folder / "explorer.css").read_text(encoding="utf-8")
    script = "\n".join(_IMPORT.sub("", (folder / f"{name}.js").read_text(encoding="utf-8")) for name in SCRIPTS)
    title, headline = escape(page["title"]), escape(page["headline"])
    facts = re.sub("`(.*?)`", r"<code>\1</code>", " · ".join(map(escape, [page["model"], *page["facts"]])))
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src blob: data:"
    source = f"Antiphon {escape(__version__)}{', ' + escape(origin) if origin else ''}"
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title>\n<style>\n{style}</style></head>\n<body>",
            f'<header><h1>{title}</h1><p id="headline">{headline}</p><p id="facts">{facts}</p></header>',
            "<noscript><p>This page needs JavaScript for its pictures; it loads nothing.</p></noscript>",
            f'<main id="main"></main>\n<footer><p>{source}</p></footer>',
            f'<script type="application/json" id="data">{as_script(page)}</script>',
            f'<script type="module">\n"use strict";\n{script}</script>\n</body></html>\n',
        ]
    )
