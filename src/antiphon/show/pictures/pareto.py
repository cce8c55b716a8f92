"""Draw a sweep: the price of each machine against its relative time, and the Pareto front.

Both axes are logarithmic. A machine is a dot; those on the Pareto front (sweeps/results.py) have a colour and a name,
and a line joins them. Each price list has a panel of its own, one below the other. Numbers without a name are pixels.
"""

from __future__ import annotations

import math
from html import escape

from antiphon.errors import Invalid
from antiphon.show.pictures.chart import COLOURS, GREY, Frame, svg_file
from antiphon.sweeps.results import MachineResult, SweepResult, shared_prefix

WIDTH, HEIGHT = 900, 460  # of a panel
MAX_TICKS = 8  # of an axis
MAX_NAMES = 12  # up to so many machines all are named; else only those on the front
LABEL_HEIGHT = 15  # pixels between labels, so that none covers another


def pareto_svg(result: SweepResult) -> str:
    """Return a whole SVG file. Raises Invalid if no machine has both a price and all plans."""
    machines = result.machines()
    panels = []
    for name in result.request.prices:
        shown = [m for m in machines if m.relative_time is not None and (m.price[name] or 0) > 0]
        if shown:
            panels.append((name, shown))
    if not panels:
        raise Invalid(
            "the picture shows time against price, but no machine that was planned has a price; add [[prices]]"
        )
    body = []
    for i, (name, shown) in enumerate(panels):
        body.append(f'<g transform="translate(0 {i * HEIGHT})">{"".join(_panel(name, shown))}</g>')
    return svg_file(WIDTH, HEIGHT * len(panels), body)


def _panel(name: str, machines: list[MachineResult]) -> list[str]:
    """Return the elements of one price list."""
    # `or` is for the type checker: `pareto_svg` chose machines that have both
    prices = [float(m.price[name] or 0) for m in machines]
    times = [float(m.relative_time or 1) for m in machines]
    # Ends of the axes, as logarithms, with margins. (frame.x and frame.y take prices and times themselves.)
    min_price, max_price = math.log10(min(prices)) - 0.03, math.log10(max(prices)) + 0.03
    min_time, max_time = math.log10(min(times)) - 0.02, math.log10(max(times)) + 0.08
    frame = Frame(
        left=70, top=56, width=WIDTH - 90, height=HEIGHT - 116, min_x=min_price, max_x=max_price, min_y=min_time,
        max_y=max_time,
    )  # fmt: skip
    bottom = frame.top + frame.height
    shared = shared_prefix([m.machine for m in machines])
    title = "relative time against price: the lower the faster, the line joins the best for their price"
    out = [f'<text x="16" y="26" font-size="14" font-weight="600">{escape(title)}</text>']
    out += [f'<text x="16" y="43" fill="#55524b">{escape(shared)}...</text>'] if shared else []
    for value in _ticks(min_time, max_time):
        y = frame.y(value)
        out.append(f'<path d="M{frame.left} {y:.1f} h{frame.width}" stroke="#ebe8e1"/>')
        out.append(f'<text x="{frame.left - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#55524b">{value:g}x</text>')
    for value in _ticks(min_price, max_price):
        x = frame.x(value)
        out.append(f'<path d="M{x:.1f} {frame.top} V{bottom}" stroke="#f3f1ec"/>')
        out.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle" fill="#55524b">{value:,.10g}</text>')
    middle = f'x="{frame.left + frame.width / 2}" y="{HEIGHT - 16}" text-anchor="middle" fill="#55524b"'
    out.append(f"<text {middle}>price ({escape(name)})</text>")
    front = sorted((p, t, m) for p, t, m in zip(prices, times, machines, strict=True) if name in m.on_front)
    points = [(frame.x(price), frame.y(time)) for price, time, _ in front]
    path = " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    out.append(f'<path d="M{path}" fill="none" stroke="{COLOURS[0]}" stroke-width="2"/>')
    dots = zip(prices, times, machines, strict=True)
    for price, time, machine in sorted(dots, key=lambda item: name in item[2].on_front):  # those on the front on top
        colour = COLOURS[0] if name in machine.on_front else GREY
        text = f"{machine.machine}: {time:.3g} times the best, price {price:,.10g}"
        dot = f'cx="{frame.x(price):.1f}" cy="{frame.y(time):.1f}" r="5" fill="{colour}"'
        out.append(f"<circle {dot}><title>{escape(text)}</title></circle>")
    named = [
        (frame.y(time), frame.x(price), m.machine) for price, time, m in zip(prices, times, machines, strict=True)
        if name in m.on_front or len(machines) <= MAX_NAMES
    ]  # fmt: skip
    highest_label = math.inf
    for y, x, machine_name in sorted(named, reverse=True):  # upwards, each above the dot and the label before it
        highest_label = min(y - 9, highest_label - LABEL_HEIGHT)
        side = "end" if x > frame.left + frame.width * 0.6 else "start"
        text = escape(machine_name.removeprefix(shared))
        out.append(f'<text x="{x:.1f}" y="{highest_label:.1f}" text-anchor="{side}">{text}</text>')
    return out


def _ticks(low: float, high: float) -> list[float]:
    """Return round values between two logarithms: powers of ten if over a decade apart, else up to MAX_TICKS."""
    first, last = 10.0**low, 10.0**high
    if high - low > 1:
        return [10.0**k for k in range(math.ceil(low), math.floor(high) + 1)]
    power = 10.0 ** math.floor(math.log10((last - first) / MAX_TICKS))
    step = next(m * power for m in (1, 2, 5, 10, 20) if (last - first) / (m * power) <= MAX_TICKS)
    return [k * step for k in range(math.ceil(first / step), math.floor(last / step) + 1)]
