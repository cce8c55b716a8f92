"""LogGP's figures from round trips: right where they can be known, silent where they cannot."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from quick import in_turn
from tables import listed

from antiphon.cli import run
from antiphon.cost import Level, LogGP, Profile, load_profile, save_profile
from antiphon.cost.fit import (
    LogGPFit,
    RoundTrip,
    fit_loggp,
    list_missing_loggp_figures,
    loggp_level,
    loggp_profile,
    read_round_trips,
    write_round_trips,
)  # fmt: skip
from antiphon.cost.loggp.forms import Figures, message
from antiphon.errors import Invalid
from antiphon.show.fit import loggp_svg, loggp_text

EAGER = Figures(4e-6, 1.2e-6, 1.5e-6, 2.5e-6, 2.5e-10)
RENDEZVOUS = Figures(1.1e-5, 2.2e-6, 2.6e-6, 6e-6, 0.9e-10)
TRUE = [(8192, EAGER), (2**62, RENDEZVOUS)]
SIZES = tuple(2**i for i in range(21))
NAMES = ("L", "o_s", "o_r", "g", "G")


def trips(
    seed: int = 0,
    noise: float = 0.01,
    *,
    truth: Sequence[tuple[int, Figures]] = TRUE,
    sizes: Sequence[int] = SIZES,
    repeat: int = 7,
    n: int = 16,
    cover: float = 1.5,
) -> list[RoundTrip]:
    """Measurements by the definitions, from the model and nothing else; every one off by its own part."""
    rng = np.random.default_rng(seed)
    rows = []
    for s in sizes:
        f = next(figures for most, figures in truth if s <= most)
        one, gap = 2 * message(f, s), f.g + (s - 1) * f.G
        delay = cover * gap
        for _ in range(repeat):
            for kind, count, wait, seconds in (
                ("rtt", 1, 0.0, one),
                ("rtt", n, 0.0, one + (n - 1) * gap),
                ("rtt", n, delay, one + (n - 1) * max(f.o_s + delay, gap)),
                ("server", n, 0.0, n * f.o_r),
            ):
                rows.append(RoundTrip(kind, count, wait, s, seconds * (1 + noise * float(rng.standard_normal()))))
    return rows


def breaks(found: LogGPFit) -> list[tuple[int, int]]:
    return [(one.after, one.before) for one in found.breaks]


def test_exact_measurements_give_the_exact_figures() -> None:
    found = fit_loggp(trips(noise=0))
    assert breaks(found) == [(8192, 16384)]
    for regime, (_, truth) in zip(found.regimes, TRUE, strict=True):
        for name in NAMES:
            figure = regime.figures[name]
            assert figure.state == "determined"
            assert figure.value == pytest.approx(getattr(truth, name), rel=1e-6)
        assert not any(abs(one.value or 0) > 1e-15 for one in regime.growth.values())
    assert found.relative_errors[1] < 1e-6
    assert found.fitted == pytest.approx([row.seconds for row in found.measured], rel=1e-6)


def judged(seeds: range, noise: float) -> tuple[dict[str, float], float, int]:
    """The median error of every figure, how often its interval held it, and how often the regimes were wrong."""
    errors: dict[str, list[float]] = {}
    held, wrong = [], 0
    for seed in seeds:
        found = fit_loggp(trips(seed, noise))
        if breaks(found) != [(8192, 16384)]:
            wrong += 1
            continue
        for i, (regime, (_, truth)) in enumerate(zip(found.regimes, TRUE, strict=True)):
            for name in NAMES:
                figure, true = regime.figures[name], getattr(truth, name)
                assert figure.value is not None
                assert figure.low is not None
                assert figure.high is not None
                errors.setdefault(f"{name}{i}", []).append(abs(figure.value / true - 1))
                held.append(figure.low <= true <= figure.high)
    return {name: float(np.median(all_)) for name, all_ in errors.items()}, float(np.mean(held)), wrong


BEST = {"L0": 0.006, "o_s0": 0.015, "o_r0": 0.004, "g0": 0.006, "G0": 0.03, "L1": 0.015, "o_s1": 0.03, "o_r1": 0.006,
        "g1": 0.015, "G1": 0.008}  # fmt: skip


@pytest.mark.parametrize("noise", in_turn([0.01, 0.02], 2))
@pytest.mark.parametrize(
    ("draws", "most", "least_held"), [(12, 1.0, 0.9), pytest.param(100, 0.7, 0.93, marks=pytest.mark.slow)]
)
def test_noisy_measurements_give_the_figures_and_say_how_sure(
    draws: int, most: float, least_held: float, noise: float
) -> None:
    errors, held, wrong = judged(range(draws), noise)
    assert wrong == 0
    assert all(error < most * BEST[name] * noise / 0.01 for name, error in errors.items()), errors
    assert held > least_held


def test_repetitions_gone_astray_do_no_harm() -> None:
    rng = np.random.default_rng(5)
    rows = [replace(row, seconds=row.seconds * (4 if rng.random() < 0.08 else 1)) for row in trips()]
    found = fit_loggp(rows)
    assert breaks(found) == [(8192, 16384)]
    for regime, (_, truth) in zip(found.regimes, TRUE, strict=True):
        for name in NAMES:
            assert regime.figures[name].value == pytest.approx(getattr(truth, name), rel=0.1)


def test_overheads_that_grow_with_the_size() -> None:
    rows = []
    for row in trips(noise=0.005, truth=TRUE[1:]):
        more = 2e-10 * (row.nbytes - 1)  # of sending: the client's n times and the server's once
        delayed = row.kind == "rtt" and row.delay
        extra = 2 * more + (row.n - 1) * more if delayed else 2 * more if row.kind == "rtt" else 0.0
        rows.append(replace(row, seconds=row.seconds + extra, delay=row.delay))
    regime = fit_loggp(rows).regimes[0]
    assert set(regime.growth) == {"o_s"}
    assert regime.growth["o_s"].value == pytest.approx(2e-10, rel=0.1)
    assert regime.figures["o_s"].value == pytest.approx(RENDEZVOUS.o_s, rel=0.1)


# ---- what cannot be known ----


def test_a_figure_below_zero_has_no_value_and_the_profile_none_below_zero() -> None:
    """Overheads that go on during the transfer: all together are more than half a round trip."""
    rows = [replace(r, seconds=r.seconds - (1.2e-5 if r.kind == "rtt" else 0)) for r in trips(truth=TRUE[:1] * 1,
            sizes=SIZES[:14])]  # fmt: skip
    found = fit_loggp(rows)
    latency = found.regimes[0].figures["L"]
    assert (latency.state, latency.value, latency.low) == ("undetermined", None, None)
    assert any("L not determined" in note for note in found.notes)
    assert any("more than half a round trip" in note for note in found.notes)
    level = loggp_level(found)
    assert all(min(getattr(level, name)) >= 0 for name in NAMES)
    assert set(level.L) == {0.0}
    assert level.o_s[0] < EAGER.o_s
    assert level.o_r[0] < EAGER.o_r
    for s in (1, 300, 8192):  # yet the message takes what it took
        assert message(level, s) == pytest.approx(message(EAGER, s) - 6e-6, rel=0.03)
    assert any(said.startswith("L at 1B to 8KiB (undetermined") for said in list_missing_loggp_figures(found))


def test_a_gap_below_zero_leaves_the_rest_without_it() -> None:
    truth = [(2**62, Figures(1e-5, 1e-6, 1e-6, 0.0, 1e-9))]
    states = set()
    for seed in range(6):
        found = fit_loggp(trips(seed, 0.02, truth=truth, sizes=SIZES[10:]))
        gap = found.regimes[0].figures["g"]
        states.add(gap.state)
        assert found.regimes[0].start["g"] >= 0
        assert found.regimes[0].start["G"] == pytest.approx(1e-9, rel=0.02)
    assert {"undetermined"} <= states <= {"undetermined", "weak"}


def test_a_delay_that_is_too_short_tells_nothing_of_o_s() -> None:
    truth = [(2**62, replace(EAGER, g=5e-6))]
    found = fit_loggp(trips(truth=truth, cover=0.5))
    assert found.regimes[0].figures["o_s"].state == "undetermined"
    assert any("delay is too short" in note for note in found.notes)
    mixed = [*trips(truth=truth, cover=0.5, sizes=SIZES[10:]), *trips(truth=truth, sizes=SIZES[:10])]
    found = fit_loggp(mixed)
    assert breaks(found) == []
    assert found.regimes[0].figures["o_s"].value == pytest.approx(EAGER.o_s, rel=0.05)


def test_few_sizes_tell_no_regimes() -> None:
    found = fit_loggp(trips(sizes=(1, 1024, 8192, 2**17, 2**20)))
    assert len(found.regimes) == 1
    assert any("do not distinguish protocol regimes" in note for note in found.notes)
    assert any("misses these round trips" in note for note in found.notes)


def without(kind: str) -> list[RoundTrip]:
    kept = {
        "one": lambda r: not (r.kind == "rtt" and r.n == 1),
        "many": lambda r: not (r.kind == "rtt" and r.n > 1 and not r.delay),
        "delayed": lambda r: not r.delay,
        "server": lambda r: r.kind != "server",
        "at 4KiB": lambda r: not (r.nbytes == 4096 and r.delay),
    }[kind]
    return [row for row in trips(repeat=1) if kept(row)]


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        (without("one"), r"no row of PRTT\(1,0,s\)"),
        (without("many"), r"no row of PRTT\(n,0,s\)"),
        (without("delayed"), r"no row of PRTT\(n,d,s\)"),
        (without("server"), "no row of o_r"),
        (without("at 4KiB"), r"4KiB: PRTT\(n,d,s\).* is missing"),
        (trips(sizes=(1, 2)), "2 sizes: expected 3"),
        ([*trips(repeat=1), *trips(repeat=1, n=8)], r"has several n \(16, 8\)"),
        ([replace(r, delay=r.delay * 9) for r in trips()], "less than its delays alone"),
    ],
)
def test_measurements_that_do_not_do_are_refused(rows: list[RoundTrip], complaint: str) -> None:
    with pytest.raises(Invalid, match=complaint):
        fit_loggp(rows)


# ---- files ----


def test_what_is_written_is_read(tmp_path: Path) -> None:
    rows = trips(repeat=2)
    write_round_trips(rows, tmp_path / "trips.csv")
    assert [replace(row, line=0) for row in read_round_trips(tmp_path / "trips.csv")] == rows


def test_the_prototypes_table_is_read(tmp_path: Path) -> None:
    path = tmp_path / "raw.csv"
    head = "size n d PRTT(1,0,s) PRTT(n,0,s) PRTT(n,d,s) PRTT_server(n-1,d,s)"
    lines = []
    for s in SIZES[:8]:
        gap, one = EAGER.g + (s - 1) * EAGER.G, 2 * message(EAGER, s)
        d = 2 * gap
        spent = (one, one + 9 * gap, one + 9 * (EAGER.o_s + d), 9 * (EAGER.o_r + d))
        lines.append(f"{s}  10 {d!r} " + " ".join(map(repr, spent)))
    path.write_text("\n".join([head, *lines]) + "\n")
    rows = read_round_trips(path)
    assert [(r.kind, r.n, bool(r.delay)) for r in rows[:4]] == [
        ("rtt", 1, False), ("rtt", 10, False), ("rtt", 10, True), ("server", 9, True),
    ]  # fmt: skip
    figures = fit_loggp(rows).regimes[0].figures
    for name in NAMES:
        assert figures[name].value == pytest.approx(getattr(EAGER, name), rel=1e-5)
    path.write_text(head.replace("PRTT(n,d,s) ", "") + "\n")
    with pytest.raises(Invalid, match=r"expected the column PRTT\(n,d,s\) once"):
        read_round_trips(path)
    path.write_text(f"{head}\n1 10 0 1 2 3 4\n")
    with pytest.raises(Invalid, match="line 2: d: without a delay"):
        read_round_trips(path)


HEAD = "kind,n,delay,nbytes,seconds"


@pytest.mark.parametrize(("text", "complaint"), [*listed("refused-round-trips"), ("\udcff", "not a text file")])
def test_malformed_files_are_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "trips.csv"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(Invalid, match=complaint):
        read_round_trips(path)


# ---- profiles ----


def test_a_profile_says_what_messages_took() -> None:
    level = loggp_level(fit_loggp(trips()), "host", 2e-12)
    assert level.sizes == (1, 8192, 16384, 2**20)
    assert level.gamma == (2e-12,) * 4
    for s, truth in ((3, EAGER), (700, EAGER), (8000, EAGER), (20000, RENDEZVOUS), (999999, RENDEZVOUS)):
        assert message(level, s) == pytest.approx(message(truth, s), rel=0.01)
    one = loggp_level(fit_loggp(trips(noise=0, truth=TRUE[1:])))
    assert list(one.L) == pytest.approx([RENDEZVOUS.L] * len(one.sizes), rel=1e-6)


def test_levels_are_added_from_the_inmost_to_the_outmost() -> None:
    found = fit_loggp(trips())
    first = loggp_profile(found, within="host", name="mine")
    assert first.loggp is not None
    assert first.name == "mine"
    last = loggp_profile(found, into=first)
    whole = loggp_profile(found, within="rack", into=last)
    assert whole.loggp is not None
    assert [level.within for level in whole.loggp.levels] == ["host", "rack", ""]
    old = Profile("old", alpha={"ib": 1e-6}, loggp=LogGP((Level("host"), Level()), 8, 2))
    new = loggp_profile(found, within="host", into=old)
    assert new.loggp is not None
    assert new.alpha == old.alpha
    assert (new.loggp.device_radix, new.loggp.node_radix, len(new.loggp.levels)) == (8, 2, 2)
    assert new.loggp.levels[0] == loggp_level(found, "host")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out, svg = tmp_path / "trips.csv", tmp_path / "profile.json", tmp_path / "fit.svg"
    write_round_trips(trips(), path)
    assert run(["fit", "loggp", str(path), "--within", "host", "-o", str(out), "-o", str(svg), "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [(r["from"], r["to"]) for r in told["regimes"]] == [(1, 8192), (16384, 2**20)]
    assert told["breaks"] == [{"between": [8192, 16384], "plausible": [16384, 16384]}]
    figure = told["regimes"][0]["parameters"]["L"]
    assert figure["low"] < figure["value"] < figure["high"]
    assert figure["state"] == "determined"
    assert len(told["rows"]) == told["measurements"] == 21 * 28
    assert told["profile"] == load_profile(out).as_json()
    assert load_profile(out).name == told["profile"]["name"] == "profile"
    ElementTree.fromstring(svg.read_text())
    assert run(["fit", "loggp", str(path), "--into", str(out), "--gamma", "2e-12"]) == 0
    text = capsys.readouterr().out
    assert "8KiB" in text
    assert "written:" in text
    assert max(len(line) for line in text.splitlines()[:18] if str(tmp_path) not in line) <= 80
    profile = load_profile(out).loggp
    assert profile is not None
    assert [level.within for level in profile.levels] == ["host", ""]
    assert set(profile.levels[1].gamma) == {2e-12}
    path.write_text(HEAD + "\nrtt,1,0,8,1\n")
    assert run(["fit", "loggp", str(path)]) == 2
    assert "trips.csv: no row of" in capsys.readouterr().err


def test_pictures_and_text_of_any_fit(tmp_path: Path) -> None:
    for rows in (trips(), trips(sizes=(1, 5, 7)), trips(truth=[(2**62, replace(EAGER, g=5e-6))], cover=0.5)):
        found = fit_loggp(rows)
        ElementTree.fromstring(loggp_svg(found))
        assert "LogGP fitted" in loggp_text(found)
    profile = loggp_profile(fit_loggp(trips()))
    save_profile(profile, tmp_path / "p.json")
    assert load_profile(tmp_path / "p.json") == profile
