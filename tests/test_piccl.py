"""Graphs of messages, and the files of PICCL: read, written, refused."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from entries import piccl_xml
from generate import Case, cases
from hypothesis import given, settings
from loggp_build import level_of
from message_graphs import message_graph
from quick import examples
from tables import listed

from antiphon.core.interpret import block_elements
from antiphon.core.messages import MessageGraph, messages, sets, waits
from antiphon.core.plan import Plan
from antiphon.core.routes import NO_ROUTES, resolve
from antiphon.core.schedule import REDUCE, Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import expand
from antiphon.core.verify import verify
from antiphon.cost import Level, LogGP, Profile, load_profile
from antiphon.errors import AntiphonError, Invalid, Unsupported
from antiphon.formats import export
from antiphon.formats.piccl.readers import figures_text, read_figures, read_schedule, read_topology
from antiphon.select import plan
from antiphon.topologies import topology

# ---- graphs ----


def deps_of(graph: MessageGraph, left: bool = False) -> list[set[int]]:
    """Of every message those that must be done before it, or those that must have left."""
    pairs = itertools.pairwise(graph.deps_ptr.tolist())
    return [set(graph.deps[a:b][graph.left[a:b] == left].tolist()) for a, b in pairs]


@given(cases())
@settings(max_examples=examples(30))
def test_bytes_are_conserved(case: Case) -> None:
    nbytes = 997
    schedule = expand(case.schedule)
    sizes, combined = messages(schedule).nbytes(nbytes)
    elements = block_elements(schedule.collective, nbytes, 1)
    whole, offset = schedule.chunks.denominator, schedule.chunks.offset.tolist()
    of_block = elements[schedule.chunks.block].tolist()
    ends = (schedule.chunks.offset + schedule.chunks.share).tolist()
    low = [n * at // whole for n, at in zip(of_block, offset, strict=True)]
    high = [n * at // whole for n, at in zip(of_block, ends, strict=True)]
    size = np.array(high) - np.array(low)
    assert int(sizes.sum()) == int(size[schedule.chunk].sum())
    assert int(combined.sum()) == int(size[schedule.chunk][schedule.op == REDUCE].sum())
    assert np.array_equal(
        np.bincount(schedule.chunks.block, weights=size, minlength=schedule.collective.blocks), elements
    )


def test_many_to_many_is_kept_in_few_numbers() -> None:
    made = plan("allreduce", "star:ranks=40", planner="direct").entries[0].schedule
    twice = np.concatenate
    schedule = Schedule(
        made.collective, made.chunks, twice([made.step, made.step + 1]), twice([made.chunk] * 2), twice([made.src] * 2),
        twice([made.dst] * 2), twice([made.op] * 2),
    )  # fmt: skip
    found = sets(waits(messages(schedule), "data"))
    assert found.pairs == 40 * 39 * (39 + 39)  # those that brought a value, and those that read the one before
    assert len(found.message) + len(found.items) + len(found.low) < 40 * 39 * 6


@pytest.mark.parametrize(
    ("ptr", "deps", "says"),
    [
        ([0, 0, 1, 2], [2, 1], "1 waits for 2 waits for 1"),
        ([0, 1, 2, 3], [1, 2, 0], "0 waits for 1 waits for 2 waits for 0"),
        ([0, 0, 1, 1], [1], "message 1 waits for itself"),
        ([0, 0, 1, 1], [3], "deps[0] = 3 is out of range"),
        ([0, 0, 1], [0], "deps_ptr: expected 4"),
        ([0, 1, 0, 1], [2], "ascending"),
    ],
)
def test_graphs_that_are_none(ptr: list[int], deps: list[int], says: str) -> None:
    with pytest.raises(Invalid) as told:
        MessageGraph(3, [0, 1, 2], [1, 2, 0], np.array([1, 1, 1]), np.array(ptr), np.array(deps))
    assert says in str(told.value)


def test_a_graph_may_list_a_message_before_those_it_waits_for() -> None:
    graph = MessageGraph(2, [0, 1], [1, 0], np.array([5, 6]), np.array([0, 1, 1]), np.array([1]))
    assert deps_of(graph) == [{1}, set()]
    with pytest.raises(Invalid, match="order: expected one of rounds, streams, data"):
        message_graph(plan("allreduce", "ring:ranks=3").entries[0].schedule, 10, "steps")


# ---- schedules ----

THEIRS = """<collective name="allgather" algorithm="k-ring" k="2" nodes="4" buffer_size="16388">
    # Round 1
    <transfer id="10" size="4097" src="0" dst="1" deps="-1"/>
    <transfer id="11" size="4097" src="1" dst="0" deps="-1" other="kept out"/>

    <!-- and then
         more -->
    <transfer id="3" size="4097" src="1" dst="2" deps="10,11"/>
    <transfer id="12" size="0" src="2" dst="3" deps=" 3, 10,3 "></transfer>
    <transfer id="99" size="7" src="3" dst="2"/>
