"""Check what the provenance of a schedule states of its rate and its bound; list what is only stated.

Everything in a plan file falls into one of three classes (docs/formats.md, "What verify checks"):

- figures and proofs, which are recomputed here, in `core.verify`, `plans.check` and `core.ksync.certificate`;
- evidence (witness, certificate), which may change as long as it still proves what is printed;
- notes, which nothing can check: `notes_of` lists them, and `verify --proof` prints them as stated in the file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from antiphon.core.bounds import Bound, assumed, forwarding, proved_rate, without, witness_of
from antiphon.core.loads import throughput
from antiphon.core.plan import Entry
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.errors import Invalid, quote
from antiphon.registry import find
from antiphon.select.limits import Limit
from antiphon.select.tree_shapes import count_trees, deepest_tree
from antiphon.units import format_seconds, format_size, plain

# Recomputed from the schedule, so that no note is made of them; all others are.
FIGURES = {
    "chunks", "steps", "rounds", "transfers", "bandwidth_gap", "latency_gap", "proof", "bandwidth_gap_without_switches",
    "assumes", "uses", "rate", "order", "optimality",
}  # fmt: skip
FOUND_FIGURES = {"rate", "optimal", "optimal_without_switches", "best_of_its_kind", "loss", "proof"}
TREE_FIGURES = {"trees", "deepest"}
TREE_PLANNERS = ("trees", "flows")  # whose TREE_FIGURES can be recomputed: others count them otherwise (per server)
EVIDENCE = {"bound", "certificate", "found"}
PREDICTED = {"seconds", "at", "bottleneck"}  # by the model that the plan names
UNPREDICTED = {"profile", "measured"}  # seconds by a profile that the plan only names, or measured
SAME_PREDICTION = 1e-9  # relative: sums of doubles may be made in another order on another machine
BOUND_FIELDS = {
    "inverse", "bytes_per_second", "without_switches", "witness", "tight", "note", "packing", "assumes",
}  # fmt: skip


def is_same(stated: object, value: object) -> bool:
    """Whether two JSON values are equal; true and 1 are not."""
    if isinstance(stated, list | tuple) and isinstance(value, list | tuple):
        return len(stated) == len(value) and all(map(is_same, stated, value))
    if isinstance(stated, Mapping) and isinstance(value, Mapping):
        return stated.keys() == value.keys() and all(is_same(stated[key], value[key]) for key in stated)
    return isinstance(stated, bool) == isinstance(value, bool) and stated == value


def found_of(schedule: Schedule) -> Mapping[str, Any]:
    """What the planner says that it found."""
    found = schedule.provenance.get("found")
    if found is not None and not isinstance(found, Mapping):
        raise Invalid("found: expected an object; plan anew")
    return found or {}


def check_rate(schedule: Schedule, topology: Topology, limits: Bound) -> list[str]:
    """Recompute the rate, and how it stands against the bounds; return what the carried witness proves, in words.

    Invalid where a figure does not hold. `limits`: the bounds of this collective on this machine.
    """
    found, carried = found_of(schedule), schedule.provenance.get("bound")
    limit = None if carried is None else _check_bound(carried, schedule, topology, limits)
    if "rate" not in found:
        return []
    rate = throughput(schedule, topology)
    rate_text = None if rate is None else str(rate / topology.unit)
    alone = limits.without_help.bytes_per_second
    _require_same("rate", found, rate_text)
    _require_same("optimal", found, rate == limits.bytes_per_second)
    _require_same("optimal_without_switches", found, rate == alone)
    if rate == alone:
        _require_same("best_of_its_kind", found, True)
    most = limits.bytes_per_second
    _require_same("loss", found, float(1 - rate / most) if rate is not None and most is not None else 0.0)
    if _has_tree_figures(schedule):
        _check_trees(found, schedule)
    if rate is None or limit is None or carried is None:
        if limit is None and rate is not None and (found.get("optimal") or found.get("optimal_without_switches")):
            raise Invalid(f"bound: the rate {rate_text} is called optimal, but the plan carries no witness; plan anew")
        return []
    if rate > limit:
        raise Invalid("bound: its witness proves another rate than it states; plan anew")
    if (found.get("optimal") or found.get("optimal_without_switches")) and rate != limit:
        raise Invalid(f"bound: the rate {rate_text} is called optimal, but its witness proves {limit / topology.unit}")
    return [_rate_text(rate, limit, carried, schedule, topology)]


def _has_tree_figures(schedule: Schedule) -> bool:
    """Whether trees can be counted: not where ranks relay sums, which looks like copies and reductions in turn."""
    is_whole = len(schedule.collective.members) == schedule.collective.ranks
    return is_whole and schedule.provenance.get("planner") in TREE_PLANNERS


def _check_trees(found: Mapping[str, Any], schedule: Schedule) -> None:
    if "trees" in found:
        counts = count_trees(schedule)
        if not any(is_same(found["trees"], count) for count in counts):
            many = " or ".join(map(str, sorted(counts)))
            raise Invalid(f"found.trees: the plan states {quote(found['trees'])}, but it has {many}; plan anew")
    if "deepest" in found:
        _require_same("deepest", found, deepest_tree(schedule))


def _require_same(key: str, found: Mapping[str, Any], value: object) -> None:
    if key in found and not is_same(found[key], value):
        raise Invalid(f"found.{key}: the plan states {quote(found[key])}, but it is {quote(value)}; plan anew")


def _rate_text(
    rate: Fraction, limit: Fraction, carried: Mapping[str, Any], schedule: Schedule, topology: Topology
) -> str:
    met = "which it attains" if rate == limit else f"{float(limit / rate):.4g} times this rate"
    kind = carried["witness"]["kind"].replace("_", " ")
    witness = witness_of(carried["witness"])
    alone = "" if _is_helped(carried) else without(assumed(topology, schedule.collective, witness), " {}")
    most = limit / topology.unit
    return f"rate {rate / topology.unit} unit links; by its {kind}{alone} no schedule exceeds {most}, {met}"


def _is_helped(carried: Mapping[str, Any]) -> bool:
    """Whether the bound holds with the help of switches; else it is of transfers that go by themselves."""
    return bool(carried.get("assumes") == [])


def _check_bound(carried: Any, schedule: Schedule, topology: Topology, limits: Bound) -> Fraction | None:
    """The rate that the witness of a carried bound proves. Invalid where another field of the bound disagrees."""
    if not isinstance(carried, Mapping) or not carried.keys() <= BOUND_FIELDS:
        raise Invalid(f"bound: expected an object with fields {', '.join(sorted(BOUND_FIELDS))}; plan anew")
    helped = _is_helped(carried)
    expected = limits if helped else limits.without_help
    collective, value, limit = schedule.collective, carried.get("witness"), None
    assumes: tuple[str, ...] = ()
    if value is not None:
        if not isinstance(value, Mapping):
            raise Invalid("bound: its witness is no object; plan anew")
        witness = witness_of(value)
        limit = proved_rate(topology if helped else forwarding(topology), collective, witness)
        assumes = () if helped else assumed(topology, collective, witness)
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

    Installed planners of other packages may wrap ours. `use` must say what `served_by` says.
    """
    from antiphon.planners.table import TABLE
    from antiphon.select.own_plans import OWN

    claimed, stated = entry.claims.get("planner"), entry.schedule.provenance.get("planner")
    if claimed != stated and claimed in TABLE and stated in TABLE:
        raise Invalid(f"planner: the plan claims {quote(claimed)}, but its schedule is by {quote(stated)}; plan anew")
    if claimed not in (None, stated, OWN):
        if not isinstance(claimed, str):
            raise Invalid(f"planner: expected a name, got {quote(claimed)}; plan anew")
        find("planner", claimed)
    if entry.claims.get("use", use := "library" if entry.served_by else "ours") != use:
        raise Invalid(f"use: the plan claims {quote(entry.claims['use'])}, but by `served_by` it is {use}; plan anew")


