"""Check what a plan file states of a schedule's rate, bound, origin and prediction; list what cannot be checked.

The rate of a schedule is its bandwidth in the limit of many slices. A planner stores its own figures of a result in the
schedule's provenance, under "found".

Everything in a plan file falls into one of three classes (docs/formats.md, "What verify checks"):

- figures and proofs, which are recomputed here, in `core.verify`, `proofs.check` and `core.ksync.certificate`;
- evidence (witness, certificate), which may be any that still proves what is printed;
- notes, which nothing can check: `notes_of` lists them, and `verify --proof` prints them as stated in the file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.bounds import Bound, assumed_conditions, conditions_text, proved_rate, strip_abilities, witness_of
from antiphon.core.columns import Longs
from antiphon.core.ksync.certificate import BEST_FOUND
from antiphon.core.loads import throughput
from antiphon.core.plan import Entry
from antiphon.core.schedule import REDUCE, Schedule
from antiphon.core.topology import Topology
from antiphon.cost.model_bound import model_bound
from antiphon.cost.proved_limits import ProvedLimits
from antiphon.errors import Invalid, quote
from antiphon.registry import find
from antiphon.units import format_seconds, format_size, plain

# Claims that are recomputed from the schedule; all others are notes.
FIGURES = {
    "chunks", "steps", "rounds", "transfers", "bandwidth_gap", "latency_gap", "proof", "bandwidth_gap_without_switches",
    "assumes", "uses", "rate", "order", "optimality",
}  # fmt: skip
FOUND_FIGURES = {"rate", "optimal", "optimal_without_switches", "best_of_its_kind", "loss", "proof"}
TREE_FIGURES = {"trees", "deepest"}
TREE_PLANNERS = ("trees", "flows")  # their TREE_FIGURES can be recomputed; other planners count per server
EVIDENCE = {"bound", "certificate", "found"}
PREDICTED = {"seconds", "at", "bottleneck"}  # by the model that the plan names
UNPREDICTED = {"profile", "measured"}  # seconds by a profile that the plan only names, or measured
SAME_PREDICTION = 1e-9  # relative: another machine may add doubles in another order
BOUND_FIELDS = {
    "inverse", "bytes_per_second", "without_switches", "witness", "tight", "note", "packing", "assumes",
}  # fmt: skip


def is_same(stated: object, value: object) -> bool:
    """Return whether two JSON values are equal; true and 1 are not."""
    if isinstance(stated, list | tuple) and isinstance(value, list | tuple):
        return len(stated) == len(value) and all(map(is_same, stated, value))
    if isinstance(stated, Mapping) and isinstance(value, Mapping):
        return stated.keys() == value.keys() and all(is_same(stated[key], value[key]) for key in stated)
    return isinstance(stated, bool) == isinstance(value, bool) and stated == value


# ---- the fields of a provenance ----


def found_of(schedule: Schedule) -> Mapping[str, Any]:
    """Return the planner's own figures of its result, under "found"; Invalid if these are no object."""
    if not isinstance(schedule.provenance.get("found"), Mapping | None):
        raise Invalid("found: expected an object; plan anew")
    return planner_figures(schedule)


def planner_figures(schedule: Schedule) -> Mapping[str, Any]:
    """Return the planner's own figures of its result, under "found"; {} if these are no object."""
    figures = schedule.provenance.get("found")
    return figures if isinstance(figures, Mapping) else {}


def certificate_of(schedule: Schedule) -> Mapping[str, Any] | None:
    certificate = schedule.provenance.get("certificate")
    if certificate is not None and not isinstance(certificate, Mapping):
        raise Invalid("certificate: expected an object; plan anew")
    return certificate


def label_of(schedule: Schedule) -> str | None:
    """Return what the schedule is stated to be proved to be; None if nothing (best-found-in-budget is no proof)."""
    label = planner_figures(schedule).get("proof")
    certificate = certificate_of(schedule)
    if label is None and certificate is not None:
        label = certificate.get("proof")
    return label if isinstance(label, str) and (label != BEST_FOUND or certificate is not None) else None


def rate_of(schedule: Schedule) -> str | None:
    """Return the rate that its planner states, in unit links: the limit with ever finer pieces."""
    rate = planner_figures(schedule).get("rate")
    return rate if isinstance(rate, str) else None


# ---- the rate and its bound ----


def rate_text(schedule: Schedule, topology: Topology) -> str | None:
    """Return the rate of a schedule in unit links, exactly, as plans state it; None if it moves nothing."""
    rate = throughput(schedule, topology)
    return None if rate is None else str(rate / topology.unit)