</collective>
<!-- 1 + 1 -->
"""


def written(folder: Path, text: str, name: str = "schedule.xml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_schedule_of_theirs(tmp_path: Path) -> None:
    path = written(tmp_path, THEIRS)
    found = read_schedule(path)
    assert (found.collective, found.algorithm, found.k, found.nbytes) == ("allgather", "k-ring", 2, 16388)
    graph = found.graph
    assert found.ids.tolist() == [10, 11, 3, 12, 99]
    assert (graph.ranks, graph.src.tolist(), graph.dst.tolist()) == (4, [0, 1, 1, 2, 3], [1, 0, 2, 3, 2])
    assert graph.nbytes.tolist() == [4097, 4097, 4097, 0, 7]
    assert deps_of(graph) == [set(), set(), {0, 1}, {0, 2}, set()]
    assert graph.deps_ptr.tolist() == [0, 0, 0, 2, 4, 4]
    with pytest.raises(Unsupported) as told:
        found.verifiable()
    assert "simulated but not verified" in str(told.value)
    assert str(path) in str(told.value)


def wrong(folder: Path, text: str) -> str:
    path = written(folder, text)
    with pytest.raises(AntiphonError) as told:
        read_schedule(path)
    message = str(told.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


@pytest.mark.parametrize(("old", "new", "says"), listed("refused-piccl-schedules"))
def test_a_schedule_that_is_wrong(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in THEIRS
    if not says:
        assert len(read_schedule(written(tmp_path, THEIRS.replace(old, new))).graph) == 4
    else:
        assert says in wrong(tmp_path, THEIRS.replace(old, new, 1) if old else new)


BOMB = """<?xml version="1.0"?>
<!DOCTYPE lolz [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;&b;&b;&b;">]>
<collective name="&c;" nodes="2"/>
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (BOMB, "line 2: has a document type"),
        ('<!DOCTYPE x SYSTEM "file:///etc/hostname"><collective nodes="2"/>', "has a document type"),
        ('<!DOCTYPE x [<!ENTITY y SYSTEM "file:///etc/hostname">]><collective name="&y;" nodes="2"/>', "document type"),
        ('<!DOCTYPE x [<!ENTITY % y SYSTEM "http://localhost/">%y;]><collective nodes="2"/>', "document type"),
        ('<collective name="&lol;" nodes="2"/>', "undefined entity"),
    ],
)
def test_nothing_in_a_file_is_expanded_or_fetched(tmp_path: Path, text: str, says: str) -> None:
    assert says in wrong(tmp_path, text)
    with pytest.raises(Invalid, match=says):
        read_topology(tmp_path / "schedule.xml")


PLANS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("allreduce", "dgx1v", "multi-ring", {}),  # routes over parallel links
    ("allgather", "star:ranks=8", "recursive-doubling", {}),  # runs of chunks
    ("allreduce", "star:ranks=6", "double-binary-tree", {"pieces": 3}),
    ("alltoall", "full:ranks=5", "bruck", {}),
    ("reduce", "full:ranks=5", "binomial-tree", {}),
]


@pytest.mark.parametrize(("collective", "machine", "planner", "options"), PLANS)
@pytest.mark.parametrize("order", ["rounds", "data"])
def test_what_is_written_is_read_again_and_verified(
    tmp_path: Path, collective: str, machine: str, planner: str, options: dict[str, Any], order: str
) -> None:
    made = plan(collective, machine, planner=planner, options=options)
    export(made, "piccl-xml", tmp_path, nbytes=12345, options={"order": order, "local": "off"})
    found = read_schedule(tmp_path / "schedule.xml")
    schedule = expand(made.entries[0].schedule)
    again = found.verifiable()
    assert again.topology == made.topology
    assert again.entries[0].schedule.same_as(schedule)
    assert again.entries[0].schedule.provenance == schedule.provenance
    verify(again.entries[0].schedule, again.topology).or_raise()
    graph = message_graph(schedule, 12345, order)
    for name in ("src", "dst", "nbytes", "deps_ptr", "deps", "combined"):
        assert np.array_equal(getattr(found.graph, name), getattr(graph, name)), name
    assert (found.nbytes, found.algorithm) == (12345, planner)


