"""Run a sweep: plan every cell once, and gather the figures in one table.

A cell is a machine and a collective; planning it is a question to the store. Cells with the same question (the same
fabric under two names) are planned once. What the store holds is not planned again, so an interrupted sweep continues.
The table is in the order of the sweep's file, independent of the order of planning.

Machines are compared by their relative time: the geometric mean of their times, over collectives and sizes, divided by
that of the fastest machine, the one with the least mean. A machine is on the Pareto front of a price list if no other
machine beats it, that is, is at least as cheap and as fast, and strictly better in price or time. Example: A costs 1
and takes 2.0, B costs 2 and takes 1.0, C costs 2 and takes 1.5: A and B are on the front.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from antiphon.core.display import Explorable
from antiphon.core.files import read_bytes, reading, write_bytes
from antiphon.errors import AntiphonError, Invalid, Missing
from antiphon.isolate import run_jobs
from antiphon.select.store import Answer, Question, SizeFigures, Store
from antiphon.sweeps.request import COLUMNS, REFUSED, Cell, SweepRequest, plan_cell

Progress = Callable[[int, int, str], None]  # called with cells planned, cells to plan, and the cell in words
NOT_REACHED = "not planned: the sweep was interrupted"


@dataclass(frozen=True)
class MachineResult:
    """All figures of one machine in a few numbers."""

    machine: str
    ranks: int | None
    relative_time: float | None  # geometric mean; None: not all of its cells have a plan
    gap: float | None  # the greatest of its cells
    price: Mapping[str, float | None]  # by price list
    on_front: tuple[str, ...]  # the price lists by which it is on the Pareto front
    refused: str = ""  # why cells have no plan


@dataclass(frozen=True, eq=False)
class SweepResult(Explorable):
    """The table of a sweep: the figures of every cell, in the order of its file."""

    request: SweepRequest
    answers: tuple[tuple[SizeFigures, ...] | str, ...]  # by cell: its figures, a row per size, or why it has no plan
    planned: int  # questions that this run planned; the others were in the store, or refused
    complete: bool = True  # False: interrupted
    stopped: int = 0  # cells in which the budget stopped a planner; the next run plans them again

    def __repr__(self) -> str:
        refused = sum(isinstance(answer, str) for answer in self.answers)
        remark = f", {refused} of them without plans" * bool(refused)
        return f"SweepResult({len(self.request.ranks)} machines, {len(self.answers)} cells{remark})"

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a dictionary per machine, collective and size: COLUMNS, a price per price list, and `refused`.

        `gap`: `seconds` over the lower bound. A cell without a plan has one row, with the reason as `refused`.
        """
        for cell, answer in zip(self.request.cells, self.answers, strict=True):
            prices = {name: by_machine[cell.machine] for name, by_machine in self.request.prices.items()}
            cell_columns = {
                "machine": cell.machine, "ranks": self.request.ranks.get(cell.machine), "collective": cell.collective,
            }  # fmt: skip
            figures = {"nbytes": None, "planner": None, "seconds": None, "gap": None, "library_seconds": None}
            if isinstance(answer, str):
                yield {**cell_columns, **figures, **prices, REFUSED: answer}
                continue
            for row in answer:
                values = (row.nbytes, row.planner, row.seconds, row.gap, row.library_seconds)
                yield {**cell_columns, **dict(zip(figures, values, strict=True)), **prices, REFUSED: None}

    def machines(self) -> list[MachineResult]:
        """Return the machines, the fastest first; those without all plans last."""
        answers_of: dict[str, list[tuple[SizeFigures, ...] | str]] = {}
        for cell, answer in zip(self.request.cells, self.answers, strict=True):
            answers_of.setdefault(cell.machine, []).append(answer)
        # machines without all plans do not count: their mean would be over fewer times
        means = {machine: _mean_seconds(answers) for machine, answers in answers_of.items()}
        shortest = min((seconds for seconds in means.values() if seconds is not None), default=None)
        results = [self._summary(machine, answers, means[machine], shortest) for machine, answers in answers_of.items()]
        results.sort(key=lambda r: math.inf if r.relative_time is None else r.relative_time)
        return [_with_fronts(result, results) for result in results]

    def _summary(
        self, machine: str, answers: list[tuple[SizeFigures, ...] | str], seconds: float | None, shortest: float | None
    ) -> MachineResult:
        """Summarize the answers of a machine. `seconds`: their mean; `shortest`: that of the fastest machine."""
        planned = [answer for answer in answers if not isinstance(answer, str)]
        gaps = [row.gap for answer in planned for row in answer if row.gap is not None]
        return MachineResult(
            machine, self.request.ranks.get(machine),
            relative_time=seconds / shortest if seconds is not None and shortest else None, gap=max(gaps, default=None),
            price={name: by_machine[machine] for name, by_machine in self.request.prices.items()},
            on_front=(),  # `_with_fronts` sets it, when all machines are known
            refused=next((answer for answer in answers if isinstance(answer, str)), ""),
        )  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON. Keys are stable."""
        return {
            "complete": self.complete,
            "planned": self.planned,
            "stopped": self.stopped,
            "machines": [
                {
                    "machine": m.machine, "ranks": m.ranks, "relative_time": m.relative_time, "gap": m.gap,
                    "price": dict(m.price), "on_front": list(m.on_front), "refused": m.refused or None,
                }
                for m in self.machines()
            ],
            "rows": list(self.rows()),
        }  # fmt: skip

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all rows as CSV, or as Parquet (.parquet, with the extra `parquet`)."""
        rows = list(self.rows())
        check_table_format(path)
        if Path(path).suffix == ".parquet":
            write_bytes(path, _parquet(rows))
            return
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_bytes(path, text.getvalue().encode())


