"""Trees drawn: each as the schedule has it, each rank where the machine's picture has it, every arrow in its place."""

import math
import re
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from quick import in_turn

from antiphon.cli import run
from antiphon.core.bounds import bound
from antiphon.core.collective import KINDS
from antiphon.core.example import of_rows
from antiphon.core.schedule import COPY, REDUCE, Schedule
from antiphon.core.topology import Topology
from antiphon.errors import Invalid, Unsupported
from antiphon.registry import table
from antiphon.select import every_plan, plan
from antiphon.show.pictures import trees as drawing
from antiphon.show.pictures.data_trees import (
    IN,
    IN_AND_OUT,
    NO_TREE,
    OUT,
    SAME_BOTH_WAYS,
    DataTree,
    data_tree_of,
    data_trees_of,
)
from antiphon.show.pictures.graph import graph_of
from antiphon.show.pictures.layout import arrange
from antiphon.show.pictures.trees import MAX_NODES, trees_svg
from antiphon.topologies import topology

Element = ElementTree.Element


def made(kind: str, spec: str, planner: str, **options: object) -> tuple[Schedule, Topology]:
    machine = topology(spec)
    root = options.pop("root", None)
    found = plan(kind, machine, planner=planner, root=root, options=options)
    return found.entries[0].schedule, machine


def grown(kind: str, spec: str, planner: str, start: int | None = None, **options: object):  # type: ignore[no-untyped-def]
    return data_trees_of(*made(kind, spec, planner, **options), start)


def elements(root: Element, tag: str) -> list[Element]:
    return list(root.iter(f"{{http://www.w3.org/2000/svg}}{tag}"))


def drawn(schedule: Schedule, machine: Topology, root: int | None = None) -> Element:
    return ElementTree.fromstring(trees_svg(schedule, machine, bound(machine, schedule.collective), root))


def panels(picture: Element) -> list[Element]:
    return [group for group in elements(picture, "g") if elements(group, "circle") and elements(group, "title")]


def words(picture: Element) -> list[str]:
    return [element.text or "" for element in elements(picture, "text")]


def links_of(machine: Topology) -> set[tuple[int, int]]:
    return set(zip(machine.link_src.tolist(), machine.link_dst.tolist(), strict=True))


# ---- what is drawn ----


def test_a_broadcast_goes_out_of_its_root_along_trees_of_links() -> None:
    schedule, machine = made("broadcast", "dgx1v", "trees", root=3, pieces=1)
    found = data_trees_of(schedule, machine)
    assert (found.root, found.roots) == (-1, 1)
    assert [share for share, _ in found.trees] == [2, 2, 1, 1]
    assert found.total == 6
    for _, tree in found.trees:
        assert (tree.shape, tree.root) == (OUT, 3)
        assert sorted(arrow.dst for arrow in tree.arrows) == [0, 1, 2, 4, 5, 6, 7]
        assert {(arrow.src, arrow.dst) for arrow in tree.arrows} <= links_of(machine)
        deep = {3: 0} | {arrow.dst: arrow.number for arrow in tree.arrows}
        assert all(deep[arrow.dst] == deep[arrow.src] + 1 for arrow in tree.arrows)


def test_an_allreduce_goes_up_and_down_the_same_tree() -> None:
    found = grown("allreduce", "dgx1v", "trees", pieces=1)
    assert {tree.shape for _, tree in found.trees} == {SAME_BOTH_WAYS}
    assert all(len(tree.arrows) == 7 for _, tree in found.trees)
    assert sum(share for share, _ in found.trees) == found.total == 24
    # an edge carries the shares of its trees both ways: at 24/7 no pair of ranks exceeds its links
    load: Counter[tuple[int, int]] = Counter()
    for share, tree in found.trees:
        for arrow in tree.arrows:
            load.update({(arrow.src, arrow.dst): share, (arrow.dst, arrow.src): share})
    machine, wide = topology("dgx1v"), Counter[tuple[int, int]]()
    for link, pair in enumerate(zip(machine.link_src.tolist(), machine.link_dst.tolist(), strict=True)):
        wide[pair] += int(machine.bandwidth(link) / machine.unit)
    assert all(Fraction(share, 24) * Fraction(24, 7) <= wide[pair] for pair, share in load.items())


