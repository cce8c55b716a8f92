"""Predictions of libraries are held to the proven bounds of the machine; and the table that prints them."""

import pytest
from quick import in_turn, some

import antiphon
from antiphon.cli import run
from antiphon.core.bounds import bound
from antiphon.core.collective import ROOTED, Collective
from antiphon.cost.nccl.choice import KINDS
from antiphon.cost.nccl.library import LIBRARIES, library
from antiphon.cost.nccl.proven import BOUND, MAX_RANKS_ALLTOALL
from antiphon.errors import AntiphonError
from antiphon.registry import table

SIZES = (0, 1, 1024, 2**20, 2**24, 10**9, 10**12)
BOXES = ("dgx1v", "dgx2", "dgx-a100", "hgx-h100", "hgx-h200", "hgx-b200", "mi300x")
CLUSTERS = [f"cluster:box={box},boxes={boxes}" for box in BOXES for boxes in (2, 4)]
OPTIONS = (":gpu=h100,network=ib", "", ":gpu=v100", ":gpu=a100,processes=one")
EXAMPLES = [entry.can.example for entry in table("topology").values()]
MACHINES = [*in_turn(EXAMPLES, 5), *(pytest.param(spec, marks=pytest.mark.slow) for spec in CLUSTERS)]


@pytest.mark.parametrize("machine", MACHINES)
def test_no_library_beats_the_proven_bound(machine: str) -> None:
    """The whole catalogue, all collectives, sizes and libraries; also by figures of other GPUs than its own."""
    topology = antiphon.topology(machine)
    limits = {}
    for kind in KINDS:
        wanted = Collective(kind, topology.ranks, roots=(0,) if kind in ROOTED else ())
        if kind != "alltoall" or topology.ranks <= MAX_RANKS_ALLTOALL:
            limits[kind] = bound(topology, wanted)
    for name in (f"{one}{options}" for one in LIBRARIES for options in some(OPTIONS)):
        try:
            priced = library(name, topology)
        except AntiphonError:
            continue  # no figures of such a machine
        for kind, limit in limits.items():
            for nbytes in some(SIZES):
                ways = priced.at(kind, nbytes)
                assert min(way.seconds for way in ways) >= float(limit.seconds(nbytes)), (name, kind, nbytes)
                assert ways[0].seconds == pytest.approx(sum(ways[0].terms.values()))


def test_an_alltoall_goes_over_links_that_exist() -> None:
    """GPU 0 of a DGX-1V has links to four others; what goes to the three beyond is relayed by those."""
    (row,) = antiphon.predict("alltoall", "1GB", topology="dgx1v", library="nccl")
    assert row["limit"] == "wire"
    assert max(1e9 / row["seconds"], 1e9 / row["without_sms"]) < 75e9  # as `bound` proves
    # evenly over the fewest hops the busiest link carries 10/3 blocks of an eighth each, by its share of 25 GB/s
    share = library("nccl", antiphon.topology("dgx1v")).costs.gpu.share["simple"]
    assert row["terms"]["bytes"] == pytest.approx(10 / 3 / 8 * 1e9 / (25e9 * share))
    (one,) = antiphon.predict(
        "alltoall", "1GB", topology="hgx-h100", library="nccl"
    )  # a switch joins all: each wire is full
    assert one["terms"]["bytes"] == pytest.approx(7 / 8 * 1e9 / 450e9 / 0.82)


def test_what_the_bound_raises_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """The eight GPUs of pcie8 share two host bridges, of which the model of rings knows nothing."""
    rows = antiphon.predict("broadcast", ["1KB", "1GB"], topology="pcie8", library="nccl:gpu=h100")
    assert [row["limit"] == BOUND for row in rows] == [False, True]
    assert rows[0]["limited_by"] is None
    assert rows[1]["limited_by"].startswith("cut: ranks {0-3} can send out only 16 GB/s")
    assert rows[1]["why"].endswith("mostly the proven bound")
    assert rows[1]["seconds"] == float(antiphon.bound("broadcast", antiphon.topology("pcie8")).seconds(10**9))
    assert run("predict broadcast pcie8 --library nccl:gpu=h100 --nbytes 1KB:1GB:1000000".split()) == 0  # noqa: SIM905
    assert "  limited by, 1GB: cut: " in capsys.readouterr().out


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
    assert lines[0].split()[:5] == ["nbytes", "time", "us", "algbw", "GB/s"]


def test_the_basis_stands_once_below_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("predict allreduce hgx-h100 --library nccl --nbytes 1KB:1GB".split()) == 0  # noqa: SIM905
    text = capsys.readouterr().out
    assert text.count("figures: GPU h100 calibrated by h100-p5-1") == 1
    assert text.count("h100-p5-1") == 1
    assert "algbw GB/s  busbw GB/s" in text
    assert "24 of 132 by ring, 16 of 132 by nvls" in " ".join(text.split())
    assert run("predict broadcast hgx-h100 --library nccl --nbytes 1KB:1GB".split()) == 0  # noqa: SIM905
    text = capsys.readouterr().out
    assert text.count("  figures, ") == 2  # small sizes by LL, large ones by Simple, which no table calibrates