def load_sweep(path: str | os.PathLike[str]) -> SweepResult:
    """Read the CSV that `SweepResult.save` wrote. Its results can be compared; the sweep cannot be run again."""
    name = os.fspath(path)
    with reading(name):
        table = csv.DictReader(io.StringIO(read_bytes(path).decode("utf-8", "replace"), newline=""))
        head = list(table.fieldnames or ())
        if head[: len(COLUMNS)] != COLUMNS or head[-1:] != [REFUSED]:
            columns = f"{', '.join(COLUMNS)}, prices, {REFUSED}"
            raise Invalid(f"is no result of `antiphon sweep -o`; its columns are {columns}")
        prices: dict[str, dict[str, float | None]] = {label: {} for label in head[len(COLUMNS) : -1]}
        ranks: dict[str, int] = {}
        answers: dict[tuple[str, str], list[SizeFigures] | str] = {}
        for number, row in enumerate(table, start=2):  # line 1 is the head
            try:
                machine, key = row["machine"], (row["machine"], row["collective"])
                if row["ranks"]:
                    ranks[machine] = int(row["ranks"])
                for label, by_machine in prices.items():
                    by_machine[machine] = float(row[label]) if row[label] else None
                rows = answers.setdefault(key, row[REFUSED] or [])
                if not isinstance(rows, str):
                    rows.append(_read_row(row))
            except (TypeError, ValueError) as error:
                raise Invalid(f"line {number}: cannot be read ({error})") from None
        if not answers:
            raise Invalid("holds no rows")
    sizes = sorted({row.nbytes for rows in answers.values() if not isinstance(rows, str) for row in rows})
    cells = tuple(
        Cell(machine, kind, question=None, refused=a if isinstance(a, str) else "")
        for (machine, kind), a in answers.items()
    )
    request = SweepRequest(cells, tuple(sizes), prices, budget=0.0, ranks=ranks)
    return SweepResult(request, tuple(a if isinstance(a, str) else tuple(a) for a in answers.values()), planned=0)


def _read_row(row: Mapping[str, str]) -> SizeFigures:
    """Return the figures of one row; the lower bound follows from the gap. ValueError if a number is wrong."""
    seconds = float(row["seconds"])
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError("seconds must be a number above 0")
    gap = float(row["gap"]) if row["gap"] else None
    if gap is not None and not gap > 0:
        raise ValueError("gap must be a number above 0")
    least_seconds = None if gap is None else seconds / gap
    library = float(row["library_seconds"]) if row["library_seconds"] else None
    return SizeFigures(int(row["nbytes"]), row["planner"], seconds, least_seconds, library)


