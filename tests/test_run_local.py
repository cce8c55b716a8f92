"""Running here: right results are called right, wrong ones wrong, and the numbers are those of nccl-tests."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from quick import in_turn
from small_plans import direct, of_rows, run_local

import antiphon
from antiphon.core.collective import Collective, custom_relation
from antiphon.core.datatypes import DATA_TYPES, OPERATORS
from antiphon.core.schedule import COPY, REDUCE, Schedule
from antiphon.errors import Invalid
from antiphon.runtimes.measure import local
from antiphon.runtimes.measure.case import Case, How, Runnable
from antiphon.runtimes.measure.random_data import RandomData, combine_rows

Array = NDArray[Any]


def exchange(ranks: int = 4) -> Schedule:
    """Recursive doubling."""
    steps = range(ranks.bit_length() - 1)
    rows = [(s, 0, r, r ^ (1 << s), REDUCE) for s in steps for r in range(ranks)]
    return of_rows(Collective("allreduce", ranks), rows)


def scan(ranks: int = 5) -> Schedule:
    """Rank r ends with ranks 0..r; the input of rank 0 stands for two contributions."""
    pre = [(0, 0, 0), (0, 0, 9), *((0, r, r) for r in range(1, ranks))]
    post = [(0, r, (*range(r + 1), 9)) for r in range(ranks)]
    rows = [(r, 0, r, r + 1, REDUCE) for r in range(ranks - 1)]
    return of_rows(Collective("custom", ranks, custom=custom_relation(pre, post, ranks)), rows)


SCHEDULES = {
    "exchange": exchange(),
    "scan": scan(),
    **{
        kind: direct(kind, 3, parts=2)
        for kind in ("broadcast", "scatter", "gather", "allgather", "reducescatter", "alltoall", "reduce")
    },
}


@pytest.mark.parametrize("name", in_turn(SCHEDULES, 16))
@pytest.mark.parametrize("in_place", [pytest.param(False, marks=pytest.mark.slow), True])
def test_right_schedules_are_right_with_every_type_and_operator(name: str, in_place: bool) -> None:
    combining = SCHEDULES[name].collective.combining
    for dtype in DATA_TYPES:
        for op in OPERATORS if combining else ("sum", "avg"):
            for row in run_local(SCHEDULES[name], [0, 8, 1003], dtype, op, repeat=1, in_place=in_place):
                assert (row["correct"], row["wrong"]) == (True, 0), (dtype, op, row)


def test_a_row_means_what_nccl_tests_means() -> None:
    (row,) = run_local(direct("allgather", 3), "1003B", "float64")
    assert row["nbytes"] == 984  # 41 whole elements for each of the 3
    assert row["algbw"] == pytest.approx(984 / row["seconds"])
    assert row["busbw"] == pytest.approx(row["algbw"] * 2 / 3)
    assert row["reference_seconds"] > 0
    assert (row["dtype"], row["op"], row["in_place"]) == ("float64", None, False)
    (row,) = run_local(exchange(), 1003, "bf16")
    assert (row["nbytes"], row["dtype"]) == (1002, "bfloat16")
    assert row["busbw"] == pytest.approx(row["algbw"] * 3 / 2)
    (row,) = run_local(exchange(), 0)
    assert (row["nbytes"], row["algbw"], row["correct"]) == (0, 0, True)


def test_a_wrong_place_is_wrong() -> None:
    swapped = of_rows(Collective("alltoall", 2), [(0, 1, 1, 0, COPY), (0, 2, 0, 1, COPY), (1, 3, 1, 0, COPY)])
    assert run_local(swapped, 64)[0]["correct"]
    astray = of_rows(Collective("broadcast", 2), [(0, 0, 0, 1, COPY), (1, 0, 1, 0, REDUCE)])
    (row,) = run_local(astray, 64)
    assert row["wrong"] == 16  # the root's own


def spoiled(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Let `change` at the outputs of the interpreter."""
    right = local.run

    def wrong(*args: Any, **options: Any) -> list[Array]:
        outputs = right(*args, **options)
        change(outputs)
        return outputs

    monkeypatch.setattr(local, "run", wrong)