@given(cases(most_ranks=6))
@settings(max_examples=examples(40))
def test_any_schedule_is_read_again(tmp_path_factory: pytest.TempPathFactory, case: Case) -> None:
    made = Plan.of(case.topology, case.schedule)
    path = tmp_path_factory.mktemp("made") / "schedule.xml"
    if bool((case.schedule.src == case.schedule.dst).any()):
        with pytest.raises(Unsupported, match="within itself"):
            piccl_xml(made, nbytes=1000)
        return
    path.write_bytes(b"".join(piccl_xml(made, nbytes=1000)["schedule.xml"]))  # type: ignore[arg-type]
    assert read_schedule(path).verifiable().entries[0].schedule.same_as(expand(case.schedule))


def test_what_contradicts_the_plan_beside_it(tmp_path: Path) -> None:
    made = plan("allreduce", "ring:ranks=3", options={"directions": 1})
    text = b"".join(piccl_xml(made, nbytes=300)["schedule.xml"]).decode()  # type: ignore[arg-type]
    for old, new, says in [
        ('size="100"', 'size="101"', "size is 101, but its chunks have 100 bytes at this buffer_size"),
        ('buffer_size="300"', 'buffer_size="600"', "its chunks have 200 bytes"),
        ('reduce="2"', 'reduce="3"', "chunks 3-3, but there are 3"),
        ('reduce="2"', 'reduce="2-1"', "chunks 2-1"),
        ('reduce="2"', 'reduce="x"', "'x' names no chunks; expected 3, 3-7 or 3:0:1"),
        (' reduce="2"', "", "carries no chunks"),
        (' step="0"', "", 'has no step="..."'),
        ('nodes="3"', 'nodes="4"', "the plan in <antiphon> is for 3"),
        ("antiphon-plan", "antiphon-plane", "line 2, antiphon: plan: unknown format 'antiphon-plane'"),
        ("</collective>", "<antiphon/></collective>", "<antiphon> stands once, before the transfers"),
    ]:
        assert old in text
        assert says in wrong(tmp_path, text.replace(old, new, 1)), new
    assert "the same step, src, dst and route" in wrong(tmp_path, text.replace(' step="1"', ' step="0"'))
    found = read_schedule(written(tmp_path, text.replace("copy=", "reduce="))).verifiable()
    assert not verify(found.entries[0].schedule, made.topology).ok  # read as it stands, and found wrong


# ---- figures ----

FIGURES = "s,L,o_s,o_r,g,G\n4,4e-6,1e-6,1e-6,2e-6,1e-10\n\n1, 1e-6,1e-6,1e-6,2e-6,4e-10\n"


def test_figures(tmp_path: Path) -> None:
    level = read_figures(written(tmp_path, FIGURES, "a.csv"))
    assert level.sizes == (1, 4)
    assert level.at([0.5, 1, 2, 4, 100])["L"].tolist() == pytest.approx([1e-6, 1e-6, 2e-6, 4e-6, 4e-6])
    assert level.at([0, 1, 100])["G"].tolist() == pytest.approx([4e-10, 4e-10, 1e-10])
    assert read_figures(written(tmp_path, figures_text(level), "b.csv")) == level
    flat = Level("", (1,), (1e-6,), (2e-6,), (0.0,), (1.25e-5,), (1e-11,), (3e-12,))
    assert figures_text(flat).count("\n") == 3  # two sizes, for readers that interpolate
    assert read_figures(written(tmp_path, figures_text(flat), "c.csv")) == flat
    with pytest.raises(Unsupported, match="whole sizes"):
        figures_text(Level("", (1.5, 2)))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no figures"),
        ("s,L,o_s,o_r,g,G\n", "has no figures"),
        ("s,L,o,g,G\n1,1,1,1,1\n", "line 1: expected the columns s,L,o_s,o_r,g,G ("),
        (FIGURES + "8,1,1,1,1\n", "line 5: has 5 fields, expected 6"),
        (FIGURES + "8,-1e-6,1,1,1,1\n", "line 5: L: expected figures from 0 on to 3600, got '-1e-6'"),
        (FIGURES + "8,nan,1,1,1,1\n", "line 5: L: cannot read 'nan'"),
        (FIGURES + "8,x,1,1,1,1\n", "line 5: L: cannot read 'x'"),
        (FIGURES + "8.5,1,1,1,1,1\n", "line 5: s is '8.5'; expected a whole number of bytes"),
        (FIGURES + "-8,1,1,1,1,1\n", "line 5: s is '-8'"),
        (FIGURES + "4,1,1,1,1,1\n", "line 5: size 4 stands twice"),
        (FIGURES + '"8,1', "line 5: "),
    ],
)
def test_figures_that_are_wrong(tmp_path: Path, text: str, says: str) -> None:
    path = written(tmp_path, text, "a.csv")
    with pytest.raises(Invalid) as told:
        read_figures(path)
    assert str(told.value).startswith(f"{path}: {says}")


