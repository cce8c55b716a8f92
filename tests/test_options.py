"""Options as people write them are read in one place, alike for machines, planners, models and the command line."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.cli.arguments import split_options
from antiphon.cost import model_of
from antiphon.errors import Invalid
from antiphon.options import Option, parse_options, parse_yes, plain_value
from antiphon.registry import declared_options, table
from antiphon.select import read_sweep
from antiphon.topologies import topology

KEY = st.text("abcxyz_", min_size=1, max_size=6)
VALUE = st.one_of(st.integers(-(10**6), 10**6).map(str), st.from_regex(r"[a-z0-9./x+-]{1,6}", fullmatch=True))
READERS: dict[str, Any] = {
    "model": lambda parts: model_of("alpha-beta:" + ",".join(parts))[1],
    "--planner": lambda parts: split_options("ring:" + ",".join(parts), "--planner")[1],
    "--sweep": read_sweep,
}


@given(options=st.dictionaries(KEY, VALUE, max_size=4))
def test_options_are_read_as_they_were_written(options: dict[str, str]) -> None:
    parts = [f"{key}={value}" for key, value in options.items()]
    assert parse_options(parts, "--option", "key=value") == options
    plain = {key: plain_value(value) for key, value in options.items()}
    assert split_options("ring" + (":" + ",".join(parts) if parts else ""), "--planner") == ("ring", plain)
    assert read_sweep(parts) == options
    if parts:
        assert READERS["model"](parts) == plain


@pytest.mark.parametrize("wrong", ["k", "k=", "=3", ""])
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_option_is_refused_everywhere(reader: str, wrong: str) -> None:
    with pytest.raises(Invalid, match=rf"{reader}.*: expected .*=.*, got '{wrong}'"):
        READERS[reader]([wrong] if reader == "--planner" else ["ok=1", wrong])  # its values may hold commas


@pytest.mark.parametrize("reader", READERS)
def test_an_option_is_given_once(reader: str) -> None:
    with pytest.raises(Invalid, match="k is given twice"):
        READERS[reader](["k=1", "j=2", "k=3"])
    with pytest.raises(Invalid, match="ranks is given twice"):
        topology("ring:ranks=3,ranks=4")


@given(value=st.one_of(st.booleans(), st.integers(-2, 2), st.text(max_size=4), st.floats(), st.none()))
def test_yes_or_no_is_one_or_refused(value: Any) -> None:
    known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    wanted = known.get(str(value).lower()) if isinstance(value, str | int) else None
    if wanted is None:
        with pytest.raises(Invalid, match="it: expected true or false, got"):
            parse_yes(value, "it")
    else:
        assert parse_yes(value, "it") is wanted


@pytest.mark.parametrize("name", table("planner"))
def test_every_option_of_a_planner_is_declared(name: str) -> None:
    entry = table("planner")[name]
    declared = declared_options(entry.load())
    assert set(declared) == set(entry.options)
    for key, (kind, option) in declared.items():
        default = entry.options[key].default
        assert option.about, key
        assert option.check(key, default, kind) == default, key


@pytest.mark.parametrize(
    ("value", "kind", "option", "problem"),
    [
        (0, int | None, Option("", minimum=1), "expected a whole number of 1 or more, got 0"),
        ("2", int, Option("", minimum=1), "expected a whole number of 1 or more, got '2'"),
        (True, int, Option(""), "expected a whole number, got True"),
        (9, int, Option("", minimum=1, maximum=8), "expected a whole number from 1 to 8, got 9"),
        ("x", float, Option("", minimum=0), "expected a number of 0 or more, got 'x'"),
        (float("nan"), float, Option(""), "expected a number, got nan"),
        ("1e999999999", float, Option(""), "expected a number, got '1e999999999'"),  # at once
        ("nead", str, Option("", choices=("near", "far")), "did you mean 'near'"),
        ("maybe", bool, Option(""), "expected true or false, got 'maybe'"),
        (None, int | None, Option("", minimum=1), ""),
        ("1/20", float | str, Option("", minimum=0, maximum=1), ""),
    ],
)
def test_values_are_held_against_their_declaration(value: Any, kind: Any, option: Option, problem: str) -> None:
    if problem:
        with pytest.raises(Invalid, match=re.escape(problem)):
            option.check("size", value, kind)
    else:
        assert option.check("size", value, kind) == value


def test_a_number_on_the_command_line_is_one() -> None:
    assert Option("", minimum=0).check("pace", "1/4", float | None) == 0.25
