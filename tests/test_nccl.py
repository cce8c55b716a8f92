"""What NCCL would do: machines as it sees them, its ways and their prices, and what each figure rests on."""

import csv
import json
import re
from pathlib import Path
from statistics import median

import msgspec
import pytest
from bench_nccl import BANDS, errors, points
from published import FIT, HELD_OUT, XLA, XLA_PACE, published, relay_tables, xla_tables

import antiphon
from antiphon.cli import run
from antiphon.cost.nccl.accuracy import (
    AIMS,
    MIN_ERROR,
    PLACES,
    UNCALIBRATED_ERROR,
    accuracy_note,
    error_at,
    held_out_errors,
    is_clearly_faster,
    is_within_error,
)
from antiphon.cost.nccl.calls import PROTOCOLS, CallFigures, read_calls, shipped_calls
from antiphon.cost.nccl.choice import (
    COLLNET,
    KINDS,
    NVLS,
    NVLS_TREE,
    PAT,
    RING,
    SENDS,
    SYMMETRIC,
    TREE,
    Costs,
    price_options,
)
from antiphon.cost.nccl.layout import layout_of
from antiphon.cost.nccl.msccl import read_algorithms
from antiphon.errors import Invalid, Unsupported
from antiphon.show.words import baseline_text
from antiphon.topologies import topology
from antiphon.units import parse_size

GB = 10**9
TWO_BOXES = "cluster:box=hgx-h100,boxes=2"
FLAT = CallFigures(
    format="antiphon-calls", version=1, name="flat", boxes=["x"], launch=1e-6, launch_more=2e-6,
    hop=dict.fromkeys(PROTOCOLS, 1e-6), share=dict.fromkeys(PROTOCOLS, 1.0),
)  # fmt: skip
NET = CallFigures(
    format="antiphon-calls", version=1, name="net", kinds=["ib"], hop=dict.fromkeys(PROTOCOLS, 1e-5),
    share=dict.fromkeys(PROTOCOLS, 1.0), message=3e-6,
)  # fmt: skip


def price(machine: str, collective: str, nbytes: int, algorithm: str) -> float:
    layout = layout_of(topology(machine))
    return price_options(layout, Costs(FLAT, NET), collective, nbytes, (algorithm,))[0].seconds


@pytest.mark.parametrize(
    ("machine", "collective", "algorithm", "microseconds"),
    [
        # launch 1, hops of 1 within and 10 between, 9 MB over 300 GB/s (30 us) or 200 GB/s (45 us)
        ("dgx-a100", "allreduce", RING, 1 + 14 + 30 * 14 / 8),
        ("dgx-a100", "allgather", RING, 1 + 7 + 30 * 7 / 8),
        ("dgx-a100", "broadcast", RING, 1 + 7 + 30),
        ("cluster:box=dgx-a100,boxes=2", "allreduce", RING, 1 + 28 + 20 + 45 * 30 / 16),
        ("cluster:box=dgx-a100,boxes=2", "allreduce", TREE, 1 + 14 + 20 + 60),  # the wire: twice, the cards: once
        ("cluster:box=dgx-a100,boxes=4", "allreduce", TREE, 1 + 14 + 40 + 90),
        ("cluster:box=dgx-a100,boxes=2", "alltoall", SENDS, 1 + 1 + 10 + 7 * 3 + 45 * 8 * 8 / 16),
    ],
)
def test_forms(machine: str, collective: str, algorithm: str, microseconds: float) -> None:
    assert price(machine, collective, 9_000_000, algorithm) * 1e6 == pytest.approx(microseconds)


