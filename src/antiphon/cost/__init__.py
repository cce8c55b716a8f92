"""Cost models: predict how long a schedule takes on a machine, and why. Each has a file, and an entry in table.py.

A model is prepared once per schedule and then called for many sizes:

    model(schedule, topology, *, profile=None) -> Callable[[int], Prediction]

A prepared model may also have a method `events(nbytes)`: when every message is in transit, for traces. Example:
`prepare("alpha-beta", schedule, topology)(1 << 20).seconds`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from antiphon.core.interpret import busbw_factor
from antiphon.core.plan import Entry, Plan
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import Cuts
from antiphon.cost._cut import as_cut
from antiphon.cost.basis import basis_of, usual_model
from antiphon.cost.figures import Level, LogGP
from antiphon.cost.prediction import Prediction, Predictor
from antiphon.cost.profile import FORMAT as PROFILE
from antiphon.cost.profile import Incast, Profile, as_profile, load_profile, save_profile, shipped_profiles
from antiphon.cost.trace import Events, chrome_trace
from antiphon.errors import Unsupported, quote
from antiphon.options import parse_options, plain_value
from antiphon.registry import Entry as Registered
from antiphon.registry import call, find
from antiphon.registry import table as registered  # `table` is a module of this folder
from antiphon.units import Sizes, parse_size, parse_sizes

ProfileLike = Profile | str | os.PathLike[str] | None
MAX_PATH_MESSAGES = 1000  # messages of a critical path that `simulate` returns
MESSAGE_MODEL = "critical-path"  # a model that prices single messages instead of steps


def prepare(
    model: str,
    schedule: Schedule,
    topology: Topology,
    *,
    profile: ProfileLike = None,
    options: Mapping[str, Any] | None = None,
    cuts: Cuts | None = None,
) -> Predictor:
    """Prepare a model, by name, for one schedule on one topology.

    `profile`: figures that replace nominal ones, as for `as_profile`. `options`: those of the model beside the ones in
    its name. `cuts`: how a runtime splits messages; None: not at all.
    """
    entry, named_options = model_of(model)
    arguments = {"profile": as_profile(profile), **named_options, **(options or {})}

    def make(sent: Schedule) -> Predictor:
        predictor: Predictor = call("model", model.partition(":")[0], entry.load(), arguments, sent, topology)
        return predictor

    return as_cut(make, schedule, cuts)  # a predictor for each way in which messages are cut, which depends on the size


def model_of(model: str) -> tuple[Registered, dict[str, Any]]:
    """Return a model's entry and the options in its name: "loggp:fidelity=packet,device_radix=8"."""
    name, _, behind = model.partition(":")
    parsed = parse_options(behind.split(",") if behind else (), f"model {quote(model)}", "name:key=value,key=value")
    return find("model", name), {key: plain_value(value) for key, value in parsed.items()}


def row_of(plan: Plan, nbytes: int, prediction: Prediction) -> dict[str, Any]:
    """Return a prediction as a JSON-like row; algbw and busbw in bytes per second, as nccl-tests defines them."""
    algbw = nbytes / prediction.seconds if prediction.seconds else 0.0
    return {
        "collective": plan.collective.title,
        "topology": plan.topology.name,
        "planner": str(plan.at(nbytes).claims.get("planner", "")),
        "nbytes": nbytes,
        "seconds": prediction.seconds,
        "algbw": algbw,
        "busbw": algbw * busbw_factor(plan.collective),
        "terms": dict(prediction.terms),
        "bottleneck": prediction.bottleneck,
        "note": prediction.note,
    }


def predict(plan: Plan, nbytes: Sizes, *, model: str = "", profile: ProfileLike = None) -> list[dict[str, Any]]:
    """Predict a plan at each size (a size, a range "1KB:1GB", or several): a row per size.

    `model`: by default the usual one of the topology and collective. Keys of a row: collective, topology, planner ("":
    unknown), nbytes (as requested, not rounded to elements), seconds, algbw, busbw, terms, bottleneck, note, model,
    rests_on (the measurements that the figure is calibrated by, a profile, or "not calibrated").
    """
    loaded_profile = as_profile(profile)
    model = model or usual_model(plan.topology, loaded_profile, wanted=(plan.collective,))
    predictors: dict[int, Predictor] = {}  # by the id of the plan's entry
    rows = []
    for size in parse_sizes(nbytes):
        entry = plan.at(size)
        if id(entry) not in predictors:
            predictors[id(entry)] = prepare(model, entry.schedule, plan.topology, profile=loaded_profile)
        prediction = predictors[id(entry)](size)
        basis = basis_of(prediction, loaded_profile)
        rows.append({**row_of(plan, size, prediction), "model": model, "rests_on": basis})
    return rows


def simulate(
    plan: Plan, nbytes: int | str, *, model: str = "", profile: ProfileLike = None, trace: bool = False
) -> tuple[dict[str, Any], bytes | None]:
    """Predict one size, with its critical path (the first MAX_PATH_MESSAGES messages) and, if requested, a Chrome
    trace.

    `model`: by default one that prices single messages, with launch and protocols if those are known for the plan's
    topology. If that model gives no trace, the trace comes from MESSAGE_MODEL, as the row's note states. Keys besides
    those of `predict`: critical_path ([step, src, dst] each) and critical_path_length.
    """
    size = parse_size(nbytes, "nbytes")
    entry: Entry = plan.at(size)
    loaded_profile, requested_model = as_profile(profile), model
    model = model or usual_model(plan.topology, loaded_profile, MESSAGE_MODEL, wanted=(plan.collective,))
    predictor = prepare(model, entry.schedule, plan.topology, profile=loaded_profile)
    traced, model_name = predictor, model  # the predictor that gives the trace, and its model
    if trace and not requested_model and not hasattr(predictor, "events"):
        # the usual model may be `calls`, which gives no events where switches reduce
        model_name = MESSAGE_MODEL
        traced = prepare(model_name, entry.schedule, plan.topology, profile=loaded_profile)
    if trace and not hasattr(traced, "events"):
        tracing_models = [name for name, entry in sorted(registered("model").items()) if entry.can.trace]
        raise Unsupported(f"no trace here from model {model}; these give one: {', '.join(tracing_models)}")
    prediction = predictor(size)
    path = prediction.critical_path
    row = {
        **row_of(plan, size, prediction),
        "model": model,
        "rests_on": basis_of(prediction, loaded_profile),
        "critical_path": [list(hop) for hop in path[:MAX_PATH_MESSAGES]],
        "critical_path_length": len(path),
    }
    if not trace:
        return row, None
    if model_name != model:
        remark = (
            f"the trace is by model {model_name}, {basis_of(traced(size), loaded_profile)}, and takes times of its own"
        )
        row["note"] = "; ".join(filter(None, (prediction.note, remark)))
        path = traced(size).critical_path
    title = f"{plan.collective.kind} on {plan.topology.name}, model {model_name}"
    return row, chrome_trace(traced.events(size), plan.topology, size, title, path)  # type: ignore[attr-defined]
