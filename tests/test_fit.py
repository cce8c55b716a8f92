"""Parameters from measurements: right where they can be known, silent where they cannot."""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples
from tables import listed, refused

import antiphon
from antiphon.cli import run
from antiphon.cost import load_profile
from antiphon.cost.fit import (
    AdditionTime,
    GenmodelFit,
    PlanTime,
    fit_genmodel,
    fit_memory,
    genmodel_profile,
    memory_profile,
    plan_of,
    read_plan_times,
    write_addition_times,
    write_plan_times,
)  # fmt: skip
from antiphon.cost.fit.plans import derive_factors
from antiphon.cost.genmodel import forms
from antiphon.errors import Invalid, Unsupported
from antiphon.runtimes.measure.bench_memory import bench_memory
from antiphon.show.fit import genmodel_svg, memory_svg
from antiphon.topologies import topology

# Table 5 of the paper at the 10 Gbit/s of its testbed, for bytes; a step within a switch takes three alpha
TRUE = {"alpha": 3 * 6.58e-3, "beta": 8e-10, "gamma": 1.5e-10, "delta": 4.675e-11, "epsilon": 3.05e-11}
W_T = 9
SIZES = (40 * 10**6, 128 * 10**6, 400 * 10**6)
Truth = dict[str, float]


def whole(truth: Truth) -> Truth:
    return {**truth, "G": 2 * truth["beta"] + truth["gamma"]}


def seconds(name: str, ranks: int, nbytes: int, truth: Truth = TRUE, w_t: int = W_T) -> float:
    """By the closed forms, which know nothing of fitting; x to x by equation 6."""
    if name == "incast":
        slower = truth["epsilon"] * max(ranks - 1 - w_t, 0)
        return truth["alpha"] + nbytes * (truth["beta"] + slower)
    tier = forms.Tier(truth["alpha"], truth["beta"], truth["epsilon"], w_t)
    form = {"cps": forms.cps, "ring": forms.ring, "rhd": forms.rhd}[name]
    return form(ranks, nbytes, tier, forms.Server(truth["gamma"], truth["delta"])).total


def made(
    names: Sequence[str] = ("cps",), ranks: Iterable[int] = range(2, 16), sizes: Sequence[int] = SIZES,
    *, noise: float = 0.01, seed: int = 0, truth: Truth = TRUE, w_t: int = W_T,
) -> list[PlanTime]:  # fmt: skip
    rng = np.random.default_rng(seed)
    return [
        PlanTime(plan_of(name, n), n, size, seconds(name, n, size, truth, w_t) * (1 + noise * rng.standard_normal()))
        for name in names
        for size in sizes
        for n in ranks
    ]


# ---- what a plan costs ----


@pytest.mark.parametrize("collective", ["allreduce", "reducescatter", "allgather"])
@pytest.mark.parametrize("name", ["cps", "ring", "rhd", "reduce-broadcast", "2x3", "3x4", "2x2x5", "12x2"])
def test_counts_are_those_of_the_closed_forms(name: str, collective: str) -> None:
    fanins = tuple(map(int, name.split("x"))) if "x" in name else ()
    compared = 0
    for n in [int(np.prod(fanins))] if fanins else range(2, 18):
        for w_t in (0, 1, 3, 9):
            tier, server = forms.Tier(1.0, 2.0, 4.0, w_t), forms.Server(8.0, 16.0)
            try:
                found = derive_factors(plan_of(name, n, collective), n)
            except Unsupported:
                with pytest.raises(Unsupported):
                    form_of(name, fanins)(n, 60.0, tier, server, collective)
                continue
            told = form_of(name, fanins)(n, 60.0, tier, server, collective)
            ours = (found.alpha, 2 * found.beta, 8 * found.gamma, 16 * found.delta, 4 * found.epsilon(w_t))
            want = (told.alpha, told.beta / 60, told.gamma / 60, told.delta / 60, told.epsilon / 60)
            assert ours == pytest.approx(want, abs=1e-12)
            compared += 1
    assert compared or name == "reduce-broadcast"


def form_of(name: str, fanins: tuple[int, ...]) -> Any:
    if fanins:
        return lambda _, *rest: forms.hcps(fanins, *rest)
    return {
        "cps": forms.cps, "ring": forms.ring, "rhd": forms.rhd, "reduce-broadcast": forms.reduce_broadcast,
    }[name]  # fmt: skip


# ---- fitting GenModel ----


