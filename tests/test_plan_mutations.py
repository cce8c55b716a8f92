"""Plan files with one leaf changed: `verify --proof` says no, unless the leaf is a note, evidence or the question.

A leaf is a number, a text, a truth value, null, or the length of a list. The classes are those of docs/formats.md,
"What verify checks".
"""

import copy
import json
import re
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from typing import Any

import pytest
import quick
from contract import misrun
from quick import in_turn

import antiphon
from antiphon.core.plan import Plan
from antiphon.core.serialize import dumps, loads
from antiphon.cost import bound_evaluator
from antiphon.errors import AntiphonError
from antiphon.select import check_plans

Place = tuple[str | int, ...]

# Nothing can check these: `verify --proof` prints them as stated in the file, or not at all.
NOTE_CLAIMS = {
    "planner",  # where the provenance names none
    "options", "variant", "profile", "stopped", "sizes", "least_speedup", "largest_speedup",
    "speedup", "beyond_error", "reference", "runners_up", "over", "terms", "alternatives", "alone", "without", "nccl",
    "basis", "rests_on", "sms", "sms_of", "measurements", "served_by",
}  # fmt: skip
NOTE_PROVENANCE = {"planner", "options", "seed", "effort", "engine"}
FOUND_FIGURES = {"rate", "optimal", "optimal_without_switches", "best_of_its_kind", "loss", "proof"}
TREE_FIGURES = {"trees", "deepest"}  # of planners trees, flows and blink
NOTE_CERTIFICATE = {"k"}  # counts where the label depends on it
EVIDENCE = {"witness", "least", "refuted"}  # may change as long as it proves the same
LOWER_BOUND = re.compile(r"has R/C >= ([0-9/]+)")
KINDS = [
    "sccl", "sccl for k", "trees", "ring", "greedy", "gentree", "flows", "nvls", "compose", "shallow", "blink",
    "composed", "tuned", "frontier",
]  # fmt: skip


def planned(kind: str, machine: str, planner: str, **options: Any) -> Plan:
    return antiphon.plan(kind, machine, planner=planner, options=options)


@cache
def text_of(name: str) -> bytes:
    """The file of a small plan."""
    if name == "composed":
        halves = [planned(kind, "ring:ranks=4", "ring") for kind in ("reducescatter", "allgather")]
        return dumps(antiphon.compose(halves))
    if name == "tuned":
        return dumps(antiphon.tune("allreduce", "full:ranks=4", nbytes="1KB:1MB", planners=["ring", "direct"]).plan)
    if name == "frontier":
        return dumps(antiphon.frontier.find("allgather", "ring:ranks=4").plan())
    if name == "frontier of a DGX-1":
        return dumps(antiphon.frontier.find("allgather", "dgx1v").plan())
    plans = {
        "sccl": lambda: planned("allgather", "ring:ranks=4", "sccl"),
        "sccl for k": lambda: planned("allgather", "ring:ranks=5", "sccl", chunks=1, steps=3, rounds=3),
        "trees": lambda: planned("allreduce", "ring:ranks=3", "trees", pieces=2),
        "ring": lambda: planned("allreduce", "ring:ranks=4", "ring"),
        "greedy": lambda: planned("allgather", "mesh:dims=2x2", "greedy"),
        "gentree": lambda: planned("allreduce", "star:ranks=4", "gentree"),
        "flows": lambda: planned("alltoall", "ring:ranks=3", "flows", pieces=1),
        "nvls": lambda: planned("allreduce", "hgx-h100", "nvls", pieces=1),
        "compose": lambda: planned("allreduce", "torus:dims=2x2", "compose"),
        "shallow": lambda: planned("broadcast", "ring:ranks=4", "shallow", pieces=1),
        "blink": lambda: planned("broadcast", "mesh:dims=2x2", "blink", pieces=1),
    }
    return dumps(plans[name]())


