"""Rules for stock MPIs and UCC: what is written, read as those libraries read it, says just what the table claims."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from quick import in_turn
from stock_cases import MPICH, OPEN_MPI, MpichTree, OpenMpiRules, Span, mpich, openmpi, table

import antiphon
from antiphon.cli import run
from antiphon.core.plan import Plan
from antiphon.core.serialize import save_plan
from antiphon.errors import Invalid, NotFound, Unsupported
from antiphon.formats.stock.mpich_rules import COLLECTIVES
from antiphon.formats.stock.mpich_trees import read_library_trees, simplify_for_count, tree_text

NUMBERS = {"allgather": 0, "allreduce": 2, "alltoall": 3, "broadcast": 7, "gather": 9, "reduce": 11,
           "reducescatter": 13, "scatter": 15}  # fmt: skip


def rules_of(plans: Plan | Mapping[str, Plan]) -> str:
    return antiphon.export(plans, "openmpi-rules")["openmpi-rules.conf"].decode()


# ---- Open MPI ----


def test_rules_of_open_mpi() -> None:
    spans: list[Span] = [
        (0, 1000, None),
        (1000, 9000, openmpi("ring", 4)),
        (9000, 10**6, openmpi("segmented_ring", 5, 8192)),
        (10**6, None, None),
    ]
    made = table("allreduce", 4, spans)
    other = table("broadcast", 4, [(0, None, openmpi("chain", 2, 65536, 4))], root=0)
    rules = OpenMpiRules(rules_of({"allreduce": made, "broadcast": other}))
    found = [rules.choice(2, 4, n) for n in (0, 999, 1000, 8999, 9000, 10**6 - 1, 10**6, 10**12)]
    assert found == [None, None, (4, 0, 0), (4, 0, 0), (5, 0, 8192), (5, 0, 8192), None, None]
    assert rules.choice(7, 4, 0) == rules.choice(7, 4, 10**9) == (2, 4, 65536)
    for processes in (1, 2, 3, 5, 8, 1000):
        assert rules.choice(2, processes, 5000) is None
        assert rules.choice(7, processes, 5000) is None
    assert rules.choice(11, 4, 5000) is None


@given(
    st.sampled_from(sorted(NUMBERS)), st.integers(2, 9),
    st.lists(st.tuples(st.integers(1, 2**40), st.integers(0, 9), st.sampled_from([0, 8192])), max_size=6,
             unique_by=lambda one: one[0]),
)  # fmt: skip
def test_any_rules_of_open_mpi(kind: str, ranks: int, cuts: list[tuple[int, int, int]]) -> None:
    cuts = sorted(cuts)
    spans = [(0, cuts[0][0] if cuts else None, openmpi("ring", 4))]
    for at, (start, number, segment) in enumerate(cuts):
        stop = cuts[at + 1][0] if at + 1 < len(cuts) else None
        spans.append((start, stop, openmpi(f"a{number}", number, segment) if number else None))  # type: ignore[arg-type]
    made = table(kind, ranks, spans)  # type: ignore[arg-type]
    rules = OpenMpiRules(rules_of(made))
    for start, stop, told in spans:
        wanted = None if told is None else tuple(told["parameters"][key] for key in ("number", "fan", "segment"))
        for nbytes in {start, (stop or 2**41) - 1}:
            assert rules.choice(NUMBERS[kind], ranks, nbytes) == wanted
            assert rules.choice(NUMBERS[kind], ranks + 1, nbytes) is None
            assert rules.choice(NUMBERS[kind], ranks - 1, nbytes) is None


def test_its_own_choice_is_no_rule() -> None:
    own = {**OPEN_MPI, "algorithm": "default", "parameters": {}}
    rules = OpenMpiRules(rules_of(table("allreduce", 4, [(0, 9, own), (9, None, openmpi("ring", 4))])))
    assert rules.choice(2, 4, 8) is None
    assert rules.choice(2, 4, 9) == (4, 0, 0)
    assert OpenMpiRules(rules_of(table("allreduce", 4, [(0, None, own)]))).rules == {}


def test_of_the_right_library() -> None:
    plain = antiphon.plan("allreduce", antiphon.topology("full:ranks=4"), planner="ring")
    with pytest.raises(
        Unsupported, match=r"has no measurements of Open MPI's own algorithms; tune it .*--library-only"
    ):
        rules_of(plain)
    with pytest.raises(Unsupported, match=r"measured on MPICH; export --to mpich-rules"):
        rules_of(table("allreduce", 4, [(0, None, mpich("ring", ""))]))
    with pytest.raises(Unsupported, match="measured on other"):
        rules_of(table("allreduce", 4, [(0, None, {**openmpi("ring", 4), "name": "other"})]))


@pytest.mark.parametrize(
    "told",
    [
        3, [], {}, {"name": "Open MPI"}, {**OPEN_MPI, "algorithm": 4, "parameters": {}},
        {**OPEN_MPI, "algorithm": "ring\n5 5 5", "parameters": {"number": 4, "segment": 0, "fan": 0}},
        {**OPEN_MPI, "algorithm": "ring", "parameters": {"number": "4", "segment": 0, "fan": 0}},
        {**OPEN_MPI, "algorithm": "ring", "parameters": {"number": -4, "segment": 0, "fan": 0}},
        {**OPEN_MPI, "algorithm": "ring", "parameters": {"number": True, "segment": 0, "fan": 0}},
        {**OPEN_MPI, "algorithm": "ring", "parameters": {"number": 2**31, "segment": 0, "fan": 0}},
        {**OPEN_MPI, "algorithm": "ring", "parameters": {"number": 4}},
        {**OPEN_MPI, "version": "5\n7", "algorithm": "ring", "parameters": {"number": 4, "segment": 0, "fan": 0}},
    ],
)  # fmt: skip
def test_hostile_claims(told: Any) -> None:
    made = table("allreduce", 4, [(0, None, {})])
    entry = made.entries[0]
    made = Plan.of(made.topology, entry.schedule, {"library": told})
    with pytest.raises(Invalid, match=r"claims\.library"):
        rules_of(made)


# ---- MPICH ----

INTRA = {
    "bcast": {"comm_size<8": {"algorithm=MPIR_Bcast_intra_a": {}},
              "comm_size=pow2": {"avg_msg_size<=100": {"comm_size<8": {"algorithm=MPIR_Bcast_intra_b": {}},
                                                     "comm_size=any": {"algorithm=MPIR_Bcast_intra_c": {}}},
                                 "avg_msg_size=any": {"algorithm=MPIR_Bcast_intra_d": {"k=3": {}}}},
              "comm_size=any": {"comm_hierarchy=parent": {"comm_size<20": {"algorithm=MPIR_Bcast_intra_e": {}},
                                                          "comm_size=any": {"algorithm=MPIR_Bcast_intra_f": {}}},
                                "comm_hierarchy=any": {"algorithm=MPIR_Bcast_intra_g": {}}}},
    **{name: {"algorithm=MPIR_own": {}} for name in ("allreduce", "reduce", "allgather", "reduce_scatter_block",
                                                    "ibcast")},
    "alltoall": {"is_sendbuf_inplace=yes": {"algorithm=MPIR_in_place": {}},
                 "is_sendbuf_inplace=no": {"avg_msg_size<=9": {"algorithm=MPIR_small": {}},
                                           "avg_msg_size=any": {"algorithm=MPIR_large": {}}}},
}  # fmt: skip
OWN_MPIR = {
    f"collective={name}": {"comm_type=intra": tree, "comm_type=inter": {"algorithm=MPIR_Inter": {}}}
    for name, tree in INTRA.items()
}
OWN_MPIR["collective=ibcast"] = {"algorithm=MPIR_Ibcast_intra_sched_auto": {}}  # type: ignore[dict-item]
OWN_CH4 = {
    f"collective={name}": {"comm_type=intra": {f"composition=MPIDI_{name}_alpha": {}}}
    for name in ("bcast", "allreduce", "allgather")
}


WORDS = [
    *(f"algorithm=MPIR_Allreduce_intra_{name}" for name in ("ring", "recexch", "smp", "tree")),
    "algorithm=MPIR_Allreduce_intra_reduce_scatter_allgather", "algorithm=MPIR_Allreduce_allcomm_nb",
    "algorithm=MPIR_Reduce_intra_reduce_scatter_gather",
    "algorithm=MPIR_Reduce_scatter_block_intra_pairwise", "algorithm=MPIR_Alltoall_intra_pairwise",
    "algorithm=MPIR_Alltoall_intra_brucks", "algorithm=MPIR_Alltoall_intra_scattered",
    "algorithm=MPIR_Allgather_intra_ring", "algorithm=MPIR_Bcast_intra_smp", "algorithm=MPIR_Bcast_intra_binomial",
    "block=", "single_phase_recv=",  # k= is the end of another, as linkers put them
]  # fmt: skip


def library(folder: Path, mpir: Any = None, ch4: Any = None, before: bytes = b"\x7fELF code\0") -> Path:
    """A file as a libmpi that has these trees in it."""
    parts = [json.dumps(one, separators=(",", ":")).encode() for one in (mpir or OWN_MPIR, ch4 or OWN_CH4)]
    posix = b'{"collective=bcast":{"algorithm=MPIDI_POSIX_mpi_bcast_release_gather":{}}}'
    path = folder / "libmpi.so.12"
    words = "\0".join(WORDS).encode()
    path.write_bytes(before + b"\0".join([posix, *reversed(parts), words]) + b"\0 more")
    return path


def trees_of(plans: Any, path: Path | str = "") -> tuple[MpichTree, MpichTree]:
    made = antiphon.export(plans, "mpich-rules", options={"library": str(path)} if path else {})
    assert set(made) == {"mpich-mpir.json", "mpich-ch4.json"}
    assert all(len(text) % 4096 for text in made.values())
    return MpichTree(made["mpich-mpir.json"].decode()), MpichTree(made["mpich-ch4.json"].decode())


def test_rules_of_mpich(tmp_path: Path) -> None:
    path = library(tmp_path)
    spans = [(0, 1000, None), (1000, 9000, mpich("recexch", path, k=4, single_phase_recv=0)), (9000, None, None)]
    mpir, ch4 = trees_of(table("allreduce", 4, spans))  # type: ignore[arg-type]
    rule = "MPIR_Allreduce_intra_recexch k=4 single_phase_recv=0"
    for nbytes, wanted in ((0, None), (999, None), (1000, rule), (8999, rule), (9000, None), (2**40, None)):
        call = {"average": nbytes}
        assert mpir.leaf("allreduce", 4, **call) == (wanted or "MPIR_own")
        # what CH4 has nothing for goes to MPIR
        assert ch4.leaf("allreduce", 4, **call) == (None if wanted else "MPIDI_allreduce_alpha")
        for processes in (1, 2, 3, 5, 64):
            assert mpir.leaf("allreduce", processes, **call) == "MPIR_own"
            assert ch4.leaf("allreduce", processes, **call) == "MPIDI_allreduce_alpha"
    assert mpir.leaf("allreduce", 4, average=5000, inter=True) == "MPIR_Inter"
    assert mpir.leaf("ibcast", 4) == "MPIR_Ibcast_intra_sched_auto"
    assert ch4.leaf("bcast", 4) == "MPIDI_bcast_alpha"


def test_calls_that_an_algorithm_is_not_right_for(tmp_path: Path) -> None:
    path = library(tmp_path)

    def leaf(kind: str, algorithm: str, **call: Any) -> str | None:
        root = 0 if kind in ("broadcast", "reduce") else None
        mpir, _ = trees_of(table(kind, 4, [(0, None, mpich(algorithm, path))], root))
        return mpir.leaf(COLLECTIVES[kind].name, 4, **call)

    ring, halves = "MPIR_Allreduce_intra_ring", "MPIR_Allreduce_intra_reduce_scatter_allgather"
    assert leaf("allreduce", "ring", average=5) == ring
    assert leaf("allreduce", "ring", average=5, commutes=False) == "MPIR_own"
    assert leaf("allreduce", "reduce_scatter_allgather", average=5) == halves
    assert leaf("allreduce", "reduce_scatter_allgather", average=5, built_in=False) == "MPIR_own"
    assert leaf("allreduce", "reduce_scatter_allgather", average=5, count=3) == "MPIR_own"
    assert leaf("allreduce", "reduce_scatter_allgather", average=5, count=4) == halves
    assert leaf("reduce", "reduce_scatter_gather", average=5, count=3) == "MPIR_own"
    assert leaf("allreduce", "smp", average=5) == "MPIR_Allreduce_intra_smp"
    assert leaf("allreduce", "smp", average=5, parent=False) == "MPIR_own"
    assert leaf("allreduce", "smp", average=5, commutes=False) == "MPIR_own"
    assert leaf("broadcast", "smp", average=5, parent=False) == "MPIR_Bcast_intra_a"
    assert leaf("allreduce", "nb", average=5) == "MPIR_Allreduce_allcomm_nb"
    assert leaf("allreduce", "tree", average=5) == "MPIR_Allreduce_intra_tree tree_type=knomial_1"
    pairs = "MPIR_Reduce_scatter_block_intra_pairwise"
    assert leaf("reducescatter", "pairwise", total=5) == pairs
    assert leaf("reducescatter", "pairwise", total=5, commutes=False) == "MPIR_own"
    assert leaf("alltoall", "pairwise", in_place=True) == "MPIR_in_place"
    assert leaf("alltoall", "pairwise", average=3) == "MPIR_Alltoall_intra_pairwise"
    assert leaf("allgather", "ring", total=3) == "MPIR_Allgather_intra_ring"


def test_sizes_are_those_that_mpich_knows(tmp_path: Path) -> None:
    """Of an alltoall the block for one process; nbytes is the whole buffer."""
    path = library(tmp_path)
    spans = [(0, 4001, mpich("brucks", path)), (4001, 8000, None), (8000, None, mpich("scattered", path))]
    mpir, _ = trees_of(table("alltoall", 4, spans))  # type: ignore[arg-type]
    for block, wanted in ((0, "brucks"), (1000, "brucks"), (1001, None), (1999, None), (2000, "scattered")):
        found = mpir.leaf("alltoall", 4, average=block)
        assert found == (f"MPIR_Alltoall_intra_{wanted}" if wanted else "MPIR_large")
    narrow = [(0, 9, mpich("brucks", path)), (9, 12, mpich("scattered", path)), (12, None, None)]  # 9 to 11: no size
    mpir, _ = trees_of(table("alltoall", 4, narrow))  # type: ignore[arg-type]
    assert mpir.leaf("alltoall", 4, average=2) == "MPIR_Alltoall_intra_brucks"
    mpir, _ = trees_of(table("allreduce", 2, [(0, 5, None), (5, 2**33, mpich("ring", path)), (2**33, None, None)]))
    assert mpir.leaf("allreduce", 2, average=2**31 - 2) == "MPIR_Allreduce_intra_ring"
    assert mpir.leaf("allreduce", 2, average=2**33) == "MPIR_own"


@pytest.mark.parametrize("processes", in_turn([2, 4, 7, 8, 9, 16, 19, 20, 32], 3))
def test_what_has_no_rule_is_as_in_the_library(tmp_path: Path, processes: int) -> None:
    """Also where the library's own tree asks for the number of processes behind a condition on messages."""
    path, own = library(tmp_path), MpichTree(json.dumps(OWN_MPIR))
    for ranks in (8, 16):
        spans = [(0, 50, None), (50, 60, mpich("binomial", path)), (60, None, None)]
        mpir, _ = trees_of(table("broadcast", ranks, spans, root=0))  # type: ignore[arg-type]
        for average in (0, 49, 60, 100, 101):
            for parent in (True, False):
                call = {"average": average, "parent": parent}
                assert mpir.leaf("bcast", processes, **call) == own.leaf("bcast", processes, **call)
    tree: Any = OWN_MPIR["collective=bcast"]["comm_type=intra"]
    assert "comm_size<8" not in simplify_for_count(tree, 8)


