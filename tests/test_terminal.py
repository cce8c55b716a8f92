"""Pictures of characters under the text of commands: only where they fit, and in the characters that a terminal has."""

import io
import os
import re
import sys
from collections.abc import Callable

import pytest

import antiphon
from antiphon.cli.streams import say
from antiphon.show import terminal
from antiphon.show.terminal import CHART_ROWS, add_picture, link_map, time_chart
from antiphon.topologies import topology


class Screen(io.TextIOWrapper):
    """Stdout of a terminal that takes this encoding."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding=encoding)

    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def show(columns: int, rows: int, encoding: str = "utf-8", tty: bool = True) -> None:
        monkeypatch.setattr(sys, "stdout", Screen(encoding) if tty else io.StringIO())
        size = os.terminal_size((columns, rows))
        monkeypatch.setattr("shutil.get_terminal_size", lambda *_: size)

    return show


@pytest.mark.parametrize(
    ("columns", "rows", "tty", "is_drawn"),
    [(100, 40, True, True), (100, 8, True, True), (100, 7, True, False),  # 2 lines, 4 of the picture, the prompt
     (71, 40, True, False), (100, 40, False, False)],
)  # fmt: skip
def test_a_picture_never_pushes_the_text_off_the_screen(
    screen: Callable[..., None], columns: int, rows: int, tty: bool, is_drawn: bool
) -> None:
    screen(columns, rows, tty=tty)
    text = add_picture("conclusion\nmore", lambda: ["a", "b", "c", "d", "e"])
    assert text == "conclusion\nmore" + "\na\nb\nc\nd\ne" * is_drawn
    assert not is_drawn or text.count("\n") + 2 <= rows


@pytest.mark.parametrize("tty", [True, False])
def test_an_error_is_broken_between_words_on_a_terminal_and_one_line_elsewhere(
    screen: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tty: bool
) -> None:
    screen(60, 40)
    stderr = Screen() if tty else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    say("unknown topology " * 9)
    stderr.seek(0)
    lines = stderr.read().splitlines()
    assert " ".join(" ".join(lines).split()) == f"antiphon: {' '.join(['unknown topology'] * 9)}"
    assert (len(lines), max(map(len, lines)) <= 60) == ((3, True) if tty else (1, False))


def test_the_chart_is_higher_for_longer_times_and_solid_up_to_the_bound(screen: Callable[..., None]) -> None:
    tuning = antiphon.tune("allreduce", "ring:ranks=5", nbytes="1KB:1GB", planners=["ring"])
    screen(100, 40)
    lines = time_chart(tuning)
    assert max(map(len, lines)) <= 100
    bars = [line.partition("│")[2] for line in lines if "│" in line]
    assert len(bars) == CHART_ROWS
    heights = [sum(row[i : i + 1].strip() != "" for row in bars) for i in range(len(bars[-1]))]
    assert heights == sorted(heights)
    assert (heights[0], heights[-1]) == (max(heights[0], 1), CHART_ROWS)
    assert "▒" in bars[-1]  # small messages take longer than the bound
    assert "▒" not in "".join(row[-3:] for row in bars)  # large ones do not
    assert lines[-1].split()[0] == "1KB"
    assert time_chart(antiphon.tune("allreduce", "ring:ranks=4", nbytes="1MB", planners=["ring"])) == []


@pytest.mark.parametrize(
    ("spec", "legend"),
    [("torus:dims=4x8", r": █ 25 GB/s$"), ("torus:dims=8x8x8", "16 nodes per cell, in all$"),
     ("cluster:box=hgx-h100,boxes=4", "2 nodes per cell"), ("dgx1v", "")],
)  # fmt: skip
def test_the_link_map_has_a_row_for_every_node_or_some(screen: Callable[..., None], spec: str, legend: str) -> None:
    screen(100, 60)
    lines = link_map(topology(spec))
    if not legend:  # text has a matrix of numbers
        assert lines == []
        return
    assert re.search(legend, lines[1])
    machine = topology(spec)
    size = -(-machine.nodes // terminal.MAX_CELLS)
    cells = [line.split()[-1] for line in lines[2:]]
    assert len(cells) == -(-machine.nodes // size)
    assert {len(row) for row in cells} == {2 * len(cells)}
    linked = {(a // size, b // size) for a, b in zip(machine.link_src.tolist(), machine.link_dst.tolist(), strict=True)}
    assert linked == {(i, j) for i, row in enumerate(cells) for j in range(len(cells)) if row[2 * j] != "·"}


def test_a_terminal_without_blocks_gets_ascii(screen: Callable[..., None]) -> None:
    screen(100, 60, "ascii")
    text = "\n".join(link_map(topology("torus:dims=4x8")))
    assert text.isascii()
    assert "##" in text or "%%" in text