def errors(seeds: Iterable[int]) -> tuple[dict[str, float], float, dict[str, float]]:
    """Median relative errors, how often w_t is exact, and how often the truth is inside the interval."""
    off: dict[str, list[float]] = {}
    inside: dict[str, list[bool]] = {}
    exact = []
    for seed in seeds:
        found = fit_genmodel(made(seed=seed))
        exact.append(found.w_t.value == W_T)
        for name, truth in whole(TRUE).items():
            estimate = found.parameters[name]
            if name in ("beta", "gamma"):
                assert estimate.value is None
                continue
            assert estimate.value is not None
            assert estimate.low is not None
            assert estimate.high is not None
            off.setdefault(name, []).append(abs(estimate.value / truth - 1))
            inside.setdefault(name, []).append(estimate.low <= truth <= estimate.high)
    medians = {name: float(np.median(values)) for name, values in off.items()}
    return medians, float(np.mean(exact)), {name: float(np.mean(hits)) for name, hits in inside.items()}


@pytest.mark.parametrize(("draws", "cover"), [(10, 0.7), pytest.param(100, 0.9, marks=pytest.mark.slow)])
def test_synthetic_measurements_give_their_parameters_back(draws: int, cover: float) -> None:
    off, exact, inside = errors(range(draws))
    assert off["G"] <= 0.015
    assert off["alpha"] <= 0.01
    assert off["epsilon"] <= 0.05
    assert exact >= 0.9
    assert min(inside.values()) >= cover


def test_one_size_gives_combinations_only() -> None:
    found = fit_genmodel(made(sizes=SIZES[:1], noise=0.0))
    for name in ("alpha", "G", "beta", "gamma", "delta"):
        assert found.parameters[name].state == "undetermined"
        assert found.parameters[name].value is None
    assert found.parameters["epsilon"].value == pytest.approx(TRUE["epsilon"])
    assert found.w_t.value == W_T
    truth = whole(TRUE)
    told = {c.name: c.value for c in found.combinations}
    assert told == {
        "2 alpha + 40000000 (G + delta)": pytest.approx(2 * truth["alpha"] + 4e7 * (truth["G"] + truth["delta"])),
        "delta - G": pytest.approx(truth["delta"] - truth["G"]),
    }
    assert any("one size does not determine alpha, G, delta" in note for note in found.notes)
    with pytest.raises(Invalid, match=r"determine no parameter alone .*sizes measured: 1; measure 3 at least"):
        genmodel_profile(fit_genmodel(made(["ring"], sizes=SIZES[:1], ranks=[8] * 5)), "ethernet")


def test_known_parameters_leave_the_others() -> None:
    found = fit_genmodel(made(seed=3), {"delta": TRUE["delta"], "gamma": TRUE["gamma"]})
    assert found.parameters["delta"].state == "given"
    assert found.parameters["beta"].value == pytest.approx(TRUE["beta"], rel=0.02)
    assert found.parameters["G"].value == pytest.approx(whole(TRUE)["G"], rel=0.02)
    with pytest.raises(Invalid, match="beta as given alone take"):
        fit_genmodel(made(seed=3), {"beta": 1e-7})


def test_no_incast_is_not_invented() -> None:
    quiet = 0
    for seed in range(10):
        found = fit_genmodel(made(truth={**TRUE, "epsilon": 0.0}, seed=seed))
        quiet += found.w_t.state == "unseen"
        assert found.w_t.value is None or found.parameters["epsilon"].low is not None
    assert quiet >= 9
    assert genmodel_profile(fit_genmodel(made(truth={**TRUE, "epsilon": 0.0})), "ethernet").incast == {}


def test_a_gap_in_the_ranks_hides_the_threshold() -> None:
    found = fit_genmodel(made(ranks=[2, 4, 8, 16], noise=0.0))
    assert (found.w_t.state, found.w_t.low, found.w_t.high) == ("undetermined", 7, 14)
    assert found.parameters["epsilon"].value is None
    told = {c.name: c.value for c in found.combinations}
    assert told["epsilon (15 - w_t)"] == pytest.approx(6 * TRUE["epsilon"])
    assert genmodel_profile(found, "ethernet").incast == {}


def test_ranks_beyond_the_threshold_only_hide_it_in_beta() -> None:
    found = fit_genmodel(made(ranks=range(11, 17), noise=0.0))
    assert found.w_t.value is None
    assert found.parameters["G"].value is None
    assert found.parameters["epsilon"].value == pytest.approx(TRUE["epsilon"])
    told = {c.name: c.value for c in found.combinations}
    assert told["G + 2 epsilon (10 - w_t)"] == pytest.approx(whole(TRUE)["G"] + 2 * TRUE["epsilon"])


def test_one_number_of_ranks_does_not_tell_incast() -> None:
    found = fit_genmodel(made(ranks=[12] * 3))
    assert found.parameters["epsilon"].state == "undetermined"
    assert [c.name for c in found.combinations] == ["beta + 0.5 gamma + 0.590909 delta + incast"]
    truth = TRUE["beta"] + TRUE["gamma"] / 2 + 13 / 22 * TRUE["delta"] + 2 * TRUE["epsilon"]
    assert found.combinations[0].value == pytest.approx(truth, rel=0.02)


