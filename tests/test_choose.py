"""Which page serves a call: the first, in the order given, that is for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.choose import Call, Pages
from antiphon.core.collective import Collective
from antiphon.core.plan import Plan
from antiphon.core.request import Request
from antiphon.errors import Invalid
from antiphon.planners.rings.ring import ring
from antiphon.topologies import topology

KINDS = ("allreduce", "gather")
ENDS = st.one_of(st.integers(0, 12), st.sampled_from([2**20, 2**59]))
Row = tuple[int, int | None, str, int, tuple[int, ...]]


@st.composite
def rows(draw: st.DrawFn) -> Row:
    """start, stop, kind, root, members."""
    start = draw(ENDS)
    stop = draw(st.one_of(st.none(), st.integers(start + 1, 2**60)))
    kind = draw(st.sampled_from(KINDS))
    return start, stop, kind, draw(st.integers(-1, 1)), draw(st.sampled_from([(), (0, 1), (1, 0)]))


@given(table=st.lists(rows(), max_size=8), more=st.lists(ENDS, max_size=4))
def test_the_first_page_that_holds_the_size(table: list[Row], more: list[int]) -> None:
    pages: Pages[int] = Pages()
    for number, (start, stop, *where) in enumerate(table):
        pages.add(number, start, stop, *where)
    edges = {at + by for row in table for at in row[:2] if at is not None for by in (-1, 0, 1)}
    for nbytes in {*edges, *more, 0}:
        for kind in (*KINDS, "alltoall"):
            for root in (-1, 0, 1):
                for members in ((), (0, 1), (1, 0)):
                    fitting = [
                        number
                        for number, (start, stop, *where) in enumerate(table)
                        if where == [kind, root, members] and start <= nbytes and (stop is None or nbytes < stop)
                    ]
                    found = pages.page(Call(kind, nbytes, root, members))
                    assert found == (fitting[0] if fitting else None)


def test_a_plan_is_asked_by_size() -> None:
    machine = topology("ring:ranks=3")
    (schedule,) = ring(Request(machine, Collective("gather", 3)))
    plan = Plan.of(machine, schedule)
    assert plan.at(0) is plan.at(10**12) is plan.entries[0]
    assert plan.chooser.page(Call("gather", 5)) is plan.entries[0]
    for wrong in (-1, True - 2):
        with pytest.raises(Invalid, match="must be 0 or more"):
            plan.at(wrong)
