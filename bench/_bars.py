"""Times that were measured beside those that were predicted, as SVG: one line of bars each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from antiphon.errors import Invalid
from antiphon.show.pictures.chart import COLOURS, DARK, FONT, GREY
from antiphon.units import format_seconds

_LEFT, _RIGHT, _ROW, _TOP = 240.0, 130.0, 34.0, 56.0


@dataclass(frozen=True)
class Bar:
    """What ran; seconds measured (median, least, most), and predicted, if anything predicts it."""

    name: str
    measured: float
    least: float
    most: float
    predicted: float | None = None


def measured_svg(title: str, bars: Sequence[Bar], width: int = 900) -> str:
    """Bars from nought: measured, with the spread as a line, and a mark where the prediction lies."""
    if not bars:
        raise Invalid("nothing was measured: there is nothing to draw")
    top = max(max(bar.most, bar.predicted or 0.0) for bar in bars) * 1.02
    span = width - _LEFT - _RIGHT
    tall = _TOP + _ROW * len(bars) + 64

    def x(seconds: float) -> float:
        return _LEFT + span * seconds / top

    body: list[str] = []
    bottom = _TOP + _ROW * len(bars)
    for tick in _ticks(top):
        body.append(f'<path d="M{x(tick):.1f} {_TOP - 6:.1f} V{bottom:.1f}" stroke="#ebe8e1"/>')
        label = f'x="{x(tick):.1f}" y="{bottom + 16:.1f}" text-anchor="middle" fill="#55524b"'
        body.append(f"<text {label}>{format_seconds(tick) if tick else '0'}</text>")
    for number, bar in enumerate(bars):
        body += _bar(bar, _TOP + _ROW * number, x)
    body.append(f'<path d="M{_LEFT:.1f} {_TOP - 6:.1f} V{bottom:.1f}" stroke="#8d897f"/>')
    body += _key(bottom + 44)
    size = f'viewBox="0 0 {width} {tall:.0f}" width="{width}" height="{tall:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONT}" font-size="12">'
    back = f'<rect width="{width}" height="{tall:.0f}" fill="#ffffff"/>'
    said = f'<text x="16" y="26" font-size="15" font-weight="600">{escape(title)}</text>'
    return "\n".join([head, back, said, *body, "</svg>"]) + "\n"


def _bar(bar: Bar, y: float, x: Callable[[float], float]) -> list[str]:
    fill, name = COLOURS[0] if bar.predicted is not None else GREY, escape(bar.name)
    middle, left = y + _ROW / 2, x(0.0)
    box = f'x="{left:.1f}" y="{y + 6:.1f}" width="{x(bar.measured) - left:.1f}" height="{_ROW - 14:.1f}" fill="{fill}"'
    out = [
        f'<text x="{_LEFT - 10:.1f}" y="{middle + 4:.1f}" text-anchor="end">{name}</text>',
        f"<rect {box}><title>{name}: {format_seconds(bar.measured)}</title></rect>",
        f'<path d="M{x(bar.least):.1f} {middle - 1:.1f} H{x(bar.most):.1f}" stroke="{DARK}" stroke-width="1.5"/>',
    ]
    told = format_seconds(bar.measured)
    if bar.predicted is not None:
        at = x(bar.predicted)
        out.append(f'<path d="M{at:.1f} {y + 2:.1f} V{y + _ROW - 4:.1f}" stroke="{COLOURS[1]}" stroke-width="3"/>')
        told += f" ({bar.measured / bar.predicted:.2f})"
    end = max(x(bar.most), x(bar.predicted or 0.0))
    out.append(f'<text x="{end + 8:.1f}" y="{middle + 4:.1f}">{told}</text>')
    return out


def _key(y: float) -> list[str]:
    return [
        f'<rect x="{_LEFT:.1f}" y="{y - 9:.1f}" width="26" height="11" fill="{COLOURS[0]}"/>',
        f'<text x="{_LEFT + 34:.1f}" y="{y:.1f}">measured (over predicted)</text>',
        f'<path d="M{_LEFT + 205:.1f} {y - 12:.1f} v16" stroke="{COLOURS[1]}" stroke-width="3"/>',
        f'<text x="{_LEFT + 215:.1f}" y="{y:.1f}">predicted by the links alone</text>',
        f'<path d="M{_LEFT + 400:.1f} {y - 4:.1f} h26" stroke="{DARK}" stroke-width="1.5"/>',
        f'<text x="{_LEFT + 434:.1f}" y="{y:.1f}">least to most</text>',
    ]


def _ticks(top: float) -> list[float]:
    """Round numbers, some five of them."""
    unit = 10.0 ** math.floor(math.log10(top / 5)) if top > 0 else 1.0
    step = next(unit * m for m in (1, 2, 5, 10) if unit * m * 6 >= top)
    return [step * n for n in range(int(top / step) + 1)]
