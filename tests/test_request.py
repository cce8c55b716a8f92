"""What a planner is asked for: one request, which checks itself, and the planner's own options."""

import inspect
import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.collective import Collective
from antiphon.core.request import Request
from antiphon.errors import Invalid
from antiphon.registry import call, table
from antiphon.select import plan
from antiphon.topologies import topology

MACHINE = topology("ring:ranks=4")
RIGHT: dict[str, Any] = {"topology": MACHINE, "collective": Collective("allgather", 4)}
ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.floats(-5, 5), st.text(max_size=3), st.lists(st.none(), max_size=2)
)  # fmt: skip


@pytest.mark.parametrize("name", sorted(table("planner")))
def test_every_planner_takes_a_request_and_options_with_defaults(name: str) -> None:
    first, *rest = inspect.signature(table("planner")[name].load()).parameters.values()
    assert (first.name, first.annotation) == ("request", "Request")
    assert all(one.kind is one.KEYWORD_ONLY and one.default is not one.empty for one in rest)


@given(field=st.sampled_from(["topology", "collective", "nbytes", "budget", "seed"]), value=ANYTHING)
def test_what_is_no_request_is_refused_in_one_way(field: str, value: Any) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    good = {
        "nbytes": whole or value is None,
        "seed": whole,
        "budget": whole or value is None or (isinstance(value, float) and value >= 0),
    }
    if good.get(field):
        assert getattr(Request(**{**RIGHT, field: value}), field) == value
    else:
        with pytest.raises(Invalid, match=field):
            Request(**{**RIGHT, field: value})


def test_who_is_not_of_this_machine() -> None:
    with pytest.raises(Invalid, match=r"for 5 ranks, but topology ring:ranks=4 has 4"):
        Request(MACHINE, Collective("allgather", 5))


def test_a_request_travels_and_hears_are_no_part_of_it() -> None:
    heard: list[str] = []
    one = Request(**RIGHT, nbytes=5, seed=2, tell=heard.append)
    assert pickle.loads(pickle.dumps(Request(**RIGHT, nbytes=5, seed=2))) == one == replace(one, tell=print)
    one.tell("hm")
    assert heard == ["hm"]


def test_options_that_a_planner_does_not_have_are_named() -> None:
    with pytest.raises(Invalid, match=r"unknown option of planner ring 'peices'.*pieces"):
        plan("allgather", MACHINE, planner="ring", options={"peices": 2})
    function = table("planner")["ring"].load()
    for name in ("peices", "nbytes", "seed", "budget"):  # what the request says is no option
        with pytest.raises(Invalid, match="unknown option of planner ring"):
            call("planner", "ring", function, {name: 2}, Request(**RIGHT))
