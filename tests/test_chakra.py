"""Chakra execution traces: ours held against the protocol's own library, read back to the same plan; those of
others."""

import gzip
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from generate import cases
from hypothesis import given
from hypothesis import strategies as st
from quick import in_turn

import antiphon
from antiphon.cli import run
from antiphon.core.messages import messages
from antiphon.core.schedule import Schedule
from antiphon.core.transform import expand
from antiphon.errors import AntiphonError, Invalid, Unsupported
from antiphon.formats.chakra import nodes, wire
from antiphon.formats.chakra.read import read_traces

# The schema by its facts: schema/protobuf/et_def.proto of github.com/mlcommons/chakra. Of each message its fields:
# number, name, type, and whether it repeats.
VALUES = (
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32",
    "sfixed64", "bool", "string", "bytes",
)  # fmt: skip
LISTS = {name: f"{name.capitalize()}List" for name in VALUES}


def list_of(kind: str) -> str:
    """The field of an attribute for several values."""
    return "_".join((kind, "list"))


SCHEMA: dict[str, list[tuple[int, str, str, bool]]] = {
    **{LISTS[name]: [(1, "values", name, True)] for name in VALUES},
    "AttributeProto": [
        (1, "name", "string", False), (2, "doc_string", "string", False),
        *((3 + 2 * place, f"{name}_val", name, False) for place, name in enumerate(VALUES)),
        *((4 + 2 * place, list_of(name), LISTS[name], False) for place, name in enumerate(VALUES)),
    ],
    "GlobalMetadata": [(1, "version", "string", False), (2, "attr", "AttributeProto", True)],
    "IOInfo": [(1, "values", "string", False), (2, "shapes", "string", False), (3, "types", "string", False)],
    "Node": [
        (1, "id", "uint64", False), (2, "name", "string", False), (3, "type", "int32", False),
        (4, "ctrl_deps", "uint64", True), (5, "data_deps", "uint64", True), (6, "start_time_micros", "uint64", False),
        (7, "duration_micros", "uint64", False), (8, "inputs", "IOInfo", False), (9, "outputs", "IOInfo", False),
        (10, "attr", "AttributeProto", True),
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def proto() -> Callable[[str], Any]:
    """The classes of the schema, as the library of protocol buffers makes them."""
    library = pytest.importorskip("google.protobuf.descriptor_pb2")
    pool = pytest.importorskip("google.protobuf.descriptor_pool").DescriptorPool()
    factory = pytest.importorskip("google.protobuf.message_factory")
    file = library.FileDescriptorProto(name="et_def.proto", package="ChakraProtoMsg", syntax="proto3")
    for name, fields in SCHEMA.items():
        message = file.message_type.add(name=name)
        choice = name == "AttributeProto"
        if choice:
            message.oneof_decl.add(name="value")
        for number, field, kind, many in fields:
            one = message.field.add(name=field, number=number, label=3 if many else 1)
            if kind in VALUES:
                one.type = getattr(library.FieldDescriptorProto, f"TYPE_{kind.upper()}")
            else:
                one.type, one.type_name = library.FieldDescriptorProto.TYPE_MESSAGE, f".ChakraProtoMsg.{kind}"
            if choice and number > 2:
                one.oneof_index = 0
    pool.Add(file)
    return lambda name: factory.GetMessageClass(pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}"))()


def split(data: bytes) -> list[bytes]:
    return [data[begin:end] for begin, end in wire.messages(data)]


# ---- the wire ----


def some(kind: str, draw: random.Random) -> Any:
    if kind in ("double", "float"):
        return draw.choice([0.0, -1.5, 2.0**40, 1e-3 if kind == "double" else 0.125])
    if kind == "bool":
        return draw.random() < 0.5
    if kind in ("string", "bytes"):
        text = draw.choice(["", "a", "12 \u00b5s", "x" * 300])
        return text if kind == "string" else text.encode()
    bits = 32 if kind.endswith("32") else 64
    low, high = (0, 2**bits - 1) if kind.startswith(("u", "f")) else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return draw.choice([low, high, 0, 1, 127, 128, draw.randint(low, high)])


@pytest.mark.parametrize("seed", range(20))
def test_nodes_that_the_library_writes(proto: Callable[[str], Any], seed: int) -> None:
    """Every kind of attribute, alone and as lists; what is left out is 0."""
    draw, out, wanted = random.Random(seed), [], []
    head = proto("GlobalMetadata")
    head.version = "0.0.4"
    head.attr.add(name="who").string_val = "somebody"
    out.append(head.SerializeToString())
    for number in range(draw.randint(0, 6)):
        node = proto("Node")
        node.id, node.name, node.type = 3 * number, draw.choice(["", "\u00b5", "all_reduce"]), draw.randint(0, 10)
        node.ctrl_deps.extend(3 * draw.randrange(number) for _ in range(draw.randint(0, 2)) if number)
        node.data_deps.extend(3 * draw.randrange(number) for _ in range(draw.randint(0, 2)) if number)
        node.start_time_micros, node.duration_micros = draw.choice([0, 2**64 - 1]), draw.randint(0, 1000)
        if draw.random() < 0.5:
            node.inputs.values, node.inputs.types, node.outputs.shapes = "['a']", "[]", "[[1]]"
        known: dict[str, Any] = {}
        for kind in draw.sample(VALUES, 5):
            known[kind] = some(kind, draw)
            setattr(node.attr.add(name=kind, doc_string="told"), f"{kind}_val", known[kind])
            known[f"{kind}s"] = [some(kind, draw) for _ in range(draw.randint(0, 4))]
            more = node.attr.add(name=f"{kind}s")
            getattr(more, list_of(kind)).values.extend(known[f"{kind}s"])
            getattr(more, list_of(kind)).SetInParent()
        out.append(node.SerializeToString())
        waits = [*node.ctrl_deps, *node.data_deps]
        wanted.append(
            nodes.Node(node.id, node.name, node.type, waits, node.start_time_micros, node.duration_micros, known,
                       node.inputs.values)
        )  # fmt: skip
    told, found = nodes.read_nodes(b"".join(map(wire.delimited, out)))
    assert told == {"who": "somebody"}
    assert [replace(one, dependencies=list(one.dependencies)) for one in found] == wanted


def test_the_library_reads_what_we_write(proto: Callable[[str], Any]) -> None:
    """With the kinds of numbers that ASTRA-sim asks for, and in whole microseconds."""
    made = antiphon.plan("allreduce", "full:ranks=3", planner="ring")
    files = antiphon.export(made, "chakra", nbytes="1MB", options={"gamma": 1e-10, "name": "ring"})
    assert list(files) == ["ring.0.et", "ring.1.et", "ring.2.et"]
    schedule = made.at(10**6).schedule
    table = messages(expand(schedule))
    sizes = table.nbytes(10**6)[0].tolist()
    ends: dict[str, set[tuple[int, ...]]] = {"send": set(), "receive": set()}
    for rank, data in enumerate(files.values()):
        first, *rest = split(data)
        head = proto("GlobalMetadata")
        head.ParseFromString(first)
        assert head.version == "0.0.4"
        assert len(head.attr) == (2 if rank == 0 else 0)
        seen: set[int] = set()
        for one in rest:
            node = proto("Node")
            node.ParseFromString(one)
            assert node.id not in seen
            assert set(node.data_deps) <= seen | {wait for wait in node.data_deps if wait > node.id}
            seen.add(node.id)
            known = {attr.name: attr for attr in node.attr}
            assert not known["is_cpu_op"].bool_val
            assert known["is_cpu_op"].WhichOneof("value") == "bool_val"
            if node.type == nodes.COMPUTE:
                assert node.duration_micros == round(10**6 / 6 * 1e-10 * 1e6)
                continue
            names = ("comm_src", "comm_dst", "comm_tag")
            assert {known[name].WhichOneof("value") for name in names} == {"int32_val"}
            assert known["comm_size"].WhichOneof("value") == "int64_val"
            told = (*(known[name].int32_val for name in names), known["comm_size"].int64_val)
            what = "send" if node.type == nodes.SEND else "receive"
            assert told[what == "receive"] == rank
            assert node.name == f"{what} {told[0]} to {told[1]}, step {table.step[told[2]]}"
            ends[what].add(told)
    wanted = zip(table.src.tolist(), table.dst.tolist(), range(len(table)), sizes, strict=True)
    assert ends["send"] == ends["receive"] == set(wanted)


# ---- our plans, there and back ----


def rows_of(schedule: Schedule) -> list[tuple[int, ...]]:
    columns = expand(schedule).columns()
    return sorted(zip(*(columns[name].tolist() for name in sorted(columns)), strict=True))


def back(made: Any, folder: Path, nbytes: int = 10**6, **options: Any) -> Any:
    antiphon.export(made, "chakra", folder, nbytes=nbytes, options=options)
    return antiphon.traces.read(folder).plan


@pytest.mark.parametrize("order", ["data", "rounds"])
@pytest.mark.parametrize(("kind", "spec", "planner"), in_turn([
    ("allreduce", "dgx1v", "multi-ring"), ("alltoall", "full:ranks=5", "direct"), ("allgather", "delta:nodes=2",
    "kring"), ("broadcast", "line:ranks=4", "relay"), ("reducescatter", "hypercube:dims=3", ""), ("scatter",
    "star:ranks=4", ""),
]))  # fmt: skip
def test_plans_come_back(kind: str, spec: str, planner: str, order: str, tmp_path: Path) -> None:
    made = antiphon.plan(kind, spec, **({"planner": planner} if planner else {}))
    found = back(made, tmp_path, order=order)
    assert antiphon.verify(found)
    assert found.topology == made.topology
    assert found.collective == made.collective
    assert rows_of(found.entries[0].schedule) == rows_of(made.at(10**6).schedule)


@given(random_case=cases(most_ranks=5))
def test_any_right_schedule_comes_back(random_case: Any, tmp_path_factory: Any) -> None:
    from antiphon.core.plan import Plan

    made = Plan.of(random_case.topology, random_case.schedule)
    try:
        found = back(made, tmp_path_factory.mktemp("chakra"), nbytes=777)
    except Unsupported as error:
        if "joints" not in str(error) and "fewer pieces" not in str(error):
            raise
        return
    assert antiphon.verify(found)
    assert rows_of(found.entries[0].schedule) == rows_of(made.at(777).schedule)


def replayed(folder: Path) -> int:
    """Every node once, as a replayer does it: when all it waits for is over, a receive when its message is sent. How
    many there were."""
    heard = read_traces([folder])
    left = {(rank, one.id): set(one.dependencies) for rank, (_, found) in heard.items() for one in found}
    by_id = {(rank, one.id): one for rank, (_, found) in heard.items() for one in found}
    sent: set[Any] = set()
    done: set[Any] = set()
    going = True
    while going:
        going = False
        for key in [key for key in left if key not in done]:
            one = by_id[key]
            ends = tuple(one.integer(name) for name in ("comm_src", "comm_dst", "comm_tag", "comm_size"))
            if {(key[0], wait) for wait in left[key]} <= done and (one.type != nodes.RECEIVE or ends in sent):
                done.add(key)
                sent |= {ends} if one.type == nodes.SEND else set()
                going = True
    assert len(done) == len(left)
    return len(done)


@pytest.mark.parametrize("order", ["data", "rounds"])
def test_nothing_waits_for_ever(order: str, tmp_path: Path) -> None:
    made = antiphon.plan("allreduce", "full:ranks=4", planner="ring")
    antiphon.export(made, "chakra", tmp_path, nbytes=4096, options={"order": order})
    assert replayed(tmp_path) == 48 + 48 + 24


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["plan", "allreduce", "full:ranks=4", "--planner", "ring", "-o", "plan.json"]) == 0
    assert run(["export", "plan.json", "--to", "chakra", "--nbytes", "1MB", "-o", "traces"]) == 0
    capsys.readouterr()
    assert run(["trace", "read", "traces", "-o", "back.json"]) == 0
    assert "right: allreduce on full:ranks=4: 48 transfers in 6 steps" in capsys.readouterr().out
    assert run(["verify", "back.json"]) == 0
    capsys.readouterr()
    assert run(["trace", "read", "traces", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"] == {
        "collective": "allreduce", "topology": "full:ranks=4"
    }  # fmt: skip


def test_what_is_refused(tmp_path: Path) -> None:
    made = antiphon.plan("allreduce", "full:ranks=3", planner="ring")
    for options, why in (
        ({"order": "streams"}, "order: expected rounds or data"), ({"gamma": 2}, "gamma: expected"),
        ({"name": "../up"}, "name: expected letters"), ({"what": 1}, "what"),
    ):  # fmt: skip
        with pytest.raises(Invalid, match=why):
            antiphon.export(made, "chakra", tmp_path, nbytes="1MB", options=options)
    with pytest.raises(Invalid, match="pass nbytes"):
        antiphon.export(made, "chakra", tmp_path)
    deep = antiphon.plan("broadcast", "line:ranks=3", planner="relay", options={"pieces": 2**21})
    with pytest.raises(Unsupported, match="plan with fewer pieces"):
        antiphon.export(deep, "chakra", tmp_path, nbytes="1MB")


# ---- changed by others ----


def changed(folder: Path, rank: int, change: Callable[[list[bytes]], list[bytes]]) -> None:
    path = folder / f"chakra.{rank}.et"
    path.write_bytes(b"".join(map(wire.delimited, change(split(path.read_bytes())))))


def test_traces_that_do_not_fit_together(tmp_path: Path) -> None:
    made = antiphon.plan("allreduce", "full:ranks=3", planner="ring")

    def fresh() -> None:
        antiphon.export(made, "chakra", tmp_path, nbytes="1MB")

    fresh()
    changed(tmp_path, 1, lambda parts: parts[:-1])
    with pytest.raises(Invalid, match=r"is not both sent and received|waits for node"):
        antiphon.traces.read(tmp_path)
    fresh()
    changed(tmp_path, 1, lambda parts: [*parts, parts[1]])
    with pytest.raises(Invalid, match=r"chakra\.1\.et: node .*: its number is given twice"):
        antiphon.traces.read(tmp_path)
    fresh()
    path = tmp_path / "chakra.0.et"
    path.write_bytes(path.read_bytes().replace(b"1000000", b"2000000"))
    with pytest.raises(Invalid, match="is not the message 0 of 333"):
        antiphon.traces.read(tmp_path)
    fresh()
    (tmp_path / "chakra.2.et").unlink()
    with pytest.raises(Invalid, match="expected the files of ranks 0 to 2, and there are 2"):
        antiphon.traces.read(tmp_path)
    fresh()
    (tmp_path / "other.2.et").write_bytes(b"")
    with pytest.raises(Invalid, match="is of rank 2, too"):
        antiphon.traces.read(tmp_path)


def test_a_plan_that_was_made_wrong_is_not_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows that carry other chunks of the same size: read as they stand, and refused by the proof."""
    monkeypatch.chdir(tmp_path)
    made = antiphon.plan("allgather", "full:ranks=3", planner="direct")
    antiphon.export(made, "chakra", ".", nbytes="3MB")
    one, two = (nodes.attribute("chunk", [chunk]) for chunk in (0, 1))
    path = Path("chakra.0.et")
    data = path.read_bytes()
    assert one in data
    path.write_bytes(data.replace(one, two))
    assert run(["trace", "read", ".", "-o", "back.json"]) == 1
    assert "the plan that these traces hold is wrong" in capsys.readouterr().err
    assert not Path("back.json").exists()


# ---- traces of others ----


def by_others(proto: Callable[[str], Any], folder: Path) -> None:
    """As a trace of PyTorch tells collectives: groups in a metadata node's inputs, and collectives with pg_name."""
    groups = [{"pg_name": "0", "ranks": []}, {"pg_name": "1", "ranks": [0, 2]}]
    for rank in range(2):
        head = proto("GlobalMetadata")
        head.version = "0.0.4"
        parts = [head]
        about = proto("Node")
        about.id, about.name, about.type = 1, "## process_group:init ##", nodes.METADATA
        about.inputs.values = f"['{json.dumps(groups)}']"
        parts.append(about)
        for number, (kind, size, group) in enumerate(((0, 2**20, "0"), (7, 4096, "1"), (5, 10, ""))):
            node = proto("Node")
            node.id, node.type, node.name = 10 - number, nodes.COLLECTIVE, f"nccl:{number}"
            node.data_deps.extend([node.id + 1] if number else [1])
            node.duration_micros = 7
            node.attr.add(name="comm_type").int64_val = kind
            node.attr.add(name="comm_size").uint64_val = size
            if group:
                node.attr.add(name="pg_name").string_val = group
            node.attr.add(name="involved_dim").bool_list.values.extend([True, False])
            parts.append(node)
        order = [parts[0], *reversed(parts[1:])]
        data = b"".join(wire.delimited(one.SerializeToString()) for one in order)
        path = folder / f"trace.{rank}.et"
        path.write_bytes(data if rank else gzip.compress(data))


def test_collectives_of_a_trace(
    proto: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    by_others(proto, tmp_path)
    found = antiphon.traces.read(tmp_path)
    assert found.plan is None
    keys = ("rank", "collective", "nbytes", "group", "members", "duration_us")
    assert [tuple(row[key] for key in keys) for row in found.collectives] == [
        (rank, *one, 7) for rank in range(2)
        for one in (("allreduce", 2**20, "0", None), ("reducescatter", 4096, "1", [0, 2]), ("broadcast", 10, "", None))
    ]  # fmt: skip
    assert run(["trace", "read", str(tmp_path)]) == 0
    assert "reducescatter" in capsys.readouterr().out
    assert run(["trace", "read", str(tmp_path), "-o", str(tmp_path / "plan.json")]) == 2
    assert "hold no plan of Antiphon" in capsys.readouterr().err


def one_node(*parts: bytes) -> bytes:
    return nodes.head({}) + wire.delimited(b"".join(parts))


HOSTILE = [
    (b"", "is empty"),
    (b"\x05abc", "ends beyond the file's 4"),
    (b"\xff" * 11, "has no end, or is longer"),
    (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "has no end, or is longer"),
    (one_node(b"\x00"), "there is no field 0"),
    (one_node(b"\x0b"), "of type 3"),
    (one_node(b"\x12\x05ab"), "reach beyond the end"),
    (one_node(b"\x12\x02\xff\xfe"), "not UTF-8"),
    (one_node(b"\x0a\x00"), "of another type than in a trace"),
    (one_node(b"\x09\x00"), "reach beyond the end"),
    (one_node(b"\x08\x01", wire.octets(10, wire.octets(3, b"abc"))), "attribute of type double"),
    (one_node(b"\x08\x01", wire.octets(10, wire.octets(4, wire.octets(1, b"abc")))), "make up the number"),
    (one_node(b"\x08\x01\x28\x07"), "node 1: waits for node 7, which is not there"),
    (one_node(b"\x08\x01\x18\x07\x28\x01"), "node 1: waits for itself"),
    (one_node(b"\x08\x01\x18\x07"), "a collective of type None"),
    (one_node(b"\x08\x01\x18\x07", wire.octets(10, nodes.attribute("comm_type", 99))), "a collective of type 99"),
    (one_node(b"\x08\x01\x18\x07", wire.octets(10, nodes.attribute("comm_type", 0))), "comm_size: expected"),
    (one_node(b"\x08\x01\x18\x01", wire.octets(8, wire.octets(1, b"['[{]}]"))), "process groups"),
]


@pytest.mark.parametrize(("data", "why"), HOSTILE)
def test_files_that_are_no_traces(data: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.0.et"
    path.write_bytes(data)
    with pytest.raises(AntiphonError, match=why):
        antiphon.traces.read(path)


def test_names_that_tell_no_rank(tmp_path: Path) -> None:
    (tmp_path / "trace.et").write_bytes(b"")
    with pytest.raises(Invalid, match="does not show its rank"):
        antiphon.traces.read([tmp_path / "trace.et"])
    (tmp_path / "trace.et").unlink()
    with pytest.raises(Invalid, match="there are 0"):
        antiphon.traces.read(tmp_path)
    with pytest.raises(Invalid, match="expected"):
        antiphon.traces.read(5)  # type: ignore[call-overload]


@given(st.binary(max_size=60), st.integers(0, 60))
def test_noise_ends_in_a_complaint_or_in_nodes(noise: bytes, at: int) -> None:
    whole = one_node(b"\x08\x01\x12\x01a\x18\x04\x2a\x01\x01", wire.octets(10, nodes.attribute("a", [1, 2])))
    for data in (noise, whole[:at] + noise, whole[:at] + noise + whole[at:], nodes.head({}) + wire.delimited(noise)):
        try:
            _, found = nodes.read_nodes(data)
        except AntiphonError:
            continue
        assert all(isinstance(one.id, int) for one in found)


def test_more_than_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = nodes.head({}) + b"".join(nodes.node(number, "", nodes.COMPUTE) for number in range(1, 9))
    assert len(nodes.read_nodes(data)[1]) == 8
    monkeypatch.setattr(nodes, "MAX_NODES", 7)
    with pytest.raises(Unsupported, match="more than 7 nodes"):
        nodes.read_nodes(data)
    monkeypatch.setattr(nodes, "MAX_DEPENDENCIES", 2)
    with pytest.raises(Unsupported, match="more than 2 dependencies"):
        nodes.read_nodes(nodes.head({}) + nodes.node(1, "", nodes.COMPUTE, [1, 1, 1]))