@pytest.mark.parametrize(
    ("machine", "collective", "there", "not_there"),
    [
        ("hgx-h100", "allreduce", {RING, NVLS}, {TREE, NVLS_TREE, COLLNET, PAT, SENDS}),
        ("cluster:box=hgx-h100,boxes=2", "allreduce", {RING, TREE, NVLS_TREE}, {NVLS, COLLNET, PAT, SENDS}),
        ("cluster:box=hgx-h100,boxes=2,sharp=true", "allreduce", {RING, TREE, NVLS_TREE, COLLNET}, {NVLS}),
        ("cluster:box=hgx-h100,boxes=2", "broadcast", {RING}, {TREE, NVLS_TREE, COLLNET, PAT}),
        ("cluster:box=dgx-a100,boxes=2", "alltoall", {SENDS}, {RING, TREE}),
    ],
)
def test_what_there_is(machine: str, collective: str, there: set[str], not_there: set[str]) -> None:
    (row,) = antiphon.predict(collective, 2**20, topology=machine, library="nccl")
    found = {row["algorithm"], *(name.split()[0] for name in row["others"])}
    assert there <= found
    assert not not_there & found
    assert row["seconds"] <= min([*row["others"].values(), 1.0])
    assert row["seconds"] == pytest.approx(sum(row["terms"].values()))


def test_errors_that_decide_are_those_of_the_tables_held_out() -> None:
    kept = [msgspec.to_builtins(row) for row in held_out_errors()]
    assert kept == errors(points())
    assert {row["collective"] for row in kept} == {*KINDS} - {"gather", "scatter"}


@pytest.mark.parametrize(
    ("collective", "nbytes", "nodes", "same_as"),
    [
        ("allreduce", "1MB", 1, ("allreduce", "within a node", "between")),  # at least MIN_ERROR
        ("allgather", "1MB", 1, ("allgather", "within a node", "between")),
        ("broadcast", "1MB", 1, ("allgather", "within a node", "between")),  # one machine: the greatest counts
        ("broadcast", "1KB", 1, ("reduce", "within a node", "up to 64 KB")),  # likewise, but at least MIN_ERROR
        ("reduce", "1MB", 2, ("allgather", "between nodes", "between")),  # no rows
        ("allreduce", "1KB", 2, ("allreduce", "between nodes", "up to 64 KB")),
        ("alltoall", "1GB", 1, ("alltoall", "within a node", "from 64 MB on")),
        ("alltoall", "1GB", 2, None),
        ("scatter", "1KB", 1, None),
    ],
)
def test_error_by_collective_and_place(
    collective: str, nbytes: str, nodes: int, same_as: tuple[str, str, str] | None
) -> None:
    known = {(row.collective, row.place, row.range): row.error for row in held_out_errors()}
    error = error_at(collective, parse_size(nbytes), nodes)
    assert error == (max(known[same_as], MIN_ERROR) if same_as else None)
    assert is_within_error(1 + max(known.values()), error) == (error is None)
    assert is_clearly_faster(1.2, error) == (error is not None and error < 0.2)
    (row,) = antiphon.predict(
        collective, nbytes, topology="hgx-h100" if nodes == 1 else f"cluster:box=hgx-h100,boxes={nodes}", library="nccl"
    )
    assert row["error"] == error
    aim = f"{AIMS[PLACES[nodes - 1]]:.0%} {PLACES[nodes - 1]}"
    assert row["error_above_aim"] == (aim if error is not None and error > AIMS[PLACES[nodes - 1]] else None)


@pytest.mark.slow
def test_figures_of_another_generation_have_a_greater_error() -> None:
    """B200 has H100's: the error that counts is the greatest by which one of its tables is off."""
    off: dict[tuple[str, str], list[float]] = {}
    for row in points():
        band = next((name for name, low, high in BANDS if low <= row.nbytes <= high), "")
        if row.table.startswith("b200") and band:
            off.setdefault((row.table, band), []).append(abs(row.off))
    assert round(max(map(median, off.values())), 2) == UNCALIBRATED_ERROR
    for machine in ("hgx-b200", "cluster:box=hgx-b200,boxes=2"):
        rows = antiphon.predict("allreduce", "1KB:1GB:1000", topology=machine, library="nccl")
        assert [row["error"] for row in rows] == [UNCALIBRATED_ERROR] * 3
    tuning = antiphon.tune("allreduce", "hgx-b200", nbytes="1MB", planners=["ring"])
    assert "allreduce 30.0% at all sizes" in baseline_text(tuning, ["allreduce"])


