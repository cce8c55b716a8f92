"""Machines read from what tools print: facts that stand in public, and the machines that people draw of them."""

from pathlib import Path

import pytest
from probe_cases import CASES, Case, text_of
from probe_text import cpu, gpu, limits_of, links_of, nic, pci, system, told
from quick import in_turn

from antiphon.formats.probe.probed import Probed
from antiphon.formats.probe.table import read, recognise_source
from antiphon.topologies.nvswitch import NVLS


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "told.txt"
    path.write_text(text, encoding="utf-8")
    return str(path)


def all_cases() -> list[object]:
    return [pytest.param(name, case, id=f"{name}: {case.name}") for name, cases in CASES.items() for case in cases]


@pytest.mark.parametrize(("source", "case"), in_turn(all_cases(), 3))
def test_the_machine_that_a_person_draws(source: str, case: Case, tmp_path: Path) -> None:
    path = written(tmp_path, case.text)
    for name, text in case.files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert recognise_source(path) == source
    found = read([path], options=case.options)
    machine = found.machine
    assert (machine.ranks, machine.switches) == (case.ranks, case.switches)
    assert links_of(machine) == told(machine, case.links)
    assert limits_of(machine) == dict(case.limits)
    assert any(ability == NVLS for ability in machine.abilities) == case.sharp
    for word in case.notes:
        assert any(word in note for note in found.notes), found.notes
    if case.cards is not None:
        assert {card.name: card.nodes for card in found.machine.cards} == case.cards
    assert len(found.names) == machine.ranks
    loggp = found.profile.loggp if found.profile else None
    levels = loggp.levels if loggp else ()
    figures = [(level.within, *(float(f"{value:.10g}") for value in (level.L[0], level.G[0]))) for level in levels]
    assert figures == [(place, float(f"{latency:.10g}"), float(f"{per:.10g}")) for place, latency, per in case.figures]
    assert (loggp.node_radix if loggp else None) == case.ports


def test_every_reader_has_ten() -> None:
    assert all(len(cases) >= 10 for cases in CASES.values())


def nccl(tmp_path: Path, *parts: str) -> Probed:
    return read([written(tmp_path, system(*parts))], "nccl-xml")


def test_cards_that_are_none_or_slow(tmp_path: Path) -> None:
    """What RCCL's files of hosts have beside their cards: an interface of a container, one to manage the host; and the
    plugin of Slingshot tells kbit/s."""
    found = nccl(
        tmp_path,
        cpu(0, pci("11", gpu(0), pci("12", nic("veth608058c", 10000)), kind="0x060400"), nic("eno1", 1000)),
        cpu(1, pci("21", gpu(1), pci("22", nic("cxi0", 200_000_000)))),
    )
    assert [(card.name, card.bandwidth, card.nodes) for card in found.machine.cards] == [("cxi0", 25 * 10**9, (1,))]
    assert any("slow network cards are left out: eno1" in note for note in found.notes)


def test_ranks_are_those_of_nccls_file(tmp_path: Path) -> None:
    """Whatever the order in which the file has its GPUs."""
    found = nccl(tmp_path, cpu(0, *(pci(f"1{rank}", gpu(rank, f"1{rank ^ 1}*4")) for rank in (2, 0, 3, 1))))
    drawn = links_of(found.machine)
    assert {(a, b) for a, b, kind, _ in drawn if kind == "nvlink"} == {(0, 1), (1, 0), (2, 3), (3, 2)}
    swapped = nccl(
        tmp_path,
        cpu(0, *(pci(f"1{place}", gpu(rank, f"1{place ^ 1}*4")) for place, rank in ((0, 3), (1, 0), (2, 1), (3, 2)))),
    )
    drawn = links_of(swapped.machine)
    assert {(a, b) for a, b, kind, _ in drawn if kind == "nvlink"} == {(3, 0), (0, 3), (1, 2), (2, 1)}


def test_a_ring_that_leaves_the_host_is_open(tmp_path: Path) -> None:
    channel = '<channel><net dev="0"/>{}<net dev="0"/></channel>'
    text = f'<graphs><graph id="0" pattern="4" speedintra="20">{channel}</graph></graphs>'
    gpus = "".join(f'<gpu dev="{dev}"/>' for dev in (0, 1, 2, 3))
    machine = read([written(tmp_path, text.format(gpus))]).machine
    assert links_of(machine) == told(machine, "channel 20: 0>1 1>2 2>3")


def test_a_file_with_links_of_one_way_is_drawn_so(tmp_path: Path) -> None:
    """As the file has them: NCCL takes what each GPU says of itself."""
    machine = nccl(tmp_path, cpu(0, pci("10", gpu(0, "11*4")), pci("11", gpu(1, "10*2")))).machine
    assert links_of(machine) == told(machine, "nvlink 100: 0>1; nvlink 50: 1>0")


def test_the_columns_of_a_query_may_be_in_any_order(tmp_path: Path) -> None:
    columns = {"index": "{0}", "name": "NVIDIA A40", "pci.bus_id": "00000000:0{0}:00.0", "pcie.link.gen.max": "4"}
    columns["pcie.link.width.max"] = "16"
    machines = []
    for order in (list(columns), list(columns)[::-1], ["name", "index", *list(columns)[2:]]):
        lines = [", ".join(order), *(", ".join(columns[title] for title in order).format(gpu) for gpu in range(2))]
        path = written(tmp_path, "\n".join(lines))
        assert recognise_source(path) == "nvidia-smi"
        machines.append(read([path]).machine)
    assert machines[0].name == "2 x NVIDIA A40"
    assert all(links_of(machine) == links_of(machines[0]) for machine in machines)
    assert all(machine.name == machines[0].name for machine in machines)


def test_adapters_alone_name_the_switches(tmp_path: Path) -> None:
    text = text_of("ibnetdiscover", "a simulated pair of switches")
    adapters = tmp_path / "adapters.txt"
    adapters.write_text("\n\n".join(block for block in text.split("\n\n") if "\nCa\t" in block))
    assert read([str(adapters)]).machine.places == ("Hca1", "Hca2", "Switch1")


def test_a_network_of_ns3_may_begin_with_a_remark(tmp_path: Path) -> None:
    path = written(tmp_path, "  # nodes, switches, cables\n3 1 2\n2\n0 2 100Gbps 1us\n1 2 100Gbps 1us\n")
    machine = read([path], "netfiles").machine
    assert (machine.ranks, machine.switches, machine.links) == (2, 1, 4)
