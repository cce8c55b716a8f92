"""Predictions of libraries are held to the proven bounds of the machine; and the table that prints them."""

import re

import pytest
from quick import in_turn, some

import antiphon
from antiphon.cli import run
from antiphon.core.bounds import bound
from antiphon.core.collective import ROOTED, Collective
from antiphon.core.reshape import keep
from antiphon.cost.bound_evaluator import BoundEvaluator
from antiphon.cost.model_bound import model_bound
from antiphon.cost.nccl.choice import COPIES, KINDS, TO_EACH, OptionPrice
from antiphon.cost.nccl.layout import layout_of
from antiphon.cost.nccl.library import LIBRARIES, LibraryModel, library
from antiphon.cost.nccl.proven import MAX_RANKS, MAX_RANKS_ALLTOALL
from antiphon.cost.nccl.rings import ring_bandwidth
from antiphon.errors import AntiphonError, Unsupported
from antiphon.registry import table
from antiphon.reproduce.blink_rates import pack_rings

SIZES = (1, 2**10, 2**16, 2**20, 2**25, 10**9)
BOXES = ("dgx1v", "dgx2", "dgx-a100", "hgx-h100", "hgx-h200", "hgx-b200", "mi300x")
CLUSTERS = [f"cluster:box={box},boxes={boxes}" for box in BOXES for boxes in (2, 4)]
OPTIONS = (":gpu=h100,network=ib", ":gpu=v100", ":gpu=a100,processes=one")
EXAMPLES = [entry.can.example for entry in table("topology").values()]
MACHINES = [*in_turn(EXAMPLES, 12), *(pytest.param(spec, marks=pytest.mark.slow) for spec in CLUSTERS)]


@pytest.mark.parametrize("machine", MACHINES)
def test_no_library_beats_the_lower_bound_of_its_figures(machine: str) -> None:
    """The whole catalogue, all collectives, sizes and libraries; by figures of other GPUs it may be refused instead."""
    topology = antiphon.topology(machine)
    for kind in KINDS:
        if topology.ranks > (MAX_RANKS_ALLTOALL if kind == "alltoall" else MAX_RANKS):
            continue
        wanted = Collective(kind, topology.ranks, roots=(0,) if kind in ROOTED else ())
        limit = bound(topology, wanted)
        for name in (f"{one}{options}" for one in LIBRARIES for options in ("", ":registered=yes", *some(OPTIONS))):
            try:
                priced = library(name, topology)
            except AntiphonError:
                continue  # no figures of such a machine
            own = {} if ":" not in name else dict(option.split("=") for option in name.partition(":")[2].split(","))
            own.pop("registered", None)  # no option of schedules
            calls = {"by": "critical-path", **own}
            least = model_bound("calls", calls, BoundEvaluator(topology, wanted, limit))
            for nbytes in SIZES:
                options, refusal = _options_or_refusal(priced, kind, nbytes)
                if refusal:
                    assert ":" in name, refusal  # its own figures describe every machine of the catalogue
                    assert re.search(r"would take .* no schedule takes less than .* by the same", refusal)
                    continue
                chosen = priced.msccl or options[0].algorithm == COPIES  # not as the fastest
                assert options[0].seconds == min(option.seconds for option in options) or chosen
                assert options[0].seconds == pytest.approx(sum(options[0].terms.values()))
                assert min(option.seconds for option in options) >= float(limit.seconds(nbytes))
                if least is not None and not chosen:
                    assert options[0].seconds >= least(nbytes) * (1 - 1e-9), (name, kind, nbytes)


def _options_or_refusal(priced: LibraryModel, kind: str, nbytes: int) -> tuple[list[OptionPrice], str]:
    try:
        return priced.at(kind, nbytes), ""
    except Unsupported as refusal:
        return [], str(refusal)


def test_a_prediction_that_beats_the_bound_is_refused_with_both_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """The eight GPUs of pcie8 share two host bridges, of which the model of rings knows nothing."""
    (row,) = antiphon.predict("broadcast", "1KB", topology="pcie8", library="nccl:gpu=h100")
    assert row["limited_by"] is None
    assert run("predict broadcast pcie8 --library nccl:gpu=h100 --nbytes 1KB:1GB:1000000".split()) == 2  # noqa: SIM905
    error = " ".join(capsys.readouterr().err.split())
    assert "its model does not describe pcie8: ring simple would take 39.08 ms" in error
    assert "no schedule takes less than 76.88 ms" in error
    assert "ranks {0-3} can send out only 16 GB/s" in error


