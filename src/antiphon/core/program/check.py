"""Check that a program (sends, receives and reductions per rank) is right: prove it for all sizes, and run it at some.

`check` first calls `prove`, which shows for every message size that the program computes its collective. Then it runs
the program on random 64-bit data, in random legal orders, and compares the results with what the collective demands: a
second check that shares no code with the first. A run has a size, `unit`: elements per weight 1 of a block, so that a
block of weight 3 has 3 * unit elements.

Example: an allreduce on 3 ranks with inputs of 7 random numbers: all ranks must end with the sum of the three inputs,
and the inputs must be unchanged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Bools, distinct
from antiphon.core.interpret.buffers import sides
from antiphon.core.program.form import MOST_ELEMENTS
from antiphon.core.program.kinds import Program, bind
from antiphon.core.program.prove import prove
from antiphon.core.program.run import run_program
from antiphon.errors import Invalid, Unsupported

Array = NDArray[Any]


def check(program: Program, *, seeds: Sequence[int] = (0, 1, 2, 3)) -> None:
    """Raise Invalid if anything is wrong (naming rank and operation, or rank and block), Unsupported beyond the limits.

    The program is proved, then run once per seed in a random order with zero buffering. The proof takes some
    microseconds per stretch of data; the runs execute Python for every piece of every operation.
    """
    prove(program)
    for seed in seeds:
        # Even seeds run a size at which every piece has data, odd seeds a small one: pieces may be empty.
        unit = _smallest_full_unit(program) if seed % 2 == 0 else 1 + seed
        _check_run(program, min(unit, _largest_unit(program)), seed)


def _smallest_full_unit(program: Program) -> int:
    """Return the smallest unit at which no piece of a nonempty part is empty."""
    weight = (program.point_whole[program.part_end] - program.point_whole[program.part_begin]).astype(np.float64)
    weight += (program.point_part[program.part_end] - program.point_part[program.part_begin]) / program.denominator
    pieces = program.pieces[program.part_op]
    nonempty = weight > 0
    return int(np.ceil((pieces[nonempty] / weight[nonempty]).max(initial=1.0))) + 1


def _largest_unit(program: Program) -> int:
    """Return the greatest unit, up to a factor of two, at which all buffers of all ranks have at most 2^22 elements."""
    unit = MOST_ELEMENTS // max(int(program.collective.weights.sum()), 1)
    while unit and int(bind(program, unit).sizes.sum()) > MOST_ELEMENTS:
        unit //= 2
    if not unit and int(bind(program, 1).sizes.sum()):
        raise Unsupported("all its buffers have more than 2^22 elements at the smallest size: proven, but not run")
    return unit


# ---- runs ----


def _check_run(program: Program, unit: int, seed: int) -> None:
    """Run the program once; raise Invalid if a result is wrong or other data were overwritten."""
    inputs, expected = _make_case(program, unit, seed)
    # The run writes into the inputs in place; keep copies to see which elements changed.
    copies = [array.copy() for array in inputs]
    outputs = run_program(program, inputs, seed=seed)
    _, last = sides(program.collective, program.in_place)
    weights = program.collective.weights
    results: dict[int, Bools] = {}  # per rank, which elements of the buffer are results in place
    for rank, block, start in zip(last.rank.tolist(), last.block.tolist(), last.start.tolist(), strict=True):
        stretch = slice(start * unit, (start + int(weights[block])) * unit)
        if not np.array_equal(outputs[rank][stretch], expected[rank, block]):
            raise Invalid(f"rank {rank} ends with wrong data in block {block} (run {seed}, {unit} elements a unit)")
        if program.in_place:
            results.setdefault(rank, np.zeros(len(outputs[rank]), bool))[stretch] = True
    # No input may change, except that in place the results are written over some.
    for rank, array in enumerate(copies):
        is_result = results[rank] if program.in_place and rank in results else np.zeros(len(array), bool)
        if not np.array_equal(inputs[rank][~is_result], array[~is_result]):
            raise Invalid(f"rank {rank}: what is no result was written over (run {seed})")


def _make_case(program: Program, unit: int, seed: int) -> tuple[list[Array], dict[tuple[int, int], Array]]:
    """Return random inputs of all ranks, and by (rank, block) the result that the collective's relation requires."""
    collective = program.collective
    relation, weights = collective.relation, collective.weights
    first, _ = sides(collective, program.in_place)
    random = np.random.default_rng(seed)
    data: dict[tuple[int, int], Array] = {}  # by (block, contribution)
    # Random 64-bit data per contribution: a sum of wrong contributions differs, almost surely.
    for block, name in _distinct_pairs(relation.pre_block, relation.pre_id):
        data[block, name] = random.integers(-(2**63), 2**63 - 1, int(weights[block]) * unit)
    contributions: dict[tuple[int, int], list[int]] = defaultdict(list)  # by (rank, block)
    all_names: dict[int, list[int]] = defaultdict(list)  # by block
    for block, name in data:
        all_names[block].append(name)
    for block, rank, name in zip(
        *(c.tolist() for c in (relation.pre_block, relation.pre_rank, relation.pre_id)), strict=True
    ):
        contributions[rank, block].append(name)
    buffers = [random.integers(0, 99, int(weight) * unit) for weight in first.size]
    for rank, block, start in zip(first.rank.tolist(), first.block.tolist(), first.start.tolist(), strict=True):
        stretch = slice(start * unit, (start + int(weights[block])) * unit)
        buffers[rank][stretch] = _sum_arrays([data[block, name] for name in contributions[rank, block]])
    sums: dict[tuple[int, int], Array] = {}
    expected = {}
    columns = (relation.post_block, relation.post_rank, relation.post_want)
    for block, rank, want in zip(*(c.tolist() for c in columns), strict=True):
        if (block, want) not in sums:
            names = all_names[block] if want < 0 else relation.wants[want]
            sums[block, want] = _sum_arrays([data[block, name] for name in names])
        expected[rank, block] = sums[block, want]
    return buffers, expected


def _distinct_pairs(block: Any, name: Any) -> list[tuple[int, int]]:
    """Return the distinct (block, contribution) pairs."""
    # Block and name both fit 32 bits: sort pairs as one integer.
    pairs = distinct((block.astype(np.int64) << 32) | name)
    return list(zip((pairs >> 32).tolist(), (pairs & 0xFFFFFFFF).tolist(), strict=True))


def _sum_arrays(arrays: list[Array]) -> Array:
    """Return the sum of integer arrays, with wrap-around."""
    total = arrays[0].copy()
    with np.errstate(all="ignore"):
        for array in arrays[1:]:
            total += array
    return total