def test_a_file_never_ends_with_a_page() -> None:
    """MPICH reads a mapped file up to the first zero, which only a page that is not full has behind it."""
    lengths = {len(tree_text({"x" * n: {}})) % 4096 for n in range(4096)}
    assert len(lengths) == 4095
    assert 0 not in lengths


def test_an_mpich_without_rules_and_with_another_library(tmp_path: Path) -> None:
    path = library(tmp_path)
    told = {**MPICH, "file": str(path), "algorithm": "default", "parameters": {}}
    mpir, ch4 = trees_of(table("gather", 4, [(0, None, told)], root=0))
    assert mpir.tree == OWN_MPIR
    assert ch4.tree == OWN_CH4
    gone = table("allreduce", 4, [(0, None, mpich("ring", tmp_path / "gone.so"))])
    assert trees_of(gone, path)[0].leaf("allreduce", 4, average=1) == "MPIR_Allreduce_intra_ring"
    with pytest.raises(Invalid, match=r"gone\.so"):
        trees_of(gone)
    with pytest.raises(Unsupported, match="know no sizes of gather in bytes"):
        trees_of(table("gather", 4, [(0, None, mpich("binomial", path))], root=0))


def test_libraries_that_are_none(tmp_path: Path) -> None:
    bad = tmp_path / "libmpi.so"
    whole = library(tmp_path).read_bytes()
    for data, says in (
        (b"", NotFound), (b"\x7fELF\0\0", NotFound), (b'\0{"collective=x": ' * 1000, NotFound),
        (b'\0{"collective=bcast":{"algorithm=MPIR_I', NotFound),
        (b'\0{"collective=bcast":{"algorithm=MPIR_I\0', Invalid),
        (b'\0{"collective=bcast":{"algorithm=MPIR_I":{}}, "collective=bcast":{}}\0', Invalid),
        (b'\0{"collective=bcast":' + b'{"a":' * 10**5 + b'"algorithm=MPIR_I"\0', Invalid),
        (whole.replace(b'allreduce":{"comm_type=intra"', b'allreduce":{"comm_type=other"'), Invalid),
    ):  # fmt: skip
        bad.write_bytes(data)
        with pytest.raises(says):
            trees_of(table("allreduce", 4, [(0, None, mpich("ring", bad))]))
    twice = b'\0{"collective=bcast":{"algorithm=MPIR_I":{"k=2":{},"k=2":{}}}}\0'
    bad.write_bytes(twice)
    with pytest.raises(Invalid, match="is not in a known JSON form"):
        read_library_trees(str(bad))
    bad.write_bytes(twice.replace(b'"k=2"', b'"k=3"', 1))
    assert read_library_trees(str(bad)).trees["MPIR"] == {
        "collective=bcast": {"algorithm=MPIR_I": {"k=3": {}, "k=2": {}}}
    }
    own = read_library_trees(str(library(tmp_path)))
    assert own.trees == {"MPIR": OWN_MPIR, "CH4": OWN_CH4}


