"""The runtimes whose rules are known, by name."""

from __future__ import annotations

from antiphon.formats.lint.form import RuntimeRules
from antiphon.formats.lint.msccl import MSCCL, RCCL
from antiphon.formats.lint.mscclpp import MSCCLPP

RUNTIMES: dict[str, RuntimeRules] = {runtime.name: runtime for runtime in (MSCCL, RCCL, MSCCLPP)}

# Libraries that cannot run schedules -> the back end that writes which of their own algorithms they shall use
CHOOSERS = {
    "nccl": "nccl-tuner", "ncclx": "ncclx-csv", "openmpi": "openmpi-rules", "mpich": "mpich-rules", "ucc": "ucc",
}  # fmt: skip
