"""Rows of `antiphon reproduce` by their names, held to their form."""

import json
from collections.abc import Iterable
from typing import Any

KEYS = {"name", "published", "ours", "deviation", "ok", "note", "engine", "seconds", "proof"}


def by_name(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Each row as its JSON reads."""
    found = list(rows)
    assert all(set(row) == KEYS for row in found)
    named: dict[str, dict[str, Any]] = {row["name"]: row for row in json.loads(json.dumps(found))}
    assert len(named) == len(found)
    return named
