"""Plans of MSCCL++ in which switches add and multicast: written, read back, judged, and damaged."""

import copy
import json
import random
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import _mscclpp_executor as executor
import numpy as np
import pytest
from entries import mscclpp_json
from quick import in_turn

import antiphon
from antiphon.cli import run
from antiphon.core.example import of_rows
from antiphon.core.plan import Entry, Plan
from antiphon.core.topology import Ability, LinkType, Topology, both_ways, build
from antiphon.core.verify import verify
from antiphon.errors import Invalid, Unsupported
from antiphon.formats.foreign import reader_of
from antiphon.formats.lint.form import ApplicationCall
from antiphon.formats.lint.mscclpp import MSCCLPP
from antiphon.formats.mscclpp import groups
from antiphon.formats.mscclpp.read import plan_of
from antiphon.lower.machine.code import Code
from antiphon.lower.machine.judge import judge
from antiphon.lower.machine.to_schedule import code_to_schedule

Row = dict[str, Any]


def star(ranks: int, **more: int) -> Topology:
    """Ranks around one switch that adds and multicasts."""
    able = Ability(multicast=True, reduce=True, own=True, **more)
    links = both_ways([(rank, ranks) for rank in range(ranks)], LinkType("port", Fraction(10**9), 1e-6))
    return build("star", ranks, links, switches=1, abilities=[able])


def files(
    kind: str, machine: Topology, planner: str = "nvls", alone: bool = False, blocks: int = 32, **options: Any
) -> dict[str, Row]:
    plan = antiphon.plan(kind, machine, planner=planner, options=options)
    made = mscclpp_json({plan.collective.kind: plan}, alone=alone, blocks=blocks)
    return {name: json.loads(text) for name, text in made.items() if name.endswith(".json")}


def read(plan: Row) -> Code:
    return plan_of(json.dumps(plan).encode()).code


def operations(plan: Row, name: str) -> list[tuple[list[Row], int]]:
    """Where operations of a name stand: the list, and the place in it; of a group of blocks those of the first."""
    every = [block["ops"] for gpu in plan["gpus"] for block in gpu["threadblocks"]]
    first = {"tb_id": 0}
    return [(ops, at) for ops in every for at, one in enumerate(ops)
            if one["name"] == name and one.get("tbg_info", first)["tb_id"] == 0]  # fmt: skip


def count(plan: Row, *names: str) -> list[int]:
    return [len(operations(plan, name)) for name in names]


@pytest.mark.parametrize("ranks", in_turn(range(3, 10), 7))
@pytest.mark.parametrize("pieces", [1, 4])
def test_an_allreduce_is_one_operation_of_each_rank(ranks: int, pieces: int) -> None:
    made = files("allreduce", star(ranks), pieces=pieces)
    assert list(made) == ["plan0.json", "plan0-in-place.json"]
    for name, plan in made.items():
        code = read(plan)
        assert judge(code, orders=6) is None, name
        assert count(plan, "glres", "gstore", "put", "re", "res", "copy") == [ranks, 0, 0, 0, 0, 0]
        assert all(gpu["scratch_chunks"] == 0 for gpu in plan["gpus"])
        assert verify(code_to_schedule(code), antiphon.topology(f"full:ranks={ranks}")).fault is None


@pytest.mark.parametrize("kind", in_turn(["broadcast", "allgather"]))
def test_a_multicast_is_one_operation_of_its_source(kind: str) -> None:
    for plan in files(kind, star(5)).values():
        assert judge(read(plan), orders=6) is None
        assert count(plan, "gstore", "glres", "put", "copy") == [5 if kind == "allgather" else 1, 0, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["hgx-h100", "gb200-nvl72"])
def test_machines_of_the_catalogue(machine: str) -> None:
    for plan in files("allreduce", antiphon.topology(machine), pieces=1).values():
        assert judge(read(plan)) is None
        ranks = len(plan["gpus"])
        assert count(plan, "glres") == [ranks]
        for gpu in plan["gpus"]:
            groups = [row for row in gpu["channels"] if row["channel_type"] == "switch"]
            assert groups == [
                {"channel_type": "switch", "buffer_type": kind,
                 "rank_groups": [{"size": ranks, "ranks": list(range(ranks))}]}
                for kind in (["o"] if plan["inplace"] else ["i", "o"])
            ]  # fmt: skip


