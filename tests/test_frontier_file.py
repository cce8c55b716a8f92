"""Frontier files: as their schema says, checked by the package and by a program that shares no code with it.

The stand-alone checker is run as users run it or, where it must judge thousands of files, imported.
"""

import copy
import gzip
import importlib.util
import json
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from check_resolution import check_refutation
from quick import in_turn, ordinary

import antiphon
from antiphon.cli import run
from antiphon.core.bounds import bound
from antiphon.core.collective import Collective
from antiphon.core.ksync.evidence import explicit_dual
from antiphon.core.ksync.instance import instance_of
from antiphon.core.ksync.trees import TreeDual, evaluate_tree_dual
from antiphon.formats.points.dimacs import dimacs
from antiphon.planners.synth.tree_prices import price_pairs
from antiphon.reproduce.sccl_plans import PointFamily
from antiphon.reproduce.sccl_tables import DGX1, Z52, rows_of_kind
from antiphon.select import Frontier, check_frontier, make_point
from antiphon.select.frontier_file import frontier_json

pytestmark = pytest.mark.usefixtures("own_folder")
FOLDER = Path(antiphon.__file__).parent / "certificates"
CHECKER = FOLDER / "check_certificate.py"
SMALL = [
    ("allgather", "dgx1v_sccl"), ("broadcast", "star:ranks=3"), ("reducescatter", "mesh:dims=2x3"),
    ("allreduce", "ring:ranks=4"), ("alltoall", "pcie8"), ("reduce", "ring:ranks=5"), ("allreduce", "ring:ranks=5"),
    ("allreduce", "hypercube:ranks=8"),
]  # fmt: skip


@cache
def frontier_of(kind: str, machine: str) -> Frontier:
    return antiphon.frontier.find(kind, machine, steps=2 if ordinary and machine == "star:ranks=3" else 3)


@cache
def text_of(kind: str, machine: str) -> str:
    """The file of a small frontier."""
    return json.dumps(frontier_json(frontier_of(kind, machine)))


@cache
def text_of_bounds(kind: str) -> str:
    """The file of the bounds of a collective on a star of 3 ranks."""
    machine = antiphon.topology("star:ranks=3")
    collective = antiphon.collective(kind, machine)
    return json.dumps(frontier_json(Frontier(machine, collective, "", (), bound(machine, collective))))