@pytest.mark.parametrize(
    ("name", "parameters", "word"),
    [("rings", {}, "intra_rings"), ("recexch", {"kk": 2}, "kk="), ("ring:0 any", {}, "ring:0 any")],
)
def test_what_that_mpich_does_not_know_is_refused(
    tmp_path: Path, name: str, parameters: dict[str, int], word: str
) -> None:  # fmt: skip
    made = table("allreduce", 4, [(0, None, mpich(name, library(tmp_path), **parameters))])
    with pytest.raises(Unsupported, match=rf"does not support .*{word}.* in a selection file"):
        trees_of(made)


# ---- UCC ----

TOKEN = re.compile(r"([a-z_]+):(\d+)-(\d+|inf):\[(\d+)\]:@([a-z_]+)")


def ucc_of(plans: Any) -> list[tuple[str, ...]]:
    """The tokens: collective, sizes (both ends belong to it), processes, algorithm."""
    text = antiphon.export(plans, "ucc", options={"unproven": True})["ucc.conf"].decode()
    name, equals, value = text.rstrip("\n").partition(" = ")
    assert (name, equals) == ("UCC_TL_UCP_TUNE", " = ")
    found = [TOKEN.fullmatch(token) for token in value.split("#")]
    assert all(found)
    return [one.groups() for one in found if one is not None]