@pytest.mark.parametrize(("kind", "blocks"), [
    pytest.param("allreduce", 8, marks=pytest.mark.slow), pytest.param("allgather", 32, marks=pytest.mark.slow),
    ("broadcast", 4),
])  # fmt: skip
def test_a_group_of_blocks_shares_the_signals_to_many_partners(kind: str, blocks: int) -> None:
    """19 partners of a rank are more than a block has channels for; each block has some, and all move data."""
    for plan in files(kind, star(20), blocks=blocks).values():
        assert judge(read(plan), orders=3) is None
        for gpu in plan["gpus"]:
            (channels,) = (row["connected_to"] for row in gpu["channels"] if row["channel_type"] == "memory")
            assert len(channels) == len(set(channels))
            if len(channels) > 16:
                assert len(gpu["threadblocks"]) == blocks
                assert all({"glres", "gstore"} & {one["name"] for one in block["ops"]} for block in gpu["threadblocks"])
        for name in ("signal", "wait", "barrier"):
            for at in (0, -1):
                harmed = copy.deepcopy(plan)
                ops, place = operations(harmed, name)[at]
                del ops[place]
                try:
                    is_noticed = judge(read(harmed)) is not None
                except Invalid:  # others go to the barrier more often
                    is_noticed = True
                assert is_noticed, (name, at)


def run_orders(plan: Row, seeds: int) -> None:
    for seed in range(seeds):
        executor.Executor(plan, seed, calls=2).run()


