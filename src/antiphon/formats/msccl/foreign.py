"""A file of MSCCL XML, whoever wrote it."""

from __future__ import annotations

from antiphon.errors import Invalid
from antiphon.formats.lint.form import Head
from antiphon.formats.msccl.code import codes_of, named_scratch
from antiphon.formats.msccl.read import read_msccl
from antiphon.formats.written import Written, Wrong

FORMAT = "msccl-xml"


def read(data: bytes, name: str) -> Written:
    """Wrong, naming rank, thread block and step, where it asks for what cannot be: then there is no code to judge."""
    told = read_msccl(data)
    try:
        codes = {"in place" if code.in_place else "out of place": code for code in codes_of(told)}
    except Invalid as error:
        raise Wrong("form", str(error)) from None
    roots = next((code.collective.roots for code in codes.values()), ())
    extra = {
        "blocks": max(len(gpu.blocks) for gpu in told.gpus), "scratch": max(gpu.sizes[2] for gpu in told.gpus),
        "used": max(named_scratch(told)),
    }  # fmt: skip
    head = Head(
        FORMAT, told.name or name, told.collective, told.ranks, told.in_place, told.out_of_place, told.sizes[0],
        told.sizes[1] or None, told.chunks, told.channels, told.protocol,
        frozenset(step.verb for gpu in told.gpus for block in gpu.blocks for step in block.steps),
        roots[0] if roots else None, tuple(told.notes), extra,
    )  # fmt: skip
    return Written(head, codes)
