"""docs/planners agrees with the table of planners: every planner, its collectives, machines, page and options."""

import re
from pathlib import Path

import pytest

from antiphon.core.collective import KINDS
from antiphon.planners.table import ROOTLESS, TABLE
from antiphon.show.listing import entry_row

ROOT = Path(__file__).resolve().parent.parent
ROWS = {
    name: [cell.strip() for cell in cells.split("|")]
    for name, cells in re.findall(
        r"^\| \[`([\w-]+)`\]\(\S+\) \|(.*)\|$", (ROOT / "docs/planners/index.md").read_text(), re.MULTILINE
    )
}


def read_collectives(cell: str) -> set[str]:
    """Return the collectives that a cell of the table names: a list with sets, or "all but" a list."""
    names, _, excluded = cell.partition(" but ")
    sets = {"all": set(KINDS) - {"custom"}, "rootless": set(ROOTLESS)}
    included = set().union(*(sets.get(name, {name}) for name in names.split(", ")))
    return included - set(excluded.split(", "))


def test_every_planner_is_in_the_table() -> None:
    assert set(ROWS) == set(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_the_table_names_collectives_and_machines(name: str) -> None:
    _, collectives, machines, _ = ROWS[name]
    can = TABLE[name].can
    assert read_collectives(collectives) == set(can.collectives)
    assert (machines == "pairs") == can.joined
    assert machines.startswith("any") == can.topologies.startswith("any connected one")
    assert re.findall(r"\d+", machines) == re.findall(r"\d+", can.topologies)


@pytest.mark.parametrize("name", TABLE)
def test_the_page_of_a_planner_has_its_section_and_real_options(name: str) -> None:
    page, _, section = entry_row("planner", name)["page"].partition("#")
    text = (ROOT / page).read_text()
    if section:
        text = re.split(rf"^###? `{section}`$", text, flags=re.MULTILINE)[1]
        text = re.split(r"^##? ", text, flags=re.MULTILINE)[0]
    rows = re.search(r"^\| option \|.*\n\|-.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    if rows and page != "docs/planners/index.md":
        listed = {option for row in rows[1].splitlines() for option in re.findall(r"`(\w+)`", row.split("|")[1])}
        assert listed == set(TABLE[name].options)