@cache
def checker() -> Any:
    spec = importlib.util.spec_from_file_location("check_certificate", CHECKER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def refusal(tree: Any) -> str:
    """What the stand-alone checker finds wrong; "" for nothing."""
    try:
        checker().check(tree)
    except checker().ERRORS as error:
        return str(error) or repr(error)
    return ""


# ---- the format ----


def misfits(value: Any, schema: dict[str, Any], root: dict[str, Any], place: str = "file") -> Iterator[str]:
    """Where a value is not what a JSON schema says; the keywords that ours uses."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    types = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool}
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(value is None if kind == "null" else isinstance(value, types[kind]) for kind in kinds):
        yield f"{place}: not {kinds}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{place}: not in {schema['enum']}"
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        yield f"{place}: not like {schema['pattern']}"
    if isinstance(value, dict):
        known = schema.get("properties", {})
        yield from (f"{place}.{key}: is missing" for key in schema.get("required", ()) if key not in value)
        for key, inner in value.items():
            if key in known:
                yield from misfits(inner, known[key], root, f"{place}.{key}")
            elif schema.get("additionalProperties") is False:
                yield f"{place}.{key}: is not a field"
    if isinstance(value, list):
        first = schema.get("prefixItems", [])
        for i, inner in enumerate(value):
            inner_schema = first[i] if i < len(first) else schema.get("items")
            if inner_schema:
                yield from misfits(inner, inner_schema, root, f"{place}[{i}]")


@pytest.mark.parametrize(("kind", "machine"), in_turn(SMALL, 8))
def test_a_file_is_as_the_schema_says_and_holds(kind: str, machine: str) -> None:
    schema = json.loads((FOLDER / "frontier.schema.json").read_text())
    tree = json.loads(text_of(kind, machine))
    assert list(misfits(tree, schema, schema)) == []
    assert set(schema["required"]) == tree.keys()
    Path("file.json").write_text(json.dumps(tree))
    assert check_frontier("file.json").fault is None
    assert refusal(tree) == ""


def test_a_file_of_groups_that_share_ranks_is_as_the_schema_says_and_holds() -> None:
    kinds = [{"kind": "allreduce", "members": [0, 1], "size": 3}, {"kind": "allreduce", "members": [1, 2], "size": 2}]
    groups = {"format": "antiphon-collective", "version": 1, "ranks": 4, "groups": kinds}
    Path("groups.json").write_text(json.dumps(groups))
    assert run(["bound", "groups.json", "ring:ranks=4", "--certificate", "file.json"]) == 0
    schema, tree = json.loads((FOLDER / "frontier.schema.json").read_text()), json.loads(Path("file.json").read_text())
    assert tree["nbytes_weight"] == 3
    assert list(misfits(tree, schema, schema)) == []
    assert check_frontier("file.json").fault is None
    assert refusal(tree) == ""


def test_the_checker_can_be_read_at_once() -> None:
    assert len(CHECKER.read_text().splitlines()) <= 308


def test_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(["frontier", "broadcast", "star:ranks=3", "--planner", "sccl:steps=2", "--certificate", "f.json.gz"]) == 0
    )
    assert run(["bound", "allreduce", "mesh:dims=2x3", "--certificate", "b.json"]) == 0
    assert f"python {CHECKER} b.json".split() == capsys.readouterr().out.split()[-3:]
    for name in ("f.json.gz", "b.json"):
        assert run(["verify", name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["ok"]
        alone = subprocess.run([sys.executable, "-S", CHECKER, name], capture_output=True, text=True, check=False)
        assert (alone.returncode, alone.stdout[:6], alone.stderr) == (0, "right:", "")
    tree = json.loads(gzip.decompress(Path("f.json.gz").read_bytes()))
    tree["points"][-1]["rounds"] += 1
    Path("wrong.json").write_text(json.dumps(tree))
    assert run(["verify", "wrong.json"]) == 1
    assert "points[" in capsys.readouterr().out
    for text, code in (("wrong.json", 1), ("no such file", 2)):
        alone = subprocess.run([sys.executable, "-S", CHECKER, text], capture_output=True, text=True, check=False)
        assert (alone.returncode, alone.stderr) == (code, "")


def test_what_only_the_search_knows_is_not_called_checked() -> None:
    tree = json.loads(text_of("broadcast", "star:ranks=3"))
    provenance = tree["points"][0]["provenance"]
    provenance["seed"], provenance["planner"], provenance["certificate"]["k"] = 77, "other", 9
    provenance["found"]["tries"] = 5
    Path("file.json").write_text(json.dumps(tree))
    verdict = check_frontier("file.json")
    assert verdict.fault is None
    for text in ("seed: 77", "planner: 'other'", "certificate.k: 9", "found.tries: 5"):
        assert f"points[].provenance.{text}" in verdict.stated


def test_what_a_frontier_file_cannot_hold() -> None:
    piped = antiphon.plan("allgather", "ring:ranks=4", planner="trees", options={"pieces": 4})
    machine, schedule = piped.topology, piped.entries[0].schedule
    limits = bound(machine, schedule.collective)
    point = make_point(schedule, machine, limits, [])
    with pytest.raises(antiphon.errors.Unsupported, match="without pipelining"):
        frontier_json(Frontier(machine, schedule.collective, "trees", (point,), limits))


@pytest.mark.parametrize(
    ("kind", "machine"),
    in_turn([("broadcast", "star:ranks=3"), ("allreduce", "ring:ranks=5"), ("alltoall", "pcie8")]),
)
def test_what_is_proved_by_resolution_is_in_the_files_that_are_named(kind: str, machine: str) -> None:
    tree = json.loads(text_of(kind, machine))
    files = dimacs(frontier_of(kind, machine).plan())
    named = [entry for entry in tree["impossible"] if "refutation" in entry]
    assert {f"{entry['refutation']}.lrat" for entry in named} == {name for name in files if name.endswith(".lrat")}
    for entry in named:
        clauses, proof = (
            [line.decode() for line in files[f"{entry['refutation']}.{suffix}"]] for suffix in ("cnf", "lrat")
        )
        check_refutation(tree, entry, clauses, proof)
        stronger = (
            {**entry, "sends": entry["sends"] + 1} if "sends" in entry else {**entry, "rounds": entry["rounds"] + 1}
        )
        with pytest.raises(AssertionError, match="may be false"):
            check_refutation(tree, stronger, clauses, proof)
        with pytest.raises(AssertionError, match="contradiction"):
            check_refutation(tree, entry, clauses, proof[:-1])


# ---- corruptions ----

POINT_CLAIMS = [
    "chunks",
    "steps",
    "rounds",
    "ratio",
    "proof",
    "least_ratio",
    "bandwidth_gap",
    "latency_gap",
    "transfers",
]


def corrupt_trees(share: Any, draw: random.Random) -> None:
    """Change a length of a tree, its root, or its direction, or leave a tree out."""
    number = draw.randrange(len(share["trees"]))
    change = draw.choice(["length", "root", "drop", "turn"])
    if change == "length":
        draw.choice(share["families"][number])[2] += draw.choice([-1, 1])
    elif change == "root":
        share["trees"][number][0] += draw.choice([-1, 1])
    elif change == "drop":
        del share["trees"][number], share["families"][number]
    else:
        share["trees"][number][1] = not share["trees"][number][1]


def corrupted(tree: Any, draw: random.Random) -> tuple[Any, str]:  # noqa: PLR0912, PLR0915
    """A copy in which one claim, or what it is about, is another, and where."""
    again = copy.deepcopy(tree)
    points, impossible = again["points"], again["impossible"]
    kind = draw.choice(
        ["point"] * 4 + ["transfer"] * 4 + ["impossible"] * 3 + ["bound", "machine", "blocks", "evidence"]
    )
    if kind == "point":
        where, key = draw.choice(points), draw.choice(POINT_CLAIMS)
        where[key] = {
            "proof": draw.choice(["proved-optimal", "proved-optimal-for-k"]), "least_ratio": "1/7", "ratio": "1/9",
        }.get(key) or where[key] + draw.choice([-1, 1, 2])  # fmt: skip
    elif kind == "transfer":
        rows = draw.choice(points)["transfer_rows"]
        row, column = draw.randrange(len(rows)), draw.randrange(8)
        change = draw.choice(["value", "drop", "twice"])
        if change == "drop":
            del rows[row]
        elif change == "twice":
            rows.append(rows[row])
        elif column == 7:
            rows[row][7] = draw.choice([[], [draw.randrange(len(again["topology"]["links"]))], rows[row][7] * 2])
        else:
            rows[row][column] += draw.choice([-1, 1])
    elif kind == "impossible":
        # an entry whose proof is elsewhere may be any
        entry = draw.choice([entry for entry in impossible if "duals" in entry or "sends" in entry])
        trees = [share for dual in entry.get("duals", []) for share in dual["shares"] if "trees" in share]
        if trees and draw.random() < 0.7:
            corrupt_trees(trees[0], draw)
        elif "sends" in entry:
            key = draw.choice(["sends", "ratio_below"])
            entry[key] = entry["sends"] + draw.choice([-1, 1]) if key == "sends" else "9/2"
        elif "ratio_below" in entry:
            key = draw.choice(["ratio_below", "steps", "about"])
            others = {
                "ratio_below": ["9/2"],
                "about": ["plan" if tree["collective"]["kind"] == "allreduce" else "halves"],
            }
            entry[key] = draw.choice(others.get(key) or [entry["steps"] + 1])  # fewer steps: implied
        else:  # prices may well prove a stronger statement, too, but not that there is nothing
            entry |= {"chunks": len(again["blocks"][0][1]), "rounds": 99}
    elif kind == "bound":
        key = draw.choice(["latency_steps", "inverse", "bytes_per_second"])
        if key == "latency_steps":
            again[key] += draw.choice([-1, 1])
        else:
            again["bandwidth"][key] = draw.choice(["1/2", "2", "31/7"])
    elif kind == "machine":
        # another link may leave every statement true, and proved
        draw.choice(again["topology"]["types"])["bandwidth"] = draw.choice([1000000, 7000000000, 99 * 10**9])
    elif kind == "blocks":
        block = draw.choice(again["blocks"])
        if draw.random() < 0.5 and len(again["blocks"]) > 1:  # only proportions of weights count
            block[0] += 1
        else:
            side = draw.choice(block[1:])
            side[0] = [draw.randrange(again["topology"]["ranks"]), side[0][1]]
    else:
        entry = draw.choice(impossible)
        entry.pop("duals", None)
    return again, kind


def matters(tree: Any, again: Any) -> bool:
    """Whether a claim is another one, and, by the package, not a true one."""
    if again == tree:
        return False
    Path("again.json").write_text(json.dumps(again))
    try:
        return check_frontier("again.json").fault is not None
    except antiphon.errors.AntiphonError:
        return True


@pytest.mark.parametrize("count", [4, pytest.param(2000, marks=pytest.mark.slow)])
def test_random_corruptions_are_refused(count: int) -> None:
    draw, tested, accepted = random.Random(count), 0, []
    while tested < count:
        tree = json.loads(text_of(*draw.choice(SMALL[:3] if ordinary else SMALL)))
        again, kind = corrupted(tree, draw)
        if not matters(tree, again):
            continue
        tested += 1
        if refusal(again) == "" and checker().check(again) == checker().check(tree):
            accepted.append((kind, again["collective"]["kind"], _difference(tree, again)))
    assert not accepted


def _difference(a: Any, b: Any, place: str = "") -> str:
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return next((d for key in a if (d := _difference(a[key], b[key], f"{place}.{key}"))), "")
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return next((d for i in range(len(a)) if (d := _difference(a[i], b[i], f"{place}[{i}]"))), "")
    return "" if a == b else f"{place}: {str(a)[:60]} -> {str(b)[:60]}"


def test_bounds_on_halves_prove_nothing_of_other_forms() -> None:
    """(2, 2, 2) takes fewer rounds than halves may, and three steps are no halves: both are made of something else."""
    tree = json.loads(text_of("allreduce", "ring:ranks=4"))
    machine = checker().Machine(tree["topology"])
    blocks = [(weight, *({r: Counter(ids) for r, ids in side} for side in sides)) for weight, *sides in tree["blocks"]]
    for point, bound_of_one_step in zip(tree["points"], (Fraction(9), Fraction(3, 2)), strict=True):
        # as if the links allowed R/C = 1/2, not 3/4, so that the second is no optimum of all forms either
        forged = {**point, "about": "halves", "least_ratio": None, "bandwidth_gap": point["bandwidth_gap"] * 1.5}
        proofs = {("halves", 1): [(bound_of_one_step, (10**30, 0))]}
        with pytest.raises(AssertionError, match="nothing proves it optimal"):
            checker().check_point(machine, blocks, False, forged, 2, Fraction(1, 2), proofs)


def test_blocks_of_another_collective_are_refused() -> None:
    """Each file holds for its blocks; they must be those of the collective that it names."""
    for kind, other in (("allreduce", "reduce"), ("reducescatter", "allgather"), ("gather", "scatter")):
        tree = json.loads(text_of_bounds(kind))
        assert refusal(tree) == ""
        tree["collective"] = {**json.loads(text_of_bounds(other))["collective"]}
        assert refusal(tree) == "blocks: are not those of the collective"
    for field, value in (("weights", [1] * 8 + [2]), ("members", [0, 1])):
        tree = json.loads(text_of_bounds("alltoall"))
        tree["collective"][field] = value
        assert refusal(tree)


def test_an_impossibility_of_a_part_of_an_allreduce_is_not_called_one_of_a_plan() -> None:
    tree = json.loads(text_of("allreduce", "ring:ranks=4"))
    entry = next(entry for entry in tree["impossible"] if entry["about"].startswith("broadcast from"))
    entry["about"] = "plan"
    assert refusal(tree) == "plan: it combines"


def test_switches_only_forward() -> None:
    """A switch that kept a chunk for a later step would be a rank."""
    tree = json.loads(text_of("broadcast", "star:ranks=3"))
    point = tree["points"][0]
    step, chunk, source, _, *rest, links = point["transfer_rows"][0]
    point["transfer_rows"].insert(0, [step, chunk, source, 3, *rest, links[:1]])
    assert "no such route" in refusal(tree)


def test_operands_out_of_order_are_refused() -> None:
    tree = json.loads(text_of("allreduce", "ring:ranks=4"))
    tree["collective"]["ordered"] = True
    assert "out of order" in refusal(tree)


def test_only_what_every_form_contains_bounds_it() -> None:
    """Ranks that want their own input need no broadcast and no tree, whatever the certificates of an allreduce say."""
    for machine in ("ring:ranks=4",) if ordinary else ("ring:ranks=4", "hypercube:ranks=8"):
        tree = json.loads(text_of("allreduce", machine))
        assert refusal(tree) == ""
        tree["points"] = []
        tree["blocks"][0][2] = tree["blocks"][0][1]
        tree["blocks"][0][2][0] = [0, [0, 1]]
        blocks = [(w, *({r: Counter(ids) for r, ids in side} for side in sides)) for w, *sides in tree["blocks"]]
        for entry in tree["impossible"]:
            if "duals" in entry:
                with pytest.raises(checker().ERRORS):
                    checker().check_impossible(checker().Machine(tree["topology"]), blocks, entry)


ONE = [[1, [[0, [0]]], [[0, [0]], [1, [0]]]]]  # a broadcast of rank 0 to rank 1
COPIES = [[1, [[0, [0]], [1, [0]]], [[2, [0]]]]]  # rank 2 needs the nearer one of two copies
UNWANTED = [[1, [[0, [0]], [1, [1]]], [[2, [1]]]]]  # rank 2 does not need the data of rank 0
SCAN = [[1, [[0, [0]], [1, [1]]], [[0, [0]], [1, [0, 1]]]]]  # nothing need flow from rank 1 to rank 0
SUM = [[1, [[0, [0]], [1, [1]]], [[0, [0, 1]], [1, [0, 1]]]]]


def bounds_file(blocks: Any, inverse: str, dual: Any, *impossible: Any) -> Any:
    """A file of bounds on a line of ranks 0, 1, 2: ten units wide between 1 and 2, and from 0 to 1 in `SCAN`."""
    wide, ranks = int(blocks == SCAN), 1 + max(rank for *_, goals in blocks for rank, _ in goals)
    links = [[0, 1, wide], [1, 0, 0], [1, 2, 1], [2, 1, 1]][: 2 * ranks - 2]
    rate = 1 / Fraction(inverse)
    return {
        "format": "antiphon-frontier", "version": 1, "collective": {"ranks": ranks}, "blocks": blocks,
        "points": [], "impossible": list(impossible),
        "topology": {"ranks": ranks, "unit": 1, "types": [{"bandwidth": 1}, {"bandwidth": 10}], "links": links},
        "latency_steps": 1, "bandwidth": {"inverse": inverse, "bytes_per_second": str(rate), "dual": dual},
    }  # fmt: skip


def prices(*rows: list[int], **fields: Any) -> Any:
    return {"prices": list(rows), "shares": [], **fields}


FREE = {"blocks": [0], "families": [], "potentials": []}
PARTITION = prices([0, 0, 1], [1, 0, 1], shares=[FREE], partitions=[[[[0], [1]], 1, 1]])


@pytest.mark.parametrize(
    ("blocks", "inverse", "dual", "entry"),
    [
        (SCAN, "2/11", PARTITION, None),
        (COPIES, "1/10", prices([2, 0, 1]), ("dual", 2, {"duals": [prices([0, 0, 1], [0, 1, 1])]})),
        (UNWANTED, "1/10", prices([2, 0, 1]), ("dual", 2, {"duals": [prices([0, 0, 1], [0, 1, 1])]})),
        (ONE, "1", prices([0, 0, 1]), ("halves", 1, {"duals": [prices([0, 0, 1])]})),
        (SUM, "1", PARTITION, ("broadcast to 0", 1, {"duals": [prices([0, 0, 1])]})),
        (SUM, "1", PARTITION, ("broadcast from 0", 1, {"sends": 2})),
    ],
)
def test_evidence_proves_only_what_it_is_for(blocks: Any, inverse: str, dual: Any, entry: Any) -> None:
    """Partitions bound allreduces; the reversed problem, halves, contained broadcasts and sends have conditions."""
    if entry is None:
        assert "a partition bounds allreduces only" in refusal(bounds_file(blocks, inverse, dual))
        return
    about, steps, evidence = entry
    assert refusal(bounds_file(blocks, inverse, dual)) == ""
    false = {"about": about, "steps": steps, "ratio_below": "1", **evidence}
    assert re.search("proves|R/C >= 0|unknown", refusal(bounds_file(blocks, inverse, dual, false)))


def test_numbers_that_name_nothing_are_refused() -> None:
    """Python would count negative indices from the end, and a step below 0 would be left out."""
    for change in (
        lambda tree: tree["blocks"].append([-1, *tree["blocks"][0][1:]]),
        lambda tree: tree["blocks"][0].__setitem__(0, 2),
        lambda tree: tree["blocks"][0][2][0].__setitem__(0, -1),
        lambda tree: tree["topology"]["links"][0].__setitem__(1, -1),
        lambda tree: tree["topology"]["links"][0].__setitem__(2, -1),
        lambda tree: tree["topology"].update(limits=[{"links": [99], "bandwidth": 1}]),
        lambda tree: tree["points"][0]["transfer_rows"][0][7].__setitem__(0, -1),
        lambda tree: tree["points"][0]["chunk_blocks"].__setitem__(0, -1),
        lambda tree: tree["points"][0].update(about="ring", least_ratio=None, proof="best-found-in-budget"),
        lambda tree: (tree["points"][0]["transfer_rows"].append([-1, 0, 0, 1, 0, 0, 0, [0]]),
                      tree["points"][0].update(transfers=tree["points"][0]["transfers"] + 1)),
    ):  # fmt: skip
        tree = json.loads(text_of("broadcast", "star:ranks=3"))
        tree["collective"] = {"ranks": 3}  # custom: it is what its blocks say
        change(tree)
        assert re.search("no such|negative|unknown", refusal(tree)), refusal(tree)


@pytest.mark.parametrize("steps", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("machine", ["ring:ranks=4", "star:ranks=3", pytest.param("z52", marks=pytest.mark.slow)])
def test_pairs_of_trees_cost_what_the_package_says(machine: str, steps: int) -> None:
    """Which finds them otherwise: by tables of sets of ranks, from the last step to the first."""
    draw, target = random.Random(steps), antiphon.collective("allreduce", machine)
    topology = antiphon.topology(machine)
    instance = instance_of(topology, Collective("allgather", topology.ranks))
    tree = frontier_json(Frontier(topology, target, "sccl", (), bound(topology, target)))
    blocks = [(w, *({r: Counter(ids) for r, ids in side} for side in sides)) for w, *sides in tree["blocks"]]
    for _ in range(5):
        prices = tuple((bond, step, draw.randrange(4)) for bond in range(len(instance.bonds)) for step in range(steps))
        dual = TreeDual(steps, prices)
        entry = explicit_dual(instance, dual.as_json())
        problem, *_ = checker().problem_of(blocks, "sums")
        _, cost = checker().evaluate(checker().Machine(tree["topology"]), problem, entry, range(steps), by_trees=True)
        assert cost == evaluate_tree_dual(instance, dual).value


def test_what_pairs_of_trees_prove_is_checked() -> None:
    """Two steps on a ring of 4: no allreduce has 3 chunks and 2 rounds."""
    tree = json.loads(text_of("allreduce", "ring:ranks=4"))
    unproved, machine = checker().check(tree), antiphon.topology("ring:ranks=4")
    instance = instance_of(machine, Collective("allgather", 4))
    duals = [explicit_dual(instance, dual.as_json()) for dual in price_pairs(instance, (3, 2, 2), None)[0] or ()]
    entry = {"collective": "allreduce", "about": "sums", "steps": 2, "chunks": 3, "rounds": 2, "pairs": duals}
    tree["impossible"].append(entry)
    assert checker().check(tree) == unproved
    for change in (
        {"chunks": 2},
        {"rounds": 3},
        {"steps": 3, "rounds": 3},
        {"pairs": [{**duals[0], "prices": [[0, 0, 1]]}]},
    ):
        tree["impossible"][-1] = {**entry, **change}
        assert refusal(tree)


def test_the_certificates_of_the_first_frontiers_need_no_other_program() -> None:
    tree = json.loads(text_of("allreduce", "hypercube:ranks=8"))
    assert any("trees" in share for e in tree["impossible"] for d in e.get("duals", []) for share in d["shares"])
    assert checker().check(tree) == 0


@pytest.mark.slow
@pytest.mark.parametrize("table", [DGX1, Z52], ids=["table 4", "table 5"])
def test_published_points_are_accepted(table: Any) -> None:
    machine = antiphon.topology("dgx1v_sccl" if table is DGX1 else "z52")
    kinds = ["broadcast", "gather", "alltoall", "allgather", "allreduce", "reduce", "scatter", "reducescatter"]
    for kind in kinds:
        collective = Collective(kind, machine.ranks)
        limits, notes = bound(machine, collective), list[str]()
        points = [
            make_point(PointFamily(machine, collective).make(*row.point).schedule, machine, limits, notes)
            for row in rows_of_kind(table, kind, machine.ranks)
        ]
        assert not notes
        for point in points:  # one file each: two rows may have different proofs for as many steps
            tree = json.loads(json.dumps(frontier_json(Frontier(machine, collective, "sccl", (point,), limits))))
            assert refusal(tree) == "", (kind, point.chunks, point.steps, point.rounds)
            assert checker().check(tree) == 0
