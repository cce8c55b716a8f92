"""Machines as tools have printed them in public: texts in `probe/`, and in cases.json the machine that a person draws.

Sources are public issues and documents (GitHub unless they say otherwise). Numbers of links and places are theirs; the
texts were written from these facts, in the form of each tool.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "probe"


@dataclass(frozen=True)
class Case:
    """A text, and the machine that a person draws of it."""

    name: str
    source: str
    text: str
    ranks: int
    switches: int
    links: str
    limits: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    notes: Sequence[str] = ()  # words that some note has
    cards: Mapping[str, tuple[int, ...]] | None = None  # the ranks that each serves, where it matters
    sharp: bool = False
    options: Mapping[str, object] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)  # that it names, beside it
    figures: Sequence[tuple[str, float, float]] = ()  # of LogGP, each level's place, L and G
    ports: int | None = None  # messages that leave a host at once


def _read_case(row: dict[str, Any]) -> Case:
    for name in ("limits", "cards"):
        if name in row:
            row[name] = {key: tuple(values) for key, values in row[name].items()}
    if "files" in row:
        row["files"] = {path.name: path.read_text("utf-8") for path in sorted((FOLDER / row["files"]).iterdir())}
    return Case(**{**row, "text": (FOLDER / row["text"]).read_text("utf-8")})


CASES = {
    reader: [_read_case(row) for row in rows]
    for reader, rows in json.loads((FOLDER / "cases.json").read_text()).items()
}


def text_of(reader: str, name: str) -> str:
    """The text of the case whose name begins so."""
    return next(case.text for case in CASES[reader] if case.name.startswith(name))


DGX1V, DGX_A100 = text_of("nvidia-smi", "DGX-1V"), text_of("nvidia-smi", "DGX A100")
HGX_H100, HIVE = text_of("nvidia-smi", "HGX H100"), text_of("rocm-smi", "MI300X")