@pytest.mark.slow
def test_of_many_roots_those_of_one_are_drawn() -> None:
    first = grown("allgather", "dgx1v", "trees", pieces=1)
    other = grown("allgather", "dgx1v", "trees", 5, pieces=1)
    assert (first.root, first.roots, other.root) == (0, 8, 5)
    assert {tree.root for _, tree in first.trees} == {0}
    assert {tree.root for _, tree in other.trees} == {5}
    with pytest.raises(Invalid, match="none has rank 8 as its root; choose among 0, 1, 2"):
        grown("allgather", "dgx1v", "trees", 8, pieces=1)


def test_shares_count_each_block_of_a_merged_tree_with_its_weight() -> None:
    # first halves of the blocks of ranks 1 and 2 go along 0 -> 1 -> 2; so does the second half of rank 2's block, but
    # that of rank 1's takes 0 -> 2 -> 1, so the second halves form no common tree
    rows = [(0, 1, 0, 1, COPY), (0, 2, 0, 1, COPY), (1, 2, 1, 2, COPY)]
    rows += [(0, 4, 0, 2, COPY), (1, 4, 2, 1, COPY), (0, 5, 0, 1, COPY), (1, 5, 1, 2, COPY)]
    schedule = of_rows("scatter", 3, rows, roots=(0,), parts=2)
    machine = topology("full:ranks=3")
    assert [share for share, _ in data_trees_of(schedule, machine).trees] == [3, 1]
    heavy = replace(schedule, collective=replace(schedule.collective, weights=np.array([1, 5, 1])))
    assert [share for share, _ in data_trees_of(heavy, machine).trees] == [7, 5]


def test_exchanges_are_no_trees() -> None:
    ((share, tree),) = grown("allreduce", "hypercube:ranks=8", "recursive-doubling").trees
    assert (share, tree.shape, tree.root) == (1, NO_TREE, -1)
    assert sorted(Counter(arrow.number for arrow in tree.arrows).items()) == [(1, 8), (2, 8), (3, 8)]


@given(st.integers(2, 12).flatmap(lambda n: st.tuples(*(st.integers(0, i - 1) for i in range(1, n)), st.randoms())))
def test_any_tree_is_seen_as_one_and_nothing_else_is(drawn_: tuple) -> None:
    *parents, random = drawn_
    names = random.sample(range(40), len(parents) + 1)
    deep = [0]
    for parent in parents:
        deep.append(deep[parent] + 1)
    hops = [(names[parent], names[child]) for child, parent in enumerate(parents, start=1)]
    down = [(7 + deep[i + 1], src, dst, COPY, ()) for i, (src, dst) in enumerate(hops)]
    up = [(7 - deep[i + 1], dst, src, REDUCE, ()) for i, (src, dst) in enumerate(hops)]
    expected = {(src, dst, deep[i + 1]) for i, (src, dst) in enumerate(hops)}

    def seen(tree: DataTree) -> set[tuple[int, int, int]]:
        return {(arrow.src, arrow.dst, arrow.number) for arrow in tree.arrows}

    for shape, rows, kind in ((OUT, down, OUT), (IN_AND_OUT, [*up, *down], SAME_BOTH_WAYS)):
        found = data_tree_of(shape, names[0], rows)
        assert (found.shape, found.root, seen(found)) == (kind, names[0], expected)
    found = data_tree_of(IN, names[0], up)
    assert (found.shape, seen(found)) == (IN, {(dst, src, number) for src, dst, number in expected})
    a, b = random.sample(names, 2)
    if (a, b) not in hops:
        assert data_tree_of(OUT, names[0], [*down, (9, a, b, COPY, ())]).shape == NO_TREE


# ---- how it is drawn ----


