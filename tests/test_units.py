"""Units: what is written as a text says what it is in."""

from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import topology
from antiphon.cost import Incast, Profile, load_profile, save_profile
from antiphon.errors import Invalid
from antiphon.topologies.regular import ring
from antiphon.topologies.trees import tree
from antiphon.units import (
    BINARY,
    DECIMAL,
    Span,
    exact,
    format_ends,
    format_size,
    parse_bandwidth,
    parse_seconds,
    parse_size,
    parse_sizes,
    parse_span,
    plain,
    size_family,
    stored_bandwidth,
)


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
    for half in ("1KB:", ":1KB", ":"):
        with pytest.raises(Invalid, match=rf"nbytes: expected SIZE, FROM:TO or FROM:TO:FACTOR .*'{half}'"):
            parse_sizes(half)
    with pytest.raises(Invalid, match="--budget: cannot read 'soon'; write for example 60s"):
        parse_seconds("soon", "--budget", bare=True)
    assert parse_bandwidth("100Gbit/s") == parse_bandwidth("100Gb/s") == parse_bandwidth("12.5GB/s") == 125 * 10**8
    assert parse_seconds(2) == parse_seconds("2s") == parse_seconds("2", bare=True) == 2.0
    assert parse_seconds("0") == 0.0
    for text in ("25", "7/3", " 25 "):
        with pytest.raises(Invalid, match=r"has no unit; write for example .*GB/s or .*Gbit/s"):
            parse_bandwidth(text)
    for text in ("7/0", "1/0GB/s", "/3GB/s", "5iB/s", "5ibit/s"):
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


# ---- sizes ----

WRITTEN = st.integers(1, 2**40).flatmap(lambda n: st.sampled_from([str(n), f"{n}B", format_size(n), f" {n} "]))


def test_sizes() -> None:
    assert parse_sizes("3float8_e4m3") == parse_sizes("3 f8e4m3") == [3]
    assert parse_sizes("64KB") == parse_sizes(64_000) == [64_000]
    assert parse_sizes("1KB:10KB") == [1000, 2000, 4000, 8000, 10000]
    assert parse_sizes("1KB:8KB") == [1000, 2000, 4000, 8000]
    assert parse_sizes("1KB:10KB", usual=3) == [1000, 3000, 9000, 10000]
    assert parse_sizes("1KB:1GB:8")[-2:] == [8**6 * 1000, 10**9]
    assert parse_sizes("1KiB:1MiB:4", usual=3) == [4**k for k in range(5, 11)]
    assert parse_sizes("5:5") == [5]
    assert parse_sizes(["1KB", 3, "1:4"]) == [1000, 3, 1, 2, 4]
    assert parse_sizes(0) == [0]
    texts = "0:8 9:8 1:8:1 1:8:x 1:8:2:2 1: :8 -1 1KB-1MB"
    for bad in ("", *texts.split(), None, 1.5, True, ["1", 2.5]):
        with pytest.raises(Invalid):
            parse_sizes(bad)  # type: ignore[arg-type]


def test_where_one_size_is_wanted_a_range_is_named() -> None:
    with pytest.raises(Invalid, match="--nbytes: expected one size such as 64MiB, got the range '1KB:1MB'"):
        parse_size("1KB:1MB", "--nbytes")


@given(low=WRITTEN, more=st.integers(0, 2**30), factor=st.one_of(st.none(), st.integers(2, 1000)))
def test_a_range_is_read_as_it_was_written(low: str, more: int, factor: int | None) -> None:
    first = parse_size(low)
    last = first + more
    span = parse_span(f"{low}:{last}" + (f":{factor}" if factor else ""))
    assert span == Span(first, last, factor)
    sizes = span.sizes()
    assert (sizes[0], sizes[-1]) == (first, last)
    assert all(b == a * (factor or 2) for a, b in pairwise(sizes[:-1]))
    assert len(sizes) == 1 or sizes[-2] < last <= sizes[-2] * (factor or 2)


def test_sizes_are_printed_in_the_units_that_they_were_written_in() -> None:
    ladder = parse_sizes("1KB:1GB")
    shown = [format_size(size, size_family(ladder)) for size in ladder]
    assert shown[:3] == ["1KB", "2KB", "4KB"]
    assert shown[7:12] == ["128KB", "256KB", "512KB", "1.024MB", "2.048MB"]
    assert shown[-3:] == ["262.144MB", "524.288MB", "1GB"]
    binary = parse_sizes("1KiB:1GiB")
    assert [format_size(size, size_family(binary)) for size in binary][9:12] == ["512KiB", "1MiB", "2MiB"]
    assert [format_size(size, size_family([size])) for size in (128_000, 2**17 * 1000, 65536, 4096)] == [
        "128KB", "125MiB", "64KiB", "4KiB",
    ]  # fmt: skip
    assert format_size(1_048_576, DECIMAL) == "1MiB"
    assert (size_family([]), size_family([0]), format_size(0, DECIMAL)) == ("", "", "0B")


@given(st.integers(0, 2**60 - 1), st.sampled_from([DECIMAL, BINARY, ""]))
def test_a_size_is_printed_exactly_in_any_units(size: int, family: str) -> None:
    assert parse_size(format_size(size, family)) == size


def test_ends_of_ranges_behind_a_size() -> None:
    assert format_ends(0, 4_096_001, DECIMAL) == ("0B", "4.096MB")
    assert format_ends(4_096_001, None, DECIMAL) == (">4.096MB", "-")
    assert format_ends(65536, 2_048_000, DECIMAL) == ("64KiB", "2.048MB")
    assert format_ends(2**20 + 1, 2**21 + 1, BINARY) == (">1MiB", "2MiB")
    assert format_ends(12_345, 67_891) == ("12345B", "67891B")


@given(text=st.text("0123456789.:KMiBf32x e-", max_size=12))
def test_any_text_is_sizes_or_refused(text: str) -> None:
    try:
        sizes = parse_sizes(text)
    except Invalid:
        return
    assert sizes == sorted(sizes)
    assert parse_sizes(":".join(text.split(":")[:1])) == sizes[:1]
