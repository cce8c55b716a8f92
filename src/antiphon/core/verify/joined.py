"""Check joints (rows that a switch turns into one multicast or reduction) against the rules of docs/schedule.md.

Input: a schedule with joints and the path of every row. Output: the first faulty joint, or None. Three checks: the rows
of a joint agree (one step, chunk and operation) and none is missing; their paths form a tree whose switches have the
needed abilities (branching.py); no switch serves more joints at once than it can (`at_once`). No code is shared with
planners.

Example: rows 0 -> 1 and 0 -> 2 of one joint are a multicast. With a third row 3 -> 1 the joint has the sources 0 and 3
and the destinations 1 and 2, so it lacks the row 3 -> 2; and it would have to reduce.
"""

from __future__ import annotations

import numpy as np

from antiphon.core.columns import (
    Longs,
    distinct,
    number_rows,
    pointers,
    run_starts,
)
from antiphon.core.loads import pieces_of
from antiphon.core.routes import Resolved
from antiphon.core.schedule import REDUCE, Schedule
from antiphon.core.topology import Topology
from antiphon.core.verify.branching import Abilities, JointForest, JointRows, branch_faults, shape_faults
from antiphon.core.verify.report import Fault, row_fault


def find_joint_fault(
    schedule: Schedule, topology: Topology, resolved: Resolved, op: str | None, dtype: str | None
) -> Fault | None:
    """Return the first faulty joint as a fault of its first row, in the order of steps and chunks; or None.

    `op`, `dtype`: the operator (sum, max, ...) and data type that switches must combine; None: any. Routes must have
    been checked before. O(n log n) in the rows of joints times links per route.
    """
    joints = _collect_joints(schedule)
    faults = _find_disagreements(schedule, joints)
    joints = joints.only(_joints_without(joints, faults))
    tree = JointForest.of(joints, topology, resolved)
    tree_faults = shape_faults(joints, tree, topology)
    faults |= tree_faults
    if tree_faults:
        joints = joints.only(_joints_without(joints, tree_faults))
        tree = JointForest.of(joints, topology, resolved)
    # Check with the operator and type; if only these are the reason, the fault names them, not "cannot combine".
    abilities = Abilities.of(topology, op, dtype)
    ability_faults = branch_faults(joints, tree, topology, abilities)
    if ability_faults and (op or dtype):
        faults_without_data = branch_faults(joints, tree, topology, Abilities.of(topology, op=None, dtype=None))
        requested = " of ".join(word for word in (op, dtype) if word)
        for joint in ability_faults.keys() - faults_without_data.keys():
            ability_faults[joint] = f"needs a switch to combine that cannot do {requested}"
    faults |= ability_faults
    for joint, fault in _find_overloads(schedule, joints, tree, topology, abilities).items():
        faults.setdefault(joint, fault)
    return _first_fault(schedule, faults)


def _collect_joints(schedule: Schedule) -> JointRows:
    """Return the rows of joints with at least two rows, grouped by joint.

    >>> from antiphon.core.example import of_rows
    >>> rows = [(0, 0, 0, 1, 0), (0, 0, 0, 2, 0), (1, 0, 1, 3, 0), (1, 0, 2, 4, 0)]
    >>> joints = _collect_joints(of_rows("broadcast", 5, rows, roots=(0,), joint=[7, 7, -1, 3]))
    >>> joints.row.tolist(), joints.joint_of.tolist(), joints.ptr.tolist(), joints.src.tolist(), joints.dst.tolist()
    ([0, 1], [0, 0], [0, 2], [0, 0], [1, 2])
    """
    assert schedule.joint is not None
    rows = np.flatnonzero(schedule.joint >= 0)
    rows = rows[np.argsort(schedule.joint[rows], kind="stable")]
    joint_number = schedule.joint[rows]
    first = run_starts(joint_number)
    size = np.diff(np.append(np.flatnonzero(first), len(rows)))
    rows, joint_number = rows[np.repeat(size > 1, size)], joint_number[np.repeat(size > 1, size)]
    joint_of = np.cumsum(run_starts(joint_number)) - 1
    ptr = pointers(joint_of, int(joint_of[-1]) + 1 if len(joint_of) else 0)
    return JointRows(rows, joint_of, ptr, schedule.src[rows], schedule.dst[rows])


