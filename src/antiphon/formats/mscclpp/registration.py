"""Write `register.py`, the module that hands exported plans to MSCCL++, and chooses among them for each call.

MSCCL++ asks a selector (here `select`) for the algorithm of each call. If that returns None, MSCCL++'s fallback looks
through all registered plans, by collective, ranks, in place or not, and size alone. So this module handles the rest:

    fallback        matches a plan whose constraint has the communicator's size, for any root and unit;
                    so plans are registered for 0 ranks, which it never matches, and `select` finds them by name
    size            requests of an allgather have the size of one rank, those of a reducescatter that of all
    in place        for a reducescatter, requests count only equal addresses as in place, which only rank 0 has; ranks
                    would choose different plans, so `select` computes it from both addresses and the rank
    root            in the hints of a request; a broadcast takes the plan for calls out of place in any case, because
                    the input of ranks other than the root means nothing
    operator        not in requests, and the executor only adds: the caller must state that it only sums
    memory, type    switches reach only memory that is mapped for them, and the executor has kernels for some types
    graphs          a call in a CUDA graph repeats the flags of its packets, so such calls do not use packets

Example: an allgather of 4 ranks with 1 KB each arrives as 1 KB; `select` looks for a plan for 4 KB, in place where the
input of rank r begins r KB behind the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from antiphon.formats.lint.mscclpp import REDUCING_KINDS, SWITCH_TYPES, TYPES
from antiphon.lower.onesided.packets import KINDS as PACKET_KINDS

REGISTRATION_PURPOSE = "loads the plans (see its first lines); other calls go to MSCCL++'s algorithms or NCCL"


class RegisteredPlan(NamedTuple):
    """A plan of `register.py`. `in_place`: None for both. `root`: None where the collective has none. `smallest`,
    `largest`: bytes of calls that it serves, in multiples of `unit`. `switches`, `packets`: whether it uses them."""

    file: str
    name: str
    collective: str
    root: int | None
    in_place: bool | None
    smallest: int
    largest: int
    unit: int
    switches: bool
    packets: bool


def registration_text(ranks: int, ranks_per_node: int, plans: Sequence[RegisteredPlan]) -> str:
    """Return the module. `ranks_per_node`: 0 for any."""
    kinds = sorted({row.collective for row in plans} & set(REDUCING_KINDS))
    return _TEXT.format(
        ranks=ranks, per_node=ranks_per_node, rows="".join(f"    {tuple(row)!r},\n" for row in plans),
        combines=tuple(kinds), types=TYPES, added=SWITCH_TYPES, waiting=tuple(PACKET_KINDS),
    )  # fmt: skip


# In `select` below, row[2] of a plan is its collective, row[8] whether switches work, row[9] whether packets do.
_TEXT = '''"""Hands the execution plans beside this file to MSCCL++. Written by Antiphon; not yet run on a GPU.

    import register
    builder = mscclpp.ext.AlgorithmCollectionBuilder()
    register.register(builder, rank, world_size, ranks_per_node, sum_only=True)

Plans that combine data only add: for min, max, prod and avg the results would be wrong without notice, and MSCCL++
does not tell a selector the operator. So `register` wants sum_only=True, the promise that the program only sums.

`register` refuses, with a RuntimeError that says why, what the plans are not for. `select` chooses by collective, root,
size, place, type and memory; for a call that no plan fits it gives None. Then MSCCL++ uses an algorithm of its own for
allreduce and allgather within a node, the NCCL of MSCCLPP_NCCL_LIB_PATH for all else, and fails without one.

