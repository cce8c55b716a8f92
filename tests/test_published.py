"""Published measurements: what is checked of them, and that ours are many, sourced and split."""

import json

import pytest
from published import FIT, HELD_OUT, published, read_published

from antiphon.errors import Invalid

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