def check_rate(schedule: Schedule, topology: Topology, limits: Bound) -> list[str]:
    """Recompute the rate and its relation to the bounds; return in words what the witness in the plan proves.

    Raises Invalid if a figure does not hold. `limits`: the bounds of this collective on this machine.
    """
    stated, carried = found_of(schedule), schedule.provenance.get("bound")
    limit = None if carried is None else _check_bound(carried, schedule, topology, limits)
    if "rate" not in stated:
        return []
    rate, stated_rate = throughput(schedule, topology), rate_text(schedule, topology)
    max_rate, max_rate_unaided = limits.bytes_per_second, limits.without_help.bytes_per_second
    _require_same("rate", stated, stated_rate)
    _require_same("optimal", stated, rate == max_rate)
    _require_same("optimal_without_switches", stated, rate == max_rate_unaided)
    if rate == max_rate_unaided:
        _require_same("best_of_its_kind", stated, True)
    _require_same("loss", stated, float(1 - rate / max_rate) if rate is not None and max_rate is not None else 0.0)
    if _has_tree_figures(schedule):
        _check_trees(stated, schedule)
    is_called_optimal = stated.get("optimal") or stated.get("optimal_without_switches")
    if rate is None or limit is None or carried is None:
        if limit is None and rate is not None and is_called_optimal:
            raise Invalid(
                f"bound: the rate {stated_rate} is called optimal, but the plan carries no witness; plan anew"
            )
        return []
    if rate > limit:
        raise Invalid("bound: its witness proves another rate than it states; plan anew")
    if is_called_optimal and rate != limit:
        raise Invalid(
            f"bound: the rate {stated_rate} is called optimal, but its witness proves {limit / topology.unit}"
        )
    return [_rate_proof_text(rate, limit, carried, schedule, topology)]


def _has_tree_figures(schedule: Schedule) -> bool:
    """Return whether trees can be counted from the rows: not if other ranks relay."""
    is_whole = len(schedule.collective.members) == schedule.collective.ranks
    return is_whole and schedule.provenance.get("planner") in TREE_PLANNERS


def _check_trees(stated: Mapping[str, Any], schedule: Schedule) -> None:
    """Raise Invalid if the stated number or depth of trees differs from that of the rows."""
    if "trees" in stated:
        counts = count_trees(schedule)
        if not any(is_same(stated["trees"], count) for count in counts):
            listed = " or ".join(map(str, sorted(counts)))
            raise Invalid(f"found.trees: the plan states {quote(stated['trees'])}, but it has {listed}; plan anew")
    if "deepest" in stated:
        _require_same("deepest", stated, deepest_tree(schedule))


def _require_same(key: str, stated: Mapping[str, Any], value: object) -> None:
    if key in stated and not is_same(stated[key], value):
        raise Invalid(f"found.{key}: the plan states {quote(stated[key])}, but it is {quote(value)}; plan anew")


def _rate_proof_text(
    rate: Fraction, limit: Fraction, carried: Mapping[str, Any], schedule: Schedule, topology: Topology
) -> str:
    """Return in words what the witness of a carried bound proves of the rate."""
    relation = "which it attains" if rate == limit else f"{float(limit / rate):.4g} times this rate"
    kind = carried["witness"]["kind"].replace("_", " ")
    witness = witness_of(carried["witness"])
    assumptions = (
        ""
        if _is_helped(carried)
        else conditions_text(assumed_conditions(topology, schedule.collective, witness), " {}")
    )
    return (
        f"rate {rate / topology.unit} unit links; by its {kind}{assumptions} no schedule exceeds "
        f"{limit / topology.unit}, {relation}"
    )


def _is_helped(carried: Mapping[str, Any]) -> bool:
    """Return whether the bound also holds for multicast and reduction in switches."""
    return bool(carried.get("assumes") == [])


def _check_bound(carried: Any, schedule: Schedule, topology: Topology, limits: Bound) -> Fraction | None:
    """Return the rate that the witness of a carried bound proves. Invalid where another field of the bound
    disagrees.
    """
    if not isinstance(carried, Mapping) or not carried.keys() <= BOUND_FIELDS:
        raise Invalid(f"bound: expected an object with fields {', '.join(sorted(BOUND_FIELDS))}; plan anew")
    helped = _is_helped(carried)
    expected = limits if helped else limits.without_help
    collective, value, limit = schedule.collective, carried.get("witness"), None
    assumes: tuple[str, ...] = ()
    if value is not None:
        if not isinstance(value, Mapping):
            raise Invalid("bound: its witness is not an object; plan anew")
        witness = witness_of(value)
        limit = proved_rate(topology if helped else strip_abilities(topology), collective, witness)
        assumes = () if helped else assumed_conditions(topology, collective, witness)
    elif expected.bytes_per_second is not None:
        raise Invalid("bound: carries no witness; plan anew")
    time = Fraction(0) if limit is None else collective.buffer_weight / limit
    fields: dict[str, Any] = {
        "inverse": str(time * topology.unit / collective.input_weight),
        "bytes_per_second": None if limit is None else plain(limit),
        "assumes": list(assumes),
    }
    if limit == expected.bytes_per_second:  # else it is a weaker bound, which nothing is said to attain
        stated = expected.as_json()["bandwidth"]
        fields |= {"tight": stated["tight"], "packing": stated["packing"]}
    else:
        fields |= {"tight": None, "packing": None}
    if helped and limits.unaided is not None:
        rate = limits.without_switches
        fields["without_switches"] = None if rate is None else plain(rate)
    for key, recomputed in fields.items():
        if key in carried and not is_same(carried[key], recomputed):
            proves = "its witness proves another rate than it states: " if key == "bytes_per_second" else ""
            raise Invalid(
                f"bound: {proves}{key} is stated as {quote(carried[key])}, but it is {quote(recomputed)}; plan anew"
            )
    if "without_switches" in carried and "without_switches" not in fields:
        raise Invalid("bound: no switch of this machine can help; leave without_switches out")
    return limit


