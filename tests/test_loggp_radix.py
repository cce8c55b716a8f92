"""LogGP's radices, and all else, of GPUs made up: what the benchmark measures there, the fit gives back."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import fake_ground
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_gpus import Gpus

from antiphon.cli import run
from antiphon.core.program import prove
from antiphon.core.verify import verify
from antiphon.cost import Level, LogGP, Profile, load_profile
from antiphon.cost.fit import LogGPFit, RoundTrip, fit_loggp, fit_simultaneous, loggp_profile, read_round_trips
from antiphon.cost.fit.loggp_radix import radix_remarks
from antiphon.errors import Invalid
from antiphon.formats.program import lower
from antiphon.registry import table
from antiphon.runtimes.engine.launch import LAUNCHED
from antiphon.runtimes.measure import bench_loggp as bench
from antiphon.runtimes.measure.bench_loggp import fan_in, fan_out, pairs
from antiphon.show.fit import loggp_svg, loggp_text
from antiphon.topologies import topology

SIZES = tuple(2**i for i in range(0, 24, 2))
NAMES = ("L", "o_s", "o_r", "g", "G")
NEAR = 0.03
HOST, HALF = 10, 10  # ranks of one host, of each of two


def measured(gpus: Gpus, between: bool, patch: pytest.MonkeyPatch, **more: Any) -> list[RoundTrip]:
    patch.setitem(table("runtime"), "fake", fake_ground.ENTRY)  # type: ignore[arg-type]
    patch.setattr(fake_ground, "speed", gpus.speed)
    patch.setattr(fake_ground, "asked", [])
    for name in LAUNCHED:
        patch.delenv(name, raising=False)
    wanted: dict[str, Any] = {"ranks": 2 * HALF if between else HOST, "between": between, "on": "fake", **more}
    rows = bench.bench_loggp(SIZES, **wanted)
    assert rows is not None
    return rows


def fitted(gpus: Gpus, between: bool = False, **more: Any) -> LogGPFit:
    with pytest.MonkeyPatch.context() as patch:
        return fit_loggp(measured(gpus, between, patch, **more))


def check(gpus: Gpus, found: LogGPFit, between: bool, names: Sequence[str] = NAMES) -> None:
    assert len(found.regimes) == 1
    for name in names:
        figure = found.regimes[0].figures[name]
        assert figure.state == "determined", name
        assert figure.value == pytest.approx(getattr(gpus, name), rel=NEAR, abs=0), name
    told = {name: (one.state, one.count) for name, one in found.radices.items()}
    assert told["device"] == ("determined", gpus.device_radix)
    if between:
        assert told["node"] == ("determined", gpus.node_radix)
        made = loggp_profile(found).loggp
        assert made is not None
        assert (made.device_radix, made.node_radix) == (gpus.device_radix, gpus.node_radix)


@st.composite
def machines(draw: st.DrawFn) -> tuple[Gpus, bool]:
    """Ports that take turns longer than a processor needs for their messages: else nobody ever waits for one. Where
    what is measured varies by 2 %, L is no less than a third of both overheads: it is what a message takes less these.
    """
    exponent = st.floats(0, 1)
    radix, between = draw(st.integers(1, 8)), draw(st.booleans())
    o_s = 5e-7 * 10 ** draw(exponent)
    o_r = o_s * (0.7 + 0.8 * draw(exponent))
    gap = radix * max(o_s, o_r) * (1.3 + 1.7 * draw(exponent))
    noise = draw(st.sampled_from([0.0, 0.02]))
    latency = max(1e-6 * 20 ** draw(exponent), (o_s + o_r) / 3 if noise else 0.0)
    gpus = Gpus(
        latency, o_s, o_r, gap, 5e-12 * 200 ** draw(exponent), radix, draw(st.integers(1, 8)),
        HALF if between else 1024, noise=noise, seed=draw(st.integers(0, 2**31)),
    )  # fmt: skip
    return gpus, between


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(machines())
def test_every_figure_of_a_random_machine_is_found(made: tuple[Gpus, bool]) -> None:
    gpus, between = made
    check(gpus, fitted(gpus, between), between)


@pytest.mark.slow
@pytest.mark.parametrize("between", [False, True])
def test_where_overheads_overlap_with_everything_they_are_latency(between: bool) -> None:
    """The simulator's own ranks: nothing that they do shows where L ends and an overhead begins."""
    gpus = Gpus(device_radix=4, node_radix=2, per_host=HALF if between else 1024, noise=0.02, serial=False)
    found = fitted(gpus, between)
    check(gpus, found, between, ("g", "G"))
    figures = found.regimes[0].figures
    assert figures["L"].value == pytest.approx(gpus.L + gpus.o_s + gpus.o_r, rel=NEAR, abs=0)
    assert [figures[name].state for name in ("o_s", "o_r")] == ["undetermined"] * 2


@pytest.mark.slow
def test_no_limit_is_told_as_such() -> None:
    found = fitted(Gpus(g=2e-5, device_radix=64), repetitions=1, iterations=1)
    assert (found.radices["device"].state, found.radices["device"].up_to) == ("unseen", HOST - 1)
    assert any("no limit up to 16 at once" in note for note in found.notes)
    made = loggp_profile(found).loggp
    assert made is not None
    assert made.device_radix is None
    assert found.regimes[0].figures["g"].value == pytest.approx(1.5e-6, rel=NEAR, abs=0)  # what a processor needs: o_r
    assert found.regimes[0].figures["G"].value == pytest.approx(1e-10, rel=NEAR, abs=0)


