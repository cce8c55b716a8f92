"""Names that PyTorch's profiler has for collectives and types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.core.collective import kind_named

Event = Mapping[str, Any]

_BYTES = {
    "float": 4, "half": 2, "bfloat16": 2, "double": 8, "int": 4, "long": 8, "long int": 8, "short": 2, "short int": 2,
    "byte": 1, "char": 1, "bool": 1, "unsigned char": 1, "signed char": 1, "c10::half": 2, "c10::bfloat16": 2,
    "complexfloat": 8, "complexdouble": 16, "c10::complex<float>": 8, "c10::complex<double>": 16,
}  # fmt: skip
CALL_PREFIXES = ("c10d::", "antiphon:", "gloo:", "nccl:", "_c10d_functional::", "record_param_comms", "ucc:", "mpi:")
MAX_DEPTH = 4  # lists of lists of tensors


def args_of(event: Event) -> Mapping[str, Any]:
    """What it tells beside."""
    args: Mapping[str, Any] = event.get("args", {})
    return args


def kind_of(name: str) -> str | None:
    """The collective that this names, uneven counts or not; None: none."""
    bare = name.rpartition(":")[2].lower()
    return "barrier" if bare == "barrier" else kind_named(bare) or kind_named(bare.removesuffix("v"))


def bytes_of(name: object) -> int | None:
    """Of an element of the type of that name."""
    text = str(name).lower()
    return 1 if text.startswith(("float8", "c10::float8")) else _BYTES.get(text)


def is_call(name: str) -> bool:
    """Whether that is about a collective, and no computation."""
    return name.startswith(CALL_PREFIXES)


def elements(dims: object, depth: int = 0) -> int:
    """Of a tensor, or of all in a list, as "Input Dims" tells them."""
    if not isinstance(dims, list) or depth > MAX_DEPTH:
        return 0
    if any(isinstance(item, list) for item in dims):
        return sum(elements(item, depth + 1) for item in dims)
    count = 1
    for item in dims:
        if not isinstance(item, int) or item < 0:
            return 0
        count *= item
        if count >= 2**60:
            return 0
    return count if dims else 0


def counted(kind: str, input_elements: int, output_elements: int, size: int) -> int:
    """Elements as nccl-tests counts them, of those that a rank gives and gets."""
    if kind == "allgather":
        return output_elements or input_elements * size
    if kind == "gather":
        return input_elements * size
    if kind == "scatter":
        return output_elements * size
    if kind == "reducescatter":
        return input_elements or output_elements * size
    return (
        max(input_elements, output_elements)
        if kind in ("allreduce", "alltoall", "broadcast", "reduce")
        else input_elements
    )


def both_sides(kind: str, dims: Sequence[object]) -> tuple[int, int]:
    """Elements that a call of c10d gives, and that it gets: outputs come first, where there are two."""
    first = elements(dims[0]) if dims else 0
    if kind in ("allgather", "gather", "reducescatter", "scatter", "alltoall"):
        return (elements(dims[1]) if len(dims) > 1 else 0), first
    return first, first
