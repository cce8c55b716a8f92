"""The built-in back ends by name. To add one: a file with an emit function, and a line here."""

from __future__ import annotations

from antiphon.registry import Entry

TABLE: dict[str, Entry] = {}
