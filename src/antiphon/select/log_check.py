"""Check a benchmark log: each run against what its machine should reach, or one log against another.

`check_runs` compares each measured time with the prediction of the library's model and with the proved lower bound. The
bound divided by the measured time is the share "of the wire". The verdict and its likely causes are those of
cost/nccl/diagnosis.py. If the model has no figures of the GPUs, there is only the bound, and the verdict "cannot tell".

`compare_runs` compares logs from before and after an upgrade. A size has changed if its times differ by more than the
noise. The noise is three times the median deviation of sizes that a log has several times, in one run or in several
(`BenchmarkRun.spread`), and at least 5 %. Example: the time in place is 10 % below that out of place in most rows, and
12 or 8 % below in others. The median deviation is 2 %, so the noise is 6 %: 20 us before and 22 us after count as
slower, 20 us and 21 us do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from antiphon.core.collective import Collective
from antiphon.core.interpret import busbw_factor
from antiphon.core.topology import Topology
from antiphon.cost.nccl.choice import KINDS, OptionPrice
from antiphon.cost.nccl.diagnosis import LIMITS, Diagnosis, diagnose, most_normal
from antiphon.cost.nccl.layout import count_cards
from antiphon.cost.nccl.library import LibraryModel, doubt_gpus, library, library_here
from antiphon.cost.nccl.proven import bound_evaluator
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.formats.benchmark_log import MEASURES, NAME_IT, OSU, BenchmarkRun, is_collective
from antiphon.units import format_seconds, format_size

NORMAL, SLOW, FAST, WRONG, UNKNOWN = "normal", "slow", "fast", "wrong", "cannot tell"
SPREADS = 3  # median deviations that count as noise
MIN_NOISE = 0.05  # relative, as DEFAULT_NOISE
DEFAULT_NOISE = 0.10  # for logs in which no size is measured twice
MIN_BANDWIDTH_BYTES = 2**24  # a log whose largest size is smaller shows nothing about bandwidth
IMPOSSIBLE = 0.95  # a time below this fraction of the lower bound: the log must be of another machine
MIN_SECONDS = 1e-12  # stands for a printed 0.00 us
MIN_SHARE = 0.01  # share of the wire; where all shares are smaller, the least time is stated


def check_runs(runs: Sequence[BenchmarkRun], topology: Topology, request: str = "") -> list[dict[str, Any]]:
    """Return a row per run: its verdict, the likely causes, and a row per size.

    `request`: the library with its options; "": the library whose figures for this machine are known. Raises Invalid if
    no run has as many ranks as the machine.
    """
    counts = {run.ranks for run in runs if not run.separate}  # 0: the log does not state it
    if counts and not counts & {0, topology.ranks}:
        ranks = " and ".join(map(str, sorted(counts)))
        raise Invalid(
            f"the log has {ranks} ranks, {topology.name} has {topology.ranks}: name the machine of the run, such as "
            "cluster:box=hgx-h100,boxes=2, or keep its ranks by TOPO:only=RANKS"
        )
    return [_check_run(run, topology, request) for run in runs]


def _check_run(run: BenchmarkRun, topology: Topology, request: str) -> dict[str, Any]:
    """Return the row of a run; a run that cannot be compared has no rows of sizes."""
    copied_fields = ("program", "version", "library", "gpu", "environment", "signs")
    result: dict[str, Any] = {"collective": run.kind, "ranks": run.ranks or topology.ranks}
    result |= {name: getattr(run, name) for name in copied_fields}
    result |= {"verdict": UNKNOWN, "text": "", "causes": [], "notes": [], "rows": []}
    if not is_collective(run.kind):
        why = f"{quote(run.kind)} is no collective" if run.kind else f"the collective is not named: {NAME_IT}"
        result["text"] = f"cannot tell: {why}"
        return result
    if run.separate:
        result["text"] = "cannot tell: the processes did not form one job; build nccl-tests with MPI=1 and use mpirun"
        return result
    if run.ranks not in (0, topology.ranks):
        result["text"] = f"cannot tell: the run has {run.ranks} ranks, {topology.name} has {topology.ranks}"
        return result
    library_model, why_not = _find_library(run, topology, request)
    result["notes"] = _notes(run, library_model)
    if doubt_gpus(run.gpu, library_model):
        library_model, why_not = None, "the log names other GPUs"
    points = run.points(topology.ranks, steady=True)  # (nbytes, seconds) by size
    choices: dict[int, OptionPrice] = {}
    try:
        choices = (
            {} if library_model is None else {nbytes: library_model.choice(run.kind, nbytes) for nbytes, _ in points}
        )
    except Unsupported as error:  # the model does not describe this machine
        library_model, why_not = None, str(error)
    proofs = bound_evaluator(topology, run.kind, root=0)
    rate = proofs.bound.bytes_per_second if proofs is not None else None
    max_normal_ratio: dict[int, float] = {}  # by size: measured / predicted time up to which a run is normal
    if library_model is not None:
        max_normal_ratio = {nbytes: most_normal(library_model, run.kind, nbytes) for nbytes in choices}
    result["rows"] = [
        _size_row(
            run,
            topology,
            nbytes,
            seconds,
            model=choices.get(nbytes),
            rate=rate,
            max_normal_ratio=max_normal_ratio.get(nbytes, 1.0),
        )
        for nbytes, seconds in points
    ]
    diagnosis = None
    if library_model is not None:
        signs = [*run.signs, *(f"{name}={value}" for name, value in run.environment.items())]
        cards = count_cards(topology) if library_model.layout.nodes > 1 else 0  # within a host none is used
        diagnosis = diagnose(library_model, run.kind, points, signs, cards)
        result["causes"] = [
            {"cause": cause.fault.name, "text": cause.fault.text, "check": cause.fault.check, "misfit": cause.misfit,
             "evidence": list(cause.evidence), "seconds": {str(n): seconds for n, seconds in cause.seconds.items()}}
            for cause in diagnosis.causes
        ]  # fmt: skip
    result["verdict"], result["text"] = _verdict(result, diagnosis, why_not, max_normal_ratio)
    return result


def _find_library(run: BenchmarkRun, topology: Topology, request: str) -> tuple[LibraryModel | None, str]:
    """Return the library model that a run is compared with, or None and the reason."""
    if run.kind not in KINDS:
        return None, f"no model of {run.kind}"
    # processes=one: a process that drives all GPUs of a host launches their kernels one after the other
    is_one_per_host = run.processes and run.processes == run.hosts and run.processes < run.ranks
    processes = "one" if is_one_per_host else "each"
    try:
        if not request:
            version = run.library.partition("NCCL ")[2]
            return library_here(topology, processes=processes, version=version), ""
        name = request if "processes=" in request else f"{request}{',' if ':' in request else ':'}processes={processes}"
        return library(name, topology), ""
    except Unsupported as error:
        if request:
            raise
        return None, str(error)


def _notes(run: BenchmarkRun, library_model: LibraryModel | None) -> list[str]:
    """Return remarks on a run: rows left out, and signs that the log is of another machine or library."""
    notes = [f"the program failed after these sizes: {run.failure}"] if run.failure else []
    if run.garbled:
        notes.append(f"{run.garbled} rows are garbled and left out (cut short, or algbw contradicts the time)")
    if run.program in MEASURES and library_model is not None and not run.library:
        notes.append(f"{MEASURES[run.program]}; its times are compared with what NCCL would take")
    remark = doubt_gpus(run.gpu, library_model)
    return [*notes, remark] if remark else notes


def _size_row(
    run: BenchmarkRun,
    topology: Topology,
    nbytes: int,
    seconds: float,
    model: OptionPrice | None,
    max_normal_ratio: float,
    rate: Fraction | None,
) -> dict[str, Any]:
    """Return the row of one size: seconds measured, predicted and by the bound, and a verdict in words.

    `model`: what the library would choose, with its predicted time; None: unknown. `max_normal_ratio`: the greatest
    measured / predicted time that is normal. `rate`: bytes per second of the bound.
    """
    algbw = nbytes / max(seconds, MIN_SECONDS)
    bound = float(nbytes / rate) if rate else None
    wrong = any(row.wrong for row in run.rows if row.nbytes * run.scale(topology.ranks) == nbytes)
    row = {
        "nbytes": nbytes, "seconds": seconds, "busbw": algbw * busbw_factor(Collective(run.kind, topology.ranks)),
        "modelled": model and model.seconds,
        "algorithm": model and model.algorithm, "protocol": model and model.protocol,
        "bound": bound, "share": bound and bound / max(seconds, MIN_SECONDS),
        "ratio": model and seconds / model.seconds, "wrong": wrong,
    }  # fmt: skip
    return row | {"verdict": _size_verdict(row, max_normal_ratio)}


def _size_verdict(row: Mapping[str, Any], max_normal_ratio: float) -> str:
    """Return the verdict on one size in words; normal are times from 1 / max_normal_ratio of the predicted time on."""
    if row["wrong"]:
        return "wrong result"
    if row["share"] and row["share"] > 1 / IMPOSSIBLE:
        return "faster than the links"
    if row["ratio"] is None:
        return "no model"
    choice = f"{row['algorithm']} {row['protocol']}"
    if row["ratio"] > max_normal_ratio:
        return f"{row['ratio']:.1f} times {choice}"
    return f"faster than {choice}" if row["ratio"] < 1 / max_normal_ratio else f"normal for {choice}"


def _reached(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return in words the greatest share of the wire at any size; if all sizes are small, the least time instead."""
    best = max(rows, key=lambda row: row["share"] or 0.0)
    if best["share"] and best["share"] > MIN_SHARE:
        return f"{best['share']:.0%} of the wire at {format_size(best['nbytes'])}"
    return f"{format_seconds(min(row['seconds'] for row in rows))} at least"


