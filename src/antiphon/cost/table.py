"""The built-in cost models by name. To add one: a file with a predict function, and a line here."""

from __future__ import annotations

from antiphon.registry import Entry

TABLE: dict[str, Entry] = {}