@pytest.mark.parametrize("spec", ["dgx1v", "mi250", "cluster:box=dgx-a100,boxes=2", "torus:dims=3x4"])
def test_ranks_stand_as_in_the_picture_of_the_machine(spec: str) -> None:
    schedule, machine = made("broadcast", spec, "relay", trees=1)
    (panel,) = panels(drawn(schedule, machine))
    here = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in elements(panel, "circle")]
    there = arrange(graph_of(machine)).position
    assert len(here) == machine.ranks
    factor = math.dist(here[0], here[-1]) / math.dist(there[0], there[machine.ranks - 1])
    for rank, (x, y) in enumerate(here):
        assert (x - here[0][0], y - here[0][1]) == pytest.approx(
            tuple(factor * (a - b) for a, b in zip(there[rank], there[0], strict=True)), abs=0.6
        )
        assert all(math.dist((x, y), other) > 38 for other in here[:rank])


@pytest.mark.parametrize(("kind", "spec", "planner"), in_turn([
    ("allreduce", "dgx1v", "trees"), ("broadcast", "mi250", "relay"), ("allreduce", "dgx1p", "ring"),
    ("broadcast", "dgx2", "ring"), ("allgather", "cluster:box=dgx1v,boxes=2", "relay"),
], 3))  # fmt: skip
def test_arrows_go_from_rim_to_rim_and_over_no_other_rank(kind: str, spec: str, planner: str) -> None:
    for panel in panels(drawn(*made(kind, spec, planner))):
        places = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in elements(panel, "circle")]
        heads = [element.attrib["points"].split()[0] for element in elements(panel, "polygon")]
        tips = [tuple(map(float, tip.split(","))) for tip in heads]
        shafts = [element for element in elements(panel, "path") if elements(element, "title")]
        for shaft in shafts:
            a, b = map(int, re.findall(r"rank (\d+)", elements(shaft, "title")[0].text or ""))
            if not any(math.dist(tip, places[b]) < 20 for tip in tips):
                pytest.fail(f"no head at rank {b}")
            ax, ay, cx, cy, bx, by = (float(n) for n in re.findall(r"-?[\d.]+", shaft.attrib["d"]))
            for rank, (x, y) in enumerate(places):
                near = min(
                    math.dist((x, y), ((1 - t) ** 2 * ax + 2 * t * (1 - t) * cx + t * t * bx,
                                       (1 - t) ** 2 * ay + 2 * t * (1 - t) * cy + t * t * by))
                    for t in (i / 40 for i in range(41))
                )  # fmt: skip
                assert near > (17 if rank not in (a, b) else 16.9), (a, b, rank)


def test_hops_through_a_switch_follow_its_links_where_that_is_clear() -> None:
    star = drawn(*made("allgather", "dgx-a100", "trees", pieces=1))
    (panel,) = panels(star)
    shafts = [element for element in elements(panel, "path") if elements(element, "title")]
    assert (len(shafts), len(elements(panel, "polygon"))) == (8, 7)  # to the switch once, from there to seven
    assert "allgather on dgx-a100: 1 tree of rank 0, one of 8 roots" in words(star)
    chain = panels(drawn(*made("broadcast", "dgx-a100", "ring", directions=1)))[0]
    shafts = [element for element in elements(chain, "path") if elements(element, "title")]
    assert len(shafts) == len(elements(chain, "polygon")) == 7  # seven ranks send through it: straight


@pytest.mark.parametrize(
    ("spec", "planner"), [pytest.param("torus:dims=5x8", "relay", marks=pytest.mark.slow), ("dgx2", "ring")]
)
def test_lines_stay_between_the_title_and_the_caption(spec: str, planner: str) -> None:
    picture = drawn(*made("broadcast", spec, planner))
    for panel in panels(picture):
        left, top = (float(n) for n in re.findall(r"-?[\d.]+", panel.attrib["transform"]))
        caption = max(float(element.attrib["y"]) for element in elements(panel, "text"))
        for element in elements(panel, "path"):
            for curve in element.attrib["d"].split("M")[1:]:
                ax, ay, cx, cy, bx, by = (float(n) for n in re.findall(r"-?[\d.]+", curve))
                assert all(y + top > 50 for y in (ay, (ay + 2 * cy + by) / 4, by))
                assert all(y < caption - 9 for y in (ay, (ay + 2 * cy + by) / 4, by))
                assert all(x + left > 5 for x in (ax, (ax + 2 * cx + bx) / 4, bx))


