"""Files written for runtimes of GPUs, at the command line: judged, priced, run; and whether a runtime will run them.

The files stand here as text: a ring of two and three ranks, written down from the definition of the algorithm.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msccl_cases import FOREIGN as MSCCL_FILES
from mscclpp_cases import FOREIGN as PLANS
from mscclpp_cases import SWITCHED
from quick import in_turn, ordinary

import antiphon
from antiphon.cli import run
from antiphon.errors import Invalid
from antiphon.formats.lint.form import ApplicationCall, Head
from antiphon.formats.lint.msccl import MSCCL, RCCL

Capture = pytest.CaptureFixture[str]


def step(
    number: int, verb: str, src: str, src_at: int, dst: str, dst_at: int, *, after: str = "-1 -1", flag: int = 0
) -> str:
    block, there = after.split()
    return (
        f'<step s="{number}" type="{verb}" srcbuf="{src}" srcoff="{src_at}" dstbuf="{dst}" dstoff="{dst_at}" cnt="1" '
        f'depid="{block}" deps="{there}" hasdep="{flag}"/>'
    )


def allgather(ranks: int) -> str:
    """Around a ring: a block copies and sends what is its own, then sends on what comes, as it comes."""
    gpus = []
    for rank in range(ranks):
        steps = [step(0, "cpy", "i", 0, "o", rank), step(1, "s", "i", 0, "o", rank)]
        for k in range(1, ranks - 1):
            at = (rank - k) % ranks
            steps.append(step(k + 1, "rcs", "o", at, "o", at))
        at = (rank + 1) % ranks
        steps.append(step(ranks, "r", "o", at, "o", at))
        block = (
            f'<tb id="0" send="{(rank + 1) % ranks}" recv="{(rank - 1) % ranks}" chan="0">\n'
            + "\n".join(steps)
            + "\n</tb>"
        )
        gpus.append(f'<gpu id="{rank}" i_chunks="1" o_chunks="{ranks}" s_chunks="0">\n{block}\n</gpu>')
    head = (
        f'<algo name="ring" proto="Simple" nchannels="1" nchunksperloop="{ranks}" ngpus="{ranks}" coll="allgather" '
        'inplace="0" outofplace="1" minBytes="1024" maxBytes="1048576">'
    )
    return head + "\n" + "\n".join(gpus) + "\n</algo>\n"


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    path = tmp_path / "ring.xml"
    path.write_text(allgather(4))
    return path


def told(capsys: Capture, *command: str) -> tuple[int, Any]:
    code = run([*command, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", in_turn([*MSCCL_FILES, *PLANS, "switched"], 3))
def test_files_of_others_are_verified_bounded_priced_and_run(name: str, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "file"
    if name in MSCCL_FILES:
        path.write_bytes(MSCCL_FILES[name])
    else:
        path.write_text(json.dumps({**PLANS, "switched": SWITCHED}[name]))
    ranks = antiphon.load(path).topology.ranks
    on = ("--topology", f"full:ranks={ranks}")
    code, found = told(capsys, "verify", str(path), *on)
    assert (code, found["ok"]) == (0, True)
    figures = found["figures"]
    assert figures["bandwidth_gap"] >= 1 <= figures["latency_gap"]
    code, found = told(capsys, "predict", str(path), *on, "--nbytes", "1MB")
    assert code == 0
    assert found["rows"][0]["seconds"] > 0
    code, found = told(capsys, "run", str(path), "--nbytes", "4KiB")
    assert (code, found["rows"][0]["correct"]) == (0, True)


def test_what_ranks_do_within_themselves_is_no_line_of_steps(tmp_path: Path) -> None:
    """Each of eight ranks adds its own to what comes at another place of the sum."""
    plan = antiphon.plan("allreduce", antiphon.topology("full:ranks=8"), planner="direct")
    for backend in ("msccl-xml", "mscclpp-json"):
        antiphon.export(plan, backend, tmp_path / backend)
        for path in (tmp_path / backend).iterdir():
            if path.suffix != ".py":
                assert antiphon.load(path).entries[0].schedule.steps <= 2, path


def test_a_price_needs_a_machine(ring: Path, capsys: Capture) -> None:
    assert run(["predict", str(ring), "--nbytes", "4MB"]) == 2
    assert "does not name the machine; give it with --topology" in capsys.readouterr().err
    assert run(["predict", str(ring), "--nbytes", "4MB", "--topology", "ring:ranks=8"]) == 2
    assert "it is for 4 ranks" in capsys.readouterr().err
    assert run(["verify", str(ring), "--topology", "hypercube:ranks=4"]) == 1
    assert "no link or path through switches leads from rank" in capsys.readouterr().out
    with pytest.raises(Invalid, match="machine of its own"):
        antiphon.predict(antiphon.plan("allgather", antiphon.topology("ring:ranks=4")), "1MB", topology="ring:ranks=4")


def test_a_file_for_some_gpus_of_a_box(tmp_path: Path, capsys: Capture) -> None:
    """Its ranks are those of only=, in order; so what was exported costs there what was planned."""
    plan, files = tmp_path / "plan.json", tmp_path / "files"
    box = "dgx1v:only=0,1,4,5,6"
    assert run(["plan", "allreduce", box, "--planner", "multi-ring", "-o", str(plan)]) == 0
    for backend in ("msccl-xml",) if ordinary else ("msccl-xml", "mscclpp-json"):
        assert run(["export", str(plan), "--to", backend, "-o", str(files)]) == 0
    seconds = antiphon.predict(antiphon.load(plan, antiphon.Plan), "1MB")[0]["seconds"]
    for path in files.iterdir():
        if path.suffix != ".py":
            on = (str(path), "--topology", box)
            capsys.readouterr()
            assert told(capsys, "verify", *on)[0] == 0
            code, found = told(capsys, "predict", *on, "--nbytes", "1MB")
            assert (code, found["rows"][0]["seconds"]) == (0, seconds)
            assert run(["verify", str(path), "--topology", "dgx1v"]) == 2
            assert "it is for 5 ranks, but dgx1v has 8; give TOPO:only=RANKS" in capsys.readouterr().err
            assert run(["verify", str(path), "--topology", "dgx1v:only=0,1,2,3,7"]) == 1
    assert run(["verify", str(plan), "--only", "0,1,4"]) == 2
    assert "--only: selects ranks of --topology; give --topology TOPO:only=RANKS" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('type="r" srcbuf="o" srcoff="1" dstbuf="o" dstoff="1"', 'type="r" srcbuf="o" srcoff="1" dstbuf="o" dstoff="2"',
         "rank 0, tb 0, step 4 (r)"),
        ('<tb id="0" send="1"', '<tb id="0" send="2"', "rank"),
        ('<step s="1" type="s" srcbuf="i"', '<step s="1" type="nop" srcbuf="i"', "rank"),
        ('depid="-1" deps="-1" hasdep="0"/>\n<step s="2"', 'depid="1" deps="3" hasdep="0"/>\n<step s="2"',
         "rank 0, tb 0, step 1"),
    ],
)  # fmt: skip
def test_a_file_that_is_wrong_says_where(ring: Path, capsys: Capture, old: str, new: str, says: str) -> None:
    text = ring.read_text()
    assert old in text
    ring.write_text(text.replace(old, new, 1))
    code, found = told(capsys, "verify", str(ring))
    assert code == 1
    assert not found["ok"]
    assert says in found["fault"]["message"]
    assert run(["run", str(ring), "--nbytes", "4KB"]) == 1
    assert says in capsys.readouterr().err


def test_hostile_files_are_refused(tmp_path: Path, capsys: Capture) -> None:
    laughs = '<!DOCTYPE a [<!ENTITY b "c"><!ENTITY d "&b;&b;">]>\n' + allgather(2).replace('name="ring"', 'name="&d;"')
    for number, text in enumerate([laughs, "<algo", "<algo>" * 10000, allgather(2)[:400], '{"gpus": [' * 1000]):
        path = tmp_path / f"{number}.xml"
        path.write_text(text)
        assert run(["verify", str(path)]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert "Traceback" not in err


# ---- whether it will run ----

HEAD = Head(
    "msccl-xml", "a.xml", "allreduce", 8, in_place=True, out_of_place=False, min_bytes=1024, max_bytes=2**20, chunks=8,
    channels=2, protocol="LL", verbs=frozenset({"s", "r", "re"}),
)  # fmt: skip
CALL = ApplicationCall(65536, 4, "float32", "sum", 8, in_place=True)


def outcomes(head: Head, call: ApplicationCall, runtime: Any = MSCCL) -> dict[str, str]:
    found: dict[str, str] = {}
    for finding in runtime.check(head, call):
        found[finding.outcome] = found.get(finding.outcome, "") + finding.why
    return found


def test_what_will_run() -> None:
    assert set(outcomes(HEAD, CALL)) == {"note"}
    assert set(outcomes(HEAD, CALL, RCCL)) == {"note"}


@pytest.mark.parametrize(
    ("head", "call", "outcome", "says"),
    [
        ({}, {"ranks": 4}, "ignored", "for 8 ranks, and the communicator has 4"),
        ({}, {"op": "avg"}, "ignored", "operator avg"),
        ({}, {"dtype": "int16", "itemsize": 2}, "refused", "no type int16"),
        ({}, {"nbytes": 65540}, "ignored", "16385 elements of float32 cannot be cut into 8"),
        ({"min_bytes": 0}, {"nbytes": 0}, "ignored", "0 elements"),
        ({}, {"nbytes": 2**21}, "ignored", "outside of its range"),
        ({}, {"nbytes": 512}, "ignored", "outside of its range"),
        ({}, {"in_place": False}, "ignored", "calls out of place are not served"),
        ({"kind": "broadcast", "root": 0}, {"root": 3}, "wrong", "for root 0, the call has root 3"),
        ({"channels": 40}, {}, "refused", "40 channels"),
    ],
)  # fmt: skip
def test_what_will_not(head: dict[str, Any], call: dict[str, Any], outcome: str, says: str) -> None:
    found = outcomes(replace(HEAD, **head), replace(CALL, **call))
    assert says in found[outcome]


def test_only_rccl_leaves_fused_steps_out() -> None:
    fused = replace(HEAD, verbs=frozenset({"s", "rcs"}))
    assert "hangs" not in outcomes(fused, CALL)
    assert "without fused steps (rcs)" in outcomes(fused, CALL, RCCL)["refused"]
    with pytest.raises(Invalid, match="export PLAN --to msccl-xml"):
        RCCL.check(replace(HEAD, format="mscclpp-json"), CALL)


def test_what_a_rank_has_room_for() -> None:
    """RCCL for 64 thread blocks and 128 channels, MSCCL's executor for 1024 and 32; and all blocks run at once."""
    for blocks, channels, msccl, rccl in ((64, 32, "", ""), (65, 33, "refused", "refused"), (64, 33, "refused", "")):
        head = replace(HEAD, channels=channels, extra={"blocks": blocks})
        assert ("refused" in outcomes(head, CALL)) is bool(msccl)
        assert ("refused" in outcomes(head, CALL, RCCL)) is bool(rccl)
    for blocks in (108, 109):
        found = outcomes(replace(HEAD, extra={"blocks": blocks}), CALL)["note"]
        assert (f"{blocks} thread blocks, which must all run at once" in found) is (blocks > 108)