def check_origin(entry: Entry) -> None:
    """Refuse a claim that another planner made the schedule than the one its provenance names, or one unknown here.

    Installed planners of other packages may wrap ours. `use` must agree with `served_by`.
    """
    from antiphon.planners.table import TABLE
    from antiphon.select.plan_files import OWN

    claimed, stated = entry.claims.get("planner"), entry.schedule.provenance.get("planner")
    if claimed != stated and claimed in TABLE and stated in TABLE:
        raise Invalid(f"planner: the plan claims {quote(claimed)}, but its schedule is by {quote(stated)}; plan anew")
    if claimed not in (None, stated, OWN):
        if not isinstance(claimed, str):
            raise Invalid(f"planner: expected a name, got {quote(claimed)}; plan anew")
        find("planner", claimed)
    if entry.claims.get("use", use := "library" if entry.served_by else "ours") != use:
        raise Invalid(f"use: the plan claims {quote(entry.claims['use'])}, but by `served_by` it is {use}; plan anew")


def _claims_gap(entry: Entry, lower_bound: float | None, seconds: float) -> bool:
    """Return whether the claimed gap is the predicted time ÷ its lower bound, or null where that is unknown or 0."""
    claimed, gap = entry.claims["gap"], seconds / lower_bound if lower_bound else None
    if gap is None or claimed is None:
        return claimed is gap
    is_number = isinstance(claimed, int | float) and not isinstance(claimed, bool)
    return is_number and math.isclose(claimed, gap, rel_tol=SAME_PREDICTION)


def check_prediction(entry: Entry, topology: Topology, proofs: ProvedLimits) -> str | None:
    """Predict again what the plan claims that a model predicts; return it in words, or None if it claims nothing.

    Claims by a profile of the user's are not recomputed: a plan carries the profile's name, and not its figures.
    """
    from antiphon.cost import model_of, prepare

    if not entry.claims.keys() >= PREDICTED | {"model"} or entry.claims.keys() & UNPREDICTED:
        return None
    model = entry.claims["model"]
    if not isinstance(model, str):
        raise Invalid(f"model: expected a name, got {quote(model)}; plan anew")
    model_of(model)
    nbytes, claimed = entry.claims["at"], entry.claims["seconds"]
    if not isinstance(nbytes, int) or isinstance(nbytes, bool) or nbytes < 0:
        raise Invalid(f"at: expected a number of bytes, got {quote(nbytes)}; plan anew")
    prediction = prepare(model, entry.schedule, topology)(nbytes)
    is_number = isinstance(claimed, int | float) and not isinstance(claimed, bool)
    if not is_number or not math.isclose(claimed, prediction.seconds, rel_tol=SAME_PREDICTION):
        raise Invalid(
            f"seconds: the plan claims {quote(claimed)} at {nbytes} bytes, but model {model} predicts "
            f"{prediction.seconds:.9g}; plan anew"
        )
    if entry.claims["bottleneck"] != prediction.bottleneck:
        raise Invalid(
            f"bottleneck: the plan claims {quote(entry.claims['bottleneck'])}, but by model {model} it is "
            f"{quote(prediction.bottleneck)}; plan anew"
        )
    if "gap_model" in entry.claims:
        lower_bound = model_bound(model.partition(":")[0], model_of(model)[1], proofs)
        if not _claims_gap(entry, None if lower_bound is None else lower_bound(nbytes), prediction.seconds):
            raise Invalid(
                f"gap: the plan claims {quote(entry.claims['gap'])} at {nbytes} bytes, which is wrong; plan anew"
            )
    return f"{format_seconds(prediction.seconds)} at {format_size(nbytes)} by model {model}, predicted again"


