"""How results look in notebooks: Jupyter asks an object for `_repr_html_`, and `show/notebook.py` has the answer.

Machines, bounds and plans belong to the core, which imports nothing of `show`; so that module is loaded only when a
notebook asks.
"""

from __future__ import annotations

import importlib
from typing import Any


class Displayed:
    """A result that notebooks show as a conclusion with a small picture or table."""

    def _repr_html_(self) -> str:
        html: str = importlib.import_module("antiphon.show.notebook").html_of(self)
        return html


class Explorable(Displayed):
    """A result that the explorer shows, too."""

    def explore(self, **options: Any) -> Any:
        """Return an interactive page, which notebooks show; options as of `antiphon.pages.explore`."""
        return importlib.import_module("antiphon.api.exploring").explore(self, **options)


__all__ = ["Displayed", "Explorable"]