def check_table_format(path: str | os.PathLike[str]) -> None:
    """Raise Missing if `SweepResult.save` could not write this kind of file: for use before long work."""
    if Path(path).suffix == ".parquet" and find_spec("pyarrow") is None:
        raise Missing("writing Parquet needs pyarrow; pip install 'antiphon[parquet]', or write .csv")


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    """Return the rows as a Parquet file. A column has the same type in every file, even if it is empty."""
    import pyarrow
    import pyarrow.parquet

    types = dict.fromkeys(rows[0], pyarrow.float64())  # prices and the other figures
    types |= dict.fromkeys(("machine", "collective", "planner", REFUSED), pyarrow.string())
    types |= dict.fromkeys(("ranks", "nbytes"), pyarrow.int64())
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, pyarrow.schema(types)), sink)
    return bytes(sink.getvalue())


def _mean_seconds(answers: list[tuple[SizeFigures, ...] | str]) -> float | None:
    """Return the geometric mean of a machine's times; None if a cell has no plan."""
    logs = []
    for answer in answers:
        if isinstance(answer, str):
            return None
        logs += [math.log(row.seconds) for row in answer]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None


def _with_fronts(result: MachineResult, results: list[MachineResult]) -> MachineResult:
    """Return the machine with the price lists by which it is on the Pareto front."""
    fronts = []
    for name, price in result.price.items():
        if price is None or result.relative_time is None:
            continue
        rivals = (  # (price, relative time) of each machine, this one included
            (other.price[name], other.relative_time) for other in results
            if other.price[name] is not None and other.relative_time is not None
        )  # fmt: skip
        time = result.relative_time
        if not any(p <= price and t <= time and (p, t) != (price, time) for p, t in rivals):  # type: ignore[operator]
            fronts.append(name)
    return replace(result, on_front=tuple(fronts))


def run_sweep(
    request: SweepRequest, *, store: Store | None = None, engine: str = "processes", progress: Progress | None = None
) -> SweepResult:
    """Plan every cell, and return the table. After Ctrl-C it has the cells planned so far, which the store keeps."""
    figures: dict[int, tuple[SizeFigures, ...] | str] = {i: c.refused for i, c in enumerate(request.cells) if c.refused}
    cells_of: dict[str, list[int]] = {}  # cells with the same question, by its address in the store
    questions: dict[str, Question] = {}  # likewise
    for i, cell in enumerate(request.cells):
        if cell.question is not None:
            questions[cell.question.address] = cell.question
            cells_of.setdefault(cell.question.address, []).append(i)
    # Questions to plan, each under the number of its first cell, with the budget in CPU seconds
    jobs: dict[int, tuple[Question, float]] = {}
    for address, cells in cells_of.items():
        question = questions[address]
        stored = _look_up(store, question)
        if stored is None:
            jobs[cells[0]] = question, request.budget
        else:
            figures |= dict.fromkeys(cells, stored.rows)
    if store is not None and jobs:
        store.prepare()
    planned, stopped, complete = 0, 0, True
    try:
        for number, result in run_jobs(plan_cell, jobs, engine):
            question, _ = jobs[number]
            cells = cells_of[question.address]
            figures |= dict.fromkeys(cells, str(result) if isinstance(result, AntiphonError) else result.rows)
            planned += 1
            if isinstance(result, Answer):
                stopped += len(cells) if result.stopped else 0
                if store is not None:
                    store.put(question, result)
            if progress is not None:
                cell = request.cells[number]
                progress(planned, len(jobs), f"{cell.collective} on {cell.machine}")
    except KeyboardInterrupt:
        complete = False
    answers = tuple(figures.get(i, NOT_REACHED) for i in range(len(request.cells)))
    return SweepResult(request, answers, planned, complete, stopped)


def shared_prefix(names: list[str]) -> str:
    """Return what all names begin with, up to an option: "ring:ranks=4," of "ring:ranks=4,latency=1us", ..."""
    # the names that are first and last in order differ the earliest
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(min(names), max(names), strict=False))
    prefix = "".join(letter for letter, _ in pairs)
    return prefix[: max(prefix.rfind(","), prefix.rfind(":")) + 1] if len(names) > 1 else ""


def _look_up(store: Store | None, question: Question) -> Answer | None:
    """Return the answer in the store; None where there is none, or where it is damaged and must be planned again."""
    try:
        return None if store is None else store.get(question)
    except Invalid:
        return None