All ranks must choose alike: pass buffers in place at all ranks or at none. Plans by packets may hang where one process
runs plans for several communicators of different ranks in turn. With a selector of your own, call
`select(algorithms, request)` from it; modules of several exports that share a builder call each other. Older versions
have an ExecutionPlanRegistry instead: use `fitting` with that.
"""

import ctypes
import os

RANKS = {ranks}
RANKS_PER_NODE = {per_node}  # 0: any
COMBINES = {combines!r}  # collectives of these plans that add
TYPES = {types!r}
SWITCH_TYPES = {added!r}  # that switches add
WAITING = {waiting!r}  # collectives that no rank leaves before all have entered
# file, name, collective, root, in place (None: both), smallest and largest size in bytes of the largest buffer of a
# rank, what sizes must be multiples of, whether switches work, which need memory that is mapped for them, and whether
# packets do, which no graph may repeat
PLANS = (
{rows})
_HERE = os.path.dirname(os.path.abspath(__file__))


def check(world_size, ranks_per_node):
    """Raise RuntimeError if the plans are for other jobs."""
    if world_size != RANKS:
        raise RuntimeError(f"these plans are for {{RANKS}} ranks, not for {{world_size}}")
    if RANKS_PER_NODE and ranks_per_node != RANKS_PER_NODE:
        raise RuntimeError(f"these plans are for {{RANKS_PER_NODE}} ranks per node, not for {{ranks_per_node}}")
    for file, *_ in PLANS:
        if not os.path.isfile(os.path.join(_HERE, file)):
            raise RuntimeError(f"{{file}} is missing beside {{__file__}}")


def fitting(collective, nbytes, in_place, root=None, bindable=False, dtype=None, captured=False):
    """Return the name of the plan for a call, or None. `nbytes`: of the largest buffer of a rank. `bindable`: whether
    switches reach its buffers. `dtype`: the name of its type, where it is known. `captured`: whether it goes into a
    graph."""
    for _, name, kind, from_root, place, smallest, largest, unit, switches, packets in PLANS:
        if kind != collective or from_root not in (None, root) or place not in (None, in_place):
            continue
        if not smallest <= nbytes <= largest or not nbytes or nbytes % unit:
            continue
        if (switches and not bindable) or (packets and captured):
            continue
        if dtype is None or dtype in (SWITCH_TYPES if switches and kind in COMBINES else TYPES):
            return name
    return None


def is_bindable(address):
    """Return whether the driver mapped the memory at an address as for GpuBuffer and ncclMemAlloc, so that switches
    reach it."""
    try:
        driver, handle = ctypes.CDLL("libcuda.so.1"), ctypes.c_ulonglong()
    except OSError:
        return False
    if driver.cuMemRetainAllocationHandle(ctypes.byref(handle), ctypes.c_void_p(address)):
        return False
    return driver.cuMemRelease(handle) == 0


def is_captured(stream):
    """Return whether what is launched on a stream goes into a graph."""
    for library, function in (("libcuda.so.1", "cuStreamIsCapturing"), ("libamdhip64.so", "hipStreamIsCapturing")):
        try:
            status, call = ctypes.c_int(), getattr(ctypes.CDLL(library), function)
        except (OSError, AttributeError):
            continue
        return call(ctypes.c_void_p(stream), ctypes.byref(status)) != 0 or status.value != 0
    return False


def select(algorithms, request):
    """Return the registered algorithm that fits the request, or None: a selector for MSCCL++.

    `algorithms`: by collective and name."""
    if request.world_size != RANKS or (RANKS_PER_NODE and request.n_ranks_per_node != RANKS_PER_NODE):
        return None
    kind, nbytes, source, target = request.collective, request.message_size, request.input_buffer, request.output_buffer
    if kind == "allgather":  # of one rank, in requests
        nbytes *= RANKS
    own = request.rank * (nbytes // RANKS)
    in_place = target + own * (kind == "allgather") == source + own * (kind == "reducescatter")
    roots = (getattr(request, "hints", None) or {{}}).get("root") or (None,)
    dtype = getattr(getattr(request, "dtype", None), "name", None)
    # The input of a broadcast means nothing but at its root, where switches do not reach it either.
    reached = (target,) if kind == "broadcast" else (source, target)
    bindable = any(row[8] and row[2] == kind for row in PLANS) and all(map(is_bindable, reached))
    captured = any(row[9] and row[2] == kind for row in PLANS) and is_captured(getattr(request, "stream", 0))
    name = fitting(kind, nbytes, in_place, roots[0], bindable, dtype, captured)
    return algorithms.get(kind, {{}}).get(name) if name else None


def register(builder, rank, world_size, ranks_per_node, sum_only=False):
    """Add all plans, and the selector, to an AlgorithmCollectionBuilder of mscclpp.ext; return the algorithms."""
    check(world_size, ranks_per_node)
    if COMBINES and sum_only is not True:
        raise RuntimeError(
            f"the plans for {{', '.join(COMBINES)}} only add, also for min, max and prod; pass sum_only=True if the "
            "program calls them for sums alone, else do not register them"
        )
    served = getattr(builder, "antiphon_served", set()) | {{(row[2], row[9]) for row in PLANS}}  # also by other modules
    leaving = sorted({{kind for kind, _ in served if kind not in WAITING}})
    if leaving and any(packets for _, packets in served):
        raise RuntimeError(
            f"plans by packets may hang beside plans for {{', '.join(leaving)}}: a rank may leave before others enter"
        )
    import mscclpp

    builder.antiphon_served = served
    algorithms_added = []
    for file, name, *_ in PLANS:
        plan = mscclpp.ExecutionPlan(os.path.join(_HERE, file), rank)
        # For 0 ranks: MSCCL++'s own fallback, which knows neither roots nor units of sizes, never takes such a plan.
        constraint = mscclpp.Algorithm.Constraint(world_size=0, n_ranks_per_node=0)
        algorithms_added.append(mscclpp.Algorithm(id=name, execution_plan=plan, tags={{}}, constraint=constraint))
        builder.add_algorithm_builder(algorithms_added[-1])
    earlier = getattr(builder, "antiphon_select", None)  # of another module like this

    def either(algorithms, request):
        return select(algorithms, request) or earlier(algorithms, request)

    builder.antiphon_select = either if earlier else select
    builder.set_algorithm_selector(builder.antiphon_select)
    return algorithms_added
'''
