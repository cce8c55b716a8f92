"""Draw small pictures with characters under the output of `tune` and `topology show`, on terminals.

`add_picture` draws them only on a terminal that is wide enough, and only if they fit under the text above them, so that
they never scroll it off the screen. Where the terminal cannot show block characters of Unicode, ASCII replaces them.

    time_chart   a column per size on a logarithmic scale of times; the solid part is the lower bound: no plan is faster
    link_map     a cell per pair of nodes, row to column; darker cells have more bandwidth. Many nodes share a cell
"""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Callable, Mapping

import numpy as np

from antiphon.core.topology import Topology
from antiphon.select import Tuning
from antiphon.show.columns import width
from antiphon.show.text import WIDEST_MATRIX
from antiphon.units import format_bandwidth, format_seconds, format_size

CHART_ROWS, MAX_CELLS = 8, 32  # lines of a chart; cells per row and column of a map
MIN_WIDTH = 72  # columns; narrower terminals get no pictures
_EIGHTHS, _SHADES = "▁▂▃▄▅▆▇█", "░▒▓█"  # columns of 1 to 8 eighths of a line; cells with ever more bandwidth
_ASCII = str.maketrans(_EIGHTHS + "·░▒▓│└─", "___+++##" + ".:+%|+-")  # █, also a shade, is among the eighths


def add_picture(text: str, draw: Callable[[], list[str]]) -> str:
    """Return the text with a picture under it, if stdout is a terminal with room for both and the prompt."""
    if not sys.stdout.isatty() or width() < MIN_WIDTH:
        return text
    lines = draw()
    room = shutil.get_terminal_size().lines - text.count("\n") - 2  # the last line of the text, and the prompt
    return "\n".join([text, *lines]) if len(lines) <= room else text


def time_chart(tuning: Tuning) -> list[str]:
    """Return a chart of the time of the best plan by size; [] for several collectives or fewer than three sizes."""
    if len(tuning.collectives) > 1:
        return []
    (kind,) = tuning.collectives
    limit = tuning.limits.get(kind)
    times: dict[int, float] = {}
    for r in tuning.ranges:
        if r.collective == kind:
            times |= {size: s for size, s in r.candidate.seconds.items() if r.start <= size < r.stop or size == r.at}
    times = {size: seconds for size, seconds in sorted(times.items()) if seconds > 0}
    if len(times) < 3:
        return []
    return _printable(_columns(times, limit.times if limit is not None else {}))


def _columns(times: Mapping[int, float], bound_times: Mapping[int, float]) -> list[str]:
    """Return the lines of a chart of `times`, solid up to the `bound_times`."""
    high = math.log(max(times.values()))
    low = math.log(min([*times.values(), *(bound_times[size] for size in times if bound_times.get(size))]))
    low -= 0.05 * (high - low) + 0.01  # so that the least time is no empty column

    def eighths(seconds: float) -> int:  # height of a column, in eighths of a line
        return max(1, round(8 * CHART_ROWS * (math.log(seconds) - low) / (high - low)))

    column_width = max(1, min(4, (width() - 14) // len(times)))  # 14: the labels, the axis and a margin
    lines = []
    for row in reversed(range(CHART_ROWS)):
        cells = []
        for size, seconds in times.items():
            height = min(eighths(seconds) - 8 * row, 8)
            is_bound = size in bound_times and bound_times[size] > 0 and eighths(bound_times[size]) >= 8 * row + height
            cells.append(" " if height <= 0 else "▒" if height == 8 and not is_bound else _EIGHTHS[height - 1])
        # the time at the upper edge of the line, at every other line
        label = format_seconds(math.exp(low + (high - low) * (row + 1) / CHART_ROWS)) if row % 2 else ""
        lines.append(f"  {label:>9} │{''.join(cell * column_width for cell in cells)}")
    sizes = [format_size(size) for size in times]
    axis = [" "] * (len(sizes) * column_width + 8)  # 8: room for a label that begins in the last column
    # every step-th column has a label, so that two blanks stand between labels
    step = max(1, math.ceil((max(map(len, sizes)) + 2) / column_width))
    for i in range(0, len(sizes), step):
        axis[i * column_width : i * column_width + len(sizes[i])] = sizes[i]
    caption = f"time of the best plan by size{'; solid up to the lower bound' if bound_times else ''}"
    frame = f"  {'':9} └{'─' * (len(sizes) * column_width)}"
    return ["", f"  {caption}", *lines, frame, f"  {'':10} {''.join(axis).rstrip()}"]


def link_map(topology: Topology) -> list[str]:
    """Return a map of bandwidths from the nodes of a row to those of a column; [] if the text shows a matrix."""
    size = math.ceil(topology.nodes / MAX_CELLS)  # nodes per cell
    cells = math.ceil(topology.nodes / size)
    if topology.links == 0 or topology.nodes <= WIDEST_MATRIX:
        return []
    per_type = np.array([float(t.bandwidth) for t in topology.types])
    total = np.zeros((cells, cells))
    np.add.at(total, (topology.link_src // size, topology.link_dst // size), per_type[topology.link_type])
    # one shade per third of the distinct bandwidths
    levels = np.unique(np.quantile(np.unique(total[total > 0]), (0, 1 / 3, 2 / 3, 1), method="nearest"))
    shades = _SHADES[-len(levels) :]
    # 0: not linked; a little less than the total, as its sum may be rounded up beyond its level
    shade = np.where(total > 0, np.searchsorted(levels, total * (1 - 1e-9)) + 1, 0)
    names = [_cell_name(topology, i * size, min((i + 1) * size, topology.nodes) - 1) for i in range(cells)]
    name_width = max(map(len, names))
    lines = [f"  {names[i]:>{name_width}} {''.join(2 * ('·' + shades)[s] for s in shade[i])}" for i in range(cells)]
    legend = ", ".join(f"{s} {format_bandwidth(level)}" for s, level in zip(shades, levels, strict=True))
    folded = f"; {size} nodes per cell, in all" if size > 1 else ""
    return _printable(["", f"  links from row to column: {legend}{folded}", *lines])


def _cell_name(topology: Topology, first: int, last: int) -> str:
    """Return the numbers of ranks, or the places of switches, of a cell."""
    if first >= topology.ranks and first == last:
        return topology.places[first][-12:]
    return str(first) if first == last else f"{first}-{last}"


def _printable(lines: list[str]) -> list[str]:
    """Return the lines in ASCII where stdout cannot show others."""
    try:
        "".join(lines).encode(sys.stdout.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return [line.translate(_ASCII) for line in lines]
    return lines
