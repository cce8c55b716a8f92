"""Published measurements: what is checked of them, and that ours are many, sourced and split."""

import json
from pathlib import Path

import pytest
from bench_relay import RELAYS_FROM, fitted_relays
from published import FIT, HELD_OUT, published, read_published, relay_sweep, relay_tables

from antiphon.errors import Invalid

ROOT = Path(__file__).resolve().parent.parent
ROWS = [[1024, 16.94, 0.11, 16.17, 0.11], [1073741824, 4029.4, 466.33, 4016.4, 467.84]]


def table(**changed: object) -> dict[str, object]:
    whole = {
        "name": "one", "machine": "a DGX H100", "collective": "allreduce", "ranks": 8, "nodes": 1, "rows": ROWS,
        "source": "a file: https://example.com", "part": "fit",
    }  # fmt: skip
    return whole | changed


def read(*tables: dict[str, object]) -> int:
    text = json.dumps({"format": "antiphon-published", "version": 1, "tables": tables})
    return len(read_published(text.encode()))


def test_rows_as_printed_are_read() -> None:
    assert read(table(), table(name="two", collective="allgather", rows=[[1024, 16.94, 0.05, 16.17, 0.06]])) == 2


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"rows": [[1073741824, 4092.4, 466.33, 4016.4, 467.84], *ROWS[2:]]}, None),  # 1.6 %: a digit may be lost
        ({"rows": [[1073741824, 4290.4, 466.33, 4016.4, 467.84]]}, "466.33 GB/s of bus bandwidth"),
        ({"rows": [[1073741824, 4029.4, 466.33, 4016.4, 233.9]]}, "233.9 GB/s of bus bandwidth"),
        ({"rows": ROWS[::-1]}, "ascending"),
        ({"rows": [[1024, 0, 0.11, 16.17, 0.11]]}, "a time of"),
        ({"ranks": 16}, "bus bandwidth"),
        ({"collective": "alltoall"}, "bus bandwidth"),
        ({"collective": "allduce"}, "not one of"),
        ({"nodes": 3}, "8 ranks on 3 nodes"),
        ({"part": "tuned"}, "expected fit"),
        ({"source": "somewhere"}, "public address"),
        ({"rows": []}, "expected sizes"),
    ],
)
def test_errors_of_transcription_are_caught(changed: dict[str, object], said: str | None) -> None:
    if said is None:
        assert read(table(**changed)) == 1
        return
    with pytest.raises(Invalid, match=said):
        read(table(**changed))


def test_a_name_comes_once() -> None:
    with pytest.raises(Invalid, match="there twice"):
        read(table(), table())


def test_tables_of_many_machines() -> None:
    tables = published()
    assert len(tables) >= 20
    assert len({table.machine for table in tables}) >= 8
    assert {table.library for table in tables} == {"NCCL", "RCCL", "MSCCL"}
    assert {"allreduce", "allgather", "reducescatter", "alltoall", "broadcast"} <= {t.collective for t in tables}


def test_machines_are_in_one_part_only() -> None:
    parts = [{t.machine for t in published() if t.part == part} for part in (FIT, HELD_OUT)]
    assert parts[0]
    assert parts[1]
    assert not parts[0] & parts[1]


def test_the_sweep_of_relays_is_whole() -> None:
    """22 sizes of four collectives among 2 and 4 GPUs; a relay is never twice as slow as RCCL."""
    rows = relay_sweep()
    assert len({(row.collective, row.busy, row.nbytes) for row in rows}) == len(rows) == 4 * 2 * 22
    assert all(row.relay < 2 * row.nccl for row in rows)
    tables = {table.name: table for table in relay_tables()}
    assert tables["mi350x-4-allgather"].rows[-1][0] == 4 * 2**30  # our size: the whole result
    assert {name for name, table in tables.items() if table.part != FIT} == {
        "mi350x-2-allreduce", "mi350x-2-alltoall", "mi350x-4-alltoall",
    }  # fmt: skip


def test_other_rows_of_the_sweep_predict_the_relay_of_an_allreduce() -> None:
    start, rate = fitted_relays()
    assert (start, rate) == pytest.approx((63.5e-6, 42.9e9), rel=2e-3)
    for row in relay_sweep():
        if (row.collective, row.busy) == ("allreduce", 2) and row.nbytes >= RELAYS_FROM["allreduce"]:
            assert start + 2 / 8 * row.nbytes / rate == pytest.approx(row.relay, rel=0.05)


def test_the_page_shows_what_the_bench_kept() -> None:
    kept = json.loads((ROOT / "bench/results/relay.json").read_text())["rows"][-1]
    page = (ROOT / "docs/have/amd.md").read_text()
    for column in ("rccl_measured", "relay_measured", "pipelined_relay_measured", "ours_at_rccl_rate", "links_alone"):
        assert f"{kept[column] * 1e3:.3g}" in page, column
    assert f"to {kept['ours_at_rcclx_rate'] * 1e3:.3g}" in page