@pytest.mark.parametrize("kind", in_turn(["allreduce", "allgather", "broadcast"], 2))
def test_shared_signals_as_the_executor_runs_them(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a block had channels for two partners alone; without a barrier some order of the threads goes wrong."""
    for most in (2, 16):
        monkeypatch.setattr(groups, "MOST_CHANNELS", most)
        for plan in files(kind, star(4), blocks=4).values():
            assert any(operations(plan, "barrier")) == (most == 2)
            run_orders(plan, 4)
            if most == 2:
                for gpu in plan["gpus"]:
                    for block in gpu["threadblocks"]:
                        block["ops"] = [one for one in block["ops"] if one["name"] != "barrier"]
                with pytest.raises(executor.WrongError):
                    run_orders(plan, 30)


def test_plain_transfers_beside_switches() -> None:
    for plan in files("allreduce", star(4, at_once=2), pieces=8, beside=True).values():
        assert judge(read(plan), orders=6) is None
        glres, put = count(plan, "glres", "put")
        assert glres > 0 < put


@pytest.mark.parametrize("kind", in_turn(["reduce", "reducescatter"]))
def test_what_cannot_be_said_is_refused_and_written_row_by_row_when_asked(kind: str) -> None:
    with pytest.raises(Unsupported, match=r"no reduction by switches without the multicast.*does without switches"):
        files(kind, star(4))
    for plan in files(kind, star(4), alone=True).values():
        assert judge(read(plan)) is None
        assert count(plan, "glres", "gstore") == [0, 0]
    with pytest.raises(Unsupported, match=r"without touching a rank.*does without switches"):
        files("allreduce", star(4, through=True), planner="sharp")


def rows(*steps: str) -> list[tuple[int, int, int, int, int]]:
    """Of one chunk, by step: "1+0" adds what rank 1 has to that of rank 0, "0-1" copies it."""
    made = []
    for step, some in enumerate(steps):
        for one in some.split():
            made.append((step, 0, int(one[0]), int(one[2]), int(one[1] == "+")))
    return made


ALIKE = "one place that is the same at all ranks"
REFUSED = {
    "a copy of the sum goes first": (rows("1+0 2+0", "0-1", "0-1 0-2"), [0, 0, -1, 1, 1], "something comes between"),
    "one has it elsewhere": (
        rows("3+1 4+0", "1+0 2+0", "0-1 0-2", "0-3 0-4"), [-1, -1, 0, 0, 1, 1, -1, -1], ALIKE,
    ),
    "the end has its own elsewhere": (rows("3+0", "1+0 2+0", "0-1 0-2", "0-3"), [-1, 0, 0, 1, 1, -1], ALIKE),
    "into scratch": (rows("0+1 0+2 1+0 1+2 2+0 2+1"), [0, 0, 1, 1, 2, 2], ALIKE),
    "nothing there at the source": (
        rows("1+3", "0+1 0+2", "3+2", "2-0 2-1 2-3"), [-1, 0, 0, -1, -1, -1, -1], "something else there",
    ),
    "not to all": (rows("1+0 2+0 3+0", "0-1 0-2 0-3"), [0, 0, 0, 1, 1, -1], "without the multicast of its sum"),
}  # fmt: skip


def by_hand(rows: list[tuple[int, int, int, int, int]], joint: list[int], alone: bool = False) -> list[Row]:
    ranks = 1 + max(row[3] for row in rows)
    schedule = replace(of_rows("allreduce", ranks, list(rows)), joint=np.array(joint))
    plan = Plan(star(ranks), schedule.collective, (Entry(0, None, schedule),))
    made = mscclpp_json({plan.collective.kind: plan}, alone=alone)
    return [json.loads(text) for name, text in made.items() if name.endswith(".json")]


def test_a_group_adds_what_its_ranks_have_added() -> None:
    """Each of three ranks adds that of another first, and sends it the sum in the end."""
    made = by_hand(rows("3+0 4+1 5+2", "1+0 2+0", "0-1 0-2", "0-3 1-4 2-5"), [-1, -1, -1, 0, 0, 1, 1, -1, -1, -1])
    for plan in made:
        assert judge(read(plan), orders=6) is None
        assert count(plan, "glres") == [1]
        assert [len(gpu["channels"]) for gpu in plan["gpus"]] == [2, 2, 2, 1, 1, 1]


@pytest.mark.parametrize("what", REFUSED)
def test_what_switches_would_do_at_other_places_or_times_is_refused(what: str) -> None:
    rows, joint, why = REFUSED[what]
    with pytest.raises(Unsupported, match=f"{why}.*does without switches"):
        by_hand(rows, joint)
    for plan in by_hand(rows, joint, alone=True):
        assert judge(read(plan)) is None


def damaged(plan: Row, seed: int) -> tuple[str, Row]:
    """Something that makes a difference, and what it is."""
    rng, plan = random.Random(seed), copy.deepcopy(plan)
    what = ("place", "signal", "wait", "sync", "twice", "operation", "group")[seed % 7]
    name = {"place": "glres", "signal": "signal", "wait": "wait", "sync": "nop"}.get(what, "glres")
    ops, at = rng.choice(operations(plan, name))
    if what == "place":
        place = rng.choice([*ops[at]["src_buff"], *ops[at]["dst_buff"]])
        place["index"] = (place["index"] + rng.randrange(1, 4)) % 4
    elif what == "twice":
        ops.insert(at, ops[at])
    elif what == "group":
        gpu = rng.choice(plan["gpus"])
        next(row for row in gpu["channels"] if row["channel_type"] == "switch")["rank_groups"][0]["ranks"].pop()
    else:
        del ops[at]
    return what, plan


@pytest.mark.parametrize("seed", in_turn(range(56), 14))
@pytest.mark.parametrize("name", ["plan0.json", "plan0-in-place.json"])
def test_damage_is_found(name: str, seed: int) -> None:
    """But in the one case where it does no harm: to add twice what lies elsewhere."""
    what, plan = damaged(files("allreduce", star(4), pieces=1)[name], seed)
    if what == "group":
        with pytest.raises(Invalid, match="group"):
            read(plan)
    else:
        assert (judge(read(plan)) is None) == (what == "twice" and not plan["inplace"]), what


def test_types_that_switches_do_not_add_are_refused() -> None:
    (plan, _) = files("allreduce", star(4), pieces=1).values()
    reader = reader_of(data := json.dumps(plan).encode())
    assert reader is not None
    head = reader(data, "plan0.json").head
    for dtype, refused in (("bfloat16", False), ("float8_e4m3fn", True)):
        found = MSCCLPP.check(head, ApplicationCall(4096, 2, dtype, "sum", 4, False))
        assert any("switches add" in one.why for one in found) == refused
        assert any("memory that is allocated for them" in one.why for one in found)


def test_the_command_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.json"
    assert run(["plan", "allreduce", "hgx-h100", "--planner", "nvls", "-o", str(plan)]) == 0
    assert run(["export", str(plan), "--to", "mscclpp-json", "-o", str(tmp_path / "made")]) == 0
    assert run(["verify", str(tmp_path / "made" / "plan0.json")]) == 0
    assert b"glres" in (tmp_path / "made" / "plan0.json").read_bytes()
    arguments = ["export", str(plan), "--to", "mscclpp-json:alone=yes", "-o", str(tmp_path / "alone")]
    assert run(arguments) == 0
    assert b"glres" not in (tmp_path / "alone" / "plan0.json").read_bytes()
