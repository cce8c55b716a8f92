"""Units: what is written as a text says what it is in."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import topology
from antiphon.cost import Incast, Profile, load_profile, save_profile
from antiphon.errors import Invalid
from antiphon.topologies.regular import ring
from antiphon.topologies.trees import tree
from antiphon.units import exact, parse_bandwidth, parse_seconds, plain, stored_bandwidth


@pytest.mark.parametrize(
    "spec",
    ["ring:ranks=8,bandwidth=25", "ring:ranks=8,bandwidth=7/3", "ring:ranks=8,latency=1", "ring:ranks=8,latency=1e-6",
     "cluster:box=dgx1v,boxes=2,nic=25", "tree:fanouts=4x4,uplink=50", "tree:fanouts=4x4,uplink=50GB/s+50",
     "cluster:box=ring:ranks=4+bandwidth=25,boxes=2"],
)  # fmt: skip
def test_a_number_alone_is_refused(spec: str) -> None:
    with pytest.raises(Invalid, match=r"has no unit; write for example [0-9/e.-]+(GB/s or|us or)"):
        topology(spec)


def test_numbers_are_bytes_per_second_and_seconds() -> None:
    assert parse_bandwidth(25) == stored_bandwidth(25) == stored_bandwidth("25") == 25
    assert stored_bandwidth("7/3") == parse_bandwidth(Fraction(7, 3)) == parse_bandwidth("7/3B/s") == Fraction(7, 3)
    assert parse_seconds(2) == parse_seconds("2s") == parse_seconds("2", bare=True) == 2.0
    assert parse_seconds("0") == 0.0
    for text in ("25", "7/3", " 25 "):
        with pytest.raises(Invalid, match=r"has no unit; write for example .*GB/s or .*Gbit/s"):
            parse_bandwidth(text)
    for text in ("7/0", "1/0GB/s", "/3GB/s"):
        with pytest.raises(Invalid):
            parse_bandwidth(text)


@pytest.mark.parametrize("value", [10**400, -(10**400), "1e999", Fraction(10**301)])
def test_what_no_float_holds_is_refused(value: int | str | Fraction) -> None:
    with pytest.raises(Invalid, match=r"must be below 10\^300"):
        exact(value)


def test_a_profile_with_such_a_number_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    save_profile(Profile("p", incast={"nvlink": Incast(1e-3, 2)}), file)
    file.write_text(file.read_text().replace("0.001", "9" * 400))
    with pytest.raises(Invalid, match=r"incast.nvlink: epsilon: must be below"):
        load_profile(file)


@given(st.fractions(min_value=Fraction(1, 10**6), max_value=10**14, max_denominator=10**6))
def test_what_a_file_holds_is_read_again(bandwidth: Fraction) -> None:
    assert stored_bandwidth(plain(bandwidth)) == bandwidth
    assert parse_bandwidth(f"{bandwidth}B/s") == bandwidth


def test_names_of_machines_made_in_python_are_their_specs() -> None:
    for made in (
        ring(ranks=4, bandwidth=10**9, latency=1e-7), ring(ranks=4, bandwidth=Fraction(10**9, 7)),
        tree(fanouts="2x2", uplink="9GB/s"), tree(fanouts="2x2", uplink=9 * 10**9),
    ):  # fmt: skip
        assert topology(made.name) == made
