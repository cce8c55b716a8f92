"""An execution plan of MSCCL++, whoever wrote it."""

from __future__ import annotations

from antiphon.core.interpret.buffers import sides
from antiphon.errors import Invalid
from antiphon.formats.lint.form import Head
from antiphon.formats.mscclpp.read import plan_of
from antiphon.formats.mscclpp.shape import parsed
from antiphon.formats.written import Written, Wrong

FORMAT = "mscclpp-json"


def read(data: bytes, name: str) -> Written:
    """Wrong where it is a plan in form, and asks for what cannot be: then there is no code to judge."""
    file = parsed(data)
    try:
        told = plan_of(data)
    except Invalid as error:
        raise Wrong("form", str(error)) from None
    collective = told.code.collective
    largest = max(int(side.size.max(initial=0)) for side in sides(collective))
    head = Head(
        FORMAT, told.name or name, collective.kind, collective.ranks, file.inplace, not file.inplace, told.smallest,
        told.largest, told.code.grain * largest, 0, told.protocol,
        frozenset(one.name for gpu in file.gpus for block in gpu.threadblocks for one in block.ops),
        collective.roots[0] if collective.roots else None, (), {"alignment": told.alignment},
    )  # fmt: skip
    return Written(head, {"in place" if file.inplace else "out of place": told.code})