@pytest.mark.slow
def test_what_sends_and_receives_differently_is_said() -> None:
    """A profile has one number for both."""
    rows = []
    for kind, ports in (("fan-out", 4), ("fan-in", 2)):
        rows += [RoundTrip(kind, n, 0.0, 2**20, 1e-4 * np.ceil(n / ports)) for n in range(1, 10)]
    with pytest.MonkeyPatch.context() as patch:
        whole = [
            row
            for row in measured(Gpus(), False, patch, repetitions=1, iterations=1)
            if row.kind in ("rtt", "server", "burst")
        ]
    found = fit_loggp([*whole, *rows])
    assert {name: one.count for name, one in found.radices.items()} == {
        "send": 4, "receive": 2, "device": 2, "node": None
    }  # fmt: skip
    assert any("sends 4 at once and takes in 2" in note for note in found.notes)


def test_two_counts_that_fit_as_well_are_no_answer() -> None:
    rng = np.random.default_rng(1)
    states = list[str]()
    for _ in range(40):
        seconds = [1e-4 * max(1, n / 7) * (1 + 0.1 * rng.standard_normal()) for n in range(1, 13)]
        (one,) = fit_simultaneous([RoundTrip("fan-out", n + 1, 0.0, 2**20, s) for n, s in enumerate(seconds)])
        states.append(one.state)
        assert one.usable == (one.state == "determined")
        if one.state == "weak":
            assert one.low is not None
            assert one.high is not None
            assert one.low < one.high
            assert any("not determined well enough" in note for note in radix_remarks([one]))
    assert "weak" in states


@pytest.mark.slow
def test_two_numbers_of_messages_tell_nothing() -> None:
    found = fitted(Gpus(device_radix=2), ranks=3, n=2, repetitions=2, iterations=2)
    assert {one.state for one in found.simultaneous} == {"undetermined"}
    assert {one.state for one in found.radices.values()} == {"undetermined"}
    assert any("burst at 1B: 2 at most do not show" in note for note in found.notes)
    assert len(found.fitted) == len(found.measured)
    assert found.regimes[0].figures["G"].value is not None


@pytest.mark.slow
def test_radices_without_measurements_stay_as_they_were() -> None:
    found = fitted(Gpus(), ranks=None, repetitions=2, iterations=2)
    assert found.simultaneous == []
    assert {one.state for one in found.radices.values()} == {"undetermined"}
    made = loggp_profile(found, into=Profile("old", loggp=LogGP((Level(),), 8, 2))).loggp
    assert made is not None
    assert (made.device_radix, made.node_radix) == (8, 2)


def test_the_schedules_are_right_and_their_programs_are_proven() -> None:
    machine = topology("full:ranks=6")
    together = [fan_out([3, 4, 5], 6), fan_in([1, 2], 6), pairs(3, 3, 6), pairs(1, 3, 6)]
    chains = [bench.trip(3, 2, False, 6, 3), bench.busy(2, 3, 6, 3), bench.pings(2, 6, 3)]
    for schedule in (*together, *chains):
        assert verify(schedule, machine).ok
        prove(lower(schedule))


@pytest.mark.slow
def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rows, made, svg = tmp_path / "trips.csv", tmp_path / "profile.json", tmp_path / "fit.svg"
    measured(gpus := Gpus(device_radix=2, node_radix=1, per_host=3), True, monkeypatch, ranks=6, repetitions=1)
    line = f"bench loggp --on fake -n 6 --between --nbytes 1:4MiB:4 --repeat 3 --iterations 3 -o {rows}"
    assert run(line.split()) == 0
    assert "pairs, " in capsys.readouterr().out
    assert {row.kind for row in read_round_trips(rows)} == {"rtt", "server", "burst", "fan-out", "fan-in", "pairs"}
    assert run(["fit", "loggp", str(rows), "-o", str(made), "-o", str(svg), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["radices"]["device"] == {"state": "determined", "count": gpus.device_radix, "up_to": 16}
    assert told["radices"]["node"]["count"] == gpus.node_radix
    assert {one["kind"] for one in told["at_once"]} == {"burst", "fan-out", "fan-in", "pairs"}
    assert len(told["rows"]) == told["measurements"] == len(read_round_trips(rows))
    profile = load_profile(made).loggp
    assert profile is not None
    assert (profile.device_radix, profile.node_radix) == (2, 1)
    found = fit_loggp(read_round_trips(rows))
    assert "node_radix" in loggp_text(found)
    assert loggp_svg(found).startswith("<svg")


def test_impossible_wishes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wishes: list[tuple[dict[str, Any], str]] = [
        ({"ranks": 1}, "ranks: expected 2 to"),
        ({"ranks": 5, "between": True}, "an even number"),
        ({"ranks": None, "between": True}, "an even number"),
    ]
    for wish, complaint in wishes:
        with pytest.raises(Invalid, match=complaint):
            measured(Gpus(), wish.pop("between", False), monkeypatch, **wish)


def test_a_row_at_once_has_no_delay(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("kind,n,delay,nbytes,seconds\nburst,3,1us,8,1\n")
    with pytest.raises(Invalid, match="line 2: delay: messages that begin at once have none"):
        read_round_trips(path)
    assert replace(RoundTrip("burst", 1, 0.0, 1, 1.0)).kind == "burst"