def _joints_without(joints: JointRows, faults: dict[int, str]) -> Longs:
    """Return the joints without a fault; the keys of `faults` are first rows."""
    row = joints.row[joints.ptr[:-1]]
    return np.flatnonzero(~np.isin(row, np.array(list(faults), np.int64)))


def _first_fault(schedule: Schedule, faults: dict[int, str]) -> Fault | None:
    """Return the earliest of the faults, which are keyed by the first row of a joint."""
    if not faults:
        return None
    row = min(faults, key=lambda first_row: (int(schedule.step[first_row]), int(schedule.chunk[first_row]), first_row))
    return row_fault("joint", schedule, row, f"is in a joint that {faults[row]}")


def _find_disagreements(schedule: Schedule, joints: JointRows) -> dict[int, str]:
    """Return joints whose rows differ in step, chunk or op, use two cells of one rank, or lack a (source, destination)
    pair; keyed by the first row of the joint."""
    first = joints.ptr[:-1]
    faults: dict[int, str] = {}

    def report(faulty: Longs, fault: str) -> None:
        for joint in distinct(faulty).tolist():
            faults.setdefault(int(joints.row[first[joint]]), fault)

    for name in ("step", "chunk", "op"):
        values = getattr(schedule, name)[joints.row]
        report(joints.joint_of[values != values[first][joints.joint_of]], f"has rows of different {name}s")
    for end, name in ((joints.src, "reads"), (joints.dst, "writes")):
        slot = schedule.slot("src" if name == "reads" else "dst")[joints.row]
        rank_of_joint = number_rows(joints.joint_of, end)  # per row: a number for its joint and rank
        order = np.argsort(rank_of_joint, kind="stable")
        # by number in `rank_of_joint`: the position, among the rows of joints, of its first row
        first_rows = order[run_starts(rank_of_joint[order])]
        report(joints.joint_of[slot != slot[first_rows][rank_of_joint]], f"{name} two slots of one rank")
    report(joints.joint_of[joints.src == joints.dst], "moves data inside one rank")
    joint_count = len(joints)
    rows = np.diff(joints.ptr)
    _, row_of_pair = np.unique(number_rows(joints.joint_of, joints.src, joints.dst), return_index=True)
    pair_count = np.bincount(joints.joint_of[row_of_pair], minlength=joint_count)  # of distinct (src, dst)
    report(np.flatnonzero(pair_count != rows), "has two rows from one rank to one rank")
    report(np.flatnonzero(joints.lacking != 0), "lacks a row: one from every source to every destination is needed")
    reduces = schedule.op[joints.row][first] == REDUCE
    report(
        np.flatnonzero((joints.sources > 1) & ~reduces),
        "has several sources, but copies; only what reduces is combined",
    )
    return faults


def _find_overloads(
    schedule: Schedule, joints: JointRows, tree: JointForest, topology: Topology, abilities: Abilities
) -> dict[int, str]:
    """Return joints that exceed the number that a switch serves in one step (`at_once`), by first row.

    A joint counts at every switch at which its tree branches or meets, in every step in which a piece of it is sent.
    Switches with `at_once` 0 have no limit.
    """
    # with two edges, a switch only forwards
    branching = np.flatnonzero((tree.edges_at > 2) & (abilities.at_once[tree.node] > 0))
    if not len(branching):
        return {}
    # One entry per joint and switch; the first row stands for the joint.
    first_row = joints.row[joints.ptr[:-1]][tree.joint[branching]]
    node, step = tree.node[branching], schedule.step[first_row].astype(np.int64)
    end = step + pieces_of(schedule)[schedule.chunk[first_row]]
    change = np.repeat([1, -1], len(branching))
    switch = np.concatenate([node, node])
    # Sweep per switch over begins (+1) and ends (-1); ends come first at equal times.
    order = np.lexsort((np.tile(first_row, 2), change, np.concatenate([step, end]), switch))
    open_joints = np.cumsum(change[order])  # joints open at the switch; each begin has its end
    excess = order[(open_joints > abilities.at_once[switch[order]]) & (change[order] > 0)]
    # All of `excess` are begins, whose positions are those of `branching`.
    return {
        int(first_row[i]): f"is one too many for {topology.node_name(int(node[i]))}, which serves "
        f"{abilities.at_once[node[i]]} at once"
        for i in excess.tolist()
    }