def leaves(value: Any, place: Place = ()) -> Iterator[Place]:
    """Every leaf of it; a list stands for its length."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*place, key))
        return
    yield place
    if isinstance(value, list):
        for number, inner in enumerate(value):
            yield from leaves(inner, (*place, number))


def changes(value: Any) -> list[Any]:
    """What a leaf becomes."""
    if isinstance(value, bool):
        return [not value, int(value)]
    if value is None:
        return [0, "x"]
    if isinstance(value, int | float):
        return [value + 1, str(value), -1 - value, True if value == 1 else value * 2 + 3]
    if isinstance(value, list):
        return [value[:-1], [*value, value[-1]]] if value else [[0]]
    try:
        return [str(Fraction(value) + 1), None, f"{value} x"]
    except ValueError:
        return [f"{value} x", None, 1]


def changed(tree: Any, place: Place, value: Any) -> Any:
    again = copy.deepcopy(tree)
    inner = again
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return again


def leaf(tree: Any, place: Place) -> Any:
    for key in place:
        tree = tree[key]
    return tree


def is_note(place: Place, plan: Plan) -> bool:
    if place[2:3] == ("claims",):
        return place[3] in NOTE_CLAIMS
    if place[2:4] != ("schedule", "provenance") or len(place) == 4:
        return False
    where, field = (*place[4:], None)[:2]
    if where == "found":
        planner = plan.entries[int(place[1])].schedule.provenance.get("planner")
        return field not in FOUND_FIGURES | (TREE_FIGURES if planner in ("trees", "flows", "blink") else set())
    if where == "certificate":
        return field in NOTE_CERTIFICATE
    return where in NOTE_PROVENANCE or (where, field) == ("bound", "note")


def is_weaker(proved: tuple[str, ...], before: tuple[str, ...]) -> bool:
    """Whether all of it was proved before, but for the figure of a lower bound."""

    def bounds(texts: tuple[str, ...]) -> list[Fraction]:
        return [Fraction(value) for text in texts for value in LOWER_BOUND.findall(text)]

    lower = zip(bounds(proved), bounds(before), strict=True)
    same = [LOWER_BOUND.sub("", text) for text in proved] == [LOWER_BOUND.sub("", text) for text in before]
    return same and all(a <= b for a, b in lower)


def is_excused(place: Place, plan: Plan, proved: tuple[str, ...], before: tuple[str, ...]) -> bool:
    """Whether a change may be accepted, as no claim became false by it."""
    if is_note(place, plan) or place[2:4] == ("claims", "gap_evidence"):  # its gaps are right all the same
        return True
    if place[2:4] == ("schedule", "provenance"):
        return bool(EVIDENCE.intersection(place[5:6])) and is_weaker(proved, before)
    # The question, or the schedule: then it must be right in truth, as run by the reference.
    is_question = place[0] in ("topology", "collective") or place[2:3] in (("from",), ("to",))
    is_schedule = place[2:3] == ("schedule",)
    return (is_question or is_schedule) and all(misrun(entry.schedule) is None for entry in plan.entries)


@pytest.mark.parametrize("name", in_turn(KINDS, 4))
def test_every_leaf(name: str) -> None:
    text = text_of(name)
    tree = json.loads(text)
    before = check_plans([loads(text)], proof=True)
    assert before.fault is None
    places = [place for place in leaves(tree) if place]
    stated = [place for place in places if place[2:3] == ("claims",) or "provenance" in place]
    others = [place for place in places if place not in set(stated)]
    if quick.ordinary:
        stated, others = stated[:: max(1, len(stated) // 6)], others[:: max(1, len(others) // 3)]
    accepted = []
    for place in [*stated, *others]:
        for value in changes(leaf(tree, place)):
            try:
                plan = loads(json.dumps(changed(tree, place, value)).encode())
                verdict = check_plans([plan], proof=True)
            except AntiphonError:
                continue
            if verdict.fault is None and not is_excused(place, plan, verdict.proved, before.proved):
                accepted.append((".".join(map(str, place)), leaf(tree, place), value))
    assert not accepted


# (plan, where in its first entry, a false value): fields that planners write, or might
FALSE_FIELDS: list[tuple[str, str, Any]] = [
    ("trees", "schedule.provenance.bound.inverse", "3/2"),
    ("sccl", "schedule.provenance.bound", {"inverse": "3/2"}),
    ("sccl", "schedule.provenance.found.meaning", "no algorithm is better"),
    ("sccl", "schedule.provenance.found.trees", 17),
    ("ring", "schedule.provenance.found", {"trees": 17}),
    ("trees", "schedule.provenance.found.trees", 17),
    ("blink", "schedule.provenance.found.trees", 17),
    ("sccl", "schedule.provenance.certificate.format", 2),
    ("sccl", "schedule.provenance.certificate.open", [[1, 1]]),
    ("sccl", "schedule.provenance.certificate.k", -1),
    ("sccl", "claims.model", "crystal ball"),
    ("tuned", "claims.largest_gap", 1.0),
    ("tuned", "claims.sizes", [1000, 10**12]),
    ("tuned", "claims.gap_evidence", [{"unaided": False, "views": []}]),
    ("tuned", "claims.gap_evidence", [{"unaided": False, "views": [{"hosts_of": [], "evidence": [{"kind": "fan"}]}]}]),
    ("frontier of a DGX-1", "claims.model", "alpha-beta"),
    ("frontier of a DGX-1", "to", 1),
]


def test_gaps_need_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their evidence is in the file; of a file without it, evidence is searched."""
    searched, find = [], bound_evaluator.find_evidence

    def counted(*given: Any) -> Any:
        searched.append(given)
        return find(*given)

    monkeypatch.setattr(bound_evaluator, "find_evidence", counted)
    tree = json.loads(text_of("tuned"))
    assert check_plans([loads(json.dumps(tree).encode())], proof=True).fault is None
    assert not searched
    del tree["entries"][0]["claims"]["gap_evidence"]
    assert check_plans([loads(json.dumps(tree).encode())], proof=True).fault is None
    assert len(searched) == 1


@pytest.mark.parametrize(("name", "place", "value"), FALSE_FIELDS)
def test_a_false_field(name: str, place: str, value: Any) -> None:
    tree = json.loads(text_of(name))
    assert check_plans([loads(json.dumps(tree).encode())], proof=True).fault is None
    path = ("entries", 0, *place.split("."))
    if place == "to":
        tree["entries"][1]["from"] = value
    false_plan = loads(json.dumps(changed(tree, path, value)).encode())
    assert check_plans([false_plan], proof=True).fault is not None
