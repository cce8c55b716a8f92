"""Rules for NCCL, RCCL and NCCLX: files of rules, read as their readers do, say just what was measured; and no rule by
the model makes the library slower.

The readers here are written from what RCCL, NVIDIA's example plugin and NCCLX document of their files.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon.core.plan import Entry, Plan
from antiphon.core.reshape import keep
from antiphon.cost.nccl.accuracy import error_at
from antiphon.cost.nccl.choice import OptionPrice
from antiphon.cost.nccl.library import LibraryModel, library_here
from antiphon.errors import Invalid, NotFound, Unsupported
from antiphon.formats.stock.nccl_tuner import FAMILIES, MODELLED, rule_of

COLLECTIVES = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
Choice = tuple[str, str, int, int] | None  # algorithm, protocol, channels, chunk; -1, 0: the library's own
Span = tuple[int, int | None, Mapping[str, Any] | None]
TWO_BOXES = "cluster:box=hgx-h100,boxes=2"


def nccl(algorithm: str, name: str = "NCCL", **parameters: int) -> dict[str, Any]:
    return {"name": name, "version": "2.30.4", "file": "", "algorithm": algorithm, "parameters": parameters}


def measured(kind: str, spec: str, spans: Sequence[Span]) -> Plan:
    """A table whose entries claim these settings of the library."""
    plan = antiphon.plan(kind, spec, planner="ring")
    gains = {"measurements": [{"library_over_default": 0.8}, {"library_over_default": 0.5}]}
    entries = [
        Entry(start, stop, plan.entries[0].schedule,
              {"served_by": "library", **({"library": dict(claim), **gains} if claim else {"measured": False})})
        for start, stop, claim in spans
    ]  # fmt: skip
    return Plan(plan.topology, plan.collective, tuple(entries))


class CsvReader:
    """RCCL's tuner: the first line that fits and that the library is able to do."""

    def __init__(self, text: str) -> None:
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        assert all(len(line) < 256 for line in text.splitlines())
        self.rows = [line.split(",") for line in lines]
        for row in self.rows:
            assert len(row) == 10
            assert row[0] in COLLECTIVES
            assert row[3] in ALGORITHMS
            assert row[4] in PROTOCOLS

    def choice(self, kind: str, nbytes: int, ranks: int, nodes: int) -> Choice:
        for name, low, high, algorithm, protocol, channels, its_nodes, its_ranks, together, registered in self.rows:
            fits = name == kind and int(low) <= nbytes <= int(high) and int(its_nodes) in (-1, nodes)
            if fits and int(its_ranks) in (-1, ranks) and together == registered == "-1":
                return algorithm, protocol, int(channels), 0
        return None