def test_errors_are_named_for_what_has_tables() -> None:
    note = accuracy_note(["allreduce", "scatter"], 2)
    assert re.search(r"fit: allreduce [0-9.]+% up to 64 KB, [0-9.]+% between, [0-9.]+% from 64 MB on; scatter", note)
    greatest = max(row.error for row in held_out_errors())
    unknown = f"unknown (no measurements), {greatest:.1%} counts; treat"
    assert f": alltoall, gather {unknown}" in accuracy_note(["alltoall", "gather"], 2)
    assert f"; scatter {unknown}" in note
    assert accuracy_note([], 2) == ""


def test_pat_needs_one_rank_per_node() -> None:
    (row,) = antiphon.predict("allgather", 1024, topology="star:ranks=4", library="nccl:gpu=h100,network=ib")
    assert row["algorithm"] == RING  # one node
    names = [f"box{i}/gpu0" for i in range(4)]
    machine = topology("star:ranks=4")
    apart = type(machine)(
        "four", 4, 1, machine.link_src, machine.link_dst, machine.link_type, machine.types, places=(*names, "switch")
    )
    (row,) = antiphon.predict("allgather", 1024, topology=apart, library="nccl:gpu=h100,network=ib")
    assert any(name.startswith(PAT) for name in (row["algorithm"], *row["others"]))


def test_every_line_says_what_it_rests_on() -> None:
    fitted = {table.name for table in (*published(), *relay_tables(), *xla_tables()) if table.part == FIT}
    held = {table.name for table in (*published(), *xla_tables()) if table.part == HELD_OUT}
    for calls in shipped_calls().values():
        assert set(calls.calibrated_by) <= fitted
        assert not set(calls.calibrated_by) & held
        assert "calibrated" in calls.basis()
    (b200,) = antiphon.predict("allreduce", "1KB", topology="hgx-b200", library="nccl")
    assert "not calibrated (all, as of h100)" in b200["calibrated"]
    for machine, kind, remark in (
        ("hgx-h100", "alltoall", ""),
        ("hgx-b200", "alltoall", "; sends not calibrated"),
        ("dgx-a100", "alltoall", "; sends not calibrated"),
        ("cluster:box=hgx-h100,boxes=2", "alltoall", "; sends not calibrated"),
        ("hgx-h100", "allgather", ""),
        ("hgx-h100", "broadcast", "; broadcast by the figures of allreduce"),
        ("dgx-a100", "allgather", "; allgather by the figures of allreduce"),
    ):
        (row,) = antiphon.predict(kind, "1GB", topology=machine, library="nccl")
        assert (
            "".join(re.findall(r"; sends .*calibrated|; \w+ by the figures of allreduce", row["calibrated"])) == remark
        )


@pytest.mark.parametrize(
    ("library", "machine", "said"),
    [
        ("nccl", "mi300x", "ask for rccl"),
        ("rccl", "hgx-h100", "ask for nccl"),
        ("nccl", "pcie8", "no figures are known of its GPUs"),
        ("nccl:gpu=h1000", "hgx-h100", "figures are known of"),
        ("nccl:gpu=ib", "hgx-h100", "figures are known of"),
        ("nccl:color=red", "hgx-h100", "has no option"),
        ("nccl:processes=two", "hgx-h100", "expected each or one"),
        ("nccl:algorithm=tree", "hgx-h100", "none of tree can do"),
        ("nccl:algorithm=best", "hgx-h100", "expected one of"),
        ("mpi", "hgx-h100", "expected nccl, rccl, msccl"),
        ("nccl-2", "hgx-h100", "a version of NCCL, nccl-2.8 to"),
        ("nccl-2.7", "hgx-h100", "a version of NCCL, nccl-2.8 to"),
        ("rccl-2.32", "mi300x", "a version of NCCL, nccl-2.8 to"),
        ("nccl-2.22:algorithm=pat", "hgx-h100", "NCCL 2.22 has no pat, which came with 2.23"),
        ("nccl:registered=maybe", "hgx-h100", "registered: expected true or false"),
        ("rccl:registered=yes", "mi300x", "registered= is an option of nccl"),
        ("nccl:algorithm=symmetric", "cluster:box=hgx-h100,boxes=2", "none of symmetric can do"),
        ("nccl:gpu=h100", "star:ranks=4,bandwidth=1GB/s", None),
    ],
)
def test_what_is_refused(library: str, machine: str, said: str | None) -> None:
    if said is None:
        assert antiphon.predict("allreduce", "1KB", topology=machine, library=library)
        return
    with pytest.raises((Invalid, Unsupported), match=said):
        antiphon.predict("allreduce", "1KB", topology=machine, library=library)


