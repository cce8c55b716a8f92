"""Check what a plan file states of a schedule's rate, bound, origin and prediction; list what cannot be checked.

The rate of a schedule is its bandwidth in the limit of many slices. A plan file makes statements in three places:

    entry.claims           by tuning, for a range of sizes: predicted seconds, gap, planner, steps, ...
    schedule.provenance    by the planner: its name, options, seed, lower bound and witness (under "bound")
    provenance["found"]    by the planner, on its result: rate, optimal or not, number of trees, ...

Each statement is of one of three classes (docs/formats.md, "What verify checks"):

- figures and proofs. They are recomputed: here, in `core.verify`, in `proofs.check`, and in `core.ksync.certificate`,
  which checks the certificate of a search for (C, S, R).
- evidence (witness, certificate). `verify` accepts any that proves the printed figures, even another than the
  planner's.
- notes, which nothing can check. `notes_of` lists them, and `verify --proof` prints them as stated in the file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from itertools import accumulate
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
from antiphon.cost.bound_evaluator import BoundEvaluator
from antiphon.cost.model_bound import model_bound
from antiphon.errors import Invalid, list_first, quote
from antiphon.registry import find
from antiphon.select.ranges import ends_of
from antiphon.units import format_seconds, format_size, plain

# Claims of an entry that are recomputed from the schedule; all others are notes.
CLAIMED_FIGURES = {
    "chunks", "steps", "rounds", "transfers", "bandwidth_gap", "latency_gap", "proof", "bandwidth_gap_without_switches",
    "assumes", "uses", "rate", "order", "optimality",
}  # fmt: skip
# Keys of "found" that are checked if it has a rate (docs/planners/trees.md explains them). best_of_its_kind (no other
# packing of trees is faster) must be true where the bound is met; elsewhere `proofs` lists it as not proved.
FOUND_FIGURES = {"rate", "optimal", "optimal_without_switches", "best_of_its_kind", "loss", "proof"}
TREE_FIGURES = {"trees", "deepest"}  # number of trees, and hops of the longest path in one
TREE_PLANNERS = ("trees", "flows", "blink")  # their TREE_FIGURES can be recomputed
# Keys of "found" that read like figures: a built-in planner that does not compute them may not write them.
# meaning: what the figures of a point (C, S, R) prove, in words.
RESERVED_FINDINGS = TREE_FIGURES | {"meaning"}
MAX_NOTE = 80  # characters of a value, or of a list's items together, that are shown in a note
NOT_NOTES = {"bound", "certificate", "found"}  # keys of a provenance that hold evidence or figures
PREDICTED = {"seconds", "at", "bottleneck"}  # claims by the model that the plan names
UNPREDICTED = {"profile", "measured"}  # with one of these claims the seconds are by a user's profile, or measured
SAME_PREDICTION = 1e-9  # relative difference: another computer may add doubles in another order
# Keys of provenance["bound"]: the fields of `Bound.as_json`. packing: trees found that attain the bound.
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


def findings_or_invalid(schedule: Schedule) -> Mapping[str, Any]:
    """Return what the planner states of its result, under "found". Raises Invalid if that is no object."""
    if not isinstance(schedule.provenance.get("found"), Mapping | None):
        raise Invalid("found: expected an object; plan anew")
    return findings_or_empty(schedule)


def findings_or_empty(schedule: Schedule) -> Mapping[str, Any]:
    """Return what the planner states of its result, under "found"; {} if that is no object."""
    figures = schedule.provenance.get("found")
    return figures if isinstance(figures, Mapping) else {}


def certificate_of(schedule: Schedule) -> Mapping[str, Any] | None:
    """Return the certificate in a plan, unchecked; None if it has none. Raises Invalid if it is no object."""
    certificate = schedule.provenance.get("certificate")
    if certificate is not None and not isinstance(certificate, Mapping):
        raise Invalid("certificate: expected an object; plan anew")
    return certificate


def label_of(schedule: Schedule) -> str | None:
    """Return the optimality that the plan states, such as "optimal"; None if it states none.

    BEST_FOUND alone states nothing: the search stopped. With a certificate it is returned, as the certificate may prove
    how far the search got.
    """
    label = findings_or_empty(schedule).get("proof")
    certificate = schedule.provenance.get("certificate")
    if label is None and isinstance(certificate, Mapping):
        label = certificate.get("proof")
    return label if isinstance(label, str) and (label != BEST_FOUND or certificate is not None) else None


def rate_of(schedule: Schedule) -> str | None:
    """Return the rate that the planner states, in unit links, as text such as "7/6"; None if it states none."""
    rate = findings_or_empty(schedule).get("rate")
    return rate if isinstance(rate, str) else None


# ---- the rate and its bound ----


def rate_text(schedule: Schedule, topology: Topology) -> str | None:
    """Return the rate of a schedule in unit links, exactly, as plans state it; None if it moves nothing."""
    rate = throughput(schedule, topology)
    return None if rate is None else str(rate / topology.unit)


def check_rate(schedule: Schedule, topology: Topology, machine_bound: Bound) -> list[str]:
    """Recompute the rate and its relation to the bounds; return in words what the witness in the plan proves.

    Raises Invalid if a figure does not hold. `machine_bound`: the lower bound of this collective on this machine,
    computed here. The plan has its own copy of the bound (`stored_bound`), whose witness proves `witness_rate`.
    """
    findings, stored_bound = findings_or_invalid(schedule), schedule.provenance.get("bound")
    witness_rate = None if stored_bound is None else _check_bound(stored_bound, schedule, topology, machine_bound)
    _check_reserved(findings, schedule)
    if "rate" not in findings:
        return []
    rate, recomputed_rate = throughput(schedule, topology), rate_text(schedule, topology)
    max_rate = machine_bound.bytes_per_second
    max_rate_unaided = machine_bound.without_help.bytes_per_second  # if switches only forward
    _require_same("rate", findings, recomputed_rate)
    _require_same("optimal", findings, rate == max_rate)
    _require_same("optimal_without_switches", findings, rate == max_rate_unaided)
    if rate == max_rate_unaided:
        _require_same("best_of_its_kind", findings, recomputed=True)
    _require_same("loss", findings, float(1 - rate / max_rate) if rate is not None and max_rate is not None else 0.0)
    is_called_optimal = findings.get("optimal") or findings.get("optimal_without_switches")
    if rate is None or witness_rate is None or stored_bound is None:  # without a stored bound there is no witness_rate
        if witness_rate is None and rate is not None and is_called_optimal:
            raise Invalid(
                f"bound: the rate {recomputed_rate} is called optimal, but the plan carries no witness; plan anew"
            )
        return []
    if rate > witness_rate:  # the witness relies on conditions that the machine does not meet
        raise Invalid(
            f"bound: the rate {recomputed_rate} exceeds {witness_rate / topology.unit}, the greatest by its witness; "
            "plan anew"
        )
    if is_called_optimal and rate != witness_rate:
        raise Invalid(
            f"bound: the rate {recomputed_rate} is called optimal, but its witness proves "
            f"{witness_rate / topology.unit}"
        )
    return [_rate_proof_text(rate, witness_rate, stored_bound, schedule, topology)]


def _has_tree_figures(schedule: Schedule) -> bool:
    """Return whether trees can be counted from the rows: not if ranks that are no members relay."""
    are_all_members = len(schedule.collective.members) == schedule.collective.ranks
    return are_all_members and schedule.provenance.get("planner") in TREE_PLANNERS


def _check_reserved(findings: Mapping[str, Any], schedule: Schedule) -> None:
    """Raise Invalid for a stated number or depth of trees that is not that of the rows, or that no planner states."""
    from antiphon.planners.table import TABLE

    planner, has_trees = schedule.provenance.get("planner"), _has_tree_figures(schedule)
    is_builtin = planner in TABLE  # planners of other packages may give these keys a meaning of their own
    for key in sorted(RESERVED_FINDINGS & findings.keys()) if is_builtin else ():
        if key not in TREE_FIGURES or planner not in TREE_PLANNERS:
            raise Invalid(f"found.{key}: planner {planner} states no such figure; plan anew, or leave it out")
    if has_trees and "trees" in findings:
        counts = count_trees(schedule)
        if not any(is_same(findings["trees"], count) for count in counts):
            listed = " or ".join(map(str, sorted(counts)))
            raise Invalid(f"found.trees: the plan states {quote(findings['trees'])}, but it has {listed}; plan anew")
    if has_trees and "deepest" in findings:
        _require_same("deepest", findings, deepest_tree(schedule))


def _require_same(key: str, findings: Mapping[str, Any], recomputed: object) -> None:
    """Raise Invalid if a figure under "found" is there and differs from the recomputed one."""
    if key in findings and not is_same(findings[key], recomputed):
        raise Invalid(f"found.{key}: the plan states {quote(findings[key])}, but it is {quote(recomputed)}; plan anew")


def _rate_proof_text(
    rate: Fraction, witness_rate: Fraction, stored_bound: Mapping[str, Any], schedule: Schedule, topology: Topology
) -> str:
    """Return in words what the witness of the stored bound proves of the rate."""
    relation = "which the trees attain" if rate == witness_rate else f"{float(witness_rate / rate):.4g} times this rate"
    kind = stored_bound["witness"]["kind"].replace("_", " ")
    witness = witness_of(stored_bound["witness"])
    # the conditions of the witness on switches, in words, with a space before them
    conditions = () if _counts_switch_help(stored_bound) else assumed_conditions(topology, schedule.collective, witness)
    assumptions = conditions_text(conditions, " {}")
    return (
        f"rate {rate / topology.unit} unit links; by its {kind}{assumptions} no schedule exceeds "
        f"{witness_rate / topology.unit}, {relation}"
    )


def _counts_switch_help(stored_bound: Mapping[str, Any]) -> bool:
    """Return whether the bound also holds for schedules in which switches multicast and reduce.

    "assumes" lists the abilities (multicast, reduce) that the bound assumes switches not to use; [] means it holds
    with all of them. The key is missing in plans for machines whose switches have none.
    """
    return bool(stored_bound.get("assumes") == [])


def _check_bound(stored_bound: Any, schedule: Schedule, topology: Topology, machine_bound: Bound) -> Fraction | None:
    """Return the rate that the witness of the stored bound proves, in bytes per second; None if there is no limit.

    Raises Invalid if another field of the bound disagrees with the witness or with the machine's bound.
    """
    if not isinstance(stored_bound, Mapping) or not stored_bound.keys() <= BOUND_FIELDS:
        raise Invalid(f"bound: expected an object with fields {', '.join(sorted(BOUND_FIELDS))}; plan anew")
    with_help = _counts_switch_help(stored_bound)
    expected = machine_bound if with_help else machine_bound.without_help
    collective = schedule.collective
    witness_json = stored_bound.get("witness")
    limit: Fraction | None = None
    assumes: tuple[str, ...] = ()
    if witness_json is not None:
        if not isinstance(witness_json, Mapping):
            raise Invalid("bound: its witness is not an object; plan anew")
        witness = witness_of(witness_json)
        limit = proved_rate(topology if with_help else strip_abilities(topology), collective, witness)
        assumes = () if with_help else assumed_conditions(topology, collective, witness)
    elif expected.bytes_per_second is not None:
        raise Invalid("bound: carries no witness; plan anew")
    # R/C is the time per byte of the greatest input, times the bandwidth of the unit link; a block of weight 1 has one
    # byte here, so that nbytes is `buffer_weight` and the greatest input `input_weight`
    seconds = Fraction(0) if limit is None else collective.buffer_weight / limit
    fields: dict[str, Any] = {
        "inverse": str(seconds * topology.unit / collective.input_weight),
        "bytes_per_second": None if limit is None else plain(limit),
        "assumes": list(assumes),
    }
    if limit == expected.bytes_per_second:
        expected_json = expected.as_json()["bandwidth"]
        fields |= {"tight": expected_json["tight"], "packing": expected_json["packing"]}
    else:  # a weaker bound than the machine's: whether schedules come close to it is not known
        fields |= {"tight": None, "packing": None}
    if with_help and machine_bound.unaided is not None:  # there is one if some switch can help
        rate = machine_bound.without_switches
        fields["without_switches"] = None if rate is None else plain(rate)
    for key, recomputed in fields.items():
        if key in stored_bound and not is_same(stored_bound[key], recomputed):
            proves = "its witness proves another rate than it states: " if key == "bytes_per_second" else ""
            raise Invalid(
                f"bound: {proves}{key} is stated as {quote(stored_bound[key])}, but it is {quote(recomputed)}; "
                "plan anew"
            )
    if "without_switches" in stored_bound and "without_switches" not in fields:
        raise Invalid("bound: no switch of this machine can help; leave without_switches out")
    return limit


def check_origin(entry: Entry) -> None:
    """Raise Invalid if the entry claims another planner than its schedule's provenance names, or one not installed.

    A planner of another package may wrap one of ours, so that claim and provenance name different planners: only if
    both are ours must they be the same. OWN_PLANS stands for a schedule that a user made. The claim `use` is "library"
    if a library's own algorithm serves these sizes (`served_by`), else "ours".
    """
    from antiphon.planners.table import TABLE
    from antiphon.select.plan_files import OWN_PLANS

    claimed, stated = entry.claims.get("planner"), entry.schedule.provenance.get("planner")
    if claimed != stated and claimed in TABLE and stated in TABLE:
        raise Invalid(f"planner: the plan claims {quote(claimed)}, but its schedule is by {quote(stated)}; plan anew")
    if claimed not in (None, stated, OWN_PLANS):
        if not isinstance(claimed, str):
            raise Invalid(f"planner: expected a name, got {quote(claimed)}; plan anew")
        find("planner", claimed)
    use = "library" if entry.served_by else "ours"
    if entry.claims.get("use", use) != use:
        raise Invalid(f"use: the plan claims {quote(entry.claims['use'])}, but by `served_by` it is {use}; plan anew")


def _is_same_gap(claimed: Any, gap: float | None) -> bool:
    """Return whether a claimed gap is that of the prediction, or null where none is known."""
    if gap is None or claimed is None:
        return claimed is None and gap is None
    is_number = isinstance(claimed, int | float) and not isinstance(claimed, bool)
    return is_number and math.isclose(claimed, gap, rel_tol=SAME_PREDICTION)


def _priced_sizes(entry: Entry) -> list[int]:
    """Return the sizes that the greatest gap is of, up to that of the other figures; [] if the entry states none."""
    sizes = entry.claims.get("sizes", [])
    are_whole = isinstance(sizes, list) and all(isinstance(size, int) and not isinstance(size, bool) for size in sizes)
    if not are_whole or (sizes and not 0 <= min(sizes) <= max(sizes) == entry.claims["at"]):
        raise Invalid(f"sizes: expected sizes of the range up to `at`, got {quote(sizes)}; plan anew")
    return sizes if "largest_gap" in entry.claims else []


def check_prediction(entry: Entry, topology: Topology, proofs: BoundEvaluator) -> str | None:
    """Predict again what the entry claims by a model; return it in words, or None if it claims no such prediction.

    Raises Invalid if a claim differs. Predictions by a user's profile are not recomputed: a plan has the profile's
    name, but not its figures.
    """
    from antiphon.cost import model_of, prepare

    if not entry.claims.keys() >= PREDICTED | {"model"} or entry.claims.keys() & UNPREDICTED:
        return None
    model = entry.claims["model"]
    if not isinstance(model, str):
        raise Invalid(f"model: expected a name, got {quote(model)}; plan anew")
    model_of(model)  # raises Invalid for an unknown one
    nbytes, claimed = entry.claims["at"], entry.claims["seconds"]
    if not isinstance(nbytes, int) or isinstance(nbytes, bool) or nbytes < 0:
        raise Invalid(f"at: expected a number of bytes, got {quote(nbytes)}; plan anew")
    predict = prepare(model, entry.schedule, topology)
    prediction = predict(nbytes)
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
        model_name, _, _ = model.partition(":")
        _, options = model_of(model)
        try:
            lower_bound = model_bound(model_name, options, proofs)
        except (ArithmeticError, LookupError, ValueError) as error:  # evidence of a file may be of any shape
            raise Invalid(f"gap_evidence: cannot be evaluated ({error}); plan anew") from None

        def gap_at(size: int) -> float | None:
            """Return the gap of this schedule at a size; None where the lower bound is unknown or 0."""
            bound_seconds = lower_bound(size) if lower_bound is not None else None
            return predict(size).seconds / bound_seconds if bound_seconds else None

        for key, sizes in (("gap", [nbytes]), ("largest_gap", _priced_sizes(entry))):
            if sizes and not _is_same_gap(entry.claims.get(key), ends_of([gap_at(size) for size in sizes])[1]):
                raise Invalid(
                    f"{key}: the plan claims {quote(entry.claims.get(key))} at {list_first(sizes)} bytes, which is "
                    "wrong; plan anew"
                )
        if entry.claims["gap_model"] != (None if entry.claims["gap"] is None else model):
            raise Invalid(
                f"gap_model: the plan claims {quote(entry.claims['gap_model'])}, but the gap holds by the model of "
                f"the prediction, {model}; plan anew"
            )
    return f"{format_seconds(prediction.seconds)} at {format_size(nbytes)} by the model `{model}`, predicted again"


def notes_of(entry: Entry, is_predicted: bool = False) -> list[str]:
    """List what a plan states of a schedule that nothing recomputes, such as how it was made.

    `is_predicted`: the predictions of its model were recomputed.
    """
    provenance = entry.schedule.provenance
    checked = CLAIMED_FIGURES | {"use"} | (PREDICTED | {"model"} if is_predicted else set())
    if is_predicted and "gap_model" in entry.claims:  # older plans hold another gap, which nothing recomputes
        checked |= {"gap", "gap_model", "gap_evidence", "sizes"}
        checked |= {"largest_gap"} if "sizes" in entry.claims else set()
    findings, recomputed = findings_or_empty(entry.schedule), {"proof"}
    recomputed |= FOUND_FIGURES if "rate" in findings else set()
    recomputed |= TREE_FIGURES if _has_tree_figures(entry.schedule) else set()
    groups = (
        ("claims", {k: v for k, v in entry.claims.items() if k not in checked and v != provenance.get(k)}),
        ("provenance", {k: v for k, v in provenance.items() if k not in NOT_NOTES}),
        ("found", {k: v for k, v in findings.items() if k not in recomputed}),
    )
    return [
        f"{name}: {', '.join(f'{k} = {_short_text(v)}' for k, v in group.items())}" for name, group in groups if group
    ]


def _short_text(value: object, levels: int = 3) -> str:
    """Return a value of a plan as text: of a long list its first items, of values nested deeper than `levels` only the
    beginning.
    """
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.6g}"
    if isinstance(value, Mapping | list | tuple) and not value:
        return "none"
    if isinstance(value, Mapping) and levels:
        return f"({', '.join(f'{_short_text(str(k))} {_short_text(v, levels - 1)}' for k, v in value.items())})"
    if isinstance(value, list | tuple) and levels:
        items = [_short_text(item, levels - 1) for item in value]
        shown = max(1, sum(total <= MAX_NOTE for total in accumulate(map(len, items))))
        omitted = f" and {len(items) - shown} more" if len(items) > shown else ""
        return "; ".join(items[:shown]) + omitted
    is_short = isinstance(value, str) and value.isprintable() and len(value) <= MAX_NOTE
    return str(value) if is_short else quote(value, limit=MAX_NOTE)


# ---- trees, from the transfers alone ----


# odd constants of well-known 64-bit hash functions (splitmix64, xxHash): multiplication mixes the bits
_MIXERS = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93], np.uint64)
_SHIFT = np.uint64(31)  # brings high bits down, as in splitmix64


def count_trees(schedule: Schedule) -> set[int]:
    """Return the two counts that a planner may state: the most distinct trees that the chunks of one block take, and
    the most of them that have the same root.

    They differ for an allreduce, which has one block and may have trees with several roots. Two chunks take the same
    tree if the sums of their hashed hops are equal. O(n log n).
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
    block_of_tree, _ = np.unique(distinct[[0, 2]], axis=1)
    _, trees_of_root = np.unique(distinct[:2], axis=1, return_counts=True)
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
    """Return the rows that are transfers between different ranks."""
    return np.flatnonzero(schedule.src != schedule.dst).astype(np.int64)


def _hash_hops(schedule: Schedule, hops: Longs) -> NDArray[np.uint64]:
    """Return a hash per hop, by sender, receiver, operation and route."""
    columns: list[NDArray[Any]] = [schedule.src, schedule.dst, schedule.op]
    columns += [] if schedule.route is None else [schedule.route]
    # a hash per hop; their sum over a chunk's hops identifies the chunk's tree regardless of order
    hashes = np.zeros(len(hops), np.uint64)
    for column, mixer in zip(columns, _MIXERS, strict=False):  # without routes, three columns need three
        hashes = (hashes ^ column[hops].astype(np.int64).view(np.uint64)) * mixer
        hashes ^= hashes >> _SHIFT
    return hashes


def _chunk_roots(schedule: Schedule, hops: Longs) -> Longs:
    """Return per chunk the rank at which its sums end; 0 where nothing is summed, as a block then has one root."""
    sums = hops[schedule.op[hops] == REDUCE]
    roots = np.zeros(len(schedule.chunks), np.int64)
    in_order = sums[np.argsort(schedule.step[sums], kind="stable")]
    roots[schedule.chunk[in_order]] = schedule.dst[in_order]  # a chunk's last sum is assigned last, and remains
    return roots