class NcclxReader:
    """NCCLX's tuner: intervals of bytes per rank; one line with anything wrong ends the program."""

    def __init__(self, text: str) -> None:
        self.rows: list[Any] = []
        for line in text.splitlines():
            if line and not line.startswith("#"):
                match = re.fullmatch(r"(\w+),(\[\d+,\d*[\])]),(.*)", line)
                assert match
                name, interval, rest = match.groups()
                algorithm, protocol, channels, nodes, local, together, registered, chunk = rest.split(",")
                low, high = interval[1:-1].split(",")
                assert name in COLLECTIVES
                assert algorithm in ALGORITHMS
                assert protocol in PROTOCOLS
                assert together == registered == "-1"
                assert interval[-1] == ("]" if high else ")")
                assert not high or int(low) <= int(high)
                numbers = (int(channels), int(nodes), int(local), int(chunk))
                self.rows.append((name, int(low), int(high) if high else 2**63, algorithm, protocol, *numbers))

    def choice(self, kind: str, nbytes: int, ranks: int, nodes: int) -> Choice:
        for name, low, high, algorithm, protocol, channels, its_nodes, local, chunk in self.rows:
            fits = name == kind and low <= nbytes // ranks <= high
            if fits and (its_nodes, local) == (nodes, ranks // nodes):
                return algorithm, protocol, channels, chunk
        return None


SPANS: list[Span] = [
    (0, 1000, None),
    (1000, 70_000, nccl("tree ll")),
    (70_000, 10**6, nccl("ring ll128", channels=16)),
    (10**6, 10**7 + 1, nccl("nvls-tree simple", channels=24, chunk=2**19)),
    (10**7 + 1, 10**8, nccl("default")),
    (10**8, 2 * 10**8, nccl("collnet-chain simple")),
    (2 * 10**8, None, None),
]


def expected(nbytes: int) -> Choice:
    for start, stop, claim in SPANS:
        if start <= nbytes and (stop is None or nbytes < stop):
            if claim is None or claim["algorithm"] == "default":
                return None
            algorithm, protocol = claim["algorithm"].replace("-", "_").split()
            parameters = claim["parameters"]
            return algorithm, protocol, parameters.get("channels", -1), parameters.get("chunk", 0)
    return None


EDGES = sorted(
    {edge + d for start, _, _ in SPANS for edge in (start,) for d in (-17, -16, -1, 0, 1, 15, 16) if edge + d >= 0}
)


def test_rules_of_rccl_say_what_was_measured() -> None:
    files = antiphon.export(measured("allreduce", TWO_BOXES, SPANS), "nccl-csv")
    reader = CsvReader(files["nccl-tuner.csv"].decode())
    for nbytes in EDGES:
        want = expected(nbytes)
        has_rule = want is not None and not want[3]  # a gain by chunks is left out
        assert reader.choice("allreduce", nbytes, 16, 2) == (want if has_rule else None), nbytes
        assert reader.choice("allreduce", nbytes, 8, 1) is None
        assert reader.choice("allgather", nbytes, 16, 2) is None
    notes = "\n".join(files.notes)
    assert "rules written: 3" in notes
    assert "allreduce 70KB to 1MB: ring ll128, 16 channels: measured: 1.25x to 2x over the default" in notes
    assert "left to NCCL: 2 ranges: nothing was measured\n" in notes
    assert "left to NCCL: 1 range: its own choice was measured to be as good\n" in notes
    assert "a single channel" in notes  # of NVIDIA's example plugin
    assert "left to NCCL: 1 range: its gain was measured with a chunk size, which this format cannot state" in notes


@pytest.mark.slow
def test_no_advice_to_measure_what_was_measured() -> None:
    spans: list[Span] = [(0, 1000, None), (1000, 70_000, nccl("default")), (70_000, None, nccl("pat ll", chunk=2**19))]
    for name in ("nccl-tuner", "nccl-csv"):
        plan = measured("alltoall" if name == "nccl-tuner" else "allreduce", TWO_BOXES, spans)
        with pytest.raises(NotFound, match="nothing to write") as caught:
            antiphon.export(plan, name)
        assert "unproven" not in str(caught.value)


def test_rules_of_ncclx_say_what_was_measured() -> None:
    """Bytes per rank are rounded: a range may end up to 15 bytes later, or begin so much later."""
    files = antiphon.export(measured("allgather", TWO_BOXES, SPANS), "ncclx-csv")
    reader = NcclxReader(files["ncclx-tuner.csv"].decode())
    for nbytes in EDGES:
        choice = reader.choice("allgather", nbytes, 16, 2)
        near = {expected(max(nbytes - 15, 0)), expected(nbytes), expected(nbytes + 15)}
        assert choice in near, nbytes
        assert choice == expected(nbytes) or len(near) > 1, nbytes
    assert reader.choice("allgather", 10**7, 16, 2) == expected(10**7)  # the greatest size measured of a range
    narrow = measured(
        "allgather",
        TWO_BOXES,
        [
            (0, 1, None),
            (1, 9, nccl("ring ll")),
            (9, 17, nccl("tree ll")),
            (17, 10**6, nccl("ring simple")),
            (10**6, None, None),
        ],
    )
    assert any("less than a byte per rank" in note for note in antiphon.export(narrow, "ncclx-csv").notes)


def test_the_plugin_gets_what_was_measured() -> None:
    text = antiphon.export(measured("allgather", TWO_BOXES, SPANS), "nccl-tuner")["nccl-tuner.txt"].decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines == [
        "antiphon-nccl-tuner 1", "allgather 1000 69999 tree ll 0 16 2", "allgather 70000 999999 ring ll128 16 16 2",
        "allgather 1000000 10000000 nvls-tree simple 24 16 2 524288",
        "allgather 100000000 199999999 collnet-chain simple 0 16 2",
    ]  # fmt: skip
    assert "# measured: 1.25x to 2x over the default\n" in text


def test_a_protocol_is_named_where_the_measurement_named_none() -> None:
    """As the model holds it to be best for the algorithm, from size to size; or as the user says."""
    plan = measured("allgather", TWO_BOXES, [(0, 2**30, nccl("ring")), (2**30, None, None)])
    reader = CsvReader(antiphon.export(plan, "nccl-csv")["nccl-tuner.csv"].decode())
    library = library_here(plan.topology)
    chosen = [reader.choice("allgather", 2**power, 16, 2) for power in range(10, 30, 3)]
    best = [
        next(one.protocol for one in library.at("allgather", 2**power) if one.algorithm == "ring")
        for power in range(10, 30, 3)
    ]
    assert [choice and choice[1] for choice in chosen] == best
    assert len(set(best)) > 1
    forced = antiphon.export(plan, "ncclx-csv", options={"protocol": "ll128", "channels": 4})[
        "ncclx-tuner.csv"
    ].decode()
    assert NcclxReader(forced).choice("allgather", 2**20, 16, 2) == ("ring", "ll128", 4, 0)
    unknown = measured("allreduce", "full:ranks=4", [(0, None, nccl("tree"))])
    with pytest.raises(Unsupported, match=r"option protocol=simple"):
        antiphon.export(unknown, "nccl-csv")
    assert " tree auto " in antiphon.export(unknown, "nccl-tuner")["nccl-tuner.txt"].decode()


SHIPPED = """# theirs
colltype,minbytes,maxbytes,algorithm,protocol,channels,nNodes,nRanks
allreduce, 0, 65536, tree, ll, 8, 1, 8
allgather,1,2,ring,ll,-1,-1,-1,-1,-1
"""


def test_rccl(tmp_path: Path) -> None:
    """No plugin, which would take the place of AMD's table; that table follows ours in the file."""
    plan = measured("allreduce", "mi300x", [(0, 1000, None), (1000, 9000, nccl("ring ll", "RCCL")), (9000, None, None)])
    with pytest.raises(Unsupported, match=r"RCCL stops using the tuner table of AMD.*export --to nccl-csv"):
        antiphon.export(plan, "nccl-tuner")
    files = antiphon.export(plan, "nccl-tuner", options={"unproven": True})
    assert "RCCL ignores AMD's own tuner table" in files.notes[-1]
    assert any("merge=FILE" in note for note in antiphon.export(plan, "nccl-csv").notes)
    shipped = tmp_path / "rccl_tuner_gfx942.csv"
    shipped.write_text(SHIPPED)
    files = antiphon.export(plan, "nccl-csv", options={"merge": str(shipped)})
    text = files["nccl-tuner.csv"].decode()
    assert text.splitlines()[-2:] == ["allreduce,0,65536,tree,ll,8,1,8", "allgather,1,2,ring,ll,-1,-1,-1,-1,-1"]
    assert text.index("allreduce,1000,8999,ring,ll,-1,1,8,-1,-1") < text.index("allreduce,0,65536")
    assert files.notes[-1].endswith("behind ours: 2")


@pytest.mark.parametrize(
    "text",
    [
        "allreduce,0,1,ring,ll,1,1", "allreduce,0,1,ring,ll,1,1,1,1,1,1", "alltoall,0,1,ring,ll,1,1,8",
        "allreduce,0,1,rings,ll,1,1,8", "allreduce,0,1,ring,auto,1,1,8", "allreduce,0,1e6,ring,ll,1,1,8",
        "allreduce,0,,ring,ll,1,1,8", "allreduce,0,1,ring,ll,1,1,²", "allreduce,-1,1,ring,ll,1,1,8",
        "allreduce,0,1,ring,ll,1,1,8," + "1" * 300, "\x00,",
    ],
)  # fmt: skip
def test_a_table_to_merge_with_anything_wrong(text: str, tmp_path: Path) -> None:
    (tmp_path / "shipped.csv").write_text(f"# a comment\n{text}\n", encoding="utf-8")
    plan = measured("allreduce", "mi300x", [(0, None, nccl("ring ll", "RCCL"))])
    with pytest.raises(Invalid, match=r"merge=.*shipped\.csv, line 2: .*: expected colltype,minbytes") as error:
        antiphon.export(plan, "nccl-csv", options={"merge": str(tmp_path / "shipped.csv")})
    assert len(str(error.value)) < 500


def test_tables_that_cannot_be_merged_or_written(tmp_path: Path) -> None:
    plan = measured("allreduce", "mi300x", [(0, None, nccl("ring ll", "RCCL"))])
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "large").write_text("#" * 2**21)
    for name, says in (("none", "cannot be read"), ("", "is a directory"), ("binary", "line 1"), ("large", "1048576")):
        with pytest.raises(Invalid, match=says):
            antiphon.export(plan, "nccl-csv", options={"merge": str(tmp_path / name)})
    for claim in (nccl("rings ll"), nccl("ring fast"), nccl("ring ll", channels=65), nccl("ring ll", number=1)):
        with pytest.raises(Invalid, match=r"claims.library: .*expected one of tree, ring"):
            antiphon.export(measured("allreduce", "full:ranks=4", [(0, None, claim)]), "nccl-tuner")
    with pytest.raises(NotFound, match="no tuner chooses for alltoall"):
        antiphon.export(
            replace_kind(measured("allreduce", "full:ranks=4", [(0, None, nccl("ring ll"))]), "alltoall"), "nccl-tuner"
        )


