"""Make a schedule of paths: a chunk per path, and a transfer per hop, every path from step 0 on.

Input: paths from senders to receivers with their shares of the block between them, for one sender (or receiver) per
orbit; the symmetries `group` that take these paths to all others. Output of `schedule_paths`: the schedule of all
paths, made in NumPy columns:

    1. pattern: for each path with a share, one chunk of its block, and one row (transfer) per hop
    2. images: a symmetry takes nodes and links to others, so a row's image has the same step and the images of its
       links; a chunk's image belongs to the block between the images of its sender and its receiver
    3. distinct hops become the table of routes; chunks are sorted by block, and blocks that need not move get one chunk

Example: an alltoall on a ring of 4. Rank 0 sends block 0 > 2 by halves over 1 and over 3: two chunks, four rows.
Rotations by 1, 2, 3 give six more chunks and twelve more rows for the pairs 1 > 3, 2 > 0 and 3 > 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import Longs, as_int32, freeze
from antiphon.core.routes import Routes
from antiphon.core.schedule import COPY, Chunks, Schedule
from antiphon.core.topology import Topology
from antiphon.planners.flows.paths import Path, Shares
from antiphon.planners.shared.orbits import Symmetries

Blocks = Mapping[tuple[tuple[int, ...], int], Sequence[int]]  # (sender or holders, receiver) -> blocks between them


@dataclass(frozen=True, eq=False)
class _Pattern:
    """Chunks and rows of the listed paths, without their images, in columns; chunks are numbered as created."""

    sender: Longs  # by chunk: its first holder
    receiver: Longs
    block: Longs
    size: Longs  # in units of 1 / denominator of its block
    offset: Longs  # where it begins in the block, in the same units
    chunk: Longs  # by row
    step: Longs
    links: Longs  # [row, position in the hop], -1 beyond the last


def schedule_paths(
    topology: Topology, collective: Collective, paths: Sequence[Path], shares: Shares, group: Symmetries, blocks: Blocks
) -> Schedule:
    """Return the schedule of these paths and all their images. O(rows log rows).

    `group`: a row per symmetry, the image of every node, then of every link.
    """
    pattern = _make_pattern(paths, shares, blocks)
    nodes, links = topology.nodes, topology.links
    # images of nodes and of links by [symmetry, number], which `group` numbers behind the nodes; -1 (no link) stays -1
    node, link = group[:, :nodes], np.append(group[:, nodes : nodes + links] - nodes, np.full((len(group), 1), -1), 1)
    chunk_count, rows = len(pattern.size), len(pattern.chunk)
    block = _image_blocks(node, pattern, blocks)
    needs_chunk = collective.weights > 0  # blocks without data need none
    needs_chunk[block] = False  # the paths have chunks of these
    unmoved = np.flatnonzero(needs_chunk)  # blocks that stay where they are: one chunk each
    # [row of an image, position in the hop]: links, image by image
    hops = link[:, pattern.links].reshape(len(group) * rows, pattern.links.shape[1])
    routes, route = _distinct_hops(hops)
    first, last = hops[:, 0], np.take_along_axis(hops, (hops >= 0).sum(axis=1)[:, None] - 1, 1)[:, 0]
    by_block = np.argsort(np.concatenate([block, unmoved]), kind="stable")
    chunks = Chunks(
        np.concatenate([block, unmoved])[by_block].astype(np.int32),
        np.concatenate([np.tile(pattern.offset, len(group)), np.zeros(len(unmoved), np.int64)])[by_block],
        np.concatenate([np.tile(pattern.size, len(group)), np.full(len(unmoved), shares.denominator)])[by_block],
        shares.denominator,
    )
    new_number = np.argsort(by_block)  # the inverse: from the old number of a chunk to the new one
    # image g's chunk c is number g * chunk_count + c before the sort by block
    chunk = new_number[(np.arange(len(group))[:, None] * chunk_count + pattern.chunk).ravel()]
    return Schedule(
        collective, _reduce_fractions(chunks), np.tile(pattern.step, len(group)), chunk, topology.link_src[first],
        topology.link_dst[last], np.full(len(chunk), COPY, np.uint8), route=freeze(as_int32(route)), routes=routes,
    )  # fmt: skip


def _make_pattern(paths: Sequence[Path], shares: Shares, blocks: Blocks) -> _Pattern:
    """Return the chunks and rows of these paths; paths without a share are left out."""
    chunks: list[tuple[int, int, int, int, int]] = []  # holder, receiver, block, share, offset
    rows: list[tuple[int, int, tuple[int, ...]]] = []  # chunk, step, links of the hop
    next_offset: dict[tuple[tuple[int, ...], int], int] = {}  # pair -> where its next chunk begins
    for path, share in zip(paths, shares.counts.tolist(), strict=True):
        if not share:
            continue
        offset = next_offset.get(path.pair, 0)
        next_offset[path.pair] = offset + share
        for block in blocks[path.pair]:
            rows += [(len(chunks), step, hop) for step, hop in enumerate(path.hops)]
            (holder, *_), receiver = path.pair
            chunks.append((holder, receiver, block, share, offset))
    max_links = max((len(hop) for *_, hop in rows), default=1)
    links = np.full((len(rows), max_links), -1, np.int64)
    for number, (_, _, hop) in enumerate(rows):
        links[number, : len(hop)] = hop
    senders, receivers, block_of, size_of, offset_of = np.array(chunks, np.int64).reshape(-1, 5).T
    chunk, step = np.array([(chunk, step) for chunk, step, _ in rows], np.int64).reshape(-1, 2).T
    return _Pattern(senders, receivers, block_of, size_of, offset_of, chunk, step, links)


def _image_blocks(node: Longs, pattern: _Pattern, blocks: Blocks) -> Longs:
    """Return the block of every chunk of every image, image by image."""
    if len(node) == 1:
        return pattern.block
    size = node.shape[1]
    table = np.full(size * size, -1, np.int64)
    for (holders, dst), own_blocks in blocks.items():
        # there are symmetries only for an alltoall: one holder and one block per pair
        table[holders[0] * size + dst] = own_blocks[0]
    return table[node[:, pattern.sender] * size + node[:, pattern.receiver]].ravel()


def _distinct_hops(hops: Longs) -> tuple[Routes, Longs]:
    """Return the distinct hops as routes, and the number of each row's route. O(rows log rows).

    >>> routes, route = _distinct_hops(np.array([[3, -1], [0, 2], [3, -1]]))  # links of three rows
    >>> routes.links.tolist(), routes.ptr.tolist(), route.tolist()
    ([0, 2, 3], [0, 2, 3], [1, 0, 1])
    """
    order = np.lexsort(hops.T[::-1])
    sorted_hops = hops[order]
    is_new = np.ones(len(hops), bool)
    is_new[1:] = np.any(sorted_hops[1:] != sorted_hops[:-1], axis=1)
    route = np.empty(len(hops), np.int64)
    route[order] = np.cumsum(is_new) - 1
    unique_hops = sorted_hops[is_new]
    is_link = unique_hops >= 0
    ptr = np.concatenate([[0], np.cumsum(is_link.sum(axis=1))]).astype(np.int64)
    return Routes(ptr, unique_hops[is_link].astype(np.int32)), route


def _reduce_fractions(chunks: Chunks) -> Chunks:
    """Return the chunks with the smallest denominator."""
    divisor = math.gcd(chunks.denominator, *np.unique(chunks.share).tolist(), *np.unique(chunks.offset).tolist())
    return Chunks(chunks.block, chunks.offset // divisor, chunks.share // divisor, chunks.denominator // divisor)
