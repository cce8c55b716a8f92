"""The judge of MSCCL++ execution plans: plans of ours and others', damaged in one or two places, against the executor
run thread by thread (`_executor`).

What goes wrong in a run must be refused by the reader or found by the judge. What the judge says hangs, or ends with
other data, must do so in some run. Races, and signals left over, are counted: a run need not show them.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from _harness import CASES, Found, main
from _mscclpp_executor import Executor, WrongError
from mscclpp_cases import FOREIGN

import antiphon
from antiphon.errors import AntiphonError, Invalid, Unsupported
from antiphon.formats.mscclpp.read import plan_of
from antiphon.formats.mscclpp.write import mscclpp_json
from antiphon.lower.machine.judge import judge

NAME = "mscclpp"
FEW, MANY = 12, 120  # runs
CASES_OF_OURS = (
    ("allgather", "ring:ranks=3", "ring"), ("allreduce", "full:ranks=2", "recursive-doubling"),
    ("allreduce", "ring:ranks=3", "ring"), ("reducescatter", "full:ranks=3", "pairwise"),
    ("alltoall", "full:ranks=3", "pairwise"), ("broadcast", "full:ranks=3", "binomial-tree"),
    ("allreduce", "full:ranks=4", "halving-doubling"), ("reduce", "full:ranks=4", "binomial-tree"),
    ("allgather", "cluster:box=full:ranks=2,boxes=2", "ring"),
)  # fmt: skip
Plan = dict[str, Any]


@cache
def texts() -> list[str]:
    """Plans that are right."""
    found = [json.dumps(plan) for plan in FOREIGN.values()]
    for kind, machine, planner in CASES_OF_OURS:
        try:
            plan = antiphon.plan(kind, antiphon.topology(machine), planner=planner)
        except AntiphonError:
            continue
        for staged in (False, True):
            with suppress(Unsupported):
                files = mscclpp_json({kind: plan}, blocks=2, packets=0 if staged else 4096, staged=staged)
                found += [text.decode() for name, text in files.items() if name.endswith(".json")]
    return found


# ---- damage ----


def _blocks(plan: Plan) -> list[Plan]:
    return [block for gpu in plan["gpus"] for block in gpu["threadblocks"]]


def _some(rng: random.Random, plan: Plan) -> tuple[list[Any], int]:
    lists = [block["ops"] for block in _blocks(plan)]
    filled = [operations for operations in lists if operations]
    filled += [one["ops"] for operations in filled for one in operations if one.get("ops")]
    operations = rng.choice(filled)
    return operations, rng.randrange(len(operations))


def drop(rng: random.Random, plan: Plan) -> None:
    operations, at = _some(rng, plan)
    del operations[at]


def drop_everywhere(rng: random.Random, plan: Plan) -> None:
    """All of one name at one rank."""
    operations, at = _some(rng, plan)
    name = operations[at]["name"]
    operations[:] = [one for one in operations if one["name"] != name]


def swap(rng: random.Random, plan: Plan) -> None:
    operations, at = _some(rng, plan)
    other = rng.choice([at - 1, rng.randrange(len(operations))])
    operations[at], operations[other] = operations[other], operations[at]


def double(rng: random.Random, plan: Plan) -> None:
    operations, at = _some(rng, plan)
    operations.insert(at, json.loads(json.dumps(operations[at])))


def rename(rng: random.Random, plan: Plan) -> None:
    operations, at = _some(rng, plan)
    alike = [("signal", "wait"), ("put", "pws"), ("pwsf", "pws"), ("pwsf", "put"), ("re", "res"), ("rre", "rres"),
             ("copy", "re"), ("sem_acquire", "sem_release"), ("wait", "nop"), ("signal", "nop"), ("put", "get"),
             ("ppkt", "put"), ("upkt", "copy"), ("respkt", "repkt"), ("recspkt", "recpkt")]  # fmt: skip
    fits = [b if operations[at]["name"] == a else a for a, b in alike if operations[at]["name"] in (a, b)]
    operations[at]["name"] = rng.choice(fits or ["nop"])


def number(rng: random.Random, plan: Plan) -> None:
    """One number of an operation, or of what stands around."""
    places: list[tuple[Any, Any]] = []

    def visit(item: Any) -> None:
        for key, inner in item.items() if isinstance(item, dict) else enumerate(item):
            if isinstance(inner, int) and not isinstance(inner, bool):
                places.append((item, key))
            elif isinstance(inner, dict | list):
                visit(inner)

    operations, at = _some(rng, plan)
    visit(operations[at] if rng.random() < 0.8 else rng.choice(plan["gpus"]))
    if places:
        item, key = rng.choice(places)
        item[key] = max(0, item[key] + rng.choice([-1, 1, 1, 2, -2]))


def kind(rng: random.Random, plan: Plan) -> None:
    """The type of a buffer or channel."""
    operations, at = _some(rng, plan)
    one = operations[at]
    places = [place for side in ("src_buff", "dst_buff") for place in one.get(side, ()) if "type" in place]
    if places and rng.random() < 0.8:
        rng.choice(places)["type"] = rng.choice("ios")
    elif "channel_type" in one:
        one["channel_type"] = rng.choice(["memory", "port", "switch"])


def entry(rng: random.Random, plan: Plan) -> None:
    """An entry of a list dropped or moved."""
    operations, at = _some(rng, plan)
    lists = [value for value in operations[at].values() if isinstance(value, list) and value]
    if lists:
        chosen = rng.choice(lists)
        if rng.random() < 0.5:
            chosen.pop(rng.randrange(len(chosen)))
        else:
            rng.shuffle(chosen)


def move_block(rng: random.Random, plan: Plan) -> None:
    """Operations of two blocks of a rank change places, or those of one are lost."""
    blocks = rng.choice(plan["gpus"])["threadblocks"]
    if len(blocks) > 1 and rng.random() < 0.6:
        a, b = rng.sample(blocks, 2)
        a["ops"], b["ops"] = b["ops"], a["ops"]
    elif blocks:
        rng.choice(blocks)["ops"].clear()


def semaphore(rng: random.Random, plan: Plan) -> None:
    gpu = rng.choice(plan["gpus"])
    if gpu.get("semaphores"):
        rng.choice(gpu["semaphores"])["init_value"] = rng.choice([1, 2])
    else:
        plan["use_double_scratch_buffer"] = not plan["use_double_scratch_buffer"]


EDITS: tuple[Callable[[random.Random, Plan], None], ...] = (
    drop, drop, swap, swap, double, rename, number, number, kind, entry, move_block, semaphore, drop_everywhere,
)  # fmt: skip


def damaged(rng: random.Random) -> Plan:
    plan: Plan = json.loads(rng.choice(texts()))
    before = json.dumps(plan)
    while json.dumps(plan) == before:
        for _ in range(rng.choice([1, 1, 1, 2])):
            rng.choice(EDITS)(rng, plan)
    return plan


# ---- two judges ----


def seen(plan: Plan, seed: int, runs: int) -> str:
    """What goes wrong in one of so many runs; "" where nothing does."""
    for turn in range(runs):
        try:
            Executor(plan, seed * 1000 + turn, calls=2 + turn % 2).run()
        except WrongError as error:
            return str(error)
        except (KeyError, IndexError, TypeError, ZeroDivisionError) as error:
            return f"names what is not there: {error!r}"
    return ""


def one(seed: int, counts: Counter[str]) -> None:
    rng = random.Random(f"{NAME} {seed}")
    plan = damaged(rng)
    text = json.dumps(plan)
    counts[CASES] += 1
    files = {"plan.json": text}
    try:
        fault = judge(plan_of(text.encode()).code)
    except (Invalid, Unsupported) as error:
        if "\n" in str(error):
            raise Found(f"more than a line: {error}", files) from None
        counts["refused" if seen(plan, seed, FEW) else "refused, not seen"] += 1
        return
    wrong = seen(plan, seed, FEW if fault is None else MANY)
    if fault is None:
        if wrong:
            raise Found(f"judged right, but {wrong}", files)
        counts["right"] += 1
        return
    counts[f"{fault.kind}{'' if wrong else ', not seen'}"] += 1
    if not wrong and fault.kind in ("hang", "wrong", "empty"):
        raise Found(f"nothing goes wrong, but the judge says: {fault}", files)


if __name__ == "__main__":
    main(NAME, one, 600, __doc__)
