"""Two kinds of links, a set of trees on each, and the split of the data between them (Blink, 3.4)."""

from __future__ import annotations

from fractions import Fraction


def split(total: Fraction, fast: Fraction, slow: Fraction, waiting: Fraction) -> Fraction:
    """Equation 8: how much of `total` goes over the slow set (PCIe), so that both are through at once.

    `fast`, `slow`: the rates of the sets; `waiting`: T_dpa, how long it takes until the slow one may begin. Small data
    go over the fast set alone: what the paper leaves open, where the equation is negative. O(1).
    """
    share = (total * slow - waiting * slow * fast) / (slow + fast)
    return max(share, Fraction(0))