def _verdict(
    result: Mapping[str, Any], diagnosis: Diagnosis | None, why_not: str, max_normal_ratio: Mapping[int, float]
) -> tuple[str, str]:
    """Return the verdict of a run and the sentence for it. `max_normal_ratio`: by size, as of `_size_row`.

    `diagnosis`: None if there is no model of the library, for the reason `why_not`.
    """
    rows = result["rows"]
    reached = _reached(rows)
    if wrong_sizes := sum(row["wrong"] for row in rows):
        return WRONG, f"wrong results at {wrong_sizes} of {len(rows)} sizes; times mean nothing until that is fixed"
    if any(row["share"] and row["share"] > 1 / IMPOSSIBLE for row in rows):
        return UNKNOWN, f"cannot tell: {reached}, faster than these links allow; is it this machine?"
    if diagnosis is None:
        return UNKNOWN, f"cannot tell: {reached}, but what is normal is not known ({why_not})"
    if diagnosis.verdict == SLOW:
        # `slow`: the bands of sizes (small, large, ...) that are slow; `ratios`: measured / predicted time by band
        slowest_band = max(diagnosis.slow, key=diagnosis.ratios.__getitem__)
        where = f"slow at {' and '.join(diagnosis.slow)}: {diagnosis.ratios[slowest_band]:.2g} times the predicted time"
        why = "too few sizes" if len(rows) < LIMITS.min_points else "no single fault explains the log"
        return SLOW, f"{where}; {reached}{'' if result['causes'] else f'; cannot tell why: {why}'}"
    largest = rows[-1]["nbytes"]
    too_small = (
        ""
        if largest >= MIN_BANDWIDTH_BYTES
        else f"; it ends at {format_size(largest)}, which says nothing of bandwidth"
    )
    as_what = "as this machine should give" if diagnosis.verdict == NORMAL else "faster than predicted"
    # with a diagnosis there is a model, so every row has a ratio; single slow sizes do not make the verdict "slow"
    ratios = {row["nbytes"]: row["ratio"] for row in rows if row["ratio"] > max_normal_ratio[row["nbytes"]]}
    slowest = max(ratios, key=lambda nbytes: ratios[nbytes], default=0)
    but = f"; but {ratios[slowest]:.2g} times the predicted time at {format_size(slowest)}" if slowest else ""
    return diagnosis.verdict, f"{diagnosis.verdict}: {reached}, {as_what}{but}{too_small}"