# ---- topologies ----

TOPO = """<topo num_nodes="6" num_levels="2">
    <group level="1" id="0" nics="-1" param_file="figures/between.csv">
        <group level="0" id="7" ports="2" param_file="figures/inside.csv">
            <node id="0"/>
            <node id="1"/>
        </group>
        # the others
        <group level="0" id="1" ports="2" param_file="figures/inside.csv">
            <node id="5"/>
            <node id="2"/>
        </group>
        <group level="0" id="2" ports="2" param_file="figures/slow.csv">
            <node id="3"/>
            <node id="4"/>
        </group>
    </group>
</topo>
"""


@pytest.fixture
def figures(tmp_path: Path) -> Path:
    (tmp_path / "figures").mkdir()
    for name, scale in (("inside", 1), ("slow", 3), ("between", 10)):
        row = ",".join(f"{scale * value}e-9" for value in (1000, 500, 600, 800, 1))
        written(tmp_path / "figures", f"s,L,o_s,o_r,g,G\n1,{row}\n1024,{row}\n", f"{name}.csv")
    return tmp_path


def latency(machine: Topology, a: int, b: int) -> float:
    found = resolve(machine, np.array([a], np.int32), np.array([b], np.int32), None, NO_ROUTES)
    assert not len(found.faulty_rows)
    return sum(machine.types[machine.link_type[link]].latency for link in found.table[int(found.route[0])])


def figures_between(machine: Topology, loggp: LogGP) -> dict[tuple[int, int], tuple[float, ...]]:
    pairs = list(itertools.permutations(range(machine.ranks), 2))
    src, dst = (np.array(c) for c in zip(*pairs, strict=True))
    levels = level_of(loggp.groups(machine), src, dst)
    return {
        pair: tuple(float(values[0]) for values in loggp.levels[level].at([64]).values())
        for pair, level in zip(pairs, levels.tolist(), strict=True)
    }


def machine_files(machine: Topology, loggp: LogGP) -> dict[str, str]:
    """What is written of a machine and its figures beside a plan for it."""
    some = plan("broadcast", machine, planner="direct")
    found = piccl_xml(some, nbytes=1000, profile=Profile(loggp=loggp))
    return {name: text for name, text in found.items() if name != "schedule.xml" and isinstance(text, str)}


def test_a_topology_of_theirs(figures: Path) -> None:
    machine, profile = read_topology(written(figures, TOPO, "topo.xml"))
    assert profile.loggp is not None
    assert (machine.ranks, machine.switches, machine.name) == (6, 4, "topo")
    assert machine.places[:6] == (
        "host7/rank0", "host7/rank1", "host1/rank2", "host2/host-b/rank3", "host2/host-b/rank4", "host1/rank5"
    )  # fmt: skip
    loggp = profile.loggp
    assert [level.within for level in loggp.levels] == ["host-b", "host", ""]
    assert (loggp.device_radix, loggp.node_radix, loggp.node) == (1, 2, "host")
    assert loggp.nodes(machine).tolist() == [0, 0, 1, 2, 2, 1]
    assert read_topology(figures / "topo.xml", 8)[1].loggp.device_radix == 8  # type: ignore[union-attr]
    hosts = {0: 7, 1: 7, 2: 1, 5: 1, 3: 2, 4: 2}
    for (a, b), found in figures_between(machine, loggp).items():
        scale = 10 if hosts[a] != hosts[b] else 3 if hosts[a] == 2 else 1
        assert found[0] == pytest.approx(scale * 1e-6), (a, b)
        assert latency(machine, a, b) == pytest.approx(scale * 1e-6), (a, b)
    up = {machine.types[t].bandwidth for t, a in zip(machine.link_type, machine.link_src, strict=True) if a >= 6}
    assert 2 * 10**8 in up  # two ports of 1/G each
    verify(plan("allreduce", machine, planner="ring").entries[0].schedule, machine).or_raise()


def test_a_topology_is_written_and_read_again(figures: Path) -> None:
    machine, profile = read_topology(written(figures, TOPO, "topo.xml"), 3)
    assert profile.loggp is not None
    other = figures / "again"
    other.mkdir()
    for name, text in machine_files(machine, profile.loggp).items():
        written(other, text, name)
    again, theirs = read_topology(other / "topology.xml")
    assert theirs.loggp is not None
    assert (again.name, theirs.loggp.device_radix, theirs.loggp.node_radix) == ("topo", 3, 2)
    assert figures_between(again, theirs.loggp) == figures_between(machine, profile.loggp)
    assert np.array_equal(theirs.loggp.nodes(again), profile.loggp.nodes(machine))


