"""The result of reading another runtime's file, and the error for an incorrect one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from antiphon.errors import Infeasible
from antiphon.formats.lint.form import Head
from antiphon.lower.machine.code import Code


@dataclass(frozen=True)
class ForeignProgram:
    """What a file says of itself, and what it does, by the places that it is for ("out of place", "in place")."""

    head: Head
    codes: Mapping[str, Code]


class Wrong(Infeasible):
    """The program does not do what its file states: the `kind` of fault, and a sentence that names rank, block and
    step."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