# ---- logs before and after an upgrade ----


def compare_runs(before: Sequence[BenchmarkRun], after: Sequence[BenchmarkRun]) -> dict[str, Any]:
    """Return which sizes changed by more than the noise. Invalid if the logs have no size in common."""
    logs = {"before": before, "after": after}
    comparisons, notes = [], [note for name, runs in logs.items() for note in _left_out(runs, name)]
    # OSU times an MPI, so its runs are only compared with each other
    for kind, is_osu in dict.fromkeys((run.kind, run.program == OSU) for run in (*before, *after)):
        runs_of = {
            name: [run for run in runs if (run.kind, run.program == OSU) == (kind, is_osu)]
            for name, runs in logs.items()
        }
        counts = sorted({run.ranks for runs in runs_of.values() for run in runs if run.ranks})
        if len(counts) > 1:
            ranks = " and ".join(map(str, counts))
            raise Invalid(f"{kind}: the logs have runs of {ranks} ranks; compare runs of the same job")
        if not all(runs_of.values()):
            missing = "after" if runs_of["before"] else "before"
            notes.append(f"{kind}{' of OSU' if is_osu else ''}: not in the log {missing} and not compared")
            continue
        old, new = (_merge(runs, *counts) for runs in runs_of.values())  # `counts` has one number of ranks, or none
        old_times, new_times = dict(old.points()), dict(new.points())  # seconds by size
        if unmatched := len(old_times.keys() ^ new_times.keys()):
            notes.append(f"{kind}: {unmatched} sizes are in one of the logs only and not compared")
        if old_times.keys() & new_times.keys():
            out_of_place = _compare_kind(kind, (old, new), (old_times, new_times))
            in_place_times = [dict(run.points(in_place=True)) for run in (old, new)]
            in_place = _compare_kind(kind, (old, new), in_place_times)
            comparisons.append({**out_of_place, "in_place": False})
            if _tells_more(in_place, out_of_place):
                comparisons.append({**in_place, "in_place": True})
            if old.gpu and new.gpu and old.gpu != new.gpu:
                notes.append(f"{kind}: the logs name different GPUs: {old.gpu} before, {new.gpu} after")
    if not comparisons:
        raise Invalid("the logs have no collective and size in common; run the same benchmark before and after")
    slower = any(row["verdict"] == "slower" for entry in comparisons for row in entry["rows"])
    faster = any(row["verdict"] == "faster" for entry in comparisons for row in entry["rows"])
    verdict = "slower" if slower else "faster" if faster else "unchanged"
    return {"verdict": verdict, "collectives": comparisons, "notes": notes}