def test_strings_of_ucc() -> None:
    machine = antiphon.topology("full:ranks=4")
    spans: list[Span] = [
        (0, 9, openmpi("recursive_doubling", 3)),
        (9, 99, openmpi("basic_linear", 1)),
        (99, None, openmpi("rabenseifner", 6)),
    ]
    made = {
        "allreduce": table("allreduce", 4, spans),
        "reducescatter": antiphon.plan("reducescatter", machine, planner="ring"),
        "broadcast": table("broadcast", 4, [(0, 7, None), (7, None, mpich("binomial", ""))], root=0),
        "alltoall": antiphon.plan("alltoall", machine, planner="pairwise"),
    }  # fmt: skip
    assert ucc_of(made) == [
        ("allreduce", "0", "8", "4", "knomial"), ("allreduce", "99", "inf", "4", "sra_knomial"),
        ("reduce_scatter", "0", "inf", "4", "ring"), ("bcast", "7", "inf", "4", "knomial"),
        ("alltoall", "0", "inf", "4", "pairwise"),
    ]  # fmt: skip


def test_ucc_counts_a_reducescatter_by_what_one_gets() -> None:
    spans = [
        (0, 10, None),
        (10, 41, openmpi("recursive_halving", 3)),
        (41, 43, openmpi("x", 1)),
        (43, None, openmpi("y", 2)),
    ]
    assert ucc_of(table("reducescatter", 4, spans)) == [("reduce_scatter", "3", "10", "4", "knomial")]  # type: ignore[arg-type]


