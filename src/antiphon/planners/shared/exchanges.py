"""Groups within groups: who exchanges what, level by level, so that in the end every rank has everything.

What a group of s ranks holds of a content [0, 1) lies with its rank number floor(x * s) at x: everyone has 1/s. At
every level, the outermost first, the parts of a group exchange, stretch by stretch, what they hold: each stretch among
its holders. So groups of 3 and 4 ranks exchange in 6 stretches, and both are loaded evenly; where all groups are
equally large, ranks of the same number exchange. Run backwards this is a reducescatter, both one after the other an
allreduce.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.core.columns import Longs
from antiphon.core.transform import Spans
from antiphon.planners.shared.groups import Groups


@dataclass(frozen=True, eq=False)
class Exchange:
    """The seats of every row are a group; the data of its i-th is that of owner row * width + i of `where`, and as much
    of it, in proportion, as `sizes` says. `path`: the sizes of all exchanges that come before, and of this one."""

    path: tuple[tuple[int, ...], ...]
    seats: Longs
    where: Spans

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.path[-1]

    @property
    def width(self) -> int:
        return len(self.sizes)


def exchanges(groups: Groups, line: Spans) -> list[Exchange]:
    """All of them, each after those that come before it; `line` has, as its only owner, all data: an equal part for
    every seat, one after the other. O(seats^2) spans at most, and a loop over groups.

    >>> from antiphon.planners.shared.groups import given_groups
    >>> line = Spans.side_by_side(np.array([4]))
    >>> for found in exchanges(given_groups("2+2", 4), line):
    ...     print(found.path, found.seats.tolist(), found.where.begin.tolist(), found.where.end.tolist())
    ((1, 1),) [[0, 2], [1, 3]] [0, 2, 1, 3] [1, 3, 2, 4]
    ((1, 1), (1, 1)) [[0, 1], [2, 3]] [0, 2, 1, 3, 0, 2, 1, 3] [1, 3, 2, 4, 1, 3, 2, 4]
    """
    found: dict[tuple[tuple[int, ...], ...], list[Exchange]] = {}
    for one in _within(groups, 0, (), line):
        found.setdefault(one.path, []).append(one)
    return [_together(found[path]) for path in sorted(found, key=len)]


def grain(groups: Groups) -> int:
    """Into how many parts the data of every seat must be cut for all borders between stretches to be whole numbers."""
    return math.lcm(*_sizes(groups)) ** _depth(groups) if groups.parts and not groups.even() else 1


def _sizes(groups: Groups) -> Iterator[int]:
    yield groups.size
    for part in set(groups.parts):
        yield from _sizes(part)


def _depth(groups: Groups) -> int:
    return 1 + max((_depth(part) for part in groups.parts), default=0)


def _together(some: Sequence[Exchange]) -> Exchange:
    """Those of equal shape as one."""
    if len(some) == 1:
        return some[0]
    spans = [one.where for one in some]
    before = np.cumsum([0, *(len(s.begin) for s in spans[:-1])])
    ptr = np.concatenate([[0], *(s.ptr[1:] + b for s, b in zip(spans, before, strict=True))])
    where = Spans(ptr, np.concatenate([s.begin for s in spans]), np.concatenate([s.end for s in spans]))
    return Exchange(some[0].path, np.concatenate([one.seats for one in some]), where)


def _within(groups: Groups, first: int, path: tuple[tuple[int, ...], ...], contents: Spans) -> Iterator[Exchange]:
    """What happens in a group from seat `first` on, whose ranks hold these contents together. O(spans)."""
    parts = groups.parts
    if not parts:
        return
    sizes, starts = np.array([part.size for part in parts]), np.array(groups.starts())
    edges, whole = stretches(parts)  # where holders change, in any part: over `whole`
    stretch = np.diff(edges)
    # of content c, stretch q, part j: from (starts[j] + sizes[j] * edges[q] / whole) / groups.size of it on
    many, q, k = len(contents), len(stretch), len(parts)
    at = (starts * whole + sizes * edges[:-1, None])[:, :, None]  # [stretch, part, content] over size * whole
    size = np.broadcast_to((sizes * stretch[:, None])[:, :, None], (q, k, many))
    common = math.gcd(groups.size * whole, int(np.gcd.reduce(at.ravel())), int(np.gcd.reduce(size.ravel())))
    unit = contents.lengths // (groups.size * whole // common)
    low = (at // common * unit).ravel()
    owner = np.broadcast_to(np.arange(many), (q, k, many)).ravel()
    pieces = contents.cut(owner, low, low + (size // common * unit).ravel())
    seats = first + starts + edges[:-1, None] * sizes // whole
    where = pieces.grouped(np.arange(q * k + 1) * many)
    path = (*path, tuple((sizes // math.gcd(*sizes.tolist())).tolist()))
    yield Exchange(path, seats, where)
    if all(not part.parts for part in parts):
        return
    # every part now holds all that any of them held: content c of part j, its stretches one after the other
    order = np.arange(q * k * many).reshape(q, k, many).transpose(1, 2, 0).ravel()
    inner = pieces.take(order).grouped(np.arange(k * many + 1) * q)
    for part, start in zip(parts, starts.tolist(), strict=True):
        yield from _within(part, first + start, path, inner)


def stretches(parts: Sequence[Groups]) -> tuple[Longs, int]:
    """Where what a part holds changes hands, for all of them on one scale, and its length.

    >>> from antiphon.planners.shared.groups import given_groups
    >>> stretches(given_groups("2+3", 5).parts)
    (array([0, 2, 3, 4, 6]), 6)
    """
    whole = math.lcm(*(part.size for part in parts))
    edges = {i * (whole // size) for size in {part.size for part in parts} for i in range(size)}
    return np.array([*sorted(edges), whole]), whole
