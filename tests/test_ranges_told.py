"""Ranges as people read them: at which size a time holds, ends that differ, no range from a size to itself."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import Page

import antiphon
from antiphon.cli.tuning_text import tuning_text, tunings_text
from antiphon.select import Tuning, Tunings, tune
from antiphon.units import format_size, parse_size


@pytest.fixture(scope="module")
def tuned() -> Tuning:
    """A tree for small sizes, a ring for large ones; the last range is made the last size alone."""
    found = tune(
        "allreduce", "ring:ranks=8", nbytes="1KB:1GB", planners=["ring", "relay"], workers="none", nccl=False, budget=60
    )
    first, *rest = found.ranges
    assert rest
    low, last = found.sizes[0], found.sizes[-1]
    before = found.sizes[-2]
    ranges = (replace(first, start=low, stop=last, at=before), replace(rest[-1], start=last, stop=last, at=last))
    plan = replace(found.plan, entries=(replace(found.plan.entries[0], stop=last), replace(
        found.plan.entries[-1], start=last)))  # fmt: skip
    return replace(found, ranges=ranges, plans={"allreduce": plan})


@given(st.integers(0, 2**60 - 1), st.integers(0, 2**60 - 1))
def test_two_sizes_never_print_alike(one: int, other: int) -> None:
    assert parse_size(format_size(one), "size") == one
    assert (format_size(one) == format_size(other)) == (one == other)


def test_the_text_says_at_which_size_each_time_holds(tuned: Tuning, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    head, first, last = (line.split() for line in tuning_text(tuned).split("\n\n")[1].splitlines()[:3])
    assert head[:4] == ["from", "to", "algorithm", "at"]
    assert head[-1] == "gap"  # nothing to compare with: no speedup
    assert "not calibrated by measurements" in " ".join(tuning_text(tuned).split())
    assert first[:2] == ["1KB", "1GB"]
    assert "512MiB" in first  # not 1GB, where the next begins
    assert last[:2] == ["1GB", "1GB"]
    assert "1GB" in last[2:]
    text = " ".join(tuning_text(tuned).split())
    assert "from, to: a size in two rows belongs to the second; at: size that the figures are for" in text
    assert "gap: time / lower bound by the same model" in text


def test_several_machines_are_told_so_too(tuned: Tuning) -> None:
    said = tunings_text(Tunings("ring", "ranks", {8: tuned}, {}))
    rows = [line.split() for line in said.splitlines() if line.split()[:1] in (["8"], ["."])]
    assert [row[2:4] for row in rows] == [["1KB", "1GB"], ["1GB", "1GB"]]
    assert "at: size that the figures are for" in " ".join(said.split())


def test_the_report_has_no_range_from_a_size_to_itself(tuned: Tuning) -> None:
    ranges = Page(antiphon.pages.report(tuned)).data["groups"][0]["ranges"]
    assert [r["span"] for r in ranges] == [["1KB", "1GB"], ["1GB", "-"]]
    assert ranges[0]["at"] == 2**29  # the size at which the first row's time holds


@pytest.mark.parametrize("nbytes", ["1KB", "1KB:1KB", "1000B:1024B", "1KB:3KB"])
def test_no_two_rows_of_a_tuning_begin_alike(nbytes: str) -> None:
    found = tune("allgather", "full:ranks=4", nbytes=nbytes, planners=["ring", "direct"], workers="none", nccl=False)
    rows = [line.split() for line in tuning_text(found).splitlines() if re.match(r" +[0-9.]+[KMG]?i?B ", line)]
    assert rows
    assert [row[0] == row[1] for row in rows] == [len(found.sizes) == 1] * len(rows)
    assert all(one[0] != other[0] for one, other in pairwise(rows))