def claims_gap(entry: Entry, least: float, seconds: float) -> bool:
    """Whether the claimed gap is the predicted time over the least possible one, or is null where that is 0."""
    claimed, gap = entry.claims["gap"], seconds / least if least else None
    if gap is None or claimed is None:
        return claimed is gap
    is_number = isinstance(claimed, int | float) and not isinstance(claimed, bool)
    return is_number and math.isclose(claimed, gap, rel_tol=SAME_PREDICTION)


def check_prediction(entry: Entry, topology: Topology, limit: Limit) -> str | None:
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
    if "gap" in entry.claims and claims_gap(entry, limit.seconds(nbytes), prediction.seconds) is False:
        raise Invalid(f"gap: the plan claims {quote(entry.claims['gap'])} at {nbytes} bytes, which is wrong; plan anew")
    return f"{format_seconds(prediction.seconds)} at {format_size(nbytes)} by model {model}, predicted again"


def notes_of(entry: Entry, is_predicted: bool = False) -> list[str]:
    """List what a plan says of a schedule that nothing recomputes: how it was made, and compared with what.

    `is_predicted`: what a model predicts was recomputed.
    """
    provenance = entry.schedule.provenance
    checked = FIGURES | {"use"} | (PREDICTED | {"model", "gap"} if is_predicted else set())
    found = provenance.get("found")
    figures = {"proof"}
    if isinstance(found, Mapping) and "rate" in found:
        figures |= FOUND_FIGURES | (TREE_FIGURES if _has_tree_figures(entry.schedule) else set())
    groups = (
        ("claims", {k: v for k, v in entry.claims.items() if k not in checked and v != provenance.get(k)}),
        ("provenance", {k: v for k, v in provenance.items() if k not in EVIDENCE}),
        ("found", {k: v for k, v in found.items() if k not in figures} if isinstance(found, Mapping) else {}),
    )
    return [f"{name}: {', '.join(f'{k} {_short(v)}' for k, v in group.items())}" for name, group in groups if group]


def _short(value: object) -> str:
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.6g}"
    return value if isinstance(value, str) and value.isprintable() and len(value) <= 80 else quote(value, 80)
