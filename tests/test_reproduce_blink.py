"""What `antiphon reproduce` makes of Blink: against brute force, against the figures known, and against wrong ones."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from packing_cases import OPTIMA, connected
from quick import in_turn

import antiphon
from antiphon.cli import run
from antiphon.core.topology import LinkType, Topology, both_ways, build
from antiphon.reproduce import blink
from antiphon.reproduce import blink_rates as rates
from antiphon.reproduce import blink_servers as servers
from antiphon.reproduce.blink_allocations import allocation, is_joined, unique_allocations
from antiphon.reproduce.blink_rates import RatedPlan

# ---- allocations ----


def widths(machine: Topology) -> list[list[int]]:
    table = [[0] * machine.ranks for _ in range(machine.ranks)]
    for link, (a, b) in enumerate(zip(machine.link_src.tolist(), machine.link_dst.tolist(), strict=True)):
        table[a][b] += int(machine.bandwidth(link) / machine.unit)
    return table


def least(table: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The least matrix over all renumberings that keep the vertices sorted by what they look like from nearby."""
    size = len(table)
    look: list[Any] = [tuple(sorted(row)) for row in table]
    for _ in range(2):
        look = [(look[v], tuple(sorted((table[v][w], look[w]) for w in range(size)))) for v in range(size)]
    alike = [list(group) for _, group in itertools.groupby(sorted(range(size), key=look.__getitem__), look.__getitem__)]
    orders = (
        [v for part in parts for v in part]
        for parts in itertools.product(*(itertools.permutations(group) for group in alike))
    )
    return min(tuple(table[a][b] for i, a in enumerate(order) for b in order[:i]) for order in orders)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dgx1v", "dgx1p"])
def test_allocations_against_renumbering(name: str) -> None:
    table = widths(antiphon.topology(name))
    kinds: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for size in range(3, 9):
        for gpus in itertools.combinations(range(8), size):
            part = [[table[a][b] for b in gpus] for a in gpus]
            if connected(size, [(i, j, 1) for i in range(size) for j in range(i) if part[i][j]]):
                kinds.setdefault(least(part), []).append(gpus)
    found = unique_allocations(antiphon.topology(name))
    assert [(one.gpus, one.alike) for one in found] == [(sets[0], len(sets)) for sets in kinds.values()]
    assert len(found) == {"dgx1v": 46, "dgx1p": 14}[name]
    assert all(widths(one.machine) == [[table[a][b] for b in one.gpus] for a in one.gpus] for one in found)


def test_gpus_without_links_between_them_are_no_allocation() -> None:
    box = antiphon.topology("dgx1v")
    assert not is_joined(allocation(box, (0, 5)).machine)
    assert not is_joined(allocation(box, (0, 1, 6, 7)).machine)
    assert [one.gpus for one in unique_allocations(box, [2])] == [(0, 1), (0, 3)]
    kind = LinkType("nvlink", Fraction(10), 0.0)
    assert not is_joined(build("away", 2, [(1, 0, kind)]))


# ---- rings and rates ----


def most_rings(table: Sequence[Sequence[int]]) -> int:
    """Undirected Hamiltonian cycles that the links hold together, by trying all."""
    size = len(table)
    left = [list(row) for row in table]
    cycles = [(0, *rest) for rest in itertools.permutations(range(1, size)) if rest[0] < rest[-1]]

    def go(start: int) -> int:
        best = 0
        for number, cycle in enumerate(cycles[start:], start):
            edges = list(zip(cycle, (*cycle[1:], 0), strict=True))
            if all(left[a][b] for a, b in edges):
                for a, b in edges:
                    left[a][b] -= 1
                    left[b][a] -= 1
                best = max(best, 1 + go(number))
                for a, b in edges:
                    left[a][b] += 1
                    left[b][a] += 1
        return best

    return go(0)


@pytest.mark.slow
@pytest.mark.parametrize("name", in_turn(["dgx1v", "dgx1p"], 2))
def test_rings_against_listing(name: str) -> None:
    for one in unique_allocations(antiphon.topology(name), range(3, 7)):
        found = rates.pack_rings(one.machine)
        assert found.optimal
        assert len(found.cycles) == 2 * most_rings(widths(one.machine)), one.name


def test_a_wide_link_holds_several_rings() -> None:
    """Also where all links are wide alike, and where several links lead the same way."""
    kind = LinkType("nvlink", Fraction(20), 0.0)
    pairs = [(0, 1), (1, 2), (2, 0)]
    assert len(rates.pack_rings(build("wide", 3, both_ways(pairs, kind), unit=Fraction(10))).cycles) == 4
    assert len(rates.pack_rings(build("twice", 3, both_ways(pairs + pairs, kind), unit=Fraction(10))).cycles) == 8


def test_rates_of_allocations() -> None:
    for name, gpus, broadcast, tau in OPTIMA:
        machine = allocation(antiphon.topology(name), map(int, gpus)).machine
        assert rates.rate_bound(machine, "broadcast").rate == broadcast
        assert rates.rate_bound(machine, "allreduce").rate == Fraction(tau)