@pytest.mark.slow
def test_tune_compares_with_schedules_where_the_model_of_nccl_is_refused() -> None:
    tuning = antiphon.tune(
        "broadcast",
        "pcie8",
        nbytes="1GB",
        planners=["ring"],
        model="calls:gpu=h100",
        search=antiphon.Search(workers="none"),
    )
    assert any("stand for NCCL: library nccl: its model does not describe pcie8" in note for note in tuning.notes)
    assert tuning.ranges[0].speedup is not None


# ---- fragments of a machine ----


@pytest.mark.parametrize(
    ("ranks", "gigabytes"),
    [((0, 1, 2, 3), 100), ((0, 1, 3), 50), ((1, 4, 5, 6), 12.5), ((0, 5), 12.5), ((0, 3), 50), (range(8), 150)],
)  # fmt: skip
def test_rings_of_a_fragment(ranks: tuple[int, ...], gigabytes: float) -> None:
    fragment = keep(antiphon.topology("dgx1v"), ranks).topology
    layout = layout_of(fragment)
    assert layout.wire == gigabytes * 1e9
    assert layout.over_pcie == (gigabytes == 12.5)
    rings = len(pack_rings(fragment).cycles)
    assert ring_bandwidth(fragment) == rings * 25e9 == (0 if layout.over_pcie else gigabytes * 1e9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fragment_without_a_ring_has_figures(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """GPU 1 has a link to GPU 5 alone; NCCL runs a ring over PCIe, and sends over the links."""
    command = f"predict {kind} dgx1v:only=1,4,5,6 --library nccl --nbytes 1GB"
    assert run(command.split()) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert ("PCIe at half a link" in text) == (kind not in TO_EACH)
    machine = antiphon.topology("dgx1v", only=(1, 4, 5, 6))
    wanted = Collective(kind, 8, (1, 4, 5, 6), (5,) if kind in ROOTED else ())
    (row,) = antiphon.predict(wanted, "1GB", topology=machine, library="nccl")
    assert row["seconds"] >= float(bound(machine, wanted).seconds(10**9))


@pytest.mark.slow
def test_over_pcie_alone_no_bound_of_the_links_counts() -> None:
    """GPUs 0 and 7 share no link. The bound counts relays over others; NCCL takes PCIe, which the machine lacks."""
    (row,) = antiphon.predict(Collective("reducescatter", 8, (0, 7)), "1KB", topology="dgx1v", library="nccl")
    tuning = antiphon.tune(
        Collective("reducescatter", 8, (0, 7)), "dgx1v", nbytes="1KB", planners=["relay"],
        search=antiphon.Search(workers="none"),
    )  # fmt: skip
    assert tuning.baseline("reducescatter", 1000) == row["seconds"]


def test_a_root_of_ones_own_has_a_bound_of_its_own() -> None:
    """On a line the middle spreads data twice as fast as an end."""
    machine = antiphon.topology("line:ranks=5")
    for root in (0, 2):
        wanted = Collective("scatter", 5, roots=(root,))
        (row,) = antiphon.predict(wanted, "1GB", topology=machine, library="nccl:gpu=h100")
        assert row["seconds"] >= float(bound(machine, wanted).seconds(10**9))


# ---- the table ----


@pytest.mark.parametrize(
    ("asked", "machine"),
    [
        ("nccl", "hgx-h100"), ("msccl", "dgx-a100"), ("nccl", "cluster:box=hgx-h100,boxes=4"),
        ("nccl:gpu=v100", "line:ranks=8"), ("rccl", "cluster:box=mi300x,boxes=2"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["allreduce", "broadcast", "alltoall"])
def test_the_table_fits_100_columns(asked: str, machine: str, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["predict", kind, machine, "--as", asked, "--nbytes", "1KB:1GB"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0].split()[:6] == ["nbytes", "time", "us", "error", "algbw", "GB/s"]
