"""Parse several groups at the same time: which ranks work together, and at which collectives.

    allreduce@every=8                      ranks i, i + 8, i + 16, ...
    allreduce@0-3;4-7                      these groups
    allgather@rows                         the ranks of each host, or of each row of a grid; columns: across them
    allreduce@tensor                       along a dimension of the mesh
    allreduce@data + 2*alltoall@expert     two collectives at the same time, the second with twice the data

A mesh, as PyTorch's DeviceMesh, names dimensions: "data=4,tensor=8" numbers 32 ranks in row-major order, so the groups
along `tensor` are ranks 0-7, 8-15, ..., those along `data` are ranks i, i + 8, i + 16, i + 24. Several names, as in
@data,tensor, make one group of both. The result is one collective of all groups
(core.collective.joint; no joint of switches).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.core.collective import KINDS, Collective, joint, kind_named
from antiphon.core.columns import Longs
from antiphon.core.topology import Topology
from antiphon.errors import Invalid, quote, unknown
from antiphon.options import parse_options
from antiphon.planners.shared.groups import ranks_by_host
from antiphon.units import parse_ranks

_TERM = re.compile(r"(?:(\d+)\s*\*\s*)?([^@*]+)@(.+)")
_EXAMPLE = "allreduce@data + 2*alltoall@expert"
_MESH = "data=4,tensor=8"


def joint_collective(
    spec: str, topology: Topology, *, mesh: str | Mapping[str, int] | None = None, ranks: Sequence[int] | None = None
) -> Collective:
    """Return the joint collective of a text such as "allreduce@data + 2*alltoall@expert".

    `ranks`: those that the mesh numbers and the groups are taken from. Default: all of the machine.
    """
    members = list(range(topology.ranks) if ranks is None else ranks)
    named_axes = None if mesh is None or mesh == "" else _Mesh.of(mesh, members)
    groups: list[Collective] = []
    factors: list[int] = []  # per group, the size of its data relative to the others
    for term in re.split(r"\s*\+\s*", spec.strip()):
        match = _TERM.fullmatch(term)
        if match is None:
            raise Invalid(f"collective {quote(spec)}: expected COLL@GROUPS terms, such as {quote(_EXAMPLE)}")
        factor, name, groups_text = match.groups()
        kind = kind_named(name)
        if kind is None:
            raise unknown("collective", name.strip(), KINDS)
        for group in _list_groups(groups_text.strip(), topology, members, named_axes):
            groups.append(Collective(kind, topology.ranks, tuple(group)))
            factors.append(int(factor or 1))
    if min(factors) < 1:
        raise Invalid(f"collective {quote(spec)}: a factor must be at least 1")
    return joint(groups, factors)


@dataclass(frozen=True, eq=False)
class _Mesh:
    """The ranks as an array with a named axis for each dimension."""

    names: tuple[str, ...]
    ranks: Longs

    @staticmethod
    def of(mesh: str | Mapping[str, int], ranks: Sequence[int]) -> _Mesh:
        """Number the ranks in row-major order; Invalid unless the sizes multiply to their number."""
        sizes = parse_options(mesh.split(","), "mesh", _MESH) if isinstance(mesh, str) else dict(mesh)
        try:
            shape = [int(size) for size in sizes.values()]
        except (TypeError, ValueError):
            shape = []
        if not shape or min(shape) < 1 or not all(re.fullmatch(r"[A-Za-z_]\w*", str(name)) for name in sizes):
            raise Invalid(f"mesh: expected dimensions with their sizes, such as {_MESH}, got {quote(mesh)}")
        if math.prod(shape) != len(ranks):
            product = "*".join(map(str, shape))
            raise Invalid(f"mesh {quote(mesh)}: {product} = {math.prod(shape)}, but there are {len(ranks)} ranks")
        return _Mesh(tuple(sizes), np.array(ranks).reshape(shape))

    def along(self, names: Sequence[str]) -> list[list[int]]:
        """Return the groups of ranks that differ in these dimensions only."""
        for name in names:
            if name not in self.names:
                raise unknown("dimension of the mesh", name, self.names)
        if len(set(names)) < len(names):
            raise Invalid(f"mesh: a dimension is named twice in {quote(','.join(names))}")
        axes = [self.names.index(name) for name in names]
        axes_last = np.moveaxis(self.ranks, axes, range(-len(axes), 0))
        groups: list[list[int]] = axes_last.reshape(-1, math.prod(axes_last.shape[-len(axes) :])).tolist()
        return groups


def _list_groups(text: str, topology: Topology, ranks: Sequence[int], mesh: _Mesh | None) -> list[list[int]]:
    """Return the groups that a text names, checked: at least two ranks each, no rank twice.

    `ranks`: those that may be in groups. `mesh`: None if the request has none.
    """
    label, stride_match = f"groups {quote(text)}", re.fullmatch(r"every=(\d{1,9})", text)
    if stride_match is not None:
        stride = int(stride_match[1])
        if stride < 1:
            raise Invalid(f"{label}: expected a stride from 1")
        groups = [list(ranks[first::stride]) for first in range(min(stride, len(ranks)))]
    elif text in ("rows", "columns"):
        groups = grid_rows = ranks_by_host(topology, ranks)  # the ranks of a host, or of a row of a mesh or torus
        if len(grid_rows) < 2:
            raise Invalid(f"{label}: {topology.name} has one row; name the groups themselves, such as 0-3;4-7")
        if text == "columns":  # rank i of every row that has more than i ranks
            longest = max(map(len, grid_rows))
            groups = [[row[i] for row in grid_rows if i < len(row)] for i in range(longest)]
    elif re.match(r"\d", text):
        groups = [parse_ranks(group, label) for group in text.split(";")]  # refuses a rank twice in a group
    elif mesh is None:
        raise Invalid(f"{label}: expected 0-3;4-7, every=8, rows, columns, or a dimension of --mesh {_MESH}")
    else:
        groups = mesh.along([name.strip() for name in text.split(",")])
    owner: dict[int, int] = {}
    for number, group in enumerate(groups):
        if len(group) < 2:
            listed = f"only rank {group[0]}" if group else "no rank"
            raise Invalid(f"{label}: group {number} has {listed}; a group needs at least 2 ranks")
        for rank in group:
            if rank not in ranks:
                raise Invalid(f"{label}: rank {rank} is not there; {topology.name} has {_describe(ranks)}")
            if owner.setdefault(rank, number) != number:
                raise Invalid(f"{label}: rank {rank} is in group {owner[rank]} and in group {number}; groups of one "
                              "collective have no rank in common")  # fmt: skip
    return groups


def _describe(ranks: Sequence[int]) -> str:
    """Return the available ranks in words, for an error."""
    is_range = list(ranks) == list(range(ranks[0], ranks[-1] + 1))
    if is_range:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:8]))}{', ...' if len(ranks) > 8 else ''}"
