"""The interpreter: against what collectives give by definition, and in random asynchronous orders."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import asynchronous
import numpy as np
import pytest
from _definition import Definition
from asynchronous import interpret_async
from numpy.typing import NDArray
from quick import in_turn
from small_plans import direct, of_rows

from antiphon.core.collective import KINDS, Collective, custom_relation
from antiphon.core.datatypes import DATA_TYPES, OPERATORS, average, data_type
from antiphon.core.interpret import block_elements, busbw_factor, interpret, stepwise
from antiphon.core.interpret.buffers import chunk_bounds, sides
from antiphon.core.schedule import COPY, REDUCE, Chunks, Schedule, cut
from antiphon.errors import Invalid

Array = NDArray[Any]
Row = tuple[int, ...]  # step, chunk, src, dst, op and, in schedules with slots, src_slot, dst_slot


# --- Builders of small schedules -------------------------------------------------------------------------


def ring_allgather(ranks: int, parts: int = 1) -> Schedule:
    collective = Collective("allgather", ranks)
    rows = [
        (s, part * ranks + (r - s) % ranks, r, (r + 1) % ranks, COPY)
        for part in range(parts)
        for s in range(ranks - 1)
        for r in range(ranks)
    ]
    return of_rows(collective, rows, cut(collective, parts))


def ring_reducescatter(ranks: int) -> Schedule:
    rows = [(s, (r - s - 1) % ranks, r, (r + 1) % ranks, REDUCE) for s in range(ranks - 1) for r in range(ranks)]
    return of_rows(Collective("reducescatter", ranks), rows)


def ring_allreduce(ranks: int, parts: int | None = None) -> Schedule:
    collective = Collective("allreduce", ranks)
    parts = ranks if parts is None else parts
    rows = []
    for c in range(parts):
        for s in range(2 * ranks - 2):
            src = (c + s) % ranks
            rows.append((s, c, src, (src + 1) % ranks, REDUCE if s < ranks - 1 else COPY))
    return of_rows(collective, rows, cut(collective, parts))


def recursive_doubling(ranks: int) -> Schedule:
    steps = ranks.bit_length() - 1
    rows = [(s, 0, r, r ^ (1 << s), REDUCE) for s in range(steps) for r in range(ranks)]
    return of_rows(Collective("allreduce", ranks), rows)


def two_steps_on_five() -> Schedule:
    """Allreduce on a 5-ring in 2 steps: each rank relays two partial sums, kept apart in slots."""
    rows: list[Row] = []
    for r in range(5):
        left, right = (r - 1) % 5, (r + 1) % 5
        rows += [(0, 0, r, right, COPY, 0, 1), (0, 0, r, left, COPY, 0, 2)]
        rows += [(1, 0, left, r, REDUCE, 1, 0), (1, 0, right, r, REDUCE, 2, 0)]
        rows += [(1, 0, r, r, REDUCE, 1, 0), (1, 0, r, r, REDUCE, 2, 0)]
    return of_rows(Collective("allreduce", 5), rows)


def relayed_broadcast() -> Schedule:
    """Among ranks 0, 3, 4; 1 and 2 only relay."""
    collective = Collective("broadcast", 5, members=(0, 3, 4), roots=(3,))
    return of_rows(collective, [(0, 0, 3, 2, COPY), (1, 0, 2, 1, COPY), (2, 0, 1, 0, COPY), (2, 0, 2, 4, COPY)])


def relayed_reduce() -> Schedule:
    collective = Collective("reduce", 4, members=(0, 1, 3), roots=(1,))
    return of_rows(collective, [(0, 0, 0, 2, COPY), (1, 0, 3, 2, REDUCE), (2, 0, 2, 1, REDUCE)])


def scan(ranks: int) -> Schedule:
    """Rank r ends with the combination of ranks 0..r."""
    pre = [(0, r, r) for r in range(ranks)]
    post = [(0, r, tuple(range(r + 1))) for r in range(ranks)]
    collective = Collective("custom", ranks, custom=custom_relation(pre, post, ranks))
    rows, s = [], 0
    while 1 << s < ranks:
        rows += [(s, 0, r, r + (1 << s), REDUCE) for r in range(ranks - (1 << s))]
        s += 1
    return of_rows(collective, rows)


def chain_broadcast_in_parts() -> Schedule:
    """Chunks of shares 1/7, 4/7, 2/7, pipelined along a chain."""
    collective = Collective("broadcast", 4)
    chunks = Chunks(np.zeros(3, np.int32), np.array([0, 1, 5]), np.array([1, 4, 2]), 7)
    return of_rows(collective, [(c + r, c, r, r + 1, COPY) for c in range(3) for r in range(3)], chunks)


SCHEDULES: dict[str, Callable[[], Schedule]] = {
    **{f"direct {kind}": lambda kind=kind: direct(kind, 4, parts=3) for kind in KINDS},  # type: ignore[misc]
    "ring allgather": lambda: ring_allgather(4, parts=2),
    "ring reducescatter": lambda: ring_reducescatter(4),
    "ring allreduce": lambda: ring_allreduce(4),
    "recursive doubling": lambda: recursive_doubling(4),
    "two steps on five": two_steps_on_five,
    "relayed broadcast": relayed_broadcast,
    "relayed reduce": relayed_reduce,
    "scan": lambda: scan(4),
    "chain broadcast": chain_broadcast_in_parts,
}


# --- What must come out ----------------------------------------------------------------------------------


def sizes_of(schedule: Schedule, unit: int, in_place: bool = False) -> tuple[list[int], list[int]]:
    """How many elements the input and the output buffer of every rank have (in place: one and the same)."""
    first, last = sides(schedule.collective, in_place)
    return [int(n) * unit for n in first.size], [int(n) * unit for n in last.size]


def defined(schedule: Schedule, unit: int, dtype: str, op: str) -> tuple[list[Array], list[Array]]:
    """Inputs of numbers that give the same in any order, and the outputs by the definition of the collective."""
    told, ranks = Definition(schedule.collective, unit, dtype, op, seed=unit), range(schedule.collective.ranks)
    if dtype.startswith("float8") and op != "prod":  # which has no 9 and no 11
        told.data = {key: np.sign(values.astype(float)).astype(told.dtype) for key, values in told.data.items()}
    return [told.before(rank, False) for rank in ranks], [told.after(rank, False) for rank in ranks]


def same(got: list[Array], wanted: list[Array]) -> bool:
    """Equal in every bit."""
    return len(got) == len(wanted) and all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in zip(got, wanted, strict=True)
    )


# --- Every kind, type, operator, count -------------------------------------------------------------------


@pytest.mark.parametrize("name", in_turn(SCHEDULES, 3))
@pytest.mark.parametrize("op", OPERATORS)
def test_every_kind_with_every_type_and_operator(name: str, op: str) -> None:
    schedule = SCHEDULES[name]()
    for type_name in DATA_TYPES:
        given, wanted = defined(schedule, 7, type_name, op)
        assert same(interpret(schedule, given, op=op, dtype=type_name), wanted), type_name


def test_big_powers_count_contributions_exactly() -> None:
    schedule = ring_allreduce(12)
    given = [np.array([10 ** (30 * r)] * 5, object) for r in range(12)]
    wanted = sum(10 ** (30 * r) for r in range(12))
    assert all(x.tolist() == [wanted] * 5 for x in interpret(schedule, given))
    assert all(x.tolist() == [wanted // 12] * 5 for x in interpret(schedule, given, op="avg"))


def test_average_truncates_toward_zero_and_divides_once() -> None:
    given = [np.array([-1, -7, 5, 7], np.int32), np.array([0, 0, 0, 0], np.int32)]
    assert interpret(recursive_doubling(2), given, op="avg")[0].tolist() == [0, -3, 2, 3]
    odd = [np.array([r % 2], np.int16) for r in range(8)]  # dividing at every step would lose all of them
    assert interpret(recursive_doubling(8), odd, op="avg")[3].tolist() == [0]
    assert interpret(recursive_doubling(8), [x * 2 for x in odd], op="avg")[3].tolist() == [1]


def test_average_by_more_contributions_than_the_type_can_count() -> None:
    values = np.array([-128, 127, 100], np.int8)
    assert average(values, 300).tolist() == [0, 0, 0]
    assert average(values.view(np.uint8), 300).tolist() == [0, 0, 0]
    assert average(np.array([2**64 - 1], np.uint64), 2).tolist() == [2**63 - 1]
    assert average(np.array([-(2**63)], np.int64), 3).tolist() == [-(2**63) // 3 + 1]


@pytest.mark.parametrize("type_name", ["float16", "bfloat16"])
def test_half_precision_is_combined_in_float32(type_name: str) -> None:
    dtype = data_type(type_name)
    step = 2.0**-8 if type_name == "bfloat16" else 2.0**-11  # half the gap above 1
    given = [np.array([x]).astype(dtype) for x in (1.0, step, step)]
    gathered = interpret(direct("reduce", 3), given)[0]
    assert gathered.astype(float).tolist() == [1.0 + 2 * step]  # 1 + step alone would round to 1, twice
    chain = of_rows(Collective("reduce", 3, roots=(2,)), [(0, 0, 0, 1, REDUCE), (1, 0, 1, 2, REDUCE)])
    assert interpret(chain, given)[2].astype(float).tolist() == [1.0]  # stored in between


# --- The order of combination ----------------------------------------------------------------------------


def rough(schedule: Schedule, unit: int, dtype: object = np.float32, seed: int = 0) -> list[Array]:
    random = np.random.default_rng(seed)
    sizes, _ = sizes_of(schedule, unit)
    return [(random.standard_normal(n) * 10.0 ** random.integers(-3, 4, n)).astype(data_type(dtype)) for n in sizes]


@pytest.mark.parametrize("schedule", [recursive_doubling(8), two_steps_on_five(), direct("allreduce", 6)])
@pytest.mark.parametrize("type_name", ["float32", "float16", "bfloat16", "float64"])
def test_ranks_agree_in_every_bit(schedule: Schedule, type_name: str) -> None:
    out = interpret(schedule, rough(schedule, 500, type_name))
    assert len({x.tobytes() for x in out}) == 1


def test_operands_are_folded_from_the_left_by_least_contribution() -> None:
    schedule = direct("reduce", 6, roots=(3,))
    given = rough(schedule, 300)
    total = given[0]
    for x in given[1:]:
        total = total + x
    assert interpret(schedule, given)[3].tobytes() == total.tobytes()
    backwards = schedule.take(np.arange(schedule.transfers)[::-1])
    assert interpret(backwards, given)[3].tobytes() == total.tobytes()


def test_the_least_contribution_of_a_partial_result_counts() -> None:
    rows = [(0, 0, 3, 0, REDUCE), (1, 0, 0, 1, REDUCE), (1, 0, 2, 1, REDUCE)]
    schedule = of_rows(Collective("reduce", 4, roots=(1,)), rows)
    a, b, c, d = given = rough(schedule, 300)
    assert interpret(schedule, given)[1].tobytes() == (((a + d) + b) + c).tobytes()


def test_the_least_of_the_contributions_that_an_input_stands_for_counts() -> None:
    relation = custom_relation([(0, 0, 5), (0, 1, 7), (0, 2, 9), (0, 2, 1)], [(0, 0, None)], 3)
    rows = [(0, 0, 1, 0, REDUCE), (0, 0, 2, 0, REDUCE)]
    schedule = of_rows(Collective("custom", 3, custom=relation), rows)
    a, b, c = given = rough(schedule, 300)
    assert interpret(schedule, given)[0].tobytes() == ((c + a) + b).tobytes()


@pytest.mark.parametrize("name", in_turn(SCHEDULES, 3))
def test_batches_and_windows_do_not_change_the_outcome(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = SCHEDULES[name]()
    given = rough(schedule, 901)
    whole = interpret(schedule, given, op="avg")
    for short, size in ((2, 100), (2, 3000), (10**6, 500), (64, 5000)):
        monkeypatch.setattr(stepwise, "SHORT", short)
        monkeypatch.setattr(stepwise, "BATCH_BYTES", size)
        monkeypatch.setattr(stepwise, "LEVEL_BYTES", 0)
        assert same(interpret(schedule, given, op="avg"), whole)


# --- Custom relations, uneven counts ---------------------------------------------------------------------


def test_elements_of_blocks_round_as_nccl_tests_does() -> None:
    gather = Collective("allgather", 4)
    assert block_elements(gather, 43, 4).tolist() == [2] * 4  # 10 elements, 2 for each
    assert block_elements(Collective("allreduce", 4), 43, 4).tolist() == [10]
    assert block_elements(Collective("reducescatter", 3), 3 * 8 * 5 + 7, 8).tolist() == [5] * 3
    assert block_elements(Collective("alltoall", 2), 16, 1).tolist() == [8] * 4
    uneven = Collective("gather", 3, weights=np.array([1, 0, 4]))
    assert block_elements(uneven, 104, 2).tolist() == [10, 0, 40]


def test_bounds_of_chunks_are_exact() -> None:
    whole = 2**61 - 1
    offset = np.array([0, whole // 3, 2**60])
    share = np.diff([*offset.tolist(), whole])
    chunks = Chunks(np.zeros(3, np.int32), offset, share, whole)
    for n in (0, 1, 7, 10**9 + 7, 2**52 + 1):
        low, high = chunk_bounds(chunks, np.array([n]))
        wanted = [int(Fraction(n * int(o), whole)) for o in offset]
        assert low.tolist() == wanted
        assert high.tolist() == [*wanted[1:], n]


def test_bus_bandwidth_factors_are_those_of_nccl_tests() -> None:
    factors = {kind: busbw_factor(Collective(kind, 4)) for kind in KINDS}
    assert factors.pop("allreduce") == 1.5
    assert factors.pop("broadcast") == factors.pop("reduce") == 1.0
    assert set(factors.values()) == {0.75}


# --- In place and out of place ---------------------------------------------------------------------------


def in_place(schedule: Schedule, buffers: list[list[int]], **options: Any) -> list[list[int]]:
    results = []
    for one in (interpret, interpret_async):
        arrays = [np.array(b) for b in buffers]
        got = one(schedule, arrays, in_place=True, **options)
        assert all(a is b for a, b in zip(got, arrays, strict=True))
        results.append([x.tolist() for x in arrays])
    assert results[0] == results[1]
    return results[0]


# --- Asynchronous runs -----------------------------------------------------------------------------------


def outcomes(schedule: Schedule, runs: int = 20) -> set[bytes]:
    given = rough(schedule, 5)
    return {b"".join(x.tobytes() for x in interpret_async(schedule, given, seed=seed)) for seed in range(runs)}


@pytest.mark.parametrize(
    ("schedule", "counted"),
    [
        (recursive_doubling(4), "writes_left"),
        (of_rows(Collective("reduce", 3), [(0, 0, 1, 0, COPY), (1, 0, 2, 0, REDUCE)]), "reads_left"),
    ],
)
def test_waiting_for_only_reads_or_only_writes_gives_wrong_sums(
    schedule: Schedule, counted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(outcomes(schedule)) == 1
    monkeypatch.setattr(asynchronous.Clock, "settled", lambda clock, version: not getattr(clock, counted)[version])
    assert len(outcomes(schedule)) > 1


# --- What is refused -------------------------------------------------------------------------------------


def test_a_race_is_refused_where_it_is() -> None:
    collective = Collective("allreduce", 3)
    for ops in ((COPY, COPY), (COPY, REDUCE), (REDUCE, COPY)):
        rows = [(0, 0, 0, 1, REDUCE), (4, 0, 0, 2, ops[0]), (4, 0, 1, 2, ops[1])]
        with pytest.raises(Invalid, match=r"step 4, chunk 0: ranks 0, 1 write to rank 2.*race"):
            interpret(of_rows(collective, rows), [np.ones(1)] * 3)
    slots = [(0, 0, 0, 2, COPY, 0, 1), (0, 0, 1, 2, COPY, 0, 2)]  # apart in slots: no race
    assert len(interpret(of_rows(collective, slots), [np.ones(1)] * 3)) == 3


def test_sending_to_oneself_is_refused_unless_between_slots() -> None:
    collective = Collective("broadcast", 2)
    with pytest.raises(Invalid, match="step 2, chunk 0: rank 0 sends to itself"):
        interpret(of_rows(collective, [(0, 0, 0, 1, COPY), (2, 0, 0, 0, REDUCE)]), [np.ones(4), None])
    moved = [(0, 0, 0, 0, COPY, 0, 1), (1, 0, 0, 1, COPY, 1, 0)]
    assert interpret(of_rows(collective, moved), [np.ones(4), None])[1].tolist() == [1.0] * 4


def test_a_result_that_nothing_brings_is_refused() -> None:
    with pytest.raises(Invalid, match="rank 2 must end with chunk 0"):
        interpret(of_rows(Collective("broadcast", 3), [(0, 0, 0, 1, COPY)]), [np.ones(4), None, None])


@pytest.mark.parametrize(
    ("offset", "share", "message"),
    [
        ([0, 2], [1, 2], "a gap or an overlap at chunk 1"),
        ([0, 1], [2, 3], "overlap"),
        ([0, 1], [1, 2], "block 0 do not tile it"),
        ([1, 2], [1, 2], "block 0 do not tile it"),
        ([0, -1], [4, 1], "chunk 1 does not lie inside"),
        ([0, 4], [4, 2**62], "chunk 1 does not lie inside"),
    ],
)
def test_chunks_must_tile_their_block(offset: list[int], share: list[int], message: str) -> None:
    chunks = Chunks(np.zeros(2, np.int32), np.array(offset), np.array(share), 4)
    with pytest.raises(Invalid, match=message):
        interpret(of_rows(Collective("broadcast", 2), [(0, 0, 0, 1, COPY), (0, 1, 0, 1, COPY)], chunks), [[1], None])


def test_a_block_without_chunks_is_refused() -> None:
    chunks = Chunks(np.zeros(1, np.int32), np.zeros(1, np.int64), np.ones(1, np.int64), 1)
    with pytest.raises(Invalid, match="block 1 has no chunk"):
        interpret(of_rows(Collective("allgather", 2), [(0, 0, 0, 1, COPY)], chunks), [[1], [2]])


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        ([np.ones(4)], {}, r"one per rank \(2\), got 1"),
        ([np.ones((2, 2)), np.ones(4)], {}, "rank 0: its input has 2 dimensions"),
        ([np.ones(4), np.ones(4, np.float32)], {}, "rank 1: its input is of type float32, not float64"),
        ([np.ones(4), np.ones(4)], {"dtype": "float32"}, "rank 0: its input is of type float64, not float32"),
        ([np.ones(4, ">f4"), np.ones(4, ">f4")], {}, "rank 0"),
        ([np.ones(4), np.ones(6)], {}, "rank 1: its buffer has 6 elements, expected 4 as rank 0 has 4"),
        ([np.ones(4), None], {}, "rank 1: its buffer has 0 elements"),
        ([np.ones(3), np.ones(3)], {}, "rank 0: its buffer has 3 elements, not a multiple of 2"),
        ([np.ones(4), np.ones(4)], {"op": "summ"}, "unknown operator 'summ'; did you mean 'sum'"),
        ([np.ones(4), np.ones(4)], {"op": ["sum"]}, "unknown operator"),
        ([np.ones(4), np.ones(4)], {"dtype": "flaot32"}, "unknown data type 'flaot32'; did you mean 'float32'"),
        ([np.ones(4, bool), np.ones(4, bool)], {}, "unknown data type 'bool'"),
        ([np.ones(4), np.ones(4)], {"dtype": 3.5}, "data type: expected a name"),
        ([[1, 2, 3, 4], np.ones(4)], {"in_place": True}, "rank 0: its buffer must be a writable"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(inputs: list[Any], options: dict[str, Any], message: str) -> None:
    schedule = ring_reducescatter(2)
    for one in (interpret, interpret_async):
        with pytest.raises(Invalid, match=message):
            one(schedule, inputs, **options)


def test_a_buffer_that_cannot_be_written_is_refused_in_place() -> None:
    fixed = np.ones(4)
    fixed.setflags(write=False)
    with pytest.raises(Invalid, match="rank 1: its buffer must be a writable"):
        interpret(ring_reducescatter(2), [np.ones(4), fixed], in_place=True)


def test_a_rank_without_part_has_no_buffer() -> None:
    with pytest.raises(Invalid, match="rank 2: its buffer has 1 elements, expected 0: it has no part"):
        interpret(relayed_reduce(), [[1], [2], [3], [4]])
