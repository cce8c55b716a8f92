"""Machines read from what tools print: facts that stand in public, and the machines that people draw of them."""

from __future__ import annotations

from pathlib import Path

import probe_boxes
import probe_nets
import pytest
from probe_text import Case, limits_of, links_of, told

from antiphon.formats.probe.table import read, recognised
from antiphon.topologies.nvswitch import NVLS

CASES = {
    "nvidia-smi": probe_boxes.NVIDIA,
    "rocm-smi": probe_boxes.ROCM,
    "nccl-xml": probe_boxes.NCCL,
    "hwloc": probe_boxes.HWLOC,
    "ibnetdiscover": probe_nets.IB,
    "slurm": probe_nets.SLURM,
    "netfiles": probe_nets.NETFILES,
}


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "told.txt"
    path.write_text(text, encoding="utf-8")
    return str(path)


def all_cases() -> list[object]:
    return [pytest.param(name, case, id=f"{name}: {case.name}") for name, cases in CASES.items() for case in cases]


@pytest.mark.parametrize(("source", "case"), all_cases())
def test_the_machine_that_a_person_draws(source: str, case: Case, tmp_path: Path) -> None:
    path = written(tmp_path, case.text)
    assert recognised(path) == source
    found = read([path], options=case.options)
    machine = found.machine
    assert (machine.ranks, machine.switches) == (case.ranks, case.switches)
    assert links_of(machine) == told(machine, case.links)
    assert limits_of(machine) == dict(case.limits)
    assert any(ability == NVLS for ability in machine.abilities) == case.sharp
    for word in case.notes:
        assert any(word in note for note in found.notes), found.notes
    if case.cards is not None:
        assert {card.name: card.nodes for card in found.cards} == case.cards
    assert len(found.names) == machine.ranks


def test_every_reader_has_ten() -> None:
    assert all(len(cases) >= 10 for cases in CASES.values())