def test_scratch_is_allocated_as_the_file_says(tmp_path: Path, capsys: Capture) -> None:
    """A runtime allocates it whether steps use it or not: of 288 GB and more no GPU has so much."""
    for scratch, more in ((8 * 288 * 10**9 // CALL.nbytes, False), (8 * 288 * 10**9 // CALL.nbytes + 8, True)):
        found = outcomes(replace(HEAD, extra={"scratch": scratch, "used": 8}), CALL)["note"]
        assert ("of scratch for such a call" in found) is more
    path = tmp_path / "ring.xml"
    path.write_text(allgather(4).replace('s_chunks="0"', 's_chunks="2000000000"', 1))
    code, found = told(capsys, "verify", str(path), "--for", "msccl", "--nbytes", "64KiB", "--out-of-place")
    assert (code, found["will_run"]) == (0, True)
    assert "set s_chunks to 0, as many as its steps use" in [one["instead"] for one in found["reasons"]]


@pytest.mark.parametrize("name", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_a_file_in_another_encoding_is_the_same_file(name: str, tmp_path: Path, capsys: Capture) -> None:
    """With a mark or without; and the executor's own parser, which reads bytes, refuses it."""
    path = tmp_path / "ring.xml"
    path.write_bytes(allgather(4).encode(name))
    assert run(["verify", str(path)]) == 0
    assert "right: allgather" in capsys.readouterr().out
    _, found = told(capsys, "verify", str(path), "--for", "msccl", "--nbytes", "64KiB", "--out-of-place")
    says = "a mark of its encoding" if name == "utf-8-sig" else f"it is in {name.upper()}"
    assert any(says in one["why"] for one in found["reasons"])


def test_an_encoding_that_is_not_read_is_named(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "ring.xml"
    for data, says in (
        (allgather(4).encode("utf-32"), "is in an encoding that is not read (UTF-32)"),
        (('<?xml version="1.0" encoding="big5"?>' + allgather(4)).encode(), "is in an encoding that is not read"),
    ):
        path.write_bytes(data)
        assert run(["verify", str(path)]) == 2
        assert says in capsys.readouterr().err


def test_gather_counts_what_one_rank_gives() -> None:
    head = replace(HEAD, kind="gather", ranks=4, min_bytes=0, max_bytes=1024, chunks=1)
    assert "ignored" not in outcomes(head, replace(CALL, nbytes=4096, ranks=4, root=0))
    assert "ignored" in outcomes(head, replace(CALL, nbytes=4100, ranks=4, root=0))