def test_too_few_measurements_are_refused() -> None:
    with pytest.raises(Invalid, match="3 measurements are too few"):
        fit_genmodel(made(ranks=[2, 3, 12], sizes=SIZES[:1]))


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_what_is_told_is_true(data: st.DataObject) -> None:
    """Whatever was measured: without noise every value that is given, alone or combined, is the true one."""
    positive = st.floats(0.2, 5.0)
    truth = {name: value * data.draw(positive) for name, value in TRUE.items()}
    truth["epsilon"] *= data.draw(st.sampled_from([0.0, 1.0, 3.0]))
    w_t = data.draw(st.integers(1, 12))
    cells = [(n, r, s) for n in ("cps", "ring", "rhd", "incast") for r in range(2, 17) for s in (10**5, 10**6, 10**8)]
    chosen = data.draw(st.lists(st.sampled_from(cells), min_size=7, max_size=40))
    rows = [PlanTime(plan_of(n, r), r, s, seconds(n, r, s, truth, w_t)) for n, r, s in chosen]
    known = {name: truth[name] for name in data.draw(st.sets(st.sampled_from(["beta", "gamma", "delta"])))}
    try:
        found = fit_genmodel(rows, known)
    except Invalid:
        return
    check_true(found, whole(truth), w_t)


def check_true(found: GenmodelFit, truth: Truth, w_t: int) -> None:
    if found.w_t.value is not None and truth["epsilon"]:
        assert found.w_t.value == max(w_t, 1)
    hidden = found.w_t.state == "unseen"  # nothing beyond w_t was measured: then epsilon is said to be unseen, not 0
    for name, estimate in found.parameters.items():
        if estimate.value is not None and not (name == "epsilon" and hidden):
            assert estimate.value == pytest.approx(truth[name], rel=1e-3, abs=1e-4 * max(truth["beta"], 1e-10))
    for combination in found.combinations:
        if combination.weights is not None:
            want = sum(weight * truth[name] for name, weight in combination.weights.items())
            scale = sum(abs(weight) * truth[name] for name, weight in combination.weights.items())
            assert combination.value == pytest.approx(want, rel=1e-3, abs=1e-4 * scale)


# ---- profiles ----


def test_a_bandwidth_in_other_units_is_noticed() -> None:
    with pytest.raises(Invalid, match="bandwidth: beta = 8e-10 s per byte"):
        genmodel_profile(fit_genmodel(made(["cps", "incast"], noise=0.0)), "ethernet", bandwidth=10)


# ---- files ----


@pytest.mark.parametrize(
    ("text", "complaint"), [*listed("refused-times"), ("plan,ranks,nbytes,seconds\n\xff", "not a text file in UTF-8")]
)
def test_faults_of_a_file_are_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "times.csv"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises((Invalid, Unsupported), match=re.escape(complaint)) as raised:
        read_plan_times(path)
    assert "times.csv" in str(raised.value)


# ---- memory ----


def sums(noise: float = 0.0, vectors: Iterable[int] = range(2, 16), seed: int = 0) -> list[AdditionTime]:
    rng, size = np.random.default_rng(seed), 6 * 10**8
    return [
        AdditionTime(
            x, size, size * ((x + 1) * TRUE["delta"] + (x - 1) * TRUE["gamma"]) * (1 + noise * rng.standard_normal())
        )
        for x in vectors
    ]


def test_adding_vectors_gives_gamma_and_delta() -> None:
    found = fit_memory(sums())
    assert found.parameters["gamma"].value == pytest.approx(TRUE["gamma"])
    assert found.parameters["delta"].value == pytest.approx(TRUE["delta"])
    off = [fit_memory(sums(0.01, seed=seed)) for seed in range(20)]
    for name in ("gamma", "delta"):
        assert np.median([abs((f.parameters[name].value or 0) / TRUE[name] - 1) for f in off]) <= 0.05
    assert memory_profile(found).delta == pytest.approx(TRUE["delta"])


def test_one_number_of_vectors_gives_a_combination() -> None:
    found = fit_memory(sums(vectors=[5] * 4))
    assert [found.parameters[name].value for name in ("gamma", "delta")] == [None, None]
    assert [(c.name, c.value) for c in found.combinations] == [
        ("gamma + 1.5 delta", pytest.approx(TRUE["gamma"] + 1.5 * TRUE["delta"]))
    ]
    with pytest.raises(Invalid, match="neither gamma nor delta"):
        memory_profile(found)
    with pytest.raises(Invalid, match="too few"):
        fit_memory(sums(vectors=[2, 3]))