def test_a_single_wrong_element_is_found_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(outputs: list[Array]) -> None:
        outputs[2][17] += 1
        outputs[0][-1] -= 1

    spoiled(monkeypatch, change)
    for dtype in ("int8", "uint64", "float32", "bfloat16"):
        for op in ("sum", "max"):
            (row,) = run_local(exchange(), 4096, dtype, op)
            assert (row["correct"], row["wrong"]) == (False, 2)


def test_not_a_number_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    spoiled(monkeypatch, lambda outputs: [x.fill(np.nan) for x in outputs])
    assert run_local(exchange(), 64)[0]["wrong"] == 64
    assert run_local(exchange(), 64, op="min")[0]["wrong"] == 64


def test_an_error_greater_than_rounding_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(outputs: list[Array]) -> None:
        for x in outputs:
            np.multiply(x, 1 + 64 * float(np.finfo(x.dtype).eps), out=x)

    spoiled(monkeypatch, change)
    for dtype in ("float16", "float32", "float64"):
        for op in ("prod", "sum", "avg"):
            (row,) = run_local(exchange(), 4096, dtype, op)
            assert row["wrong"] > 0.8 * 4 * 4096 / np.dtype(dtype).itemsize, (dtype, op)


def test_ranks_that_differ_in_one_bit_do_not_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(outputs: list[Array]) -> None:
        bits = outputs[3].view(f"u{outputs[3].itemsize}")
        bits[5] ^= 1

    spoiled(monkeypatch, change)
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        (row,) = run_local(exchange(), 64, dtype)
        assert (row["correct"], row["agree"]) == (True, False)


def test_the_row_of_each_schedule_of_a_race_says_whether_its_own_outputs_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = exchange(), exchange()
    right = local.run

    def wrong(analysis: Any, *args: Any, **options: Any) -> list[Array]:
        outputs = right(analysis, *args, **options)
        if analysis.schedule is first:
            outputs[3].view("u4")[5] ^= 1
        return outputs

    monkeypatch.setattr(local, "run", wrong)
    cases = [Case(program=number, unit=16, nbytes=64, dtype="float32", race=0) for number in range(2)]
    rows = dict[int, Any]()
    programs = [Runnable(schedule) for schedule in (first, second)]
    local.Local().run(programs, cases, How(), lambda number, row: rows.update({number: row}))
    assert [rows[number]["agree"] for number in range(2)] == [False, True]


def inputs(made: RandomData) -> list[Array]:
    """Of all ranks."""
    found = []
    for rank in range(made.collective.ranks):
        mine = made.rank(rank)
        found.append(np.zeros(mine.sizes[0], made.dtype))
        mine.fill(found[-1])
    return found


def test_products_of_whole_numbers_do_not_vanish() -> None:
    given = inputs(RandomData(Collective("allreduce", 16), 4096, np.dtype(np.int8), "prod"))
    assert combine_rows(given, np.dtype(np.int8), "prod").all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "flot32"}, "unknown data type 'flot32'; did you mean"),
        ({"dtype": np.object_}, "no size in bytes"),
        ({"op": "plus"}, "unknown operator 'plus'"),
        ({"repeat": 0}, "repeat: expected 1 or more"),
        ({"nbytes": -4}, "nbytes"),
        ({"nbytes": "12 parsecs"}, "unknown unit"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        run_local(exchange(), **{"nbytes": 64, **options})


def test_an_illegal_schedule_is_refused() -> None:
    with pytest.raises(Invalid, match="step 0, chunk 0: rank 1 sends to rank 0 what it does not hold"):
        run_local(of_rows(Collective("broadcast", 2), [(0, 0, 1, 0, COPY)]), 64)


def test_checksums_tell_results_apart() -> None:
    schedule = antiphon.plan("allgather", "ring:ranks=4", planner="ring").at(0).schedule
    rows: list[Any] = []
    cases = [Case(0, [0, 1, 2, 3], 3, 48, "int32", seed=seed, digest=True) for seed in (1, 1, 2)]
    local.Local().run([Runnable(schedule)], cases, How(), lambda number, row: rows.append(row))
    first, again, other = (row["digests"] for row in rows)
    assert len(first) == 1
    assert first == again != other