def test_files_of_calls() -> None:
    whole = {
        "format": "antiphon-calls", "version": 1, "name": "x", "hop": {"ll": 1e-6}, "share": {"ll": 0.5},
    }  # fmt: skip
    assert read_calls(json.dumps(whole).encode()).name == "x"
    for changed, said in [
        ({"share": {"ll": 1.5}}, "share of ll"),
        ({"share": {"simple": 0.5}}, "the same of"),
        ({"hop": {"ll": -1}}, "0 to 1"),
        ({"version": 2}, "version"),
        ({"nvls": {"latency": 1e-5, "share": 0}}, "share of nvls"),
    ]:
        with pytest.raises(Invalid, match=said):
            read_calls(json.dumps({**whole, **changed}).encode())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--library", "nccl", "allreduce"], "name collective and machine"),
        (["--library", "nccl", "allreduce", "hgx-h100", "--model", "flows"], "--model: cannot be combined with"),
        (["plan.json", "hgx-h100"], "needs --library nccl"),
    ],
)
def test_what_the_command_refuses(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["predict", *words, "--nbytes", "1KB"]) == 2
    assert said in capsys.readouterr().err


# ---- MSCCL, copy engines, multiprocessors ----


@pytest.mark.parametrize(
    ("nbytes", "choice"),
    [(511, "ring"), (512, "allpairs"), (458752, "allpairs"), (458753, "ring"), (22806528, "ring"), (22806529, "ring")],
)
def test_msccl_takes_what_is_registered_for_the_size(nbytes: int, choice: str) -> None:
    (row,) = antiphon.predict("allreduce", [nbytes], topology="dgx-a100", library="msccl")
    (nccl,) = antiphon.predict("allreduce", [nbytes], topology="dgx-a100", library="nccl")
    assert row["algorithm"] == choice
    inside = 512 <= nbytes <= 22806528
    assert row["why"].startswith("its algorithm in place from" if inside else "no algorithm of MSCCL's here; ")
    assert ("a100-ndv4-msccl" in row["calibrated"]) is inside
    assert inside or row["seconds"] == nccl["seconds"]
    assert nccl["calibrated"].startswith("GPU a100")


def test_msccl_is_near_the_table_that_its_figures_are_from() -> None:
    (table,) = [one for one in published() if one.name == "a100-ndv4-msccl"]
    sizes = [row[0] for row in table.rows if 512 <= row[0] <= 2**24]
    rows = antiphon.predict("allreduce", sizes, topology=table.topology, library="msccl")
    measured = {row[0]: row[3] * 1e-6 for row in table.rows}
    assert max(abs(row["seconds"] / measured[row["nbytes"]] - 1) for row in rows) < 0.05


def test_msccl_between_nodes_sends_a_message_to_each_node() -> None:
    machine = "cluster:box=dgx-a100,boxes=4"
    (row,) = antiphon.predict("alltoall", ["64KB"], topology=machine, library="msccl")
    (nccl,) = antiphon.predict("alltoall", ["64KB"], topology=machine, library="nccl")
    assert (row["algorithm"], row["protocol"]) == ("hierarchical", "simple")
    assert row["calibrated"].endswith("hierarchical simple not calibrated")
    message = shipped_calls()["ib"].message
    hop = shipped_calls()["ib"].hop["simple"]
    assert row["terms"]["network"] == pytest.approx(hop + 2 * message)
    assert nccl["terms"]["network"] > 20 * message


def test_msccl_is_on_by_default_in_rccl() -> None:
    (row,) = antiphon.predict("allreduce", ["1KB"], topology="mi300x", library="msccl")
    (rccl,) = antiphon.predict("allreduce", ["1KB"], topology="mi300x", library="rccl")
    assert row["algorithm"] == "allpairs"
    assert row["seconds"] == rccl["seconds"]
    assert "measured with MSCCL's" in row["calibrated"]
    assert (row["sms"], row["sms_of"]) == (32, 304)