@pytest.mark.parametrize("threads", [1, 3])
def test_vectors_are_really_added(threads: int) -> None:
    told: list[str] = []
    rows = bench_memory(4, 300_000, repeat=1, threads=threads, progress=told.append)
    assert [(row.vectors, row.nbytes) for row in rows] == [(2, 300_000), (3, 300_000), (4, 300_000)]
    assert all(row.seconds > 0 for row in rows)
    assert told
    for faulty in ({"most": 2}, {"nbytes": 8}, {"repeat": 0}, {"threads": 0}, {"nbytes": 2**50}):
        with pytest.raises(Invalid):
            bench_memory(**{"most": 4, "nbytes": 4096, "repeat": 1, "threads": 1, **faulty})


# ---- pictures ----


def test_pictures_show_every_measurement_twice() -> None:
    rows = made(["cps", "incast"], ranks=range(2, 8))
    root = ElementTree.fromstring(genmodel_svg(fit_genmodel(rows)))
    marks = [e for e in root.iter("{http://www.w3.org/2000/svg}path") if e.get("fill-opacity")]
    assert len(marks) == 2 * len(rows)
    titles = {e.text for e in root.iter("{http://www.w3.org/2000/svg}title")}
    assert titles == {f"{plan}, {size}" for plan in ("cps", "incast") for size in ("40MB", "128MB", "400MB")}
    picture = memory_svg(fit_memory(sums(0.01)))
    assert picture == memory_svg(fit_memory(sums(0.01)))
    root = ElementTree.fromstring(picture)
    assert len([e for e in root.iter("{http://www.w3.org/2000/svg}path") if e.get("fill-opacity")]) == 2 * 14


# ---- commands ----


def shown(capsys: pytest.CaptureFixture[str], line: str, code: int = 0) -> str:
    assert run(line.split()) == code
    out, err = capsys.readouterr()
    return out if code == 0 else err


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    write_plan_times(made(seed=1), "times.csv")
    write_addition_times(sums(0.01), "sums.csv")
    text = shown(capsys, "fit memory --from sums.csv -o memory.json -o kept.csv -o memory.svg")
    assert "written: memory.json" in text
    assert "determined" in text
    assert Path("kept.csv").read_text() == Path("sums.csv").read_text()
    line = "fit genmodel times.csv --memory memory.json --known bandwidth=10Gbit/s --kind link -o all.json"
    line += " -o fit.svg"
    value = json.loads(shown(capsys, line + " --json"))
    assert value["parameters"]["beta"]["state"] == "determined"
    assert value["parameters"]["delta"]["state"] == "given"
    assert value["w_t"] == {"state": "determined", "value": 9, "low": 9, "high": 9}
    assert {"combinations", "error", "error_without", "rank", "unknowns", "condition", "rows", "notes"} <= value.keys()
    assert (value["left_out"], len(value["rows"])) == ([], 42)
    profile = load_profile("all.json")
    assert profile.as_json() == value["profile"]
    assert float(profile.bandwidth_factor["link"]) == pytest.approx(1.0, rel=0.02)
    assert profile.incast["link"].epsilon == pytest.approx(TRUE["epsilon"], rel=0.2)
    text = shown(capsys, "fit genmodel times.csv -o some.json")
    assert "not in it: beta (undetermined), gamma (undetermined)" in " ".join(text.split())
    assert all(len(line) <= 80 for line in text.splitlines())
    some = load_profile("some.json")
    assert some.gamma == 0
    generic = some.on(topology("star:ranks=16"))  # whose links a profile speaks of unless it names others
    assert generic.types[0].latency == some.alpha["link"]


def test_the_functions_of_the_package(tmp_path: Path) -> None:
    write_plan_times(made(seed=1), tmp_path / "times.csv")
    found = antiphon.fit.genmodel(tmp_path / "times.csv", delta=TRUE["delta"])
    assert found.parameters["delta"].state == "given"
    rows = antiphon.measure.memory(max_vectors=3, nbytes=4096, repeat=2)
    assert [row.vectors for row in rows] == [2, 3]
    assert antiphon.fit.memory(sums()).parameters["gamma"].value == pytest.approx(TRUE["gamma"])
    wrong: Any = "mars"
    with pytest.raises(Invalid, match="'mars'"):
        antiphon.measure.bench(wrong)


@pytest.mark.parametrize(("line", "complaint"), refused("fit"))
def test_what_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_plan_times(made(ranks=range(2, 8)), "times.csv")
    Path("empty.json").write_text('{"format": "antiphon-profile", "version": 1}')
    Path("known.json").write_text('{"format": "antiphon-profile", "version": 1, "delta": 1e-11}')
    said = shown(capsys, line, 2)
    assert complaint in said
    assert said.count("\n") == 1