def test_what_ucc_has_nothing_for() -> None:
    with pytest.raises(Unsupported, match="UCC has no algorithm for any plan of this table"):
        ucc_of(table("allreduce", 4, [(0, None, openmpi("basic_linear", 1))]))
    left = table("allreduce", 4, [(0, None, None)])
    with pytest.raises(NotFound, match=r"nothing to write \(the table leaves these sizes to the library\)"):
        antiphon.export(left, "ucc")
    own = table("allreduce", 4, [(0, None, {**OPEN_MPI, "algorithm": "default", "parameters": {}})])
    with pytest.raises(NotFound, match="own choice was measured to be as good"):
        antiphon.export(own, "ucc")


def test_ucc_takes_from_planners_only_what_is_asked_for() -> None:
    """A plan predicts nothing of UCC's own algorithms."""
    plan = antiphon.plan("allreduce", antiphon.topology("full:ranks=4"), planner="recursive-doubling")
    with pytest.raises(NotFound, match=r"UCC's own choice may be as good.*unproven=yes"):
        antiphon.export(plan, "ucc")
    assert ucc_of(plan) == [("allreduce", "0", "inf", "4", "knomial")]


def test_what_was_written_and_left_out_is_counted() -> None:
    spans: list[Span] = [(0, 9, None), (9, 99, openmpi("rabenseifner", 6)), (99, None, openmpi("basic_linear", 1))]
    written = antiphon.export(table("allreduce", 4, spans), "openmpi-rules")
    assert written.notes == (
        "rules written: 2",
        "left to Open MPI: 1 range: its own choice was measured to be as good, or nothing was measured",
    )
    assert antiphon.export(table("allreduce", 4, spans), "ucc").notes == (
        "rules written: 1", "left to UCC: 1 range: the table leaves these sizes to the library",
        "left to UCC: 1 range: UCC has no such algorithm",
    )  # fmt: skip
    own = table("allreduce", 4, [(0, None, {**OPEN_MPI, "algorithm": "default", "parameters": {}})])
    assert antiphon.export(own, "openmpi-rules").notes == ("rules written: none: Open MPI's own choice is as good",)


# ---- the command ----


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    save_plan("table.json", table("allreduce", 4, [(0, None, openmpi("ring", 4))]))
    assert run("export table.json --to openmpi-rules -o rules".split()) == 0  # noqa: SIM905
    assert OpenMpiRules(Path("rules/openmpi-rules.conf").read_text()).choice(2, 4, 7) == (4, 0, 0)
    assert run("export table.json --to ucc -o ucc".split()) == 0  # noqa: SIM905
    capsys.readouterr()
    assert run("export table.json --to mpich-rules -o rules".split()) == 2  # noqa: SIM905
    assert capsys.readouterr().err.startswith("antiphon: mpich-rules: this table was measured on Open MPI")
    for line in ("--library-only", "--library-only --on torch", "--library-only --on mpi --deterministic"):
        assert run(f"tune allreduce full:ranks=2 {line}".split()) == 2
        assert capsys.readouterr().err.startswith("antiphon: --")
