"""The runtimes whose rules are known, by name."""

from __future__ import annotations

from antiphon.formats.lint.form import Runtime
from antiphon.formats.lint.msccl import MSCCL, RCCL
from antiphon.formats.lint.mscclpp import MSCCLPP

RUNTIMES: dict[str, Runtime] = {one.name: one for one in (MSCCL, RCCL, MSCCLPP)}