def replace_kind(plan: Plan, kind: str) -> Plan:
    other = antiphon.plan(kind, plan.topology, planner="direct")
    return Plan(plan.topology, other.collective,
                tuple(Entry(e.start, e.stop, other.entries[0].schedule, e.claims) for e in plan.entries))  # fmt: skip


@pytest.mark.parametrize("kind", ["allgather", "reducescatter"])
def test_pat_where_each_node_has_one_rank(kind: str) -> None:
    full = antiphon.topology("cluster:box=hgx-h100,boxes=4")
    lone = keep(full, range(0, 32, 8), name="a GPU of each box").topology
    text = antiphon.export(antiphon.plan(kind, lone, planner="bruck"), "nccl-tuner", options={"unproven": True})
    assert re.search(rf"^{kind} 0 - pat auto 0 4 4$", text["nccl-tuner.txt"].decode(), re.MULTILINE)
    csv = antiphon.export(antiphon.plan(kind, lone, planner="bruck"), "nccl-csv", options={"unproven": True})
    assert CsvReader(csv["nccl-tuner.csv"].decode()).choice(kind, 2**20, 4, 4) == ("pat", "simple", -1, 0)
    for unproven in (True, False):
        with pytest.raises(NotFound, match=r"no setting is known .*NCCL's pat needs one rank per node\)$"):
            antiphon.export(antiphon.plan(kind, full, planner="bruck"), "nccl-tuner", options={"unproven": unproven})