def test_colours_tell_the_hop_in_all_panels_alike() -> None:
    picture = drawn(*made("broadcast", "line:ranks=14", "relay", trees=1))
    (panel,) = panels(picture)
    colour = {}
    for element in elements(panel, "path"):
        for title in elements(element, "title"):
            colour[int(re.findall(r"\d+", title.text or "")[0])] = element.attrib["stroke"]
    assert len(set(colour.values())) == 13  # more hops than fixed colours: all differ still
    circles = elements(panel, "circle")
    assert [c.attrib["stroke"] for c in circles[1:]] == [colour[i] for i in range(1, 14)]


def test_trees_beyond_what_can_be_read_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "MAX_PANELS", 2)
    schedule, machine = made("broadcast", "dgx1v", "trees", pieces=1)
    picture = drawn(schedule, machine)
    assert len(panels(picture)) == 2
    assert "only the 2 with the most data are drawn; the others have 33% of it" in words(picture)


PLANNERS = [name for name, entry in table("planner").items() if not entry.can.process]


@pytest.mark.parametrize(
    "planner",
    in_turn(
        [pytest.param(name, marks=[pytest.mark.slow] if number % 2 else []) for number, name in enumerate(PLANNERS)], 12
    ),
)
def test_what_any_planner_plans_can_be_drawn(planner: str) -> None:
    able = table("planner")[planner].can.in_switches
    own = {"gentree": "star:ranks=4", "compose": "torus:dims=2x2"}
    machine = topology("cluster:box=hgx-h100,boxes=2,sharp=true" if able else own.get(planner, "full:ranks=4"))
    for kind in sorted({*KINDS} & {*table("planner")[planner].can.collectives}):
        found = next(every_plan(kind, machine, planner=planner)).entries[0].schedule
        limit = bound(machine, found.collective)
        picture = trees_svg(found, machine, limit)
        assert picture == trees_svg(found, machine, limit)
        assert "http" not in picture.replace("http://www.w3.org/2000/svg", "")
        root = ElementTree.fromstring(picture)
        assert panels(root)
        width, height = (float(root.attrib[key]) for key in ("width", "height"))
        assert width < 1400
        assert height < 3000 * max(machine.ranks / 8, 1)


# ---- the command ----


def test_the_command_draws_what_it_plans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    wish = ["plan", "allgather", "dgx1v", "--planner", "trees:pieces=1"]
    assert run([*wish, "-o", "t.svg", "--tree-root", "6"]) == 0
    assert "written: t.svg" in capsys.readouterr().out
    schedule, machine = made("allgather", "dgx1v", "trees", pieces=1)
    assert Path("t.svg").read_text() == trees_svg(schedule, machine, bound(machine, schedule.collective), 6)


@pytest.mark.parametrize(("line", "told"), [
    ("plan allgather dgx1v --tree-root 1", "--tree-root chooses which trees are drawn; give -o FILE.svg, too"),
    ("plan allgather dgx1v --all -o t.svg", "--all keeps many; leave one of them out"),
    ("plan allgather ring:ranks=129 -o t.svg", "over 129 nodes is unreadable (at most 128)"),
    ("plan broadcast dgx1v --planner relay -o t.svg --tree-root 1", "none has rank 1 as its root"),
])  # fmt: skip
def test_what_cannot_be_drawn_is_refused(
    line: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(line.split()) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert told in err
    assert list(tmp_path.iterdir()) == []


def test_too_many_nodes_are_refused() -> None:
    schedule, machine = made("broadcast", f"line:ranks={MAX_NODES + 1}", "relay", trees=1)
    with pytest.raises(Unsupported, match="unreadable"):
        trees_svg(schedule, machine)
