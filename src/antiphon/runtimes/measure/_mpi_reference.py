"""Make calls of the MPI library's own collectives, which `mpi_process` measures beside ours on the same buffers.

Types that MPI lacks are moved as bytes; reductions of them have no reference. avg is MPI's sum, divided afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.collective import Collective
from antiphon.core.datatypes import average

Array = NDArray[Any]
MPI_TYPES = {
    "int8": "INT8_T", "uint8": "UINT8_T", "int16": "INT16_T", "uint16": "UINT16_T", "int32": "INT32_T",
    "uint32": "UINT32_T", "int64": "INT64_T", "uint64": "UINT64_T", "float32": "FLOAT", "float64": "DOUBLE",
}  # fmt: skip
_OPERATORS = {"sum": "SUM", "avg": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX"}


def make_library_call(
    collective: Collective, comm: Any, mpi: Any, unit: int, dtype: np.dtype[Any], op: str, in_place: bool
) -> Callable[[Array, Array], None] | None:
    """Return a call that takes (input, output) like ours; in place it ignores the input.

    `unit`: elements of a block of weight 1. None where MPI has none: custom relations, several roots, relays among the
    processes, reductions of float16, bfloat16 and float8."""
    if collective.custom is not None or len(collective.roots) > 1 or comm.size != len(collective.members):
        return None
    if collective.combining and dtype.name not in MPI_TYPES:
        return None
    mpi_type = getattr(mpi, MPI_TYPES.get(dtype.name, "BYTE"))
    scale = 1 if dtype.name in MPI_TYPES else dtype.itemsize  # MPI's elements per element
    call = _make_call(collective, comm, mpi, unit * scale, mpi_type, getattr(mpi, _OPERATORS[op]), in_place)
    if call is None:
        return None
    if op != "avg" or not collective.combining:
        return call
    size = len(collective.members)
    has_result = collective.kind != "reduce" or comm.rank == collective.members.index(collective.roots[0])

    def call_and_average(source: Array, target: Array) -> None:
        call(source, target)
        if has_result:
            target[:] = average(target, size)

    return call_and_average


def _make_call(  # noqa: PLR0911
    collective: Collective, comm: Any, mpi: Any, unit: int, mpi_type: Any, op: Any, in_place: bool
) -> Callable[[Array, Array], None] | None:
    """Return MPI's call, without averaging; None if MPI has none in this form."""
    weights = (collective.weights * unit).tolist()
    equal = len(set(weights)) == 1
    root = collective.members.index(collective.roots[0]) if collective.roots else 0
    own_rank, size = comm.rank, comm.size
    at_root, in_place_marker = own_rank == root, mpi.IN_PLACE
    starts = np.concatenate([[0], np.cumsum(weights)])[:-1].tolist()

    # mpi4py's descriptions of a buffer: with equal blocks; with the length and start of each block, in elements
    def even(data: Array) -> Any:
        return [data, mpi_type]

    def uneven(data: Array) -> Any:
        return [data, weights, starts, mpi_type]

    # a: input, b: output; in place the input lies in b
    if collective.kind == "allreduce":
        return lambda a, b: comm.Allreduce(in_place_marker if in_place else even(a), even(b), op)
    if collective.kind == "reduce":
        if in_place and not at_root:
            return lambda a, b: comm.Reduce(even(b), None, op, root)
        return lambda a, b: comm.Reduce(
            in_place_marker if in_place else even(a), even(b) if at_root else None, op, root
        )
    if collective.kind == "broadcast":  # MPI has it in place only

        def bcast(a: Array, b: Array) -> None:
            if at_root and not in_place:
                b[:] = a
            comm.Bcast(even(b), root)

        return bcast
    if collective.kind == "allgather":
        if equal:
            return lambda a, b: comm.Allgather(in_place_marker if in_place else even(a), even(b))
        return lambda a, b: comm.Allgatherv(in_place_marker if in_place else even(a), uneven(b))
    if collective.kind == "reducescatter":
        if in_place:
            return None  # MPI puts the result at the beginning, NCCL where it belongs
        if equal:
            return lambda a, b: comm.Reduce_scatter_block(even(a), even(b), op)
        return lambda a, b: comm.Reduce_scatter(even(a), even(b), weights, op)
    # gather and scatter have a block per process, an alltoall one per pair
    if not equal or len(weights) not in (size, size**2):
        return None
    if collective.kind == "gather":
        return lambda a, b: comm.Gather(
            (in_place_marker if at_root else even(b)) if in_place else even(a), even(b) if at_root else None, root
        )
    if collective.kind == "scatter":
        return lambda a, b: comm.Scatter(
            even(b if in_place else a) if at_root else None,
            (in_place_marker if at_root else even(b)) if in_place else even(b),
            root,
        )
    return lambda a, b: comm.Alltoall(in_place_marker if in_place else even(a), even(b))