@pytest.mark.parametrize(
    ("collective", "nbytes", "sms"), [("allreduce", "1KB", 24), ("allreduce", "1GB", 16), ("alltoall", "1MB", 32)]
)
def test_what_nccl_takes_of_a_gpu(collective: str, nbytes: str, sms: int) -> None:
    (row,) = antiphon.predict(collective, nbytes, topology="hgx-h100", library="nccl")
    assert (row["sms"], row["sms_of"]) == (sms, 132)


def test_copies_by_engines_take_no_multiprocessor() -> None:
    (row,) = antiphon.predict("allgather", "80MB", topology="dgx-a100", library="nccl:algorithm=copies")
    copies, launch = shipped_calls()["a100"].copies, shipped_calls()["a100"].launch
    assert copies is not None
    assert row["sms"] == 0
    assert row["seconds"] == pytest.approx(launch + 7 * copies.latency + 7 / 8 * 80e6 / (300e9 * copies.share))
    assert "copies not calibrated" in row["calibrated"]
    (usual,) = antiphon.predict("allgather", "80MB", topology="dgx-a100", library="nccl")
    assert usual["algorithm"] == "ring"  # never by itself
    assert usual["without_sms"] == row["seconds"]


@pytest.mark.parametrize(
    ("library", "machine", "kind", "nbytes", "choice", "remark"),
    [
        ("nccl-2.16", "hgx-h100", "allreduce", "1GB", "ring simple", ""),
        ("nccl-2.17.1", "hgx-h100", "allreduce", "1GB", "nvls simple", ""),
        ("nccl-2.99", "hgx-h100", "allreduce", "1GB", "nvls simple", "; NCCL 2.99 taken for 2.32"),
        ("nccl-2.32", "hgx-h100", "allreduce", "1KB", "ring ll", ""),
        ("nccl-2.26:registered=yes", "hgx-h100", "allreduce", "1KB", "ring ll", "; NCCL 2.26 has no symmetric"),
        ("nccl-2.27:registered=yes", "hgx-h100", "allreduce", "1KB", "symmetric ll", "; symmetric: model, not"),
        ("nccl:registered=yes", "dgx-a100", "allgather", "1GB", "symmetric simple", "; symmetric: model, not"),
        ("nccl:registered=yes", "hgx-h100", "allreduce", "1GB", "symmetric nvls", "; symmetric: model, not"),
        ("nccl:registered=yes", "hgx-h100", "broadcast", "1GB", "ring simple", "; broadcast by the figures"),
        (
            "nccl:registered=yes",
            "dgx1v",
            "allreduce",
            "1GB",
            "ring simple",
            "; no symmetric kernels: the ranks are",
        ),
        ("nccl:registered=yes", TWO_BOXES, "allreduce", "1KB", "tree ll", "; no symmetric kernels: the ranks are"),
        ("nccl-2.27:registered=yes", "hgx-b200", "allgather", "1GB", "symmetric simple", "; symmetric: model, not"),
        ("nccl-2.28:registered=yes", "hgx-b200", "allgather", "1GB", "copies engine", "; copies not calibrated"),
        ("nccl-2.28:registered=yes", "hgx-b200", "allgather", "8MiB", "symmetric simple", "; symmetric: model, not"),
        ("nccl-2.28:registered=yes", "hgx-h100", "allgather", "1GB", "symmetric simple", "; symmetric: model, not"),
        ("nccl-2.28", "hgx-b200", "allgather", "1GB", "ring simple", ""),
        # not as the fastest: 71 copies one after another
        ("nccl-2.28:registered=yes", "gb200-nvl72", "allgather", "16MB", "copies engine", "; copies not calibrated"),
    ],
)
def test_versions_and_registered_buffers(
    library: str, machine: str, kind: str, nbytes: str, choice: str, remark: str
) -> None:
    """What no table measures says so, and claims no error."""
    (row,) = antiphon.predict(kind, [nbytes], topology=machine, library=library)
    assert f"{row['algorithm']} {row['protocol']}" == choice
    assert remark in row["calibrated"]
    assert (row["error"] is None) == (row["algorithm"] in (SYMMETRIC, "copies"))
    assert row["seconds"] == pytest.approx(sum(row["terms"].values()))
    (usual,) = antiphon.predict(kind, [nbytes], topology=machine, library="nccl")
    assert (row["seconds"] <= usual["seconds"]) or library == "nccl-2.16" or row["algorithm"] == "copies"
    assert (row["sms"] is None) == (row["algorithm"] == SYMMETRIC)
    assert not any(name.startswith(SYMMETRIC) for name in usual["others"])


