"""Dumps of NCCL's RAS: read, compared, priced. Their form: docs.nvidia.com/deeplearning/nccl/user-guide, RAS."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from replay_traces import RAS_TEXT as TEXT
from replay_traces import communicator
from replay_traces import ras as whole

import antiphon
from antiphon.cli import run
from antiphon.cost.replay.counted import Count
from antiphon.errors import AntiphonError, Invalid, Unsupported
from antiphon.formats.jobs import read_recording
from antiphon.formats.nccl_ras import dump, is_ras


def written(folder: Path, *dumps: object) -> list[Path]:
    paths = [folder / f"{number}.json" for number in range(len(dumps))]
    for path, one in zip(paths, dumps, strict=True):
        path.write_text(one if isinstance(one, str) else json.dumps(one))
    return paths


def two(folder: Path, behind: Sequence[int] = ()) -> list[Path]:
    """Ten seconds of eight ranks, and of one half of them."""
    return written(
        folder,
        whole("2026-01-02 03:04:15", communicator("0xa", range(8), 1500, behind), communicator("0xb", [4, 6], 40)),
        whole("2026-01-02 03:04:05", communicator("0xa", range(8), 1000), communicator("0xb", [4, 6], 40)),
    )


def test_json_tells_who_has_called_what(tmp_path: Path) -> None:
    found = read_recording(two(tmp_path, behind=(2, 5)))
    assert isinstance(found, list)
    first, last = found  # in the order of their times
    assert (first.when, last.when) == ("2026-01-02 03:04:05", "2026-01-02 03:04:15")
    large, small = last.communicators
    assert (large.nodes, large.per_node, large.members) == (2, (4, 4), tuple(range(8)))
    assert (large.counts, large.errors) == ({"allreduce": Count(1500, 1499, (2, 5))}, "MISMATCH")
    assert (small.size, small.nodes, small.members, small.errors) == (2, 1, (4, 6), "OK")


def test_states_and_missing_ranks_are_told() -> None:
    one = communicator("0xa", range(4), 7)
    one["ranks"][1]["status"]["async_error"] = 1
    one["ranks"][0]["status"]["abort_flag"] = True
    one["missing_ranks"] = [{"rank": 3, "host": "x"}]
    del one["ranks"][3]
    found = dump(json.dumps(whole("", one)).encode()).communicators[0]
    assert (found.status, found.errors, found.missing) == ("ABORT", "INCOMPLETE,ERROR", (3,))


def test_text_tells_groups_and_what_differs() -> None:
    assert is_ras(TEXT.encode())
    found = dump(TEXT.encode())
    by_name = {one.name: one for one in found.communicators}
    assert not found.complete
    assert set(by_name) == {"27a079b828ff1a75", "#1", "77"}
    assert (by_name["#1"].alike, by_name["#1"].size, by_name["#1"].nodes) == (4, 2, 2)
    assert (by_name["77"].per_node, by_name["77"].errors) == ((3, 4), "INCOMPLETE")
    assert by_name["27a079b828ff1a75"].counts == {
        "allreduce": Count(650, 649, (0, 7)),
        "broadcast": Count(3, 0, (4,)),
    }


def test_older_text_counts_all_kinds_together() -> None:
    text = TEXT.replace("AllReduce operation", "collective operation").split("  Communicator ranks have different Br")[
        0
    ]
    found = antiphon_of(dump(text.encode()))
    assert found == {"": Count(650, 649, (0, 7))}


def test_of_text_only_kinds_that_have_a_price_are_counted(tmp_path: Path) -> None:
    text = TEXT.replace("AllReduce operation", "Send operation").replace("Broadcast operation", "Recv operation")
    found = dump(text.encode())
    assert antiphon_of(found) == {}
    assert found.left_out == ("Send", "Recv")
    one = TEXT.replace("Broadcast operation", "Send operation")
    assert antiphon_of(dump(one.encode())) == {"allreduce": Count(650, 649, (0, 7))}
    notes = antiphon.replay(written(tmp_path, text))["notes"]
    assert "counted, and not priced: Send, Recv" in notes


def test_of_all_kinds_together_no_size_is_asked(tmp_path: Path) -> None:
    text = TEXT.replace("AllReduce operation", "collective operation").split("  Communicator ranks have different Br")[
        0
    ]
    found = antiphon.replay(written(tmp_path, text))
    assert [row["collective"] for row in found["calls"]] == [None]
    assert not any("none is given of" in note for note in found["notes"])
    assert any("all kinds together has no size" in note for note in found["notes"])


def test_text_names_ranks_that_told_nothing() -> None:
    told = {one.name: one.missing for one in dump(TEXT.encode()).communicators}
    assert told == {"27a079b828ff1a75": (), "#1": (), "77": (5,)}
    several = TEXT.replace("The missing rank: 5", "The missing ranks: 5,2")
    assert dump(several.encode()).communicators[-2].missing == (2, 5)
    newer = TEXT.replace("The missing rank: 5", "Rank 5 -- GPU 1 managed by process 105 on node 10.0.0.2")
    assert dump(newer.encode()).communicators[-2].missing == (5,)


def antiphon_of(found: Any) -> Any:
    return next(one.counts for one in found.communicators if one.name.startswith("27"))


def test_two_dumps_tell_how_often_and_with_sizes_what_it_takes(tmp_path: Path) -> None:
    files = two(tmp_path)
    (tmp_path / "m.txt").write_text(
        "# all_reduce_perf -g 8\n 64000000 16000000 float sum -1 500.0 128.0 1.0 0 500.0 128.0 1.0 0\n"
    )
    found = antiphon.replay(files, measured=tmp_path / "m.txt", sizes={"allreduce": "64MB"})
    row, other = found["calls"]
    assert (row["launched"], row["between"], row["per_second"], row["ours"]) == (1500, 500, 50.0, 5e-4)
    assert (other["launched"], other["between"]) == (40, 0)
    assert found["share"] == {"library": None, "ours": pytest.approx(500 * 5e-4 / 10)}
    assert found["step"] is None
    assert not any("neither how large" in note for note in found["notes"])


def test_the_busiest_rank_counts_and_not_all_together(tmp_path: Path) -> None:
    every, left, right = ("0xa", range(8)), ("0xb", range(4)), ("0xc", range(4, 8))
    files = written(
        tmp_path,
        whole("2026-01-02 03:04:05", *(communicator(*one, 0) for one in (every, left, right))),
        whole("2026-01-02 03:04:15", *(communicator(*one, 100) for one in (every, left, right))),
    )
    rows = [{"collective": "allreduce", "nbytes": 1000, "seconds": 0.01}]
    found = antiphon.replay(files, measured=rows, sizes=["allreduce=1KB"])
    assert found["share"]["ours"] == pytest.approx((100 + 100) * 0.01 / 10)


def test_communicators_of_unknown_ranks_are_not_one_rank(tmp_path: Path) -> None:
    """Seven that share none: each takes a tenth of the time, and not together seven tenths."""
    pairs = [communicator(f"0x{n}", [n, n + 8], 100) for n in range(7)]
    for seat in (seat for one in pairs for seat in one["ranks"]):
        seat["host"] = "unknown"
    before = [communicator(f"0x{n}", [n, n + 8], 0) for n in range(7)]
    files = written(tmp_path, whole("2026-01-02 03:04:05", *before), whole("2026-01-02 03:04:15", *pairs))
    rows = [{"collective": "allreduce", "nbytes": 1000, "seconds": 0.01}]
    found = antiphon.replay(files, measured=rows, sizes=["allreduce=1KB"])
    assert found["share"]["ours"] == pytest.approx(0.1)


def test_who_prices_is_asked_for_only_where_there_is_nobody(tmp_path: Path) -> None:
    rows = [{"collective": "allgather", "nbytes": 1000, "seconds": 0.01}]
    files = two(tmp_path)
    nobody = antiphon.replay(files, sizes=["allreduce=1KB"])["notes"]
    assert any("--topology" in note for note in nobody)
    somebody = antiphon.replay(files, measured=rows, sizes=["allreduce=1KB"])["notes"]
    assert not any("--topology" in note for note in somebody)
    assert "nobody prices allreduce among 8 ranks, allreduce among 2 ranks" in somebody


def test_without_sizes_it_says_what_is_missing(tmp_path: Path) -> None:
    found = antiphon.replay(two(tmp_path)[:1])
    assert [row["nbytes"] for row in found["calls"]] == [None, None]
    assert "none is given of allreduce" in found["notes"][0]
    assert "a second one" in found["notes"][1]
    assert found["calls"][0]["per_second"] is None


WORLD = communicator("0xa", range(16), 1000, box=8)
PAIRS = [communicator(f"0xb{n}", [n, n + 8], 40, box=8) for n in range(8)]  # each across both hosts
CLUSTER = "cluster:box=hgx-h100,boxes=2"


def priced(folder: Path, told: Sequence[dict[str, Any]] | str) -> dict[str, Any]:
    files = written(folder, told if isinstance(told, str) else whole("", *told))
    return antiphon.replay(files, CLUSTER, sizes=["allreduce=64MB"], planners="ring")


def members(*ones: dict[str, Any]) -> list[tuple[int, ...]]:
    return [one.members for one in dump(json.dumps(whole("", *ones)).encode()).communicators]


def test_the_library_prices_groups_where_they_are(tmp_path: Path) -> None:
    """Ranks 4 and 6 are within a box, all sixteen are in two, and so is each pair: NCCL takes longer for these."""
    found = priced(tmp_path, [WORLD, communicator("0xc", [4, 6], 300, box=8), *PAIRS])
    large, near, far = found["calls"]
    assert [(row["ranks"], row["nodes"]) for row in found["calls"]] == [(16, 2), (2, 1), (2, 2)]
    assert "network" in large["library_by"]
    assert "network" in far["library_by"]
    assert "network" not in near["library_by"]
    assert 0 < near["library"] < far["library"]
    assert 0 < near["ours"] < far["ours"]
    assert not any("ranks of the machine" in note or "its ranks" in note for note in found["notes"])


@pytest.mark.slow
def test_without_a_communicator_of_all_they_are_where_they_were_with_one(tmp_path: Path) -> None:
    *_, with_world = priced(tmp_path, [WORLD, *PAIRS])["calls"]
    alone = priced(tmp_path, list(reversed(PAIRS)))
    assert len(alone["calls"]) == 1
    for key in ("library", "library_by", "ours", "by"):
        assert alone["calls"][0][key] == with_world[key]
    assert "network" in alone["calls"][0]["library_by"]
    assert {tuple(one["members"]) for one in alone["communicators"]} == {(n, n + 8) for n in range(8)}


def test_gpus_are_numbered_by_host_and_within_it() -> None:
    assert members(*PAIRS[:2]) == [(0, 2), (1, 3)]
    assert members(communicator("0xa", [9, 1], 1), communicator("0xb", [8, 0], 1)) == [(3, 1), (2, 0)]
    far = communicator("0xa", [40, 8], 1)  # hosts 10 and 2
    assert members(far, communicator("0xb", [41, 9], 1)) == [(2, 0), (3, 1)]
    backwards = communicator("0xa", range(15, -1, -1), 1)
    assert members(backwards, communicator("0xb", [0, 1], 1)) == [tuple(range(16)), (15, 14)]


def lost(one: dict[str, Any], rank: int, told: bool) -> dict[str, Any]:
    """The same, where a rank tells nothing; where it was, is known (`told`) or not."""
    gone = next(seat for seat in one["ranks"] if seat["rank"] == rank)
    where = {key: gone[key] for key in ("rank", "nvml_dev")} | {"host": gone["host"] if told else "unknown"}
    return {**one, "ranks": [seat for seat in one["ranks"] if seat is not gone], "missing_ranks": [where]}


def test_a_missing_rank_is_where_it_was() -> None:
    pairs = [lost(PAIRS[0], 1, told=True), *PAIRS[1:]]
    assert members(*pairs) == [(n, n + 8) for n in range(8)]
    assert members(lost(WORLD, 8, told=True), *pairs)[:2] == [tuple(range(16)), (0, 8)]
    dark = [lost(PAIRS[0], 1, told=False), *PAIRS[1:]]
    assert members(lost(WORLD, 8, told=False), *dark)[:3] == [tuple(range(16)), (), (1, 9)]
    assert members(*dark) == [()] * 8  # one GPU fewer would number all after it anew


def test_ranks_that_share_a_gpu_or_tell_no_host_have_no_number() -> None:
    pair = communicator("0xa", [0, 0], 1)
    assert members(pair, communicator("0xb", [1, 2], 1)) == [(), ()]
    dark = [communicator(name, [0, 1], 1) for name in ("0xa", "0xb")]
    for one in (*dark[0]["ranks"], *dark[1]["ranks"]):
        one["host"] = "unknown"
    assert members(*dark) == [(), ()]


def test_where_nobody_knows_where_it_is_there_is_no_price(tmp_path: Path) -> None:
    dark = [lost(PAIRS[0], 1, told=False), *PAIRS[1:]]
    found = priced(tmp_path, dark)
    assert {(row["nodes"], row["library"], row["ours"]) for row in found["calls"]} == {(1, None, None), (2, None, None)}
    assert any("no price by the machine" in note and "2 ranks on 2 nodes" in note for note in found["notes"])
    assert not any("--topology" in note for note in found["notes"])
    within = priced(tmp_path, [lost(PAIRS[0], 1, told=False), communicator("0xc", [1, 3], 9, box=8)])
    assert [row["library"] is None for row in within["calls"]] == [True, False]  # on one node: any two of it


@pytest.mark.slow
def test_text_is_priced_only_where_the_first_ranks_are_as_good(tmp_path: Path) -> None:
    found = priced(tmp_path, TEXT)
    row = next(row for row in found["calls"] if row["collective"] == "allreduce")
    assert (row["ranks"], row["nodes"], row["library"], row["ours"]) == (8, 2, None, None)
    assert any("no price by the machine" in note and "8 ranks on 2 nodes" in note for note in found["notes"])
    near = TEXT.replace("    0         1         2         4 ", "    0         1         1         8 ")
    row = next(row for row in priced(tmp_path, near)["calls"] if row["collective"] == "allreduce")
    assert row["nodes"] == 1
    assert "network" not in row["library_by"]
    every = TEXT.replace(
        "    0         1         2         4         8 ", "    0         1         2         8        16 "
    )
    row = next(row for row in priced(tmp_path, every)["calls"] if row["collective"] == "allreduce")
    assert "network" in row["library_by"]  # 16 of 16


def test_a_machine_that_is_not_so_spread_is_told(tmp_path: Path) -> None:
    """Four ranks on each of two hosts, and the machine has eight in a box."""
    found = priced(tmp_path, [communicator("0xa", range(8), 1)])
    assert any("allreduce among 8 ranks on 2 nodes, of " in note and "on 1" in note for note in found["notes"])


def test_a_communicator_that_stands_still_is_named(tmp_path: Path) -> None:
    stuck = communicator("0xa", range(8), 77, behind=(2, 5))
    found = antiphon.replay(written(tmp_path, whole("2026-01-02 03:04:05", stuck), whole("2026-01-02 03:04:15", stuck)))
    assert any("stands still: allreduce 77, at ranks 2, 5 not" in note for note in found["notes"])
    going = antiphon.replay(two(tmp_path, behind=(2,)))
    assert not any("stands still" in note for note in going["notes"])


def test_the_command_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ras.txt").write_text(TEXT)
    assert run(["replay", str(tmp_path / "ras.txt")]) == 0
    told = capsys.readouterr().out
    assert "one dump of RAS" in told
    assert "INCOMPLETE" in told
    assert "tells counts only where ranks differ" in " ".join(told.split())
    assert max(map(len, told.splitlines())) <= 80


HOSTILE: list[tuple[Callable[[], object], str]] = [
    (lambda: whole("", communicator("0xa", range(4), 2**63)), "tells 9223372036854775808 of"),
    (lambda: whole("", communicator("0xa", range(4), -1)), "tells -1 of"),
    (lambda: whole("", {**communicator("0xa", range(4), 1), "size": 3}), "is not one of its 3"),
    (lambda: whole("", {**communicator("0xa", range(4), 1), "size": 2**40}), "1099511627776 ranks"),
    (lambda: whole("", {**communicator("0xa", [0], 1), "missing_ranks": [{"rank": 0}]}), "twice"),
    (lambda: whole("", communicator("0xa", [0], 1), communicator("0xa", [0], 1)), "is there twice"),
    (lambda: whole("", communicator("", [0], 1)), "without a hash"),
    (lambda: whole("", {**communicator("0xa", [0], 1), "ranks": 7}), "ranks"),
    (lambda: '{"communicators_count": 1', "not valid JSON"),
    (lambda: '"communicators_count"', "expected an object {...}, got .communicators_count."),
    (lambda: TEXT.replace("rank: 5", "rank: 8"), "rank 8 is not one of its 8"),
    (lambda: TEXT.replace("#0-0", "#9-0"), "its table has none"),
    (lambda: TEXT.replace("#0-0", "#0-1"), "its table has none"),
    (lambda: "Group     Comms     Nodes     Ranks\n", "has no row of communicators"),
    (lambda: TEXT.replace("         8         8   RUNNING", "         0         8   RUNNING"), "of 0 ranks"),
]


@pytest.mark.parametrize(("made", "told"), HOSTILE)
def test_what_is_no_dump_is_refused_in_a_line(tmp_path: Path, made: Callable[[], object], told: str) -> None:
    with pytest.raises((Invalid, Unsupported), match=told):
        antiphon.replay(written(tmp_path, made()))


def test_times_that_are_none_and_unknown_names_do_no_harm(tmp_path: Path) -> None:
    one = communicator("0xa", range(2), 5)
    one["ranks"][0]["collective_counts"]["AllToAllV" * 100] = 3
    found = antiphon.replay(written(tmp_path, whole("9" * 999, one), whole("yesterday", one)))
    assert found["seconds"] is None
    assert any("no times" in note for note in found["notes"])
    assert any(note.startswith("counted, and not priced: AllToAllV") and len(note) < 400 for note in found["notes"])


def test_counts_do_not_fall_and_kinds_are_not_mixed(tmp_path: Path) -> None:
    later = _more(tmp_path, whole("2027-01-01 00:00:00", communicator("0xa", range(8), 9)))
    with pytest.raises(Invalid, match="1500 allreduce in one dump, 9 in a later one"):
        antiphon.replay([*two(tmp_path)[:1], *later])
    trace = tmp_path / "rank0.json"
    trace.write_text(json.dumps({"traceEvents": []}))
    with pytest.raises(AntiphonError):
        antiphon.replay([tmp_path / "0.json", trace])


def _more(folder: Path, one: object) -> list[Path]:
    path = folder / "more.json"
    path.write_text(json.dumps(one))
    return [path]


@pytest.mark.parametrize(
    "sizes", [["allreduce"], ["allreduce=0"], {"allreduce": "x"}, ["sum=1KB"], 7, [3], ["a=1"] * 2]
)
def test_sizes_are_checked(tmp_path: Path, sizes: Any) -> None:
    with pytest.raises(Invalid, match="sizes"):
        antiphon.replay(two(tmp_path), sizes=sizes)