# ---- rules by the model ----


MACHINES = ("dgx1v", "hgx-h100", TWO_BOXES, "cluster:box=hgx-h100,boxes=4", "mi300x")
SIZES = [2**power for power in range(7, 31)]  # 24 of them, from 128 B to 1 GiB


class PluginReader:
    """Our tuner plugin: the first line that fits."""

    def __init__(self, text: str) -> None:
        self.rows = [line.split() for line in text.splitlines()[1:] if not line.startswith("#")]

    def choice(self, kind: str, nbytes: int, ranks: int, nodes: int) -> Choice:
        for name, low, high, algorithm, protocol, channels, its_ranks, its_nodes, *chunk in self.rows:
            fits = name == kind and int(low) <= nbytes and (high == "-" or nbytes <= int(high))
            if fits and (int(its_ranks), int(its_nodes)) == (ranks, nodes):
                return algorithm.replace("-", "_"), protocol, int(channels), int(chunk[0]) if chunk else 0
        return None


READERS = {"nccl-tuner": PluginReader, "nccl-csv": CsvReader, "ncclx-csv": NcclxReader}


def slower_rules(reader: Any, library: LibraryModel) -> set[tuple[str, int]]:
    """Collectives and sizes at which a rule makes the library slower than its own choice, by the model."""
    found = set()
    for kind, nbytes in itertools.product(COLLECTIVES, SIZES):
        rule = reader.choice(kind, nbytes, library.layout.ranks, library.layout.nodes)
        if rule is not None:
            algorithm, protocol = rule[0].replace("_", "-"), rule[1]
            own, *others = library.at(kind, nbytes)
            forced = [
                option.seconds for option in (own, *others)
                if option.algorithm == MODELLED.get(algorithm, algorithm) and protocol in ("auto", option.protocol)
            ]  # fmt: skip
            if not forced or min(forced) > own.seconds * 1.001:
                found.add((kind, nbytes))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("spec", MACHINES)
