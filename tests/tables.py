"""Cases by the table, one CSV file in tests/tables each: what is given, and what is said of it."""

import csv
from pathlib import Path

FOLDER = Path(__file__).with_name("tables")


def listed(name: str) -> list[tuple[str, ...]]:
    """The rows of a table below its head."""
    with (FOLDER / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return [tuple(row) for row in csv.reader(file)][1:]


def refused(group: str) -> list[tuple[str, ...]]:
    """Wrong command lines of a group (its test makes the files that they name), and what is said of each."""
    return [row[1:] for row in listed("refused-commands") if row[0] == group]