def test_a_machine_of_the_catalogue_as_a_topology_of_theirs(tmp_path: Path) -> None:
    machine = topology("cluster:box=dgx1v,boxes=2")
    host = machine.places[0].split("/")[0].rstrip("0123456789")
    loggp = LogGP((Level(host, L=1e-6, G=1e-11), Level(L=2e-6, G=1e-10)), 8, 2, host)
    for name, text in machine_files(machine, loggp).items():
        written(tmp_path, text, name)
    again, profile = read_topology(tmp_path / "topology.xml")
    assert profile.loggp is not None
    assert figures_between(again, profile.loggp) == figures_between(machine, loggp)
    assert profile.loggp.device_radix == 8
    for levels, node, says in [
        ((Level(host),), host, "a last level without a place"),
        ((Level("gpux"), Level()), host, ""),  # no rank is in such a place, so it is left out
        ((Level(host), Level()), "rack", "shares a NIC in every 'rack'"),
    ]:
        if says:
            with pytest.raises(Unsupported, match=says):
                machine_files(machine, LogGP(levels, 1, 1, node))
        else:
            assert 'num_levels="1"' in machine_files(machine, LogGP(levels, 1, 1, node))["topology.xml"]


def test_more_nodes_than_it_says(figures: Path) -> None:
    """As PICCL's own test_topo_large.xml: its simulator goes by the nodes that stand there."""
    notes: list[str] = []
    short = written(figures, TOPO.replace('num_nodes="6"', 'num_nodes="4"'), "short.xml")
    assert read_topology(short, notes=notes)[0].ranks == 6
    assert notes == ["num_nodes is 4, but 6 nodes stand in it: these are taken, as by PICCL"]
    gap = written(figures, TOPO.replace('num_nodes="6"', 'num_nodes="4"').replace('id="3"', 'id="9"'), "gap.xml")
    with pytest.raises(AntiphonError, match="line 9: node 5, but num_nodes is 4"):
        read_topology(gap)


@pytest.mark.parametrize(("old", "new", "says"), listed("refused-piccl-topologies"))
def test_a_topology_that_is_wrong(figures: Path, old: str, new: str, says: str) -> None:
    assert old in TOPO
    path = written(figures, TOPO.replace(old, new, 1) if old else new, "topo.xml")
    with pytest.raises(AntiphonError) as told:
        read_topology(path)
    assert str(told.value).startswith(f"{path}: ")
    assert says in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "named", ["../../etc/passwd", "/etc/passwd", "figures/../../secret.csv", "link.csv", "etc/passwd"]
)
def test_a_topology_names_no_file_elsewhere(figures: Path, named: str) -> None:
    secret = written(figures.parent, "root:x:0:0", "secret.csv")
    (figures / "link.csv").symlink_to(secret)
    path = written(figures, TOPO.replace("figures/slow.csv", named), "topo.xml")
    with pytest.raises(Invalid, match=r"topo\.xml: line 12: param_file: ") as told:
        read_topology(path)
    assert "root:" not in str(told.value)


def test_what_is_no_file_of_figures_is_not_quoted(figures: Path) -> None:
    written(figures, "root:x:0:0", "figures/slow.csv")
    with pytest.raises(Invalid, match=r"figures/slow\.csv: line 1: expected the columns") as told:
        read_topology(written(figures, TOPO, "topo.xml"))
    assert "root:" not in str(told.value)


def test_probe(figures: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from antiphon.cli import run

    monkeypatch.chdir(figures)
    written(figures, TOPO, "topo.xml")
    line = "topology probe topo.xml --from piccl-xml -o machine.json --profile profile.json --radix 4"
    assert run(line.split()) == 0
    assert "6 ranks, 4 switches" in capsys.readouterr().out
    assert topology("machine.json") == read_topology("topo.xml")[0]
    assert load_profile("profile.json") == read_topology("topo.xml", 4)[1]
    assert run(["topology", "probe", "topo.xml"]) == 0  # recognised
    assert "6 ranks, 4 switches" in capsys.readouterr().out
    for more, says in [
        ("--from nccl-xml -o m.json", "topo.xml: line 1: begins with <topo>; expected <system>"),
        ("--from piccl -o m.json", "unknown source of machines 'piccl'; did you mean 'piccl-xml'?"),
    ]:
        assert run(["topology", "probe", "topo.xml", *more.split()]) == 2
        assert says in capsys.readouterr().err