def _left_out(runs: Sequence[BenchmarkRun], log_name: str) -> list[str]:
    """Return notes on rows of a log that are not compared, or have wrong results. `log_name`: "before" or "after"."""
    notes = []
    if garbled := sum(run.garbled for run in runs):
        notes.append(
            f"{garbled} rows of the log {log_name} are garbled and left out (cut short, or algbw contradicts the time)"
        )
    if wrong := sum(row.wrong for run in runs for row in run.rows):
        notes.append(f"{wrong} rows of the log {log_name} have wrong results; their times mean nothing")
    return notes


def _merge(runs: Sequence[BenchmarkRun], ranks: int = 0) -> BenchmarkRun:
    """Return all rows of these runs as one run; its noise includes that from run to run."""
    library, gpu = (next(filter(None, (getattr(run, name) for run in runs)), "") for name in ("library", "gpu"))
    rows = [row for run in runs for row in run.rows]
    return replace(runs[0], ranks=ranks, library=library, gpu=gpu, rows=rows)


def _tells_more(in_place: Mapping[str, Any], out_of_place: Mapping[str, Any]) -> bool:
    """Return whether calls in place changed at a size where those out of place did not, or changed otherwise."""
    verdicts = {row["nbytes"]: row["verdict"] for row in out_of_place["rows"]}
    return any(row["verdict"] not in ("same", verdicts.get(row["nbytes"])) for row in in_place["rows"])


def _compare_kind(kind: str, runs: Sequence[BenchmarkRun], times: Sequence[Mapping[int, float]]) -> dict[str, Any]:
    """Return the comparison of one collective at the sizes for which both runs have a time.

    `runs`, `times` (seconds by size): before and after.
    """
    spreads = [spread for run in runs if (spread := run.spread()) is not None]
    noise = max(MIN_NOISE, SPREADS * max(spreads)) if spreads else DEFAULT_NOISE
    rows: list[dict[str, Any]] = []
    old_times, new_times = times
    for nbytes in sorted(old_times.keys() & new_times.keys()):
        old, new = old_times[nbytes], new_times[nbytes]
        change = new / old - 1 if old else 0.0
        # slower by the noise or more; faster, if swapping the logs makes it slower
        verdict = "slower" if change > noise else "faster" if change < 1 / (1 + noise) - 1 else "same"
        rows.append({"nbytes": nbytes, "before": old, "after": new, "change": change, "verdict": verdict})
    libraries = [run.library for run in runs]
    changes_text = []
    for word in ("slower", "faster"):
        changed = [row for row in rows if row["verdict"] == word]
        if changed:
            ends = [format_size(changed[i]["nbytes"]) for i in (0, -1)]
            changes = sorted(abs(row["change"]) for row in changed)
            spans = f"{ends[0]} to {ends[1]}" if len(changed) > 1 else ends[0]
            change_text = f"{changes[0]:.0%} to {changes[-1]:.0%}" if len(changed) > 1 else f"{changes[0]:.0%}"
            changes_text.append(f"{word} at {len(changed)} of {len(rows)} sizes ({spans}) by {change_text}")
    text = f"{'; '.join(changes_text) or f'unchanged at all {len(rows)} sizes'}; noise {noise:.0%}"
    return {"collective": kind, "text": text, "noise": noise, "libraries": libraries, "rows": rows}
