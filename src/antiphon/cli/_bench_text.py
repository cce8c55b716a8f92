"""What `antiphon bench` prints: the table of nccl-tests, with ours beside the library's own and the model's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.cli.run_text import choices_told
from antiphon.cost.basis import together
from antiphon.show.text import table
from antiphon.show.words import library_name
from antiphon.units import format_seconds, format_size

Row = Mapping[str, Any]
ABOUT = ("size", "count", "type", "redop", "root")
PLACE = ("time", "algbw", "busbw", "#wrong")
BESIDE = ("quartiles", "model", "library", "over it")
UNITS = ("(B)", "(elements)", "", "", "", *("(us)", "(GB/s)", "(GB/s)", "") * 2, "(us)", "(us)", "(us)", "")


def bench_text(rows: Sequence[Row]) -> str:
    """A table per plan, and the average bus bandwidth at the end. Lines that are no measurements begin with #."""
    lines: list[str] = []
    for first, mine in _tables(rows):
        lines += [*([""] if lines else []), *_head(first, mine), *_aligned([_cells(*pair) for pair in _pairs(mine)])]
    busbw, wrong = [row["busbw"] for row in rows], sum(row["wrong"] for row in rows)
    lines += ["#", f"# out of bounds values: {wrong} {'FAILED' if wrong else 'OK'}"]
    lines += [f"# average bus bandwidth: {_speed(sum(busbw) / len(busbw))} GB/s", *_remarks(rows)]
    return "\n".join(lines)


def micro_text(rows: Sequence[Row]) -> str:
    """A line for each pattern and size, with the throughput of its busiest link in GB/s."""
    head = ["pattern", "size", "time", "GB/s", "model", "Blink, V100", "wrong"]
    told = [
        [
            row["pattern"], format_size(row["nbytes"]), format_seconds(row["seconds"]), _speed(row["throughput"]),
            *("-" if row[key] is None else _speed(row[key]) for key in ("predicted_throughput", "published")),
            str(row["wrong"]),
        ]
        for row in rows
    ]  # fmt: skip
    return "\n".join(table(head, told))


def _tables(rows: Sequence[Row]) -> list[tuple[Row, list[Row]]]:
    """Rows of one collective and machine stand together."""
    found: list[tuple[Row, list[Row]]] = []
    for row in rows:
        if found and all(found[-1][0][key] == row[key] for key in ("collective", "topology", "ranks")):
            found[-1][1].append(row)
        else:
            found.append((row, [row]))
    return found


def _head(row: Row, mine: Sequence[Row]) -> list[str]:
    told = together([one["predicted_by"] for one in mine if one.get("predicted_by")])
    by = [f"# model: {told}"] if told else []
    return [f"# {row['collective']} on {row['topology']}, {row['ranks']} ranks", *by]


def _pairs(rows: Sequence[Row]) -> list[tuple[Row, Row | None]]:
    """Out of place, and what follows it in place."""
    found: list[tuple[Row, Row | None]] = []
    for row in rows:
        if row["in_place"]:
            found[-1] = found[-1][0], row
        else:
            found.append((row, None))
    return found


def _cells(row: Row, inside: Row | None) -> list[str]:
    low, high = row["quartiles"]
    return [
        str(row["nbytes"]), str(row["count"]), row["dtype"], row["op"] or "none",
        "-1" if row["root"] is None else str(row["root"]),
        *_place(row), *(_place(inside) if inside else ["N/A"] * 4),
        f"{_micro(low)}-{_micro(high)}", _micro(row["predicted_seconds"]), _micro(row["reference_seconds"]),
        "-" if row["over_library"] is None else f"{row['over_library']:.2f}", _by(row),
    ]  # fmt: skip


def _place(row: Row) -> list[str]:
    return [_micro(row["seconds"]), _speed(row["algbw"]), _speed(row["busbw"]), str(row["wrong"])]


def _by(row: Row) -> str:
    served = f" (the table leaves this to {library_name(row['served_by'])})" if row.get("served_by") else ""
    deep = f" pieces={row['pieces']}" if "pieces" in row else ""
    return f"{row['planner'] or 'plan'}{deep}{served}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    table = [[*ABOUT, *PLACE, *PLACE, *BESIDE, "plan"], [*UNITS, ""], *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    right = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
    for number, row in enumerate(table):  # the last column holds names
        right[number] = right[number][: len(right[number]) - widths[-1]] + row[-1]
    before = sum(widths[:5]) + 2 * 5
    out, inside = (sum(widths[k : k + 4]) + 6 for k in (5, 9))
    over = " " * before + "out-of-place".center(out) + "  " + "in-place".center(inside)
    return [f"# {over}".rstrip(), *(f"# {line}".rstrip() for line in right[:2]), *(f"  {line}" for line in right[2:])]


def _micro(seconds: float | None) -> str:
    """Microseconds, as nccl-tests prints them: four digits at least."""
    if seconds is None:
        return "-"
    micro = seconds * 1e6
    return f"{micro:.0f}" if micro >= 1000 else f"{micro:.1f}" if micro >= 100 else f"{micro:.2f}"


def _speed(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.2f}" if bytes_per_second >= 1e7 else f"{bytes_per_second / 1e9:.4f}"


def _remarks(rows: Sequence[Row]) -> list[str]:
    """What the table cannot tell."""
    said = []
    theirs = [row for row in rows if row["reference_wrong"]]
    if theirs:
        row = theirs[0]
        said.append(
            f"# the library's own results differ for {row['dtype']} {row['op']} at {format_size(row['nbytes'])}"
            + (f" and {len(theirs) - 1} more" if len(theirs) > 1 else "")
        )
    if any(row["reference_seconds"] is None for row in rows):
        said.append("# -: there is no such collective of the library's own to compare with")
    return [*said, *(f"# {line}" for line in choices_told(rows))]
