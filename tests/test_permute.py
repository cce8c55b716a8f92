"""Blocks reordered in place: what plain indexing gives, on any view, with next to no memory."""

from __future__ import annotations

import re
import tracemalloc
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core import permute
from antiphon.core.permute import permute_in_place, permuted_share
from antiphon.errors import Invalid


@given(
    data=st.data(), count=st.integers(0, 70), block=st.integers(1, 4), step=st.sampled_from([1, 2, -1, -3]),
    dtype=st.sampled_from(["u1", "i8", "f4", "c16", "S3", "i4,f8", object]), width=st.sampled_from([(), (2,), (0,)]),
)  # fmt: skip
def test_as_by_plain_indexing(
    data: st.DataObject, count: int, block: int, step: int, dtype: Any, width: tuple[int, ...]
) -> None:
    order = data.draw(st.permutations(range(count)))
    whole = np.arange(abs(step) * count * block * max(sum(width), 1) * max(len(width), 1)).astype(dtype)
    whole = np.resize(whole, (abs(step) * count * block, *width))
    before = whole.copy()
    view = whole[::step]
    expected = view.reshape(count, block, *width)[np.array(order, int)].reshape(view.shape)
    permute_in_place(view, order, block)
    assert np.array_equal(view, expected)
    between = np.ones(len(whole), bool)
    between[::step] = False
    assert np.array_equal(whole[between], before[between])  # what the view leaves out stays


@pytest.mark.parametrize("aside", [1, 40, 2**16])
@pytest.mark.parametrize("window", [3, 1024])
def test_cycles_of_every_length(monkeypatch: pytest.MonkeyPatch, aside: int, window: int) -> None:
    monkeypatch.setattr(permute, "SCRATCH", aside)
    monkeypatch.setattr(permute, "WINDOW", window)
    random = np.random.default_rng(7)
    lengths = [1, 2, 3, 31, 32, 33, 34, 64, 300, 2, 1]
    names = random.permutation(sum(lengths))
    order = np.empty(len(names), np.int32)
    for cycle in np.split(names, np.cumsum(lengths)[:-1]):
        order[cycle] = np.roll(cycle, -1)
    data = random.integers(0, 2**60, len(order))
    kept = data.copy()
    permute_in_place(data, order)
    assert np.array_equal(data, kept[order])
    assert permuted_share(order) == Fraction(len(order) - 2, len(order))


def test_no_second_buffer() -> None:
    random = np.random.default_rng(1)
    for count, block in ((200_000, 1), (64, 2**15)):
        order = random.permutation(count).astype(np.int32)
        buffer = np.arange(count * block)
        tracemalloc.start()
        permute_in_place(buffer, order, block)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert np.array_equal(buffer[::block], np.arange(count)[order] * block)
        assert most < 4 * count + 8 * block + 2**20  # marks, and a block


def test_the_order_may_lie_in_the_buffer() -> None:
    for shift in (0, 1, 2):
        whole = np.array([7, 2, 0, 3, 1, 9])
        order, buffer = whole[1:5], whole[shift : shift + 4]
        expected = buffer[order.copy()]
        permute_in_place(buffer, order)
        assert np.array_equal(buffer, expected)


@pytest.mark.parametrize(
    ("size", "order", "block", "says"),
    [
        (3, [0, 1, 1], 1, "2 is missing"), (3, [0, 1, 3], 1, r"order\[2\] = 3 is out of range"),
        (3, [0, -1, 2], 1, r"order\[1\] = -1"), (3, [0.0, 1.0, 2.0], 1, "whole numbers"),
        (3, [[0, 1, 2]], 1, "whole numbers"), (3, [[0], [1, 2]], 1, "whole numbers"), (3, "012", 1, "whole numbers"),
        (5, [0, 1], 2, "has 5 entries, but order names 2 blocks of 2"), (2, [0, 1], 0, "block"),
        (2, [0, 1], 1.5, "block"), (3, [True, False, True], 1, "whole numbers"),
    ],
)  # fmt: skip
def test_what_is_no_permutation_is_refused(size: int, order: Any, block: Any, says: str) -> None:
    buffer = np.arange(size)
    with pytest.raises(Invalid, match=says):
        permute_in_place(buffer, order, block)
    assert np.array_equal(buffer, np.arange(size))


def test_what_cannot_be_changed_is_refused() -> None:
    fixed = np.arange(3)
    fixed.setflags(write=False)
    with pytest.raises(Invalid, match="read-only"):
        permute_in_place(fixed, [2, 1, 0])
    for given_ in ([1, 2, 3], np.array(3)):
        with pytest.raises(Invalid, match="NumPy array"):
            permute_in_place(given_, [2, 1, 0])


def test_the_share_that_moves() -> None:
    assert permuted_share([]) == 0
    assert permuted_share(range(5)) == 0
    assert permuted_share([0, 2, 1, 3]) == Fraction(1, 2)


@pytest.mark.parametrize("page", ["permutation.md", "planners/permrecmult.md"])
def test_the_python_of_the_pages_runs(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (Path(__file__).parent.parent / "docs" / page).read_text(), re.DOTALL)
    exec(compile(block, page, "exec"), {})
    said = [re.sub(r"[^\d/ ]", "", line) for line in re.findall(r"print.*# ([\d/ ]+)", block)]
    printed = capsys.readouterr().out.translate(str.maketrans("", "", "[]")).splitlines()
    assert [line.split() for line in printed] == [line.split() for line in said]