def notes_of(entry: Entry, is_predicted: bool = False) -> list[str]:
    """List what a plan states of a schedule that nothing recomputes, such as how it was made.

    `is_predicted`: the predictions of its model were recomputed.
    """
    provenance = entry.schedule.provenance
    checked = FIGURES | {"use"} | (PREDICTED | {"model"} if is_predicted else set())
    if is_predicted and "gap_model" in entry.claims:  # older plans hold another gap, which nothing recomputes
        checked |= {"gap", "gap_model"}
    stated, recomputed = planner_figures(entry.schedule), {"proof"}
    if "rate" in stated:
        recomputed |= FOUND_FIGURES | (TREE_FIGURES if _has_tree_figures(entry.schedule) else set())
    groups = (
        ("claims", {k: v for k, v in entry.claims.items() if k not in checked and v != provenance.get(k)}),
        ("provenance", {k: v for k, v in provenance.items() if k not in EVIDENCE}),
        ("found", {k: v for k, v in stated.items() if k not in recomputed}),
    )
    return [
        f"{name}: {', '.join(f'{k} {_short_text(v)}' for k, v in group.items())}" for name, group in groups if group
    ]


def _short_text(value: object) -> str:
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.6g}"
    return value if isinstance(value, str) and value.isprintable() and len(value) <= 80 else quote(value, 80)


# ---- trees, from the transfers alone ----


_MIXERS = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93], np.uint64)
_SHIFT = np.uint64(31)


def count_trees(schedule: Schedule) -> set[int]:
    """Return the numbers of distinct trees that the chunks of one block take: over all roots, and at the root with
    most.

    An allreduce has one block and may have trees with many roots; planners count either. O(n log n).
    """
    hops = _moving_rows(schedule)
    if not len(hops):
        return {0}
    chunk = schedule.chunk[hops].astype(np.int64)
    tree = np.zeros(len(schedule.chunks), np.uint64)  # a chunk's tree by the sum of its hashed hops
    np.add.at(tree, chunk, _hash_hops(schedule, hops))
    moving = np.unique(chunk)
    keys = np.stack(
        [
            schedule.chunks.block[moving].astype(np.int64),
            _chunk_roots(schedule, hops)[moving],
            tree[moving].view(np.int64),
        ]
    )
    distinct = np.unique(keys, axis=1)  # rows: block, root, tree
    block_of_tree = np.unique(distinct[[0, 2]], axis=1)[0]
    trees_of_root = np.unique(distinct[:2], axis=1, return_counts=True)[1]
    return {int(np.bincount(block_of_tree).max()), int(trees_of_root.max())}


def deepest_tree(schedule: Schedule) -> int:
    """Return the longest path, in hops, along which a chunk is copied, or its sums are forwarded. O(n log n)."""
    hops, ranks = _moving_rows(schedule), schedule.collective.ranks
    deepest = 0
    for is_reduce in (False, True):
        rows = hops[(schedule.op[hops] == REDUCE) == is_reduce]
        rows = rows[np.argsort(schedule.step[rows], kind="stable")]
        depth = np.zeros(len(schedule.chunks) * ranks, np.int64)
        base = schedule.chunk[rows].astype(np.int64) * ranks  # depth[base + rank]: hops of the chunk until this rank
        ends = np.flatnonzero(np.diff(schedule.step[rows], append=-1))
        begin = 0
        for end in (ends + 1).tolist():  # step by step: what arrives is forwarded in a later one
            step = slice(begin, end)
            begin = end
            np.maximum.at(
                depth, base[step] + schedule.dst[rows[step]], depth[base[step] + schedule.src[rows[step]]] + 1
            )
        deepest = max(deepest, int(depth.max(initial=0)))
    return deepest


def _moving_rows(schedule: Schedule) -> Longs:
    return np.flatnonzero(schedule.src != schedule.dst).astype(np.int64)


def _hash_hops(schedule: Schedule, hops: Longs) -> NDArray[np.uint64]:
    """Return a hash per hop, by sender, receiver, operation and route."""
    columns: list[NDArray[Any]] = [schedule.src, schedule.dst, schedule.op]
    columns += [] if schedule.route is None else [schedule.route]
    # a hash per hop; their sum over a chunk's hops identifies the chunk's tree regardless of order
    mixed = np.zeros(len(hops), np.uint64)
    for column, mixer in zip(columns, _MIXERS, strict=False):  # without routes one mixer is not needed
        mixed = (mixed ^ column[hops].astype(np.int64).view(np.uint64)) * mixer
        mixed ^= mixed >> _SHIFT
    return mixed


def _chunk_roots(schedule: Schedule, hops: Longs) -> Longs:
    """Return the rank at which the sums of each chunk end; 0 where nothing is summed, as a block then has one root."""
    sums = hops[schedule.op[hops] == REDUCE]
    roots = np.zeros(len(schedule.chunks), np.int64)
    last = sums[np.argsort(schedule.step[sums], kind="stable")]
    roots[schedule.chunk[last]] = schedule.dst[last]
    return roots
