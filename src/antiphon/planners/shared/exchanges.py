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
from dataclasses import dataclass, replace

import numpy as np

from antiphon.core.columns import Longs
from antiphon.core.transform import Part, Spans, invert
from antiphon.errors import Unsupported
from antiphon.planners.shared.groups import Groups

MOST_WHOLE = 2**62
Path = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class Exchange:
    """The seats of every row are a group; the data of its i-th is that of owner row * width + i of `where`, and as much
    of it, in proportion, as `sizes` says. `path`: the sizes of all exchanges that come before, and of this one."""

    path: Path
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
    every seat, one after the other; or as many owners as there are outermost groups: what each of them holds.
    O(seats^2) spans at most, and a loop over groups.

    >>> from antiphon.planners.shared.groups import given_groups
    >>> line = Spans.side_by_side(np.array([4]))
    >>> for found in exchanges(given_groups("2+2", 4), line):
    ...     print(found.path, found.seats.tolist(), found.where.begin.tolist(), found.where.end.tolist())
    ((1, 1),) [[0, 2], [1, 3]] [0, 2, 1, 3] [1, 3, 2, 4]
    ((1, 1), (1, 1)) [[0, 1], [2, 3]] [0, 2, 1, 3, 0, 2, 1, 3] [1, 3, 2, 4, 1, 3, 2, 4]
    """
    found: dict[Path, list[Exchange]] = {}
    for one in _within(groups, 0, (), line) if len(line) == 1 else _among(groups, line):
        found.setdefault(one.path, []).append(one)
    return [_together(found[path]) for path in sorted(found, key=len)]


def backwards(parts: Sequence[Part]) -> list[Part]:
    """Parts of an allgather on the machine with its links turned become those of a reducescatter."""
    end = max((part.stop for part in parts), default=0)
    turned = {id(part.schedule): invert(part.schedule) for part in parts}
    return [replace(part, schedule=turned[id(part.schedule)], start=end - part.stop) for part in parts]


def after(parts: Sequence[Part], before: Sequence[Part]) -> list[Part]:
    """The same once all of `before` are done."""
    base = max((part.stop for part in before), default=0)
    return [replace(part, start=part.start + base) for part in parts]


def grain(groups: Groups) -> int:
    """Into how many parts the data of every seat must be cut for all borders between stretches to be whole numbers."""
    fine = math.lcm(*_sizes(groups)) ** _depth(groups) if groups.parts and not groups.even() else 1
    if fine * groups.size >= MOST_WHOLE:
        raise Unsupported(
            "groups of so many different sizes share no common measure below 2^62; give options with fewer sizes"
        )
    return fine


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


def _within(groups: Groups, first: int, path: Path, contents: Spans) -> Iterator[Exchange]:
    """What happens in a group from seat `first` on, whose ranks hold these contents together. O(spans)."""
    parts = groups.parts
    if not parts:
        return
    sizes, starts = np.array([part.size for part in parts]), np.array(groups.starts())
    edges, whole = stretches(parts)  # where holders change, in any part: over `whole`
    # of content c, stretch q, part j: from (starts[j] + sizes[j] * edges[q] / whole) / groups.size of it on
    many, q, k = len(contents), len(edges) - 1, len(parts)
    at = (starts * whole + sizes * edges[:-1, None])[:, :, None]  # [stretch, part, content] over size * whole
    size = np.broadcast_to((sizes * np.diff(edges)[:, None])[:, :, None], (q, k, many))
    common = math.gcd(groups.size * whole, int(np.gcd.reduce(at.ravel())), int(np.gcd.reduce(size.ravel())))
    unit = contents.lengths // (groups.size * whole // common)
    low = (at // common * unit).ravel()
    owner = np.broadcast_to(np.arange(many), (q, k, many)).ravel()
    pieces = contents.cut(owner, low, low + (size // common * unit).ravel())
    yield from _on(groups, first, (*path, _ratio(sizes)), pieces, many)


def _among(groups: Groups, shares: Spans) -> Iterator[Exchange]:
    """The same at the outermost level, where part j holds share j, whatever its size."""
    edges, whole = stretches(groups.parts)
    q, k = len(edges) - 1, len(groups.parts)
    unit = shares.lengths // whole
    low = (edges[:-1, None] * unit).ravel()
    pieces = shares.cut(np.tile(np.arange(k), q), low, (edges[1:, None] * unit).ravel())
    yield from _on(groups, 0, (_ratio(shares.lengths),), pieces, 1)


def _on(groups: Groups, first: int, path: Path, pieces: Spans, many: int) -> Iterator[Exchange]:
    """An exchange of pieces by stretch, part and content, of which there are so many; and what follows in the parts."""
    parts = groups.parts
    sizes, starts = np.array([part.size for part in parts]), np.array(groups.starts())
    edges, whole = stretches(parts)
    q, k = len(edges) - 1, len(parts)
    yield Exchange(
        path, first + starts + edges[:-1, None] * sizes // whole, pieces.grouped(np.arange(q * k + 1) * many)
    )
    if all(not part.parts for part in parts):
        return
    # every part now holds all that any of them held: content c of part j, its stretches one after the other
    order = np.arange(q * k * many).reshape(q, k, many).transpose(1, 2, 0).ravel()
    inner = pieces.take(order).grouped(np.arange(k * many + 1) * q)
    for part, start in zip(parts, starts.tolist(), strict=True):
        yield from _within(part, first + start, path, inner)


def _ratio(sizes: Longs) -> tuple[int, ...]:
    return tuple((sizes // np.gcd.reduce(sizes)).tolist())


def stretches(parts: Sequence[Groups]) -> tuple[Longs, int]:
    """Where what a part holds changes hands, for all of them on one scale, and its length.

    >>> from antiphon.planners.shared.groups import given_groups
    >>> stretches(given_groups("2+3", 5).parts)
    (array([0, 2, 3, 4, 6]), 6)
    """
    whole = math.lcm(*(part.size for part in parts))
    edges = {i * (whole // size) for size in {part.size for part in parts} for i in range(size)}
    return np.array([*sorted(edges), whole]), whole