def test_why_names_the_gpus() -> None:
    one = allocation(antiphon.topology("dgx1v"), (0, 2, 6))
    assert rates.explain_bound(rates.rate_bound(one.machine, "broadcast").proof, one.gpus) in (
        "cut 0 | 2,6",
        "cut 0,2 | 6",
    )
    one = allocation(antiphon.topology("dgx1v"), (0, 2, 3))
    assert rates.explain_bound(rates.rate_bound(one.machine, "allreduce").proof, one.gpus) == "parts 0 | 2 | 3"


def test_ring_rates() -> None:
    assert rates.ring_rate("allreduce", 4, 8) == Fraction(32, 14)  # 5.1
    assert rates.ring_rate("broadcast", 4, 8) == 4
    assert rates.ring_rate("broadcast", 0, 8) == Fraction(1, 2)
    assert rates.ring_rate("allreduce", 0, 3) == Fraction(3, 8)


def test_spread() -> None:
    values = [Fraction(x) for x in (4, 1, 2)]
    assert rates.summarize(values) == {"min": 1.0, "median": 2.0, "p95": 3.8, "max": 4.0, "mean": 2.0}
    assert rates.summarize([Fraction(3, 2)])["p95"] == 1.5


# ---- the tables ----


@pytest.mark.slow
def test_counts_that_differ_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blink, "UNIQUE_ALLOCATIONS", {"dgx1v": 45, "dgx1p": 14})
    monkeypatch.setattr(blink, "RING_CASES", (("dgx1p", "013457", 2, 2, "Figure 4"), ("dgx1p", "014", 2, None, "2")))
    failed = [row["name"] for row in blink.counts() if row["ok"] is False]
    assert failed == ["dgx1v, unique allocations", "dgx1p 0,1,3,4,5,7, rings", "dgx1p 0,1,4, rings"]


def test_rows_of_one_machine() -> None:
    known: list[RatedPlan] = []
    rows = list(blink.machine_rows("dgx1v", "broadcast", known))
    assert all(row["ok"] for row in rows)
    assert [(row["ours"]["trees"], row["ours"]["rate"]) for row in rows] == [(6, "6"), (4, "6"), (4, "6")]
    assert rows[1]["deviation"].startswith("trees of weights 2, 2, 1, 1 reach it")
    assert [row["deviation"] for row in rows[::2]] == [None, None]
    assert [one.count for one in known] == [4, 6]
    assert rows[0]["proof"] == ["rate <= 6: cut 0 | 1,2,3,4,5,6,7"]


@pytest.mark.slow
def test_slower_trees_are_not_reproduced(monkeypatch: pytest.MonkeyPatch) -> None:
    made = blink.plan_and_rate

    def slower(*args: Any) -> RatedPlan:
        one = made(*args)
        return replace(one, rate=one.rate * Fraction(94, 100))

    box = antiphon.topology("dgx1p")
    found = unique_allocations(box, [3])
    assert blink.allocations_row("dgx1p", "broadcast", found, ())["ok"]
    monkeypatch.setattr(blink, "plan_and_rate", slower)
    row = blink.allocations_row("dgx1p", "broadcast", found, ())
    assert not row["ok"]
    assert row["ours"] == {"at_optimum": 0, "of": 2, "blink_of_optimum": 0.94}
    assert [row["ok"] for row in blink.machine_rows("dgx1p", "broadcast", [])] == [False, False, True]


def test_two_servers() -> None:
    machine = servers.build_servers(100, servers.MEASURED_NVLINK)
    assert machine.ranks == 8
    assert {float(limit.bandwidth) for limit in machine.limits} == {12.5e9}
    inside = [
        machine.bandwidth(link)
        for link in range(machine.links)
        if machine.types[machine.link_type[link]].kind == "nvlink"
    ]
    assert set(inside) == {19 * 10**9, 38 * 10**9}
    assert servers.network_point(100).rate == Fraction(12_500_000_000)


# ---- what the command says ----


@pytest.mark.slow
def test_the_command_shows_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reproduce", "blink-figure22b"]) == 0
    said = capsys.readouterr().out
    assert "ours:      limit network, 4.933 GB/s, rings 2.857 GB/s" in said
    assert "published: 37.5 GB/s" in said
    assert "7 of 7 rows are reproduced" in said
    assert "proved for so few rounds" not in said
    assert max(map(len, said.splitlines())) <= 80


def test_the_command_says_what_is_not_reproduced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base: dict[str, Any] = {"deviation": None, "note": "", "engine": "", "seconds": 0.0, "proof": []}
    rows = [
        {**base, "name": "a", "published": None, "ours": {"by_size": {"3": 5, "4": 14}, "alike": False}, "ok": True},
        {**base, "name": "b", "published": {"min": 1.0, "alike": True}, "ours": None, "ok": False, "deviation": "none"},
    ]
    monkeypatch.setattr(blink, "counts", lambda: iter(rows))
    assert run(["reproduce", "blink-counts"]) == 1
    said = capsys.readouterr().out
    assert "published: -\n    ours:      by size 3: 5, 4: 14, not alike\n" in said
    assert "published: min 1, alike\n    ours:      -\n" in said
    assert "b: none" in said
    assert "0 of 1 rows are reproduced; not b (beside 1 for which nothing was published)" in said