def test_no_rule_of_a_tuned_table_makes_the_library_slower(spec: str) -> None:
    """For tables of `tune` alone, in every format of rules; what `unproven` adds is as slow in each."""
    planners = [planner for family in FAMILIES.values() for planner in family]  # all others get no rule
    plans = {}
    for kind in COLLECTIVES:
        search = antiphon.Search(budget=5, workers=1)
        plans |= antiphon.tune(kind, spec, nbytes="128B:1GiB:8", planners=planners, search=search).plans
    library = library_here(antiphon.topology(spec))
    slower: dict[bool, list[set[tuple[str, int]]]] = {False: [], True: []}
    for name, unproven in itertools.product(READERS, (False, True)):
        options = {"unproven": True, "protocol": "simple"} if unproven else {}
        try:
            (text,) = antiphon.export(plans, name, options=options).values()
        except (NotFound, Unsupported):
            continue
        slower[unproven].append(slower_rules(READERS[name](text.decode()), library))
    assert not any(slower[False])
    assert len(slower[True]) == len(READERS)
    assert all(found == slower[True][0] for found in slower[True])
    with pytest.raises((NotFound, Unsupported), match=r"nothing to write|no algorithm for any"):
        antiphon.export(plans, "ucc")  # of which there is no model


def test_a_gain_by_the_model_must_exceed_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library whose own choice is `factor` times as slow as its ring."""
    plan = antiphon.plan("allreduce", "hgx-h100", planner="ring")
    library, factors = library_here(plan.topology), list[float]()

    def prices(self: LibraryModel, kind: str, nbytes: int) -> list[OptionPrice]:
        return [OptionPrice("tree", "ll", 1e-3 * factors[-1], {}, ""), OptionPrice("ring", "simple", 1e-3, {}, "")]

    monkeypatch.setattr(LibraryModel, "at", prices)
    error = max(error_at("allreduce", nbytes, 1) or 0 for nbytes in SIZES)
    for factor, writes in ((1.0, False), (1 + 0.9 * error, False), (1 + 1.1 * error, True), (0.5, False)):
        factors.append(factor)
        rule = rule_of(plan.entries[0], library, "auto", unproven=False)
        assert bool(rule.algorithm) == writes, factor
        assert ("gains less than the model's error over NCCL's own choice" in rule.reason) == (
            factor > 1 and not writes
        )
        try:
            files = antiphon.export(plan, "nccl-tuner")
        except NotFound:
            assert not writes
        else:
            assert writes
            assert not slower_rules(PluginReader(files["nccl-tuner.txt"].decode()), library)
    factors.append(0.5)  # the check finds what is slower
    assert slower_rules(PluginReader("\nallreduce 0 - ring auto 0 8 1\n"), library)