@pytest.mark.parametrize(
    ("kind", "protocol", "hops", "wires"),
    [
        ("allgather", "ll", 1, 7 / 8), ("allgather", "simple", 2, 7 / 8), ("reducescatter", "simple", 3, 7 / 8),
        ("allreduce", "ll", 1, 7), ("allreduce", "simple", 3, 14 / 8),
    ],
)  # fmt: skip
def test_forms_of_symmetric_kernels(kind: str, protocol: str, hops: int, wires: float) -> None:
    """A launch of 1 us, hops of 1 us, and 9 MB over 300 GB/s (30 us)."""
    found = {
        way.name: way
        for way in price_options(layout_of(topology("dgx-a100")), Costs(FLAT), kind, 9_000_000, [SYMMETRIC])
    }
    assert found[f"symmetric {protocol}"].seconds * 1e6 == pytest.approx(1 + hops + 30 * wires)
    assert "symmetric nvls" not in found


@pytest.mark.parametrize(
    ("machine", "nbytes", "protocol"),
    [("hgx-h100", 2**17, "ll"), ("hgx-h100", 2**17 + 1, "simple"), (TWO_BOXES, 2**10, "simple")],
)
def test_protocols_of_sends(machine: str, nbytes: int, protocol: str) -> None:
    """By NCCL's threshold of 16 KiB for each send, which has no LL128."""
    options = price_options(layout_of(topology(machine)), Costs(FLAT, NET), "alltoall", nbytes)
    assert [option.protocol for option in options] == [protocol]


def test_tune_says_what_communication_takes() -> None:
    found = antiphon.tune("allreduce", "hgx-h100", nbytes=["1KB", "256MB"], planners=["ring", "nvls"])
    assert {row["sms"] for row in found.as_json()["ranges"]} == {16, 24}
    assert "while it runs, communication takes up to 16 of 132 or 24 of 132 SMs of each GPU" in found.notes


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"way": "sideways"}, "way sideways"), ({"protocol": "ll64"}, "protocol ll64"), ({"share": 0.0}, "a share"),
        ({"seconds": None}, "seconds and a share"), ({"seconds": None, "share": None}, "a ring needs"),
    ],
)  # fmt: skip
def test_algorithms_that_cannot_be(change: dict[str, object], told: str) -> None:
    one = {
        "gpus": ["a100"], "local": 8, "nodes": [1], "collective": "allreduce", "least": 1, "way": "ring",
        "protocol": "ll", "source": "https://", "seconds": 1e-5, "share": 0.5,
    }  # fmt: skip
    text = {"format": "antiphon-msccl", "version": 1, "algorithms": [one | change]}
    with pytest.raises(Invalid, match=told):
        read_algorithms(json.dumps(text).encode())


def test_groups_at_the_same_time_on_a_box_of_h100() -> None:
    """Two groups of four and four of two: 31 rows of XLA's table from 2 MiB on, which no figure was fitted to."""
    machine = topology("hgx-h100")
    errors_by_size: dict[str, list[float]] = {"2": [], "4": []}
    with XLA.with_name("xla-groups.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            group = antiphon.collective(row["collective"], machine, ranks=range(int(row["ranks"])))
            (price,) = antiphon.predict(group, int(row["nbytes"]), topology=machine, library="nccl")
            errors_by_size[row["ranks"]].append(abs(price["seconds"] * XLA_PACE / (float(row["us"]) * 1e-6) - 1))
    assert [len(errors_by_size[ranks]) for ranks in ("2", "4")] == [19, 12]
    assert median(errors_by_size["2"]) < 0.22
    assert median(errors_by_size["4"]) < 0.14
    assert median([*errors_by_size["2"], *errors_by_size["4"]]) < 0.16
