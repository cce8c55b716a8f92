"""Replays held against runs: of a training recorded by gloo what it takes by our plans, and what that really took.

    python bench/bench_replay.py [--where plain|lab] [--blocks 8] [--folder FOLDER]

Records by bench/record_job.py (where FOLDER has recordings already, they are taken), DDP and FSDP2, in turns of gloo
and ours, so that both meet the same load; of each pair of blocks the prediction over the measurement; medians. `plain`:
two processes on this computer. `lab`: four ranks with a link between all, 100 Mbit/s each (root is needed).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _common import machine, print_machine, save

import antiphon

HERE = Path(__file__).resolve().parent
LAB, SCALE = "full:ranks=4,bandwidth=12.5MB/s", "100Mbit per 12.5MB/s"
KINDS = ("ddp", "fsdp")


def record(where: str, kind: str, folder: Path, told: argparse.Namespace) -> None:
    script = [str(HERE / "record_job.py"), str(folder), "--kind", kind, "--blocks", str(told.blocks)]
    script += ["--steps", str(told.steps), "--batch", str(told.batch or (256 if where == "plain" else 32))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[1:])}
    if where == "plain":
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *script]
    else:
        table = folder.parent / "table.json"
        antiphon.tune("all", LAB, nbytes="256KB:16MB").save(table)
        environment["ANTIPHON_TABLE"] = str(table)
        command = [sys.executable, "-m", "antiphon", "lab", "run", LAB, "--scale", SCALE, "--", sys.executable, *script]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def compared(folder: Path, **prices: Any) -> list[dict[str, float]]:
    """Of each block: seconds of a step by gloo, ours as predicted of it, and ours."""
    rows = []
    for block in range(len(list(folder.glob("gloo-*.0.json")))):
        gloo, ours = (sorted(folder.glob(f"{name}-{block}.*.json")) for name in ("gloo", "antiphon"))
        was, is_ = antiphon.replay.job(gloo, **prices), antiphon.replay.job(ours, **prices)
        rows.append(
            {
                "gloo": was["step"]["recorded"], "gloo_replayed": was["step"]["replayed"],
                "predicted": was["step"]["ours"], "measured": is_["step"]["recorded"],
                "replayed": is_["step"]["replayed"],
                "computation_by_gloo": was["computation"], "computation_by_ours": is_["computation"],
            }
        )  # fmt: skip
    return rows


def summary(rows: list[dict[str, float]], disturbed: list[float]) -> dict[str, float]:
    """Medians; `quiet`: of the half of the blocks in which others took the cores least often, which is known before
    anything is predicted; `of_medians`: the median prediction over the median measurement."""
    found = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    ratios = [row["predicted"] / row["measured"] for row in rows]
    least = sorted(range(len(rows)), key=lambda block: disturbed[block])[: max(len(rows) // 2, 1)]
    return {
        **found, "over_measured": statistics.median(ratios), "least": min(ratios), "most": max(ratios),
        "quiet": statistics.median(ratios[block] for block in least),
        "of_medians": found["predicted"] / found["measured"], "blocks": len(rows),
    }  # fmt: skip


def backwards(folder: Path, rows: Path) -> dict[str, float]:
    """The other way: recorded by ours, what gloo would take."""
    told = json.loads(rows.read_text())["rows"]
    by_gloo = [{**row, "seconds": row["reference_seconds"]} for row in told]
    ratios = []
    for block in range(len(list(folder.glob("gloo-*.0.json")))):
        gloo, ours = (sorted(folder.glob(f"{name}-{block}.*.json")) for name in ("gloo", "antiphon"))
        found = antiphon.replay.job(ours, measured=by_gloo)["step"]["ours"]
        ratios.append(found / antiphon.replay.job(gloo, measured=by_gloo)["step"]["recorded"])
    return {"over_measured": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--where", choices=("plain", "lab"), default="plain")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--save", action="store_true")
    for name, usual in (("blocks", 8), ("steps", 4), ("batch", 0)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    told = parser.parse_args()
    if told.steps < 2 or told.blocks < 1:
        parser.error("--steps: 2 or more, as the step after it completes the calls of a step; --blocks: 1 or more")
    print_machine()
    into = told.folder or Path(tempfile.mkdtemp(prefix="antiphon-replay-"))
    into.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"where": told.where, "machine": machine()}
    for kind in KINDS:
        folder = into / f"{told.where}-{kind}"
        if not (folder / "measured.json").exists():
            record(told.where, kind, folder, told)
        disturbed = json.loads((folder / "measured.json").read_text())["disturbed"]
        results[kind] = {"measured": summary(compared(folder, measured=folder / "measured.json"), disturbed)}
        if told.where == "lab":
            results[kind]["model"] = summary(compared(folder, topology=LAB), disturbed)
        results[kind]["gloo_of_ours"] = backwards(folder, folder / "measured.json")
        for by in ("measured", *(("model",) if told.where == "lab" else ())):
            row = results[kind][by]
            print(
                f"{kind}, prices by {by}: gloo {row['gloo'] * 1e3:.1f} ms (replayed {row['gloo_replayed'] * 1e3:.1f}), "
                f"ours predicted {row['predicted'] * 1e3:.1f}, measured {row['measured'] * 1e3:.1f}: "
                f"{row['over_measured']:.3f} ({row['least']:.2f} to {row['most']:.2f}, {row['blocks']} blocks); "
                f"of the quieter half {row['quiet']:.3f}, of medians {row['of_medians']:.3f}"
            )
        back = results[kind]["gloo_of_ours"]
        span = f"{back['least']:.2f} to {back['most']:.2f}"
        print(f"{kind}, gloo predicted of ours: {back['over_measured']:.3f} ({span})")
    if told.save:
        save(f"replay_{told.where}", results)
    if told.folder is None:
        shutil.rmtree(into)


if __name__ == "__main__":
    main()
